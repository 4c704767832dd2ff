"""Runs kernels of the corpus on the virtual GPU with all checks on, and says what is not as expected.

    python tools/foreign/check.py [--seeds N] [--device cuda] [FOLDER] [PATTERN ...]

FOLDER is tests/foreign/kernels or a cache folder that `generate.py` filled. Each file runs under the default schedule
and N adversarial ones; results must be equal and nothing may be found. With --device cuda the kernels for the GPU's
architecture run there, once.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path

import numpy as np

from smalti.errors import SmaltiError
from smalti.run import compare, run
from smalti.run import device as find
from smalti.run.launch_file import load


def problems(path: Path, seeds: list[int | None], device: str | None = None) -> list[str]:
    """What is wrong with one launch file's kernel; empty where all is as expected."""
    launch, text = load(path), path.with_suffix(".ptx").read_text()
    arch = path.stem.rpartition(".")[2]
    for seed in seeds:
        where, name = device or f"virtual:{arch}", path.with_suffix(".ptx").name
        result = run(text, launch, where, seed=seed, collect=True, name=name)
        found = [str(r) for r in result.reports[:3]]
        for name, got in result.outputs.items():
            told = compare(launch.buffers[name], got)
            if told.differing:
                found.append(f"{name}: {told.differing} of {told.total} differ, first at {told.first}, by {told.worst}")
            if np.any(result.undefined.get(name, False)):
                found.append(f"{name} is undefined in part")
        if found:
            return [f"seed {seed}: {f}" for f in found]
    return []


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--device")
    parser.add_argument(
        "folder", nargs="?", type=Path, default=Path(__file__).parents[2] / "tests" / "foreign" / "kernels"
    )
    parser.add_argument("patterns", nargs="*")
    given = parser.parse_args()
    good = bad = 0
    start = time.perf_counter()
    for path in sorted(given.folder.glob("*/*.json")):
        if given.patterns and not any(p in str(path) for p in given.patterns):
            continue
        if given.device and path.stem.rpartition(".")[2] != find(given.device).arch:
            continue
        begin = time.perf_counter()
        try:
            found = problems(path, [None, *range(1, given.seeds + 1)], given.device)
        except SmaltiError as refused:
            if os.environ.get("TRACE"):
                raise
            found = [str(refused)]
        except Exception as broken:
            if os.environ.get("TRACE"):
                raise
            found = [f"{type(broken).__name__}: {broken}"]
        took = time.perf_counter() - begin
        print(f"{path.parent.name}/{path.stem}: {'FAILED' if found else 'good'}, {took:.2f} s", flush=True)
        for line in found:
            print(f"    {line[:600]}", flush=True)
        good, bad = good + (not found), bad + bool(found)
    print(f"{good} good, {bad} failed, {time.perf_counter() - start:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
