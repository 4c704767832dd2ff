"""The host's half of the Blackwell block-scaled matmul: which operands go together, which tiles are taken.

Gives the kernel's arguments; knows nothing of how the kernel works.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smalti.errors import error
from smalti.lang.call import execute, facts_of_call
from smalti.lang.plan import Plan
from smalti.numerics.formats import FORMATS
from smalti.ops.matmul_blackwell import mx_matmul
from smalti.run.devices import Device
from smalti.run.devices import device as find
from smalti.run.dtypes import numpy_dtype
from smalti.run.execute import Result
from smalti.run.scaled import BlockScaled

__all__ = ["Prepared", "choose", "prepare"]

LINE = 128  # bytes of K in one tile: one span of the widest swizzle
RESULTS = ("f32", "bf16", "f16")
# schemes whose operands one instruction multiplies
FAMILIES = (("mxfp8", "mxfp8_e5m2"), ("mxfp4",), ("nvfp4",))


class Shape(NamedTuple):
    """A tile of D. Several row and column tiles of instructions lie in one accumulator of at most 512 columns."""

    rows: int
    columns: int
    stages: int


# Of one CTA: 227 KiB of shared memory hold so many stages of (rows + columns) * 128 bytes and their scales.
SHAPES = (
    Shape(256, 192, 3),
    Shape(128, 384, 3),
    Shape(384, 128, 3),
    Shape(128, 256, 4),
    Shape(128, 128, 6),
    Shape(128, 64, 6),
)


@dataclass(frozen=True)
class Prepared:
    """Arguments of the kernel: a [M, K], b [K, N] block-scaled along K, the result's dtype and the kernel's options."""

    a: BlockScaled
    b: BlockScaled
    result: str
    options: Mapping[str, Any]
    copies: tuple[str, ...] = ()

    @property
    def kernel(self) -> Any:
        return mx_matmul

    @property
    def shape(self) -> tuple[int, int, int]:
        return self.a.shape[0], self.b.along_rows[0].shape[0], self.a.along_rows[0].shape[1]

    def _arrays(self) -> tuple[Any, ...]:
        level = np.float32(1)
        for operand in (self.a, self.b):
            level = level * (operand.global_scale if operand.global_scale is not None else np.float32(1))
        return self.a, self.b, np.array([level], np.float32)

    def plan(self) -> Plan:
        """The plan of the kernel, and what was copied before it."""
        known = facts_of_call(mx_matmul, self._arrays(), {}, {"d": self.result})
        return replace(mx_matmul.traced(known, dict(self.options)).plan, copies=list(self.copies))

    def execute(self, device: str | Device | None = None, **how: Any) -> Result:
        """a @ b on the device, as output "d". K = 0 gives zeros without a launch."""
        m, n, k = self.shape
        if 0 in (m, n, k):
            return Result({"d": np.zeros((m, n), numpy_dtype(self.result))}, find(device, arch=mx_matmul.arch), 0.0)
        return execute(mx_matmul, self._arrays(), device, {}, {"d": self.result, **self.options}, **how)

    def run(self, device: str | Device | None = None, **how: Any) -> NDArray[Any]:
        """a @ b on the device."""
        return self.execute(device, **how).outputs["d"]


def prepare(
    a: BlockScaled, b: BlockScaled, *, dtype: str | None = None, options: Mapping[str, Any] | None = None
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
    chosen = dict(options) if options is not None else choose(a.shape[0], b.shape[1], a)
    chosen.setdefault("global_scale", a.global_scale is not None or b.global_scale is not None)
    copies = ["b: transposed, for block-scaled operands are read along K only"] if b.elements.size else []
    return Prepared(a, b, result, chosen, tuple(copies))


def choose(m: int, n: int, a: BlockScaled) -> dict[str, Any]:
    """Tile and stages: the shape whose tiles waste the least of M and N; the larger one where it is the same."""

    def waste(shape: Shape) -> tuple[int, int]:
        padded = -(-max(m, 1) // shape.rows) * shape.rows * -(-max(n, 1) // shape.columns) * shape.columns
        return padded, -shape.rows * shape.columns

    best = min(SHAPES, key=waste)
    deep = LINE * 8 // FORMATS[a.scheme.element].bits
    return {"tile": (best.rows, best.columns, deep), "stages": best.stages}
