"""Products: which instructions one call becomes, every operand form on the virtual GPU, refusals."""

import importlib.util
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import smalti as sm
from smalti.errors import SmaltiError

spec = importlib.util.spec_from_file_location(
    "wgmma_register_a", Path(__file__).parents[2] / "examples" / "wgmma_register_a.py"
)
examples = importlib.util.module_from_spec(spec)
spec.loader.exec_module(examples)

NUMPY = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "tf32": np.float32,
    "s8": np.int8,
    "u8": np.uint8,
}
V = "virtual:sm_90a"


def integers(rng, shape, name, low=-3, high=4):
    return rng.integers(0 if name == "u8" else low, high, shape).astype(NUMPY[name])


def exact(a, b):
    return a.astype(np.float64) @ b.astype(np.float64).T


def test_what_one_call_becomes(kit):
    def body(a, b, d):
        sa, sb = a.tiles(128, 128).shared(), b.tiles(64, 128).shared()
        acc = sm.wgmma.accumulator(128, 64)
        acc.mma(sa, sb.T, add=False)
        d.tiles(128, 64)[0, 0].store(acc.wait().to("bf16"))

    traced = kit.trace(body, "bf16", "bf16", signature="a[M,K], b[N,K] -> d[M,N]")
    opcodes = kit.opcodes(traced, "wgmma")
    assert opcodes == [
        "wgmma.fence.sync.aligned",
        *["wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16"] * 16,
        "wgmma.commit_group.sync.aligned",
        "wgmma.wait_group.sync.aligned",
    ]
    assert "mov.f32" not in kit.opcodes(traced)  # add=False: nothing to zero
    assert any("16 x m64n64k16" in n.text for n in traced.plan.notes)


@sm.kernel("a[M,K], b[N,K] -> d[M,N]", arch="sm_90a")
def one_tile(a, b, d, *, m=64, n=64, k=64, swizzle="", b_swizzle="", negate=False, saturate=False, kind="f32"):
    A, B, D = a.tiles(m, k), b.tiles(n, k), d.tiles(m, n)
    sa, sb = A.shared(swizzle=swizzle), B.shared(swizzle=b_swizzle or swizzle)
    full = sm.barrier()
    with sm.elect():
        full.arrive(expect=sa.bytes + sb.bytes)
        sa.load(A[0, 0], full)
        sb.load(B[0, 0], full)
    full.wait(0)
    acc = sm.wgmma.accumulator(m, n, kind)
    acc.mma(sa, sb.T, add=False, negate_a=negate, saturate=saturate)
    D[0, 0].store(acc.wait().to(d.dtype))


@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B"])
@pytest.mark.parametrize("axes", [(1, 1), (0, 1), (1, 0), (0, 0)])
def test_every_swizzle_and_major(swizzle, axes):
    """A and B contiguous along K or along M, N: four layouts times four swizzles, exact integers."""
    rng = np.random.default_rng(1)
    m, n, k = 128, 64, 64
    a, b = integers(rng, (m, k), "bf16"), integers(rng, (n, k), "bf16")
    a = a if axes[0] else np.asfortranarray(a)
    b = b if axes[1] else np.asfortranarray(b)
    d = one_tile(a, b, d="f32", m=m, n=n, k=k, swizzle=swizzle, device=V)
    np.testing.assert_array_equal(d, exact(a, b))


@pytest.mark.parametrize(
    "left, right, k, kind",
    [("f16", "f16", 64, "f32"), ("f16", "f16", 64, "f16"), ("e4m3", "e5m2", 128, "f32"), ("e5m2", "e4m3", 64, "f16"),
     ("tf32", "tf32", 32, "f32"), ("s8", "s8", 128, "s32"), ("u8", "s8", 64, "s32")],
)  # fmt: skip
def test_every_type_from_shared_memory(left, right, k, kind):
    rng = np.random.default_rng(2)
    a, b = integers(rng, (64, k), left), integers(rng, (32, k), right)
    d = one_tile(a, b, d=kind, n=32, k=k, kind=kind, device=V, read_as={"a": left, "b": right})
    np.testing.assert_array_equal(d, exact(a, b))


def test_negated():
    rng = np.random.default_rng(3)
    a, b = integers(rng, (64, 64), "f16"), integers(rng, (64, 64), "f16")
    np.testing.assert_array_equal(one_tile(a, b, d="f32", negate=True, device=V), -exact(a, b))


@pytest.mark.parametrize("name", ["bf16", "f16", "e4m3", "e5m2", "s8", "u8", "tf32"])
def test_a_in_registers(name):
    """A two tiles tall, several instructions long, over several K steps; ragged M, N and K."""
    rng = np.random.default_rng(4)
    unit = 16 // np.dtype(NUMPY[name]).itemsize
    a, b = integers(rng, (150, 9 * unit), name), integers(rng, (70, 9 * unit), name)
    k = 64 if name == "tf32" else 128
    result = "s32" if name in ("s8", "u8") else "f32"
    d = examples.register_a(a, b, d=result, k=k, device=V, read_as={"a": name, "b": name}, a_transpose=False)
    np.testing.assert_array_equal(d, exact(a, b))


def test_a_in_registers_with_short_swizzles_and_mixed_types():
    rng = np.random.default_rng(5)
    a, b = integers(rng, (128, 64), "s8"), integers(rng, (64, 64), "u8")
    for swizzle in ("32B", "none"):
        d = examples.register_a(a, b, d="s32", k=32, swizzle=swizzle, device=V)
        np.testing.assert_array_equal(d, exact(a, b))


def test_widened_and_chained():
    rng = np.random.default_rng(6)
    a, b = integers(rng, (64, 128), "s8", -100, 100), integers(rng, (64, 128), "bf16")
    np.testing.assert_array_equal(examples.widened_a(a, b, d="f32", device=V), exact(a, b))
    a, b = integers(rng, (64, 64), "bf16", -1, 2), integers(rng, (128, 64), "bf16", -1, 2)
    for name in ("bf16", "e4m3"):
        c = integers(rng, (64, 128), name)
        middle = exact(a, b).astype(np.float32).astype(NUMPY[name])
        np.testing.assert_array_equal(examples.chained(a, b, c, d="f32", device=V), exact(middle, c))


def test_accumulator_left_alone_reads_zero():
    @sm.kernel("a[M,K], b[N,K] -> d[M,N]", arch="sm_90a")
    def nothing(a, b, d):
        ring = sm.ring(2, a=a.tiles(64, 64).shared(), b=b.tiles(64, 64).shared())
        acc = sm.wgmma.accumulator(64, 64)
        for k in a.tiles(64, 64).range(1):
            with sm.elect(), ring.put() as s:
                s.a.load(a.tiles(64, 64)[0, k])
                s.b.load(b.tiles(64, 64)[0, k])
            with ring.get() as s:
                acc.mma(s.a, s.b.T, add=k > 0)
        d.tiles(64, 64)[0, 0].store(acc.wait().to(d.dtype))

    zero = nothing(np.zeros((64, 0), np.float16), np.zeros((64, 0), np.float16), device=V)
    np.testing.assert_array_equal(zero, np.zeros((64, 64)))
    one = np.ones((64, 128), np.float16)
    np.testing.assert_array_equal(nothing(one, one, device=V), np.full((64, 64), 128))


def test_values_are_guarded(kit):
    def body(a, b, d):
        sa, sb = a.tiles(64, 64).shared(), b.tiles(64, 64).shared()
        acc = sm.wgmma.accumulator(64, 64)
        acc.mma(sa, sb.T, add=False)
        x = acc.wait()
        kept = x.copy()
        for _ in sm.range(2):
            x + 1.0
            with pytest.raises(SmaltiError) as raised:
                acc.mma(sa, sb.T, add=True)
            assert raised.value.code == "SML0607"
            kept + 1.0

    kit.trace(body, "bf16", "bf16", signature="a[M,K], b[N,K] -> d[M,N]")


def test_transposed_bytes_are_refused():
    a = np.asfortranarray(np.zeros((64, 64), np.int8))
    with pytest.raises(SmaltiError) as raised:
        one_tile(a, np.zeros((64, 64), np.int8), kind="s32", device=V)
    assert raised.value.code == "SML0414"
