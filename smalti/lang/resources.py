"""Counting what a traced kernel wants of its CTA, before any assembler runs, with the nearest size that fits."""

from __future__ import annotations

from smalti.errors import error
from smalti.lang.plan import Buffer, Plan

__all__ = ["SHARED_LIMIT", "check_shared"]

SHARED_LIMIT = 227 * 1024  # of a CTA on sm_90 and sm_100 (CUDA C++ programming guide, technical specifications)
ALIGNMENT = 1024  # of tiles; whole tiles are multiples of it or are rounded up
MBARRIER = 8


def check_shared(plan: Plan) -> None:
    """Refuse tiles and barriers that exceed the CTA's shared memory. Errors: SML0381."""
    barriers = sum(b.number for b in plan.barriers) * MBARRIER
    wanted = sum(map(_rounded, plan.buffers)) + barriers
    if wanted <= SHARED_LIMIT:
        return
    deepest = max(plan.buffers, key=lambda b: (b.stages > 1, b.bytes))
    ring = [b for b in plan.buffers if b.stages == deepest.stages] if deepest.stages > 1 else [deepest]
    each = sum(_rounded(b) // b.stages for b in ring)
    barriers_each = 2 * MBARRIER if deepest.stages > 1 else 0
    others = wanted - each * deepest.stages - barriers_each * deepest.stages
    listing = " + ".join(
        f"{b.name} {f'{b.stages} x ' if b.stages > 1 else ''}{b.bytes // b.stages}" for b in plan.buffers
    )
    raise error(
        "SML0381",
        wanted=wanted,
        limit=SHARED_LIMIT,
        listing=f"{listing} + barriers {barriers}",
        what=" and ".join(b.name for b in ring),
        nearest=max((SHARED_LIMIT - others) // (each + barriers_each), 0),
    )


def _rounded(b: Buffer) -> int:
    return -(-b.bytes // ALIGNMENT) * ALIGNMENT
