"""Named barriers of a CTA and the barrier of a cluster: who has arrived, and what those who wait then know.

Knows lanes, warps and clocks; instructions are in `execute/barrier`. Source: PTX ISA 9.7.13.1, 9.7.13.3.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smalti.errors import error
from smalti.vgpu.clocks import Clock
from smalti.vgpu.engines.order import acquire, release
from smalti.vgpu.memory import Agent
from smalti.vgpu.warp import WARP, Wait

if TYPE_CHECKING:
    from smalti.vgpu.machine import CTA, Cluster
    from smalti.vgpu.warp import Gang, Warp

Bools = npt.NDArray[np.bool_]
NUMBER = 16  # named barriers of a CTA (PTX ISA 9.7.13.1)


class Round:
    """One use of a named barrier: from the first arrival until it completes."""

    __slots__ = ("arrived", "clock", "cta", "done", "first", "number", "popc", "threads", "value")

    def __init__(self, cta: CTA, number: int, threads: int | None, first: Any) -> None:
        self.cta, self.number, self.threads, self.first = cta, number, threads, first
        self.arrived: Bools = np.zeros(cta.threads_padded, np.bool_)
        self.clock = Clock(len(cta.warps[0].clock.warps))
        self.done = False
        self.popc = 0
        self.value: bool | None = None

    def count(self) -> int:
        """Threads that have arrived; those that have left count with a warp that arrives (9.7.13.1: whole warps)."""
        arrived = self.arrived
        if not arrived.any():
            return 0
        present = arrived.reshape(-1, WARP).any(axis=1).repeat(WARP)
        return int(np.count_nonzero(arrived | (self.cta.exited & present)))

    def complete(self) -> bool:
        """Whether all that are expected have come; without a number these are all threads that still live."""
        if not self.done:
            if self.threads is None:
                self.done = bool((self.arrived | self.cta.exited).all())
            else:
                self.done = self.count() >= self.threads
            if self.done:
                table = self.cta.engines["barrier"]
                if table.get(self.number) is self:
                    del table[self.number]
                self.cta.machine.memory.version += 1
        return self.done

    def missing(self) -> str:
        if self.threads is not None:
            return f"{self.threads - self.count()} of {self.threads} threads"
        absent = ~(self.arrived | self.cta.exited)
        warps = np.flatnonzero(absent.reshape(-1, WARP).any(axis=1))
        return f"{int(np.count_nonzero(absent))} threads (of warps {', '.join(map(str, warps))})"


def enter(agent: Agent, cta: CTA, number: int, threads: int | None, lanes: npt.NDArray[np.intp]) -> Round:
    """Threads (numbers in the CTA) arrive at a named barrier.

    Errors: SML0910 no such barrier, SML0911 a number of threads that it cannot have, SML0912 another number than
    those who came before, SML0913 a thread that has arrived in this round already.
    """
    if not 0 <= number < NUMBER:
        raise error("SML0910", at=agent.loc, number=number, limit=NUMBER - 1, who=agent.who())
    if threads is not None and (threads % WARP or not 0 < threads <= cta.threads_padded):
        raise error("SML0911", at=agent.loc, threads=threads, number=number, limit=cta.threads_padded, who=agent.who())
    table: dict[int, Round] = cta.engines.setdefault("barrier", {})
    current = table.get(number)
    if current is None:
        current = table[number] = Round(cta, number, threads, agent.loc)
    elif current.threads != threads:  # even where the number left out is the same: H200, illegal instruction
        raise error(
            "SML0912", at=agent.loc, number=number, threads=threads or "all", before=current.threads or "all",
            line=str(current.first), who=agent.who(),
        )  # fmt: skip
    if current.arrived[lanes].any():
        raise error("SML0913", at=agent.loc, number=number, missing=current.missing(), who=agent.who())
    current.arrived[lanes] = True
    return current


class BarrierWait(Wait):
    """Threads of a gang waiting at a named barrier; `finish` hands them its result."""

    advance = True

    def __init__(self, gang: Gang, current: Round, finish: Any) -> None:
        self.gang, self.round, self.finish = gang, current, finish

    def ready(self) -> bool:
        if not self.round.complete():
            return False
        leave(self.gang.warps(), self.round)
        if self.finish is not None:
            self.finish(self.gang, self.round)
        return True

    def describe(self) -> str:
        return f"waiting at barrier {self.round.number}, which lacks {self.round.missing()}"


def leave(warps: list[Warp], current: Round) -> None:
    for w in warps:
        acquire(w, current.clock)


class ClusterBarrier:
    """The barrier of a cluster. Each thread arrives once a phase and waits for the phase in which it arrived."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.phase = 0
        self.arrived: list[Bools] = [np.zeros(c.threads_padded, np.bool_) for c in cluster.ctas]
        self.arrivals: list[npt.NDArray[np.int64]] = [np.zeros(c.threads_padded, np.int64) for c in cluster.ctas]
        self.waited: list[npt.NDArray[np.int64]] = [np.zeros(c.threads_padded, np.int64) for c in cluster.ctas]
        agents = sum(len(c.warps) for c in cluster.ctas)
        self.arriving, self.completed = Clock(agents), Clock(agents)

    def arrive(self, gang: Gang, lanes: npt.NDArray[np.intp], relaxed: bool) -> None:
        """Errors: SML0915 a thread that has not waited for its last arrival."""
        rank = gang.cta.rank
        if (self.arrivals[rank][lanes] != self.waited[rank][lanes]).any():
            raise error("SML0915", at=gang.loc, who=gang.who())
        self.arrivals[rank][lanes] += 1
        self.arrived[rank][lanes] = True
        for w in gang.warps():
            release(w, self.arriving, relaxed)
        self.test()

    def test(self) -> None:
        for cta, arrived in zip(self.cluster.ctas, self.arrived, strict=True):
            if not (arrived | cta.exited).all():
                return
        if not any(a.any() for a in self.arrived):
            return
        self.phase += 1
        for a in self.arrived:
            a[:] = False
        self.completed.join(self.arriving)
        self.cluster.machine.memory.version += 1

    def missing(self) -> str:
        return ", ".join(
            f"{int(np.count_nonzero(~(a | c.exited)))} threads of CTA {c.name}"
            for c, a in zip(self.cluster.ctas, self.arrived, strict=True)
            if not (a | c.exited).all()
        )


class ClusterWait(Wait):
    """Threads of a gang waiting for the cluster barrier's phase in which they arrived."""

    advance = True

    def __init__(self, gang: Gang, barrier: ClusterBarrier, phase: int) -> None:
        self.gang, self.barrier, self.phase = gang, barrier, phase

    def ready(self) -> bool:
        if self.barrier.phase < self.phase:
            self.barrier.test()  # threads may have left instead of arriving
        if self.barrier.phase < self.phase:
            return False
        for w in self.gang.warps():
            acquire(w, self.barrier.completed)
        return True

    def describe(self) -> str:
        return f"waiting at the cluster barrier, which lacks {self.barrier.missing()}"


def cluster_barrier(cluster: Cluster) -> ClusterBarrier:
    found: ClusterBarrier | None = cluster.engines.get("barrier")
    if found is None:
        found = cluster.engines["barrier"] = ClusterBarrier(cluster)
    return found


def cluster_wait(gang: Gang, lanes: npt.NDArray[np.intp]) -> ClusterWait | None:
    """Wait for the phase in which the gang's threads arrived. Errors: SML0916 a thread that did not arrive."""
    barrier = cluster_barrier(gang.cta.cluster)
    rank = gang.cta.rank
    mine = barrier.arrivals[rank][lanes]
    if (mine == barrier.waited[rank][lanes]).any():
        raise error("SML0916", at=gang.loc, who=gang.who())
    barrier.waited[rank][lanes] = mine
    wait = ClusterWait(gang, barrier, int(mine.max()))
    return None if wait.ready() else wait
