"""Compiles the corpus without a GPU: PTX, launch files and expected arrays of every case, below tests/foreign/kernels.

    python -m venv venv && venv/bin/pip install triton==3.9.0 numpy ml_dtypes
    PYTHONPATH=. venv/bin/python tools/foreign/generate.py [-o FOLDER] [PATTERN ...]

Other compilers put code of their own into every kernel: what they make stays in a folder outside of the repository, and
each has an environment of its own (one architecture a run, since JAX keeps kernels by their source alone):

    venv/bin/pip install jax==0.10.2 jax-cuda13-plugin jax-cuda13-pjrt absl-py llvmlite   # and ptxas on the PATH
    PYTHONPATH=. venv/bin/python tools/foreign/generate.py -o FOLDER -m jax_mosaic sm_100a

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
