"""Rule: two agents touch the same byte, one of them writes, and nothing orders them (SML0930); or they are ordered
but the proxy fence between generic and async accesses is missing (SML0931).

FastTrack's idea (Flanagan and Freund, PLDI 2009) over arrays: every byte has the number of its last write and of the
set of reads since; numbers stand for interned epochs, so that a whole tile is compared at once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from smalti.errors import Loc
from smalti.vgpu.engines import AsyncOp
from smalti.vgpu.warp import WARP

if TYPE_CHECKING:
    from smalti.vgpu.clocks import Clock
    from smalti.vgpu.machine import Cluster
    from smalti.vgpu.memory import Segment

Ids = npt.NDArray[np.int32]


class Epoch(NamedTuple):
    """One agent at one time of its own: a warp between two releases at one line, or an asynchronous operation."""

    cluster: int
    agent: int  # warp number in the cluster; −1 for an operation
    time: int  # the warp's clock, or the operation's serial
    strong: bool
    who: str
    loc: Loc | None


class Actor(NamedTuple):
    """Who accesses now: identity and knowledge."""

    cluster: int
    agent: int
    time: int
    clock: Clock
    asynchronous: bool
    who: Any
    loc: Loc | None


class Shadow:
    """Per byte: the last write, and the set of reads since (0: none)."""

    __slots__ = ("reads", "writes")

    def __init__(self, size: int) -> None:
        self.writes: Ids = np.zeros(size, np.int32)
        self.reads: Ids = np.zeros(size, np.int32)


def tracked(segment: Segment) -> bool:
    """Memory that several agents can see and that may change."""
    return segment.writable and segment.kind in ("shared", "global")


class Races:
    def __init__(self, report: Callable[..., None]) -> None:
        self._report = report
        self._epochs: list[Epoch | None] = [None]
        self._epoch_ids: dict[tuple[Any, ...], int] = {}
        self._sets: list[tuple[int, ...]] = [()]
        self._set_ids: dict[tuple[int, ...], int] = {(): 0}
        self._extended: dict[tuple[int, int], int] = {}

    # -- the three shapes of access ---------------------------------------------------------------------

    def access(
        self,
        agent: Any,
        segment: Segment,
        offsets: npt.NDArray[np.int64],
        width: int,
        lanes: npt.NDArray[np.intp] | None,
        *,
        writes: bool,
        strong: bool,
    ) -> None:
        """Accesses of `width` bytes at aligned offsets; `lanes` tells the warps apart."""
        index = offsets // width if width > 1 else offsets
        if lanes is None:
            self._touch(self._operation(agent), segment, index, width, writes, strong)
            return
        first, last = int(lanes[0]) // WARP, int(lanes[-1]) // WARP
        cta = agent.cta
        if first == last:
            self._touch(self._warp(agent, cta.warps[first]), segment, index, width, writes, strong)
            return
        warp_of = lanes // WARP
        for w in cta.warps[warp_of.min() : warp_of.max() + 1]:
            mine = index[warp_of == w.index]
            if len(mine):
                self._touch(self._warp(agent, w), segment, mine, width, writes, strong)

    def span(self, agent: Any, segment: Segment, span: slice, *, writes: bool) -> None:
        self._touch(self._operation(agent), segment, span, 1, writes, False)

    def units(self, agent: Any, segment: Segment, units: npt.NDArray[np.int64], *, writes: bool) -> None:
        """16-byte units of an asynchronous operation."""
        self._touch(self._operation(agent), segment, units, 16, writes, False)

    def forget(self, cluster: Cluster) -> None:
        """A cluster is over: its shared memory is gone."""
        for cta in cluster.ctas:
            cta.shared.shadow = None

    # -- who --------------------------------------------------------------------------------------------

    def _operation(self, op: AsyncOp) -> Actor:
        return Actor(op.cta.cluster.index, -1, op.serial, op.clock, op.proxy == "async", op.who, op.loc)

    def _warp(self, gang: Any, warp: Any) -> Actor:
        clock = warp.clock
        return Actor(
            gang.cta.cluster.index, warp.agent, int(clock.warps[warp.agent]), clock, False, warp.name, gang.loc
        )

    def _epoch(self, actor: Actor, strong: bool) -> int:
        key = (actor.cluster, actor.agent, actor.time, strong, actor.loc)
        n = self._epoch_ids.get(key)
        if n is None:
            n = self._epoch_ids[key] = len(self._epochs)
            self._epochs.append(Epoch(actor.cluster, actor.agent, actor.time, strong, actor.who(), actor.loc))
        return n

    # -- the rule ---------------------------------------------------------------------------------------

    def _touch(self, actor: Actor, segment: Segment, index: Any, width: int, writes: bool, strong: bool) -> None:
        shadow = segment.shadow
        if shadow is None:
            shadow = segment.shadow = Shadow(len(segment.data))
        last, reads = shadow.writes, shadow.reads
        if width > 1:
            last, reads = last.reshape(-1, width), reads.reshape(-1, width)
        me = self._epoch(actor, strong)
        before = last[index]
        for n in distinct(before):
            if n and n != me:
                self._compare(actor, n, segment, index, width, before, writes, strong, "write")
        seen = reads[index]
        if writes:
            for s in distinct(seen):
                for n in self._sets[s]:
                    self._compare(actor, n, segment, index, width, seen, writes, strong, "read", of=s)
            last[index] = me
            reads[index] = 0
            return
        sets = distinct(seen)
        if len(sets) == 1:
            reads[index] = self._extend(sets[0], me, actor)
        else:
            table = np.zeros(max(sets) + 1, np.int32)
            for s in sets:
                table[s] = self._extend(s, me, actor)
            reads[index] = table[seen]

    def _extend(self, old: int, me: int, actor: Actor) -> int:
        """The number of a set of reads with one more; reads that are ordered before it are dropped."""
        key = (old, me)
        new = self._extended.get(key)
        if new is None:
            kept = tuple(n for n in self._sets[old] if n != me and not self._forgotten(n, actor))
            members = (*kept, me)
            new = self._set_ids.get(members)
            if new is None:
                new = self._set_ids[members] = len(self._sets)
                self._sets.append(members)
            self._extended[key] = new
        return new

    def _forgotten(self, n: int, actor: Actor) -> bool:
        """Whether epoch n is ordered before the actor's access."""
        epoch = self._epochs[n]
        assert epoch is not None
        return _ordered(epoch, actor)

    def _compare(
        self, actor: Actor, n: int, segment: Segment, index: Any, width: int, found: Any, writes: bool,
        strong: bool, earlier: str, of: int | None = None,
    ) -> None:  # fmt: skip
        epoch = self._epochs[n]
        assert epoch is not None
        if epoch.strong and strong:
            return  # two strong accesses do not race (PTX 8.7)
        if _ordered(epoch, actor):
            if earlier != "write" or not actor.asynchronous or epoch.agent < 0 or _fenced(epoch, actor):
                return
            code, extra = "SML0931", {}
        else:
            code, extra = "SML0930", {"now": "writes" if writes else "reads", "earlier": earlier}
        at = _place(index, found, n if of is None else of, width)
        owner = getattr(segment.owner, "describe", None)
        self._report(
            code,
            actor.loc,
            what=owner(at) if owner is not None else f"{segment.name} (byte {at})",
            who=actor.who(),
            other=epoch.who,
            other_line=f"{epoch.loc}" if epoch.loc is not None else "an unknown line",
            **extra,
        )


def _place(index: Any, found: Any, n: int, width: int) -> int:
    """The first byte offset whose number is n."""
    if isinstance(index, slice):
        return int(index.start) + int(np.flatnonzero(found == n)[0])
    flat = int(np.flatnonzero(found.reshape(-1) == n)[0])
    return int(index[flat // width]) * width + flat % width


def distinct(numbers: Ids) -> Sequence[int]:
    """The distinct values, fast when there is but one."""
    if not numbers.size:
        return ()
    first = numbers.flat[0]
    if (numbers == first).all():
        return (int(first),)
    return np.unique(numbers).tolist()  # type: ignore[no-any-return]


def _ordered(epoch: Epoch, actor: Actor) -> bool:
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


def _fenced(epoch: Epoch, actor: Actor) -> bool:
    clock = actor.clock
    if epoch.cluster != actor.cluster:
        assert clock.foreign is not None
        clock = clock.foreign[epoch.cluster]
    return bool(clock.fenced[epoch.agent] >= epoch.time)
