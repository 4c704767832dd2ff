"""Tensor memory: where accumulators, A operands, scale factors and sparse metadata of tcgen05 lie, and what ld, st
and cp move, as layouts. Outputs are `lane` (0-127) and `column` (32-bit cells), relative to the operation's address,
and `cta` of the pair where the two differ. Knows no values and no order of operations.

Copies of the same datum are told apart by an index `replica`. Formulas: PTX ISA 9.7.16.2.3, .8, .9, .10; positions
that PTX gives as figures only are those of CUTLASS's public headers (mma_traits_sm100_frag, copy_traits_sm100).
"""

from __future__ import annotations

from functools import cache

import numpy as np
from numpy.typing import NDArray

from smalti.errors import SmaltiError, error
from smalti.layout.boundary import checked
from smalti.layout.linear import Layout

__all__ = [
    "a_operand",
    "accumulator",
    "accumulator_name",
    "copy",
    "load_store",
    "metadata",
    "scale_atom",
    "scale_cells",
    "scales_a",
    "scales_b",
]

Array = NDArray[np.int64]
Digits = list[tuple[int, dict[str, int]]]
LANES, COLUMNS = 128, 512  # of a CTA's tensor memory (9.7.16.1)


def _refuse(what: str, legal: str) -> SmaltiError:
    return error("SML0450", what=what, legal=legal)


def _half_lanes(to: str = "lane") -> Digits:
    """64 rows in the first 16 lanes of each warp's 32."""
    return [(16, {to: 1}), (4, {to: 32})]


# Layout of D by (M, CTA group, .ws, sparse A): table of 9.7.16.10.5. `None`: any.
_NAMES: dict[tuple[int, int, bool], str | dict[bool, str]] = {
    (256, 2, False): "A",
    (128, 2, False): {False: "B", True: "C"},
    (128, 1, False): "D",
    (128, 1, True): "D",
    (64, 1, True): "E",
    (64, 1, False): "F",
    (32, 1, True): "G",
}
# Digits of the row, and in how many groups of lanes the columns are dealt out (lanes apart).
_ROWS: dict[str, tuple[Digits, int, int]] = {
    "A": ([(128, {"lane": 1}), (2, {"cta": 1})], 1, 0),
    "B": ([(64, {"lane": 1}), (2, {"cta": 1})], 2, 64),
    "C": ([*_half_lanes(), (2, {"cta": 1})], 1, 0),
    "D": ([(128, {"lane": 1})], 1, 0),
    "E": ([(64, {"lane": 1})], 2, 64),
    "F": (_half_lanes(), 1, 0),
    "G": ([(32, {"lane": 1})], 4, 32),
}


@checked
@cache
def accumulator_name(m: int, cta_group: int = 1, ws: bool = False, sparse: bool = False) -> str:
    """PTX's letter A-G of the layout of D. Errors: SML0450."""
    found = _NAMES.get((m, cta_group, ws))
    if found is None:
        legal = ", ".join(f"M {m} cta_group::{g}{'.ws' if w else ''}" for m, g, w in _NAMES)
        raise _refuse(f"accumulator with M {m}, cta_group::{cta_group}{'.ws' if ws else ''}", legal)
    return found if isinstance(found, str) else found[sparse]


@checked
@cache
def accumulator(m: int, n: int, cta_group: int = 1, ws: bool = False, sparse: bool = False) -> Layout:
    """D of tcgen05.mma: `m`, `n` -> `cta`, `lane`, `column`; one value a cell (16-bit ones in the low half).

    Layouts F and C may also start at lane 16. Columns taken: `.extents["column"]`. Errors: SML0450.
    """
    rows, groups, apart = _ROWS[accumulator_name(m, cta_group, ws, sparse)]
    if n % (8 * groups) or not 0 < n <= 256:
        raise _refuse(f"accumulator with N {n}", f"N from {8 * groups} to 256 in steps of {8 * groups}")
    columns: Digits = [(n // groups, {"column": 1}), (groups, {"lane": apart})]
    return Layout({"m": rows, "n": columns}, ["cta", "lane", "column"])


@checked
@cache
def a_operand(m: int, k: int, bits: int, cta_group: int = 1, ws: bool = False, sparse: bool = False) -> Layout:
    """A in tensor memory: `m`, `k`, `replica` -> `cta`, `lane`, `column`, `bit` (lowest bit inside the cell).

    `bits` of the container: 4 (mxf4), 8 (f8f6f4, also its 4- and 6-bit types), 16, 32; k counts packed elements
    of a sparse A. Rows lie as those of D; layout B wants a second copy 64 lanes further down (CUTLASS).
    Errors: SML0450; SML0451 for `.ws` with M below 128, which no source shows.
    """
    name = accumulator_name(m, cta_group, ws, sparse)
    if bits not in (4, 8, 16, 32) or k <= 0 or k * bits % 32:
        raise _refuse(f"A operand of {k} elements of {bits} bits", "whole cells of 4, 8, 16 or 32 bits")
    if name in ("E", "G"):
        raise error("SML0451", what=f"A operand in tensor memory for .ws with M {m}")
    each = 32 // bits
    inputs: dict[str, Digits] = {
        "m": _ROWS[name][0],
        "k": [(each, {"bit": bits}), (k // each, {"column": 1})],
        "replica": [(2, {"lane": 64})] if name == "B" else [],
    }
    return Layout(inputs, ["cta", "lane", "column", "bit"])


def _check_factors(factors: int) -> None:
    if factors not in (1, 2, 4):
        raise _refuse(f"scale factors, {factors} a row", "1, 2 or 4 (the 3 and 6 of K 96 are in figures only)")


@checked
@cache
def scales_a(rows: int, factors: int) -> Layout:
    """SFA of one CTA: `row`, `factor`, `replica` -> `lane`, `column`, `byte` of the cell.

    `rows`: M held by one CTA (128; 64 for M 128 on a pair). A scale id adds to `byte`. All four replicas must
    agree: which one is read is not known. Errors: SML0450.
    """
    _check_factors(factors)
    if rows not in (64, 128):
        raise _refuse(f"scale factors of A for {rows} rows in a CTA", "64 or 128")
    inputs: dict[str, Digits] = {
        "row": [(32, {"lane": 1}), (rows // 32, {"column": 1})],
        "factor": [(factors, {"byte": 1})],
        "replica": [(4, {"lane": 32})],
    }
    return Layout(inputs, ["lane", "column", "byte"])


@checked
@cache
def scales_b(n: int, factors: int, split: bool = False) -> Layout:
    """SFB, the same in both CTAs of a pair: `row`, `half`, `factor`, `replica` -> `lane`, `column`, `byte`.

    `row` runs to N rounded up to 32 (such bytes must be readable); `half` has one value, with `split` (layout B:
    M 128 on a pair) two: `row` then counts inside N/2. See `scale_cells` for plain n. Errors: SML0450.
    """
    _check_factors(factors)
    if n % (16 if split else 8) or not 0 < n <= 256:
        raise _refuse(f"scale factors of B for N {n}", "N from 8 to 256 in steps of 8, of 16 on a pair")
    columns = -(-n // (64 if split else 32))
    inputs: dict[str, Digits] = {
        "row": [(32, {"lane": 1}), (columns, {"column": 1})],
        "half": [(2, {"lane": 64})] if split else [],
        "factor": [(factors, {"byte": 1})],
        "replica": [(2, {"lane": 32})] if split else [(4, {"lane": 32})],
    }
    return Layout(inputs, ["lane", "column", "byte"])


@checked
@cache
def scale_cells(operand: str, extent: int, factors: int, split: bool = False) -> Array:
    """`scales_a` or `scales_b` ("A", "B") as lane, column, byte: int64 [3, extent, factors, replicas], read-only.

    `extent` is M of one CTA, or N. Errors: SML0450.
    """
    if operand not in ("A", "B"):
        raise _refuse(f"scale factors of operand {operand}", "A or B")
    layout = scales_a(extent, factors) if operand == "A" else scales_b(extent, factors, split)
    index = np.arange(extent)[:, None, None]
    factor = np.arange(factors)[None, :, None]
    if operand == "A":
        cells = layout(row=index, factor=factor, replica=np.arange(4))
    else:
        inside = extent // 2 if split else extent
        replica = np.arange(layout.inputs["replica"])
        cells = layout(row=index % inside, half=index // inside, factor=factor, replica=replica)
    cells.flags.writeable = False
    return cells


@checked
@cache
def scale_atom(rows: int = 128, factors: int = 4) -> Layout:
    """Scales in shared or global memory, tiled by 128 rows x 4 factors (512 bytes): `row`, `factor` -> `byte`.

    Inside an atom byte (r % 32) * 16 + (r / 32) * 4 + s, which `copy("32x128b", "warpx4")` turns into `scales_a`;
    atoms along the factors come first. `rows`, `factors` are multiples of 128 and 4. Errors: SML0450.
    """
    if rows <= 0 or rows % 128 or factors <= 0 or factors % 4:
        raise _refuse(f"scale tile of {rows} rows x {factors} factors", "multiples of 128 and 4")
    inputs: dict[str, Digits] = {
        "row": [(32, {"byte": 16}), (4, {"byte": 4}), (rows // 128, {"byte": 128 * factors})],
        "factor": [(4, {"byte": 1}), (factors // 4, {"byte": 512})],
    }
    return Layout(inputs, ["byte"])


@checked
@cache
def metadata(m: int, bits: int, cta_group: int = 1, ws: bool = False) -> Layout:
    """Metadata of a sparse A: `row`, `chunk`, `selector`, `replica` -> `lane`, `column`, `bit` of the 4-bit code.

    `row` runs over the rows of one CTA. `bits` of the container: 16 or 32: 8 chunks (of 4 elements, of 2 for 32
    bits), a selector of two columns; 8 or 4: 16 chunks of 4 elements (4 bits: 4 pairs), no selector.
    Errors: SML0450; SML0451 for M 64 without .ws and M 128 on a pair, which are in figures only.
    """
    name = accumulator_name(m, cta_group, ws, sparse=True)
    if bits not in (4, 8, 16, 32) or (ws and bits == 4):
        raise _refuse(f"metadata for {bits}-bit elements{' with .ws' if ws else ''}", "4 (not .ws), 8, 16, 32 bits")
    if name in ("C", "F"):
        raise error("SML0451", what=f"sparse metadata for M {m}, cta_group::{cta_group}, without .ws")
    rows = m // cta_group
    replicas = LANES // rows
    if bits >= 16:
        row: Digits = [(8, {"lane": 1}), (2, {"bit": 16}), (rows // 16, {"lane": 16})]
        chunk: Digits = [(4, {"bit": 4}), (2, {"lane": 8})]
    else:
        row, chunk = [(rows, {"lane": 1})], [(8, {"bit": 4}), (2, {"column": 1})]
    inputs: dict[str, Digits] = {
        "row": row,
        "chunk": chunk,
        "selector": [(2, {"column": 1})] if bits >= 16 else [],
        "replica": [(replicas, {"lane": rows})],
    }
    return Layout(inputs, ["lane", "column", "bit"])


# tcgen05.ld and .st: digits of thread and of the registers of x1; column step from one x1 to the next; largest .num
# (9.7.16.2.3, tables 49 and 50).
_MOVES: dict[str, tuple[Digits, Digits, int, int]] = {
    "32x32b": ([(32, {"lane": 1})], [], 1, 128),
    "16x64b": ([(2, {"lane": 8}), (2, {"column": 1}), (8, {"lane": 1})], [], 2, 128),
    "16x128b": ([(4, {"column": 1}), (8, {"lane": 1})], [(2, {"lane": 8})], 4, 64),
    "16x256b": ([(4, {"column": 2}), (8, {"lane": 1})], [(2, {"column": 1}), (2, {"lane": 8})], 8, 32),
    "16x32bx2": ([(16, {"lane": 1}), (2, {"half": 1})], [], 1, 128),
}


@checked
@cache
def load_store(shape: str, num: int, packed: bool = False, split: int = 0) -> Layout:
    """tcgen05.ld and .st `.shape.x<num>`: `thread` 32, `register`, `part` -> `lane` (of the warp's 32), `column`.

    `packed` (.pack::16b, .unpack::16b): `part` has two values, the low halves of neighbouring columns.
    `split`: immHalfSplitoff of 16x32bx2. Errors: SML0450.
    """
    known = _MOVES.get(shape)
    if known is None or num & (num - 1) or not 1 <= num <= known[3] or (split and shape != "16x32bx2") or split < 0:
        what = f"tcgen05.ld or st of shape {shape}.x{num}" + (f" with offset {split}" if split else "")
        raise _refuse(what, "; ".join(f"{name} up to x{_MOVES[name][3]}" for name in _MOVES) + "; powers of two")
    thread, registers, step, _ = known
    scale = 2 if packed else 1

    def cells(digits: Digits) -> Digits:
        moved = []
        for size, strides in digits:
            where = {"lane": strides.get("lane", 0), "column": scale * strides.get("column", 0)}
            where["column"] += split * strides.get("half", 0)
            moved.append((size, where))
        return moved

    inputs: dict[str, Digits] = {
        "thread": cells(thread),
        "register": cells([*registers, (num, {"column": step})]),
        "part": [(scale, {"column": 1})],
    }
    return Layout(inputs, ["lane", "column"])


# tcgen05.cp: lanes of the source rows, lanes of the copies, columns (9.7.16.9).
_COPIES: dict[tuple[str, str], tuple[Digits, Digits, int]] = {
    ("128x256b", ""): ([(128, {"lane": 1})], [], 8),
    ("128x128b", ""): ([(128, {"lane": 1})], [], 4),
    ("4x256b", ""): ([(4, {"lane": 32})], [], 8),
    ("64x128b", "warpx2::02_13"): ([(64, {"lane": 1})], [(2, {"lane": 64})], 4),
    ("64x128b", "warpx2::01_23"): ([(32, {"lane": 1}), (2, {"lane": 64})], [(2, {"lane": 32})], 4),
    ("32x128b", "warpx4"): ([(32, {"lane": 1})], [(4, {"lane": 32})], 4),
}


@checked
@cache
def copy(shape: str, multicast: str = "") -> Layout:
    """tcgen05.cp: `row` of the source, `byte` in the row, `replica` -> `lane`, `column`, `bit` of the cell.

    The source is what `descriptors.operand_units(..., major="K", rows, k_bytes)` of these extents names; with
    decompression the bytes are those of the widened elements. Errors: SML0450.
    """
    known = _COPIES.get((shape, multicast))
    if known is None:
        legal = ", ".join(f"{s}{'.' if c else ''}{c}" for s, c in _COPIES)
        raise _refuse(f"tcgen05.cp.{shape}{'.' if multicast else ''}{multicast}", legal)
    row, replica, columns = known
    byte: Digits = [(4, {"bit": 8}), (columns, {"column": 1})]
    return Layout({"row": row, "byte": byte, "replica": replica}, ["lane", "column", "bit"])
