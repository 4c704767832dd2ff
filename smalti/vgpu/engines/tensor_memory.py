"""Tensor memory of a CTA: 128 lanes x 512 columns of 32-bit cells, and its allocation (PTX 9.7.16.1, 9.7.16.7).

Cells are numbered lane * 512 + column. Every access names its cells and goes through here; order between
asynchronous operations is the business of checks. Knows no layouts and no instructions.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smalti.errors import error
from smalti.vgpu.memory import Agent, make_segment

if TYPE_CHECKING:
    from smalti.vgpu.machine import CTA

Cells = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]
LANES, COLUMNS = 128, 512
ENGINE = "tcgen05"
_DEFINED = 0x01010101


class TensorMemory:
    """`allocations` maps first column -> number of columns; `permit` is false after relinquish_alloc_permit;
    `group` is the cta_group that the kernel uses (one value for all its tcgen05 instructions)."""

    def __init__(self, cta: CTA) -> None:
        self.cta = cta
        self.segment = make_segment("tensor", "tensor memory", LANES * COLUMNS * 4, defined=False, owner=self)
        self.cells: npt.NDArray[np.uint32] = self.segment.view(4)
        assert self.segment.defined is not None
        self._defined: npt.NDArray[np.uint32] = self.segment.defined.view(np.uint32)
        self.owned = np.zeros(COLUMNS, np.bool_)
        self.allocations: dict[int, int] = {}
        self.permit = True
        self.group = 0
        self.collective: list[tuple[str, int]] = []  # alloc and dealloc of a pair, to be met by the peer

    def describe(self, offset: int) -> str:
        """What the author calls the cell at a byte offset."""
        lane, column = divmod(offset // 4, COLUMNS)
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
        self._defined.reshape(LANES, COLUMNS)[:, start : start + columns] = 0

    def free(self, start: int) -> None:
        columns = self.allocations.pop(start)
        self.owned[start : start + columns] = False

    def use_group(self, agent: Agent, group: int) -> None:
        """Errors: SML0860 another cta_group than the kernel has used before."""
        if self.group not in (0, group):
            raise error("SML0860", at=agent.loc, group=group, before=self.group, who=agent.who())
        self.group = group

    # -- access -----------------------------------------------------------------------------------------

    def check(self, agent: Agent, lanes: npt.NDArray[np.int64], columns: npt.NDArray[np.int64]) -> Cells:
        """Cell numbers, refused where they lie outside tensor memory or in columns that are not allocated.

        Errors: SML0861 outside, SML0862 not allocated.
        """
        low, high = int(columns.min()), int(columns.max())
        if low < 0 or high >= COLUMNS or int(lanes.min()) < 0 or int(lanes.max()) >= LANES:
            raise error(
                "SML0861", at=agent.loc, lane=int(lanes.max()), column=high, who=agent.who(),
            )  # fmt: skip
        if not self.owned[low : high + 1].all():
            used = np.unique(columns)
            loose = used[~self.owned[used]]
            if len(loose):
                raise error("SML0862", at=agent.loc, column=int(loose[0]), owned=self._ranges(), who=agent.who())
        return lanes * COLUMNS + columns

    def read(self, agent: Agent, cells: Cells) -> tuple[npt.NDArray[np.uint32], Bools | None]:
        """Cells as they are, and which of them are undefined (None: none)."""
        self.cta.machine.memory.checks.tensor(agent, self.segment, cells, False)
        bad = self._defined[cells] != _DEFINED
        return self.cells[cells], bad if bad.any() else None

    def write(self, agent: Agent, cells: Cells, values: Any, undefined: Bools | None = None) -> None:
        self.cta.machine.memory.checks.tensor(agent, self.segment, cells, True)
        self.cells[cells] = values
        self._defined[cells] = _DEFINED if undefined is None else np.where(undefined, 0, _DEFINED)

    def _ranges(self) -> str:
        return ", ".join(f"{s}-{s + n - 1}" for s, n in sorted(self.allocations.items())) or "none"


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
