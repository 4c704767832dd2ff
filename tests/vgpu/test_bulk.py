"""One-dimensional bulk copies and reductions, cp.async and its groups and arrivals."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from smalti.errors import SmaltiError
from smalti.ptx.module import SINK, Guard, Special
from tests.vgpu.asm import Kernel

LOAD = "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes{}"
STORE = "cp.async.bulk.global.shared::cta.bulk_group{}"
SEEDS = [None, *range(6)]
COMMIT, WAIT = "cp.async.bulk.commit_group", "cp.async.bulk.wait_group"


def code_of(build: Any) -> str:
    try:
        build()
    except SmaltiError as refusal:
        return refusal.code
    return ""


def lane_word(k: Kernel, offset: int = 0) -> Any:
    return k.at(offset, k.value("mad.lo.u32", k.tid, 4, k.base))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("size", [16, 64, 128])
def test_load(size: int, seed: int | None) -> None:
    """Exactly `size` bytes come; what lies behind stays."""
    k = Kernel(32)
    data = k.buffer("data", np.arange(1000, 1064, dtype=np.uint32))
    out = k.buffer("out", np.zeros(32, np.uint32))
    k.emit("st.shared.b32", lane_word(k), k.value("mov.b32", 5))
    k.emit("fence.proxy.async")
    k.init(1024, 1)
    k.expect(1024, size)
    k.emit(LOAD.format(""), k.at(), k.b.address(data, 16), size, k.at(1024), guard=k.first)
    k.wait(k.at(1024), 0)
    k.put(out, k.value("ld.shared.b32", lane_word(k)))
    assert k.run(seed=seed)["out"].tolist() == [*range(1004, 1004 + size // 4), *[5] * (32 - size // 4)]


@pytest.mark.parametrize("seed", SEEDS)
def test_multicast(seed: int | None) -> None:
    k = Kernel(32, cluster=4)
    data = k.buffer("data", np.arange(32, dtype=np.uint32))
    out = k.buffer("out", np.zeros(128, np.uint32))
    rank = k.value("mov.u32", Special("cluster_ctarank"))
    k.emit("mbarrier.init.shared::cta.b64", k.at(1024), 1, guard=k.first)
    k.emit("fence.mbarrier_init.release.cluster")
    k.emit("barrier.cluster.arrive.aligned")
    k.emit("barrier.cluster.wait.aligned")
    lead = k.reg("pred")
    k.emit("setp.eq.u32", lead, k.value("add.u32", rank, k.tid), 2)
    k.emit("and.pred", lead, lead, k.first)
    k.expect(1024, 128)
    k.emit(
        LOAD.format(".multicast::cluster"),
        k.at(),
        k.b.address(data),
        128,
        k.at(1024),
        k.value("mov.b16", 0b1111),
        guard=lead,
    )
    k.wait(k.at(1024), 0)
    v = k.value("ld.shared.b32", lane_word(k))
    k.emit("st.global.b32", k.element(out, k.value("mad.lo.u32", rank, 32, k.tid), 4), v)
    k.emit("barrier.cluster.arrive.aligned")
    k.emit("barrier.cluster.wait.aligned")
    assert k.run(seed=seed)["out"].tolist() == [*range(32)] * 4


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("op", ["", "add.u32", "max.s32", "xor.b32"])
def test_shared_to_shared_of_a_peer(op: str, seed: int | None) -> None:
    """CTA r sends its tile to CTA 1 - r and signals the barrier there."""
    k = Kernel(32, cluster=2)
    out = k.buffer("out", np.zeros(64, np.uint32))
    rank = k.value("mov.u32", Special("cluster_ctarank"))
    peer = k.value("mapa.shared::cluster.u32", k.base, k.value("xor.b32", rank, 1), type_="b32")
    k.emit("mbarrier.init.shared::cta.b64", k.at(1024), 1, guard=k.first)
    k.emit("fence.mbarrier_init.release.cluster")
    k.emit("st.shared.b32", lane_word(k), k.value("mad.lo.u32", rank, 100, k.tid))
    k.emit("st.shared.b32", lane_word(k, 128), k.value("add.u32", k.tid, 3))
    k.emit("fence.proxy.async")
    k.emit("barrier.cluster.arrive.aligned")
    k.emit("barrier.cluster.wait.aligned")
    k.expect(1024, 128)
    if op:
        opcode = f"cp.reduce.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes.{op}"
    else:
        opcode = "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes"
    k.emit(opcode, k.at(128, peer), k.at(0), 128, k.at(1024, peer), guard=k.first)
    k.wait(k.at(1024), 0)
    v = k.value("ld.shared.b32", lane_word(k, 128))
    k.emit("st.global.b32", k.element(out, k.value("mad.lo.u32", rank, 32, k.tid), 4), v)
    k.emit("barrier.cluster.arrive.aligned")
    k.emit("barrier.cluster.wait.aligned")
    function = {"": lambda a, b: b, "add.u32": lambda a, b: a + b, "max.s32": max, "xor.b32": lambda a, b: a ^ b}[op]
    expected = [function(t + 3, 100 * (1 - r) + t) for r in range(2) for t in range(32)]
    assert k.run(seed=seed)["out"].tolist() == expected


def store(
    size: int, *, mask: int | None = None, op: str = "", before: Any = None, after: Any = None, **how: Any
) -> np.ndarray:
    """Shared words 0, 1, … (or `after`) stored to, or reduced into, a global buffer."""
    k = Kernel(32, arch="sm_100a" if mask is not None else "sm_90a")
    data = k.buffer("data", np.full(32, 0x11111111, np.uint32) if before is None else before.view(np.uint32))
    image = k.buffer("image", np.arange(32, dtype=np.uint32) if after is None else after.view(np.uint32))
    k.emit("st.shared.b32", lane_word(k), k.value("ld.global.b32", k.element(image, k.tid, 4)))
    k.emit("fence.proxy.async")
    k.sync()
    if op:
        k.emit(
            f"cp.reduce.async.bulk.global.shared::cta.bulk_group.{op}", k.b.address(data), k.at(), size, guard=k.first
        )
    elif mask is None:
        k.emit(STORE.format(""), k.b.address(data), k.at(), size, guard=k.first)
    else:
        k.emit(STORE.format(".cp_mask"), k.b.address(data), k.at(), size, k.value("mov.b16", mask), guard=k.first)
    k.emit(COMMIT)
    k.emit(WAIT, 0)
    return k.run(**how)["data"]


@pytest.mark.parametrize("seed", SEEDS)
def test_store(seed: int | None) -> None:
    assert store(96, seed=seed).tolist() == [*range(24), *[0x11111111] * 8]


def test_byte_mask() -> None:
    """Bytes 0, 5 and 15 of every 16 are written."""
    got = store(64, mask=0b1000000000100001).view(np.uint8).reshape(8, 16)
    words = np.arange(16, dtype=np.uint32).view(np.uint8).reshape(4, 16)
    for u in range(8):
        want = [0x11] * 16
        if u < 4:
            for b in (0, 5, 15):
                want[b] = int(words[u, b])
        assert got[u].tolist() == want


def test_reductions() -> None:
    a = np.arange(32, dtype=np.uint32)
    assert store(128, op="add.u32", before=a, after=a).tolist() == (2 * a).tolist()
    f = np.arange(32, dtype=np.float32)
    got = store(128, op="add.f32", before=f, after=np.full(32, 0.5, np.float32)).view(np.float32)
    assert got.tolist() == (f + 0.5).tolist()
    tiny = np.full(32, 3, np.uint32)  # subnormal f32: kept (E11)
    assert store(128, op="add.f32", before=tiny, after=tiny).tolist() == [6] * 32
    h = np.arange(64, dtype=np.float16)
    got = store(128, op="add.noftz.f16", before=h, after=h).view(np.float16)
    assert got.tolist() == (2 * h).tolist()
    wide = np.arange(16, dtype=np.int64) - 8
    got = store(128, op="min.s64", before=wide, after=-wide).view(np.int64)
    assert got.tolist() == (-np.abs(wide)).tolist()
    d = np.arange(16, dtype=np.float64) / 3
    assert store(128, op="add.f64", before=d, after=d).view(np.float64).tolist() == (d + d).tolist()


def test_a_missing_wait_leaves_old_data() -> None:
    for early in (False, True):
        k = Kernel(32)
        data = k.buffer("data", np.arange(32, dtype=np.uint32))
        out = k.buffer("out", np.zeros(32, np.uint32))
        k.emit("st.shared.b32", lane_word(k), k.value("mov.b32", 9))
        k.emit("fence.proxy.async")
        k.init(1024, 1)
        k.expect(1024, 128)
        k.emit(LOAD.format(""), k.at(), k.b.address(data), 128, k.at(1024), guard=k.first)
        for _ in range(6):
            k.value("mov.b32", 0)
        k.put(out, k.value("ld.shared.b32", lane_word(k)))
        k.wait(k.at(1024), 0)
        assert k.run(early=early, checks=False)["out"].tolist() == (list(range(32)) if early else [9] * 32)


def test_a_missing_proxy_fence_is_reported() -> None:
    for fence in (False, True):
        k = Kernel(32)
        data = k.buffer("data", np.zeros(32, np.uint32))
        k.emit("st.shared.b32", lane_word(k), k.tid)
        if fence:
            k.emit("fence.proxy.async")
        k.sync()
        k.emit(STORE.format(""), k.b.address(data), k.at(), 128, guard=k.first)
        k.emit(COMMIT)
        k.emit(WAIT, 0)
        if fence:
            assert k.run()["data"].tolist() == list(range(32))
        else:
            with pytest.raises(SmaltiError, match="SML0931"):
                k.run()


def test_leaving_with_a_store_in_flight_is_reported() -> None:
    for waits in (False, True):
        k = Kernel(32)
        data = k.buffer("data", np.zeros(32, np.uint32))
        k.emit("st.shared.b32", lane_word(k), k.tid)
        k.emit("fence.proxy.async")
        k.sync()
        k.emit(STORE.format(""), k.b.address(data), k.at(), 128, guard=k.first)
        if waits:
            k.emit(COMMIT)
            k.emit(WAIT + ".read", 0)
            assert k.run()["data"].tolist() == list(range(32))
        else:
            with pytest.raises(SmaltiError, match="SML0933"):
                k.run()


def test_refusals_and_their_neighbours() -> None:
    def load(size: int, at: int = 0, source: int = 0) -> str:
        k = Kernel(1)
        data = k.buffer("data", np.zeros(64, np.uint32))
        k.init(1024, 1)
        k.expect(1024, size)
        given = k.value("mov.u32", size)
        k.emit(LOAD.format(""), k.at(at), k.b.address(data, source), given, k.at(1024))
        k.wait(k.at(1024), 0)
        try:
            k.run()
        except SmaltiError as refusal:
            return str(refusal)[:7]
        return ""

    assert load(24) == "SML0826" and load(32) == ""
    assert load(32, at=8) == "SML0804" and load(32, source=4) == "SML0804" and load(32, at=16, source=16) == ""
    assert load(272) == "SML0803" and load(256) == ""
    for rank, code in ((0, "SML0828"), (1, "")):
        k = Kernel(1, cluster=2)
        me = k.value("mov.u32", Special("cluster_ctarank"))
        lead = k.reg("pred")
        k.emit("setp.eq.u32", lead, me, 0)
        far = k.value("mapa.shared::cluster.u32", k.base, rank, type_="b32")
        zero = k.value("mov.b32", 0)
        k.emit("st.shared.v4.b32", k.at(), [zero] * 4)
        k.emit("fence.proxy.async")
        k.emit("mbarrier.init.shared::cta.b64", k.at(1024), 1)
        k.emit("barrier.cluster.arrive.aligned")
        k.emit("barrier.cluster.wait.aligned")
        k.emit("mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64", k.at(1024, far), 16, guard=lead)
        k.emit(
            "cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes",
            k.at(64, far),
            k.at(),
            16,
            k.at(1024, far),
            guard=lead,
        )
        receives = k.reg("pred")
        k.emit("setp.eq.u32", receives, me, 1)
        k.emit("barrier.cluster.arrive.aligned")  # the bytes are expected before the arrival
        k.emit("barrier.cluster.wait.aligned")
        k.emit("mbarrier.arrive.shared::cta.b64", SINK, k.at(1024), guard=receives)
        k.wait(k.at(1024), 0, guard=receives)
        k.emit("barrier.cluster.arrive.aligned")  # CTA 0 stays until its bytes have been read
        k.emit("barrier.cluster.wait.aligned")
        assert code_of(k.run) == code


# -- cp.async ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("width", [4, 8, 16])
def test_cp_async(width: int, seed: int | None) -> None:
    """Each thread copies its bytes; waiting is for one's own copies, so a barrier follows."""
    k = Kernel(64)
    n = 64 * width // 4
    data = k.buffer("data", np.arange(n, dtype=np.uint32))
    out = k.buffer("out", np.zeros(n, np.uint32))
    mine = k.value("mad.lo.u32", k.tid, width, k.base)
    kind = "cg" if width == 16 else "ca"
    k.emit(f"cp.async.{kind}.shared.global", k.at(0, mine), k.element(data, k.tid, width), width)
    k.emit("cp.async.commit_group")
    k.emit("cp.async.wait_group", 0)
    k.sync()
    flipped = k.value("mad.lo.u32", k.value("xor.b32", k.tid, 63), 4, k.base)
    for i in range(0, n, 64):
        k.put(out, k.value("ld.shared.u32", k.at(4 * i, flipped)), i // 64)
    got = k.run(seed=seed)["out"].reshape(-1, 64)
    assert got.tolist() == np.arange(n).reshape(-1, 64)[:, ::-1].tolist()


def test_cp_async_source_size_and_ignore() -> None:
    k = Kernel(32)
    data = k.buffer("data", (np.arange(512) % 251 + 1).astype(np.uint8))
    out = k.buffer("out", np.zeros(1024, np.uint8))
    mine = k.value("mad.lo.u32", k.tid, 16, k.base)
    count = k.value("min.u32", k.tid, 16)
    k.emit("cp.async.cg.shared.global", k.at(0, mine), k.element(data, k.tid, 16), 16, count)
    odd = k.reg("pred")
    k.emit("setp.ne.u32", odd, k.value("and.b32", k.tid, 1), 0)
    k.emit("cp.async.cg.shared.global", k.at(512, mine), k.element(data, k.tid, 16), 16, odd)
    k.emit("cp.async.wait_all")
    for i in (0, 512):
        words = k.regs("b32", 4)
        k.emit("ld.shared.v4.b32", words, k.at(i, mine))
        k.emit("st.global.v4.b32", k.b.address(k.element(out, k.tid, 16).base, i), words)
    got = k.run()["out"].reshape(2, 32, 16)
    source = (np.arange(512) % 251 + 1).astype(np.uint8).reshape(32, 16)
    for t in range(32):
        n = min(t, 16)
        assert got[0, t].tolist() == [*source[t, :n], *[0] * (16 - n)]
        assert got[1, t].tolist() == ([0] * 16 if t & 1 else source[t].tolist())


def test_cp_async_is_asynchronous() -> None:
    k = Kernel(32)
    data = k.buffer("data", np.arange(32, dtype=np.uint32))
    out = k.buffer("out", np.zeros(64, np.uint32))
    k.emit("st.shared.b32", lane_word(k), k.value("mov.b32", 9))
    k.emit("cp.async.ca.shared.global", lane_word(k), k.element(data, k.tid, 4), 4)
    k.put(out, k.value("ld.shared.b32", lane_word(k)))
    k.emit("cp.async.wait_all")
    k.put(out, k.value("ld.shared.b32", lane_word(k)), 1)
    assert k.run(checks=False)["out"].tolist() == [*[9] * 32, *range(32)]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("noinc", [False, True])
def test_cp_async_arrives_on_an_mbarrier(noinc: bool, seed: int | None) -> None:
    """One warp copies, the other waits for the copies through the mbarrier."""
    k = Kernel(64)
    data = k.buffer("data", np.arange(32, dtype=np.uint32))
    out = k.buffer("out", np.zeros(64, np.uint32))
    k.emit("mbarrier.init.shared::cta.b64", k.at(1024), 32, guard=k.first)
    k.sync()
    second, eats, end = k.reg("pred"), k.b.label(), k.b.label()
    k.emit("setp.ge.u32", second, k.tid, 32)
    lane = k.value("and.b32", k.tid, 31)
    word = k.at(0, k.value("mad.lo.u32", lane, 4, k.base))
    k.emit("bra", eats, guard=second)
    k.emit("cp.async.ca.shared.global", word, k.element(data, lane, 4), 4)
    k.emit(f"cp.async.mbarrier.arrive{'.noinc' if noinc else ''}.shared::cta.b64", k.at(1024))
    if not noinc:
        k.emit("mbarrier.arrive.shared::cta.b64", SINK, k.at(1024))
    k.emit("cp.async.wait_all")
    k.emit("bra", end)
    k.b.place(eats)
    again, p = k.b.label(), k.reg("pred")
    k.b.place(again)
    k.emit("mbarrier.try_wait.parity.shared::cta.b64", p, k.at(1024), 0)
    k.emit("bra", again, guard=Guard(p, True))
    k.put(out, k.value("ld.shared.u32", word))
    k.b.place(end)
    assert k.run(seed=seed)["out"].tolist() == [*[0] * 32, *range(32)]


def test_cp_async_refuses_too_many_source_bytes() -> None:
    for count, code in ((9, "SML0831"), (8, "")):
        k = Kernel(1)
        data = k.buffer("data", np.zeros(4, np.uint32))
        k.emit("cp.async.ca.shared.global", k.at(), k.b.address(data), 8, k.value("mov.u32", count))
        k.emit("cp.async.wait_all")
        assert code_of(k.run) == code
