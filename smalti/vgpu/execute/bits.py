"""Bit tricks on arrays of unsigned integers that NumPy lacks. Knows no instruction and no register."""

from __future__ import annotations

from typing import Any

import numpy as np

Array = Any

_POPCOUNT = np.array([i.bit_count() for i in range(1 << 16)], np.uint8)
_REVERSED = np.array([int(f"{i:08b}"[::-1], 2) for i in range(256)], np.uint8)


def popcount(x: Array) -> Array:
    """The number of set bits, as uint32."""
    x = np.atleast_1d(np.ascontiguousarray(x))
    return _POPCOUNT[x.view(np.uint16)].reshape(len(x), -1).sum(axis=1, dtype=np.uint32)


def bit_length(x: Array) -> Array:
    """The position behind the highest set bit (0 for 0), as int32."""
    if x.dtype.itemsize < 8:
        return np.frexp(x.astype(np.float64))[1].astype(np.int32)
    high = np.frexp((x >> np.uint64(32)).astype(np.float64))[1]
    low = np.frexp((x & np.uint64(0xFFFFFFFF)).astype(np.float64))[1]
    return np.where(high > 0, high + 32, low).astype(np.int32)


def bit_reverse(x: Array) -> Array:
    x = np.atleast_1d(np.ascontiguousarray(x))
    return np.ascontiguousarray(_REVERSED[x.view(np.uint8)].reshape(len(x), -1)[:, ::-1]).view(x.dtype)[:, 0]


def shift_left(x: Array, amount: Array) -> Array:
    """x << amount; amounts of the width and more give 0."""
    bits = 8 * x.dtype.itemsize
    return np.left_shift(x, np.minimum(amount, bits).astype(x.dtype))


def shift_right(x: Array, amount: Array) -> Array:
    """x >> amount; amounts of the width and more give 0, or copies of the sign of a signed x."""
    bits = 8 * x.dtype.itemsize
    return np.right_shift(x, np.minimum(amount, bits).astype(x.dtype))


def multiply_high(a: Array, b: Array) -> Array:
    """The upper half of the product, signed or unsigned by the dtype."""
    bits = 8 * a.dtype.itemsize
    if bits < 64:
        wide = np.int64 if a.dtype.kind == "i" else np.uint64
        return (np.multiply(a, b, dtype=wide) >> wide(bits)).astype(a.dtype)
    x, y = a.view(np.uint64), b.view(np.uint64)
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    x0, x1, y0, y1 = x & low, x >> half, y & low, y >> half
    middle = x1 * y0 + ((x0 * y0) >> half)
    upper = x1 * y1 + (middle >> half) + ((x0 * y1 + (middle & low)) >> half)
    if a.dtype.kind == "i":  # each negative operand counted 2^64 too much
        upper = upper - np.where(a < 0, y, np.uint64(0)) - np.where(b < 0, x, np.uint64(0))
    return upper.view(a.dtype)


# Byte numbers (0-3 of a, 4-7 of b) by selector 0-3, for the modes of prmt (PTX 9.7.9.7).
_MODES = {
    "f4e": [[k, k + 1, k + 2, k + 3] for k in range(4)],
    "b4e": [[k, (k + 7) % 8, (k + 6) % 8, (k + 5) % 8] for k in range(4)],
    "rc8": [[k, k, k, k] for k in range(4)],
    "ecl": [[max(k, i) for i in range(4)] for k in range(4)],
    "ecr": [[min(k, i) for i in range(4)] for k in range(4)],
    "rc16": [[0, 1, 0, 1], [2, 3, 2, 3], [0, 1, 0, 1], [2, 3, 2, 3]],
}


def byte_runs(selector: int) -> list[tuple[bool, int, int]]:
    """A constant selector of prmt as pieces: (from b, shift to the left, mask after it), neighbouring bytes joined."""
    runs: list[list[int]] = []  # source byte, target byte, length
    for at in range(4):
        byte = selector >> 4 * at & 7
        if runs and byte == runs[-1][0] + runs[-1][2] and byte != 4:
            runs[-1][2] += 1
        else:
            runs.append([byte, at, 1])
    return [(byte >= 4, 8 * (at - (byte & 3)), ((1 << 8 * n) - 1) << 8 * at) for byte, at, n in runs]


def put_together(a: Array, b: Array, pieces: list[tuple[bool, int, int]]) -> Array:
    out: Array = None
    for of_b, shift, mask in pieces:
        x = b if of_b else a
        if shift:
            x = x << np.uint32(shift) if shift > 0 else x >> np.uint32(-shift)
        x = x & np.uint32(mask)
        out = x if out is None else out | x
    return out


def permute(a: Array, b: Array, selector: Array, mode: str) -> Array:
    """prmt: picks four of the eight bytes of b:a; bit 3 of a selector replicates the byte's sign instead."""
    n = len(a)
    source = np.concatenate([a.view(np.uint8).reshape(n, 4), b.view(np.uint8).reshape(n, 4)], axis=1)
    if mode:
        table = np.array(_MODES[mode], np.intp)
        choice = table[np.broadcast_to(np.asarray(selector), n) & 3]
        picked = np.take_along_axis(source, choice, axis=1)
    else:
        nibble = (selector[:, None] >> np.arange(0, 16, 4, dtype=np.uint32)) & np.uint32(15)
        picked = np.take_along_axis(source, (nibble & np.uint32(7)).astype(np.intp), axis=1)
        picked = np.where(nibble & np.uint32(8), np.where(picked & 0x80, 0xFF, 0), picked).astype(np.uint8)
    return np.ascontiguousarray(picked).view(np.uint32)[:, 0]
