"""Moving register arrays to and from memory: which elements go in one access, and the addresses of a thread.

Used for shared and for global memory; knows registers and offsets, not tiles or tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from smalti.lang.distribution import Distribution
from smalti.lang.dtypes import DType
from smalti.lang.threads import thread_of_warpgroup
from smalti.lang.trace import current
from smalti.lang.values import Value
from smalti.ptx.module import Register

__all__ = ["Unit", "load_units", "store_units", "thread_part", "units"]

WIDEST = 16  # bytes of one ld or st


@dataclass(frozen=True, slots=True)
class Unit:
    """One access of a thread: `count` elements from element `first` on, at this place of thread 0."""

    first: int
    count: int
    row: int
    column: int


def units(distribution: Distribution, bits: int, axis: int, widest: int = WIDEST) -> list[Unit]:
    """Accesses of at most `widest` bytes that cover a thread's elements; adjacent along the contiguous `axis`."""
    positions = distribution.positions
    steps = [digit[2 + axis] for digit in distribution.digits]
    count = max(widest * 8 // bits, 1)
    while count > 1:
        if len(positions) % count == 0:
            groups = positions.reshape(-1, count, 2)
            along, across = groups[:, :, axis], groups[:, :, 1 - axis]
            runs = (along == along[:, :1] + np.arange(count)).all() and (across == across[:, :1]).all()
            if runs and not (along[:, 0] % count).any() and not any(s % count for s in steps):
                break
        count //= 2
    return [Unit(i, count, *map(int, positions[i])) for i in range(0, len(positions), count)]


def thread_part(distribution: Distribution, weigh: Callable[[int, int], int]) -> tuple[Any, int]:
    """What the thread's index adds to an offset, where `weigh(row, column)` is the offset of a place; and its bits."""
    t: Any = thread_of_warpgroup()
    total: Any = None
    mask = 0
    for divisor, size, row, column in distribution.digits:
        weights = [weigh(row << i, column << i) for i in range((size - 1).bit_length())]
        for start, length in _runs(weights):
            mask |= sum(weights[start : start + length])
            digit = t // (divisor << start)
            if (divisor << start) << length < distribution.threads:
                digit = digit % (1 << length)
            part = digit * weights[start]
            total = part if total is None else total + part
    return total, mask


def _runs(weights: list[int]) -> list[tuple[int, int]]:
    """Runs (start, length) of bits whose weights double: each is one multiplication."""
    runs: list[tuple[int, int]] = []
    for i, w in enumerate(weights):
        if runs and w == 2 * weights[i - 1]:
            runs[-1] = (runs[-1][0], runs[-1][1] + 1)
        else:
            runs.append((i, 1))
    return runs


def store_units(
    space: str,
    dtype: DType,
    registers: Sequence[Register],
    places: Sequence[tuple[Unit, Register, int, Value | None]],
) -> None:
    """Store each unit at [address + offset], for the threads for which its predicate holds."""
    trace = current()
    each = dtype.per_register
    for unit, address, offset, predicate in places:
        whole, vector = _whole(unit, dtype)
        if whole:
            first = unit.first // each
            held = list(registers[first : first + whole])
            target = trace.builder.address(address, offset)
            trace.emit(f"st.{space}{vector}.b32", target, held if whole > 1 else held[0], guard=predicate)
            continue
        width = unit.count * dtype.bits
        source, shift = registers[unit.first // each], unit.first % each * dtype.bits
        if shift:
            moved = trace.register("b32")
            trace.emit("shr.b32", moved, source, shift)
            source = moved
        trace.emit(f"st.{space}.b{width}", trace.builder.address(address, offset), source, guard=predicate)


def load_units(
    space: str,
    dtype: DType,
    count: int,
    places: Sequence[tuple[Unit, Register, int, Value | None]],
) -> list[Register]:
    """Load `count` elements, as `store_units`; elements whose predicate is false read as zero."""
    trace = current()
    each = dtype.per_register
    kind = dtype.register if dtype.bits == 32 else "b32"
    registers = [trace.register(kind) for _ in range(count // each)]
    pieces: dict[int, list[tuple[Register, int]]] = {}
    for unit, address, offset, predicate in places:
        whole, vector = _whole(unit, dtype)
        source = trace.builder.address(address, offset)
        if whole:
            first = unit.first // each
            into = registers[first : first + whole]
        else:
            into = [trace.register("b32")]
            pieces.setdefault(unit.first // each, []).append((into[0], unit.first % each * dtype.bits))
        if predicate is not None:
            for r in into:
                trace.emit("mov.b32", r, 0)
        type_ = "b32" if whole else f"b{unit.count * dtype.bits}"
        trace.emit(f"ld.{space}{vector}.{type_}", into if whole > 1 else into[0], source, guard=predicate)
    for register, parts in pieces.items():
        _combine(registers[register], parts)
    return registers


def _whole(unit: Unit, dtype: DType) -> tuple[int, str]:
    """Whole registers of a unit (0: less than one) and the vector modifier."""
    whole = unit.count * dtype.bits // 32
    return whole, f".v{whole}" if whole > 1 else ""


def _combine(register: Register, parts: list[tuple[Register, int]]) -> None:
    trace = current()
    total, _ = parts[0]
    for piece, shift in parts[1:]:
        moved, joined = trace.register("b32"), trace.register("b32")
        trace.emit("shl.b32", moved, piece, shift)
        trace.emit("or.b32", joined, total, moved)
        total = joined
    trace.emit("mov.b32", register, total)
