"""How the elements of a register array lie over the threads of a warpgroup: fragment layouts put to use.

A distribution repeats one fragment of `layout.fragments` over row and column tiles. Knows no instructions.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from smalti.layout import fragments
from smalti.layout.linear import Layout

__all__ = ["Distribution", "accumulator", "operand_a"]

Array = NDArray[np.int64]
ROWS = 64  # of one wgmma (PTX ISA 9.7.15.2)


@dataclass(frozen=True, eq=False)
class Distribution:
    """`shape` elements over 128 threads: fragments of `rows` x `columns` repeated along both dimensions.

    Element e of a thread lies at `positions[e]` plus what its index adds by `digits`. Fragments are ordered
    row tiles outside, column tiles inside; equal maps are equal, whatever their names.
    """

    name: str
    shape: tuple[int, int]
    rows: int
    columns: int
    fragment: Layout

    threads: ClassVar[int] = 128

    @cached_property
    def digits(self) -> tuple[tuple[int, int, int, int], ...]:
        """(divisor, size, row step, column step): a thread's index adds (index // divisor % size) steps."""
        found: list[tuple[int, int, int, int]] = []
        divisor = 1
        for mode in self.fragment.modes["thread"]:
            row, column = mode.strides
            if found and (row, column) == tuple(found[-1][1] * step for step in found[-1][2:]):
                found[-1] = (found[-1][0], found[-1][1] * mode.size, *found[-1][2:])
            else:
                found.append((divisor, mode.size, row, column))
            divisor *= mode.size
        return tuple(found)

    @cached_property
    def positions(self) -> Array:
        """[elements, 2]: row and column of each element of thread 0, in register order."""
        inside = _of_thread_0(self.fragment)
        tiles = [
            inside + np.array([r, c])
            for r in range(0, self.shape[0], self.rows)
            for c in range(0, self.shape[1], self.columns)
        ]
        return np.concatenate(tiles)

    @property
    def elements(self) -> int:
        """Elements that each thread holds."""
        return self.shape[0] * self.shape[1] // self.threads

    def narrowed(self, columns: int) -> Distribution | None:
        """The distribution of a part of `columns` columns, or None if parts are no fragments of this kind."""
        if columns <= 0 or self.shape[1] % columns:
            return None
        if columns % self.columns == 0:
            return Distribution(self.name, (self.shape[0], columns), self.rows, self.columns, self.fragment)
        if self.columns == self.shape[1] and self.name == "accumulator" and columns % 8 == 0:
            return accumulator(self.shape[0], columns)
        return None

    def _key(self) -> tuple[Any, ...]:
        return self.shape, self.digits, self.positions.tobytes()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Distribution) and (self is other or self._key() == other._key())

    def __hash__(self) -> int:
        return hash((self.shape, self.digits))

    def __str__(self) -> str:
        return f"{self.name} {self.shape[0]}x{self.shape[1]}"


def _of_thread_0(fragment: Layout) -> Array:
    registers, parts = fragment.inputs["register"], fragment.inputs["part"]
    values = fragment(
        thread=np.zeros((1, 1), np.int64), register=np.arange(registers)[:, None], part=np.arange(parts)[None, :]
    )
    return values.reshape(2, -1).T


@lru_cache(maxsize=256)
def accumulator(rows: int, columns: int) -> Distribution:
    """The accumulator of wgmma: 64-row tiles of `columns` columns (PTX ISA 9.7.15.5, D fragment)."""
    return Distribution("accumulator", (rows, columns), ROWS, columns, fragments.wgmma_d(columns))


@lru_cache(maxsize=256)
def operand_a(rows: int, k: int, bits: int) -> Distribution:
    """A of wgmma in registers: tiles of 64 rows and one instruction's K (256 bits)."""
    return Distribution("operand A", (rows, k), ROWS, 256 // bits, fragments.wgmma_a(bits))
