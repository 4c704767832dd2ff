"""Who am I: thread, warp and lane indices, the elected lane, and the special registers of the grid.

Warp indices come from `shfl.sync.idx`, so that the assembler knows that they are the same in a whole warp.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from smalti.lang.dtypes import DTYPES
from smalti.lang.trace import current
from smalti.lang.values import Value, fresh
from smalti.ptx.module import SINK, Pair, Special

__all__ = [
    "block_index",
    "cluster_rank",
    "elect",
    "grid_size",
    "lane_index",
    "special",
    "thread_index",
    "thread_of_warpgroup",
    "warp_index",
]

ALL_LANES = 0xFFFFFFFF


def special(name: str, dtype: str = "u32") -> Value:
    """A special register of PTX by its name without percent sign, e.g. "tid.x"; read once, at the kernel's start."""

    def read() -> Value:
        value = fresh(dtype)
        current().emit(f"mov.{dtype}", value, Special(name))
        return value

    found: Value = current().once(("special", name), read)
    return found


def thread_index() -> Value:
    """Index of the thread in the CTA, u32."""
    return special("tid.x")


def lane_index() -> Value:
    """Index of the thread in its warp, u32."""
    return special("laneid")


def warp_index() -> Value:
    """Index of the warp in the CTA, u32, known to be the same in all lanes."""

    def make() -> Value:
        trace, value = current(), fresh("u32")
        trace.emit("shfl.sync.idx.b32", value, thread_index() >> 5, 0, 31, ALL_LANES)
        return value

    found: Value = current().once("warp_index", make)
    return found


def thread_of_warpgroup() -> Value:
    """Index of the thread in its warpgroup (0 to 127), u32."""
    found: Value = current().once("thread_of_warpgroup", lambda: thread_index() & 127)
    return found


def block_index(axis: int = 0) -> Value:
    """Index of the CTA in the grid along x, y or z, u32."""
    return special(f"ctaid.{'xyz'[axis]}")


def grid_size(axis: int = 0) -> Value:
    """Number of CTAs along x, y or z, u32."""
    return special(f"nctaid.{'xyz'[axis]}")


def cluster_rank() -> Value:
    """Rank of the CTA in its cluster, u32."""
    return special("cluster_ctarank")


def elected() -> Value:
    """A predicate that holds in one lane of the warp, `elect.sync`; the warp must be converged here."""
    trace = current()
    value = Value(DTYPES["pred"], trace.register("pred"), trace.region)
    trace.emit("elect.sync", Pair(SINK, value.register), ALL_LANES)
    return value


class Elect(AbstractContextManager[None]):
    """The region of one thread: the elected lane of the first warp of the threads that run here."""

    def __enter__(self) -> None:
        trace = current()
        threads = trace.region.threads
        single = trace.with_threads(warps=1, single=True)
        self._open: list[AbstractContextManager[Any]] = []
        if threads.warps > 1:
            self._enter(trace.open_if(warp_index() == threads.first, "when"))
        self._enter(trace.open_if(elected(), "one", single))

    def _enter(self, opened: AbstractContextManager[Any]) -> None:
        opened.__enter__()
        self._open.append(opened)

    def __exit__(self, *exception: Any) -> None:
        while self._open:
            self._open.pop().__exit__(*exception)


def elect() -> Elect:
    """`with sm.elect():` runs its body in one thread of those that execute here (a role's, or the CTA's)."""
    return Elect()


def first_of_warpgroup() -> Value:
    """Whether this is the first warp of its warpgroup (of its role, if that is smaller)."""
    threads = current().region.threads
    if threads.warps > 4:
        first: Value = (warp_index() & 3) == 0
        return first
    return warp_index() == threads.first  # type: ignore[no-any-return]
