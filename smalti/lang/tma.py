"""TMA copies of tiles between global and shared memory: boxes, tensor maps, coordinates, completion.

A tile takes one copy a stripe (a swizzle span of its contiguous axis) and at most 256 lines.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

from smalti.errors import error
from smalti.lang import bulk
from smalti.lang.barriers import MBarrier
from smalti.lang.parameters import MapParameter
from smalti.lang.shared import Shared
from smalti.lang.threads import cluster_rank, elected, first_of_warpgroup
from smalti.lang.trace import Trace, current

if TYPE_CHECKING:
    from smalti.lang.tensors import Tile
    from smalti.lang.values import Value

__all__ = ["load", "store"]

STEP = 128  # bytes: copies begin at multiples of it (H200, E11)
LONGEST = 256  # elements of a box along one dimension (PTX ISA 5.5; cuTensorMapEncodeTiled)


def fetch(start: Value, spec: MapParameter, copies: list[tuple[int, list[Any]]], slot: Any) -> None:
    """Copies of boxes of one map to byte offsets from `start`, completing on the slot's barrier; bytes are expected
    by the caller."""
    trace = current()
    map_ = trace.read(trace.parameters.map(trace, spec))
    with _one_thread(trace):
        for offset, coordinates in copies:
            trace.emit(
                _opcode(len(coordinates), slot.pair),
                trace.builder.address(trace.read(start), offset),
                trace.builder.tensor_address(map_, [trace.operand(c) for c in coordinates]),
                slot.barrier_operand(),
            )


def _opcode(rank: int, pair: bool) -> str:
    """On a pair the barrier may be the other CTA's."""
    group = ".cta_group::2" if pair else ""
    return f"cp.async.bulk.tensor.{rank}d{group}.shared::cluster.global.mbarrier::complete_tx::bytes"


def _one_thread(trace: Trace) -> AbstractContextManager[Any]:
    """The thread that issues: the one that runs here, or one of the warp. Errors: SML0336 where several warps run."""
    threads = trace.region.threads
    if threads.single:
        return nullcontext()
    if threads.warps != 1:
        raise error("SML0336", what="A TMA load", threads=threads.describe())
    return trace.open_if(elected(), "one", trace.with_threads(single=True))


def _load_halves(target: Shared, tile: Tile) -> None:
    """On a pair: of every `halves` rows of the tile, this CTA loads its half."""
    slot, half = target.slot, target.halves // 2
    if slot is None:
        raise error("SML0335", tile=target.storage.name)
    rank = cluster_rank() & 1
    slot.expect(target.bytes)
    for n in range(target.shape[0] // half):
        part, source = target.rows(n, half), tile.rows(2 * n + rank, half)
        parameter, lines = _map(part, source, 1)
        copies = [
            (_offset(part, along, line), _coordinates(part, source, along, line))
            for along, line in _boxes(part, lines, 1)
        ]
        fetch(part.address(), parameter, copies, slot)


def load(target: Shared, tile: Tile, barrier: MBarrier | None, share: int = 1) -> None:
    """Issue the copies of `tile` into `target`. `share`: CTAs of the cluster that each load a part for all.

    Errors: SML0330 shape, SML0303 dtype, SML0343 alignment, SML0345 axis, SML0346 steps, SML0335 no barrier.
    """
    trace = current()
    if target.halves:
        _load_halves(target, tile)
        return
    _check(target, tile, "load")
    slot = target.slot
    if barrier is None:
        if slot is None:
            raise error("SML0335", tile=target.storage.name)
        barrier = slot.full
        slot.expect(target.bytes)
        share = slot.share(target)
    with _one_thread(trace):
        _issue_load(target, tile, barrier, share)


def _issue_load(target: Shared, tile: Tile, barrier: MBarrier, share: int) -> None:
    trace = current()
    parameter, lines = _map(target, tile, share)
    map_ = trace.read(trace.parameters.map(trace, parameter))
    address = target.address()
    mask = (1 << share) - 1
    for along, line in _boxes(target, lines, share):
        first: Any = line
        start: Any = address
        if share > 1:
            part = target.lines // share
            first = cluster_rank() * part + line
            start = address + cluster_rank() * (part * target.geometry.span)
        coordinates = _coordinates(target, tile, along, first)
        operands = [
            trace.builder.address(trace.read(start), _offset(target, along, line)),
            trace.builder.tensor_address(map_, [trace.operand(c) for c in coordinates]),
            barrier.raw,
        ]
        opcode = _opcode(len(coordinates), pair=False)
        if share > 1:
            mask_register = trace.register("u16")
            trace.emit("mov.u16", mask_register, mask)
            trace.emit(f"{opcode}.multicast::cluster", *operands, mask_register)
        else:
            trace.emit(opcode, *operands)


def store(tile: Tile, source: Shared) -> None:
    """Issue the copies from `source` by one thread, as one bulk group."""
    trace = current()
    _check(source, tile, "store")
    source.publish(tensor=True)
    if source.slot is not None:
        source.slot.used("tma")
    else:
        bulk.stored(source.storage)
    if trace.region.threads.single:
        _issue_store(tile, source)
    else:
        with (
            trace.open_if(first_of_warpgroup(), "when"),
            trace.open_if(elected(), "one", trace.with_threads(single=True)),
        ):
            _issue_store(tile, source)
    trace.note("store", f"TMA store of {tile.tensor.name} from {source.storage.name}, clipped, one thread")
    _wait_at_end()


def _issue_store(tile: Tile, source: Shared) -> None:
    trace = current()
    parameter, lines = _map(source, tile, 1)
    map_ = trace.read(trace.parameters.map(trace, parameter))
    address = trace.read(source.address())
    for along, line in _boxes(source, lines, 1):
        coordinates = _coordinates(source, tile, along, line)
        trace.emit(
            f"cp.async.bulk.tensor.{len(coordinates)}d.global.shared::cta.bulk_group",
            trace.builder.tensor_address(map_, [trace.operand(c) for c in coordinates]),
            trace.builder.address(address, _offset(source, along, line)),
        )
    trace.emit("cp.async.bulk.commit_group")


def _wait_at_end() -> None:
    """The role that stores waits, before it ends, until its shared memory has been read."""
    trace = current()
    region = trace.role_region()
    key = ("bulk wait", id(region))
    if key not in trace.cached:
        trace.cached[key] = True
        region.at_exit.append(_wait_for_reads)


def _wait_for_reads() -> None:
    trace = current()
    trace.emit("cp.async.bulk.wait_group", 0)
    trace.note("wait", "for TMA stores, at the end")


def _check(memory: Shared, tile: Tile, verb: str) -> None:
    from smalti.lang.tensors import Tile

    tensor = tile.tensor if isinstance(tile, Tile) else None
    if tensor is None:
        raise error("SML0334", what=verb, wanted="a tile of a tensor", given=type(tile).__name__)
    if memory.shape != tile.shape:
        raise error("SML0330", what="shared tile", have=memory.shape, wanted=tile.shape)
    if memory.dtype is not tensor.dtype:
        raise error("SML0303", op=verb, left=memory.dtype.name, right=tensor.dtype.name)
    if not tensor.bulk:
        raise error("SML0343", tensor=tensor.name, alignment=tensor.facts.alignment)
    if (memory.axis == 1) != (tensor.axis == tensor.rank - 1):
        raise error("SML0345", tensor=tensor.name, tile=memory.storage.name)


def _map(memory: Shared, tile: Tile, share: int) -> tuple[MapParameter, int]:
    """The tensor map of these copies, and the lines of one copy. Errors: SML0346."""
    tensor, g = tile.tensor, memory.geometry
    lines = memory.lines // share
    if lines > LONGEST:
        lines = next(n for n in range(LONGEST, 0, -1) if lines % n == 0)
    along, storage = _along(memory), memory.storage
    step = lines * along * g.bits // 8
    several = memory.extent > along or lines < storage.geometry.lines or storage.stages > 1
    if several and step % STEP:
        each = STEP * 8 // g.bits
        what, nearest = "length", -(-memory.extent // each) * each
        if memory.lines > 1:
            what, nearest = "number of lines", next(n for n in range(lines, lines + STEP) if n * g.span % STEP == 0)
        raise error("SML0346", tile=storage.name, step=step, what=what, nearest=nearest)
    order = (tensor.axis, *(a for a in reversed(range(tensor.rank)) if a != tensor.axis))
    pack = _pack(tensor)
    box = (along // pack, lines, *(1,) * (tensor.rank - 2))[: tensor.rank]
    kind = "u8" if pack > 1 else tensor.dtype.map_type
    return MapParameter(tensor.name, kind, order, box, g.swizzle, pack=pack), lines


def _pack(tensor: Any) -> int:
    """Packed 4-bit elements are moved as bytes: maps of packed elements know boxes of 128 elements only."""
    return 2 if tensor.dtype.bits == 4 else 1


def _along(memory: Shared) -> int:
    """Elements of a copy along a line: a stripe; of a single line without a swizzle, which has no gaps, up to 256."""
    g = memory.geometry
    if g.lines > 1 or g.swizzle != "none":
        return min(g.stripe, memory.extent)
    fits = [n for n in range(g.stripe, LONGEST + 1, g.stripe) if memory.extent % n == 0]
    return max([n for n in fits if n * g.bits % (STEP * 8) == 0 or n == memory.extent] or fits)


def _boxes(memory: Shared, lines: int, share: int) -> list[tuple[int, int]]:
    """(first element along the line, first line) of each copy."""
    along = _along(memory)
    return [(e, n) for e in range(0, memory.extent, along) for n in range(0, memory.lines // share, lines)]


def _offset(memory: Shared, along: int, line: int) -> int:
    """Bytes from the tile's start to those elements, which begin a stripe."""
    g = memory.geometry
    return along // g.stripe * g.stripe_bytes + line * g.span


def _coordinates(memory: Shared, tile: Tile, along: int, line: Any) -> list[Any]:
    """Innermost first, elements."""
    tensor = tile.tensor
    inner = tile.origin[tensor.axis] + along
    inner = inner // _pack(tensor) if _pack(tensor) > 1 else inner
    if tensor.rank == 1:
        return [inner]
    other = tensor.rank - 1 if tensor.axis == tensor.rank - 2 else tensor.rank - 2
    outer = [tile.origin[a] for a in reversed(range(tensor.rank)) if a not in (tensor.axis, other)]
    return [inner, tile.origin[other] + line, *outer]
