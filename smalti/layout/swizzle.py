"""The swizzle modes of shared memory as GF(2) maps on byte-address bits: one table, the map, its layout.
Knows addresses only; which tiles are stored so is the business of `shared`.
"""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from smalti.errors import error
from smalti.layout.boundary import checked
from smalti.layout.linear import LARGEST, Layout

__all__ = ["SWIZZLES", "Swizzle", "swizzle", "swizzle_address", "swizzle_layout"]

Array = NDArray[np.int64]


class Swizzle(NamedTuple):
    """Address bits [base, base + bits) are xor-ed with as many bits from 7 on, the number of the 128-byte line.

    `span`: bytes after which a row of a tile goes on in the next stripe; `flip`: address bit 3 is xor-ed with bit
    7, too; `arch`: first architecture (as a number); `operand`: an MMA descriptor can say it.
    """

    name: str
    span: int
    bits: int
    base: int
    flip: bool
    arch: int
    operand: bool

    @property
    def period(self) -> int:
        """Bytes after which the pattern repeats, and to which a tile's start should be aligned."""
        return 128 << self.bits if self.bits else 128 if self.flip else 16


# PTX ISA 5.5.7 and 9.7.16.10.6; the 16-byte-atom modes measured on H200 (E10, E11). The 8-byte flip is drawn in a
# figure only: that it falls on odd lines is assumed. TMA's 96-byte mode (sm_103) is no map on address bits.
SWIZZLES: dict[str, Swizzle] = {
    mode.name: mode
    for mode in (
        Swizzle("none", 16, 0, 4, False, 90, True),
        Swizzle("32B", 32, 1, 4, False, 90, True),
        Swizzle("64B", 64, 2, 4, False, 90, True),
        Swizzle("128B", 128, 3, 4, False, 90, True),
        Swizzle("128B_atom32B", 128, 2, 5, False, 100, True),
        Swizzle("128B_atom32B_flip8B", 128, 2, 5, True, 100, False),
        Swizzle("128B_atom64B", 128, 1, 6, False, 100, False),
    )
}


@checked
def swizzle(mode: str) -> Swizzle:
    """The swizzle of that name. Errors: SML0412."""
    if mode not in SWIZZLES:
        raise error("SML0412", swizzle=mode, where="shared memory", known=list(SWIZZLES))
    return SWIZZLES[mode]


@checked
def swizzle_address(address: Array, mode: str, base_offset: int = 0) -> Array:
    """Where the byte at linear address `address` (int64, absolute in the shared window) really lies.

    `base_offset` (0-7) moves the phase: line number minus base_offset (measured on H200, E10).
    Errors: SML0412, SML0413, SML0406.
    """
    how = swizzle(mode)
    if not 0 <= base_offset <= 7:
        raise error("SML0413", base_offset=base_offset, swizzle=mode)
    if address.dtype.kind not in "iu":
        raise error("SML0406", function="swizzle_address", name="address", value=address.dtype, wanted="whole numbers")
    line = (address >> 7) - base_offset
    swizzled = address ^ ((line & ((1 << how.bits) - 1)) << how.base)
    return swizzled ^ ((line & 1) << 3) if how.flip else swizzled


@checked
@cache
def swizzle_layout(mode: str, size: int = 1024) -> Layout:
    """The same for base offset 0 as a layout from `offset` to `offset`, both below `size`, a power of two.

    Errors: SML0412, SML0405.
    """
    how = swizzle(mode)
    if size & (size - 1) or not how.period <= size <= LARGEST:
        limit = f"a power of two from {how.period} to {LARGEST}"
        raise error("SML0405", what="size of a swizzle layout", value=size, limit=limit)
    units = np.array([1 << i for i in range(size.bit_length() - 1)], np.int64)
    return Layout.linear({"offset": [{"offset": int(s)} for s in swizzle_address(units, how.name)]}, ["offset"])
