"""Tensor copies: every swizzle and rank, edges, fills, strides, conversions, multicast, reductions, gather and scatter.

Expectations come from a plain loop over elements written from PTX 5.5 and h200-measured E11, not from the engine.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from smalti.errors import SmaltiError
from smalti.layout.tensor_map import TYPES, TensorMap
from smalti.ptx.module import SINK, Guard, Special
from smalti.vgpu.checks import Checks
from tests.vgpu.asm import BASE, Kernel

LOAD = "cp.async.bulk.tensor.{}d.shared::cluster.global{}.mbarrier::complete_tx::bytes{}"
STORE = "cp.async.bulk.tensor.{}d.global.shared::cta{}.bulk_group"
SIZE = 16384
_CHUNKS = {  # PTX 5.5.7, tables of chunk order: 16-byte chunk c of 128-byte line number n
    "none": lambda c, n: c,
    "32B": lambda c, n: c ^ (n & 1),
    "64B": lambda c, n: c ^ (n & 3),
    "128B": lambda c, n: c ^ (n & 7),
    "128B_atom32B": lambda c, n: c ^ ((n & 3) << 1),
    "128B_atom32B_flip8B": lambda c, n: c ^ ((n & 3) << 1),
    "128B_atom64B": lambda c, n: c ^ ((n & 1) << 2),
}
SPAN = {"none": 0, "32B": 32, "64B": 64}


def place(swizzle: str, start: int, row: int, byte: int, row_bytes: int) -> int:
    """Where byte `byte` of row `row` lies in shared memory."""
    pitch = SPAN.get(swizzle, 128) or row_bytes
    linear = start + row * pitch + byte
    line, chunk, inside = linear // 128, linear // 16 % 8, linear % 16
    if swizzle.endswith("flip8B") and line & 1:
        inside ^= 8
    return line * 128 + _CHUNKS[swizzle](chunk, line) * 16 + inside


def box_elements(m: TensorMap, at: tuple[int, ...]) -> list[tuple[int, int, tuple[int, ...]]]:
    """(row, column, element indices) of each element of the box, row by row."""
    counts = [m.box[0], *(-(-b // s) for b, s in zip(m.box[1:], m.element_stride[1:], strict=True))]
    out = []
    for row, high in enumerate(itertools.product(*(range(c) for c in reversed(counts[1:])))):
        outer = [a + i * s for a, i, s in zip(at[1:], reversed(high), m.element_stride[1:], strict=True)]
        out += [(row, column, (at[0] + column, *outer)) for column in range(counts[0])]
    return out


def inside(m: TensorMap, index: tuple[int, ...]) -> bool:
    return all(0 <= i < n for i, n in zip(index, m.size, strict=True))


def source_of(m: TensorMap) -> np.ndarray:
    """Address-coded bytes for the whole tensor, rows' padding included."""
    count = -(-m.extent // 16) * 16 + 64
    x = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return (x >> np.uint64(33)).astype(np.uint8)


def load_kernel(
    m: TensorMap,
    at: tuple[int, ...],
    data: np.ndarray,
    *,
    start: int = 0,
    expect: int | None = None,
    arch: str = "sm_90a",
) -> Kernel:
    """Poison, load one box, then copy all of shared memory out."""
    k = Kernel(32, arch=arch, shared=SIZE + 1024)
    k.buffer("data", data)
    out = k.buffer("out", np.zeros(SIZE, np.uint8))
    desc = k.map("data", m)
    poison = k.value("mov.b32", 0xA5A5A5A5 - (1 << 32))
    mine = k.value("mad.lo.u32", k.tid, 16, k.base)
    for i in range(0, SIZE, 512):
        k.emit("st.shared.v4.b32", k.at(i, mine), [poison] * 4)
    k.emit("fence.proxy.async")
    k.init(SIZE, 1)
    k.expect(SIZE, m.transfer_bytes if expect is None else expect)
    mode = ".tile" if arch == "sm_90a" else ""
    k.emit(LOAD.format(m.rank, mode, ""), k.at(start), k.box(desc, *at), k.at(SIZE), guard=k.first)
    k.wait(k.at(SIZE), 0)
    address = k.element(out, k.tid, 16)
    for i in range(0, SIZE, 512):
        words = k.regs("b32", 4)
        k.emit("ld.shared.v4.b32", words, k.at(i, mine))
        k.emit("st.global.v4.b32", k.b.address(address.base, i), words)
    return k


def expected_shared(
    m: TensorMap, at: tuple[int, ...], data: np.ndarray, start: int = 0, fill: bytes | None = None
) -> np.ndarray:
    out = np.full(SIZE, 0xA5, np.uint8)
    size = m.element.bits // 8
    row_bytes = m.box[0] * size
    for row, column, index in box_elements(m, at):
        if inside(m, index):
            where = index[0] * size + sum(i * s for i, s in zip(index[1:], m.stride, strict=True))
            raw = data[where : where + size]
        else:
            raw = np.frombuffer(fill or bytes(size), np.uint8)
        for b in range(size):
            out[place(m.swizzle, BASE + start, row, column * size + b, row_bytes) - BASE] = raw[b]
    return out


def check_load(
    m: TensorMap, at: tuple[int, ...], start: int = 0, fill: bytes | None = None, arch: str = "sm_90a", **how: Any
) -> None:
    data = source_of(m)
    got = load_kernel(m, at, data, start=start, arch=arch).run(**how)["out"]
    np.testing.assert_array_equal(got, expected_shared(m, at, data, start, fill))


@pytest.mark.parametrize("start", [0, 128, 640, 1024])
@pytest.mark.parametrize(
    "swizzle,box", [("none", 64), ("32B", 16), ("32B", 8), ("64B", 32), ("64B", 24), ("128B", 64), ("128B", 40)]
)
def test_swizzles_of_hopper(swizzle: str, box: int, start: int) -> None:
    """Boxes as wide as the span and narrower ones, whose rows keep the span's pitch; starts between patterns."""
    check_load(TensorMap("bf16", (200, 40), (512,), (box, 12), swizzle=swizzle), (16, 5), start)


@pytest.mark.parametrize("start", [0, 384])
@pytest.mark.parametrize("swizzle", ["128B_atom32B", "128B_atom32B_flip8B", "128B_atom64B"])
def test_swizzles_of_blackwell(swizzle: str, start: int) -> None:
    check_load(TensorMap("f32", (64, 40), (256,), (32, 16), swizzle=swizzle), (4, 3), start, arch="sm_100a")


@pytest.mark.parametrize("type_", ["u8", "u16", "s32", "u64", "f64", "f16", "f32.ftz"])
def test_element_types(type_: str) -> None:
    bits = TYPES[type_].bits
    check_load(TensorMap(type_, (1024 // bits, 9), (128,), (512 // bits, 5), swizzle="64B"), (256 // bits, 2))


@pytest.mark.parametrize("rank", [1, 2, 3, 4, 5])
def test_ranks_and_edges(rank: int) -> None:
    """Boxes that hang over each edge, or lie outside altogether."""
    size, box = (24, 5, 4, 3, 3)[:rank], (16, 2, 3, 2, 2)[:rank]
    stride = (64, 320, 1280, 3840)[: rank - 1]
    m = TensorMap("u16", size, stride, box)
    for at in (
        (0,) * rank,
        (16,) * rank,
        (-8, -1, -2, -1, -1)[:rank],
        (8, 4, 3, 2, 2)[:rank],
        (32, 0, 0, 0, 0)[:rank],
        (0, 2**30, 0, 0, 0)[:rank],
    ):
        check_load(m, at)


def test_an_edge_inside_a_unit_is_exact() -> None:
    """The tensor ends after 9 of 16 elements: the rest of the 16-byte unit reads zero, not the padding."""
    check_load(TensorMap("u32", (9, 4), (64,), (16, 4)), (0, 0))
    check_load(TensorMap("u8", (17, 4), (32,), (32, 4), swizzle="32B"), (0, 0))


@pytest.mark.parametrize(
    "type_,code", [("f16", "f77f"), ("bf16", "f77f"), ("f32", "f77ff77f"), ("f64", "f77ff77ff77ff77f")]
)
def test_nan_fill(type_: str, code: str) -> None:
    """7FF7 in every 16 bits (E11)."""
    bits = TYPES[type_].bits
    m = TensorMap(type_, (256 // bits, 3), (64,), (512 // bits, 4), fill="nan", swizzle="64B")
    check_load(m, (0, 1), fill=bytes.fromhex(code))


def test_element_strides() -> None:
    """Dimension 0 has none; others give ceil(box / stride) rows and count so many bytes (E11)."""
    check_load(TensorMap("u16", (32, 20), (64,), (16, 7), element_stride=(2, 3)), (8, 1))
    check_load(TensorMap("u16", (32, 9, 9), (64, 640), (16, 4, 5), element_stride=(1, 2, 4)), (0, 1, 2))
    check_load(TensorMap("u16", (32, 9), (64,), (16, 8), element_stride=(1, 2)), (0, -3))


def test_tf32_is_rounded_and_ftz_is_not_flushed() -> None:
    """TFLOAT32 rounds to nearest even at 10 bits, NaN becomes 7FFFE000; FLOAT32_FTZ loads are identity (E11)."""
    words = np.array(
        [
            0x3F800FFF,
            0x3F801000,
            0x3F801001,
            0x3F803000,
            0x00000FFF,
            0x00003000,
            0x7F800000,
            0x7F800001,
            0xFF7FFFFF,
            0x80001000,
            0xFFC00000,
            0x12345678,
            0,
            0x80000000,
            1,
            0x7F7FF000,
        ],
        np.uint32,
    )
    rounded = [
        0x3F800000,
        0x3F800000,
        0x3F802000,
        0x3F804000,
        0,
        0x00004000,
        0x7F800000,
        0x7FFFE000,
        0xFF800000,
        0x80000000,
        0x7FFFE000,
        0x12346000,
        0,
        0x80000000,
        0,
        0x7F800000,
    ]
    for type_, expected in (
        ("tf32", rounded),
        ("tf32.ftz", rounded),
        ("f32.ftz", words.tolist()),
        ("f32", words.tolist()),
    ):
        m = TensorMap(type_, (16, 1), (64,), (16, 1))
        got = load_kernel(m, (0, 0), words.view(np.uint8)).run()["out"][:64].view(np.uint32)
        assert got.tolist() == expected, type_


class Keeping(Checks):
    """Remembers the shared memory of the first CTA, with its flags, when its cluster ends."""

    def end(self, cluster: Any) -> None:
        shared = cluster.ctas[0].shared
        self.kept = shared.data[BASE:].copy(), shared.defined[BASE:].copy()
        super().end(cluster)


@pytest.mark.parametrize("type_,bits", [("b4x16_p64", 4), ("b6x16_p32", 6), ("b4x16", 4)])
def test_packed_types(type_: str, bits: int) -> None:
    """b4x16_p64: 8 bytes and a gap of 8; b6x16_p32: 12 and 4; the gap is undefined. b4x16 has none."""
    row = 128 * bits // 8
    m = TensorMap(type_, (128, 6), (128,), (128, 3), swizzle="none")
    data = source_of(m)
    k = load_kernel(m, (0, 2), data, arch="sm_100a")
    kept = k.function.body.statements  # copying the undefined gap out would be refused
    k.function.body.statements = [s for s in kept if not getattr(s, "opcode", "").startswith("st.global")]
    checks = Keeping()
    k.emit("ret")
    k.prepare(None, False, checks).run()
    got, known = checks.kept
    for r in range(3):
        raw = data[(r + 2) * 128 : (r + 2) * 128 + row]
        if type_ == "b4x16":
            assert (got[r * 64 : r * 64 + 64] == raw).all()
            continue
        units, flags = (x[r * 128 : (r + 1) * 128].reshape(8, 16) for x in (got, known))
        assert (units[:, : 2 * bits].ravel() == raw).all()
        assert flags[:, : 2 * bits].all() and not flags[:, 2 * bits :].any()


@pytest.mark.parametrize("early", [False, True])
def test_it_is_asynchronous(early: bool) -> None:
    """Without the wait the default schedule gives what was there before, an eager engine the new data."""
    m = TensorMap("u32", (32, 1), (128,), (32, 1))
    k = Kernel(32)
    k.buffer("data", np.arange(32, dtype=np.uint32))
    out = k.buffer("out", np.zeros(32, np.uint32))
    desc = k.map("data", m)
    mine = k.value("mad.lo.u32", k.tid, 4, k.base)
    k.emit("st.shared.b32", k.at(0, mine), k.value("mov.b32", 77))
    k.emit("fence.proxy.async")
    k.init(1024, 1)
    k.expect(1024, 128)
    k.emit(LOAD.format(2, "", ""), k.at(0), k.box(desc, 0, 0), k.at(1024), guard=k.first)
    for _ in range(8):
        k.value("mov.b32", 0)  # time for the eager engine
    k.put(out, k.value("ld.shared.b32", k.at(0, mine)))
    k.wait(k.at(1024), 0)
    got = k.run(early=early, checks=False)["out"].tolist()
    assert got == (list(range(32)) if early else [77] * 32)


def test_a_missing_wait_is_a_race() -> None:
    m = TensorMap("u32", (32, 1), (128,), (32, 1))
    k = Kernel(32)
    k.buffer("data", np.arange(32, dtype=np.uint32))
    out = k.buffer("out", np.zeros(32, np.uint32))
    desc = k.map("data", m)
    k.init(1024, 1)
    k.expect(1024, 128)
    k.emit(LOAD.format(2, "", ""), k.at(0), k.box(desc, 0, 0), k.at(1024), guard=k.first)
    for _ in range(8):
        k.value("mov.b32", 0)
    k.put(out, k.value("ld.shared.b32", k.at(0, k.value("mad.lo.u32", k.tid, 4, k.base))))
    k.wait(k.at(1024), 0)
    with pytest.raises(SmaltiError, match="SML0930"):
        k.run(early=True)


@pytest.mark.parametrize("seed", range(12))
def test_seeds(seed: int) -> None:
    check_load(TensorMap("bf16", (100, 40), (256,), (64, 16), swizzle="128B"), (64, 30), seed=seed)


# -- stores ----------------------------------------------------------------------------------------------


def store_kernel(
    m: TensorMap, at: tuple[int, ...], before: np.ndarray, shared: np.ndarray, *, op: str = "", arch: str = "sm_90a"
) -> Kernel:
    """Copy an image to shared memory, then store or reduce one box from it."""
    k = Kernel(32, arch=arch, shared=SIZE + 1024)
    image = k.buffer("image", shared)
    k.buffer("data", before)
    desc = k.map("data", m)
    mine, source = k.value("mad.lo.u32", k.tid, 16, k.base), k.element(image, k.tid, 16)
    for i in range(0, len(shared), 512):
        words = k.regs("b32", 4)
        k.emit("ld.global.v4.b32", words, k.b.address(source.base, i))
        k.emit("st.shared.v4.b32", k.at(i, mine), words)
    k.emit("fence.proxy.async.shared::cta")
    k.sync()
    if op:
        k.emit(
            f"cp.reduce.async.bulk.tensor.{m.rank}d.global.shared::cta.{op}.bulk_group",
            k.box(desc, *at),
            k.at(),
            guard=k.first,
        )
    else:
        k.emit(STORE.format(m.rank, ""), k.box(desc, *at), k.at(), guard=k.first)
    k.emit("cp.async.bulk.commit_group")
    k.emit("cp.async.bulk.wait_group", 0)
    return k


def expected_global(m: TensorMap, at: tuple[int, ...], before: np.ndarray, shared: np.ndarray) -> np.ndarray:
    """Dimension 0 is clipped to whole 16-byte units, the others exactly (E11)."""
    out = before.copy()
    size = m.element.bits // 8
    width = -(-m.size[0] * size // 16) * 16
    for row, column, index in box_elements(m, at):
        exists = all(0 <= i < n for i, n in zip(index[1:], m.size[1:], strict=True))
        for b in range(size):
            if exists and index[0] * size + b < width:
                where = index[0] * size + b + sum(i * s for i, s in zip(index[1:], m.stride, strict=True))
                out[where] = shared[place(m.swizzle, BASE, row, column * size + b, m.box[0] * size) - BASE]
    return out


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B"])
def test_stores(swizzle: str, seed: int | None) -> None:
    span = SPAN.get(swizzle, 128) or 96
    m = TensorMap("bf16", (100, 21), (256,), (span // 2, 8), swizzle=swizzle)
    image = np.random.default_rng(7).integers(0, 256, 4096, np.uint8)
    for at in ((0, 0), (64, 8), (96, 16), (96, 20), (104, 0), (0, 21)):
        before = np.full(22 * 256, 0x5A, np.uint8)
        got = store_kernel(m, at, before, image).run(seed=seed, checks=Checks(collect=True))["data"]
        np.testing.assert_array_equal(got, expected_global(m, at, before, image), err_msg=str(at))


@pytest.mark.parametrize("width", range(1, 13))
def test_a_store_clips_the_first_dimension_to_units(width: int) -> None:
    """With a width of 9 u32 columns, 12 are written (E11)."""
    m = TensorMap("u32", (width, 3), (64,), (16, 4))
    image = np.arange(1024, dtype=np.uint32).view(np.uint8)
    before = np.full(192, 0xEE, np.uint8)
    checks = Checks(collect=True)
    got = store_kernel(m, (0, 0), before, image).run(checks=checks)["data"].view(np.uint32).reshape(3, 16)
    assert [e.code for e in checks.reports] == ["SML0832"] * (width % 4 != 0)
    for r in range(3):
        written = -(-width // 4) * 4
        assert got[r].tolist() == [16 * r + c for c in range(written)] + [0xEEEEEEEE] * (16 - written)


def test_a_store_past_the_end_of_the_buffer_is_refused() -> None:
    """The last unit would be written beyond the array; with padded rows it is not."""
    m = TensorMap("u32", (9, 3), (48,), (12, 3))
    image = np.arange(1024, dtype=np.uint32).view(np.uint8)
    store_kernel(m, (0, 0), np.zeros(144, np.uint8), image).run(checks=Checks(collect=True))
    with pytest.raises(SmaltiError, match="SML0803"):
        store_kernel(m, (0, 0), np.zeros(132, np.uint8), image).run()


def test_bytes_beyond_the_width_are_nobodys_or_reported() -> None:
    """What had no value, or keeps its value, may be overwritten; columns of a wider matrix may not."""
    m, image = TensorMap("u32", (9, 3), (64,), (16, 3)), np.full(1024, 7, np.uint8)
    with pytest.raises(SmaltiError, match=r"SML0832.*changes 36 defined bytes of data behind the 36 bytes"):
        store_kernel(m, (0, 0), np.zeros(192, np.uint8), image).run()
    store_kernel(m, (0, 0), np.full(192, 7, np.uint8), image).run()
    whole = TensorMap("u32", (8, 3), (64,), (16, 3))
    store_kernel(whole, (0, 0), np.zeros(192, np.uint8), image).run()


def test_stores_with_strides_and_ranks() -> None:
    image = np.random.default_rng(8).integers(0, 256, 4096, np.uint8)
    for m, at in (
        (TensorMap("u16", (32, 20), (64,), (16, 7), element_stride=(1, 3)), (8, 1)),
        (TensorMap("u8", (32, 5, 4, 3), (64, 320, 1280), (16, 2, 3, 2)), (16, 4, 2, 2)),
        (TensorMap("u64", (100,), (), (16,)), (90,)),
    ):
        before = np.full(-(-m.extent // 16) * 16 + 16, 0x11, np.uint8)
        got = store_kernel(m, at, before, image).run()["data"]
        np.testing.assert_array_equal(got, expected_global(m, at, before, image))


def test_a_store_is_asynchronous_on_both_sides() -> None:
    """A source overwritten before wait_group.read changes what is stored; after it, not."""
    m = TensorMap("u32", (32, 1), (128,), (32, 1))
    for waits in (False, True):
        k = Kernel(32)
        k.buffer("data", np.zeros(32, np.uint32))
        desc = k.map("data", m)
        mine = k.value("mad.lo.u32", k.tid, 4, k.base)
        k.emit("st.shared.u32", k.at(0, mine), k.tid)
        k.emit("fence.proxy.async")
        k.sync()
        k.emit(STORE.format(2, ""), k.box(desc, 0, 0), k.at(), guard=k.first)
        k.emit("cp.async.bulk.commit_group")
        if waits:
            k.emit("cp.async.bulk.wait_group.read", 0)
            k.sync()
        k.emit("st.shared.u32", k.at(0, mine), k.value("add.u32", k.tid, 500))
        k.emit("cp.async.bulk.wait_group", 0)
        got = k.run(checks=waits)["data"].tolist()
        assert got == [t + (0 if waits else 500) for t in range(32)]


def test_groups_wait_for_all_but_the_newest() -> None:
    """Three stores in three groups; wait_group 1 lets the third still be in flight."""
    m = TensorMap("u32", (32, 3), (128,), (32, 1))
    k = Kernel(32)
    data = k.buffer("data", np.zeros((3, 32), np.uint32))
    out = k.buffer("out", np.full(3 * 32, 9, np.uint32))
    desc = k.map("data", m)
    for i in range(3):
        k.emit(
            "st.shared.u32",
            k.at(128 * i, k.value("mad.lo.u32", k.tid, 4, k.base)),
            k.value("add.u32", k.tid, 100 * i + 1),
        )
    k.emit("fence.proxy.async")
    k.sync()
    for i in range(3):
        k.emit(STORE.format(2, ""), k.box(desc, 0, i), k.at(128 * i), guard=k.first)
        k.emit("cp.async.bulk.commit_group")
    k.emit("cp.async.bulk.wait_group", 1)
    for i in range(3):
        k.put(out, k.value("ld.global.u32", k.b.address(k.element(data, k.tid, 4).base, 128 * i)), i)
    k.emit("cp.async.bulk.wait_group", 0)
    got = k.run(checks=False)["out"].reshape(3, 32)
    assert got[0].tolist() == list(range(1, 33)) and got[1].tolist() == list(range(101, 133))
    assert got[2].tolist() == [0] * 32


def reduce_one(op: str, type_: str, old: np.ndarray, new: np.ndarray) -> np.ndarray:
    """One row reduced into memory by a tensor map of a type."""
    count = len(old)
    m = TensorMap(type_, (count, 1), (-(-old.nbytes // 16) * 16,), (count, 1))
    image = np.zeros(512, np.uint8)
    image[: new.nbytes] = new.view(np.uint8)
    return store_kernel(m, (0, 0), old.view(np.uint8), image, op=op).run()["data"].view(old.dtype)


def test_integer_reductions() -> None:
    a = np.array([0, 5, 5, 7, 0xFFFFFFFF, 1, 0x80000000, 3], np.uint32)
    b = np.array([1, 5, 4, 9, 2, 0xFFFFFFFF, 0x7FFFFFFF, 0], np.uint32)
    pairs = list(zip(a.tolist(), b.tolist(), strict=True))
    signed = lambda x: x - (1 << 32) if x >> 31 else x  # noqa: E731
    plain = {
        "add": [(x + y) % 2**32 for x, y in pairs],
        "min": [min(p) for p in pairs],
        "max": [max(p) for p in pairs],
        "and": [x & y for x, y in pairs],
        "or": [x | y for x, y in pairs],
        "xor": [x ^ y for x, y in pairs],
        "inc": [0 if x >= y else x + 1 for x, y in pairs],
        "dec": [y if x == 0 or x > y else x - 1 for x, y in pairs],
    }
    for op, expected in plain.items():
        assert reduce_one(op, "u32", a, b).tolist() == expected, op
    assert reduce_one("min", "s32", a, b).tolist() == [x if signed(x) < signed(y) else y for x, y in pairs]
    wide = np.array([2**63, 2**64 - 1], np.uint64)
    assert reduce_one("add", "u64", wide, np.array([2**63, 2], np.uint64)).tolist() == [0, 1]


def test_floating_reductions() -> None:
    """f32 keeps subnormals, f32.ftz flushes them; NaN is canonical; half min/max prefer numbers, -0 < +0 (E11)."""
    f = lambda *x: np.array(x, np.uint32)  # noqa: E731
    old, new = f(0x00000001, 0x3F800000, 0x7F800000, 0x80000005), f(0x00000002, 0x33800001, 0xFF800000, 0x80000001)
    assert reduce_one("add", "f32", old, new).tolist() == [3, 0x3F800001, 0x7FFFFFFF, 0x80000006]
    assert reduce_one("add", "f32.ftz", old, new).tolist() == [0, 0x3F800001, 0x7FFFFFFF, 0x80000000]
    h = lambda *x: np.array(x, np.uint16)  # noqa: E731
    old, new = (
        h(0x7E00, 0x8000, 0x0000, 0xFE01, 0x3C00, 0xBC00, 1, 0x7C00),
        h(0x4000, 0x0000, 0x8000, 0x7D00, 0x7C00, 0xC000, 0x8001, 0xFC00),
    )
    assert reduce_one("max", "f16", old, new).tolist() == [0x4000, 0, 0, 0x7FFF, 0x7C00, 0xBC00, 1, 0x7C00]
    assert reduce_one("min", "f16", old, new).tolist() == [
        0x4000,
        0x8000,
        0x8000,
        0x7FFF,
        0x3C00,
        0xC000,
        0x8001,
        0xFC00,
    ]
    ones = h(*[0x3F80] * 8)
    assert reduce_one("add", "bf16", ones, h(0x3F80, 0x3B80, 0x3C00, 0x3B81, 0x7FC1, 0xBF80, 0, 1)).tolist() == [
        0x4000,
        0x3F80,
        0x3F81,
        0x3F81,
        0x7FFF,
        0,
        0x3F80,
        0x3F80,
    ]


# -- im2col ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spatial", [1, 2, 3])
@pytest.mark.parametrize("step", [1, 2])
def test_im2col(spatial: int, step: int) -> None:
    """Pixels walk width, height, depth, image inside the corners; the value is read at position + offset."""
    channels, dims, images = 16, (5, 4, 3)[:spatial], 2
    size = (24, *dims, images)
    stride, step_bytes = [], 24 * 2
    for n in size[1:]:
        stride.append(step_bytes)
        step_bytes *= n
    low, high = (-1, -1, 0)[:spatial], (-1, 0, -1)[:spatial]
    pixels = 20
    m = TensorMap(
        "u16",
        size,
        tuple(stride),
        swizzle="32B",
        mode="im2col",
        lower=low,
        upper=high,
        channels=channels,
        pixels=pixels,
        element_stride=(1, *(step,) * spatial, 1),
    )
    data = source_of(m)
    base, offsets = (2, 1, 0)[:spatial], (1, 2, 1)[:spatial]
    at = (8, *base, 0)
    k = Kernel(32, shared=SIZE + 1024)
    k.buffer("data", data)
    out = k.buffer("out", np.zeros(pixels * 32, np.uint8))
    desc = k.map("data", m)
    k.init(SIZE, 1)
    k.expect(SIZE, pixels * 32)
    numbers = [k.value("mov.b16", o, type_="b16") for o in offsets]
    k.emit(LOAD.format(spatial + 2, ".im2col", ""), k.at(), k.box(desc, *at), k.at(SIZE), numbers, guard=k.first)
    k.wait(k.at(SIZE), 0)
    for i in range(0, pixels * 32, 128):
        v = k.value("ld.shared.b32", k.at(i, k.value("mad.lo.u32", k.tid, 4, k.base)))
        k.emit("st.global.b32", k.b.address(k.element(out, k.tid, 4).base, i), v)
    got = k.run()["out"]
    where, image = list(base), 0
    for p in range(pixels):
        index = [w + o for w, o in zip(where, offsets, strict=True)] + [image]
        for c in range(channels):
            exists = all(0 <= i < n for i, n in zip(index, size[1:], strict=True)) and 8 + c < 24
            at_byte = (8 + c) * 2 + sum(i * s for i, s in zip(index, stride, strict=True))
            want = data[at_byte : at_byte + 2].tolist() if exists else [0, 0]
            spot = place("32B", BASE, p, 2 * c, 32) - BASE
            assert got[spot : spot + 2].tolist() == want, (p, c)
        for d in range(spatial):
            where[d] += step
            if where[d] < dims[d] + high[d]:
                break
            where[d] = low[d]
        else:
            image += 1


# -- gather, scatter -------------------------------------------------------------------------------------


def test_gather4_and_scatter4() -> None:
    """Four rows anywhere; rows outside read zero and are not written."""
    rows = [5, 0, 11, 99]
    m = TensorMap("u16", (64, 12), (128,), (32, 1), swizzle="64B")
    data = source_of(m)
    k = Kernel(32, arch="sm_100a", shared=4096)
    k.buffer("data", data)
    k.buffer("target", np.full(12 * 128, 0x33, np.uint8))
    source, target = k.map("data", m), k.map("target", m)
    k.init(2048, 1)
    k.expect(2048, 4 * 64)
    k.emit(LOAD.format(2, ".tile::gather4", ""), k.at(), k.box(source, 16, *rows), k.at(2048), guard=k.first)
    k.wait(k.at(2048), 0)
    k.emit(
        "cp.async.bulk.tensor.2d.global.shared::cta.tile::scatter4.bulk_group",
        k.box(target, 32, 3, 99, 7, 1),
        k.at(),
        guard=k.first,
    )
    k.emit("cp.async.bulk.commit_group")
    k.emit("cp.async.bulk.wait_group", 0)
    got = k.run()["target"].reshape(12, 128)
    want = np.full((12, 128), 0x33, np.uint8)
    read = data[: 12 * 128].reshape(12, 128)[:, 32:96]
    want[3, 64:], want[7, 64:], want[1, 64:] = read[5], read[11], 0
    np.testing.assert_array_equal(got, want)


# -- clusters --------------------------------------------------------------------------------------------


def multicast(mask: int, size: int, seed: int | None, arch: str = "sm_90a", pair: bool = False) -> np.ndarray:
    """CTA 0 loads a box to all CTAs of the mask; each that is in it waits and shows its shared memory."""
    m = TensorMap("u32", (32, 1), (128,), (32, 1))
    k = Kernel(32, cluster=size, arch=arch)
    k.buffer("data", np.arange(100, 132, dtype=np.uint32))
    out = k.buffer("out", np.zeros(size * 32, np.uint32))
    desc = k.map("data", m)
    rank = k.value("mov.u32", Special("cluster_ctarank"))
    mine = k.value("mad.lo.u32", k.tid, 4, k.base)
    k.emit("st.shared.b32", k.at(0, mine), k.value("mov.b32", 7))
    k.emit("fence.proxy.async")
    leader, member = k.reg("pred"), k.reg("pred")
    k.emit("setp.eq.u32", leader, k.value("add.u32", rank, k.tid), 0)
    bit = k.value("and.b32", k.value("shr.u32", k.value("mov.u32", mask), rank), 1)
    k.emit("setp.ne.u32", member, bit, 0)
    k.emit("mbarrier.init.shared::cta.b64", k.at(1024), 1, guard=k.first)
    k.emit("fence.mbarrier_init.release.cluster", guard=k.first)
    k.emit("barrier.cluster.arrive.aligned")
    k.emit("barrier.cluster.wait.aligned")
    if pair:  # the even CTA of each pair is told of both copies
        even = k.reg("pred")
        k.emit("setp.eq.u32", even, k.value("and.b32", rank, 1), 0)
        k.emit("and.pred", even, even, k.first)
        k.expect(1024, 256, guard=even)
    else:
        k.expect(1024, 128)
    group = ".cta_group::2" if pair else ""
    k.emit(
        LOAD.format(2, "", f".multicast::cluster{group}"),
        k.at(),
        k.box(desc, 0, 0),
        k.at(1024),
        k.value("mov.b16", mask),
        guard=leader,
    )
    if pair:
        k.emit("setp.eq.u32", member, k.value("and.b32", rank, 1), 0)
    k.wait(k.at(1024), 0, guard=member)
    if pair:  # the odd CTAs learn it from the even ones
        k.emit("barrier.cluster.arrive.aligned")
        k.emit("barrier.cluster.wait.aligned")
    v = k.value("ld.shared.u32", k.at(0, mine))
    k.emit("st.global.u32", k.element(out, k.value("mad.lo.u32", rank, 32, k.tid), 4), v)
    k.emit("barrier.cluster.arrive.aligned")
    k.emit("barrier.cluster.wait.aligned")
    return k.run(seed=seed)["out"].reshape(size, 32)


@pytest.mark.parametrize("seed", [None, 1, 2, 3, 4])
@pytest.mark.parametrize("mask", [0b1111, 0b1010, 0b0001])
def test_multicast(mask: int, seed: int | None) -> None:
    got = multicast(mask, 4, seed)
    for r in range(4):
        assert got[r].tolist() == (list(range(100, 132)) if mask >> r & 1 else [7] * 32)


@pytest.mark.parametrize("seed", [None, 1, 2, 3, 4])
def test_multicast_to_pairs_signals_one_cta_of_each(seed: int | None) -> None:
    got = multicast(0b1111, 4, seed, arch="sm_100a", pair=True)
    assert got.tolist() == [list(range(100, 132))] * 4


def test_a_barrier_in_the_peer_needs_cta_group_2() -> None:
    """The odd CTA loads to itself and signals the even one by clearing bit 24 of its address."""
    for group in ("", ".cta_group::2"):
        m = TensorMap("u32", (32, 1), (128,), (32, 1))
        k = Kernel(32, cluster=2, arch="sm_100a")
        k.buffer("data", np.arange(100, 132, dtype=np.uint32))
        out = k.buffer("out", np.zeros(64, np.uint32))
        desc = k.map("data", m)
        rank = k.value("mov.u32", Special("cluster_ctarank"))
        even = k.value("and.b32", k.base, 0xFEFFFFFF - (1 << 32))
        k.emit("mbarrier.init.shared::cta.b64", k.at(1024), 1, guard=k.first)
        k.emit("fence.mbarrier_init.release.cluster")
        k.emit("barrier.cluster.arrive.aligned")
        k.emit("barrier.cluster.wait.aligned")
        lead, p = k.reg("pred"), k.reg("pred")
        k.emit("setp.eq.u32", p, rank, 0)
        k.emit("and.pred", lead, p, k.first)
        k.expect(1024, 256, guard=lead)
        k.emit(LOAD.format(2, "", group), k.at(), k.box(desc, 0, 0), k.at(1024, even), guard=k.first)
        k.wait(k.at(1024), 0, guard=p)
        k.emit("barrier.cluster.arrive.aligned")
        k.emit("barrier.cluster.wait.aligned")
        v = k.value("ld.shared.u32", k.at(0, k.value("mad.lo.u32", k.tid, 4, k.base)))
        k.emit("st.global.u32", k.element(out, k.value("mad.lo.u32", rank, 32, k.tid), 4), v)
        if group:
            assert k.run()["out"].tolist() == [*range(100, 132)] * 2
        else:
            with pytest.raises(SmaltiError) as caught:
                k.run()
            assert caught.value.code == "SML0917"


# -- refusals --------------------------------------------------------------------------------------------


def code_of(build: Any) -> str:
    try:
        build()
    except SmaltiError as refusal:
        return refusal.code
    return ""


def test_refusals_and_their_neighbours() -> None:
    def load(m: TensorMap, at: tuple[int, ...], start: int = 0, arch: str = "sm_90a") -> str:
        return code_of(lambda: load_kernel(m, at, source_of(m), start=start, arch=arch).run())

    u32, f16 = TensorMap("u32", (64, 8), (256,), (16, 4)), TensorMap("f16", (64, 8), (128,), (16, 4))
    assert [load(u32, (x, 0)) for x in (1, 2, 5, -1, 4, -4)] == ["SML0820"] * 4 + ["", ""]
    assert [load(f16, (x, 0)) for x in (1, 2, 4, -4, 8)] == ["SML0820"] * 4 + [""]
    assert [load(f16, (0, 0), s) for s in (16, 32, 64, 128)] == ["SML0821"] * 3 + [""]
    assert load(TensorMap("u32", (64, 8), (256,), (16, 4), swizzle="128B_atom64B"), (0, 0)) == "SML0143"
    assert load(TensorMap("u32", (64, 8), (256,), (16, 4), swizzle="32B"), (0, 0)) == "SML0137"
    image, room = np.zeros(1024, np.uint8), np.zeros(4096, np.uint8)

    def store(at: tuple[int, ...], op: str = "") -> str:
        return code_of(lambda: store_kernel(u32, at, room, image, op=op).run())

    assert [store(at) for at in ((-4, 0), (0, -1), (2, 0), (0, 0))] == ["SML0822", "SML0822", "SML0820", ""]
    assert [store((0, 0), op) for op in ("add", "inc")] == ["", ""]
    m = TensorMap("f32", (64, 8), (256,), (16, 4))
    assert code_of(lambda: store_kernel(m, (0, 0), room, image, op="max").run()) == "SML0827"


def test_the_map_must_fit_the_instruction() -> None:
    def one(m: TensorMap, opcode: str, at: list[int], arch: str = "sm_100a") -> str:
        k = Kernel(1, arch=arch)
        k.buffer("data", source_of(m))
        desc = k.map("data", m)
        k.init(1024, 1)
        k.expect(1024, m.transfer_bytes)
        k.emit(opcode, k.at(), k.box(desc, *at), k.at(1024))
        k.wait(k.at(1024), 0)
        return code_of(k.run)

    flat, cube = TensorMap("u32", (64, 8), (256,), (16, 4)), TensorMap("u32", (64, 8, 2), (256, 2048), (16, 4, 1))
    assert one(flat, LOAD.format(2, "", ""), [0, 0]) == ""
    assert one(cube, LOAD.format(2, "", ""), [0, 0]) == "SML0824"
    assert one(flat, LOAD.format(3, "", ""), [0, 0, 0]) == "SML0824"
    assert one(flat, LOAD.format(2, ".tile::gather4", ""), [0, 0, 1, 2, 3]) == "SML0824"
    inter = TensorMap("u8", (16, 8, 8), (256, 2048), (16, 8, 1), interleave="16B")
    assert one(inter, LOAD.format(3, "", ""), [0, 0, 0]) == ""


def test_bytes_that_nobody_expected_hang() -> None:
    """Half a box expected: the transaction count never returns to zero."""
    m = TensorMap("u32", (64, 8), (256,), (16, 4))
    with pytest.raises(SmaltiError, match="SML0901"):
        load_kernel(m, (0, 0), source_of(m), expect=m.transfer_bytes * 2).run()


def test_undefined_source_stays_undefined() -> None:
    """A tile of an array that nobody wrote may be loaded, but not stored where others see it."""
    m = TensorMap("u32", (32, 1), (128,), (32, 1))
    for stores in (False, True):
        k = Kernel(32)
        k.buffer("data", np.zeros(32, np.uint32), defined=False)
        k.buffer("out", np.zeros(32, np.uint32))
        desc, target = k.map("data", m), k.map("out", m)
        k.init(1024, 1)
        k.expect(1024, 128)
        k.emit(LOAD.format(2, "", ""), k.at(), k.box(desc, 0, 0), k.at(1024), guard=k.first)
        k.wait(k.at(1024), 0)
        if stores:
            k.emit(STORE.format(2, ""), k.box(target, 0, 0), k.at(), guard=k.first)
            k.emit("cp.async.bulk.commit_group")
            k.emit("cp.async.bulk.wait_group", 0)
            with pytest.raises(SmaltiError, match="SML0808"):
                k.run()
        else:
            k.run()


def test_tensormap_replace_builds_a_map_in_shared_memory() -> None:
    """A map is copied, changed field by field, published, and used."""
    start = TensorMap("u32", (8, 2), (32,), (4, 1))
    wanted = TensorMap("u16", (64, 12), (128,), (32, 3), swizzle="64B")
    data = source_of(wanted)
    k = Kernel(32, shared=SIZE + 2048)
    source = k.buffer("data", data)
    first = k.buffer("first", np.frombuffer(start.encode(), np.uint8).copy())
    made = k.buffer("made", np.zeros(128, np.uint8))
    out = k.buffer("out", np.zeros(192, np.uint8))
    word = k.value("ld.global.b32", k.element(first, k.tid, 4))
    room = SIZE + 1024
    k.emit("st.shared.b32", k.at(room, k.value("mad.lo.u32", k.tid, 4, k.base)), word)
    k.sync()
    where, skip = k.at(room), k.b.label()
    k.emit("bra", skip, guard=Guard(k.first, True))
    head = "tensormap.replace.tile."
    k.emit(head + "global_address.shared::cta.b1024.b64", where, source)
    k.emit(head + "rank.shared::cta.b1024.b32", where, 1)
    for d in range(2):
        k.emit(head + "box_dim.shared::cta.b1024.b32", where, d, wanted.box[d])
        k.emit(head + "global_dim.shared::cta.b1024.b32", where, d, wanted.size[d])
        k.emit(head + "element_stride.shared::cta.b1024.b32", where, d, 1)
    k.emit(head + "global_stride.shared::cta.b1024.b64", where, 0, k.value("mov.b64", 128))
    k.emit(head + "elemtype.shared::cta.b1024.b32", where, TYPES["u16"].number)
    k.emit(head + "swizzle_mode.shared::cta.b1024.b32", where, 2)
    k.b.place(skip)
    k.emit("bar.warp.sync", -1)
    k.emit(
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.gpu.sync.aligned",
        k.b.address(made),
        where,
        128,
    )
    k.init(SIZE, 1)
    k.emit("fence.proxy.tensormap::generic.acquire.gpu", k.b.address(made), 128, guard=k.first)
    k.expect(SIZE, wanted.transfer_bytes)
    k.emit(LOAD.format(2, "", ""), k.at(), k.b.tensor_address(made, [16, 4]), k.at(SIZE), guard=k.first)
    k.wait(k.at(SIZE), 0)
    for i in (0, 128):
        p = k.reg("pred")
        k.emit("setp.lt.u32", p, k.tid, (192 - i) // 4)
        v = k.value("ld.shared.b32", k.at(i, k.value("mad.lo.u32", k.tid, 4, k.base)))
        k.emit("st.global.b32", k.b.address(k.element(out, k.tid, 4).base, i), v, guard=p)
    got = k.run()["out"]
    np.testing.assert_array_equal(got, expected_shared(wanted, (16, 4), data)[:192])


def test_prefetches_check_and_do_nothing() -> None:
    m = TensorMap("u32", (64, 8), (256,), (16, 4))
    for at, code in (([0, 0], ""), ([1, 0], "SML0820")):
        k = Kernel(1)
        k.buffer("data", source_of(m))
        k.emit("cp.async.bulk.prefetch.tensor.2d.L2.global", k.box(k.map("data", m), *at))
        assert code_of(k.run) == code


def test_a_sink_is_no_state() -> None:
    assert repr(SINK) == "_"


def test_spellings_with_hints_and_the_own_cta() -> None:
    """Cache hints change nothing; shared::cta forms and im2col stores reach the same memory."""
    m = TensorMap("u16", (32, 4), (64,), (16, 2))
    pixels = TensorMap("u16", (16, 8, 1), (32, 256), mode="im2col", lower=(0,), upper=(0,), channels=16, pixels=2)
    k = Kernel(32)
    k.buffer("data", source_of(m))
    k.buffer("out", np.zeros(256, np.uint8))
    source, target, columns = k.map("data", m), k.map("out", m), k.map("out", pixels)
    hint = k.value("mov.b64", 0)
    k.init(1024, 1)
    k.expect(1024, 128)
    load = "cp.async.bulk.tensor.2d.{}.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"
    k.emit(load.format("shared::cta"), k.at(0), k.box(source, 0, 1), k.at(1024), hint, guard=k.first)
    k.emit(load.format("shared::cluster"), k.at(128), k.box(source, 16, 2), k.at(1024), hint, guard=k.first)
    k.wait(k.at(1024), 0)
    store = "cp.async.bulk.tensor.{}d.global.shared::cta.{}.bulk_group.L2::cache_hint"
    k.emit(store.format(2, "tile"), k.box(target, 0, 0), k.at(0), hint, guard=k.first)
    k.emit(store.format(3, "im2col_no_offs"), k.box(columns, 0, 5, 0), k.at(128), hint, guard=k.first)
    k.emit("cp.async.bulk.commit_group")
    k.emit("cp.async.bulk.wait_group", 0)
    got, rows = k.run()["out"].reshape(4, 64), source_of(m)[:256].reshape(4, 64)
    np.testing.assert_array_equal(got[:2, :32], rows[1:3, :32])
    np.testing.assert_array_equal(got.reshape(8, 32)[5:7], rows[2:4, 32:])
    assert not got.reshape(8, 32)[[1, 3, 4, 7]].any()
