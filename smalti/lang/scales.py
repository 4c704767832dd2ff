"""Scale factors of block-scaled operands: their way from global over shared to tensor memory.

In global and shared memory they lie in atoms of 128 rows x 4 factors (512 bytes, PTX ISA 9.7.16.10.7), which
tcgen05.cp spreads over tensor memory. Factors behind the end of K are masked to zero: their bytes may be anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from smalti.errors import error
from smalti.lang.parameters import MapParameter
from smalti.lang.plan import Buffer
from smalti.lang.shared import Shared
from smalti.lang.tensor_memory import allocation
from smalti.lang.threads import cluster_rank, lane_index
from smalti.lang.trace import Trace, current
from smalti.lang.values import Scalar, Value, as_value, cdiv, fresh, minimum
from smalti.layout.descriptors import encode_smem
from smalti.numerics.quantize import SCHEMES, Scheme
from smalti.ptx.module import Address, Variable

if TYPE_CHECKING:
    from smalti.lang.tensors import Tensor, Tile

__all__ = ["Scaled", "ScalesInTensorMemory", "SlotScales", "scales_name"]

ATOM_ROWS, ATOM_FACTORS, ATOM_BYTES = 128, 4, 512
ATOM_COLUMNS = 4  # of tensor memory
_ALIGNMENT = 128  # of shared memory that TMA writes (H200, E11)


def scales_name(tensor: str) -> str:
    """The name of the buffer that holds the scales of a tensor."""
    return f"{tensor}_scales"


class ScaleStorage:
    """Shared memory for the scales of a tile, or of `stages` of them: [stage, row group, factor group, 512] bytes."""

    def __init__(self, name: str, groups: int, atoms: int) -> None:
        self.name, self.groups, self.atoms = name, groups, atoms
        self.stages = 1
        self.variable: Variable | None = None

    @property
    def bytes(self) -> int:
        return self.groups * self.atoms * ATOM_BYTES

    def allocate(self, trace: Trace) -> Variable:
        if self.variable is None:
            self.variable = trace.shared_variable(self.name, "b8", (self.bytes * self.stages,), _ALIGNMENT)
            shape = (self.groups * ATOM_ROWS, self.atoms * ATOM_FACTORS)
            trace.plan.buffers.append(
                Buffer(self.name, shape, "u8", "128x4 scale atoms", self.stages, self.bytes * self.stages)
            )
        return self.variable


@dataclass(frozen=True, slots=True, eq=False)
class Scaled:
    """A tile of a block-scaled tensor in shared memory: `data`, and its scales beside it.

    `load` brings both; `rows(i, n)` takes whole groups of 128 rows; `.T` is the transpose, as for a plain tile.
    """

    data: Shared
    storage: ScaleStorage
    tensor: Tensor
    everywhere: bool = True  # on a pair: both CTAs hold all row groups (B), not only those of their own rows (A)
    tile_rows: int = 0  # rows of the tile that the scales are of
    group: int = 0  # first row group
    turned: bool = False

    def __repr__(self) -> str:
        return f"<block-scaled {self.data!r}>"

    @property
    def scheme(self) -> Scheme:
        return SCHEMES[self.tensor.facts.scheme]

    @property
    def key(self) -> tuple[str, str, int]:
        return self.scheme.element, self.scheme.scale, self.scheme.block

    @property
    def scale_format(self) -> str:
        return self.scheme.scale

    @property
    def shape(self) -> tuple[int, int]:
        return self.data.shape

    @property
    def dtype(self) -> Any:
        return self.data.dtype

    @property
    def slot(self) -> Any:
        return self.data.slot

    @property
    def T(self) -> Scaled:
        return replace(self, data=self.data.T, turned=not self.turned)

    def rows(self, g: int, n: int) -> Scaled:
        """Rows g*n to g*n + n - 1; n a multiple of 128. Errors: SML0720, SML0332."""
        if n % ATOM_ROWS:
            raise error("SML0720", rows=n, nearest=-(-n // ATOM_ROWS) * ATOM_ROWS)
        return replace(self, data=self.data.rows(g, n), group=self.group + g * n // ATOM_ROWS)

    def bind(self, stages: int) -> None:
        self.data.bind(stages)
        self.storage.stages = stages
        self.storage.allocate(current())

    def staged(self, stage: Scalar, slot: Any) -> Scaled:
        return replace(self, data=self.data.staged(stage, slot))

    def address(self) -> Value:
        """Shared address of the first atom of this stage, u32."""
        from smalti.lang.barriers import shared_address

        base = shared_address(self.storage.allocate(current()))
        return base + self.data.stage * self.storage.bytes  # type: ignore[no-any-return]

    # -- loading ----------------------------------------------------------------------------------------

    def load(self, tile: Tile, barrier: Any = None) -> None:
        """Copy a tile and its scales here. Call it in `ring.put()`, in a role of one warp.

        Scales come by TMA; where the tile reaches over the end of K, the warp copies them itself and masks the
        factors of blocks that do not exist. Errors: as `Shared.load`; SML0721 outside of a ring or in one thread.
        """
        from smalti.lang.tensors import Tile
        from smalti.lang.tma import fetch

        trace = current()
        if not isinstance(tile, Tile):
            raise error("SML0334", what="load", wanted="a tile of a tensor", given=type(tile).__name__)
        slot, threads = self.data.slot, trace.region.threads
        if slot is None or barrier is not None or threads.single or threads.warps != 1:
            raise error("SML0721", tile=self.data.storage.name, threads=threads.describe())
        self.data.load(tile)
        k = tile.tensor.shape[-1]
        covered = tile.origin[-1] + tile.shape[-1]
        spec, first = self._map(tile), self._first_group(tile)
        atom = tile.origin[-1] // (self.scheme.block * ATOM_FACTORS)
        whole = covered <= k
        with trace.open_if(as_value(whole, "pred"), "when"):
            slot.expect(self.storage.bytes)
            fetch(self.address(), spec, self._coordinates(atom, first), slot)
        with trace.open_if(as_value(whole, "pred"), "when", negate=True):
            self._copy_masked(tile, first, atom)
        slot.written_by_threads = True
        trace.note("copy", f"scales of {self.tensor.name}: TMA; by the warp, masked, where K ends inside the tile")

    def _map(self, tile: Tile) -> MapParameter:
        groups = 1 if self.groups_step > 1 else self.storage.groups
        box = (ATOM_BYTES // 4, self.storage.atoms, groups)
        return MapParameter(scales_name(self.tensor.name), "u32", (2, 1, 0), box, "none")

    @property
    def groups_step(self) -> int:
        """Row groups from one group of this CTA to the next: 2 where the CTAs of a pair take turns (operand A)."""
        return 1 if self.everywhere else 2

    def _first_group(self, tile: Tile) -> Any:
        first = tile.origin[-2] // ATOM_ROWS
        return first + (cluster_rank() & 1) if self.groups_step == 2 else first

    def _coordinates(self, atom: Any, first: Any) -> list[tuple[int, list[Any]]]:
        """(byte offset in the stage, coordinates) of each copy."""
        if self.groups_step == 1:
            return [(0, [0, atom, first])]
        each = self.storage.atoms * ATOM_BYTES
        return [(g * each, [0, atom, first + g * self.groups_step]) for g in range(self.storage.groups)]

    def _copy_masked(self, tile: Tile, first: Any, atom: Any) -> None:
        """Copy by ordinary accesses of the warp's lanes, 16 bytes (four rows of one atom) each."""
        trace, storage = current(), self.storage
        block = self.scheme.block
        k = tile.tensor.shape[-1]
        rows = tile.tensor.shape[-2]
        blocks = cdiv(k, block)
        known_atoms, known_groups = cdiv(blocks, ATOM_FACTORS), cdiv(rows, ATOM_ROWS)
        source = trace.parameters.pointer(trace, scales_name(self.tensor.name))
        lane = lane_index()
        target = self.address() + lane * 16
        for g in range(storage.groups):
            group = first + g * self.groups_step
            for a in range(storage.atoms):
                here = atom + a
                inside = (as_value(group, "u32") < known_groups) & (as_value(here, "u32") < known_atoms)
                # The first so many factors of this atom exist.
                left = blocks - minimum(as_value(here, "u32") * ATOM_FACTORS, blocks)
                mask = _low_bytes(left)
                words = [fresh("u32") for _ in range(4)]
                for w in words:
                    trace.emit("mov.u32", w, 0)
                index = (as_value(group, "u32") * known_atoms + here).to("u64") * ATOM_BYTES
                address = source + index + lane.to("u64") * 16
                trace.emit("ld.global.v4.u32", words, Address(trace.read(address)), guard=inside)
                kept = [trace.read(w & mask) for w in words]
                offset = (g * storage.atoms + a) * ATOM_BYTES
                trace.emit("st.shared::cta.v4.b32", Address(trace.read(target), offset), list(kept))


def _low_bytes(count: Value) -> Value:
    """A mask of the first `count` bytes of a word (all of them from 4 on)."""
    trace, mask = current(), fresh("u32")
    bits = minimum(count, ATOM_FACTORS) * 8
    trace.emit("bmsk.clamp.b32", mask, 0, bits)
    return mask


class SlotScales:
    """The scales of all block-scaled operands in a stage: `slot.scales`."""

    def __init__(self, items: dict[str, Scaled], ring: str) -> None:
        self.named, self.ring = items, ring

    @property
    def items(self) -> list[Scaled]:
        return list(self.named.values())

    def to_tensor_memory(self, **tiles: Tile) -> ScalesInTensorMemory:
        """Copy them to tensor memory by tcgen05.cp, in the thread that issues the products that use them.

        Tiles whose rows are no multiple of 128 may begin inside an atom: say which tile it is, `b=B[j, k]`.
        The columns are taken once for each ring: the tensor core keeps copies and products of a thread in order.
        Errors: SML0722 nothing is block-scaled, SML0727 a tile that must be (or cannot be) named, SML0700 no columns.
        """
        from smalti.lang.tcgen05 import issuing

        trace = current()
        if not self.items:
            raise error("SML0722", ring=self.ring)
        columns = trace.cached.get(("scales", self.ring))
        if columns is None:
            columns = trace.cached["scales", self.ring] = {item.storage.name: _take(item) for item in self.items}
        made = ScalesInTensorMemory({item.storage.name: item for item in self.items}, columns, self._starts(tiles))
        with issuing(trace):
            for item in self.items:
                made.copy(item)
        count = sum(i.storage.groups * i.storage.atoms for i in self.items)
        trace.note("tcgen05.cp", f"{count} x 32x128b.warpx4: scales of {', '.join(i.tensor.name for i in self.items)}")
        return made

    def _starts(self, tiles: dict[str, Tile]) -> dict[str, Scalar]:
        """For each operand, the 32-row column of its first atom where the tile begins."""
        starts: dict[str, Scalar] = {}
        for name in [*self.named, *tiles]:
            item, tile = self.named.get(name), tiles.get(name)
            loose = item is not None and item.tile_rows % ATOM_ROWS
            if item is None or (loose and tile is None):
                raise error("SML0727", name=name, known=", ".join(self.named), rows=item.tile_rows if item else 0)
            starts[item.storage.name] = (tile.origin[-2] % ATOM_ROWS) // 32 if tile is not None and loose else 0
        return starts


def _take(item: Scaled) -> int:
    owner = allocation()
    wanted = item.storage.groups * item.storage.atoms * ATOM_COLUMNS
    return owner.take(item.storage.name, wanted, shrink=_narrower(owner.used + wanted))


def _narrower(total: int) -> str:
    """What to change: the largest accumulator that leaves room, as text."""
    trace = current()
    accumulators = trace.cached.get("accumulators", [])
    if not accumulators:
        return "fewer columns"
    d = accumulators[0]
    tiles = d.whole[0] // d.tile
    scales = total - sum(tiles_of * columns for tiles_of, columns in ((tiles, d.tile_columns),))
    step = 32 if d.group == 2 else 16
    columns = (512 - max(scales, 0)) // tiles // step * step
    return f"an accumulator of {d.whole[0]}x{columns}"


@dataclass(frozen=True, slots=True, eq=False)
class ScalesInTensorMemory:
    """Scale factors where the tensor core wants them; `mma(..., scales=...)` finds those of each instruction."""

    items: dict[str, Scaled]
    columns: dict[str, int]
    starts: dict[str, Scalar]

    @property
    def names(self) -> list[str]:
        return [i.tensor.name for i in self.items.values()]

    def holds(self, operand: Scaled) -> bool:
        return operand.storage.name in self.items

    def copy(self, item: Scaled) -> None:
        trace, storage = current(), item.storage
        group = allocation().group
        constant = encode_smem(trace.arch, 0, 16, 128, 0, "none")
        for g in range(storage.groups):
            for a in range(storage.atoms):
                source = _descriptor(item.address() + (g * storage.atoms + a) * ATOM_BYTES, constant)
                target = allocation().base + (self.columns[storage.name] + self._column(storage, a, g))
                trace.emit(f"tcgen05.cp.cta_group::{group}.32x128b.warpx4", Address(trace.read(target)), source)

    @staticmethod
    def _column(storage: ScaleStorage, atom: int, group: int) -> int:
        """Groups of one factor group lie side by side, so that columns of B go on from one to the next."""
        return (atom * storage.groups + group) * ATOM_COLUMNS

    def address(self, operand: Scaled, atom: int, tile: int, column: int = 0) -> Value:
        """Of the factors of row tile `tile` (128 rows in this CTA), or from column `column` of B on."""
        storage = operand.storage
        at = self.columns[storage.name] + self._column(storage, atom, operand.group + tile) + column // 32
        return allocation().base + self.starts[storage.name] + at  # type: ignore[no-any-return]


def _descriptor(address: Value, constant: int) -> Value:
    """A shared-memory descriptor of what begins at `address`."""
    trace = current()
    field, wide = fresh("u32"), fresh("u64")
    trace.emit("bfe.u32", field, address, 4, 14)
    low = field | (constant & 0xFFFFFFFF)
    trace.emit("mov.b64", wide, [as_value(low, "u32"), as_value(constant >> 32, "u32")])
    return wide


def scaled_tile(data: Shared, tensor: Tensor, rows: int, *, everywhere: bool) -> Scaled:
    """A tile in shared memory with room for its scales: `rows` rows of the tensor, of which this CTA needs scales.

    Errors: SML0723 K of the tile, SML0724 an operand without a scheme.
    """
    scheme = tensor.facts.scheme
    if not scheme:
        raise error("SML0724", tensor=tensor.name)
    span = SCHEMES[scheme].block * ATOM_FACTORS
    k = data.shape[1]
    if k % span:
        raise error("SML0723", k=k, block=SCHEMES[scheme].block, span=span, nearest=-(-k // span) * span)
    name = current().unique(scales_name(data.storage.name))
    # A tile may begin inside an atom, at any multiple of what its size and 128 share.
    share = math.gcd(rows, ATOM_ROWS)
    if share % 32:
        raise error("SML0728", rows=rows, nearest=-(-rows // 32) * 32)
    groups = -(-(rows + ATOM_ROWS - share) // ATOM_ROWS)
    return Scaled(data, ScaleStorage(name, groups, k // span), tensor, everywhere, rows)
