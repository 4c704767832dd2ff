"""The compiled matrix arithmetic against plain integers, against published probes and against wrong parameters."""

from __future__ import annotations

import dataclasses
import subprocess
import sys

import numpy as np
import pytest
import reference
import vectors

from smalti.errors import SmaltiError
from smalti.numerics import formats, fused_sum, kinds
from smalti.numerics.fused_sum import mma

FUSED = [
    (name, a, b)
    for name, kind in kinds.KINDS.items()
    if kind.rule == kinds.FUSED
    for a, b in (
        [(f, f) for f in kind.formats]
        if kind.same
        else [
            (f, kind.formats[(i + shift) % len(kind.formats)]) for i, f in enumerate(kind.formats) for shift in (0, 1)
        ]
    )
]


def operands(kind, a_format, b_format, family, rows=3, columns=11, depth=None):
    depth = depth or kind.products
    stream = vectors.Stream(kind.name, a_format, b_format, family)
    a = vectors.codes(stream, a_format, family, rows, depth)
    b = vectors.codes(stream, b_format, family, columns, depth)
    with np.errstate(all="ignore"):
        about = formats.decode(a, a_format) @ formats.decode(b, b_format).T
    scales = {}
    if kind.scales:
        scale_format, block = kind.scales[-1]
        scales = {
            "scale_a": vectors.scale_codes(stream, scale_format, family, rows, depth // block),
            "scale_b": vectors.scale_codes(stream, scale_format, family, columns, depth // block),
            "scale_format": scale_format,
            "block": block,
        }
    return a, b, vectors.accumulators(stream, kind.output, family, about), scales


def expected(kind, a, b, c, a_format, b_format, scales):
    rows = []
    for m in range(len(a)):
        row = []
        for n in range(len(b)):
            scale = (scales["scale_a"][m, 0], scales["scale_b"][n, 0]) if scales else ()
            row.append(
                reference.fused(
                    a[m],
                    b[n],
                    c[m, n],
                    a_format,
                    b_format,
                    kind.fraction,
                    kind.floor,
                    kind.output,
                    kind.round_out,
                    *scale,
                )
            )
        rows.append(row)
    return np.array(rows, np.uint64)


@pytest.mark.parametrize("family", vectors.FAMILIES)
@pytest.mark.parametrize(("name", "a_format", "b_format"), FUSED)
def test_fused_kinds_equal_plain_integers(name, a_format, b_format, family):
    kind = kinds.KINDS[name]
    a, b, c, scales = operands(kind, a_format, b_format, family)
    d = mma(name, a, b, c, a_format=a_format, b_format=b_format, **scales)
    assert d.dtype == formats.FORMATS[kind.output].dtype
    np.testing.assert_array_equal(d, expected(kind, a, b, c, a_format, b_format, scales))


@pytest.mark.parametrize("family", vectors.FAMILIES)
@pytest.mark.parametrize(
    ("name", "scale_format", "block"),
    [(k.name, *pair) for k in kinds.KINDS.values() if k.rule == kinds.GROUPED for pair in k.scales],
)
def test_grouped_kinds_equal_plain_integers(name, scale_format, block, family):
    stream = vectors.Stream(name, scale_format, family, block)
    rows, columns, depth = 4, 19, 64
    a, b = (vectors.codes(stream, "e2m1", family, count, depth) for count in (rows, columns))
    sa, sb = (vectors.scale_codes(stream, scale_format, family, count, depth // block) for count in (rows, columns))
    about = np.repeat(formats.decode(sa, scale_format), block, axis=1) * formats.decode(a, "e2m1")
    about = about @ (np.repeat(formats.decode(sb, scale_format), block, axis=1) * formats.decode(b, "e2m1")).T
    c = vectors.accumulators(stream, "f32", family, about)
    d = mma(
        name, a, b, c, a_format="e2m1", b_format="e2m1", scale_a=sa, scale_b=sb, scale_format=scale_format, block=block
    )
    of_group = np.arange(4) * 16 // block
    wanted = [
        [reference.grouped(a[m], b[n], c[m, n], sa[m, of_group], sb[n, of_group], scale_format) for n in range(columns)]
        for m in range(rows)
    ]
    np.testing.assert_array_equal(d, np.array(wanted, np.uint64))


# ---- published and measured probes -------------------------------------------------------------------------------


def words(text):
    return np.array([int(word, 16) for word in text.split()], np.uint32)


TF32_1 = ("BF3A6000 3EE98000 BFE92000 BF42C000", "BFDDE000 BFABA000 3BB9A000 3F99A000", 0x3DC427E9)
TF32_2 = ("3C736000 BE62A000 3EE30000 3EC16000", "3F12A000 BF3F4000 BEF7A000 BF626000", 0x3E9F4253)
F16 = (
    "3FF16000 3FDA0000 BF022000 BF0AC000 BF5EA000 3E086000 3FE9C000 3EAA6000 "
    "3E54A000 BF5D2000 3FB5C000 3D9FE000 BE880000 3F646000 3D074000 BFC9E000",
    "BECE0000 BF0F2000 3FF68000 3E330000 3DAC2000 40238000 3F50E000 3CCC6000 "
    "BFAE0000 3EACC000 3F84A000 3DB6E000 BFCD8000 3DBDE000 3E9D2000 3EF14000",
    0x3E142F36,
)
E4M3 = (
    "BD800000 3F300000 3F800000 3EE00000 BD500000 BF300000 BEA00000 BFD00000 3F000000 3F200000 BF000000 3F300000 "
    "BF600000 BED00000 3F300000 BE500000 BFF00000 BF700000 BF000000 BFB00000 3FB00000 BEA00000 3F700000 BFB00000 "
    "3F800000 3ED00000 BF500000 BF900000 BF500000 3F300000 3EF00000 3F200000",
    "3E900000 BD100000 3ED00000 3F200000 3EF00000 3E000000 BF800000 40300000 3FC00000 3D100000 3F700000 40000000 "
    "BF000000 BEA00000 BE900000 3DA00000 BE900000 3FC00000 3FD00000 3F000000 3E500000 3E000000 BF500000 3FC00000 "
    "BC600000 40100000 C0100000 3E100000 3E000000 BC600000 3E200000 BF500000",
    0,
)


def code_of(value, fmt):
    """The code whose value is exactly `value`: searched, so that the probes do not lean on `convert`."""
    value = float(value)
    if fmt in ("f32", "tf32"):
        return int(np.float32(value).view(np.uint32))
    hits = np.flatnonzero(formats.table(fmt) == value)
    assert hits.size, (value, fmt)
    return int(hits[-1] if np.signbit(value) else hits[0])


def codes_of(values, fmt, depth):
    row = [code_of(v, fmt) for v in values] + [0] * (depth - len(values))
    return np.array([row], formats.FORMATS[fmt].dtype)


def run(kind, fmt, a, b, c, block=None):
    """One dot product of values; c is a word of the output. `kind` is a name or a mutated row of the table."""
    row = kinds.KINDS[kind] if isinstance(kind, str) else kind
    options = fused_sum.Options(row, fmt, fmt)
    depth = block or row.products
    container = formats.FORMATS[row.output].dtype
    d = fused_sum.multiply(
        options, codes_of(a, fmt, depth), codes_of(b, fmt, depth), np.array([[c]], container), None, None
    )
    return int(d[0, 0])


REAL = [
    ("wgmma.tf32", "tf32", TF32_1, {25: 0xBE355A89, 24: 0xBE355A88, 26: 0xBE355A88}),
    ("wgmma.tf32", "tf32", TF32_2, {25: 0xBD8210D9, 24: 0xBD8210DA, 26: 0xBD8210D8}),
    ("wgmma.f16", "f16", F16, {25: 0xBE465B6E, 24: 0xBE465B74, 26: 0xBE465B6D}),
    ("wgmma.fp8", "e4m3", E4M3, {13: 0xC0910800, 12: 0xC0910400, 14: 0xC0910C00}),
]


@pytest.mark.parametrize(("name", "fmt", "data", "results"), REAL)
def test_excerpts_of_a_real_h200_and_their_neighbours(name, fmt, data, results):
    a, b = (words(text).view(np.float32).astype(np.float64) for text in data[:2])
    for fraction, result in results.items():
        kind = dataclasses.replace(kinds.KINDS[name], fraction=fraction)
        assert run(kind, fmt, a, b, data[2]) == result, fraction
    wider = dataclasses.replace(kinds.KINDS["wgmma.fp8"], round_out="rz")
    if name == "wgmma.fp8":
        assert run(wider, fmt, a, b, data[2]) == 0xC0910A00
        assert run(dataclasses.replace(wider, fraction=25), fmt, a, b, data[2]) == 0xC0910C00


PROBES = [  # id, a, b, c, results of F13 + E8M13, F13 + 24 bits, F25
    ("P1", [], [], 0x3F8003FF, (0x3F800000, 0x3F800000, 0x3F8003FF)),
    ("P2", [], [], 0x3F8007FF, (0x3F800400, 0x3F800400, 0x3F8007FF)),
    ("P3", [2**-7], [2**-7], 0x3F800000, (0x3F800000, 0x3F800000, 0x3F800200)),
    ("P4", [2**-7] * 2, [2**-7] * 2, 0x3F800000, (0x3F800000, 0x3F800000, 0x3F800400)),
    ("P5", [2**-7], [2**-7], 0xBF800000, (0xBF800000, 0xBF800000, 0xBF7FFC00)),
    ("P7", [1.75, 2**-6], [1.75, 2**-7], 0, (0x40440000, 0x40440200, 0x40440200)),
    ("P8", [1.75] * 4 + [2**-6], [1.75] * 4 + [2**-6], 0, (0x41440000, 0x41440100, 0x41440100)),
]  # fmt: skip


@pytest.mark.parametrize(("ident", "a", "b", "c", "results"), PROBES)
def test_fp8_probes(ident, a, b, c, results):
    hopper = kinds.KINDS["wgmma.fp8"]
    for kind, result in zip(
        (hopper, dataclasses.replace(hopper, round_out="rz"), kinds.KINDS["tcgen05.f8f6f4"]), results, strict=True
    ):
        assert run(kind, "e4m3", a, b, c) == result, ident


def test_probe_k3_sixteen_products_are_fused():
    a, b = [-(2.0**12)] + [0.0] * 7 + [2**-3] * 8, [2.0**12] + [1.0] * 15
    c = int(np.float32(2**24).view(np.uint32))
    assert run("wgmma.f16", "f16", a, b, c) == 0
    eight = dataclasses.replace(kinds.KINDS["wgmma.f16"], products=8)
    assert run(eight, "f16", a, b, c, block=16) == np.float32(1).view(np.uint32)


def test_probe_k4_thirty_two_products_are_fused():
    a, b = [-16.0] + [0.0] * 15 + [2**-6] * 16, [16.0] + [1.0] * 31
    c = int(np.float32(256).view(np.uint32))
    assert run("wgmma.fp8", "e4m3", a, b, c) == 0
    sixteen = dataclasses.replace(kinds.KINDS["wgmma.fp8"], products=16)
    assert run(sixteen, "e4m3", a, b, c, block=32) == np.float32(0.25).view(np.uint32)


@pytest.mark.parametrize(("small", "result", "wider"), [(2**-6, 0, 0x2400), (2**-5, 0x2800, 0x2800)])
def test_probe_p9_fp8_to_f16(small, result, wider):
    c = int(np.float16(-256).view(np.uint16))
    assert run("wgmma.fp8.f16", "e4m3", [16.0, small], [16.0, 1.0], c) == result
    more = dataclasses.replace(kinds.KINDS["wgmma.fp8.f16"], fraction=14)
    assert run(more, "e4m3", [16.0, small], [16.0, 1.0], c) == wider


def test_probes_z7_and_z8_pin_the_floor_of_f32():
    z7 = [33 * 2.0**-80, 2.0**-80], [31 * 2.0**-79, 2.0**-79]
    z8 = [73 * 2.0**-80, 2.0**-80], [7 * 2.0**-78, 2.0**-78]
    for floor, seventh, eighth in ((-132, 0, 0), (-133, 0, 1), (-134, 1, 1)):
        kind = dataclasses.replace(kinds.KINDS["wgmma.bf16"], floor=floor)
        assert run(kind, "bf16", *z7, 0) == seventh, floor
        assert run(kind, "bf16", *z8, 0) == eighth, floor
    assert kinds.KINDS["wgmma.bf16"].floor == -133


def test_probe_z9_pins_the_floor_of_f16():
    results = {}
    for floor in (-20, -21, -22):
        kind = dataclasses.replace(kinds.KINDS["wgmma.f16.f16"], floor=floor)
        results[floor] = [
            run(kind, "f16", [2.0**-14, 2.0 ** -(k // 2)], [2.0**-11, 2.0 ** -(k - k // 2)], 0)
            for k in (45, 46, 47, 48)
        ]
    assert results == {-20: [1, 0, 0, 0], -21: [1, 1, 0, 0], -22: [1, 1, 1, 0]}


@pytest.mark.parametrize(("kind", "fmt"), [("wgmma.f16", "f16"), ("wgmma.bf16", "bf16"), ("wgmma.tf32", "tf32")])
def test_the_published_example(kind, fmt):
    a, b, c = [-(2.0**13), -0.5, -0.25, -0.125], [2.0**10, 1, 1, 1], int(np.float32(2**23).view(np.uint32))
    for fraction, result in ((23, 0.0), (24, -0.5), (25, -0.75), (13, 0.0)):
        row = dataclasses.replace(kinds.KINDS[kind], fraction=fraction)
        assert run(row, fmt, a, b, c) == int(np.float32(result).view(np.uint32)), fraction


def test_the_published_example_through_block_scales():
    """Four groups of one product each, scaled by powers of two: F = 35 keeps all bits."""
    a = np.zeros((1, 64), np.uint8)
    a[0, ::16] = [code_of(v, "e2m1") for v in (-1, -0.5, -1, -0.5)]
    b = np.where(np.arange(64) % 16 == 0, code_of(1, "e2m1"), 0).astype(np.uint8)[None]
    scale_a = np.array([[127 + 13, 127, 127 - 2, 127 - 2]], np.uint8)
    scale_b = np.array([[127 + 10, 127, 127, 127]], np.uint8)
    c = np.array([[np.float32(2**23).view(np.uint32)]])
    common = {"a_format": "e2m1", "b_format": "e2m1", "scale_format": "ue8m0", "block": 16}
    d = mma("tcgen05.mxf4nvf4", a, b, c, scale_a=scale_a, scale_b=scale_b, **common)
    assert d.view(np.float32)[0, 0] == -0.875


# ---- specials ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("a", "b", "c", "result"),
    [
        (0x7C00, 0x3C00, 0x00000000, 0x7F800000),  # Inf
        (0xFC00, 0x3C00, 0x00000000, 0xFF800000),
        (0x7C00, 0x0000, 0x00000000, 0x7FFFFFFF),  # Inf x 0
        (0x7C00, 0x3C00, 0xFF800000, 0x7FFFFFFF),  # Inf - Inf
        (0xFE01, 0x3C00, 0x00000000, 0x7FFFFFFF),  # a NaN loses its sign and payload
        (0x3C00, 0x3C00, 0xFF800001, 0x7FFFFFFF),
        (0x8000, 0x3C00, 0x80000000, 0x00000000),  # every term -0
        (0x8001, 0x0001, 0x80000000, 0xA7800000),
        (0x7BFF, 0x7BFF, 0x7F7FFFFF, 0x7F7FFFFF),
        (0x0000, 0x0000, 0x80000001, 0x80000001),  # subnormals pass
    ],
)
def test_specials_of_f32_results(a, b, c, result):
    row = np.zeros((1, 16), np.uint16)
    left, right = row.copy(), row.copy()
    left[0, 3], right[0, 3] = a, b
    d = mma("wgmma.f16", left, right, np.array([[c]], np.uint32), a_format="f16", b_format="f16")
    assert f"{d[0, 0]:08X}" == f"{result:08X}"


def test_overflow_is_infinite_even_toward_zero():
    big = np.full((1, 16), 0x7F7F, np.uint16)
    assert mma("wgmma.bf16", big, big, a_format="bf16", b_format="bf16")[0, 0] == 0x7F800000
    assert mma("wgmma.bf16", big, big, a_format="bf16", b_format="bf16", negate_a=True)[0, 0] == 0xFF800000
    half = np.full((1, 16), 0x7BFF, np.uint16)
    assert mma("wgmma.f16.f16", half, half, a_format="f16", b_format="f16")[0, 0] == 0x7C00


def test_f16_rounding_at_the_edges():
    """65519 rounds down, 65520 overflows; half of the least subnormal ties to zero, and never to -0."""
    for big, small, c, result in (
        (65504.0, 15.0, 0, 0x7BFF),
        (65504.0, 16.0, 0, 0x7C00),
        (0.0, -(2.0**-24), 0x0000, 0x8001),
    ):
        assert run("wgmma.f16.f16", "f16", [big, small], [1.0, 1.0], c) == result
    assert run("wgmma.f16.f16", "f16", [-(2.0**-14)], [2.0**-11], 0) == 0
    assert run("wgmma.f16.f16", "f16", [-(2.0**-14), -(2.0**-24)], [2.0**-11, 2.0**-3], 0) == 0x8001


def test_tf32_ignores_the_low_bits_even_of_a_nan():
    a = np.zeros((1, 8), np.uint32)
    one = np.full((1, 8), 0x3F800000, np.uint32)
    a[0, 0] = 0x7F801FFF
    assert mma("wgmma.tf32", a, one, a_format="tf32", b_format="tf32")[0, 0] == 0x7F800000
    a[0, 0] = 0x3F801FFF
    assert mma("wgmma.tf32", a, one, a_format="tf32", b_format="tf32")[0, 0] == 0x3F800000
    a[0, 0] = 0x7F802000
    assert mma("wgmma.tf32", a, one, a_format="tf32", b_format="tf32")[0, 0] == 0x7FFFFFFF


@pytest.mark.parametrize(("scale_format", "nan"), [("ue8m0", 0xFF), ("ue4m3", 0x7F), ("ue4m3", 0xFF)])
def test_a_nan_scale_is_nan_even_over_zeros(scale_format, nan):
    zeros = np.zeros((2, 64), np.uint8)
    scale = np.full((2, 4), 0x30, np.uint8)
    bad = scale.copy()
    bad[1, 2] = nan
    common = {"a_format": "e2m1", "b_format": "e2m1", "scale_format": scale_format, "block": 16}
    d = mma("tcgen05.mxf4nvf4", zeros, zeros, scale_a=bad, scale_b=scale, **common)
    assert d.tolist() == [[0, 0], [0x7FFFFFFF] * 2]
    if scale_format == "ue8m0":
        common = {"a_format": "e4m3", "b_format": "e2m1", "scale_format": "ue8m0", "block": 32}
        d = mma("tcgen05.mxf8f6f4", zeros, zeros, scale_a=scale[:, :2], scale_b=bad[:, 1:3], **common)
        assert d.tolist() == [[0, 0x7FFFFFFF]] * 2


def test_the_sign_bit_of_a_ue4m3_scale_is_ignored():
    ones = np.full((1, 64), code_of(1, "e2m1"), np.uint8)
    scale = np.full((1, 4), 0x38, np.uint8)
    common = {"a_format": "e2m1", "b_format": "e2m1", "scale_format": "ue4m3", "block": 16}
    d = mma("tcgen05.mxf4nvf4", ones, ones, scale_a=scale | 0x80, scale_b=scale, **common)
    assert d.view(np.float32)[0, 0] == 64


# ---- options -----------------------------------------------------------------------------------------------------


def test_negation_flips_signs_before_the_product():
    kind = kinds.KINDS["wgmma.bf16"]
    a, b, c, _ = operands(kind, "bf16", "bf16", "window")
    common = {"a_format": "bf16", "b_format": "bf16"}
    flipped = mma("wgmma.bf16", a ^ 0x8000, b, c, **common)
    np.testing.assert_array_equal(mma("wgmma.bf16", a, b, c, negate_a=True, **common), flipped)
    np.testing.assert_array_equal(mma("wgmma.bf16", a, b, c, negate_b=True, **common), flipped)
    plain = mma("wgmma.bf16", a, b, c, **common)
    np.testing.assert_array_equal(mma("wgmma.bf16", a, b, c, negate_a=True, negate_b=True, **common), plain)
    assert (flipped != plain).any()


@pytest.mark.parametrize("name", ["wgmma.bf16", "wgmma.fp8", "wgmma.f16.f16", "wgmma.int8", "mma.fp8"])
def test_longer_k_is_a_chain_of_instructions(name):
    kind = kinds.KINDS[name]
    fmt, container = kind.formats[0], formats.FORMATS[kind.formats[0]].dtype
    stream = vectors.Stream("chain", name)
    a, b = (stream.words(rows, 3 * kind.products).astype(container) for rows in (5, 9))
    if fmt != "s8":
        a, b = (vectors.codes(stream, fmt, "window", rows, 3 * kind.products) for rows in (5, 9))
    c = mma(name, a[:, : kind.products], b[:, : kind.products], a_format=fmt, b_format=fmt)
    for k in (1, 2):
        part = slice(k * kind.products, (k + 1) * kind.products)
        c = mma(name, a[:, part], b[:, part], c, a_format=fmt, b_format=fmt)
    np.testing.assert_array_equal(mma(name, a, b, a_format=fmt, b_format=fmt), c)


def test_the_result_may_overwrite_c():
    kind = kinds.KINDS["wgmma.bf16"]
    a, b, c, _ = operands(kind, "bf16", "bf16", "window")
    wanted = mma("wgmma.bf16", a, b, c, a_format="bf16", b_format="bf16")
    assert mma("wgmma.bf16", a, b, c, a_format="bf16", b_format="bf16", out=c) is c
    np.testing.assert_array_equal(c, wanted)
    wide = np.full((2 * len(a), 2 * len(b)), 0xDEAD, np.uint32)
    mma("wgmma.bf16", a, b, a_format="bf16", b_format="bf16", out=wide[::2, ::2])
    assert (wide[1::2] == 0xDEAD).all() and (wide[::2, ::2] != 0xDEAD).all()


def test_no_rows_or_columns_give_an_empty_result():
    a = np.zeros((0, 16), np.uint16)
    b = np.zeros((8, 16), np.uint16)
    assert mma("wgmma.bf16", a, b, a_format="bf16", b_format="bf16").shape == (0, 8)
    assert mma("wgmma.bf16", b, a, a_format="bf16", b_format="bf16").shape == (8, 0)


def test_scale_input_d_shifts_c_inside_the_sum():
    zero, c = np.zeros((1, 16), np.uint16), np.array([[0x40000001]], np.uint32)
    d = mma("tcgen05.f16", zero, zero, c, a_format="f16", b_format="f16", scale_input_d=1)
    assert d[0, 0] == 0x3F800001


# ---- integers and bits -------------------------------------------------------------------------------------------


def test_probe_i1_clamps_once():
    a = np.full((1, 32), 127, np.uint8)
    b = np.where(np.arange(32) < 16, 127, -127).astype(np.int8).view(np.uint8)[None]
    c = np.array([[0x7FFFFFFF - 100]], np.uint32)
    d = mma("wgmma.int8", a, b, c, a_format="s8", b_format="s8", saturate=True)
    assert d[0, 0] == 0x7FFFFF9B
    chained = np.concatenate([a, a], axis=1)
    upper = np.concatenate([np.abs(b.view(np.int8)).view(np.uint8), b], axis=1)
    d = mma("wgmma.int8", chained, upper, c, a_format="s8", b_format="s8", saturate=True)
    assert d[0, 0] == 0x7FFFFFFF


@pytest.mark.parametrize("saturate", [False, True])
@pytest.mark.parametrize(("a_format", "b_format"), [("s8", "s8"), ("s8", "u8"), ("u8", "s8"), ("u8", "u8")])
def test_int8_equals_plain_integers(a_format, b_format, saturate):
    stream = vectors.Stream("int8", a_format, b_format)
    a, b = (stream.words(rows, 32).astype(np.uint8) for rows in (7, 13))
    c = (stream.words(7, 13) % 65536).astype(np.uint32) + np.array([0x7FFF0000, 0x80000000], np.uint32)[
        stream.below(2, 7, 13)
    ]
    total = c.view(np.int32).astype(object)
    total += (
        formats.decode(a, a_format).astype(int).astype(object)
        @ formats.decode(b, b_format).astype(int).astype(object).T
    )
    if saturate:
        total = np.minimum(np.maximum(total, -(2**31)), 2**31 - 1)
    d = mma("tcgen05.i8", a, b, c, a_format=a_format, b_format=b_format, saturate=saturate)
    np.testing.assert_array_equal(d, (total % 2**32).astype(np.uint32))


def test_int4_and_single_bits():
    stream = vectors.Stream("small integers")
    a, b = (stream.below(16, rows, 64).astype(np.uint8) for rows in (4, 6))
    signed = np.where(a > 7, a.astype(int) - 16, a)
    np.testing.assert_array_equal(
        mma("mma.int4", a, b, a_format="s4", b_format="u4").view(np.int32), signed @ b.astype(int).T
    )
    a, b = (stream.below(2, rows, 256).astype(np.uint8) for rows in (4, 6))
    c = stream.words(4, 6).astype(np.uint32)
    both = (a[:, None] & b[None]).sum(-1)
    np.testing.assert_array_equal(mma("wgmma.b1", a, b, c, a_format="b1", b_format="b1"), (both + c).astype(np.uint32))
    either = (a[:, None] ^ b[None]).sum(-1)
    np.testing.assert_array_equal(
        mma("mma.b1.xor", a, b, c, a_format="b1", b_format="b1"), (either + c).astype(np.uint32)
    )


# ---- emulated and f64 --------------------------------------------------------------------------------------------


def widened(code, fmt):
    with np.errstate(invalid="ignore"):
        return int(np.float16(formats.table(fmt)[code]).view(np.uint16))


@pytest.mark.parametrize("family", ["bits", "finite", "window", "few", "tiny", "cancel", "special"])
@pytest.mark.parametrize(("name", "depth"), [("mma.fp8", 32), ("mma.fp8", 16), ("mma.fp8.f16", 32)])
def test_fp8_mma_sync_is_two_f16_sums_and_an_add(name, depth, family):
    kind = kinds.KINDS[name]
    a, b, c, _ = operands(kind, "e4m3", "e5m2", family, depth=depth)
    floor, rounding = (-133, "rz") if kind.output == "f32" else (-21, "rne")
    wanted = np.empty(c.shape, c.dtype)
    floating = np.float32 if kind.output == "f32" else np.float16
    for m in range(len(a)):
        for n in range(len(b)):
            t = 0
            for chosen in ((0, 1), (2, 3)):
                ks = [k for k in range(depth) if k % 4 in chosen]
                left, right = [widened(a[m, k], "e4m3") for k in ks], [widened(b[n, k], "e5m2") for k in ks]
                t = reference.fused(left, right, t, "f16", "f16", 25, floor, kind.output, rounding)
            with np.errstate(all="ignore"):
                total = np.array([t], c.dtype).view(floating) + c[m, n : n + 1].view(floating)
            wanted[m, n] = formats.FORMATS[kind.output].nan_bits if np.isnan(total[0]) else total.view(c.dtype)[0]
    np.testing.assert_array_equal(mma(name, a, b, c, a_format="e4m3", b_format="e5m2"), wanted)


def test_f64_is_a_chain_of_fused_multiply_adds():
    a = np.array([[1 + 2**-52, 1.0, 3.0, -7.0]])
    b = np.array([[1 - 2**-52, -1.0, 5.0, 2.0], [1.0, 2**-60, 0.0, 0.0]])
    d = mma("mma.f64", a.view(np.uint64), b.view(np.uint64), a_format="f64", b_format="f64").view(np.float64)
    # (1 - 2^-104) rounds to 1 at the first step of the first column
    np.testing.assert_array_equal(d, [[1.0, 1 + 2**-52]])
    c = np.array([[-1.0, np.inf]]).view(np.uint64)
    d = mma("mma.f64", a.view(np.uint64), b.view(np.uint64), c, a_format="f64", b_format="f64")
    np.testing.assert_array_equal(d.view(np.float64), [[-(2**-104) - 1 + 15 - 14, np.inf]])


def test_the_compiler_is_imported_only_for_a_multiplication():
    code = """import sys
from smalti.numerics import convert, formats, fused_sum, kinds, quantize, sparse
assert "numba" not in sys.modules
import numpy as np
fused_sum.mma("wgmma.b1", np.ones((1, 256), np.uint8), np.ones((1, 256), np.uint8), a_format="b1", b_format="b1")
assert "numba" in sys.modules"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# ---- refusals ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "change"),
    [
        ("SML1004", {"kind": "wgmma.fp4"}),
        ("SML1001", {"a_format": "half"}),
        ("SML1005", {"a_format": "f16", "b_format": "f16"}),
        ("SML1002", {"a": np.zeros((2, 16), np.uint8)}),
        ("SML1002", {"c": np.zeros((2, 2), np.float32)}),
        ("SML1006", {"c": np.zeros((2, 3), np.uint32)}),
        ("SML1006", {"b": np.zeros((2, 8), np.uint16)}),
        ("SML1006", {"a": np.zeros((2, 24), np.uint16), "b": np.zeros((2, 24), np.uint16)}),
        ("SML1006", {"a": np.zeros(16, np.uint16)}),
        ("SML1006", {"a": np.zeros((2, 0), np.uint16), "b": np.zeros((2, 0), np.uint16)}),
        ("SML1007", {"scale_a": np.zeros((2, 1), np.uint8)}),
    ],
)
def test_refusals(code, change):
    good = {
        "kind": "wgmma.bf16",
        "a": np.zeros((2, 16), np.uint16),
        "b": np.zeros((2, 16), np.uint16),
        "a_format": "bf16",
        "b_format": "bf16",
    }
    assert mma(**good).tolist() == [[0, 0], [0, 0]]
    with pytest.raises(SmaltiError) as caught:
        mma(**{**good, **change})
    assert caught.value.code == code
