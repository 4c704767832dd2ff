"""Rule: wgmma.fence stands between accesses to registers and a wgmma that uses them, and before a warp's first wgmma
(SML0935). Source: PTX 9.7.15.7.1.

The program is looked through once: only where some path lacks a fence are its instructions watched as they execute.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from smalti.errors import error
from smalti.ptx.module import Vector
from smalti.vgpu.checks.races import Report, line

if TYPE_CHECKING:
    from smalti.vgpu.machine import Machine
    from smalti.vgpu.program import Program, Step
    from smalti.vgpu.warp import Gang

_TOUCHED = "wgmma.touched"  # of a warp: register -> line, since its last wgmma.fence; absent before the first
_MATRIX = ("wgmma", "wgmma.sp")


def install(machine: Machine, report: Report) -> None:
    """Watch the instructions of the machine's program that matter."""
    program = machine.program
    users = {s.pc: _registers(program, s) for s in program.steps if s.form.executor in _MATRIX}
    if not users:
        return
    unfenced = _unfenced(program, users)
    if not unfenced:
        return
    watched = 0
    for bits in unfenced.values():
        watched |= bits
    for step in program.steps:
        if step.form.executor == "wgmma.fence":
            _wrap(machine, step, _clear)
        elif step.pc in unfenced:
            _wrap(machine, step, _check(step, users[step.pc], report))
        elif step.pc not in users and step.touches & watched:
            _wrap(machine, step, _note(step, [n for n in step.reads | step.writes if watched >> n & 1]))


def _registers(program: Program, step: Step) -> int:
    """The accumulator, and A where it is in registers, as bits."""
    bound = step.form.bind(step.instruction.operands)
    assert bound is not None
    return _bits(program.registers[r] for o in (bound["d"], bound["a"]) if isinstance(o, Vector) for r in o.items)  # type: ignore[index]


def _bits(numbers: Iterable[int]) -> int:
    found = 0
    for n in numbers:
        found |= 1 << n
    return found


def _unfenced(program: Program, users: dict[int, int]) -> dict[int, int]:
    """Where a wgmma may lack a fence: pc -> the registers that some path touches after its last fence.

    The bit behind all registers stands for the start of the kernel.
    """
    interest = _bits(())
    for bits in users.values():
        interest |= bits
    start = 1 << len(program.widths)
    n = len(program.steps)
    before = [0] * (n + 1)
    before[0] = start
    work, queued = [0], bytearray(n + 1)
    seen = bytearray(n + 1)
    while work:
        pc = work.pop()
        queued[pc] = 0
        seen[pc] = 1
        while pc < n:
            step = program.steps[pc]
            after = before[pc]
            if pc not in users:
                fence = step.form.executor == "wgmma.fence" and step.instruction.guard is None
                after = 0 if fence else after | step.touches & interest
            follow = None
            for target in program.successors(pc):
                new = before[target] | after
                if new == before[target] and seen[target]:
                    continue
                before[target] = new
                if follow is None:
                    follow = target
                elif not queued[target]:
                    queued[target] = 1
                    work.append(target)
            if follow is None:
                break
            pc = follow
            seen[pc] = 1
    return {pc: bad for pc, bits in users.items() if (bad := before[pc] & (bits | start))}


def _wrap(machine: Machine, step: Step, first: Callable[[Gang], None]) -> None:
    inner = machine.operations[step.pc]

    def op(g: Gang) -> Any:
        first(g)
        return inner(g)

    machine.operations[step.pc] = op


def _clear(g: Gang) -> None:
    for w in g.warps():
        w.state[_TOUCHED] = {}


def _note(step: Step, numbers: list[int]) -> Callable[[Gang], None]:
    touched = dict.fromkeys(numbers, step.loc)

    def note(g: Gang) -> None:
        for w in g.warps():
            since = w.state.get(_TOUCHED)
            if since is not None:
                since.update(touched)

    return note


def _check(step: Step, uses: int, report: Report) -> Callable[[Gang], None]:
    def check(g: Gang) -> None:
        program = g.machine.program
        guard = step.instruction.guard
        if guard is not None and not (g.bank.u[program.registers[guard.register]] != guard.negated).any():
            return
        for w in g.warps():
            since = w.state.get(_TOUCHED)
            if since is None:
                what = "it is the first wgmma of its warpgroup"
            else:
                found = next((n for n in since if uses >> n & 1), None)
                if found is None:
                    continue
                name = next(r for r, i in program.registers.items() if i == found).name
                what = f"register {name} was touched at {line(since[found])}"
            report(error("SML0935", at=step.loc, opcode=step.opcode, what=what, who=g.who()))
            return

    return check
