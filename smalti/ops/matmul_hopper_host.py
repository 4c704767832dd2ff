"""The host's half of the Hopper matmul: what its operands must be like, and which tiles are taken.

Gives the kernel's arguments; knows nothing of how the kernel works.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from smalti.lang.dtypes import DTYPES, DType
from smalti.lang.resources import SHARED_LIMIT
from smalti.ops.matmul_hopper import matmul_hopper
from smalti.ops.operands import BULK, LINE, plain
from smalti.ops.prepared import Prepared
from smalti.run.devices import Device
from smalti.run.devices import device as find

__all__ = ["choose", "prepare"]

TURNED = (16,)  # bits of elements that wgmma reads contiguous along M or N, too (PTX ISA 9.7.15.5.1.2)


class Shape(NamedTuple):
    """A tile of D, and its measured speed relative to the fastest (one H200, bf16, large matrices)."""

    rows: int
    columns: int
    speed: float


SHAPES = (
    Shape(128, 256, 1.0),
    Shape(128, 192, 0.98),
    Shape(128, 128, 0.95),
    Shape(256, 128, 0.9),
    Shape(64, 256, 0.86),
    Shape(64, 128, 0.78),
    Shape(64, 64, 0.5),
    Shape(64, 32, 0.18),
)


def prepare(
    a: Any,
    b: Any,
    *,
    dtype: str | None = None,
    precision: str | None = None,
    device: str | Device | None = None,
    options: Mapping[str, Any] | None = None,
) -> Prepared:
    """What `sm.matmul(a, b)` will run on Hopper: a [M, K], b [K, N], any sizes from 0 on.

    bf16 or f16; e4m3 and e5m2 in any mix; s8 and u8 in any mix; f32 only with precision="tf32". dtype of the
    result: that of a 16-bit input, f32 for 8-bit floats and tf32, s32 for integers, unless given. Operands that
    TMA or the tensor core cannot read as they lie are copied first.

    Errors: SML0610 dtypes, SML0611 f32 without precision="tf32", SML0612 shapes, SML0613 dtype of the result,
    SML0111 to SML0113 from the arrays.
    """
    made = plain(a, b, dtype=dtype, precision=precision, turned=TURNED)
    if options is None:
        options = choose(*made.shape, made.kind, DTYPES[made.result], _multiprocessors(device))
    read_as = dict(zip("ab", made.types, strict=True))
    arrays = (made.a, made.b)
    return Prepared(matmul_hopper, made.shape, (a, b), arrays, made.result, options, read_as, made.copies)


def choose(m: int, n: int, k: int, kind: DType, result: DType, sms: int) -> dict[str, Any]:
    """Tile, stages and column parts: the least time by waves of tiles over the multiprocessors."""
    del k

    def time(shape: Shape) -> float:
        tiles = -(-max(m, 1) // shape.rows) * -(-max(n, 1) // shape.columns)
        return -(-tiles // sms) * shape.rows * shape.columns / shape.speed

    best = min(SHAPES, key=time)
    deep = LINE * 8 // kind.bits
    stages, parts = _fit(best, result)
    return {"tile": (best.rows, best.columns, deep), "stages": stages, "parts": parts}


def _fit(shape: Shape, result: DType) -> tuple[int, int]:
    """As many stages as fit (4 to 6 where they can be had), and the fewest column parts of D that leave room.

    Parts are whole swizzle spans wide and pass through two tiles in turn.
    """
    stage = (shape.rows + shape.columns) * LINE + 16
    for stages in (6, 5, 4, 3, 2):
        for parts in (1, 2, 4, 8):
            line = shape.columns // parts * result.bits // 8
            if shape.columns % parts or line % (BULK if parts == 1 else LINE) or shape.columns // parts % 16:
                continue
            if stages * stage + min(parts, 2) * shape.rows * line <= SHARED_LIMIT and (parts <= 2 or stages <= 4):
                return stages, parts
    raise AssertionError(shape)


def _multiprocessors(device: str | Device | None) -> int:
    """How many CTAs run at once. The virtual GPU gains nothing from more of them: it takes the largest tiles."""
    found = find(device, arch="sm_90a")
    return 1 if found.kind == "virtual" else found.sm_count
