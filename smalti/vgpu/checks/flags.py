"""Order through flags in memory: a strong write publishes what its warp knows, a strong read of it learns that.

No rule of its own: it feeds the clocks that the race rule asks. Release and acquire act at once; relaxed and volatile
accesses act together with a fence (PTX 8.8), for which see `engines.order`. Scopes are taken to be wide enough.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from smalti.vgpu.engines import order as orders
from smalti.vgpu.warp import WARP

if TYPE_CHECKING:
    from smalti.vgpu.checks.races import Shadow
    from smalti.vgpu.warp import Gang, Warp

Offsets = npt.NDArray[np.int64]
Lanes = npt.NDArray[np.intp]

_RELEASES = ("release", "acq_rel", "sc")
_ACQUIRES = ("acquire", "acq_rel", "sc")


def published(gang: Gang, shadow: Shadow, offsets: Offsets, lanes: Lanes, order: str) -> None:
    """A strong write by the given threads (one an offset)."""
    for warp, mine in _by_warp(gang, offsets, lanes):
        known = orders.published(warp, order in _RELEASES)
        if known is not None:
            for o in mine:
                orders.merge(shadow.flags.setdefault(o, {}), known)


def observed(gang: Gang, shadow: Shadow, offsets: Offsets, lanes: Lanes, order: str) -> None:
    """A strong read by the given threads."""
    if not shadow.flags:
        return
    for warp, mine in _by_warp(gang, offsets, lanes):
        for o in mine:
            known = shadow.flags.get(o)
            if known is not None:
                orders.observe(warp, known, order in _ACQUIRES)


def _by_warp(gang: Gang, offsets: Offsets, lanes: Lanes) -> list[tuple[Warp, set[int]]]:
    found: dict[int, set[int]] = {}
    for lane, offset in zip(lanes.tolist(), offsets.tolist(), strict=True):
        found.setdefault(lane // WARP, set()).add(offset)
    return [(gang.cta.warps[w], where) for w, where in found.items()]
