"""What an agent knows to have happened: vector clocks with one view per proxy.

Agents are warps (by index in their cluster) and asynchronous operations (by serial number in their cluster).
`warps`   generic accesses of each warp that are ordered before.
`fenced`  those that a proxy fence has also made visible to the async proxy.
`ops`     asynchronous operations known to be complete (a bit set).
`tensor`  tensor-memory operations that later tcgen05 instructions are ordered after (a bit set).
`foreign` what is known of other clusters: {cluster: Clock}; only ever filled through global memory.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt


class Clock:
    __slots__ = ("fenced", "foreign", "ops", "tensor", "warps")

    def __init__(self, warps: int) -> None:
        self.warps: npt.NDArray[np.int32] = np.zeros(warps, np.int32)
        self.fenced: npt.NDArray[np.int32] = np.zeros(warps, np.int32)
        self.ops = 0
        self.tensor = 0
        self.foreign: dict[int, Clock] | None = None

    def copy(self) -> Clock:
        new = Clock.__new__(Clock)
        new.warps = self.warps.copy()
        new.fenced = self.fenced.copy()
        new.ops, new.tensor = self.ops, self.tensor
        new.foreign = dict(self.foreign) if self.foreign else None
        return new

    def join(self, other: Clock) -> None:
        """Learn everything that `other` knows (an acquire of what `other` released)."""
        np.maximum(self.warps, other.warps, out=self.warps)
        np.maximum(self.fenced, other.fenced, out=self.fenced)
        self.ops |= other.ops
        self.tensor |= other.tensor
        if other.foreign:
            mine = self.foreign = self.foreign or {}
            for cluster, clock in other.foreign.items():
                if cluster in mine:
                    merged = mine[cluster].copy()
                    merged.join(clock)
                    mine[cluster] = merged
                else:
                    mine[cluster] = clock

    def fence_async(self) -> None:
        """`fence.proxy.async`: what is known of generic accesses becomes visible to the async proxy."""
        np.maximum(self.fenced, self.warps, out=self.fenced)

    def fence_tensor(self) -> None:
        """`tcgen05.fence::after_thread_sync`: later tcgen05 operations follow all that is known complete."""
        self.tensor |= self.ops
