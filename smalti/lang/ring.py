"""Rings and channels: hand-over of buffers between roles through full and empty mbarriers.

`with ring.put() as s` waits for an empty stage, `with ring.get() as s` for a full one. What a stage holds are
objects with `bind(stages)` and `staged(stage, slot)`; this file knows no more of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

from smalti.errors import error
from smalti.lang import wgmma
from smalti.lang.barriers import MBarrier, leave_together, proxy_fence
from smalti.lang.roles import Role
from smalti.lang.shared import Shared
from smalti.lang.threads import elected, lane_index
from smalti.lang.trace import Trace, current
from smalti.lang.values import Value, Var, var

__all__ = ["Channel", "Ring", "Slot", "channel", "ring"]

MOST_BEHIND = 6  # groups that wgmma.wait_group may leave in flight is an immediate; more gains nothing


class Stageable(Protocol):
    """What a ring or channel can hold."""

    def bind(self, stages: int) -> None: ...

    def staged(self, stage: Any, slot: Any) -> Any: ...


class Slot:
    """The stage that a `with ring.put()` or `ring.get()` is at; its items are attributes, or `slot[name]`.

    `full` and `empty` are its barriers. Items tell it how they are used: `expect` bytes that a TMA copy brings,
    `used` by asynchronous readers, `completion` (who arrives instead of the threads), `before_arrive`.
    """

    def __init__(self, ring: Ring, state: _State, trace: Trace) -> None:
        self._ring, self._region = ring, trace.region
        self.full: MBarrier = ring.full[state.stage]
        self.empty: MBarrier = ring.empty[state.stage]
        self.bytes = 0
        self.written_by_threads = False
        self.uses: set[str] = set()
        self.completion: Callable[[MBarrier], None] | None = None
        self.before_arrive: Callable[[], None] | None = None
        self._items = {name: item.staged(state.stage, self) for name, item in ring.items.items()}

    @property
    def pair(self) -> bool:
        """Whether the stage belongs to a CTA pair: both fill it, the even one's tensor core reads it."""
        return self._ring.pair

    def barrier_operand(self) -> Any:
        """The address of the full barrier that copies complete on: on a pair the even CTA's."""
        return self.full.leader() if self._ring.pair else self.full.raw

    @property
    def scales(self) -> Any:
        """The scales of the block-scaled operands in this stage."""
        from smalti.lang.scaled import Scaled, SlotScales

        return SlotScales({n: i for n, i in self._items.items() if isinstance(i, Scaled)}, self._ring.name)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name not in self._items:
            raise error("SML0350", name=name, known=", ".join(self.__dict__.get("_items", ())))
        return self._items[name]

    def __getitem__(self, name: str) -> Any:
        return getattr(self, name)

    def expect(self, bytes_: int) -> None:
        """A TMA copy brings so many bytes: expected with the stage's arrival, or at once in a nested region."""
        if current().region is self._region:
            self.bytes += bytes_
        else:
            trace = current()
            one = trace.region.threads.single
            with nullcontext() if one else trace.open_if(elected(), "one", trace.with_threads(single=True)):
                self.full.expect(bytes_, leader=self._ring.pair)

    def acquired(self) -> None:
        """A barrier was waited for: items add the fences that they need."""
        for item in self._items.values():
            acquired = getattr(item, "acquired", None)
            if acquired is not None:
                acquired()

    def used(self, by: str) -> None:
        self.uses.add(by)

    def share(self, target: Shared) -> int:
        """Over how many CTAs of the cluster the load of `target` is divided (multicast)."""
        return self._ring.shares(target.storage)


class _State:
    """Where one role is in a ring: stage, phase, and the stages that it holds behind."""

    def __init__(self, trace: Trace, kind: str) -> None:
        with trace.at_head():
            self.stage: Var = var(0)
            self.phase: Var = var(1 if kind == "put" else 0)  # a fresh barrier has completed a phase of parity 1
            self.held: list[Var] = []  # newest first; a number that is no stage: none

    def advance(self, stages: int) -> None:
        if stages == 1:
            self.phase ^= 1
            return
        self.stage += 1
        wrapped = self.stage == stages
        self.stage.set(0, when=wrapped)
        self.phase.update("^", 1, when=wrapped)


class Ring:
    """`stages` buffers that go round between one writer and the `readers`. Made by `sm.ring`."""

    def __init__(
        self, name: str, stages: int, items: dict[str, Stageable], readers: tuple[Role, ...], multicast: tuple[str, ...]
    ) -> None:
        trace = current()
        self.name, self.stages, self.items, self.readers = name, stages, items, readers
        self.multicast = multicast
        for item in items.values():
            item.bind(stages)
        self.pair = any(_halved(item) for item in items.values())
        self.full = MBarrier(trace.unique(f"{name}_full"), stages, 1, trace)
        self.empty = MBarrier(trace.unique(f"{name}_empty"), stages, self._reader_warps(trace), trace)
        if multicast:
            leave_together()
        self._states: dict[tuple[str, str], _State] = {}
        self._arrivals: dict[str, int] = {}

    def __repr__(self) -> str:
        return f"<ring {self.name} of {self.stages}: {', '.join(self.items)}>"

    def put(self) -> AbstractContextManager[Any]:
        """Write a stage: waits until the readers have given it back.

        In one thread: arrives with the bytes that the body's TMA loads bring. In several warps, which write by
        ordinary stores: a proxy fence, then each warp arrives.
        """
        return _Put(self)

    def get(self, *, behind: int = 0) -> AbstractContextManager[Any]:
        """Read a stage: waits until it is full; gives it back at the end.

        Products of `wgmma` issued in the body are waited for first, with `behind=n` only those of n stages ago,
        whose stage is given back then; the last n are given back by `accumulator.wait()`.
        Errors: SML0351 in a role that is no reader, SML0352 behind too large or products in nested regions.
        """
        if not 0 <= behind <= min(MOST_BEHIND, self.stages - 1):
            raise error(
                "SML0352",
                behind=behind,
                reason=f"a ring of {self.stages} stages allows 0 to {min(MOST_BEHIND, self.stages - 1)}",
            )
        return _Get(self, behind)

    def shares(self, item: object) -> int:
        """Over how many CTAs of the cluster the load of a stage's item is divided."""
        names = [n for n, known in self.items.items() if getattr(known, "storage", None) is item]
        return math.prod(current().cluster) if set(names) & set(self.multicast) else 1

    def cluster_size(self) -> int:
        """CTAs to which a stage is given back: all that write into it."""
        return math.prod(current().cluster) if self.multicast else 1

    def _reader_warps(self, trace: Trace) -> int:
        warps = sum(r.warps for r in self.readers) or trace.warps
        return warps * (2 if self.pair else self.cluster_size())

    def _state(self, kind: str) -> _State:
        trace = current()
        key = (kind, trace.region.threads.role)
        if key not in self._states:
            self._states[key] = _State(trace, kind)
        return self._states[key]

    def _counts(self, barrier: MBarrier, arrivals: int) -> None:
        """The arrivals that complete a phase follow from how the stage is used, the same at every place."""
        before = self._arrivals.setdefault(barrier.name, arrivals)
        if before != arrivals:
            raise error("SML0353", ring=self.name, first=before, second=arrivals)
        whole = self.full if barrier.name == self.full.name else self.empty
        whole.arrivals = arrivals

    def _result(self, slot: Slot) -> Any:
        return slot


class Channel(Ring):
    """A ring of one kind of thing: `put` and `get` give the thing itself."""

    def _result(self, slot: Slot) -> Any:
        return slot[next(iter(self.items))]


class _Put(AbstractContextManager[Any]):
    def __init__(self, ring: Ring) -> None:
        self.ring = ring

    def __enter__(self) -> Any:
        trace, ring = current(), self.ring
        self.state = ring._state("put")
        self.slot = Slot(ring, self.state, trace)
        self.slot.empty.wait(self.state.phase)
        self.slot.acquired()
        self.place = trace.later()
        return ring._result(self.slot)

    def __exit__(self, kind: Any, *exception: Any) -> None:
        if kind is not None:
            return
        trace, ring, slot = current(), self.ring, self.slot
        threads = trace.region.threads
        if slot.completion is not None:
            ring._counts(slot.full, 1)
            slot.completion(slot.full)
        elif threads.single or (threads.warps == 1 and slot.bytes):
            ring._counts(slot.full, 2 if ring.pair else 1)
            self._arrive_with_bytes()
            trace.note("wait", f"{ring.name}: empty stage; then {slot.bytes} bytes expected")
        else:
            ring._counts(slot.full, threads.warps * (2 if ring.pair else 1))
            if not all(map(_in_tensor_memory, ring.items.values())):  # stores to that have their own fence
                proxy_fence()
                trace.note("fence", f"proxy fence: {ring.name} is written by threads")
            if slot.bytes:
                raise error("SML0336", what="A TMA load", threads=threads.describe())
            _arrive_leader(slot.full) if ring.pair else _arrive_warp(slot.full, 1)
        self.state.advance(ring.stages)

    def _arrive_with_bytes(self) -> None:
        """One thread arrives and expects what the body's copies bring: at the beginning, so that copies and arrivals
        overlap, or behind what the warp itself has written."""
        trace, slot = current(), self.slot
        threads = trace.region.threads
        if slot.written_by_threads:
            proxy_fence()
            trace.note("fence", f"proxy fence: {self.ring.name} is written by threads, too")
            trace.emit("bar.warp.sync", 0xFFFFFFFF)
            place: AbstractContextManager[Any] = nullcontext()
        else:
            place = trace.at(self.place)
        with (
            place,
            nullcontext() if threads.single else trace.open_if(elected(), "one", trace.with_threads(single=True)),
        ):
            if self.ring.pair:
                slot.full.arrive_at_leader(slot.bytes)
            else:
                slot.full.arrive(expect=slot.bytes)


def _halved(item: Any) -> bool:
    """Whether a CTA pair shares it: halves of operands, or an accumulator of the pair."""
    data = getattr(item, "data", item)
    halves = getattr(data, "halves", 0) or getattr(data, "pair", False)
    return bool(halves) or (_in_tensor_memory(item) and item.group == 2)


def _in_tensor_memory(item: Any) -> bool:
    return getattr(item, "in_tensor_memory", False)


class _Get(AbstractContextManager[Any]):
    def __init__(self, ring: Ring, behind: int) -> None:
        self.ring, self.behind = ring, behind

    def __enter__(self) -> Any:
        trace, ring = current(), self.ring
        names = [r.name for r in ring.readers]
        if names and trace.region.threads.role not in names:
            raise error("SML0351", ring=ring.name, role=trace.region.threads.describe(), readers=", ".join(names))
        self.state = ring._state("get")
        self.slot = Slot(ring, self.state, trace)
        self.slot.full.wait(self.state.phase)
        self.groups = trace.wgmma_groups
        self.region_groups = self._counted(trace)
        self.slot.acquired()
        return ring._result(self.slot)

    def _counted(self, trace: Trace) -> int:
        return trace.groups_in.get(id(trace.region), 0)

    def __exit__(self, kind: Any, *exception: Any) -> None:
        if kind is not None:
            return
        trace, ring, slot, state = current(), self.ring, self.slot, self.state
        groups = trace.wgmma_groups - self.groups
        if slot.completion is not None:
            ring._counts(slot.empty, 1)
            slot.completion(slot.empty)
        else:
            ring._counts(slot.empty, ring._reader_warps(trace))
            if slot.before_arrive is not None:
                slot.before_arrive()
            if groups and self.behind:
                if self._counted(trace) - self.region_groups != groups:
                    raise error(
                        "SML0352", behind=self.behind, reason="the products are issued in a nested loop or branch"
                    )
                self._release_behind(trace, groups)
            else:
                if groups:
                    wgmma.wait(0)
                    trace.note("wait", f"{ring.name}: for the products of this stage")
                if "tma" in slot.uses:
                    trace.emit("cp.async.bulk.wait_group.read", 0)
                    trace.note("wait", f"{ring.name}: until TMA stores have read this stage")
                if ring.pair:
                    _arrive_leader(slot.empty)
                else:
                    _arrive_warp(slot.empty, ring.cluster_size())
        state.advance(ring.stages)

    def _release_behind(self, trace: Trace, groups: int) -> None:
        """Give back the stage of `behind` steps ago, if there was one, and hold this one."""
        ring, state, n = self.ring, self.state, self.behind
        wgmma.wait(n * groups)
        if not state.held:
            with trace.at_head():
                state.held = [var(ring.stages) for _ in range(n)]
            role = trace.region.threads.role
            trace.after_wgmma.setdefault(role, []).append(self._drain)
        self._release(state.held[-1])
        for older, newer in zip(reversed(state.held[1:]), reversed(state.held[:-1]), strict=True):
            older.set(newer)
        state.held[0].set(state.stage)
        trace.note("wait", f"{ring.name}: for the products of {n} stage{'s' * (n > 1)} ago, whose stage is given back")

    def _release(self, held: Var) -> None:
        ring = self.ring
        _arrive_warp(ring.empty[held], ring.cluster_size(), held != ring.stages, converged=True)

    def _drain(self) -> None:
        for held in reversed(self.state.held):
            self._release(held)
            held.set(self.ring.stages)
        current().note("arrive", f"{self.ring.name}: stages held back are given back")


def _arrive_warp(barrier: MBarrier, ranks: int, when: Value | None = None, *, converged: bool = False) -> None:
    """One arrival a warp, on the barrier of this CTA or (ranks > 1) of each CTA of the cluster."""
    trace = current()
    if trace.region.threads.single:
        barrier.arrive()
        return
    if not converged:
        trace.emit("bar.warp.sync", 0xFFFFFFFF)
    lanes = lane_index() < ranks if ranks > 1 else lane_index() == 0
    chosen = lanes if when is None else lanes & when
    if ranks > 1:
        barrier.arrive_at(lane_index(), when=chosen)
    else:
        barrier.arrive_if(chosen)


def _arrive_leader(barrier: MBarrier) -> None:
    """One arrival a warp on the barrier of the pair's even CTA."""
    trace = current()
    trace.emit("bar.warp.sync", 0xFFFFFFFF)
    with trace.open_if(elected(), "one", trace.with_threads(single=True)):
        barrier.arrive_at_leader(0)


def _roles(readers: Role | tuple[Role, ...] | None) -> tuple[Role, ...]:
    if readers is None:
        return ()
    return readers if isinstance(readers, tuple) else (readers,)


def ring(
    stages: int,
    *,
    readers: Role | tuple[Role, ...] | None = None,
    multicast: tuple[str, ...] = (),
    name: str = "ring",
    **items: Any,
) -> Ring:
    """A multi-stage pipeline: `sm.ring(3, a=A.shared(), b=B.shared(), readers=mma)`.

    readers: the role (or roles) that `get` every stage, all warps of the CTA if None. multicast: names of items
    whose loads the CTAs of the cluster divide and send to all of them (PTX ISA 9.7.9.27).
    Errors: SML0304 stages, SML0350 an unknown name in multicast.
    """
    if not isinstance(stages, int) or stages < 1:
        raise error("SML0304", what="the stages of a ring", value=str(stages), wanted="a positive Python int")
    unknown = [m for m in multicast if m not in items]
    if unknown:
        raise error("SML0350", name=unknown[0], known=", ".join(items))
    return Ring(current().unique(name), stages, items, _roles(readers), multicast)


def channel(item: Any, *, writer: Role, reader: Role, slots: int = 1, name: str = "channel") -> Channel:
    """A hand-over of `item` from role `writer` to role `reader`, `slots` of it in turn."""
    del writer  # who puts is seen where it puts
    return Channel(current().unique(name), slots, {"item": item}, (reader,), ())
