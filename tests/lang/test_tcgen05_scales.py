"""Scale factors on every road into tensor memory, and what is refused of them. The block-scaled matmul, which is
checked against plain loops, says which bits are right."""

import importlib.util
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import smalti as sm
from smalti.errors import SmaltiError
from smalti.numerics.fused_sum import mma
from smalti.run.scaled import tile_scales

spec = importlib.util.spec_from_file_location(
    "blackwell_block_scaled", Path(__file__).parents[2] / "examples" / "blackwell_block_scaled.py"
)
examples = importlib.util.module_from_spec(spec)
spec.loader.exec_module(examples)

V = "virtual:sm_100a"
E4M3, E5M2, E2M1 = ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.float4_e2m1fn
KINDS = {E4M3: "mxf8f6f4", E5M2: "mxf8f6f4", E2M1: "mxf4nvf4"}


def operands(rng, rows, k, dtype, block, scale):
    """Values and scale codes [rows, blocks] that differ in every row and block."""
    values = (rng.standard_normal((rows, k)) * 2).astype(np.float32).astype(dtype)
    low, high = (120, 134) if scale == "ue8m0" else (0x20, 0x70)
    return values, rng.integers(low, high, (rows, -(-k // block))).astype(np.uint8)


def wanted(a, sa, b, sb, block, scale):
    """One instruction after another, the last one filled up with zeros."""
    kind = KINDS[a.dtype.type] if block == 16 or a.dtype.type is not E2M1 else "mxf4"
    deep = 64 if a.dtype.type is E2M1 else 32
    pad = -a.shape[1] % deep
    x, y = (np.pad(v.view(np.uint8), ((0, 0), (0, pad))) for v in (a, b))
    sx, sy = (np.pad(s, ((0, 0), (0, x.shape[1] // block - s.shape[1]))) for s in (sa, sb))
    name = {E4M3: "e4m3", E5M2: "e5m2", E2M1: "e2m1"}
    return mma(
        f"tcgen05.{kind}", x, y, None, a_format=name[a.dtype.type], b_format=name[b.dtype.type], scale_a=sx, scale_b=sy,
        scale_format=scale, block=block,
    )  # fmt: skip


@pytest.mark.parametrize("left, right", [(E4M3, E4M3), (E5M2, E4M3)])
@pytest.mark.parametrize("m, n, k", [(256, 128, 256), (300, 200, 400)])
def test_atoms(left, right, m, n, k):
    rng = np.random.default_rng(m)
    (a, sa), (b, sb) = operands(rng, m, k, left, 32, "ue8m0"), operands(rng, n, k, right, 32, "ue8m0")
    # What does not exist is filled up with scales of 1: of zeros.
    d = examples.scales_in_atoms(a, b, tile_scales(sa, 127), tile_scales(sb, 127), d="f32", device=V)
    np.testing.assert_array_equal(d.view(np.uint32), wanted(a, sa, b, sb, 32, "ue8m0"))


FORMS = [(E4M3, 32, "ue8m0"), (E2M1, 32, "ue8m0"), (E2M1, 16, "ue8m0"), (E2M1, 16, "ue4m3")]


@pytest.mark.parametrize("dtype, block, scale", FORMS)
@pytest.mark.parametrize("rows, columns, cluster", [(256, 192, (1, 1, 1)), (128, 96, (1, 1, 1)), (512, 192, (2, 1, 1))])
def test_row_major(dtype, block, scale, rows, columns, cluster):
    """Scales as plain matrices; rows and blocks over the edge do not exist in memory."""
    rng = np.random.default_rng(rows)
    deep = 256 if dtype is E2M1 else 128
    m, n, k = rows - 56, columns + 16, deep + 96
    (a, sa), (b, sb) = operands(rng, m, k, dtype, block, scale), operands(rng, n, k, dtype, block, scale)
    options = {"tile": (rows, columns, deep), "block": block, "scale": scale, "cluster": cluster}
    d = examples.scales_row_major(a, b, sa, sb, d="f32", device=V, **options)
    np.testing.assert_array_equal(d.view(np.uint32), wanted(a, sa, b, sb, block, scale))


@pytest.mark.parametrize("dtype, block, scale", [(E4M3, 32, "ue8m0"), (E2M1, 16, "ue4m3")])
def test_row_major_in_shared_memory(dtype, block, scale):
    rng = np.random.default_rng(3)
    deep = 16 * block
    (a, sa), (b, sb) = (
        operands(rng, 250, 2 * deep, dtype, block, scale),
        operands(rng, 100, 2 * deep, dtype, block, scale),
    )
    options = {"tile": (128, 128, deep), "block": block, "scale": scale}
    d = examples.scales_in_shared_memory(a, b, sa, sb, d="f32", device=V, **options)
    np.testing.assert_array_equal(d.view(np.uint32), wanted(a, sa, b, sb, block, scale))


@pytest.mark.parametrize("seed", range(5))
def test_schedules(seed):
    rng = np.random.default_rng(seed)
    (a, sa), (b, sb) = operands(rng, 120, 400, E4M3, 32, "ue8m0"), operands(rng, 90, 400, E4M3, 32, "ue8m0")
    want = wanted(a, sa, b, sb, 32, "ue8m0")
    rows = examples.scales_row_major(a, b, sa, sb, d="f32", tile=(128, 96, 128), device=V, seed=seed)
    np.testing.assert_array_equal(rows.view(np.uint32), want)
    atoms = tile_scales(sa, 127), tile_scales(sb, 127)
    d = examples.scales_in_atoms(a, b, *atoms, d="f32", tile=(128, 128, 128), device=V, seed=seed)
    np.testing.assert_array_equal(d.view(np.uint32), want)


@pytest.mark.parametrize("flag", [0, 1])
@pytest.mark.parametrize("columns", [96, 64, 192])
def test_slices_and_a_flag_of_run_time(flag, columns):
    """Slices of A, B, D and their scales; a tile of B that begins inside an atom."""
    rng = np.random.default_rng(5)
    x, y = (rng.integers(-6, 7, (rows, 300)).astype(np.float32) for rows in (250, 380))
    a, b = sm.quantize(x, "mxfp8"), sm.quantize(y, "mxfp8")
    d = examples.sliced(a, b, np.array([flag], np.int32), d="f32", columns=columns, device=V)
    want = 2 * (x @ y.T) if flag else x[:, 256:] @ y[:, 256:].T
    np.testing.assert_array_equal(d, want)


def test_the_conversion_is_in_the_plan():
    plan = examples.scales_row_major.plan("e4m3", "e4m3", "u8", "u8", d="f32")
    notes = [n.text for n in plan.notes]
    assert sum("row-major, rearranged into atoms" in t for t in notes) == 2
    assert any("32x128b.warpx4" in t for t in notes) and any(
        "of_a is written by threads" in t or "ready" in t for t in notes
    )


# -- refusals, each beside what is allowed ---------------------------------------------------------------


def product(scales, *, signature="a[M,K], b[N,K] -> d[M,N]", of_a=(128, 4), of_b=(64, 4), given=("e4m3", "e4m3")):
    """Trace one product whose `scales` are made by a function of the two scale tiles."""

    @sm.kernel("a[M,K], b[N,K] -> d[M,N]", arch="sm_100a")
    def kernel(a, b, d):
        mma, _ = sm.roles(mma=sm.warp, rest=sm.warp)
        A, B = a.tiles(128, 128), b.tiles(64, 128)
        memory = sm.tensor_memory((128, 64), sm.f32)
        sa, sb = sm.scale_tile(of_a, name="sa"), sm.scale_tile(of_b, name="sb")
        ring = sm.ring(1, a=A.shared(), b=B.shared(), readers=mma)
        with mma.elect(), ring.get() as s:
            memory.mma(s.a, s.b.T, scales=scales(sa, sb, s), add=False)

    return kernel.trace(*given, d="f32")


def both(a, b, s):
    return a.to_tensor_memory(), b.to_tensor_memory()


@pytest.mark.parametrize(
    "scales, error",
    [
        (lambda a, b, s: (a.to_tensor_memory(), None), "SML0710"),
        (lambda a, b, s: (None, b.to_tensor_memory()), "SML0710"),
        (lambda a, b, s: (a, b), "SML0711"),
        (lambda a, b, s: a.to_tensor_memory(), "SML0711"),
        (lambda a, b, s: (s.a, s.b), "SML0711"),
        (lambda a, b, s: (b.to_tensor_memory(), a.to_tensor_memory()), "SML0743"),
        (lambda a, b, s: (a.to_tensor_memory().rows(0, 32), b.to_tensor_memory()), "SML0743"),
        (lambda a, b, s: (a.to_tensor_memory().rows(0, 16), b.to_tensor_memory()), "SML0720"),
    ],
)
def test_scales_of_one_operand_or_elsewhere(scales, error):
    with pytest.raises(SmaltiError) as refused:
        product(scales)
    assert refused.value.code == error
    product(both)


def test_blocks_and_types_that_no_kind_has():
    for change in ({"of_a": (128, 8), "of_b": (64, 8)}, {"given": ("bf16", "bf16")}, {"given": ("e4m3", "bf16")}):
        with pytest.raises(SmaltiError) as refused:
            product(both, **change)
        assert refused.value.code == "SML0714"
    product(both, given=("e5m2", "e4m3"))


def test_shapes_of_scale_tiles():
    for shape in ((100, 4), (128, 3), (0, 4)):
        with pytest.raises(SmaltiError) as refused:
            product(both, of_a=shape)
        assert refused.value.code == "SML0729"
