"""Named barriers, warp barriers and fences: who waits for whom, results of bar.red, partial and divergent use."""

import numpy as np
import pytest

from smalti.errors import SmaltiError
from smalti.ptx.module import Guard
from tests.vgpu.asm import Kernel

SEEDS = [None, *range(8)]


def refused(k: Kernel, **how: object) -> str:
    try:
        k.run(**how)  # type: ignore[arg-type]
    except SmaltiError as refusal:
        return refusal.code
    return ""


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("opcode", ["bar.sync", "barrier.sync", "barrier.cta.sync.aligned"])
def test_everybody_waits_for_everybody(opcode: str, seed: int | None) -> None:
    """Each thread reads what the thread 37 further on wrote."""
    k = Kernel(128)
    out = k.buffer("out", np.zeros(128, np.uint32))
    mine = k.value("mad.lo.u32", k.tid, 4, k.base)
    k.emit("st.shared.u32", k.at(0, mine), k.value("add.u32", k.tid, 1000))
    k.emit(opcode, 0)
    other = k.value("and.b32", k.value("add.u32", k.tid, 37), 127)
    k.put(out, k.value("ld.shared.u32", k.at(0, k.value("mad.lo.u32", other, 4, k.base))))
    assert k.run(seed=seed)["out"].tolist() == [1000 + (t + 37) % 128 for t in range(128)]


def test_without_a_barrier_the_race_is_reported() -> None:
    k = Kernel(128)
    out = k.buffer("out", np.zeros(128, np.uint32))
    mine = k.value("mad.lo.u32", k.tid, 4, k.base)
    k.emit("st.shared.u32", k.at(0, mine), k.tid)
    other = k.value("and.b32", k.value("add.u32", k.tid, 37), 127)
    k.put(out, k.value("ld.shared.u32", k.at(0, k.value("mad.lo.u32", other, 4, k.base))))
    with pytest.raises(SmaltiError, match="SML0930"):
        k.run()


@pytest.mark.parametrize("seed", SEEDS)
def test_reductions(seed: int | None) -> None:
    k = Kernel(128)
    out = k.buffer("out", np.zeros(4 * 128, np.uint32))
    third, small = k.reg("pred"), k.reg("pred")
    k.emit("setp.eq.u32", third, k.value("rem.u32", k.tid, 3), 0)
    k.emit("setp.lt.u32", small, k.tid, 200)
    k.put(out, k.value("bar.red.popc.u32", 1, third), 0)
    for slot, (op, p) in enumerate((("and", small), ("or", third), ("and", third)), 1):
        r = k.reg("pred")
        k.emit(f"barrier.cta.red.{op}.aligned.pred", r, 1, p)
        k.put(out, k.value("selp.u32", 1, 0, r), slot)
    got = k.run(seed=seed)["out"].reshape(4, 128)
    assert (got[0] == 43).all() and (got[1] == 1).all() and (got[2] == 1).all() and (got[3] == 0).all()


@pytest.mark.parametrize("seed", SEEDS)
def test_producer_and_consumer_warps(seed: int | None) -> None:
    """Two producer warps only arrive, two consumer warps wait, in three rounds with a barrier each way."""
    k = Kernel(128)
    out = k.buffer("out", np.zeros(3 * 128, np.uint32))
    consumer = k.reg("pred")
    k.emit("setp.ge.u32", consumer, k.tid, 64)
    lane = k.value("and.b32", k.tid, 63)
    mine = k.value("mad.lo.u32", lane, 4, k.base)
    eats, end = k.b.label(), k.b.label()
    k.emit("bra", eats, guard=consumer)
    for r in range(3):
        k.emit("st.shared.u32", k.at(0, mine), k.value("add.u32", lane, 100 * (r + 1)))
        k.emit("bar.arrive", 1, 128)
        k.emit("bar.sync", 2, 128)
    k.emit("bra", end)
    k.b.place(eats)
    other = k.value("mad.lo.u32", k.value("xor.b32", lane, 63), 4, k.base)
    for r in range(3):
        k.emit("bar.sync", 1, 128)
        k.put(out, k.value("ld.shared.u32", k.at(0, other)), r)
        k.emit("bar.arrive", 2, 128)
    k.b.place(end)
    got = k.run(seed=seed)["out"].reshape(3, 128)[:, 64:]
    assert got.tolist() == [[100 * (r + 1) + 63 - i for i in range(64)] for r in range(3)]


@pytest.mark.parametrize("seed", SEEDS)
def test_barrier_numbers_from_registers(seed: int | None) -> None:
    """Each pair of warps uses its own barrier; one instruction, other numbers."""
    k = Kernel(128)
    out = k.buffer("out", np.zeros(128, np.uint32))
    pair = k.value("add.u32", k.value("shr.u32", k.tid, 6), 3)
    mine = k.value("mad.lo.u32", k.tid, 4, k.base)
    k.emit("st.shared.u32", k.at(0, mine), k.tid)
    k.emit("bar.sync", pair, 64)
    other = k.value("mad.lo.u32", k.value("xor.b32", k.tid, 63), 4, k.base)
    k.put(out, k.value("ld.shared.u32", k.at(0, other)))
    assert k.run(seed=seed)["out"].tolist() == [t ^ 63 for t in range(128)]


@pytest.mark.parametrize("seed", SEEDS)
def test_a_guarded_barrier_holds_only_those_that_execute_it(seed: int | None) -> None:
    """Warps 2 and 3 skip the barrier and later arrive at another that warps 0 and 1 need."""
    k = Kernel(128)
    out = k.buffer("out", np.zeros(128, np.uint32))
    early = k.reg("pred")
    k.emit("setp.lt.u32", early, k.tid, 64)
    k.emit("bar.sync", 1, 128, guard=early)
    k.emit("bar.arrive", 1, 128, guard=Guard(early, True))
    k.put(out, k.value("mov.u32", 1))
    assert k.run(seed=seed)["out"].tolist() == [1] * 128


@pytest.mark.parametrize("seed", SEEDS)
def test_threads_that_have_left_are_not_waited_for(seed: int | None) -> None:
    k = Kernel(96)
    out = k.buffer("out", np.zeros(96, np.uint32))
    leaves = k.reg("pred")
    k.emit("setp.ge.u32", leaves, k.tid, 64)
    k.emit("ret", guard=leaves)
    k.sync()
    k.put(out, k.tid)
    assert k.run(seed=seed)["out"].tolist() == [*range(64), *[0] * 32]


@pytest.mark.parametrize("seed", SEEDS)
def test_divergent_lanes_meet_at_an_unaligned_barrier(seed: int | None) -> None:
    """The halves of a warp come on different paths, by different instructions."""
    k = Kernel(64)
    out = k.buffer("out", np.zeros(64, np.uint32))
    odd, other = k.reg("pred"), k.b.label()
    end = k.b.label()
    mine = k.value("mad.lo.u32", k.tid, 4, k.base)
    k.emit("setp.ne.u32", odd, k.value("and.b32", k.tid, 1), 0)
    k.emit("bra", other, guard=odd)
    k.emit("st.shared.u32", k.at(0, mine), k.value("add.u32", k.tid, 500))
    k.emit("barrier.sync", 0)
    k.emit("bra", end)
    k.b.place(other)
    k.emit("st.shared.u32", k.at(0, mine), k.value("add.u32", k.tid, 700))
    k.emit("barrier.sync", 0)
    k.b.place(end)
    swapped = k.value("mad.lo.u32", k.value("xor.b32", k.tid, 1), 4, k.base)
    k.put(out, k.value("ld.shared.u32", k.at(0, swapped)))
    expected = [(t ^ 1) + (700 if (t ^ 1) & 1 else 500) for t in range(64)]
    assert k.run(seed=seed)["out"].tolist() == expected


@pytest.mark.parametrize("seed", SEEDS)
def test_bar_warp_sync_orders_nothing_but_brings_lanes_together(seed: int | None) -> None:
    k = Kernel(32)
    out = k.buffer("out", np.zeros(32, np.uint32))
    low, there = k.reg("pred"), k.b.label()
    k.emit("setp.lt.u32", low, k.tid, 16)
    v = k.value("mov.u32", 1)
    k.emit("bra", there, guard=Guard(low, True))
    k.emit("add.u32", v, v, 10)
    k.b.place(there)
    k.emit("bar.warp.sync", -1)
    k.put(out, v)
    assert k.run(seed=seed)["out"].tolist() == [11] * 16 + [1] * 16


def test_refusals() -> None:
    def kernel(*steps: tuple, threads: int = 64) -> Kernel:
        k = Kernel(threads)
        second = k.reg("pred")
        k.emit("setp.ge.u32", second, k.tid, 32)
        for guard, opcode, *operands in steps:
            guards = {"": None, "0": Guard(second, True), "1": Guard(second), "lane": Guard(k.first)}
            k.emit(opcode, *[k.value("mov.u32", o) if o > 15 else o for o in operands], guard=guards[guard])
        return k

    assert refused(kernel(("", "barrier.sync", 16))) == "SML0910"
    assert refused(kernel(("", "barrier.sync", 15))) == ""
    assert refused(kernel(("", "bar.sync", 1, 48))) == "SML0911"
    assert refused(kernel(("", "bar.sync", 1, 96))) == "SML0911"
    assert refused(kernel(("0", "bar.arrive", 1, 64), ("1", "bar.sync", 1, 32))) == "SML0912"
    assert refused(kernel(("0", "bar.arrive", 1, 64), ("1", "bar.sync", 1, 64))) == ""
    assert refused(kernel(("0", "bar.arrive", 1, 64), ("0", "bar.arrive", 1, 64))) == "SML0913"
    assert refused(kernel(("lane", "bar.sync", 0))) == "SML0914"


def test_a_barrier_that_nobody_completes_is_a_deadlock() -> None:
    k = Kernel(64)
    k.emit("bar.sync", 3, k.value("mov.u32", 64), guard=None)
    assert refused(k) == ""
    k = Kernel(64)
    second, end = k.reg("pred"), k.b.label()
    k.emit("setp.ge.u32", second, k.tid, 32)
    k.emit("bra", end, guard=second)
    k.emit("bar.sync", 3, 64)
    k.b.place(end)
    k.emit("bar.sync", 4, 64)
    with pytest.raises(SmaltiError, match=r"barrier 3, which lacks 32 of 64 threads"):
        k.run()


@pytest.mark.parametrize("seed", SEEDS)
def test_the_full_count_must_be_said_by_all_or_by_none(seed: int | None) -> None:
    """An H200 answers the mixture with an illegal instruction."""
    for first, other, code in (
        ((0, 64), (0,), "SML0912"),
        ((0,), (0, 64), "SML0912"),
        ((0, 64), (0, 64), ""),
        ((0,), (0,), ""),
    ):
        k = Kernel(64)
        second = k.reg("pred")
        k.emit("setp.ge.u32", second, k.tid, 32)
        k.emit("bar.sync", *first, guard=second)
        k.emit("bar.sync", *other, guard=Guard(second, True))
        assert refused(k, seed=seed) == code
