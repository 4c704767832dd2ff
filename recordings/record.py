"""Ask a Hopper GPU everything that is recorded, or compare with what it answered.

    python recordings/record.py write [--device cuda]       # remakes the files of this folder
    python recordings/record.py compare [--device cuda]     # differences from them, and from the virtual GPU
    python recordings/record.py compare --device virtual --parts programs

Parts: `programs` (hopper.json), `random` (random.json; compare also runs new seeds), `approximate` (approximate.json and
.npz; minutes). A recording is a hash of each program's output with a sample of it; inputs are remade from their seeds.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from datetime import date
from multiprocessing import get_context
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import approximate
import edge_programs
import matrix_programs
import memory_programs
import programs as numeric_programs
import random_programs
from programs import Program

from smalti.ptx.module import Module
from smalti.ptx.parse import parse
from smalti.run import run

FOLDER = Path(__file__).parent
SAMPLE = 8  # words kept of each output, evenly spread, for diagnosis
PARTS = ("programs", "random", "approximate")
NEW_SEEDS = range(1000, 1200)  # random programs that `compare` runs beside the recorded ones
MODULES = (numeric_programs, memory_programs, matrix_programs, edge_programs)


def programs() -> list[Program]:
    return [p for m in MODULES for p in m.programs()]


def answer(program: Program, device: str) -> dict[str, Any]:
    """Hash and sample of the outputs, "d" first."""
    text: Module | str = program.ptx
    if device.startswith("virtual"):
        text = parse(program.ptx, program.name)  # an assembler has validated it
    found = run(text, program.launch, device, checks=False).outputs
    names = sorted(found, key=lambda n: (n != "d", n))
    total = hashlib.sha256()
    for name in names:
        total.update(found[name].tobytes())
    longest = max(found.values(), key=len) if not len(found["d"]) else found["d"]
    step = max(len(longest) // SAMPLE, 1)
    return {
        "group": program.group,
        "words": sum(found[n].nbytes // 4 for n in names),
        "sha256": total.hexdigest(),
        "sample": [f"{int(x):08x}" for x in longest[::step][:SAMPLE]],
    }


def _answer(name: str, device: str) -> tuple[str, dict[str, Any] | str]:
    try:
        return name, answer(_by_name()[name], device)
    except Exception as refusal:  # the rest is still worth having
        return name, f"{type(refusal).__name__}: {str(refusal)[:200]}"


_KNOWN: dict[str, Program] = {}


def _by_name() -> dict[str, Program]:
    if not _KNOWN:
        _KNOWN.update({p.name: p for p in programs()})
    return _KNOWN


def _programs(verb: str, device: str, jobs: int, out: Path) -> bool:
    start = time.perf_counter()
    names = list(_by_name())
    with ProcessPoolExecutor(jobs, get_context("spawn")) as pool:
        answers = dict(pool.map(_answer, names, [device] * len(names), chunksize=4))
    found = {n: a for n, a in answers.items() if not isinstance(a, str)}
    failed = {n: a for n, a in answers.items() if isinstance(a, str)}
    words = sum(f["words"] for f in found.values())
    print(f"{len(found)} programs, {words} output words, {time.perf_counter() - start:.1f} s on {device}")
    for name, why in failed.items():
        print(f"failed: {name}: {why}")
    if verb == "write":
        head = {"format": 1, **_device(device), "programs": found}
        (out / "hopper.json").write_text(json.dumps(head, indent=0, sort_keys=True) + "\n")
        return not failed
    known = json.loads((FOLDER / "hopper.json").read_text())["programs"]
    differing = [n for n in found if n in known and known[n]["sha256"] != found[n]["sha256"]]
    for n in differing:
        print(f"differs: {n}: recorded {known[n]['sample']}, now {found[n]['sample']}")
    same = sum(n in known for n in found) - len(differing)
    print(f"{same} of {len(known)} as recorded; {len(set(known) - set(found))} of them not run")
    return not (differing or failed)


def _device(device: str) -> dict[str, str]:
    from smalti.run.devices import device as find

    return {"device": find(device).name, "date": date.today().isoformat()}


def _random(verb: str, device: str, jobs: int, out: Path) -> bool:
    command = [verb, "--device", device, "--jobs", str(jobs), "--out", str(out / "random.json")]
    if verb == "write":
        return random_programs.main(command) == 0
    known = random_programs.check_recorded(device)
    return random_programs.main([*command, "--seeds", f"{NEW_SEEDS[0]}-{NEW_SEEDS[-1]}"]) == 0 and known


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("write", "compare"))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--parts", type=lambda text: text.split(","), default=PARTS)
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder that `write` writes to")
    a = parser.parse_args()
    device = "virtual:sm_90a" if a.device == "virtual" else a.device
    good = True
    if "programs" in a.parts:
        good &= _programs(a.verb, device, a.jobs, a.out)
    if "random" in a.parts:
        good &= _random(a.verb, device, a.jobs, a.out)
    if "approximate" in a.parts:
        good &= approximate.main(a.verb, device, a.jobs, a.out)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
