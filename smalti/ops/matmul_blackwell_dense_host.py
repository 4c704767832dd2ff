"""The host's half of the Blackwell matmul of plain operands: what they must be like, and which tiles are taken.

Gives the kernel's arguments; knows nothing of how the kernel works.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from smalti.lang.dtypes import DType
from smalti.ops.blackwell_tiles import Shape, fastest, fit
from smalti.ops.matmul_blackwell_dense import matmul_blackwell
from smalti.ops.operands import LINE, plain
from smalti.ops.prepared import Prepared
from smalti.run.devices import Device

__all__ = ["choose", "prepare"]

# Bits of elements that tcgen05 reads contiguous along M or N, too; 32-bit ones only in a swizzle of 32-byte atoms (PTX
# ISA 9.7.16.10, table 54).
TURNED = (8, 16)
# Tiles of D; two accumulators of at most 256 columns each.
SHAPES = (Shape(128, 256), Shape(128, 128), Shape(128, 64), Shape(128, 32))


def prepare(
    a: Any,
    b: Any,
    *,
    dtype: str | None = None,
    precision: str | None = None,
    device: str | Device | None = None,
    options: Mapping[str, Any] | None = None,
) -> Prepared:
    """What `sm.matmul(a, b)` will run on Blackwell: a [M, K], b [K, N], any sizes from 0 on. Types and results as on
    Hopper. Errors: those of `operands.plain`.
    """
    made = plain(a, b, dtype=dtype, precision=precision, turned=TURNED)
    m, n, _ = made.shape
    chosen = choose(m, n, made.kind, device) if options is None else options
    read_as = dict(zip("ab", made.types, strict=True))
    arrays = (made.a, made.b)
    return Prepared(matmul_blackwell, made.shape, (a, b), arrays, made.result, chosen, read_as, made.copies)


def choose(m: int, n: int, kind: DType, device: str | Device | None = None) -> dict[str, Any]:
    """Tile, stages and accumulators: the shape that takes the least time."""
    best = fastest(SHAPES, m, n, device)
    stages, outs = fit(best, 0)
    return {"tile": (*best, LINE * 8 // kind.bits), "stages": stages, "slots": 2, "outs": outs}
