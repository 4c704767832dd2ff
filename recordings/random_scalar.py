"""Random instructions of single threads: arithmetic, comparisons, conversions, carries, divergent branches and loops.

Opcodes come from a committed vocabulary, so that new rows of the instruction table leave recorded programs as they are.
"""

from __future__ import annotations

import itertools
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
from programs import operand as codes
from random_kernel import Dice, Kernel

from smalti.ptx.check import need_problems
from smalti.ptx.isa import TABLE, Form, OperandSpec, Row, conversion, floating, integer
from smalti.ptx.isa.types import width
from smalti.ptx.module import Instruction

VOCABULARY = Path(__file__).with_name("random_vocabulary.txt")
TARGET, VERSION = "sm_90a", (8, 8)
MOST = 48  # spellings of a row
# Not bit for bit (see approximate.py), or asked for by pieces of their own.
_INEXACT = ("approx", "full")
_SPECIAL = ("add.carry", "addc", "sub.carry", "subc", "mad.carry", "madc")
_DIVISIONS = ("div.int", "rem")
# mul and add without a rounding may be contracted into fma by an assembler (PTX 9.7.3.3)
_CONTRACTED = ("add.", "sub.", "mul.")
# What ptxas 13.0 to 13.5 get wrong is not asked. Each was found here, by a difference, and seen in the machine code: they
# lose the guard of testp and of the conversion in a guarded set, and a guarded neg or abs keeps or drops a NaN's sign;
_UNGUARDED = ("set.", "testp", "neg.", "abs.")
# they take the upper half of the register of set.f16.f16 and set.bf16.bf16 for zero, though it holds the result twice;
_SAME_HALVES = ("f16", "bf16")
# ptxas 13.0 takes slct by a constant of 2^31 - 1 for negative;
_CONSTANT_TEST = "slct"
# they merge conversions (cvt.rp.f16.bf16, then cvt.rzi.u32.f16 rounds up), and drop |x| of halves of what, as f32, is not
# negative, or slct's test of |x| though x may be NaN: so every result is made opaque to them (`Kernel.opaque`).


def spellings(row: Row) -> list[str]:
    """Spellings of a row that an H200 has, at most MOST of them, evenly taken."""
    choices = [[*([""] if optional else []), *row.tokens(name)] for name, optional in row.parts]
    names = [name for name, _ in row.parts]
    found = []
    for pick in itertools.product(*choices):
        mods = {n: t for n, t in zip(names, pick, strict=True) if t}
        opcode = ".".join(t for t in pick if t)
        if not row.allows(mods) or any(need_problems(Instruction(opcode, ()), Form(row, mods), TARGET, VERSION)):
            continue
        if any(t in pick for t in _INEXACT):
            continue
        if row.name.startswith("set.") and mods.get("dtype") == mods["type"] and mods["type"] in _SAME_HALVES:
            continue
        if row.name.startswith(_CONTRACTED) and "rnd" in row.slots and "rnd" not in mods:
            continue
        found.append(opcode)
    step = -(-len(found) // MOST)
    return found[::step] if step else []


def vocabulary_lines() -> list[str]:
    """What the committed vocabulary is made of: "family opcode"."""
    rows = [r for m in (integer, floating, conversion) for r in m.ROWS]
    lines = [f"scalar {o}" for r in rows if r.name not in (*_SPECIAL, *_DIVISIONS) for o in spellings(r)]
    lines += [f"division {o}" for r in rows if r.name in _DIVISIONS for o in spellings(r)]
    others = {
        "mma": lambda r: r.executor in ("mma", "mma.sp") or r.name == "mma.m8n8k4",
        "wgmma": lambda r: r.executor in ("wgmma", "wgmma.sp"),
        "atom": lambda r: r.name.startswith("atom."),
        "red": lambda r: r.name.startswith("red.") and "async" not in r.name,
        "red.async": lambda r: r.name.startswith("red.async."),
        "bulk.reduce": lambda r: r.name.startswith("cp.reduce.async.bulk.store"),
        "bulk.reduce.shared": lambda r: r.name == "cp.reduce.async.bulk.shared",
    }
    for family, belongs in others.items():
        lines += [f"{family} {o}" for r in TABLE.rows if belongs(r) for o in spellings(r) if "cache_hint" not in o]
    return list(dict.fromkeys(lines))


@cache
def vocabulary(family: str) -> list[str]:
    lines = (line.split(" ") for line in VOCABULARY.read_text().splitlines())
    return [opcode for known, opcode in lines if known == family]


@cache
def form_of(opcode: str) -> Form:
    """The form of a spelling that the target has."""
    for form in TABLE.forms(opcode):
        if not any(need_problems(Instruction(opcode, ()), form, TARGET, VERSION)):
            return form
    raise AssertionError(f"{opcode} is not in the table any more")


# -- operands --------------------------------------------------------------------------------------------


def start(k: Kernel) -> None:
    """The values that stay operands to the end: raw bits, small numbers, floating-point numbers of every family."""
    d = k.dice
    raw = k.random_words(4)
    raw[1] &= 0xFF
    raw[2] = (raw[2] & 0x3F) - 32
    for register in k.source(raw):
        k.fixed["b32"].append(register)
    for fmt, family in itertools.product(("f32", "f16", "bf16"), ("window", "special")):
        words = codes(f"{k.name}{fmt}{family}", k.total * 32 // (32 if fmt == "f32" else 16), fmt, family)
        k.fixed["b32"] += k.source(words.view(np.uint32).reshape(1, -1))
    wide = d.bits(3 * k.total, 64).reshape(3, k.total)
    wide[1] &= np.uint64(0xFFF)
    wide[2] = wide[2] & np.uint64(0x800FFFFFFFFFFFFF) | (np.uint64(1019) + wide[2] >> np.uint64(60)) << np.uint64(52)
    for row in wide:
        low, high = k.source(
            np.ascontiguousarray(np.stack([row & np.uint64(0xFFFFFFFF), row >> np.uint64(32)])).astype(np.uint32)
        )
        register = k.new("b64")
        k.emit(f"mov.b64 {register}, {{{low}, {high}}};")
        k.fixed["b64"].append(register)
    for word in (k.fixed["b32"][0], *k.fixed["b32"][6:8]):
        halves = k.news("b16", 2)
        k.emit(f"mov.b32 {{{halves[0]}, {halves[1]}}}, {word};")
        k.fixed["b16"] += halves
    for test in ("lt.s32", "gt.s32"):
        p = k.new("pred")
        k.emit(f"setp.{test} {p}, {k.fixed['b32'][2]}, {d.between(-8, 8)};")
        k.fixed["pred"].append(p)


def _register_type(d: Dice, form: Form, spec: OperandSpec, type_: str) -> str:
    if type_ == "pred":
        return "pred"
    bits = max(width(type_), 16)
    plain = "bf16" not in form.mods.values()  # ptxas takes no larger register beside bf16
    if spec.wider and type_[0] in "us" and plain and d.chance(30):
        bits = d.pick([b for b in (16, 32, 64) if b >= bits])
    return f"b{bits}"


def _immediate(d: Dice, type_: str) -> str:
    bits = width(type_)
    edge = d.pick([0, 1, 2, 7, 31, 32, 255, (1 << bits - 1) - 1, d.below(1 << 15)])
    return str(-edge if type_[0] == "s" and d.chance(40) else edge)


def _operand(k: Kernel, form: Form, spec: OperandSpec) -> str:
    d, type_ = k.dice, form.type_of(spec)
    legal = form.row.ranges.get(spec.name)
    if spec.role == "immediate":
        return str(d.pick(list(legal)) if legal is not None else d.below(256))
    tested = form.row.name == _CONSTANT_TEST and spec.name == "c"
    if (
        type_ in ("u16", "s16", "u32", "s32", "u64", "s64", "b32")
        and not (spec.register_only or tested)
        and d.chance(12)
    ):
        if legal is not None:
            return str(d.pick(list(legal)))
        return _immediate(d, type_)
    if type_ == "*":
        type_ = "b32"
    value = k.operand(_register_type(d, form, spec, type_))
    return f"!{value}" if spec.negatable and type_ == "pred" and d.chance(30) else value


# Operands whose legal values are few: lanes; positions and lengths of fields.
_LIMITED = {"fns": ("base",), "bfe": ("b", "c"), "bfi": ("c", "d")}


def instruction(k: Kernel, opcode: str, guarded: bool = True) -> list[tuple[str, str]]:
    """Emit one with random operands; its results as (type, register)."""
    d, form = k.dice, form_of(opcode)
    specs = d.pick(form.lists())
    outs: list[tuple[str, str]] = []
    texts: list[str] = []
    for at, spec in enumerate(specs):
        if spec.role in ("out", "inout"):
            if spec.pair:
                if spec.optional and d.chance(50):
                    continue
                texts[-1] += "|" + (register := k.new("pred"))
                outs.append(("pred", register))
                continue
            type_ = _register_type(d, form, spec, form.type_of(spec))
            outs.append((type_, register := k.new(type_)))
            texts.append(register)
        elif spec.optional and d.chance(50):
            continue
        elif form.row.name in _DIVISIONS and at == 2:
            type_ = form.type_of(spec)
            bits = f"b{width(type_)}"
            divisor = k.new(bits)
            k.emit(f"or.{bits} {divisor}, {k.operand(bits)}, 1;")
            texts.append(divisor)
        elif spec.name in _LIMITED.get(form.row.name, ()):
            most = 31 if form.row.name == "fns" else 255
            k.emit(f"and.b32 {(limited := k.new('b32'))}, {k.operand('b32')}, {most};")
            texts.append(limited)
        else:
            texts.append(_operand(k, form, spec))
    if form.row.name.startswith(("min.", "max.")):  # of a value and itself is a move to an assembler, NaN or not
        while texts[1] == texts[2]:
            texts[2] = _operand(k, form, specs[2])
    guard = ""
    if guarded and d.chance(12) and not opcode.startswith(_UNGUARDED):
        for type_, register in outs:
            old = k.operand(type_)
            k.emit(f"mov.{type_} {register}, {old};")
        guard = f"@{d.pick(['', '!'])}{k.operand('pred')} "
    k.emit(f"{guard}{opcode} {', '.join(texts)};")
    return [_one_nan(k, *out) if opcode.endswith("f64") else out for out in outs]


def _one_nan(k: Kernel, type_: str, register: str) -> tuple[str, str]:
    """Which of two f64 NaNs comes out depends on the order that an assembler gives operands: they become one number."""
    if type_ != "b64":
        return type_, register
    number, out = k.new("pred"), k.new("b64")
    k.emit(
        f"setp.num.f64 {number}, {register}, {register};", f"selp.b64 {out}, {register}, 0x4045000000000000, {number};"
    )
    return type_, out


# -- pieces ----------------------------------------------------------------------------------------------


def _some(k: Kernel) -> list[tuple[str, str]]:
    opcode = k.dice.pick(vocabulary("division" if k.dice.chance(4) else "scalar"))
    outs = instruction(k, opcode)
    for type_, register in outs:
        k.result(type_, k.opaque(type_, register), opcode)
    return outs


def scalars(k: Kernel) -> None:
    """A dozen instructions that feed each other."""
    for _ in range(12):
        _some(k)


def carries(k: Kernel) -> None:
    """Additions, subtractions and multiplications of three words with carries between them."""
    d = k.dice
    type_ = d.pick(["u32", "s32", "u64", "s64"])
    bits = f"b{type_[1:]}"
    first, middle, last = d.pick([
        ("add.cc", "addc.cc", "addc"), ("sub.cc", "subc.cc", "subc"), ("mad.lo.cc", "madc.hi.cc", "madc.lo"),
        ("mad.hi.cc", "madc.lo.cc", "madc.hi"),
    ])  # fmt: skip
    made = []
    operands = [[k.operand(bits) for _ in range(3 if "mad" in first else 2)] for _ in range(3)]
    for opcode, given in zip((first, middle, last), operands, strict=True):
        made.append(k.new(bits))
        k.emit(f"{opcode}.{type_} {made[-1]}, {', '.join(given)};")
    for register in made:
        k.result(bits, register, f"{first}.{type_} {middle} {last}")


def _arm(k: Kernel, phi: list[str], count: int) -> None:
    """Instructions of some lanes only: their results are no operands afterwards, except through `phi`."""
    pool = {t: list(v) for t, v in k.pool.items()}
    for _ in range(count):
        _some(k)
    for register in phi:
        k.emit(f"mov.b32 {register}, {k.operand('b32')};")
    k.pool = pool


def branches(k: Kernel) -> None:
    """if and else taken by some lanes of each warp, or one of several targets by index."""
    d, phi, after = k.dice, k.news("b32", 2), k.label()
    if d.chance(60):
        other = k.label()
        k.emit(f"@{k.operand('pred')} bra {other};")
        _arm(k, phi, 4)
        k.emit(f"bra {after};", f"{other}:")
        _arm(k, phi, 3)
    else:
        arms, table, index = [k.label() for _ in range(3)], k.label(), k.new("b32")
        k.emit(f"rem.u32 {index}, {k.operand('b32')}, 3;", f"{table}: .branchtargets {', '.join(arms)};")
        k.emit(f"brx.idx {index}, {table};")
        for arm in arms:
            k.emit(f"{arm}:")
            _arm(k, phi, 2)
            k.emit(f"bra {after};")
    k.emit(f"{after}:")
    k.rejoin()
    for register in phi:
        k.result("b32", register, "after a branch")


_STEPS = (
    "mad.lo.u32 {x}, {x}, {a}, {b};", "prmt.b32 {x}, {x}, {a}, {b};", "shf.l.wrap.b32 {x}, {x}, {a}, {b};",
    "fma.rn.f32 {x}, {x}, {a}, {b};", "fma.rz.ftz.f32 {x}, {x}, {a}, {b};", "fma.rn.f16x2 {x}, {x}, {a}, {b};",
    "fma.rn.relu.bf16x2 {x}, {x}, {a}, {b};", "lop3.b32 {x}, {x}, {a}, {b}, 0x96;", "min.NaN.f32 {x}, {x}, {a};",
    "dp4a.s32.u32 {x}, {x}, {a}, {b};", "sad.s32 {x}, {x}, {a}, {b};", "max.s16x2 {x}, {x}, {a};",
)  # fmt: skip


def loops(k: Kernel) -> None:
    """A loop that each lane leaves after a number of rounds of its own."""
    d = k.dice
    x, i, most, again, p = k.new("b32"), k.new("b32"), k.new("b32"), k.label(), k.new("pred")
    values: dict[str, Any] = {"x": x, "a": k.operand("b32"), "b": k.operand("b32")}
    k.emit(f"mov.b32 {x}, {k.operand('b32')};", f"mov.b32 {i}, 0;", f"and.b32 {most}, {k.operand('b32')}, 3;")
    k.emit(f"{again}:")
    steps = [d.pick(_STEPS) for _ in range(2)]
    k.emit(*(s.format(**values) for s in steps))
    k.emit(f"add.u32 {i}, {i}, 1;", f"setp.le.u32 {p}, {i}, {most};", f"@{p} bra {again};")
    k.rejoin()
    k.result("b32", x, " ".join(s.split(" ")[0] for s in steps) + " in a loop")


PIECES = (scalars, scalars, scalars, carries, branches, loops)
