"""Asks the independent model (PyPI package mmasim, MIT) for the outputs that test_oracle.py compares with.

    python tests/numerics/make_oracle.py            # writes tests/data/oracle/mmasim.npz
    python tests/numerics/make_oracle.py --compare  # compares on the spot and shows the first differing outputs

Needs the extra `oracle` (several GB). Run with the model's environment; smalti must be importable.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import sys

import numpy as np
import oracle
import torch
from mmasim import nv_ptx

FLOATS = {"e4m3": torch.float8_e4m3fn, "e5m2": torch.float8_e5m2, "f16": torch.float16, "bf16": torch.bfloat16,
          "tf32": torch.float32, "f32": torch.float32, "f64": torch.float64, "ue8m0": torch.float8_e8m0fnu,
          "ue4m3": torch.float8_e4m3fn}  # fmt: skip


def tensor(codes: np.ndarray, fmt: str) -> torch.Tensor:
    if fmt == "e2m1":
        return torch.from_numpy(codes << 2)  # the model reads fp4 from bits 5..2 of a byte
    if fmt in ("e2m3", "e3m2"):
        return torch.from_numpy(codes)
    signed = codes.view(codes.dtype.str.replace("u", "i"))
    return torch.from_numpy(signed).view(FLOATS[fmt])


def ask(case: oracle.Case, made: dict[str, np.ndarray], out: str) -> np.ndarray:
    cls, arch, what = case.model
    operation = getattr(nv_ptx, cls)(arch, what)
    packed = case.depth == 64
    if packed:  # two to a byte
        sides = [torch.from_numpy(made[s][:, 0::2] << 4 | made[s][:, 1::2]) for s in ("a", "b")]
    else:
        sides = [tensor(made["a"], case.a), tensor(made["b"], case.b)]
    a, b = sides[0][:, None, :], sides[1][None, :, :]
    shape = (len(made["a"]), len(made["b"]), -1)
    arguments = [a.expand(shape), b.expand(shape), tensor(made["c"], out)]
    if case.scale:
        sa, sb = (tensor(made[s], case.scale) for s in ("scale_a", "scale_b"))
        arguments += [sa[:, None, :].expand(shape), sb[None, :, :].expand(shape)]
    d = operation.dpa(*arguments).contiguous().numpy()
    return d.view(f"uint{8 * d.itemsize}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    kept: dict[str, np.ndarray] = {}
    for case in oracle.cases():
        if options.only not in case.name:
            continue
        digests, samples = [], []
        for family in oracle.families(case):
            for chunk in range(case.chunks):
                made = oracle.inputs(case, family, chunk)
                answer = ask(case, made, oracle.kinds.KINDS[case.kind].output)
                digests.append(oracle.digest(answer))
                samples.append(oracle.sample(answer))
                if options.compare:
                    compare(case, family, chunk, made, answer)
        kept[f"digest {case.name}"] = np.array(digests)
        kept[f"sample {case.name}"] = np.array(samples)
        print(case.name, len(digests) * oracle.ROWS * oracle.COLUMNS, flush=True)
    if options.compare:
        return
    kept["model"] = np.array(f"mmasim {importlib.metadata.version('mmasim')}, torch {torch.__version__}")
    oracle.FILE.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(oracle.FILE, **kept)


def compare(case, family, chunk, made, answer) -> None:
    from test_oracle import ours

    mine = ours(case, made)
    for m, n in np.argwhere(mine != answer)[:4]:
        print(
            f"{case.name} {family} {chunk} [{m}, {n}]: model {answer[m, n]:08X}, ours {mine[m, n]:08X}", file=sys.stderr
        )
        print({k: [hex(int(x)) for x in np.atleast_1d(v[n if k in ("b", "scale_b") else m])][:64]
               for k, v in made.items() if k != "c"}, "c", hex(int(made["c"][m, n])), file=sys.stderr)  # fmt: skip


if __name__ == "__main__":
    main()
