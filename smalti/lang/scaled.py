"""Block-scaled operands: a tile of a tensor marked `:scaled` in shared memory with its scales beside it, and the scales
of a ring's stage in tensor memory. How scales themselves lie and move is in `scales`.

Factors behind the end of K are masked to zero: their bytes may be anything.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from smalti.errors import error
from smalti.lang.dtypes import DTYPES
from smalti.lang.parameters import MapParameter
from smalti.lang.scales import (
    ATOM_BYTES,
    ATOM_FACTORS,
    ATOM_ROWS,
    COLUMN_ROWS,
    ScaleMemory,
    ScaleStorage,
    ScaleTile,
    groups_of,
    scales_name,
    take,
)
from smalti.lang.shared import Shared
from smalti.lang.threads import cluster_rank, lane_index
from smalti.lang.trace import current
from smalti.lang.values import Scalar, Value, as_value, cdiv, fresh, minimum
from smalti.numerics.quantize import SCHEMES, Scheme
from smalti.ptx.module import Address

if TYPE_CHECKING:
    from smalti.lang.tensors import Tensor, Tile

__all__ = ["Scaled", "ScalesInTensorMemory", "SlotScales"]


@dataclass(frozen=True, slots=True, eq=False)
class Scaled:
    """A tile of a block-scaled tensor in shared memory: `data`, and its scales beside it.

    `load` brings both; `rows(i, n)` takes whole columns of 32 rows of scales (of operand A: groups of 128);
    `.T` is the transpose, as for a plain tile.
    """

    data: Shared
    storage: ScaleStorage
    tensor: Tensor
    everywhere: bool = True  # on a pair: both CTAs hold all row groups (B), not only those of their own rows (A)
    tile_rows: int = 0  # rows of the tile that the scales are of
    start: Scalar = 0  # where the part begins, in 32 rows

    def __repr__(self) -> str:
        return f"<block-scaled {self.data!r}>"

    @property
    def scheme(self) -> Scheme:
        return SCHEMES[self.tensor.facts.scheme]

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
        return replace(self, data=self.data.T)

    def rows(self, g: Scalar, n: int) -> Scaled:
        """Rows g*n to g*n + n - 1, on a pair of those that this CTA holds; n a multiple of 32. Errors: SML0720,
        SML0332."""
        scaled = n * (2 if self.data.halves and self.everywhere else 1)
        if scaled % COLUMN_ROWS:
            raise error("SML0720", rows=n, unit=COLUMN_ROWS, nearest=-(-n // COLUMN_ROWS) * COLUMN_ROWS)
        return replace(self, data=self.data.rows(g, n), start=self.start + g * (scaled // COLUMN_ROWS))

    def bind(self, stages: int) -> None:
        self.data.bind(stages)
        self.storage.bind(stages)

    def staged(self, stage: Scalar, slot: Any) -> Scaled:
        return replace(self, data=self.data.staged(stage, slot))

    @property
    def scales(self) -> ScaleTile:
        """The scales alone, those of all row groups that this CTA holds."""
        shape = (self.storage.groups * ATOM_ROWS, self.storage.atoms * ATOM_FACTORS)
        place, slot, pair = self.data.stage, self.data.slot, bool(self.data.halves)
        return ScaleTile(self.storage, shape, DTYPES[self.scheme.scale], place, slot, pair=pair)

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
        whole = as_value(tile.origin[-1] + tile.shape[-1] <= tile.tensor.shape[-1], "pred")
        first, atom = self._first_group(tile), tile.origin[-1] // (self.scheme.block * ATOM_FACTORS)
        with trace.open_if(whole, "when"):
            slot.expect(self.storage.bytes)
            fetch(self.scales.address(), self._map(), self._copies(atom, first), slot)
        with trace.open_if(whole, "when", negate=True):
            self._copy_masked(tile, first, atom)
        slot.written_by_threads = True
        trace.note("copy", f"scales of {self.tensor.name}: TMA; by the warp, masked, where K ends inside the tile")

    def _map(self) -> MapParameter:
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

    def _copies(self, atom: Any, first: Any) -> list[tuple[int, list[Any]]]:
        """(byte offset in the stage, coordinates) of each copy."""
        if self.groups_step == 1:
            return [(0, [0, atom, first])]
        each = self.storage.atoms * ATOM_BYTES
        return [(g * each, [0, atom, first + g * self.groups_step]) for g in range(self.storage.groups)]

    def _copy_masked(self, tile: Tile, first: Any, atom: Any) -> None:
        """Copy by ordinary accesses of the warp's lanes, 16 bytes (four rows of one atom) each."""
        trace, storage = current(), self.storage
        blocks = cdiv(tile.tensor.shape[-1], self.scheme.block)
        known_atoms, known_groups = cdiv(blocks, ATOM_FACTORS), cdiv(tile.tensor.shape[-2], ATOM_ROWS)
        source = trace.parameters.pointer(trace, scales_name(self.tensor.name))
        lane = lane_index()
        target = self.scales.address() + lane * 16
        for g in range(storage.groups):
            group = first + g * self.groups_step
            for a in range(storage.atoms):
                here = as_value(atom + a, "u32")
                inside = (as_value(group, "u32") < known_groups) & (here < known_atoms)
                # The first so many factors of this atom exist.
                mask = _low_bytes(blocks - minimum(here * ATOM_FACTORS, blocks))
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
        self.items, self.ring = items, ring

    def to_tensor_memory(self, **tiles: Tile) -> ScalesInTensorMemory:
        """Copy them to tensor memory by tcgen05.cp, in the thread that issues the products that use them.

        Tiles whose rows are no multiple of 128 may begin inside an atom: say which tile it is, `b=B[j, k]`.
        The columns are taken once for each ring: the tensor core keeps copies and products of a thread in order.
        Errors: SML0722 nothing is block-scaled, SML0727 a tile that must be (or cannot be) named, SML0700 no columns.
        """
        if not self.items:
            raise error("SML0722", ring=self.ring)
        take([item.storage for item in self.items.values()], self._dependent())
        found = {}
        for name, start in self._starts(tiles).items():
            scales = self.items[name].scales
            memory = ScaleMemory(scales.storage, scales.dtype, scales.shape)
            memory.copy(scales)
            found[scales.storage.name] = replace(memory, start=start)
        return ScalesInTensorMemory(found)

    def _dependent(self) -> str:
        """The storage of operand B: the one whose rows are the columns of the accumulator."""
        accumulators = current().cached.get("accumulators", [])
        columns = accumulators[0].whole[1] if accumulators else 0
        found = [i.storage.name for i in self.items.values() if i.tile_rows == columns]
        return found[-1] if found else ""

    def _starts(self, tiles: dict[str, Tile]) -> dict[str, Scalar]:
        """For each operand, the 32-row column of its first atom where the tile begins."""
        starts: dict[str, Scalar] = {}
        for name in [*self.items, *tiles]:
            item, tile = self.items.get(name), tiles.get(name)
            loose = item is not None and item.tile_rows % ATOM_ROWS
            if item is None or (loose and tile is None):
                raise error("SML0727", name=name, known=", ".join(self.items), rows=item.tile_rows if item else 0)
            starts[name] = tile.origin[-2] % ATOM_ROWS // COLUMN_ROWS if tile is not None and loose else 0
        return starts


@dataclass(frozen=True, slots=True, eq=False)
class ScalesInTensorMemory:
    """The scales of a stage's operands where the tensor core wants them, for `mma(..., scales=...)`."""

    memories: dict[str, ScaleMemory]

    def of(self, operand: Scaled, name: str) -> ScaleMemory:
        """Those of one operand, from where its part begins. Errors: SML0712."""
        found = self.memories.get(operand.storage.name)
        if found is None:
            known = ", ".join(name.removesuffix("_scales") for name in self.memories)
            raise error("SML0712", operand=name, tile=operand.data.storage.name, known=known)
        return replace(found, start=found.start + operand.start)


def scaled_tile(data: Shared, tensor: Tensor, rows: int, *, everywhere: bool) -> Scaled:
    """A tile in shared memory with room for its scales: `rows` rows of the tensor, of which this CTA needs scales.

    Errors: SML0723 K of the tile, SML0724 an operand without a scheme, SML0728 rows.
    """
    scheme = tensor.facts.scheme
    if not scheme:
        raise error("SML0724", tensor=tensor.name)
    span = SCHEMES[scheme].block * ATOM_FACTORS
    k = data.shape[1]
    if k % span:
        raise error("SML0723", k=k, block=SCHEMES[scheme].block, span=span, nearest=-(-k // span) * span)
    if math.gcd(rows, ATOM_ROWS) % COLUMN_ROWS:
        raise error("SML0728", rows=rows, nearest=-(-rows // COLUMN_ROWS) * COLUMN_ROWS)
    name = current().unique(scales_name(data.storage.name))
    return Scaled(data, ScaleStorage(name, groups_of(rows), k // span), tensor, everywhere, rows)
