"""Operations of tensor memory in their pipelines: which ones the tensor core executes in the order of their issue.

Operations of one thread are performed in that order here; those of another thread follow where fences have ordered a
pair that forms a pipeline. Anything else may happen in any order: checks say when a program depends on it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

from smalti.errors import Loc
from smalti.vgpu.engines import AsyncOp
from smalti.vgpu.engines.tensor_cells import Block, Cells
from smalti.vgpu.engines.tensor_memory import Placed, TensorMemory, group_ctas, tensor_memory

if TYPE_CHECKING:
    from smalti.vgpu.clocks import Clock
    from smalti.vgpu.machine import CTA, Cluster
    from smalti.vgpu.warp import Gang, Warp

Thread: TypeAlias = tuple[int, Any]  # CTA rank; thread number, or the span of threads of a ld or st

# Pairs of the same cta_group that form a pipeline (9.7.16.6.2); mma -> mma only with the same accumulator and shape.
PIPELINED = {("cp", "mma"), ("shift", "mma"), ("mma", "shift"), ("shift", "cp.4x256b"), ("mma", "mma")}
# Executed in order by every known chip and relied on by every known kernel, but not promised: reported under strict.
RELIED_ON = {("mma", "cp"), ("cp", "cp")}
_ISSUED = "tcgen05.issued"  # cluster: (thread, group) -> bits of its mma, cp and shift operations
_OPEN = "tcgen05.open"  # cluster: those not yet performed
_QUEUES = "tcgen05.queues"
_FIRST = "tcgen05.first"  # cluster: (thread, group) -> its first operation since its last commit


class TensorOp(AsyncOp):
    """`thread` identifies the issuer, `kind`, `shape` and `group` how the pipeline orders it, `accumulator` what an mma
    adds to."""

    engine = "tcgen05"
    kind = ""
    shape = ""
    accumulator: Any = None

    def __init__(
        self, cta: CTA, issuer: Warp | list[Warp], loc: Loc | None, what: str, thread: Thread, group: int
    ) -> None:
        super().__init__(cta, issuer, loc, what)
        self.thread, self.group = thread, group
        self.ctas = group_ctas(cta, group or 1)
        self.memories = [tensor_memory(c) for c in self.ctas]
        self.touched: list[tuple[TensorMemory, tuple[Block, ...]]] = []  # what it reads or writes
        registers = self.kind in ("ld", "st")
        engines = cta.cluster.engines
        self.queue: list[TensorOp] = engines.setdefault(_QUEUES, {}).setdefault((thread, registers), [])
        self.queue.append(self)
        self.after: list[TensorOp] = []
        if registers:
            return
        for memory in self.memories:
            memory.use_group(self, group)
        if self.kind == "commit":
            engines.setdefault(_FIRST, {}).pop((thread, group), None)
            return
        self._open: list[TensorOp] = engines.setdefault(_OPEN, [])
        self.after = [op for op in self._open if op.thread != thread and in_pipeline(op, self, self.clock)]
        self._open.append(self)
        first: dict[tuple[Thread, int], TensorOp] = engines.setdefault(_FIRST, {})
        self.spokesman = first.setdefault((thread, group), self)
        bits: dict[tuple[Thread, int], int] = engines.setdefault(_ISSUED, {})
        bits[thread, group] = bits.get((thread, group), 0) | self.bit

    def cells(self, cells: Cells, address: int) -> list[Placed]:
        """The cells at an address, in each CTA. Errors: SML0861, SML0862."""
        found = [m.place(self, cells, address) for m in self.memories]
        self.touched += [(m, where.blocks) for m, where in zip(self.memories, found, strict=True)]
        return found

    def ready(self) -> bool:
        return self.queue[0] is self and all(op.done for op in self.after)

    def perform(self) -> bool:
        self.work()
        self.queue.pop(0)
        if self.kind in ("mma", "cp", "shift"):
            self._open.remove(self)
        return True

    def work(self) -> None:
        raise AssertionError


class Earlier(Protocol):
    """What is asked of the earlier of two operations."""

    @property
    def serial(self) -> int: ...
    @property
    def thread(self) -> Any: ...
    @property
    def group(self) -> int: ...
    @property
    def kind(self) -> str: ...
    @property
    def accumulator(self) -> Any: ...


def in_pipeline(before: Earlier, now: TensorOp, clock: Clock, strict: bool = False, fenced: bool = False) -> bool:
    """Whether `now`, whose issuer knows `clock`, is executed after `before` because both are in one pipeline.

    `fenced`: as if fence::after_thread_sync had been executed.
    """
    if before.group != now.group:
        return False
    if before.thread != now.thread:
        ordered = clock.tensor | clock.published if fenced else clock.tensor
        if not ordered >> before.serial & 1:
            return False
    kinds = (before.kind, now.kind)
    if kinds == ("mma", "mma"):
        return bool(before.accumulator == now.accumulator)
    if kinds in PIPELINED or (before.kind, f"{now.kind}.{now.shape}") in PIPELINED:
        return True
    return kinds in RELIED_ON and not strict


def issued(cluster: Cluster, thread: Thread, group: int) -> int:
    """The mma, cp and shift operations of a thread with that cta_group, as bits."""
    found: int = cluster.engines.get(_ISSUED, {}).get((thread, group), 0)
    return found


def issued_by(g: Gang) -> list[tuple[Warp, int]]:
    """The operations of the active threads of a gang, by warp."""
    bits: dict[tuple[Thread, int], int] = g.cta.cluster.engines.get(_ISSUED, {})
    found: list[tuple[Warp, int]] = []
    active = g.active()
    for ((rank, thread), _), some in bits.items():
        if rank == g.cta.rank and g.lo <= thread < g.hi and active[thread - g.lo]:
            found.append((g.cta.warps[thread // 32], some))
    return found
