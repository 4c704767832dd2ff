"""Scale factors of block-scaled products: in shared memory as atoms, and in tensor memory, where the tensor core wants
them. Knows no operands; those that bring their own scales are in `scaled`.

An atom is 128 rows x 4 factors, 512 bytes (PTX ISA 9.7.16.10.7), which one tcgen05.cp spreads over four columns.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from smalti.errors import error
from smalti.lang.arrays import Array, check_array
from smalti.lang.barriers import proxy_fence, shared_address
from smalti.lang.distribution import Distribution
from smalti.lang.dtypes import DTYPES, DType, dtype
from smalti.lang.parameters import MapParameter
from smalti.lang.plan import Buffer
from smalti.lang.tensor_memory import COLUMNS, allocation, cell
from smalti.lang.threads import thread_of_warpgroup
from smalti.lang.trace import Trace, current
from smalti.lang.values import Scalar, Value
from smalti.lang.wgmma import matrix_descriptor
from smalti.layout.descriptors import encode_smem
from smalti.layout.linear import Layout
from smalti.ptx.module import Variable

__all__ = ["ScaleMemory", "ScaleTile", "scale_layout", "scale_tile", "scales_name"]

ATOM_ROWS, ATOM_FACTORS, ATOM_BYTES = 128, 4, 512
ATOM_COLUMNS = 4  # of tensor memory
COLUMN_ROWS = 32  # rows whose factors lie in one column
FORMATS = ("ue8m0", "ue4m3")
_ALIGNMENT = 128  # of shared memory that TMA writes (H200, E11)
_WORD = 4  # bytes


def scales_name(tensor: str) -> str:
    """The name of the buffer that holds the scales of a tensor."""
    return f"{tensor}_scales"


class ScaleStorage:
    """Shared memory for scales, or for `stages` of them: [stage, row group, factor group, 512] bytes."""

    def __init__(self, name: str, groups: int, atoms: int) -> None:
        self.name, self.groups, self.atoms = name, groups, atoms
        self.stages = 1
        self.variable: Variable | None = None

    @property
    def bytes(self) -> int:
        return self.groups * self.atoms * ATOM_BYTES

    @property
    def columns(self) -> int:
        """Of tensor memory."""
        return self.groups * self.atoms * ATOM_COLUMNS

    def bind(self, stages: int) -> None:
        self.stages = stages
        self.allocate(current())

    def allocate(self, trace: Trace) -> Variable:
        if self.variable is None:
            self.variable = trace.shared_variable(self.name, "b8", (self.bytes * self.stages,), _ALIGNMENT)
            shape = (self.groups * ATOM_ROWS, self.atoms * ATOM_FACTORS)
            trace.plan.buffers.append(
                Buffer(self.name, shape, "u8", "128x4 scale atoms", self.stages, self.bytes * self.stages)
            )
        return self.variable


@dataclass(frozen=True, slots=True, eq=False)
class ScaleTile:
    """Scale factors of a tile in shared memory: `shape` (rows, factors) of `dtype`, in atoms of 128 x 4.

    Filled by `load` from global memory or by `set` from registers; `to_tensor_memory()` copies them on. Rings can
    hold it.
    """

    storage: ScaleStorage
    shape: tuple[int, int]
    dtype: DType
    stage: Scalar = 0
    slot: Any = None
    group: Scalar = 0  # of 128 rows, where the part begins
    pair: bool = False  # of a CTA pair: rings that hold it belong to both CTAs

    def __repr__(self) -> str:
        return f"<scales {self.storage.name}, {self.shape[0]}x{self.shape[1]} {self.dtype.name}>"

    @property
    def groups(self) -> int:
        """Groups of 128 rows."""
        return -(-self.shape[0] // ATOM_ROWS)

    def rows(self, g: Scalar, n: int) -> ScaleTile:
        """Those of rows g*n to g*n + n - 1; n a multiple of 128. Errors: SML0720, SML0332."""
        if n % ATOM_ROWS:
            raise error("SML0720", rows=n, unit=ATOM_ROWS, nearest=-(-n // ATOM_ROWS) * ATOM_ROWS)
        if n <= 0 or self.shape[0] % n or (isinstance(g, int) and not 0 <= g < self.shape[0] // n):
            raise error("SML0332", what="rows", part=n, whole=self.shape[0], tile=self.storage.name)
        return replace(self, shape=(n, self.shape[1]), group=self.group + g * (n // ATOM_ROWS))

    def bind(self, stages: int) -> None:
        self.storage.bind(stages)

    def staged(self, stage: Scalar, slot: Any) -> ScaleTile:
        return replace(self, stage=stage, slot=slot)

    def address(self) -> Value:
        """Shared address of the first atom, u32."""
        base = shared_address(self.storage.allocate(current()))
        base = base + self.stage * self.storage.bytes
        return base + self.group * (self.storage.atoms * ATOM_BYTES)  # type: ignore[no-any-return]

    @property
    def raw(self) -> Value:
        return self.address()

    # -- filling ----------------------------------------------------------------------------------------

    def load(self, tile: Any) -> None:
        """Copy scales of global memory here.

        From a tensor [row groups, factor groups, 512] of atoms, `tile` naming the first group of each: one TMA copy;
        call it in `ring.put()` in one thread or warp. From a row-major tensor [rows, factors], a tile of this shape:
        ordinary loads by one warpgroup, which rearranges them; what lies over the edge is zero.
        Errors: SML0334, SML0330, SML0303, SML0335, SML0336, SML0343, SML0720 and SML0705 the threads.
        """
        from smalti.lang.tensors import Tile

        if not isinstance(tile, Tile):
            raise error("SML0334", what="load", wanted="a tile of a tensor", given=type(tile).__name__)
        self._same(tile.dtype)
        if tile.tensor.rank == 3 and tile.tensor.operand.dims[-1] == ATOM_BYTES:
            self._load_atoms(tile)
            return
        if tile.shape != self.shape:
            raise error("SML0330", what="tile", have=tile.shape, wanted=self.shape)
        trace = current()
        self._check_threads(trace)
        *outer, row, column = tile.origin
        layout = scale_layout(ATOM_ROWS, self.shape[1])
        for group in range(self.groups):
            at = (*outer, row + group * ATOM_ROWS, column)
            self._store(replace(tile, origin=at, shape=layout.shape).load(layout), group)
        self._written(trace)
        trace.note("copy", f"scales of {tile.tensor.name}: row-major, rearranged into atoms by ordinary accesses")

    def set(self, array: Array) -> None:
        """Store a register array of `scale_layout(rows rounded up to 128, factors)`, 8-bit codes, by one warpgroup.

        So scales of a row-major shared tile come here by `scales.set(shared.get(sm.tcgen05.scale_layout(...)))`.
        Errors: SML0334, SML0330, SML0303, SML0307, SML0705.
        """
        trace, wanted = current(), scale_layout(self.groups * ATOM_ROWS, self.shape[1])
        check_array(array, wanted.shape, None, "set")
        self._same(array.dtype)
        if array.distribution != wanted:
            raise error("SML0307", left=str(array.distribution), right=str(wanted))
        self._check_threads(trace)
        each = self.shape[1] // ATOM_FACTORS
        for group in range(self.groups):
            some = array.raw[group * each : (group + 1) * each]
            self._store(Array(array.dtype, scale_layout(ATOM_ROWS, self.shape[1]), some, trace.region), group)
        self._written(trace)
        trace.note("copy", f"{self.storage.name}: rearranged from registers into atoms")

    def _same(self, given: DType) -> None:
        if given.name not in ("u8", self.dtype.name):
            raise error("SML0303", op="scales", left=self.dtype.name, right=given.name)

    def _check_threads(self, trace: Trace) -> None:
        threads = trace.region.threads
        if threads.single or threads.warps != 4:
            raise error("SML0705", name=self.storage.name, threads=threads.describe())

    def _store(self, array: Array, group: int) -> None:
        """Thread t has row t of the group; four of its factors go to byte t % 32 * 16 + t / 32 * 4 of an atom."""
        trace, row = current(), thread_of_warpgroup()
        place = self.address() + (row & 31) * 16 + (row >> 5) * _WORD
        for atom, word in enumerate(array.raw):
            at = (group * self.storage.atoms + atom) * ATOM_BYTES
            trace.emit("st.shared::cta.b32", trace.builder.address(trace.read(place), at), word)

    def _written(self, trace: Trace) -> None:
        """Tensor cores read it after the next barrier: in a ring that is the stage's."""
        if self.slot is not None:
            self.slot.written_by_threads = True
            return
        proxy_fence()
        trace.note("fence", f"proxy fence: {self.storage.name} was written by threads")

    def _load_atoms(self, tile: Any) -> None:
        from smalti.lang.tma import fetch

        tensor, slot = tile.tensor, self.slot
        if slot is None:
            raise error("SML0335", tile=self.storage.name)
        if not tensor.bulk:
            raise error("SML0343", tensor=tensor.name, alignment=tensor.facts.alignment)
        box = (ATOM_BYTES // _WORD, self.storage.atoms, self.groups)
        spec = MapParameter(tensor.name, "u32", (2, 1, 0), box, "none", pack=_WORD)
        slot.expect(self.groups * self.storage.atoms * ATOM_BYTES)
        fetch(self.address(), spec, [(0, [0, tile.origin[1], tile.origin[0]])], slot)
        current().note("copy", f"scales of {tensor.name}: TMA, already in atoms")

    # -- going on ---------------------------------------------------------------------------------------

    def to_tensor_memory(self) -> ScaleMemory:
        """Copy them to tensor memory by tcgen05.cp, in the thread that issues the products that use them.

        The columns are taken once: the tensor core keeps copies and products of a thread in order. Before, all
        threads that wrote them must have met this one at a barrier. Errors: SML0700, SML0715, SML0717.
        """
        if allocation().group != (2 if self.pair else 1):
            have, wanted = ("of the pair", "of one CTA") if self.pair else ("of one CTA", "of the pair (pair=True)")
            raise error("SML0715", operand="scales", tile=self.storage.name, have=have, wanted=wanted)
        take([self.storage])
        memory = ScaleMemory(self.storage, self.dtype, self.shape, self.group * ATOM_COLUMNS)
        memory.copy(self)
        return memory


def take(storages: list[ScaleStorage], dependent: str = "") -> None:
    """Columns of tensor memory for these, once. Errors: SML0700, with the widest accumulator that leaves room;
    `dependent` names the storage whose rows are the accumulator's columns."""
    trace, owner = current(), allocation()
    taken: dict[str, int] = trace.cached.setdefault("scale columns", {})
    new = [s for s in storages if s.name not in taken]
    wanted = sum(s.columns for s in new)
    if owner.used + wanted > COLUMNS:
        raise error(
            "SML0700", what="scales of " + ", ".join(s.name.removesuffix("_scales") for s in new), columns=wanted,
            used=owner.used, total=owner.used + wanted, limit=COLUMNS, nearest=_narrower(new, owner.used, dependent),
        )  # fmt: skip
    for s in new:
        taken[s.name] = owner.take(s.name, s.columns)


def _narrower(storages: list[ScaleStorage], used: int, dependent: str) -> str:
    """The widest accumulator that leaves room for its scales, as text."""
    accumulators = current().cached.get("accumulators", [])
    if not accumulators:
        return "fewer columns"
    d = accumulators[0]
    rows, columns = d.whole
    for n in range(columns - columns % COLUMN_ROWS, 0, -COLUMN_ROWS):
        scales = sum(s.atoms * ATOM_COLUMNS * (groups_of(n) if s.name == dependent else s.groups) for s in storages)
        if used - d.columns_taken + d.columns_taken * n // columns + scales <= COLUMNS:
            return f"an accumulator of {rows}x{n}"
    return "fewer rows"


def groups_of(rows: int) -> int:
    """Row groups of 128 in which a tile of so many rows lies, wherever among its like it begins."""
    return -(-(rows + ATOM_ROWS - math.gcd(rows, ATOM_ROWS)) // ATOM_ROWS)


@dataclass(frozen=True, slots=True, eq=False)
class ScaleMemory:
    """Scale factors in tensor memory: `shape` (rows, factors) of `dtype`, for `mma(..., scales=(of_a, of_b))`."""

    storage: ScaleStorage
    dtype: DType
    shape: tuple[int, int]
    start: Scalar = 0  # column, in 32 rows, where they begin

    def __repr__(self) -> str:
        return f"<scales in tensor memory {self.storage.name}, {self.shape[0]}x{self.shape[1]} {self.dtype.name}>"

    @property
    def name(self) -> str:
        return self.storage.name

    @property
    def first(self) -> int:
        found: int = current().cached["scale columns"][self.storage.name]
        return found

    @property
    def raw(self) -> Value:
        return self.address(0)

    def rows(self, g: Scalar, n: int) -> ScaleMemory:
        """Those of rows g*n to g*n + n - 1; n a multiple of 32. Errors: SML0720, SML0332."""
        size = self.shape[0]
        if n % COLUMN_ROWS:
            raise error("SML0720", rows=n, unit=COLUMN_ROWS, nearest=-(-n // COLUMN_ROWS) * COLUMN_ROWS)
        if n <= 0 or size % n or (isinstance(g, int) and not 0 <= g < size // n):
            raise error("SML0332", what="rows", part=n, whole=size, tile=self.name)
        return replace(self, shape=(n, self.shape[1]), start=self.start + g * (n // COLUMN_ROWS))

    def copy(self, source: ScaleTile) -> None:
        """Issue the copies from the shared tile of which these are. Errors: SML0717."""
        from smalti.lang.tcgen05 import commit, issuing

        trace, storage, owner = current(), self.storage, allocation()
        constant = encode_smem(trace.arch, 0, 16, 128, 0, "none")
        opcode = f"tcgen05.cp.cta_group::{owner.group}.32x128b.warpx4"
        if source.slot is not None:
            source.slot.completion = commit
        with issuing(trace):
            for g in range(source.groups):
                for a in range(storage.atoms):
                    place = source.address() + (g * storage.atoms + a) * ATOM_BYTES
                    target = cell(self.address(a, g * ATOM_ROWS))
                    trace.emit(opcode, target, matrix_descriptor(place, constant))
        trace.note("tcgen05.cp", f"{source.groups * storage.atoms} x 32x128b.warpx4: {storage.name}")

    def address(self, atom: int, row: int = 0) -> Value:
        """Of the factors of atom `atom` from row `row` (a multiple of 32) on."""
        base: Value = allocation().base
        fixed = self.first + _column(self.storage, atom) + row // COLUMN_ROWS
        if isinstance(self.start, Value):
            return base + self.start + fixed  # type: ignore[no-any-return]
        return base + (self.start + fixed)  # type: ignore[no-any-return]


def _column(storage: ScaleStorage, atom: int) -> int:
    """Groups of one factor group lie side by side, so that rows go on from one to the next."""
    return atom * storage.groups * ATOM_COLUMNS


@lru_cache(maxsize=64)
def scale_layout(rows: int, factors: int) -> Distribution:
    """The register layout that `ScaleTile.set` takes: each thread has all factors of one row of every 128.

    Errors: SML0729.
    """
    _check_shape(rows, factors, ATOM_ROWS)
    fragment = Layout(
        {"thread": [(128, {"m": 1})], "register": [(factors // 4, {"n": 4})], "part": [(4, {"n": 1})]}, ["m", "n"]
    )
    return Distribution("scales", (rows, factors), ATOM_ROWS, factors, fragment)


def scale_tile(shape: tuple[int, int], kind: DType | str = "ue8m0", *, pair: bool = False, name: str = "") -> ScaleTile:
    """Room in shared memory for `shape` (rows, factors) scales: rows of A or of B.T, one factor for each block of K.

    kind   ue8m0 or ue4m3
    pair   of a CTA pair: each CTA holds the scales of its own rows of A, and those of all columns of B
    Rows in multiples of 32 (of A: of 128), factors of 4. Errors: SML0729, SML0707.
    """
    to = dtype(kind)
    if to.name not in FORMATS:
        raise error("SML0707", dtype=to.name, wanted="ue8m0 or ue4m3 (scales)")
    rows, factors = shape
    _check_shape(rows, factors, COLUMN_ROWS)
    unique = current().unique(name or "scales")
    storage = ScaleStorage(unique, -(-rows // ATOM_ROWS), factors // ATOM_FACTORS)
    return ScaleTile(storage, (rows, factors), DTYPES[to.name], pair=pair)


def _check_shape(rows: int, factors: int, step: int) -> None:
    if rows <= 0 or rows % step or factors <= 0 or factors % ATOM_FACTORS:
        nearest = (max(-(-rows // step), 1) * step, max(-(-factors // ATOM_FACTORS), 1) * ATOM_FACTORS)
        raise error("SML0729", shape=(rows, factors), step=step, nearest=nearest)
