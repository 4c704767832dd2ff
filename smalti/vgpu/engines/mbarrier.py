"""Mbarriers: phases, pending arrivals and transaction bytes, as measured on an H200 (h200-measured E12).

A live object is kept here and not in memory: plain loads see what was there before `init`. Knows no instruction.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smalti.errors import Loc, error
from smalti.vgpu.clocks import Clock
from smalti.vgpu.memory import SHARED_WINDOW, Agent
from smalti.vgpu.warp import WARP, Wait

if TYPE_CHECKING:
    from smalti.vgpu.machine import CTA
    from smalti.vgpu.warp import Warp

LIMIT = 1 << 20  # counts have 20 bits (PTX ISA 9.7.13.15.1)
_FIELD = LIMIT - 1
_TX_FIELD = (1 << 21) - 1  # transaction count: two's complement of 21 bits (E12)
ENGINE = "mbarrier"


class Mbarrier:
    """One live barrier.

    `phase` counts completed phases; `tx` is bytes completed minus bytes expected in this one; `arriving` is what
    arrivals of this phase released, `completed` what waiting for a completed phase teaches. `born` is the warp that
    initialised it and its clock then; `published` the phase of the cluster barrier when fence.mbarrier_init followed
    (−1: it did not). `signals` are the lines that
    have ever signalled it.
    """

    __slots__ = (
        "arriving", "born", "completed", "cta", "expected", "known", "name", "offset", "pending", "phase", "published",
        "signals", "tx",
    )  # fmt: skip

    def __init__(self, cta: CTA, offset: int, count: int, born: tuple[Warp, int]) -> None:
        self.cta, self.offset = cta, offset
        self.phase = 0
        self.expected = self.pending = count
        self.tx = 0
        agents = len(born[0].clock.warps)
        self.arriving, self.completed = Clock(agents), Clock(agents)
        self.born, self.published = born, -1
        self.known = 1 << born[0].agent
        self.signals: set[Loc | None] = set()
        self.name = cta.describe(offset)

    # -- state ------------------------------------------------------------------------------------------

    def word(self) -> int:
        """The 64 bits that `inval` leaves in memory and that arrivals return (layout: E12)."""
        return (
            ((LIMIT - self.expected) & _FIELD) << 1
            | (self.tx & _TX_FIELD) << 21
            | ((LIMIT - self.pending) & _FIELD) << 43
            | (self.phase & 1) << 63
        )

    def passed(self, parity: int) -> bool:
        """Whether the phase with that parity is the one completed last: the hardware compares one bit (E12)."""
        return self.phase & 1 != parity & 1

    def missing(self) -> str:
        """What the current phase still waits for."""
        parts = [f"{self.pending} of {self.expected} arrivals"] if self.pending else []
        if self.tx < 0:
            parts.append(f"{-self.tx} bytes")
        elif self.tx > 0:
            parts.append(f"an expect_tx of {self.tx} bytes that have come already")
        return " and ".join(parts) or "nothing"

    def seen_by(self, gang: Any) -> None:
        """Warps use it: its initialisation must be ordered before. `known` are the warps found to be so.

        Reports SML0960.
        """
        for warp in gang.warps():
            bit = 1 << warp.agent
            if self.known & bit:
                continue
            self.known |= bit
            birth, time = self.born
            checks = warp.cta.machine.checks
            if checks is None or warp.cta.cluster is not self.cta.cluster:
                continue
            if warp.clock.warps[birth.agent] < time and not self._published_to(warp):
                found = error("SML0960", at=gang.loc, what=self.name, who=gang.who(), other=birth.name())
                checks.report(found)

    def _published_to(self, warp: Warp) -> bool:
        """After fence.mbarrier_init even a relaxed cluster barrier makes the initialisation known (9.7.13.4)."""
        barrier = self.cta.cluster.engines.get("barrier")
        if self.published < 0 or barrier is None:
            return False
        waited = barrier.waited[warp.cta.rank][warp.index * WARP : (warp.index + 1) * WARP]
        return bool((waited > self.published).any())

    # -- operations -------------------------------------------------------------------------------------

    def arrive(self, agent: Agent, count: int) -> None:
        """`count` arrivals. Errors: SML0905 more than are pending."""
        if count > self.pending:
            raise error(
                "SML0905", at=agent.loc, count=count, what=self.name, phase=self.phase, pending=self.pending,
                expected=self.expected, who=agent.who(),
            )  # fmt: skip
        if count:
            self.pending -= count
            self.signals.add(agent.loc)
            self._test()

    def drop(self, agent: Agent, count: int) -> None:
        """`count` arrivals that later phases do not expect any more."""
        before = self.expected
        self.expected = max(before - count, 0)
        try:
            self.arrive(agent, count)
        except BaseException:
            self.expected = before
            raise

    def expect(self, agent: Agent, size: int) -> None:
        """Expect `size` more bytes. Errors: SML0906, SML0907."""
        self._bytes(agent, size, -1)

    def complete(self, agent: Agent, size: int) -> None:
        """`size` bytes have come. Errors: SML0906, SML0907."""
        self._bytes(agent, size, 1)
        self.signals.add(agent.loc)
        self._test()

    def _bytes(self, agent: Agent, size: int, sign: int) -> None:
        if not 0 <= size < LIMIT:
            raise error("SML0907", at=agent.loc, size=size, what=self.name, limit=LIMIT - 1, who=agent.who())
        tx = self.tx + sign * size
        lowest = -LIMIT if self.pending == 0 else 1 - LIMIT  # measured on an H200 both ways
        if not lowest <= tx < LIMIT:
            raise error("SML0906", at=agent.loc, tx=tx, what=self.name, phase=self.phase, who=agent.who())
        self.tx = tx

    def _test(self) -> None:
        if self.pending == 0 and self.tx == 0:
            self.phase += 1
            self.pending = self.expected
            self.completed.join(self.arriving)


class MbarrierWait(Wait):
    """Threads of a gang waiting for phases of one or more barriers."""

    def __init__(self, barriers: list[tuple[Mbarrier, int]]) -> None:
        self.barriers = barriers

    def ready(self) -> bool:
        return all(b.passed(parity) for b, parity in self.barriers)

    def describe(self) -> str:
        return "; ".join(
            f"waiting for parity {parity} of mbarrier {b.name} (phase {_counted(b.phase)}), which lacks {b.missing()}"
            for b, parity in self.barriers
            if not b.passed(parity)
        )


def _counted(phase: int) -> str:
    """The number of a phase, and how many like it are over: who fell two behind waits for one that never comes."""
    return f"{phase}, {phase // 2} of this parity over" if phase > 1 else str(phase)


def live(cta: CTA) -> dict[int, Mbarrier]:
    """The live mbarriers of a CTA by their byte offset in shared memory."""
    table: dict[int, Mbarrier] = cta.engines.setdefault(ENGINE, {})
    return table


def place(agent: Agent, cta: CTA, space: str, address: int) -> tuple[CTA, int]:
    """The CTA and byte offset of an mbarrier's address. `space` "" is generic.

    Errors: SML0803-SML0806 as for any access of 8 bytes there.
    """
    offset = address & 0xFFFFFF
    if space and address >> 24 == cta.rank and offset % 8 == 0 and cta.shared.low <= offset <= cta.shared.size - 8:
        return cta, offset  # the usual case
    where = np.array([address], np.int64)
    segment, offsets, _ = cta.machine.memory.resolve(agent, cta, space or "generic", where, 8)[0]
    if segment.kind != "shared":
        raise error("SML0805", at=agent.loc, address=hex(address), space="shared", who=agent.who())
    return segment.owner, int(offsets[0])


def find(agent: Agent, cta: CTA, space: str, address: int, operation: str) -> Mbarrier:
    """The live mbarrier at an address. Errors: as `place`; SML0902 no live mbarrier there."""
    local = address if space else address - SHARED_WINDOW
    if local >> 24 == cta.rank:
        table = cta.engines.get(ENGINE)
        found: Mbarrier | None = table.get(local & 0xFFFFFF) if table else None
        if found is not None:
            found.seen_by(agent)
            return found
    owner, offset = place(agent, cta, space, address)
    found = live(owner).get(offset)
    if found is None:
        raise error("SML0902", at=agent.loc, operation=operation, what=owner.describe(offset), who=agent.who())
    found.seen_by(agent)
    checks = cta.machine.checks
    if checks is not None and owner.exited.all():
        checks.report(error("SML0936", at=agent.loc, cta=owner.name, other=agent.who(), what=found.name))
    return found


def signal(agent: Any, cta: CTA, offset: int, size: int, bits: int) -> None:
    """An asynchronous operation completes `size` bytes on the barrier at `offset` of `cta`.

    `bits` are the operations (bits of Clock.ops) that whoever waits then knows complete. Errors: SML0902, SML0906.
    """
    found = live(cta).get(offset)
    if found is None:
        raise error("SML0902", at=agent.loc, operation="complete_tx", what=cta.describe(offset), who=agent.who())
    found.arriving.ops |= bits
    found.complete(agent, size)


def arrive_async(agent: Any, cta: CTA, offset: int, bits: int, published: int) -> None:
    """One arrival by a tcgen05.commit, as `signal`; `published` are tensor-memory operations that come before
    (`Clock.published`). Errors: SML0902, SML0905."""
    found = live(cta).get(offset)
    if found is None:
        raise error("SML0902", at=agent.loc, operation="arrive", what=cta.describe(offset), who=agent.who())
    found.arriving.ops |= bits
    found.arriving.published |= published
    found.arrive(agent, 1)
