"""The cluster barrier: phases, order between CTAs, relaxed arrivals, threads that leave."""

import numpy as np
import pytest

from smalti.errors import SmaltiError
from smalti.ptx.module import Special
from tests.vgpu.asm import Kernel

SEEDS = [None, *range(8)]


def exchange(k: Kernel, arrive: str, wait: str) -> None:
    """Every thread writes to the next CTA, then all read what came."""
    n = k.cluster
    out = k.buffer("out", np.zeros(n * k.threads, np.uint32))
    rank = k.value("mov.u32", Special("cluster_ctarank"))
    after = k.value("rem.u32", k.value("add.u32", rank, 1), n)
    peer = k.value("mapa.shared::cluster.u32", k.base, after, type_="b32")
    theirs = k.value("mad.lo.u32", k.tid, 4, peer)
    k.emit("st.shared::cluster.u32", k.at(0, theirs), k.value("mad.lo.u32", rank, 1000, k.tid))
    k.emit(arrive)
    k.emit(wait)
    mine = k.value("mad.lo.u32", k.tid, 4, k.base)
    got = k.value("ld.shared.u32", k.at(0, mine))
    k.emit("st.global.u32", k.element(out, k.value("mad.lo.u32", rank, k.threads, k.tid), 4), got)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_exchange(size: int, seed: int | None) -> None:
    k = Kernel(64, cluster=size)
    exchange(k, "barrier.cluster.arrive.aligned", "barrier.cluster.wait.aligned")
    expected = [1000 * ((r - 1) % size) + t for r in range(size) for t in range(64)]
    assert k.run(seed=seed)["out"].tolist() == expected


def test_a_relaxed_arrival_orders_nothing() -> None:
    k = Kernel(64, cluster=2)
    exchange(k, "barrier.cluster.arrive.relaxed.aligned", "barrier.cluster.wait.aligned")
    with pytest.raises(SmaltiError, match="SML0930"):
        k.run()
    k = Kernel(64, cluster=2)
    k.emit("fence.acq_rel.cluster")  # too early: it releases nothing of what follows
    exchange(k, "barrier.cluster.arrive.relaxed.aligned", "barrier.cluster.wait.aligned")
    with pytest.raises(SmaltiError, match="SML0930"):
        k.run()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_fence_before_a_relaxed_arrival_releases(seed: int | None) -> None:
    k = Kernel(64, cluster=2)
    n = k.cluster
    out = k.buffer("out", np.zeros(n * k.threads, np.uint32))
    rank = k.value("mov.u32", Special("cluster_ctarank"))
    peer = k.value("mapa.shared::cluster.u32", k.base, k.value("xor.b32", rank, 1), type_="b32")
    k.emit("st.shared::cluster.u32", k.at(0, k.value("mad.lo.u32", k.tid, 4, peer)), k.tid)
    k.emit("fence.acq_rel.cluster")
    k.emit("barrier.cluster.arrive.relaxed.aligned")
    k.emit("barrier.cluster.wait.aligned")
    got = k.value("ld.shared.u32", k.at(0, k.value("mad.lo.u32", k.tid, 4, k.base)))
    k.emit("st.global.u32", k.element(out, k.value("mad.lo.u32", rank, k.threads, k.tid), 4), got)
    assert k.run(seed=seed)["out"].tolist() == [*range(64)] * 2


@pytest.mark.parametrize("seed", SEEDS)
def test_many_phases(seed: int | None) -> None:
    """A token goes round the cluster, one step a phase."""
    k = Kernel(32, cluster=4)
    out = k.buffer("out", np.zeros(4, np.uint32))
    rank = k.value("mov.u32", Special("cluster_ctarank"))
    peer = k.value("mapa.shared::cluster.u32", k.base, k.value("and.b32", k.value("add.u32", rank, 1), 3), type_="b32")
    k.emit("st.shared.u32", k.at(0), rank, guard=k.first)
    for phase in range(6):
        k.emit("barrier.cluster.arrive.aligned")
        k.emit("barrier.cluster.wait.aligned")
        here, there = 4 * (phase % 2), 4 * ((phase + 1) % 2)
        v = k.value("ld.shared.u32", k.at(here))
        k.emit("st.shared::cluster.u32", k.at(there, peer), k.value("add.u32", v, 10), guard=k.first)
    k.emit("barrier.cluster.arrive.aligned")
    k.emit("barrier.cluster.wait.aligned")
    k.emit("st.global.u32", k.element(out, rank, 4), k.value("ld.shared.u32", k.at(0)), guard=k.first)
    assert k.run(seed=seed)["out"].tolist() == [60 + (r - 6) % 4 for r in range(4)]


@pytest.mark.parametrize("seed", SEEDS)
def test_threads_that_leave_count_as_arrived(seed: int | None) -> None:
    k = Kernel(64, cluster=2)
    out = k.buffer("out", np.zeros(128, np.uint32))
    rank = k.value("mov.u32", Special("cluster_ctarank"))
    leaves = k.reg("pred")
    k.emit("setp.ge.u32", leaves, k.tid, 32)
    k.emit("ret", guard=leaves)
    k.emit("barrier.cluster.arrive.aligned")
    k.emit("barrier.cluster.wait.aligned")
    k.emit("st.global.u32", k.element(out, k.value("mad.lo.u32", rank, 64, k.tid), 4), k.tid)
    assert k.run(seed=seed)["out"].tolist() == [*range(32), *[0] * 32] * 2


def test_pairing() -> None:
    for steps, code in (
        (("arrive", "wait", "arrive", "wait"), ""),
        (("arrive", "arrive"), "SML0915"),
        (("wait",), "SML0916"),
        (("arrive", "wait", "wait"), "SML0916"),
    ):
        k = Kernel(32, cluster=2)
        for s in steps:
            k.emit(f"barrier.cluster.{s}.aligned")
        if code:
            with pytest.raises(SmaltiError) as caught:
                k.run()
            assert caught.value.code == code
        else:
            k.run()
