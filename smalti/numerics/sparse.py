"""Multiplication by a structured-sparse A: which elements of B the metadata selects, then the dense rule over the kept
products (measured for wgmma.sp and mma.sp; assumed for tcgen05). Metadata comes as one 4-bit code a chunk; where codes
lie in registers or tensor memory is not known here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.errors import error
from smalti.numerics import fused_sum
from smalti.numerics import kinds as kind_table
from smalti.numerics.kinds import Kind

Array = NDArray[Any]

ORDERED_CODES = frozenset({0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110})  # first index below second
LISTED_CODES = ORDERED_CODES | {0b0110}  # what PTX 9.7.16.10.8 lists as legal
TF32_CODES = frozenset({0b0100, 0b1110})


def legal_codes(kind: str) -> frozenset[int]:
    """The metadata codes that PTX defines for `kind`; the hardware gathers plainly for all others (measured, E6)."""
    return TF32_CODES if kind_table.lookup(kind).formats == ("tf32",) else LISTED_CODES


def expand_select(kind: str, meta: Array) -> Array:
    """The logical K index of each kept element: meta [M, chunks] of 4-bit codes gives [M, kept K].

    A code holds two 2-bit indices, the low one for the chunk's first kept element (or pair, for 4-bit types). For tf32
    the codes must be TF32_CODES; others mix halves of two elements, which no index expresses. Raises SML1004, SML1009.
    """
    row = kind_table.lookup(kind)
    logical, kept = row.sparse_chunk
    codes = np.asarray(meta).astype(np.int64)
    if not row.sparse_grade:
        raise error("SML1009", kind=kind)
    if kept == 1:
        assert np.isin(codes, list(TF32_CODES)).all(), "a tf32 code that mixes halves"
        inside = (codes == 0b1110)[..., None].astype(np.int64)
    else:
        inside = np.stack([codes & 3, codes >> 2 & 3], axis=-1)
        if kept == 4:  # pairs of adjacent elements
            inside = (2 * inside[..., None] + np.arange(2)).reshape(*codes.shape, 4)
    start = np.arange(codes.shape[-1], dtype=np.int64)[:, None] * logical
    index: Array = start + inside
    return index.reshape(*codes.shape[:-1], -1)


def mma_sparse(
    kind: str,
    a: Array,
    meta: Array,
    b: Array,
    c: Array | None = None,
    *,
    a_format: str,
    b_format: str,
    negate_a: bool = False,
    negate_b: bool = False,
    saturate: bool = False,
    scale_a: Array | None = None,
    scale_b: Array | None = None,
    scale_format: str | None = None,
    block: int | None = None,
    scale_input_d: int = 0,
    out: Array | None = None,
) -> Array:
    """D = A B^T + C with A given by its kept half: a [M, K/2], meta [M, chunks] (one 4-bit code an entry), b [N, K].

    A chunk is 4 logical elements (2 for tf32, 8 for 4-bit types), of which half are kept. `block` and the scales'
    shapes count logical K, of which one scale covers twice as many elements as in the dense form. Everything else as in
    `fused_sum.mma`. Raises SML1001-SML1009.
    """
    row = kind_table.lookup(kind)
    fused_sum.check_operands(row, a, b, c, a_format, b_format, sparse=True)
    check_metadata(row, a, meta)
    options = fused_sum.Options(row, a_format, b_format, negate_a, negate_b, saturate, scale_input_d)
    if scale_a is not None or scale_b is not None or row.scales:
        options.scales = fused_sum.check_scales(row, a, b, scale_a, scale_b, scale_format, block)
    if row.sparse_chunk == (2, 1) and not np.isin(meta, list(TF32_CODES)).all():
        b, index = _half_words(b), np.arange(meta.shape[1]) * 16 + (meta.astype(np.int64) & 15)
    else:
        index = expand_select(kind, meta)
    return fused_sum.multiply(options, a, b, c, index, out)


def check_metadata(kind: Kind, a: Array, meta: Array) -> None:
    """A sparse form exists (SML1009) and there is one code a chunk of each row (SML1008)."""
    if not kind.sparse_grade:
        raise error("SML1009", kind=kind.name)
    logical, kept = kind.sparse_chunk
    expected = (a.shape[0], a.shape[1] // kept)
    if meta.shape != expected or meta.dtype.kind != "u" or a.shape[1] % kept:
        got = [str(meta.dtype), *meta.shape]
        raise error("SML1008", kind=kind.name, expected=list(expected), chunk=logical, got=got)


def _half_words(b: Array) -> Array:
    """Every word that a tf32 code can make of a pair of elements, [N, chunks * 16]: the code's low index picks the
    16-bit half that becomes the low half, its high index the high one (measured, E6)."""
    halves = np.ascontiguousarray(b).view(np.uint16).reshape(b.shape[0], -1, 4).astype(np.uint32)
    codes = np.arange(16)
    return (halves[..., codes & 3] | halves[..., codes >> 2] << 16).reshape(b.shape[0], -1)
