"""How gangs part and meet: branches, joins, lanes that leave, lanes that a .sync instruction needs.

`Divergence` is the part of the machine that moves lanes between gangs; it knows no instruction and no schedule but
whether warps are to go their own ways.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from smalti.vgpu.memory import Memory
from smalti.vgpu.program import Program
from smalti.vgpu.schedule import Schedule
from smalti.vgpu.warp import WARP, Gang, Join, Wait

Bools = npt.NDArray[np.bool_]


class Done(Wait):
    """All lanes of a gang have left the kernel."""


class JoinWait(Wait):
    """Waiting for the other paths of a divergent branch."""

    def __init__(self, join: Join) -> None:
        self.join = join

    def ready(self) -> bool:
        return self.join.released

    def describe(self) -> str:
        return "waiting for the other path of a divergent branch"


DONE = Done()


class ConvergeWait(Wait):
    """Waiting for other lanes of the same warp to reach a .sync instruction.

    `members`, of bar.warp.sync only: its member masks, for there the instruction need not be the same one.
    """

    def __init__(self, members: Callable[[Gang], Any] | None = None) -> None:
        self.members = members

    def ready(self) -> bool:
        return False

    def describe(self) -> str:
        return "waiting for other lanes of its warp at a .sync instruction"


class Divergence:
    """The machine's methods that split and merge gangs."""

    program: Program
    memory: Memory
    schedule: Schedule
    checks: Any

    def diverge(self, g: Gang, taken: Bools, target: int, fall: int) -> int | Wait:
        """Split a gang at a branch: `taken` lanes (of lo … hi−1, active ones) go to `target`, the rest to `fall`."""
        pc = self.program.joins.get(g.pc)
        joins = g.joins
        if pc is not None and not (joins and joins[-1].pc == pc):
            parted = taken.reshape(-1, WARP)
            whole = not (parted.any(axis=1) & (g.active() & ~taken).reshape(-1, WARP).any(axis=1)).any()
            joins = (*joins, Join(pc, g.count, joins, whole))
        rest = g.active() & ~taken
        other = Gang(g.cta, g.lo, g.hi, taken, target, joins)
        g.cta.gangs.append(other)
        g.joins = joins
        g.place(g.lo, g.hi, rest)
        return fall

    def _joining(self, op: Callable[[Gang], Any]) -> Callable[[Gang], Any]:
        """At a place where paths meet: wait for the others first."""

        def run(g: Gang) -> Any:
            while g.joins and g.joins[-1].pc == g.pc:
                join = g.joins[-1]
                if join.released:
                    g.joins = join.outer
                    continue
                join.arrived.append(g)
                join.count += g.count
                if join.count < join.expected:
                    return JoinWait(join)
                self._merge(g, join)
            return op(g)

        return run

    def _merge(self, g: Gang, join: Join) -> None:
        """All lanes are there: `g` becomes all of them."""
        others = [o for o in join.arrived if o is not g]
        lo, hi = min(o.lo for o in join.arrived), max(o.hi for o in join.arrived)
        mask = np.zeros(hi - lo, np.bool_)
        for o in join.arrived:
            mask[o.lo - lo : o.hi - lo] |= o.active()
        for o in others:
            g.cta.gangs.remove(o)
        g.joins = join.outer
        g.place(lo, hi, mask)
        if self.schedule.split() and g.count > WARP and not g.joins:
            self._split_warps(g)

    def _split_warps(self, g: Gang) -> None:
        """Let the warps of a gang go on their own (they need not meet again)."""
        active = g.active()
        lo, hi = g.lo, g.hi
        starts = [w for w in range(lo, hi, WARP) if active[w - lo : w - lo + WARP].any()]
        for w in starts[1:]:
            mask = np.zeros(hi - lo, np.bool_)
            mask[w - lo : w - lo + WARP] = active[w - lo : w - lo + WARP]
            g.cta.gangs.append(Gang(g.cta, lo, hi, mask, g.pc, g.joins))
        mask = np.zeros(hi - lo, np.bool_)
        mask[starts[0] - lo : starts[0] - lo + WARP] = active[starts[0] - lo : starts[0] - lo + WARP]
        g.place(lo, hi, mask)

    def retire(self, g: Gang, leaving: Bools) -> Wait | None:
        """Lanes (of lo … hi−1) leave the kernel. Returns DONE when none of the gang is left."""
        cta = g.cta
        leaving = leaving & g.active()
        cta.exited[g.lo : g.hi] |= leaving
        self.memory.version += 1
        count = int(np.count_nonzero(leaving))
        rest = g.active() & ~leaving
        for n, flags in list(cta.undefined.items()):  # nobody will read them
            flags[g.lo : g.hi] &= ~leaving
            if not flags.any():
                del cta.undefined[n]
                cta.undefined_bits &= ~(1 << n)
        joins = g.joins
        left = bool(rest.any())
        if left:
            g.place(g.lo, g.hi, rest)
        else:
            cta.gangs.remove(g)
            g.wait = DONE
        self._leave(joins, count)
        for o in cta.gangs:  # they may have waited for these lanes
            if isinstance(o.wait, ConvergeWait):
                o.wait = None
            if not cta.undefined:
                o.refresh()
        if self.checks is not None and cta.exited.all():
            self.checks.leaving(cta)
        return None if left else DONE

    def _leave(self, joins: tuple[Join, ...], count: int) -> None:
        """So many lanes will not come to these joins."""
        for join in joins:
            join.expected -= count
            if join.arrived and join.count == join.expected and not join.released:
                first = join.arrived[0]
                self._merge(first, join)
                first.wait = None

    def converge(self, g: Gang, members: Any, active: Callable[[Gang], Bools] = Gang.active) -> bool:
        """Whether, in every warp of the gang, all living lanes that the member masks name are here.

        `members`: a 32-bit mask, a row of them, or a function of the gang that gives them; `active` gives the lanes
        that execute, those whose guard holds. Lanes that wait at the same instruction are merged into the gang first.
        If the answer is no, the caller returns a ConvergeWait, and is executed again later.
        """
        if g.mask is None and active is Gang.active:
            return True
        while True:
            missing = _missing(g, members(g) if callable(members) else members, active(g))
            if missing is None:
                return True
            other = next((o for o in g.cta.gangs if o is not g and _has(o, g, missing)), None)
            if other is None:
                return False
            self.absorb(g, other)

    def absorb(self, g: Gang, other: Gang) -> None:
        """The lanes of another gang of the CTA, at the same instruction, become part of this one."""
        lo, hi = min(other.lo, g.lo), max(other.hi, g.hi)
        mask = np.zeros(hi - lo, np.bool_)
        for x in (g, other):
            mask[x.lo - lo : x.hi - lo] |= x.active()
        common = _common(g.joins, other.joins)
        leaving = [(x.joins[len(common) :], x.count) for x in (g, other)]
        g.cta.gangs.remove(other)
        g.joins = common
        g.place(lo, hi, mask)
        for joins, count in leaving:
            self._leave(joins, count)

    def warp_barrier(self, g: Gang, members: Callable[[Gang], Any], active: Callable[[Gang], Bools]) -> bool:
        """As `converge`, for bar.warp.sync, whose lanes may wait at different instructions: those go on from there."""
        if self.converge(g, members, active):
            return True
        waiting = [o for o in g.cta.gangs if o is not g and isinstance(o.wait, ConvergeWait) and o.wait.members]
        here = np.zeros(g.cta.threads_padded, np.bool_)
        for o, lanes in ((g, active(g)), *((o, o.active()) for o in waiting)):
            here[o.lo : o.hi] |= lanes
        needed = [o for o in waiting if _overlap(o, g)]
        for o in (g, *needed):
            wanted = _missing(o, (members if o is g else o.wait.members)(o), active(o) if o is g else o.active())  # type: ignore[union-attr]
            if wanted is not None and (wanted & ~here[o.lo : o.hi]).any():
                return False
        for o in needed:
            o.wait = None
            o.pc += 1
        return True


def _missing(g: Gang, members: Any, have: Bools) -> Bools | None:
    """The living lanes that the masks of the executing lanes `have` name but that are not among them."""
    masks = np.where(have, np.asarray(members, np.uint32), np.uint32(0)).reshape(-1, WARP)
    named = np.bitwise_or.reduce(masks, axis=1)
    need: Bools = (named[:, None] >> np.arange(WARP, dtype=np.uint32) & 1).astype(np.bool_).ravel()
    missing: Bools = need & ~g.cta.exited[g.lo : g.hi] & ~have
    return missing if missing.any() else None


def _has(o: Gang, g: Gang, missing: Bools) -> bool:
    """Whether gang `o` waits where `g` stands, with some of the missing lanes (of g's lo … hi−1)."""
    if o.pc != g.pc or not isinstance(o.wait, ConvergeWait):
        return False
    lo, hi = max(o.lo, g.lo), min(o.hi, g.hi)
    return lo < hi and bool((o.active()[lo - o.lo : hi - o.lo] & missing[lo - g.lo : hi - g.lo]).any())


def _overlap(a: Gang, b: Gang) -> bool:
    """Whether two gangs have lanes of the same warp."""
    return any(w in b.warps() for w in a.warps())


def _common(a: tuple[Join, ...], b: tuple[Join, ...]) -> tuple[Join, ...]:
    n = 0
    while n < min(len(a), len(b)) and a[n] is b[n]:
        n += 1
    return a[:n]
