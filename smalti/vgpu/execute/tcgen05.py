"""Executors of tcgen05 (PTX 9.7.16): resolve operands, check who executes, hand operations to the tensor core.

Arithmetic and layouts are the engine's business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from smalti.errors import SmaltiError, error
from smalti.layout.descriptors import SmemDescriptor, decode_smem
from smalti.layout.instruction import decode_idesc, mma_k
from smalti.ptx.module import Address, Immediate, Vector
from smalti.vgpu.engines import order, tensor_cells
from smalti.vgpu.engines.mbarrier import place
from smalti.vgpu.engines.tcgen05 import Commit, Copy, Load, Mma, OpsWait, Product, Shift, Store, TensorOp, split_address
from smalti.vgpu.engines.tensor_memory import COLUMNS, TensorMemory, group_ctas, tensor_memory
from smalti.vgpu.execute import Context, Operation, Result, executor
from smalti.vgpu.execute.barrier import assemble, executing
from smalti.vgpu.machine import CTA
from smalti.vgpu.program import Step
from smalti.vgpu.warp import WARP, Gang, Wait

_ISSUED = "tcgen05.issued"  # cluster: thread -> bits of its mma, cp and shift operations
_OUT = {"ld": "tcgen05.ld", "st": "tcgen05.st"}  # warp: operations not yet waited for
_WAITED = "tcgen05.waited"  # warp: bits of waited-for ld and st that no before_thread_sync has published yet


def _group(step: Step) -> int:
    return int(step.form.get("cta_group")[-1])


def _warp_wide(context: Context, step: Step, body: Callable[[Gang], Result]) -> Operation:
    """A .sync.aligned operation: whole warps take part, the guard included."""
    lanes = executing(context, step)

    def op(g: Gang) -> Result:
        here = assemble(g, step, lanes, True)
        return here if here is None or isinstance(here, Wait) else body(g)

    return op


# -- allocation ----------------------------------------------------------------------------------------


class PairWait(Wait):
    """The other CTA of the pair has not executed its half of a collective allocation yet."""

    advance = True

    def __init__(self, peer: TensorMemory, calls: int, what: str) -> None:
        self.peer, self.calls, self.what = peer, calls, what

    def ready(self) -> bool:
        return len(self.peer.collective) >= self.calls

    def describe(self) -> str:
        return f"waiting for CTA {self.peer.cta.name}, the other of the pair, to execute {self.what}"


class ColumnsWait(Wait):
    """Waiting for tensor memory to be freed."""

    def __init__(self, memory: TensorMemory, columns: int) -> None:
        self.memory, self.columns = memory, columns

    def ready(self) -> bool:
        return self.memory.find(self.columns) is not None

    def describe(self) -> str:
        free = COLUMNS - int(np.count_nonzero(self.memory.owned))
        return f"waiting for {self.columns} free columns of tensor memory ({free} are free)"


def _meet(g: Gang, memory: TensorMemory, group: int, what: str, columns: int) -> Result:
    """The two CTAs of a pair allocate together, in the same order and with the same sizes. Errors: SML0868."""
    if group == 1:
        return None
    memory.collective.append((what, columns))
    n = len(memory.collective)
    g.machine.memory.version += 1
    (peer,) = (tensor_memory(c) for c in group_ctas(g.cta, 2) if c is not g.cta)
    if len(peer.collective) >= n:
        if peer.collective[n - 1] != (what, columns):
            raise error("SML0868", at=g.loc, mine=f"{what} of {columns} columns",
                        other="{} of {} columns".format(*peer.collective[n - 1]), who=g.who())  # fmt: skip
        return None
    return PairWait(peer, n, what)


def _columns(g: Gang, step: Step, source: Any) -> int:
    n = _one(source(g), g)
    if n not in (32, 64, 128, 256, 512):
        nearest = min((32, 64, 128, 256, 512), key=lambda c: (abs(c - n), c))
        raise error("SML0869", at=step.loc, columns=n, nearest=nearest, who=g.who())
    return n


@executor("tcgen05.alloc", own_guard=True)
def _alloc(context: Context, step: Step) -> Operation:
    bound = context.bind(step)
    space = "shared"
    target = context.address(bound["a"], step.form.get("shared::cta"))
    columns = context.source(bound["columns"], "u32")
    group = _group(step)

    def body(g: Gang) -> Result:
        memory = tensor_memory(g.cta)
        memory.use_group(g, group)
        n = _columns(g, step, columns)
        if not memory.permit:
            raise error("SML0870", at=step.loc, who=g.who())
        start = memory.find(n)
        if start is None:
            return ColumnsWait(memory, n)
        memory.take(start, n)
        address = np.array([_one(target(g), g)], np.int64)
        lanes = g.lanes()[:1]
        where = space if "shared::cta" in step.form else "generic"
        g.machine.memory.store(g, g.cta, where, address, 4, np.array([start], np.uint32), lanes)
        return _meet(g, memory, group, "tcgen05.alloc", n)

    return _warp_wide(context, step, body)


@executor("tcgen05.dealloc", own_guard=True)
def _dealloc(context: Context, step: Step) -> Operation:
    bound = context.bind(step)
    taddr = context.source(bound["taddr"], "b32")
    columns = context.source(bound["columns"], "u32")
    group = _group(step)

    def body(g: Gang) -> Result:
        memory = tensor_memory(g.cta)
        memory.use_group(g, group)
        n, address = _columns(g, step, columns), _one(taddr(g), g)
        lane, start = split_address(address)
        if lane or memory.allocations.get(start) != n:
            have = ", ".join(f"{c} columns at {s:#x}" for s, c in memory.allocations.items()) or "none"
            raise error("SML0871", at=step.loc, columns=n, address=hex(address), have=have, who=g.who())
        g.machine.memory.checks.tensor_freed(g, memory.segment, start, n)
        memory.free(start)
        g.machine.memory.version += 1
        return _meet(g, memory, group, "tcgen05.dealloc", n)

    return _warp_wide(context, step, body)


@executor("tcgen05.relinquish_alloc_permit", own_guard=True)
def _relinquish(context: Context, step: Step) -> Operation:
    group = _group(step)

    def body(g: Gang) -> Result:
        memory = tensor_memory(g.cta)
        memory.use_group(g, group)
        memory.permit = False
        return None

    return _warp_wide(context, step, body)


# -- instructions of single threads --------------------------------------------------------------------


def _one(values: Any, g: Gang) -> int:
    """A value that the active lanes must agree on. Errors: SML0872."""
    row = np.asarray(values)
    if not row.ndim:
        return int(row)
    some = row if g.mask is None else row[g.mask]
    if (some != some[0]).any():
        raise error("SML0872", at=g.loc, a=hex(int(some[0])), b=hex(int(some[some != some[0]][0])), who=g.who())
    return int(some[0])


def _at(values: Any, lane: int) -> int:
    row = np.asarray(values)
    return int(row[lane]) if row.ndim else int(row)


def _each_thread(step: Step, issue: Callable[[Gang, int, Any], TensorOp]) -> Operation:
    """Every active thread issues one operation of its own (usually one thread is active)."""

    def op(g: Gang) -> Result:
        issued = g.cta.cluster.engines.setdefault(_ISSUED, {})
        for lane in np.flatnonzero(g.active()).tolist():
            thread = (g.cta.rank, g.lo + lane)
            new = issue(g, lane, thread)
            g.machine.submit(new)
            issued[thread, new.group] = issued.get((thread, new.group), 0) | new.bit
        return None

    return op


def _descriptor(g: Gang, step: Step, bits: int, operand: str) -> SmemDescriptor:
    """Errors: SML0873 with the reason that the layout gives."""
    try:
        return decode_smem(g.machine.device.arch, bits)
    except SmaltiError as refusal:
        raise error(
            "SML0873", at=step.loc, operand=operand, opcode=step.opcode, reason=refusal.message, who=g.who()
        ) from refusal


def _mma(context: Context, step: Step) -> Operation:
    bound = context.bind(step)
    form = step.form
    group = _group(step)
    kind = form.get("kind").removeprefix("kind::")
    ws, ashift = "ws" in form, "ashift" in form
    sparse_form = "sp" in step.opcode.split(".")
    in_memory = isinstance(bound["a"], Address)
    d, b = context.address(bound["d"], "tensor"), context.source(bound["b"], "b64")
    a = context.address(bound["a"], "tensor") if in_memory else context.source(bound["a"], "b64")
    idesc, enable = context.source(bound["idesc"], "b32"), context.source(bound["enable"], "pred")
    meta = context.address(bound["meta"], "tensor") if "meta" in bound else None
    scales = [context.address(bound[n], "tensor") if n in bound else None for n in ("scale_a", "scale_b")]
    mask = bound.get("mask")
    words = [context.source(o, "b32") for o in mask.items] if isinstance(mask, Vector) else []
    scale_d = bound["scale_d"].value if isinstance(bound.get("scale_d"), Immediate) else 0  # type: ignore[union-attr]
    if "zero_columns" in bound:
        raise error("SML0874", at=step.loc, what="the zero-column mask of tcgen05.mma.ws", opcode=step.opcode)
    vector = form.get("vec")

    def issue(g: Gang, lane: int, thread: Any) -> TensorOp:
        bits = _at(idesc(g), lane)
        try:
            i = decode_idesc(kind, bits)
            k = mma_k(i, group, ws)
        except SmaltiError as refusal:
            raise error(
                "SML0873", at=step.loc, operand="idesc", opcode=step.opcode, reason=refusal.message, who=g.who()
            ) from refusal
        if i.sparse != sparse_form:
            reason = (
                f"its sparsity bit is {int(i.sparse)} but the instruction is {'sparse' if sparse_form else 'dense'}"
            )
            raise error("SML0873", at=step.loc, operand="idesc", opcode=step.opcode, reason=reason, who=g.who())
        if i.k96:
            raise error("SML0874", at=step.loc, what="K = 96", opcode=step.opcode)
        where = _at(a(g), lane)
        product = Product(
            descriptor=i,
            k=k,
            d=_at(d(g), lane),
            a=where if in_memory else _descriptor(g, step, where, "A"),
            b=_descriptor(g, step, _at(b(g), lane), "B"),
            accumulate=bool(_at(enable(g), lane)),
            ws=ws,
            metadata=None if meta is None else _at(meta(g), lane),
            scale_a=None if scales[0] is None else _at(scales[0](g), lane),
            scale_b=None if scales[1] is None else _at(scales[1](g), lane),
            block=_block(kind, vector, i.scale_type) * (2 if i.sparse else 1) if scales[0] is not None else 0,
            scale_d=scale_d,
            ashift=ashift,
            disabled=tuple(_at(w(g), lane) for w in words),
        )
        return Mma(g.cta, g.cta.warps[(g.lo + lane) // WARP], step.loc, step.opcode, thread, group, product)

    return _each_thread(step, issue)


for _name in ("tcgen05.mma", "tcgen05.mma.sp", "tcgen05.mma.ws", "tcgen05.mma.ws.sp"):
    executor(_name)(_mma)


def _block(kind: str, vector: str, scale_type: str) -> int:
    """K elements of a dense A that one scale covers (PTX 9.7.16.10.7.2)."""
    if vector in ("scale_vec::4X", "block16"):
        return 16
    return 32


@executor("tcgen05.cp")
def _cp(context: Context, step: Step) -> Operation:
    bound = context.bind(step)
    form = step.form
    target, descriptor = context.address(bound["a"], "tensor"), context.source(bound["descriptor"], "b64")
    group = _group(step)

    def issue(g: Gang, lane: int, thread: Any) -> TensorOp:
        source = _descriptor(g, step, _at(descriptor(g), lane), "the source")
        return Copy(
            g.cta, g.cta.warps[(g.lo + lane) // WARP], step.loc, step.opcode, thread, group, _at(target(g), lane),
            source, form.get("shape"), form.get("multicast"), form.get("source"),
        )  # fmt: skip

    return _each_thread(step, issue)


@executor("tcgen05.shift")
def _shift(context: Context, step: Step) -> Operation:
    target = context.address(context.bind(step)["a"], "tensor")
    group = _group(step)

    def issue(g: Gang, lane: int, thread: Any) -> TensorOp:
        warp = g.cta.warps[(g.lo + lane) // WARP]
        return Shift(g.cta, warp, step.loc, step.opcode, thread, group, _at(target(g), lane))

    return _each_thread(step, issue)


@executor("tcgen05.commit")
def _commit(context: Context, step: Step) -> Operation:
    bound = context.bind(step)
    space = step.form.get("shared::cluster")
    barrier = context.address(bound["mbar"], space)
    mask = context.source(bound["mask"], "u16") if "mask" in bound else None
    group = _group(step)

    def op(g: Gang) -> Result:
        for lane in np.flatnonzero(g.active()).tolist():
            owner, offset = place(g, g.cta, space, _at(barrier(g), lane))
            targets: list[tuple[CTA, int]] = [(owner, offset)]
            if mask is not None:
                chosen = _at(mask(g), lane)
                if chosen >> len(g.cta.cluster.ctas):
                    raise error("SML0875", at=step.loc, mask=hex(chosen), size=len(g.cta.cluster.ctas), who=g.who())
                targets = [(c, offset) for c in g.cta.cluster.ctas if chosen >> c.rank & 1]
            thread = (g.cta.rank, g.lo + lane)
            bits = g.cta.cluster.engines.get(_ISSUED, {}).get((thread, group), 0)
            warp = g.cta.warps[(g.lo + lane) // WARP]
            g.machine.submit(Commit(g.cta, warp, step.loc, step.opcode, thread, group, targets, bits))
        return None

    return op


# -- registers -----------------------------------------------------------------------------------------


def _uniform_by_warp(values: Any, g: Gang) -> list[int]:
    row = np.broadcast_to(np.asarray(values), g.width).reshape(-1, WARP)
    if (row != row[:, :1]).any():
        raise error("SML0872", at=g.loc, a=hex(int(row[0, 0])), b=hex(int(row[row != row[:, :1]].flat[0])), who=g.who())
    return [int(v) for v in row[:, 0]]


def _transfer_cells(g: Gang, step: Step, addresses: list[int], packed: bool, split: int) -> npt.NDArray[np.int64]:
    """Cells [registers, parts, lanes], with an address for each warp of the gang (warps usually have their own lanes in it);
    a warp may only touch its own quarter (PTX 9.7.16.8.1). Errors: SML0866, SML0861, SML0862."""
    lanes, columns = tensor_cells.moved(step.form.get("shape"), int(step.form.get("num")[1:]), packed, split)
    memory = tensor_memory(g.cta)
    parts = []
    for warp, address in zip(g.warps(), addresses, strict=True):
        lane, column = split_address(address)
        base, top = 32 * (warp.index % 4), lane + int(lanes.max())
        if lane < base or top >= base + 32:
            raise error("SML0866", at=step.loc, warp=warp.name(), first=base, last=base + 31, low=lane, high=top)
        parts.append(memory.check(g, lanes + lane, columns + column))
    return np.concatenate(parts, axis=2)


def _registers_of(context: Context, operand: Any) -> list[Any]:
    return list(operand.items) if isinstance(operand, Vector) else [operand]


def _split_of(bound: dict[str, Any]) -> int:
    operand = bound.get("split")
    return operand.value if isinstance(operand, Immediate) else 0


@executor("tcgen05.ld", "tcgen05.ld.red", undefined=True, own_guard=True)
def _ld(context: Context, step: Step) -> Operation:
    bound = context.bind(step)
    numbers = [context.number(r) for r in _registers_of(context, bound["d"])]
    address = context.address(bound["a"], "tensor")
    packed = "pack::16b" in step.form
    split = _split_of(bound)
    reduce = None
    if "value" in bound:
        numbers.append(context.number(bound["value"]))
        reduce = _reduction(step)

    def body(g: Gang) -> Result:
        cells = _transfer_cells(g, step, _uniform_by_warp(address(g), g), packed, split)
        warps = g.warps()
        new = Load(g.cta, warps[0], step.loc, step.opcode, order.meet(warps), (g.lo, g.hi), cells, numbers, reduce)
        for w in warps:
            w.state.setdefault(_OUT["ld"], []).append(new)
            for n in numbers:
                w.hazards[n] = new
        g.cta.refresh()
        g.machine.submit(new)
        return None

    return _warp_wide(context, step, body)


def _reduction(step: Step) -> Callable[[Any, Any], Any]:
    """tcgen05.ld.red: the loaded registers and, last, their minimum or maximum in each lane."""
    type_, op = step.form.get("type"), step.form.get("op")
    dtype = {"f32": np.float32, "u32": np.uint32, "s32": np.int32}[type_]
    propagate, absolute = "NaN" in step.form, "abs" in step.form
    low, high = (np.minimum, np.maximum) if propagate or type_ != "f32" else (np.fmin, np.fmax)
    function = low if op == "min" else high

    def run(words: npt.NDArray[np.uint32], bad: Any) -> Any:
        values = words.view(dtype)
        result = function.reduce(np.abs(values) if absolute else values, axis=0).astype(dtype)
        bits = result.view(np.uint32)
        if type_ == "f32":
            bits = np.where(np.isnan(result), np.uint32(0x7FFFFFFF), bits)
        out = np.concatenate([words, bits[None]])
        return out, None if bad is None else np.concatenate([bad, bad.any(axis=0)[None]])

    return run


@executor("tcgen05.st", undefined=True, own_guard=True)
def _st(context: Context, step: Step) -> Operation:
    bound = context.bind(step)
    operands = _registers_of(context, bound["b"])
    sources = [context.source(o, "b32") for o in operands]
    numbers = [context.number(o) if not isinstance(o, Immediate) else None for o in operands]
    address = context.address(bound["a"], "tensor")
    unpacked = "unpack::16b" in step.form
    split = _split_of(bound)

    def body(g: Gang) -> Result:
        values = np.stack([np.broadcast_to(np.asarray(s(g)), g.width) for s in sources]).astype(np.uint32)
        flags: Any = None
        if g.cta.undefined:
            rows = [g.undefined(n) if n is not None else None for n in numbers]
            if any(r is not None for r in rows):
                flags = np.stack([np.zeros(g.width, np.bool_) if r is None else r.copy() for r in rows])
        parts = [values & np.uint32(0xFFFF), values >> np.uint32(16)] if unpacked else [values]
        values = np.stack(parts, axis=1)
        flags = None if flags is None else np.stack([flags] * len(parts), axis=1)
        cells = _transfer_cells(g, step, _uniform_by_warp(address(g), g), unpacked, split)
        warps = g.warps()
        new = Store(g.cta, warps[0], step.loc, step.opcode, order.meet(warps), (g.lo, g.hi), cells, values, flags)
        for w in warps:
            w.state.setdefault(_OUT["st"], []).append(new)
        g.machine.submit(new)
        return None

    return _warp_wide(context, step, body)


def _wait(kind: str) -> Callable[[Context, Step], Operation]:
    def build(context: Context, step: Step) -> Operation:
        def body(g: Gang) -> Result:
            warps = g.warps()
            open_ops = [op for w in warps for op in w.state.get(_OUT[kind], ()) if not op.done]
            if open_ops:
                return OpsWait(open_ops, f"its own tcgen05.{kind}")
            for w in warps:
                for op in w.state.pop(_OUT[kind], ()):
                    w.clock.tensor |= op.bit
                    w.state[_WAITED] = w.state.get(_WAITED, 0) | op.bit
            return None

        return _warp_wide(context, step, body)

    return build


executor("tcgen05.wait::ld", own_guard=True)(_wait("ld"))
executor("tcgen05.wait::st", own_guard=True)(_wait("st"))


@executor("tcgen05.fence::before_thread_sync")
def _before(context: Context, step: Step) -> Operation:
    def op(g: Gang) -> Result:
        for w in g.warps():
            w.clock.ops |= w.state.pop(_WAITED, 0)
        return None

    return op


@executor("tcgen05.fence::after_thread_sync")
def _after(context: Context, step: Step) -> Operation:
    def op(g: Gang) -> Result:
        for w in g.warps():
            w.clock.fence_tensor()
        return None

    return op
