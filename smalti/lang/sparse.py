"""Metadata of 2:4 sparse operands for wgmma: which of four neighbours each kept element was, loaded for each thread.

In global memory a row of metadata has one byte for two chunks, the first in the low half. A chunk is 4 elements of
K of which 2 are kept (32-bit types: 2, of which 1), a code two 2-bit indices, lower first. Knows no products.
"""

from __future__ import annotations

from typing import Any

from smalti.errors import error
from smalti.lang.dtypes import DType
from smalti.lang.tensors import Tile
from smalti.lang.threads import lane_index, thread_of_warpgroup
from smalti.lang.trace import current
from smalti.lang.values import Value, as_value, fresh, select

__all__ = ["Metadata", "sparse_metadata"]

ROWS = 64
DEFAULT = 0x44444444  # keeps elements 0 and 1 of each chunk: for rows and chunks over the edge, whose data are zero


class Metadata:
    """Registers of metadata for a sparse A: one for each 64-row tile and instruction. Give it to `mma(metadata=)`."""

    def __init__(self, dtype: DType, registers: dict[tuple[int, int], Value]) -> None:
        self.dtype, self.registers = dtype, registers

    def __call__(self, row: int, step: int) -> Value:
        return self.registers[row, step]


def sparse_metadata(tile: Tile, dtype: DType) -> Metadata:
    """Load a tile of metadata (u8, one row for each row of A) for a sparse A of `dtype` elements.

    The tile's columns are bytes: K/8 of the dense K for 8- and 16-bit types, K/4 for tf32.
    Errors: SML0608 shape, dtype or alignment.
    """
    rows, columns = tile.shape
    each = 8 if dtype.bits == 8 else 4  # bytes of a row that one instruction takes
    width = each // 2  # bytes of one access (PTX ISA 9.7.15.6; measured, E6)
    aligned = tile.tensor.facts.alignment % width == 0 and tile.tensor.axis == 1
    if rows % ROWS or columns % each or tile.dtype.name != "u8" or not aligned:
        raise error("SML0608", rows=rows, columns=columns, dtype=tile.dtype.name, each=each, width=width)
    lane: Any = lane_index()
    warp_row = (thread_of_warpgroup() >> 5) * 16 + (lane >> 2)
    if dtype.bits == 8:
        row, part = warp_row + (lane & 1) * 8, (lane >> 1) & 1
    else:
        row, part = warp_row, lane & 1
    registers = {}
    for r in range(rows // ROWS):
        for step in range(columns // each):
            place = (row + r * ROWS, part * width + step * each)
            if dtype.bits == 8:
                registers[r, step] = _load(tile, *place, width)
            else:
                low, high = _load(tile, *place, width), _load(tile, place[0] + 8, place[1], width)
                registers[r, step] = low | (high << 16)
    current().note("load", f"metadata of {tile.tensor.name}, with bounds")
    return Metadata(dtype, registers)


def _load(tile: Tile, row: Any, column: Any, width: int) -> Value:
    """`width` bytes of one row, or the default over the edge."""
    trace, tensor = current(), tile.tensor
    line, at = tile.origin[0] + row, tile.origin[1] + column
    size = tensor.shape
    inside = (line < size[0]) & (at + (width - 1) < size[1])
    address = tensor.pointer + as_value(line, "u32").to("u64") * tensor.stride(0) + as_value(at, "u32").to("u64")
    value = fresh("u32")
    trace.emit("mov.u32", value, 0)
    trace.emit(f"ld.global.b{width * 8}", value, trace.builder.address(trace.read(address), 0), guard=inside)
    found: Value = select(inside, value, DEFAULT & (1 << width * 8) - 1)
    return found
