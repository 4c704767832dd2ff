"""Asynchronous engines. An operation is an object with an issue and a completion; it is an agent of its own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smalti.errors import Loc
from smalti.vgpu.clocks import Clock, common

if TYPE_CHECKING:
    from smalti.vgpu.machine import CTA
    from smalti.vgpu.warp import Warp


class AsyncOp:
    """Work that an engine does some time after its issue.

    `clock` is what the issuing warps (all of them) knew; `serial` its number in the cluster; `bit` the same as a bit of
    Clock.ops.
    `perform` does the next part (first the reads, then the writes, then the signals: so that a source may change
    under it) and says whether the operation is complete.
    """

    proxy = "async"
    engine = ""
    results: frozenset[int] = frozenset()  # numbers of the registers that it will write
    order = "weak"  # of its writes; reductions are "relaxed" (PTX 9.7.9.25.4.2): they race with no atomic
    spokesman: AsyncOp | None = None  # the first of those that are waited for only together with this one
    actor: Any = None  # belongs to checks
    interlocked = False  # the hardware itself makes later instructions wait for these registers

    def __init__(self, cta: CTA, issuer: Warp | list[Warp], loc: Loc | None, what: str) -> None:
        warps = issuer if isinstance(issuer, list) else [issuer]
        self.cta, self.issuer, self._loc, self.what = cta, warps[0], loc, what
        self.clock: Clock = common(warps)
        for w in warps:  # what they do from now on is not before this operation
            w.clock.warps[w.agent] += 1
        self.serial = cta.cluster.next_serial()
        self.bit = 1 << self.serial
        self.done = False

    @property
    def loc(self) -> Loc | None:
        return self._loc

    def who(self) -> str:
        return f"{self.what} issued by {self.issuer.name()}"

    def ready(self) -> bool:
        """Whether the engine's own order lets it go now."""
        return True

    def perform(self) -> bool:
        raise AssertionError(f"{type(self).__name__} does nothing")

    def uses_shared(self, cta: CTA) -> bool:
        """Whether the operation still has to read or write shared memory of this CTA."""
        return False
