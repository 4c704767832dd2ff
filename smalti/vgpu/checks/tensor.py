"""Rule: asynchronous tcgen05 operations on the same tensor memory are ordered (PTX 9.7.16.6): by a pipelined pair, or
by a completed wait or commit that the issuing thread has learnt of (SML0940), with fence::after_thread_sync (SML0941).

`Clock.tensor` holds the operations that the issuing thread's later tcgen05 instructions follow.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from smalti.vgpu.checks.races import Actor, Races, distinct

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np
    import numpy.typing as npt

    from smalti.vgpu.memory import Segment

# Pairs of the same thread and cta_group that the pipeline keeps in order (9.7.16.6.2); mma-mma only with the same
# accumulator and shape.
PIPELINED = {("cp", "mma"), ("shift", "mma"), ("shift", "cp"), ("mma", "shift"), ("cp", "shift")}
# Executed in order by every known chip and relied on by every known kernel, but not promised: reported under strict.
RELIED_ON = {("mma", "cp")}


class TensorOrder(Races):
    def __init__(self, report: Callable[..., None], strict: bool = False) -> None:
        super().__init__(report)
        self._strict = strict
        self._known: dict[tuple[int, int], Any] = {}  # (cluster, serial) -> operation
        self._now: Any = None

    def touch(self, op: Any, segment: Segment, cells: npt.NDArray[np.int64], writes: bool) -> None:
        self._known[op.cta.cluster.index, op.serial] = op
        self._now = op
        self._touch(self._operation(op), segment, cells.reshape(-1), 1, writes, False)

    def freed(self, gang: Any, segment: Segment, start: int, columns: int) -> None:
        """Deallocation: every operation on the columns must be known complete by the warp that frees them (SML0943)."""
        shadow = segment.shadow
        if shadow is None:
            return
        clock = gang.warps()[0].clock
        known = clock.ops | clock.tensor
        for numbers in (shadow.writes, shadow.reads):
            part = numbers[: 128 * 512].reshape(128, 512)[:, start : start + columns]
            for n in distinct(part):
                for e in (n,) if numbers is shadow.writes else self._sets[n]:
                    epoch = self._epochs[e]
                    if epoch is not None and not known >> epoch.time & 1:
                        line = str(epoch.loc) if epoch.loc is not None else "an unknown line"
                        self._report("SML0943", gang.loc, who=gang.who(), other=epoch.who, other_line=line)
                        return
            part[...] = 0

    def _forgotten(self, n: int, actor: Actor) -> bool:
        epoch = self._epochs[n]
        assert epoch is not None
        return self._in_order(self._known[epoch.cluster, epoch.time], self._now)

    def _in_order(self, before: Any, now: Any) -> bool:
        if now.clock.tensor >> before.serial & 1 or before is now:
            return True
        if before.thread != now.thread or before.group != now.group:
            return False
        kinds = (before.kind, now.kind)
        if kinds == ("mma", "mma"):
            return bool(before.accumulator == now.accumulator)
        return kinds in PIPELINED or (kinds in RELIED_ON and not self._strict)

    def _compare(
        self, actor: Actor, n: int, segment: Segment, index: Any, width: int, found: Any, writes: bool,
        strong: bool, earlier: str, of: int | None = None,
    ) -> None:  # fmt: skip
        if self._forgotten(n, actor):
            return
        epoch = self._epochs[n]
        assert epoch is not None
        code = "SML0941" if actor.clock.ops >> epoch.time & 1 else "SML0940"
        at = int(index[(found == (n if of is None else of)).argmax()])
        self._report(
            code,
            actor.loc,
            what=segment.owner.describe(at * 4),
            who=actor.who(),
            now="writes" if writes else "reads",
            earlier=earlier,
            other=epoch.who,
            other_line=str(epoch.loc) if epoch.loc is not None else "an unknown line",
        )
