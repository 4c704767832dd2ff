"""Sparse multiplication: the metadata's selection, then the dense rule over the kept products."""

from __future__ import annotations

import numpy as np
import pytest
import reference
import vectors

from smalti.errors import SmaltiError
from smalti.numerics import formats, kinds
from smalti.numerics.fused_sum import mma
from smalti.numerics.sparse import LISTED_CODES, ORDERED_CODES, TF32_CODES, expand_select, legal_codes, mma_sparse

CASES = [
    ("wgmma.f16", "f16", "f16"),
    ("wgmma.f16.f16", "f16", "f16"),
    ("wgmma.fp8", "e5m2", "e4m3"),
    ("tcgen05.f8f6f4", "e2m3", "e5m2"),
    ("mma.bf16", "bf16", "bf16"),
]


def random_codes(stream, legal, *shape):
    choices = np.array(sorted(legal), np.uint8)
    return choices[stream.below(len(choices), *shape)]


def scattered(packed, index, depth):
    """The dense matrix whose kept elements are `packed`; needs distinct indices."""
    dense = np.zeros((len(packed), depth), packed.dtype)
    np.put_along_axis(dense, index, packed, axis=1)
    return dense


def test_the_codes_of_one_chunk():
    assert expand_select("wgmma.f16", np.array([[0b0100, 0b1001, 0b1110]], np.uint8)).tolist() == [[0, 1, 5, 6, 10, 11]]
    assert expand_select("wgmma.tf32", np.array([[0b0100, 0b1110]], np.uint8)).tolist() == [[0, 3]]
    pairs = expand_select("tcgen05.mxf4", np.array([[0b1100, 0b1001]], np.uint8))
    assert pairs.tolist() == [[0, 1, 6, 7, 10, 11, 12, 13]]
    assert legal_codes("wgmma.tf32") == {4, 14} and legal_codes("wgmma.f16") == LISTED_CODES


@pytest.mark.parametrize("family", ["bits", "window", "cancel", "few"])
@pytest.mark.parametrize(("name", "a_format", "b_format"), CASES)
def test_kept_products_are_one_fused_sum(name, a_format, b_format, family):
    """All sixteen codes, also duplicates and descending ones, gather plainly."""
    kind = kinds.KINDS[name]
    stream = vectors.Stream("sparse", name, family)
    rows, columns, kept = 4, 9, kind.products
    a = vectors.codes(stream, a_format, family, rows, kept)
    b = vectors.codes(stream, b_format, family, columns, 2 * kept)
    meta = stream.below(16, rows, kept // 2).astype(np.uint8)
    chosen = [
        [4 * c + (int(code) >> shift & 3) for c, code in enumerate(row) for shift in (0, 2)] for row in meta
    ]  # the rule, spelled out
    with np.errstate(all="ignore"):
        about = np.array(
            [formats.decode(a[m], a_format) @ formats.decode(b[:, chosen[m]], b_format).T for m in range(rows)]
        )
    c = vectors.accumulators(stream, kind.output, family, about)
    wanted = [
        [
            reference.fused(
                a[m],
                b[n, chosen[m]],
                c[m, n],
                a_format,
                b_format,
                kind.fraction,
                kind.floor,
                kind.output,
                kind.round_out,
            )
            for n in range(columns)
        ]
        for m in range(rows)
    ]
    d = mma_sparse(name, a, meta, b, c, a_format=a_format, b_format=b_format)
    np.testing.assert_array_equal(d, np.array(wanted, np.uint64))


def test_tf32_codes_pick_halves():
    stream = vectors.Stream("halves")
    a = vectors.codes(stream, "tf32", "window", 16, 8)
    b = vectors.codes(stream, "tf32", "window", 5, 16)
    meta = np.tile(np.arange(16, dtype=np.uint8)[:, None], (1, 8))
    d = mma_sparse("wgmma.tf32", a, meta, b, a_format="tf32", b_format="tf32")
    for m in range(16):
        halves = [[(int(w) >> 16 * (i % 2)) & 0xFFFF for w in b[:, i // 2 :: 2].reshape(-1)] for i in range(4)]
        low, high = (np.array(halves[i], np.uint32).reshape(5, 8) for i in (m & 3, m >> 2))
        dense = mma("wgmma.tf32", a[m : m + 1], low | high << np.uint32(16), a_format="tf32", b_format="tf32")
        np.testing.assert_array_equal(d[m : m + 1], dense, err_msg=f"code {m:04b}")
    whole = mma_sparse("wgmma.tf32", a[[4, 14]], meta[[4, 14]], b, a_format="tf32", b_format="tf32")
    np.testing.assert_array_equal(whole, d[[4, 14]])
    np.testing.assert_array_equal(d[4], mma("wgmma.tf32", a[4:5], b[:, ::2], a_format="tf32", b_format="tf32")[0])


@pytest.mark.parametrize(
    ("name", "fmt", "kept", "scale_format", "block"),
    [
        ("tcgen05.mxf8f6f4", "e4m3", 32, "ue8m0", 64),
        ("tcgen05.mxf4", "e2m1", 64, "ue8m0", 64),
        ("tcgen05.mxf4nvf4", "e2m1", 64, "ue4m3", 32),
        ("tcgen05.f16", "bf16", 16, None, None),
        ("mma.fp8", "e4m3", 32, None, None),
        ("mma.int4", "s4", 64, None, None),
        ("tcgen05.i8", "u8", 32, None, None),
    ],
)
def test_sparse_equals_dense_where_nothing_is_truncated(name, fmt, kept, scale_format, block):
    """Small values, a different one in every place; two blocks of K with scales that differ."""
    stream = vectors.Stream("exact", name)
    kind = kinds.KINDS[name]
    logical, kept_chunk = kind.sparse_chunk
    one = {"e4m3": 0x38, "e2m1": 2, "bf16": 0x3F80, "s4": 1, "u8": 1}[fmt]
    container = formats.FORMATS[fmt].dtype
    a = (one + stream.below(2, 6, kept)).astype(container)
    b = (one + stream.below(2, 10, 2 * kept)).astype(container)
    meta = random_codes(stream, TF32_CODES if logical == 2 else ORDERED_CODES, 6, kept // kept_chunk)
    scales, dense_scales = {}, {}
    if scale_format:
        spread = {"ue8m0": (125, 129), "ue4m3": (0x30, 0x40)}[scale_format]
        sa, sb = (stream.between(*spread, rows, 2 * kept // block).astype(np.uint8) for rows in (6, 10))
        scales = {"scale_a": sa, "scale_b": sb, "scale_format": scale_format, "block": block}
        half = [np.repeat(s, 2, axis=1) for s in (sa, sb)]
        dense_scales = {**scales, "scale_a": half[0], "scale_b": half[1], "block": block // 2}
    dense = scattered(a, expand_select(name, meta), 2 * kept)
    common = {"a_format": fmt, "b_format": fmt}
    d = mma_sparse(name, a, meta, b, **common, **scales)
    np.testing.assert_array_equal(d, mma(name, dense, b, **common, **dense_scales))
    assert len(np.unique(d)) > 4


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("SML1009", {"kind": "mma.b1.and", "a_format": "b1", "b_format": "b1", "a": np.zeros((2, 16), np.uint8),
                     "b": np.zeros((3, 32), np.uint8)}),
        ("SML1008", {"meta": np.zeros((2, 16), np.uint8)}),
        ("SML1008", {"meta": np.zeros((2, 8), np.int32)}),
        ("SML1006", {"b": np.zeros((3, 16), np.uint16)}),
    ],
)  # fmt: skip
def test_refusals(code, change):
    good = {
        "kind": "wgmma.f16",
        "a": np.zeros((2, 16), np.uint16),
        "meta": np.full((2, 8), 4, np.uint8),
        "b": np.zeros((3, 32), np.uint16),
        "a_format": "f16",
        "b_format": "f16",
    }
    assert mma_sparse(**good).shape == (2, 3)
    with pytest.raises(SmaltiError) as caught:
        mma_sparse(**{**good, **change})
    assert caught.value.code == code
