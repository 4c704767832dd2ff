"""The number formats as one table, their decoding to float64, and the packing of 4- and 6-bit elements.
Bits are unsigned NumPy integers, one element an entry. Knows nothing of rounding (see `convert`) or of matrices.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.errors import error

Bits = NDArray[Any]
Float64 = NDArray[np.float64]


@dataclass(frozen=True)
class Format:
    """One number format. `special` says what the top codes mean: "ieee" (Inf and NaN), "nan" (all ones is NaN, no Inf),
    "none" (every code is a finite number), "scale" (ue8m0: a bare exponent, 0xFF is NaN), "integer"."""

    name: str
    bits: int
    exponent_bits: int
    mantissa_bits: int
    bias: int
    special: str
    signed: bool
    storage: str

    @property
    def dtype(self) -> np.dtype[Any]:
        """The unsigned NumPy type that holds one element."""
        return np.dtype(self.storage)

    @property
    def is_float(self) -> bool:
        return self.special != "integer"

    @property
    def emin(self) -> int:
        """Exponent of the smallest normal number, and of every subnormal one."""
        return 1 - self.bias if self.mantissa_bits else -self.bias

    @property
    def low_bits(self) -> int:
        """Bits of the container below the mantissa that arithmetic ignores (tf32: 13, PTX 9.7.15.5.2)."""
        return 13 if self.name == "tf32" else 0

    @property
    def magnitude_mask(self) -> int:
        """The exponent and mantissa bits inside the container."""
        if self.name == "tf32":
            return 0x7FFFE000
        return (1 << (self.exponent_bits + self.mantissa_bits)) - 1

    @property
    def sign_mask(self) -> int:
        return 1 << (self.exponent_bits + self.mantissa_bits + self.low_bits) if self.signed else 0

    @property
    def max_bits(self) -> int:
        """Code of the largest finite number."""
        field = (1 << self.exponent_bits) - 1
        if self.special == "ieee":
            code = (field << self.mantissa_bits) - 1
        elif self.special == "nan":
            code = (1 << (self.exponent_bits + self.mantissa_bits)) - 2
        elif self.special == "scale":
            code = 0xFE
        else:
            code = (1 << (self.exponent_bits + self.mantissa_bits)) - 1
        return code << self.low_bits

    @property
    def inf_bits(self) -> int | None:
        """Code of +Inf, or None where the format has none."""
        if self.special != "ieee":
            return None
        return ((1 << self.exponent_bits) - 1) << (self.mantissa_bits + self.low_bits)

    @property
    def nan_bits(self) -> int | None:
        """The NaN that the hardware writes: all magnitude bits set (7FFF, 7FFFFFFF, 7FFFE000, 7F, FF)."""
        return None if self.special in ("none", "integer") else self.magnitude_mask

    @property
    def max(self) -> float:
        """The largest finite number."""
        if not self.is_float:
            return float((1 << (self.bits - self.signed)) - 1)
        return float(decode(np.array(self.max_bits, self.dtype), self.name))


# name, bits, exponent, mantissa, bias, special, signed, container. f16..e5m2: PTX 5.2.3; e2m3, e3m2, e2m1, ue8m0:
# OCP MX v1.0 table 1 and 5.3; ue4m3: PTX 5.2.3 (the sign bit is ignored); s4, u4, b1: PTX 5.2.4 (sub-byte integers).
_TABLE = (
    ("f64", 64, 11, 52, 1023, "ieee", True, "uint64"),
    ("f32", 32, 8, 23, 127, "ieee", True, "uint32"),
    ("tf32", 19, 8, 10, 127, "ieee", True, "uint32"),
    ("bf16", 16, 8, 7, 127, "ieee", True, "uint16"),
    ("f16", 16, 5, 10, 15, "ieee", True, "uint16"),
    ("e5m2", 8, 5, 2, 15, "ieee", True, "uint8"),
    ("e4m3", 8, 4, 3, 7, "nan", True, "uint8"),
    ("e3m2", 6, 3, 2, 3, "none", True, "uint8"),
    ("e2m3", 6, 2, 3, 1, "none", True, "uint8"),
    ("e2m1", 4, 2, 1, 1, "none", True, "uint8"),
    ("ue8m0", 8, 8, 0, 127, "scale", False, "uint8"),
    ("ue4m3", 8, 4, 3, 7, "nan", False, "uint8"),
    ("s64", 64, 0, 63, 0, "integer", True, "uint64"),
    ("u64", 64, 0, 64, 0, "integer", False, "uint64"),
    ("s32", 32, 0, 31, 0, "integer", True, "uint32"),
    ("u32", 32, 0, 32, 0, "integer", False, "uint32"),
    ("s16", 16, 0, 15, 0, "integer", True, "uint16"),
    ("u16", 16, 0, 16, 0, "integer", False, "uint16"),
    ("s8", 8, 0, 7, 0, "integer", True, "uint8"),
    ("u8", 8, 0, 8, 0, "integer", False, "uint8"),
    ("s4", 4, 0, 3, 0, "integer", True, "uint8"),
    ("u4", 4, 0, 4, 0, "integer", False, "uint8"),
    ("b1", 1, 0, 1, 0, "integer", False, "uint8"),
)

FORMATS: dict[str, Format] = {row[0]: Format(*row) for row in _TABLE}


def lookup(name: str) -> Format:
    """The format called `name`; SML1001 if there is none."""
    found = FORMATS.get(name)
    if found is None:
        raise error("SML1001", fmt=name, known=", ".join(FORMATS))
    return found


def as_bits(bits: Any, fmt: Format) -> Bits:
    """`bits` as an array of the format's container. Narrower unsigned ones are widened, others SML1002."""
    array = np.asarray(bits)
    if array.dtype == fmt.dtype:
        return array
    if array.dtype.kind == "u" and array.dtype.itemsize <= fmt.dtype.itemsize:
        return array.astype(fmt.dtype)
    raise error("SML1002", fmt=fmt.name, expected=fmt.storage, got=str(array.dtype))


def decode(bits: Any, fmt: str) -> Float64:
    """The values of `bits` (unsigned array of any shape) as float64, exactly (s64 and u64 beyond 2^53 are rounded).

    NaN codes give NaN. Bits above the format's width are ignored, as are the low 13 bits of tf32 and the sign bit of
    ue4m3. Raises SML1001 for an unknown format, SML1002 for a wrong container."""
    form = lookup(fmt)
    array = as_bits(bits, form)
    if form.bits <= 8 or form.name in ("f16", "bf16"):
        values: Float64 = table(fmt)[array & ((1 << form.bits) - 1)]
        return values
    if form.name == "f64":
        return array.view(np.float64).copy()
    if form.name in ("f32", "tf32"):
        kept = array & np.uint32(form.magnitude_mask | form.sign_mask)
        with np.errstate(invalid="ignore"):  # a signalling NaN is no fault here
            return kept.view(np.float32).astype(np.float64)
    return array.view(form.storage.lstrip("u") if form.signed else form.storage).astype(np.float64)


@cache
def table(fmt: str) -> Float64:
    """Read-only value of every code of a format of at most 16 bits, indexed by the code."""
    form = lookup(fmt)
    codes = np.arange(1 << form.bits, dtype=np.int64)
    values = _integers(codes, form) if not form.is_float else _floats(codes, form)
    values.flags.writeable = False
    return values


def _integers(codes: NDArray[np.int64], form: Format) -> Float64:
    wrapped = np.where(codes >> (form.bits - 1) & 1, codes - (1 << form.bits), codes) if form.signed else codes
    return wrapped.astype(np.float64)


def _floats(codes: NDArray[np.int64], form: Format) -> Float64:
    magnitude = codes & form.magnitude_mask
    field = magnitude >> form.mantissa_bits
    if form.special == "scale":
        return np.where(codes == 0xFF, np.nan, np.ldexp(1.0, codes.astype(np.int32) - form.bias))
    fraction = magnitude & ((1 << form.mantissa_bits) - 1)
    significand = np.where(field > 0, fraction + (1 << form.mantissa_bits), fraction)
    exponent = np.maximum(field, 1) - form.bias - form.mantissa_bits
    values = np.ldexp(significand.astype(np.float64), exponent.astype(np.int32))
    if form.inf_bits is not None:
        values[magnitude == form.inf_bits] = np.inf
        values[magnitude > form.inf_bits] = np.nan
    elif form.special == "nan":
        values[magnitude == form.nan_bits] = np.nan
    signed: Float64 = np.where(codes & form.sign_mask, -values, values)
    return signed


def pack4(codes: Any) -> NDArray[np.uint8]:
    """Packs pairs of 4-bit codes along the last axis into bytes, the first in the low half. SML1003 if odd."""
    array = as_bits(codes, FORMATS["u8"])
    if array.shape[-1] % 2:
        raise error("SML1003", what="4-bit packing", length=array.shape[-1], multiple=2)
    return ((array[..., 0::2] & 15) | (array[..., 1::2] & 15) << 4).astype(np.uint8)


def unpack4(packed: Any) -> NDArray[np.uint8]:
    """Inverse of `pack4`: the last axis doubles."""
    array = as_bits(packed, FORMATS["u8"])
    out = np.empty((*array.shape[:-1], array.shape[-1] * 2), np.uint8)
    out[..., 0::2] = array & 15
    out[..., 1::2] = array >> 4
    return out


def pack6(codes: Any) -> NDArray[np.uint8]:
    """Packs four 6-bit codes into three bytes, little-endian, along the last axis. SML1003 unless a multiple of 4."""
    array = as_bits(codes, FORMATS["u8"])
    if array.shape[-1] % 4:
        raise error("SML1003", what="6-bit packing", length=array.shape[-1], multiple=4)
    quads = (array & 63).reshape(*array.shape[:-1], -1, 4).astype(np.uint32)
    word = quads[..., 0] | quads[..., 1] << 6 | quads[..., 2] << 12 | quads[..., 3] << 18
    out = np.stack([word & 255, word >> 8 & 255, word >> 16], axis=-1).astype(np.uint8)
    return out.reshape(*array.shape[:-1], -1)


def unpack6(packed: Any) -> NDArray[np.uint8]:
    """Inverse of `pack6`; the last axis must be a multiple of 3 bytes (SML1003)."""
    array = as_bits(packed, FORMATS["u8"])
    if array.shape[-1] % 3:
        raise error("SML1003", what="6-bit unpacking", length=array.shape[-1], multiple=3)
    triples = array.reshape(*array.shape[:-1], -1, 3).astype(np.uint32)
    word = triples[..., 0] | triples[..., 1] << 8 | triples[..., 2] << 16
    out = np.stack([word >> shift & 63 for shift in (0, 6, 12, 18)], axis=-1).astype(np.uint8)
    return out.reshape(*array.shape[:-1], -1)
