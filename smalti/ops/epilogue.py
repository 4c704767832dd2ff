"""The way of an accumulator in tensor memory to D: part by part through registers and, where D allows, shared memory.

Shared by the Blackwell kernels; runs in a role of one warpgroup.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import smalti as sm

__all__ = ["out_tiles", "store_accumulator"]

SPAN = 1024  # bits of a line that TMA stores at once: one span of the widest swizzle
MOST_COLUMNS = 64  # of a part, which a thread holds in registers


def _part_columns(columns: int, bits: int) -> int:
    """Columns of D that go together: one span of the widest swizzle where they divide into such parts."""
    return math.gcd(columns, min(SPAN // bits, MOST_COLUMNS))


def out_tiles(memory: Any, d: Any, count: int) -> list[Any]:
    """`count` tiles in shared memory that parts of D pass through in turn; none where TMA cannot write D."""
    if not d.bulk:
        return []
    part = next(memory.split(_part_columns(memory.shape[1], d.dtype.bits)))
    return [sm.shared(part.shape, d.dtype, name=f"{d.name}_out") for _ in range(count)]


def store_accumulator(accumulator: Any, target: Any, outs: list[Any], finish: Callable[[Any], Any]) -> None:
    """Write `accumulator` to the tile `target` of D, clipped; `finish` gives the values of D for what a part holds."""
    columns = _part_columns(accumulator.shape[1], target.dtype.bits)
    for n, part in enumerate(accumulator.split(columns)):
        values, place = finish(part.load()), target.like(part)
        if outs:
            out = outs[n % len(outs)]
            out.set(values)
            place.store(out)
        else:
            place.store(values)
