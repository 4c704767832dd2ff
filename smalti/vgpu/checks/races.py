"""Rules: two agents touch the same byte, one of them writes, and nothing orders them (SML0930); they are ordered, but
the proxy fence between generic and async accesses is missing (SML0931); lanes of one instruction store different
values to one address (SML0934); a CTA ends while others use its shared memory (SML0933 operations, SML0936 peers).
Sources: PTX 8.7, 8.10, 9.7.9.12, 9.7.13.4; CUDA C++ programming guide, distributed shared memory.

A warp is one agent: lanes of a warp are not told apart. Two unordered writes of the same value are let pass unless
checks are strict: correct kernels replicate data that way.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from smalti.errors import Loc, SmaltiError, error
from smalti.vgpu.checks.history import History, distinct
from smalti.vgpu.warp import WARP

if TYPE_CHECKING:
    from smalti.vgpu.clocks import Clock
    from smalti.vgpu.machine import CTA, Cluster
    from smalti.vgpu.memory import Segment

Offsets = npt.NDArray[np.int64]
UNIT = 16
STORAGE = 32  # a segment's storage starts at a multiple of this many bytes of its address
OPERATION = -1  # as `agent`: an asynchronous operation
NOBODY = -2
Report = Callable[[SmaltiError], None]
Packed = npt.NDArray[np.int64]  # cells of a shadow: the last write << 32 | the set of reads
READS = (1 << 32) - 1
SPLIT = -1


class Epoch(NamedTuple):
    """One agent at one time of its own: a warp between two releases at one line, or an asynchronous operation."""

    cluster: int
    agent: int  # warp number in the cluster; −1 for an operation
    time: int  # the warp's clock, or the operation's serial
    strong: bool
    generic: bool  # of the generic proxy
    who: str
    loc: Loc | None


class Actor(NamedTuple):
    """Who accesses now: identity and knowledge."""

    cluster: int
    agent: int
    time: int
    clock: Clock
    asynchronous: bool
    who: Callable[[], str]
    loc: Loc | None
    settled: bool = False  # a generic write that the async proxy sees without a fence


class Shadow:
    """The last write and the reads since, for every 16 bytes of a segment, and what flags in it make known.

    A cell holds the number of the write, and below it that of the reads. Units that smaller accesses touch are `SPLIT`:
    their cells are in a finer array, until they are written as a whole again.
    """

    __slots__ = ("_fine", "_grain", "_views", "flags", "whole")

    def __init__(self, size: int) -> None:
        self.whole: Packed = np.zeros(size // UNIT, np.int64)
        self._grain, self._fine = UNIT, np.zeros(0, np.int64)
        self._views: dict[int, Packed] = {UNIT: self.whole}
        self.flags: dict[int, dict[int, Clock]] = {}

    def cells(self, width: int) -> Packed:
        """By units of `width` bytes: one cell each, or a row of them; below 16 the fine ones (see `split`)."""
        found = self._views.get(width)
        if found is None:
            if width > UNIT:
                found = self.whole.reshape(-1, width // UNIT)
            else:
                if width < self._grain:
                    size = len(self.whole) * (UNIT // width)
                    self._fine = (
                        self._fine.repeat(self._grain // width) if len(self._fine) else np.zeros(size, np.int64)
                    )
                    self._grain = width
                    self._views = {w: v for w, v in self._views.items() if w >= UNIT}
                per = width // self._grain
                found = self._fine if per == 1 else self._fine.reshape(-1, per)
            self._views[width] = found
        return found

    def rows(self) -> Packed:
        """The fine cells, a row a unit."""
        return self._fine.reshape(len(self.whole), -1)

    def split(self, units: npt.NDArray[Any]) -> None:
        """From now on the fine cells of these units count."""
        before = self.whole[units]
        fresh = before != SPLIT
        if np.count_nonzero(fresh):
            units = units[fresh]
            self.rows()[units] = before[fresh][:, None]
            self.whole[units] = SPLIT

    def contents(self) -> list[int]:
        """All that its cells contain."""
        found = set(distinct(self.whole))
        if SPLIT in found:
            found.update(distinct(self.rows()[self.whole == SPLIT]))
        return list(found - {0, SPLIT})


def tracked(segment: Segment) -> bool:
    """Memory that several agents can see and that may change."""
    return segment.writable and segment.kind in ("shared", "global")


class Races:
    def __init__(self, report: Report, strict: bool = False) -> None:
        self._report, self._strict = report, strict
        self._history: History[Epoch] = History()

    # -- the three shapes of access ---------------------------------------------------------------------

    def access(
        self, agent: Any, segment: Segment, offsets: Offsets, width: int, lanes: npt.NDArray[np.intp] | None, *,
        writes: bool, strong: bool, values: npt.NDArray[Any] | None = None, settled: bool = False,
    ) -> None:  # fmt: skip
        """Accesses of `width` bytes at aligned offsets; `lanes` tells the warps apart; `values` are those stored."""
        if not len(offsets):
            return
        self._alive(agent, segment)
        shadow = shadow_of(segment)
        cells = shadow.cells(width)
        index = segment.index(offsets, width) if width > 1 else offsets + lead(segment)
        if width < UNIT:
            shadow.split(index // (UNIT // width))
        where = Where(segment, index, width, values)
        if lanes is None:
            self._one(self._operation(agent), cells, where, writes, strong)
            return
        if writes and not strong and values is not None and len(set(index.tolist())) < len(index):
            self._same_instruction(agent, segment, offsets, values, lanes)
        first, last = int(lanes[0]) // WARP, int(lanes[-1]) // WARP
        if first == last:
            actor = self._warp(agent, agent.cta.warps[first])
            self._one(actor._replace(settled=True) if settled else actor, cells, where, writes, strong)
        else:
            self._several(agent, cells, where, lanes // WARP, writes, strong)

    def span(self, agent: Any, segment: Segment, start: int, stop: int, *, writes: bool, strong: bool = False) -> None:
        """The bytes from `start` to `stop` − 1, by an asynchronous operation."""
        first, last = start + lead(segment), stop + lead(segment)
        edge = first | last
        width = UNIT if edge % UNIT == 0 else edge & -edge
        if start < stop:
            self._alive(agent, segment)
            shadow = shadow_of(segment)
            cells = shadow.cells(width)
            if width < UNIT:
                shadow.split(np.arange(first // UNIT, -(-last // UNIT)))
            where = Where(segment, slice(first // width, last // width), width, None)
            self._one(self._operation(agent), cells, where, writes, strong)

    def units(self, agent: Any, segment: Segment, units: Offsets, *, writes: bool, strong: bool = False) -> None:
        """16-byte units (byte offset / 16), by an asynchronous operation."""
        odd = segment.address % UNIT
        if odd:
            width = odd & -odd
            offsets = (units[:, None] * UNIT + np.arange(0, UNIT, width)).ravel()
            self.access(agent, segment, offsets, width, None, writes=writes, strong=strong)
            return
        self._alive(agent, segment)
        if lead(segment):
            units = units + lead(segment) // UNIT
        cells = shadow_of(segment).cells(UNIT)
        self._one(self._operation(agent), cells, Where(segment, units, UNIT, None), writes, strong)

    def spans(self, agent: Any, segment: Segment, spans: tuple[slice, ...]) -> bool:
        """Runs of 16-byte units read by an asynchronous operation and its followers.

        Where anything stands against it, or the units are not that simple, nothing is noted and the answer is false.
        """
        if not spans or segment.address % STORAGE:
            return False
        actor, cells = self._operation(agent), shadow_of(segment).whole
        contents = [distinct(cells[span]) for span in spans]
        for c in {c for found in contents for c in found}:
            if c == SPLIT:
                return False
            if c >> 32:
                epoch = self._history.epoch(c >> 32)
                if not ordered(epoch, actor) or (actor.asynchronous and epoch.generic and not fenced(epoch, actor)):
                    return False
        me, over = self._number(actor, False), self._over(actor)
        for span, found in zip(spans, contents, strict=True):
            if len(found) == 1:
                cells[span] = found[0] & ~READS | self._history.grow(found[0] & READS, me, over)
            else:
                before = cells[span]
                cells[span] = before & ~READS | self._history.grow_all(before & READS, me, over)
        return True

    def _alive(self, agent: Any, segment: Segment) -> None:
        """Shared memory of a peer exists as long as the peer."""
        owner = segment.owner
        if owner is not None and owner is not agent.cta and owner.exited.all():
            self._report(
                error("SML0936", at=agent.loc, cta=owner.name, other=agent.who(), what=owner.describe(segment.low))
            )

    def at_end(self, cta: CTA) -> None:
        """All threads of a CTA have left: whoever touched its shared memory must be known to be through with it."""
        shadow = cta.shared.shadow
        if shadow is None:
            return
        known = cta.warps[0].clock.copy()
        for warp in cta.warps[1:]:
            known.join(warp.clock)
        first, count = cta.warps[0].agent, len(cta.warps)
        nobody = Actor(cta.cluster.index, NOBODY, 0, known, False, str, None)
        for n in sorted(self._touched(shadow.contents())):
            epoch = self._history.epoch(n)
            if first <= epoch.agent < first + count or ordered(epoch, nobody):
                continue
            if epoch.agent == OPERATION:
                self._report(error("SML0933", at=epoch.loc, cta=cta.name, other=epoch.who))
            else:
                what = self._first_touched(cta.shared, shadow, n)
                self._report(error("SML0936", at=epoch.loc, cta=cta.name, other=epoch.who, what=what))

    def _first_touched(self, segment: Segment, shadow: Shadow, n: int) -> str:
        """What the author calls the first bytes that epoch n touched."""
        mine = [c for c in shadow.contents() if n in self._touched([c])]
        whole = np.isin(shadow.whole, mine)
        if not whole.any():
            whole = np.isin(shadow.rows(), mine).any(axis=1) & (shadow.whole == SPLIT)
        return Where(segment, slice(0, len(whole)), UNIT, None).name(whole)

    def _touched(self, cells: list[int]) -> set[int]:
        """The epochs that cells with these contents know of."""
        found = {c >> 32 for c in cells} - {0}
        for c in cells:
            found.update(self._history.members(c & READS))
        return found

    def forget(self, cluster: Cluster) -> None:
        """A cluster is over: its shared memory is gone."""
        for cta in cluster.ctas:
            cta.shared.shadow = None

    # -- who --------------------------------------------------------------------------------------------

    def _operation(self, op: Any) -> Actor:
        actor: Actor | None = getattr(op, "actor", None)
        if actor is None:
            serial = (getattr(op, "spokesman", None) or op).serial
            asynchronous = op.proxy == "async"
            actor = Actor(op.cta.cluster.index, OPERATION, serial, op.clock, asynchronous, op.who, op.loc)
            op.actor = actor
        return actor

    def _warp(self, gang: Any, warp: Any) -> Actor:
        clock = warp.clock
        return Actor(
            gang.cta.cluster.index, warp.agent, int(clock.warps[warp.agent]), clock, False, warp.name, gang.loc
        )

    def _number(self, actor: Actor, strong: bool) -> int:
        cluster, agent, time, _, asynchronous, who, loc, settled = actor
        return self._history.number(
            (cluster, time, strong) if agent == OPERATION else (cluster, agent, time, strong, loc, settled),
            lambda: Epoch(cluster, agent, time, strong, not asynchronous and not settled, who(), loc),
        )

    # -- the rule ---------------------------------------------------------------------------------------

    def _over(self, actor: Actor) -> Callable[[int], bool]:
        return lambda n: ordered(self._history.epoch(n), actor)

    def _fine(self, n: int, actor: Actor, strong: bool, read: bool = False) -> bool:
        """Whether the actor may access what epoch n accessed, one of them writing. A write behind a relaxed barrier
        does not change what was read before it: relied on by compilers, promised nowhere."""
        epoch = self._history.epoch(n)
        return (
            (epoch.strong and strong) or ordered(epoch, actor) or (read and not self._strict and passed(epoch, actor))
        )

    def _one(self, actor: Actor, cells: Packed, where: Where, writes: bool, strong: bool) -> None:
        """An access by one agent."""
        index = where.index
        me = self._number(actor, strong)
        before = cells[index]
        found = distinct(before)
        if SPLIT in found:
            self._mixed(actor, cells, where, before, writes, strong)
            return
        for n in {c >> 32 for c in found} if len(found) > 1 else (found[0] >> 32,):
            if n and n != me:
                if not self._fine(n, actor, strong):
                    self._after_write(n, actor, where, before, writes)
                elif actor.asynchronous:
                    self._through_proxies(n, actor, where, before, strong)
        if writes:
            for s in {c & READS for c in found}:
                for n in self._history.members(s):
                    if not self._fine(n, actor, strong, read=True):
                        self._race(n, actor, where, before & READS == s, True, "read")
            cells[index] = me << 32
        elif len(found) == 1:
            c = found[0]
            cells[index] = c & ~READS | self._history.grow(c & READS, me, self._over(actor))
        else:
            cells[index] = before & ~READS | self._history.grow_all(before & READS, me, self._over(actor))

    def _mixed(self, actor: Actor, cells: Packed, where: Where, before: Packed, writes: bool, strong: bool) -> None:
        """An access of whole units of which some are split: those by their fine cells."""
        segment, index, width, values = where
        if isinstance(index, slice):
            index = np.arange(index.start, index.stop)
        if width > UNIT:
            index = (index[:, None] * (width // UNIT) + np.arange(width // UNIT)).ravel()
            before, values = before.ravel(), None
        shadow = shadow_of(segment)
        split = before == SPLIT
        for some, part in ((~split, shadow.whole), (split, shadow.rows())):
            if some.any():
                mine = None if values is None else values[some]
                self._one(actor, part, Where(segment, index[some], UNIT, mine), writes, strong)
        if writes:
            shadow.whole[index[split]] = self._number(actor, strong) << 32

    def _several(
        self, gang: Any, cells: Packed, where: Where, warp_of: npt.NDArray[np.intp], writes: bool, strong: bool
    ) -> None:
        """One instruction of several warps: compared at once where nobody objects, warp by warp otherwise."""
        index = where.index
        first = int(warp_of[0])
        warps = gang.cta.warps[first : int(warp_of[-1]) + 1]
        actors = [self._warp(gang, w) for w in warps]
        before = cells[index]
        contents = _by_warp(before, len(warps))
        if contents is not None and SPLIT not in contents and self._all_fine(actors, contents, writes, strong):
            mine = [self._number(a, strong) for a in actors]
            if writes:
                new = [n << 32 for n in mine]
            else:
                new = [
                    c & ~READS | self._history.grow(c & READS, n, self._over(a))
                    for n, a, c in zip(mine, actors, contents, strict=True)
                ]
            if writes or len(set(index.tolist())) == len(index):
                spread: Packed = np.array(new, np.int64)[warp_of - first]
                cells[index] = spread if before.ndim == 1 else spread[:, None]
                return
        values = where.values
        once = np.ones(len(index), np.bool_)
        if writes and not strong and values is not None and not self._strict:  # replicas are equal: see SML0934
            once[:] = False
            once[np.unique(index, return_index=True)[1]] = True
        for w, actor in zip(warps, actors, strict=True):
            own = (warp_of == w.index) & once
            if own.any():
                part = where._replace(index=index[own], values=None if values is None else values[own])
                self._one(actor, cells, part, writes, strong)

    def _all_fine(self, actors: list[Actor], contents: list[int], writes: bool, strong: bool) -> bool:
        """Whether each actor may access cells with its content."""
        return all(
            (not c >> 32 or self._fine(c >> 32, actor, strong))
            and (not writes or all(self._fine(n, actor, strong, read=True) for n in self._history.members(c & READS)))
            for actor, c in zip(actors, contents, strict=True)
        )

    def _through_proxies(self, n: int, actor: Actor, where: Where, before: Packed, strong: bool) -> None:
        """An asynchronous access of what a generic one wrote before: a proxy fence must lie between."""
        epoch = self._history.epoch(n)
        if epoch.generic and not (epoch.strong and strong) and not fenced(epoch, actor):
            self._report(
                error(
                    "SML0931", at=actor.loc, what=where.name(before >> 32 == n), who=actor.who(), other=epoch.who,
                    other_line=line(epoch.loc),
                )
            )  # fmt: skip

    def _after_write(self, n: int, actor: Actor, where: Where, before: Packed, writes: bool) -> None:
        """The write `n` was the last one of some of the cells, and it is not known to be over."""
        at = before >> 32 == n
        if writes:
            weak_reads = (
                s and any(not self._history.epoch(r).strong for r in self._history.members(s))
                for s in distinct(before[at] & READS)
            )
            if all(weak_reads):
                return  # those reads followed it, and are compared themselves
            if where.values is not None and not self._strict and where.unchanged(at):
                return
        self._race(n, actor, where, at, writes, "write")

    def _race(self, n: int, actor: Actor, where: Where, at: Any, writes: bool, earlier: str) -> None:
        epoch = self._history.epoch(n)
        self._report(
            error(
                "SML0930", at=actor.loc, what=where.name(at), who=actor.who(), now="writes" if writes else "reads",
                earlier=earlier, other=epoch.who, other_line=line(epoch.loc),
            )
        )  # fmt: skip

    def _same_instruction(
        self, gang: Any, segment: Segment, offsets: Offsets, values: npt.NDArray[Any], lanes: npt.NDArray[np.intp]
    ) -> None:
        """Some lanes of one store have the same address: their values must be equal."""
        order = np.argsort(offsets, kind="stable")
        same = np.diff(offsets[order]) == 0
        rows = values.reshape(len(offsets), -1)[order]
        wrong = np.flatnonzero(same & (rows[1:] != rows[:-1]).any(axis=1))
        if len(wrong):
            a, b = order[wrong[0]], order[wrong[0] + 1]
            self._report(
                error(
                    "SML0934", at=gang.loc, what=describe(segment, int(offsets[a])), one=int(lanes[a]),
                    other=int(lanes[b]), who=gang.who(),
                )
            )  # fmt: skip


class Where(NamedTuple):
    """Cells of a segment: a slice or indices of units of `width` bytes in storage, and the values stored there."""

    segment: Segment
    index: Any
    width: int
    values: npt.NDArray[Any] | None

    def name(self, at: Any) -> str:
        """What the author calls the first of the cells `at` (flags like the cells)."""
        flat = int(np.asarray(at).reshape(-1).argmax())
        per = 1 if np.ndim(at) == 1 else at.shape[1]
        unit = self.index.start + flat // per if isinstance(self.index, slice) else int(self.index[flat // per])
        return describe(self.segment, unit * self.width - lead(self.segment) + flat % per * (self.width // per))

    def unchanged(self, at: Any) -> bool:
        """Whether memory already holds the values to be stored in these units."""
        rows = np.asarray(at) if np.ndim(at) == 1 else np.asarray(at).any(axis=1)
        assert self.values is not None
        old = self.segment.gather(self.index[rows] * self.width - lead(self.segment), self.width)
        new = self.values[rows]
        return np.ascontiguousarray(old).tobytes() == np.ascontiguousarray(new).tobytes()


def _by_warp(cells: Packed, warps: int) -> list[int] | None:
    """What the cells of each warp contain, if that is one content a warp and all lanes are there."""
    first = cells.item(0)
    if not np.count_nonzero(cells != first):
        return [first] * warps
    if len(cells) != WARP * warps:
        return None
    rows = cells.reshape(warps, -1)
    return None if np.count_nonzero(rows != rows[:, :1]) else rows[:, 0].tolist()


def lead(segment: Segment) -> int:
    """Bytes of storage before offset 0."""
    return segment.address % STORAGE


def shadow_of(segment: Segment) -> Shadow:
    found = segment.shadow
    if found is None:
        found = segment.shadow = Shadow(len(segment.data) + lead(segment))
    assert isinstance(found, Shadow)
    return found


def describe(segment: Segment, offset: int) -> str:
    owner = getattr(segment.owner, "describe", None)
    return owner(offset) if owner is not None else f"{segment.name} (byte {offset})"


def line(loc: Loc | None) -> str:
    return str(loc) if loc is not None else "an unknown line"


def ordered(epoch: Epoch, actor: Actor) -> bool:
    """Whether the epoch is known to be over."""
    clock = actor.clock
    if epoch.cluster != actor.cluster:
        found = clock.foreign.get(epoch.cluster) if clock.foreign else None
        if found is None:
            return False
        clock = found
    elif epoch.agent == actor.agent and (epoch.agent >= 0 or epoch.time == actor.time):
        return True
    if epoch.agent < 0:
        return bool(clock.ops >> epoch.time & 1)
    return bool(clock.warps[epoch.agent] >= epoch.time)


def passed(epoch: Epoch, actor: Actor) -> bool:
    """Whether the epoch, of a warp of the same cluster, came before an arrival that the actor has waited for."""
    known = actor.clock.passed
    here = epoch.cluster == actor.cluster and epoch.agent >= 0
    return here and known is not None and bool(known[epoch.agent] >= epoch.time)


def fenced(epoch: Epoch, actor: Actor) -> bool:
    """Whether a proxy fence lies between the epoch and the actor, which is ordered after it."""
    clock = actor.clock
    if epoch.cluster != actor.cluster:
        assert clock.foreign is not None
        clock = clock.foreign[epoch.cluster]
    if epoch.agent < 0:
        return bool(clock.fenced_ops >> epoch.time & 1)
    return bool(clock.fenced[epoch.agent] >= epoch.time)
