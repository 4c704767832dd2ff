"""Barriers: mbarriers in shared memory, named barriers of a role's threads, the cluster's barrier.

Explicit forms; rings and channels are built on them. Initialisation happens at the kernel's start, by one thread.
"""

from __future__ import annotations

from typing import Any

from smalti.errors import error
from smalti.lang.plan import Barriers
from smalti.lang.threads import thread_index
from smalti.lang.trace import Trace, current
from smalti.lang.values import Scalar, Value, fresh
from smalti.ptx.module import SINK, Address, Guard, Register, SymbolAddress, Variable

__all__ = [
    "MBarrier",
    "NamedBarrier",
    "barrier",
    "cluster_sync",
    "named_barrier",
    "proxy_fence",
    "sync",
    "sync_warpgroup",
]

MBARRIER_BYTES = 8  # PTX ISA 9.7.13.15.2


class MBarrier:
    """`count` mbarriers, of which this names one (`barrier[i]` names another).

    A phase completes when `arrivals` threads have arrived and the expected bytes have come.
    """

    def __init__(self, name: str, count: int, arrivals: int, trace: Trace) -> None:
        self.name, self.count, self.arrivals = name, count, arrivals
        self.index: Scalar = 0
        self.variable: Variable = trace.shared_variable(name, "b64", (count,), MBARRIER_BYTES)
        trace.barriers.append(self)

    def __getitem__(self, index: Scalar) -> MBarrier:
        """Barrier number `index` of the array, a Python int or a value."""
        if isinstance(index, int) and not 0 <= index < self.count:
            raise error(
                "SML0304", what=f"the index of barrier {self.name}", value=index, wanted=f"0 to {self.count - 1}"
            )
        view = MBarrier.__new__(MBarrier)
        view.__dict__.update(self.__dict__)
        view.index = index
        return view

    @property
    def raw(self) -> Address:
        """Its address as a PTX operand."""
        base = self.base()
        if isinstance(self.index, int):
            return Address(current().read(base), self.index * MBARRIER_BYTES)
        return Address(current().read(base + self.index * MBARRIER_BYTES))

    def base(self) -> Value:
        """The shared address of the first barrier of the array, u32."""
        return shared_address(self.variable)

    def arrive(self, count: int = 1, *, expect: int = 0) -> None:
        """Arrive once (or `count` times), first adding `expect` bytes to what the phase waits for."""
        trace = current()
        if expect:
            trace.emit("mbarrier.arrive.expect_tx.shared::cta.b64", SINK, self.raw, expect)
            if count > 1:
                trace.emit("mbarrier.arrive.shared::cta.b64", SINK, self.raw, count - 1)
        elif count == 1:
            trace.emit("mbarrier.arrive.shared::cta.b64", SINK, self.raw)
        else:
            trace.emit("mbarrier.arrive.shared::cta.b64", SINK, self.raw, count)

    def arrive_if(self, when: Value) -> None:
        """Arrive once, in the threads for which `when` holds."""
        trace = current()
        trace.emit("mbarrier.arrive.shared::cta.b64", SINK, self.raw, guard=when)

    def arrive_at(self, rank: Scalar, *, when: Value | None = None) -> None:
        """Arrive on the same barrier of the CTA of that rank in the cluster."""
        trace, address = current(), fresh("u32")
        own = self.raw
        assert isinstance(own.base, Register)
        local: Any = own.base
        if own.offset:
            local = trace.register("u32")
            trace.emit("add.u32", local, own.base, own.offset)
        trace.emit("mapa.shared::cluster.u32", address, local, rank)
        guard = Guard(trace.read(when)) if when is not None else None
        trace.emit(
            "mbarrier.arrive.release.cluster.shared::cluster.b64", SINK, Address(trace.read(address)), guard=guard
        )

    def leader(self) -> Address:
        """The same barrier of the even CTA of the pair: bit 24 of a shared address is bit 0 of the rank."""
        trace, address = current(), fresh("u32")
        own = self.raw
        base: Any = own.base
        if own.offset:
            base = trace.register("u32")
            trace.emit("add.u32", base, own.base, own.offset)
        trace.emit("and.b32", address, base, 0xFEFFFFFF)
        return Address(trace.read(address))

    def arrive_at_leader(self, expect: int) -> None:
        """Arrive once on the barrier of the pair's even CTA, first adding `expect` bytes to what it waits for."""
        trace = current()
        if expect:
            trace.emit("mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64", SINK, self.leader(), expect)
        else:
            trace.emit("mbarrier.arrive.release.cluster.shared::cluster.b64", SINK, self.leader())

    def expect(self, bytes_: int, *, leader: bool = False) -> None:
        """Add `bytes_` to what the current phase waits for (`leader`: of the pair's even CTA)."""
        if leader:
            current().emit("mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64", self.leader(), bytes_)
        else:
            current().emit("mbarrier.expect_tx.relaxed.cta.shared::cta.b64", self.raw, bytes_)

    def wait(self, parity: Scalar) -> None:
        """Wait until the phase of that parity is complete: 0 for the first, 1 for the second, 0 ...

        A fresh barrier counts as having completed a phase of parity 1.
        """
        trace, done, again = current(), fresh("pred"), current().label()
        address = self.raw
        trace.place(again)
        trace.emit("mbarrier.try_wait.parity.shared::cta.b64", done, address, parity)
        trace.emit("bra", again, guard=Guard(trace.read(done), True))


def barrier(arrivals: int = 1, *, count: int = 1, name: str = "") -> MBarrier:
    """`count` mbarriers whose phases take `arrivals` arrivals; initialised before the kernel's body runs."""
    if not 1 <= arrivals < 1 << 20:
        raise error("SML0304", what="the arrivals of a barrier", value=arrivals, wanted="1 to 1048575")
    trace = current()
    return MBarrier(trace.unique(name or "barrier"), count, arrivals, trace)


def shared_address(variable: Variable) -> Value:
    """The address of a shared variable, u32; made once."""

    def make() -> Value:
        value = fresh("u32")
        current().emit("mov.u32", value, SymbolAddress(variable))
        return value

    found: Value = current().once(("address", variable), make)
    return found


def initialise(trace: Trace) -> None:
    """Fill the place at the kernel's start where one thread initialises all mbarriers."""
    if not trace.barriers and not trace.at_setup:
        return
    with trace.at(trace.setup):
        for act in trace.at_setup:
            act()
        with trace.open_if(thread_index() == 0, "setup"):
            for b in trace.barriers:
                trace.plan.barriers.append(Barriers(b.name, b.count, b.arrivals))
                for i in range(b.count):
                    trace.emit("mbarrier.init.shared::cta.b64", b[i].raw, b.arrivals)
            trace.emit("fence.mbarrier_init.release.cluster")
        if trace.cluster == (1, 1, 1):
            trace.emit("bar.sync", 0)
        else:
            cluster_sync()


class NamedBarrier:
    """One of the CTA's 16 named barriers, for `threads` threads (a multiple of 32)."""

    def __init__(self, id_: Scalar, threads: int) -> None:
        self.id, self.threads = id_, threads

    def sync(self) -> None:
        """Arrive and wait for the others."""
        current().emit("bar.sync", self.id, self.threads)

    def arrive(self) -> None:
        """Arrive without waiting."""
        current().emit("bar.arrive", self.id, self.threads)


def named_barrier(threads: int) -> NamedBarrier:
    """A named barrier of `threads` threads (a multiple of 32). Errors: SML0305 when all 16 are taken."""
    if threads % 32 or threads <= 0:
        raise error("SML0304", what="the threads of a named barrier", value=threads, wanted="a multiple of 32")
    return NamedBarrier(current().name_barriers(1, "a named barrier"), threads)


def sync() -> None:
    """All threads that run here wait for each other: the CTA, a role, or the lanes of a warp."""
    trace = current()
    threads = trace.region.threads
    if threads.single:
        return
    if threads.warps == 1:
        trace.emit("bar.warp.sync", 0xFFFFFFFF)
    elif threads.role == trace.root.threads.role:
        trace.emit("bar.sync", 0)
    else:
        key = ("role barrier", threads.role)
        if key not in trace.cached:
            trace.cached[key] = trace.name_barriers(1, f"role {threads.role}")
        trace.emit("bar.sync", trace.cached[key], threads.warps * 32)


def sync_warpgroup() -> None:
    """The four warps of this warpgroup wait for each other."""
    trace = current()
    threads = trace.region.threads
    if threads.warps <= 4:
        sync()
        return
    groups = threads.warps // 4
    key = ("warpgroup barriers", threads.role)
    if key not in trace.cached:
        trace.cached[key] = trace.name_barriers(groups, f"the warpgroups of {threads.role}")
    trace.emit("bar.sync", threads.group + trace.cached[key], 128)


def cluster_sync() -> None:
    """All threads of the cluster wait for each other."""
    trace = current()
    trace.emit("barrier.cluster.arrive.aligned")
    trace.emit("barrier.cluster.wait.aligned")


def leave_together() -> None:
    """No CTA of the cluster ends before all have come to their end: others may still reach into its memory."""
    trace = current()
    if trace.cached.setdefault("leave together", False):
        return
    trace.cached["leave together"] = True

    def wait() -> None:
        trace.emit("barrier.cluster.arrive")
        trace.emit("barrier.cluster.wait")
        trace.note("barrier", "the cluster, at the end")

    trace.finishers.append(wait)


def proxy_fence() -> None:
    """Order earlier ordinary accesses of this thread to shared memory before later ones by TMA and tensor cores."""
    current().emit("fence.proxy.async.shared::cta")
