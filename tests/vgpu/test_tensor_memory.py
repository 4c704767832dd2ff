"""Tensor memory: loads and stores of every shape, copies with and without decompression, shifts, and its allocation."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from smalti.errors import SmaltiError
from smalti.ptx.module import Guard, Special
from tests.vgpu.asm import Kernel
from tests.vgpu.tensor_asm import COLUMNS, DONE, Tensor, image, k_major, poison
from tests.vgpu.tensor_data import codes, packed, values

EMPTY = image({})


# -- loads and stores -----------------------------------------------------------------------------------


def place(shape: str, t: int, r: int, split: int) -> tuple[int, int]:
    """Lane (of a warp's) and column of register r of lane t: PTX figures by formula."""
    if shape == "32x32b":
        return t, r
    if shape == "16x64b":
        return (t >> 2) + 8 * (t & 1), 2 * r + (t >> 1 & 1)
    if shape == "16x128b":
        return t // 4 + 8 * (r % 2), 4 * (r // 2) + t % 4
    if shape == "16x256b":
        return t // 4 + 8 * (r // 2 % 2), 8 * (r // 4) + 2 * (t % 4) + r % 2
    return t % 16, r + (split if t >= 16 else 0)


PER = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}
FORMS = [
    (shape, 1 << i) for shape in PER for i in range(8) if PER[shape] << i <= 128
]  # fmt: skip


def registers_out(k: Kernel, words: list[object], out: object) -> None:
    """Register r of thread t to out[r, t]."""
    for r, word in enumerate(words):
        k.put(out, word, r)


@pytest.mark.parametrize("shape", PER)
def test_loads(shape: str) -> None:
    """Every .num of a shape, in one kernel, from cells that all differ."""
    nums = [n for s, n in FORMS if s == shape]
    t = Tensor(EMPTY)
    outs = {n: t.buffer(f"r{n}", np.zeros((PER[shape] * n, 128), np.uint32)) for n in nums}
    t.fill()
    for n, out in outs.items():
        words = t.regs("b32", PER[shape] * n)
        split = [128] if shape == "16x32bx2" else []
        lane = 16 if shape.startswith("16") and n % 4 == 2 else 0
        t.emit(f"tcgen05.ld.sync.aligned.{shape}.x{n}.b32", words, t.cell(n, lane, t.mine), *split)
        t.emit("tcgen05.wait::ld.sync.aligned")
        registers_out(t, words, out)
    t.free()
    got, cells = t.run(seed=len(nums)), poison()
    for n in nums:
        base = 16 if shape.startswith("16") and n % 4 == 2 else 0
        where = np.array([[place(shape, thread, r, 128) for thread in range(32)] for r in range(PER[shape] * n)])
        for warp in range(4):
            want = cells[32 * warp + base + where[..., 0], n + where[..., 1]]
            assert np.array_equal(got[f"r{n}"][:, 32 * warp :][:, :32], want)


@pytest.mark.parametrize("shape", PER)
@pytest.mark.parametrize("packed16", [False, True])
def test_stores(shape: str, packed16: bool) -> None:
    """The largest .num whose columns fit; .unpack::16b writes the low half of two cells for each register."""
    n = 16
    regs = PER[shape] * n
    t = Tensor(EMPTY)
    t.fill()
    words = [t.value("mad.lo.u32", t.tid, 0x10001, 0x02000000 + (r << 9) + (r << 25)) for r in range(regs)]
    split = [64] if shape == "16x32bx2" else []
    unpack = ".unpack::16b" if packed16 else ""
    t.emit(f"tcgen05.st.sync.aligned.{shape}.x{n}{unpack}.b32", t.cell(8, 0, t.mine), *split, words)
    t.emit("tcgen05.wait::st.sync.aligned")
    t.emit("tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64", t.at(DONE), guard=t.leader)
    got = t.finish()[0]
    want, half = poison(), np.zeros((128, COLUMNS), bool)
    for thread, r in itertools.product(range(128), range(regs)):
        lane, column = place(shape, thread % 32, r, 0)
        lane += thread // 32 * 32
        word = (thread * 0x10001 + 0x02000000 + (r << 9) + (r << 25)) & 0xFFFFFFFF
        extra = 64 if shape == "16x32bx2" and thread % 32 >= 16 else 0
        if packed16:
            for i, part in enumerate((word & 0xFFFF, word >> 16)):
                want[lane, 8 + 2 * column + i + extra] = part
                half[lane, 8 + 2 * column + i + extra] = True
        else:
            want[lane, 8 + column + extra] = word
    assert np.array_equal(np.where(half, got & 0xFFFF, got), want)


@pytest.mark.parametrize("shape", PER)
def test_packed_loads(shape: str) -> None:
    n = 8
    regs = PER[shape] * n
    t = Tensor(EMPTY)
    out = t.buffer("r", np.zeros((regs, 128), np.uint32))
    t.fill()
    words = t.regs("b32", regs)
    split = [100] if shape == "16x32bx2" else []
    t.emit(f"tcgen05.ld.sync.aligned.{shape}.x{n}.pack::16b.b32", words, t.cell(0, 0, t.mine), *split)
    t.emit("tcgen05.wait::ld.sync.aligned")
    registers_out(t, words, out)
    t.free()
    got = t.run()["r"]
    cells = poison()
    for thread, r in itertools.product(range(128), range(regs)):
        lane, column = place(shape, thread % 32, r, 0)
        row = cells[lane + thread // 32 * 32]
        at = 2 * column + (100 if shape == "16x32bx2" and thread % 32 >= 16 else 0)
        assert got[r, thread] == (row[at] & 0xFFFF) | (row[at + 1] & 0xFFFF) << 16


@pytest.mark.parametrize("op", ["min", "max"])
@pytest.mark.parametrize(
    "mods,type_", [("", "u32"), ("", "s32"), ("", "f32"), (".abs", "f32"), (".NaN", "f32"), (".abs.NaN", "f32")]
)
def test_reducing_loads(op: str, mods: str, type_: str) -> None:
    """tcgen05.ld.red (sm_103a): the loaded registers, and the extreme of each lane."""
    n = 8
    t = Tensor(EMPTY, arch="sm_103a")
    out = t.buffer("r", np.zeros((2 * (n + 1), 128), np.uint32))
    r = np.random.default_rng(5)
    cells = r.integers(0, 2**32, (128, n), dtype=np.uint64).astype(np.uint32)
    if type_ == "f32":
        cells = r.normal(size=(128, n)).astype(np.float32).view(np.uint32)
        cells[3, 2] = cells[40, :] = 0x7FC00001
    source = t.buffer("cells", np.ascontiguousarray(cells.T), writable=False)
    words = [t.value("ld.global.b32", t.element(source, t.value("add.u32", t.tid, 128 * i), 4)) for i in range(n)]
    t.emit("tcgen05.st.sync.aligned.32x32b.x8.b32", t.cell(0, 0, t.mine), words)
    t.emit("tcgen05.wait::st.sync.aligned")
    for i, (shape, split) in enumerate((("32x32b", []), ("16x32bx2", [0]))):
        got, value = t.regs("b32", n), t.reg("b32")
        t.emit(f"tcgen05.ld.red.sync.aligned.{shape}.x{n}.{op}{mods}.{type_}", got, value, t.cell(0, 0, t.mine), *split)
        t.emit("tcgen05.wait::ld.sync.aligned")
        for k, word in enumerate([*got, value]):
            t.put(out, word, i * (n + 1) + k)
    t.free()
    found = t.run()["r"].reshape(2, n + 1, 128)
    for i in range(2):
        lanes = np.arange(128) if i == 0 else np.arange(128) // 32 * 32 + np.arange(128) % 16
        mine = cells[lanes]
        assert np.array_equal(found[i, :n], mine.T)
        v = mine.view({"u32": np.uint32, "s32": np.int32, "f32": np.float32}[type_])
        if "abs" in mods:
            v = np.abs(v)
        keep = {"": {"min": np.fmin, "max": np.fmax}, "NaN": {"min": np.minimum, "max": np.maximum}}
        want = keep["NaN" if "NaN" in mods or type_ != "f32" else ""][op].reduce(v, axis=1)
        bits = np.ascontiguousarray(want).view(np.uint32)
        assert np.array_equal(found[i, n], np.where(want != want, np.uint32(0x7FFFFFFF), bits))


# -- copies and shifts ----------------------------------------------------------------------------------

COPIES = {  # shape: rows, bytes a row, lanes of row r
    "128x256b": (128, 32, lambda r: [r]),
    "128x128b": (128, 16, lambda r: [r]),
    "4x256b": (4, 32, lambda r: [32 * r]),
    "64x128b.warpx2::02_13": (64, 16, lambda r: [r, r + 64]),
    "64x128b.warpx2::01_23": (64, 16, lambda r: [r, r + 32] if r < 32 else [r + 32, r + 64]),
    "32x128b.warpx4": (32, 16, lambda r: [r, r + 32, r + 64, r + 96]),
}


FORMATS = {"": "", "e2m1": ".b8x16.b4x16_p64", "e3m2": ".b8x16.b6x16_p32"}


@pytest.mark.parametrize("group", [1, 2])
@pytest.mark.parametrize("seed", [None, 1])
def test_copies(group: int, seed: int | None) -> None:
    """Every shape in every format, in one kernel. With a format 16 elements, padded to 16 bytes, become bytes
    (PTX 9.7.16.9.1); the padding is garbage."""
    parts: list[dict[int, np.ndarray]] = [{} for _ in range(group)]
    want = np.stack([poison()] * group)
    cases = list(enumerate(itertools.product(COPIES, FORMATS)))
    for (i, (shape, fmt)), c in itertools.product(cases, range(group)):
        rows, size, lanes = COPIES[shape]
        if fmt:
            bits = {"e2m1": 4, "e3m2": 6}[fmt]
            elements = codes(values(fmt, (rows, size), 7 + i + 99 * c), fmt)
            raw = packed(elements, bits, 16 - 2 * bits)
            data = (elements << 2 if bits == 4 else elements).astype(np.uint8)
        else:
            raw = data = np.random.default_rng(i + 99 * c).integers(0, 256, (rows, size)).astype(np.uint8)
        whole = np.full((max(rows, 8), size), 0xDD, np.uint8)
        whole[:rows] = raw
        parts[c][4096 * i] = k_major(whole)
        words = np.ascontiguousarray(data).view(np.uint32)
        for row in range(rows):
            want[c, lanes(row), 1 + 9 * i : 1 + 9 * i + size // 4] = words[row]
    t = Tensor(image(*parts))
    t.fill()
    with t.only(t.leader):
        for i, (shape, fmt) in cases:
            t.cp(1 + 9 * i, 4096 * i, shape, rows=max(COPIES[shape][0], 8), formats=FORMATS[fmt])
        t.commit()
    assert np.array_equal(t.finish(seed=seed), want)


@pytest.mark.parametrize("lane", [0, 32, 96])
@pytest.mark.parametrize("group", [1, 2])
def test_shift(lane: int, group: int) -> None:
    t = Tensor(image(*[{}] * group))
    t.fill()
    with t.only(t.leader):
        t.emit(f"tcgen05.shift.cta_group::{group}.down", t.cell(16, lane))
        t.commit()
    want = np.stack([poison()] * group)
    want[:, lane : lane + 31, 16:24] = poison()[lane + 1 : lane + 32, 16:24]
    assert np.array_equal(t.finish(), want)


# -- allocation -----------------------------------------------------------------------------------------


class Bare(Kernel):
    """Allocation by single warps of a CTA."""

    def __init__(self, threads: int = 64, cluster: int = 1) -> None:
        super().__init__(threads, arch="sm_100a", cluster=cluster)
        self.group = cluster
        self.warps = [
            self.value("setp.eq.u32", self.value("shr.u32", self.tid, 5), w, type_="pred") for w in range(threads // 32)
        ]

    def alloc(self, columns: int, slot: int, warp: int = 0) -> None:
        self.emit(
            f"tcgen05.alloc.cta_group::{self.group}.sync.aligned.shared::cta.b32", self.at(slot), columns,
            guard=self.warps[warp],
        )  # fmt: skip

    def dealloc(self, address: object, columns: int, warp: int = 0) -> None:
        self.emit(f"tcgen05.dealloc.cta_group::{self.group}.sync.aligned.b32", address, columns, guard=self.warps[warp])

    def slot(self, at: int) -> object:
        return self.value("ld.shared.b32", self.at(at))


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_allocations(seed: int | None) -> None:
    """Several, in powers of two, freed and given out again, by two warps in turn."""
    k = Bare()
    out = k.buffer("out", np.zeros((4, 64), np.uint32))
    k.alloc(256, 0)
    k.sync()
    k.alloc(128, 4, 1)
    k.sync()
    k.alloc(64, 8)
    k.sync()
    first = [k.slot(i) for i in (0, 4, 8)]
    k.sync()
    k.dealloc(first[1], 128, 1)
    k.sync()
    k.alloc(128, 12)
    k.sync()
    again = k.slot(12)
    for i, v in enumerate([*first, again]):
        k.put(out, v, i)
    for v, n in ((first[0], 256), (first[2], 64), (again, 128)):
        k.dealloc(v, n, 1)
    k.emit("tcgen05.relinquish_alloc_permit.cta_group::1.sync.aligned", guard=k.warps[0])
    got = k.run(seed=seed)["out"]
    assert (got == got[:, :1]).all()
    starts = got[:, 0].tolist()
    assert starts[1] == starts[3] and len(set(starts)) == 3
    spans = sorted(zip(starts[:3], (256, 128, 64), strict=True))
    assert all(a + n <= b for (a, n), (b, _) in itertools.pairwise(spans))


@pytest.mark.parametrize("seed", [None, 1, 2, 3, 4])
def test_allocation_blocks_until_columns_are_free(seed: int | None) -> None:
    k = Bare()
    k.init(64, 1)
    k.alloc(512, 0)
    k.sync()
    address = k.slot(0)
    waits = k.b.label()
    k.emit("bra", waits, guard=Guard(k.warps[1], True))
    k.alloc(512, 8, 1)  # warp 1 waits for warp 0
    k.dealloc(k.slot(8), 512, 1)
    k.b.place(waits)
    k.dealloc(address, 512, 0)
    k.run(seed=seed)


def test_allocation_that_nobody_makes_room_for_is_a_deadlock() -> None:
    k = Bare()
    k.alloc(512, 0)
    k.alloc(32, 4, 1)
    with pytest.raises(SmaltiError) as found:
        k.run()
    assert found.value.code == "SML0901" and "32 free columns of tensor memory (0 are free)" in found.value.message


@pytest.mark.parametrize("seed", [None, 1, 2])
@pytest.mark.parametrize("twice", [False, True])
def test_pairs_allocate_together(seed: int | None, twice: bool) -> None:
    """A CTA that allocates alone waits for the other; if that never comes it is a deadlock that says so."""
    k = Bare(32, cluster=2)
    k.alloc(64, 0)
    k.sync()
    address = k.slot(0)
    if twice:
        even = k.value("setp.eq.u32", k.value("mov.u32", Special("cluster_ctarank")), 0, type_="pred")
        skip = k.b.label()
        k.emit("bra", skip, guard=Guard(even, True))
        k.alloc(32, 4)
        k.b.place(skip)
    k.emit("barrier.cluster.arrive.aligned")
    k.emit("barrier.cluster.wait.aligned")
    k.dealloc(address, 64)
    if not twice:
        k.run(seed=seed)
        return
    with pytest.raises(SmaltiError) as found:
        k.run(seed=seed)
    assert found.value.code == "SML0901" and "the other of the pair, to execute tcgen05.alloc" in found.value.message


@pytest.mark.parametrize(
    "threads,lane,code", [(128, None, ""), (256, None, ""), (128, 0, "SML0866"), (128, 96, "SML0866")]
)
def test_a_warp_has_its_own_lanes(threads: int, lane: int | None, code: str) -> None:
    """Warp w reaches lanes 32 (w % 4) and 31 more, also in a second warpgroup."""
    t = Tensor(EMPTY, threads=threads)
    t.fill()
    where = t.cell(0, 0, t.mine) if lane is None else t.cell(0, lane)
    t.emit("tcgen05.ld.sync.aligned.32x32b.x1.b32", t.regs("b32", 1), where)
    t.emit("tcgen05.wait::ld.sync.aligned")
    t.free()
    try:
        t.run()
        found = ""
    except SmaltiError as refusal:
        found = refusal.code
    assert found == code


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_every_warp_allocates_for_itself(seed: int | None) -> None:
    """An alloc that several warps of a gang execute gives each of them columns of its own."""
    k = Bare(128)
    out = k.buffer("out", np.zeros(128, np.uint32))
    slot = k.value("mad.lo.u32", k.value("shr.u32", k.tid, 5), 4, k.base)
    k.emit("tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32", k.at(0, slot), 64)
    k.emit("bar.warp.sync", 0xFFFFFFFF)
    address = k.value("ld.shared.b32", k.at(0, slot))
    k.put(out, address)
    k.sync()
    k.emit("tcgen05.dealloc.cta_group::1.sync.aligned.b32", address, 64)
    got = k.run(seed=seed)["out"].reshape(4, 32)
    assert (got == got[:, :1]).all()
    assert set(got[:, 0].tolist()) <= set(range(0, 512, 64)) and len(set(got[:, 0].tolist())) == 4


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_some_warps_only(seed: int | None) -> None:
    """Warps 0 and 2 store and load, one path of a branch; the others do nothing there."""
    t = Tensor(EMPTY)
    t.fill()
    out = t.buffer("r", np.zeros(128, np.uint32))
    even = t.value("setp.eq.u32", t.value("and.b32", t.value("shr.u32", t.tid, 5), 1), 0, type_="pred")
    with t.only(even):
        t.emit("tcgen05.st.sync.aligned.32x32b.x1.b32", t.cell(7, 0, t.mine), [t.tid])
        t.emit("tcgen05.wait::st.sync.aligned")
        word = t.reg("b32")
        t.emit("tcgen05.ld.sync.aligned.32x32b.x1.b32", [word], t.cell(7, 0, t.mine))
        t.emit("tcgen05.wait::ld.sync.aligned")
        t.put(out, word)
    t.free()
    lanes = np.arange(128)
    assert np.array_equal(t.run(seed=seed)["r"], np.where(lanes // 32 % 2 == 0, lanes, 0))
