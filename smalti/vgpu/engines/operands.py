"""Operands of the tensor core in shared memory: what a matrix descriptor makes it read, as element codes.

Shared by wgmma and tcgen05. Knows descriptors and formats; no shapes of instructions, no arithmetic.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smalti.errors import error
from smalti.layout.descriptors import SmemDescriptor, check_operand, operand_units
from smalti.numerics.formats import FORMATS, unpack4, unpack6

if TYPE_CHECKING:
    from smalti.vgpu.engines import AsyncOp
    from smalti.vgpu.memory import Segment

Codes = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
_UNIT = 16


def container_bits(fmt: str, packed4: bool = False) -> int:
    """Bits that an element takes in shared memory: 4- and 6-bit elements are padded to 8 unless `packed4` (mxf4*)."""
    bits = FORMATS[fmt].bits
    if fmt == "tf32":
        return 32
    return 4 if packed4 else max(bits, 8)


def matrix(
    op: AsyncOp, segment: Segment, descriptor: SmemDescriptor, *, instruction: str, major: str, rows: int, k: int,
    fmt: str, packed4: bool = False,
) -> tuple[Codes, Bools | None]:  # fmt: skip
    """Element codes [rows, k] of an operand, and which rows touch undefined bytes (None: none).

    `packed4`: 4-bit elements two a byte (mxf4*); else 4- and 6-bit elements lie in 16-byte groups of 16 (PTX 9.7.16.10.3).
    Errors: SML0414, SML0415 from the layout; SML0863 the operand leaves the CTA's shared memory.
    """
    bits = container_bits(fmt, packed4)
    check_operand(instruction, descriptor.swizzle, major, bits)
    units = operand_units(descriptor, major=major, rows=rows, k_bytes=k * bits // 8, element_bits=max(bits, 8))
    low, high = int(units.min()) * _UNIT, int(units.max()) * _UNIT + _UNIT
    if low < segment.low or high > segment.size:
        raise error(
            "SML0863", at=op.loc, start=hex(descriptor.start), low=hex(low), high=hex(high), first=hex(segment.low),
            size=hex(segment.size), who=op.who(),
        )  # fmt: skip
    segment.owner.machine.memory.checks.read_units(op, segment, units)
    raw = np.ascontiguousarray(segment.opaque()[units]).view(np.uint8).reshape(units.shape[0], -1)
    undefined: Bools | None = None
    if segment.range_undefined(low, high):
        bad = ~np.ascontiguousarray(segment.opaque(flags=True)[units]).view(np.bool_).reshape(*units.shape, _UNIT)
        if bad.any():
            undefined = (
                bad.any(axis=(1, 2)) if major == "K" else np.repeat(bad.any(axis=(0, 2)), rows // units.shape[1])
            )
    codes = _elements(raw, fmt, bits)
    return (codes if major == "K" else codes.T), undefined


def _elements(raw: npt.NDArray[np.uint8], fmt: str, bits: int) -> Codes:
    """Bytes [lines, n] as codes: elements of the container, padding and packing undone."""
    width = FORMATS[fmt].bits
    if bits == 4:
        return unpack4(raw)
    if width == 4:
        return unpack4(raw.reshape(len(raw), -1, _UNIT)[..., :8]).reshape(len(raw), -1)
    if width == 6:
        return unpack6(raw.reshape(len(raw), -1, _UNIT)[..., :12]).reshape(len(raw), -1)
    return raw if bits == 8 else raw.view(FORMATS[fmt].dtype)
