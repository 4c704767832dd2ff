"""Delete every fence, wait, arrival and commit of both matmul kernels, flip descriptor bits: what is noticed?

    python benchmarks/mutations.py hopper|blackwell [deletions|descriptors] [seeds]

Prints a count by outcome and every survivor. tests/ops/test_mutants.py says why each survivor is equivalent.
"""

from __future__ import annotations

import sys
from collections import Counter
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "ops"))
import mutants


def main(kernel: str, kind: str = "deletions", seeds: str = "2") -> None:
    traced, launch, arch = mutants.KERNELS[kernel]()
    text = traced.ptx()
    from smalti.run.execute import run

    (wanted,) = run(traced.module, launch, f"virtual:{arch}").outputs.values()
    chosen = (None, *range(1, int(seeds) + 1))
    make = {"deletions": mutants.deletions, "descriptors": mutants.descriptor_flips}[kind]
    counts: Counter[str] = Counter()
    for m in make(text):
        found = mutants.outcome(m.module, launch, wanted, arch, chosen)
        counts[found] += 1
        if found == "survived":
            print(f"survivor: {m.what}, instruction {m.place} at {Path(m.line).name}", flush=True)
    print(f"{sum(counts.values())} mutants of {kernel}: " + ", ".join(f"{n} {o}" for o, n in sorted(counts.items())))


if __name__ == "__main__":
    main(*sys.argv[1:])
