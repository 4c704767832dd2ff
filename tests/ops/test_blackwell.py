"""The Blackwell block-scaled matmul against plain loops of the published arithmetic, bit for bit: element types, tiles
on one CTA and on a pair, ragged sizes, poison in every byte that is no data, adversarial schedules, special values.
"""

import dataclasses

import ml_dtypes
import numpy as np
import published
import pytest

import smalti as sm
from smalti.errors import SmaltiError
from smalti.numerics.formats import FORMATS
from smalti.ops.matmul_blackwell_host import prepare
from smalti.run.scaled import BlockScaled

V = "virtual:sm_100a"
ONE = (1, 1, 1)
PAIR = (2, 1, 1)


def operand(rng, rows, k, scheme, axis, *, spread=3):
    """Random codes (no NaN, no Inf) and scales that differ by `spread` binades to each side."""
    kind = sm.quantize(np.zeros((1, 1), np.float32), scheme).scheme
    form = FORMATS[kind.element]
    elements = rng.integers(0, 1 << form.bits, (rows, k)).astype(np.uint8)
    finite = {"e4m3": 0x7F, "e5m2": 0x7C}.get(kind.element)
    if finite is not None:
        elements[(elements & 0x7F) >= finite] = 0x31
    blocks = -(-k // kind.block)
    if kind.scale == "ue8m0":
        scales = rng.integers(127 - spread, 128 + spread, (rows, blocks)).astype(np.uint8)
    else:
        scales = rng.integers(0, 0x7F, (rows, blocks)).astype(np.uint8)
    level = np.float32(rng.uniform(0.5, 2)) if kind.two_level else None
    if axis == 0:
        elements, scales = elements.T, scales.T
    return BlockScaled(kind, elements, scales, axis, level)


def operands(m, k, n, left, right, seed=0):
    rng = np.random.default_rng(seed)
    return operand(rng, m, k, left, 1), operand(rng, n, k, right, 0)


def padded(a, b, byte):
    return dataclasses.replace(a, padding=byte), dataclasses.replace(b, padding=byte)


def wanted(a, b, result="f32"):
    """Bits of the result: the loops, then the global scales and one rounding to the result's type."""
    (x, sx), (y, sy) = a.along_rows, b.along_rows
    s, t = a.scheme, b.scheme
    d = published.block_scaled(x, sx, y, sy, s.element, t.element, s.scale, s.block).view(np.float32)
    if a.global_scale is not None:
        d = d * (np.float32(1) * a.global_scale * b.global_scale)
    with np.errstate(over="ignore"):
        return canonical(d.astype({"f32": np.float32, "bf16": ml_dtypes.bfloat16, "f16": np.float16}[result]))


def canonical(d):
    bits = d.view({2: np.uint16, 4: np.uint32}[d.itemsize])
    return np.where(np.isnan(d), {2: 0x7FFF, 4: 0x7FFFFFFF}[d.itemsize], bits).astype(bits.dtype)


def deep(scheme, spans=1):
    return spans * (256 if scheme in ("mxfp4", "nvfp4") else 128)


def options(scheme, rows, columns, cluster=ONE, stages=2, **more):
    return {"tile": (rows, columns, deep(scheme)), "stages": stages, "outs": 1, "cluster": cluster, **more}


MIX = ("mxfp8", "mxfp8_e5m2")
FORMS = [("mxfp8", "mxfp8"), MIX, ("mxfp4", "mxfp4"), ("nvfp4", "nvfp4")]
TILES = [(256, 192, ONE), (384, 128, ONE), (128, 384, ONE), (512, 192, PAIR), (256, 384, PAIR)]


def check(a, b, options, *, dtype="f32", padding=0xFF, **how):
    made = prepare(*padded(a, b, padding), dtype=dtype, options=options)
    np.testing.assert_array_equal(canonical(made.run(V, **how)), wanted(a, b, dtype))


@pytest.mark.parametrize(
    "rows, columns, cluster, left, right",
    [(*tile, *form) for tile in TILES for form in FORMS if form != MIX or tile in TILES[::4]],
)
def test_tiles(rows, columns, cluster, left, right):
    """Several instructions along M, N and K of one accumulator. M ends inside the second tile, N inside the first or
    second, K inside a block (of 4-bit elements at an odd element)."""
    k = deep(left) + 100 + (left in ("mxfp4", "nvfp4"))
    n = columns - 21 if cluster == PAIR else columns + 21
    a, b = operands(rows + 37, k, n, left, right, rows)
    check(a, b, options(left, rows, columns, cluster))


@pytest.mark.parametrize("columns", [32, 96, 160, 224, 320, 480])
def test_tiles_that_begin_inside_an_atom_of_scales(columns):
    """B tiles start at any multiple of 32 rows, scales lie in atoms of 128."""
    a, b = operands(100, 96, 2 * columns + 17, *MIX)
    check(a, b, options("mxfp8", 128, columns))


@pytest.mark.parametrize("scheme", ["mxfp8", "mxfp4", "nvfp4"])
def test_several_atoms_of_scales_along_k(scheme):
    a, b = operands(70, 3 * deep(scheme) + 1, 70, scheme, scheme)
    check(a, b, {"tile": (128, 64, deep(scheme, 2)), "stages": 2})


@pytest.mark.parametrize("scheme", ["mxfp8", "mxfp4", "nvfp4"])
@pytest.mark.parametrize("m, k, n", [(1, 1, 1), (1, 17, 129), (3, 31, 2), (129, 33, 65), (5, 128, 7), (2, 257, 300)])
def test_small_and_ragged(m, k, n, scheme):
    """K below a block, in its middle, at its end; the tile that `sm.matmul` chooses."""
    a, b = operands(m, k, n, scheme, scheme, m)
    check(a, b, None)


@pytest.mark.parametrize("scheme", ["mxfp8", "mxfp4", "nvfp4"])
@pytest.mark.parametrize("m, k, n", [(0, 5, 7), (5, 0, 7), (5, 7, 0), (0, 0, 0), (5, 0, 0)])
def test_nothing(m, k, n, scheme):
    d = sm.matmul(*operands(m, k, n, scheme, scheme), device=V)
    assert d.shape == (m, n) and d.dtype == np.float32 and not d.any()


@pytest.mark.parametrize("scheme", ["mxfp8", "mxfp8_e5m2", "mxfp4", "nvfp4"])
def test_nothing_depends_on_padding(scheme):
    """Bytes behind rows, behind K and of rows that do not exist: 0xFF and 0x7F are NaN scales and NaN elements."""
    a, b = operands(150, deep(scheme) + 5, 75, scheme, scheme)
    for padding in (0x00, 0x7F, 0xFF):
        check(a, b, options(scheme, 128, 64), padding=padding)


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    "left, right, rows, columns, cluster",
    [
        ("mxfp8", "mxfp8_e5m2", 256, 64, ONE),
        ("mxfp4", "mxfp4", 128, 96, ONE),
        ("nvfp4", "nvfp4", 256, 64, ONE),
        ("mxfp8", "mxfp8", 256, 64, PAIR),
    ],
)
def test_schedules(left, right, rows, columns, cluster, seed):
    """The same bits under adversarial schedules, with all checks on; a ring that goes round more than once."""
    a, b = operands(rows - 30, 3 * deep(left) - 3, columns - 9, left, right, seed)
    check(a, b, options(left, rows, columns, cluster), padding=0x7F, seed=seed)


@pytest.mark.parametrize("cluster", [ONE, PAIR])
@pytest.mark.parametrize("slots", [1, 2])
def test_many_tiles_for_each_cta(slots, cluster):
    """More tiles than multiprocessors: the ring, the accumulators and the tiles of D go round."""
    small = dataclasses.replace(sm.device(V), sm_count=2)
    a, b = operands(700, 140, 90, "mxfp8", "mxfp8_e5m2")
    made = prepare(*padded(a, b, 0xFF), options=options("mxfp8", 256, 32, cluster, slots=slots))
    np.testing.assert_array_equal(canonical(made.run(small, seed=slots)), wanted(a, b))


@pytest.mark.parametrize("dtype", ["bf16", "f16"])
@pytest.mark.parametrize("scheme", ["mxfp8", "nvfp4"])
@pytest.mark.parametrize("n", [50, 64])
def test_results_of_16_bits(n, scheme, dtype):
    """Overflow of f16 is infinite; n = 50: rows of D are no multiple of 16 bytes."""
    a, b = operands(140, 200, n, scheme, scheme)
    check(a, b, options(scheme, 256, 64), dtype=dtype)


@pytest.mark.parametrize("scheme", ["mxfp8", "mxfp4", "nvfp4"])
def test_a_nan_scale_is_a_nan_row(scheme):
    a, b = operands(40, 300, 40, scheme, scheme)
    nan = 0xFF if a.scheme.scale == "ue8m0" else 0x7F
    a.scales[7, -1] = nan  # of the last block, which is not whole
    b.scales[2, 11] = nan
    d = prepare(*padded(a, b, 0xFF), options=None).run(V)
    np.testing.assert_array_equal(canonical(d), wanted(a, b))
    assert np.isnan(d[7]).all() and np.isnan(d[:, 11]).all() and np.isnan(d).sum() == 79


def test_special_elements():
    """NaN; Inf with numbers, with Inf of either sign, with zero; Inf that stays over the following instructions."""
    a, b = operands(8, 200, 8, "mxfp8_e5m2", "mxfp8_e5m2")
    inf, nan = 0x7C, 0x7E
    b.elements[:, :] = 0x3C  # 1
    a.elements[:, :] = 0x3C
    a.elements[0, 3] = inf
    a.elements[1, 3], a.elements[1, 190] = inf, inf | 0x80
    a.elements[2, 199] = nan
    a.elements[3, 5] = inf
    b.elements[5, 2] = 0
    b.elements[0, 3] = inf | 0x80
    d = prepare(a, b, options=None).run(V)
    np.testing.assert_array_equal(canonical(d), wanted(a, b))
    assert d[0, 0] == np.inf and np.isnan(d[1, 0]) and np.isnan(d[2]).all() and np.isnan(d[3, 2])
    assert d[4, 3] == -np.inf


@pytest.mark.parametrize("left, right", FORMS)
@pytest.mark.parametrize("spread", [0, 40, 126])
def test_scales_far_apart(left, right, spread):
    """Sums in which small products are cut off, overflow, and underflow."""
    rng = np.random.default_rng(spread)
    a, b = operand(rng, 60, 300, left, 1, spread=spread), operand(rng, 60, 300, right, 0, spread=spread)
    check(a, b, options(left, 128, 64))


def test_256x256_does_not_fit_and_the_advice_does():
    a, b = operands(300, 100, 300, "mxfp8", "mxfp8")
    with pytest.raises(SmaltiError) as refused:
        prepare(a, b, options=options("mxfp8", 256, 256)).run(V)
    assert refused.value.code == "SML0700"
    assert refused.value.params["total"] > 512 and refused.value.params["used"] >= 512
    rows, columns = map(int, refused.value.params["nearest"].split(" ")[-1].split("x"))
    assert rows == 256 and columns == 224  # tiles of B begin where columns of scales do
    check(a, b, options("mxfp8", rows, columns))
    with pytest.raises(SmaltiError, match="SML0700"):
        prepare(a, b, options=options("mxfp8", rows, columns + 32)).run(V)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["mxfp8", "mxfp4", "nvfp4"])
@pytest.mark.parametrize("m, k, n", [(300, 1056, 520), (257, 1000, 193)])
def test_whole_jobs(m, k, n, scheme):
    """Matrices of float32 as `sm.matmul(format=...)` takes them, the default schedule and five adversarial ones, every
    padding byte 0xFF or 0x7F."""
    rng = np.random.default_rng(m)
    x, y = rng.standard_normal((m, k)).astype(np.float32), rng.standard_normal((k, n)).astype(np.float32)
    a, b = sm.quantize(x, scheme, axis=1), sm.quantize(y, scheme, axis=0)
    want = wanted(a, b)
    np.testing.assert_array_equal(canonical(sm.matmul(x, y, format=scheme, device=V)), want)
    for seed in range(5):
        made = prepare(*padded(a, b, (0xFF, 0x7F)[seed % 2]), device=V)
        np.testing.assert_array_equal(canonical(made.run(V, seed=seed)), want)


def test_the_loops_can_differ():
    """A bit of one scale, one element or the fraction that the sum keeps shows in the expectation."""
    a, b = operands(4, 64, 4, "mxfp8", "mxfp8")
    want = wanted(a, b)
    for array in (a.elements, a.scales):
        array[1, 1] ^= 1
        assert (wanted(a, b) != want).any(axis=1).tolist() == [False, True, False, False]
        array[1, 1] ^= 1
