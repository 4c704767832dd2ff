"""Warps, gangs and registers.

A gang is a set of lanes of one CTA that stand at the same instruction; it executes as one vector. Warps of a role
usually form one gang; divergence splits gangs, joins merge them. Knows nothing of what instructions compute.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smalti.errors import Loc
from smalti.vgpu.clocks import Clock

if TYPE_CHECKING:
    from smalti.vgpu.machine import CTA
    from smalti.vgpu.program import Program

Bools = npt.NDArray[np.bool_]
Row = npt.NDArray[Any]
WARP = 32

_STORAGE: dict[int, Any] = {1: np.bool_, 8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
_SIGNED: dict[Any, Any] = {
    np.dtype(np.uint8): np.int8, np.dtype(np.uint16): np.int16, np.dtype(np.uint32): np.int32,
    np.dtype(np.uint64): np.int64,
}  # fmt: skip
_FLOAT: dict[Any, Any] = {
    np.dtype(np.uint16): np.float16, np.dtype(np.uint32): np.float32, np.dtype(np.uint64): np.float64,
}  # fmt: skip


class RegisterFile:
    """Registers of a CTA: one row a register, one entry a thread (b128: two 64-bit halves an entry)."""

    def __init__(self, program: Program, threads: int) -> None:
        counts: dict[int, int] = {}
        for w in program.widths:
            counts[w] = counts.get(w, 0) + 1
        pools = {
            w: iter(np.zeros((n, threads) if w != 128 else (n, threads, 2), _STORAGE.get(w, np.uint64)))
            for w, n in counts.items()
        }
        u = [next(pools[w]) for w in program.widths]
        s = [r.view(_SIGNED.get(r.dtype, r.dtype)) for r in u]
        f = [r.view(_FLOAT.get(r.dtype, r.dtype)) for r in u]
        self.rows = (u, s, f)
        self._banks: dict[tuple[int, int], Bank] = {}

    def bank(self, lo: int, hi: int) -> Bank:
        """The registers of threads lo … hi−1."""
        bank = self._banks.get((lo, hi))
        if bank is None:
            bank = self._banks[lo, hi] = Bank(self.rows, lo, hi)
        return bank


class Bank:
    """Views of the registers of some consecutive threads, by number: `u` unsigned (bool for predicates), `s` signed,
    `f` float; `views` holds all three."""

    __slots__ = ("f", "s", "u", "views")

    def __init__(self, rows: tuple[list[Row], list[Row], list[Row]], lo: int, hi: int) -> None:
        self.views: tuple[list[Row], list[Row], list[Row]] = tuple([r[lo:hi] for r in part] for part in rows)  # type: ignore[assignment]
        self.u, self.s, self.f = self.views


class Warp:
    """What belongs to a warp whatever gang it is in: its clock and its registers in flight."""

    __slots__ = ("agent", "clock", "cta", "hazards", "index", "state")

    def __init__(self, cta: CTA, index: int, agent: int, agents: int) -> None:
        self.cta, self.index = cta, index
        self.agent = agent  # number in the cluster
        self.clock = Clock(agents)
        self.clock.warps[agent] = 1
        self.hazards: dict[int, Any] = {}  # register -> the asynchronous operation that still uses or writes it
        self.state: dict[str, Any] = {}  # private to engines, by engine name

    def name(self) -> str:
        return f"warp {self.index} of CTA {self.cta.name}"


class Join:
    """Where the paths of a divergent branch meet again; gangs wait there for each other.

    `whole`: the branch parted whole warps, which need not wait for each other; that they do only keeps gangs large.
    """

    __slots__ = ("arrived", "count", "expected", "outer", "pc", "released", "whole")

    def __init__(self, pc: int, expected: int, outer: tuple[Join, ...], whole: bool) -> None:
        self.pc, self.expected, self.outer, self.whole = pc, expected, outer, whole
        self.arrived: list[Gang] = []
        self.count = 0
        self.released = False


class Wait:
    """Why a gang does not run. `advance`: go on with the next instruction when ready, else execute this one again."""

    advance = False

    def ready(self) -> bool:
        raise AssertionError("a wait must say when it is over")

    def timeout(self) -> bool:
        """Nothing else can run: end the wait without success if the instruction allows it (try_wait)."""
        return False

    def describe(self) -> str:
        return type(self).__name__


class Gang:
    """Lanes of one CTA at one instruction: `count` of lo … hi−1; those of `mask`, or all if it is None."""

    __slots__ = (
        "bank", "count", "cta", "hi", "joins", "lo", "machine", "mask", "pc", "poll", "ran", "seen",
        "slow", "wait", "width",
    )  # fmt: skip
    proxy = "generic"

    def __init__(self, cta: CTA, lo: int, hi: int, mask: Bools | None, pc: int, joins: tuple[Join, ...]) -> None:
        self.cta, self.machine = cta, cta.machine
        self.pc, self.joins = pc, joins
        self.wait: Wait | None = None
        self.poll: dict[int, tuple[int, bytes]] = {}  # pc -> (memory version, value) of its last polling
        self.seen: tuple[int, set[int]] = (-1, set())  # (memory version, states in which it was stuck)
        self.ran = (-1, 0)  # (memory version, instructions executed since)
        self.place(lo, hi, mask)

    def place(self, lo: int, hi: int, mask: Bools | None) -> None:
        """Become the lanes `mask` of lo … hi−1, cut to whole warps that have an active lane."""
        if mask is not None:
            active = np.flatnonzero(mask)
            first, last = int(active[0]) // WARP * WARP, -(-(int(active[-1]) + 1) // WARP) * WARP
            mask = mask[first:last]
            lo, hi = lo + first, lo + last
            if np.count_nonzero(mask) == hi - lo:
                mask = None
        self.lo, self.hi, self.mask, self.width = lo, hi, mask, hi - lo
        self.count = hi - lo if mask is None else int(np.count_nonzero(mask))
        self.bank = self.cta.registers.bank(lo, hi)
        self.refresh()

    def refresh(self) -> None:
        """Recompute whether instructions need the slow path (undefined registers or registers in flight)."""
        self.slow = bool(self.cta.undefined) or any(w.hazards for w in self.warps())

    # -- lanes ------------------------------------------------------------------------------------------

    def warps(self) -> list[Warp]:
        """The warps that have an active lane (all of lo … hi−1 unless the mask leaves whole warps out)."""
        warps = self.cta.warps[self.lo // WARP : self.hi // WARP]
        if self.mask is None or len(warps) == 1:
            return warps
        alive: Bools = np.bitwise_or.reduce(self.mask.reshape(-1, WARP), axis=1)
        return [w for w, a in zip(warps, alive, strict=True) if a]

    def active(self) -> Bools:
        return np.ones(self.width, np.bool_) if self.mask is None else self.mask

    def lanes(self) -> npt.NDArray[np.intp]:
        """Thread numbers in the CTA of the active lanes, ascending."""
        if self.mask is None:
            return self.cta.thread_numbers[self.lo : self.hi]
        return np.flatnonzero(self.mask) + self.lo

    def pick(self, row: Row) -> Row:
        """The entries of a register row that belong to active lanes."""
        return row if self.mask is None else row[self.mask]

    def put(self, number: int, values: Any) -> None:
        """Write a register: `values` for every lane of lo … hi−1, or a scalar; inactive lanes keep theirs."""
        if self.mask is None:
            self.bank.u[number][...] = values
        else:
            np.copyto(self.bank.u[number], values, where=self.mask, casting="unsafe")

    def put_active(self, number: int, values: Any) -> None:
        """Write a register with one value for each active lane."""
        if self.mask is None:
            self.bank.u[number][...] = values
        else:
            self.bank.u[number][self.mask] = values

    # -- undefinedness ----------------------------------------------------------------------------------

    def undefined(self, number: int) -> Bools | None:
        """Which lanes (of lo … hi−1) hold an undefined value in this register; None if none does."""
        flags = self.cta.undefined.get(number)
        if flags is None:
            return None
        part = flags[self.lo : self.hi]
        return part if part.any() else None

    def set_undefined(self, number: int, flags: Bools | None) -> None:
        """Say which lanes (of lo … hi−1) of a register just written are undefined; inactive lanes keep theirs."""
        self.cta.set_undefined(number, self.lo, self.hi, flags, self.mask)

    # -- as an agent ------------------------------------------------------------------------------------

    @property
    def loc(self) -> Loc | None:
        return self.machine.program.steps[self.pc].loc

    def who(self) -> str:
        first, last = self.lo // WARP, self.hi // WARP - 1
        some = f"warp {first}" if first == last else f"warps {first}-{last}"
        if self.mask is not None and first == last:
            some += f" lanes {_ranges(np.flatnonzero(self.mask))}"
        return f"{some} of CTA {self.cta.name}"


def _ranges(numbers: npt.NDArray[np.intp]) -> str:
    parts: list[str] = []
    start = prev = int(numbers[0])
    for n in [*map(int, numbers[1:]), -2]:
        if n != prev + 1:
            parts.append(str(start) if start == prev else f"{start}-{prev}")
            start = n
        prev = n
    return ",".join(parts)
