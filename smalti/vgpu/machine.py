"""The virtual GPU: grid, clusters and CTAs, and the loop that lets gangs and engines go.

State is this object, never a global. Knows no instruction: `execute` turns each into an operation, `engines`
perform what is asynchronous, `schedule` chooses, `checks` watches.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any

import numpy as np
import numpy.typing as npt

from smalti.errors import error
from smalti.ptx.module import Module
from smalti.vgpu import definedness
from smalti.vgpu.checks import deadlock
from smalti.vgpu.divergence import DONE, Divergence, JoinWait
from smalti.vgpu.engines import AsyncOp
from smalti.vgpu.execute import HANDLES_UNDEFINED, OWN_GUARD, Context, build
from smalti.vgpu.launch import DEVICES, LaunchConfig, VirtualDevice
from smalti.vgpu.memory import Memory, make_segment
from smalti.vgpu.program import Program, Step, prepare
from smalti.vgpu.schedule import Schedule
from smalti.vgpu.symbols import Symbols
from smalti.vgpu.warp import WARP, Gang, RegisterFile, Wait, Warp

Bools = npt.NDArray[np.bool_]


class PollWait(Wait):
    """A spin loop whose polling changed nothing: parked until memory or a barrier changes.

    If nothing else can run it goes on, for it may count its turns (`Machine._unstick` sees to it that it does).
    """

    def __init__(self, memory: Memory, what: str, advance: bool = True) -> None:
        self.memory, self.version, self.what, self.advance = memory, memory.version, what, advance

    def ready(self) -> bool:
        return self.memory.version != self.version

    def timeout(self) -> bool:
        return True

    def describe(self) -> str:
        return f"polling {self.what}, which nobody changes"


class Yield(Wait):
    """Not waiting at all, but it is someone else's turn (nanosleep)."""

    advance = True

    def ready(self) -> bool:
        return True

    def describe(self) -> str:
        return "sleeping"


class InterlockWait(Wait):
    """The hardware holds an instruction back until registers that it names are there."""

    def __init__(self, ops: list[AsyncOp]) -> None:
        self.ops = ops

    def ready(self) -> bool:
        return all(op.done for op in self.ops)

    def describe(self) -> str:
        return f"waiting for registers of {self.ops[0].who()}"


LONG = 10_000  # instructions without any change of memory after which a gang may be in an endless loop
PATIENCE = 1000  # how often a gang may time out while nothing else changes, each time in another state


class CTA:
    """A thread block: registers, shared memory, warps, and (lazily) tensor memory and barriers."""

    def __init__(self, machine: Machine, cluster: Cluster, rank: int, index: tuple[int, int, int]) -> None:
        self.machine, self.cluster, self.rank, self.index = machine, cluster, rank, index
        x, y, z = machine.config.block
        self.threads = x * y * z
        self.threads_padded = -(-self.threads // WARP) * WARP
        self.thread_numbers = np.arange(self.threads_padded)
        self.registers = RegisterFile(machine.program, self.threads_padded)
        warps = self.threads_padded // WARP
        agents = warps * cluster.size
        self.warps = [Warp(self, i, rank * warps + i, agents) for i in range(warps)]
        self.gangs: list[Gang] = []
        self.exited = np.zeros(self.threads_padded, np.bool_)
        self.exited[self.threads :] = True
        self.taint: Bools = np.zeros((len(machine.program.widths), self.threads_padded), np.bool_)
        self.taint[list(machine.program.uninitialised)] = ~self.exited
        self.undefined: dict[int, Bools] = {n: self.taint[n] for n in machine.program.uninitialised}
        self.unknown: dict[int, Any] = {}  # which of their bits are undefined, where it is not all (see definedness)
        self.undefined_bits = sum(1 << n for n in self.undefined)  # the keys of `undefined` as a bit set
        self.tainted = 0  # counts writes of undefined values to registers
        self.shared = make_segment(
            "shared", "shared memory", machine.shared_end, defined=False, low=machine.device.shared_base, owner=self
        )
        self.local = make_segment("local", "local memory", self.threads_padded * machine.local_frame, defined=False)
        self.engines: dict[str, Any] = {}  # state of engines and barriers, by name
        self._special: dict[str, Any] = {}

    @property
    def name(self) -> str:
        return str(self.index[0] if self.machine.config.grid[1:] == (1, 1) else self.index)

    def describe(self, offset: int) -> str:
        """What the author calls a byte of shared memory."""
        return self.machine.describe_shared(offset) + f" of CTA {self.name}"

    def refresh(self) -> None:
        for g in self.gangs:
            g.refresh()

    def set_undefined(self, number: int, lo: int, hi: int, flags: Bools | None, mask: Bools | None = None) -> None:
        """Say which of the threads lo … hi−1 (None: none) hold an undefined value in a register just written; threads
        outside `mask` keep theirs."""
        table = self.undefined
        row = table.get(number)
        if row is None:
            if flags is None or not flags.any():
                return
            row = table[number] = self.taint[number]
            self.undefined_bits |= 1 << number
            if len(table) == 1:
                self.refresh()
        if flags is not None:
            self.tainted += 1
        value = flags if flags is not None else np.False_
        if mask is None:
            row[lo:hi] = value
        else:
            np.copyto(row[lo:hi], value, where=mask)
        if number in self.unknown:
            known = self.unknown[number][lo:hi]
            known[slice(None) if mask is None else mask] = np.iinfo(known.dtype).max
        if not row.any():
            del table[number]
            self.unknown.pop(number, None)
            self.undefined_bits &= ~(1 << number)
            if not table:
                self.refresh()

    def local_base(self, g: Gang) -> Any:
        return self.thread_numbers[g.lo : g.hi] * self.machine.local_frame

    def special(self, name: str, g: Gang) -> Any:
        """A special register for lo … hi−1 of a gang: a row, or a 0-d array."""
        row = self._special.get(name)
        if row is None:
            row = self.machine.special(self, name)
            if row is None:
                return np.asarray(self.machine.volatile_special(self, name, g))
            row = self._special[name] = np.asarray(row)
        return row[g.lo : g.hi] if row.ndim else row


class Cluster:
    def __init__(self, machine: Machine, index: int, origin: tuple[int, int, int]) -> None:
        self.machine, self.index, self.origin = machine, index, origin
        cx, cy, cz = machine.config.cluster
        self.size = cx * cy * cz
        self._serial = 0
        self.engines: dict[str, Any] = {}  # cluster barrier and the like
        self.ctas: list[CTA] = []
        for rank in range(self.size):
            x, y, z = rank % cx, rank // cx % cy, rank // (cx * cy)
            self.ctas.append(CTA(machine, self, rank, (origin[0] + x, origin[1] + y, origin[2] + z)))

    def next_serial(self) -> int:
        self._serial += 1
        return self._serial - 1

    def finished(self) -> bool:
        return all(not c.gangs for c in self.ctas)


class Machine(Symbols, Divergence):
    """One launch of one kernel.

    `run` executes the grid. Afterwards `steps` is the number of warp instructions executed, `reports` what the
    checks collected (when they do not raise), `performed` the number of asynchronous operations by engine.
    """

    def __init__(
        self,
        module: Module,
        config: LaunchConfig,
        memory: Memory,
        *,
        device: VirtualDevice | None = None,
        schedule: Schedule | None = None,
        checks: Any = None,
        progress: Callable[[int, int], None] | None = None,
        max_steps: int | None = None,
    ) -> None:
        self.module, self.config, self.memory = module, config, memory
        self.device = device or DEVICES[module.target]
        self.schedule = schedule or Schedule()
        self.progress = progress
        self.max_steps = max_steps  # warp instructions; None: no limit
        self.steps = 0
        self.printed: list[str] = []  # what vprintf wrote
        self.performed: dict[str, int] = {}
        self.program: Program = prepare(module, config.entry)
        self._layout()
        self.checks = checks
        if checks is not None:
            checks.attach(self)
            memory.checks = checks
        with np.errstate(all="ignore"):
            self.operations = build(self, self.program)
        for step in self.program.steps:  # now, because builders may add to what a step touches
            step.touches = sum(1 << n for n in step.reads | step.writes)
        for pc in set(filter(None, self.program.joins.values())):
            self.operations[pc] = self._joining(self.operations[pc])
        self.clusters: list[Cluster] = []  # running
        self.pending: list[AsyncOp] = []
        self._rules: dict[int, definedness.Rule | None] = {}
        self._unborn = self._origins()
        self._total = 0
        self._finished = 0

    # -- the run ----------------------------------------------------------------------------------------

    def _origins(self) -> list[tuple[int, int, int]]:
        gx, gy, gz = self.config.grid
        cx, cy, cz = self.config.cluster
        if gx % cx or gy % cy or gz % cz:
            raise error("SML0812", grid=self.config.grid, cluster=self.config.cluster)
        return [
            (x, y, z) for z in range(0, gz, cz) for y in range(0, gy, cy) for x in range(0, gx, cx)
        ][::-1]  # fmt: skip

    def cancel(self) -> tuple[int, int, int] | None:
        """Take the next cluster that has not started from the grid: the index of its first CTA, or None."""
        if not self._unborn:
            return None
        self._finished += 1
        return self._unborn.pop()

    def _admit(self) -> bool:
        """Start the next cluster if there is one and room for it."""
        size = int(np.prod(self.config.cluster))
        if not self._unborn or (len(self.clusters) + 1) * size > self.device.sm_count:
            return False
        cluster = Cluster(self, self._total, self._unborn.pop())
        self._total += 1
        self.clusters.append(cluster)
        for cta in cluster.ctas:
            mask = None if cta.threads == cta.threads_padded else ~cta.exited
            first = Gang(cta, 0, cta.threads_padded, mask, 0, ())
            cta.gangs = [first]
            if self.schedule.split():
                self._split_warps(first)
        if self.checks is not None:
            self.checks.start(cluster)
        return True

    def run(self) -> None:
        """Execute the whole grid.

        Errors: any SML08xx or SML09xx, at the line of the instruction; SML0901 for a deadlock.
        """
        with np.errstate(all="ignore"):
            self._run()

    def _run(self) -> None:
        total = len(self._unborn)
        if total == 0:
            return
        self._admit()
        while self.clusters:
            runnable = self._runnable()
            ready = (op for op in self.pending if op.ready())
            ops = list(ready) if self.schedule.chooses else list(islice(ready, 1))
            if not runnable and not ops and (self._release(whole=True) or self._admit()):
                continue
            if self.schedule.admit() and self._admit():
                continue
            if runnable or ops:
                choice = self.schedule.pick(runnable, ops)
                if isinstance(choice, Gang):
                    self._run_gang(choice, self.schedule.budget())
                    if choice.wait is DONE:
                        self._retire_clusters(total)
                else:
                    self._perform(choice)
            elif not self._unstick():
                self._stuck()
        for op in list(self.pending):  # what nobody waited for still happens
            while not op.done:
                self._perform(op)
        if self.checks is not None:
            self.checks.finish()

    def _runnable(self) -> list[Gang]:
        out = []
        for cluster in self.clusters:
            for cta in cluster.ctas:
                for g in cta.gangs:
                    wait = g.wait
                    if wait is None:
                        out.append(g)
                    elif wait.ready():
                        if wait.advance:
                            g.pc += 1
                        g.wait = None
                        out.append(g)
        return out

    def _perform(self, op: AsyncOp) -> None:
        if op.perform():
            op.done = True
            self.pending.remove(op)
            self.performed[op.engine] = self.performed.get(op.engine, 0) + 1
        self.memory.version += 1

    def submit(self, op: AsyncOp) -> None:
        """Hand an operation to its engine."""
        self.pending.append(op)

    def _retire_clusters(self, total: int) -> None:
        for cluster in [c for c in self.clusters if c.finished()]:
            for op in [o for o in self.pending if o.cta.cluster is cluster]:
                while not op.done:
                    self._perform(op)
            if self.checks is not None:
                self.checks.end(cluster)
            self.clusters.remove(cluster)
            self._finished += 1
            if self.progress is not None:
                self.progress(self._finished, total)
        if not self.clusters:
            self._admit()

    def _run_gang(self, g: Gang, budget: int) -> None:
        operations = self.operations
        left = budget
        while left > 0:
            left -= 1
            result = self._slow_step(g) if g.slow else operations[g.pc](g)
            if result is None:
                g.pc += 1
            elif isinstance(result, int):
                g.pc = result
            else:
                if result is not DONE:
                    g.wait = result
                break
        self.steps += (budget - left) * max(1, g.width // WARP)
        if g.wait is None:
            self._spinning(g, budget)
        elif isinstance(g.wait, Yield):
            self.schedule.exhausted()
        if self.max_steps is not None and self.steps > self.max_steps:
            raise error("SML0816", at=g.loc, steps=self.max_steps, entry=self.config.entry)

    def _spinning(self, g: Gang, executed: int) -> None:
        """A gang used up its turn. If it has long stood as it stood before, and memory too, others must act first."""
        self.schedule.exhausted()
        version, count = g.ran
        count = executed if version != self.memory.version else count + executed
        g.ran = (self.memory.version, count)
        if count >= LONG and self.repeats(g):
            g.wait = PollWait(self.memory, "in a loop", advance=False)

    def repeats(self, g: Gang) -> bool:
        """Whether gang and memory have been in this very state before (or too often in a similar one)."""
        version, seen = g.seen
        if version != self.memory.version:
            seen = set()
        state = hash((g.pc, *(row.tobytes() for row in g.bank.u)))
        if state in seen or len(seen) >= PATIENCE:
            return True
        seen.add(state)
        g.seen = (self.memory.version, seen)
        return False

    def _slow_step(self, g: Gang) -> Any:
        """Execute one instruction while some registers are undefined or in flight: check before, propagate after."""
        pc = g.pc
        if pc == len(self.program.steps):  # behind the last instruction
            return self.operations[pc](g)
        step: Step = self.program.steps[pc]
        touched = step.reads | step.writes
        for w in g.warps():
            if w.hazards and not w.hazards.keys().isdisjoint(touched):
                if self.checks is not None:
                    self.checks.registers(g, step)
                ops = [op for n, op in w.hazards.items() if n in touched and op.interlocked and not op.done]
                if ops:
                    return InterlockWait(ops)
                break
        if not g.cta.undefined_bits & step.touches:
            return self.operations[pc](g)
        name = step.form.executor
        guard = step.instruction.guard
        mask = g.mask
        active = g.active()
        if guard is not None:
            n = self.program.registers[guard.register]
            self._must_be_defined(g, step, n, active)
            p = g.bank.u[n]
            active = active & (~p if guard.negated else p)
        for n in step.critical:
            if guard is None or n != self.program.registers[guard.register]:
                self._must_be_defined(g, step, n, active)
        own = name in HANDLES_UNDEFINED or name in OWN_GUARD
        flags: Bools | None = None
        rule = self._rule(step) if any(n in g.cta.undefined for n in step.reads) else None
        found = rule(g) if rule is not None else None
        if not own and found is None:
            for n in step.reads:
                part = g.undefined(n)
                if part is not None:
                    flags = part.copy() if flags is None else flags | part
        result = self.operations[pc](g)
        if (found is not None or not own) and step.writes and not isinstance(result, Wait):
            g.mask = active if not active.all() else mask
            try:
                if found is not None:
                    for n, row in found:
                        definedness.put(g, n, row)
                else:
                    for n in step.writes:
                        g.set_undefined(n, flags)
            finally:
                g.mask = mask
        return result

    def _rule(self, step: Step) -> definedness.Rule | None:
        """What is known of an instruction's results when operands are undefined."""
        if step.pc not in self._rules:
            self._rules[step.pc] = definedness.rule(Context(self, self.program), step)
        return self._rules[step.pc]

    def _must_be_defined(self, g: Gang, step: Step, n: int, active: Bools) -> None:
        part = g.undefined(n)
        if part is not None and (part & active).any():
            lane = int(np.flatnonzero(part & active)[0])
            register = next(r for r, i in self.program.registers.items() if i == n)
            raise error(
                "SML0813",
                at=step.loc,
                register=register.name,
                opcode=step.opcode,
                thread=g.lo + lane,
                who=g.who(),
            )

    # -- when nothing goes ------------------------------------------------------------------------------

    def _unstick(self) -> bool:
        """Nothing can run: release joins (lanes make progress independently), then let timed waits give up."""
        if self._release(whole=False):
            return True
        gangs = [g for c in self.clusters for cta in c.ctas for g in cta.gangs]
        for g in gangs:
            wait = g.wait
            if wait is not None and not self.repeats(g) and wait.timeout():
                if wait.advance:
                    g.pc += 1
                g.wait = None
                return True
        return False

    def _release(self, whole: bool) -> bool:
        """Let gangs that wait at a join go on without the others; `whole`: only where whole warps were parted."""
        for cluster in self.clusters:
            for cta in cluster.ctas:
                for g in cta.gangs:
                    if isinstance(g.wait, JoinWait) and not g.wait.join.released and (g.wait.join.whole or not whole):
                        g.wait.join.released = True
                        return True
        return False

    def _stuck(self) -> None:
        gangs = [g for c in self.clusters for cta in c.ctas for g in cta.gangs]
        first = gangs[0]
        raise error("SML0901", at=first.loc, report=deadlock.describe(gangs))
