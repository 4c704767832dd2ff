"""Operations that compute each lane from its own operands: how an array function becomes an executor.

Chooses at build time between registers and constants, so that the usual case is one NumPy call that writes the
destination row. Knows no instruction.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from smalti.ptx.module import Immediate, Operand, Register, Sink, type_bits
from smalti.vgpu.execute import Context, Operation, Source, spread
from smalti.vgpu.program import Step
from smalti.vgpu.warp import Bools, Gang, Row

UNSIGNED_VIEW, SIGNED_VIEW, FLOAT_VIEW = 0, 1, 2  # positions in Bank.views


def view_of(type_: str) -> int:
    """Which of Bank.views shows registers as this type."""
    if type_ in ("f16", "f32", "f64"):
        return FLOAT_VIEW
    return SIGNED_VIEW if type_[0] == "s" and type_[1:].isdigit() else UNSIGNED_VIEW


def destination(context: Context, operand: Operand) -> int | None:
    """The number of a destination register; None for `_`."""
    return None if isinstance(operand, Sink) else context.number(operand)


def register_of(context: Context, operand: Operand, type_: str) -> int | None:
    """The number of a register of exactly this width, which can be read in place; None for anything else."""
    if not isinstance(operand, Register):
        return None
    n = context.number(operand)
    return n if context.program.widths[n] == (1 if type_ == "pred" else type_bits(type_)) else None


def direct(
    context: Context, out: Operand, out_type: str, function: Any, operands: Sequence[Operand], type_: str
) -> Operation:
    """d = function(a, b) (or of a alone) for a ufunc whose result has the destination's own type."""
    d = context.number(out)
    view, into = view_of(type_), view_of(out_type)
    numbers = [register_of(context, o, type_) for o in operands]
    if context.program.widths[d] != (1 if out_type == "pred" else type_bits(out_type)) or len(operands) > 2:
        return general(context, out, out_type, function, operands, [type_] * len(operands))
    if len(operands) == 1:
        return _one(d, into, function, context.source(operands[0], type_))
    a, b = numbers
    if a is not None and b is not None:
        return _two_registers(d, into, function, a, b, view)
    if a is not None and b is None and not isinstance(operands[1], Register):
        constant = constant_of(context, operands[1], type_)
        if constant is not None:
            return _register_constant(d, into, function, a, constant, view)
    return _two(d, into, function, context.source(operands[0], type_), context.source(operands[1], type_))


def multiply_add(context: Context, out: Operand, operands: Sequence[Operand], type_: str, wide: str = "") -> Operation:
    """d = a * b + c modulo the width of `type_`, or with a and b widened to `wide`, the type of d and c."""
    d = context.number(out)
    into, dtype = view_of(wide or type_), np.dtype(_DTYPES[wide or type_])
    x, y = (context.source(o, type_) for o in operands[:2])
    z = context.source(operands[2], wide or type_) if len(operands) > 2 else None
    constant = constant_of(context, operands[1], type_)
    if wide and constant is not None:
        factor = constant.astype(dtype)
        y = lambda g: factor  # noqa: E731

    numbers = [register_of(context, o, type_) for o in operands]
    if (
        not wide
        and numbers[0] is not None
        and numbers[2] is not None
        and (numbers[1] is not None or constant is not None)
    ):
        return _multiply_add(d, numbers[0], numbers[1], constant, numbers[2], into)

    def run(g: Gang) -> None:
        a, b = x(g), y(g)
        if wide:
            a, b = a.astype(dtype), b if b.dtype == dtype else b.astype(dtype)
        row = g.bank.views[into][d]
        if g.mask is not None:
            product = np.multiply(a, b)
            np.copyto(row, product if z is None else np.add(product, z(g)), where=g.mask)
        elif z is None:
            np.multiply(a, b, out=row)
        else:
            np.add(np.multiply(a, b), z(g), out=row)

    return run


def _multiply_add(d: int, a: int, b: int | None, constant: Any, c: int, view: int) -> Operation:
    def run(g: Gang) -> None:
        rows = g.bank.views[view]
        product = np.multiply(rows[a], constant if b is None else rows[b])
        if g.mask is None:
            np.add(product, rows[c], out=rows[d])
        else:
            np.copyto(rows[d], np.add(product, rows[c]), where=g.mask)

    return run


_DTYPES = {f"{k}{b}": f"{'u' if k == 'u' else ''}int{b}" for k in "us" for b in (16, 32, 64)}


def constant_of(context: Context, operand: Operand, type_: str) -> Any:
    """The value of an immediate as a 0-d array; None for anything else."""
    return np.asarray(context.constant(operand, type_)) if isinstance(operand, Immediate) else None


def _two_registers(d: int, into: int, function: Any, a: int, b: int, view: int) -> Operation:
    def run(g: Gang) -> None:
        views = g.bank.views
        rows = views[view]
        if g.mask is None:
            function(rows[a], rows[b], out=views[into][d])
        else:
            np.copyto(views[into][d], function(rows[a], rows[b]), where=g.mask)

    return run


def _register_constant(d: int, into: int, function: Any, a: int, b: Any, view: int) -> Operation:
    def run(g: Gang) -> None:
        views = g.bank.views
        if g.mask is None:
            function(views[view][a], b, out=views[into][d])
        else:
            np.copyto(views[into][d], function(views[view][a], b), where=g.mask)

    return run


def _two(d: int, into: int, function: Any, a: Source, b: Source) -> Operation:
    def run(g: Gang) -> None:
        if g.mask is None:
            function(a(g), b(g), out=g.bank.views[into][d])
        else:
            np.copyto(g.bank.views[into][d], function(a(g), b(g)), where=g.mask)

    return run


def _one(d: int, into: int, function: Any, a: Source) -> Operation:
    def run(g: Gang) -> None:
        if g.mask is None:
            function(a(g), out=g.bank.views[into][d])
        else:
            np.copyto(g.bank.views[into][d], function(a(g)), where=g.mask)

    return run


def general(
    context: Context, out: Operand, out_type: str, function: Callable[..., Any], operands: Sequence[Operand],
    types: Sequence[str],
) -> Operation:  # fmt: skip
    """d = function(rows or scalars of the operands), cast to the destination if that is wider or narrower."""
    d = destination(context, out)
    sources = [context.source(o, t) for o, t in zip(operands, types, strict=True)]
    if d is None:
        return nothing
    into = view_of(out_type)
    if len(sources) == 1:
        (one,) = sources
        return lambda g: write(g, into, d, function(one(g)))
    if len(sources) == 2:
        first, second = sources
        return lambda g: write(g, into, d, function(first(g), second(g)))
    return lambda g: write(g, into, d, function(*[s(g) for s in sources]))


def write(g: Gang, view: int, number: int, values: Any) -> None:
    """Write values, one for each of lo … hi−1 or a scalar, to a register seen as unsigned, signed or float."""
    if g.mask is None:
        g.bank.views[view][number][...] = values
    else:
        np.copyto(g.bank.views[view][number], values, where=g.mask, casting="unsafe")


def nothing(g: Gang) -> None:
    """An instruction without effect."""


def rows(g: Gang, sources: Sequence[Source]) -> list[Row]:
    """The values of sources as full contiguous rows."""
    return [np.ascontiguousarray(spread(s(g), g)) for s in sources]


def taint(g: Gang, step: Step) -> Bools | None:
    """Which lanes read an undefined register in this instruction; None if none does."""
    flags: Bools | None = None
    for n in step.reads:
        part = g.undefined(n)
        if part is not None:
            flags = part.copy() if flags is None else flags | part
    return flags


def tainted(fast: Operation, number: int | None, flags: Callable[[Gang], Bools | None]) -> Operation:
    """`fast`, and its own rule of which results are undefined (asked before it runs) once anything is undefined."""
    if number is None:
        return fast

    def run(g: Gang) -> Any:
        if not g.slow:
            return fast(g)
        undefined = flags(g)
        result = fast(g)
        g.set_undefined(number, undefined)
        return result

    return run
