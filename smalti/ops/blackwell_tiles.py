"""The choice of tiles of D on Blackwell: what is wasted at the edges, and what fits into shared memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from smalti.lang.resources import SHARED_LIMIT
from smalti.ops.operands import LINE
from smalti.run.devices import Device
from smalti.run.devices import device as find

__all__ = ["Shape", "fastest", "fit"]

OUT = 128 * 128  # bytes of a part of D on its way out: 128 rows of one swizzle span
RESERVED = 2048  # barriers, and gaps before tiles that start at multiples of 1024
MOST_STAGES = 6
EDGE = 48  # an estimate, not measured


class Shape(NamedTuple):
    """A tile of D, of one CTA. Several row and column tiles of instructions lie in one accumulator."""

    rows: int
    columns: int


def fastest(shapes: Sequence[Shape], m: int, n: int, device: str | Device | None) -> Shape:
    """The shape with the least time by waves of tiles over the multiprocessors. The virtual GPU gains nothing from more
    of them. A tile's time is taken as its area and, for what it loads and begins, EDGE more rows and columns."""
    found = find(device, arch="sm_100a")
    multiprocessors = 1 if found.kind == "virtual" else found.sm_count

    def time(shape: Shape) -> int:
        tiles = -(-max(m, 1) // shape.rows) * -(-max(n, 1) // shape.columns)
        return -(-tiles // multiprocessors) * (shape.rows + EDGE) * (shape.columns + EDGE)

    return min(shapes, key=time)


def fit(shape: Shape, more: int) -> tuple[int, int]:
    """Stages of the ring, each with `more` bytes beside the data, and tiles that D passes through (two, or one where
    that leaves room for three stages)."""
    stage = (shape.rows + shape.columns) * LINE + more
    for outs in (2, 1):
        stages = (SHARED_LIMIT - RESERVED - outs * OUT) // stage
        if stages >= 3 or outs == 1:
            return min(stages, MOST_STAGES), outs
    raise AssertionError(shape)
