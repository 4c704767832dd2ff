"""The Hopper kernels on a real GPU and on the virtual one: the same bits?

    python benchmarks/hopper_bits.py virtual hashes.json     # anywhere; takes some minutes
    python benchmarks/hopper_bits.py cuda hashes.json        # on a Hopper GPU: compares with the file, prints a table

Every case has its own seeded operands with infinities, subnormals and cancellation among them; a hash of the result's
bytes is compared, so one differing bit shows.
"""

from __future__ import annotations

import hashlib
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import smalti as sm
from smalti.ops.matmul_hopper_host import prepare
from smalti.run.dtypes import from_bits

SHAPES = [
    (1, 1, 1), (1, 8, 16), (7, 13, 5), (16, 24, 8), (31, 37, 29), (64, 64, 64), (63, 65, 127), (65, 63, 129),
    (97, 101, 103), (127, 129, 131), (128, 256, 64), (129, 257, 65), (191, 193, 197), (128, 8, 1024), (8, 512, 96),
    (255, 256, 257), (256, 384, 128), (257, 193, 1000), (300, 520, 1056), (383, 389, 397), (512, 256, 512),
    (1, 1024, 64), (1024, 1, 64), (33, 1000, 24), (500, 500, 500),
]  # fmt: skip
DTYPES = {
    "bf16": ("f32", "bf16"),
    "f16": ("f32", "f16"),
    "e4m3": ("f32", "bf16"),
    "e5m2": ("f32",),
    "tf32": ("f32",),
    "s8": ("s32",),
}


def operand(shape: tuple[int, int], dtype: str, seed: int, transposed: bool) -> Any:
    """Random bits of narrow range, a few of them special; `transposed`: contiguous along the other dimension."""
    r = np.random.default_rng(seed)
    if dtype in ("s8", "u8"):
        bits = r.integers(0, 256, shape).astype(np.uint8)
    elif dtype == "tf32":
        bits = r.standard_normal(shape).astype(np.float32).view(np.uint32)
    elif dtype in ("e4m3", "e5m2"):
        bits = r.integers(0, 256, shape).astype(np.uint8)
        bits[(bits & 0x7C) == 0x7C] &= 0xBF  # no NaN: one would fill its whole row
    else:
        values = (r.standard_normal(shape) * np.exp2(r.integers(-6, 7, shape))).astype(np.float32)
        bits = (
            values.astype(np.float16).view(np.uint16)
            if dtype == "f16"
            else (values.view(np.uint32) >> 16).astype(np.uint16)
        )
    array = from_bits(bits, "f32" if dtype == "tf32" else dtype)
    return np.asfortranarray(array) if transposed else array


def cases() -> list[tuple[str, Any, Any, str, str]]:
    out = []
    for n, (m, columns, k) in enumerate(SHAPES):
        for d, (dtype, results) in enumerate(DTYPES.items()):
            if (n + d) % 2 and n > 10:
                continue
            result = results[n % len(results)]
            a = operand((m, k), dtype, 1000 + n, False)
            b = operand((k, columns), dtype, 2000 + n, dtype in ("bf16", "f16") and n % 3 == 0)
            out.append((f"{dtype} {m}x{k} by {k}x{columns} -> {result}", a, b, dtype, result))
    return out


def main(where: str, path: str) -> None:
    device = "virtual:sm_90a" if where == "virtual" else where
    known = json.loads(Path(path).read_text()) if where != "virtual" else {}
    found, differing, start = {}, [], time.perf_counter()
    for name, a, b, dtype, result in cases():
        prepared = prepare(a, b, dtype=result, precision="tf32" if dtype == "tf32" else None)
        d = prepared.run(device)
        found[name] = hashlib.sha256(np.ascontiguousarray(d).tobytes()).hexdigest()
        if known and known[name] != found[name]:
            differing.append(name)
    print(f"{len(found)} cases on {sm.device(device).name} in {time.perf_counter() - start:.1f} s")
    if where == "virtual":
        Path(path).write_text(json.dumps(found, indent=1) + "\n")
        return
    print(f"equal bits: {len(found) - len(differing)} of {len(found)}")
    for name in differing:
        print("differs:", name)
    raise SystemExit(bool(differing))


if __name__ == "__main__":
    main(*sys.argv[1:])
