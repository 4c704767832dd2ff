"""The Hopper matmul on the virtual GPU: bits against the numerics of single instructions, sizes, schedules, copies."""

import ml_dtypes
import numpy as np
import pytest

import smalti as sm
from smalti.numerics.convert import encode
from smalti.numerics.formats import decode
from smalti.numerics.fused_sum import mma
from smalti.ops.matmul_hopper import matmul_hopper
from smalti.ops.matmul_hopper_host import choose, prepare
from smalti.run.dtypes import as_bits

V = "virtual:sm_90a"
NUMPY = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "tf32": np.float32,
    "s8": np.int8,
    "u8": np.uint8,
}
KIND = {"bf16": "wgmma.bf16", "f16": "wgmma.f16", "tf32": "wgmma.tf32", "e4m3": "wgmma.fp8", "e5m2": "wgmma.fp8",
        "s8": "wgmma.int8", "u8": "wgmma.int8"}  # fmt: skip


def operands(m, k, n, left, right, seed=0):
    """Random values of a wide range of exponents, so that the order and the rounding of sums show."""
    rng = np.random.default_rng(seed)
    if left in ("s8", "u8"):
        make = lambda shape, name: rng.integers(*((0, 256) if name == "u8" else (-128, 128)), shape).astype(NUMPY[name])  # noqa: E731
    else:
        make = lambda shape, name: (  # noqa: E731
            rng.standard_normal(shape) * 2.0 ** rng.integers(-4, 5, shape)
        ).astype(NUMPY[name])
    return make((m, k), left), make((k, n), right)


def reference(a, b, left, right, result):
    """Every element as a chain of single instructions computes it (the last one padded with zeros), then rounded."""
    bits_a, bits_b = as_bits(a, what="a")[0], as_bits(b, what="b")[0].T
    if left == "tf32":  # TMA rounds to the nearest tf32 on its way to shared memory (H200, E11)
        bits_a, bits_b = (encode(decode(x, "f32"), "tf32") for x in (bits_a, bits_b))
    unit = 32 // np.dtype(NUMPY[left]).itemsize
    pad = -bits_a.shape[1] % unit
    bits_a, bits_b = (np.pad(x, ((0, 0), (0, pad))) for x in (bits_a, bits_b))
    if bits_a.shape[1] == 0:
        d = np.zeros((len(bits_a), len(bits_b)), np.uint32)
    else:
        d = mma(KIND[left], bits_a, np.ascontiguousarray(bits_b), None, a_format=left, b_format=right)
    if result in ("f32", "s32"):
        return d
    return encode(d.view(np.float32), result, satfinite=result in ("e4m3", "e5m2"))


def bits(array):
    return array.view({1: np.uint8, 2: np.uint16, 4: np.uint32}[array.itemsize])


@pytest.mark.parametrize(
    "m, k, n, left, right, result",
    [
        (300, 264, 136, "bf16", "bf16", "bf16"),
        (129, 130, 65, "f16", "f16", "f32"),
        (64, 257, 193, "bf16", "bf16", "f16"),
        (100, 160, 72, "e4m3", "e5m2", "bf16"),
        (70, 96, 40, "e5m2", "e4m3", "e4m3"),
        (100, 40, 72, "tf32", "tf32", "f32"),
        (100, 300, 40, "s8", "u8", "s32"),
        (131, 127, 37, "u8", "s8", "s32"),
    ],
)
def test_bits(m, k, n, left, right, result):
    a, b = operands(m, k, n, left, right)
    d = prepare(a, b, dtype=result, precision="tf32", device=V).run(V)
    np.testing.assert_array_equal(bits(d), reference(a, b, left, right, result).astype(bits(d).dtype))


@pytest.mark.parametrize(
    "m, k, n", [(0, 5, 7), (7, 5, 0), (0, 0, 0), (5, 0, 7), (1, 1, 1), (1, 8, 257), (257, 3, 1), (2, 31, 3)]
)
def test_any_size(m, k, n):
    a, b = operands(m, k, n, "f16", "f16")
    d = sm.matmul(a, b, dtype="f32", device=V)
    assert d.shape == (m, n)
    np.testing.assert_array_equal(bits(d), reference(a, b, "f16", "f16", "f32"))


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    "options",
    [
        {"tile": (128, 256, 64), "stages": 4, "parts": 4},
        {"tile": (128, 64, 64), "stages": 2, "parts": 4, "group": 1},
        {"tile": (64, 128, 64), "stages": 3, "parts": 1},
        {"tile": (256, 64, 64), "stages": 2, "parts": 1},
        {"tile": (128, 64, 64), "stages": 3, "parts": 1, "cluster": (2, 1, 1)},
    ],
    ids=lambda o: "x".join(map(str, o["tile"])),
)
def test_schedules_and_tiles(options, seed):
    """Every choice gives the same bits under adversarial schedules, with all checks on."""
    a, b = operands(300, 200, 136, "bf16", "bf16", seed)
    d = prepare(a, b, device=V, options=options).run(V, seed=seed)
    np.testing.assert_array_equal(bits(d), reference(a, b, "bf16", "bf16", "bf16"))


def test_many_tiles_for_each_cta():
    """More tiles than multiprocessors: the persistent loop goes round."""
    a, b = operands(64 * 12, 16, 32 * 13, "f16", "f16")
    options = {"tile": (64, 32, 64), "stages": 2, "parts": 1, "group": 3}
    d = prepare(a, b, device=V, options=options).run(V)
    np.testing.assert_array_equal(bits(d), reference(a, b, "f16", "f16", "f16"))


def test_operands_that_lie_otherwise():
    a, b = operands(96, 80, 72, "bf16", "bf16")
    want = reference(a, b, "bf16", "bf16", "bf16")
    wide_a, wide_b = np.zeros((96, 200), a.dtype), np.zeros((160, 72), b.dtype)
    wide_a[:, :80], wide_b[::2] = a, b
    for x, y, copied in (
        (np.asfortranarray(a), np.asfortranarray(b), ""),  # both read as they lie
        (wide_a[:, :80], b, ""),
        (a, wide_b[::2], ""),
        (a[::-1][::-1], b, ""),
        (np.asfortranarray(np.pad(a, ((0, 1), (0, 0))))[:96], b, "a, 96 x 80 bf16, to rows of 80"),
    ):
        made = prepare(x, y, device=V)
        assert ("; ".join(made.copies) == "") == (copied == "") and copied in "; ".join(made.copies), made.copies
        assert made.plan().copies == list(made.copies)
        np.testing.assert_array_equal(bits(made.run(V)), want)


def test_eight_bit_operands_are_read_along_k():
    a, b = operands(40, 48, 24, "e4m3", "e4m3")
    made = prepare(a, b, device=V)
    assert len(made.copies) == 1 and "8-bit operands are read along K only" in made.copies[0]
    assert not prepare(a, np.asfortranarray(b), device=V).copies


def test_misaligned_rows_are_copied_and_said():
    a, b = operands(40, 45, 24, "f16", "f16")
    made = prepare(a, b, device=V)
    assert "a, 40 x 45 f16, to rows of 48 elements" in made.copies[0]
    assert "copied before the launch: a, 40 x 45" in str(made.plan())


def test_special_values():
    a = np.array([[np.inf, 1, 0], [np.nan, 1, 1], [0, -0.0, 0], [65504, 65504, 65504]], np.float16)
    b = np.array([[1, 0], [2, 3], [65504, 65504]], np.float16)
    d = sm.matmul(a, b, dtype="f32", device=V)
    np.testing.assert_array_equal(bits(d), reference(a, b, "f16", "f16", "f32"))
    assert np.isinf(d[0, 0]) and bits(d)[0, 1] == 0x7FFFFFFF and (bits(d)[2] == 0).all()


def test_choice_of_tiles():
    big = choose(4096, 4096, 4096, sm.bf16, sm.bf16, 132)
    assert big == {"tile": (128, 256, 64), "stages": 4, "parts": 4}
    assert choose(4096, 4096, 4096, sm.e4m3, sm.bf16, 132)["tile"] == (128, 256, 128)
    assert choose(16, 8192, 8192, sm.bf16, sm.bf16, 132)["tile"][0] == 64
    for m, n in ((1, 1), (100, 3000), (5000, 64)):
        for kind, result in ((sm.bf16, sm.f32), (sm.s8, sm.s32), (sm.tf32, sm.f32), (sm.e4m3, sm.e4m3)):
            options = choose(m, n, 512, kind, result, 132)
            assert matmul_hopper.trace(kind, kind, d=result, **options).shared <= 227 * 1024


def test_kernel_without_checks_gives_the_same():
    a, b = operands(70, 72, 40, "bf16", "bf16")
    d = prepare(a, b, device=V).run(V, checks=False)
    np.testing.assert_array_equal(bits(d), reference(a, b, "bf16", "bf16", "bf16"))
