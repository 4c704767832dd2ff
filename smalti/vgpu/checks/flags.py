"""Order through memory: a strong write publishes what its warp knows, a strong read that follows learns it.

Release and acquire act at once; relaxed and volatile accesses act together with a fence (PTX 8.8). No rule of its
own: it feeds the clocks that the race rule asks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smalti.vgpu.clocks import Clock

if TYPE_CHECKING:
    from smalti.vgpu.memory import Segment
    from smalti.vgpu.warp import Gang, Warp

_RELEASES = ("release", "acq_rel", "sc")
_ACQUIRES = ("acquire", "acq_rel", "sc")
Known = dict[int, Clock]  # cluster -> what is known of it


class Flags:
    def __init__(self) -> None:
        self._at: dict[tuple[int, int], Known] = {}  # (segment, offset) -> what its writers published

    def published(self, gang: Gang, segment: Segment, offsets: npt.NDArray[np.int64], order: str) -> None:
        for warp in gang.warps():
            known = _snapshot(warp) if order in _RELEASES else warp.state.get("fence")
            if known is None:
                continue
            for o in set(offsets.tolist()):
                _merge(self._at.setdefault((id(segment), o), {}), known)
            if order in _RELEASES:
                warp.clock.warps[warp.agent] += 1

    def observed(self, gang: Gang, segment: Segment, offsets: npt.NDArray[np.int64], order: str) -> None:
        if not self._at:
            return
        for o in set(offsets.tolist()):
            known = self._at.get((id(segment), o))
            if known is None:
                continue
            for warp in gang.warps():
                if order in _ACQUIRES:
                    _learn(warp, known)
                else:
                    _merge(warp.state.setdefault("seen", {}), known)

    def fence(self, gang: Gang) -> None:
        for warp in gang.warps():
            seen = warp.state.pop("seen", None)
            if seen:
                _learn(warp, seen)
            warp.state["fence"] = _snapshot(warp)
            warp.clock.warps[warp.agent] += 1


def _snapshot(warp: Warp) -> Known:
    own = warp.clock.copy()
    known: Known = dict(own.foreign or {})
    own.foreign = None
    known[warp.cta.cluster.index] = own
    return known


def _merge(into: Known, known: Known) -> None:
    for cluster, clock in known.items():
        if cluster in into:
            joined = into[cluster].copy()
            joined.join(clock)
            into[cluster] = joined
        else:
            into[cluster] = clock.copy()


def _learn(warp: Warp, known: Known) -> None:
    own = warp.cta.cluster.index
    foreign: Any = {c: k for c, k in known.items() if c != own}
    if own in known:
        warp.clock.join(known[own])
    if foreign:
        mine = warp.clock.foreign = warp.clock.foreign or {}
        _merge(mine, foreign)
