"""cp.async: small copies of a warp's threads from global to shared memory, and arrivals that wait for them.

They belong to the generic proxy (PTX ISA 9.7.9.25.3). Knows memory and mbarriers; no instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smalti.errors import Loc
from smalti.vgpu.engines import AsyncOp

if TYPE_CHECKING:
    from smalti.vgpu.engines.mbarrier import Mbarrier
    from smalti.vgpu.machine import CTA
    from smalti.vgpu.warp import Warp

Offsets = npt.NDArray[np.int64]


class Copy(AsyncOp):
    """`width` bytes a thread, of which `counts` come from global memory and the rest are zero."""

    proxy = "generic"
    engine = "cp.async"

    def __init__(
        self, cta: CTA, issuer: Warp, loc: Loc | None, what: str, space: str, targets: Offsets, sources: Offsets,
        counts: Offsets, width: int,
    ) -> None:  # fmt: skip
        super().__init__(cta, issuer, loc, what)
        self.space, self.targets, self.sources, self.counts = space, targets, sources, counts
        self.width = width
        self.reader = self  # of the groups that `bulk` keeps: reading is not waited for separately
        self.source_read = False
        self._data: Any = None
        memory = cta.machine.memory
        memory.resolve(self, cta, space, targets, width)  # refusals come at the line that asks
        for some, item in self._reads():
            memory.resolve(self, cta, "global", self.sources[some], item)

    def _reads(self) -> list[tuple[npt.NDArray[np.intp], int]]:
        """Which threads read, in accesses of how many bytes: whole widths, or byte by byte what remains."""
        whole = np.flatnonzero(self.counts == self.width)
        return [(whole, self.width)] if len(whole) else []

    def perform(self) -> bool:
        memory, n = self.cta.machine.memory, len(self.targets)
        if not self.source_read:
            item = min(self.width, 8)
            data = np.zeros((n, self.width), np.uint8)
            undefined: Any = None
            for some, width in self._reads():
                values, bad = memory.load(self, self.cta, "global", self.sources[some], width, item=item)
                data[some] = np.ascontiguousarray(values).view(np.uint8).reshape(len(some), width)
                if bad is not None:
                    undefined = np.zeros((n, self.width), np.bool_)
                    undefined[some] = bad.reshape(len(some), -1).repeat(item, axis=1)
            for i in np.flatnonzero((self.counts > 0) & (self.counts < self.width)):
                count = int(self.counts[i])
                values, bad = memory.load(self, self.cta, "global", self.sources[i] + np.arange(count), 1)
                data[i, :count] = values
                if bad is not None:
                    undefined = np.zeros((n, self.width), np.bool_) if undefined is None else undefined
                    undefined[i, :count] = bad
            self._data = (data, undefined)
            self.source_read = True
            return False
        data, undefined = self._data
        memory.store(
            self, self.cta, self.space, self.targets, self.width,
            data.view(np.uint64 if self.width > 8 else f"uint{8 * self.width}").reshape(n, -1), None, undefined,
        )  # fmt: skip
        return True

    def uses_shared(self, cta: CTA) -> bool:
        return cta is self.cta


class Arrival(AsyncOp):
    """cp.async.mbarrier.arrive: an arrival once all earlier copies of the thread are done."""

    proxy = "generic"
    engine = "cp.async"

    def __init__(
        self, cta: CTA, issuer: Warp, loc: Loc | None, what: str, barrier: Mbarrier, copies: Sequence[AsyncOp]
    ) -> None:  # fmt: skip
        super().__init__(cta, issuer, loc, what)
        self.barrier, self.copies = barrier, copies

    def ready(self) -> bool:
        return all(c.done for c in self.copies)

    def perform(self) -> bool:
        for c in self.copies:
            self.barrier.arriving.ops |= c.bit
        self.barrier.arrive(self, 1)
        return True

    def uses_shared(self, cta: CTA) -> bool:
        return cta is self.barrier.cta
