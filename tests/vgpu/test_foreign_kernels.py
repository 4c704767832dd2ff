"""Kernels compiled by Triton and nvcc (tests/data/foreign), run with all checks on: results by plain formulas."""

from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from smalti.ptx.parse import parse
from tests.vgpu.harness import machine_for, results, run

FOLDER = Path(__file__).parents[1] / "data" / "foreign"
SCRATCH = np.zeros(16, np.uint8)  # Triton's last two parameters


@pytest.fixture(params=[None, 1, 2])
def seed(request):
    return request.param


@pytest.fixture
def rng():
    return np.random.default_rng(7)


def kernel(name):
    return parse((FOLDER / f"{name}.ptx").read_text(), f"{name}.ptx")


def triton(name, *params, **options):
    options = {"block": 128, **options}
    return run(kernel(name), *params, SCRATCH, SCRATCH, entry=name.split(".")[0].replace("_lines", ""), **options)


def test_add(rng, seed):
    x, y = rng.normal(size=(2, 1504)).astype(np.float32)
    out = triton("add.sm_90a", x, y, np.full(1504, 7, np.float32), np.int32(1500), grid=2, seed=seed)[2]
    assert (out[:1500] == (x + y)[:1500]).all() and (out[1500:] == 7).all()


@pytest.mark.parametrize("name", ["softmax.sm_90a", "softmax_lines.sm_90a"])
def test_softmax(name, rng, seed):
    x = rng.normal(size=(3, 700)).astype(np.float32)
    out = triton(name, x, np.zeros_like(x), np.int32(700), grid=3, shared=64, seed=seed)[1]
    e = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    assert np.abs(out / (e / e.sum(1, keepdims=True)) - 1).max() < 1e-5


def test_histogram(rng, seed):
    """Prefix sums through shuffles and shared memory, then atomics."""
    x, n = rng.integers(0, 100, 512).astype(np.int32), 496
    given = (x, np.zeros(16, np.int32), np.int32(n))
    out = triton("histogram.sm_90a", *given, grid=2, block=64, shared=2048, seed=seed)[1]
    want = np.zeros(16, np.int64)
    for block in range(2):
        part = np.where(np.arange(256) + 256 * block < n, x[256 * block : 256 * block + 256], 0)
        inside = np.arange(256) + 256 * block < n
        np.add.at(want, part[inside] & 15, np.cumsum(part)[inside])
    assert out.tolist() == want.tolist()


@pytest.mark.parametrize("arch", ["sm_90a", pytest.param("sm_100a", marks=pytest.mark.virtual)])
def test_convert(arch, rng, seed):
    x = np.abs(rng.normal(size=512)).astype(np.float32) * 4
    outs = np.zeros(512, np.uint8), np.zeros(512, np.uint16)
    _, eighths, halves = triton(f"convert.{arch}", x, *outs, np.int32(512), shared=4096, seed=seed)[:3]
    assert (eighths == x.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)).all()
    at = np.arange(512)
    want = np.sqrt(x.astype(np.float64)) * (at // 3) + at % 7
    assert (np.abs(halves.view(ml_dtypes.bfloat16).astype(np.float64) - want) <= want * 2.0**-8 + 1e-9).all()


def test_matmul_wgmma(rng, seed):
    m, n, k = 64, 128, 192
    a, b = rng.integers(-3, 4, (m, k)).astype(np.float32), rng.integers(-3, 4, (k, n)).astype(np.float32)
    codes = [x.astype(ml_dtypes.bfloat16).view(np.uint16) for x in (a, b)]
    sizes = np.int32(m), np.int32(n), np.int32(k)
    module, out = kernel("matmul_bf16.sm_90a"), np.full((m, n), 7, np.float32)
    given = (*codes, out, *sizes, SCRATCH, SCRATCH)
    got = run(module, *given, entry="matmul", grid=(1, 2), block=128, shared=65536, seed=seed)[2]
    assert (got == a @ b).all()


def test_matmul_mma(rng, seed):
    m, n, k = 32, 64, 96
    a, b = rng.integers(-3, 4, (m, k)).astype(np.float32), rng.integers(-3, 4, (k, n)).astype(np.float32)
    given = (a, b, np.full((m, n), 7, np.float32), np.int32(m), np.int32(n), np.int32(k), SCRATCH, SCRATCH)
    module = kernel("matmul_fp32.sm_90a")
    got = run(module, *given, entry="matmul", grid=(1, 2), block=128, shared=65536, seed=seed)[2]
    assert (got == a @ b).all()


def test_spin(seed):
    out = triton(
        "spin.sm_90a", np.full(4, 5, np.int32), np.zeros(4, np.int32), np.int32(4), block=32, shared=64, seed=seed
    )
    assert out[1][0] == 5


NVCC = ["nvcc.sm_90a", pytest.param("nvcc_line.sm_100a", marks=pytest.mark.virtual)]


@pytest.mark.parametrize("name", NVCC)
def test_jump_table_and_local_array(name, seed):
    module, v = kernel(name), np.arange(32, dtype=np.int64)
    ways = [
        v + 7, v * 13, v ^ 0x1234, np.array([int(x).bit_count() for x in v]),
        np.array([int(f"{int(x):032b}"[::-1], 2) for x in v]), v // 7 % 5, v >> 23 | 6 << 9, v - 100,
    ]  # fmt: skip
    for kind, value in enumerate(ways):
        out = run(module, np.zeros(32, np.int32), np.int32(kind), entry="jumps", block=32, seed=seed)[0]
        for x, got in zip(value, out.view(np.uint32), strict=True):
            place = [0] * 16
            for k in range(16):
                place[(int(x) + k * 5) & 15] = k
            assert int(got) == (int(x) + place[kind & 15]) & 0xFFFFFFFF


@pytest.mark.virtual
@pytest.mark.parametrize("name", ["nvcc.sm_90a", "nvcc_line.sm_100a"])
def test_calls_structs_and_printf(name, seed):
    """A struct by value through a function, a call through a table, constants, printf of what was computed."""
    shape = np.zeros(1, [("rows", "i4"), ("columns", "i4"), ("scale", "f4"), ("name", "u1", 5), ("pad", "u1", 3)])
    shape["rows"], shape["columns"], shape["scale"] = 2, 9, 2.0
    x = np.arange(64, dtype=np.float32)
    given = (np.zeros(64, np.float32), x, np.void(shape.tobytes()), np.int32(40))
    machine = machine_for(kernel(name), *given, entry="calls", block=256, seed=seed, checks=False)  # prints out[0]
    machine.run()
    weights = np.array([0.5, -1.25, 3.0e8, 1e-40], np.float32).astype(np.float64)
    y = np.zeros(64)
    for w in weights:  # fused multiply-add: one rounding
        y = (y * x + w).astype(np.float32).astype(np.float64)
    want = (y * 2 + 1.5).astype(np.float32) + np.float32(4)
    got = results(machine)[0]
    assert np.allclose(got[:40], want[:40], rtol=1e-6) and (got[40:] == 0).all()
    assert machine.printed == [f"smalti 9 {got[0]:f}\n"]
