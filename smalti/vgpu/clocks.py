"""What an agent knows to have happened: vector clocks with one view per proxy.

Agents are warps (by index in their cluster) and asynchronous operations (by serial number in their cluster, a bit of
the bit sets below).

`warps`       generic accesses of each warp that are ordered before.
`fenced`      those that a proxy fence has also made visible to the async proxy.
`ops`         asynchronous operations known to be complete.
`fenced_ops`  those of them in the generic proxy (cp.async) that a proxy fence has made visible to the async proxy.
`published`   tensor-memory operations that a tcgen05.fence::before_thread_sync or a commit has ordered before.
`tensor`      those that later tcgen05 instructions of the warp follow; nobody else learns this, not even by a barrier.
`foreign`     what is known of other clusters: {cluster: Clock}; only ever filled through global memory.
`passed`      as `warps`, but also by relaxed arrivals, which order no memory: what was read there has been read. None
              as long as nobody arrives so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from smalti.vgpu.warp import Warp


class Clock:
    __slots__ = ("fenced", "fenced_ops", "foreign", "ops", "passed", "published", "tensor", "warps")

    def __init__(self, warps: int) -> None:
        self.warps: npt.NDArray[np.int32] = np.zeros(warps, np.int32)
        self.fenced: npt.NDArray[np.int32] = np.zeros(warps, np.int32)
        self.ops = self.fenced_ops = self.published = self.tensor = 0
        self.foreign: dict[int, Clock] | None = None
        self.passed: npt.NDArray[np.int32] | None = None

    def copy(self) -> Clock:
        new = Clock.__new__(Clock)
        new.warps = self.warps.copy()
        new.fenced = self.fenced.copy()
        new.ops, new.fenced_ops = self.ops, self.fenced_ops
        new.published, new.tensor = self.published, self.tensor
        new.foreign = dict(self.foreign) if self.foreign else None
        new.passed = None if self.passed is None else self.passed.copy()
        return new

    def join(self, other: Clock) -> None:
        """Learn everything that `other` knows (an acquire of what `other` released)."""
        np.maximum(self.warps, other.warps, out=self.warps)
        np.maximum(self.fenced, other.fenced, out=self.fenced)
        self.ops |= other.ops
        self.fenced_ops |= other.fenced_ops
        self.published |= other.published
        if other.foreign:
            self.learn(other.foreign)
        if other.passed is not None:
            self.passes(other.passed)

    def passes(self, warps: npt.NDArray[np.int32]) -> None:
        """Reads of other warps up to these times are over."""
        self.passed = warps.copy() if self.passed is None else np.maximum(self.passed, warps)

    def learn(self, clusters: dict[int, Clock]) -> None:
        """Learn what is known of other clusters."""
        mine = self.foreign = self.foreign or {}
        for cluster, clock in clusters.items():
            if cluster in mine:
                merged = mine[cluster].copy()
                merged.join(clock)
                mine[cluster] = merged
            else:
                mine[cluster] = clock

    def fence_async(self) -> None:
        """`fence.proxy.async`: what is known of generic accesses becomes visible to the async proxy."""
        np.maximum(self.fenced, self.warps, out=self.fenced)
        self.fenced_ops |= self.ops

    def fence_tensor(self) -> None:
        """`tcgen05.fence::after_thread_sync`: later tcgen05 operations follow all that has been published."""
        self.tensor |= self.published


def common(warps: Sequence[Warp]) -> Clock:
    """What every one of the warps knows: the clock of work that they issue together."""
    clock = warps[0].clock.copy()
    for other in warps[1:]:
        its = other.clock
        np.minimum(clock.warps, its.warps, out=clock.warps)
        np.minimum(clock.fenced, its.fenced, out=clock.fenced)
        clock.ops &= its.ops
        clock.fenced_ops &= its.fenced_ops
        clock.published &= its.published
        clock.tensor &= its.tensor
        if clock.passed is not None:
            clock.passed = None if its.passed is None else np.minimum(clock.passed, its.passed)
        if clock.foreign:
            clock.foreign = {c: k for c, k in clock.foreign.items() if its.foreign and its.foreign.get(c) is k} or None
    return clock
