"""Register fragments: which matrix element each thread and register of wgmma, mma.sync, ldmatrix and stmatrix
holds, as layouts. `part` counts the elements inside one 32-bit register, low bits first. No values, no PTX.

Sources: PTX ISA 9.7.15.5 and .6, 9.7.14.5 and .6; measured on H200 (E6, E8, E14, E15).
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

from smalti.errors import SmaltiError, error
from smalti.layout.boundary import checked
from smalti.layout.linear import Layout

__all__ = [
    "ldmatrix",
    "mma_a",
    "mma_b",
    "mma_d",
    "mma_metadata",
    "stmatrix",
    "wgmma_a",
    "wgmma_d",
    "wgmma_metadata",
]

Digits = list[tuple[int, dict[str, int]]]


def _refuse(what: str, legal: Iterable[object]) -> SmaltiError:
    return error("SML0430", what=what, legal=", ".join(map(str, legal)) or "none")


def _operand(thread: str, rows: Digits, registers: Digits, bits: int, axis: str) -> Layout:
    """A and B alike: index % 4 takes a register's worth of consecutive k, index / 4 a row."""
    each = max(32 // bits, 1)
    inputs = {
        thread: [(4, {"k": each}), *rows],
        "register": registers,
        "part": [(each, {"k": 1})],
    }
    return Layout(inputs, [axis, "k"])


def _accumulator(thread: str, rows: Digits, more: Digits, bits: int) -> Layout:
    """D: index % 4 takes a pair of columns, which shares a register if elements have 16 bits."""
    pair: Digits = [(2, {"column": 1})]
    inputs = {
        thread: [(4, {"column": 2}), *rows],
        "register": more if bits == 16 else pair + more,
        "part": pair if bits == 16 else [],
    }
    return Layout(inputs, ["row", "column"])


_WARP: Digits = [(8, {"row": 1})]
_WARPGROUP: Digits = [(8, {"row": 1}), (4, {"row": 16})]
_ROW8: Digits = [(2, {"row": 8})]


@checked
@cache
def wgmma_d(n: int, bits: int = 32) -> Layout:
    """Accumulator of m64nNk*: `thread` 128, `register`, `part` -> `row`, `column`.

    `bits` 32 (f32, s32: N/2 registers, part 1) or 16 (f16: N/4 registers, part 2). Errors: SML0430.
    """
    if n % 8 or not 8 <= n <= 256 or bits not in (16, 32):
        raise _refuse(f"a wgmma accumulator with N = {n}, {bits} bits", ["N = 8, 16 ... 256 with 16 or 32 bits"])
    return _accumulator("thread", _WARPGROUP, [*_ROW8, (n // 8, {"column": 8})], bits)


@checked
@cache
def wgmma_a(bits: int) -> Layout:
    """A of wgmma in registers: `thread` 128, `register` 4, `part` 32/bits -> `row`, `k`.

    `bits` 8, 16 or 32 (tf32) of one element. For a sparse wgmma, k counts the packed elements. Errors: SML0430.
    """
    if bits not in (8, 16, 32):
        raise _refuse(f"wgmma's A in registers with {bits} bits", ["8", "16", "32"])
    return _operand("thread", _WARPGROUP, [*_ROW8, (2, {"k": 128 // bits})], bits, "row")


@checked
@cache
def wgmma_metadata(bits: int) -> Layout:
    """Metadata of wgmma.sp: `row` 64, `chunk`, `selector` -> `thread`, `bit` (lowest of the chunk's four).

    A chunk is 4 elements of the unpacked A (32-bit elements: 2); there are 8, for 8-bit elements 16.
    `selector` has 2 values, for 8-bit elements 1. Threads not reached may hold anything. Errors: SML0430.
    """
    rows = {
        8: [(8, {"thread": 4}), (2, {"thread": 1}), (4, {"thread": 32})],
        16: [(8, {"thread": 4}), (2, {"bit": 16}), (4, {"thread": 32})],
    }
    if bits not in (8, 16, 32):
        raise _refuse(f"wgmma metadata for {bits}-bit elements", ["8", "16", "32"])
    chunks: Digits = [(8, {"bit": 4}), (2, {"thread": 2})] if bits == 8 else [(4, {"bit": 4}), (2, {"thread": 1})]
    selector: Digits = [] if bits == 8 else [(2, {"thread": 2})]
    inputs = {"row": rows[min(bits, 16)], "chunk": chunks, "selector": selector}
    return Layout(inputs, ["thread", "bit"])


# (M, K) of mma.sync by element bits (PTX ISA 9.7.14.1); N is 8. The f16 m8n8k4 is laid out unlike all others.
_MMA = {
    1: ((8, 128), (16, 128), (16, 256)),
    4: ((8, 32), (16, 32), (16, 64)),
    8: ((8, 16), (16, 16), (16, 32)),
    16: ((16, 8), (16, 16)),
    32: ((16, 4), (16, 8)),
    64: ((8, 4), (16, 4), (16, 8), (16, 16)),
}


def _check_mma(m: int, k: int, bits: int) -> int:
    """How many registers lie along k."""
    if (m, k) not in _MMA.get(bits, ()):
        legal = [f"m{m}n8k{k}" for m, k in _MMA.get(bits, ())]
        raise _refuse(f"mma.sync.m{m}n8k{k} with {bits}-bit elements", legal)
    return k // 4 // max(32 // bits, 1)


@checked
@cache
def mma_a(k: int, bits: int, m: int = 16) -> Layout:
    """A of mma.sync.m<m>n8k<k>: `lane` 32, `register`, `part` -> `row`, `k`.

    `bits` of an element: 1, 4, 8, 16, 32 (tf32), 64 (registers of 64 bits). For mma.sp give the packed k, half of
    the instruction's. Errors: SML0430.
    """
    along: Digits = [(_check_mma(m, k, bits), {"k": 4 * max(32 // bits, 1)})]
    return _operand("lane", _WARP, (_ROW8 if m == 16 else []) + along, bits, "row")


@checked
@cache
def mma_b(k: int, bits: int, m: int = 16) -> Layout:
    """B of mma.sync.m<m>n8k<k>: `lane` 32, `register`, `part` -> `column`, `k`.

    For mma.sp, B of m16n8k64 with 8 bits and the like (twice the largest dense k) are accepted, too.
    Errors: SML0430.
    """
    dense = k if (m, k) in _MMA.get(bits, ()) else k // 2
    along = _check_mma(m, dense, bits) * (k // dense if dense else 1)
    if k not in (dense, 2 * dense):
        raise _refuse(f"B of mma.sync.m{m}n8k{k} with {bits}-bit elements", [f"k{k}" for _, k in _MMA[bits]])
    return _operand("lane", [(8, {"column": 1})], [(along, {"k": 4 * max(32 // bits, 1)})], bits, "column")


@checked
@cache
def mma_d(bits: int = 32, m: int = 16) -> Layout:
    """C and D of mma.sync.m<m>n8: `lane` 32, `register`, `part` -> `row`, `column`.

    `bits` 32 (f32, s32), 16 (f16, two a register), 64. Errors: SML0430.
    """
    if m not in (8, 16) or bits not in (16, 32, 64):
        raise _refuse(f"an mma.sync accumulator with M = {m}, {bits} bits", ["M = 8 or 16 with 16, 32, 64 bits"])
    return _accumulator("lane", _WARP, _ROW8 if m == 16 else [], bits)


# Metadata of mma.sp by (K of the instruction, element bits), measured (E6): digits of row and chunk, selectors.
_MMA_METADATA: dict[tuple[int, int], tuple[Digits, Digits, Digits]] = {}
for _shape, _chunks, _selector in (
    (((16, 16), (8, 32)), [(4, {"bit": 4})], [(4, {"lane": 1})]),
    (((32, 16), (16, 32)), [(4, {"bit": 4}), (2, {"lane": 1})], [(2, {"lane": 2})]),
):
    for _key in _shape:
        _MMA_METADATA[_key] = ([(8, {"lane": 4}), (2, {"bit": 16})], _chunks, _selector)
_MMA_METADATA[32, 8] = _MMA_METADATA[64, 4] = (
    [(8, {"lane": 4}), (2, {"lane": 1})],
    [(8, {"bit": 4})],
    [(2, {"lane": 2})],
)
_MMA_METADATA[64, 8] = _MMA_METADATA[128, 4] = (
    [(8, {"lane": 4}), (2, {"lane": 1})],
    [(8, {"bit": 4}), (2, {"lane": 2})],
    [],
)


@checked
@cache
def mma_metadata(k: int, bits: int) -> Layout:
    """Metadata of mma.sp.m16n8k<k> (the instruction's k): `row` 16, `chunk`, `selector` -> `lane`, `bit`.

    As `wgmma_metadata`; the shapes whose map has been measured. Errors: SML0430.
    """
    if (k, bits) not in _MMA_METADATA:
        legal = [f"m16n8k{k} with {bits} bits" for k, bits in _MMA_METADATA]
        raise _refuse(f"metadata of mma.sp.m16n8k{k} with {bits}-bit elements", legal)
    row, chunk, selector = _MMA_METADATA[k, bits]
    return Layout({"row": row, "chunk": chunk, "selector": selector}, ["lane", "bit"])


# Digits of lane, register (per matrix) and part -> `line`, `element`; how many lines a matrix has; largest .num.
# The 8-bit forms (sm_100): the 16x16 one as two public reports of sm_120 have it and as CUTLASS undoes it, the
# 16x8 one as in CUTLASS; both assumed, PTX has them as figures 105 and 108.
_LINES8: Digits = [(4, {"element": 2}), (8, {"line": 1})]
_TRANSFERS: dict[tuple[str, bool], tuple[Digits, Digits, Digits, int, int]] = {
    ("m8n8", False): (_LINES8, [], [(2, {"element": 1})], 8, 4),
    ("m8n8", True): ([(4, {"line": 2}), (8, {"element": 1})], [], [(2, {"line": 1})], 8, 4),
    ("m8n16", False): ([(4, {"element": 4}), (8, {"line": 1})], [], [(4, {"element": 1})], 8, 4),
    ("m16n16", True): (
        [(4, {"line": 4}), (8, {"element": 1})],
        [(2, {"element": 8})],
        [(4, {"line": 1})],
        16,
        2,
    ),
    ("m16n8", True): (
        [(4, {"line": 2}), (8, {"element": 1})],
        [],
        [(2, {"line": 1}), (2, {"element": 8})],
        8,
        4,
    ),
}


def _transfer(name: str, shapes: tuple[str, ...], shape: str, count: int, trans: bool) -> Layout:
    known = _TRANSFERS.get((shape, trans)) if shape in shapes else None
    if known is None or count not in (1, 2, 4) or count > known[4]:
        legal = [
            f"{s}{'.trans' if t else ''} up to x{_TRANSFERS[s, t][4]}"
            for s in shapes
            for t in (False, True)
            if (s, t) in _TRANSFERS
        ]
        raise _refuse(f"{name}.{shape}.x{count}{'.trans' if trans else ''}", legal)
    lane, register, part, lines, _ = known
    inputs = {"lane": lane, "register": [*register, (count, {"line": lines})], "part": part}
    return Layout(inputs, ["line", "element"])


@checked
@cache
def ldmatrix(count: int, trans: bool = False, shape: str = "m8n8") -> Layout:
    """ldmatrix.<shape>.x<count>: `lane` 32, `register`, `part` -> `line`, `element`.

    `line` is the lane that supplies the address of the 16-byte row, `element` the place in that row: of 8 elements
    of 16 bits (m8n8), or of 16 of 8 bits (m16n16 .trans and m8n16, there after widening 6- or 4-bit data).
    Errors: SML0430.
    """
    return _transfer("ldmatrix", ("m8n8", "m8n16", "m16n16"), shape, count, trans)


@checked
@cache
def stmatrix(count: int, trans: bool = False, shape: str = "m8n8") -> Layout:
    """stmatrix.<shape>.x<count>, as `ldmatrix`; the 8-bit shape is m16n8 .trans. Errors: SML0430."""
    return _transfer("stmatrix", ("m8n8", "m16n8"), shape, count, trans)
