"""Exact floating-point arithmetic on bit patterns: one operation, rounded once, in any direction.

Values travel as float64 rounded to odd: the extra bits make the later rounding to f32, f16 or bf16 come out as if the
result had been exact. f64 itself goes lane by lane through fractions where NumPy cannot round. Knows no instruction.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import numpy as np

from smalti.numerics.convert import encode

Array = Any

# What an H200 gives for NaN results: one canonical NaN for the small formats; for f64 that of an operand, made quiet,
# or else this one (measured for add, sub, mul, div, fma, min, max, sqrt, rcp, neg, abs and cvt).
NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF, "f64": 0xFFF8000000000000}
QUIET = 1 << 51
WORD: dict[str, Any] = {"f16": np.uint16, "bf16": np.uint16, "f32": np.uint32, "f64": np.uint64}
SIGNED_WORD: dict[str, Any] = {"f16": np.int16, "bf16": np.int16, "f32": np.int32, "f64": np.int64}
SIGN = {"f16": 0x8000, "bf16": 0x8000, "f32": 0x80000000, "f64": 1 << 63}
INFINITY = {"f16": 0x7C00, "bf16": 0x7F80, "f32": 0x7F800000, "f64": 0x7FF0000000000000}
MANTISSA = {"f16": 10, "bf16": 7, "f32": 23, "f64": 52}
NORMAL = {"f16": 0x0400, "bf16": 0x0080, "f32": 0x00800000, "f64": 1 << 52}  # the smallest normal number


def base_of(type_: str) -> str:
    """The element type of a packed type."""
    return type_[:-2] if type_.endswith("x2") else type_


def elements(row: Array, type_: str) -> Array:
    """The elements of registers as unsigned words of the element's width, in memory order."""
    return np.atleast_1d(np.ascontiguousarray(row)).view(WORD[base_of(type_)])


def value(words: Array, base: str) -> Array:
    """Words as float64, exactly."""
    if base == "f64":
        return words.view(np.float64)
    if base == "f32":
        return words.view(np.float32).astype(np.float64)
    if base == "f16":
        return words.view(np.float16).astype(np.float64)
    return (words.astype(np.uint32) << np.uint32(16)).view(np.float32).astype(np.float64)


def flushed(words: Array, base: str) -> Array:
    """Subnormal words replaced by a zero of their sign."""
    kind = WORD[base]
    small = (words & kind(INFINITY[base])) == 0
    return np.where(small, words & kind(SIGN[base]), words)


def flushed_results(words: Array, values: Array, base: str, rounding: str) -> Array:
    """Results of .ftz instructions: tiny ones are zero. Tiny is what would be below the normal numbers if exponents had
    no limit, so also some values that are rounded up to the smallest normal number (measured on an H200)."""
    kind = WORD[base]
    at_edge = (words & kind(SIGN[base] - 1)) == kind(NORMAL[base])
    if np.count_nonzero(at_edge):
        scale = 2.0 ** (10 if base == "f16" else 64)
        limit = rounded(np.array([scale * 2.0 ** (-14 if base == "f16" else -126)]), base, "rn")[0]
        free = rounded(np.where(at_edge, values * scale, 0.0), base, rounding) & kind(SIGN[base] - 1)
        words = np.where(at_edge & (free < limit), words & kind(SIGN[base]), words)
    return flushed(words, base)


def is_nan(words: Array, base: str) -> Array:
    kind = WORD[base]
    return (words & kind(SIGN[base] - 1)) > kind(INFINITY[base])


def nan_of(words: Array, *operands: Array) -> Array:
    """f64 results with the NaN of the first operand that is NaN, made quiet, wherever they are NaN."""
    bad = is_nan(words, "f64")
    if not np.count_nonzero(bad):
        return words
    out = np.full(words.shape, NAN["f64"], np.uint64)
    for o in reversed(operands):
        out = np.where(is_nan(o, "f64"), o | np.uint64(QUIET), out)
    return np.where(bad, out, words)


def converted_nan(words: Array, of: str, to: str) -> Array:
    """The NaN that cvt makes of NaN words if one side is f64: sign and upper payload bits stay, made quiet."""
    wide, narrow = (words.astype(np.uint64), MANTISSA[of]), MANTISSA[to]
    fraction = wide[0] & np.uint64((1 << wide[1]) - 1)
    shift = narrow - wide[1]
    fraction = fraction << np.uint64(shift) if shift > 0 else fraction >> np.uint64(-shift)
    sign = np.where(words & WORD[of](SIGN[of]), np.uint64(SIGN[to]), np.uint64(0))
    return (sign | fraction | np.uint64(INFINITY[to] | 1 << narrow - 1)).astype(WORD[to])


def rounded(values: Array, base: str, rounding: str, sat: bool = False, relu: bool = False) -> Array:
    """Words nearest to float64 values that are rounded to odd (f64: the values' own). NaN is canonical but in f64."""
    if base == "f64":
        return values.view(np.uint64)
    if rounding == "rn" and not (sat or relu) and base in ("f32", "f16"):
        row = values.astype(np.float32 if base == "f32" else np.float16)
        words = row.view(WORD[base])
        bad = np.isnan(row)
        return np.where(bad, WORD[base](NAN[base]), words) if np.count_nonzero(bad) else words
    return encode(values, base, rounding, sat=sat, relu=relu, satfinite=False)


# -- operations that give float64 rounded to odd -----------------------------------------------------------


def to_odd(nearest: Array, error: Array) -> Array:
    """`nearest` + `error`, where the first is the rounded sum of both, rounded to odd instead."""
    bits = nearest.view(np.int64)
    inexact = (error != 0) & np.isfinite(nearest) & ((bits & 1) == 0)
    step = np.where((error > 0) == (nearest > 0), 1, -1)
    return np.where(inexact, bits + step, bits).view(np.float64)


def add(a: Array, b: Array, down: bool = False) -> Array:
    """a + b; an exact zero of unlike terms is -0 if results are rounded `down`."""
    total = a + b
    b_part = total - a
    odd = to_odd(total, (a - (total - b_part)) + (b - b_part))
    return np.where((odd == 0) & (np.signbit(a) != np.signbit(b)), -0.0, odd) if down else odd


def fma(a: Array, b: Array, c: Array, down: bool = False) -> Array:
    """a * b + c of values with at most 24 significant bits."""
    return add(a * b, c, down)


def _product(a: Array, b: Array) -> tuple[Array, Array]:
    """a * b as a rounded product and its error (Dekker, Veltkamp)."""

    def halves(x: Array) -> tuple[Array, Array]:
        t = x * 134217729.0
        high = t - (t - x)
        return high, x - high

    p = a * b
    (ah, al), (bh, bl) = halves(a), halves(b)
    return p, ((ah * bh - p) + ah * bl + al * bh) + al * bl


def divide(a: Array, b: Array) -> Array:
    """a / b of values with at most 24 significant bits."""
    q = a / b
    p, e = _product(q, b)
    rest = (a - p) - e
    return to_odd(q, np.where(np.isfinite(rest), rest * np.sign(b), 0.0))


def square_root(a: Array) -> Array:
    """The root of values with at most 24 significant bits."""
    s = np.sqrt(a)
    p, e = _product(s, s)
    rest = (a - p) - e
    return to_odd(s, np.where(np.isfinite(rest), rest, 0.0))


# -- f64, one lane after the other -------------------------------------------------------------------------


LARGEST = Fraction(1.7976931348623157e308)


def _round(exact: Fraction, rounding: str) -> float:
    """A nonzero rational number as float64."""
    sign = 1 if exact > 0 else -1
    if abs(exact) > LARGEST:
        if rounding == "rn":
            away = abs(exact) >= LARGEST + Fraction(2) ** 970
        else:
            away = rounding == ("rp" if exact > 0 else "rm")
        return math.copysign(math.inf if away else float(LARGEST), sign)
    nearest = float(exact)
    difference = exact - Fraction(nearest)
    if rounding == "rn" or difference == 0:
        return nearest
    if rounding == "rz":
        beyond, target = abs(Fraction(nearest)) > abs(exact), 0.0
    else:
        beyond, target = (difference < 0) == (rounding == "rm"), -math.inf if rounding == "rm" else math.inf
    return math.copysign(math.nextafter(nearest, target) if beyond else nearest, sign)


def lanewise(
    function: Callable[..., Fraction | None], plain: Array, rounding: str, operands: Sequence[Array], sums: bool = False
) -> Array:
    """float64 results: those of NumPy, `plain`, where an operand is Inf or NaN or the result is zero, else the exact
    value rounded. `sums`: an exact zero of unlike terms is -0 under rm."""
    out = np.array(plain, np.float64)
    rows = np.broadcast_arrays(*operands)
    for i in np.ndindex(out.shape):
        values = [float(r[i]) for r in rows]
        if all(map(math.isfinite, values)):
            exact = function(*map(Fraction, values))
            if exact:
                out[i] = _round(exact, rounding)
            elif sums and rounding == "rm":
                first = math.copysign(1, values[0]) * (math.copysign(1, values[1]) if len(values) == 3 else 1)
                out[i] = -0.0 if first != math.copysign(1, values[-1]) else out[i]
    return out


def root64(x: Fraction) -> Fraction | None:
    """The square root to 140 bits, cut, with a sticky last bit: enough for any rounding to f64. None below zero."""
    if x < 0:
        return None
    shift = 280 - (x.numerator.bit_length() - x.denominator.bit_length()) // 2 * 2
    scaled = x * Fraction(2) ** shift
    whole = math.isqrt(scaled.numerator // scaled.denominator)
    inexact = whole * whole != scaled
    return Fraction(2 * whole + inexact) / Fraction(2) ** (shift // 2 + 1)


# -- extremes ----------------------------------------------------------------------------------------------


def extreme(a: Array, b: Array, base: str, largest: bool, propagate: bool) -> Array:
    """min or max of words: -0 < +0; a number beats NaN unless NaN is to `propagate`; NaN results are canonical."""
    kind, signed = WORD[base], SIGNED_WORD[base]

    def key(x: Array) -> Array:
        s = x.view(signed)
        return np.where(s < 0, s ^ signed(np.iinfo(signed).max), s)

    take = key(b) > key(a) if largest else key(b) < key(a)
    a_nan, b_nan = is_nan(a, base), is_nan(b, base)
    out = np.where((take | a_nan) & ~b_nan, b, a)
    bad = a_nan | b_nan if propagate else a_nan & b_nan
    if base == "f64":
        return nan_of(np.where(bad, kind(NAN[base]), out), b, a)
    return np.where(bad, kind(NAN[base]), out)
