"""The compiled inner loops of the matrix arithmetic. Imported only by `fused_sum`, at the first multiplication, because
Numba is slow to import. Knows only unsigned words, float64 and int16 exponents; no names of formats or kinds.

Two facts make float64 enough: a product of two decoded operands is exact, and after alignment every term is an
integer below 2^48, so that sums are exact too. NaN and Inf need no branches: IEEE addition of the scaled terms already
gives the tensor core's rule (any NaN, Inf x 0 or Inf - Inf is NaN; otherwise one sign of Inf wins).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import numba
import numpy as np
from llvmlite import ir  # type: ignore[import-untyped]
from numba.core import types
from numba.extending import intrinsic

F = TypeVar("F", bound=Callable[..., Any])

ABSENT = -8192  # exponent of a zero, Inf or NaN: the sum of two stays inside int16 and below every floor
ROUND_RZ, ROUND_RZ13, ROUND_RNE16 = 0, 1, 2  # to f32; to f32 with 13 fraction bits; to f16

_ONE = 1023  # exponent field of 1.0 in float64
_MAGNITUDE = 0x7FFFFFFFFFFFFFFF
_INF = 0x7FF << 52


def _compiled(function: F) -> F:
    """Compiles at the first call, keeping machine code on disk where some directory is writable."""
    options = {"error_model": "numpy", "nogil": True}
    try:
        return numba.njit(cache=True, **options)(function)  # type: ignore[no-any-return]
    except RuntimeError:  # no place for a cache file
        return numba.njit(**options)(function)  # type: ignore[no-any-return]


@intrinsic  # type: ignore[untyped-decorator]
def _truncate(_context: Any, _value: Any) -> Any:
    """Rounds a float64 toward zero in one vector instruction (math.trunc would go through int64)."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.call(builder.module.declare_intrinsic("llvm.trunc", [ir.DoubleType()]), arguments)

    return types.float64(types.float64), generate


@intrinsic  # type: ignore[untyped-decorator]
def _fma(_context: Any, _a: Any, _b: Any, _c: Any) -> Any:
    """a * b + c with one rounding."""

    def generate(_target: Any, builder: Any, _signature: Any, arguments: Any) -> Any:
        return builder.fma(*arguments)

    return types.float64(types.float64, types.float64, types.float64), generate


@_compiled
def decode(bits: Any, form: Any, values: Any, exponents: Any) -> None:
    """Values (float64) and alignment exponents (int16) of a list of codes (uint32), each flat.

    Subnormals have the exponent of the format's smallest normal number; zero, Inf and NaN have ABSENT.
    A magnitude placed in float64's fields is the value times 2^(bias - 1023), for normal and subnormal codes alike."""
    magnitude_mask, sign_mask, mantissa_bits, bias, first_special, inf, negate = form
    words = values.view(np.int64)
    scale = 2.0 ** (_ONE - bias)
    for i in range(bits.shape[0]):
        magnitude = np.int64(bits[i]) & magnitude_mask
        words[i] = magnitude << (52 - mantissa_bits)
        present = magnitude != 0 and magnitude < first_special
        exponents[i] = max(magnitude >> mantissa_bits, 1) - bias if present else ABSENT
    for i in range(bits.shape[0]):
        code = np.int64(bits[i])
        magnitude = code & magnitude_mask
        value = values[i] * scale
        if magnitude >= first_special:
            value = np.inf if magnitude == inf else np.nan
        values[i] = -value if ((code & sign_mask) != 0) != (negate != 0) else value


@_compiled
def scale_columns(values: Any, exponents: Any, factor: Any, shift: Any, block: int) -> None:
    """Multiplies element [i, k] by factor[i, k // block], which is 2^shift or NaN (ue8m0 scales), in place."""
    for i in range(values.shape[0]):
        for k in range(values.shape[1]):
            values[i, k] *= factor[i, k // block]
            if exponents[i, k] != ABSENT:
                exponents[i, k] += shift[i, k // block]


@_compiled
def scale_rows(values: Any, exponents: Any, factor: Any, shift: Any, block: int) -> None:
    """As `scale_columns` for the transposed operand: element [k, j] by factor[j, k // block]."""
    for k in range(values.shape[0]):
        for j in range(values.shape[1]):
            values[k, j] *= factor[j, k // block]
            if exponents[k, j] != ABSENT:
                exponents[k, j] += shift[j, k // block]


@_compiled
def _round_row(sums: Any, powers: Any, rounding: int, out: Any) -> None:
    """Rounds sums / powers (exact) to f32 toward zero, or to f16 to nearest even. Zero is +0, NaN is canonical,
    overflow is Inf even toward zero (measured, E5). Overwrites `sums` and `powers`."""
    words = sums.view(np.int64)
    power_words = powers.view(np.int64)
    for i in range(sums.shape[0]):
        power_words[i] = (2 * _ONE << 52) - power_words[i]  # the reciprocal of a power of two
        sums[i] *= powers[i]
    if rounding == ROUND_RNE16:
        for i in range(sums.shape[0]):
            magnitude = words[i] & _MAGNITUDE
            nearest = magnitude + ((1 << 41) - 1) + (magnitude >> 42 & 1)
            code = min((nearest >> 42) - (_ONE - 15 << 10), 0x7C00)
            if magnitude < _ONE - 14 << 52:  # adding 2^52 leaves a multiple of 2^-24, rounded to even
                code = np.int64(np.int32(abs(sums[i]) * 2.0**24 + 2.0**52 - 2.0**52))
            if magnitude > _INF:
                out[i] = 0x7FFF
            else:
                out[i] = code | 0x8000 if code != 0 and words[i] < 0 else code
        return
    keep = 0xFFFFFC00 if rounding == ROUND_RZ13 else 0xFFFFFFFF
    for i in range(sums.shape[0]):
        magnitude = words[i] & _MAGNITUDE
        code = min((magnitude >> 29) - (_ONE - 127 << 23), 0x7F800000)
        if magnitude < _ONE - 126 << 52:
            code = np.int64(np.int32(abs(sums[i]) * 2.0**149))
        code &= keep
        if magnitude > _INF:
            out[i] = 0x7FFFFFFF
        else:
            out[i] = code | 0x80000000 if code != 0 and words[i] < 0 else code


@_compiled
def _read_c(c: Any, shift: int, emin: int, floor: int, sums: Any, top: Any) -> None:
    """A row of C (float32 of a format whose least exponent is emin) times 2^-shift, and exponents of at least floor."""
    words = c.view(np.uint32)
    scale = 2.0**-shift
    for n in range(c.shape[0]):
        field = np.int32(words[n] >> 23 & 0xFF)
        exponent: Any = max(field - 127, emin)
        present = (words[n] & 0x7FFFFFFF) != 0 and field != 0xFF
        top[n] = max(exponent - shift, floor) if present else floor
        sums[n] = np.float64(c[n]) * scale


@_compiled
def fused(
    a: Any, ae: Any, b: Any, be: Any, index: Any, first: int, last: int, c: Any, c_shift: int, c_emin: int,
    fraction: int, floor: int, rounding: int, out: Any,
) -> None:  # fmt: skip
    """out[m, n] = round(C + sum of a[m, k] * b[index[m, k], n] over first <= k < last).

    Every term is truncated below 2^(E - fraction), E the largest exponent present. index has one row (dense) or one for
    each row of a (sparse). c (float32) with no rows is +0; otherwise it is multiplied by 2^-c_shift first."""
    rows = a.shape[0]
    columns = b.shape[1]
    top = np.empty(columns, np.int16)
    powers = np.empty(columns, np.float64)
    power_words = powers.view(np.int64)
    sums = np.empty(columns, np.float64)
    least = np.int16(floor)
    for m in range(rows):
        selected = index[m if index.shape[0] > 1 else 0]
        if c.shape[0]:
            _read_c(c[m], c_shift, c_emin, floor, sums, top)
        else:
            for n in range(columns):
                sums[n] = 0.0
                top[n] = least
        for k in range(first, last):
            row = be[selected[k]]
            exponent = ae[m, k]
            for n in range(columns):
                top[n] = max(top[n], np.int16(exponent + row[n]))
        for n in range(columns):
            power_words[n] = np.int64(_ONE + fraction - top[n]) << 52
            sums[n] = _truncate(sums[n] * powers[n])
        for k in range(first, last):
            values = b[selected[k]]
            value = a[m, k]
            for n in range(columns):
                sums[n] += _truncate(value * values[n] * powers[n])
        _round_row(sums, powers, rounding, out[m])


@_compiled
def grouped(
    a: Any, b: Any, index: Any, fa: Any, xa: Any, fb: Any, xb: Any, first: int, last: int, c: Any, c_emin: int,
    group: int, fraction: int, floor: int, rounding: int, out: Any,
) -> None:  # fmt: skip
    """As `fused`, but the terms are exact sums over `group` products each, times both scales. a and b hold twice the
    elements' values (int16); fa[m, g] and fb[g, n] are the scales, xa and xb their exponents (ABSENT for zero).
    A group takes part in the maximum, with the scales' exponents alone, if any of its products is nonzero."""
    rows = a.shape[0]
    columns = b.shape[1]
    first_group = first // group
    groups = (last - first) // group
    top = np.empty(columns, np.int16)
    powers = np.empty(columns, np.float64)
    power_words = powers.view(np.int64)
    sums = np.empty(columns, np.float64)
    parts = np.empty((groups, columns), np.int16)
    active = np.empty(columns, np.int16)
    least = np.int16(floor)
    for m in range(rows):
        selected = index[m if index.shape[0] > 1 else 0]
        if c.shape[0]:
            _read_c(c[m], 0, c_emin, floor, sums, top)
        else:
            for n in range(columns):
                sums[n] = 0.0
                top[n] = least
        for g in range(groups):
            part = parts[g]
            for n in range(columns):
                part[n] = 0
                active[n] = 0
            for k in range(first + g * group, first + (g + 1) * group):
                value = a[m, k]
                if value != 0:
                    row = b[selected[k]]
                    for n in range(columns):
                        part[n] += np.int16(value * row[n])
                        active[n] |= row[n]
            exponent = xa[m, first_group + g]
            for n in range(columns):
                here = np.int16(exponent + xb[first_group + g, n])
                top[n] = max(top[n], here) if active[n] != 0 else top[n]
        for n in range(columns):
            power_words[n] = np.int64(_ONE + fraction - top[n]) << 52
            sums[n] = _truncate(sums[n] * powers[n])
        for g in range(groups):
            factor = fa[m, first_group + g] * 0.25
            for n in range(columns):
                sums[n] += _truncate(np.float64(parts[g, n]) * (factor * fb[first_group + g, n]) * powers[n])
        _round_row(sums, powers, rounding, out[m])


@_compiled
def integer(a: Any, b: Any, index: Any, first: int, last: int, c: Any, clamp: bool, out: Any) -> None:
    """out = C + sum of products of int32 operands; clamped once at the end if `clamp` (measured, E7), else it wraps."""
    rows = a.shape[0]
    columns = b.shape[1]
    sums = np.empty(columns, np.int32)
    for m in range(rows):
        selected = index[m if index.shape[0] > 1 else 0]
        for n in range(columns):
            sums[n] = 0
        for k in range(first, last):
            value = a[m, k]
            row = b[selected[k]]
            for n in range(columns):
                sums[n] += value * row[n]
        for n in range(columns):
            total: Any = np.int64(sums[n])
            if c.shape[0]:
                total += c[m, n]
            if clamp:
                total = min(max(total, -(1 << 31)), (1 << 31) - 1)
            out[m, n] = np.uint32(total & 0xFFFFFFFF)


@_compiled
def chain(a: Any, b: Any, c: Any, out: Any) -> None:
    """out[m, n] = fma(a[m, k], b[k, n], ...) from c, k ascending (measured, E14)."""
    for m in range(a.shape[0]):
        for n in range(b.shape[1]):
            total = c[m, n]
            for k in range(a.shape[1]):
                total = _fma(a[m, k], b[k, n], total)
            out[m, n] = total
