"""Floating-point arithmetic, functions and comparisons (PTX 9.7.3-9.7.7).

Arithmetic is exact and rounded once, with the hardware's canonical NaN. The approximate functions (div.approx,
div.full, rcp, sqrt, rsqrt, sin, cos, lg2, ex2, tanh) give the correctly rounded result, which lies within PTX's error
bounds but may differ from a GPU's in the last places.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from smalti.ptx.module import Operand, Sink, type_bits
from smalti.vgpu.execute import UNSIGNED, Context, Operation, executor, spread
from smalti.vgpu.execute import exact as ex
from smalti.vgpu.execute.comparison import BOOLEAN, TRUE, set_predicates, set_value
from smalti.vgpu.execute.lanes import FLOAT_VIEW, constant_of, direct, general, register_of, write
from smalti.vgpu.program import Step
from smalti.vgpu.warp import Gang

Array = Any
Words = Callable[..., Array]  # of element words, giving element words


def _bits(type_: str) -> str:
    return f"b{type_bits(type_)}"


def elementwise(
    context: Context, out: Operand, out_type: str, function: Words, operands: Sequence[Operand], types: Sequence[str]
) -> Operation:
    """d = function of the element words of the operands, whose result are element words of the destination."""
    width = UNSIGNED[type_bits(out_type)]

    def apply(*given: Array) -> Array:
        if any(not x.ndim for x in given):
            given = tuple(np.broadcast_arrays(*given)) if any(x.ndim for x in given) else given
        words = [ex.elements(x, t) for x, t in zip(given, types, strict=True)]
        return np.ascontiguousarray(function(*words)).view(width)

    return general(context, out, _bits(out_type), apply, operands, [_bits(t) for t in types])


# -- add, sub, mul, fma ------------------------------------------------------------------------------------


class Arithmetic:
    """The modifiers of one instruction, and how they make element words of an exact value."""

    def __init__(self, step: Step) -> None:
        form = step.form
        self.type = form.get("type")
        self.base = ex.base_of(self.type)
        self.rounding = form.get("rnd") or "rn"
        self.ftz, self.sat, self.relu = "ftz" in form, "sat" in form, "relu" in form
        self.oob = "oob" in form

    def inputs(self, words: Sequence[Array], bases: Sequence[str]) -> list[Array]:
        if self.ftz:
            words = [ex.flushed(w, b) for w, b in zip(words, bases, strict=True)]
        return [ex.value(w, b) for w, b in zip(words, bases, strict=True)]

    def output(self, values: Array) -> Array:
        words = ex.rounded(values, self.base, self.rounding, self.sat, self.relu)
        return ex.flushed_results(words, values, self.base, self.rounding) if self.ftz else words


_PLAIN: dict[str, Any] = {"add": np.add, "sub": np.subtract, "mul": np.multiply}


def _double(name: str, rounding: str, a: Array, b: Array, c: Array | None = None) -> Array:
    """f64: NumPy to nearest, fractions in the other directions and for fma."""
    if c is not None:
        return ex.lanewise(lambda x, y, z: x * y + z, a * b + c, rounding, (a, b, c), sums=True)
    plain = _PLAIN[name](a, b)
    if rounding == "rn":
        return plain
    function: dict[str, Callable[[Fraction, Fraction], Fraction]] = {
        "add": lambda x, y: x + y, "sub": lambda x, y: x + y, "mul": lambda x, y: x * y,
    }  # fmt: skip
    return ex.lanewise(function[name], plain, rounding, (a, -b if name == "sub" else b), sums=name != "mul")


def _combine(name: str, how: Arithmetic, values: Sequence[Array]) -> Array:
    down = how.rounding == "rm"
    if how.base == "f64":
        return _double(name, how.rounding, *values)
    if name == "fma":
        return ex.fma(values[0], values[1], values[2], down)
    if name == "mul":
        return values[0] * values[1]
    return ex.add(values[0], values[1] if name == "add" else -values[1], down)


@executor("add.float", "sub.float", "mul.float")
def binary(context: Context, step: Step) -> Operation:
    o, how = context.bind(step), Arithmetic(step)
    name = step.opcode.split(".")[0]
    atype = step.form.get("atype")
    plain = not (how.ftz or how.sat or atype) and how.rounding == "rn"
    if plain and how.type == "f32":
        return _fast(context, o["d"], _PLAIN[name], [o["a"], o["b"]], how.type)
    types = [atype or how.type, how.type]
    bases = [ex.base_of(t) for t in types]

    def function(*words: Array) -> Array:
        out = how.output(_combine(name, how, how.inputs(words, bases)))
        return ex.nan_of(out, words[1], words[0]) if how.base == "f64" else out

    return elementwise(context, o["d"], how.type, function, [o["a"], o["b"]], types)


def _fast(context: Context, out: Operand, ufunc: Any, operands: Sequence[Operand], type_: str) -> Operation:
    """A NumPy ufunc on f32 registers, which rounds to nearest; NaN results are made canonical afterwards."""
    d = context.number(out)
    nan: Any = ex.WORD[type_](ex.NAN[type_])
    a = register_of(context, operands[0], type_)
    b = register_of(context, operands[1], type_)
    constant = constant_of(context, operands[1], type_)
    first, second = (context.source(o, type_) for o in operands)

    def repair(g: Gang, row: Array) -> None:
        np.copyto(row.view(nan.dtype), nan, where=np.isnan(row))

    def masked(g: Gang) -> None:
        row = np.asarray(ufunc(spread(first(g), g), second(g)))
        repair(g, row)
        write(g, FLOAT_VIEW, d, row)

    if a is None or (b is None and constant is None):
        return masked

    def run(g: Gang) -> None:
        if g.mask is not None:
            masked(g)
            return
        rows = g.bank.f
        row = rows[d]
        ufunc(rows[a], constant if b is None else rows[b], row)
        if not row.dot(row) >= 0:  # a sum of squares is NaN exactly if an element is
            repair(g, row)

    return run


_OUT_OF_BOUNDS = (0x7FF7, 0xFFF7)  # what a TMA load fills in with oobFill NaN (h200-measured E11)


@executor("fma.float")
def fma(context: Context, step: Step) -> Operation:
    o, how = context.bind(step), Arithmetic(step)
    atype = step.form.get("atype") or how.type
    types = [atype, atype, how.type]
    bases = [ex.base_of(t) for t in types]
    operands = [o["a"], o["b"], o["c"]]
    if how.base == "f32" and atype == how.type and how.rounding == "rn" and not how.sat:
        if how.type == "f32" and not how.ftz:
            return _fma32(context, o["d"], operands)
        return elementwise(context, o["d"], how.type, _fma32_words(how.ftz), operands, types)

    def function(*words: Array) -> Array:
        result = how.output(_combine("fma", how, how.inputs(words, bases)))
        if how.base == "f64":
            return ex.nan_of(result, words[1], words[2], words[0])
        if how.oob:
            missing = np.isin(words[0], _OUT_OF_BOUNDS) | np.isin(words[1], _OUT_OF_BOUNDS)
            result = np.where(missing, result.dtype.type(0), result)
        return result

    return elementwise(context, o["d"], how.type, function, operands, types)


_TIE = np.asarray(0x1FFFFFFF, np.uint64)
_HALF = np.asarray(0x10000000, np.uint64)
_EXPONENT = np.asarray(0x7F800000, np.uint32)
_NAN32 = np.uint32(ex.NAN["f32"])


def fma32(a: Array, b: Array, c: Array, ftz: bool = False) -> Array:
    """f32 fma to nearest, of f32 arrays. Rounding twice, to f64 first, is wrong only near ties of f32 and below its
    normal numbers: only then the exact way is taken. `ftz` flushes results."""
    c = c.astype(np.float64)
    p = np.multiply(a.astype(np.float64), b.astype(np.float64))
    s = p + c
    row: Array = s.astype(np.float32)
    tie = np.count_nonzero((s.view(np.uint64) & _TIE) == _HALF)
    if ftz or tie or np.count_nonzero(row.view(np.uint32) & _EXPONENT) < row.size:
        s = ex.add(p, c)
        row = s.astype(np.float32)
        if ftz:
            row = ex.flushed_results(row.view(np.uint32), s, "f32", "rn").view(np.float32)
    if not row.dot(row) >= 0:
        row = np.where(np.isnan(row), _NAN32.view(np.float32), row)
    return row


def _fma32(context: Context, out: Operand, operands: Sequence[Operand]) -> Operation:
    d = context.number(out)
    a, b, c = (context.source(o, "f32") for o in operands)

    def run(g: Gang) -> None:
        x, y, z = a(g), b(g), c(g)
        write(g, FLOAT_VIEW, d, fma32(spread(x, g), y, z))

    return run


def _fma32_words(ftz: bool) -> Words:
    def function(*words: Array) -> Array:
        given = [ex.flushed(w, "f32") if ftz else w for w in words]
        a, b, c = (w.view(np.float32) for w in given)
        return fma32(a, b, c, ftz).view(np.uint32)

    return function


# -- division and functions --------------------------------------------------------------------------------


@executor("div.float")
def div(context: Context, step: Step) -> Operation:
    o, how = context.bind(step), Arithmetic(step)
    approximate = how.rounding == "approx"
    rounding = "rn" if how.rounding in ("approx", "full") else how.rounding

    def function(a: Array, b: Array) -> Array:
        if how.ftz:
            a, b = ex.flushed(a, "f32"), ex.flushed(b, "f32")
        x, y = ex.value(a, how.base), ex.value(b, how.base)
        if how.base == "f64":
            plain = x / y
            if rounding != "rn":
                plain = ex.lanewise(lambda p, q: p / q if q else None, plain, rounding, (x, y))
            return ex.nan_of(plain.view(np.uint64), a, b)
        quotient = ex.divide(x, y)
        words = ex.rounded(quotient, "f32", rounding)
        if approximate:  # for 2^126 < |b| < 2^128 the quotient is 0, or NaN for an infinite a (9.7.3.8)
            large = (np.abs(y) > 2.0**126) & np.isfinite(y)
            zero = np.where(np.isinf(x), ex.NAN["f32"], (a ^ b) & np.uint32(0x80000000))
            words = np.where(large & ~np.isnan(x), zero, words).astype(np.uint32)
        return ex.flushed_results(words, quotient, "f32", rounding) if how.ftz else words

    return elementwise(context, o["d"], how.type, function, [o["a"], o["b"]], [how.type] * 2)


def _one(context: Context, step: Step, function: Callable[[Array], Array]) -> Operation:
    """d = function(a) on element words."""
    o, t = context.bind(step), step.form.get("type")
    return elementwise(context, o["d"], t, function, [o["a"]], [t])


Function = Callable[[Array], Array]


def _rounded_function(step: Step, plain: Function, odd: Function | None = None) -> Words:
    """A function of one operand: computed in float64 and rounded; `odd` gives it exactly (rounded to odd)."""
    how = Arithmetic(step)
    rounding = "rn" if how.rounding == "approx" else how.rounding
    # .ftz on half types only says that subnormal inputs and results are zero too; ex2.f16 has no .ftz and keeps them
    ftz = how.ftz

    def function(words: Array) -> Array:
        if ftz:
            words = ex.flushed(words, how.base)
        x = ex.value(words, how.base)
        if how.base == "f64":
            return ex.nan_of(np.asarray(plain(x)).view(np.uint64), words)
        result = odd(x) if odd is not None else plain(x)
        out = ex.rounded(result, how.base, rounding)
        return ex.flushed_results(out, result, how.base, rounding) if ftz else out

    return function


def _upper(plain: Callable[[Array], Array]) -> Words:
    """rcp and rsqrt.approx.ftz.f64: subnormal inputs are zero, as are the low 32 bits of the result (9.7.3.14, .17)."""

    def function(words: Array) -> Array:
        out = ex.nan_of(plain(ex.value(ex.flushed(words, "f64"), "f64")).view(np.uint64), words)
        return ex.flushed(out, "f64") & np.uint64(0xFFFFFFFF00000000)

    return function


def _reciprocal(x: Array) -> Array:
    return 1.0 / x


def _reciprocal_root(x: Array) -> Array:
    return 1.0 / np.sqrt(x)


@executor("rcp")
def rcp(context: Context, step: Step) -> Operation:
    rounding = step.form.get("rnd")
    if step.form.row.name == "rcp.f64.approx":
        return _one(context, step, _upper(_reciprocal))
    if step.form.get("type") == "f64" and rounding != "rn":

        def directed(words: Array) -> Array:
            x = ex.value(words, "f64")
            out = ex.lanewise(lambda q: 1 / q if q else None, 1.0 / x, rounding, (x,))
            return ex.nan_of(out.view(np.uint64), words)

        return _one(context, step, directed)
    return _one(context, step, _rounded_function(step, _reciprocal, lambda x: ex.divide(np.ones_like(x), x)))


@executor("sqrt")
def sqrt(context: Context, step: Step) -> Operation:
    rounding = step.form.get("rnd")
    if step.form.get("type") == "f64" and rounding != "rn":

        def directed(words: Array) -> Array:
            x = ex.value(words, "f64")
            return ex.nan_of(ex.lanewise(ex.root64, np.sqrt(x), rounding, (x,)).view(np.uint64), words)

        return _one(context, step, directed)
    return _one(context, step, _rounded_function(step, np.sqrt, ex.square_root))


@executor("rsqrt")
def rsqrt(context: Context, step: Step) -> Operation:
    if step.form.get("type") == "f64" and "ftz" in step.form:
        return _one(context, step, _upper(_reciprocal_root))
    return _one(context, step, _rounded_function(step, _reciprocal_root))


_FUNCTIONS: dict[str, Callable[[Array], Array]] = {
    "sin": np.sin, "cos": np.cos, "lg2": np.log2, "ex2": np.exp2, "tanh": np.tanh,
}  # fmt: skip


@executor("sin", "cos", "lg2", "ex2", "tanh")
def function_of_one(context: Context, step: Step) -> Operation:
    return _one(context, step, _rounded_function(step, _FUNCTIONS[step.opcode.split(".")[0]]))


# -- sign --------------------------------------------------------------------------------------------------


@executor("abs.float", "neg.float")
def sign(context: Context, step: Step) -> Operation:
    how = Arithmetic(step)
    bit = ex.WORD[how.base](ex.SIGN[how.base])
    negate = step.opcode.startswith("neg")
    nan = ex.WORD[how.base](ex.NAN[how.base])

    def function(words: Array) -> Array:
        if how.ftz:
            words = ex.flushed(words, how.base)
        out = words ^ bit if negate else words & ~bit
        if how.base == "f64":
            return ex.nan_of(out, words)
        return np.where(ex.is_nan(out, how.base), nan, out)

    return _one(context, step, function)


@executor("copysign")
def copysign(context: Context, step: Step) -> Operation:
    """The sign of a with the magnitude of b."""
    o, t = context.bind(step), step.form.get("type")
    bit = ex.WORD[t](ex.SIGN[t])
    return elementwise(context, o["d"], t, lambda a, b: (a & bit) | (b & ~bit), [o["a"], o["b"]], [t, t])


# -- minimum and maximum -----------------------------------------------------------------------------------


@executor("min.float", "max.float")
def extreme(context: Context, step: Step) -> Operation:
    o, how = context.bind(step), Arithmetic(step)
    form = step.form
    largest, propagate = step.opcode.startswith("max"), "NaN" in form
    signs, absolute = "xorsign" in form, "abs" in form
    base, bit = how.base, ex.WORD[how.base](ex.SIGN[how.base])
    operands = [o[k] for k in "abc" if k in o]

    def function(*words: Array) -> Array:
        given = [ex.flushed(w, base) if how.ftz else w for w in words]
        magnitudes = [w & ~bit for w in given] if absolute else given
        out = magnitudes[0]
        for w in magnitudes[1:]:
            out = ex.extreme(out, w, base, largest, propagate)
        if signs:
            out = np.where(ex.is_nan(out, base), out, (out & ~bit) | ((given[0] ^ given[1]) & bit))
        return out

    if how.type == "f32" and not (how.ftz or signs or absolute or len(operands) > 2):
        return _fast_extreme(context, o["d"], operands, largest, propagate)
    return elementwise(context, o["d"], how.type, function, operands, [how.type] * len(operands))


def _fast_extreme(
    context: Context, out: Operand, operands: Sequence[Operand], largest: bool, propagate: bool
) -> Operation:
    """f32: NumPy's own where neither a NaN nor a zero results, whose bits it leaves open."""
    d = context.number(out)
    a, b = (context.source(o, "f32") for o in operands)
    ufunc = np.maximum if largest else np.minimum

    def run(g: Gang) -> None:
        x, y = a(g), b(g)
        row: Array = ufunc(x, y)
        if np.count_nonzero(row) < row.size or not row.dot(row) >= 0:
            first, second = (np.ascontiguousarray(spread(v, g)).view(np.uint32) for v in (x, y))
            row = ex.extreme(first, second, "f32", largest, propagate).view(np.float32)
        write(g, FLOAT_VIEW, d, row)

    return run


# -- comparisons -------------------------------------------------------------------------------------------


_COMPARE: dict[str, Callable[[Array, Array], Array]] = {
    "eq": np.equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "ne": lambda a, b: np.less(a, b) | np.greater(a, b),
    "equ": lambda a, b: ~(np.less(a, b) | np.greater(a, b)), "neu": np.not_equal,
    "ltu": lambda a, b: ~np.greater_equal(a, b), "leu": lambda a, b: ~np.greater(a, b),
    "gtu": lambda a, b: ~np.less_equal(a, b), "geu": lambda a, b: ~np.less(a, b),
    "num": lambda a, b: ~(np.isnan(a) | np.isnan(b)), "nan": lambda a, b: np.isnan(a) | np.isnan(b),
}  # fmt: skip


def _comparison(context: Context, step: Step) -> Callable[[Gang], Array]:
    """The comparison of all elements, [lanes] or for packed types [lanes, 2]."""
    o, t = context.bind(step), step.form.get("type")
    base, compare = ex.base_of(t), _COMPARE[step.form.get("cmp")]
    ftz = "ftz" in step.form
    if t in ("f32", "f64") and not ftz:
        x, y = (context.source(o[k], t) for k in "ab")
        return lambda g: compare(x(g), y(g))
    a, b = (context.source(o[k], _bits(t)) for k in "ab")

    def run(g: Gang) -> Array:
        words = [ex.elements(spread(s(g), g), t) for s in (a, b)]
        if ftz:
            words = [ex.flushed(w, base) for w in words]
        result = compare(*(ex.value(w, base) for w in words))
        return result.reshape(-1, 2) if base != t else result

    return run


@executor("setp.float")
def setp(context: Context, step: Step) -> Operation:
    o, t = context.bind(step), step.form.get("type")
    if ex.base_of(t) != t:
        return _setp_packed(context, step)
    ufunc = _COMPARE[step.form.get("cmp")]
    simple = "q" not in o and "c" not in o and not isinstance(o["p"], Sink) and "ftz" not in step.form
    if simple and t in ("f32", "f64") and isinstance(ufunc, np.ufunc):
        return direct(context, o["p"], "pred", ufunc, [o["a"], o["b"]], t)
    return set_predicates(context, step, _comparison(context, step))


def _setp_packed(context: Context, step: Step) -> Operation:
    """f16x2, bf16x2: p from the lower elements, q from the upper ones (9.7.7.2)."""
    o = context.bind(step)
    numbers = [None if k not in o or isinstance(o[k], Sink) else context.number(o[k]) for k in "pq"]
    compare = _comparison(context, step)
    c = context.source(o["c"], "pred") if "c" in o else None
    combine: Any = BOOLEAN.get(step.form.get("bool"))

    def run(g: Gang) -> None:
        halves = compare(g)
        other = c(g) if c is not None else None
        for i, n in enumerate(numbers):
            if n is not None:
                write(g, 0, n, halves[:, i] if other is None else combine(halves[:, i], other))

    return run


@executor("set.float")
def set_float(context: Context, step: Step) -> Operation:
    t, dtype = step.form.get("type"), step.form.get("dtype")
    if ex.base_of(t) == t:
        return set_value(context, step, _comparison(context, step))
    o = context.bind(step)
    d, compare = context.number(o["d"]), _comparison(context, step)
    c = context.source(o["c"], "pred") if "c" in o else None
    combine: Any = BOOLEAN.get(step.form.get("bool"))
    true = np.uint16(TRUE[ex.base_of(dtype)] & 0xFFFF)  # integers: all ones in each half

    def run(g: Gang) -> None:
        halves = compare(g)
        if c is not None:
            halves = combine(halves, np.broadcast_to(c(g), g.width)[:, None])
        write(g, 0, d, np.where(halves, true, np.uint16(0)).view(np.uint32)[:, 0])

    return run


@executor("testp")
def testp(context: Context, step: Step) -> Operation:
    o, t, op = context.bind(step), step.form.get("type"), step.form.get("op")
    kind = ex.WORD[t]
    infinity, normal = kind(ex.INFINITY[t]), kind(ex.NORMAL[t])

    def function(words: Array) -> Array:
        m = words & kind(ex.SIGN[t] - 1)
        return {
            "finite": m < infinity, "infinite": m == infinity, "number": m <= infinity, "notanumber": m > infinity,
            "normal": ((m >= normal) & (m < infinity)) | (m == 0), "subnormal": (m > 0) & (m < normal),
        }[op]  # fmt: skip

    return general(context, o["p"], "pred", function, [o["a"]], [_bits(t)])
