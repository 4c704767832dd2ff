"""The Blackwell matmul of plain operands against plain loops of the published arithmetic, bit for bit."""

import dataclasses

import ml_dtypes
import numpy as np
import published
import pytest

import smalti as sm
from smalti.errors import SmaltiError
from smalti.ops.matmul_blackwell_dense_host import SHAPES, prepare
from smalti.run.dtypes import as_bits

V = "virtual:sm_100a"
PAIR = (2, 1, 1)
NUMPY = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "s8": np.int8,
    "u8": np.uint8,
}


def operands(m, k, n, left, right, seed=0):
    """Values of a wide range of exponents, so that the order and the rounding of sums show."""
    rng = np.random.default_rng(seed)

    def make(shape, name):
        if name in ("s8", "u8"):
            return rng.integers(*((0, 256) if name == "u8" else (-128, 128)), shape).astype(NUMPY[name])
        return (rng.standard_normal(shape) * 2.0 ** rng.integers(-4, 5, shape)).astype(np.float32).astype(NUMPY[name])

    return make((m, k), left), make((k, n), right)


def wanted(a, b, left, right, result="f32"):
    if left in ("s8", "u8"):
        return a.astype(np.int64).astype(np.int32) @ b.astype(np.int32)
    x, y = as_bits(a, what="a")[0], np.ascontiguousarray(as_bits(b, what="b")[0].T)
    bits = published.plain(x, y, left, right, {"tf32": 8, "bf16": 16, "f16": 16}.get(left, 32))
    kind = {"f32": np.float32, "tf32": np.float32, **NUMPY}[result]
    with np.errstate(over="ignore"):
        return bits.view(np.float32).astype(kind)


def check(m, k, n, left, right, result="f32", options=None, seed=0, device=V, **how):
    a, b = operands(m, k, n, left, right, seed)
    result = "s32" if left in ("s8", "u8") else result
    d = prepare(a, b, dtype=result, precision="tf32", options=options).run(device, **how)
    np.testing.assert_array_equal(d.view(np.uint8), wanted(a, b, left, right, result).view(np.uint8))


@pytest.mark.parametrize(
    "m, k, n, left, right, result",
    [
        (300, 264, 136, "bf16", "bf16", "bf16"),
        (129, 130, 65, "f16", "f16", "f32"),
        (64, 257, 193, "bf16", "bf16", "f16"),
        (100, 160, 72, "e4m3", "e5m2", "bf16"),
        (70, 96, 40, "e5m2", "e5m2", "f32"),
        (100, 300, 40, "s8", "u8", "s32"),
        (131, 127, 37, "u8", "s8", "s32"),
    ],
)
def test_bits(m, k, n, left, right, result):
    check(m, k, n, left, right, result)


@pytest.mark.parametrize("result", ["e4m3", "e5m2"])
def test_results_of_8_bits(result):
    a, b = operands(100, 96, 80, "e4m3", "e4m3")
    d = prepare(a, b, dtype=result).run(V)
    want = np.clip(wanted(a, b, "e4m3", "e4m3"), *(x * {"e4m3": 448, "e5m2": 57344}[result] for x in (-1, 1)))
    np.testing.assert_array_equal(d.view(np.uint8), want.astype(NUMPY[result]).view(np.uint8))


def test_tf32():
    """Integers, since the loops know no 32-bit operands."""
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-100, 101, shape).astype(np.float32) for shape in ((100, 70), (70, 60)))
    np.testing.assert_array_equal(sm.matmul(a, b, precision="tf32", device=V), a @ b)


@pytest.mark.parametrize("m, k, n", [(0, 5, 7), (7, 5, 0), (5, 0, 7), (1, 1, 1), (1, 8, 257), (257, 3, 1), (2, 31, 3)])
def test_any_size(m, k, n):
    a, b = operands(m, k, n, "f16", "f16")
    d = sm.matmul(a, b, dtype="f32", device=V)
    assert d.shape == (m, n)
    np.testing.assert_array_equal(d, wanted(a, b, "f16", "f16"))


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("slots", [1, 2])
def test_tiles(shape, slots):
    options = {"tile": (*shape, 64), "stages": 2, "slots": slots, "outs": 1}
    check(shape.rows + 40, 150, shape.columns + 24, "bf16", "bf16", options=options)


@pytest.mark.parametrize("rows, columns", [(256, 128), (256, 256), (512, 64)])
@pytest.mark.parametrize("left, right", [("bf16", "bf16"), ("e4m3", "e5m2"), ("s8", "s8")])
def test_pairs(rows, columns, left, right):
    options = {"tile": (rows, columns, 64 if left == "bf16" else 128), "stages": 2, "slots": 1, "cluster": PAIR}
    check(rows - 56, 200, columns - 24, left, right, options=options)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("cluster", [(1, 1, 1), PAIR])
def test_schedules(seed, cluster):
    """Several tiles for each CTA: accumulators and tiles of D in turn, a ring that goes round."""
    options = {"tile": (256, 32, 64), "stages": 2, "slots": 2, "cluster": cluster}
    check(256 - 24, 200, 80, "f16", "f16", options=options, seed=seed)


def test_many_tiles_for_each_cta():
    """More tiles than multiprocessors: the persistent loop goes round, both accumulators are used again."""
    small = dataclasses.replace(sm.device(V), sm_count=2)
    for cluster in ((1, 1, 1), PAIR):
        options = {"tile": (256, 32, 64), "stages": 2, "slots": 2, "group": 3, "cluster": cluster}
        check(256 * 3, 70, 32 * 3 - 9, "f16", "f16", "f16", options=options, device=small)


def test_operands_that_lie_otherwise():
    a, b = operands(96, 80, 72, "bf16", "bf16")
    want = wanted(a, b, "bf16", "bf16", "bf16").view(np.uint16)
    wide = np.zeros((96, 200), a.dtype)
    wide[:, :80] = a
    for x, y, copies in (
        (np.asfortranarray(a), b, 0),
        (a, np.asfortranarray(b), 0),
        (wide[:, :80], b, 0),
        (wide[:, :80][::-1][::-1], b[::-1][::-1], 0),
        (np.repeat(a, 2, axis=1)[:, ::2], b, 1),
    ):
        made = prepare(x, y)
        assert len(made.copies) == copies
        np.testing.assert_array_equal(made.run(V).view(np.uint16), want)


def test_8_bit_operands_contiguous_along_m_and_n_need_no_copy():
    a, b = operands(96, 80, 64, "e4m3", "e4m3")
    made = prepare(np.asfortranarray(a), b)
    assert not made.copies
    np.testing.assert_array_equal(made.run(V), wanted(a, b, "e4m3", "e4m3"))


@pytest.mark.parametrize(
    "a, b, how, code",
    [
        (np.ones((4, 8), np.float32), np.ones((8, 4), np.float32), {}, "SML0611"),
        (np.ones((4, 8), np.float16), np.ones((7, 4), np.float16), {}, "SML0612"),
        (np.ones(8, np.float16), np.ones((8, 4), np.float16), {}, "SML0612"),
        (np.ones((4, 8), np.float16), np.ones((8, 4), np.int8), {}, "SML0610"),
        (np.ones((4, 8), object), np.ones((8, 4), np.int8), {}, "SML0111"),
        (np.ones((4, 8), np.int8), np.ones((8, 4), np.int8), {"dtype": "f16"}, "SML0613"),
    ],
)
def test_refused(a, b, how, code):
    with pytest.raises(SmaltiError) as refused:
        sm.matmul(a, b, device=V, **how)
    assert refused.value.code == code
    sm.matmul(np.ones((4, 8), np.float16), np.ones((8, 4), np.float16), device=V)
