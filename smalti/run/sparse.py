"""Structured sparsity on the host: pruning a dense matrix, compressing it, and its metadata as kernels read it.

Which elements a chunk keeps: 2 of 4 for 8- and 16-bit types, 1 of 2 for tf32, 4 of 8 in adjacent pairs for e2m1
(PTX ISA 9.7.16.10.8). Knows no kernels and no devices.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smalti.errors import error
from smalti.layout import tensor
from smalti.run.dtypes import as_bits, from_bits

__all__ = ["Sparse", "compress", "prune"]

Array = NDArray[Any]
LANES = 128  # rows of a tile of tensor memory
COPY_COLUMNS = 4  # words of a lane that one tcgen05.cp moves
DEFAULT = 0b0100  # keeps the first half of a chunk: for chunks over the edge, whose elements are zero


class Pattern(NamedTuple):
    """A chunk has `units` units of `unit` elements, of which `kept` are kept; `codes` the indices that name a half."""

    units: int
    kept: int
    unit: int = 1

    @property
    def chunk(self) -> int:
        return self.units * self.unit


_PATTERNS = {
    "f16": Pattern(4, 2),
    "bf16": Pattern(4, 2),
    "e4m3": Pattern(4, 2),
    "e5m2": Pattern(4, 2),
    "s8": Pattern(4, 2),
    "u8": Pattern(4, 2),
    "tf32": Pattern(2, 1),
    "e2m1": Pattern(4, 2, 2),
}
_BITS = {"e2m1": 4, "e4m3": 8, "e5m2": 8, "s8": 8, "u8": 8, "f16": 16, "bf16": 16, "tf32": 32}


@dataclass(frozen=True, eq=False)
class Sparse:
    """A matrix of which every chunk keeps half.

    kept    [rows, K/2], the kept elements in ascending order, in the matrix's own dtype
    codes   uint8 [rows, chunks]: for each chunk two 2-bit indices of the kept units, the lower one first
    """

    dtype: str
    kept: Array
    codes: NDArray[np.uint8]

    @property
    def shape(self) -> tuple[int, int]:
        """Of the matrix before compression."""
        rows, half = self.kept.shape
        return rows, 2 * half

    def __repr__(self) -> str:
        rows, k = self.shape
        return f"<sparse {self.dtype} matrix {rows}x{k}>"

    def dense(self) -> Array:
        """The matrix with its zeros."""
        pattern, (rows, k) = _PATTERNS[self.dtype], self.shape
        out = np.zeros((rows, self.codes.shape[1], pattern.units, pattern.unit), self.kept.dtype)
        kept = self.kept.reshape(rows, -1, pattern.kept, pattern.unit)
        np.put_along_axis(out, self._indices()[..., None], kept, axis=2)
        return out.reshape(rows, k)

    def _indices(self) -> NDArray[np.int64]:
        """[rows, chunks, kept] units."""
        codes = self.codes.astype(np.int64)
        if _PATTERNS[self.dtype].kept == 1:
            second: NDArray[np.int64] = (codes == 0b1110)[..., None].astype(np.int64)
            return second
        return np.stack([codes & 3, codes >> 2], axis=-1)

    def packed(self) -> NDArray[np.uint8]:
        """Codes row by row, two chunks a byte, the first in the low half: what `sm.sparse_metadata` reads on Hopper."""
        rows, chunks = self.codes.shape
        even = np.full((rows, -(-chunks // 2) * 2), DEFAULT, np.uint8)
        even[:, :chunks] = self.codes
        found: NDArray[np.uint8] = even[:, ::2] | even[:, 1::2] << 4
        return found

    def words(self, tile: tuple[int, int] = (LANES, 1)) -> NDArray[np.uint32]:
        """Words [rows, columns] as tensor memory holds them, for `sm.metadata_memory(...).copy`.

        A row is a lane of a 128-row tile; columns are those of the instructions along K. Both go on with legal codes to
        whole tiles: `tile` is the kernel's (rows, K before compression), at least 128 rows and four columns.
        """
        bits = _BITS[self.dtype]
        layout = tensor.metadata(LANES, bits)
        each, selectors = layout.inputs["chunk"], layout.inputs["selector"]
        columns = layout.extents["column"] // selectors  # of one instruction
        (rows, chunks), k = self.codes.shape, self.shape[1]
        deep = 512 // bits  # K of one instruction (PTX ISA 9.7.16.2.1, table 39)
        tall, long = math.lcm(tile[0], LANES), math.lcm(tile[1], COPY_COLUMNS // columns * deep)
        instructions = -(-k // long) * long // deep
        codes = np.full((-(-rows // tall) * tall, instructions * each), DEFAULT, np.uint32)
        codes[:rows, :chunks] = self.codes
        lane, column, bit = layout(row=np.arange(LANES)[:, None], chunk=np.arange(each)[None, :], selector=0, replica=0)
        place: Any = (slice(None), lane, column)
        out = np.zeros((len(codes) // LANES, LANES, instructions * columns), np.uint32)
        for step in range(instructions):
            here = codes[:, step * each : (step + 1) * each].reshape(-1, LANES, each) << bit.astype(np.uint32)
            np.bitwise_or.at(out[..., step * columns :], place, here)
        return out.reshape(len(codes), -1)


def prune(x: Any, dtype: str | None = None) -> Array:
    """`x` [rows, K] with the smallest elements of each chunk set to zero, so that `compress` takes it.

    dtype: the operand's element type where it is not that of the array (tf32 for float32). Ties keep the earlier
    element; of e2m1 pairs the larger sum of magnitudes counts. Errors: SML0120, SML0111.
    """
    bits, name, pattern = _matrix(x, dtype)
    size = np.abs(_values(bits, name)).reshape(*_chunks(bits, pattern), pattern.unit).sum(axis=-1)
    order = np.argsort(-np.where(np.isnan(size), np.inf, size), axis=-1, kind="stable")
    out = bits.copy().reshape(*size.shape, pattern.unit)
    np.put_along_axis(out, order[..., pattern.kept :, None], 0, axis=2)
    return from_bits(out.reshape(bits.shape), name)


def compress(x: Any, dtype: str | None = None) -> Sparse:
    """The kept half of a matrix [rows, K] whose every chunk has enough zeros, and the codes that say what was kept.

    Errors: SML0120 (K or dtype), SML0121 (a chunk with too many elements that are not zero), SML0111.
    """
    bits, name, pattern = _matrix(x, dtype)
    used = (_values(bits, name) != 0).reshape(*_chunks(bits, pattern), pattern.unit).any(axis=-1)
    many = used.sum(axis=-1) > pattern.kept
    if many.any():
        row, chunk = map(int, np.argwhere(many)[0])
        raise error("SML0121", row=row, column=chunk * pattern.chunk, found=int(used[row, chunk].sum()) * pattern.unit,
                    kept=pattern.kept * pattern.unit, chunk=pattern.chunk)  # fmt: skip
    units = np.sort(np.argsort(~used, axis=-1, kind="stable")[..., : pattern.kept], axis=-1)
    kept = np.take_along_axis(bits.reshape(*used.shape, pattern.unit), units[..., None], axis=2)
    codes = units[..., 0] | units[..., 1] << 2 if pattern.kept == 2 else np.where(units[..., 0], 0b1110, 0b0100)
    return Sparse(name, from_bits(kept.reshape(len(bits), -1), name), codes.astype(np.uint8))


def _matrix(x: Any, dtype: str | None) -> tuple[Array, str, Pattern]:
    bits, name = as_bits(x, what="x", dtype=dtype)
    pattern = _PATTERNS.get(name)
    if pattern is None or bits.ndim != 2 or bits.shape[1] % pattern.chunk:
        chunk = pattern.chunk if pattern else 4
        raise error("SML0120", shape=bits.shape, dtype=name, legal=", ".join(_PATTERNS), chunk=chunk)
    return np.ascontiguousarray(bits), name, pattern


def _chunks(bits: Array, pattern: Pattern) -> tuple[int, int, int]:
    return len(bits), bits.shape[1] // pattern.chunk, pattern.units


def _values(bits: Array, name: str) -> NDArray[np.float64]:
    return from_bits(bits, name).astype(np.float64)
