"""Tensor memory of Blackwell: its allocation, matrices in it, copies from shared memory, loads to and stores from
registers. Products are issued in `tcgen05`; scale factors are in `scales`, sparse metadata in `metadata`.

All columns that a kernel uses are allocated at its start by one warp and freed at its end (PTX ISA 9.7.16.7).
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from smalti.errors import error
from smalti.lang.arrays import Array, check_array
from smalti.lang.barriers import cluster_sync, shared_address
from smalti.lang.distribution import Distribution
from smalti.lang.dtypes import DType, dtype
from smalti.lang.shared import Shared
from smalti.lang.tensors import Tiles
from smalti.lang.threads import warp_index
from smalti.lang.trace import Trace, current
from smalti.lang.values import Scalar, Value, fresh
from smalti.lang.wgmma import MatrixOperand
from smalti.layout.linear import Layout
from smalti.ptx.module import Address, Tile

__all__ = ["Allocation", "Part", "TensorMemory", "allocation", "tensor_memory"]

COLUMNS = 512  # of 32 bits, in each of 128 lanes (PTX ISA 9.7.16.1)
LANES = 128
_LEAST = 32  # columns that can be allocated; more go in powers of two
_WIDEST = 32  # registers of one tcgen05.ld or .st that we emit
_FRAGMENT = 8  # columns of one .16x256b.x1, 4 registers


@dataclass(eq=False)
class Allocation:
    """The columns of a kernel. `group` is the cta_group of all its tcgen05 instructions: 2 for a CTA pair."""

    trace: Trace
    group: int
    used: int = 0
    names: list[tuple[str, int, int]] = field(default_factory=list)
    base: Any = None  # the address, u32

    def take(self, name: str, columns: int, *, shrink: str = "") -> int:
        """Columns for one thing; the first. Errors: SML0700 with the largest size that fits, named by `shrink`."""
        if self.used + columns > COLUMNS:
            raise error(
                "SML0700", what=name, columns=columns, used=self.used, total=self.used + columns, limit=COLUMNS,
                nearest=shrink or f"{COLUMNS - self.used} columns",
            )  # fmt: skip
        first, self.used = self.used, self.used + columns
        self.names.append((name, first, columns))
        return first

    @property
    def size(self) -> int:
        """What is allocated: a power of two."""
        return max(_LEAST, 1 << math.ceil(math.log2(max(self.used, 1))))

    def _at_start(self) -> None:
        trace = self.trace
        with trace.open_if(warp_index() == 0, "setup"):
            trace.emit(
                f"tcgen05.alloc.cta_group::{self.group}.sync.aligned.shared::cta.b32",
                Address(trace.read(shared_address(self.variable))),
                self.size,
            )
            trace.emit(f"tcgen05.relinquish_alloc_permit.cta_group::{self.group}.sync.aligned")

    def _at_end(self) -> None:
        trace = self.trace
        trace.emit("tcgen05.fence::before_thread_sync")
        if self.group == 2:
            cluster_sync()
        else:
            trace.emit("bar.sync", 0)
        with trace.open_if(warp_index() == 0, "setup"):
            trace.emit("tcgen05.fence::after_thread_sync")
            trace.emit(f"tcgen05.dealloc.cta_group::{self.group}.sync.aligned.b32", self.base, self.size)
        trace.note("dealloc", f"{self.size} columns of tensor memory, {self.used} of them used")
        trace.module.tiles += [Tile(name, "tensor", first, columns) for name, first, columns in self.names]
        trace.plan.tensor_columns = self.used

    def start(self) -> None:
        """Declare it; the address is read after the kernel's first barrier."""
        trace = self.trace
        self.variable = trace.shared_variable("tensor_memory_address", "b32", (1,), 4)
        trace.at_setup.append(self._at_start)
        trace.finishers.append(self._at_end)
        with trace.at(trace.ready):
            trace.emit("tcgen05.fence::after_thread_sync")
            self.base = fresh("u32")
            trace.emit("ld.shared::cta.u32", self.base, Address(trace.read(shared_address(self.variable))))


def allocation(*, pair: bool | None = None) -> Allocation:
    """The kernel's allocation, made at its first use. Errors: SML0701 not Blackwell, SML0702 pairs and single CTAs
    mixed or no pair of CTAs."""
    trace = current()
    if not trace.arch.startswith(("sm_100", "sm_103")):
        raise error("SML0701", arch=trace.arch)
    found: Allocation | None = trace.cached.get("tensor memory")
    if found is None:
        group = 2 if pair else 1
        if group == 2 and trace.cluster != (2, 1, 1):
            raise error("SML0702", what="a CTA pair", have=f"cluster {trace.cluster}", wanted="cluster=(2, 1, 1)")
        found = trace.cached["tensor memory"] = Allocation(trace, group)
        found.start()
    elif pair is not None and (found.group == 2) != pair:
        have, wanted = ("pairs", "pair=True") if found.group == 2 else ("single CTAs", "pair=False")
        raise error("SML0702", what="tensor memory", have=f"{have} before", wanted=wanted)
    return found


@dataclass(frozen=True, slots=True, eq=False)
class TensorMemory:
    """A matrix in tensor memory, or a part of it: `shape` (rows, columns) of `dtype`.

    Rows come in tiles of one instruction's M: 64 or 128, on a pair 128 or 256; tiles lie behind each other in columns.
    As an accumulator it is what `mma` adds to; as operand A its elements are packed.
    """

    name: str
    whole: tuple[int, int]
    shape: tuple[int, int]
    dtype: DType
    owner: Allocation
    per_stage: int
    tile: int  # rows of one tile
    row: Scalar = 0  # where the part begins: tile, column (in elements)
    column: Scalar = 0
    stage: Scalar = 0
    slot: Any = None
    box: Any = None  # columns are taken when a channel has said how many it needs

    def __repr__(self) -> str:
        return f"<tensor memory {self.name}, {self.shape[0]}x{self.shape[1]} {self.dtype.name}>"

    in_tensor_memory = True

    @property
    def group(self) -> int:
        return self.owner.group

    @property
    def tiles(self) -> int:
        return self.shape[0] // self.tile

    @property
    def tile_columns(self) -> int:
        """Columns that one row tile takes."""
        return _tile_columns(self.tile, self.group, self.whole[1], self.dtype)

    @property
    def columns_taken(self) -> int:
        """Columns of all its stages."""
        return self.per_stage * int(self.box.stages)

    @property
    def split_lanes(self) -> bool:
        """Whether the right half of the columns lies below the left one (layout B: M 128 on a pair)."""
        return self.group == 2 and self.tile == 128

    def rows(self, g: Scalar, n: int) -> TensorMemory:
        """Rows g*n to g*n + n - 1: whole tiles; g may be a value. Errors: SML0332, SML0703."""
        self._divides("rows", 0, g, n)
        if n % self.tile:
            raise error("SML0703", what="rows", part=n, unit=self.tile, name=self.name)
        return replace(self, shape=(n, self.shape[1]), row=self.row + g * (n // self.tile))

    def columns(self, g: Scalar, n: int) -> TensorMemory:
        """Columns g*n to g*n + n - 1; g may be a value. Errors: SML0332, SML0703."""
        self._divides("columns", 1, g, n)
        unit = self.whole[1] if self.split_lanes else max(8, 32 // self.dtype.bits)
        if n % unit:
            raise error("SML0703", what="columns", part=n, unit=unit, name=self.name)
        return replace(self, shape=(self.shape[0], n), column=self.column + g * n)

    def _divides(self, what: str, axis: int, g: Scalar, n: int) -> None:
        size = self.shape[axis]
        if n <= 0 or size % n or (isinstance(g, int) and not 0 <= g < size // n):
            raise error("SML0332", what=what, part=n, whole=size, tile=self.name)

    # -- of a channel -----------------------------------------------------------------------------------

    def bind(self, stages: int) -> None:
        """Make room for so many of it, for a channel."""
        self.box.bind(self, stages)

    def staged(self, stage: Scalar, slot: Any) -> TensorMemory:
        return replace(self, stage=stage, slot=slot)

    def acquired(self) -> None:
        """A barrier was waited for: tensor-memory accesses follow what it told of (PTX ISA 9.7.16.6.2)."""
        current().emit("tcgen05.fence::after_thread_sync")

    # -- addresses --------------------------------------------------------------------------------------

    def address(self, tile: Scalar = 0, column: Scalar = 0) -> Value:
        """Tensor-memory address of column `column` (elements) of row tile `tile`, lane 0, u32."""
        base: Value = self.owner.base
        parts = (
            self.box.place(self),
            self.stage * self.per_stage,
            (self.row + tile) * self.tile_columns,
            (self.column + column) * self.dtype.bits // 32,
        )
        fixed = sum(p for p in parts if isinstance(p, int))
        for p in parts:
            if isinstance(p, Value):
                base = base + p
        return base + fixed  # type: ignore[no-any-return]

    @property
    def raw(self) -> Value:
        return self.address()

    # -- products ---------------------------------------------------------------------------------------

    def mma(self, a: Any, b: Any, *, add: Scalar, **options: Any) -> None:
        """Issue self = a @ b (+ self where `add` holds); see `smalti.lang.tcgen05.mma`."""
        from smalti.lang.tcgen05 import mma

        mma(self, a, b, add=add, **options)

    # -- registers --------------------------------------------------------------------------------------

    def split(self, columns: int = 32) -> Iterator[Part]:
        """Parts of one row tile and at most `columns` columns, each of which one warpgroup loads at once. Where the
        right half of the columns lies in other lanes (M 128 on a pair) a part has all columns."""
        width = self.part_columns(columns)
        for tile in range(self.tiles):
            for p in range(self.shape[1] // width):
                yield Part(self, tile, p, width)

    def part_columns(self, columns: int = 32) -> int:
        """Columns of each part that `split` gives."""
        return self.shape[1] if self.split_lanes else math.gcd(columns, self.shape[1])

    def part(self, tile: Scalar, index: Scalar, columns: int) -> Part:
        """One of the parts of `split(columns)`, by row tile and number, which may be values."""
        return Part(self, tile, index, self.part_columns(columns))

    def copy(self, source: Any) -> None:
        """Copy a shared tile of the same shape and dtype here by tcgen05.cp, in the thread that issues the products
        that use it. On a pair each CTA copies its own tile of half the rows of every row tile.

        Asynchronous: later products of this thread follow it; others learn of it by `tcgen05.commit`.
        Errors: SML0334, SML0330, SML0303, SML0709 rows that no copy spreads, SML0715 not the pair's, SML0717.
        """
        _copy(self, source)

    def load(self) -> Array:
        """All of it in registers of this warpgroup; it must be one row tile. Errors: SML0704."""
        return self._only().load()

    def store(self, array: Array) -> None:
        """Store a register array in the distribution that `load` gives. Errors: SML0704, SML0330, SML0303, SML0307."""
        self._only().store(array)

    def _only(self) -> Part:
        if self.tiles != 1:
            raise error("SML0704", name=self.name, tiles=self.tiles)
        return Part(self, 0, 0, self.shape[1])

    @property
    def distribution(self) -> Distribution:
        """How `load` spreads one row tile over the warpgroup."""
        return part_distribution(self.tile, self.group, self.shape[1], self.dtype.per_register)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """One row tile by `width` columns of tensor memory: the unit of loads and stores."""

    memory: TensorMemory
    tile: Scalar
    index: Scalar
    width: int

    @property
    def shape(self) -> tuple[int, int]:
        m = self.memory
        return (m.tile // m.group, self.width)

    @property
    def distribution(self) -> Distribution:
        """How `load` spreads it over the warpgroup."""
        m = self.memory
        return part_distribution(m.tile, m.group, self.width, m.dtype.per_register)

    def _moves(self) -> list[tuple[str, int, Value]]:
        """(shape, registers, address) of the instructions, in order of the columns. Errors: SML0705, SML0703."""
        m, trace = self.memory, current()
        threads = trace.region.threads
        if threads.single or threads.warps != 4:
            raise error("SML0705", name=m.name, threads=threads.describe())
        cells = self.width * m.dtype.bits // 32
        base = m.address(self.tile, self.index * self.width) + ((warp_index() & 3) << 21)
        if m.tile == 64:
            if cells % _FRAGMENT:
                unit = _FRAGMENT * 32 // m.dtype.bits
                raise error("SML0703", what="columns", part=self.width, unit=unit, name=m.name)
            step = math.gcd(cells // _FRAGMENT, _WIDEST // 4)
            return [("16x256b", 4 * step, base + c) for c in range(0, cells, _FRAGMENT * step)]
        if m.split_lanes:
            cells //= 2
        step = math.gcd(cells, _WIDEST)
        return [("32x32b", step, base + c) for c in range(0, cells, step)]

    def load(self) -> Array:
        """tcgen05.ld and wait::ld: a register array, a row for each thread (M 64: as wgmma gives them)."""
        m, trace = self.memory, current()
        type_ = m.dtype.register if m.dtype.bits == 32 else "b32"
        registers = []
        for shape, count, address in self._moves():
            new = [trace.register(type_) for _ in range(count)]
            repeat = count // 4 if shape == "16x256b" else count
            trace.emit(f"tcgen05.ld.sync.aligned.{shape}.x{repeat}.b32", new, cell(address))
            registers += new
        trace.emit("tcgen05.wait::ld.sync.aligned")
        if m.slot is not None:
            m.slot.before_arrive = _publish
        trace.note("wait", f"tcgen05.wait::ld, {m.name}")
        return Array(m.dtype, self.distribution, registers, trace.region)

    def store(self, array: Array) -> None:
        """tcgen05.st and wait::st, then fence::before_thread_sync for whoever is told next."""
        m, trace, wanted = self.memory, current(), self.distribution
        check_array(array, wanted.shape, m.dtype, "store")
        if array.distribution != wanted:
            raise error("SML0307", left=str(array.distribution), right=str(wanted))
        registers = array.raw
        for shape, count, address in self._moves():
            some, registers = registers[:count], registers[count:]
            repeat = count // 4 if shape == "16x256b" else count
            trace.emit(f"tcgen05.st.sync.aligned.{shape}.x{repeat}.b32", cell(address), list(some))
        trace.emit("tcgen05.wait::st.sync.aligned")
        _publish()
        trace.note("wait", f"tcgen05.wait::st, {m.name}")


def cell(address: Value) -> Address:
    """A tensor-memory address as an operand: ptxas wants it in an untyped register."""
    trace = current()
    untyped = trace.register("b32")
    trace.emit("mov.b32", untyped, address)
    return Address(untyped)


def _publish() -> None:
    """What this thread has waited for of its own tensor-memory accesses is told by its next arrival."""
    current().emit("tcgen05.fence::before_thread_sync")


def _copy(memory: TensorMemory, source: Any) -> None:
    from smalti.lang.tcgen05 import commit, issuing

    trace, group = current(), memory.group
    if not isinstance(source, Shared):
        raise error("SML0334", what="copy", wanted="a shared tile", given=type(source).__name__)
    if source.halves != (memory.tile if group == 2 else 0):
        have, fits = (f"halves of {n} rows" if n else "whole" for n in (source.halves, memory.tile * (group - 1)))
        raise error("SML0715", operand="copied", tile=source.storage.name, have=have, wanted=fits)
    wanted = (memory.shape[0] // group, memory.shape[1])
    if source.shape != wanted:
        raise error("SML0330", what="shared tile", have=source.shape, wanted=wanted)
    if source.dtype is not memory.dtype:
        raise error("SML0303", op="copy", left=memory.dtype.name, right=source.dtype.name)
    bits = memory.dtype.bits
    units = memory.shape[1] * bits // 128
    if memory.tile // group != LANES or source.axis != 1 or memory.shape[1] * bits % 128:
        raise error("SML0709", name=memory.name, shape=memory.shape, tile=memory.tile // group)
    shape, step = ("128x256b", 256 // bits) if units % 2 == 0 else ("128x128b", 128 // bits)
    source.publish(tensor=True)
    if source.slot is not None:
        source.slot.completion = commit
    if memory.slot is not None:
        memory.slot.completion = commit
    operand = MatrixOperand(source, True, LANES, step)
    with issuing(trace):
        for tile in range(memory.tiles):
            for column in range(0, memory.shape[1], step):
                target = cell(memory.address(tile, column))
                trace.emit(f"tcgen05.cp.cta_group::{group}.{shape}", target, operand.at(tile * LANES, column))
    count = memory.tiles * memory.shape[1] // step
    trace.note("tcgen05.cp", f"{count} x {shape}: {source.storage.name} to {memory.name}")


@lru_cache(maxsize=128)
def part_distribution(tile: int, group: int, columns: int, packed: int = 1) -> Distribution:
    """Of one row tile of `columns` columns over a warpgroup, `packed` elements in a register (PTX ISA 9.7.16.8, tables
    of .32x32b and .16x256b)."""
    threads: list[tuple[int, dict[str, int]]]
    registers: list[tuple[int, dict[str, int]]]
    if tile == 64:
        threads = [(4, {"n": 2 * packed}), (8, {"m": 1}), (4, {"m": 16})]
        registers = [(2, {"n": packed}), (2, {"m": 8}), (columns // packed // _FRAGMENT, {"n": _FRAGMENT * packed})]
    elif group == 2 and tile == 128:  # layout B: warps 2 and 3 hold the right half
        threads, registers = [(64, {"m": 1}), (2, {"n": columns // 2})], [(columns // 2 // packed, {"n": packed})]
    else:
        threads, registers = [(128, {"m": 1})], [(columns // packed, {"n": packed})]
    fragment = Layout({"thread": threads, "register": registers, "part": [(packed, {"n": 1})]}, ["m", "n"])
    name = "accumulator" if tile == 64 and packed == 1 else "tensor memory"
    return Distribution(name, (tile // group, columns), tile // group, columns, fragment)


class _Box:
    """Takes the columns once it is known how many stages there are."""

    def __init__(self) -> None:
        self.first: int | None = None
        self.stages = 0

    def bind(self, memory: TensorMemory, stages: int) -> None:
        if self.first is None:
            columns = memory.per_stage * stages
            self.stages = stages
            self.first = memory.owner.take(memory.name, columns, shrink=_largest(memory, stages))
            stages_text = f"{stages} x " if stages > 1 else ""
            memory.owner.trace.plan.registers.append(
                f"tensor memory {memory.name}: {stages_text}{memory.whole[0]}x{memory.whole[1]} {memory.dtype.name}, "
                f"{columns} columns"
            )

    def place(self, memory: TensorMemory) -> int:
        self.bind(memory, 1)
        assert self.first is not None
        return self.first


def _largest(memory: TensorMemory, stages: int) -> str:
    """The widest of this height that fits, as text."""
    free = COLUMNS - memory.owner.used
    tiles = memory.whole[0] // memory.tile
    most = free // (tiles * stages) * memory.whole[1] // memory.tile_columns // 16 * 16
    return f"{memory.whole[0]}x{most}" if most > 0 else f"{free} columns"


def _tile_columns(tile: int, group: int, columns: int, kind: DType) -> int:
    cells = columns * kind.bits // 32
    return cells // 2 if group == 2 and tile == 128 and kind.bits == 32 else cells


def tensor_memory(
    of: Tiles | tuple[int, int], kind: DType | str = "f32", *, pair: bool = False, tile: int = 0, name: str = ""
) -> TensorMemory:
    """Room in tensor memory for a tile of `of` (tiles of a tensor, or a shape), as an accumulator or operand A.

    kind   f32 or s32 for accumulators; 8-, 16- or 32-bit types for operand A, packed along K
    pair   shared with the other CTA of a pair: the shape is the pair's, each CTA holds half of every row tile
    tile   rows of one instruction; chosen if 0: the largest of 128, 64 (256, 128 on a pair) that divides the rows

    Errors: SML0700 columns, SML0701 architecture, SML0702 pair, SML0706 shape, SML0707 dtype.
    """
    trace, to = current(), dtype(kind)
    shape = tuple(of.tile[-2:]) if isinstance(of, Tiles) else tuple(of)
    owner = allocation(pair=pair)
    if to.bits not in (8, 16, 32):
        raise error(
            "SML0707", dtype=to.name, wanted="f32 or s32 (accumulators), 8-, 16- or 32-bit elements (operand A)"
        )
    legal = (256, 128) if pair else (128, 64)
    rows, columns = shape
    if not tile:
        tile = next((t for t in legal if rows % t == 0 and rows > 0), 0)
    split = pair and tile == 128  # the lanes of one instruction's columns: layout B
    step = 32 // to.bits * (16 if split else 8)
    most = 256 if split else COLUMNS * step
    if tile not in legal or rows <= 0 or rows % tile or not 0 < columns <= most or columns % step:
        up = (max(-(-rows // legal[-1]), 1) * legal[-1], min(max(-(-columns // step), 1) * step, most))
        limit = " up to 256 (M 128 on a pair)" if split else ""
        raise error("SML0706", shape=shape, rows=" or ".join(map(str, legal)), step=f"{step}{limit}", nearest=up)
    unique = trace.unique(name or (of.tensor.name if isinstance(of, Tiles) else "tensor_memory"))
    made = matrix(unique, (rows, columns), to, owner, tile)
    trace.cached.setdefault("accumulators", []).append(made)
    return made


def matrix(name: str, shape: tuple[int, int], kind: DType, owner: Allocation, tile: int) -> TensorMemory:
    """Room for `shape` in row tiles of `tile` rows, without the checks of `tensor_memory`."""
    per_stage = shape[0] // tile * _tile_columns(tile, owner.group, shape[1], kind)
    return TensorMemory(name, shape, shape, kind, owner, per_stage, tile, box=_Box())
