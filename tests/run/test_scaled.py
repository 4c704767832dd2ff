"""Block-scaled matrices on the host: quantising, elements and scales of one's own, and how both lie in memory."""

import ml_dtypes
import numpy as np
import pytest

import smalti as sm
from smalti.errors import SmaltiError
from smalti.numerics.formats import unpack4
from smalti.run.scaled import BlockScaled, tile_scales, untile_scales


@pytest.mark.parametrize("scheme, worst", [("mxfp8", 2**-3), ("mxfp8_e5m2", 2**-2), ("mxfp4", 0.5), ("nvfp4", 0.4)])
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_quantize_and_back(scheme, worst, axis):
    """Every element within the format's step of its block's largest."""
    x = np.random.default_rng(1).standard_normal((70, 50)).astype(np.float32)
    q = sm.quantize(x, scheme, axis=axis)
    assert q.shape == (70, 50) and q.scheme.name == scheme
    back = q.dequantize(np.float64)
    blocks = np.abs(np.moveaxis(x, axis, -1))
    top = np.maximum.reduceat(blocks, range(0, blocks.shape[-1], q.block), axis=-1).repeat(q.block, axis=-1)
    error = np.abs(np.moveaxis(back - x, axis, -1)) / top[:, : blocks.shape[-1]]
    assert error.max() <= worst
    assert q.transposed == (axis == 0)
    elements, scales = q.along_rows
    assert elements.shape[1] == x.shape[axis] and scales.shape == (elements.shape[0], -(-elements.shape[1] // q.block))


@pytest.mark.parametrize("k", [1, 31, 32, 33, 48])
@pytest.mark.parametrize("padding", [0, 0xFF, 0x7F])
def test_data_bytes(k, padding):
    """Rows at multiples of 16 bytes, 4-bit elements two a byte; an odd last one beside zero, the rest is padding."""
    x = (np.arange(3 * k).reshape(3, k) % 11 - 5).astype(np.float32)
    for scheme, each in (("mxfp8", 1), ("mxfp4", 2)):
        q = sm.quantize(x, scheme)
        q = BlockScaled(q.scheme, q.elements, q.scales, padding=padding)
        data, pitch = q.data_bytes()
        used = -(-k // each)
        assert pitch % 16 == 0 and data.shape == (3, pitch) and pitch - used < 16
        assert (data[:, used:] == padding).all()
        found = data[:, :used] if each == 1 else unpack4(data[:, :used])
        np.testing.assert_array_equal(found[:, :k], q.elements)
        assert not found[:, k:].any()


@pytest.mark.parametrize("rows, factors", [(1, 1), (128, 4), (130, 9), (300, 3)])
def test_tiles_of_scales(rows, factors):
    """Byte (r % 32) * 16 + (r % 128 / 32) * 4 + f % 4 of atom [r / 128, f / 4]."""
    scales = (np.arange(rows * factors) % 251).astype(np.uint8).reshape(rows, factors)
    atoms = tile_scales(scales, 0xEE)
    assert atoms.shape == (-(-rows // 128), -(-factors // 4), 512)
    for r in range(rows):
        for f in range(factors):
            assert atoms[r // 128, f // 4, r % 32 * 16 + r % 128 // 32 * 4 + f % 4] == scales[r, f]
    assert (atoms == 0xEE).sum() >= atoms.size - scales.size
    np.testing.assert_array_equal(untile_scales(atoms, rows, factors), scales)
    with pytest.raises(SmaltiError) as refused:
        untile_scales(atoms[:, :, :500], rows, factors)
    assert refused.value.code == "SML0118"


def test_elements_and_scales_of_ones_own():
    codes = np.array([[0x38, 0xB8, 0x40]], np.uint8)  # 1, -1, 2
    for elements in (codes, codes.view(ml_dtypes.float8_e4m3fn)):
        for scales in (np.array([[130]], np.uint8), np.array([[8.0]]), np.array([[8]], ml_dtypes.float8_e8m0fnu)):
            made = sm.block_scaled(elements, scales, "mxfp8")
            assert made.elements.dtype == made.scales.dtype == np.uint8
            np.testing.assert_array_equal(made.dequantize(), [[8, -8, 16]])
    nv = sm.block_scaled(np.array([[2, 7]], np.uint8), np.array([[1.5]]), "nvfp4", global_scale=2.0)
    np.testing.assert_array_equal(nv.dequantize(), [[3, 18]])
    columns = sm.block_scaled(codes.T, np.array([[2.0]]), "mxfp8", axis=0)
    np.testing.assert_array_equal(columns.dequantize(), [[2], [-2], [4]])


@pytest.mark.parametrize(
    "elements, scales, how, code",
    [
        (np.zeros((4, 32), np.uint8), np.full((4, 1), 3.0), {}, "SML0122"),
        (np.zeros((4, 32), np.uint8), np.full((4, 1), 0.0), {}, "SML0122"),
        (np.zeros((4, 32), np.uint8), np.full((4, 1), np.inf), {}, "SML0122"),
        (np.zeros((4, 32), np.uint8), np.full((4, 1), np.nan, np.float32), {}, "SML0122"),
        (np.zeros((4, 32), np.uint8), np.full((4, 1), 255, np.uint8), {}, "SML0122"),
        (np.zeros((4, 32), np.uint8), np.zeros((4, 2), np.uint8), {}, "SML1014"),
        (np.zeros((4, 32), np.uint8), np.zeros((4, 1), np.int16), {}, "SML1014"),
        (np.zeros(32, np.uint8), np.zeros(1, np.uint8), {}, "SML0119"),
        (np.zeros((4, 32), np.float32), np.zeros((4, 1), np.uint8), {}, "SML1002"),
        (np.zeros((4, 32), ml_dtypes.float8_e5m2), np.zeros((4, 1), np.uint8), {}, "SML1002"),
        (np.zeros((4, 32), object), np.zeros((4, 1), np.uint8), {}, "SML0111"),
        (np.zeros((4, 32), np.uint8), np.zeros((4, 1), np.uint8), {"axis": 2}, "SML1013"),
        (np.zeros((4, 32), np.uint8), np.zeros((4, 1), np.uint8), {"global_scale": 1.0}, "SML1013"),
    ],
)
def test_refused(elements, scales, how, code):
    with pytest.raises(SmaltiError) as refused:
        sm.block_scaled(elements, scales, "mxfp8", **how)
    assert refused.value.code == code
    sm.block_scaled(np.zeros((4, 32), np.uint8), np.full((4, 1), 4.0), "mxfp8")


def test_which_scale_is_wrong():
    scales = np.full((4, 2), 2.0)
    scales[2, 1] = 5.0
    with pytest.raises(SmaltiError) as refused:
        sm.block_scaled(np.zeros((4, 64), np.uint8), scales, "mxfp8")
    assert refused.value.params == {"value": 5.0, "index": (2, 1), "fmt": "ue8m0", "nearest": 4.0}
