"""The 128-byte tensor map that TMA instructions read: fields, the driver's encoding rules, a coding to bytes.

A value: the language makes one, `run` has the CUDA driver encode it, the virtual GPU reads `decode` of our
own coding (also after `tensormap.replace`). It must not know who copies what, or where buffers live.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from smalti.errors import error
from smalti.layout.boundary import checked, whole

BYTES = 128
ALIGNMENT = 64  # PTX ISA 5.5: alignment of the map itself


class ElementType(NamedTuple):
    number: int  # of tensormap.replace.elemtype (PTX ISA, table of new_val for .elemtype)
    driver: str  # suffix of CU_TENSOR_MAP_DATA_TYPE_
    bits: int  # one element in global memory
    shared_bits: int  # one element in shared memory, gaps included
    floating: bool


TYPES: dict[str, ElementType] = {
    "u8": ElementType(0, "UINT8", 8, 8, False),
    "u16": ElementType(1, "UINT16", 16, 16, False),
    "u32": ElementType(2, "UINT32", 32, 32, False),
    "s32": ElementType(3, "INT32", 32, 32, False),
    "u64": ElementType(4, "UINT64", 64, 64, False),
    "s64": ElementType(5, "INT64", 64, 64, False),
    "f16": ElementType(6, "FLOAT16", 16, 16, True),
    "f32": ElementType(7, "FLOAT32", 32, 32, True),
    "f32.ftz": ElementType(8, "FLOAT32_FTZ", 32, 32, True),
    "f64": ElementType(9, "FLOAT64", 64, 64, True),
    "bf16": ElementType(10, "BFLOAT16", 16, 16, True),
    "tf32": ElementType(11, "TFLOAT32", 32, 32, True),
    "tf32.ftz": ElementType(12, "TFLOAT32_FTZ", 32, 32, True),
    "b4x16": ElementType(13, "16U4_ALIGN8B", 4, 4, False),
    "b4x16_p64": ElementType(14, "16U4_ALIGN16B", 4, 8, False),
    "b6x16_p32": ElementType(15, "16U6_ALIGN16B", 6, 8, False),
}
PADDED = ("b4x16_p64", "b6x16_p32")  # 16 elements to a 16-byte chunk that has a gap


class Swizzle(NamedTuple):
    number: int  # of tensormap.replace.swizzle_mode
    atomicity: int  # of tensormap.replace.swizzle_atomicity
    driver: str  # suffix of CU_TENSOR_MAP_SWIZZLE_
    span: int  # bytes; 0: none
    since: int  # lowest sm number


SWIZZLES: dict[str, Swizzle] = {
    "none": Swizzle(0, 0, "NONE", 0, 90),
    "32B": Swizzle(1, 0, "32B", 32, 90),
    "64B": Swizzle(2, 0, "64B", 64, 90),
    "128B": Swizzle(3, 0, "128B", 128, 90),
    "128B_atom32B": Swizzle(3, 1, "128B_ATOM_32B", 128, 100),
    "128B_atom32B_flip8B": Swizzle(3, 2, "128B_ATOM_32B_FLIP_8B", 128, 100),
    "128B_atom64B": Swizzle(3, 3, "128B_ATOM_64B", 128, 100),
    "96B": Swizzle(4, 0, "96B", 96, 103),
}
INTERLEAVES = ("none", "16B", "32B")  # position = number of tensormap.replace.interleave_layout
FILLS = ("zero", "nan")  # position = number of tensormap.replace.fill_mode
L2_PROMOTIONS = ("none", "64B", "128B", "256B")
MODES = ("tiled", "im2col", "im2col_w", "im2col_w128")

# Bits of an im2col corner by rank: cuTensorMapEncodeIm2col, pixelBoxLowerCorner.
CORNER_BITS = {3: 16, 4: 8, 5: 5}


@dataclass(frozen=True, slots=True)
class TensorMap:
    """What one tensor map says. Every per-dimension tuple has the innermost dimension first.

    type            a key of TYPES
    size            elements in each dimension, 1 to 5 of them
    stride          bytes from one index to the next in each dimension but the innermost
    box             elements that one copy takes in each dimension (mode "tiled")
    address         where element 0 lies in global memory; filled in at launch
    element_stride  step in each dimension, () for ones
    lower, upper    im2col corners, width first; channels, pixels: per pixel, per column (mode "im2col*")

    Errors: SML0406 for other than tuples of whole numbers; `check` judges the values.
    Source: PTX ISA 5.5; CUDA driver API, cuTensorMapEncodeTiled, -Im2col, -Im2colWide.
    """

    type: str
    size: tuple[int, ...]
    stride: tuple[int, ...] = ()
    box: tuple[int, ...] = ()
    address: int = 0
    element_stride: tuple[int, ...] = ()
    interleave: str = "none"
    swizzle: str = "none"
    l2_promotion: str = "none"
    fill: str = "zero"
    mode: str = "tiled"
    lower: tuple[int, ...] = ()
    upper: tuple[int, ...] = ()
    channels: int = 0
    pixels: int = 0

    def __post_init__(self) -> None:
        for field in ("size", "stride", "box", "element_stride", "lower", "upper"):
            values = getattr(self, field)
            if not isinstance(values, tuple):
                wanted = "a tuple of whole numbers"
                raise error("SML0406", function="TensorMap", name=field, value=repr(values)[:80], wanted=wanted)
            exact = tuple(whole("TensorMap", f"{field}[{d}]", value) for d, value in enumerate(values))
            object.__setattr__(self, field, exact)
        for field in ("address", "channels", "pixels"):
            object.__setattr__(self, field, whole("TensorMap", field, getattr(self, field)))
        if not self.element_stride:
            object.__setattr__(self, "element_stride", (1,) * len(self.size))

    @property
    def rank(self) -> int:
        return len(self.size)

    @property
    def element(self) -> ElementType:
        return TYPES[self.type]

    @property
    def tiled(self) -> bool:
        return self.mode == "tiled"

    @property
    def transfer(self) -> tuple[int, ...]:
        """Elements that one copy moves in each dimension: ceil(box / element_stride), except that dimension 0
        has no stride without interleave. For im2col: (channels, pixels). Interleaved maps count slices of 16 or 32
        bytes in dimension 0 and move one slice of channels, the last dimension but one, whatever its box (recordings
        "tma interleave")."""
        if not self.tiled:
            return (self.channels, self.pixels)
        plain = self.interleave == "none"
        pairs = zip(self.box, self.element_stride, strict=True)
        counts = [b if plain and d == 0 else -(-b // s) for d, (b, s) in enumerate(pairs)]
        if not plain:
            counts[-2] = 1
        return tuple(counts)

    @property
    def grain(self) -> int:
        """Bits in global memory from one index of dimension 0 to the next."""
        return {"none": self.element.bits, "16B": 128, "32B": 256}[self.interleave]

    @property
    def row_bytes(self) -> int:
        """Bytes of one innermost row in shared memory, gaps of padded types included."""
        if self.interleave != "none":
            return self.transfer[0] * self.grain // 8
        return self.transfer[0] * self.element.shared_bits // 8

    @property
    def transfer_bytes(self) -> int:
        """Bytes that one copy reports to its mbarrier: always the whole box, whatever of it is out of bounds
        (measured on an H200, experiment E11), but not the gaps of padded types (no document says so; the kernels of
        Triton and DeepGEMM for Blackwell expect it)."""
        total = self.row_bytes * self.element.bits // self.element.shared_bits
        for n in self.transfer[1:]:
            total *= n
        return total

    @property
    def row_pitch(self) -> int:
        """Bytes from row to row in shared memory: the swizzle span where there is one (H200, E11). Interleaved boxes
        are packed (recordings "tma interleave")."""
        return (SWIZZLES[self.swizzle].span if self.interleave == "none" else 0) or self.row_bytes

    @property
    def extent(self) -> int:
        """Bytes from `address` to the end of the last element."""
        last = (self.size[0] * self.grain + 7) // 8
        return last + sum((n - 1) * s for n, s in zip(self.size[1:], self.stride, strict=True))

    def at(self, address: int) -> TensorMap:
        return replace(self, address=address)

    @checked
    def check(self, arch: str = "") -> None:
        """Raises the coded error of the first rule that the CUDA driver (or, given `arch`, that architecture)
        would refuse. Sources: cuTensorMapEncode* in the CUDA driver API; PTX ISA 5.5."""
        for rule in RULES:
            rule(self)
        if arch:
            _check_arch(self, arch)

    def encode(self) -> bytes:
        """128 bytes: coded like the hardware's where foreign code shows it, in a private way elsewhere."""
        raw = bytearray(BYTES)
        _put(raw, "global_address", self.address)
        _put(raw, "rank", self.rank - 1)
        _put(raw, "elemtype", self.element.number)
        _put(raw, "interleave_layout", INTERLEAVES.index(self.interleave))
        _put(raw, "swizzle_mode", SWIZZLES[self.swizzle].number)
        _put(raw, "swizzle_atomicity", SWIZZLES[self.swizzle].atomicity)
        _put(raw, "fill_mode", FILLS.index(self.fill))
        _put(raw, "l2_promotion", L2_PROMOTIONS.index(self.l2_promotion))
        _put(raw, "mode", MODES.index(self.mode))
        for d in range(self.rank):
            _put(raw, "global_dim", self.size[d], d)
            _put(raw, "element_stride", self.element_stride[d], d)
            if self.tiled:
                _put(raw, "box_dim", self.box[d], d)
        for d, s in enumerate(self.stride):
            _put(raw, "global_stride", s, d)
        if not self.tiled:
            _put(raw, "channels", self.channels)
            _put(raw, "pixels", self.pixels)
            for d in range(len(self.lower)):
                _put(raw, "lower", self.lower[d] & 0xFFFF, d)
                _put(raw, "upper", self.upper[d] & 0xFFFF, d)
        return bytes(raw)


# -- rules: each raises the first breach it finds -------------------------------------------------------


def _names(m: TensorMap) -> None:
    for field, value, allowed in (
        ("type", m.type, tuple(TYPES)),
        ("swizzle", m.swizzle, tuple(SWIZZLES)),
        ("interleave", m.interleave, INTERLEAVES),
        ("fill", m.fill, FILLS),
        ("l2_promotion", m.l2_promotion, L2_PROMOTIONS),
        ("mode", m.mode, MODES),
    ):
        if not isinstance(value, str) or value not in allowed:
            raise error("SML0130", field=field, value=value, allowed=", ".join(allowed))


def _rank(m: TensorMap) -> None:
    least = 3 if m.interleave != "none" or not m.tiled else 1
    if not least <= m.rank <= 5:
        raise error("SML0131", rank=m.rank, least=least)
    corners = m.rank - 2 if m.mode == "im2col" else 1  # the wide modes walk the width alone
    counts = {"stride": (m.stride, m.rank - 1), "element_stride": (m.element_stride, m.rank)}
    counts |= {"box": (m.box, m.rank)} if m.tiled else {"lower": (m.lower, corners), "upper": (m.upper, corners)}
    for field, (have, want) in counts.items():
        if len(have) != want:
            raise error("SML0145", field=field, have=len(have), want=want, rank=m.rank)


def _address(m: TensorMap) -> None:
    unit = _unit(m)
    if m.address % unit or not 0 <= m.address < 1 << 64:
        raise error("SML0132", address=f"{m.address:#x}", unit=unit, rest=m.address % unit)


def _size(m: TensorMap) -> None:
    for d, n in enumerate(m.size):
        if not 1 <= n <= 1 << 32:  # PTX ISA 5.5; newer editions of the driver's text say 2^31
            raise error("SML0133", dimension=d, size=n)


def _stride(m: TensorMap) -> None:
    unit = _unit(m)
    for d, s in enumerate(m.stride):
        if s % unit or not 0 <= s < 1 << 40:
            nearest = min(-(-max(s, 0) // unit) * unit, (1 << 40) - unit)
            raise error("SML0134", dimension=d + 1, stride=s, unit=unit, nearest=nearest)


def _box(m: TensorMap) -> None:
    if not m.tiled:
        return
    for d, b in enumerate(m.box):
        if not 1 <= b <= 256:
            raise error("SML0135", dimension=d, box=b)
    unit = 128 // m.element.shared_bits
    if m.box[0] % unit:  # interleaved maps, too, as the driver counts them (recordings "tma interleave")
        inner = m.box[0] * m.element.shared_bits / 8
        nearest = 128 if m.type in PADDED else -(-m.box[0] // unit) * unit  # the only one that they have
        raise error("SML0136", box=m.box[0], type=m.type, bytes=f"{inner:g}", nearest=nearest)


def _span(m: TensorMap) -> None:
    span = SWIZZLES[m.swizzle].span
    inner = m.box[0] if m.tiled else m.channels
    have = inner * m.element.shared_bits // 8
    if m.interleave == "none" and span and have > span:
        largest = span * 8 // m.element.shared_bits
        raise error("SML0137", swizzle=m.swizzle, span=span, bytes=have, box=inner, largest=largest)


def _element_stride(m: TensorMap) -> None:
    for d, s in enumerate(m.element_stride):
        if not 1 <= s <= 8:
            raise error("SML0138", dimension=d, stride=s)


def _interleave(m: TensorMap) -> None:
    problem = ""
    if m.interleave == "32B" and m.swizzle != "32B":
        problem = f"needs swizzle 32B, not {m.swizzle}"
    elif m.interleave != "none" and m.element.bits < 8:
        problem = f"does not take the packed type {m.type}"
    if problem:
        raise error("SML0139", interleave=m.interleave, problem=problem)


def _packed(m: TensorMap) -> None:
    inner = m.box[0] if m.tiled else m.channels
    swizzles = ("none", "128B", "128B_atom32B") + (("128B_atom64B",) if m.type == "b6x16_p32" else ())
    problem = ""
    if m.type == "b4x16" and m.size[0] % 2:
        problem = f"size[0] is {m.size[0]}, which is odd"
    elif m.type in PADDED and m.size[0] % 128:
        problem = f"size[0] is {m.size[0]}, no multiple of 128"
    elif m.type in PADDED and inner != 128:
        problem = f"the inner box has {inner} elements, not 128"
    elif m.type in PADDED and m.swizzle not in swizzles:
        problem = f"swizzle {m.swizzle} is none of {', '.join(swizzles)}"
    if problem:
        raise error("SML0140", type=m.type, problem=problem)


def _fill(m: TensorMap) -> None:
    if m.fill == "nan" and not m.element.floating:
        raise error("SML0141", type=m.type)


def _im2col(m: TensorMap) -> None:
    if m.tiled:
        return
    half = 1 << (CORNER_BITS[m.rank] if m.mode == "im2col" else 16) - 1
    ranges = [("channels", m.channels, 1, 256), ("pixels", m.pixels, 1, 1024)]
    ranges += [(f"lower[{d}]", c, -half, half - 1) for d, c in enumerate(m.lower)]
    ranges += [(f"upper[{d}]", c, -half, half - 1) for d, c in enumerate(m.upper)]
    ranges += [
        (f"the box's extent in dimension {d + 1}", m.size[d + 1] + high - low, 1, 1 << 33)
        for d, (low, high) in enumerate(zip(m.lower, m.upper, strict=True))
    ]
    for what, value, low, high in ranges:
        if not low <= value <= high:
            raise error("SML0142", what=what, value=value, low=low, high=high)


RULES: tuple[Callable[[TensorMap], None], ...] = (
    _names,
    _rank,
    _size,
    _stride,
    _address,
    _box,
    _element_stride,
    _interleave,
    _packed,
    _span,
    _fill,
    _im2col,
)


def _unit(m: TensorMap) -> int:
    """What address and strides must be multiples of, in bytes."""
    return 32 if m.interleave == "32B" or m.type in PADDED else 16


def _check_arch(m: TensorMap, arch: str) -> None:
    features = {
        f"swizzle {m.swizzle}": SWIZZLES[m.swizzle].since,
        f"type {m.type}": 100 if m.element.bits < 8 else 0,
        f"mode {m.mode}": 100 if m.mode.startswith("im2col_w") else 0,
    }
    number = int("".join(c for c in arch if c in "0123456789") or 0)
    for feature, since in features.items():
        if number < since:
            raise error("SML0143", feature=feature, since=f"sm_{since}", arch=arch)


# -- coding --------------------------------------------------------------------------------------------
# Fields by their names in tensormap.replace: (first bit, bits, bits to the next ordinal, what is subtracted).
# Known of the hardware's coding (from what foreign compilers write): word 2 has rank-1 in bits 4-6, type in
# 7-10, swizzle in 13-14; strides/16 from word 3; size-1 from word 8; box-1 from byte 55. The rest is private.


class Field(NamedTuple):
    bit: int
    width: int
    pitch: int = 0
    bias: int = 0


FIELDS: dict[str, Field] = {
    "global_address": Field(0, 64),
    "rank": Field(64 + 4, 3),
    "elemtype": Field(64 + 7, 4),
    "interleave_layout": Field(64 + 11, 2),
    "swizzle_mode": Field(64 + 13, 3),
    "fill_mode": Field(64 + 16, 1),
    "swizzle_atomicity": Field(64 + 17, 2),
    "l2_promotion": Field(64 + 19, 2),
    "mode": Field(64 + 21, 2),
    "stride_low": Field(96, 32, 32),
    "stride_high": Field(224, 4, 4),
    "global_dim": Field(256, 32, 32, 1),
    "element_stride": Field(416, 3, 3, 1),
    "box_dim": Field(440, 8, 8, 1),
    "channels": Field(512, 8, 0, 1),
    "pixels": Field(520, 10, 0, 1),
    "lower": Field(544, 16, 16),
    "upper": Field(592, 16, 16),
}


def _put(raw: bytearray, field: str, value: int, ordinal: int = 0) -> None:
    if field == "global_stride":  # kept in units of 16 bytes, its high bits apart
        _put(raw, "stride_low", value >> 4 & 0xFFFF_FFFF, ordinal)
        _put(raw, "stride_high", value >> 36 & 0xF, ordinal)
        return
    f = FIELDS[field]
    mask = (1 << f.width) - 1 << f.bit + f.pitch * ordinal
    word = int.from_bytes(raw, "little")
    word = word & ~mask | (value - f.bias) << f.bit + f.pitch * ordinal & mask
    raw[:] = word.to_bytes(BYTES, "little")


def replace_field(raw: bytes, field: str, value: int, ordinal: int = 0) -> bytes:
    """The map's bytes after `tensormap.replace.tile.<field>` with that operand: `global_address`, `rank` (the
    operand is rank-1), `box_dim`, `global_dim`, `global_stride` (bytes), `element_stride` with `ordinal`,
    `elemtype`, `interleave_layout`, `swizzle_mode`, `fill_mode`, `swizzle_atomicity`. Nothing is checked: a
    map may be illegal in between; `decode(...).check()` judges it when it is used."""
    new = bytearray(raw)
    _put(new, field, value, ordinal)
    return bytes(new)


@lru_cache(maxsize=1024)
def decode(raw: bytes) -> TensorMap:
    """The map that `encode` or `replace_field` wrote; unchecked, but every name is a legal one except that an
    impossible swizzle number reads as "none"."""
    word = int.from_bytes(raw, "little")

    def get(field: str, ordinal: int = 0) -> int:
        f = FIELDS[field]
        value = word >> f.bit + f.pitch * ordinal & (1 << f.width) - 1
        return (value + f.bias) if f.bias else value

    def signed(field: str, ordinal: int) -> int:
        return int(struct.unpack("<h", struct.pack("<H", get(field, ordinal)))[0])

    rank = min(get("rank") + 1, 5)
    mode = MODES[get("mode")]
    corners = 0 if mode == "tiled" else rank - 2 if mode == "im2col" else 1
    number, atomicity = get("swizzle_mode"), get("swizzle_atomicity")
    if number != 3:  # only the 128-byte mode has atoms to choose from
        atomicity = 0
    names = [n for n, s in SWIZZLES.items() if (s.number, s.atomicity) == (number, atomicity)]
    return TensorMap(
        type=list(TYPES)[get("elemtype")],
        size=tuple(get("global_dim", d) for d in range(rank)),
        stride=tuple(get("stride_low", d) << 4 | get("stride_high", d) << 36 for d in range(rank - 1)),
        box=tuple(get("box_dim", d) for d in range(rank)) if mode == "tiled" else (),
        address=get("global_address"),
        element_stride=tuple(get("element_stride", d) for d in range(rank)),
        interleave=INTERLEAVES[min(get("interleave_layout"), 2)],
        swizzle=names[0] if names else "none",
        l2_promotion=L2_PROMOTIONS[get("l2_promotion")],
        fill=FILLS[get("fill_mode")],
        mode=mode,
        lower=tuple(signed("lower", d) for d in range(corners)),
        upper=tuple(signed("upper", d) for d in range(corners)),
        channels=0 if mode == "tiled" else get("channels"),
        pixels=0 if mode == "tiled" else get("pixels"),
    )


def row_major(
    type_: str, shape: Sequence[int], box: Sequence[int], *, swizzle: str = "none", pitch: int | None = None
) -> TensorMap:
    """The map of a row-major array: `shape` and `box` in NumPy order (innermost last), `pitch` the bytes from
    row to row (None: dense)."""
    bits = TYPES[type_].bits if type_ in TYPES else 8
    size = tuple(reversed(shape))
    step = pitch if pitch is not None else size[0] * bits // 8
    strides = []
    for n in size[1:]:
        strides.append(step)
        step *= n
    return TensorMap(type_, size, tuple(strides), tuple(reversed(box)), swizzle=swizzle)
