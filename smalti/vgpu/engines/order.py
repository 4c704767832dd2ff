"""Releasing to and acquiring from a synchronisation object, with what fences add to relaxed operations.

Barriers of every kind use `release` and `acquire`; flags in memory use `published` and `observe`, which also cross
clusters. A relaxed signal orders tcgen05 operations all the same, if a tcgen05.fence came before (PTX 9.7.16.6.4).
Knows warps and clocks only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from smalti.vgpu.clocks import Clock
from smalti.vgpu.warp import Warp

_RELEASED = "order.released"  # the clock that the last release fence of a warp covers
_OBSERVED = "order.observed"  # what its relaxed reads have seen since the last acquire fence
Known: TypeAlias = "dict[int, Clock]"  # cluster -> what is known of it


def release(warp: Warp, sync: Clock, relaxed: bool = False) -> None:
    """The warp signals `sync`. A relaxed signal publishes only what an earlier fence released (PTX ISA 8.8)."""
    clock = warp.clock
    if relaxed:
        fenced = warp.state.get(_RELEASED)
        if fenced is not None:
            sync.join(fenced)
        sync.published |= clock.published
        sync.ops |= clock.ops & clock.published
        sync.passes(clock.warps)
        if clock.passed is not None:
            sync.passes(clock.passed)
        clock.warps[warp.agent] += 1
        return
    sync.join(clock)
    clock.warps[warp.agent] += 1


def acquire(warp: Warp, sync: Clock, relaxed: bool = False) -> None:
    """The warp has seen `sync`. After a relaxed look the knowledge comes with the next acquire fence."""
    if not relaxed:
        warp.clock.join(sync)
        return
    _observed(warp).join(sync)
    warp.clock.published |= sync.published
    warp.clock.ops |= sync.ops & sync.published
    if sync.passed is not None:
        warp.clock.passes(sync.passed)


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


def _observed(warp: Warp) -> Clock:
    seen = warp.state.get(_OBSERVED)
    if seen is None:
        seen = warp.state[_OBSERVED] = Clock(len(warp.clock.warps))
    assert isinstance(seen, Clock)
    return seen


# -- flags in memory -------------------------------------------------------------------------------------


def published(warp: Warp, releases: bool) -> Known | None:
    """What a strong write of the warp makes known to those who read it; None if that is nothing."""
    clock = warp.clock
    if releases:
        known = _by_cluster(clock.copy(), warp)
        clock.warps[warp.agent] += 1
        return known
    fenced: Clock | None = warp.state.get(_RELEASED)
    if not clock.published:
        return None if fenced is None else _by_cluster(fenced.copy(), warp)
    shown = Clock(len(clock.warps)) if fenced is None else fenced.copy()
    shown.published |= clock.published
    shown.ops |= clock.ops & clock.published
    return _by_cluster(shown, warp)


def observe(warp: Warp, known: Known, acquires: bool) -> None:
    """A strong read of the warp has seen a write that made `known` known."""
    own = warp.cta.cluster.index
    here = known.get(own)
    clock = warp.clock if acquires else _observed(warp)
    if here is not None:
        clock.join(here)
        if not acquires:
            warp.clock.published |= here.published
            warp.clock.ops |= here.ops & here.published
    others = {c: k for c, k in known.items() if c != own}
    if others:
        clock.learn(others)


def merge(into: Known, known: Known) -> None:
    """Add what is known to a flag that several wrote."""
    for cluster, clock in known.items():
        if cluster in into:
            clock = clock.copy()
            clock.join(into[cluster])
        into[cluster] = clock


def _by_cluster(clock: Clock, warp: Warp) -> Known:
    known: Known = dict(clock.foreign or {})
    clock.foreign = None
    known[warp.cta.cluster.index] = clock
    return known
