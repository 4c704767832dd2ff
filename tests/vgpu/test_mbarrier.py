"""mbarriers: the measured word (E12), completion, waits, traps, remote arrivals, stale memory."""

import numpy as np
import pytest

from smalti.errors import SmaltiError
from smalti.ptx.module import SINK, Special
from tests.vgpu.asm import Kernel

LIMIT = 1 << 20


def word(expected: int, pending: int, tx: int = 0, phase: int = 0) -> int:
    """Written from the table of E12, not from the engine."""
    low = ((LIMIT - expected) % LIMIT) << 1
    middle = (tx % (1 << 21)) << 21
    return low | middle | ((LIMIT - pending) % LIMIT) << 43 | phase << 63


def dump(*steps: tuple, count: int) -> tuple[int, list[int]]:
    """The word in memory after `init count`, the steps and `inval`; and the tokens that the steps returned."""
    k = Kernel(1)
    out = k.buffer("out", np.full(16, 7, np.uint64))
    k.emit("mbarrier.init.shared::cta.b64", k.at(), count)
    tokens = []
    for opcode, *numbers in steps:
        operands = [k.value("mov.u32", n) for n in numbers]  # in registers, where anything may be given
        if "arrive" in opcode:
            state = k.reg("b64")
            k.emit(f"mbarrier.{opcode}.shared::cta.b64", state, k.at(), *operands)
            tokens.append(state)
        else:
            k.emit(f"mbarrier.{opcode}.shared::cta.b64", k.at(), *operands)
    k.emit("mbarrier.inval.shared::cta.b64", k.at())
    k.put(out, k.value("ld.shared.b64", k.at()))
    for i, t in enumerate(tokens):
        k.put(out, t, i + 1)
    got = k.run()["out"]
    return int(got[0]), [int(x) for x in got[1 : 1 + len(tokens)]]


HIGH = 0xFFFFFFFF00000000


@pytest.mark.parametrize("count", [1, 3, 7, LIMIT - 1])
def test_init(count: int) -> None:
    assert dump(count=count)[0] == word(count, count)
    # the two words that ptxas computes: (2^20 - n) << 1 and (2^20 - n) << 11
    assert word(count, count) == (LIMIT - count) << 1 | (LIMIT - count) << 43


def test_sequences() -> None:
    cases = [
        ([("arrive",)], 3, word(3, 2)),
        ([("arrive", 2)], 3, word(3, 1)),
        ([("arrive", 3)], 3, word(3, 3, 0, 1)),
        ([("arrive", 3), ("arrive", 1)], 3, word(3, 2, 0, 1)),
        ([("expect_tx", 100)], 3, word(3, 3, -100)),
        ([("complete_tx", 100)], 3, word(3, 3, 100)),
        ([("complete_tx", 100), ("expect_tx", 100)], 1, word(1, 1)),
        ([("expect_tx", 16), ("arrive", 2)], 2, word(2, 0, -16)),
        ([("expect_tx", 16), ("arrive", 2), ("complete_tx", 16)], 2, word(2, 2, 0, 1)),
        ([("arrive.expect_tx", 64)], 2, word(2, 1, -64)),
        ([("arrive_drop",)], 3, word(2, 2)),
        ([("arrive_drop", 2), ("arrive", 1)], 3, word(1, 1, 0, 1)),
        ([("arrive_drop.expect_tx", 8)], 3, word(2, 2, -8)),
        ([("arrive", 0)], 3, word(3, 3)),
        ([("arrive_drop", 1)], 1, 0x8000000000000000),
        ([("expect_tx", LIMIT - 1)], 1, word(1, 1, 1 - LIMIT)),
        ([("expect_tx", LIMIT - 1), ("arrive", 1), ("expect_tx", 1)], 1, word(1, 0, -LIMIT)),
    ]
    for steps, count, expected in cases:
        assert dump(*steps, count=count)[0] == expected, steps


def test_tokens_hold_the_state_before() -> None:
    """The high word is state, the low one the operand (H200)."""
    _, tokens = dump(("arrive",), ("arrive.expect_tx", 32), ("arrive_drop",), ("arrive", 1), count=4)
    before = [word(4, 4), word(4, 3), word(4, 2, -32), word(3, 1, -32)]
    assert [t & HIGH for t in tokens] == [w & HIGH for w in before]
    assert [t & ~HIGH for t in tokens] == [0, 32, 0, 1]


def test_pending_count() -> None:
    k = Kernel(1)
    out = k.buffer("out", np.zeros(4, np.uint32))
    for i, state in enumerate((word(5, 5), word(5, 2), word(5, 0, -3), word(9, 7, 0, 1))):
        r = k.value("mov.b64", state if state < 1 << 63 else state - (1 << 64))
        k.put(out, k.value("mbarrier.pending_count.b64", r, type_="u32"), i)
    assert k.run()["out"].tolist() == [5, 2, LIMIT, 7]


def test_a_plain_load_sees_stale_memory_and_a_plain_store_changes_nothing() -> None:
    k = Kernel(1)
    out = k.buffer("out", np.zeros(2, np.uint64))
    k.emit("st.shared.b64", k.at(), 0x1234)
    k.emit("mbarrier.init.shared::cta.b64", k.at(), 2)
    k.put(out, k.value("ld.shared.b64", k.at()))
    k.emit("st.shared.b64", k.at(), 0x5678)
    k.emit("mbarrier.arrive.shared::cta.b64", SINK, k.at())
    k.emit("mbarrier.inval.shared::cta.b64", k.at())
    k.put(out, k.value("ld.shared.b64", k.at()), 1)
    assert k.run()["out"].tolist() == [0x1234, word(2, 1)]


@pytest.mark.parametrize("wait", ["test_wait", "try_wait"])
def test_waits(wait: str) -> None:
    """By token and by parity, before and after the phase completes; a fresh barrier passes parity 1."""
    k = Kernel(1)
    out = k.buffer("out", np.full(6, 9, np.uint32))

    def ask(operand: object, parity: bool, slot: int) -> None:
        p = k.reg("pred")
        k.emit(f"mbarrier.{wait}{'.parity' if parity else ''}.shared::cta.b64", p, k.at(), operand)
        k.put(out, k.value("selp.u32", 1, 0, p), slot)

    k.emit("mbarrier.init.shared::cta.b64", k.at(), 2)
    ask(1, True, 0)
    ask(0, True, 1)
    state = k.reg("b64")
    k.emit("mbarrier.arrive.shared::cta.b64", state, k.at())
    ask(state, False, 2)
    k.emit("mbarrier.arrive.shared::cta.b64", SINK, k.at())
    ask(state, False, 3)
    ask(0, True, 4)
    ask(1, True, 5)
    assert k.run()["out"].tolist() == [1, 0, 0, 1, 1, 0]


@pytest.mark.parametrize("seed", [None, *range(6)])
def test_a_hand_over_orders_memory(seed: int | None) -> None:
    """Warp 0 writes and arrives, warp 1 waits and reads; and back."""
    k = Kernel(64)
    out = k.buffer("out", np.zeros(64, np.uint32))
    k.emit("mbarrier.init.shared::cta.b64", k.at(0), 32, guard=k.first)
    k.emit("mbarrier.init.shared::cta.b64", k.at(8), 32, guard=k.first)
    k.sync()
    lane = k.value("and.b32", k.tid, 31)
    mine = k.value("mad.lo.u32", lane, 4, k.base)
    second = k.reg("pred")
    k.emit("setp.ge.u32", second, k.tid, 32)
    other, end = k.b.label(), k.b.label()
    k.emit("bra", other, guard=second)
    k.emit("st.shared.u32", k.at(64, mine), k.value("add.u32", lane, 100))
    k.emit("mbarrier.arrive.shared::cta.b64", SINK, k.at(0))
    k.wait(k.at(8), 0)
    k.put(out, k.value("ld.shared.u32", k.at(64, mine)))
    k.emit("bra", end)
    k.b.place(other)
    k.wait(k.at(0), 0)
    v = k.value("ld.shared.u32", k.at(64, mine))
    k.put(out, v)
    k.emit("st.shared.u32", k.at(64, mine), k.value("add.u32", v, 1000))
    k.emit("mbarrier.arrive.shared::cta.b64", SINK, k.at(8))
    k.b.place(end)
    got = k.run(seed=seed)["out"]
    assert got.tolist() == [*range(1100, 1132), *range(100, 132)]


def _traps(*steps: tuple, count: int = 2) -> str:
    try:
        dump(*steps, count=count)
    except SmaltiError as refusal:
        return refusal.code
    return ""


def test_traps_and_their_neighbours() -> None:
    assert _traps(("arrive", 3)) == "SML0905"
    assert _traps(("arrive", 2), ("arrive", 2)) == ""
    assert _traps(("arrive_drop", 2), ("arrive", 1)) == "SML0905"  # nobody is expected any more
    assert _traps(("complete_tx", LIMIT - 1), ("complete_tx", 1)) == "SML0906"
    assert _traps(("complete_tx", LIMIT - 1)) == ""
    assert _traps(("expect_tx", LIMIT - 1), ("expect_tx", 2)) == "SML0906"
    assert _traps(("expect_tx", LIMIT - 1), ("expect_tx", 1)) == "SML0906"  # only with no arrival pending (H200)
    assert _traps(("expect_tx", LIMIT - 2), ("expect_tx", 1)) == ""
    assert _traps(("expect_tx", LIMIT)) == "SML0907"
    assert _traps(("arrive.noComplete", 2)) == "SML0908"
    assert _traps(("arrive.noComplete", 1)) == ""
    assert _traps(("arrive_drop.noComplete", 1)) == ""


def test_life_cycle() -> None:
    k = Kernel(1)
    k.emit("mbarrier.arrive.shared::cta.b64", SINK, k.at())
    with pytest.raises(SmaltiError) as caught:
        k.run()
    assert caught.value.code == "SML0902"
    k = Kernel(1)
    k.emit("mbarrier.init.shared::cta.b64", k.at(), 1)
    k.emit("mbarrier.inval.shared::cta.b64", k.at())
    k.emit("mbarrier.arrive.shared::cta.b64", SINK, k.at())
    with pytest.raises(SmaltiError) as caught:
        k.run()
    assert caught.value.code == "SML0902"
    k = Kernel(1)
    k.emit("mbarrier.init.shared::cta.b64", k.at(), 1)
    k.emit("mbarrier.init.shared::cta.b64", k.at(), 1)
    with pytest.raises(SmaltiError) as caught:
        k.run()
    assert caught.value.code == "SML0904"
    k = Kernel(1)
    k.emit("mbarrier.init.shared::cta.b64", k.at(), k.value("mov.u32", 0))
    with pytest.raises(SmaltiError) as caught:
        k.run()
    assert caught.value.code == "SML0903"
    k = Kernel(1)
    k.emit("mbarrier.init.shared::cta.b64", k.at(), 1)
    k.emit("mbarrier.inval.shared::cta.b64", k.at())
    k.emit("mbarrier.init.shared::cta.b64", k.at(), 1)
    k.emit("mbarrier.arrive.shared::cta.b64", SINK, k.at())
    k.run()


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_remote_arrivals(seed: int | None) -> None:
    """All threads of the other CTA arrive here through mapa, without a result."""
    k = Kernel(32, cluster=2)
    out = k.buffer("out", np.zeros(64, np.uint32))
    k.emit("mbarrier.init.shared::cta.b64", k.at(), 32, guard=k.first)
    k.emit("fence.mbarrier_init.release.cluster")
    k.emit("barrier.cluster.arrive.relaxed.aligned")
    k.emit("barrier.cluster.wait.acquire.aligned")
    rank = k.value("mov.u32", Special("cluster_ctarank"))
    peer = k.value("mapa.shared::cluster.u32", k.base, k.value("xor.b32", rank, 1), type_="b32")
    data = k.value("mad.lo.u32", k.tid, 4, peer)
    k.emit("st.shared::cluster.u32", k.at(64, data), k.value("mad.lo.u32", rank, 100, k.tid))
    k.emit("mbarrier.arrive.release.cluster.shared::cluster.b64", SINK, k.at(0, peer))
    again, p = k.b.label(), k.reg("pred")
    k.b.place(again)
    k.emit("mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64", p, k.at(), 0)
    from smalti.ptx.module import Guard

    k.emit("bra", again, guard=Guard(p, True))
    mine = k.value("mad.lo.u32", k.tid, 4, k.base)
    value = k.value("ld.shared.u32", k.at(64, mine))
    k.emit("st.global.u32", k.element(out, k.value("mad.lo.u32", rank, 32, k.tid), 4), value)
    k.emit("barrier.cluster.arrive.aligned")
    k.emit("barrier.cluster.wait.aligned")
    got = k.run(seed=seed)["out"]
    assert got.tolist() == [*range(100, 132), *range(32)]


def test_a_lost_arrival_is_a_deadlock_that_names_what_is_missing() -> None:
    k = Kernel(1)
    k.emit("mbarrier.init.shared::cta.b64", k.at(), 2)
    k.emit("mbarrier.arrive.expect_tx.shared::cta.b64", SINK, k.at(), 48)
    k.wait(k.at(), 0)
    with pytest.raises(SmaltiError, match="lacks 1 of 2 arrivals and 48 bytes") as caught:
        k.run()
    assert caught.value.code == "SML0901"


def test_try_wait_gives_up_when_nothing_else_can_happen() -> None:
    """A bounded loop of try_wait ends by itself."""
    from smalti.ptx.module import Guard

    k = Kernel(1)
    out = k.buffer("out", np.zeros(1, np.uint32))
    k.emit("mbarrier.init.shared::cta.b64", k.at(), 1)
    n, p, q = k.value("mov.u32", 0), k.reg("pred"), k.reg("pred")
    again, end = k.b.label(), k.b.label()
    k.b.place(again)
    k.emit("add.u32", n, n, 1)
    k.emit("setp.ge.u32", q, n, 10)
    k.emit("bra", end, guard=q)
    k.emit("mbarrier.try_wait.parity.shared::cta.b64", p, k.at(), 0, 1000)
    k.emit("bra", again, guard=Guard(p, True))
    k.b.place(end)
    k.put(out, n)
    assert k.run()["out"].tolist() == [10]


def test_polling_with_test_wait_is_parked_and_woken() -> None:
    from smalti.ptx.module import Guard

    k = Kernel(64)
    out = k.buffer("out", np.zeros(64, np.uint32))
    k.emit("mbarrier.init.shared::cta.b64", k.at(), 1, guard=k.first)
    k.sync()
    second = k.reg("pred")
    k.emit("setp.ge.u32", second, k.tid, 32)
    spin, end = k.b.label(), k.b.label()
    k.emit("bra", spin, guard=second)
    k.emit("mbarrier.arrive.shared::cta.b64", SINK, k.at(), guard=k.first)
    k.emit("bra", end)
    k.b.place(spin)
    p = k.reg("pred")
    k.emit("mbarrier.test_wait.parity.shared::cta.b64", p, k.at(), 0)
    k.emit("bra", spin, guard=Guard(p, True))
    k.put(out, k.value("mov.u32", 5))
    k.b.place(end)
    assert k.run()["out"].tolist() == [0] * 32 + [5] * 32
