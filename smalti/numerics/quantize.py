"""Block quantisation of float arrays: OCP MX v1.0 (mxfp8, mxfp6, mxfp4) and NVFP4 with its global scale, and back.
Pure functions on NumPy arrays that give unpacked element codes and scale codes; memory layouts of scales and packed
elements are not known here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.errors import error
from smalti.numerics import formats
from smalti.numerics.convert import encode
from smalti.numerics.formats import FORMATS, Format

Array = NDArray[Any]


@dataclass(frozen=True)
class Scheme:
    """Element format, scale format, elements a scale covers, and whether a global float32 scale stands above both."""

    name: str
    element: str
    scale: str
    block: int
    two_level: bool = False


SCHEMES: dict[str, Scheme] = {
    scheme.name: scheme
    for scheme in (
        Scheme("mxfp8", "e4m3", "ue8m0", 32),
        Scheme("mxfp8_e5m2", "e5m2", "ue8m0", 32),
        Scheme("mxfp6_e2m3", "e2m3", "ue8m0", 32),
        Scheme("mxfp6_e3m2", "e3m2", "ue8m0", 32),
        Scheme("mxfp4", "e2m1", "ue8m0", 32),
        Scheme("nvfp4", "e2m1", "ue4m3", 16, two_level=True),
    )
}

SCALE_ROUNDINGS = ("floor", "ceil", "even")


@dataclass(frozen=True)
class Quantized:
    """elements: codes of the scheme's element format, shape of the input; scales: uint8 codes, one a block along axis;
    global_scale: float32 of NVFP4, None otherwise. A value is element x scale x global scale."""

    scheme: Scheme
    axis: int
    elements: Array
    scales: Array
    global_scale: np.float32 | None


def lookup(name: str) -> Scheme:
    """The scheme called `name`; SML1012 if there is none."""
    found = SCHEMES.get(name) if isinstance(name, str) else None
    if found is None:
        raise error("SML1012", scheme=name, known=", ".join(SCHEMES))
    return found


def quantize(
    x: Any, scheme: str, *, axis: int = -1, scale_rounding: str | None = None, global_scale: float | None = None
) -> Quantized:
    """Quantises `x` (float32 or float64, at least 1-D) in blocks along `axis`; a last block may be shorter.

    MX (OCP MX v1.0, 6.3): the scale is a power of two, elements are rounded to nearest even and saturate.
    With a block's largest magnitude `top` and the element format's largest number `max` and its exponent `emax`:
      "floor" (MX's rule, the default): 2^(floor(log2 top) - emax); up to a binade at the top saturates
      "ceil": the smallest power of two with top / scale <= max; nothing saturates
      "even": as floor, but of top rounded to the element's precision first
    Scales are limited to 2^-127 ... 2^127; a block of zeros gets 2^-127.

    NVFP4: global = max|x| / (6 * 448) in float32 (or `global_scale`; 1 for an array of zeros), scale = top / 6 / global
    rounded to ue4m3 ("even", the default, to nearest even; "floor" and "ceil" down and up), saturating at 448, and
    elements are x / (scale * global) rounded to nearest even. A scale that rounds to 0 makes its block 0.

    Specials: a NaN makes its whole block NaN (the NaN scale). An Inf counts as larger than any number: its block gets
    the largest scale and Inf becomes the largest element of its sign; it does not enter NVFP4's global scale.

    Raises SML1011 (other dtypes, 0-D), SML1012 (scheme), SML1013 (axis, scale_rounding, global_scale).
    """
    kind = lookup(scheme)
    try:
        array = np.asarray(x)
    except ValueError as ragged:
        raise error("SML1011", got="rows that differ", fmt=kind.name) from ragged
    if array.dtype.newbyteorder("=") not in (np.float32, np.float64):
        raise error("SML1011", got=str(array.dtype), fmt=kind.name)
    rounding = scale_rounding or ("even" if kind.two_level else "floor")
    _check_options(array, kind, axis, rounding, global_scale)
    blocks = _blocks(array.astype(np.float64), axis, kind.block)
    top = np.abs(blocks).max(axis=-1, initial=0.0)  # NaN if the block holds one
    level = _global_scale(top, global_scale) if kind.two_level else None
    scales = _two_level_scales(top, level, rounding) if level is not None else _mx_scales(top, kind, rounding)
    with np.errstate(all="ignore"):
        divisor = formats.decode(scales, kind.scale) * (1.0 if level is None else np.float64(level))
        ratio = blocks / divisor[..., None]
    ratio[divisor == 0] = 0.0
    nan = np.isnan(top)
    ratio[nan] = np.nan if FORMATS[kind.element].nan_bits is not None else 0.0
    elements = _unblocks(encode(ratio, kind.element, satfinite=True), array.shape, axis)
    return Quantized(kind, axis % array.ndim, elements, np.moveaxis(scales, -1, axis), level)


def dequantize(
    elements: Any,
    scales: Any,
    scheme: str,
    *,
    axis: int = -1,
    global_scale: float | None = None,
    dtype: Any = np.float32,
) -> Array:
    """element x scale x global scale, computed exactly in float64 (one rounding where there is a global scale), then
    rounded to `dtype`.

    scales: uint8 codes of the scheme's scale format, or an array of a one-byte float type that holds such codes, with
    ceil(length / block) entries along `axis`. Floats are refused (they are values, not codes): SML1014. SML1002 for the
    elements' container, SML1012 for the scheme, SML1013 for the axis or a global scale that is missing or not wanted.
    """
    kind, codes, scale_codes = check(elements, scales, scheme, axis=axis, global_scale=global_scale)
    length = codes.shape[axis]
    factor = np.repeat(formats.decode(scale_codes, kind.scale), kind.block, axis=axis)
    factor = np.take(factor, np.arange(length), axis=axis)
    values = formats.decode(codes, kind.element) * factor
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return (values * np.float64(global_scale) if kind.two_level else values).astype(dtype)


def check(
    elements: Any, scales: Any, scheme: str, *, axis: int = -1, global_scale: float | np.float32 | None = None
) -> tuple[Scheme, Array, Array]:
    """The scheme, element codes and scale codes, if they fit each other. Raises as `dequantize`."""
    kind = lookup(scheme)
    codes = formats.as_bits(elements, FORMATS[kind.element])
    if (global_scale is not None) != kind.two_level:
        raise error("SML1013", what="global_scale", got=global_scale, scheme=kind.name, legal=_GLOBAL[kind.two_level])
    _check_options(codes, kind, axis, "floor", None if global_scale is None else float(global_scale))
    return kind, codes, _scale_codes(scales, kind, codes.shape, axis)


_GLOBAL = {True: "a finite number above 0", False: "None: this scheme has no global scale"}


def _check_options(array: Array, kind: Scheme, axis: int, rounding: str, global_scale: float | None) -> None:
    if array.ndim == 0:
        raise error("SML1011", got="a 0-D array", fmt=kind.name)
    if not isinstance(axis, int | np.integer) or not -array.ndim <= axis < array.ndim:
        raise error("SML1013", what="axis", got=axis, scheme=kind.name, legal=f"{-array.ndim} to {array.ndim - 1}")
    if rounding not in SCALE_ROUNDINGS:
        raise error("SML1013", what="scale_rounding", got=rounding, scheme=kind.name, legal=", ".join(SCALE_ROUNDINGS))
    if global_scale is not None and not (kind.two_level and 0 < np.float32(global_scale) < np.inf):
        raise error("SML1013", what="global_scale", got=global_scale, scheme=kind.name, legal=_GLOBAL[kind.two_level])


def _scale_codes(scales: Any, kind: Scheme, shape: tuple[int, ...], axis: int) -> Array:
    codes = np.asarray(scales)
    if codes.dtype.itemsize == 1 and codes.dtype.kind in "fV":  # float8_e8m0fnu, float8_e4m3fn
        codes = codes.view(np.uint8)
    expected = list(shape)
    expected[axis] = -(-shape[axis] // kind.block)
    if codes.dtype != np.uint8 or list(codes.shape) != expected:
        got = [str(codes.dtype), *codes.shape]
        raise error("SML1014", scheme=kind.name, scale=kind.scale, expected=expected, got=got)
    return codes


def _blocks(array: Array, axis: int, block: int) -> Array:
    """[..., length along axis] as [..., blocks, block], the last block filled with zeros."""
    moved = np.moveaxis(array, axis, -1)
    length = moved.shape[-1]
    count = -(-length // block)
    padded = np.zeros((*moved.shape[:-1], count * block))
    padded[..., :length] = moved
    return padded.reshape(*moved.shape[:-1], count, block)


def _unblocks(blocks: Array, shape: tuple[int, ...], axis: int) -> Array:
    flat = blocks.reshape(*blocks.shape[:-2], blocks.shape[-2] * blocks.shape[-1])
    return np.ascontiguousarray(np.moveaxis(flat[..., : shape[axis]], -1, axis))


def _mx_scales(top: Array, kind: Scheme, rounding: str) -> Array:
    form = FORMATS[kind.element]
    if rounding == "even":
        top = _rounded_to_precision(top, form)
    fraction, exponent = np.frexp(top)  # top = fraction * 2^exponent, fraction in [0.5, 1)
    largest, above = np.frexp(form.max)
    power = exponent - int(above)  # floor(log2 top) - emax
    if rounding == "ceil":
        power = power + (fraction > largest)
    codes = np.clip(power + FORMATS["ue8m0"].bias, 0, 0xFE)
    codes = np.where(np.isinf(top), 0xFE, np.where(top == 0, 0, codes))
    return np.where(np.isnan(top), 0xFF, codes).astype(np.uint8)


def _rounded_to_precision(top: Array, form: Format) -> Array:
    """To the element's number of significant bits, nearest even, without any limit of range."""
    fraction, exponent = np.frexp(top)
    unit = 2.0 ** (form.mantissa_bits + 1)
    return np.ldexp(np.rint(fraction * unit) / unit, exponent)


def _global_scale(top: Array, given: float | None) -> np.float32:
    if given is not None:
        return np.float32(given)
    finite = top[np.isfinite(top)]
    largest = float(finite.max(initial=0.0))
    if largest == 0:
        return np.float32(1)
    level = largest / (FORMATS["e2m1"].max * FORMATS["ue4m3"].max)
    limits = np.finfo(np.float32)
    return np.float32(min(max(level, float(limits.tiny)), float(limits.max)))


def _two_level_scales(top: Array, level: np.float32, rounding: str) -> Array:
    direction = {"even": "rn", "floor": "rz", "ceil": "rp"}[rounding]
    with np.errstate(all="ignore"):
        return encode(top / FORMATS["e2m1"].max / np.float64(level), "ue4m3", direction, satfinite=True)
