"""Which cells of tensor memory an operation touches: the layouts as index arrays and as rectangles, made once for each
shape, relative to the operation's address. Knows no values.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from smalti.layout import tensor
from smalti.layout.tensor import COLUMNS, LANES

Index = npt.NDArray[np.int64]
_MOST_PIECES = 8  # of a matrix; more are faster by index


class Block(NamedTuple):
    """A rectangle of cells: lanes lane … lane_end−1 of columns column … column_end−1."""

    lane: int
    lane_end: int
    column: int
    column_end: int

    def at(self, lane: int, column: int) -> Block:
        return Block(self.lane + lane, self.lane_end + lane, self.column + column, self.column_end + column)


class Cells(NamedTuple):
    """Cells in the order of data: `numbers` is lane * 512 + column of each, any shape.

    `blocks` cover the same cells, each once. `pieces` say for a matrix of cells which part of it is which block; empty
    if it is no few rectangles.
    """

    numbers: Index
    blocks: tuple[Block, ...]
    pieces: tuple[tuple[slice, slice, Block], ...] = ()

    @property
    def shape(self) -> tuple[int, ...]:
        return self.numbers.shape


def _cells(lanes: Index, columns: Index) -> Cells:
    numbers = np.ascontiguousarray(lanes * COLUMNS + columns)
    numbers.flags.writeable = False
    pieces = _pieces(lanes, columns) if lanes.ndim == 2 else ()
    blocks = tuple(block for _, _, block in pieces) or _blocks(numbers)
    return Cells(numbers, blocks, pieces)


def _pieces(lanes: Index, columns: Index) -> tuple[tuple[slice, slice, Block], ...]:
    """A matrix of cells cut where its rows or columns do not continue in the next lane or column."""
    rows = _cuts((np.diff(lanes, axis=0) != 1) | (np.diff(columns, axis=0) != 0))
    along = _cuts(((np.diff(columns, axis=1) != 1) | (np.diff(lanes, axis=1) != 0)).T)
    if len(rows) * len(along) > _MOST_PIECES:
        return ()
    return tuple(
        (r, c, Block(lane := int(lanes[r.start, c.start]), lane + r.stop - r.start,
                     column := int(columns[r.start, c.start]), column + c.stop - c.start))
        for r in rows for c in along
    )  # fmt: skip


def _cuts(breaks: npt.NDArray[np.bool_]) -> list[slice]:
    at = [0, *(np.flatnonzero(breaks.any(axis=1)) + 1).tolist(), len(breaks) + 1]
    return [slice(a, b) for a, b in pairwise(at)]


def _blocks(numbers: Index) -> tuple[Block, ...]:
    """Any set of cells as rectangles: runs of columns in each lane, joined over lanes that have the same runs."""
    used = np.zeros(LANES * COLUMNS, np.bool_)
    used[numbers] = True
    grid = used.reshape(LANES, COLUMNS)
    found: list[Block] = []
    lane = 0
    while lane < LANES:
        end = lane + 1
        while end < LANES and np.array_equal(grid[end], grid[lane]):
            end += 1
        edges = np.flatnonzero(np.diff(grid[lane].astype(np.int8), prepend=0, append=0))
        found += [Block(lane, end, int(a), int(b)) for a, b in zip(edges[::2], edges[1::2], strict=True)]
        lane = end
    return tuple(found)


def half_lanes(m: int, group: int, ws: bool, sparse: bool) -> bool:
    """Whether D uses 16 of every 32 lanes (layouts C and F), so that it may also start at lane 16."""
    return tensor.accumulator_name(m, group, ws, sparse) in ("C", "F")


@lru_cache(256)
def accumulator(m: int, n: int, group: int, ws: bool, sparse: bool) -> Cells:
    """D of one CTA, [m / group, n]; the CTAs of a pair hold one half of the rows each, in the same cells."""
    layout = tensor.accumulator(m, n, group, ws, sparse)
    rows = np.arange(m // group)[:, None]
    _, lanes, columns = np.broadcast_arrays(*layout(m=rows, n=np.arange(n)[None, :]))
    return _cells(lanes, columns)


@lru_cache(64)
def a_operand(m: int, k: int, bits: int, group: int, ws: bool, sparse: bool) -> tuple[Cells, ...]:
    """A of one CTA, [m / group, cells] for each of its copies."""
    layout = tensor.a_operand(m, k, bits, group, ws, sparse)
    first = np.arange(0, k, 32 // bits)[None, :]
    rows = np.arange(m // group)[:, None]
    return tuple(
        _cells(*np.broadcast_arrays(*layout(m=rows, k=first, replica=replica)[1:3]))
        for replica in range(layout.inputs["replica"])
    )


@lru_cache(64)
def scales(operand: str, extent: int, split: bool) -> Cells:
    """The cell that holds the factors of each row ("A") or column ("B"): [replicas, extent]."""
    lanes, columns, _ = np.moveaxis(tensor.scale_cells(operand, extent, 1, split)[:, :, 0, :], 1, 2)
    numbers = np.ascontiguousarray(lanes * COLUMNS + columns)
    numbers.flags.writeable = False
    return Cells(numbers, _blocks(numbers))


@lru_cache(64)
def metadata(m: int, bits: int, group: int, ws: bool, selector: int) -> tuple[Cells, Index]:
    """The cell of the 4-bit code of each chunk of the rows in one CTA, [replicas, rows, chunks], and its lowest bit."""
    layout = tensor.metadata(m, bits, group, ws)
    extents = layout.inputs
    lanes, columns, shifts = layout(
        row=np.arange(extents["row"])[None, :, None],
        chunk=np.arange(extents["chunk"])[None, None, :],
        replica=np.arange(extents["replica"])[:, None, None],
        selector=selector if extents["selector"] > 1 else 0,
    )
    shifts.flags.writeable = False
    return _cells(lanes, columns), shifts


@lru_cache(256)
def moved(shape: str, num: int, packed: bool, split: int) -> Cells:
    """What tcgen05.ld and st of .x<num> move, [registers, parts, 32 threads]; parts are 16-bit halves."""
    layout = tensor.load_store(shape, num, packed, split)
    register = np.arange(layout.inputs["register"])[:, None, None]
    part = np.arange(layout.inputs["part"])[None, :, None]
    lanes, columns = layout(thread=np.arange(32)[None, None, :], register=register, part=part)
    return _cells(lanes, columns)


@lru_cache(16)
def copied(shape: str, multicast: str) -> tuple[Cells, ...]:
    """The cells that tcgen05.cp writes, [rows, columns] for each copy."""
    layout = tensor.copy(shape, multicast)
    extents = layout.inputs
    rows, first = np.arange(extents["row"])[:, None], np.arange(0, extents["byte"], 4)[None, :]
    return tuple(
        _cells(*np.broadcast_arrays(*layout(row=rows, byte=first, replica=replica)[:2]))
        for replica in range(extents["replica"])
    )


SHIFTED = _cells(*np.broadcast_arrays(np.arange(32)[:, None], np.arange(8)[None, :]))  # tcgen05.shift: 32-byte rows
