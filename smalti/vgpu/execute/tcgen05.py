"""Executors of tcgen05 (PTX 9.7.16): resolve operands, check who executes, hand operations to the tensor core.

Arithmetic and layouts are the engine's business.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from smalti.errors import SmaltiError, error
from smalti.layout.descriptors import CONSTANT, CONSTANT_MASK
from smalti.layout.instruction import InstructionDescriptor, decode_idesc, mma_k
from smalti.numerics.kinds import KINDS
from smalti.ptx.module import Address, Immediate, Vector
from smalti.vgpu.engines import tensor_cells
from smalti.vgpu.engines.blame import blame
from smalti.vgpu.engines.mbarrier import place
from smalti.vgpu.engines.operands import Source, check_window, container, source
from smalti.vgpu.engines.pipeline import TensorOp, Thread, issued, issued_by
from smalti.vgpu.engines.tcgen05 import (
    LOW,
    UPPER,
    Commit,
    Copy,
    Load,
    Mma,
    OpsWait,
    Product,
    Shift,
    Store,
    Transfer,
    Words,
)
from smalti.vgpu.engines.tensor_memory import (
    group_ctas,
    split_address,
    tensor_memory,
)
from smalti.vgpu.execute import Context, Operation, Result, executor
from smalti.vgpu.execute.barrier import assemble, executing
from smalti.vgpu.machine import CTA
from smalti.vgpu.program import Step
from smalti.vgpu.warp import WARP, Gang, Wait, Warp

_OUT = {"ld": "tcgen05.ld", "st": "tcgen05.st"}  # warp: operations not yet waited for


def cta_group(step: Step) -> int:
    return int(step.form.get("cta_group")[-1])


def warp_wide(context: Context, step: Step, body: Callable[[Gang], Result], *, one_warp: bool = False) -> Operation:
    """A .sync.aligned operation: whole warps take part, the guard included; with `one_warp` each by itself."""
    lanes = executing(context, step)

    def op(g: Gang) -> Result:
        here = assemble(g, step, lanes, True)
        if here is None or isinstance(here, Wait):
            return here
        if one_warp and g.width > WARP:
            first = g.active().copy()
            first[WARP:] = False
            rest = g.active() & ~first
            if rest.any():
                g.cta.gangs.append(Gang(g.cta, g.lo, g.hi, rest, g.pc, g.joins))
                g.place(g.lo, g.hi, first)
        return body(g)

    return op


# -- instructions of single threads --------------------------------------------------------------------


def same_value(values: Any, g: Gang) -> int:
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


def _each_thread(step: Step, issue: Callable[[Gang, int, Warp, Thread], TensorOp]) -> Operation:
    """Every active thread issues one operation of its own (usually one thread is active)."""
    group = cta_group(step)

    def op(g: Gang) -> Result:
        for cta in group_ctas(g.cta, group):
            if cta.exited.all():
                raise error("SML0876", at=step.loc, opcode=step.opcode, peer=cta.name, who=g.who())
        for lane in np.flatnonzero(g.active()).tolist():
            warp = g.cta.warps[(g.lo + lane) // WARP]
            g.machine.submit(issue(g, lane, warp, (g.cta.rank, g.lo + lane)))
        return None

    return op


def _refuse(g: Gang, step: Step, operand: str, reason: str) -> SmaltiError:
    return error("SML0873", at=step.loc, operand=operand, opcode=step.opcode, reason=reason, who=g.who())


def _lenient(g: Gang) -> bool:
    """Whether what every tried chip does, and compilers rely on, counts: in other compilers' kernels, unless strict."""
    checks = g.machine.checks
    return checks is None or checks.lenient


def _operand(
    g: Gang, step: Step, name: str, bits: int, rows: int, k_bytes: int, fmt: str, transposed: bool, padded: bool
) -> Source:
    """An operand in shared memory. Errors: SML0873 with the reason that the layout gives; SML0830."""
    if not bits & CONSTANT_MASK and _lenient(g):
        bits |= CONSTANT  # JAX leaves it out, and its kernels run
    try:
        found = source("tcgen05", g.machine.device.arch, bits, rows, k_bytes, fmt, transposed, padded)
    except SmaltiError as refusal:
        raise _refuse(g, step, name, refusal.message) from refusal
    for cta in group_ctas(g.cta, cta_group(step)):
        check_window(g, cta, name, found)
    return found


# Of a zero-column mask descriptor (PTX 9.7.16.4.3): without it no column is zero. The manual's examples of masks
# contradict its table.
NON_ZERO_MASK = 1 << 39


def _mma(context: Context, step: Step) -> Operation:
    bound = context.bind(step)
    form = step.form
    group = cta_group(step)
    kind = form.get("kind").removeprefix("kind::")
    ws, ashift = "ws" in form, "ashift" in form
    sparse = "sp" in step.opcode.split(".")
    in_memory = isinstance(bound["a"], Address)
    d, b = context.address(bound["d"], "tensor"), context.source(bound["b"], "b64")
    a = context.address(bound["a"], "tensor") if in_memory else context.source(bound["a"], "b64")
    idesc, enable = context.source(bound["idesc"], "b32"), context.source(bound["enable"], "pred")
    meta = context.address(bound["meta"], "tensor") if "meta" in bound else None
    scales = [context.address(bound[n], "tensor") if n in bound else None for n in ("scale_a", "scale_b")]
    mask = bound.get("mask")
    words = [context.source(o, "b32") for o in mask.items] if isinstance(mask, Vector) else []
    scale_d = bound["scale_d"].value if isinstance(bound.get("scale_d"), Immediate) else 0  # type: ignore[union-attr]
    columns = context.source(bound["zero_columns"], "b64") if "zero_columns" in bound else None
    block = _block(kind, form.get("vec"), sparse) if scales[0] is not None else 0

    def issue(g: Gang, lane: int, warp: Warp, thread: Thread) -> TensorOp:
        i, k = _instruction(g, step, kind, _at(idesc(g), lane), group, ws, sparse, block)
        if columns is not None and _at(columns(g), lane) & NON_ZERO_MASK:
            raise error("SML0874", at=step.loc, what="the zero-column mask of tcgen05.mma.ws", opcode=step.opcode)
        padded, transposes = not kind.startswith("mxf4"), (i.transpose_a, i.transpose_b)
        kept = k // 2 if sparse else k
        where = _at(a(g), lane)
        if not in_memory:
            k_bytes = kept * container(i.a_type, padded) // 8
            first: Source | int = _operand(g, step, "A", where, i.m // group, k_bytes, i.a_type, transposes[0], padded)
        else:
            first = where
            if transposes[0]:
                raise _refuse(g, step, "idesc", "A is transposed, which A in tensor memory cannot be")
        k_bytes = k * container(i.b_type, padded) // 8
        product = Product(
            descriptor=i,
            k=k,
            d=_at(d(g), lane),
            a=first,
            b=_operand(g, step, "B", _at(b(g), lane), i.n // group, k_bytes, i.b_type, transposes[1], padded),
            accumulate=bool(_at(enable(g), lane)),
            ws=ws,
            metadata=None if meta is None else _at(meta(g), lane),
            scale_a=None if scales[0] is None else _scales(g, _at(scales[0](g), lane), i.scale_a_id),
            scale_b=None if scales[1] is None else _scales(g, _at(scales[1](g), lane), i.scale_b_id),
            block=block,
            scale_d=scale_d,
            ashift=ashift,
            disabled=tuple(_at(w(g), lane) for w in words),
        )
        with blame(step.loc):
            _lanes_fit(g, step, product, group)
            return Mma(g.cta, warp, step.loc, step.opcode, thread, group, product)

    return _each_thread(step, issue)


for _name in ("tcgen05.mma", "tcgen05.mma.sp", "tcgen05.mma.ws", "tcgen05.mma.ws.sp"):
    executor(_name)(_mma)


def _scales(g: Gang, address: int, first: int) -> int:
    """The address of scale factors. CUTLASS and CuTe DSL repeat the id of the first one in bits 30 and 31, which the
    hardware must ignore: their kernels run on it."""
    return address & 0x3FFFFFFF if address >> 30 == first and _lenient(g) else address


def _block(kind: str, vector: str, sparse: bool) -> int:
    """K elements that one scale covers: 16 or 32 of a dense A, twice as many of a sparse one (PTX 9.7.16.10.7.1)."""
    return (16 if vector in ("scale_vec::4X", "block16") else 32) << sparse


def _instruction(
    g: Gang, step: Step, kind: str, bits: int, group: int, ws: bool, sparse: bool, block: int
) -> tuple[InstructionDescriptor, int]:
    """The instruction descriptor and K. Errors: SML0873 what it says does not fit, SML0874 K = 96."""
    try:
        i = decode_idesc(kind, bits)
        k = mma_k(i, group, ws)
    except SmaltiError as refusal:
        raise _refuse(g, step, "idesc", refusal.message) from refusal
    if i.sparse != sparse:
        what = "sparse" if sparse else "dense"
        raise _refuse(g, step, "idesc", f"its sparsity bit is {int(i.sparse)} but the instruction is {what}")
    if i.k96:
        raise error("SML0874", at=step.loc, what="K = 96", opcode=step.opcode)
    if i.selector > 1 or (i.selector and (not sparse or kind not in ("f16", "tf32"))):
        raise _refuse(g, step, "idesc", f"sparsity selector {i.selector}, which kind::{kind} does not have here")
    if "ashift" in step.form and i.m // group != 128:
        raise _refuse(g, step, "idesc", f"M is {i.m}, but .ashift wants 128, or 256 on a pair")
    if block:
        factors = k // block
        if (i.scale_type, block >> sparse) not in KINDS[f"tcgen05.{kind}"].scales:
            raise _refuse(g, step, "idesc", f"{i.scale_type} scales do not go with blocks of {block >> sparse}")
        for name, first in (("SFA", i.scale_a_id), ("SFB", i.scale_b_id)):
            if first % factors or first + factors > 4:
                raise _refuse(g, step, "idesc", f"{name} id {first}, but a row has {factors} factors in its 4 bytes")
    return i, k


def _lanes_fit(g: Gang, step: Step, product: Product, group: int) -> None:
    """Lane alignment of D, A and metadata (PTX 9.7.16.10.5, 9.7.16.10.8.5). Errors: SML0877."""
    i = product.descriptor
    half = tensor_cells.half_lanes(i.m, group, product.ws, i.sparse)
    lane, _ = split_address(product.d)
    given = {"A": product.a if isinstance(product.a, int) else None, "metadata": product.metadata}
    if lane not in ((0, 16) if half else (0,)):
        raise error("SML0877", at=step.loc, what="D", lane=lane, legal="0 or 16" if half else "0", who=g.who())
    for what, address in given.items():
        if address is not None and split_address(address)[0] != lane:
            raise error(
                "SML0877", at=step.loc, what=what, lane=split_address(address)[0], legal=f"{lane}, as D", who=g.who()
            )
    for what, address in (("SFA", product.scale_a), ("SFB", product.scale_b)):
        if address is not None and split_address(address)[0]:
            raise error("SML0877", at=step.loc, what=what, lane=split_address(address)[0], legal="0", who=g.who())


@executor("tcgen05.cp")
def _cp(context: Context, step: Step) -> Operation:
    bound = context.bind(step)
    form = step.form
    target, descriptor = context.address(bound["a"], "tensor"), context.source(bound["descriptor"], "b64")
    group = cta_group(step)
    shape, multicast, fmt = form.get("shape"), form.get("multicast"), form.get("source")
    rows, columns = tensor_cells.copied(shape, multicast)[0].shape

    def issue(g: Gang, lane: int, warp: Warp, thread: Thread) -> TensorOp:
        taken = _operand(g, step, "the source", _at(descriptor(g), lane), rows, 4 * columns, "u8", False, False)
        return Copy(
            g.cta, warp, step.loc, step.opcode, thread, group, _at(target(g), lane), taken, shape, multicast, fmt
        )

    return _each_thread(step, issue)


@executor("tcgen05.shift")
def _shift(context: Context, step: Step) -> Operation:
    target = context.address(context.bind(step)["a"], "tensor")
    group = cta_group(step)

    def issue(g: Gang, lane: int, warp: Warp, thread: Thread) -> TensorOp:
        address = _at(target(g), lane)
        if split_address(address)[0] % 32:
            raise error(
                "SML0877", at=step.loc, what="the matrix", lane=split_address(address)[0], legal="a multiple of 32",
                who=g.who(),
            )  # fmt: skip
        return Shift(g.cta, warp, step.loc, step.opcode, thread, group, address)

    return _each_thread(step, issue)


@executor("tcgen05.commit")
def _commit(context: Context, step: Step) -> Operation:
    bound = context.bind(step)
    space = step.form.get("shared::cluster")
    barrier = context.address(bound["mbar"], space)
    mask = context.source(bound["mask"], "u16") if "mask" in bound else None
    group = cta_group(step)

    def issue(g: Gang, lane: int, warp: Warp, thread: Thread) -> TensorOp:
        at = _at(barrier(g), lane)
        # Without a state space the address is generic. Triton up to 3.6 gives one of shared memory all the same,
        # and the hardware takes the low bits of either.
        where = space or ("shared::cluster" if at >> 32 == 0 and _lenient(g) else "")
        owner, offset = place(g, g.cta, where, at)
        targets: list[tuple[CTA, int]] = [(owner, offset)]
        if mask is not None:
            chosen = _at(mask(g), lane)
            size = len(g.cta.cluster.ctas)
            if chosen >> size or not chosen:
                raise error("SML0875", at=step.loc, mask=hex(chosen), size=size, who=g.who())
            targets = [(c, offset) for c in g.cta.cluster.ctas if chosen >> c.rank & 1]
        bits = issued(g.cta.cluster, thread, group)
        return Commit(g.cta, warp, step.loc, step.opcode, thread, group, targets, bits)

    return _each_thread(step, issue)


# -- registers -----------------------------------------------------------------------------------------


def _uniform_by_warp(values: Any, g: Gang) -> list[int]:
    rows = np.broadcast_to(np.asarray(values), g.width).reshape(-1, WARP)
    rows = rows[[w.index - g.lo // WARP for w in g.warps()]]
    wrong = rows != rows[:, :1]
    if wrong.any():
        raise error(
            "SML0872", at=g.loc, a=hex(int(rows[wrong.any(axis=1)][0, 0])), b=hex(int(rows[wrong][0])), who=g.who()
        )
    return [int(v) for v in rows[:, 0]]


def _transfers(g: Gang, step: Step, addresses: list[int], cells: tensor_cells.Cells) -> list[Transfer]:
    """The cells of each warp, which may only touch its own quarter of the lanes (PTX 9.7.16.8.1). Kernels of JAX and
    DeepGEMM rely on the hardware to take lanes 0-31 as the warp's own.

    Errors: SML0866, SML0861, SML0862.
    """
    memory = tensor_memory(g.cta)
    parts = []
    relative = _lenient(g)
    for warp, address in zip(g.warps(), addresses, strict=True):
        first = 32 * (warp.index % 4)
        if relative and split_address(address)[0] < 32:
            address += first << 16
        lane, _ = split_address(address)
        last = lane + cells.blocks[-1].lane_end - 1
        if lane < first or last >= first + 32:
            raise error("SML0866", at=step.loc, warp=warp.name(), first=first, last=first + 31, low=lane, high=last)
        parts.append(Transfer(warp, memory.place(g, cells, address)))
    return parts


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
    form = step.form
    cells = tensor_cells.moved(form.get("shape"), int(form.get("num")[1:]), "pack::16b" in form, _split_of(bound))
    reduce = None
    if "value" in bound:
        numbers.append(context.number(bound["value"]))
        reduce = _reduction(step)

    def body(g: Gang) -> Result:
        parts = _transfers(g, step, _uniform_by_warp(address(g), g), cells)
        new = Load(g.cta, step.loc, step.opcode, (g.lo, g.hi), parts, numbers, reduce, not _lenient(g))
        for w in g.warps():
            w.state.setdefault(_OUT["ld"], []).append(new)
            for n in numbers:
                w.hazards[n] = new
        g.cta.refresh()
        g.machine.submit(new)
        return None

    return warp_wide(context, step, body)


def _reduction(step: Step) -> Callable[[Words], Words]:
    """tcgen05.ld.red: of the loaded registers, the minimum or maximum in each lane."""
    type_, op = step.form.get("type"), step.form.get("op")
    dtype = {"f32": np.float32, "u32": np.uint32, "s32": np.int32}[type_]
    propagate, absolute = "NaN" in step.form, "abs" in step.form
    low, high = (np.minimum, np.maximum) if propagate or type_ != "f32" else (np.fmin, np.fmax)
    function = low if op == "min" else high

    def run(words: Words) -> Words:
        values = words.view(dtype)
        result = function.reduce(np.abs(values) if absolute else values, axis=0).astype(dtype)
        bits: Words = result.view(np.uint32)
        return np.where(np.isnan(result), np.uint32(0x7FFFFFFF), bits) if type_ == "f32" else bits

    return run


@executor("tcgen05.st", undefined=True, own_guard=True)
def _st(context: Context, step: Step) -> Operation:
    bound = context.bind(step)
    operands = _registers_of(context, bound["b"])
    sources = [context.source(o, "b32") for o in operands]
    numbers = [context.number(o) if not isinstance(o, Immediate) else None for o in operands]
    address = context.address(bound["a"], "tensor")
    form = step.form
    unpacked = "unpack::16b" in form
    cells = tensor_cells.moved(form.get("shape"), int(form.get("num")[1:]), unpacked, _split_of(bound))

    def body(g: Gang) -> Result:
        values = np.stack([np.broadcast_to(np.asarray(s(g)), g.width) for s in sources]).astype(np.uint32)
        flags: Any = None
        if g.cta.undefined:
            rows = [g.undefined(n) if n is not None else None for n in numbers]
            if any(r is not None for r in rows):
                flags = np.stack([np.zeros(g.width, np.bool_) if r is None else r.copy() for r in rows])
        halves = [values & LOW | UPPER, values >> np.uint32(16) | UPPER] if unpacked else [values]
        values = np.stack(halves, axis=1)
        flags = None if flags is None else np.stack([flags] * len(halves), axis=1)
        parts = _transfers(g, step, _uniform_by_warp(address(g), g), cells)
        new = Store(g.cta, step.loc, step.opcode, (g.lo, g.hi), parts, values, flags)
        for w in g.warps():
            w.state.setdefault(_OUT["st"], []).append(new)
        g.machine.submit(new)
        return None

    return warp_wide(context, step, body)


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
                    w.clock.ops |= op.bit
                    if isinstance(op, Load):
                        op.release(w)
            g.cta.refresh()
            return None

        return warp_wide(context, step, body)

    return build


executor("tcgen05.wait::ld", own_guard=True)(_wait("ld"))
executor("tcgen05.wait::st", own_guard=True)(_wait("st"))


@executor("tcgen05.fence::before_thread_sync")
def _before(context: Context, step: Step) -> Operation:
    def op(g: Gang) -> Result:
        for w in g.warps():
            w.clock.published |= w.clock.tensor
        for w, bits in issued_by(g):
            w.clock.published |= bits
        return None

    return op


@executor("tcgen05.fence::after_thread_sync")
def _after(context: Context, step: Step) -> Operation:
    def op(g: Gang) -> Result:
        for w in g.warps():
            w.clock.fence_tensor()
        return None

    return op
