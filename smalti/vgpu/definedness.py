"""Which bits of a register are undefined: what instructions that move bits, or work on packed elements, make of them.

Compilers fill words that they use in part with anything: a register counts as undefined only as far as its undefined
bits go. `CTA.undefined` says which threads hold some, `CTA.unknown` which bits, for registers where it is not all.
Everything that has no rule here makes its results wholly undefined. Knows registers, not memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from smalti.ptx.module import Immediate, Operand, Register, Vector, registers_of, type_bits
from smalti.vgpu.execute import EXECUTORS, UNSIGNED, Context

if TYPE_CHECKING:
    from smalti.vgpu.program import Step
    from smalti.vgpu.warp import Gang

Row = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
Found: TypeAlias = "list[tuple[int, Row]]"  # register -> its undefined bits, for lo … hi−1
Rule: TypeAlias = "Callable[[Gang], Found]"  # asked before the instruction executes

# Instructions whose results are bits of some operands, chosen by others: executor -> the operands that give the bits.
MOVERS = {"mov": "", "prmt": "ab", "shl": "a", "shr": "a", "shf": "ab", "bfe": "a", "bfi": "ab", "cvt.int": "a",
          "selp": "ab"}  # fmt: skip
LOGIC = ("and", "or", "xor", "not")
# Element by element: executor -> the modifier that names the packed type.
PACKED = {"add.float": "type", "sub.float": "type", "mul.float": "type", "fma.float": "type", "min.float": "type",
          "max.float": "type", "neg.float": "type", "abs.float": "type"}  # fmt: skip


def bits(g: Gang, number: int) -> Row | None:
    """The undefined bits of a register, one word a thread of lo … hi−1; None if there are none."""
    flags = g.undefined(number)
    if flags is None:
        return None
    row = g.bank.u[number]
    known = g.cta.unknown.get(number)
    if row.ndim > 1:
        flags = flags[:, None]
    found: Row = np.where(flags, _all(row.dtype) if known is None else known[g.lo : g.hi], row.dtype.type(0))
    return found


def put(g: Gang, number: int, found: Row) -> None:
    """Say which bits of a register just written are undefined, in the active lanes."""
    some: Bools = found.reshape(g.width, -1).any(axis=1)  # type: ignore[assignment]
    g.set_undefined(number, some if some.any() else None)
    ones = _all(found.dtype)
    if found.dtype == np.bool_ or not (some & (found.reshape(g.width, -1) != ones).any(axis=1)).any():
        return
    unknown = g.cta.unknown
    row = unknown.get(number)
    if row is None:
        whole = g.cta.registers.rows[0][number]
        row = unknown[number] = np.full_like(whole, ones)
    where = g.mask if found.ndim == 1 or g.mask is None else g.mask[:, None]
    np.copyto(row[g.lo : g.hi], found, where=True if where is None else where)


def _all(dtype: Any) -> Any:
    return np.bool_(True) if dtype == np.bool_ else np.iinfo(dtype).max


def rule(context: Context, step: Step) -> Rule | None:
    """What is known of an instruction's results; None if they are undefined as soon as an operand is."""
    name, form = step.form.executor, step.form
    if name in MOVERS and "sat" not in form:
        return _moved(context, step, MOVERS[name])
    if name in LOGIC and form.get("type") != "pred":
        return _logic(context, step)
    if name in PACKED and form.get(PACKED[name]).endswith("x2"):
        return _packed(context, step, type_bits(form.get(PACKED[name])) // 2)
    if name == "cvt.pack16":
        return _joined(context, step)
    return None


def _moved(context: Context, step: Step, names: str) -> Rule | None:
    """The instruction itself, executed on the undefined bits of its data; constants have none."""
    bound = context.bind(step)
    written = [context.number(r) for r in _registers(step, "out")]
    data = [bound[n] for n in names] if names else [step.instruction.operands[1]]
    numbers = [context.program.registers[r] for o in data for r in registers_of(o)]
    control = sorted(step.reads - set(numbers) - _guard(context, step))
    others = [o for o in step.instruction.operands[1:] if not any(o is d for d in data)]
    if any(context.program.registers[r] in numbers for o in others for r in registers_of(o)):
        return None  # data and control at once
    operands = tuple(_cleared(o) if any(o is d for d in data) else o for o in step.instruction.operands)
    bare = replace(step.instruction, operands=operands, guard=None)
    operation = EXECUTORS[step.form.executor](context, replace(step, instruction=bare))

    def found(g: Gang) -> Found:
        rows = g.bank.u
        touched = {*numbers, *written}
        saved = {n: rows[n].copy() for n in touched}
        unsure: Row | None = None
        for n in control:
            part = g.undefined(n)
            if part is not None:
                unsure = part if unsure is None else unsure | part
        known = {n: bits(g, n) for n in numbers}
        slow = g.slow
        try:
            g.slow = False  # executors with a rule of their own need not apply it
            for n, some in known.items():
                rows[n][...] = 0 if some is None else some
            operation(g)
            out = [(n, rows[n].copy()) for n in written]
        finally:
            g.slow = slow
            for n, values in saved.items():
                rows[n][...] = values
        if unsure is not None:
            for _, row in out:
                row[unsure] = _all(row.dtype)
        return out

    return found


def _cleared(operand: Operand) -> Operand:
    """A data operand without the constants in it."""
    if isinstance(operand, Vector):
        return Vector(tuple(_cleared(o) for o in operand.items))
    return operand if isinstance(operand, Register) else Immediate(0, "int")


def _registers(step: Step, role: str) -> list[Register]:
    pairs = step.form.pairs(step.instruction.operands)
    assert pairs is not None
    return [r for spec, o in pairs if spec.role == role for r in registers_of(o)]


def _guard(context: Context, step: Step) -> set[int]:
    guard = step.instruction.guard
    return set() if guard is None else {context.program.registers[guard.register]}


def _logic(context: Context, step: Step) -> Rule:
    """A defined zero makes `and` defined, a defined one `or`, bit by bit."""
    o, t, name = context.bind(step), step.form.get("type"), step.form.executor
    dtype = UNSIGNED[type_bits(t)]
    d = context.number(o["d"])
    names = "a" if name == "not" else "ab"
    values = [context.source(o[k], t) for k in names]
    registers = [context.number(x) if isinstance(x := o[k], Register) else None for k in names]

    def found(g: Gang) -> Found:
        zero = np.zeros(g.width, dtype)
        known = [None if n is None else bits(g, n) for n in registers]
        bad = [zero if k is None else k.astype(dtype, copy=False) for k in known]
        if name == "not":
            return [(d, bad[0].astype(g.bank.u[d].dtype))]
        a, b = bad
        if name == "xor":
            out = a | b
        else:
            x, y = (s(g) if name == "and" else ~s(g) for s in values)
            out = (a & (y | b)) | (b & (x | a))
        return [(d, np.broadcast_to(out, g.width).astype(g.bank.u[d].dtype))]

    return found


def _packed(context: Context, step: Step, width: int) -> Rule | None:
    """Two elements of `width` bits: each is undefined if one of its operands has an undefined bit there."""
    pairs = step.form.pairs(step.instruction.operands)
    assert pairs is not None
    out = [context.program.registers[r] for r in _registers(step, "out")]
    numbers = sorted(step.reads - _guard(context, step))
    if any(context.program.widths[n] != 2 * width for n in (*numbers, *out)):
        return None
    dtype = UNSIGNED[width]

    def found(g: Gang) -> Found:
        halves = np.zeros((g.width, 2), np.bool_)
        for n in numbers:
            some = bits(g, n)
            if some is not None:
                halves |= np.ascontiguousarray(some).view(dtype).reshape(g.width, 2) != 0
        words = np.where(halves, np.iinfo(dtype).max, 0).astype(dtype)
        return [(n, words.view(UNSIGNED[2 * width])[:, 0]) for n in out]

    return found


def _joined(context: Context, step: Step) -> Rule | None:
    """cvt of two f32 into halves of a word: a above, b below."""
    o = context.bind(step)
    if not {"a", "b"} <= set(o):
        return None
    d = context.number(o["d"])
    registers = [context.number(x) if isinstance(x := o[k], Register) else None for k in "ba"]

    def found(g: Gang) -> Found:
        words = np.zeros((g.width, 2), np.uint16)
        for i, n in enumerate(registers):
            flags = g.undefined(n) if n is not None else None
            if flags is not None:
                words[flags, i] = 0xFFFF
        return [(d, words.view(np.uint32)[:, 0])]

    return found
