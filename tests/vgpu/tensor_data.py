"""Operands of matrix tests: small exact values of every format, packed by rules written here, and where D, scales and
metadata belong, by plain formulas. Independent of the package: formats are those of ml_dtypes and NumPy.
"""

from __future__ import annotations

import ml_dtypes
import numpy as np

TYPES = {
    "f16": np.float16, "bf16": ml_dtypes.bfloat16, "tf32": np.float32, "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2, "e2m3": ml_dtypes.float6_e2m3fn, "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m1": ml_dtypes.float4_e2m1fn, "s8": np.int8, "u8": np.uint8,
}  # fmt: skip
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e2m3": 6, "e3m2": 6, "e2m1": 4}
SMALL = np.array([-3, -2, -1, -0.5, 0.5, 1, 1.5, 2, 3])


def values(fmt: str, shape: tuple[int, int], seed: int) -> np.ndarray:
    """Exact values of the format, float64, no zeros."""
    r = np.random.default_rng(seed)
    legal = {"s8": np.arange(-9, 10), "u8": np.arange(1, 10)}.get(fmt, SMALL)
    legal = legal[legal != 0]
    return legal[r.integers(0, len(legal), shape)].astype(np.float64)


def codes(v: np.ndarray, fmt: str) -> np.ndarray:
    """Values as element codes, one an entry."""
    raw = v.astype(TYPES[fmt])
    return raw.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[raw.dtype.itemsize])


def packed(c: np.ndarray, bits: int, gap: int = 0) -> np.ndarray:
    """Codes [rows, n] of 4 or 6 bits as bytes, little-endian; `gap`: bytes of garbage after each 16 codes."""
    flat = (c[..., None] >> np.arange(bits) & 1).astype(np.uint8).reshape(len(c), -1)
    raw = np.packbits(flat, axis=1, bitorder="little")
    if not gap:
        return raw
    groups = raw.reshape(len(c), -1, 2 * bits)
    pad = np.full((*groups.shape[:2], gap), 0xEE, np.uint8)
    return np.concatenate([groups, pad], axis=2).reshape(len(c), -1)


def shared_rows(v: np.ndarray, fmt: str, dense4: bool = False) -> np.ndarray:
    """Rows of bytes as an operand has them in shared memory: small formats padded to 16 bytes for 16 elements."""
    c = codes(v, fmt)
    bits = BITS.get(fmt, 8)
    if bits in (4, 6):
        return packed(c, bits, 0 if dense4 else 16 - 2 * bits)
    return np.ascontiguousarray(c).view(np.uint8).reshape(len(c), -1)


def tensor_rows(v: np.ndarray, fmt: str, dense4: bool = False) -> np.ndarray:
    """Rows of bytes as A has them in tensor memory: small formats in a byte each, e2m1 in bits 5..2."""
    c = codes(v, fmt)
    bits = BITS.get(fmt, 8)
    if bits == 4 and not dense4:
        return (c << 2).astype(np.uint8)
    return shared_rows(v, fmt, dense4) if bits != 6 else c.astype(np.uint8)


def d_cells(m: int, n: int, group: int, ws: bool, sparse: bool = False) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """CTA, lane, column of each element of D: the formulas of layouts A to G."""
    row, col = np.arange(m)[:, None] + 0 * np.arange(n), np.arange(n)[None, :] + 0 * np.arange(m)[:, None]
    if group == 2 and m == 256:
        return row // 128, row % 128, col
    if group == 2 and not sparse:
        return row // 64, row % 64 + 64 * (col >= n // 2), col % (n // 2)
    if group == 2:
        inside = row % 64
        return row // 64, inside % 16 + 32 * (inside // 16), col
    if m == 128:
        return 0 * row, row, col
    if m == 64 and ws:
        return 0 * row, row + 64 * (col >= n // 2), col % (n // 2)
    if m == 64:
        return 0 * row, row % 16 + 32 * (row // 16), col
    return 0 * row, row + 32 * (col // (n // 4)), col % (n // 4)
