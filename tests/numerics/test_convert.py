"""Conversions against ml_dtypes, a search of all codes, Python integers and measured specials."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import vectors

from smalti.errors import SmaltiError
from smalti.numerics import formats
from smalti.numerics.convert import RANDOM_BITS, cvt, encode
from smalti.numerics.formats import FORMATS

SMALL = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1", "f16", "bf16")
ML = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e5m2": ml_dtypes.float8_e5m2,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e3m2": ml_dtypes.float6_e3m2fn,
    "e2m3": ml_dtypes.float6_e2m3fn,
    "e2m1": ml_dtypes.float4_e2m1fn,
}


def finite_values(fmt):
    """Every finite value of the format, ascending, with its code; -0 left out."""
    values = formats.table(fmt)
    codes = np.flatnonzero(np.isfinite(values) & ~((values == 0) & np.signbit(values)))
    order = np.argsort(values[codes], kind="stable")
    return values[codes][order], codes[order]


def samples(fmt):
    """Random values, every value of the format and every midpoint with its neighbours, as float64."""
    values, _ = finite_values(fmt)
    middle = (values[1:] + values[:-1]) / 2
    if len(middle) > 4000:
        middle = middle[:: len(middle) // 4000]
    near = [middle, np.nextafter(middle, np.inf), np.nextafter(middle, -np.inf), values[:: max(len(values) // 4000, 1)]]
    stream = vectors.Stream("convert", fmt)
    top = FORMATS[fmt].max
    wide = np.ldexp(stream.between(-(2**30), 2**30, 4000) / 2**30 * top, -stream.below(40, 4000))
    return np.concatenate([*near, wide, [0.0, -0.0, top, -top]])


@pytest.mark.parametrize("fmt", SMALL)
def test_values_agree_with_ml_dtypes(fmt):
    form = FORMATS[fmt]
    if form.bits <= 8:
        codes = np.arange(1 << form.bits, dtype=np.uint8)
    else:
        codes = np.arange(1 << 16, dtype=np.uint16)
    with np.errstate(invalid="ignore"):
        theirs = codes.view(ML[fmt]).astype(np.float64)
    np.testing.assert_array_equal(formats.decode(codes, fmt), theirs)


@pytest.mark.parametrize("fmt", SMALL)
def test_nearest_agrees_with_ml_dtypes(fmt):
    x = samples(fmt).astype(np.float32)
    x = x[np.abs(x) <= FORMATS[fmt].max]
    np.testing.assert_array_equal(encode(x, fmt), x.astype(ML[fmt]).view(FORMATS[fmt].dtype))


@pytest.mark.parametrize("rounding", ["rn", "rz", "rm", "rp", "rna"])
@pytest.mark.parametrize("fmt", [*SMALL, "ue4m3"])
def test_every_rounding_finds_the_right_neighbour(fmt, rounding):
    """The neighbours below and above are searched in the list of all values; the mode only chooses between them."""
    values, codes = finite_values(fmt if fmt != "ue4m3" else "e4m3")
    x = samples(fmt if fmt != "ue4m3" else "e4m3")
    x = x[np.abs(x) <= values[-1]]
    if fmt == "ue4m3":
        x = np.abs(x)
    right = np.searchsorted(values, x, side="left")
    left = np.where(values[right] == x, right, right - 1)
    below, above = values[left], values[right]
    distance = (x - below) - (above - x)  # exact: both differences are
    even = codes[left] % 2 == 0
    upward = {
        "rn": (distance > 0) | ((distance == 0) & ~even),
        "rz": x < 0,
        "rm": np.zeros(x.shape, bool),
        "rp": np.ones(x.shape, bool),
        "rna": (distance > 0) | ((distance == 0) & (x > 0)),
    }[rounding]
    wanted = np.where(upward, above, below)
    got = encode(x, fmt, rounding)
    np.testing.assert_array_equal(formats.decode(got, fmt), wanted)
    if fmt != "ue4m3":
        np.testing.assert_array_equal(got & FORMATS[fmt].sign_mask != 0, np.signbit(x))


def test_a_float64_is_rounded_once():
    """Through float32 the first would tie and go to even."""
    x = np.array([1 + 2**-11 + 2**-40, 1 + 2**-11])
    assert encode(x, "f16").tolist() == [0x3C01, 0x3C00]
    assert encode(x.astype(np.float32), "f16").tolist() == [0x3C00, 0x3C00]


@pytest.mark.parametrize("fmt", ["f16", "bf16", "tf32", "f32", "e4m3", "e5m2", "e2m3", "e3m2", "e2m1"])
def test_codes_come_back(fmt):
    form = FORMATS[fmt]
    codes = np.arange(1 << min(form.bits, 16), dtype=np.uint64)
    codes = (codes << np.uint64(16) if form.dtype.itemsize == 4 else codes).astype(form.dtype)
    values = formats.decode(codes, fmt)
    for rounding in ("rn", "rz", "rm", "rp", "rna"):
        back = encode(values, fmt, rounding, satfinite=False)
        np.testing.assert_array_equal(back[~np.isnan(values)], codes[~np.isnan(values)])
        if form.nan_bits is not None:
            assert (back[np.isnan(values)] == form.nan_bits).all()


# ---- specials of the instruction, as measured (E17) and documented ------------------------------------------------

F32 = {"nan": 0x7FC00001, "-nan": 0xFFFFFFFF, "inf": 0x7F800000, "-inf": 0xFF800000, "-0": 0x80000000, "-1": 0xBF800000,
       "big": 0x7F7FFFFF, "-big": 0xFF7FFFFF, "tiny": 0x00000001, "-tiny": 0x80000001}  # fmt: skip


def one(dst, src, bits, rounding=None, **modifiers):
    container = FORMATS[src].dtype
    few = int(cvt(dst, src, np.array([bits], container), rounding, **modifiers)[0])
    many = cvt(dst, src, np.full(100, bits, container), rounding, **modifiers)  # the road through a table
    assert (many == few).all()
    return few


@pytest.mark.parametrize(
    ("dst", "rounding", "modifiers", "results"),
    [
        ("f16", "rn", {}, {"nan": 0x7FFF, "-nan": 0x7FFF, "inf": 0x7C00, "big": 0x7C00, "-big": 0xFC00, "-0": 0x8000}),
        ("f16", "rz", {}, {"nan": 0x7FFF, "inf": 0x7C00, "big": 0x7BFF, "-big": 0xFBFF, "tiny": 0}),
        ("f16", "rm", {}, {"big": 0x7BFF, "-big": 0xFC00, "tiny": 0, "-tiny": 0x8001}),
        ("f16", "rp", {}, {"big": 0x7C00, "-big": 0xFBFF, "tiny": 1, "-tiny": 0x8000}),
        ("f16", "rn", {"sat": True}, {"nan": 0, "-1": 0, "inf": 0x3C00, "-inf": 0, "-0": 0}),
        ("f16", "rn", {"satfinite": True}, {"nan": 0x7FFF, "inf": 0x7BFF, "-inf": 0xFBFF, "big": 0x7BFF}),
        ("f16", "rn", {"relu": True}, {"nan": 0x7FFF, "-nan": 0x7FFF, "-1": 0, "-0": 0, "-inf": 0, "inf": 0x7C00}),
        ("bf16", "rn", {}, {"nan": 0x7FFF, "-nan": 0x7FFF, "inf": 0x7F80, "big": 0x7F80, "-tiny": 0x8000}),
        ("bf16", "rz", {}, {"big": 0x7F7F, "nan": 0x7FFF}),
        ("bf16", "rm", {}, {"big": 0x7F7F, "-big": 0xFF80}),
        ("bf16", "rp", {}, {"big": 0x7F80, "-big": 0xFF7F}),
        ("bf16", "rn", {"satfinite": True}, {"nan": 0x7FFF, "inf": 0x7F7F, "big": 0x7F7F, "-inf": 0xFF7F}),
        ("bf16", "rn", {"relu": True}, {"nan": 0x7FFF, "-0": 0, "-1": 0, "-nan": 0x7FFF}),
        ("bf16", "rn", {"relu": True, "satfinite": True}, {"-inf": 0, "inf": 0x7F7F}),
        ("e4m3", "rn", {"satfinite": True}, {"nan": 0x7F, "-nan": 0x7F, "inf": 0x7E, "-inf": 0xFE, "-0": 0x80}),
        ("e5m2", "rn", {"satfinite": True}, {"nan": 0x7F, "inf": 0x7B, "-inf": 0xFB, "-big": 0xFB, "-0": 0x80}),
        ("e4m3", "rn", {"satfinite": True, "relu": True}, {"nan": 0x7F, "-inf": 0, "-0": 0, "-1": 0}),
        ("e2m3", "rn", {"satfinite": True}, {"nan": 0x1F, "-nan": 0x1F, "inf": 0x1F, "-inf": 0x3F, "-0": 0x20}),
        ("e3m2", "rn", {"satfinite": True}, {"nan": 0x1F, "inf": 0x1F, "-big": 0x3F}),
        ("e2m1", "rn", {"satfinite": True}, {"nan": 0x7, "-nan": 0x7, "inf": 0x7, "-inf": 0xF, "-tiny": 0x8}),
        ("e2m1", "rn", {"satfinite": True, "relu": True}, {"nan": 0x7, "-inf": 0, "-0": 0}),
        ("tf32", "rn", {}, {"nan": 0x7FFFE000, "-nan": 0x7FFFE000, "inf": 0x7F800000, "big": 0x7F800000}),
        ("tf32", "rz", {}, {"nan": 0x7FFFE000, "big": 0x7F7FE000, "-0": 0x80000000}),
        ("tf32", "rna", {}, {"nan": 0x7FC00000, "-nan": 0xFFFFE000, "inf": 0x7F800000, "big": 0x7F800000}),
        ("tf32", "rna", {"satfinite": True}, {"nan": 0x7FBFE000, "inf": 0x7F7FE000, "-inf": 0xFF7FE000}),
        ("ue8m0", "rz", {"satfinite": True}, {"nan": 0xFF, "inf": 0xFE, "-1": 0x7F, "big": 0xFE, "tiny": 0, "-0": 0}),
        ("ue8m0", "rp", {"satfinite": True}, {"inf": 0xFE, "big": 0xFE, "tiny": 0}),
        ("ue8m0", "rp", {}, {"nan": 0xFF, "inf": 0xFF, "big": 0xFF}),
        ("ue8m0", "rz", {}, {"inf": 0xFF, "big": 0xFE}),
        ("f32", None, {"sat": True}, {"nan": 0, "-1": 0, "inf": 0x3F800000, "tiny": 1}),
        ("f32", None, {"sat": True, "ftz": True}, {"tiny": 0}),
        ("s32", "rzi", {}, {"nan": 0, "inf": 0x7FFFFFFF, "-inf": 0x80000000, "-1": 0xFFFFFFFF, "-0": 0}),
        ("u32", "rni", {}, {"nan": 0, "inf": 0xFFFFFFFF, "-inf": 0, "-1": 0}),
        ("s8", "rni", {}, {"nan": 0, "inf": 0x7F, "-inf": 0x80}),
        ("u8", "rpi", {}, {"tiny": 1, "-tiny": 0, "-1": 0}),
        ("s32", "rpi", {"ftz": True}, {"tiny": 0}),
        ("s64", "rzi", {}, {"nan": 1 << 63, "inf": (1 << 63) - 1, "-inf": 1 << 63}),
        ("u64", "rzi", {}, {"nan": 1 << 63, "inf": (1 << 64) - 1, "-1": 0}),
    ],
)  # fmt: skip
def test_specials_of_f32_sources(dst, rounding, modifiers, results):
    got = {name: one(dst, "f32", F32[name], rounding, **modifiers) for name in results}
    assert {k: hex(v) for k, v in got.items()} == {k: hex(v) for k, v in results.items()}


def test_rna_tf32_of_a_nan_whose_payload_is_cut_off():
    assert one("tf32", "f32", 0x7F800001, "rna") == 0x7F800000
    assert one("tf32", "f32", 0x7F800001, "rna", satfinite=True) == 0x7F7FE000
    assert one("tf32", "f32", 0x7FC00000, "rna", satfinite=True) == 0x7FBFE000
    assert one("tf32", "f32", 0x3F801000, "rna") == 0x3F802000
    assert one("tf32", "f32", 0x3F801000, "rn") == 0x3F800000


@pytest.mark.parametrize(
    ("dst", "src", "bits", "result"),
    [
        ("f32", "f16", 0x7E00, 0x7FFFFFFF),
        ("f32", "f16", 0xFC00, 0xFF800000),
        ("f32", "f16", 0x8001, 0xB3800000),
        ("f32", "bf16", 0xFF81, 0xFF810000),
        ("f32", "bf16", 0x0001, 0x00010000),
        ("f64", "f32", 0x3F800000, 0x3FF0000000000000),
        ("f16", "e4m3", 0x7F, 0x7FFF),
        ("f16", "e4m3", 0xFF, 0x7FFF),
        ("f16", "e4m3", 0x01, 0x1800),
        ("f16", "e5m2", 0xFC, 0xFC00),
        ("f16", "e5m2", 0x7D, 0x7FFF),
        ("f16", "e2m1", 0xF, 0xC600),
        ("f16", "e2m3", 0x21, 0xB000),
        ("f16", "e3m2", 0x01, 0x2C00),
        ("bf16", "ue8m0", 0xFF, 0x7FFF),
        ("bf16", "ue8m0", 0x00, 0x0040),
        ("bf16", "ue8m0", 0xFE, 0x7F00),
        ("bf16", "f16", 0x0001, 0x3380),
    ],
)
def test_widening(dst, src, bits, result):
    assert hex(one(dst, src, bits, "rn" if src not in ("f16", "bf16", "f32") or dst == "bf16" else None)) == hex(result)


def test_ue8m0_of_every_bf16():
    codes = np.arange(0x7F80, dtype=np.uint16)
    values = formats.decode(codes, "bf16")
    for rounding, round_up in (("rz", 0), ("rp", 1)):
        exponent = np.array(
            [0 if v == 0 else np.frexp(v)[1] - 1 + (round_up and np.frexp(v)[0] != 0.5) for v in values]
        )
        wanted = np.where(values == 0, 0, np.clip(exponent + 127, 0, 254))
        np.testing.assert_array_equal(cvt("ue8m0", "bf16", codes, rounding, satfinite=True), wanted)
        np.testing.assert_array_equal(cvt("ue8m0", "bf16", codes | 0x8000, rounding, satfinite=True), wanted)


def test_ftz_keeps_the_sign():
    assert one("f32", "f32", 0x80000001, "rni", ftz=True) == 0x80000000
    assert one("f32", "f64", 0x8010000000000000, "rn", ftz=True) == 0x80000000
    tiny = np.array([-(2.0**-140)]).view(np.uint64)[0]
    assert one("f32", "f64", tiny, "rn") == 0x80000200
    assert one("f32", "f64", tiny, "rn", ftz=True) == 0x80000000


@pytest.mark.parametrize(
    ("rounding", "function"), [("rni", np.rint), ("rzi", np.trunc), ("rmi", np.floor), ("rpi", np.ceil)]
)
def test_integral_rounding(rounding, function):
    x = np.array([0.5, 1.5, -0.5, -2.5, 2.49, -0.1, 8388607.5, 1e30], np.float32)
    got = cvt("f32", "f32", x.view(np.uint32), rounding)
    np.testing.assert_array_equal(got, function(x).view(np.uint32))
    small = x[:-1]
    np.testing.assert_array_equal(cvt("s32", "f32", small.view(np.uint32), rounding).view(np.int32), function(small))
    half = x[:6].astype(np.float16)
    np.testing.assert_array_equal(cvt("f16", "f16", half.view(np.uint16), rounding), function(half).view(np.uint16))


# ---- integers ----------------------------------------------------------------------------------------------------

INTEGERS = ("s8", "u8", "s16", "u16", "s32", "u32", "s64", "u64")


def edge_integers(fmt):
    form = FORMATS[fmt]
    stream = vectors.Stream("integers", fmt)
    words = [int(w) for w in stream.words(60)] + [1 << i for i in range(64)] + [(1 << i) - 1 for i in range(65)]
    words += [
        (1 << 53) + 1,
        (1 << 53) + 3,
        (1 << 54) + 2,
        (1 << 24) + 1,
        0xFFFFFFFFFFFFFBFF,
        0xFFFFFFFFFFFFFC00,
        65519,
        65520,
    ]
    return np.array([w & ((1 << form.bits) - 1) for w in words], np.uint64).astype(form.dtype)


def as_int(code, fmt):
    form = FORMATS[fmt]
    return int(code) - (1 << form.bits if form.signed and int(code) >> (form.bits - 1) else 0)


@pytest.mark.parametrize("sat", [False, True])
@pytest.mark.parametrize("dst", INTEGERS)
@pytest.mark.parametrize("src", INTEGERS)
def test_integer_to_integer(dst, src, sat):
    codes, form = edge_integers(src), FORMATS[dst]
    low, high = (-(1 << (form.bits - 1)), (1 << (form.bits - 1)) - 1) if form.signed else (0, (1 << form.bits) - 1)
    wanted = [min(max(as_int(c, src), low), high) if sat else as_int(c, src) for c in codes]
    got = cvt(dst, src, codes, sat=sat)
    assert got.dtype == form.dtype
    assert [int(g) for g in got] == [w & ((1 << form.bits) - 1) for w in wanted]


def rounded(value, fmt, rounding):
    """A Python integer rounded to the format, as a Fraction; None where it overflows."""
    form = FORMATS[fmt]
    magnitude = abs(value)
    unit = max(magnitude.bit_length() - 1 - form.mantissa_bits, 0)
    kept, rest, half = magnitude >> unit, magnitude & ((1 << unit) - 1), (1 << unit) // 2
    up = {
        "rn": rest > half or (rest == half and unit > 0 and kept & 1),
        "rz": False,
        "rm": rest and value < 0,
        "rp": rest and value > 0,
    }[rounding]
    result = Fraction(kept + bool(up)) * 2**unit
    return None if result > Fraction(form.max) else (-result if value < 0 else result)


@pytest.mark.parametrize("rounding", ["rn", "rz", "rm", "rp"])
@pytest.mark.parametrize("dst", ["f16", "bf16", "f32", "f64"])
@pytest.mark.parametrize("src", INTEGERS)
def test_integer_to_float(dst, src, rounding):
    codes = edge_integers(src)
    got = formats.decode(cvt(dst, src, codes, rounding), dst)
    for code, value in zip(codes, got, strict=True):
        wanted = rounded(as_int(code, src), dst, rounding)
        if wanted is None:
            away = rounding == "rn" or (rounding == "rm") == (as_int(code, src) < 0)
            away = away and rounding != "rz"
            limit = np.inf if away else FORMATS[dst].max
            assert value == (-limit if as_int(code, src) < 0 else limit)
        else:
            assert Fraction(float(value)) == wanted, (int(code), rounding)


@pytest.mark.parametrize("dst", INTEGERS)
@pytest.mark.parametrize("src", ["f16", "f32", "f64"])
def test_float_to_integer_clamps(dst, src):
    form = FORMATS[dst]
    edges = [2.0**form.bits, 2.0 ** (form.bits - 1), -(2.0 ** (form.bits - 1))]
    x = np.array([v + d for v in edges for d in (-1.5, -0.75, 0, 0.75, 1.5)] + [1e4, -1e4, 0.999, -0.999])
    x = (
        x.astype({"f16": np.float16, "f32": np.float32, "f64": np.float64}[src])
        if src != "f16"
        else x[np.abs(x) < 6e4].astype(np.float16)
    )
    low, high = (-(1 << (form.bits - 1)), (1 << (form.bits - 1)) - 1) if form.signed else (0, (1 << form.bits) - 1)
    got = cvt(dst, src, x.view(FORMATS[src].dtype), "rzi")
    assert [as_int(g, dst) for g in got] == [min(max(int(float(v)), low), high) for v in x]


# ---- stochastic --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", sorted(RANDOM_BITS))
def test_stochastic_rounding_carries_out_of_the_discarded_bits(fmt):
    """Halfway between two neighbours the carry comes for exactly half of the random words; on a value never."""
    width = RANDOM_BITS[fmt]
    words = np.arange(1 << width)
    low, high = (formats.decode(np.array([c], FORMATS[fmt].dtype), fmt)[0] for c in (4, 5))
    for x, share in ((low, 0), ((low + high) / 2, 1 << (width - 1)), (low + (high - low) / 4, 1 << (width - 2))):
        for sign in (1, -1):
            got = encode(np.full(len(words), sign * x), fmt, "rs", random=words)
            assert (formats.decode(got, fmt) == sign * high).sum() == share
            assert (formats.decode(got, fmt) == sign * low).sum() == len(words) - share


def test_stochastic_rounding_saturates():
    big = np.array([449.0, 1e9, -np.inf])
    assert encode(big, "e4m3", "rs", random=np.full(3, 0xFFFF)).tolist() == [0x7E, 0x7E, 0xFE]


# ---- packing and refusals ----------------------------------------------------------------------------------------


def test_packing_is_little_endian():
    assert formats.pack4(np.arange(8, dtype=np.uint8)).tolist() == [0x10, 0x32, 0x54, 0x76]
    assert formats.pack6(np.array([1, 2, 3, 4], np.uint8)).tolist() == [0x81, 0x30, 0x10]
    stream = vectors.Stream("packing")
    four, six = stream.below(16, 3, 10).astype(np.uint8), stream.below(64, 3, 12).astype(np.uint8)
    np.testing.assert_array_equal(formats.unpack4(formats.pack4(four)), four)
    np.testing.assert_array_equal(formats.unpack6(formats.pack6(six)), six)
    joined = int.from_bytes(formats.pack6(six[0]).tobytes(), "little")
    assert [joined >> 6 * i & 63 for i in range(12)] == six[0].tolist()


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("SML1001", lambda: encode(np.ones(1), "float8")),
        ("SML1001", lambda: cvt("f16", "half", np.ones(1, np.uint16))),
        ("SML1002", lambda: cvt("f16", "f32", np.ones(1, np.float32))),
        ("SML1002", lambda: formats.decode(np.ones(1, np.uint16), "e4m3")),
        ("SML1003", lambda: formats.pack6(np.ones(3, np.uint8))),
        ("SML1003", lambda: formats.unpack6(np.ones(4, np.uint8))),
        ("SML1010", lambda: encode(np.ones(1), "f16", "up")),
        ("SML1010", lambda: encode(np.ones(1), "f16", "rs")),
        ("SML1010", lambda: cvt("s32", "f32", np.ones(1, np.uint32), "nearest")),
        ("SML1011", lambda: encode(np.ones(1, int), "f16")),
    ],
)
def test_refusals(code, call):
    with pytest.raises(SmaltiError) as caught:
        call()
    assert caught.value.code == code
