"""Tensors in global memory: sizes, tiles by index, plain loads and stores of register arrays with bounds.

TMA copies of tiles are in `tma`. A tensor knows its static facts; sizes, strides and pointers are run-time values.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from smalti.errors import error
from smalti.lang import grid
from smalti.lang.access import Unit, load_units, store_units, thread_part, units
from smalti.lang.arrays import Array, check_array, check_distribution
from smalti.lang.control import Range
from smalti.lang.distribution import Distribution
from smalti.lang.dtypes import DType
from smalti.lang.shared import Shared, shared
from smalti.lang.signature import BULK, Facts, Operand
from smalti.lang.threads import cluster_rank
from smalti.lang.trace import current
from smalti.lang.values import Scalar, Value, as_value, cdiv, fresh
from smalti.ptx.module import Address, Register

__all__ = ["Tensor", "Tile", "Tiles"]


@dataclass(frozen=True, slots=True, eq=False)
class Tensor:
    """A tensor argument. `shape` are run-time sizes (u32 values, or ints where the signature says a number)."""

    operand: Operand
    facts: Facts

    def __repr__(self) -> str:
        return f"<tensor {self.operand.name}[{','.join(map(str, self.operand.dims))}] {self.dtype.name}>"

    @property
    def name(self) -> str:
        return self.operand.name

    @property
    def dtype(self) -> DType:
        return self.facts.dtype

    @property
    def rank(self) -> int:
        return len(self.operand.dims)

    @property
    def axis(self) -> int:
        """The contiguous dimension."""
        return self.facts.axis % self.rank

    @property
    def bulk(self) -> bool:
        """Whether TMA can move its tiles: address and pitches (and, if written, lines) are multiples of 16 bytes."""
        return self.facts.alignment >= BULK

    @property
    def shape(self) -> tuple[Any, ...]:
        trace = current()
        return tuple(trace.parameters.size(trace, d) if isinstance(d, str) else d for d in self.operand.dims)

    @property
    def pointer(self) -> Value:
        """Address of its first element, u64."""
        trace = current()
        return trace.parameters.pointer(trace, self.name)

    def stride(self, axis: int) -> Any:
        """Bytes from one index to the next along `axis`: an int for the contiguous one, else a u64 value."""
        trace = current()
        axis %= self.rank
        return self.dtype.bytes if axis == self.axis else trace.parameters.stride(trace, self.name, axis)

    def scalar(self) -> Value:
        """Its first element, f32 or a 32-bit integer; loaded once, at the kernel's start. Errors: SML0308."""
        trace = current()
        if not self.dtype.native or self.dtype.bits != 32:
            raise error("SML0308", op="scalar()", dtype=self.dtype.name)

        def load() -> Value:
            value = fresh(self.dtype.name)
            current().emit(f"ld.global.nc.{self.dtype.register}", value, Address(current().read(self.pointer)))
            return value

        found: Value = trace.once(("scalar", self.name), load)
        return found

    def tiles(self, *shape: int) -> Tiles:
        """The tensor as a grid of tiles of this shape; the last ones may reach over the edge.

        One size a dimension, Python ints; all but the last two must be 1. Errors: SML0340.
        """
        if len(shape) != self.rank or any(not isinstance(n, int) or n <= 0 for n in shape):
            raise error("SML0340", tensor=self.name, rank=self.rank, shape=shape)
        if any(n != 1 for n in shape[:-2]):
            raise error("SML0340", tensor=self.name, rank=self.rank, shape=shape)
        return Tiles(self, shape)


@dataclass(frozen=True, slots=True, eq=False)
class Tiles:
    """A tensor cut into tiles: `tiles[i, j]` is one, `tiles.range(1)` loops over the tiles along dimension 1."""

    tensor: Tensor
    tile: tuple[int, ...]

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype

    @property
    def shape(self) -> tuple[Any, ...]:
        """Number of tiles along each dimension."""
        return tuple(cdiv(n, t) for n, t in zip(self.tensor.shape, self.tile, strict=True))

    def counts(self) -> list[grid.Expression]:
        """The same for the host."""
        return [
            grid.cdiv(d, t) if isinstance(d, str) else -(-d // t)
            for d, t in zip(self.tensor.operand.dims, self.tile, strict=True)
        ]

    def range(self, axis: int) -> Range:
        """A run-time loop over the tiles along a dimension."""
        return Range(0, self.shape[axis], 1)

    def __getitem__(self, index: Any) -> Tile:
        """The tile at these tile indices (values or ints). Errors: SML0341 for a wrong number of them."""
        indices = index if isinstance(index, tuple) else (index,)
        if len(indices) != self.tensor.rank or any(isinstance(i, slice) for i in indices):
            raise error("SML0341", tensor=self.tensor.name, rank=self.tensor.rank, given=len(indices))
        origin = tuple(i * t for i, t in zip(indices, self.tile, strict=True))
        rows, columns = self.tile[-2:] if len(self.tile) > 1 else (1, self.tile[0])
        return Tile(self.tensor, origin, (rows, columns))

    def shared(self, *, swizzle: str = "", name: str = "", halves: int = 0, all_scales: bool = False) -> Any:
        """A tile of this shape and dtype in shared memory, contiguous along the tensor's contiguous dimension.

        Of a block-scaled tensor with room for its scales (`scaled.Scaled`). `halves`: on a CTA pair, each CTA holds
        its half of every so many rows (of A: a row tile; of B: the N of an instruction), and with `all_scales` (B) the
        scales of all of them. Errors: SML0725.
        """
        tensor = self.tensor
        shape = self.tile[-2:] if tensor.rank > 1 else (1, self.tile[0])
        axis = 1 if tensor.axis == tensor.rank - 1 else 0
        if axis == 0 and tensor.axis != tensor.rank - 2:
            raise error("SML0342", tensor=tensor.name, axis=tensor.axis)
        rows = shape[0]
        if halves:
            if rows % halves or halves % 2 or current().cluster != (2, 1, 1):
                raise error("SML0725", tensor=tensor.name, rows=rows, halves=halves, cluster=current().cluster)
            rows //= 2
        made = shared((rows, shape[1]), tensor.dtype, axis=axis, swizzle=swizzle, name=name or tensor.name)
        made = replace(made, halves=halves)
        if tensor.operand.scaled:
            from smalti.lang.scaled import scaled_tile

            return scaled_tile(made, tensor, shape[0] if all_scales else rows, everywhere=all_scales or not halves)
        return made


@dataclass(frozen=True, slots=True, eq=False)
class Tile:
    """A tile of a tensor, by reference: `origin` (elements, one a dimension of the tensor), `shape` (rows, columns)."""

    tensor: Tensor
    origin: tuple[Scalar, ...]
    shape: tuple[int, int]

    def __repr__(self) -> str:
        return f"<{self.shape[0]}x{self.shape[1]} tile of {self.tensor.name}>"

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype

    @property
    def bytes(self) -> int:
        """Bytes of the whole tile, which a TMA load transfers even over the edge (H200, E11)."""
        return self.shape[0] * self.shape[1] * self.dtype.bits // 8

    def rows(self, g: Scalar, n: int) -> Tile:
        """Rows g*n to g*n + n - 1 of the tile."""
        return self._part(-2, g, n)

    def columns(self, g: Scalar, n: int) -> Tile:
        """Columns g*n to g*n + n - 1 of the tile."""
        return self._part(-1, g, n)

    def _part(self, axis: int, g: Scalar, n: int) -> Tile:
        size = self.shape[axis]
        if n <= 0 or size % n or (isinstance(g, int) and not 0 <= g < size // n):
            what = "rows" if axis == -2 else "columns"
            raise error("SML0332", what=what, part=n, whole=size, tile=self.tensor.name)
        if n == size:
            return self
        origin, shape = list(self.origin), list(self.shape)
        origin[axis] = origin[axis] + g * n
        shape[axis] = n
        return replace(self, origin=tuple(origin), shape=(shape[0], shape[1]))

    def like(self, part: Any) -> Tile:
        """The part of this tile where `part` of an accumulator belongs (`TensorMemory.split`)."""
        m = part.memory
        rank = cluster_rank() & 1 if m.group == 2 else 0
        rows = self.rows(part.tile * m.group + rank, part.shape[0])
        return rows.columns(part.index, part.width)

    def store(self, source: Any) -> None:
        """Write the tile; what lies over the edge is not written.

        From shared memory: one TMA copy, after a proxy fence and a barrier of the warpgroup that wrote it. From a
        register array: ordinary stores with a predicate each. Errors: SML0330 shape, SML0303 dtype, SML0343 TMA
        where lines are no multiple of 16 bytes, SML0344 a tensor that the signature only reads.
        """
        if not self.tensor.operand.written:
            raise error("SML0344", tensor=self.tensor.name)
        if isinstance(source, Shared):
            from smalti.lang.tma import store

            store(self, source)
        elif isinstance(source, Array):
            self._store_array(source)
        else:
            raise error(
                "SML0334", what="store", wanted="a shared tile or a register array", given=type(source).__name__
            )

    def load(self, distribution: Distribution) -> Array:
        """Load into registers by ordinary loads; what lies over the edge reads as zero."""
        check_distribution(distribution, self.shape, "load")
        places = self._places(distribution, write=False)
        current().note("load", f"ordinary loads of {self.tensor.name}, with bounds")
        registers = load_units("global", self.dtype, distribution.elements, places)
        return Array(self.dtype, distribution, registers, current().region)

    def _store_array(self, array: Array) -> None:
        check_array(array, self.shape, self.dtype, "store")
        places = self._places(array.distribution, write=True)
        widest = max(p[0].count for p in places) * self.dtype.bits // 8
        current().note("store", f"ordinary stores of {self.tensor.name}, {widest} bytes each, with bounds")
        store_units("global", self.dtype, array.raw, places)

    def _places(self, distribution: Distribution, *, write: bool) -> list[tuple[Unit, Register, int, Value | None]]:
        """For each access: base register, offset, predicate.

        One base for each line; along the line, offsets are static. Several elements are accessed at once only as
        far as the tensor's alignment goes, which for a written tensor divides its lines' length, too.
        """
        tensor, trace = self.tensor, current()
        axis = 1 if tensor.axis == tensor.rank - 1 else 0
        accesses = units(distribution, self.dtype.bits, axis, min(tensor.facts.alignment, 16))
        if not write and accesses[0].count > 1:
            accesses = units(distribution, self.dtype.bits, axis, self.dtype.bytes)
        row, _ = thread_part(distribution, lambda r, c: r)
        column, _ = thread_part(distribution, lambda r, c: c)
        place = (self.origin[-2] + row if tensor.rank > 1 else row, self.origin[-1] + column)
        line, along = place[1 - axis], place[axis]
        sizes = tensor.shape if tensor.rank > 1 else (1, *tensor.shape)
        lines_left = sizes[-2:][1 - axis]
        base = self._outer_base() + as_value(along, "u32").to("u64") * self.dtype.bytes
        pitch = tensor.stride(axis - 1 if tensor.rank > 1 else 0) if tensor.rank > 1 else 0
        bases: dict[int, tuple[Register, Any]] = {}
        inside: dict[int, Any] = {}
        found: list[tuple[Unit, Register, int, Value | None]] = []
        for unit in accesses:
            n, a = ((unit.row, unit.column), (unit.column, unit.row))[1 - axis]
            if n not in bases:
                at = line + n
                address = base + as_value(at, "u32").to("u64") * pitch if tensor.rank > 1 else base
                bases[n] = (trace.read(as_value(address, "u64")), at < lines_left)
            if a not in inside:
                inside[a] = along + a < sizes[-2:][axis]
            register, line_ok = bases[n]
            here = line_ok & inside[a]
            predicate = None if here is True else as_value(here, "pred")
            found.append((unit, register, a * self.dtype.bytes, predicate))
        return found

    def _outer_base(self) -> Any:
        """The address of the matrix that holds the tile: outer dimensions applied."""
        base = self.tensor.pointer
        for axis, index in enumerate(self.origin[:-2]):
            base = base + as_value(index, "u32").to("u64") * self.tensor.stride(axis)
        return base
