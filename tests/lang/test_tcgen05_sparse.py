"""Sparse products of Blackwell: metadata by copy and by registers, every element type, pairs, with block scales; exact
integers, and the same bits on both roads."""

import importlib.util
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import smalti as sm
from smalti.errors import SmaltiError
from smalti.numerics.sparse import mma_sparse

spec = importlib.util.spec_from_file_location(
    "blackwell_sparse", Path(__file__).parents[2] / "examples" / "blackwell_sparse.py"
)
examples = importlib.util.module_from_spec(spec)
spec.loader.exec_module(examples)

V = "virtual:sm_100a"
NUMPY = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "s8": np.int8,
    "u8": np.uint8,
    "e2m1": ml_dtypes.float4_e2m1fn,
}
PAIR = (2, 1, 1)


def operands(name, m, n, k, seed=0):
    """A pruned and compressed, B; integers that differ in each place of a chunk."""
    rng = np.random.default_rng(seed)
    low = 0 if name == "u8" else -4
    a, b = (rng.integers(low, 5, (rows, k)).astype(np.float32).astype(NUMPY[name]) for rows in (m, n))
    dtype = "tf32" if name == "tf32" else None
    sparse = sm.compress(sm.prune(a, dtype), dtype)
    return sparse, b, sparse.dense().astype(np.float64) @ b.astype(np.float64).T


def call(kernel, name, sparse, b, **options):
    result = "s32" if name in ("s8", "u8") else "f32"
    words = sparse.words((options["tile"][0], options["tile"][2])) if "tile" in options else sparse.words()
    return kernel(sparse.kept, b, words, d=result, device=V, read_as={"a": name, "b": name}, **options)


@pytest.mark.parametrize("name", [n for n in NUMPY if n != "e2m1"])
def test_both_roads(name):
    """Copied metadata is used as it is; or it is loaded, stored elsewhere and used there. Two row tiles, two steps."""
    deep = 64 if name == "tf32" else 128
    sparse, b, want = operands(name, 256, 60, 2 * deep)
    for rows in (128, 256):
        tile = (rows, 64, deep)
        first = call(examples.sparse_by_copy, name, sparse, b, tile=tile)
        second, seen = call(examples.sparse_by_registers, name, sparse, b, tile=tile, seen="u32")
        np.testing.assert_array_equal(first, want)
        np.testing.assert_array_equal(second, want)
        np.testing.assert_array_equal(seen, sparse.words())


@pytest.mark.parametrize("name", ["bf16", "e4m3"])
@pytest.mark.parametrize("m, n, k, tile, cluster", [
    (100, 40, 384, (128, 48, 256), (1, 1, 1)),
    (300, 70, 384, (256, 64, 256), (1, 1, 1)),
    (200, 60, 256, (256, 64, 128), PAIR),
    (500, 200, 128, (512, 192, 128), PAIR),
])  # fmt: skip
def test_sizes_and_pairs(name, m, n, k, tile, cluster):
    sparse, b, want = operands(name, m, n, k)
    np.testing.assert_array_equal(call(examples.sparse_by_copy, name, sparse, b, tile=tile, cluster=cluster), want)


@pytest.mark.parametrize("seed", range(5))
def test_schedules(seed):
    sparse, b, want = operands("f16", 128, 64, 512, seed)
    first = call(examples.sparse_by_copy, "f16", sparse, b, seed=seed)
    second, seen = call(examples.sparse_by_registers, "f16", sparse, b, seen="u32", seed=seed)
    np.testing.assert_array_equal(first, want)
    np.testing.assert_array_equal(second, want)
    np.testing.assert_array_equal(seen, sparse.words())


@sm.kernel("a[M,H], b[N,K], e[R,C], sa[M,P], sb[N,P] -> d[M,N]", arch="sm_100a")
def sparse_and_scaled(a, b, e, sa, sb, d, *, tile=(128, 64, 256), block=64, scale="ue8m0"):
    """Block scales over a sparse product: one factor for twice as many elements of K."""
    tm, tn, tk = tile
    factors = tk // block
    A, B, D = a.tiles(tm, tk // 2), b.tiles(tn, tk), d.tiles(tm, tn)
    SA, SB = sa.tiles(tm, factors), sb.tiles(tn, factors)
    load, mma, work = sm.roles(load=sm.warp, mma=sm.warp, work=sm.warpgroup(1))
    memory, metadata = sm.tensor_memory(D, sm.f32), sm.metadata_memory((tm, tk), a.dtype)
    E = e.tiles(*metadata.words.shape)
    ring = sm.ring(1, a=A.shared(), b=B.shared(), e=E.shared(swizzle="none"), readers=mma)
    of_a, of_b = sm.scale_tile((tm, factors), scale), sm.scale_tile((tn, factors), scale)
    ready = sm.ring(1, sa=of_a, sb=of_b, readers=mma, name="ready")
    accumulator = sm.channel(memory, writer=mma, reader=work)
    with load.elect():
        for k in B.range(1):
            with ring.put() as s:
                s.a.load(A[0, k])
                s.b.load(B[0, k])
                s.e.load(E[0, k])
    with mma.elect(), accumulator.put() as c:
        for k in B.range(1):
            with ring.get() as s, ready.get() as f:
                metadata.copy(s.e)
                scales = f.sa.to_tensor_memory(), f.sb.to_tensor_memory()
                c.mma(s.a, s.b.T, scales=scales, metadata=metadata, add=k > 0)
    with work:
        for k in B.range(1):
            with ready.put() as f:
                f.sa.load(SA[0, k])
                f.sb.load(SB[0, k])
        with accumulator.get() as c:
            for p in c.split():
                D[0, 0].like(p).store(p.load().to(d.dtype))


@pytest.mark.parametrize(
    "name, kind, block, scale",
    [
        ("e4m3", "mxf8f6f4", 64, "ue8m0"),
        ("e2m1", "mxf4", 64, "ue8m0"),
        ("e2m1", "mxf4nvf4", 32, "ue4m3"),
    ],
)
def test_sparse_and_block_scaled(name, kind, block, scale):
    """2:4 of fp8; of fp4 4:8 in pairs, which JAX's default lowering cannot do."""
    k = 1024
    sparse, b, _ = operands(name, 120, 60, k)
    rng = np.random.default_rng(1)
    low, high = (124, 131) if scale == "ue8m0" else (0x30, 0x48)
    sa, sb = (rng.integers(low, high, (rows, k // block)).astype(np.uint8) for rows in (120, 60))
    d = sparse_and_scaled(
        sparse.kept,
        b,
        sparse.words(),
        sa,
        sb,
        d="f32",
        tile=(128, 64, 512 if name == "e2m1" else 256),
        block=block,
        scale=scale,
        device=V,
    )
    want = mma_sparse(
        f"tcgen05.{kind}", sparse.kept.view(np.uint8), sparse.codes, b.view(np.uint8), None, a_format=name,
        b_format=name, scale_a=sa, scale_b=sb, scale_format=scale, block=block,
    )  # fmt: skip
    np.testing.assert_array_equal(d.view(np.uint32), want)
    assert len(np.unique(want)) > 1000


def test_permuted_metadata_shows():
    """Exchanging the codes of two chunks gives other results: the expectation depends on them."""
    sparse, b, want = operands("bf16", 128, 64, 128)
    row = next(r for r in range(128) if sparse.codes[r, 3] != sparse.codes[r, 5])
    sparse.codes[row, [3, 5]] = sparse.codes[row, [5, 3]]
    d = call(examples.sparse_by_copy, "bf16", sparse, b)
    assert (d != want).any(axis=1).nonzero()[0].tolist() == [row]


def product(metadata, kept=64):
    @sm.kernel("a[M,H], b[N,K] -> d[M,N]", arch="sm_100a")
    def kernel(a, b, d):
        mma, _ = sm.roles(mma=sm.warp, rest=sm.warp)
        memory = sm.tensor_memory((128, 64), sm.f32)
        ring = sm.ring(1, a=a.tiles(128, kept).shared(), b=b.tiles(64, 128).shared(), readers=mma)
        with mma.elect(), ring.get() as s:
            memory.mma(s.a, s.b.T, metadata=metadata(s), add=False)

    return kernel.trace("bf16", "bf16", d="f32")


@pytest.mark.parametrize(
    "metadata, kept, error",
    [
        (lambda s: s.a, 64, "SML0742"),
        (lambda s: sm.metadata_memory((128, 256), sm.bf16), 64, "SML0742"),
        (lambda s: sm.metadata_memory((128, 128), sm.e4m3), 64, "SML0742"),
        (lambda s: sm.metadata_memory((256, 128), sm.bf16), 64, "SML0742"),
        (lambda s: sm.metadata_memory((128, 128), sm.bf16), 128, "SML0713"),
        (lambda s: sm.metadata_memory((64, 128), sm.bf16), 64, "SML0741"),
        (lambda s: sm.metadata_memory((128, 64), sm.bf16), 64, "SML0741"),
        (lambda s: sm.metadata_memory((128, 128), sm.f32), 64, "SML0740"),
    ],
)
def test_refusals(metadata, kept, error):
    with pytest.raises(SmaltiError) as refused:
        product(metadata, kept)
    assert refused.value.code == error
    product(lambda s: sm.metadata_memory((128, 128), sm.f16))
