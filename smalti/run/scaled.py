"""Block-scaled matrices: elements, one scale a block of K, and how both lie in memory for a kernel.

The value that `sm.quantize` gives and that operands marked `:scaled` take. Quantisation itself is in `numerics`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.errors import error
from smalti.numerics import quantize as rules
from smalti.numerics.convert import encode
from smalti.numerics.formats import FORMATS, decode, pack4
from smalti.numerics.quantize import Scheme
from smalti.run.dtypes import as_bits

__all__ = [
    "ATOM_BYTES",
    "ATOM_FACTORS",
    "ATOM_ROWS",
    "BlockScaled",
    "block_scaled",
    "quantize",
    "tile_scales",
    "untile_scales",
]

Array = NDArray[Any]
# A tile of scales in memory: 128 rows x 4 factors, byte (r % 32) * 16 + (r / 32) * 4 + s (PTX 9.7.16.10.7).
ATOM_ROWS, ATOM_FACTORS, ATOM_BYTES = 128, 4, 512
PITCH = 16  # bytes: TMA wants rows at multiples of it


@dataclass(frozen=True, eq=False)
class BlockScaled:
    """A matrix of small elements with a scale for each block along `axis`.

    elements      codes of the scheme's element format, uint8, one an entry, in the matrix's own shape
    scales        uint8 codes of the scale format; along `axis` one for each block, a last block may be shorter
    global_scale  float32 of NVFP4, else None: value = element * scale * global_scale
    padding       the byte that fills what lies between and behind the data in memory; nothing may depend on it
    """

    scheme: Scheme
    elements: Array
    scales: Array
    axis: int = -1
    global_scale: np.float32 | None = None
    padding: int = 0

    def __post_init__(self) -> None:
        """Errors: SML1002, SML1013, SML1014 as `smalti.numerics.quantize.dequantize`; SML0119 not a matrix."""
        if self.elements.ndim != 2:
            raise error("SML0119", ndim=self.elements.ndim)
        rules.check(self.elements, self.scales, self.scheme.name, axis=self.axis, global_scale=self.global_scale)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.elements.shape

    @property
    def block(self) -> int:
        return self.scheme.block

    def __repr__(self) -> str:
        rows, columns = self.shape
        return f"<{self.scheme.name} matrix {rows}x{columns}, blocks of {self.block} along axis {self.axis % 2}>"

    def dequantize(self, dtype: Any = np.float32) -> Array:
        """The values as a NumPy array of `dtype`."""
        level = None if self.global_scale is None else float(self.global_scale)
        return rules.dequantize(
            self.elements, self.scales, self.scheme.name, axis=self.axis, global_scale=level, dtype=dtype
        )

    @property
    def along_rows(self) -> tuple[Array, Array]:
        """Elements [rows, K] and scales [rows, blocks] with K last, whatever the axis was."""
        if self.axis % 2 == 1:
            return self.elements, self.scales
        return self.elements.T, self.scales.T

    @property
    def transposed(self) -> bool:
        """Whether K is the first axis, so that a kernel gets a transposed copy."""
        return self.axis % 2 == 0

    def data_bytes(self) -> tuple[NDArray[np.uint8], int]:
        """Elements as a kernel reads them, [rows, K] with 4-bit ones two a byte, and the pitch of rows in bytes."""
        elements, _ = self.along_rows
        rows, k = elements.shape
        bits = FORMATS[self.scheme.element].bits
        if bits == 4:
            even = np.zeros((rows, -(-k // 2) * 2), np.uint8)
            even[:, :k] = elements
            raw = pack4(even)
        else:
            raw = np.ascontiguousarray(elements)
        pitch = -(-max(raw.shape[1], 1) // PITCH) * PITCH
        out = np.full((rows, pitch), self.padding, np.uint8)
        out[:, : raw.shape[1]] = raw
        return out, pitch

    def scale_atoms(self) -> NDArray[np.uint8]:
        """Scales as a kernel reads them: [row groups, factor groups, 512] bytes."""
        return tile_scales(self.along_rows[1], self.padding)


def quantize(
    x: Any, scheme: str, *, axis: int = -1, scale_rounding: str | None = None, global_scale: float | None = None
) -> BlockScaled:
    """Quantise a float32 or float64 matrix in blocks along `axis`: "mxfp8" (e4m3), "mxfp8_e5m2", "mxfp4", "nvfp4".

    MX: OCP Microscaling Formats v1.0 (floor scale, elements to nearest even, saturating); NVFP4: a ue4m3 scale for
    each 16 elements and a global float32 scale. `scale_rounding`: "floor", "ceil" or "even" for the block scales.
    Rules and special values: `smalti.numerics.quantize.quantize`. Errors: SML1011 to SML1013, SML0119.
    """
    if (ndim := getattr(x, "ndim", 2)) != 2:
        raise error("SML0119", ndim=ndim)
    found = rules.quantize(x, scheme, axis=axis, scale_rounding=scale_rounding, global_scale=global_scale)
    return BlockScaled(found.scheme, found.elements, found.scales, found.axis, found.global_scale)


def block_scaled(
    elements: Any, scales: Any, scheme: str, *, axis: int = -1, global_scale: float | None = None
) -> BlockScaled:
    """A block-scaled matrix of elements and scales that exist already.

    elements   codes of the scheme's element format, or an array of that type (ml_dtypes)
    scales     one for each block along `axis`: codes (uint8, float8_e8m0fnu), or float32 or float64 numbers that the
               scale format has, powers of two for MX schemes
    Errors: SML0122 a scale that the format does not have, or NaN; SML0111, SML1002, SML1012 to SML1014 as
    `smalti.numerics.quantize.dequantize`; SML0119 not a matrix.
    """
    kind, given = rules.lookup(scheme), np.asarray(scales)
    bits, name = as_bits(elements, what="elements")
    elements = bits if name == kind.element else elements
    values = given.astype(np.float64) if given.dtype in (np.float32, np.float64) else None
    codes = encode(values, kind.scale, satfinite=True) if values is not None else given
    _, known, codes = rules.check(elements, codes, scheme, axis=axis, global_scale=global_scale)
    found = decode(codes, kind.scale)
    wrong = np.isnan(found) if values is None else ~(found == values)
    if wrong.any():
        at = tuple(map(int, np.argwhere(wrong)[0]))
        value = float("nan") if values is None else float(values[at])
        nearest = 1.0 if np.isnan(found[at]) else float(found[at])
        raise error("SML0122", value=value, index=at, fmt=kind.scale, nearest=nearest)
    level = None if global_scale is None else np.float32(global_scale)
    return BlockScaled(kind, known, codes, axis, level)


def tile_scales(scales: Array, padding: int = 0) -> NDArray[np.uint8]:
    """Row-major scales [rows, factors] as 512-byte atoms [row groups, factor groups, 512], the rest `padding`."""
    rows, factors = scales.shape
    groups, atoms = -(-rows // ATOM_ROWS), -(-factors // ATOM_FACTORS)
    whole = np.full((groups * ATOM_ROWS, atoms * ATOM_FACTORS), padding, np.uint8)
    whole[:rows, :factors] = scales
    split = whole.reshape(groups, 4, 32, atoms, ATOM_FACTORS)
    return np.ascontiguousarray(split.transpose(0, 3, 2, 1, 4)).reshape(groups, atoms, ATOM_BYTES)


def untile_scales(atoms: Array, rows: int, factors: int) -> NDArray[np.uint8]:
    """Inverse of `tile_scales`. Errors: SML0118 if the atoms are too few or many for so many rows and factors."""
    groups, columns = -(-rows // ATOM_ROWS), -(-factors // ATOM_FACTORS)
    if atoms.size != groups * columns * ATOM_BYTES:
        raise error("SML0118", rows=rows, factors=factors, given=atoms.size, wanted=groups * columns * ATOM_BYTES)
    split = atoms.reshape(groups, columns, 32, 4, ATOM_FACTORS)
    whole = split.transpose(0, 3, 2, 1, 4).reshape(groups * ATOM_ROWS, columns * ATOM_FACTORS)
    return np.ascontiguousarray(whole[:rows, :factors])
