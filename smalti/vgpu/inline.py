"""Replacing calls of device functions by their bodies, so that one flat program remains.

Parameters in `.param` space are the caller's own variables; each copy of a body has registers, labels and
variables of its own. Knows nothing of execution.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass, field

from smalti.errors import Loc, error
from smalti.ptx.module import (
    Address,
    BranchTargets,
    Declare,
    Function,
    Guard,
    Instruction,
    Label,
    Lane,
    Mark,
    Module,
    Not,
    Operand,
    Pair,
    Register,
    Statement,
    SymbolAddress,
    Variable,
    Vector,
    type_bits,
)

LARGEST = 250_000  # statements after inlining; bounds the work on strangers' input


@dataclass(slots=True)
class _Copy:
    """The names of one copy of a body: what each register, label and variable has become."""

    end: Label
    registers: dict[Register, Register] = field(default_factory=dict)
    labels: dict[Label, Label] = field(default_factory=dict)
    variables: dict[Variable, Variable] = field(default_factory=dict)

    def register(self, r: Register) -> Register:
        if r not in self.registers:
            self.registers[r] = Register(r.type, r.name)
        return self.registers[r]

    def label(self, x: Label) -> Label:
        if x not in self.labels:
            self.labels[x] = Label(x.name)
        return self.labels[x]

    def operand(self, o: Operand) -> Operand:
        if isinstance(o, Register):
            return self.register(o)
        if isinstance(o, Variable):
            return self.variables.get(o, o)
        if isinstance(o, Label):
            return self.label(o)
        if isinstance(o, tuple):
            return tuple(self.operand(x) for x in o)
        if isinstance(o, Vector):
            return Vector(tuple(self.operand(x) for x in o.items))
        if isinstance(o, Pair):
            return Pair(self.operand(o.first), self.operand(o.second))
        if isinstance(o, (Not, Lane)):
            return dataclasses.replace(o, register=self.register(o.register))
        if isinstance(o, SymbolAddress) and isinstance(o.symbol, Variable):
            return dataclasses.replace(o, symbol=self.variables.get(o.symbol, o.symbol))
        if isinstance(o, Address):
            base = self.operand(o.base) if o.base is not None else None
            coordinates = self.operand(o.coordinates) if o.coordinates is not None else None
            return Address(base, o.offset, coordinates)  # type: ignore[arg-type]  # each keeps its kind
        return o


def flatten(module: Module, function: Function) -> Iterator[Statement]:
    """The statements of a kernel in order, blocks flattened and calls of defined functions inlined.

    Errors: SML0809 for recursive calls, SML0815 for a program that grows too large.
    """
    budget = [LARGEST]
    assert function.body is not None
    yield from _expand(module, list(function.body.walk()), (function,), budget)


def _expand(
    module: Module, statements: list[Statement], stack: tuple[Function, ...], budget: list[int]
) -> Iterator[Statement]:
    for s in statements:
        budget[0] -= 1
        if budget[0] < 0:
            raise error("SML0815", entry=stack[0].name, limit=LARGEST)
        if not isinstance(s, Instruction) or s.opcode.split(".")[0] != "call":
            yield s
            continue
        named = next((o for o in s.operands if isinstance(o, Function)), None)
        if named is None:
            yield from _indirect(module, s, stack, budget)
            continue
        callee = next((f for f in module.functions() if f.name == named.name and f.body is not None), None)
        if callee is None:
            yield s  # the system's
            continue
        if callee in stack:
            raise error("SML0809", at=s.loc, what=f"recursion (function {callee.name} calls itself)")
        yield from _expand(module, list(_body(callee, s)), (*stack, callee), budget)


def _indirect(module: Module, call: Instruction, stack: tuple[Function, ...], budget: list[int]) -> Iterator[Statement]:
    """A call through a register: the address is compared with those of all functions of that shape; none is a trap."""
    end = Label()
    at = next(i for i, o in enumerate(call.operands) if isinstance(o, Register))
    if call.guard is not None:
        yield Instruction("bra", (end,), Guard(call.guard.register, not call.guard.negated), call.loc)
    for f in module.functions():
        direct = Instruction(call.opcode, (*call.operands[:at], f, *call.operands[at + 1 :]), None, call.loc)
        if f.body is None or f.entry or f in stack or not _fits(f, direct):
            continue
        other, same = Label(), Register("pred")
        yield Instruction("setp.eq.u64", (same, call.operands[at], SymbolAddress(f)), None, call.loc)
        yield Instruction("bra", (other,), Guard(same, True), call.loc)
        yield from _expand(module, list(_body(f, direct)), (*stack, f), budget)
        yield Instruction("bra", (end,), None, call.loc)
        yield Mark(other)
    yield Instruction("trap", (), None, call.loc)
    yield Mark(end)


def _parts(call: Instruction) -> tuple[tuple[Operand, ...], tuple[Operand, ...]]:
    """The results and arguments of a call that names its function."""
    lists = [o for o in call.operands if isinstance(o, tuple)]
    first = isinstance(call.operands[0], tuple)
    return (lists[0] if first else ()), (lists[-1] if len(lists) > first else ())


def _fits(f: Function, call: Instruction) -> bool:
    """Whether a function has the results and parameters of a call: so many, and of these sizes where they are known."""
    results, arguments = _parts(call)
    if (len(f.returns), len(f.params)) != (len(results), len(arguments)):
        return False
    pairs = [*zip(f.returns, results, strict=True), *zip(f.params, arguments, strict=True)]
    return all(not isinstance(given, Variable) or given.size == formal.size for formal, given in pairs)


def _body(callee: Function, call: Instruction) -> Iterator[Statement]:
    assert callee.body is not None
    results, arguments = _parts(call)
    copy = _Copy(Label())
    after: list[Statement] = []
    skip = Label()
    if call.guard is not None:
        yield Instruction("bra", (skip,), Guard(call.guard.register, not call.guard.negated), call.loc)
    for formal, actual in zip(callee.params, arguments, strict=True):
        yield from _bind(copy, formal, actual, call.loc, after=None)
    for formal, actual in zip(callee.returns, results, strict=True):
        yield from _bind(copy, formal, actual, call.loc, after)
    for s in callee.body.walk():
        if isinstance(s, Declare):
            if s.variable is not None:
                copy.variables[s.variable] = dataclasses.replace(s.variable)
                yield Declare(variable=copy.variables[s.variable])
        elif isinstance(s, Mark):
            yield Mark(copy.label(s.label))
        elif isinstance(s, BranchTargets):
            yield BranchTargets(copy.label(s.label), tuple(copy.label(t) for t in s.targets))
        elif isinstance(s, Instruction):
            guard = Guard(copy.register(s.guard.register), s.guard.negated) if s.guard else None
            if s.opcode.split(".")[0] == "ret":
                yield Instruction("bra", (copy.end,), guard, s.loc)
            else:
                yield Instruction(s.opcode, tuple(copy.operand(o) for o in s.operands), guard, s.loc)
        else:
            yield s
    yield Mark(copy.end)
    yield from after
    yield Mark(skip)


def _bind(
    copy: _Copy, formal: Variable, actual: Operand, loc: Loc | None, after: list[Statement] | None
) -> Iterator[Statement]:
    """Connect a parameter (or a result, if `after` takes what follows the body) to what the call names.

    A `.param` variable is shared; a register or constant goes through a variable of its own.
    """
    if isinstance(actual, Variable):
        copy.variables[formal] = actual
        return
    mine = copy.variables[formal] = dataclasses.replace(formal, space="param")
    yield Declare(variable=mine)
    type_ = f"b{type_bits(formal.type)}"
    if after is None:
        yield Instruction(f"st.param.{type_}", (Address(mine), actual), None, loc)
    else:
        after.append(Instruction(f"ld.param.{type_}", (actual, Address(mine)), None, loc))
