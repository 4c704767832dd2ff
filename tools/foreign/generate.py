"""Compiles the corpus without a GPU: PTX, launch files and expected arrays of every case, below tests/foreign/kernels.

    python -m venv venv && venv/bin/pip install triton==3.9.0 numpy ml_dtypes
    PYTHONPATH=. venv/bin/python tools/foreign/generate.py [-o FOLDER] [PATTERN ...]

The other compilers have environments of their own (JAX and CuTe DSL one architecture a run: they keep kernels by their
source alone, or read it as they are imported). nvcc and ptxas must be on the PATH:

    venv/bin/pip install jax==0.10.2 jax-cuda13-plugin jax-cuda13-pjrt absl-py llvmlite
    PYTHONPATH=. venv/bin/python tools/foreign/generate.py -m jax_mosaic -m jax_hopper -m jax_blackwell sm_100a
    venv/bin/pip install tilelang==0.1.15
    PYTHONPATH=. venv/bin/python tools/foreign/generate.py -m tilelang_kernels -m tilelang_blocks -m tilelang_scaled
    PYTHONPATH=. python tools/foreign/generate.py -m cuda_hopper -m cuda_blackwell -m cuda_forms
    venv/bin/pip install nvidia-cutlass-dsl==4.8.1   # its output is under NVIDIA's licence: not for the repository
    PYTHONPATH=. venv/bin/python tools/foreign/generate.py -o FOLDER -m cute_kernels sm_100a

A case `matmul_bf16` of `triton_matmul.py` goes to `FOLDER/triton/matmul_bf16.sm_90a.ptx` and so on. Patterns choose
cases by substrings of module.case.arch.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import time
from pathlib import Path

os.environ.setdefault("TRITON_DISABLE_LINE_INFO", "1")
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import case  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-o", "--output", type=Path, default=HERE.parents[1] / "tests" / "foreign" / "kernels")
    parser.add_argument("-m", "--module", action="append", help="modules (default: triton_* and gluon_*)")
    parser.add_argument("patterns", nargs="*")
    given = parser.parse_args()
    failed = 0
    found = sorted(p.stem for p in HERE.glob("*_*.py") if p.stem.split("_")[0] in ("triton", "gluon"))
    for name in given.module or found:
        case.CASES.clear()
        importlib.import_module(name)
        folder = given.output / name.split("_")[0]
        folder.mkdir(parents=True, exist_ok=True)
        for one in case.CASES:
            for arch in one.arches:
                if given.patterns and not any(p in f"{name}.{one.name}.{arch}" for p in given.patterns):
                    continue
                start = time.perf_counter()
                try:
                    run = case.Run(arch)
                    one.make(run)
                    run.save(folder, one.name)
                except Exception as problem:
                    failed += 1
                    if os.environ.get("TRACE"):
                        raise
                    print(f"{one.name}.{arch}: FAILED: {type(problem).__name__}: {str(problem)[-300:]}", flush=True)
                else:
                    size = (folder / f"{one.name}.{arch}.ptx").stat().st_size
                    print(f"{one.name}.{arch}: {size} bytes, {time.perf_counter() - start:.1f} s", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
