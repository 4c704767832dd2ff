"""Rounding of values into a number format (`encode`) and the conversion instruction (`cvt`), element by element.
Packed forms (x2, x4) are the caller's. Special codes follow what an H200 answered (E17 of the recordings), forms that
only sm_100 has follow PTX 9.7.9.21 and 5.2.3. Knows no syntax: which combinations exist is not checked here.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.errors import error
from smalti.numerics import formats
from smalti.numerics.formats import FORMATS, Format

Array = NDArray[Any]

FLOATING = ("rn", "rz", "rm", "rp", "rna", "rs")
INTEGRAL = {"rni": np.rint, "rzi": np.trunc, "rmi": np.floor, "rpi": np.ceil}

# Random bits that stochastic rounding (rs) adds to the discarded ones, by destination (PTX 9.7.9.21, figures 38-41)
RANDOM_BITS = {"f16": 13, "bf16": 16, "e4m3": 16, "e5m2": 16, "e2m3": 16, "e3m2": 16, "e2m1": 8}


def encode(
    values: Any,
    fmt: str,
    rounding: str = "rn",
    *,
    satfinite: bool | None = None,
    relu: bool = False,
    sat: bool = False,
    random: Array | None = None,
) -> Array:
    """Codes of `values` (float32 or float64 of any shape) in `fmt`, rounded once.

    rounding: "rn" (ties to even; up for ue8m0), "rz", "rm", "rp", "rna" (ties away), "rs" (adds `random`, whose low
    RANDOM_BITS are used). satfinite: too large and Inf become the largest finite number; None means yes for formats
    without Inf. relu: negative and -0 become +0. sat: clamps to [0, 1], NaN to +0. A NaN becomes the format's canonical
    NaN, or the largest number where there is none; the sign of zero is kept. Integer formats round and clamp, NaN is 0.
    Raises SML1001, SML1010, SML1011.
    """
    form = formats.lookup(fmt)
    array = np.asarray(values)
    if array.dtype not in (np.float32, np.float64):
        raise error("SML1011", got=str(array.dtype), fmt=fmt)
    if rounding not in FLOATING or (rounding == "rs" and (fmt not in RANDOM_BITS or random is None)):
        raise error("SML1010", rounding=rounding, legal=", ".join(FLOATING))
    with np.errstate(all="ignore"):
        return _encode(array.astype(np.float64), form, rounding, satfinite, relu, sat, random)


def cvt(
    dst: str,
    src: str,
    bits: Array,
    rounding: str | None = None,
    *,
    sat: bool = False,
    satfinite: bool = False,
    relu: bool = False,
    ftz: bool = False,
    random: Array | None = None,
) -> Array:
    """The PTX instruction cvt on each element: codes of `src` in, codes of `dst` out (containers of the formats).

    Types are formats.FORMATS, integers included. rounding: a floating one, or rni, rzi, rmi, rpi toward integers, None
    where PTX wants none. ftz flushes f32 subnormals, sign kept. Raises SML1001, SML1002, SML1010.
    """
    to, of = formats.lookup(dst), formats.lookup(src)
    array = formats.as_bits(bits, of)
    if rounding is not None and rounding not in FLOATING and rounding not in INTEGRAL:
        raise error("SML1010", rounding=rounding, legal=", ".join((*FLOATING, *INTEGRAL)))
    with np.errstate(all="ignore"):
        if not of.is_float:
            if to.is_float:
                return _from_integer(array, of, to, rounding or "rn", sat)
            return _wrap(_integers(array, of), to, sat)
        if of.bits <= 16 and random is None and array.size > 64:
            found: Array = _table(to, of, rounding, sat, satfinite, relu, ftz)[array & ((1 << of.bits) - 1)]
            return found
        return _from_float(array, of, to, rounding, sat, satfinite, relu, ftz, random)


@lru_cache(maxsize=64)
def _table(to: Format, of: Format, rounding: str | None, sat: bool, satfinite: bool, relu: bool, ftz: bool) -> Array:
    codes = np.arange(1 << of.bits).astype(of.dtype)
    return _from_float(codes, of, to, rounding, sat, satfinite, relu, ftz, None)


# ---- floating point to floating point ----------------------------------------------------------------------------


def _from_float(
    bits: Array, of: Format, to: Format, rounding: str | None, sat: bool, satfinite: bool, relu: bool, ftz: bool,
    random: Array | None,
) -> Array:  # fmt: skip
    if ftz and of.name == "f32" and to.name != "f16":  # to f16 nothing is flushed (recording "cvt.rm.ftz.f16.f32")
        bits = _flushed(bits)
    if (of.name, to.name, rounding, sat, ftz) == ("f32", "f32", None, False, False):
        return bits  # a move: NaN payloads stay (recording "cvt.f32.f32")
    if to.name == "tf32" and rounding == "rna":
        return _tf32_away(bits, satfinite)
    if (of.name, to.name) == ("bf16", "f32") and not ftz:  # a shift, NaN payloads included (measured, E17), but
        return bits.astype(np.uint32) << np.uint32(16)  # for .ftz (recordings "cvt.rz.f32.bf16", "cvt.ftz.f32.bf16")
    if (of.name, to.name, rounding, sat) == ("f32", "bf16", "rn", False):
        return _limit(_bf16_nearest(bits), to, satfinite, relu)
    values = formats.decode(bits, of.name)
    if rounding in INTEGRAL:
        values = INTEGRAL[rounding](values)
    if not to.is_float:
        return _to_integer(values, of, to)
    out = _encode(values, to, rounding if rounding in FLOATING else "rn", satfinite, relu, sat, random)
    return _flushed(out) if ftz and to.name == "f32" else out


def _flushed(words: Array) -> Array:
    """f32 words with subnormals replaced by a zero of their sign."""
    return np.where(words & np.uint32(0x7F800000), words, words & np.uint32(0x80000000))


def _tf32_away(words: Array, satfinite: bool) -> Array:
    """cvt.rna.tf32.f32: a carry into the kept bits; Inf and NaN are only truncated, and .satfinite lowers whatever is
    then Inf or above by one step, NaN too (measured, E17)."""
    magnitude = words & np.uint32(0x7FFFFFFF)
    finite = magnitude < 0x7F800000
    rounded = np.where(finite, magnitude + np.uint32(0x1000), magnitude) & np.uint32(0xFFFFE000)
    if satfinite:
        rounded = np.where(rounded >= 0x7F800000, rounded - np.uint32(0x2000), rounded)
    out: Array = rounded | (words & np.uint32(0x80000000))
    return out


def _bf16_nearest(words: Array) -> Array:
    rounded = (words + (np.uint32(0x7FFF) + (words >> np.uint32(16) & np.uint32(1)))) >> np.uint32(16)
    nan = (words & np.uint32(0x7FFFFFFF)) > 0x7F800000
    return np.where(nan, np.uint32(0x7FFF), rounded).astype(np.uint16)


def _limit(words: Array, form: Format, satfinite: bool, relu: bool) -> Array:
    """Modifiers on finished words of a format with Inf and NaN: Inf to the largest number, then negative to +0."""
    kind = form.dtype.type
    if satfinite:
        assert form.inf_bits is not None
        magnitude = words & kind(form.magnitude_mask)
        words = np.where(magnitude == form.inf_bits, words - kind(1 << form.low_bits), words)
    if relu:  # NaN is already canonical, thus positive
        words = np.where(words & kind(form.sign_mask), kind(0), words)
    return words


def _encode(
    values: Array, form: Format, rounding: str, satfinite: bool | None, relu: bool, sat: bool, random: Array | None
) -> Array:
    if not form.is_float:
        return _to_integer(_rounded(values, rounding, None, None), FORMATS["f32"], form)
    if sat:
        values = np.where(values > 0, np.minimum(values, 1.0), 0.0)  # NaN and -0 become +0
    if form.name == "f64":
        return _limit(values.view(np.uint64).copy(), form, bool(satfinite), relu)
    if form.special == "scale":
        return _encode_scale(values, form, rounding, satfinite is None or satfinite)
    if rounding == "rn" and form.name in ("f32", "f16"):
        words = values.astype(np.float32 if form.name == "f32" else np.float16).view(form.dtype)
        words = np.where(np.isnan(values), form.dtype.type(form.nan_bits or 0), words)
        return _limit(words, form, bool(satfinite), relu)
    negative = np.signbit(values)
    magnitude = np.abs(values)
    exponent = np.where((magnitude > 0) & np.isfinite(magnitude), np.frexp(magnitude)[1] - 1, form.emin)
    step = np.maximum(exponent, form.emin) - form.mantissa_bits
    significand = _rounded(np.ldexp(magnitude, -step), rounding, negative, _random(random, form))
    # a significand below 1.0 is subnormal, one that was rounded up to 2.0 carries into the exponent
    lift = (step + (form.mantissa_bits - form.emin)).astype(np.int64) << form.mantissa_bits
    codes = significand.astype(np.int64) + lift
    largest = form.max_bits >> form.low_bits
    infinite = np.isinf(magnitude)
    above = codes > largest
    if satfinite or (satfinite is None and form.inf_bits is None) or form.special == "none":
        over = largest
    else:
        top = form.inf_bits if form.inf_bits is not None else form.nan_bits
        assert top is not None
        over = top >> form.low_bits
        inward = {"rz": above, "rm": above & ~negative, "rp": above & negative}.get(rounding)
        if inward is not None:
            codes = np.where(inward & ~infinite, largest, codes)
            above = codes > largest
    codes = np.where(above | infinite, over, codes)
    nan = np.isnan(values)
    codes = np.where(nan, (form.max_bits if form.nan_bits is None else form.nan_bits) >> form.low_bits, codes)
    if form.signed:
        signed = codes | np.int64(form.sign_mask >> form.low_bits)
        codes = np.where(negative & ~nan, 0 if relu else signed, codes)
    else:
        codes = np.where(negative & ~nan, 0, codes)  # nothing below zero exists
    return (codes << form.low_bits).astype(form.dtype)


def _rounded(scaled: Array, rounding: str, negative: Array | None, random: tuple[Array, int] | None) -> Array:
    """Magnitudes rounded to integers (the values themselves where `negative` is None)."""
    if rounding == "rn":
        return np.rint(scaled)
    if rounding == "rz":
        return np.trunc(scaled)
    if rounding in ("rm", "rp"):
        up = np.ceil(scaled) if rounding == "rp" else np.floor(scaled)
        if negative is None:
            return up
        away = negative if rounding == "rm" else ~negative
        return np.where(away, np.ceil(scaled), np.floor(scaled))
    whole = np.trunc(scaled)
    rest = np.abs(scaled - whole)
    if rounding == "rna":
        return whole + np.where(rest >= 0.5, np.copysign(1.0, scaled), 0.0)
    assert random is not None
    bits, width = random
    return whole + np.where(np.trunc(rest * 2.0**width) + bits >= 2.0**width, 1.0, 0.0)


def _random(random: Array | None, form: Format) -> tuple[Array, int] | None:
    if random is None:
        return None
    width = RANDOM_BITS[form.name]
    return np.asarray(random).astype(np.int64) & ((1 << width) - 1), width


def _encode_scale(values: Array, form: Format, rounding: str, satfinite: bool) -> Array:
    """ue8m0: the sign is ignored, all at or below 2^-127 (zero too) is code 0, Inf and what rounds beyond 2^127 is 0xFF
    (NaN), or 0xFE with satfinite. Nearest rounds the midpoint up, as CUDA's own conversion does."""
    magnitude = np.abs(values)
    fraction, exponent = np.frexp(magnitude)  # fraction in [0.5, 1)
    up = {"rp": fraction > 0.5, "rn": fraction >= 0.75, "rna": fraction >= 0.75}.get(rounding, False)
    codes = np.where(magnitude > 0, exponent - 1 + up + form.bias, 0)
    codes = np.minimum(np.maximum(codes, 0), 0xFF)
    codes = np.where(np.isinf(magnitude), 0xFF, codes)
    if satfinite:
        codes = np.minimum(codes, 0xFE)
    return np.where(np.isnan(values), 0xFF, codes).astype(np.uint8)


# ---- integers ----------------------------------------------------------------------------------------------------


def _integers(bits: Array, of: Format) -> Array:
    """The values as uint64 (u64) or int64 (all others)."""
    if of.name == "u64":
        return bits
    if of.bits < 8:
        return formats.decode(bits, of.name).astype(np.int64)
    return bits.view(of.storage.lstrip("u")).astype(np.int64) if of.signed else bits.astype(np.int64)


def _wrap(values: Array, to: Format, sat: bool) -> Array:
    """Integers into `to`: clamped with `sat`, else cut to its width."""
    if sat:
        low = -(1 << (to.bits - 1)) if to.signed else 0
        high = (1 << (to.bits - to.signed)) - 1
        if values.dtype == np.uint64:
            values = np.minimum(values, np.uint64(high))
        else:
            values = np.maximum(np.minimum(values, min(high, (1 << 63) - 1)), low)
    return (values.astype(np.uint64) & np.uint64((1 << to.bits) - 1)).astype(to.dtype)


def _to_integer(values: Array, of: Format, to: Format) -> Array:
    """Integral float64 values into `to`, clamped. NaN is 0, or 1 << (bits - 1) if a side has 64 bits (PTX 9.7.9.21)."""
    high = 2.0 ** (to.bits - to.signed)
    low = -high if to.signed else 0.0
    inside = (values > low) & (values < high)
    safe = np.where(inside, values, 0.0)
    words = safe.astype(np.int64).astype(np.uint64) if to.signed else safe.astype(np.uint64)
    words = np.where(values >= high, np.uint64((1 << (to.bits - to.signed)) - 1), words)
    words = np.where(values <= low, np.uint64((1 << (to.bits - 1)) if to.signed else 0), words)
    words = np.where(np.isnan(values), np.uint64(1 << (to.bits - 1) if 64 in (of.bits, to.bits) else 0), words)
    return (words & np.uint64((1 << to.bits) - 1)).astype(to.dtype)


def _from_integer(bits: Array, of: Format, to: Format, rounding: str, sat: bool) -> Array:
    values = _integers(bits, of)
    if of.bits == 64:
        return _encode(_rounded_to_53_bits(values, rounding, to.name == "f64"), to, rounding, False, False, sat, None)
    return _encode(values.astype(np.float64), to, rounding, False, False, sat, None)


def _rounded_to_53_bits(values: Array, rounding: str, final: bool) -> Array:
    """64-bit integers as float64: rounded if that is the destination, else cut with a sticky last bit, which leaves the
    rounding to any narrower format unchanged."""
    negative = np.zeros(values.shape, bool) if values.dtype == np.uint64 else values < 0
    magnitude = values.astype(np.uint64)
    magnitude = np.where(negative, ~magnitude + np.uint64(1), magnitude)
    length = np.frexp(magnitude.astype(np.float64))[1]
    length -= (magnitude >> np.maximum(length - 1, 0).astype(np.uint64) == 0) & (length > 0)  # was rounded up to 2^n
    shift = np.maximum(length - 53, 0).astype(np.uint64)
    top = magnitude >> shift
    rest = magnitude - (top << shift)
    if final:
        half = np.where(shift > 0, np.uint64(1) << (np.maximum(shift, 1) - np.uint64(1)), np.uint64(0))
        odd = (top & np.uint64(1)) == 1
        more = rest > 0
        up = {
            "rn": more & ((rest > half) | ((rest == half) & odd)),
            "rz": np.zeros(values.shape, bool),
            "rm": more & negative,
            "rp": more & ~negative,
        }[rounding]
    else:
        up = (rest > 0) & ((top & np.uint64(1)) == 0)
    exact = np.ldexp((top + up.astype(np.uint64)).astype(np.float64), shift.astype(np.int32))
    signed: Array = np.where(negative, -exact, exact)
    return signed
