"""A kernel prepared for execution: flat instructions, numbered registers, branch targets, joins.

Knows the table and control flow; knows nothing of memory, schedules or what an instruction computes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from smalti.errors import Loc, error
from smalti.ptx.flow import immediate_dominators
from smalti.ptx.isa import TABLE
from smalti.ptx.isa.row import Form, OperandSpec
from smalti.ptx.module import (
    Address,
    BranchTargets,
    CallPrototype,
    Declare,
    Function,
    Instruction,
    Label,
    Mark,
    Module,
    Operand,
    Register,
    Variable,
    registers_of,
    type_bits,
)
from smalti.vgpu.inline import flatten


@dataclass(slots=True)
class Step:
    """One instruction of a flat program, with what the checks ask about it."""

    pc: int
    instruction: Instruction
    form: Form
    reads: frozenset[int]  # register numbers, the guard and address registers included
    writes: frozenset[int]
    critical: frozenset[int]  # registers that must be defined: guard, addresses, branch indices
    loc: Loc | None
    touches: int = 0  # the registers read or written, as a bit set

    @property
    def opcode(self) -> str:
        return self.instruction.opcode


@dataclass(slots=True)
class Program:
    module: Module
    function: Function
    steps: list[Step]
    registers: dict[Register, int]
    widths: list[int]  # bits of each numbered register (1 for predicates)
    labels: dict[Label, int]
    targets: dict[Label, tuple[Label, ...]]  # .branchtargets
    prototypes: dict[Label, CallPrototype]
    variables: list[Variable]  # declared in the function (shared, local, param)
    joins: dict[int, int | None] = field(default_factory=dict)  # branch pc -> where its paths meet again
    uninitialised: frozenset[int] = frozenset()  # registers some path reads before any write

    def successors(self, pc: int) -> list[int]:
        """Where control may go after the instruction at `pc`; len(steps) is the exit."""
        step = self.steps[pc]
        head = step.form.row.name
        out: list[int] = []
        if head == "bra":
            out.append(self.labels[step.instruction.operands[0]])  # type: ignore[index]
        elif head == "brx.idx":
            out += [self.labels[t] for t in self.targets[step.instruction.operands[1]]]  # type: ignore[index]
        elif head in _ENDS:
            out.append(len(self.steps))
        if step.instruction.guard is not None or head not in ("bra", "brx.idx", *_ENDS):
            out.append(pc + 1)
        return out


_ENDS = ("ret", "exit", "trap")


def prepare(module: Module, entry: str) -> Program:
    """Flatten kernel `entry` of `module`; calls of its device functions are replaced by their bodies.

    Errors: SML0801 (no such kernel), SML0802 (instructions that the table does not know, all of them named),
    SML0809 (recursive calls).
    """
    try:
        function = module.function(entry)
    except KeyError:
        names = [f.name for f in module.functions() if f.entry and f.body is not None]
        raise error("SML0801", entry=entry, known=", ".join(names) or "none") from None
    assert function.body is not None
    program = Program(module, function, [], {}, [], {}, {}, {}, [])
    unknown: dict[str, int] = {}

    def number(r: Register) -> int:
        if r not in program.registers:
            program.registers[r] = len(program.widths)
            program.widths.append(type_bits(r.type))
        return program.registers[r]

    for s in flatten(module, function):
        if isinstance(s, Mark):
            program.labels[s.label] = len(program.steps)
        elif isinstance(s, BranchTargets):
            program.targets[s.label] = s.targets
        elif isinstance(s, CallPrototype):
            program.prototypes[s.label] = s
        elif isinstance(s, Declare) and s.variable is not None:
            program.variables.append(s.variable)
        elif isinstance(s, Instruction):
            form = TABLE.find(s.opcode, s.operands)
            pairs = form.pairs(s.operands) if form is not None else None
            if form is None or pairs is None:
                name = s.opcode if form is None else f"{s.opcode} with {len(s.operands)} operands"
                unknown[name] = unknown.get(name, 0) + 1
                continue
            program.steps.append(_step(len(program.steps), s, form, pairs, number))
    if unknown:
        listing = ", ".join(f"{op} ({n})" for op, n in sorted(unknown.items()))
        raise error("SML0802", count=len(unknown), listing=listing)
    program.joins = _joins(program)
    program.uninitialised = _read_before_write(program)
    return program


def _step(
    pc: int, s: Instruction, form: Form, pairs: list[tuple[OperandSpec, Operand]], number: Callable[[Register], int]
) -> Step:
    reads: set[int] = set()
    writes: set[int] = set()
    critical: set[int] = set()
    if s.guard is not None:
        reads.add(number(s.guard.register))
        critical.add(number(s.guard.register))
    for spec, operand in pairs:
        numbers = {number(r) for r in registers_of(operand)}
        if spec.role in ("in", "inout", "address") or isinstance(operand, Address):
            reads |= numbers
        elif spec.role == "out":
            writes |= numbers
        if spec.role == "inout":
            writes |= numbers
        if isinstance(operand, Address):
            critical |= numbers
    return Step(pc, s, form, frozenset(reads), frozenset(writes), frozenset(critical), s.loc)


def _joins(program: Program) -> dict[int, int | None]:
    """The immediate post-dominator of every branch that can diverge (dominators of the reversed graph)."""
    n = len(program.steps)
    successors = [program.successors(pc) for pc in range(n)]
    predecessors: list[list[int]] = [[] for _ in range(n + 1)]
    for pc in range(n):
        for t in successors[pc]:
            predecessors[t].append(pc)
    dominators = immediate_dominators(n, predecessors)
    out: dict[int, int | None] = {}
    for pc in range(n):
        if len(set(successors[pc])) > 1:
            target = dominators[pc]
            out[pc] = target if 0 <= target < n else None
    return out


def _read_before_write(program: Program) -> frozenset[int]:
    """Registers that some path reads before writing them; a guarded write does not count as a write."""
    n = len(program.steps)
    predecessors: list[list[int]] = [[] for _ in range(n + 1)]
    for pc in range(n):
        for t in program.successors(pc):
            predecessors[t].append(pc)
    # Backward liveness at the entry, one bit a register.
    reads = [_bits(s.reads) for s in program.steps]
    kills = [0 if s.instruction.guard is not None else _bits(s.writes - s.reads) for s in program.steps]
    live_in = [0] * (n + 1)
    work = list(range(n - 1, -1, -1))[::-1]
    queued = set(work)
    while work:
        pc = work.pop()
        queued.discard(pc)
        out = 0
        for t in program.successors(pc):
            out |= live_in[t]
        new = reads[pc] | (out & ~kills[pc])
        if new != live_in[pc]:
            live_in[pc] = new
            for p in predecessors[pc]:
                if p not in queued:
                    queued.add(p)
                    work.append(p)
    bits = live_in[0] if n else 0
    return frozenset(i for i in range(len(program.widths)) if bits >> i & 1)


def _bits(numbers: frozenset[int]) -> int:
    out = 0
    for i in numbers:
        out |= 1 << i
    return out
