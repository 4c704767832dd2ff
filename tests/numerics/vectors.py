"""Adversarial operands for matrix arithmetic, made from a seed by our own counter-based generator, so that the same
inputs can be made again anywhere and only outputs need to be stored. Nothing here may depend on a BLAS or on NumPy's
generators.
"""

from __future__ import annotations

import numpy as np

FAMILIES = ("bits", "finite", "window", "few", "cancel", "tiny", "zero", "floor", "special")

_MIX = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


class Stream:
    """A counter-based generator: word i of a stream is a 64-bit mix of (seed, i); independent of NumPy's generators."""

    def __init__(self, *seed: int | str) -> None:
        state = np.full(1, 0x9E3779B97F4A7C15, np.uint64)
        for part in seed:
            for value in part.encode() if isinstance(part, str) else [part]:
                state = self._mix(state + np.array([value * 0x9E3779B97F4A7C15 % 2**64], np.uint64))
        self.key = state
        self.used = 0

    @staticmethod
    def _mix(x):
        with np.errstate(over="ignore"):
            x = (x ^ (x >> np.uint64(30))) * _MIX[0]
            x = (x ^ (x >> np.uint64(27))) * _MIX[1]
            return x ^ (x >> np.uint64(31))

    def words(self, *shape: int) -> np.ndarray:
        count = int(np.prod(shape))
        index = np.arange(self.used + 1, self.used + count + 1, dtype=np.uint64)
        self.used += count
        with np.errstate(over="ignore"):
            return self._mix(self.key + index * np.uint64(0x9E3779B97F4A7C15)).reshape(shape)

    def below(self, limit: int, *shape: int) -> np.ndarray:
        return ((self.words(*shape) >> np.uint64(32)).astype(np.int64) * limit) >> 32

    def between(self, low: int, high: int, *shape: int) -> np.ndarray:
        """Integers of [low, high]."""
        return low + self.below(high - low + 1, *shape)


# name: (exponent bits, fraction bits, bias, container, first code that is Inf or NaN)
FIELDS = {
    "f16": (5, 10, 15, np.uint16, 0x7C00),
    "bf16": (8, 7, 127, np.uint16, 0x7F80),
    "tf32": (8, 23, 127, np.uint32, 0x7F800000),
    "f32": (8, 23, 127, np.uint32, 0x7F800000),
    "f64": (11, 52, 1023, np.uint64, 0x7FF << 52),
    "e4m3": (4, 3, 7, np.uint8, 0x7F),
    "e5m2": (5, 2, 15, np.uint8, 0x7C),
    "e2m3": (2, 3, 1, np.uint8, 0x20),
    "e3m2": (3, 2, 3, np.uint8, 0x20),
    "e2m1": (2, 1, 1, np.uint8, 0x08),
}


def codes(stream: Stream, fmt: str, family: str, *shape: int) -> np.ndarray:
    """Operand codes of one family."""
    exponent_bits, fraction, bias, container, first_special = FIELDS[fmt]
    width = exponent_bits + fraction
    raw = stream.words(*shape) >> np.uint64(64 - width - 1)
    sign = raw & np.uint64(1 << width)
    magnitude = raw & np.uint64((1 << width) - 1)
    low = magnitude & np.uint64((1 << fraction) - 1)
    if family == "bits":
        return raw.astype(container)
    if family in ("finite", "few", "special"):
        magnitude %= np.uint64(first_special)
    elif family in ("window", "cancel"):
        centre = min(bias, (1 << exponent_bits) // 2)
        spread = min(7, centre - 1) if exponent_bits > 2 else 0
        field = stream.between(max(centre - spread, 0), min(centre + spread, (first_special >> fraction) - 1), *shape)
        magnitude = (field.astype(np.uint64) << np.uint64(fraction)) | low
        magnitude = np.minimum(magnitude, np.uint64(first_special - 1))
    elif family == "tiny":
        field = stream.below(2, *shape).astype(np.uint64) * (stream.below(3, *shape) == 0)
        magnitude = (field << np.uint64(fraction)) | low
    elif family == "zero":
        magnitude = np.where(stream.below(16, *shape) == 0, magnitude % np.uint64(first_special), np.uint64(0))
    elif family == "floor":
        magnitude = _around_the_floor(stream, fmt, magnitude % np.uint64(first_special), low)
    else:
        raise AssertionError(family)
    if family == "few":
        magnitude = np.where(stream.below(shape[-1], *shape) < 2, magnitude, np.uint64(0))
    if family == "special":
        pick = stream.below(24, *shape)
        top = np.uint64((1 << width) - 1)
        magnitude = np.where(pick == 0, np.minimum(np.uint64(first_special), top), magnitude)
        magnitude = np.where(pick == 1, top, magnitude)
        magnitude = np.where(pick < 6, np.where(pick >= 2, np.uint64(0), magnitude), magnitude)
    return (sign | magnitude).astype(container)


def _around_the_floor(stream: Stream, fmt: str, magnitude: np.ndarray, low: np.ndarray) -> np.ndarray:
    """Magnitudes whose products lie below the least alignment exponent (C must be zero), so that sums just reach or
    miss a step of the output. bf16, tf32: products near 2^-148. f16: k = 0 makes ties of subnormal f16, the rest
    products of 2^-42 to 2^-48. Narrower formats get there by their scales alone."""
    fraction, bias = FIELDS[fmt][1:3]
    shape = magnitude.shape
    if fmt in ("bf16", "tf32", "f32"):
        field = bias - 74 + stream.between(-3, 3, *shape)
        return (field.astype(np.uint64) << np.uint64(fraction)) | low
    if fmt == "f16":
        magnitude = np.uint64(1) << stream.below(4, *shape).astype(np.uint64)
        magnitude = np.where(stream.below(2, *shape) == 0, magnitude, np.uint64(0))
        ties = np.array([0x0C00, 0x0800, 0x0A00], np.uint64)  # 2^-12, 2^-13, 3 * 2^-14
        magnitude[..., 0] = ties[stream.below(3, *shape[:-1])]
    return magnitude


def accumulators(stream: Stream, fmt: str, family: str, approximate: np.ndarray) -> np.ndarray:
    """C codes. `approximate` [M, N] is the float64 sum of products; "cancel" takes its negative, off by a few steps."""
    shape = approximate.shape
    container = FIELDS[fmt][3]
    if family == "cancel":
        target = {"f16": np.float16, "f32": np.float32, "f64": np.float64}[fmt]
        with np.errstate(all="ignore"):
            near = (-approximate).astype(target).view(container)
        off = stream.between(-2, 2, *shape)
        magnitude = near & container((1 << (near.dtype.itemsize * 8 - 1)) - 1)
        return np.where(magnitude > 8, near + off, near).astype(container)
    if family == "floor":
        return np.where(stream.below(2, *shape) == 0, container(0), container(1 << sum(FIELDS[fmt][:2])))
    out = codes(stream, fmt, {"few": "window"}.get(family, family), *shape)
    return np.where(stream.below(8, *shape) == 0, container(0), out).astype(container)


def scale_codes(stream: Stream, fmt: str, family: str, *shape: int) -> np.ndarray:
    """Scale codes: all of them in "bits", without NaN in the others, near 1 in most."""
    if family == "bits":
        return stream.below(256, *shape).astype(np.uint8)
    if family == "floor" and fmt == "ue8m0":  # the first group near the least f32, the others far below it
        spread = stream.between(38, 41, *shape)
        spread[..., 0] = stream.between(51, 53, *shape[:-1])
        return spread.astype(np.uint8)
    if family in ("finite", "floor", "tiny"):
        return stream.below(255 if fmt == "ue8m0" else 127, *shape).astype(np.uint8)
    if fmt == "ue8m0":
        return stream.between(120, 134, *shape).astype(np.uint8)
    if family == "zero":
        return np.where(stream.below(3, *shape) == 0, 0, stream.between(1, 126, *shape)).astype(np.uint8)
    return stream.between(40, 72, *shape).astype(np.uint8)
