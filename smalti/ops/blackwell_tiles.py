"""The choice of tiles of D on Blackwell: what is wasted at the edges, and what fits into shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from smalti.lang.resources import SHARED_LIMIT
from smalti.ops.operands import LINE

__all__ = ["Shape", "fit", "least_waste"]

OUT = 128 * 128  # bytes of a part of D on its way out: 128 rows of one swizzle span
RESERVED = 2048  # barriers, and gaps before tiles that start at multiples of 1024
MOST_STAGES = 6


class Shape(NamedTuple):
    """A tile of D, of one CTA. Several row and column tiles of instructions lie in one accumulator."""

    rows: int
    columns: int


def least_waste(shapes: Sequence[Shape], m: int, n: int) -> Shape:
    """The shape whose tiles cover the least beyond M and N; the larger one where it is the same."""

    def waste(shape: Shape) -> tuple[int, int]:
        padded = -(-max(m, 1) // shape.rows) * shape.rows * -(-max(n, 1) // shape.columns) * shape.columns
        return padded, -shape.rows * shape.columns

    return min(shapes, key=waste)


def fit(shape: Shape, more: int) -> tuple[int, int]:
    """Stages of the ring, each with `more` bytes beside the data, and tiles that D passes through (two, or one where
    that leaves room for three stages)."""
    stage = (shape.rows + shape.columns) * LINE + more
    for outs in (2, 1):
        stages = (SHARED_LIMIT - RESERVED - outs * OUT) // stage
        if stages >= 3 or outs == 1:
            return min(stages, MOST_STAGES), outs
    raise AssertionError(shape)
