"""Branches, ends, calls of system functions, register counts, cluster launch control (PTX 9.7.12, 9.7.13.17, 9.7.19).

Knows which way lanes go; how gangs split and meet is the machine's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from smalti.errors import error
from smalti.ptx.module import Function, Immediate
from smalti.vgpu.engines import AsyncOp
from smalti.vgpu.engines.mbarrier import place, signal
from smalti.vgpu.execute import Context, Operation, Result, executor
from smalti.vgpu.execute.lanes import destination, nothing, write
from smalti.vgpu.execute.memory import active_addresses, space_of
from smalti.vgpu.execute.system import SYSTEM, arguments
from smalti.vgpu.machine import CTA, PollWait, Yield
from smalti.vgpu.program import Program, Step
from smalti.vgpu.warp import WARP, Bools, Gang, Wait, Warp


def _holds(context: Context, step: Step) -> Callable[[Gang], Bools] | None:
    """A function of a gang that gives the active lanes whose guard holds; None if there is no guard."""
    guard = step.instruction.guard
    if guard is None:
        return None
    n, negated = context.number(guard.register), guard.negated

    def holds(g: Gang) -> Bools:
        p = g.bank.u[n]
        if negated:
            p = ~p
        return p if g.mask is None else p & g.mask

    return holds


# -- branches ----------------------------------------------------------------------------------------------


@executor("bra", own_guard=True)
def branch(context: Context, step: Step) -> Operation:
    target = context.label(step.instruction.operands[0])
    holds = _holds(context, step)
    if holds is None:
        return lambda g: target
    fall = step.pc + 1

    def run(g: Gang) -> Result:
        taken = holds(g)
        count = int(np.count_nonzero(taken))
        if count == 0:
            return None
        if count == g.count:
            return target
        return g.machine.diverge(g, taken.copy(), target, fall)

    return run


@executor("brx.idx", own_guard=True)
def branch_indexed(context: Context, step: Step) -> Operation:
    bound = context.bind(step)
    index = context.source(bound["index"], "u32")
    step.critical |= {context.number(bound["index"])}
    targets = [context.label(t) for t in context.program.targets[step.instruction.operands[1]]]  # type: ignore[index]
    holds = _holds(context, step)
    fall = step.pc + 1

    def run(g: Gang) -> Result:
        which = np.broadcast_to(index(g), g.width)
        taking = g.active() if holds is None else holds(g)
        if not taking.any():
            return None
        if (which[taking] >= len(targets)).any():
            bad = int(which[taking].max())
            raise error("SML0819", at=step.loc, index=bad, count=len(targets), who=g.who())
        ways = [(t, taking & (which == i)) for i, t in enumerate(targets)]
        ways = [(t, lanes) for t, lanes in ways if lanes.any()]
        rest = g.active() & ~taking
        if rest.any():
            ways.append((fall, rest))
        lo = g.lo
        for target, lanes in ways[1:]:  # each splits off what is left of the gang
            mine = np.zeros(g.width, np.bool_)
            mine[:] = lanes[g.lo - lo : g.hi - lo]
            g.machine.diverge(g, mine, target, fall)
        return ways[0][0]

    return run


@executor("ret", "exit", own_guard=True)
def leave(context: Context, step: Step) -> Operation:
    holds = _holds(context, step)
    if holds is None:
        return lambda g: g.machine.retire(g, g.active())

    def run(g: Gang) -> Result:
        lanes = holds(g)
        return g.machine.retire(g, lanes.copy()) if np.count_nonzero(lanes) else None

    return run


# -- stops and pauses --------------------------------------------------------------------------------------


@executor("trap", "brkpt")
def trap(context: Context, step: Step) -> Operation:
    def run(g: Gang) -> Result:
        raise error("SML0814", at=step.loc, opcode=step.opcode, who=g.who())

    return run


@executor("nanosleep")
def sleep(context: Context, step: Step) -> Operation:
    """Others go first. A gang that sleeps in the state in which it slept before waits until memory changes."""

    def run(g: Gang) -> Result:
        return PollWait(g.machine.memory, "memory") if g.machine.repeats(g) else Yield()

    return run


@executor("pmevent", "griddepcontrol")
def no_effect(context: Context, step: Step) -> Operation:
    """Grids of a program run one after the other here, so a dependent one finds everything done."""
    return nothing


@executor("call")
def call(context: Context, step: Step) -> Operation:
    """Functions of the module have been inlined; what is left are those of the system."""
    callee = next(o for o in step.instruction.operands if isinstance(o, Function))
    found = SYSTEM.get(callee.name)
    if found is None:
        raise error("SML0809", at=step.loc, what=f"the external function {callee.name}")
    return found(arguments(context, step), step)


# -- register counts ---------------------------------------------------------------------------------------


class RegisterPool:
    """The registers of a CTA that its warps do not use, and how many each warp has a thread (PTX 9.7.19.5)."""

    def __init__(self, cta: CTA, count: int) -> None:
        self.free = 0
        self.counts = [count] * len(cta.warps)


class RegisterWait(Wait):
    def __init__(self, pool: RegisterPool, count: int, wanted: int) -> None:
        self.pool, self.count, self.wanted = pool, count, wanted

    def ready(self) -> bool:
        return self.pool.free >= self.wanted

    def describe(self) -> str:
        return f"waiting for {self.count} registers a thread ({self.wanted} more); the pool has {self.pool.free}"


def launch_registers(program: Program) -> int | None:
    """Registers a thread at launch, as the assembler derives them; None where setmaxnreg has no effect.

    It takes effect only with .maxnreg, or with .minnctapersm beside .reqntid or .maxntid. No more than the largest
    count that a setmaxnreg.inc asks for (tried with ptxas 13.0 and 13.5).
    """
    directives = program.function.directives
    shape = directives.get("reqntid") or directives.get("maxntid")
    ctas = directives.get("minnctapersm")
    if "maxnreg" in directives:
        bound = directives["maxnreg"][0]
    elif shape and ctas:
        bound = min(65536 // (int(np.prod(shape)) * ctas[0]) // 8 * 8, 255)
    else:
        return None
    grown = [
        count.value
        for step in program.steps
        if step.form.executor == "setmaxnreg" and step.form.get("action") == "inc"
        and isinstance(count := step.instruction.operands[0], Immediate)
    ]  # fmt: skip
    return min([bound, *([max(grown)] if grown else [])])


@executor("setmaxnreg")
def set_registers(context: Context, step: Step) -> Operation:
    count = context.bind(step)["count"]
    assert isinstance(count, Immediate)
    wanted, grows = count.value, step.form.get("action") == "inc"
    initial = launch_registers(context.program)
    if initial is None:
        return nothing

    def run(g: Gang) -> Result:
        pool: RegisterPool = g.cta.engines.setdefault("registers", RegisterPool(g.cta, initial))
        warps = g.warps()
        for w in warps:
            now = pool.counts[w.index]
            if now > wanted if grows else now < wanted:
                raise error("SML0817", at=step.loc, opcode=step.opcode, count=wanted, current=now, who=g.who())
        change = WARP * sum(wanted - pool.counts[w.index] for w in warps)
        if change > pool.free:
            return RegisterWait(pool, wanted, change)
        pool.free -= change
        for w in warps:
            pool.counts[w.index] = wanted
        return None

    return run


# -- cluster launch control --------------------------------------------------------------------------------

CANCELLED = np.uint64(1 << 63)  # our own form of the opaque response: x, y in one word, z and this bit in the other


class Cancel(AsyncOp):
    """Takes a cluster that has not started from the grid, and tells which in 16 bytes of shared memory."""

    engine = "launch"

    def __init__(self, cta: CTA, issuer: Warp, step: Step, targets: list[tuple[CTA, int, CTA, int]]) -> None:
        super().__init__(cta, issuer, step.loc, step.opcode)
        self.targets = targets
        self._written = False

    def perform(self) -> bool:
        if not self._written:
            origin = self.cta.machine.cancel()
            x, y, z = origin or (0, 0, 0)
            words = np.array([[x | y << 32, z | (int(CANCELLED) if origin else 0)]], np.uint64)
            for cta, offset, _, _ in self.targets:
                place_ = np.array([offset | cta.rank << 24], np.int64)
                self.cta.machine.memory.store(self, cta, "shared::cta", place_, 16, words)
            self._written = True
            return False
        for _, _, cta, offset in self.targets:
            signal(self, cta, offset, 16, self.bit)
        return True


@executor("clusterlaunchcontrol.try_cancel")
def try_cancel(context: Context, step: Step) -> Operation:
    (space, address), (mbar_space, mbar) = space_of(context, step), space_of(context, step, "mbar")
    everyone = any("multicast" in m for m in step.form.mods)

    def run(g: Gang) -> None:
        for lane, at, barrier in zip(g.lanes(), active_addresses(g, address), active_addresses(g, mbar), strict=True):
            g.machine.memory.resolve(g, g.cta, space, np.array([at]), 16)
            owner, offset = place(g, g.cta, mbar_space, int(barrier))
            ctas = g.cta.cluster.ctas if everyone else [g.cta]
            targets = [(c, int(at) & 0xFFFFFF, c if everyone else owner, offset) for c in ctas]
            g.machine.submit(Cancel(g.cta, g.cta.warps[int(lane) // WARP], step, targets))

    return run


@executor(
    "clusterlaunchcontrol.is_canceled", "clusterlaunchcontrol.first_ctaid", "clusterlaunchcontrol.first_ctaid.dimension"
)
def query_cancel(context: Context, step: Step) -> Operation:
    bound = context.bind(step)
    response = context.source(bound["response"], "b128")
    name = step.form.row.name
    if name.endswith("is_canceled"):
        p = destination(context, bound["p"])
        return nothing if p is None else lambda g: write(g, 0, p, response(g)[:, 1] >= CANCELLED)
    if name.endswith("dimension"):
        numbers: list[int | None] = [None, None, None]
        numbers["xyz".index(step.opcode.split("get_first_ctaid::")[1][0])] = destination(context, bound["d"])
    else:
        items: Any = bound["d"]
        numbers = [destination(context, o) for o in items.items]

    def run(g: Gang) -> None:
        words = response(g)
        parts = (words[:, 0] & np.uint64(0xFFFFFFFF), words[:, 0] >> np.uint64(32), words[:, 1] & ~CANCELLED)
        for n, values in zip(numbers, (*parts, np.uint64(0)), strict=False):
            if n is not None:
                write(g, 0, n, values)

    return run
