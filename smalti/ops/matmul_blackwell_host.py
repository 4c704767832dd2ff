"""The host's half of the Blackwell block-scaled matmul: which operands go together, which tiles are taken.

Gives the kernel's arguments; knows nothing of how the kernel works.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from smalti.errors import error
from smalti.numerics.formats import FORMATS
from smalti.ops.blackwell_tiles import Shape, fastest, fit
from smalti.ops.matmul_blackwell import mx_matmul
from smalti.ops.operands import LINE
from smalti.ops.prepared import Prepared
from smalti.run.devices import Device
from smalti.run.scaled import ATOM_BYTES, ATOM_FACTORS, ATOM_ROWS, BlockScaled

__all__ = ["choose", "prepare"]

RESULTS = ("f32", "bf16", "f16")
# schemes whose operands one instruction multiplies
FAMILIES = (("mxfp8", "mxfp8_e5m2"), ("mxfp4",), ("nvfp4",))
# Tiles of D. One accumulator has at most 512 columns, less those of the scales.
SHAPES = (Shape(256, 192), Shape(128, 384), Shape(384, 128), Shape(128, 256), Shape(128, 128), Shape(128, 64))


def prepare(
    a: BlockScaled,
    b: BlockScaled,
    *,
    dtype: str | None = None,
    device: str | Device | None = None,
    options: Mapping[str, Any] | None = None,
) -> Prepared:
    """What `matmul` will run for a [M, K] scaled along its last axis and b [K, N] scaled along its first.

    Errors: SML0730 schemes that do not go together, SML0731 a scale axis that is not K, SML0612 shapes, SML0613 dtype
    of the result.
    """
    family = next((f for f in FAMILIES if a.scheme.name in f), ())
    if b.scheme.name not in family:
        legal = "; ".join(" or ".join(f) for f in FAMILIES)
        raise error("SML0730", a=a.scheme.name, b=b.scheme.name, legal=legal)
    for name, operand, axis in (("a", a, 1), ("b", b, 0)):
        if operand.axis % 2 != axis:
            raise error("SML0731", operand=name, axis=operand.axis % 2, wanted=axis)
    if a.shape[1] != b.shape[0]:
        raise error("SML0612", a=a.shape, b=b.shape)
    result = dtype or "f32"
    if result not in RESULTS:
        raise error("SML0613", dtype=result, a=a.scheme.name, legal=", ".join(RESULTS))
    m, n = a.shape[0], b.shape[1]
    chosen = dict(options) if options is not None else choose(m, n, a, device)
    chosen.setdefault("global_scale", a.global_scale is not None or b.global_scale is not None)
    copies = ("b: transposed, for block-scaled operands are read along K only",) if b.elements.size else ()
    arrays = (a, b, np.array([_level(a) * _level(b)], np.float32))
    return Prepared(mx_matmul, (m, n, a.shape[1]), (a, b), arrays, result, chosen, {}, copies)


def _level(operand: BlockScaled) -> np.float32:
    return np.float32(1) if operand.global_scale is None else operand.global_scale


def choose(m: int, n: int, a: BlockScaled, device: str | Device | None = None) -> dict[str, Any]:
    """Tile, stages and accumulators: the shape that takes the least time."""
    best = fastest(SHAPES, m, n, device)
    deep = LINE * 8 // FORMATS[a.scheme.element].bits
    atoms = deep // (a.scheme.block * ATOM_FACTORS)
    groups = -(-best.rows // ATOM_ROWS) - (-best.columns // ATOM_ROWS) + 1  # a tile of B may begin inside an atom
    stages, outs = fit(best, groups * atoms * ATOM_BYTES)
    slots = 2 if best.rows // ATOM_ROWS * best.columns <= 192 else 1
    return {"tile": (*best, deep), "stages": stages, "slots": slots, "outs": outs}
