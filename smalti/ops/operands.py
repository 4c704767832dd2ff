"""Plain operands of a product: which types go together, what the result is, and which must be copied so that TMA and
the tensor core can read them. Knows no kernel.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smalti.errors import error
from smalti.lang.dtypes import DTYPES, DType
from smalti.run.dtypes import as_bits, from_bits

__all__ = ["LINE", "Operands", "plain"]

LINE = 128  # bytes of K in one tile: one span of the widest swizzle
BULK = 16  # bytes: pitch of what TMA reads (PTX ISA 5.5)
FLOAT8 = ("e4m3", "e5m2")
INT8 = ("s8", "u8")
RESULTS = {
    "float": ("f32", "bf16", "f16", "e4m3", "e5m2"),
    "integer": ("s32",),
}


class Operands(NamedTuple):
    """a [M, K] and b [N, K] as a kernel reads them, their formats, the result's, and what was copied and why."""

    a: NDArray[Any]
    b: NDArray[Any]
    types: tuple[str, str]
    result: str
    copies: tuple[str, ...]

    @property
    def shape(self) -> tuple[int, int, int]:
        """M, N, K."""
        return self.a.shape[0], self.b.shape[0], self.a.shape[1]

    @property
    def kind(self) -> DType:
        return DTYPES[self.types[0]]


def plain(a: Any, b: Any, *, dtype: str | None, precision: str | None, turned: tuple[int, ...]) -> Operands:
    """Operands for a @ b, a [M, K], b [K, N]. `turned`: widths of elements that may be contiguous along M or N.

    Errors: SML0610 dtypes, SML0611 f32 without precision="tf32", SML0612 shapes, SML0613 dtype of the result,
    SML0111 to SML0113 from the arrays.
    """
    bits_a, name_a = as_bits(a, what="a")
    bits_b, name_b = as_bits(b, what="b")
    if bits_a.ndim != 2 or bits_b.ndim != 2 or bits_a.shape[1] != bits_b.shape[0]:
        raise error("SML0612", a=bits_a.shape, b=bits_b.shape)
    types = _types(name_a, name_b, precision)
    result = _result(types[0], dtype)
    copies: list[str] = []
    left = _aligned(bits_a, DTYPES[types[0]], "a", turned, copies)
    right = _aligned(bits_b.T, DTYPES[types[1]], "b", turned, copies)
    return Operands(from_bits(left, types[0]), from_bits(right, types[1]), types, result, tuple(copies))


def _types(a: str, b: str, precision: str | None) -> tuple[str, str]:
    if precision not in (None, "tf32"):
        raise error("SML0611", precision=str(precision))
    if a == b == "f32":
        if precision is None:
            raise error("SML0611", precision=precision)
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


def _aligned(bits: NDArray[Any], kind: DType, what: str, turned: tuple[int, ...], copies: list[str]) -> NDArray[Any]:
    """The operand [rows, K] in a form that TMA reads: contiguous along K (or, where that may be, along the rows), pitch
    a multiple of 16 bytes. Copied if it is not."""
    if bits.size == 0 or _readable(bits) or (kind.bits in turned and _readable(bits.T)):
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
        if kind.bits not in turned
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
