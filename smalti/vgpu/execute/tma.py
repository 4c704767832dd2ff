"""Executors of asynchronous copies (PTX 9.7.9.25-28): operands of each issuing thread, the rules that hardware enforces
at issue, and the operation handed to its engine. What the copies move is in `engines/bulk` and `engines/tma`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from smalti.errors import error
from smalti.layout import tensor_map
from smalti.layout.shared import SWIZZLES
from smalti.layout.tensor_map import PADDED, TensorMap
from smalti.ptx.module import Address, Immediate, Operand, Vector
from smalti.vgpu.divergence import ConvergeWait
from smalti.vgpu.engines import order
from smalti.vgpu.engines.blame import blame
from smalti.vgpu.engines.bulk import BulkLoad, BulkStore, GroupWait, Range, groups_of, thread_groups
from smalti.vgpu.engines.mbarrier import place
from smalti.vgpu.engines.reduce import Reduction, reduction
from smalti.vgpu.engines.tma import SHARED_ALIGNMENT, Piece, TensorLoad, TensorStore
from smalti.vgpu.engines.tma import Form as BoxForm
from smalti.vgpu.execute import Context, Operation, Source, executor
from smalti.vgpu.machine import CTA
from smalti.vgpu.memory import PARAM_WINDOW, Segment
from smalti.vgpu.program import Step
from smalti.vgpu.warp import WARP, Gang, Warp

MAP_ALIGNMENT = 64  # PTX ISA 5.5
BULK_UNIT = 16  # PTX ISA 9.7.9.25.4: size and both addresses
_WIDTH = {"f16": 16, "bf16": 16, "f32": 32, "f64": 64}


class Thread:
    """One issuing thread: its warp and its values of operands."""

    __slots__ = ("g", "lane", "number", "warp")

    def __init__(self, g: Gang, lane: int) -> None:
        self.g, self.lane = g, lane
        self.number = g.lo + lane
        self.warp: Warp = g.cta.warps[self.number // WARP]

    def __call__(self, source: Source) -> int:
        row = np.asarray(source(self.g))
        return int(row[self.lane]) if row.ndim else int(row)


def threads(g: Gang) -> Iterator[Thread]:
    """The active threads, one after the other: each issues a copy of its own."""
    for lane in range(g.width) if g.mask is None else np.flatnonzero(g.mask):
        yield Thread(g, int(lane))


def _issue(one: Callable[[Thread], None]) -> Operation:
    def op(g: Gang) -> None:
        for t in threads(g):
            one(t)

    return op


# -- places ----------------------------------------------------------------------------------------------


def _shared(t: Thread, space: str, address: int, alignment: int, size: int) -> tuple[CTA, int]:
    """CTA and offset of a piece of shared memory. Errors: SML0803-SML0806, SML0821 alignment of a box."""
    g = t.g
    offset = address & 0xFFFFFF
    if address >> 24 == g.cta.rank and offset % alignment == 0:  # the usual case
        segment = g.cta.shared
        if segment.low <= offset and offset + size <= segment.size:
            return g.cta, offset
    memory = g.machine.memory
    segment, offsets, _ = memory.resolve(g, g.cta, space, np.array([address], np.int64), 1)[0]
    cta, offset = segment.owner, int(offsets[0])
    if offset % alignment:
        if alignment == SHARED_ALIGNMENT:
            raise error(
                "SML0821", at=g.loc, address=hex(offset), what=cta.describe(offset), nearest=hex(offset & -alignment),
                who=g.who(),
            )  # fmt: skip
        memory.resolve(g, g.cta, space, np.array([address], np.int64), alignment)
    if offset + size > segment.size:
        raise error(
            "SML0803", at=g.loc, what=cta.describe(offset), offset=offset, width=size, size=segment.size, who=g.who()
        )
    return cta, offset


def _global(t: Thread, address: int, size: int) -> Range:
    """A piece of global memory, aligned to 16 bytes. Errors: SML0803-SML0805."""
    g = t.g
    segment, offsets, _ = g.machine.memory.resolve(g, g.cta, "global", np.array([address], np.int64), BULK_UNIT)[0]
    start = int(offsets[0])
    if start + size > segment.size:
        raise error(
            "SML0803", at=g.loc, what=f"global memory {segment.name}", offset=start, width=size, size=segment.size,
            who=g.who(),
        )  # fmt: skip
    return Range(segment, start, size)


def _size(t: Thread, source: Source) -> int:
    size = t(source)
    if size % BULK_UNIT:
        raise error("SML0826", at=t.g.loc, size=size, nearest=size // BULK_UNIT * BULK_UNIT, who=t.g.who())
    return size


def _destinations(
    t: Thread, target: tuple[CTA, int], barrier: tuple[CTA, int], mask: int | None, pair: bool
) -> list[tuple[CTA, int, CTA, int]]:
    """Every CTA that gets the data, with the barrier told: its own, or one of its pair (cta_group::2, 9.7.9.27.1.2).

    Errors: SML0917 a barrier in another CTA, SML0918 a mask of CTAs that are not there.
    """
    cta, offset = target
    owner, at = barrier
    ctas = cta.cluster.ctas
    if mask is None:
        if owner is not cta and not (pair and owner.rank ^ 1 == cta.rank):
            raise error("SML0917", at=t.g.loc, barrier=owner.describe(at), what=cta.describe(offset), who=t.g.who())
        return [(cta, offset, owner, at)]
    ranks = [r for r in range(16) if mask >> r & 1]
    if not ranks or ranks[-1] >= len(ctas):
        raise error("SML0918", at=t.g.loc, mask=f"{mask:#06x}", size=len(ctas), who=t.g.who())
    told = {r: (r & ~1 | owner.rank & 1) if pair else r for r in ranks}
    return [(ctas[r], offset, ctas[told[r]], at) for r in ranks]


def _optional(context: Context, bound: dict[str, Operand], name: str, type_: str) -> Source | None:
    return context.source(bound[name], type_) if name in bound else None


# -- cp.async ----------------------------------------------------------------------------------------------


@executor("cp.async")
def _cp_async(context: Context, step: Step) -> Operation:
    from smalti.vgpu.engines.copy import Copy

    bound = context.bind(step)
    to, source = context.address(bound["d"], step.form.get("space")), context.address(bound["s"], "global")
    size = bound["size"]
    assert isinstance(size, Immediate)
    width = size.value
    taken, ignored = _optional(context, bound, "source", "u32"), _optional(context, bound, "ignore", "pred")
    space = step.form.get("space")

    def op(g: Gang) -> None:
        lanes = g.lanes()
        positions = lanes - g.lo

        def of(values: Any) -> npt.NDArray[np.int64]:
            return np.broadcast_to(values, g.width)[positions].astype(np.int64)

        count = np.full(len(lanes), width) if taken is None else of(taken(g))
        if (count > width).any():
            raise error("SML0831", at=step.loc, size=int(count.max()), limit=width, who=g.who())
        if ignored is not None:
            count[of(ignored(g)) != 0] = 0
        targets, sources = of(to(g)), of(source(g))
        for w in g.warps():
            mine = np.flatnonzero(lanes // WARP == w.index)
            copy = Copy(g.cta, w, step.loc, step.opcode, space, targets[mine], sources[mine], count[mine], width)
            for lane in lanes[mine]:
                thread_groups(g.cta, "cp.async", int(lane)).open.append(copy)
            g.machine.submit(copy)

    return op


@executor("cp.async.commit_group", "cp.async.bulk.commit_group")
def _commit(context: Context, step: Step) -> Operation:
    engine = "bulk" if "bulk" in step.opcode else "cp.async"

    def op(g: Gang) -> None:
        table = groups_of(g.cta, engine)
        if table:
            for thread in g.lanes():
                groups = table.get(int(thread))
                if groups is not None:
                    groups.commit()

    return op


@executor("cp.async.wait_group", "cp.async.bulk.wait_group")
def _wait(context: Context, step: Step) -> Operation:
    engine = "bulk" if "bulk" in step.opcode else "cp.async"
    newest = context.bind(step)["n"]
    assert isinstance(newest, Immediate)
    reads = "read" in step.form

    def op(g: Gang) -> Any:
        wait = GroupWait(g, engine, newest.value, reads)
        return None if wait.ready() else wait

    return op


@executor("cp.async.wait_all")
def _wait_all(context: Context, step: Step) -> Operation:
    def op(g: Gang) -> Any:
        table = groups_of(g.cta, "cp.async")
        for thread in g.lanes():
            groups = table.get(int(thread))
            if groups is not None and groups.open:
                groups.commit()
        wait = GroupWait(g, "cp.async", 0, False)
        return None if wait.ready() else wait

    return op


@executor("cp.async.mbarrier.arrive")
def _arrive_when_copied(context: Context, step: Step) -> Operation:
    from smalti.vgpu.engines.copy import Arrival
    from smalti.vgpu.engines.mbarrier import find

    space = step.form.get("space")
    address = context.address(context.bind(step)["a"], space)
    counted = "noinc" in step.form

    def one(t: Thread) -> None:
        g = t.g
        barrier = find(g, g.cta, space, t(address), step.form.row.name)
        if not counted:
            barrier.pending += 1
        groups = groups_of(g.cta, "cp.async").get(t.number)
        copies = [] if groups is None else [*groups.before(0), *groups.open]
        g.machine.submit(Arrival(g.cta, t.warp, step.loc, step.opcode, barrier, copies))

    return _issue(one)


# -- bulk copies -------------------------------------------------------------------------------------------


def _combine(step: Step) -> tuple[Reduction, Any] | None:
    """The reduction that the modifiers name, and the unsigned type of its elements."""
    if "op" not in step.form:
        return None
    type_ = step.form.get("type")
    function = reduction(step.form.get("op"), type_)
    assert function is not None, step.opcode
    bits = _WIDTH.get(type_) or int(type_[1:])
    return function, np.dtype(f"uint{bits}")


@executor("cp.async.bulk.load", "cp.async.bulk.shared", "cp.reduce.async.bulk.shared")
def _bulk_load(context: Context, step: Step) -> Operation:
    bound = context.bind(step)
    inside = step.form.row.name.endswith("shared")
    space = "shared::cluster" if "shared::cluster" in step.opcode else "shared::cta"
    to = context.address(bound["d"], space)
    source = context.address(bound["s"], "shared::cta" if inside else "global")
    size, barrier = context.source(bound["size"], "u32"), context.address(bound["mbar"], "shared")
    mask = _optional(context, bound, "mask", "u16")
    combine = _combine(step)

    def one(t: Thread) -> None:
        g = t.g
        count = _size(t, size)
        target = _shared(t, space, t(to), BULK_UNIT, count)
        if inside:
            if target[0] is g.cta and g.cta.cluster.size > 1:
                raise error("SML0828", at=step.loc, what=target[0].describe(target[1]), who=g.who())
            owner, start = _shared(t, "shared::cta", t(source), BULK_UNIT, count)
            piece = Range(owner.shared, start, count)
        else:
            piece = _global(t, t(source), count)
        told = place(g, g.cta, "shared::cluster", t(barrier))
        chosen = None if mask is None else t(mask)
        aims = _destinations(t, target, told, chosen, False)
        copy = BulkLoad(g.cta, t.warp, step.loc, step.opcode, piece, combine)
        copy.aim(aims)
        g.machine.submit(copy)

    return _issue(one)


@executor("cp.async.bulk.store", "cp.reduce.async.bulk.store")
def _bulk_store(context: Context, step: Step) -> Operation:
    bound = context.bind(step)
    to, source = context.address(bound["d"], "global"), context.address(bound["s"], "shared::cta")
    size = context.source(bound["size"], "u32")
    mask = _optional(context, bound, "mask", "u16")
    combine = _combine(step)

    def one(t: Thread) -> None:
        g = t.g
        count = _size(t, size)
        owner, start = _shared(t, "shared::cta", t(source), BULK_UNIT, count)
        target = _global(t, t(to), count)
        _writable(t, target.segment)
        copy = BulkStore(
            g.cta, t.warp, step.loc, step.opcode, Range(owner.shared, start, count), target, combine,
            0xFFFF if mask is None else t(mask),
        )  # fmt: skip
        thread_groups(g.cta, "bulk", t.number).open.append(copy)
        g.machine.submit(copy)

    return _issue(one)


def _writable(t: Thread, segment: Segment) -> None:
    if not segment.writable:
        raise error("SML0807", at=t.g.loc, what=segment.name, who=t.g.who())


@executor("cp.async.bulk.prefetch")
def _bulk_prefetch(context: Context, step: Step) -> Operation:
    bound = context.bind(step)
    source, size = context.address(bound["s"], "global"), context.source(bound["size"], "u32")

    def one(t: Thread) -> None:
        _global(t, t(source), _size(t, size))

    return _issue(one)


# -- tensor copies -----------------------------------------------------------------------------------------


def tensor(t: Thread, address: int) -> BoxForm:
    """The tensor map at a generic address, judged by the driver's rules. Errors: SML0803-SML0805, SML0829, SML013x."""
    g = t.g
    if address % MAP_ALIGNMENT:
        raise error(
            "SML0804", at=g.loc, address=hex(address), space="tensor map", width=MAP_ALIGNMENT, who=g.who(),
            nearest=hex(address & -MAP_ALIGNMENT),
        )  # fmt: skip
    params, start = g.machine.params, address - PARAM_WINDOW
    if 0 <= start <= params.size - tensor_map.BYTES:  # the usual case
        return _known(params.data[start : start + tensor_map.BYTES].tobytes(), g)
    parts = g.machine.memory.resolve(g, g.cta, "generic", np.arange(address, address + tensor_map.BYTES, 32), 32)
    segment, offsets, _ = parts[0]
    if len(parts) > 1 or segment.kind in ("shared", "local"):
        raise error("SML0805", at=g.loc, address=hex(address), space="tensor map", who=g.who())
    start = int(offsets[0])
    if segment.range_undefined(start, start + tensor_map.BYTES):
        raise error("SML0829", at=g.loc, what=segment.name, offset=start, who=g.who())
    if segment.kind == "global":
        g.machine.memory.checks.read(g, segment, offsets, 32, np.array([t.number]), "weak")
    return _known(segment.data[start : start + tensor_map.BYTES].tobytes(), g)


def _known(raw: bytes, g: Gang) -> BoxForm:
    with blame(g.loc):
        return _judged(raw, g.machine.device.arch)


@lru_cache(1024)
def _judged(raw: bytes, arch: str) -> BoxForm:
    m = tensor_map.decode(raw)
    m.check(arch)
    return BoxForm(m)


class Tensor:
    """The operands that tensor copies share: map, coordinates, im2col offsets; and the rules about them."""

    def __init__(self, context: Context, step: Step) -> None:
        bound = context.bind(step)
        operand = bound["map"]
        assert isinstance(operand, Address) and operand.coordinates is not None
        self.step = step
        self.map = context.address(operand, "generic")
        self.coordinates = [context.source(c, "s32") for c in operand.coordinates.items]
        offsets = bound.get("offsets")
        self.offsets = [context.source(o, "u16") for o in offsets.items] if isinstance(offsets, Vector) else []
        self.mode = step.form.get("mode") or "tile"
        self.rank = int(step.form.get("dim")[0])
        self.agreed: BoxForm | None = None  # the last map that fitted the instruction

    def at(self, t: Thread, stores: bool) -> tuple[BoxForm, list[Piece]]:
        """What this thread's copy touches in global memory.

        Errors: as `tensor`; SML0824 map and instruction disagree, SML0823 not modelled, SML0820 coordinate 0,
        SML0822 a negative coordinate of a store, SML0825 im2col, SML0803/SML0805 memory that is not there.
        """
        f = tensor(t, t(self.map))
        m = f.map
        at = tuple([t(c) for c in self.coordinates])
        if f is not self.agreed:
            self._agree(t, m)
            self.agreed = f
        g, loc = t.g, self.step.loc
        bits = m.element.bits
        unit = 128 if m.type in PADDED else 128 // bits
        if at[0] % unit and m.interleave == "none":
            raise error(
                "SML0820", at=loc, value=at[0], map=self._name(t), type=m.type, unit=unit, nearest=at[0] // unit * unit,
                opcode=self.step.opcode, who=g.who(),
            )  # fmt: skip
        if stores and min(at) < 0:
            dimension = next(d for d, c in enumerate(at) if c < 0)
            raise error(
                "SML0822", at=loc, dimension=dimension, value=at[dimension], map=self._name(t),
                opcode=self.step.opcode, who=g.who(),
            )  # fmt: skip
        clip = BULK_UNIT if stores else 1
        memory = g.machine.memory
        if self.mode.endswith("4"):
            return f, f.columns(memory, g, at[0], list(at[1:]), clip)
        if m.tiled:
            return f, [f.piece(memory, g, at, clip)]
        return f, f.pixels(memory, g, at, tuple(t(o) for o in self.offsets) or (0,) * (m.rank - 2))

    def _agree(self, t: Thread, m: TensorMap) -> None:
        loc, opcode = self.step.loc, self.step.opcode
        four = self.mode.endswith("4")
        missing = ""
        if m.interleave != "none" and not (m.tiled and self.mode == "tile"):
            missing = f"interleave {m.interleave} in mode {self.mode}"
        elif m.swizzle not in SWIZZLES:
            missing = f"swizzle {m.swizzle}"
        elif self.mode.startswith("im2col::w"):
            missing = self.mode
        elif not m.tiled and m.row_bytes % BULK_UNIT:
            missing = f"im2col with {m.row_bytes} bytes a pixel"
        if missing:
            raise error("SML0823", at=loc, feature=missing, opcode=opcode)
        wanted: tuple[str, Any, Any] = ("rank", self.rank, m.rank)
        if self.rank == m.rank:
            tiled = not self.mode.startswith("im2col")
            wanted = ("mode", "tiled" if tiled else "im2col", m.mode)
            if four and m.tiled and m.box[1] != 1:
                wanted = ("box[1]", 1, m.box[1])
        what, want, have = wanted
        if want != have:
            raise error(
                "SML0824", at=loc, opcode=opcode, what=what, want=want, map=self._name(t), have=have, who=t.g.who()
            )

    def _name(self, t: Thread) -> str:
        """What the author calls the tensor map."""
        machine = t.g.machine
        address = t(self.map)
        for p in machine.program.function.params:
            inside = address - PARAM_WINDOW - machine.place_of(p)
            if 0 <= inside < p.size:
                tiles = (x for x in machine.module.tiles if x.place == f"param {p.name}" and x.offset == inside)
                tile = next(tiles, None)
                return tile.name if tile is not None else p.name + (f"+{inside}" if inside else "")
        return f"the tensor map at {address:#x}"


@executor("cp.async.bulk.tensor.load")
def _tensor_load(context: Context, step: Step) -> Operation:
    bound = context.bind(step)
    box = Tensor(context, step)
    space = "shared::cta" if ".shared::cta." in step.opcode else "shared::cluster"
    to, barrier = context.address(bound["d"], space), context.address(bound["mbar"], "shared")
    mask = _optional(context, bound, "mask", "u16")
    pair = step.form.get("cta_group") == "cta_group::2"

    def one(t: Thread) -> None:
        g = t.g
        f, pieces = box.at(t, False)
        rows = 4 if box.mode == "tile::gather4" else None
        if rows:
            f = _four(f)
        target = _shared(t, space, t(to), SHARED_ALIGNMENT, f.extent)
        told = place(g, g.cta, "shared::cluster", t(barrier))
        copy = TensorLoad(g.cta, t.warp, step.loc, step.opcode, f, pieces)
        copy.aim(_destinations(t, target, told, None if mask is None else t(mask), pair))
        g.machine.submit(copy)

    return _issue(one)


@lru_cache(64)
def _four(f: BoxForm) -> BoxForm:
    """The box of a gather4 or scatter4: four rows."""
    four = BoxForm(f.map)
    four.rows, four.count = (4,), 4
    return four


@executor("cp.async.bulk.tensor.store", "cp.reduce.async.bulk.tensor")
def _tensor_store(context: Context, step: Step) -> Operation:
    box = Tensor(context, step)
    source = context.address(context.bind(step)["s"], "shared::cta")
    reduces = step.form.get("op")

    def one(t: Thread) -> None:
        g = t.g
        f, pieces = box.at(t, True)
        if box.mode == "tile::scatter4":
            f = _four(f)
        m = f.map
        combine = None
        if m.type == "b4x16_p64" or (m.type == "b6x16_p32" and reduces):
            raise error("SML0827", at=step.loc, what=reduces or "a store", type=m.type, who=g.who())
        if reduces:
            function = reduction(reduces, m.type)
            if function is None:
                raise error("SML0827", at=step.loc, what=reduces, type=m.type, who=g.who())
            combine = (function, np.dtype(f"uint{m.element.bits}"))
        _, start = _shared(t, "shared::cta", t(source), SHARED_ALIGNMENT, f.extent)
        for p in pieces:
            if p.segment is not None:
                _writable(t, p.segment)
        copy = TensorStore(g.cta, t.warp, step.loc, step.opcode, f, pieces, start, combine)
        thread_groups(g.cta, "bulk", t.number).open.append(copy)
        g.machine.submit(copy)

    return _issue(one)


@executor("cp.async.bulk.prefetch.tensor")
def _tensor_prefetch(context: Context, step: Step) -> Operation:
    box = Tensor(context, step)

    def one(t: Thread) -> None:
        box.at(t, False)

    return _issue(one)


# -- tensor maps in memory ---------------------------------------------------------------------------------


@executor("tensormap.replace")
def _replace(context: Context, step: Step) -> Operation:
    bound = context.bind(step)
    space = step.form.get("space")
    address = context.address(bound["map"], space)
    value = context.source(bound["value"], "u64" if step.opcode.endswith("b64") else "u32")
    ordinal = _optional(context, bound, "ord", "u32")
    field = step.opcode.split(".")[3]

    def one(t: Thread) -> None:
        g = t.g
        a = t(address)
        addresses = np.arange(a, a + tensor_map.BYTES, 16)
        lane = np.repeat(np.array([t.number]), len(addresses))
        memory = g.machine.memory
        old, undefined = memory.load(g, g.cta, space or "generic", addresses, 16, lane, item=8)
        new = tensor_map.replace_field(
            np.ascontiguousarray(old).tobytes(), field, t(value), 0 if ordinal is None else t(ordinal)
        )
        words = np.frombuffer(new, np.uint64).reshape(-1, 2)
        memory.store(g, g.cta, space or "generic", addresses, 16, words, lane, undefined)

    return _issue(one)


@executor("tensormap.cp_fenceproxy")
def _cp_fenceproxy(context: Context, step: Step) -> Operation:
    """The warp together copies 128 bytes and releases them to tensormap-proxy readers."""
    bound = context.bind(step)
    to, source = context.address(bound["d"], "global"), context.address(bound["s"], "shared::cta")

    def op(g: Gang) -> Any:
        if not g.machine.converge(g, 0xFFFFFFFF):
            return ConvergeWait()
        for w in g.warps():
            lane = next(t for t in threads(g) if t.warp is w)
            numbers = np.repeat(np.array([lane.number]), tensor_map.BYTES // 16)
            steps = np.arange(0, tensor_map.BYTES, 16)
            memory = g.machine.memory
            words, undefined = memory.load(g, g.cta, "shared::cta", lane(source) + steps, 16, numbers, item=8)
            memory.store(g, g.cta, "global", lane(to) + steps, 16, words, numbers, undefined)
        order.fence(g.warps(), acquires=False)
        return None

    return op
