"""The host's half of the Hopper matmul: which types go, what must be copied first, which tiles are taken.

Gives the kernel's arguments and a list of what was copied and why; knows nothing of how the kernel works.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smalti.errors import error
from smalti.lang.call import execute, facts_of_call
from smalti.lang.dtypes import DTYPES, DType
from smalti.lang.kernel import Kernel
from smalti.lang.plan import Plan
from smalti.lang.resources import SHARED_LIMIT
from smalti.ops.matmul_hopper import matmul_hopper
from smalti.run.devices import Device
from smalti.run.devices import device as find
from smalti.run.dtypes import as_bits, from_bits
from smalti.run.execute import Result

__all__ = ["Prepared", "choose", "prepare"]

LINE = 128  # bytes of K in one tile: one span of the widest swizzle
BULK = 16  # bytes: pitch of what TMA reads (PTX ISA 5.5)
FLOAT8 = ("e4m3", "e5m2")
INT8 = ("s8", "u8")
RESULTS = {
    "float": ("f32", "bf16", "f16", "e4m3", "e5m2"),
    "integer": ("s32",),
}


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


@dataclass(frozen=True)
class Prepared:
    """Arguments of the kernel: `arrays` a [M, K] and b [N, K], `read_as`, the result's dtype, options, copies made."""

    arrays: tuple[Any, Any]
    read_as: Mapping[str, str]
    result: str
    options: Mapping[str, Any]
    copies: tuple[str, ...] = ()
    kernel: Kernel = field(default=matmul_hopper)

    def plan(self) -> Plan:
        """The plan of the kernel, and what was copied before it."""
        known = facts_of_call(self.kernel, self.arrays, self.read_as, {"d": self.result})
        return replace(self.kernel.traced(known, dict(self.options)).plan, copies=list(self.copies))

    def execute(self, device: str | Device | None = None, **how: Any) -> Result:
        """a @ b.T on the device, as output "d"."""
        return execute(self.kernel, self.arrays, device, self.read_as, {"d": self.result, **self.options}, **how)

    def run(self, device: str | Device | None = None, **how: Any) -> NDArray[Any]:
        """a @ b.T on the device."""
        return self.execute(device, **how).outputs["d"]


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
    bits_a, name_a = as_bits(a, what="a")
    bits_b, name_b = as_bits(b, what="b")
    if bits_a.ndim != 2 or bits_b.ndim != 2 or bits_a.shape[1] != bits_b.shape[0]:
        raise error("SML0612", a=bits_a.shape, b=bits_b.shape)
    name_a, name_b = _types(name_a, name_b, precision)
    result = _result(name_a, dtype)
    copies: list[str] = []
    left = _aligned(bits_a, DTYPES[name_a], "a", copies)
    right = _aligned(bits_b.T, DTYPES[name_b], "b", copies)
    m, n, k = left.shape[0], right.shape[0], left.shape[1]
    chosen = (
        options if options is not None else choose(m, n, k, DTYPES[name_a], DTYPES[result], _multiprocessors(device))
    )
    arrays = (from_bits(left, name_a), from_bits(right, name_b))
    return Prepared(arrays, {"a": name_a, "b": name_b}, result, chosen, tuple(copies))


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


def _types(a: str, b: str, precision: str | None) -> tuple[str, str]:
    if a == b == "f32":
        if precision != "tf32":
            raise error("SML0611", precision=str(precision))
        return "tf32", "tf32"
    fine = (a == b and a in ("bf16", "f16")) or {a, b} <= set(FLOAT8) or {a, b} <= set(INT8)
    if not fine:
        raise error("SML0610", a=a, b=b)
    return a, b


def _result(name: str, wanted: str | None) -> str:
    integer = name in INT8
    legal = RESULTS["integer" if integer else "float"]
    if wanted is None:
        return "s32" if integer else name if name in ("bf16", "f16") else "f32"
    if wanted not in legal:
        raise error("SML0613", dtype=wanted, a=name, legal=", ".join(legal))
    return wanted


def _aligned(bits: NDArray[Any], kind: DType, what: str, copies: list[str]) -> NDArray[Any]:
    """The operand [rows, K] in a form that TMA reads: contiguous along K (or, 16-bit, along the rows), pitch a
    multiple of 16 bytes. Copied if it is not."""
    if bits.size == 0:
        return bits
    if _readable(bits):
        return bits
    if kind.bits == 16 and _readable(bits.T):
        return bits
    rows, k = bits.shape
    unit = BULK // bits.itemsize
    pitch = -(-k // unit) * unit
    copy = np.zeros((rows, pitch), bits.dtype)
    copy[:, :k] = bits
    contiguous = bits.strides[1] == bits.itemsize
    reason = (
        f"its rows of {k} elements are no multiple of 16 bytes apart"
        if contiguous
        else f"{kind.bits}-bit operands are read along K only"
        if kind.bits != 16
        else "its strides fit no tensor map"
    )
    copies.append(f"{what}, {rows} x {k} {kind.name}, to rows of {pitch} elements: {reason}")
    return copy[:, :k]


def _readable(bits: NDArray[Any]) -> bool:
    rows, k = bits.shape
    step, inner = bits.strides
    return (
        (inner == bits.itemsize or k == 1)
        and step % BULK == 0
        and (step >= k * bits.itemsize or rows == 1)
        and step > 0
    )


def _multiprocessors(device: str | Device | None) -> int:
    """How many CTAs run at once. The virtual GPU gains nothing from more of them: it takes the largest tiles."""
    found = find(device, arch="sm_90a")
    return 1 if found.kind == "virtual" else found.sm_count
