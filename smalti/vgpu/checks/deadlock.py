"""Rule: when no gang can run and no engine has work left, the launch is dead (SML0901): who waits, where, for what."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smalti.vgpu.warp import Gang

_MOST = 12  # gangs listed one by one; a grid-wide hang repeats itself


def describe(gangs: list[Gang]) -> str:
    """One clause a waiting gang: who, at which line, for which barrier and phase, and what it lacks."""
    parts = []
    for g in gangs[:_MOST]:
        assert g.wait is not None
        where = f" at {g.loc}" if g.loc is not None else f" at instruction {g.pc}"
        parts.append(f"{g.who()}{where}: {g.wait.describe()}")
    if len(gangs) > _MOST:
        parts.append(f"and {len(gangs) - _MOST} more")
    return "; ".join(parts)
