"""Makes instances of table rows: spellings with their modifiers, and operands that fit."""

import itertools
import random
from collections.abc import Iterator

from smalti.ptx.isa import TABLE, Form, OperandSpec, Row
from smalti.ptx.isa.types import width
from smalti.ptx.module import (
    SINK,
    Address,
    Immediate,
    Instruction,
    Label,
    Operand,
    Pair,
    Register,
    Variable,
    Vector,
)

BITS = {8: "b16", 16: "b16", 32: "b32", 64: "b64", 128: "b128"}


def register_type(type_: str, exact: bool = False) -> str:
    """A register type that holds an operand of `type_`, exactly where that is possible."""
    if type_ in ("pred", "b8", "b16", "b32", "b64", "b128", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64"):
        return type_
    if width(type_) == 8 and (exact or type_ == "e2m1x2"):
        return "b8"
    return BITS[width(type_)]


def spellings(row: Row, limit: int = 200, seed: int = 0) -> list[tuple[str, dict[str, str]]]:
    """Spellings of a row with their modifiers: all of them if few, else each token at least once and random ones.

    Stores to parameters and `param::func` need a call around them: tested by hand.
    """
    choices = [(name, [*([""] if optional else []), *row.tokens(name)]) for name, optional in row.parts]
    names = [name for name, _ in choices]
    total = 1
    for _, tokens in choices:
        total *= len(tokens)
    if total <= 4 * limit:
        picks = list(itertools.product(*(tokens for _, tokens in choices)))
    else:
        rng = random.Random(f"{row.name}{seed}")
        picks = []
        for at, (_, tokens) in enumerate(choices):
            for token in tokens:
                for _ in range(12):
                    pick = [rng.choice(t) if rng.random() < 0.5 else t[0] for _, t in choices]
                    pick[at] = token
                    picks.append(tuple(pick))
        picks += [tuple(rng.choice(t) for _, t in choices) for _ in range(4 * limit)]
    found = {}
    for pick in picks:
        mods = {n: t for n, t in zip(names, pick, strict=True) if t}
        if row.allows(mods) and "param::func" not in pick and not (row.name == "st" and "param" in pick):
            found[".".join(t for t in pick if t)] = mods
    items = list(found.items())
    if len(items) > limit:
        kept = random.Random(row.name).sample(items, limit)
        covered = {x for _, mods in kept for x in mods.items()}
        for item in items:
            if not covered.issuperset(item[1].items()):
                kept.append(item)
                covered |= set(item[1].items())
        return kept
    return items


class Operands:
    """Fresh registers and fixed variables for the operands of instances."""

    def __init__(self) -> None:
        self.registers: list[Register] = []
        self.variables = {
            "": Variable("g", "global", "b8", (4096,), 1024),
            "global": Variable("g2", "global", "b8", (4096,), 1024),
            "const": Variable("c", "const", "b8", (64,), 16),
            "local": Variable("l", "local", "b8", (64,), 16),
            "shared": Variable("s", "shared", "b8", (4096,), 1024),
            "param": Variable("p", "param", "b8", (256,), 64),
        }
        self.label = Label("target")

    def register(self, type_: str) -> Register:
        made = Register(type_, f"%{type_}_{len(self.registers)}")
        self.registers.append(made)
        return made

    def address(self, spec: OperandSpec, form: Form) -> Operand:
        space = form.type_of(spec).split("::")[0]
        if space == "tensormap":
            count = int(form.mods["dim"][0])
            if "gather4" in form.get("mode") or "scatter4" in form.get("mode"):
                count = 5
            return Address(self.register("b64"), 0, Vector(tuple(self.register("b32") for _ in range(count))))
        if space in ("shared", "tensor"):
            return Address(self.register("b32"))
        if space in ("param", "const", "local"):
            return Address(self.variables[space])
        return Address(self.register("b64"), 16)

    def one(self, spec: OperandSpec, form: Form) -> Operand:
        if spec.role == "address":
            return self.address(spec, form)
        if spec.role == "label":
            return self.label
        if spec.role == "immediate":
            legal = form.row.ranges.get(spec.name)
            return Immediate(legal[0] if legal is not None else 0)
        type_ = form.type_of(spec)
        if type_ == "sink":
            return SINK
        count = form.count_of(spec)
        if type_ == "*":
            type_ = "b32"
        if form.row.name == "mov" and spec.vector:
            half = register_type(f"b{width(form.mods['type']) // 2}")
            return Vector((self.register(half), self.register(half)))
        if count:
            return Vector(tuple(self.register(register_type(type_, not spec.wider)) for _ in range(count)))
        return self.register(register_type(type_, not spec.wider))

    def fill(self, form: Form, specs: tuple[OperandSpec, ...], optional: bool) -> tuple[Operand, ...]:
        """Operands for one list; with or without the optional ones."""
        made: list[Operand] = []
        for spec in specs:
            if spec.optional and not optional:
                continue
            operand = self.one(spec, form)
            if spec.pair:
                made[-1] = Pair(made[-1], operand)
            else:
                made.append(operand)
        return tuple(made)


SKIPPED = {"call", "bra", "brx.idx"}  # need their surroundings: tested by hand


def instances(row: Row, operands: Operands, limit: int = 200) -> Iterator[Instruction]:
    """Instructions of one row: every chosen spelling, each operand list, with and without optional operands."""
    for opcode, mods in spellings(row, limit):
        form = Form(row, mods)
        for specs in form.lists():
            if row.name == "mov" and any(s.vector for s in specs) and mods["type"] not in ("b32", "b64", "b128"):
                continue
            for optional in (True, False) if any(s.optional for s in specs) else (True,):
                yield Instruction(opcode, operands.fill(form, specs, optional))


def all_instances(limit: int = 200) -> tuple[list[tuple[Row, Instruction]], Operands]:
    operands = Operands()
    return [(r, i) for r in TABLE.rows if r.name not in SKIPPED for i in instances(r, operands, limit)], operands
