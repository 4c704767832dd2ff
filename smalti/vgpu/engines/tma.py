"""Tensor copies: where the bytes of a tensor map's box lie in global and in swizzled shared memory, and the
operations that move them. Measured on an H200 (E11). Knows tensor maps and memory; no instruction.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from smalti.errors import Loc, error
from smalti.layout.shared import SWIZZLES, swizzle_address
from smalti.layout.tensor_map import PADDED, TensorMap
from smalti.numerics.formats import pack6
from smalti.vgpu.engines.bulk import UNIT, FromShared, Target, ToShared, refuse_undefined
from smalti.vgpu.engines.reduce import Reduction
from smalti.vgpu.memory import Agent, Bools, Memory, Segment

if TYPE_CHECKING:
    from smalti.vgpu.machine import CTA
    from smalti.vgpu.warp import Warp

Bytes = npt.NDArray[np.uint8]
Offsets = npt.NDArray[np.int64]

SHARED_ALIGNMENT = 128  # of every box in shared memory, whatever the swizzle (H200, E11; CUDA programming guide)
# What FLOAT_OOB_FILL_NAN writes: 7FF7 in every 16 bits (E11).
_FILL_NAN = np.array([0xF7, 0x7F], np.uint8)
_PHASE = 1024  # swizzles repeat after that many bytes


class Piece(NamedTuple):
    """What one copy moves of a tensor: `view` gives the part that exists, `where` its place in the whole box.

    The box is [rows of the box ..., row bytes in global memory]; `rows` is the shape in front of the bytes.
    """

    rows: tuple[int, ...]
    where: tuple[slice, ...]
    first: int  # byte offset of the part's first byte in the segment
    strides: tuple[int, ...]
    shape: tuple[int, ...]  # of the part
    width: int  # bytes of a row that the tensor has; more are written when stores clip to units
    segment: Segment | None  # None: nothing of the box exists


def _nothing(rows: tuple[int, ...]) -> Piece:
    return Piece(rows, (), 0, (), (), 0, None)


class Form:
    """What is fixed for a tensor map wherever its box lies: sizes, and shared-memory patterns by start address."""

    def __init__(self, m: TensorMap) -> None:
        self.map = m
        self.interleaved = m.interleave != "none" and m.tiled
        pitch = m.row_pitch
        if self.interleaved:
            m = _uninterleaved(m)
            pitch = m.row_bytes
        self.source = m
        self.rows = tuple(reversed(m.transfer[1:])) if m.tiled else (m.pixels,)
        self.count = int(np.prod(self.rows, dtype=np.int64))
        self.row_bytes = m.row_bytes  # in shared memory
        self.row_source = m.transfer[0] * m.element.bits // 8  # in global memory
        self.padded = m.type in PADDED
        self.flip = m.swizzle != "none" and SWIZZLES[m.swizzle].flip
        self.pitch = pitch
        self._units: dict[int, Offsets] = {}
        self._flips: dict[int, Bools] = {}

    def units(self, start: int) -> Offsets | slice:
        """The 16-byte units of shared memory that the box fills, row after row; a slice where they are consecutive."""
        total = self.count * self.row_bytes
        if self.map.swizzle == "none":
            return slice(start // UNIT, (start + total) // UNIT)
        phase = start % _PHASE
        pattern = self._units.get(phase)
        if pattern is None:
            linear = (
                phase + np.arange(self.count)[:, None] * self.pitch + np.arange(0, self.row_bytes, UNIT)[None, :]
            ).ravel()
            where = swizzle_address(linear, self.map.swizzle)
            pattern = self._units[phase] = (where - phase) // UNIT
            self._flips[phase] = (linear >> 7 & 1).astype(np.bool_)
        return pattern + start // UNIT

    def flipped(self, start: int, data: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Units [n, 16] with the halves of those in odd lines exchanged (the 8-byte flip)."""
        odd = self._flips[start % _PHASE]
        data[odd] = np.concatenate([data[odd, 8:], data[odd, :8]], axis=1)
        return data

    @property
    def extent(self) -> int:
        """Bytes of shared memory from the start to the end of the last row."""
        return (self.count - 1) * self.pitch + self.row_bytes

    # -- the global side --------------------------------------------------------------------------------

    def piece(self, memory: Memory, agent: Agent, at: tuple[int, ...], clip: int = 1) -> Piece:
        """The part of the box at coordinates `at` that lies inside the tensor (tile mode).

        `clip`: dimension 0 is clipped to multiples of that many bytes (stores: 16, E11). Errors: SML0803, SML0805.
        """
        m = self.source
        if self.interleaved:
            at = (0, *at)
        start, size = at[0] * m.element.bits // 8, m.size[0] * m.element.bits // 8
        low, high = max(-start, 0), min(-(-size // clip) * clip - start, self.row_source)
        where = [slice(low, high)]
        offset = m.address + start + low
        last = m.address + start + high - 1
        shape, strides = [high - low], [1]
        empty = high <= low
        for d in range(1, m.rank):
            step, count = m.element_stride[d], self.rows[-d]
            lo = max(0, -(at[d] // step)) if at[d] < 0 else 0
            hi = min(count, -(-(m.size[d] - at[d]) // step))
            empty = empty or hi <= lo
            where.append(slice(lo, hi))
            pitch = m.stride[d - 1]
            offset += (at[d] + lo * step) * pitch
            last += (at[d] + (hi - 1) * step) * pitch
            shape.append(hi - lo)
            strides.append(step * pitch)
        if empty:
            return _nothing(self.rows)
        segment = locate(memory, agent, offset, last + 1)
        return Piece(
            self.rows, tuple(reversed(where)), offset - segment.address, tuple(reversed(strides)),
            tuple(reversed(shape)), size - start - low, segment,
        )  # fmt: skip

    def columns(self, memory: Memory, agent: Agent, column: int, rows: list[int], clip: int = 1) -> list[Piece]:
        """The rows of a gather4 or scatter4, each a box of one row."""
        out = []
        for i, r in enumerate(rows):
            p = self.piece(memory, agent, (column, r), clip)
            if p.segment is not None:
                p = p._replace(where=(slice(i, i + 1), p.where[1]))
            out.append(p._replace(rows=(4,)))
        return out

    def pixels(self, memory: Memory, agent: Agent, at: tuple[int, ...], offsets: tuple[int, ...]) -> list[Piece]:
        """im2col: `pixels` positions from the base on, width first, inside [lower, size + upper) of every dimension.

        The value is read at position + offset; what lies outside of the tensor is filled. Errors: SML0825.
        """
        m = self.map
        space = m.rank - 2
        box = [(m.lower[d], m.size[d + 1] + m.upper[d]) for d in range(space)]
        for d in range(space):
            if not box[d][0] <= at[d + 1] < box[d][1]:
                raise error(
                    "SML0825", at=agent.loc, dimension=d + 1, value=at[d + 1], low=box[d][0], high=box[d][1] - 1,
                    who=agent.who(),
                )  # fmt: skip
        steps = m.element_stride[1 : space + 1]
        where = list(at[1:])
        out = []
        for pixel in range(m.pixels):
            value = [where[d] + offsets[d] for d in range(space)] + [where[space]]
            p = self._channels(memory, agent, at[0], value)
            if p.segment is not None:
                p = p._replace(where=(slice(pixel, pixel + 1), p.where[1]))
            out.append(p)
            for d in range(space):
                where[d] += steps[d]
                if where[d] < box[d][1]:
                    break
                where[d] = box[d][0]
            else:
                where[space] += 1
        return out

    def _channels(self, memory: Memory, agent: Agent, channel: int, value: list[int]) -> Piece:
        m = self.map
        size = m.element.bits // 8
        low, high = max(0, -channel), min(m.channels, m.size[0] - channel)
        inside = all(0 <= v < n for v, n in zip(value, m.size[1:], strict=True))
        if not inside or high <= low:
            return _nothing(self.rows)
        offset = m.address + (channel + low) * size + sum(v * s for v, s in zip(value, m.stride, strict=True))
        segment = locate(memory, agent, offset, offset + (high - low) * size)
        return Piece(
            self.rows, (slice(0, 1), slice(low * size, high * size)), offset - segment.address, (0, 1),
            (1, (high - low) * size), (high - low) * size, segment,
        )  # fmt: skip


def _uninterleaved(m: TensorMap) -> TensorMap:
    """The same boxes as a map of one dimension more, the innermost being a slice of 16 or 32 bytes."""
    slice_ = m.grain // m.element.bits
    box = list(m.box)
    box[-2] = 1
    return replace(
        m, size=(slice_, *m.size), stride=(m.grain // 8, *m.stride), box=(slice_, *box),
        element_stride=(1, *m.element_stride), interleave="none",
    )  # fmt: skip


def locate(memory: Memory, agent: Agent, start: int, stop: int) -> Segment:
    """The buffer that holds the addresses. Errors: SML0803, SML0805."""
    segment = memory.find(start)
    if segment is None:
        raise error("SML0805", at=agent.loc, address=hex(start), space="global", who=agent.who())
    if stop > segment.address + segment.size:
        raise error(
            "SML0803", at=agent.loc, what=f"global memory {segment.name}, by its tensor map",
            offset=start - segment.address, width=stop - start, size=segment.size, who=agent.who(),
        )  # fmt: skip
    return segment


# -- bytes of a piece ------------------------------------------------------------------------------------


def part_of(p: Piece, flags: bool = False) -> npt.NDArray[Any]:
    """The bytes of the part as a view of global memory; `flags`: whether they are defined."""
    assert p.segment is not None
    storage: npt.NDArray[Any] | None = p.segment.defined if flags else p.segment.data
    assert storage is not None
    return np.ndarray(p.shape, storage.dtype, storage, p.first, p.strides)


def tell(hook: Any, bytes_hook: Any, agent: Any, p: Piece) -> None:
    """Tell the checks of an access to the part: by 16-byte units, or by bytes where units do not fit."""
    if p.first % UNIT or any(s % UNIT for s in p.strides[:-1]):
        bytes_hook(agent, p.segment, p.first + _starts(p.shape, p.strides, 1), 1, None, agent.order)
    else:
        hook(agent, p.segment, p.first // UNIT + _starts(p.shape, p.strides, UNIT))


@lru_cache(256)
def _starts(shape: tuple[int, ...], strides: tuple[int, ...], unit: int) -> Offsets:
    """The pieces of `unit` bytes that a part touches, counted from its first byte."""
    start = np.zeros(1, np.int64)
    for n, s in zip(shape[:-1], strides[:-1], strict=True):
        start = (start[:, None] + np.arange(n) * s).ravel()
    return (start[:, None] // unit + np.arange(-(-shape[-1] // unit))).ravel()


def gather(f: Form, pieces: list[Piece]) -> tuple[Bytes, Bools | None]:
    """The box as [units, 16] bytes, fill included, and which bytes are undefined (None: none)."""
    m = f.map
    whole = (*f.rows, f.row_source)
    one = pieces[0]
    if len(pieces) == 1 and one.segment is not None and one.shape == whole:
        data = part_of(one).copy() if m.type[:4] != "tf32" else round_tf32(part_of(one))
    else:
        data = np.zeros(whole, np.uint8)
        if m.fill == "nan":
            data.reshape(-1, 2)[:] = _FILL_NAN
        for p in pieces:
            if p.segment is not None:
                # elements are rounded, the fill is not: it stays 7FF77FF7 (recording "load tf32 ... nan")
                data[p.where] = part_of(p) if m.type[:4] != "tf32" else round_tf32(part_of(p))
    undefined: Bools | None = None
    for p in pieces:
        if p.segment is not None and p.segment.defined is not None:
            known = part_of(p, flags=True)
            if not known.all():
                if undefined is None:
                    undefined = np.zeros(whole, np.bool_)
                undefined[p.where] = ~known
    if f.padded:
        data, undefined = _pad(m, data, undefined)
    flat = data.reshape(-1, UNIT)
    return flat, None if undefined is None else undefined.reshape(-1, UNIT)


def round_tf32(data: Bytes) -> Bytes:
    """What a TFLOAT32 load does: nearest even to 10 bits, subnormals too, NaN becomes 7FFFE000 (E11)."""
    from smalti.numerics import convert

    words = np.ascontiguousarray(data).view(np.uint32)
    return convert.cvt("tf32", "f32", words, "rn").astype(np.uint32).view(np.uint8).reshape(data.shape)


def _pad(m: TensorMap, data: Bytes, undefined: Bools | None) -> tuple[Bytes, Bools | None]:
    """16 elements of 4 or 6 bits become 16 bytes of which the last are a gap, which is undefined."""
    size = 2 * m.element.bits
    groups = data.reshape(*data.shape[:-1], -1, size)
    out = np.zeros((*groups.shape[:-1], UNIT), np.uint8)
    out[..., :size] = groups
    gap = np.ones(out.shape, np.bool_)
    gap[..., :size] = False if undefined is None else undefined.reshape(groups.shape)
    return out.reshape(*data.shape[:-1], -1), gap.reshape(*data.shape[:-1], -1)


def _compact(data: Bytes, undefined: Bools | None) -> tuple[Bytes, Bools | None]:
    """Stores of b6x16_p32: 16 bytes that hold 6 bits each become 12 (PTX ISA 5.5.5: .b6p2x16)."""
    packed = pack6(data.reshape(*data.shape[:-1], -1, UNIT)).reshape(*data.shape[:-1], -1)
    if undefined is None:
        return packed, None
    any16 = undefined.reshape(*undefined.shape[:-1], -1, UNIT).any(axis=-1)
    return packed, any16.repeat(12, axis=-1)


# -- operations ------------------------------------------------------------------------------------------


class TensorLoad(ToShared):
    """A box of a tensor into shared memory."""

    def __init__(self, cta: CTA, issuer: Warp, loc: Loc | None, what: str, f: Form, pieces: list[Piece]) -> None:
        super().__init__(cta, issuer, loc, what)
        self.form, self.pieces = f, pieces
        self.extent = f.count * f.row_bytes
        self.size = self.extent * f.map.element.bits // f.map.element.shared_bits  # gaps are not counted

    def read(self) -> tuple[Bytes, Bools | None]:
        machine = self.cta.machine
        if machine.checks is not None:
            for p in self.pieces:
                if p.segment is not None:
                    tell(machine.checks.read_units, machine.checks.read, self, p)
        return gather(self.form, self.pieces)

    def write(self, target: Target, data: tuple[Bytes, Bools | None]) -> None:
        values, undefined = data
        segment = target.cta.shared
        units = self.form.units(target.offset)
        checks = self.cta.machine.memory.checks
        if isinstance(units, slice):
            checks.write_range(target.agent, segment, target.offset, target.offset + self.extent)
        else:
            checks.write_units(target.agent, segment, units)
        if self.form.flip:
            values = self.form.flipped(target.offset, values.copy())
            undefined = None if undefined is None else self.form.flipped(target.offset, undefined.copy())
        put_units(segment, units, values, undefined)


def put_units(segment: Segment, units: Offsets | slice, values: Bytes, undefined: Bools | None) -> None:
    """Bytes [n, 16] into the given units of a segment."""
    segment.opaque()[units] = np.ascontiguousarray(values).view("V16").ravel()
    if segment.defined is not None:
        flags = segment.opaque(flags=True)
        if undefined is None:
            flags[units] = _DEFINED
        else:
            flags[units] = np.ascontiguousarray(~undefined).view("V16").ravel()


_DEFINED = np.ones(UNIT, np.bool_).view("V16")[0]


def get_units(segment: Segment, units: Offsets | slice) -> tuple[Bytes, Bools | None]:
    """The bytes [n, 16] of the given units, and which are undefined (None: none)."""
    values = segment.opaque()[units].view(np.uint8).reshape(-1, UNIT)
    if isinstance(units, slice):
        values = values.copy()
    if segment.defined is None:
        return values, None
    known = segment.opaque(flags=True)[units].view(np.bool_).reshape(-1, UNIT)
    return values, None if known.all() else ~known


class TensorStore(FromShared):
    """A box from shared memory into a tensor, or reduced into it."""

    def __init__(
        self, cta: CTA, issuer: Warp, loc: Loc | None, what: str, f: Form, pieces: list[Piece], start: int,
        combine: tuple[Reduction, Any] | None,
    ) -> None:  # fmt: skip
        super().__init__(cta, issuer, loc, what)
        self.form, self.pieces, self.start, self.combine = f, pieces, start, combine
        if combine is not None:
            self.order = "relaxed"

    def read(self) -> tuple[Bytes, Bools | None]:
        segment = self.cta.shared
        units = self.form.units(self.start)
        checks = self.cta.machine.memory.checks
        if isinstance(units, slice):
            checks.read_range(self.reader, segment, units.start * UNIT, units.stop * UNIT)
        else:
            checks.read_units(self.reader, segment, units)
        values, undefined = get_units(segment, units)
        if self.form.flip:
            values = self.form.flipped(self.start, values)
            undefined = None if undefined is None else self.form.flipped(self.start, undefined)
        whole = (*self.form.rows, self.form.row_bytes)
        values = values.reshape(whole)
        undefined = None if undefined is None else undefined.reshape(whole)
        if self.form.padded:
            return _compact(values, undefined)
        return values, undefined

    def write(self, data: tuple[Bytes, Bools | None]) -> None:
        machine = self.cta.machine
        values, undefined = data
        for p in self.pieces:
            if p.segment is None:
                continue
            if not p.segment.writable:
                raise error("SML0807", at=self.loc, what=p.segment.name, who=self.who())
            if machine.checks is not None:
                tell(machine.checks.write_units, machine.checks.write, self, p)
            new = values[p.where]
            bad = None if undefined is None else undefined[p.where]
            target = part_of(p)
            if self.combine is not None:
                function, dtype = self.combine
                old = np.ascontiguousarray(target).view(dtype)
                new = function(old, np.ascontiguousarray(new).view(dtype)).astype(dtype, copy=False).view(np.uint8)
            if bad is not None and bad.any():
                self._undefined(p, bad)
            if machine.checks is not None and target.shape[-1] > p.width:
                self._beyond(machine.checks, p, new)
            target[...] = new
            if p.segment.defined is not None:
                part_of(p, flags=True)[...] = True if bad is None else ~bad

    def _beyond(self, checks: Any, p: Piece, new: Bytes) -> None:
        """Reports SML0832: defined bytes beyond the tensor's width that change, for stores end at whole units (E11)."""
        assert p.segment is not None
        changed = part_of(p)[..., p.width :] != new[..., p.width :]
        if p.segment.defined is not None:
            changed &= part_of(p, flags=True)[..., p.width :]
        if changed.any():
            extra = int(changed.sum())
            width = self.form.map.size[0] * self.form.map.element.bits // 8
            checks.report(
                error(
                    "SML0832",
                    at=self.loc,
                    opcode=self.what,
                    what=p.segment.name,
                    width=width,
                    extra=extra,
                    who=self.who(),
                )
            )

    def _undefined(self, p: Piece, bad: Bools) -> None:
        """Undefined bytes may only fall into the rest of a 16-byte unit beyond the tensor's width."""
        wrong = bad[..., : p.width]
        if wrong.any():
            assert p.segment is not None
            index = [int(i) for i in np.argwhere(wrong)[0]]
            refuse_undefined(self, p.segment, p.first + sum(i * s for i, s in zip(index, p.strides, strict=True)))
