"""Delete every fence, wait, arrival and commit of both matmul kernels, flip descriptor bits: what is noticed?

    python benchmarks/mutations.py hopper|blackwell [deletions|descriptors] [seeds]

Prints a count by outcome and every survivor. tests/ops/survivors.toml says why each survivor is equivalent.
"""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

import smalti as sm
from smalti.lang.call import launch_of

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "ops"))
import mutants


def hopper() -> tuple[Any, Any, str]:
    """Six tiles that one CTA works through, three steps of K, ragged edges, D leaving in two parts."""
    from smalti.ops.matmul_hopper_host import prepare
    from smalti.run.dtypes import from_bits

    r = np.random.default_rng(1)
    a, b = (from_bits((r.integers(-3, 4, s).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16), "bf16") for s in ((136, 136), (136, 80)))
    p = prepare(a, b, dtype="f32", options={"tile": (64, 32, 64), "stages": 2, "parts": 2})
    traced, launch, _ = launch_of(p.kernel, p.arrays, "virtual:sm_90a", p.read_as, {"d": p.result, **p.options})
    return traced, replace(launch, grid=(1, 1, 1)), "sm_90a"


def blackwell() -> tuple[Any, Any, str]:
    from smalti.ops.matmul_blackwell_host import prepare

    r = np.random.default_rng(2)
    a, b = (r.integers(-3, 4, s).astype(np.float32) * np.exp2(r.integers(-3, 4, s[:1] + (1,))).astype(np.float32) for s in ((130, 416), (40, 416)))
    options = {"tile": (128, 32, 128), "stages": 2}
    p = prepare(sm.quantize(a, "mxfp8"), sm.quantize(np.ascontiguousarray(b.T), "mxfp8", axis=0), options=options)
    traced, launch, _ = launch_of(p.kernel, p._arrays(), "virtual:sm_100a", {}, {"d": p.result, **p.options})
    return traced, launch, "sm_100a"


def main(kernel: str, kind: str = "deletions", seeds: str = "2") -> None:
    traced, launch, arch = {"hopper": hopper, "blackwell": blackwell}[kernel]()
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
