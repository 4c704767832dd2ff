"""The second step that sees the whole module: copies propagated, dead code removed, equal computations shared.

It only ever touches instructions that compute registers from registers (`PURE`), and never the operands of
asynchronous ones, which are read later than they are issued. Every kernel gives equal bits with and without it.
"""

from __future__ import annotations

from dataclasses import dataclass

from smalti.ptx.flow import immediate_dominators
from smalti.ptx.isa import FAMILIES, TABLE, Form, OperandSpec
from smalti.ptx.isa.types import fits
from smalti.ptx.module import (
    Address,
    Block,
    BranchTargets,
    Function,
    Guard,
    Immediate,
    Instruction,
    Label,
    Mark,
    Module,
    Not,
    Operand,
    Pair,
    Register,
    Special,
    Statement,
    SymbolAddress,
    Vector,
    registers_of,
)

_CARRY = {"add.carry", "addc", "sub.carry", "subc", "mad.carry", "madc"}  # read or write the carry flag
_OTHER = {"mov", "cvta", "isspacep", "mapa", "getctarank"}
# Rows whose only effect is their result.
PURE = {
    row.name
    for family, rows in FAMILIES.items()
    for row in rows
    if (family in ("integer", "floating", "conversion") and row.name not in _CARRY) or row.name in _OTHER
}
_CHANGING = ("clock", "globaltimer", "pm", "warpid", "smid", "nsmid")  # may differ from one reading to the next
_JUMPS = {"bra", "brx.idx", "ret", "exit", "trap"}


def tidy(module: Module) -> None:
    """Tidy every function of `module` in place."""
    for function in module.functions():
        if function.body is not None:
            _tidy(function, function.body)


def _tidy(function: Function, body: Block) -> None:
    code = _Code(body)
    if not code.instructions:
        return
    replaced = code.shared_and_copied()
    for at in sorted({at for r in replaced for at in code.uses.get(r, ())}):
        code.substitute(at, replaced)
    dead = _dead(code)
    if dead:
        _remove(body, dead)


@dataclass(slots=True)
class _Definition:
    at: int  # the instruction's index
    block: int
    count: int = 1  # how many instructions write the register
    plain: bool = True  # unguarded and not read-modify-write


class _Code:
    """The instructions of a function in order, their basic blocks, and who writes which register where."""

    def __init__(self, body: Block) -> None:
        self.instructions: list[Instruction] = []
        self.forms: list[Form | None] = []
        self.pairs: list[list[tuple[OperandSpec, Operand]]] = []
        self.block_of: list[int] = []
        self.definitions: dict[Register, _Definition] = {}
        self.uses: dict[Register, list[int]] = {}
        self._read(body)
        self._note_registers()
        self.dominators = immediate_dominators(0, self.successors)

    # -- basic blocks --

    def _read(self, body: Block) -> None:
        starts: dict[Label, int] = {}
        tables: dict[Label, tuple[Label, ...]] = {}
        self.successors: list[list[int]] = [[]]
        ends: list[tuple[int, Instruction | None]] = []
        fresh = True  # the current block has no instruction yet
        for s in body.walk():
            if isinstance(s, BranchTargets):
                tables[s.label] = s.targets
            elif isinstance(s, Mark):
                if not fresh:
                    ends.append((len(self.successors) - 1, None))
                    self.successors.append([])
                starts[s.label] = len(self.successors) - 1
                fresh = True
            elif isinstance(s, Instruction):
                self.instructions.append(s)
                form = TABLE.find(s.opcode, s.operands)
                self.forms.append(form)
                self.pairs.append((form.pairs(s.operands) or []) if form is not None else [])
                self.block_of.append(len(self.successors) - 1)
                fresh = False
                if form is not None and form.row.name in _JUMPS:
                    ends.append((len(self.successors) - 1, s))
                    self.successors.append([])
                    fresh = True
        ends.append((len(self.successors) - 1, None))
        for block, jump in ends:
            if (jump is None or jump.guard is not None) and block + 1 < len(self.successors):
                self.successors[block].append(block + 1)
            for label in jump.operands if jump is not None else ():
                if isinstance(label, Label):
                    self.successors[block] += [starts[x] for x in tables.get(label, (label,)) if x in starts]

    def dominates(self, a: int, b: int) -> bool:
        """Whether every path to instruction `b` has executed instruction `a` before it."""
        target, block = self.block_of[a], self.block_of[b]
        if target == block:
            return a < b
        while block > 0 and self.dominators[block] >= 0:
            block = self.dominators[block]
            if block == target:
                return True
        return False

    # -- registers --

    def _note_registers(self) -> None:
        self.reads: list[list[Register]] = []
        for at, (i, form) in enumerate(zip(self.instructions, self.forms, strict=True)):
            self.reads.append(self._read_by(at))
            for r in self.reads[at]:
                self.uses.setdefault(r, []).append(at)
            if form is None or not self.pairs[at]:
                for r in self.reads[at]:  # unknown: may write everything
                    self._write(r, at, plain=False)
                continue
            for spec, operand in self.pairs[at]:
                if spec.role in ("out", "inout"):
                    plain = spec.role == "out" and i.guard is None
                    for r in registers_of(operand):
                        self._write(r, at, plain)

    def _read_by(self, at: int) -> list[Register]:
        """Registers that an instruction reads, its guard among them; of an unknown one, all."""
        i = self.instructions[at]
        found = [] if i.guard is None else [i.guard.register]
        if self.forms[at] is None or not self.pairs[at]:
            return found + [r for o in i.operands for r in registers_of(o)]
        for spec, operand in self.pairs[at]:
            if spec.role != "out":
                found += [operand] if isinstance(operand, Register) else registers_of(operand)
        return found

    def _write(self, r: Register, at: int, plain: bool) -> None:
        known = self.definitions.get(r)
        if known is None:
            self.definitions[r] = _Definition(at, self.block_of[at], plain=plain)
        else:
            known.count += 1
            known.plain = False

    def single(self, r: Register) -> _Definition | None:
        """The only definition of a register that keeps its value wherever it is read, or None.

        Written once, unguarded, and before every use on every path: then it behaves as a value.
        """
        d = self.definitions.get(r)
        if d is None or not d.plain or d.count > 1:
            return None
        if not all(self.dominates(d.at, use) for use in self.uses.get(r, ())):
            return None
        return d

    # -- copies and common computations --

    def shared_and_copied(self) -> dict[Register, Register]:
        """Registers that always equal another one: results of a plain move, or of a computation made before."""
        replaced: dict[Register, Register] = {}
        values: dict[Register, bool] = {}

        def is_value(r: Register) -> bool:
            if r not in values:
                values[r] = self.single(r) is not None
            return values[r]

        computed: dict[object, Register] = {}
        block = -1
        for at, (i, form) in enumerate(zip(self.instructions, self.forms, strict=True)):
            if self.block_of[at] != block:
                block, computed = self.block_of[at], {}
            if form is None or form.row.name not in PURE or i.guard is not None or not i.operands:
                continue
            result = i.operands[0]
            if not isinstance(result, Register) or not is_value(result):
                continue
            sources = i.operands[1:]
            if not all(is_value(r) for o in sources for r in registers_of(o)):
                continue
            if form.row.name == "mov" and isinstance(sources[0], Register) and sources[0].type == result.type:
                replaced[result] = replaced.get(sources[0], sources[0])
                continue
            if any(isinstance(o, Special) and o.name.startswith(_CHANGING) for o in sources):
                continue
            key = (i.opcode, result.type, tuple(_key(o, replaced) for o in sources))
            if key in computed:
                replaced[result] = computed[key]
            else:
                computed[key] = result
        return replaced

    def substitute(self, at: int, replaced: dict[Register, Register]) -> None:
        """Reads the replacement instead, except in asynchronous instructions and where its type does not fit."""
        i, form, pairs = self.instructions[at], self.forms[at], self.pairs[at]
        if i.guard is not None and i.guard.register in replaced:
            i.guard = Guard(replaced[i.guard.register], i.guard.negated)
        if form is not None and pairs and not form.row.asynchronous:
            i.operands = self._substituted(i, form, pairs, replaced)
            self.pairs[at] = form.pairs(i.operands) or []
        for r in self.reads[at]:
            if at in self.uses[r]:
                self.uses[r].remove(at)
        self.reads[at] = self._read_by(at)
        for r in self.reads[at]:
            self.uses.setdefault(r, []).append(at)

    def _substituted(
        self,
        i: Instruction,
        form: Form,
        pairs: list[tuple[OperandSpec, Operand]],
        replaced: dict[Register, Register],
    ) -> tuple[Operand, ...]:
        def change(o: Operand, type_: str, wider: bool) -> Operand:
            if isinstance(o, Register):
                new = replaced.get(o)
                return new if new is not None and fits(new.type, type_, wider) else o
            if isinstance(o, Not):
                new = replaced.get(o.register)
                return Not(new) if new is not None else o
            if isinstance(o, Vector):
                return Vector(tuple(change(x, type_, wider) for x in o.items))
            if isinstance(o, Address):
                base = replaced.get(o.base, o.base) if isinstance(o.base, Register) else o.base
                coordinates = o.coordinates
                if coordinates is not None:
                    coordinates = Vector(tuple(change(x, "b32", False) for x in coordinates.items))
                return Address(base, o.offset, coordinates)
            if isinstance(o, tuple):
                return tuple(change(x, "*", False) for x in o)
            return o

        changed = []
        specs = iter(pairs)
        for o in i.operands:
            spec, _ = next(specs)
            if isinstance(o, Pair):
                next(specs)
            if spec.role in ("out", "inout"):
                changed.append(o)
            else:
                changed.append(change(o, "*" if spec.role == "address" else form.type_of(spec), spec.wider))
        return tuple(changed)


def _key(o: Operand, replaced: dict[Register, Register]) -> object:
    """What makes two source operands equal."""
    if isinstance(o, Register):
        return id(replaced.get(o, o))
    if isinstance(o, Not):
        return ("not", id(replaced.get(o.register, o.register)))
    if isinstance(o, Vector):
        return ("vector", *(_key(x, replaced) for x in o.items))
    if isinstance(o, SymbolAddress):
        return ("symbol", id(o.symbol), o.offset)
    if isinstance(o, Immediate | Special):
        return o
    return id(o)


def _dead(code: _Code) -> set[int]:
    """Identities of pure instructions whose results nobody reads, also when only dead ones read them."""
    readers = {r: set(at) for r, at in code.uses.items()}
    work = list(range(len(code.instructions)))
    dead: set[int] = set()
    while work:
        at = work.pop()
        form = code.forms[at]
        if at in dead or form is None or form.row.name not in PURE or not code.pairs[at]:
            continue
        results = [r for spec, o in code.pairs[at] if spec.role == "out" for r in registers_of(o)]
        if not results or any(readers.get(r) for r in results):
            continue
        dead.add(at)
        for r in code.reads[at]:
            readers[r].discard(at)
            if not readers[r]:
                work += _writers(code, r)
    return {id(code.instructions[at]) for at in dead}


def _writers(code: _Code, r: Register) -> list[int]:
    d = code.definitions.get(r)
    if d is None:
        return []
    if d.count == 1:
        return [d.at]
    return [
        at
        for at, pairs in enumerate(code.pairs)
        if any(spec.role == "out" and r in registers_of(o) for spec, o in pairs)
    ]


def _remove(block: Block, dead: set[int]) -> None:
    kept: list[Statement] = []
    for s in block.statements:
        if isinstance(s, Block):
            _remove(s, dead)
        if not isinstance(s, Instruction) or id(s) not in dead:
            kept.append(s)
    block.statements[:] = kept
