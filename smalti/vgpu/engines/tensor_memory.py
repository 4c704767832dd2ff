"""Tensor memory of a CTA: 128 lanes x 512 columns of 32-bit cells, and its allocation (PTX 9.7.16.1, 9.7.16.7).

Every access names its cells and goes through here; order between asynchronous operations is the business of checks.
Knows no layouts and no instructions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from smalti.errors import error
from smalti.layout.tensor import COLUMNS, LANES
from smalti.vgpu.engines.tensor_cells import Block, Cells
from smalti.vgpu.memory import Agent

if TYPE_CHECKING:
    from smalti.vgpu.clocks import Clock
    from smalti.vgpu.engines import AsyncOp
    from smalti.vgpu.machine import CTA

Bools = npt.NDArray[np.bool_]
ENGINE = "tcgen05"
Flags = npt.NDArray[np.uint32]  # of the defined bytes of cells: 0x01 in each byte that is
DEFINED = np.uint32(0x01010101)


class Placed(NamedTuple):
    """Cells at an address, checked: `blocks` are those of the cells, moved there."""

    cells: Cells
    lane: int
    column: int
    blocks: tuple[Block, ...]


class TensorMemory:
    """`allocations` maps first column -> number of columns; `permit` is false after relinquish_alloc_permit;
    `group` is the cta_group that the kernel uses (one value for all its tcgen05 instructions)."""

    def __init__(self, cta: CTA) -> None:
        self.cta = cta
        self.grid = np.full((LANES, COLUMNS), 0xA5A5A5A5, np.uint32)
        self.known = np.zeros((LANES, COLUMNS), np.uint32)  # DEFINED where a cell is
        self.shadow: Any = None  # belongs to checks
        self.owned = np.zeros(COLUMNS, np.bool_)
        self.allocations: dict[int, int] = {}
        self.permit = True
        self.group = 0
        self.collective: list[tuple[str, int]] = []  # alloc and dealloc of a pair, to be met by the peer

    def describe(self, lane: int, column: int) -> str:
        """What the author calls a cell."""
        for t in self.cta.machine.module.tiles:
            if t.place == "tensor" and t.offset <= column < t.offset + t.size:
                return f"{t.name} (lane {lane}, column {column - t.offset} of {t.size}) of CTA {self.cta.name}"
        return f"tensor memory lane {lane}, column {column} of CTA {self.cta.name}"

    # -- allocation -------------------------------------------------------------------------------------

    def find(self, columns: int) -> int | None:
        """The first free run of so many columns, aligned to its size as the hardware's buddy scheme gives it."""
        for start in range(0, COLUMNS, columns):
            if not self.owned[start : start + columns].any():
                return start
        return None

    def take(self, start: int, columns: int) -> None:
        self.allocations[start] = columns
        self.owned[start : start + columns] = True
        self.known[:, start : start + columns] = 0

    def free(self, start: int) -> None:
        columns = self.allocations.pop(start)
        self.owned[start : start + columns] = False

    def use_group(self, agent: Agent, group: int) -> None:
        """Errors: SML0860 another cta_group than the kernel has used before, SML0878 no other CTA for a pair."""
        if self.group not in (0, group):
            raise error("SML0860", at=agent.loc, group=group, before=self.group, who=agent.who())
        if group == 2 and len(pair(self.cta)) < 2:
            size = len(self.cta.cluster.ctas)
            raise error("SML0878", at=agent.loc, rank=self.cta.rank ^ 1, size=size, who=agent.who())
        self.group = group

    # -- access -----------------------------------------------------------------------------------------

    def place(self, agent: Agent, cells: Cells, address: int) -> Placed:
        """The cells at a tensor-memory address, refused where they lie outside or in columns not allocated.

        Errors: SML0861 outside, SML0862 not allocated.
        """
        lane, column = split_address(address)
        blocks = tuple(b.at(lane, column) for b in cells.blocks)
        for b in blocks:
            if b.lane_end > LANES or b.column_end > COLUMNS:
                raise error(
                    "SML0861", at=agent.loc, address=hex(address), lanes=f"{b.lane}-{b.lane_end - 1}",
                    columns=f"{b.column}-{b.column_end - 1}", who=agent.who(),
                )  # fmt: skip
            owned = self.owned[b.column : b.column_end]
            if not owned.all():
                loose = b.column + int(np.flatnonzero(~owned)[0])
                raise error("SML0862", at=agent.loc, column=loose, owned=self._ranges(), who=agent.who())
        return Placed(cells, lane, column, blocks)

    def read(
        self, agent: AsyncOp, where: Placed, clock: Clock | None = None
    ) -> tuple[npt.NDArray[np.uint32], Flags | None]:
        """Cells as they are, shaped like `where.cells`, and flags of their defined bytes (None: all are defined).

        `clock`: what the agent knows if that is not the whole operation's.
        """
        self.cta.machine.memory.checks.tensor(agent, clock or agent.clock, self, where.blocks, False)
        cells = where.cells
        if cells.pieces:
            values = np.empty(cells.shape, np.uint32)
            known = np.empty(cells.shape, np.uint32)
            for rows, columns, block in cells.pieces:
                place = _slices(block, where)
                values[rows, columns] = self.grid[place]
                known[rows, columns] = self.known[place]
        else:
            numbers = cells.numbers + (where.lane * COLUMNS + where.column)
            values, known = self.grid.reshape(-1)[numbers], self.known.reshape(-1)[numbers]
        return values, None if (known == DEFINED).all() else known

    def write(
        self, agent: AsyncOp, where: Placed, values: npt.NDArray[np.uint32], known: Flags | None = None,
        clock: Clock | None = None, lanes_off: Bools | None = None,
    ) -> None:  # fmt: skip
        """Write cells, shaped like `where.cells`; lanes of `lanes_off` keep what they have."""
        cells = where.cells
        blocks = where.blocks if lanes_off is None else _without(where.blocks, lanes_off)
        self.cta.machine.memory.checks.tensor(agent, clock or agent.clock, self, blocks, True)
        if cells.pieces and lanes_off is None:
            for rows, columns, block in cells.pieces:
                place = _slices(block, where)
                self.grid[place] = values[rows, columns]
                self.known[place] = DEFINED if known is None else known[rows, columns]
            return
        numbers = cells.numbers + (where.lane * COLUMNS + where.column)
        if lanes_off is not None:
            keep = ~lanes_off[numbers // COLUMNS]
            numbers, values = numbers[keep], values[keep]
            known = None if known is None else known[keep]
        self.grid.reshape(-1)[numbers] = values
        self.known.reshape(-1)[numbers] = DEFINED if known is None else known

    def _ranges(self) -> str:
        return ", ".join(f"{s}-{s + n - 1}" for s, n in sorted(self.allocations.items())) or "none"


def split_address(address: int) -> tuple[int, int]:
    """(lane, column) of a tensor-memory address (PTX 9.7.16.1)."""
    return address >> 16 & 0xFFFF, address & 0xFFFF


def _slices(block: Block, where: Placed) -> tuple[slice, slice]:
    lane, lane_end, column, column_end = block.at(where.lane, where.column)
    return slice(lane, lane_end), slice(column, column_end)


def known_cells(undefined: Bools | None) -> Flags | None:
    """Flags of the bytes of whole cells."""
    return None if undefined is None else np.where(undefined, np.uint32(0), DEFINED)


def _without(blocks: tuple[Block, ...], off: Bools) -> tuple[Block, ...]:
    """The blocks cut to the lanes that are not off."""
    edges = np.flatnonzero(np.diff(off.astype(np.int8), prepend=1, append=1)).tolist()
    runs = list(zip(edges[::2], edges[1::2], strict=True))
    return tuple(
        Block(max(a, b.lane), min(z, b.lane_end), b.column, b.column_end)
        for b in blocks
        for a, z in runs
        if a < b.lane_end and b.lane < z
    )


def tensor_memory(cta: CTA) -> TensorMemory:
    found = cta.engines.get(ENGINE)
    if found is None:
        found = cta.engines[ENGINE] = TensorMemory(cta)
    assert isinstance(found, TensorMemory)
    return found


def pair(cta: CTA) -> list[CTA]:
    """The CTA pair of a CTA: cluster ranks that differ in bit 0, the even one first (PTX 9.7.16.5)."""
    even = cta.rank & ~1
    return cta.cluster.ctas[even : even + 2]


def group_ctas(cta: CTA, group: int) -> list[CTA]:
    """The CTAs that an instruction of cta_group::`group` works on."""
    return [cta] if group == 1 else pair(cta)
