"""Random programs on a Hopper GPU and on the virtual GPU: the same PTX, every result compared.

    python recordings/random_programs.py compare --seeds 0-199 --device cuda   # differences, by seed and instruction
    python recordings/random_programs.py write --device cuda                   # remakes recordings/random.json
    python recordings/random_programs.py vocabulary                            # remakes recordings/random_vocabulary.txt

A program loads, converts, computes, exchanges between lanes, threads and CTAs, multiplies matrices and copies tensors;
each result is stored to a place of its own. The virtual GPU runs with all checks on: they must stay silent.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import numpy as np
import random_async
import random_cluster
import random_collective
import random_scalar
from programs import Program
from random_kernel import THREADS, Kernel

from smalti.run import run

FILE = Path(__file__).with_name("random.json")
RECORDED = range(13)  # the seeds whose answers are kept
CTAS = 8
LENGTH = 12  # pieces
SHARED = 180_000  # bytes after which no more shared memory is asked for
FAULTS = 3  # after so many a worker gives up


def build(seed: int) -> tuple[Program, list[str]]:
    """The program of a seed, and what each word of a thread's trace is."""
    k = Kernel(f"random {seed}", CTAS, 1)
    k.cluster = k.dice.pick([1, 1, 1, 1, 1, 2, 2, 4])
    random_scalar.start(k)
    families = [random_scalar.PIECES] * 4 + [random_collective.PIECES] * 3 + [random_async.PIECES] * 2
    if k.cluster > 1:
        families += [random_cluster.PIECES] * 4
    for _ in range(LENGTH):
        if k.shared > SHARED:
            break
        k.dice.pick(k.dice.pick(families))(k)
    return k.program("random"), k.slots


def outputs(p: Program, device: str) -> dict[str, Any]:
    """The output buffers; on the virtual GPU no check may report anything but stores beyond a tensor's width (SML0832)."""
    ran = run(p.ptx, p.launch, device, checks=device.startswith("virtual"), collect=True)
    for found in ran.reports:
        if found.code != "SML0832":
            raise found
    return dict(ran.outputs)


def digest(found: dict[str, Any]) -> str:
    total = hashlib.sha256()
    for name in sorted(found):
        total.update(found[name].tobytes())
    return total.hexdigest()


def words(found: dict[str, Any]) -> int:
    return sum(x.nbytes // 4 for x in found.values())


def answer(seed: int, device: str) -> dict[str, Any]:
    """What is kept of a seed: a hash of the text, so that another program is not taken for another answer."""
    p, _ = build(seed)
    found = outputs(p, device)
    text = hashlib.sha256(p.ptx.encode()).hexdigest()
    return {"ptx": text, "words": words(found), "sha256": digest(found)}


def compare(seed: int, device: str) -> dict[str, Any]:
    """Both devices on one seed: words compared, and how many differ by instruction with one example."""
    p, slots = build(seed)
    real, virtual = outputs(p, device), outputs(p, "virtual:sm_90a")
    differing: Counter[str] = Counter()
    examples: dict[str, str] = {}
    total = CTAS * THREADS
    for name in real:
        wrong = np.flatnonzero(real[name] != virtual[name])
        for at in wrong:
            what = slots[at // total] if name == "d" else f"buffer {name}"
            differing[what] += 1
            examples.setdefault(
                what, f"{name}[{at}] {real[name][at]:x} on the GPU, {virtual[name][at]:x} on the virtual one"
            )
    return {
        "seed": seed, "words": words(real), "sha256": digest(real), "slots": slots,
        "differs": {w: [n, examples[w]] for w, n in differing.items()},
    }  # fmt: skip


# -- many seeds, in processes ----------------------------------------------------------------------------


def _worker(seeds: list[int], device: str, faults: int) -> None:
    """One JSON line a seed. A fault of the GPU ends its process' CUDA: the rest goes on in a new one."""
    for i, seed in enumerate(seeds):
        try:
            line = compare(seed, device)
        except Exception as refusal:
            line = {"seed": seed, "failed": f"{type(refusal).__name__}: {str(refusal)[:300]}"}
            print(json.dumps(line), flush=True)
            if getattr(refusal, "code", "") == "SML0174" and faults < FAULTS and seeds[i + 1 :]:
                rest = ",".join(map(str, seeds[i + 1 :]))
                os.execv(
                    sys.executable,
                    [
                        sys.executable,
                        __file__,
                        "worker",
                        "--seeds",
                        rest,
                        "--device",
                        device,
                        "--faults",
                        str(faults + 1),
                    ],
                )
            if faults >= FAULTS:
                return
            continue
        print(json.dumps(line), flush=True)


def many(seeds: list[int], device: str, jobs: int) -> list[dict[str, Any]]:
    parts = [seeds[i::jobs] for i in range(jobs) if seeds[i::jobs]]
    command = [sys.executable, __file__, "worker", "--device", device, "--seeds"]
    running = [
        subprocess.Popen([*command, ",".join(map(str, part))], stdout=subprocess.PIPE, text=True) for part in parts
    ]
    lines = [json.loads(line) for p in running for line in p.communicate()[0].splitlines()]
    return sorted(lines, key=lambda x: int(x["seed"]))


def report(found: list[dict[str, Any]], asked: int, seconds: float) -> bool:
    """Print what was compared; whether all was equal."""
    good = [x for x in found if "failed" not in x]
    opcodes = Counter(s for x in good for s in x["slots"])
    print(
        f"{len(good)} of {asked} programs, {sum(x['words'] for x in good)} words, {len(opcodes)} kinds of results, {seconds:.0f} s"
    )
    for x in found:
        if "failed" in x:
            print(f"seed {x['seed']}: {x['failed']}")
        for what, (n, example) in x.get("differs", {}).items():
            print(f"seed {x['seed']}: {n} differ after {what}: {example}")
    return len(good) == asked and not any(x["differs"] for x in good)


def _seeds(text: str) -> list[int]:
    out: list[int] = []
    for part in text.split(","):
        low, _, high = part.partition("-")
        out += range(int(low), int(high or low) + 1)
    return out


def _note(found: list[dict[str, Any]], device: str) -> None:
    from smalti.run.devices import device as find

    good = [x for x in found if "failed" not in x]
    entry = {
        "seeds": f"{min(x['seed'] for x in good)} to {max(x['seed'] for x in good)} ({len(good)})",
        "words": sum(x["words"] for x in good),
        "differing": sum(n for x in good for n, _ in x["differs"].values()),
        "device": find(device).name,
        "date": date.today().isoformat(),
    }
    known = json.loads(FILE.read_text())
    known["compared"].append(entry)
    FILE.write_text(json.dumps(known, indent=0, sort_keys=True) + "\n")


def check_recorded(device: str) -> bool:
    """Whether a device answers the recorded seeds as recorded."""
    known = json.loads(FILE.read_text())["programs"]
    wrong = [s for s in known if answer(int(s), device) != known[s]]
    print(f"{len(known) - len(wrong)} of {len(known)} recorded random programs as recorded", *wrong)
    return not wrong


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("compare", "write", "vocabulary", "worker"))
    parser.add_argument("--seeds", type=_seeds, default=list(RECORDED), help="3, 0-99, or both with commas")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--out", type=Path, default=FILE)
    parser.add_argument("--note", action="store_true", help="compare: note in random.json what was compared")
    parser.add_argument("--faults", type=int, default=0, help=argparse.SUPPRESS)
    a = parser.parse_args(arguments)
    if a.verb == "vocabulary":
        random_scalar.VOCABULARY.write_text("\n".join(random_scalar.vocabulary_lines()) + "\n")
        return 0
    if a.verb == "worker":
        _worker(a.seeds, a.device, a.faults)
        return 0
    start = time.perf_counter()
    if a.verb == "write":
        from smalti.run.devices import device as find

        kept = {str(s): answer(s, a.device) for s in a.seeds}
        compared = json.loads(FILE.read_text())["compared"] if FILE.exists() else []
        head = {
            "format": 1,
            "device": find(a.device).name,
            "date": date.today().isoformat(),
            "programs": kept,
            "compared": compared,
        }
        a.out.write_text(json.dumps(head, indent=0, sort_keys=True) + "\n")
        return 0
    found = many(a.seeds, a.device, a.jobs)
    good = report(found, len(a.seeds), time.perf_counter() - start)
    if a.note:
        _note(found, a.device)
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
