"""Hopper's warpgroup matrix instruction as asynchronous work: operands from shared memory or registers, the product,
the accumulator. One operation a warpgroup and instruction, in order. Knows descriptors, fragments and arithmetic; the
instruction's spelling is in `execute/wgmma`.
"""

from __future__ import annotations

from collections import deque
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from smalti.errors import Loc
from smalti.layout import fragments as layouts
from smalti.numerics import fused_sum, sparse
from smalti.vgpu.engines import AsyncOp
from smalti.vgpu.engines.fragments import (
    Block,
    accumulator,
    elements,
    flags_from_matrix,
    flags_to_matrix,
    from_matrix,
    put_accumulator,
    to_matrix,
)
from smalti.vgpu.engines.operands import Source, container, fetch, tell
from smalti.vgpu.warp import WARP, Wait

if TYPE_CHECKING:
    from smalti.vgpu.machine import CTA
    from smalti.vgpu.warp import Gang, Warp

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
GROUP = 128  # threads of a warpgroup
ROWS = 64  # M of every wgmma
STATE = "wgmma"  # of Warp.state: a Pipeline; of CTA.engines: the queues


class Product(NamedTuple):
    """What one wgmma computes: the static part, from its spelling and its immediates."""

    kind: str  # of numerics.kinds
    n: int
    k: int  # logical
    a_format: str
    b_format: str
    d_bits: int
    sparse: bool
    negate_a: bool
    negate_b: bool
    transpose_a: bool
    transpose_b: bool
    saturate: bool
    selector: int

    @property
    def k_bytes(self) -> int:
        """Bytes of K in a row of B."""
        return self.k * container(self.b_format) // 8


class Wgmma(AsyncOp):
    """One wgmma of one warpgroup. `results` are its accumulator registers (numbers); A's must not be written."""

    engine = "wgmma"

    def __init__(
        self, cta: CTA, warps: list[Warp], loc: Loc | None, what: str, product: Product, a: Source | Block, b: Source,
        d: Block, accumulate: bool, metadata: Block | None,
    ) -> None:  # fmt: skip
        super().__init__(cta, warps, loc, what)
        self.product, self.a, self.b, self.d = product, a, b, d
        self.accumulate, self.metadata = accumulate, metadata
        self.lo = warps[0].index * WARP
        self.results = d.members
        self.sources = (a, b) if isinstance(a, Source) else (b,)
        self.told = False
        together = pipeline(warps[0]).open  # of the same group, once it is committed
        self.spokesman = together[0] if together else None
        self.inputs = (*(a.numbers if isinstance(a, Block) else ()), *(metadata.numbers if metadata else ()))
        queues: dict[int, deque[Wgmma]] = cta.engines.setdefault(STATE, {})
        self.queue = queues.setdefault(self.lo, deque())
        self.queue.append(self)

    def who(self) -> str:
        first = self.lo // WARP
        return f"{self.what} issued by warps {first}-{first + 3} of CTA {self.cta.name}"

    def ready(self) -> bool:
        return self.queue[0] is self

    def uses_shared(self, cta: CTA) -> bool:
        return cta is self.cta

    def release(self, hazards: dict[int, Any]) -> None:
        """A warp has waited: registers of which no later wgmma took hold are its own again."""
        for n in self.inputs:
            if hazards.get(n) is self:
                del hazards[n]
        if hazards.get(self.d.first) is self:  # all of D goes from one wgmma of a chain to the next
            for n in self.d.numbers:
                del hazards[n]

    def perform(self) -> bool:
        p, cta, lo = self.product, self.cta, self.lo
        segment = cta.shared
        tell(self, self.queue, (cta,))
        if isinstance(self.a, Source):
            a, bad_rows = fetch(segment, self.a)
        else:
            a, bad_rows = self._registers(self.a)
        b, bad_columns = fetch(segment, self.b)
        c = self._accumulator() if self.accumulate else None
        options: dict[str, Any] = {
            "a_format": p.a_format, "b_format": p.b_format, "negate_a": p.negate_a, "negate_b": p.negate_b,
            "saturate": p.saturate,
        }  # fmt: skip
        if p.sparse:
            codes, bad_codes = self._codes()
            if bad_codes is not None:
                bad_rows = bad_codes if bad_rows is None else bad_rows | bad_codes
            d = sparse.mma_sparse(p.kind, a, codes, b, c, **options)
        else:
            d = fused_sum.mma(p.kind, a, b, c, out=c, **options)
        bad: Bools | None = None
        if cta.undefined and self.accumulate:
            flags = self.d.undefined(cta, lo, GROUP)
            if flags is not None:
                bad = flags_to_matrix(flags, self._layout(), 32 // p.d_bits)
        if bad_rows is not None or bad_columns is not None:
            bad = np.zeros((ROWS, p.n), np.bool_) if bad is None else bad
            if bad_rows is not None:
                bad |= bad_rows[:, None]
            if bad_columns is not None:
                bad |= bad_columns[None, :]
        self._store(d)
        if cta.undefined or bad is not None:
            found = None
            if bad is not None:
                found = flags_from_matrix(bad, self._layout(), len(self.d.numbers), 32 // p.d_bits)
            self.d.set_undefined(cta, lo, GROUP, found)
        self.queue.popleft()
        return True

    def _layout(self) -> Any:
        return layouts.wgmma_d(self.product.n, self.product.d_bits)

    def _accumulator(self) -> Array:
        words = self.d.read(self.cta, self.lo, GROUP)
        if self.product.d_bits == 32:
            return accumulator(words)
        return to_matrix(words, self._layout(), 16)

    def _store(self, d: Array) -> None:
        if self.product.d_bits == 32:
            put_accumulator(self.d, self.cta, self.lo, d)
        else:
            self.d.write(self.cta, self.lo, from_matrix(d, self._layout(), len(self.d.numbers)))

    def _registers(self, block: Block) -> tuple[Array, Bools | None]:
        width = container(self.product.a_format)
        words = block.read(self.cta, self.lo, GROUP)
        flags = block.undefined(self.cta, self.lo, GROUP)
        if width == 1:  # 32 consecutive k a register, laid out as 8-bit elements in groups of four
            a = _bits_from_registers(words)
            layout = layouts.wgmma_a(32)
        else:
            layout = layouts.wgmma_a(width)
            a = to_matrix(words, layout, width)
        if flags is None:
            return a, None
        spread = flags_to_matrix(flags, layout, 32 // width if width > 1 else 1)
        return a, np.bitwise_or.reduce(spread, axis=1)

    def _codes(self) -> tuple[Array, Bools | None]:
        """The metadata [64, chunks], and the rows whose codes are undefined."""
        assert self.metadata is not None
        thread, bit = _metadata(container(self.product.a_format))
        thread, bit = thread[:, :, self.product.selector], bit[:, :, self.product.selector]
        words = self.metadata.read(self.cta, self.lo, GROUP)[0]
        codes = (words[thread] >> bit.astype(np.uint32) & np.uint32(15)).astype(np.uint8)
        flags = self.metadata.undefined(self.cta, self.lo, GROUP)
        return codes, None if flags is None else np.bitwise_or.reduce(flags[0][thread], axis=1)


def _bits_from_registers(words: Array) -> Array:
    """A of b1 in registers [4, 128]: [64, 256] bits; a register holds 32 consecutive k (PTX ISA 9.7.15.5.1.1)."""
    words32 = to_matrix(words, layouts.wgmma_a(32), 32)  # [64, 8] words of 32 k
    return elements(words32, 1).reshape(ROWS, 256)


@lru_cache
def _metadata(bits: int) -> Any:
    return layouts.wgmma_metadata(bits).offsets()


# -- groups ----------------------------------------------------------------------------------------------


class Pipeline:
    """The wgmmas of one warp: those not yet committed, and the groups committed."""

    __slots__ = ("groups", "open")

    def __init__(self) -> None:
        self.open: list[Wgmma] = []
        self.groups: deque[list[Wgmma]] = deque()


def pipeline(warp: Warp) -> Pipeline:
    found: Pipeline | None = warp.state.get(STATE)
    if found is None:
        found = warp.state[STATE] = Pipeline()
    return found


class GroupWait(Wait):
    """Warps of a gang waiting for their wgmma groups but the `newest`; then those registers are theirs again."""

    advance = True

    def __init__(self, gang: Gang, newest: int) -> None:
        self.gang, self.newest = gang, newest
        self.ops = [
            op
            for w in gang.warps()
            for group in list(pipeline(w).groups)[: max(len(pipeline(w).groups) - newest, 0)]
            for op in group
        ]

    def ready(self) -> bool:
        if not all(op.done for op in self.ops):
            return False
        for w in self.gang.warps():
            p = pipeline(w)
            while len(p.groups) > self.newest:
                for op in p.groups.popleft():
                    w.clock.ops |= op.bit
                    op.release(w.hazards)
        self.gang.refresh()
        return True

    def describe(self) -> str:
        return f"waiting for {sum(not op.done for op in self.ops)} wgmmas of its own"
