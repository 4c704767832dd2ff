"""The signature of a kernel, `"a[M,K], b[N,K]:scaled -> d[M,N]"`: names, dimensions, what is written.

Also the static facts of one tensor that a kernel is specialised on. Knows no values and no memory.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from smalti.errors import error
from smalti.lang.dtypes import DTYPES, DType

__all__ = ["Facts", "Operand", "Signature", "facts", "parse_signature"]

_OPERAND = re.compile(r"\s*([A-Za-z_]\w*)\s*\[([^\[\]]*)\]\s*(?::\s*(\w+))?\s*")
_DIMENSION = re.compile(r"[A-Za-z_]\w*|\d+")
BULK = 16  # bytes: TMA wants addresses and pitches of whole 16-byte units (PTX ISA 5.5; H200, E11)


@dataclass(frozen=True, slots=True)
class Operand:
    """One tensor of the signature. `dims` are names, or numbers for fixed sizes."""

    name: str
    dims: tuple[str | int, ...]
    scaled: bool = False
    written: bool = False


@dataclass(frozen=True, slots=True)
class Signature:
    text: str
    operands: tuple[Operand, ...]

    @property
    def inputs(self) -> tuple[Operand, ...]:
        return tuple(o for o in self.operands if not o.written)

    @property
    def outputs(self) -> tuple[Operand, ...]:
        return tuple(o for o in self.operands if o.written)

    @property
    def dims(self) -> tuple[str, ...]:
        """The names of run-time sizes, in order of appearance."""
        return tuple(dict.fromkeys(d for o in self.operands for d in o.dims if isinstance(d, str)))


@dataclass(frozen=True, slots=True)
class Facts:
    """What a kernel is specialised on, of one tensor.

    axis       the dimension whose elements are adjacent in memory
    alignment  the largest of 16, 8, 4, 2, 1 bytes that divides its address and all its other strides
    scheme     of a block-scaled tensor, a name of `numerics.quantize.SCHEMES`
    """

    dtype: DType
    axis: int = -1
    alignment: int = BULK
    scheme: str = ""

    def describe(self) -> str:
        order = "" if self.axis == -1 else f", dimension {self.axis} contiguous"
        scheme = f"{self.scheme}: " if self.scheme else ""
        return f"{scheme}{self.dtype.name}{order}, aligned to {self.alignment} bytes"


def facts(dtype: DType | str, *, axis: int = -1, alignment: int = BULK) -> Facts:
    """Static facts of a tensor, for `kernel.trace`: `sm.facts("bf16", axis=0)` is a transposed operand.

    Errors: SML0321 for an unknown dtype.
    """
    name = dtype.name if isinstance(dtype, DType) else dtype
    if not isinstance(name, str) or name not in DTYPES:
        raise error("SML0321", name=str(name)[:40], known=", ".join(DTYPES))
    return Facts(DTYPES[name], axis, alignment)


def parse_signature(text: str) -> Signature:
    """Errors: SML0320."""
    inputs, arrow, outputs = text.partition("->")
    if not arrow:
        raise error("SML0320", signature=text, reason="it has no '->' before what is written")
    operands = [*_operands(text, inputs, False), *_operands(text, outputs, True)]
    names = [o.name for o in operands]
    twice = next((n for n in names if names.count(n) > 1), None)
    if twice is not None:
        raise error("SML0320", signature=text, reason=f"{twice!r} appears twice")
    if not any(o.written for o in operands):
        raise error("SML0320", signature=text, reason="nothing is written")
    return Signature(text, tuple(operands))


def _operands(text: str, part: str, written: bool) -> list[Operand]:
    found, at = [], 0
    while at < len(part):
        if not part[at:].strip():
            break
        m = _OPERAND.match(part, at)
        if m is None:
            raise error("SML0320", signature=text, reason=f"{part[at:].strip()!r} is no name[dimensions]")
        found.append(Operand(m[1], _dims(text, m[2]), _mark(text, m[3]), written))
        at = m.end()
        if at < len(part):
            if part[at] != ",":
                raise error("SML0320", signature=text, reason=f"a comma is missing before {part[at:]!r}")
            at += 1
    return found


def _dims(text: str, inner: str) -> tuple[str | int, ...]:
    dims = [d.strip() for d in inner.split(",")]
    bad = next((d for d in dims if not _DIMENSION.fullmatch(d)), None)
    if bad is not None:
        raise error("SML0320", signature=text, reason=f"{bad!r} is no dimension")
    return tuple(int(d) if d.isdigit() else d for d in dims)


def _mark(text: str, mark: str | None) -> bool:
    if mark not in (None, "scaled"):
        raise error("SML0320", signature=text, reason=f"':{mark}' is unknown; ':scaled' is the only mark")
    return mark == "scaled"
