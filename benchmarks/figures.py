"""The figures that the project promises for a laptop: import, trace, assemble, cache, and matmuls on the virtual GPU.

    python benchmarks/figures.py

Medians of a few runs in one process (imports and cache hits in processes of their own), all checks on, random data.
"""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import date
from typing import Any

import ml_dtypes
import numpy as np


def seconds(action: Callable[[], Any], repeat: int = 3) -> float:
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        action()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


def child(code: str, **environment: str) -> float:
    """Seconds that a Python process prints."""
    out = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | environment
    )
    return float(out.stdout.split()[-1])


IMPORT = "import time; t = time.perf_counter(); import smalti; print(time.perf_counter() - t)"
TRACE = """
import time
import smalti as sm
from smalti.ops.matmul_hopper import matmul_hopper as kernel
import smalti.lang.call
t = time.perf_counter()
kernel.ptx("bf16", "bf16", d="bf16")
print(time.perf_counter() - t)
"""
ASSEMBLE = """
import time
from smalti.ops.matmul_hopper import matmul_hopper as kernel
import smalti.lang.call, smalti.run.assemble
t = time.perf_counter()
smalti.run.assemble.assemble(kernel.ptx("bf16", "bf16", d="bf16"))
print(time.perf_counter() - t)
"""


def show(what: str, value: float, bound: float) -> None:
    print(f"{what:<46}{value:>9.3f} s   (at most {bound} s)", flush=True)


def main() -> None:
    from smalti.ops.matmul import prepare

    print(f"Python {platform.python_version()}, NumPy {np.__version__}, {os.cpu_count()} cores, {date.today()}")
    show("import smalti", statistics.median(child(IMPORT) for _ in range(5)), 0.3)
    with tempfile.TemporaryDirectory() as folder:
        fresh = [child(TRACE, SMALTI_CACHE=f"{folder}/{n}") for n in range(3)]
        show("trace of the Hopper matmul", statistics.median(fresh), 0.15)
        show(
            "the same from the disk cache",
            statistics.median(child(TRACE, SMALTI_CACHE=f"{folder}/0") for _ in range(3)),
            0.01,
        )
        show("trace and ptxas", statistics.median(child(ASSEMBLE, SMALTI_CACHE=f"{folder}/a{n}") for n in range(3)), 1)
    r = np.random.default_rng(0)
    for n, bound in ((512, 0.5), (1024, 3)):
        a, b = (r.standard_normal((n, n)).astype(ml_dtypes.bfloat16) for _ in range(2))
        prepared = prepare(a, b, dtype="f32", device="virtual:sm_90a")
        prepared.execute("virtual:sm_90a")
        result = prepared.execute("virtual:sm_90a")
        show(f"bf16 {n}x{n}x{n} on virtual:sm_90a", seconds(lambda p=prepared: p.execute("virtual:sm_90a")), bound)
        print("    " + ", ".join(f"{v} {k}" for k, v in result.figures.items()))
    a, b = (r.standard_normal(s).astype(np.float32) for s in ((300, 1056), (1056, 520)))
    prepared = prepare(a, b, format="mxfp8", device="virtual:sm_100a")
    result = prepared.execute("virtual:sm_100a")
    show("mxfp8 300x1056x520 on virtual:sm_100a", seconds(lambda: prepared.execute("virtual:sm_100a")), 10)
    print("    " + ", ".join(f"{v} {k}" for k, v in result.figures.items()))


if __name__ == "__main__":
    main()
