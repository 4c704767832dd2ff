"""How far the approximate functions of a Hopper GPU are from correctly rounded results.

    python recordings/approximate.py write [cuda]    # remakes recordings/approximate.json; prints a table

A million inputs a function: every upper half of an f32 with sixteen lower halves. Errors are in units of the last place of
the correctly rounded result; subnormal results and inputs, infinities and NaN are counted apart.
"""

from __future__ import annotations

import json
import sys
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from programs import _unary

from smalti.run import run

FILE = Path(__file__).with_name("approximate.json")
LOW = [
    0,
    1,
    0x0FFF,
    0x1000,
    0x2AAA,
    0x3FFF,
    0x4000,
    0x5555,
    0x7FFF,
    0x8000,
    0x9249,
    0xAAAA,
    0xBFFF,
    0xC001,
    0xEEEE,
    0xFFFF,
]
FUNCTIONS: dict[str, Any] = {
    "ex2.approx.ftz.f32": np.exp2, "lg2.approx.f32": np.log2, "rcp.approx.f32": lambda x: 1 / x, "sqrt.approx.f32": np.sqrt,
    "rsqrt.approx.f32": lambda x: 1 / np.sqrt(x), "tanh.approx.f32": np.tanh, "sin.approx.f32": np.sin, "cos.approx.f32": np.cos,
}  # fmt: skip


def main(verb: str, device: str = "cuda") -> None:
    inputs = np.concatenate([(np.arange(65536, dtype=np.uint32) << 16) | low for low in LOW])
    x = inputs.view(np.float32)
    found = {}
    for name, reference in FUNCTIONS.items():
        p = _unary(name, "approximate", inputs, f"{name} %f2, %f0;\nmov.b32 %r4, %f2;")
        got = run(p.ptx, p.launch, device, checks=False).outputs["d"].view(np.float32)
        with np.errstate(all="ignore"):
            exact = reference(x.astype(np.float64))
            rounded = exact.astype(np.float32)
            unit = np.spacing(np.abs(rounded)).astype(np.float64)
            normal = np.isfinite(rounded) & np.isfinite(got) & (np.abs(rounded) >= 2.0**-126) & (np.abs(x) >= 2.0**-126)
            if name[:3] in ("sin", "cos"):  # reduced by multiples of 2 pi in hardware: an absolute bound
                near = normal & (np.abs(x) <= np.pi)
                worst = float(np.abs(got - exact)[near].max())
                found[name] = {"inputs": int(near.sum()), "absolute": worst}
                print(f"{name:<22}{worst:.3g} absolute for |x| <= pi")
                continue
            error = np.abs(got.astype(np.float64) - exact)[normal] / unit[normal]
        at = int(np.flatnonzero(normal)[error.argmax()])
        special = int((np.isnan(got) != np.isnan(rounded)).sum())
        found[name] = {
            "inputs": int(normal.sum()),
            "ulp": round(float(error.max()), 3),
            "at": f"{int(inputs[at]):08x}",
            "nan_differs": special,
        }
        print(f"{name:<22}{found[name]}")
    if verb == "write":
        from smalti.run.devices import device as find

        target = Path(sys.argv[3]) if len(sys.argv) > 3 else FILE
        target.write_text(
            json.dumps(
                {"format": 1, "device": find(device).name, "date": date.today().isoformat(), "functions": found},
                indent=1,
            )
            + "\n"
        )


if __name__ == "__main__":
    main(*sys.argv[1:3])
