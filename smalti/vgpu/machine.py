"""The virtual GPU: grid, clusters and CTAs, and the loop that lets gangs and engines go.

State is this object, never a global. Knows no instruction: `execute` turns each into an operation, `engines`
perform what is asynchronous, `schedule` chooses, `checks` watches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from smalti.errors import error
from smalti.ptx.module import Function, Module, Variable, type_bits
from smalti.vgpu.engines import AsyncOp
from smalti.vgpu.execute import HANDLES_UNDEFINED, OWN_GUARD, build
from smalti.vgpu.launch import DEVICES, LaunchConfig, VirtualDevice
from smalti.vgpu.memory import CONST_WINDOW, Memory, make_segment
from smalti.vgpu.program import Program, Step, prepare
from smalti.vgpu.schedule import Schedule
from smalti.vgpu.warp import WARP, Gang, Join, RegisterFile, Wait, Warp

Bools = npt.NDArray[np.bool_]


class Done(Wait):
    """All lanes of a gang have left the kernel."""


class JoinWait(Wait):
    """Waiting for the other paths of a divergent branch."""

    def __init__(self, join: Join) -> None:
        self.join = join

    def ready(self) -> bool:
        return self.join.released

    def describe(self) -> str:
        return "waiting for the other path of a divergent branch"


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


DONE = Done()
CODE_BASE = 0x7A00_0000_0000  # addresses of functions (private values)
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
        if not row.any():
            del table[number]
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


class Machine:
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
        self._unborn = self._origins()
        self._total = 0
        self._finished = 0

    # -- symbols ----------------------------------------------------------------------------------------

    def _layout(self) -> None:
        """Give every variable its place: static shared from the base, then dynamic; local frames; constants."""
        self._places: dict[Variable, int] = {}
        shared, local, constant = self.device.shared_base, 0, 0
        params = 0
        constants: list[tuple[int, Variable]] = []
        dynamic: list[Variable] = []
        module_variables = [v for v in self.module.items if isinstance(v, Variable)]
        for v in [*module_variables, *self.program.variables]:
            align = v.align or max(1, min(16, v.size or 1) if v.count else v.size)
            if v.space == "shared":
                if v.linkage == "extern" or v.size == 0:
                    dynamic.append(v)
                else:
                    shared = -(-shared // align) * align
                    self._places[v] = shared
                    shared += v.size
            elif v.space in ("local", "param"):  # `.param` in a body: the arguments of a call
                local = -(-local // align) * align
                self._places[v] = local
                local += v.size
            elif v.space == "const":
                constant = -(-constant // align) * align
                self._places[v] = constant
                constants.append((constant, v))
                constant += v.size
            elif v.space == "global":
                segment = self.memory.allocate(v.name, v.size, align=max(align, 16))
                self._places[v] = segment.address
        dynamic_align = max([16, *[v.align for v in dynamic]])
        self.dynamic_base = -(-shared // dynamic_align) * dynamic_align
        for v in dynamic:
            self._places[v] = self.dynamic_base
        self.shared_static_end = shared
        self.shared_end = self.dynamic_base + self.config.shared_bytes
        if self.shared_end - self.device.shared_base > self.device.shared_per_cta:
            raise error(
                "SML0810",
                requested=self.shared_end - self.device.shared_base,
                limit=self.device.shared_per_cta,
            )
        self.local_frame = -(-local // 16) * 16
        self.params = make_segment("param", "kernel parameters", len(self.config.params), writable=False,
                                   data=np.frombuffer(self.config.params, np.uint8))  # fmt: skip
        self.constants = make_segment("const", "constants", constant, writable=False)
        for p in self.program.function.params:
            align = p.align or type_bits(p.type) // 8  # of the element: an array of bytes may lie anywhere
            params = -(-params // align) * align
            self._places[p] = params
            params += p.size
        if params != len(self.config.params):
            raise error("SML0811", entry=self.config.entry, wanted=params, given=len(self.config.params))
        for v in module_variables:
            self._initialise(v)

    def _initialise(self, v: Variable) -> None:
        if v.space not in ("global", "const") or not v.initial:
            return
        segment = self.constants if v.space == "const" else self.memory.find(self._places[v])
        assert segment is not None
        at = self._places[v] - (0 if v.space == "const" else segment.address)
        size = v.size // max(1, int(np.prod(v.count or (1,)))) // v.vector
        for i, item in enumerate(v.initial):
            if not isinstance(item, int):
                symbol = item.variable
                if isinstance(symbol, Function):
                    item = self.function_address(symbol)
                else:
                    item = self._places[symbol] + item.offset + (CONST_WINDOW if symbol.space == "const" else 0)
            raw = np.frombuffer((item & (1 << 8 * size) - 1).to_bytes(size, "little"), np.uint8)
            segment.data[at + i * size : at + (i + 1) * size] = raw

    def place_of(self, variable: Variable) -> int:
        """The address of a variable in its own space (shared: without the CTA's rank; local: in the frame)."""
        return self._places[variable]

    def function_address(self, function: Function) -> int:
        """A number that stands for a function; calls through it are resolved when the program is prepared."""
        names = [f.name for f in self.module.functions()]
        return CODE_BASE + 16 * names.index(function.name)

    def describe_shared(self, offset: int) -> str:
        """The tile, or the variable, or the plain offset at a byte of shared memory."""
        for t in self.module.tiles:
            if t.place == "shared" and t.offset <= offset - self.dynamic_base < t.offset + t.size:
                return f"{t.name} (byte {offset - self.dynamic_base - t.offset})"
        for v, place in self._places.items():
            if v.space == "shared" and v.size and place <= offset < place + v.size:
                return f"{v.name}+{offset - place}"
        return f"shared memory at {offset:#x}"

    # -- special registers ------------------------------------------------------------------------------

    def special(self, cta: CTA, name: str) -> Any:
        """A special register that never changes: a row over the threads of the CTA or a scalar; None if it may change.

        Errors: SML0809 for one that is not modelled.
        """
        head, _, axis = name.partition(".")
        k = "xyz".find(axis) if axis else -1
        config, t = self.config, cta.thread_numbers
        bx, by, _bz = config.block
        cx, cy, _cz = config.cluster
        if head == "tid":
            return np.uint32([t % bx, t // bx % by, t // (bx * by)][k])
        table: dict[str, Any] = {
            "ntid": config.block, "ctaid": cta.index, "nctaid": config.grid, "cluster_nctaid": config.cluster,
            "cluster_ctaid": (cta.rank % cx, cta.rank // cx % cy, cta.rank // (cx * cy)),
            "clusterid": tuple(i // c for i, c in zip(cta.index, config.cluster, strict=True)),
            "nclusterid": tuple(g // c for g, c in zip(config.grid, config.cluster, strict=True)),
        }  # fmt: skip
        if head in table and k >= 0:
            return np.uint32(table[head][k])
        lane = np.uint32(t % WARP)
        one = np.uint64(1)
        plain: dict[str, Any] = {
            "laneid": lane, "nwarpid": cta.threads_padded // WARP, "cluster_ctarank": cta.rank,
            "warpid": np.uint32(t // WARP), "cluster_nctarank": cta.cluster.size,
            "is_explicit_cluster": cta.cluster.size > 1,
            "smid": cta.index[0] % self.device.sm_count, "nsmid": self.device.sm_count, "gridid": 0,
            "dynamic_smem_size": config.shared_bytes, "total_smem_size": self.shared_end - self.device.shared_base,
            "aggr_smem_size": self.shared_end - self.device.shared_base, "reserved_smem_offset_begin": 0,
            "lanemask_eq": (one << lane.astype(np.uint64)).astype(np.uint32),
            "lanemask_lt": ((one << lane.astype(np.uint64)) - one).astype(np.uint32),
            "lanemask_le": ((one << (lane.astype(np.uint64) + one)) - one).astype(np.uint32),
        }  # fmt: skip
        plain["lanemask_gt"] = ~plain["lanemask_le"]
        plain["lanemask_ge"] = ~plain["lanemask_lt"]
        if name in plain:
            return np.asarray(plain[name])
        if name in ("clock", "clock_hi", "clock64", "globaltimer", "globaltimer_lo", "globaltimer_hi"):
            return None
        raise error("SML0809", at=None, what=f"special register %{name}")

    def volatile_special(self, cta: CTA, name: str, g: Gang) -> int:
        """A clock: counts executed instructions (nanoseconds and cycles are the same here)."""
        now = self.steps
        if name in ("clock64", "globaltimer"):
            return now
        return now >> 32 if name.endswith("_hi") else now & 0xFFFFFFFF

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
            ops = [op for op in self.pending if op.ready()]
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
                ops = [op for n, op in w.hazards.items() if n in touched and op.interlocked]
                if ops:
                    return InterlockWait(ops)
                if self.checks is not None:
                    self.checks.registers(g, step)
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
        if not own:
            for n in step.reads:
                part = g.undefined(n)
                if part is not None:
                    flags = part.copy() if flags is None else flags | part
        result = self.operations[pc](g)
        if not own and step.writes and not isinstance(result, Wait):
            g.mask = active if not active.all() else mask
            try:
                for n in step.writes:
                    g.set_undefined(n, flags)
            finally:
                g.mask = mask
        return result

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

    # -- divergence -------------------------------------------------------------------------------------

    def diverge(self, g: Gang, taken: Bools, target: int, fall: int) -> int | Wait:
        """Split a gang at a branch: `taken` lanes (of lo … hi−1, active ones) go to `target`, the rest to `fall`."""
        pc = self.program.joins.get(g.pc)
        joins = g.joins
        if pc is not None and not (joins and joins[-1].pc == pc):
            parted = taken.reshape(-1, WARP)
            whole = not (parted.any(axis=1) & (g.active() & ~taken).reshape(-1, WARP).any(axis=1)).any()
            joins = (*joins, Join(pc, g.count, joins, whole))
        rest = g.active() & ~taken
        other = Gang(g.cta, g.lo, g.hi, taken, target, joins)
        g.cta.gangs.append(other)
        g.joins = joins
        g.place(g.lo, g.hi, rest)
        return fall

    def _joining(self, op: Callable[[Gang], Any]) -> Callable[[Gang], Any]:
        """At a place where paths meet: wait for the others first."""

        def run(g: Gang) -> Any:
            while g.joins and g.joins[-1].pc == g.pc:
                join = g.joins[-1]
                if join.released:
                    g.joins = join.outer
                    continue
                join.arrived.append(g)
                join.count += g.count
                if join.count < join.expected:
                    return JoinWait(join)
                self._merge(g, join)
            return op(g)

        return run

    def _merge(self, g: Gang, join: Join) -> None:
        """All lanes are there: `g` becomes all of them."""
        others = [o for o in join.arrived if o is not g]
        lo, hi = min(o.lo for o in join.arrived), max(o.hi for o in join.arrived)
        mask = np.zeros(hi - lo, np.bool_)
        for o in join.arrived:
            mask[o.lo - lo : o.hi - lo] |= o.active()
        for o in others:
            g.cta.gangs.remove(o)
        g.joins = join.outer
        g.place(lo, hi, mask)
        if self.schedule.split() and g.count > WARP and not g.joins:
            self._split_warps(g)

    def _split_warps(self, g: Gang) -> None:
        """Let the warps of a gang go on their own (they need not meet again)."""
        active = g.active()
        lo, hi = g.lo, g.hi
        starts = [w for w in range(lo, hi, WARP) if active[w - lo : w - lo + WARP].any()]
        for w in starts[1:]:
            mask = np.zeros(hi - lo, np.bool_)
            mask[w - lo : w - lo + WARP] = active[w - lo : w - lo + WARP]
            g.cta.gangs.append(Gang(g.cta, lo, hi, mask, g.pc, g.joins))
        mask = np.zeros(hi - lo, np.bool_)
        mask[starts[0] - lo : starts[0] - lo + WARP] = active[starts[0] - lo : starts[0] - lo + WARP]
        g.place(lo, hi, mask)

    def retire(self, g: Gang, leaving: Bools) -> Wait | None:
        """Lanes (of lo … hi−1) leave the kernel. Returns DONE when none of the gang is left."""
        cta = g.cta
        leaving = leaving & g.active()
        cta.exited[g.lo : g.hi] |= leaving
        self.memory.version += 1
        count = int(np.count_nonzero(leaving))
        rest = g.active() & ~leaving
        for n, flags in list(cta.undefined.items()):  # nobody will read them
            flags[g.lo : g.hi] &= ~leaving
            if not flags.any():
                del cta.undefined[n]
                cta.undefined_bits &= ~(1 << n)
        joins = g.joins
        left = bool(rest.any())
        if left:
            g.place(g.lo, g.hi, rest)
        else:
            cta.gangs.remove(g)
            g.wait = DONE
        self._leave(joins, count)
        for o in cta.gangs:  # they may have waited for these lanes
            if isinstance(o.wait, ConvergeWait):
                o.wait = None
            if not cta.undefined:
                o.refresh()
        if self.checks is not None and cta.exited.all():
            self.checks.leaving(cta)
        return None if left else DONE

    def _leave(self, joins: tuple[Join, ...], count: int) -> None:
        """So many lanes will not come to these joins."""
        for join in joins:
            join.expected -= count
            if join.arrived and join.count == join.expected and not join.released:
                first = join.arrived[0]
                self._merge(first, join)
                first.wait = None

    def converge(self, g: Gang, members: Any, active: Callable[[Gang], Bools] = Gang.active) -> bool:
        """Whether, in every warp of the gang, all living lanes that the member masks name are here.

        `members`: a 32-bit mask, a row of them, or a function of the gang that gives them; `active` gives the lanes
        that execute, those whose guard holds. Lanes that wait at the same instruction are merged into the gang first.
        If the answer is no, the caller returns a ConvergeWait, and is executed again later.
        """
        if g.mask is None and active is Gang.active:
            return True
        while True:
            missing = _missing(g, members(g) if callable(members) else members, active(g))
            if missing is None:
                return True
            other = next((o for o in g.cta.gangs if o is not g and _has(o, g, missing)), None)
            if other is None:
                return False
            self.absorb(g, other)

    def absorb(self, g: Gang, other: Gang) -> None:
        """The lanes of another gang of the CTA, at the same instruction, become part of this one."""
        lo, hi = min(other.lo, g.lo), max(other.hi, g.hi)
        mask = np.zeros(hi - lo, np.bool_)
        for x in (g, other):
            mask[x.lo - lo : x.hi - lo] |= x.active()
        common = _common(g.joins, other.joins)
        leaving = [(x.joins[len(common) :], x.count) for x in (g, other)]
        g.cta.gangs.remove(other)
        g.joins = common
        g.place(lo, hi, mask)
        for joins, count in leaving:
            self._leave(joins, count)

    def warp_barrier(self, g: Gang, members: Callable[[Gang], Any], active: Callable[[Gang], Bools]) -> bool:
        """As `converge`, for bar.warp.sync, whose lanes may wait at different instructions: those go on from there."""
        if self.converge(g, members, active):
            return True
        waiting = [o for o in g.cta.gangs if o is not g and isinstance(o.wait, ConvergeWait) and o.wait.members]
        here = np.zeros(g.cta.threads_padded, np.bool_)
        for o, lanes in ((g, active(g)), *((o, o.active()) for o in waiting)):
            here[o.lo : o.hi] |= lanes
        needed = [o for o in waiting if _overlap(o, g)]
        for o in (g, *needed):
            wanted = _missing(o, (members if o is g else o.wait.members)(o), active(o) if o is g else o.active())  # type: ignore[union-attr]
            if wanted is not None and (wanted & ~here[o.lo : o.hi]).any():
                return False
        for o in needed:
            o.wait = None
            o.pc += 1
        return True

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
        from smalti.vgpu.checks.deadlock import describe

        gangs = [g for c in self.clusters for cta in c.ctas for g in cta.gangs]
        first = gangs[0]
        raise error("SML0901", at=first.loc, report=describe(self, gangs))


class ConvergeWait(Wait):
    """Waiting for other lanes of the same warp to reach a .sync instruction.

    `members`, of bar.warp.sync only: its member masks, for there the instruction need not be the same one.
    """

    def __init__(self, members: Callable[[Gang], Any] | None = None) -> None:
        self.members = members

    def ready(self) -> bool:
        return False

    def describe(self) -> str:
        return "waiting for other lanes of its warp at a .sync instruction"


def _missing(g: Gang, members: Any, have: Bools) -> Bools | None:
    """The living lanes that the masks of the executing lanes `have` name but that are not among them."""
    masks = np.where(have, np.asarray(members, np.uint32), np.uint32(0)).reshape(-1, WARP)
    named = np.bitwise_or.reduce(masks, axis=1)
    need: Bools = (named[:, None] >> np.arange(WARP, dtype=np.uint32) & 1).astype(np.bool_).ravel()
    missing: Bools = need & ~g.cta.exited[g.lo : g.hi] & ~have
    return missing if missing.any() else None


def _has(o: Gang, g: Gang, missing: Bools) -> bool:
    """Whether gang `o` waits where `g` stands, with some of the missing lanes (of g's lo … hi−1)."""
    if o.pc != g.pc or not isinstance(o.wait, ConvergeWait):
        return False
    lo, hi = max(o.lo, g.lo), min(o.hi, g.hi)
    return lo < hi and bool((o.active()[lo - o.lo : hi - o.lo] & missing[lo - g.lo : hi - g.lo]).any())


def _overlap(a: Gang, b: Gang) -> bool:
    """Whether two gangs have lanes of the same warp."""
    return any(w in b.warps() for w in a.warps())


def _common(a: tuple[Join, ...], b: tuple[Join, ...]) -> tuple[Join, ...]:
    n = 0
    while n < min(len(a), len(b)) and a[n] is b[n]:
        n += 1
    return a[:n]
