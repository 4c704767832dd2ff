"""Runs kernels of the corpus with all checks on, and says what is not as expected.

    python tools/foreign/check.py [--seeds N] [FOLDER] [PATTERN ...]
    python tools/foreign/check.py --device cuda [--jobs N] [FOLDER] [PATTERN ...]

FOLDER is tests/foreign/kernels or a folder that `generate.py` filled. On the virtual GPU each file runs under the
default schedule and N adversarial ones; results must be equal and nothing may be found. With --device cuda the kernels
for the GPU's architecture run there, once, in processes of their own (a kernel that faults or hangs costs its process);
where a tolerance is allowed, it is said how far the virtual GPU's results are away.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from smalti.errors import SmaltiError
from smalti.numerics.formats import decode
from smalti.run import compare, run
from smalti.run import device as find
from smalti.run.launch_file import load

KERNELS = Path(__file__).parents[2] / "tests" / "foreign" / "kernels"
KNOWN = KERNELS.parent / "known.json"  # what compilers do against the rules
PATIENCE = 60  # seconds for one kernel on a GPU


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


def attempt(path: Path, seeds: list[int | None], device: str | None = None) -> list[str]:
    try:
        return problems(path, seeds, device)
    except SmaltiError as refused:
        if os.environ.get("TRACE"):
            raise
        return [str(refused)]
    except Exception as broken:
        if os.environ.get("TRACE"):
            raise
        return [f"{type(broken).__name__}: {broken}"]


# -- on a GPU ------------------------------------------------------------------------------------------


def distances(path: Path, device: str) -> list[str]:
    """How far the results of a GPU and of the virtual one are apart, where a tolerance is allowed."""
    launch, text = load(path), path.with_suffix(".ptx").read_text()
    loose = [n for n, b in launch.buffers.items() if b.output and b.tolerance is not None]
    if not loose:
        return []
    real = run(text, launch, device).outputs
    virtual = run(text, launch, f"virtual:{path.stem.rpartition('.')[2]}", collect=True).outputs
    found = []
    for name in loose:
        dtype = launch.buffers[name].dtype
        bits = [np.asarray(side[name]).view(f"u{side[name].itemsize}") for side in (real, virtual)]
        a, b = (decode(x, dtype) for x in bits)
        apart = np.abs(a - b) / np.maximum(np.abs(b), 1e-30)
        differing, most = np.count_nonzero(bits[0] != bits[1]), np.nanmax(apart, initial=0.0)
        found.append(f"{name}: {differing} of {a.size} differ from the virtual GPU, at most by {most:.2g} of the value")
    return found


def child(device: str, paths: list[str]) -> None:
    for path in map(Path, paths):
        start = time.perf_counter()
        found = attempt(path, [None], device)
        told = [] if found else distances(path, device)
        print(json.dumps([str(path), found, told, time.perf_counter() - start]), flush=True)
        if any("SML0174" in f for f in found):
            return  # after a fault this process can do no more


def answers(device: str, paths: list[Path]) -> Iterator[tuple[Path, list[str], list[str], float]]:
    """Of each path, by as many processes, one after the other, as it takes."""
    rest = list(paths)
    while rest:
        command = [sys.executable, __file__, "--child", device, *map(str, rest)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            while rest:
                timer = threading.Timer(PATIENCE, process.kill)
                timer.start()
                line = process.stdout.readline()
                timer.cancel()
                if not line:
                    break
                path, found, told, seconds = json.loads(line)
                rest.remove(Path(path))
                yield Path(path), found, told, seconds
                if any("SML0174" in f for f in found):
                    break
            else:
                return
            if not line:
                process.kill()
                said = process.stderr.read()[-300:]
                yield rest.pop(0), [f"the process ended without an answer: {said}"], [], 0.0


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=0)
    parser.add_argument("--device")
    parser.add_argument("--jobs", type=int, default=4, help="processes on a GPU at a time")
    parser.add_argument("--child", nargs="+", help=argparse.SUPPRESS)
    parser.add_argument("folder", nargs="?", type=Path, default=KERNELS)
    parser.add_argument("patterns", nargs="*")
    given = parser.parse_args()
    if given.child:
        child(given.child[0], given.child[1:])
        return 0
    good = bad = 0
    start = time.perf_counter()
    paths = [p for p in sorted(given.folder.glob("*/*.json")) if not given.patterns or any(q in str(p) for q in given.patterns)]  # fmt: skip  # noqa: E501

    def virtual() -> Iterator[tuple[Path, list[str], list[str], float]]:
        for path in paths:
            begin = time.perf_counter()
            found = attempt(path, [None, *range(1, given.seeds + 1)])
            yield path, found, [], time.perf_counter() - begin

    def real(device: str) -> Iterator[tuple[Path, list[str], list[str], float]]:
        arch = find(device).arch
        mine = [p for p in paths if p.stem.rpartition(".")[2] == arch]
        done: queue.SimpleQueue[tuple[Path, list[str], list[str], float]] = queue.SimpleQueue()

        def work(first: int) -> None:
            for answer in answers(device, mine[first :: given.jobs]):
                done.put(answer)

        with ThreadPoolExecutor(given.jobs) as pool:
            pool.map(work, range(given.jobs))
            for _ in mine:
                yield done.get()

    known = json.loads(KNOWN.read_text())
    known = known["every"] | known["some"]
    for path, found, told, took in real(given.device) if given.device else virtual():
        name = f"{path.parent.name}/{path.stem}"
        expected = name in known and found and known[name] in found[0]
        word = "good" if not found else "known" if expected else "FAILED"
        print(f"{name}: {word}, {took:.2f} s", flush=True)
        for line in [*found, *told]:
            print(f"    {line[:600]}", flush=True)
        good, bad = good + (word != "FAILED"), bad + (word == "FAILED")
    print(f"{good} good, {bad} failed, {time.perf_counter() - start:.0f} s")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
