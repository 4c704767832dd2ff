"""Registers of several threads as one array, and as the matrix that their fragments hold (layouts: layout.fragments).

Knows the register file; nothing of instructions.
"""

from __future__ import annotations

from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smalti.layout.linear import Layout

if TYPE_CHECKING:
    from smalti.vgpu.machine import CTA
    from smalti.vgpu.program import Program

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]


@cache
def _kernels() -> ModuleType:
    from smalti.vgpu.engines import transpose

    return transpose


class Block:
    """Registers of one width, as an operand lists them, of consecutive threads: [registers, threads]."""

    __slots__ = ("first", "members", "numbers", "places", "rows")

    def __init__(self, program: Program, numbers: list[int]) -> None:
        self.numbers = tuple(numbers)
        self.members = frozenset(numbers)
        self.first = numbers[0]
        width = program.widths[self.first]
        assert all(program.widths[n] == width for n in numbers)
        self.rows = _consecutive(numbers)
        before = {n: i for i, n in enumerate(i for i, w in enumerate(program.widths) if w == width)}
        self.places = _consecutive([before[n] for n in numbers])

    def read(self, cta: CTA, lo: int, threads: int) -> Array:
        """The values; may be a view."""
        pool: Any = cta.registers.rows[0][self.first].base
        return pool[self.places, lo : lo + threads]  # type: ignore[no-any-return]

    def write(self, cta: CTA, lo: int, values: Array) -> None:
        pool: Any = cta.registers.rows[0][self.first].base
        pool[self.places, lo : lo + values.shape[1]] = values

    def undefined(self, cta: CTA, lo: int, threads: int) -> Bools | None:
        """Which are undefined; None if none is."""
        clean: dict[Any, int] = cta.engines.setdefault("clean blocks", {})
        key = (self, lo, threads)
        if not cta.undefined or clean.get(key) == cta.tainted:
            return None
        flags: Bools = cta.taint[self.rows, lo : lo + threads]
        if flags.any():
            return flags
        clean[key] = cta.tainted  # until something becomes undefined again
        return None

    def set_undefined(self, cta: CTA, lo: int, threads: int, flags: Bools | None) -> None:
        """Say which of the values just written are undefined."""
        if flags is None and self.undefined(cta, lo, threads) is None:
            return
        for i, n in enumerate(self.numbers):
            cta.set_undefined(n, lo, lo + threads, None if flags is None else flags[i])


def _consecutive(numbers: list[int]) -> Any:
    """An index: a slice if the numbers follow each other."""
    first = numbers[0]
    return (
        slice(first, first + len(numbers)) if numbers == list(range(first, first + len(numbers))) else np.array(numbers)
    )


@cache
def index(layout: Layout) -> tuple[Array, tuple[int, int]]:
    """For each element of the matrix that a fragment layout (thread, register, part -> row, k or column) describes,
    its place among the fragment's elements taken as [registers, threads, parts]; and the matrix's shape."""
    rows, columns = (a.transpose(1, 0, 2) for a in layout.offsets())
    shape = (int(rows.max()) + 1, int(columns.max()) + 1)
    found = np.full(shape, -1, np.int64)
    found[rows, columns] = np.arange(rows.size).reshape(rows.shape)
    assert (found >= 0).all()
    return found.ravel(), shape


def elements(words: Array, bits: int) -> Array:
    """The elements in [registers, threads], low bits first, as a flat array of the smallest type that holds them."""
    if bits >= 8:
        return np.ascontiguousarray(words).view(f"uint{bits}").ravel()
    parts = np.arange(0, 32, bits, dtype=np.uint32)
    return (words[:, :, None] >> parts & np.uint32((1 << bits) - 1)).astype(np.uint8).ravel()


def to_matrix(words: Array, layout: Layout, bits: int) -> Array:
    """The matrix that registers [registers, threads] hold in elements of `bits`."""
    where, shape = index(layout)
    return elements(words, bits)[where].reshape(shape)


def from_matrix(matrix: Array, layout: Layout, registers: int, word_bits: int = 32) -> Array:
    """Registers [registers, threads] that hold a matrix of elements of 16 bits or more."""
    where, shape = index(layout)
    assert matrix.shape == shape
    flat = np.empty(matrix.size, matrix.dtype)
    flat[where] = matrix.ravel()
    return flat.view(f"uint{word_bits}").reshape(registers, -1)


def accumulator(words: Array) -> Array:
    """The [64, N] matrix of a wgmma accumulator of 32-bit elements, fast (layout: fragments.wgmma_d)."""
    out = np.empty((64, words.shape[0] * 2), np.uint32)
    _kernels().gather(words, out)
    return out


def put_accumulator(block: Block, cta: CTA, lo: int, matrix: Array) -> None:
    """The inverse of `accumulator`, into the registers."""
    target = block.read(cta, lo, 128)
    if isinstance(block.places, slice):
        _kernels().scatter(matrix, target)
    else:
        words = np.empty(target.shape, np.uint32)
        _kernels().scatter(matrix, words)
        block.write(cta, lo, words)


def flags_to_matrix(flags: Bools, layout: Layout, parts: int) -> Bools:
    """Undefined registers as undefined elements."""
    where, shape = index(layout)
    spread: Bools = flags[:, :, None].repeat(parts, axis=2).ravel()[where].reshape(shape)
    return spread


def flags_from_matrix(flags: Bools, layout: Layout, registers: int, parts: int) -> Bools:
    """Undefined elements as undefined registers."""
    where, _ = index(layout)
    flat = np.zeros(flags.size, np.bool_)
    flat[where] = flags.ravel()
    joined: Bools = np.bitwise_or.reduce(flat.reshape(registers, -1, parts), axis=2)
    return joined
