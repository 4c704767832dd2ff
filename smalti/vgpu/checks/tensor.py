"""Rules: asynchronous tcgen05 operations on the same tensor memory are ordered (PTX 9.7.16.6): by a pipelined pair, or
by a completion that the later one's issuer has learnt of (SML0940), with fence::after_thread_sync there (SML0941) and
fence::before_thread_sync on the other side (SML0942); what is freed is no longer used (SML0943).

`Clock.tensor` has the operations that a warp's later tcgen05 instructions follow, `Clock.ops` those that are complete.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from smalti.errors import Loc, error
from smalti.layout.tensor import COLUMNS, LANES
from smalti.vgpu.checks.history import History, Ids, distinct
from smalti.vgpu.checks.races import Report, line
from smalti.vgpu.engines.pipeline import in_pipeline
from smalti.vgpu.engines.tensor_cells import Block

if TYPE_CHECKING:
    from smalti.vgpu.clocks import Clock
    from smalti.vgpu.engines.pipeline import TensorOp
    from smalti.vgpu.engines.tensor_memory import TensorMemory
    from smalti.vgpu.program import Program

_GRAIN = 16  # lanes that most operations keep together


class Epoch(NamedTuple):
    """What is asked of an operation afterwards; operations themselves hold their data, and are let go."""

    serial: int
    thread: Any
    group: int
    kind: str
    accumulator: Any
    who: str
    loc: Loc | None

    @classmethod
    def of(cls, op: TensorOp) -> Epoch:
        return cls(op.serial, op.thread, op.group, op.kind, op.accumulator, op.who(), op.loc)


class Shadow:
    """The last write and the reads since, for each column of `grain` lanes."""

    __slots__ = ("grain", "reads", "writes")

    def __init__(self) -> None:
        self.grain = _GRAIN
        self.writes: Ids = np.zeros((LANES // _GRAIN, COLUMNS), np.int32)
        self.reads: Ids = np.zeros((LANES // _GRAIN, COLUMNS), np.int32)

    def views(self, block: Block) -> tuple[Ids, Ids]:
        lanes = slice(block.lane // self.grain, block.lane_end // self.grain)
        columns = slice(block.column, block.column_end)
        if self.grain > 1 and (block.lane % self.grain or block.lane_end % self.grain):
            self.writes, self.reads = (a.repeat(self.grain, axis=0) for a in (self.writes, self.reads))
            self.grain = 1
            lanes = slice(block.lane, block.lane_end)
        return self.writes[lanes, columns], self.reads[lanes, columns]


class TensorOrder:
    """`relied` has the codes of missing fences that are counted instead of reported."""

    def __init__(self, report: Report, strict: bool = False, relied: frozenset[str] = frozenset()) -> None:
        self._report, self._strict, self._relied = report, strict, relied
        self.relied_on = 0
        self._history: History[Epoch] = History()

    def touch(self, op: TensorOp, clock: Clock, memory: TensorMemory, blocks: tuple[Block, ...], writes: bool) -> None:
        """An operation reads or writes rectangles of cells, its issuer knowing `clock`."""
        me = self._history.number((op.cta.cluster.index, op.serial), lambda: Epoch.of(op))
        shadow = _shadow(memory)
        for block in blocks:
            last, reads = shadow.views(block)
            for n in distinct(last):
                if n and n != me and not self._over(n, op, clock):
                    at = last == n
                    if not (writes and reads[at].all()):  # else later reads followed it, and are compared themselves
                        self._disorder(n, op, clock, memory, block, at, writes, "write")
            if writes:
                for s in distinct(reads):
                    for n in self._history.members(s):
                        if n != me and not self._over(n, op, clock):
                            self._disorder(n, op, clock, memory, block, reads == s, writes, "read")
                last[...] = me
                reads[...] = 0
            else:
                reads[...] = self._history.grow_all(reads, me, lambda n: self._over(n, op, clock))

    def freed(self, gang: Any, memory: TensorMemory, start: int, columns: int) -> None:
        """Deallocation: the warp that frees columns must know every operation on them to be complete."""
        for op in gang.machine.pending:
            for where, blocks in getattr(op, "touched", ()):
                if where is memory and any(b.column < start + columns and start < b.column_end for b in blocks):
                    self._in_use(gang, op.who(), op.loc)
                    return
        shadow = _shadow(memory)
        known = gang.warps()[0].clock.ops
        writes, reads = shadow.writes[:, start : start + columns], shadow.reads[:, start : start + columns]
        used = {n for n in distinct(writes) if n}
        used.update(n for s in distinct(reads) for n in self._history.members(s))
        for n in sorted(used):
            epoch = self._history.epoch(n)
            if not known >> epoch.serial & 1:
                self._in_use(gang, epoch.who, epoch.loc)
                break
        writes[...] = reads[...] = 0

    def _in_use(self, gang: Any, other: str, loc: Loc | None) -> None:
        self._report(error("SML0943", at=gang.loc, who=gang.who(), other=other, other_line=line(loc)))

    def _over(self, n: int, op: TensorOp, clock: Clock) -> bool:
        """Whether `op`, whose issuer knows `clock`, is executed after epoch n."""
        before = self._history.epoch(n)
        if clock.tensor & clock.ops & 1 << before.serial:
            return True
        return before.serial == op.serial or in_pipeline(before, op, clock, self._strict)

    def _disorder(
        self, n: int, op: TensorOp, clock: Clock, memory: TensorMemory, block: Block, at: Any, writes: bool,
        earlier: str,
    ) -> None:  # fmt: skip
        before = self._history.epoch(n)
        lanes, column = divmod(int(at.reshape(-1).argmax()), at.shape[1])
        what = memory.describe(block.lane + lanes * _shadow(memory).grain, block.column + column)
        now, other, other_line = "writes" if writes else "reads", before.who, line(before.loc)
        bit = 1 << before.serial
        complete, published = bool(clock.ops & bit), bool(clock.published & bit)
        if complete and ("SML0941" if published else "SML0942") in self._relied:
            self.relied_on += 1
        elif published and (complete or in_pipeline(before, op, clock, self._strict, fenced=True)):
            self._report(error("SML0941", at=op.loc, what=what, who=op.who(), now=now, earlier=earlier, other=other,
                               other_line=other_line))  # fmt: skip
        elif complete and not clock.tensor & bit:
            self._report(error("SML0942", at=op.loc, what=what, who=op.who(), now=now, earlier=earlier, other=other,
                               other_line=other_line))  # fmt: skip
        else:
            self._report(error("SML0940", at=op.loc, what=what, who=op.who(), now=now, earlier=earlier, other=other,
                               other_line=other_line))  # fmt: skip


# The fences generate no instruction on the tried chips: a compiler's author sees no difference without them.
_FENCES = {"SML0941": "tcgen05.fence::after_thread_sync", "SML0942": "tcgen05.fence::before_thread_sync"}


def fences_left_out(program: Program) -> frozenset[str]:
    """The codes of the tcgen05 fences that occur nowhere in a program."""
    found = {step.form.executor for step in program.steps}
    return frozenset(code for code, fence in _FENCES.items() if fence not in found)


def _shadow(memory: TensorMemory) -> Shadow:
    found = memory.shadow
    if found is None:
        found = memory.shadow = Shadow()
    assert isinstance(found, Shadow)
    return found
