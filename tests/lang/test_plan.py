"""What the plan and the printed PTX say of a kernel, and what a launch gets."""

import ml_dtypes
import numpy as np
import pytest

from smalti.lang.call import build_launch, prepare
from smalti.ops.matmul_hopper import matmul_hopper
from smalti.ptx.finish import shared_bytes
from smalti.run.launch import Buffer, MapOf, Scalar, Struct

BF16 = ml_dtypes.bfloat16


def test_plan_of_the_hopper_matmul():
    plan = matmul_hopper.plan("bf16", "bf16")
    assert plan.block == 384 and plan.grid == "min(SMs, cdiv(M, 128)*cdiv(N, 256))"
    assert {b.name: (b.stages, b.bytes) for b in plan.buffers} == {
        "a": (4, 65536),
        "b": (4, 131072),
        "d_out": (1, 16384),
        "d_out2": (1, 16384),
    }
    assert plan.shared_bytes == 65536 + 131072 + 2 * 16384 + 8 * 8
    assert [(b.name, b.number, b.arrivals) for b in plan.barriers] == [("ring_full", 4, 1), ("ring_empty", 4, 8)]
    text = str(plan)
    for said in (
        "role load: warps 0 to 3, 40 registers a thread",
        "role mma: warps 4 to 11, 232 registers a thread",
        "accumulator 64x256 f32: 128 a thread",
        "ring: empty stage; then 49152 bytes expected [one thread of load]",
        "fence, 4 x m64n256k16, commit",
        "proxy fence: d_out was written by threads",
        "until TMA stores have read d_out",
        "TMA store of d from d_out, clipped, one thread",
        "until TMA stores have read d_out, 1 later left in flight",
        "a: 4 x 128x64 bf16, 128B swizzle",
    ):
        assert said in text, said
    assert "matmul_hopper.py:" in text  # the kernel's own lines, though it is part of the package


def test_parameters_follow_from_use():
    kinds = [type(p).__name__ for p in matmul_hopper.trace("bf16", "bf16").parameters]
    assert kinds == ["MapParameter"] * 3 + ["SizeParameter"] * 3
    plain = matmul_hopper.trace("bf16", "bf16", d=__import__("smalti").facts("bf16", alignment=2))
    assert [p.describe() for p in plain.parameters][2:] == ["u64 d", "u64 stride 0 of d", "u32 M", "u32 N", "u32 K"]


def test_shared_memory_said_and_needed_agree():
    traced = matmul_hopper.trace("e4m3", "e5m2", d="bf16", tile=(128, 256, 128))
    assert traced.shared == traced.plan.shared_bytes == shared_bytes(traced.module)
    names = {t.name: t for t in traced.module.tiles}
    assert names["a"].shape == (128, 128) and names["a"].dtype == "e4m3" and "128B" in names["a"].layout
    assert ".version" in traced.ptx() and "//" in traced.ptx()


def launch(m, n, k):
    a, b = np.zeros((m, k), BF16), np.zeros((n, k), BF16)
    made = prepare(matmul_hopper, (a, b), {}, {})
    traced = matmul_hopper.traced(made.facts, {})
    buffers = {name: Buffer(name, "bf16", g.shape, data=g.data) for name, g in made.operands.items()}
    buffers["d"] = Buffer("d", "bf16", (m, n), output=True)
    strides = {name: g.strides for name, g in made.operands.items()} | {"d": (2 * n, 2)}
    return build_launch(traced, buffers, strides, made.sizes, 132)


def test_launch():
    made = launch(300, 520, 1056)
    assert made.grid == (9, 1, 1) and made.block == (384, 1, 1) and made.shared == 229440
    a_map = made.params[0]
    assert isinstance(a_map, MapOf) and a_map.map.size == (1056, 300) and a_map.map.stride == (2112,)
    assert a_map.map.box == (64, 128) and a_map.map.swizzle == "128B"
    assert made.params[3:] == (Scalar("u32", 300), Scalar("u32", 520), Scalar("u32", 1056))


def test_no_map_of_nothing():
    made = launch(300, 520, 0)
    assert isinstance(made.params[0], Struct) and made.params[0].data == bytes(128)
    assert isinstance(made.params[2], MapOf)  # D has elements: zeros are stored


def test_tracing_is_deterministic():
    import dataclasses

    again = dataclasses.replace(matmul_hopper, _traced={})
    assert again.ptx("bf16", "bf16") == matmul_hopper.ptx("bf16", "bf16")


@pytest.mark.parametrize("tidy", [True, False])
def test_tidy_changes_no_bits(tidy):
    import dataclasses

    rng = np.random.default_rng(0)
    a, b = rng.standard_normal((70, 72)).astype(BF16), rng.standard_normal((40, 72)).astype(BF16)
    options = {"tile": (64, 64, 64), "stages": 2, "parts": 1}
    kernel = dataclasses.replace(matmul_hopper, tidy=tidy, _traced={})
    d = kernel(a, b, device="virtual:sm_90a", **options)
    want = matmul_hopper(a, b, device="virtual:sm_90a", **options)
    np.testing.assert_array_equal(d.view(np.uint16), want.view(np.uint16))
