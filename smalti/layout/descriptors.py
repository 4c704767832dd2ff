"""Shared-memory matrix descriptors of wgmma and tcgen05: their bits, and the addresses that they make the tensor
core read; instruction descriptors come from `instruction`. What lies at the addresses is not known here.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from smalti.errors import error
from smalti.layout.boundary import checked, whole
from smalti.layout.instruction import InstructionDescriptor, decode_idesc, encode_idesc
from smalti.layout.linear import Layout
from smalti.layout.swizzle import SWIZZLES, swizzle_address

__all__ = [
    "InstructionDescriptor",
    "SmemDescriptor",
    "check_operand",
    "decode_idesc",
    "decode_smem",
    "describe",
    "encode_idesc",
    "encode_smem",
    "operand_addresses",
    "operand_layout",
    "operand_units",
]

Array = NDArray[np.int64]

WINDOW = 1 << 18  # a descriptor says 14 bits of address >> 4 (PTX ISA 9.7.15.5.1.2.2, 9.7.16.4.1)
UNIT = 16  # bytes that every mode of an operand keeps together
SPARSE_32B_COLUMN = 32  # with 32B swizzle, K bytes from here on lie at + LBO (H200, E10: B of a sparse wgmma)
_PHASE = 1024  # bytes after which every swizzle repeats

# Code of each swizzle: bits 62-63 on sm_90 (9.7.15.5.1.2.2), 61-63 on sm_100 (9.7.16.4.1, table 40).
_CODES = {
    90: {"none": 0, "128B": 1, "64B": 2, "32B": 3},
    100: {"none": 0, "128B_atom32B": 1, "128B": 2, "64B": 4, "32B": 6},
}
_NAMES = {generation: {code: name for name, code in codes.items()} for generation, codes in _CODES.items()}
_SWIZZLE_BIT = {90: 62, 100: 61}
CONSTANT = 0b001 << 46  # sm_100: constant
CONSTANT_MASK, _ZERO_MASK = 0b111 << 46, 0xFF << 53

_OPERAND_BITS = {"wgmma": (1, 8, 16, 32), "tcgen05": (4, 6, 8, 16, 32)}
_GENERATION = {"sm_90": 90, "sm_100": 100, "sm_101": 100, "sm_103": 100, "sm_110": 100}


class SmemDescriptor(NamedTuple):
    """A matrix in shared memory. All in bytes: `start` (address below 2**18), leading and stride dimension byte
    offsets `lbo`, `sbo`; `base_offset` 0-7 in 128-byte lines; `absolute`: `lbo` is an address (sm_103a, K = 96).
    """

    arch: str
    start: int
    lbo: int
    sbo: int
    base_offset: int = 0
    swizzle: str = "none"
    absolute: bool = False

    def advance(self, step: int) -> SmemDescriptor:
        """The same descriptor `step` bytes further on: what a K loop does inside a swizzle atom."""
        return self._replace(start=self.start + step)

    def encode(self) -> int:
        """The 64 bits. Errors: as `encode_smem`."""
        return encode_smem(*self)


@checked
def generation(arch: str) -> int:
    """90 (wgmma) or 100 (tcgen05) for an architecture like "sm_90a". Errors: SML0418."""
    found = _GENERATION.get(arch[:-1] if arch.endswith(("a", "f")) else arch)
    if found is None:
        raise error("SML0418", arch=arch, known=[name + "a" for name in _GENERATION])
    return found


@checked
def encode_smem(
    arch: str,
    start: int,
    lbo: int,
    sbo: int,
    base_offset: int = 0,
    swizzle: str = "none",
    absolute: bool = False,
) -> int:
    """The 64-bit descriptor. `start` is the shared address; bits from 18 on (the CTA's rank) are dropped, as the
    hardware's encoding does; `lbo`, `sbo` in bytes, `base_offset` = (pattern start >> 7) & 7.

    Errors: SML0410 start, SML0411 offsets, SML0412 swizzle, SML0413 base offset, SML0417 absolute, SML0418 arch.
    """
    which = generation(arch)
    _check_start(start)
    _check_offsets(lbo=lbo, sbo=sbo)
    if swizzle not in _CODES[which]:
        raise error("SML0412", swizzle=swizzle, where=f"a descriptor of {arch}", known=list(_CODES[which]))
    _check_base_offset(base_offset, swizzle)
    if absolute and (not arch.startswith("sm_103") or swizzle != "128B" or base_offset):
        raise error("SML0417", arch=arch, swizzle=swizzle, base_offset=base_offset)
    bits = (start % WINDOW) >> 4 | (lbo >> 4) << 16 | (sbo >> 4) << 32 | base_offset << 49
    bits |= _CODES[which][swizzle] << _SWIZZLE_BIT[which]
    return bits | (CONSTANT | absolute << 52 if which == 100 else 0)


def _check_start(start: int) -> None:
    if start < 0 or start % UNIT:
        raise error("SML0410", start=start, nearest=max(start, 0) // UNIT * UNIT)
    if start >> 32:
        raise error("SML0405", what="shared address", value=start, limit=1 << 32)


def _check_base_offset(base_offset: int, swizzle: str) -> None:
    if not 0 <= base_offset <= 7 or (base_offset and swizzle == "none"):
        raise error("SML0413", base_offset=base_offset, swizzle=swizzle)


def _check_names(swizzle: str, major: str, bits: int) -> None:
    """Whatever the instruction, these are a swizzle, a major-ness and a size."""
    check_operand("wgmma" if bits == 1 else "tcgen05", swizzle, "K" if major == "MN" else major, bits)


def _check_offsets(**offsets: int) -> None:
    for name, value in offsets.items():
        if not 0 <= value < WINDOW or value % UNIT:
            raise error("SML0411", name=name, value=value, limit=WINDOW - UNIT)


@checked
@lru_cache(4096)
def decode_smem(arch: str, bits: int) -> SmemDescriptor:
    """Inverse of `encode_smem`. Bits that sm_90 ignores (measured, E10) are ignored.

    Errors: SML0416 for a swizzle code or a constant that no descriptor of the architecture has, SML0418.
    """
    which = generation(arch)
    if bits >> 64:
        raise error("SML0416", bits=hex(bits), arch=arch, what="a descriptor has 64 bits")
    code = bits >> _SWIZZLE_BIT[which] & (3 if which == 90 else 7)
    if code not in _NAMES[which]:
        raise error("SML0416", bits=f"0x{bits:016x}", arch=arch, what=f"swizzle code {code}")
    if which == 100 and (bits & CONSTANT_MASK) != CONSTANT:
        raise error("SML0416", bits=f"0x{bits:016x}", arch=arch, what="bits 46-48, which must be 0b001")
    if which == 100 and bits & _ZERO_MASK:
        raise error("SML0416", bits=f"0x{bits:016x}", arch=arch, what="bits 53-60, which must be 0")
    start, lbo, sbo = ((bits >> at & 0x3FFF) << 4 for at in (0, 16, 32))
    absolute = which == 100 and bool(bits >> 52 & 1)
    name = _NAMES[which][code]
    base_offset = bits >> 49 & 7 if name != "none" else 0
    return SmemDescriptor(arch, start, lbo, sbo, base_offset, name, absolute)


@checked
def check_operand(instruction: str, swizzle: str, major: str, element_bits: int) -> None:
    """Refuse a combination of swizzle, major-ness ("K" or "MN") and container bits that the tensor core lacks.

    `instruction`: "wgmma" (PTX ISA 9.7.15.5.1.2: only 16-bit operands can be MN-major) or "tcgen05" (table 54).
    Errors: SML0414.
    """
    atom32 = swizzle == "128B_atom32B"
    sizes = _OPERAND_BITS.get(instruction, ())
    if not sizes:
        reason = f"the instructions are {' and '.join(_OPERAND_BITS)}"
    elif major not in ("K", "MN"):
        reason = "major-ness is K or MN"
    elif swizzle not in _CODES[100]:
        reason = f"the swizzles are {', '.join(_CODES[100])}"
    elif element_bits not in sizes:
        reason = f"its operands have {', '.join(map(str, sizes))} bits"
    elif instruction == "wgmma":
        reason = (
            "wgmma has no 32-byte atoms"
            if atom32
            else "wgmma transposes 16-bit operands only"
            if major == "MN" and element_bits != 16
            else ""
        )
    elif major == "K":
        reason = ""
    elif element_bits == 32:
        reason = "" if atom32 else "a transposed 32-bit operand needs 128B swizzle with 32-byte atoms"
    elif element_bits in (8, 16):
        reason = "32-byte atoms serve transposed 32-bit operands only" if atom32 else ""
    else:
        reason = f"{element_bits}-bit operands cannot be transposed"
    if reason:
        raise error("SML0414", instruction=instruction, swizzle=swizzle, major=major, bits=element_bits, reason=reason)


@checked
@lru_cache(256)
def operand_layout(swizzle: str, major: str, rows: int, k_bytes: int, element_bits: int, lbo: int, sbo: int) -> Layout:
    """The canonical layout (PTX ISA 9.7.15.5.1.2.1.3, 9.7.16.3.3) before the swizzle, in 16-byte units.

    K-major: `row`, `column` (16 bytes of K) -> `unit`; MN-major: `k`, `column` (16 bytes along M or N) -> `unit`.
    Units count from the descriptor's start, so the swizzle acts on 16 * unit + start.
    Errors: SML0415 shape, SML0405 size, SML0411 offsets, SML0414 swizzle, major-ness or bits.
    """
    _check_offsets(lbo=lbo, sbo=sbo)
    _check_names(swizzle, major, element_bits)
    if rows * k_bytes > WINDOW:
        raise error("SML0405", what="size of an operand in bytes", value=rows * k_bytes, limit=WINDOW)
    span = SWIZZLES[swizzle].span
    lead, stride = lbo // UNIT, sbo // UNIT
    pitch = span // UNIT
    along = k_bytes if major == "K" else rows * element_bits // 8
    across = rows if major == "K" else k_bytes * 8 // element_bits
    repeat = 4 if swizzle == "128B_atom32B" and major == "MN" else 8  # rows of a swizzle atom (table 55)
    if along % UNIT or along <= 0 or across <= 0 or (across > repeat and across % repeat):
        raise error("SML0415", major=major, rows=rows, k_bytes=k_bytes, bits=element_bits)
    columns = along // UNIT
    repeats = -(-across // repeat)
    if swizzle == "none" and major == "K":
        row, column = [(repeat, pitch), (repeats, stride)], [(columns, lead)]
    elif swizzle == "none":
        row, column = [(repeat, pitch), (repeats, lead)], [(columns, stride)]
    elif major == "K":
        fits = pitch if swizzle == "32B" and k_bytes > SPARSE_32B_COLUMN else columns
        row, column = [(repeat, pitch), (repeats, stride)], [(fits, 1), (-(-columns // fits), lead)]
    else:
        row, column = [(repeat, pitch), (repeats, stride)], [(pitch, 1), (-(-columns // pitch), lead)]
    outer = "row" if major == "K" else "k"
    modes = {outer: row, "column": column}
    return Layout({name: [(n, {"unit": s}) for n, s in digits] for name, digits in modes.items()}, ["unit"])


@checked
@lru_cache(1024)
def _units(
    swizzle: str, base_offset: int, phase: int, major: str, rows: int, k_bytes: int, bits: int, lbo: int, sbo: int
) -> Array:
    _check_base_offset(base_offset, swizzle)
    layout = operand_layout(swizzle, major, rows, k_bytes, bits, lbo, sbo)
    across, columns = (rows, k_bytes // UNIT) if major == "K" else (k_bytes * 8 // bits, rows * bits // 8 // UNIT)
    linear = layout.offsets()[:across, :columns] * UNIT + phase
    units = (swizzle_address(linear, swizzle, base_offset) - phase) >> 4
    units.flags.writeable = False
    return units


def _fields(descriptor: SmemDescriptor) -> tuple[int, int, int, int, str]:
    """Start, LBO, SBO, base offset and swizzle; the pattern's function checks what it is cached by."""
    arch, start, lbo, sbo, base_offset, swizzle, absolute = descriptor
    if absolute:
        raise error("SML0417", arch=arch, swizzle=swizzle, base_offset=base_offset)
    start = whole("SmemDescriptor", "start", start)
    _check_start(start)
    return start, lbo, sbo, base_offset, swizzle


@checked
def operand_units(descriptor: SmemDescriptor, *, major: str, rows: int, k_bytes: int, element_bits: int = 16) -> Array:
    """Numbers of the 16-byte units (address / 16) that the tensor core reads, swizzle applied; int64.

    K-major: [rows, k_bytes / 16], consecutive K inside a unit. MN-major: [K, rows * element_bits / 128],
    consecutive rows inside a unit. So an engine gathers `memory.view("V16")[units]` and views it as elements,
    [rows, K] or (transposed) [K, rows]. `element_bits` are bits of the container (8 for padded 4- and 6-bit data).
    Units may lie beyond the window: there is no wrap at 2**18 (measured, E10); the caller checks its bounds.
    Cheap: only the low bits of the start address need a new pattern, the rest is one addition.

    Errors: SML0415 for a shape that the canonical layout cannot hold, SML0417 for an absolute leading dimension;
    as `encode_smem` for fields that no descriptor has.
    """
    start, lbo, sbo, base_offset, swizzle = _fields(descriptor)
    phase = start % _PHASE
    pattern = _units(swizzle, base_offset, phase, major, rows, k_bytes, element_bits, lbo, sbo)
    return pattern + (start >> 4)


@checked
@lru_cache(256)
def _addresses(
    swizzle: str, base_offset: int, phase: int, major: str, rows: int, k_bytes: int, bits: int, lbo: int, sbo: int
) -> Array:
    units = _units(swizzle, base_offset, phase, major, rows, k_bytes, bits, lbo, sbo)
    step = max(bits // 8, 1)
    inside = np.arange(0, UNIT, step)
    found = (units[:, :, None] * UNIT + inside).reshape(units.shape[0], -1)
    found = np.ascontiguousarray(found if major == "K" else found.T)
    found.flags.writeable = False
    return found


@checked
def operand_addresses(
    descriptor: SmemDescriptor, *, major: str, rows: int, k_bytes: int, element_bits: int = 16
) -> Array:
    """Shared-memory byte address of each element, swizzle applied: int64 [rows, K].

    K counts elements of 8, 16 or 32 bits (their first byte), or bytes where elements are smaller.
    Errors: as `operand_units`.
    """
    start, lbo, sbo, base_offset, swizzle = _fields(descriptor)
    pattern = _addresses(swizzle, base_offset, start % _PHASE, major, rows, k_bytes, element_bits, lbo, sbo)
    return pattern + start


@checked
def describe(
    layout: Layout,
    *,
    arch: str,
    start: int,
    swizzle: str,
    major: str,
    element_bits: int,
    rows: int,
    k_bytes: int,
    row: int = 0,
    column: int = 0,
) -> SmemDescriptor:
    """The descriptor that reads `rows` rows and `k_bytes` of K from (`row`, `column`) of any layout with indices
    `row`, `column` (of K; bytes for elements below one) and output `offset` (bytes, before the swizzle).

    Its offsets are read off the layout, and the addresses it gives are compared with the layout's.
    Errors: SML0419 if no descriptor reads this part, SML0405 if it leaves the layout, as `encode_smem` besides.
    """
    encode_smem(arch, start, 0, 0, 0, swizzle)
    _check_names(swizzle, major, element_bits)
    if set(layout.inputs) != {"row", "column"} or layout.outputs != ("offset",):
        raise error("SML0404", expected=["row", "column", "offset"], given=[*layout.inputs, *layout.outputs])
    taken = {"row": (row, rows), "column": (column, k_bytes // max(element_bits // 8, 1))}
    if min(count for _, count in taken.values()) <= 0:
        raise error("SML0415", major=major, rows=rows, k_bytes=k_bytes, bits=element_bits)
    for name, (first, count) in taken.items():
        limit = layout.inputs[name]
        if first < 0 or first + count > limit:
            raise error("SML0405", what=f"index {name!r}", value=first if first < 0 else first + count - 1, limit=limit)
    base, lbo, sbo = _describe(layout, swizzle, major, element_bits, rows, k_bytes, row, column, start % _PHASE)
    if start % WINDOW + base >= WINDOW:
        raise error("SML0405", what="address of the operand", value=start % WINDOW + base, limit=WINDOW)
    found = SmemDescriptor(arch, start + base, lbo, sbo, 0, swizzle)
    encode_smem(*found)
    return found


@lru_cache(1024)
def _describe(
    layout: Layout, swizzle: str, major: str, bits: int, rows: int, k_bytes: int, row: int, column: int, phase: int
) -> tuple[int, int, int]:
    """Start relative to the layout's, LBO, SBO."""
    span = SWIZZLES[swizzle].span
    step = max(bits // 8, 1)
    k = k_bytes // step
    offsets = layout(row=row + np.arange(rows)[:, None], column=column + np.arange(k)[None, :])
    base = int(offsets[0, 0])

    def far(along: int, across: int) -> int:
        """Distance to where the contiguous or the other index is, UNIT if that is not read."""
        at = (across, along) if major == "K" else (along, across)
        return int(offsets[at]) - base if at[0] < rows and at[1] < k else UNIT

    stripe = far(span // step, 0)
    atom = far(0, 4 if swizzle == "128B_atom32B" and major == "MN" else 8)
    lbo, sbo = (atom, stripe) if swizzle == "none" and major == "MN" else (stripe, atom)
    got = _try_addresses(swizzle, base + phase, lbo, sbo, major, rows, k_bytes, bits)
    if got is None or not np.array_equal(got, swizzle_address(offsets + phase, swizzle)):
        raise error("SML0419", rows=rows, k_bytes=k_bytes, row=row, column=column, swizzle=swizzle, layout=repr(layout))
    return base, lbo, sbo


def _try_addresses(
    swizzle: str, start: int, lbo: int, sbo: int, major: str, rows: int, k_bytes: int, bits: int
) -> Array | None:
    if start % UNIT or lbo % UNIT or sbo % UNIT or min(start, lbo, sbo) < 0:
        return None
    descriptor = SmemDescriptor("", start, lbo, sbo, 0, swizzle)
    return operand_addresses(descriptor, major=major, rows=rows, k_bytes=k_bytes, element_bits=bits)
