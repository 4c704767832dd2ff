"""Releasing to and acquiring from a synchronisation object, with what fences add to relaxed operations.

Barriers of every kind use these three; they know warps and clocks only.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from smalti.vgpu.clocks import Clock
from smalti.vgpu.warp import Warp

_RELEASED = "order.released"  # what the last release fence of a warp covers
_OBSERVED = "order.observed"  # what its relaxed reads have seen since the last acquire fence


def release(warp: Warp, sync: Clock, relaxed: bool = False) -> None:
    """The warp signals `sync`. A relaxed signal publishes only what an earlier fence released (PTX ISA 8.8)."""
    if relaxed:
        fenced = warp.state.get(_RELEASED)
        if fenced is not None:
            sync.join(fenced)
        return
    sync.join(warp.clock)
    warp.clock.warps[warp.agent] += 1


def acquire(warp: Warp, sync: Clock, relaxed: bool = False) -> None:
    """The warp has seen `sync`. After a relaxed look the knowledge comes with the next acquire fence."""
    if not relaxed:
        warp.clock.join(sync)
        return
    seen = warp.state.get(_OBSERVED)
    if seen is None:
        warp.state[_OBSERVED] = sync.copy()
    else:
        seen.join(sync)


def fence(warps: Iterable[Warp], acquires: bool = True, releases: bool = True) -> None:
    """`fence.acq_rel` and its halves: earlier relaxed looks acquire, later relaxed signals release."""
    for warp in warps:
        if acquires:
            seen = warp.state.pop(_OBSERVED, None)
            if seen is not None:
                warp.clock.join(seen)
        if releases:
            warp.state[_RELEASED] = warp.clock.copy()
            warp.clock.warps[warp.agent] += 1


def meet(warps: list[Warp]) -> Clock:
    """What every one of the warps knows: the clock of work that they issue together."""
    clock = warps[0].clock.copy()
    for other in warps[1:]:
        np.minimum(clock.warps, other.clock.warps, out=clock.warps)
        np.minimum(clock.fenced, other.clock.fenced, out=clock.fenced)
        clock.ops &= other.clock.ops
        clock.tensor &= other.clock.tensor
    return clock
