"""Tiles in shared memory, stored as wgmma, tcgen05 and TMA agree: stripes of one swizzle span, every line of the
tile in each. From a tile follow its layout, the TMA boxes that fill it, and the descriptor of any part of it.
Knows no instructions; the swizzles themselves are in `swizzle`, descriptor bits in `descriptors`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from smalti.errors import error
from smalti.layout.boundary import checked, checked_fields
from smalti.layout.descriptors import WINDOW, SmemDescriptor, check_operand, describe
from smalti.layout.linear import Layout
from smalti.layout.swizzle import SWIZZLES, Swizzle, swizzle, swizzle_address, swizzle_layout
from smalti.numerics.formats import lookup

__all__ = ["SWIZZLES", "Box", "SharedTile", "Swizzle", "swizzle", "swizzle_address", "swizzle_layout"]

MOST_BOX = 256  # elements of a TMA box in each dimension (PTX ISA 5.5, CUDA driver API cuTensorMapEncodeTiled)
UNIT = 16  # bytes that all modes keep together


class Box(NamedTuple):
    """One TMA copy into a tile: `extent` elements (contiguous dimension first, as TMA counts), from coordinates
    `at` relative to the tile, to byte `offset` of the tile. With `major` "K" the contiguous dimension is K.
    """

    extent: tuple[int, int]
    at: tuple[int, int]
    offset: int


@dataclass(frozen=True, slots=True)
class SharedTile:
    """`rows` (of M or N) x `columns` (of K) elements of format `dtype`, an operand of a tensor core or a result.

    `major`: which of them is contiguous in memory, "K" or "MN". `padded`: 4- and 6-bit elements take a byte each,
    as kinds f8f6f4 and mxf8f6f4 want them (16 elements, then padding, in 16 bytes). A line narrower than the
    swizzle's span has the span as pitch (measured, E11). Start tiles at multiples of `alignment`.

    Errors: SML0412 swizzle, SML0440 a line that is no whole number of spans, SML0405 more bytes than a CTA can
    address, SML0406 types, SML1001 format.
    """

    rows: int
    columns: int
    dtype: str
    swizzle: str = "128B"
    major: str = "K"
    padded: bool = False

    def __post_init__(self) -> None:
        checked_fields(self, ("rows", "columns", "dtype", "swizzle", "major", "padded"))
        span = swizzle(self.swizzle).span
        line = self._along * self.bits // 8
        whole = line % UNIT == 0 and (line < span or line % span == 0) and self._along * self.bits % 8 == 0
        if self.major not in ("K", "MN") or self.rows <= 0 or self.columns <= 0 or not whole:
            raise error(
                "SML0440",
                rows=self.rows,
                columns=self.columns,
                dtype=self.dtype,
                major=self.major,
                swizzle=self.swizzle,
                span=span,
                line=line,
            )
        if self.size > WINDOW:
            raise error("SML0405", what="size of a shared tile in bytes", value=self.size, limit=WINDOW)

    @property
    def bits(self) -> int:
        """Bits of an element's container in shared memory."""
        form = lookup(self.dtype)
        return form.bits if form.bits in (1, 4, 6) and not self.padded else form.dtype.itemsize * 8

    @property
    def span(self) -> int:
        """Bytes of a line in one stripe, and the pitch of lines."""
        return SWIZZLES[self.swizzle].span

    @property
    def alignment(self) -> int:
        """Bytes: TMA wants 128 in every mode (measured, E11); the pattern repeats every 256, 512 or 1024."""
        return max(SWIZZLES[self.swizzle].period, 128)

    @property
    def _along(self) -> int:
        return self.columns if self.major == "K" else self.rows

    @property
    def _lines(self) -> int:
        return self.rows if self.major == "K" else self.columns

    @property
    def _stripes(self) -> int:
        return -(-self._along * self.bits // (8 * self.span))

    @property
    def size(self) -> int:
        """Bytes of shared memory."""
        return self._stripes * self._lines * self.span

    @property
    def layout(self) -> Layout:
        """`row`, `column` -> `offset` in bytes before the swizzle. Elements below a byte: the contiguous index
        counts bytes instead (packing belongs to the number format).
        """
        step = max(self.bits // 8, 1)
        inside = min(self._along * self.bits // 8, self.span) // step
        along = [(inside, {"offset": step}), (self._stripes, {"offset": self._lines * self.span})]
        lines = [(self._lines, {"offset": self.span})]
        row, column = (lines, along) if self.major == "K" else (along, lines)
        return Layout({"row": row, "column": column}, ["offset"])

    @property
    def swizzled(self) -> Layout:
        """The same after the swizzle, for a tile that starts at a multiple of `alignment`.

        Errors: SML0403 if the number of lines is no multiple of what the swizzle's pattern holds.
        """
        period = SWIZZLES[self.swizzle].period
        size = max(1 << (self.size - 1).bit_length(), period)
        return self.layout.then(swizzle_layout(self.swizzle, size))

    def boxes(self) -> tuple[Box, ...]:
        """The TMA boxes that fill the tile (or drain it), each one stripe wide and at most 256 lines tall."""
        inside = min(self._along, self.span * 8 // self.bits)
        found = []
        for stripe in range(self._stripes):
            for line in range(0, self._lines, MOST_BOX):
                lines = min(MOST_BOX, self._lines - line)
                offset = (stripe * self._lines + line) * self.span
                found.append(Box((inside, lines), (stripe * inside, line), offset))
        return tuple(found)

    @checked
    def descriptor(
        self, arch: str, start: int, *, row: int = 0, column: int = 0, rows: int, columns: int
    ) -> SmemDescriptor:
        """The descriptor of the part of `rows` x `columns` elements at (`row`, `column`) as one operand of wgmma or
        tcgen05 (`arch`), the tile lying at shared address `start`. A K step is a step of `column`.

        For a dense instruction `columns` are 32 bytes of K; elements below a byte count as elements here, too.
        Errors: SML0414 a combination that the tensor core lacks, SML0419 a part that is not one operand,
        SML0410 to SML0418 as `encode_smem`.
        """
        check_operand("wgmma" if arch.startswith("sm_90") else "tcgen05", self.swizzle, self.major, self.bits)
        packed = max(8 // self.bits, 1)
        return describe(
            self.layout,
            arch=arch,
            start=start,
            swizzle=self.swizzle,
            major=self.major,
            element_bits=self.bits,
            row=row,
            column=column // packed,
            rows=rows,
            k_bytes=columns * self.bits // 8,
        )
