"""Which cells of tensor memory an operation touches: index arrays, made once for each shape.

Lanes and columns are relative to the operation's address. Formulas: PTX 9.7.16.2, .8, .9, .10; positions that the
manual gives as figures are those of CUTLASS's public headers.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import numpy.typing as npt

Index = npt.NDArray[np.int64]


def _frozen(*arrays: Index) -> tuple[Index, ...]:
    for a in arrays:
        a.flags.writeable = False
    return arrays


@lru_cache(256)
def accumulator(m: int, n: int, group: int, ws: bool, sparse: bool) -> tuple[Index, ...]:
    """(CTA of the pair, lane, column) of each element of D, each [m, n]: layouts A-G of PTX 9.7.16.10.5."""
    row, column = np.divmod(np.arange(m * n, dtype=np.int64).reshape(m, n), n)
    cta = np.zeros_like(row)
    if group == 2 and m == 256:  # A
        return _frozen(row // 128, row % 128, column)
    if group == 2 and sparse:  # C
        half = row % 64
        return _frozen(row // 64, half % 16 + 32 * (half // 16), column)
    if group == 2:  # B
        right = column >= n // 2
        return _frozen(row // 64, row % 64 + 64 * right, column % (n // 2))
    if m == 128:  # D
        return _frozen(cta, row, column)
    if m == 64 and ws:  # E
        return _frozen(cta, row + 64 * (column >= n // 2), column % (n // 2))
    if m == 64:  # F
        return _frozen(cta, row % 16 + 32 * (row // 16), column)
    return _frozen(cta, row + 32 * (column // (n // 4)), column % (n // 4))  # G


@lru_cache(64)
def a_lanes(m: int, group: int, ws: bool) -> Index:
    """Lane of each row of A held by one CTA (m rows in all); rows of layout B also lie 64 lanes further down."""
    rows = np.arange(m // group, dtype=np.int64)
    if m // group == 64 and not ws and group == 1:
        return _frozen(rows % 16 + 32 * (rows // 16))[0]
    return _frozen(rows)[0]


@lru_cache(64)
def scales_a(m: int) -> tuple[Index, ...]:
    """(lane, column), each [m], of the 32-bit cell that holds a row's factors, in the first of four replicas."""
    rows = np.arange(m, dtype=np.int64)
    return _frozen(rows % 32, rows // 32)


@lru_cache(64)
def scales_b(n: int, split: bool) -> tuple[Index, ...]:
    """As `scales_a` for the n columns of D; `split` (M 128 on a pair): the two halves lie in lanes 0-63 and 64-127."""
    cols = np.arange(n, dtype=np.int64)
    if split:
        return _frozen(cols % (n // 2) % 32 + 64 * (cols >= n // 2), cols % (n // 2) // 32)
    return _frozen(cols % 32, cols // 32)


@lru_cache(64)
def metadata(m: int, kind: str) -> tuple[Index, ...]:
    """(lane, column, shift), each [m, chunks]: where the 4-bit code of each chunk of a row lies (PTX 9.7.16.10.8).

    f16 and tf32: 8 chunks in 16-bit halves of one column; others: 16 chunks in two columns of the row's own lane.
    """
    chunks = 8 if kind in ("f16", "tf32") else 16
    row, chunk = np.divmod(np.arange(m * chunks, dtype=np.int64).reshape(m, chunks), chunks)
    if chunks == 8:
        lane = row % 8 + 16 * (row // 16) + 8 * (chunk >= 4)
        return _frozen(lane, np.zeros_like(row), 16 * (row // 8 % 2) + 4 * (chunk % 4))
    return _frozen(row, chunk // 8, 4 * (chunk % 8))


@lru_cache(256)
def moved(shape: str, registers: int, split: int) -> tuple[Index, ...]:
    """(lane, column), each [registers, 32], of tcgen05.ld and st: what each lane's registers hold."""
    r, t = np.divmod(np.arange(registers * 32, dtype=np.int64).reshape(registers, 32), 32)
    if shape == "32x32b":
        return _frozen(t, r)
    if shape == "16x64b":
        return _frozen((t >> 2) + 8 * (t & 1), 2 * r + (t >> 1 & 1))
    if shape == "16x128b":
        return _frozen(t // 4 + 8 * (r % 2), 4 * (r // 2) + t % 4)
    if shape == "16x256b":
        return _frozen(t // 4 + 8 * (r // 2 % 2), 8 * (r // 4) + 2 * (t % 4) + r % 2)
    return _frozen(t % 16, r + split * (t >= 16))  # 16x32bx2


@lru_cache(16)
def copied(shape: str, multicast: str) -> tuple[Index, int, int]:
    """(lane [copies, rows], rows, columns) of tcgen05.cp: where each source row goes."""
    rows, columns = {
        "128x256b": (128, 8), "4x256b": (4, 8), "128x128b": (128, 4), "64x128b": (64, 4), "32x128b": (32, 4),
    }[shape]  # fmt: skip
    r = np.arange(rows, dtype=np.int64)
    lanes = {
        "": [r if shape != "4x256b" else 32 * r],
        "warpx2::02_13": [r, r + 64],
        "warpx2::01_23": [r % 32 + 64 * (r // 32), r % 32 + 64 * (r // 32) + 32],
        "warpx4": [r, r + 32, r + 64, r + 96],
    }[multicast]
    return _frozen(np.stack(lanes))[0], rows, columns
