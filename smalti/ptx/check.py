"""The rules of a single instruction: operand number, kinds, types, immediate ranges, architecture and PTX version.

Builder and validator both ask here; it knows the table and nothing of the rest of the module.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator
from typing import Any

from smalti.errors import SmaltiError, error
from smalti.ptx.isa import TABLE, Form, OperandSpec
from smalti.ptx.isa.row import Need, holds
from smalti.ptx.isa.types import fits, kind, width
from smalti.ptx.module import (
    Address,
    Function,
    Immediate,
    Instruction,
    Not,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    SymbolAddress,
    Variable,
    Vector,
)
from smalti.ptx.special import SPECIAL


def operand_problems(i: Instruction, form: Form) -> Iterator[SmaltiError]:
    """What is wrong with the operands of `i`, whose meaning is `form`."""
    pairs = form.pairs(i.operands)
    if pairs is None:
        yield error("SML0202", at=i.loc, opcode=i.opcode, expected=signature(form), given=_given(i.operands))
        return
    for spec, operand in pairs:
        if isinstance(operand, Vector):
            yield from _vector_problems(i, form, spec, operand)
            for item in _kinds(operand):
                yield from _item_problems(i, form, spec, item)
        else:
            yield from _item_problems(i, form, spec, operand)


def _kinds(v: Vector) -> Iterator[Operand]:
    """The items of a vector, of registers only the first of each type: accumulators are long."""
    seen = set()
    for item in v.items:
        if isinstance(item, Register):
            if item.type in seen:
                continue
            seen.add(item.type)
        yield item


def need_problems(i: Instruction, form: Form, target: str, version: tuple[int, int]) -> Iterator[SmaltiError]:
    """What of `i` the target or the PTX version lacks."""
    for what, need in needs(i, form):
        if target not in need.arch:
            have = nearest_targets(need.arch)
            yield error("SML0205", at=i.loc, opcode=i.opcode, what=what, target=target, have=have)
        elif version < need.ptx:
            needed, given = "{}.{}".format(*need.ptx), "{}.{}".format(*version)
            yield error("SML0206", at=i.loc, opcode=i.opcode, what=what, needed=needed, version=given)


def needs(i: Instruction, form: Form) -> Iterator[tuple[str, Need]]:
    """What an instruction needs of target and version, each with what it is for."""
    yield "the instruction", form.row.need
    if form.row.operand_needs:
        given = form.bind(i.operands) or {}
        for name, need in form.row.operand_needs.items():
            if name in given:
                yield f"operand {name}", need
    for rule, need in form.row.together_needs:
        if holds(rule, form.mods):
            yield " with ".join(f".{form.mods[slot]}" for slot in rule), need
    for token in form.mods.values():
        if token in form.row.token_needs:
            yield f".{token}", form.row.token_needs[token]


def nearest_targets(archs: frozenset[str]) -> str:
    """A short list of the targets that have something: the lowest, and the ones this package is for."""
    order = sorted(archs, key=lambda a: (int("".join(c for c in a if c.isdigit())), a))
    known = [a for a in ("sm_90a", "sm_100a", "sm_103a", "sm_120a") if a in archs]
    return ", ".join(dict.fromkeys([*order[:1], *known])) or "no target"


def nearest(opcode: str) -> str:
    """The spelling of the row that looks most like `opcode`."""
    head = opcode.split(".")[0]
    heads = TABLE.heads()
    rows = [r for r in TABLE.rows if r.parts[0][0] == head]
    if not rows:
        close = difflib.get_close_matches(head[:40], heads, n=1, cutoff=0.0)
        rows = [r for r in TABLE.rows if r.parts[0][0] == close[0]]
    wanted = set(opcode.split(".")[:24])

    def likeness(spelling: str) -> float:
        return difflib.SequenceMatcher(None, spelling[:200], opcode[:200]).ratio()

    best = max(
        rows,
        key=lambda r: (
            len(wanted & {t for part, _ in r.parts for t in r.tokens(part)}) - 0.01 * len(r.parts),
            likeness(r.spelling),
        ),
    )
    return best.spelling


def signature(form: Form) -> str:
    """The operand lists of a form in words, alternatives joined by `or`."""
    return " or ".join(dict.fromkeys(", ".join(_describe(form, specs)) or "nothing" for specs in form.lists()))


def _describe(form: Form, specs: tuple[OperandSpec, ...]) -> Iterator[str]:
    for n, s in enumerate(specs):
        if s.pair:
            continue
        text = s.name
        count = form.count_of(s)
        if s.role == "address":
            text = f"[{text}]"
        elif count is None or count:
            text = f"{{{text} x{count or 'n'}}}"
        elif s.list:
            text = f"({text})"
        if n + 1 < len(specs) and specs[n + 1].pair:
            text += f"|{specs[n + 1].name}"
        yield text + ("?" if s.optional else "")


def _given(operands: tuple[Operand, ...]) -> str:
    return ", ".join(_kind(o) for o in operands) or "nothing"


def _kind(o: Operand) -> str:
    if isinstance(o, Vector):
        return f"{{{len(o.items)} items}}"
    if isinstance(o, Register):
        return f".{o.type}"
    if isinstance(o, Pair):
        return f"{_kind(o.first)}|{_kind(o.second)}"
    return type(o).__name__.lower()


def _item_problems(i: Instruction, form: Form, spec: OperandSpec, item: Operand) -> Iterator[SmaltiError]:
    legal = form.row.ranges.get(spec.name)
    if isinstance(item, Immediate) and legal is not None and item.kind == "int" and item.value not in legal:
        shown = describe_range(legal)
        yield error("SML0204", at=i.loc, opcode=i.opcode, operand=spec.name, value=item.value, legal=shown)
    expected = _expected(form, spec, item)
    if expected:
        yield error("SML0203", at=i.loc, opcode=i.opcode, operand=spec.name, given=_kind(item), expected=expected)
    if isinstance(item, Address):
        yield from _address_problems(i, form, spec, item)
    elif isinstance(item, SymbolAddress) and isinstance(item.symbol, Variable) and form.row.name in _OF_SPACE:
        space, given = form.get("space", "shared").split("::")[0], item.symbol.space
        if given != space:
            yield error("SML0215", at=i.loc, opcode=i.opcode, operand=spec.name, given=given, expected=space)


def _expected(form: Form, spec: OperandSpec, item: Operand) -> str:
    """What should stand in the place of `item`; "" if it is right."""
    type_ = form.type_of(spec)
    register = "a register" if type_ == "*" else "the sink `_`" if type_ == "sink" else f"a .{type_} register"
    written = spec.role in ("out", "inout")
    if isinstance(item, Immediate):
        if written or spec.register_only:
            return register
        if spec.role == "immediate":
            return "" if item.kind == "int" else "an integer"
        return "" if _constant_fits(item, type_) else f"a .{type_} constant or register"
    if spec.role == "immediate":
        return "an immediate"
    if isinstance(item, Register):
        return "" if spec.role == "symbol" or fits(item.type, type_, spec.wider) else register
    if isinstance(item, Sink):
        return "" if spec.sink or type_ == "sink" else register
    if isinstance(item, Not):
        return "" if spec.negatable and type_ == "pred" else f"{register}, not negated"
    if isinstance(item, Special):
        copies = form.row.name in ("mov", "cvt.int") and not written
        return "" if copies and fits(SPECIAL[item.name], type_, spec.wider) else register
    if isinstance(item, SymbolAddress | Variable | Function):
        return "" if spec.symbol or spec.role == "symbol" or spec.list else register
    if isinstance(item, Address) and isinstance(item.base, Register):
        return "" if kind(item.base.type) in ("int", "bits") else "an address in an integer register"
    return ""


def _constant_fits(item: Immediate, type_: str) -> bool:
    """Floating constants fit .f32 .f64 and bits, integers everything else but half and packed types."""
    if type_ == "*":
        return True
    if item.kind == "int":
        return type_ == "pred" or (type_[0] in "usb" and type_[1:] in ("8", "16", "32", "64"))
    return type_ in ("f32", "f64") or type_ == ("b32" if item.kind == "f32" else "b64")


# Rows that take a variable as a value and name its space in the opcode.
_OF_SPACE = ("cvta", "mapa", "getctarank")

# Where an address may point, by what the instruction says; of a tensor map and a generic address, what ptxas allows.
_REACH = {
    "tensormap": ("global", "const"),
    "": ("global", "shared", "local", "const"),
    "*": ("global", "shared", "local", "const"),
}


def _base_expected(row: str, type_: str) -> str:
    """What ptxas 13.5 wants instead of this integer register as an address, "" if it takes it."""
    if row.startswith("tcgen05.mma"):
        return "" if type_ == "b32" else "a .b32 register"
    if row.startswith(("tcgen05.ld", "tcgen05.st")):
        return "" if width(type_) == 32 else "a register of 32 bits"
    return ""


def _address_problems(i: Instruction, form: Form, spec: OperandSpec, a: Address) -> Iterator[SmaltiError]:
    space = form.type_of(spec).split("::")[0]
    given = a.base.space if isinstance(a.base, Variable) else "absolute" if a.base is None else ""
    if (
        given
        and given not in (_REACH.get(space, (space,)) if given != "absolute" else ())
        and not (given == "absolute" and space == "local")
    ):
        expected = " or ".join(_REACH.get(space, (space,)))
        yield error("SML0215", at=i.loc, opcode=i.opcode, operand=spec.name, given=given, expected=expected)
    if isinstance(a.base, Register) and (expected := _base_expected(form.row.name, a.base.type)):
        yield error("SML0203", at=i.loc, opcode=i.opcode, operand=spec.name, given=_kind(a.base), expected=expected)
    if space == "tensormap":
        wanted = 5 if form.get("mode").endswith(("gather4", "scatter4")) else int(form.mods["dim"][0])
        count = len(a.coordinates.items) if a.coordinates is not None else 0
        if count != wanted:
            yield error("SML0216", at=i.loc, opcode=i.opcode, wanted=wanted, given=count)
        for c in a.coordinates.items if a.coordinates is not None else ():
            if not (isinstance(c, Immediate) and c.kind == "int") and not (
                isinstance(c, Register) and fits(c.type, "s32")
            ):
                yield error(
                    "SML0203",
                    at=i.loc,
                    opcode=i.opcode,
                    operand="coordinate",
                    given=_kind(c),
                    expected="a .s32 register",
                )


def _vector_problems(i: Instruction, form: Form, spec: OperandSpec, v: Vector) -> Iterator[SmaltiError]:
    """Registers in braces have one width; of `mov`, they fill the other operand."""
    widths = {width(r.type) for r in v.items if isinstance(r, Register)}
    if len(widths) > 1:
        yield error(
            "SML0203", at=i.loc, opcode=i.opcode, operand=spec.name, given="mixed", expected="one width in braces"
        )
    elif form.row.name == "mov":
        type_ = form.mods["type"]
        parts = len(v.items)
        if type_[0] != "b" or parts not in (2, 4) or any(w * parts != width(type_) for w in widths):
            expected = f"2 or 4 registers that make up .{type_}" if type_[0] == "b" else f"one .{type_} register"
            yield error("SML0203", at=i.loc, opcode=i.opcode, operand=spec.name, given=_kind(v), expected=expected)


def describe_range(legal: Any) -> str:
    """`24..256 step 8`, or the values themselves."""
    if isinstance(legal, range):
        step = f" step {legal.step}" if legal.step != 1 else ""
        return f"{legal[0]}..{legal[-1]}{step}"
    return ", ".join(map(str, legal))
