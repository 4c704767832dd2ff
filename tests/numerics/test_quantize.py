"""Block quantisation: scale rules, saturation, specials, ragged blocks, and the cases met in the field (F37-F39)."""

from __future__ import annotations

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest
import vectors

from smalti.errors import SmaltiError
from smalti.numerics import formats
from smalti.numerics.formats import FORMATS
from smalti.numerics.quantize import SCHEMES, dequantize, quantize

MX = [name for name, scheme in SCHEMES.items() if not scheme.two_level]


def telling(rows, columns, seed="telling"):
    """Different magnitudes in every row and block, exact in float32."""
    stream = vectors.Stream(seed)
    x = stream.between(-2047, 2047, rows, columns).astype(np.float64)
    x *= np.exp2(
        stream.between(-6, 6, rows, 1)
        + np.repeat(stream.between(-3, 3, rows, -(-columns // 8)), 8, axis=1)[:, :columns]
    )
    return x.astype(np.float32)


def floor_log2(x):
    return (
        x.numerator.bit_length()
        - x.denominator.bit_length()
        - (x < Fraction(2) ** (x.numerator.bit_length() - x.denominator.bit_length()))
    )


def nearest(value, fmt):
    """The code of the element nearest to a Fraction, ties to even, saturating; by search."""
    table = [(Fraction(float(v)), c) for c, v in enumerate(formats.table(fmt)) if np.isfinite(v)]
    sign = value < 0
    best = min((abs(v - value), c & 1, c) for v, c in table if (c >= len(formats.table(fmt)) // 2) == sign)
    return best[2]


@pytest.mark.parametrize("rounding", ["floor", "ceil", "even"])
@pytest.mark.parametrize("name", MX)
def test_mx_by_exact_fractions(name, rounding):
    scheme = SCHEMES[name]
    x = telling(3, 64)
    x[1, :32] *= np.float32(2.0**-140)  # scales at their least
    q = quantize(x, name, scale_rounding=rounding)
    largest = Fraction(FORMATS[scheme.element].max)
    for row in range(3):
        for b in range(2):
            block = [Fraction(float(v)) for v in x[row, 32 * b : 32 * b + 32]]
            top = max(abs(v) for v in block)
            power = floor_log2(top) - floor_log2(largest)
            if rounding == "ceil":
                power = next(p for p in range(-200, 200) if top / Fraction(2) ** p <= largest)
            if rounding == "even":
                unit = Fraction(2) ** (floor_log2(top) - FORMATS[scheme.element].mantissa_bits)
                power = floor_log2(round(top / unit) * unit) - floor_log2(largest)  # round() of a Fraction ties to even
            code = min(max(power + 127, 0), 254)
            assert q.scales[row, b] == code
            wanted = [nearest(v / Fraction(2) ** (code - 127), scheme.element) for v in block]
            assert q.elements[row, 32 * b : 32 * b + 32].tolist() == wanted


def test_nvfp4_by_exact_fractions():
    x = telling(2, 48)
    q = quantize(x, "nvfp4")
    level = np.float32(float(np.abs(x).max()) / (6 * 448))
    assert q.global_scale == level and q.scales.shape == (2, 3)
    for row in range(2):
        for b in range(3):
            block = [Fraction(float(v)) for v in x[row, 16 * b : 16 * b + 16]]
            scale = nearest(max(abs(v) for v in block) / 6 / Fraction(float(level)), "ue4m3")
            assert q.scales[row, b] == scale
            divisor = Fraction(float(formats.table("ue4m3")[scale])) * Fraction(float(level))
            wanted = [nearest(v / divisor, "e2m1") for v in block]
            assert q.elements[row, 16 * b : 16 * b + 16].tolist() == wanted
    back = dequantize(q.elements, q.scales, "nvfp4", global_scale=q.global_scale)
    assert np.abs(back - x).max() <= np.abs(x).max() / 6


def test_a_binade_saturates_with_floor_and_not_with_ceil():
    x = np.zeros((1, 32), np.float32)
    x[0, :2] = 511, -464
    low, high = quantize(x, "mxfp8"), quantize(x, "mxfp8", scale_rounding="ceil")
    assert (low.scales[0, 0], low.elements[0, :2].tolist()) == (127, [0x7E, 0xFE])
    assert (high.scales[0, 0], high.elements[0, :2].tolist()) == (128, [0x78, 0xF6])
    even = quantize(x, "mxfp8", scale_rounding="even")
    assert even.scales[0, 0] == 128  # 511 rounds to 512


def test_values_of_the_format_come_back_exactly():
    for name, scheme in SCHEMES.items():
        values = formats.table(scheme.element)
        values = values[np.isfinite(values)]
        x = np.zeros((len(values), scheme.block))
        x[:, 0], x[:, 1] = FORMATS[scheme.element].max, values
        q = quantize(x, name, global_scale=1.0 if scheme.two_level else None)
        back = dequantize(q.elements, q.scales, name, global_scale=q.global_scale, dtype=np.float64)
        np.testing.assert_array_equal(back, x)
        assert np.signbit(back[:, 1]).tolist() == np.signbit(x[:, 1]).tolist()


@pytest.mark.parametrize("length", [1, 31, 32, 33, 95, 96])
@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_a_last_block_may_be_shorter(name, length):
    scheme = SCHEMES[name]
    x = telling(4, 96)[:, :length]
    q = quantize(x, name)
    padded = np.zeros((4, 96), np.float32)
    padded[:, :length] = x
    whole = quantize(padded, name)
    blocks = -(-length // scheme.block)
    assert q.elements.shape == x.shape and q.scales.shape == (4, blocks)
    np.testing.assert_array_equal(q.elements, whole.elements[:, :length])
    np.testing.assert_array_equal(q.scales, whole.scales[:, :blocks])
    back = dequantize(q.elements, q.scales, name, global_scale=q.global_scale)
    full = dequantize(whole.elements, whole.scales, name, global_scale=whole.global_scale)
    np.testing.assert_array_equal(back, full[:, :length])


@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_any_axis(name):
    x = telling(40, 3).reshape(2, 20, 3)
    along = quantize(x, name, axis=1)
    moved = quantize(np.moveaxis(x, 1, -1), name)
    assert along.axis == 1
    np.testing.assert_array_equal(np.moveaxis(along.elements, 1, -1), moved.elements)
    np.testing.assert_array_equal(np.moveaxis(along.scales, 1, -1), moved.scales)
    back = dequantize(along.elements, along.scales, name, axis=1, global_scale=along.global_scale)
    straight = dequantize(moved.elements, moved.scales, name, global_scale=moved.global_scale)
    np.testing.assert_array_equal(np.moveaxis(back, 1, -1), straight)


@pytest.mark.parametrize("shape", [(0, 32), (3, 0), (0,)])
def test_empty_arrays(shape):
    q = quantize(np.zeros(shape, np.float32), "nvfp4")
    assert q.elements.shape == shape and q.scales.shape == (*shape[:-1], -(-shape[-1] // 16))
    assert dequantize(q.elements, q.scales, "nvfp4", global_scale=q.global_scale).shape == shape


# ---- specials ----------------------------------------------------------------------------------------------------


def test_only_byte_255_is_nan_and_takes_its_block_along():
    """F37: the sentinel is the code, not its value."""
    elements = np.full((256, 64), 0x38, np.uint8)
    scales = np.repeat(np.arange(256, dtype=np.uint8)[:, None], 2, axis=1)
    scales[:, 1] = 127
    x = dequantize(elements, scales, "mxfp8", dtype=np.float64)
    assert np.isnan(x[255, :32]).all() and (x[:, 32:] == 1).all()
    np.testing.assert_array_equal(x[:255, 0], np.exp2(np.arange(255) - 127.0))
    assert x[134, 0] == 128


def test_inf_saturates():
    """F38: a block with both infinities gives plus and minus 448, and no NaN."""
    x = np.full((2, 32), 3.0, np.float32)
    x[0, 5], x[0, 6] = np.inf, -np.inf
    q = quantize(x, "mxfp8")
    assert (q.elements[0, 5], q.elements[0, 6], q.scales[0, 0]) == (0x7E, 0xFE, 0xFE)
    assert not (q.elements[0] & 0x7F == 0x7F).any()
    assert q.elements[0, 0] == 0 and q.scales[1, 0] == 127 + 1 - 8
    q = quantize(x, "nvfp4")
    assert (q.elements[0, 5], q.elements[0, 6], q.scales[0, 0]) == (0x7, 0xF, 0x7E)
    assert q.global_scale == np.float32(3 / 2688)


@pytest.mark.parametrize("name", sorted(SCHEMES))
def test_a_nan_makes_its_block_nan(name):
    scheme = SCHEMES[name]
    x = telling(2, 2 * scheme.block)
    x[1, 3] = np.nan
    q = quantize(x, name)
    clean = quantize(np.where(np.isnan(x), 0, x), name)
    assert q.scales[1, 0] == FORMATS[scheme.scale].nan_bits
    np.testing.assert_array_equal(q.scales[:, 1], clean.scales[:, 1])
    back = dequantize(q.elements, q.scales, name, global_scale=q.global_scale)
    assert (
        np.isnan(back[1, : scheme.block]).all()
        and np.isfinite(back[0]).all()
        and np.isfinite(back[1, scheme.block :]).all()
    )


def test_zeros_and_the_least_scales():
    q = quantize(np.array([[0.0, -0.0] * 16]), "mxfp4")
    assert q.scales[0, 0] == 0 and q.elements[0, :2].tolist() == [0, 8]
    q = quantize(np.zeros((1, 16), np.float32), "nvfp4")
    assert q.global_scale == 1 and q.scales[0, 0] == 0 and not q.elements.any()
    tiny = quantize(np.full((1, 32), 2.0**-149, np.float32), "mxfp4")
    assert tiny.scales[0, 0] == 0 and not tiny.elements.any()  # 2^-149 / 2^-127 is far below 0.25
    x = np.full((2, 16), 1.0, np.float32)
    x[1] = 2.0**-30  # its scale rounds to 0
    q = quantize(x, "nvfp4")
    assert q.scales[1, 0] == 0 and not q.elements[1].any() and q.elements[0, 0] == 7
    q = quantize(np.full((1, 16), 1e-44, np.float32), "nvfp4")
    assert q.global_scale == np.finfo(np.float32).tiny
    huge = quantize(np.full((1, 32), 1e300), "mxfp8")
    assert huge.scales[0, 0] == 0xFE and (huge.elements == 0x7E).all()


def test_scales_are_codes_whatever_their_type_says():
    """F39: uint8 and float8_e8m0fnu give the same; float32 of the same shape is refused, not multiplied in."""
    q = quantize(telling(4, 64), "mxfp8")
    plain = dequantize(q.elements, q.scales, "mxfp8")
    np.testing.assert_array_equal(dequantize(q.elements, q.scales.view(ml_dtypes.float8_e8m0fnu), "mxfp8"), plain)
    with pytest.raises(SmaltiError) as caught:
        dequantize(q.elements, q.scales.astype(np.float32), "mxfp8")
    assert caught.value.code == "SML1014" and "ue8m0" in str(caught.value)


@pytest.mark.parametrize(
    ("code", "call"),
    [
        ("SML1011", lambda: quantize(np.ones((2, 32), np.float16), "mxfp8")),
        ("SML1011", lambda: quantize(np.float32(1), "mxfp8")),
        ("SML1011", lambda: quantize(np.array([["a"]], object), "mxfp8")),
        ("SML1012", lambda: quantize(np.ones((2, 32)), "e4m3")),
        ("SML1013", lambda: quantize(np.ones((2, 32)), "mxfp8", axis=2)),
        ("SML1013", lambda: quantize(np.ones((2, 32)), "mxfp8", scale_rounding="up")),
        ("SML1013", lambda: quantize(np.ones((2, 32)), "mxfp8", global_scale=1.0)),
        ("SML1013", lambda: quantize(np.ones((2, 32)), "nvfp4", global_scale=0.0)),
        ("SML1013", lambda: quantize(np.ones((2, 32)), "nvfp4", global_scale=float("nan"))),
        ("SML1013", lambda: dequantize(np.zeros((1, 16), np.uint8), np.zeros((1, 1), np.uint8), "nvfp4")),
        ("SML1014", lambda: dequantize(np.zeros((1, 33), np.uint8), np.zeros((1, 1), np.uint8), "mxfp8")),
        ("SML1002", lambda: dequantize(np.zeros((1, 32)), np.zeros((1, 1), np.uint8), "mxfp8")),
    ],
)
def test_refusals(code, call):
    with pytest.raises(SmaltiError) as caught:
        call()
    assert caught.value.code == code
