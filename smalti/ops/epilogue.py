"""The way of an accumulator in tensor memory to D: part by part through registers and, where D allows, shared memory.

Shared by the Blackwell kernels; runs in a role of one warpgroup.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import smalti as sm
from smalti.lang.control import range_

__all__ = ["out_tiles", "store_accumulator"]

SPAN = 1024  # bits of a line that TMA stores at once: one span of the widest swizzle
MOST_COLUMNS = 64  # of a part, which a thread holds in registers


def _part_columns(memory: Any, bits: int) -> int:
    """Columns of D that go together: one span of the widest swizzle where they divide into such parts."""
    return int(memory.part_columns(min(SPAN // bits, MOST_COLUMNS)))


def out_tiles(memory: Any, d: Any, count: int) -> list[Any]:
    """`count` tiles in shared memory that parts of D pass through in turn; none where TMA cannot write D."""
    if not d.bulk:
        return []
    columns = _part_columns(memory, d.dtype.bits)
    rows, _ = memory.part(0, 0, columns).shape
    return [sm.shared((rows, columns), d.dtype, name=f"{d.name}_out") for _ in range(count)]


def store_accumulator(accumulator: Any, target: Any, outs: list[Any], finish: Callable[[Any], Any]) -> None:
    """Write `accumulator` to the tile `target` of D, clipped; `finish` gives the values of D for what a part holds.

    A run-time loop over the parts, in each turn of which every tile of `outs` is used once.
    """
    columns = _part_columns(accumulator, target.dtype.bits)
    parts = accumulator.shape[1] // columns
    turn = math.gcd(parts, max(len(outs), 1))
    for tile in range_(accumulator.tiles):
        for first in range_(parts // turn):
            for n in range(turn):
                part = accumulator.part(tile, first * turn + n, columns)
                values, place = finish(part.load()), target.like(part)
                if outs:
                    outs[n].set(values)
                    place.store(outs[n])
                else:
                    place.store(values)
