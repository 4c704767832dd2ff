"""Sparse metadata in tensor memory: its home, and the ways in and out of it. Where a code lies is `layout.tensor`'s
business; what the codes of a matrix are, and their words in global memory, is `run.sparse`'s.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from smalti.errors import error
from smalti.lang.arrays import Array
from smalti.lang.dtypes import DTYPES, DType, dtype
from smalti.lang.tensor_memory import Part, TensorMemory, allocation, matrix
from smalti.lang.trace import current
from smalti.lang.values import Scalar, Value
from smalti.layout import tensor

__all__ = ["MetadataMemory", "metadata_memory"]

UNIT = 4  # columns that one tcgen05.cp fills: 16 bytes of each lane
ROWS = 128  # of one CTA's part of an instruction: the metadata of fewer are in figures only


@dataclass(frozen=True, slots=True, eq=False)
class MetadataMemory:
    """Metadata of a sparse operand A of `shape` (rows, K before compression) and element type `dtype`.

    As words it is a matrix [rows, columns] of u32 in `words`; `copy`, `load` and `store` move that. A row of words is a
    lane of tensor memory, which for 16- and 32-bit elements holds parts of two rows of A.
    """

    words: TensorMemory
    shape: tuple[int, int]
    dtype: DType

    def __repr__(self) -> str:
        return f"<metadata {self.words.name} for {self.shape[0]}x{self.shape[1]} {self.dtype.name}>"

    in_tensor_memory = True

    @property
    def group(self) -> int:
        return self.words.group

    @property
    def name(self) -> str:
        return self.words.name

    @property
    def slot(self) -> Any:
        return self.words.slot

    @property
    def raw(self) -> Value:
        """Tensor-memory address of the first word, u32."""
        return self.words.address()

    def rows(self, g: Scalar, n: int) -> MetadataMemory:
        """Rows g*n to g*n + n - 1: whole row tiles. Errors: SML0332, SML0703."""
        return replace(self, words=self.words.rows(g, n), shape=(n, self.shape[1]))

    # -- of a channel -----------------------------------------------------------------------------------

    def bind(self, stages: int) -> None:
        self.words.bind(stages)

    def staged(self, stage: Scalar, slot: Any) -> MetadataMemory:
        return replace(self, words=self.words.staged(stage, slot))

    def acquired(self) -> None:
        self.words.acquired()

    # -- in and out -------------------------------------------------------------------------------------

    def copy(self, source: Any) -> None:
        """Copy words from a shared u32 tile [rows, columns] by tcgen05.cp: see `TensorMemory.copy`."""
        self.words.copy(source)

    def load(self) -> Array:
        """The words of one row tile, in registers of this warpgroup. Errors: SML0704, SML0705."""
        return self.words.load()

    def store(self, array: Array) -> None:
        """Store words of one row tile from registers. Errors: SML0704, SML0705, SML0330, SML0303, SML0307."""
        self.words.store(array)

    def split(self) -> Iterator[Part]:
        """Its row tiles, to load or store one after another."""
        return self.words.split(self.words.shape[1])

    # -- in a product -----------------------------------------------------------------------------------

    def address(self, tile: int, step: int) -> Value:
        """Of the metadata of one instruction: row tile and step of K. 16- and 32-bit types: of an even column."""
        columns = _columns(self.dtype)
        return self.words.address(tile, step * columns if columns > 1 else step & ~1)

    def selector(self, step: int) -> int:
        """Which column of an even-aligned pair an instruction reads (16- and 32-bit types)."""
        return step % 2 if _columns(self.dtype) == 1 else 0


def instruction_k(kind: DType) -> int:
    """K of one sparse instruction, before compression: 64 bytes (PTX ISA 9.7.16.2.1, table 39)."""
    return 512 // kind.bits


def _columns(kind: DType) -> int:
    """Columns of words that one instruction reads."""
    layout = tensor.metadata(ROWS, kind.bits)
    return int(layout.extents["column"]) // (2 if kind.bits >= 16 else 1)


def metadata_memory(shape: tuple[int, int], kind: DType | str, *, pair: bool = False, name: str = "") -> MetadataMemory:
    """Room in tensor memory for the metadata of a sparse operand A of `shape` (rows, K before compression).

    kind   element type of A: f16, bf16, tf32, e4m3, e5m2, s8, u8, or e2m1 (in pairs)
    pair   of a CTA pair: the shape is the pair's, each CTA holds the metadata of its half of every row tile
    Rows in multiples of 128 (256 on a pair), K of four columns: 64 of tf32, 128 of 8- and 16-bit types, 256 of e2m1.
    Errors: SML0740, SML0741, SML0700 to SML0702.
    """
    to = dtype(kind)
    if to.name not in ("f16", "bf16", "tf32", "e4m3", "e5m2", "s8", "u8", "e2m1"):
        raise error("SML0740", dtype=to.name)
    owner = allocation(pair=pair)
    tile, deep = ROWS * owner.group, UNIT // _columns(to) * instruction_k(to)
    rows, k = shape
    if rows <= 0 or rows % tile or k <= 0 or k % deep:
        nearest = (max(-(-rows // tile), 1) * tile, max(-(-k // deep), 1) * deep)
        raise error("SML0741", shape=shape, rows=tile, k=deep, dtype=to.name, nearest=nearest)
    unique = current().unique(name or "metadata")
    words = matrix(unique, (rows, k // deep * UNIT), DTYPES["u32"], owner, tile)
    return MetadataMemory(words, (rows, k), to)
