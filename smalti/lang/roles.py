"""Roles: named sets of warps with their own code, and register budgets.

`with role:` runs in all its threads, `with role.elect():` in one. Roles take the CTA's warps in the order given.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

from smalti.errors import error
from smalti.lang.source import check_branch
from smalti.lang.threads import elected, warp_index
from smalti.lang.trace import REGISTERS, Threads, Trace, current
from smalti.lang.values import Scalar, Value

__all__ = ["Kind", "Role", "roles", "warp", "warpgroup"]

MOST_WARPS = 32  # of a CTA


@dataclass(frozen=True, slots=True)
class Kind:
    """What a role is made of: `warps` warps, starting at a multiple of `align` warps; `regs` a thread or 0."""

    warps: int
    align: int
    regs: int = 0

    def __call__(self, count: int = 1, *, regs: int = 0) -> Kind:
        return _warps(count, regs, self.align)


def _warps(count: int, regs: int, each: int) -> Kind:
    if not isinstance(count, int) or not 1 <= count * each <= MOST_WARPS:
        raise error("SML0304", what="the size of a role", value=str(count), wanted="1 to 32 warps in all")
    if regs and (regs % 8 or not 24 <= regs <= 256 or each != 4):
        raise error(
            "SML0304", what="regs of a role", value=regs, wanted="a multiple of 8 from 24 to 256, on warpgroups"
        )
    return Kind(count * each, each, regs)


def warpgroup(count: int = 1, *, regs: int = 0) -> Kind:
    """A role of `count` warpgroups (128 threads each). `regs`: registers that each of its threads gets."""
    return _warps(count, regs, 4)


warp = Kind(1, 1)


class Role(AbstractContextManager[Any]):
    """A role. `with role as g:` gives the index of the warpgroup inside it; `regs` are asked for on entry."""

    def __init__(self, name: str, first: int, kind: Kind) -> None:
        self.name, self.first, self.warps, self.regs = name, first, kind.warps, kind.regs
        self._open: list[AbstractContextManager[Any]] = []

    def __repr__(self) -> str:
        return f"<role {self.name}, warps {self.first} to {self.first + self.warps - 1}>"

    def threads(self, group: Value | int = 0, *, single: bool = False) -> Threads:
        return Threads(self.name, self.first, self.warps, single, group)

    def __enter__(self) -> Any:
        check_branch()
        return self._begin()

    def _begin(self) -> Scalar:
        trace = current()
        if trace.region.threads.role != trace.root.threads.role:
            raise error("SML0309", role=self.name, inside=trace.region.threads.describe())
        region = self._enter(trace.open_if(self._here(trace), "role", self.threads()))
        self._set_registers(trace)
        if self.warps <= 4:
            return 0
        group: Value = (warp_index() - self.first) >> 2
        region.threads = self.threads(group)
        return group

    def _enter(self, opened: AbstractContextManager[Any]) -> Any:
        self._open.append(opened)
        return opened.__enter__()

    def __exit__(self, *exception: Any) -> None:
        while self._open:
            self._open.pop().__exit__(*exception)

    def elect(self) -> One:
        """One thread of the role: the elected lane of its first warp."""
        return One(self)

    def _here(self, trace: Trace) -> Any:
        w: Any = warp_index()
        last = self.first + self.warps
        if self.warps == 1:
            return w == self.first
        if self.first == 0:
            return w < last
        return w >= self.first if last == trace.warps else (w >= self.first) & (w < last)

    def _set_registers(self, trace: Trace) -> None:
        """Ask for the role's register count (PTX ISA 9.7.19.5); the CTA starts with an equal share."""
        if not self.regs:
            return
        share = trace.register_share()
        verb = "dec" if self.regs < share else "inc"
        trace.emit(f"setmaxnreg.{verb}.sync.aligned.u32", self.regs)


class One(AbstractContextManager[None]):
    """The region of one thread of a role."""

    def __init__(self, role: Role) -> None:
        self.role = role

    def __enter__(self) -> None:
        check_branch()
        role, trace = self.role, current()
        role._begin()
        if role.warps > 1:
            role._enter(trace.open_if(warp_index() == role.first, "when"))
        role._enter(trace.open_if(elected(), "one", role.threads(single=True)))

    def __exit__(self, *exception: Any) -> None:
        self.role.__exit__(*exception)


def roles(**kinds: Kind) -> tuple[Role, ...]:
    """Divide the CTA's warps among roles: `load, mma = sm.roles(load=sm.warpgroup(1), mma=sm.warpgroup(2))`.

    Warpgroup roles start at a multiple of four warps; unused warps before them idle.
    Errors: SML0305 for more than 32 warps, SML0380 for register budgets that do not fit.
    """
    trace = current()
    if trace.roles_made:
        raise error("SML0304", what="sm.roles", value="called twice", wanted="one call a kernel")
    made, at = [], 0
    for name, kind in kinds.items():
        at = -(-at // kind.align) * kind.align
        made.append(Role(name, at, kind))
        at += kind.warps
    if any(k.regs for k in kinds.values()):
        at = -(-at // 4) * 4  # setmaxnreg counts whole warpgroups
    if at > MOST_WARPS:
        raise error("SML0305", what="the roles", wanted=at, used=0, limit=MOST_WARPS)
    trace.set_warps(at)
    share = trace.register_share()
    wanted = sum((r.regs or share) * 32 * r.warps for r in made)
    if wanted > REGISTERS:
        listing = " + ".join(f"{r.warps * 32}x{r.regs or share}" for r in made)
        role, nearest = _fitting(made, share)
        raise error("SML0380", listing=listing, wanted=wanted, limit=REGISTERS, role=role, nearest=nearest)
    for r in made:
        budget = f", {r.regs} registers a thread" if r.regs else ""
        trace.plan.roles.append(f"{r.name}: warps {r.first} to {r.first + r.warps - 1}{budget}")
    return tuple(made)


def _fitting(made: list[Role], share: int) -> tuple[str, int]:
    """The greediest role, and the largest budget for it that fits beside the others."""
    most = max(made, key=lambda r: r.regs * r.warps)
    others = sum((r.regs or share) * 32 * r.warps for r in made if r is not most)
    return most.name, max((REGISTERS - others) // (32 * most.warps) // 8 * 8, 24)
