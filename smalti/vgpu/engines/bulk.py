"""Copies that run on their own: the common form, 1-D bulk copies, and the groups by which threads wait for them.

A copy goes in parts: it reads its source, writes each destination, signals. Knows memory and mbarriers; which
instruction asked is in `execute/tma`.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smalti.errors import Loc, error
from smalti.vgpu.engines import AsyncOp
from smalti.vgpu.engines.mbarrier import signal
from smalti.vgpu.engines.reduce import Reduction
from smalti.vgpu.memory import Bools, Segment
from smalti.vgpu.warp import WARP, Wait

if TYPE_CHECKING:
    from smalti.vgpu.clocks import Clock
    from smalti.vgpu.machine import CTA
    from smalti.vgpu.warp import Gang, Warp

Bytes = npt.NDArray[np.uint8]
UNIT = 16


class Side:
    """Half of an operation as an agent of its own: the reading of a source, or the writing in one CTA.

    Whoever waits for that half knows it complete, not the rest.
    """

    def __init__(self, op: AsyncOp) -> None:
        self.op, self.cta, self.proxy, self.order = op, op.cta, op.proxy, op.order
        self.serial = op.cta.cluster.next_serial()
        self.bit = 1 << self.serial

    @property
    def clock(self) -> Clock:
        return self.op.clock

    @property
    def loc(self) -> Loc | None:
        return self.op.loc

    def who(self) -> str:
        return self.op.who()


class Target:
    """A destination in shared memory with the barrier that it signals: CTA and offset of both."""

    __slots__ = ("agent", "barrier", "barrier_cta", "cta", "offset")

    def __init__(self, agent: Any, cta: CTA, offset: int, barrier_cta: CTA, barrier: int) -> None:
        self.agent, self.cta, self.offset = agent, cta, offset
        self.barrier_cta, self.barrier = barrier_cta, barrier


class ToShared(AsyncOp):
    """Data into the shared memory of one or more CTAs; each is signalled the full number of bytes."""

    engine = "tma"

    def __init__(self, cta: CTA, issuer: Warp, loc: Loc | None, what: str) -> None:
        super().__init__(cta, issuer, loc, what)
        self.targets: list[Target] = []
        self.size = 0  # bytes signalled
        self._data: Any = None
        self._part = 0

    def aim(self, places: Sequence[tuple[CTA, int, CTA, int]]) -> None:
        """Where the data goes and who is told: (CTA, offset, CTA of the barrier, its offset) of each copy."""
        alone = len(places) == 1
        self.targets = [Target(self if alone else Side(self), *p) for p in places]

    def read(self) -> Any:
        raise AssertionError

    def write(self, target: Target, data: Any) -> None:
        raise AssertionError

    def uses_shared(self, cta: CTA) -> bool:
        return any(cta in (t.cta, t.barrier_cta) for t in self.targets[max(self._part - 1, 0) // 2 :])

    def perform(self) -> bool:
        part = self._part
        self._part += 1
        if part == 0:
            self._data = self.read()
            return False
        target = self.targets[(part - 1) // 2]
        if part % 2:
            self.write(target, self._data)
            return False
        signal(self, target.barrier_cta, target.barrier, self.size, target.agent.bit | self.bit)
        if part < 2 * len(self.targets):
            return False
        self._data = None
        return True


class FromShared(AsyncOp):
    """Data out of shared memory into global memory; tracked by bulk groups. `reader` is the reading half."""

    engine = "tma"

    def __init__(self, cta: CTA, issuer: Warp, loc: Loc | None, what: str) -> None:
        super().__init__(cta, issuer, loc, what)
        self.reader = Side(self)
        self.source_read = False
        self._data: Any = None

    def read(self) -> Any:
        raise AssertionError

    def write(self, data: Any) -> None:
        raise AssertionError

    def uses_shared(self, cta: CTA) -> bool:
        return cta is self.cta and not self.source_read

    def perform(self) -> bool:
        if not self.source_read:
            self._data = self.read()
            self.source_read = True
            return False
        self.write(self._data)
        self._data = None
        return True


# -- groups --------------------------------------------------------------------------------------------


class Groups:
    """The asynchronous operations of one thread: those not yet committed, and the groups committed.

    `settled` are the bits of complete groups that are no longer listed, since only their reads were waited for.
    """

    __slots__ = ("groups", "open", "settled")

    def __init__(self) -> None:
        self.open: list[Any] = []
        self.groups: deque[list[Any]] = deque()
        self.settled = 0

    def commit(self) -> None:
        self.groups.append(self.open)
        self.open = []

    def before(self, newest: int) -> list[Any]:
        """The operations of all groups but the `newest` last."""
        return [op for group in list(self.groups)[: max(len(self.groups) - newest, 0)] for op in group]


def groups_of(cta: CTA, engine: str) -> dict[int, Groups]:
    """Bulk groups ("bulk") or cp.async groups ("cp.async") by thread number; threads that never copied are absent."""
    table: dict[int, Groups] = cta.engines.setdefault(engine, {})
    return table


def thread_groups(cta: CTA, engine: str, thread: int) -> Groups:
    table = groups_of(cta, engine)
    found = table.get(thread)
    if found is None:
        found = table[thread] = Groups()
    return found


class GroupWait(Wait):
    """Threads of a gang waiting for their groups but the `newest`; with `reads` only for the sources to be read."""

    advance = True

    def __init__(self, gang: Gang, engine: str, newest: int, reads: bool) -> None:
        self.gang, self.reads, self.newest = gang, reads, newest
        table = groups_of(gang.cta, engine)
        self.threads = [(int(t), table[t]) for t in gang.lanes() if t in table] if table else []
        self.ops = [(t, op) for t, groups in self.threads for op in groups.before(newest)]

    def ready(self) -> bool:
        for _, op in self.ops:
            if not (op.source_read if self.reads else op.done):
                return False
        warps = self.gang.cta.warps
        for thread, op in self.ops:
            warps[thread // WARP].clock.ops |= op.reader.bit if self.reads else op.reader.bit | op.bit
        for thread, groups in self.threads:
            listed = groups.groups
            while len(listed) > self.newest and all(op.done for op in listed[0]):
                for op in listed.popleft():
                    groups.settled |= op.bit
            if not self.reads:
                warps[thread // WARP].clock.ops |= groups.settled
                groups.settled = 0
        return True

    def describe(self) -> str:
        return f"waiting for {len(self.ops)} bulk copies of its own"


# -- one-dimensional copies ------------------------------------------------------------------------------


class Range:
    """A contiguous piece of a segment."""

    __slots__ = ("segment", "start", "stop")

    def __init__(self, segment: Segment, start: int, size: int) -> None:
        self.segment, self.start, self.stop = segment, start, start + size


class BulkLoad(ToShared):
    """`size` contiguous bytes from global memory or the own shared memory into shared memory, or reduced into it."""

    def __init__(
        self, cta: CTA, issuer: Warp, loc: Loc | None, what: str, source: Range,
        combine: tuple[Reduction, Any] | None = None,
    ) -> None:  # fmt: skip
        super().__init__(cta, issuer, loc, what)
        self.source, self.combine = source, combine
        if combine is not None:
            self.order = "relaxed"
        self.size = source.stop - source.start

    def uses_shared(self, cta: CTA) -> bool:
        reads = self._part == 0 and cta is self.source.segment.owner
        return reads or super().uses_shared(cta)

    def read(self) -> tuple[Bytes, Bools | None]:
        s = self.source
        self.cta.machine.memory.checks.read_range(self, s.segment, s.start, s.stop)
        return copy_range(s)

    def write(self, target: Target, data: tuple[Bytes, Bools | None]) -> None:
        segment = target.cta.shared
        start, stop = target.offset, target.offset + self.size
        self.cta.machine.memory.checks.write_range(target.agent, segment, start, stop)
        values, undefined = data
        if self.combine is not None:
            values, undefined = combined(segment, start, stop, self.combine, values, undefined)
        put_range(segment, start, stop, values, undefined)


class BulkStore(FromShared):
    """`size` contiguous bytes from shared to global memory, or reduced into it; `mask` picks bytes of each 16."""

    def __init__(
        self, cta: CTA, issuer: Warp, loc: Loc | None, what: str, source: Range, target: Range,
        combine: tuple[Reduction, Any] | None = None, mask: int = 0xFFFF,
    ) -> None:  # fmt: skip
        super().__init__(cta, issuer, loc, what)
        self.source, self.target, self.combine, self.mask = source, target, combine, mask
        if combine is not None:
            self.order = "relaxed"

    def read(self) -> tuple[Bytes, Bools | None]:
        s = self.source
        self.cta.machine.memory.checks.read_range(self.reader, s.segment, s.start, s.stop)
        return copy_range(s)

    def write(self, data: tuple[Bytes, Bools | None]) -> None:
        t = self.target
        self.cta.machine.memory.checks.write_range(self, t.segment, t.start, t.stop)
        values, undefined = data
        if self.combine is not None:
            values, undefined = combined(t.segment, t.start, t.stop, self.combine, values, undefined)
        if self.mask != 0xFFFF:
            keep = np.tile(np.array([self.mask >> i & 1 for i in range(UNIT)], np.bool_), (t.stop - t.start) // UNIT)
            old, old_undefined = copy_range(t)
            values = np.where(keep, values, old)
            if undefined is not None or old_undefined is not None:
                none = np.zeros(len(values), np.bool_)
                undefined = np.where(keep, none if undefined is None else undefined, none)
        if undefined is not None and undefined.any():
            refuse_undefined(self, t.segment, t.start + int(np.flatnonzero(undefined)[0]))
        put_range(t.segment, t.start, t.stop, values, None)


def copy_range(r: Range) -> tuple[Bytes, Bools | None]:
    """The bytes, and which of them are undefined (None: none)."""
    values = r.segment.data[r.start : r.stop].copy()
    if not r.segment.range_undefined(r.start, r.stop):
        return values, None
    assert r.segment.defined is not None
    return values, ~r.segment.defined[r.start : r.stop]


def put_range(segment: Segment, start: int, stop: int, values: Bytes, undefined: Bools | None) -> None:
    segment.data[start:stop] = values
    if segment.defined is not None:
        segment.defined[start:stop] = True if undefined is None else ~undefined


def combined(
    segment: Segment, start: int, stop: int, how: tuple[Reduction, Any], values: Bytes, undefined: Bools | None
) -> tuple[Bytes, Bools | None]:
    """Old and new values reduced; an element is undefined if either operand is."""
    function, dtype = how
    old = segment.data[start:stop].copy()
    result = function(old.view(dtype), values.view(dtype)).astype(dtype, copy=False).view(np.uint8)
    if segment.range_undefined(start, stop):
        assert segment.defined is not None
        before = ~segment.defined[start:stop]
        undefined = before if undefined is None else undefined | before
    if undefined is not None:
        size = np.dtype(dtype).itemsize
        undefined = undefined.reshape(-1, size).any(axis=1).repeat(size)
    return result, undefined


def refuse_undefined(agent: Any, segment: Segment, offset: int) -> None:
    """Errors: SML0808, always."""
    namer = getattr(segment.owner, "describe", None)
    what = namer(offset) if namer is not None else f"{segment.kind} memory {segment.name}"
    raise error("SML0808", at=agent.loc, what=what, who=agent.who())
