"""Tiles in shared memory: where their elements lie, views of them, copies to and from registers.

A tile is kept in stripes of one swizzle span along its contiguous axis, as TMA writes and tensor cores read them.
TMA itself is in `tma`, descriptors are in `wgmma`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np

from smalti.errors import error
from smalti.lang import bulk
from smalti.lang.access import Unit, load_units, store_units, thread_part, units
from smalti.lang.arrays import Array, check_array, check_distribution
from smalti.lang.barriers import proxy_fence, shared_address, sync_warpgroup
from smalti.lang.distribution import Distribution
from smalti.lang.dtypes import DType
from smalti.lang.plan import Buffer
from smalti.lang.threads import lane_index, thread_of_warpgroup
from smalti.lang.trace import Later, Trace, current
from smalti.lang.values import Scalar, Value
from smalti.layout.shared import SWIZZLES, SharedTile, swizzle_address
from smalti.ptx.module import Register, Tile, Variable

__all__ = ["Geometry", "Shared", "Storage", "choose_swizzle", "shared"]

ALIGNMENT = 1024  # the period of the 128-byte swizzle (PTX ISA 5.5.7); TMA itself asks for 128 (H200, E11)
PREFERRED = ("128B", "64B", "32B", "none")


@dataclass(frozen=True, slots=True)
class Geometry:
    """How `lines` x `along` elements lie: stripes of one swizzle span, each holding all lines at that pitch.

    `layout.shared.SharedTile` as plain steps, which run-time offsets need.
    """

    lines: int
    along: int
    dtype: DType
    swizzle: str

    def operand(self, k_major: bool) -> SharedTile:
        """The same tile as an operand of the tensor core, contiguous along K or along M (N)."""
        rows, columns = (self.lines, self.along) if k_major else (self.along, self.lines)
        return SharedTile(rows, columns, self.dtype.name, self.swizzle, "K" if k_major else "MN")

    @property
    def bits(self) -> int:
        return self.dtype.bits

    @property
    def span(self) -> int:
        """Bytes of a line inside one stripe; also the pitch of its lines."""
        return SWIZZLES[self.swizzle].span

    @property
    def stripe(self) -> int:
        """Elements of a line inside one stripe."""
        return self.span * 8 // self.bits

    @property
    def stripes(self) -> int:
        return self.along // self.stripe

    @property
    def stripe_bytes(self) -> int:
        return self.lines * self.span

    @property
    def bytes(self) -> int:
        return self.stripes * self.stripe_bytes

    def offset(self, line: int, along: int) -> int:
        """Byte offset of an element before the swizzle."""
        stripe, inside = divmod(along, self.stripe)
        return stripe * self.stripe_bytes + line * self.span + inside * self.bits // 8


def choose_swizzle(along: int, bits: int, among: tuple[str, ...] = PREFERRED) -> str:
    """The widest swizzle whose span divides a line of `along` elements. Errors: SML0331."""
    for name in among:
        if along * bits % (SWIZZLES[name].span * 8) == 0:
            return name
    raise error("SML0331", elements=along, bits=bits, nearest=-(-along * bits // 128) * 128 // bits)


class Storage:
    """The memory of a tile, or of `stages` of them: one variable, allocated when it is first needed."""

    def __init__(self, name: str, geometry: Geometry, dtype: DType, shape: tuple[int, int]) -> None:
        self.name, self.geometry, self.dtype, self.shape = name, geometry, dtype, shape
        self.stages = 1
        self.variable: Variable | None = None
        self.unfenced = False  # written by threads, not yet ordered before TMA and tensor cores
        self.unsynchronised = False  # ... and not yet before other threads
        self.reads: list[tuple[Later, bool]] = []  # places before reads that found nothing to order; for TMA?

    def allocate(self, trace: Trace) -> Variable:
        if self.variable is None:
            size = self.geometry.bytes * self.stages
            self.variable = trace.shared_variable(self.name, "b8", (size,), ALIGNMENT)
            layout = "no swizzle" if self.geometry.swizzle == "none" else f"{self.geometry.swizzle} swizzle"
            trace.plan.buffers.append(Buffer(self.name, self.shape, self.dtype.name, layout, self.stages, size))
            role = f"ring of {self.stages}" if self.stages > 1 else ""
            trace.module.tiles.append(Tile(self.name, "shared", 0, size, self.shape, self.dtype.name, layout, role))
        return self.variable


@dataclass(frozen=True, slots=True, eq=False)
class Shared:
    """A reference to a tile in shared memory, or to a part of it.

    `shape` is (rows, columns), `axis` the contiguous one. `rows(g, n)` and `columns(g, n)` are its n-row (n-column)
    parts number g, `.T` the transpose; none of them moves data. `raw` is the address.
    """

    storage: Storage
    shape: tuple[int, int]
    axis: int
    stage: Scalar = 0
    line: Scalar = 0  # where the part begins
    along: Scalar = 0
    slot: Any = None  # of a ring or channel: gives the barrier that loads complete on
    halves: int = 0  # of a CTA pair: this CTA holds its half of every so many rows

    def load(self, tile: Any, barrier: Any = None) -> None:
        """Copy a tile of global memory here by TMA; completes on the slot's barrier, or on `barrier`.

        Out of bounds reads as zero. Call it in one thread. Inside `ring.put()` the bytes are expected for you;
        with an explicit barrier do that yourself: `barrier.arrive(expect=tile.bytes)`.
        """
        from smalti.lang.tma import load

        load(self, tile, barrier)

    def __repr__(self) -> str:
        rows, columns = self.shape
        return f"<shared {self.storage.name}, {rows}x{columns} {self.dtype.name}>"

    @property
    def dtype(self) -> DType:
        return self.storage.dtype

    @property
    def geometry(self) -> Geometry:
        return self.storage.geometry

    @property
    def swizzle(self) -> str:
        return self.geometry.swizzle

    @property
    def lines(self) -> int:
        return self.shape[1 - self.axis]

    @property
    def extent(self) -> int:
        """Elements along the contiguous axis."""
        return self.shape[self.axis]

    @property
    def bytes(self) -> int:
        """Bytes of its elements: what a TMA load of it transfers."""
        return self.shape[0] * self.shape[1] * self.dtype.bits // 8

    @property
    def T(self) -> Shared:
        """The transpose: the same memory, read the other way."""
        return replace(self, shape=(self.shape[1], self.shape[0]), axis=1 - self.axis)

    def rows(self, g: Scalar, n: int) -> Shared:
        """Rows g*n to g*n + n - 1. n must divide the rows; a run-time g must keep whole swizzle atoms."""
        return self._part(0, g, n)

    def columns(self, g: Scalar, n: int) -> Shared:
        """Columns g*n to g*n + n - 1."""
        return self._part(1, g, n)

    def _part(self, axis: int, g: Scalar, n: int) -> Shared:
        size = self.shape[axis]
        if n <= 0 or size % n or (isinstance(g, int) and not 0 <= g < size // n):
            raise error("SML0332", what="rows" if axis == 0 else "columns", part=n, whole=size, tile=self.storage.name)
        if n == size:
            return self
        along = axis == self.axis
        unit = self.geometry.stripe if along else 8  # lines of a swizzle atom (PTX ISA 9.7.15.5.1.2)
        if n % unit and not (along and isinstance(g, int)):
            raise error("SML0333", what="rows" if axis == 0 else "columns", part=n, unit=unit, tile=self.storage.name)
        shape = (n, self.shape[1]) if axis == 0 else (self.shape[0], n)
        start = g * n
        if along:
            return replace(self, shape=shape, along=self.along + start)
        return replace(self, shape=shape, line=self.line + start)

    @property
    def raw(self) -> Value:
        """The shared address of its first element's stripe, u32."""
        return self.address()

    def bind(self, stages: int) -> None:
        """Make room for so many of it, for a ring."""
        if self.storage.variable is not None or self.storage.stages != 1:
            raise error("SML0354", tile=self.storage.name)
        self.storage.stages = stages
        self.storage.allocate(current())

    def staged(self, stage: Scalar, slot: Any) -> Shared:
        """The one that lies in a ring's stage."""
        return replace(self, stage=stage, slot=slot)

    def address(self) -> Value:
        """Where it starts, u32. A start inside a stripe is left out: see `inside`."""
        trace, g = current(), self.geometry
        total = shared_address(self.storage.allocate(trace))
        total = total + self.stage * g.bytes
        total = total + self.line * g.span
        if isinstance(self.along, int):
            return total + self.along // g.stripe * g.stripe_bytes  # type: ignore[no-any-return]
        return total + self.along // g.stripe * g.stripe_bytes  # type: ignore[no-any-return]

    @property
    def inside(self) -> int:
        """Elements from the start of the stripe to the first one."""
        return self.along % self.geometry.stripe if isinstance(self.along, int) else 0

    # registers <-> shared memory

    def set(self, array: Array) -> None:
        """Store a register array of the same shape and dtype, by the warpgroup that runs here.

        Implied: a wait until TMA stores from this tile have read it, a barrier of the warpgroup before, and,
        by whoever reads it next, a fence or barrier after.
        """
        check_array(array, self.shape, self.dtype, "set")
        trace, storage = current(), self.storage
        if self.slot is None:  # a ring's stage is given back by its readers
            bulk.written(storage)
        sync_warpgroup()
        trace.note("barrier", f"the warpgroup, before {storage.name} is overwritten")
        if self.axis == 1 and array.dtype.bits == 16 and _by_matrices(array.distribution):
            self._store_matrices(array)
        else:
            self._store_plain(array)
        storage.unfenced = storage.unsynchronised = True
        for earlier, tensor in storage.reads:  # reads that come round again after this write
            if trace.region.shares_loop(earlier.region):
                with trace.at(earlier):
                    self._order(tensor)
        storage.reads.clear()
        storage.unfenced = storage.unsynchronised = True

    def get(self, distribution: Distribution) -> Array:
        """Load into registers in the given distribution. Implied: a barrier if threads wrote the tile before."""
        check_distribution(distribution, self.shape, "get")
        self.publish(tensor=False)
        trace = current()
        places = self._places(units(distribution, self.dtype.bits, self.axis), distribution)
        registers = load_units("shared::cta", self.dtype, distribution.elements, places)
        return Array(self.dtype, distribution, registers, trace.region)

    def publish(self, *, tensor: bool) -> None:
        """Make what threads wrote visible to the warpgroup, and with `tensor` to TMA and tensor cores."""
        storage = self.storage
        if storage.unfenced if tensor else storage.unsynchronised:
            self._order(tensor)
        else:
            storage.reads.append((current().later(), tensor))

    def _order(self, tensor: bool) -> None:
        trace, storage = current(), self.storage
        if tensor:
            proxy_fence()
            trace.note("fence", f"proxy fence: {storage.name} was written by threads")
            storage.unfenced = False
        sync_warpgroup()
        trace.note("barrier", f"the warpgroup, after {storage.name} was written")
        storage.unsynchronised = False

    def _store_plain(self, array: Array) -> None:
        places = self._places(units(array.distribution, self.dtype.bits, self.axis), array.distribution)
        store_units("shared::cta", self.dtype, array.raw, places)

    def _linear(self, row: int, column: int) -> int:
        line, along = (row, column) if self.axis == 1 else (column, row)
        return self.geometry.offset(line, along)

    def _places(
        self, accesses: list[Unit], distribution: Distribution
    ) -> list[tuple[Unit, Register, int, Value | None]]:
        part, mask = thread_part(distribution, self._linear)
        offsets = [self._linear(u.row, u.column) + self._linear_start() for u in accesses]
        return [
            (unit, register, offset, None)
            for unit, (register, offset) in zip(accesses, self._swizzled(part, mask, offsets), strict=True)
        ]

    def _linear_start(self) -> int:
        return self.inside * self.dtype.bits // 8

    def _swizzled(self, part: Any, mask: int, offsets: list[int]) -> list[tuple[Register, int]]:
        """Base register and offset for each static offset; `part` is what the thread adds, `mask` its bits.

        The swizzle is linear over GF(2) and the tile starts at a multiple of its period, so the thread's share is
        swizzled once; a static offset adds its high part and flips its swizzled low part.
        """
        trace, mode = current(), self.swizzle
        period = SWIZZLES[mode].period
        how = SWIZZLES[mode]
        base = self.address()
        if part is None:
            part = 0
        if how.bits and isinstance(part, Value):
            line = (part >> 7) & ((1 << how.bits) - 1)
            part = part ^ (line << how.base)
        start = base + part
        flipped: dict[int, Register] = {}
        found = []
        for offset in offsets:
            low = offset % period
            assert not low & mask, "a thread's share and a static offset use different address bits"
            flip = int(swizzle_address(np.array([low], np.int64), mode)[0])
            if flip not in flipped:
                flipped[flip] = trace.read(start ^ flip if flip else start)
            found.append((flipped[flip], offset - low))
        return found

    def _store_matrices(self, array: Array) -> None:
        """stmatrix.x4: four 8x8 matrices, of which lane l gives the address of row l % 8 of matrix l / 8."""
        trace = current()
        registers, positions = array.raw, array.distribution.positions[::2]
        lane = lane_index()
        warp_row = (thread_of_warpgroup() >> 5) * self._linear(16, 0)
        part = warp_row + (lane & 7) * self._linear(1, 0) + ((lane >> 3) & 1) * self._linear(8, 0)
        part = part + (lane >> 4) * self._linear(0, 8)
        mask = self._linear(7, 0) | self._linear(8, 0) | self._linear(0, 8) | self._linear(16, 0) | self._linear(32, 0)
        starts = [self._linear(*map(int, positions[i])) + self._linear_start() for i in range(0, len(registers), 4)]
        for i, (register, offset) in enumerate(self._swizzled(part, mask, starts)):
            target = trace.builder.address(register, offset)
            four = registers[4 * i : 4 * i + 4]
            trace.emit("stmatrix.sync.aligned.m8n8.x4.shared::cta.b16", target, list(four))


@lru_cache(maxsize=64)
def _by_matrices(distribution: Distribution) -> bool:
    """Whether registers hold 8x8 matrices as stmatrix takes them, four in the order of an accumulator."""
    p = distribution.positions
    if distribution.digits != ((1, 4, 0, 2), (4, 8, 1, 0), (32, 4, 16, 0)) or len(p) % 8:
        return False
    steps = p.reshape(-1, 8, 2) - p.reshape(-1, 8, 2)[:, :1]
    order = np.array([[0, 0], [0, 1], [8, 0], [8, 1], [0, 8], [0, 9], [8, 8], [8, 9]])
    return bool((steps == order).all() and not (p[::8, 1] % 16).any())


def shared(shape: tuple[int, int], dtype: DType, *, axis: int = 1, swizzle: str = "", name: str = "") -> Shared:
    """A tile in shared memory: `shape` (rows, columns), `axis` the contiguous one, swizzle the widest that fits.

    Errors: SML0331 if a line is no multiple of 16 bytes or of the swizzle's span, SML0412 an unknown swizzle.
    """
    trace = current()
    along, lines = shape[axis], shape[1 - axis]
    if not swizzle:
        swizzle = choose_swizzle(along, dtype.bits, PREFERRED if lines % 8 == 0 else PREFERRED[-1:])
    elif swizzle not in PREFERRED:
        raise error("SML0412", swizzle=swizzle, where="a tile in shared memory", known=list(PREFERRED))
    elif along * dtype.bits % (SWIZZLES[swizzle].span * 8):
        raise error("SML0331", elements=along, bits=dtype.bits, nearest=SWIZZLES[swizzle].span * 8 // dtype.bits)
    if lines % 8 and swizzle != "none":
        raise error("SML0333", what="rows" if axis else "columns", part=lines, unit=8, tile=name or "tile")
    name = trace.unique(name or "tile")
    return Shared(Storage(name, Geometry(lines, along, dtype, swizzle), dtype, shape), shape, axis)
