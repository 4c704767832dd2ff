"""Compiles the kernels below with Triton, without a GPU, and writes their PTX to a folder.

    python -m venv venv && venv/bin/pip install triton==3.9.0 numpy
    venv/bin/python tools/foreign/triton_ptx.py tests/data/foreign

The kernels are ours; Triton is MIT-licensed. Each file is named kernel.architecture.ptx.
"""

import os
import re
import sys
from pathlib import Path

# TRITON_DISABLE_LINE_INFO=0 gives softmax_lines.sm_90a.ptx, with source lines.
os.environ.setdefault("TRITON_DISABLE_LINE_INFO", "1")

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource


@triton.jit
def add(x, y, out, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < n
    tl.store(out + at, tl.load(x + at, mask=mask) + tl.load(y + at, mask=mask), mask=mask)


@triton.jit
def softmax(x, out, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0) * columns + at, mask=at < columns, other=-float("inf"))
    e = tl.exp(row - tl.max(row, 0))
    tl.store(out + tl.program_id(0) * columns + at, e / tl.sum(e, 0), mask=at < columns)


@triton.jit
def matmul(a, b, c, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """C[M,N] = A[M,K] B[K,N], row-major, tiles that divide the sizes."""
    i, j = tl.program_id(0), tl.program_id(1)
    rows, columns, depth = i * BM + tl.arange(0, BM), j * BN + tl.arange(0, BN), tl.arange(0, BK)
    pa = a + rows[:, None] * k + depth[None, :]
    pb = b + depth[:, None] * n + columns[None, :]
    acc = tl.zeros((BM, BN), tl.float32)
    for _ in range(0, k, BK):
        acc = tl.dot(tl.load(pa), tl.load(pb), acc)
        pa += BK
        pb += BK * n
    tl.store(c + rows[:, None] * n + columns[None, :], acc.to(c.dtype.element_ty))


@triton.jit
def matmul_tma(a, b, c, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """As matmul, with tensor maps made by the host; B is [N,K]."""
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for at in range(0, k, BK):
        acc = tl.dot(a.load([i, at]), b.load([j, at]).T, acc)
    c.store([i, j], acc.to(tl.float16))


@triton.jit
def convert(x, out8, out16, n, BLOCK: tl.constexpr):
    """Conversions between formats, integer division, a square root."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n, other=0.0)
    tl.store(out8 + at, v.to(tl.float8e4nv), mask=at < n)
    w = tl.sqrt(v) * (at // 3).to(tl.float32) + (at % 7).to(tl.float32)
    tl.store(out16 + at, w.to(tl.bfloat16), mask=at < n)


@triton.jit
def histogram(x, counts, n, BLOCK: tl.constexpr):
    """Atomics, and a prefix sum through shared memory."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n, other=0)
    tl.atomic_add(counts + (v & 15), tl.cumsum(v, 0), mask=at < n)


@triton.jit
def spin(flag, out, limit):
    """Waits for a flag: acquire loads, a branch backwards, a release."""
    seen = 0
    while seen < limit:
        seen = tl.atomic_add(flag, 0, sem="acquire", scope="gpu")
    tl.atomic_xchg(out, seen, sem="release")


@triton.jit
def scaled_matmul(a, sa, b, sb, c, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """mxfp8: e4m3 with one ue8m0 scale a 32 elements along K."""
    rows, columns = tl.arange(0, BM), tl.arange(0, BN)
    depth, scales = tl.arange(0, BK), tl.arange(0, BK // 32)
    acc = tl.zeros((BM, BN), tl.float32)
    for at in range(0, k, BK):
        x = tl.load(a + rows[:, None] * k + at + depth[None, :])
        y = tl.load(b + columns[:, None] * k + at + depth[None, :])
        sx = tl.load(sa + rows[:, None] * (k // 32) + at // 32 + scales[None, :])
        sy = tl.load(sb + columns[:, None] * (k // 32) + at // 32 + scales[None, :])
        acc = tl.dot_scaled(x, sx, "e4m3", y.T, sy, "e4m3", acc)
    tl.store(c + rows[:, None] * BN + columns[None, :], acc)


TILE = {"BM": 128, "BN": 128, "BK": 64}
# name: kernel, types of the run-time parameters, constants, warps, pipeline stages
KERNELS = {
    "add": (add, {"x": "*fp32", "y": "*fp32", "out": "*fp32", "n": "i32"}, {"BLOCK": 1024}, 4, 1),
    "softmax": (softmax, {"x": "*fp32", "out": "*fp32", "columns": "i32"}, {"BLOCK": 1024}, 4, 1),
    "convert": (convert, {"x": "*fp32", "out8": "*fp8e4nv", "out16": "*bf16", "n": "i32"}, {"BLOCK": 512}, 4, 1),
    "histogram": (histogram, {"x": "*i32", "counts": "*i32", "n": "i32"}, {"BLOCK": 256}, 2, 1),
    "spin": (spin, {"flag": "*i32", "out": "*i32", "limit": "i32"}, {}, 1, 1),
    "matmul_bf16": (
        matmul,
        {"a": "*bf16", "b": "*bf16", "c": "*fp32", "m": "i32", "n": "i32", "k": "i32"},
        {"BM": 64, "BN": 64, "BK": 64},
        4,
        2,
    ),
    "matmul_fp32": (
        matmul,
        {"a": "*fp32", "b": "*fp32", "c": "*fp32", "m": "i32", "n": "i32", "k": "i32"},
        {"BM": 32, "BN": 32, "BK": 32},
        4,
        2,
    ),
    "matmul_tma": (
        matmul_tma,
        {
            "a": "tensordesc<fp16[128,64]>",
            "b": "tensordesc<fp16[64,64]>",
            "c": "tensordesc<fp16[128,64]>",
            "k": "i32",
        },
        {"BM": 128, "BN": 64, "BK": 64},
        4,
        3,
    ),
    "scaled_matmul": (
        scaled_matmul,
        {"a": "*fp8e4nv", "sa": "*u8", "b": "*fp8e4nv", "sb": "*u8", "c": "*fp32", "k": "i32"},
        {"BM": 128, "BN": 64, "BK": 128},
        4,
        1,
    ),
}


def compile_ptx(name: str, arch: int) -> str:
    """PTX of one kernel; pointers and sizes are told to be multiples of 16, as real callers do."""
    kernel, types, constants, warps, stages = KERNELS[name]
    signature = {**types, **dict.fromkeys(constants, "constexpr")}
    names = list(signature)
    attributes = {
        (names.index(n),): [["tt.divisibility", 16]] for n, t in types.items() if t[0] == "*" or n in ("n", "k", "m")
    }
    source = ASTSource(kernel, signature, {(names.index(n),): v for n, v in constants.items()}, attributes)
    options = {"num_warps": warps, "num_stages": stages, "ptx_version": 90}
    text = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options).asm["ptx"]
    return re.sub(r'(\.file\s+\d+\s+")[^"]*/', r"\1", text)  # source files by their names alone


def main(folder: str) -> None:
    for name in KERNELS:
        for arch in (90, 100):
            path = Path(folder) / f"{name}.sm_{arch}a.ptx"
            try:
                path.write_text(compile_ptx(name, arch))
            except Exception as failed:
                print(f"{path.name}: {type(failed).__name__}: {str(failed)[:200]}")
            else:
                print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
