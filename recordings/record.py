"""Ask a Hopper GPU, or compare with what it answered.

    python recordings/record.py write [cuda]            # remakes recordings/hopper.json
    python recordings/record.py compare [cuda|virtual]  # differences from it

A recording is a hash of each program's output with a sample of it; inputs are remade from their seeds.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
import memory_programs
import programs as numeric_programs
from programs import Program

from smalti.run import run

FILE = Path(__file__).with_name("hopper.json")
SAMPLE = 8  # words kept of each output, evenly spread, for diagnosis


def programs() -> list[Program]:
    return [*numeric_programs.programs(), *memory_programs.programs()]


def answer(program: Program, device: str) -> dict[str, Any]:
    d = run(program.ptx, program.launch, device, checks=False).outputs["d"]
    step = max(len(d) // SAMPLE, 1)
    sample = [f"{int(x):08x}" for x in d[::step][:SAMPLE]]
    return {
        "group": program.group,
        "words": len(d),
        "sha256": hashlib.sha256(d.tobytes()).hexdigest(),
        "sample": sample,
    }


def main(verb: str, device: str = "cuda") -> None:
    device = "virtual:sm_90a" if device == "virtual" else device
    start, found, failed = time.perf_counter(), {}, {}
    for p in programs():
        try:
            found[p.name] = answer(p, device)
        except Exception as refusal:  # the rest is still worth having
            failed[p.name] = f"{type(refusal).__name__}: {str(refusal)[:200]}"
    words = sum(f["words"] for f in found.values())
    print(f"{len(found)} programs, {words} output words, {time.perf_counter() - start:.1f} s on {device}")
    for name, why in failed.items():
        print(f"failed: {name}: {why}")
    if verb == "write":
        from smalti.run.devices import device as find

        head = {"format": 1, "device": find(device).name, "date": date.today().isoformat(), "programs": found}
        target = Path(sys.argv[3]) if len(sys.argv) > 3 else FILE
        target.write_text(json.dumps(head, indent=0, sort_keys=True) + "\n")
        return
    known = json.loads(FILE.read_text())["programs"]
    differing = [n for n in found if n in known and known[n]["sha256"] != found[n]["sha256"]]
    for n in differing:
        print(f"differs: {n}: recorded {known[n]['sample']}, now {found[n]['sample']}")
    print(
        f"{len(found) - len(differing)} of {len(found)} as recorded; {len(set(known) - set(found))} recorded ones not run"
    )
    raise SystemExit(bool(differing or failed))


if __name__ == "__main__":
    main(*sys.argv[1:3])
