"""Speed of the Hopper matmul beside cuBLAS (through PyTorch) on the same GPU, in one run.

    python benchmarks/hopper_speed.py [cuda]

Random data, the L2 cache flushed by other buffers between runs, medians of single launches timed by events.
"""

from __future__ import annotations

import statistics
import sys
from typing import Any

import numpy as np

import smalti as sm
from smalti.ops.matmul_hopper_host import prepare
from smalti.run.dtypes import from_bits

CASES = [
    ("bf16", 4096, 4096, 4096), ("bf16", 8192, 8192, 8192), ("bf16", 4096, 8192, 4096), ("bf16", 2048, 7168, 2048),
    ("bf16", 512, 8192, 8192), ("e4m3", 4096, 4096, 4096), ("e4m3", 8192, 8192, 8192),
]  # fmt: skip
REPEAT = 20


def operand(shape: tuple[int, int], dtype: str, seed: int) -> Any:
    values = np.random.default_rng(seed).standard_normal(shape, dtype=np.float32)
    if dtype == "bf16":
        return from_bits((values.view(np.uint32) >> 16).astype(np.uint16), "bf16")
    from smalti.numerics.convert import encode

    return from_bits(encode(values, dtype, satfinite=True), dtype)


def ours(dtype: str, m: int, n: int, k: int, device: str, options: Any = None) -> float:
    a, b = operand((m, k), dtype, 1), operand((n, k), dtype, 2).T
    prepared = prepare(a, b, dtype="bf16", device=device, options=options)
    result = prepared.execute(device, repeat=REPEAT)
    return float(result.figures["milliseconds"])


def cublas(dtype: str, m: int, n: int, k: int) -> float:
    import torch

    a, b = torch.randn(m, k, device="cuda"), torch.randn(n, k, device="cuda")
    if dtype == "bf16":
        a, b = a.bfloat16(), b.bfloat16()

        def run() -> Any:
            return a @ b.T
    else:
        a, b = a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
        one = torch.ones((), device="cuda")

        def run() -> Any:
            return torch._scaled_mm(a, b.T, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)

    run()
    times = []
    for _ in range(REPEAT):
        first, last = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        first.record()
        run()
        last.record()
        last.synchronize()
        times.append(first.elapsed_time(last))
    return statistics.median(times)


def main(device: str = "cuda") -> None:
    print(f"device: {sm.device(device).name}")
    print(f"{'work':<28}{'smalti us':>11}{'TF/s':>7}{'cuBLAS us':>11}{'TF/s':>7}{'ratio':>7}")
    for dtype, m, n, k in CASES:
        mine, peer = ours(dtype, m, n, k, device), cublas(dtype, m, n, k)
        work = 2 * m * n * k / 1e9
        name, ratio = f"{dtype} {m}x{n}x{k}", peer / mine
        print(f"{name:<28}{mine * 1e3:>11.1f}{work / mine:>7.0f}{peer * 1e3:>11.1f}{work / peer:>7.0f}{ratio:>7.2f}")


if __name__ == "__main__":
    main(*sys.argv[1:])
