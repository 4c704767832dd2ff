"""What is compared with the independent model: the cases, and the inputs of each chunk, made again from seeds.
Used by the script that asks the model (make_oracle.py) and by the test that reads its answers.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import vectors

from smalti.numerics import formats, kinds

FILE = Path(__file__).parents[1] / "data" / "oracle" / "mmasim.npz"
ROWS, COLUMNS = 64, 64  # of one chunk: 4096 dot products
KEPT = 24  # outputs stored of each chunk, to show a difference; all of them are hashed


@dataclass(frozen=True)
class Case:
    """One kind with its formats. `model` names the model's instruction: (class, architecture, shape and types)."""

    kind: str
    a: str
    b: str
    depth: int
    chunks: int  # of each family
    scale: str
    block: int
    model: tuple[str, str, str]

    @property
    def name(self) -> str:
        return "/".join(str(x) for x in (self.kind, self.a, self.b, self.depth, self.scale, self.block) if x)


def cases() -> list[Case]:
    found = []
    for name, kind in kinds.KINDS.items():
        pairs = [(a, b) for a in kind.formats for b in ([a] if kind.same else kind.formats)]
        chunks = 5 if kind.rule == kinds.CHAIN else 3 if len(pairs) < 3 else 1
        for a, b in pairs:
            for scale, block in kind.scales or (("", 0),):
                found += [
                    Case(name, a, b, depth, chunks, scale, block, model)
                    for depth, model in _models(name, kind, a, b, scale, block)
                ]
    return found


def _models(name, kind, a, b, scale, block):
    out = kind.output
    depth = kind.products
    if kind.rule in (kinds.INTEGER, kinds.BITS_AND, kinds.BITS_XOR, kinds.HALVES):
        return []  # the model has no integers, and no fp8 mma.sync on these architectures
    family, _, rest = name.partition(".")
    if family == "wgmma":
        return [(depth, ("WGMMA", "Hopper", f"m64n64k{depth}.{out}.{a}.{b}"))]
    if family == "tcgen05" and scale:
        what = f"m128n64k{depth}.kind::{rest}.block{block}.f32.{a}.{b}.{scale}"
        return [(depth, ("TCGen05MMABlockScale", "Blackwell", what))]
    if family == "tcgen05":
        what = f"m128n64k{depth}.kind::{rest.removesuffix('.f16') if rest != 'f16' else rest}.{out}.{a}.{b}"
        return [(depth, ("TCGen05MMA", "Blackwell", what))]
    if kind.rule == kinds.CHAIN:
        return [(k, ("MMA", "Hopper", f"m16n8k{k}.f64.f64.f64.f64")) for k in (4, 16)]
    return [(k, ("MMA", "Hopper", f"m16n8k{k}.{out}.{a}.{b}.{out}")) for k in (depth, depth // 2)]


def families(case: Case) -> tuple[str, ...]:
    return ("window", "cancel", "tiny") if case.a == "f64" else vectors.FAMILIES  # f64: NaN payloads are not modelled


def inputs(case: Case, family: str, chunk: int) -> dict[str, np.ndarray]:
    """a [ROWS, depth], b [COLUMNS, depth], c [ROWS, COLUMNS] and scales where the kind has them."""
    kind = kinds.KINDS[case.kind]
    stream = vectors.Stream(case.name, family, chunk)
    made = {
        "a": vectors.codes(stream, case.a, family, ROWS, case.depth),
        "b": vectors.codes(stream, case.b, family, COLUMNS, case.depth),
    }
    with np.errstate(all="ignore"):
        left, right = formats.decode(made["a"], case.a), formats.decode(made["b"], case.b)
        if case.scale:
            for side, rows in (("scale_a", ROWS), ("scale_b", COLUMNS)):
                made[side] = vectors.scale_codes(stream, case.scale, family, rows, case.depth // case.block)
            left = left * np.repeat(formats.decode(made["scale_a"], case.scale), case.block, axis=1)
            right = right * np.repeat(formats.decode(made["scale_b"], case.scale), case.block, axis=1)
        about = np.zeros((ROWS, COLUMNS))
        for k in range(case.depth):  # in a fixed order, not by a BLAS
            about = about + left[:, k, None] * right[None, :, k]
    made["c"] = vectors.accumulators(stream, kind.output, family, about)
    return made


def digest(outputs: np.ndarray) -> np.ndarray:
    """The first 16 bytes of the SHA-256 of little-endian words."""
    words = np.ascontiguousarray(outputs).astype(outputs.dtype.newbyteorder("<"))
    return np.frombuffer(hashlib.sha256(words.tobytes()).digest()[:16], np.uint8)


def sample(outputs: np.ndarray) -> np.ndarray:
    """KEPT outputs spread over the chunk."""
    return outputs.reshape(-1)[:: outputs.size // KEPT][:KEPT].astype(np.uint64)
