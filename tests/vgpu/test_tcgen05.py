"""tcgen05.mma without scales and metadata: every kind, type pair, shape and option against plain products."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from smalti.errors import SmaltiError
from smalti.layout.descriptors import SmemDescriptor, operand_addresses
from tests.vgpu.asm import BASE
from tests.vgpu.tensor_asm import Tensor, idesc, image, k_descriptor, k_major, poison
from tests.vgpu.tensor_data import BITS, TYPES, codes, d_cells, shared_rows, tensor_rows, values

K = {"f16": 16, "tf32": 8, "f8f6f4": 32, "i8": 32}
A_AT, B_AT = 0, 65536
SMALL_FLOATS = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")


def expected(d: np.ndarray, m: int, n: int, group: int, ws: bool, before: np.ndarray | None = None) -> np.ndarray:
    """All cells after D was written."""
    cells = np.stack([poison()] * group) if before is None else before
    words = d if d.dtype == np.int32 else (d + 0.0).astype(np.float32)  # no negative zeros
    cells[d_cells(m, n, group, ws)] = words.view(np.uint32)
    return cells


def product(
    kind: str,
    m: int,
    n: int,
    fmts: tuple[str, str],
    group: int = 1,
    ws: bool = False,
    *,
    steps: int = 2,
    seed: int | None = None,
    arch: str = "sm_100a",
    **fields: object,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Run `steps` chained products; gives all cells, and the values of A and B."""
    a, b = values(fmts[0], (m, K[kind] * steps), 1), values(fmts[1], (n, K[kind] * steps), 2)
    parts = []
    for cta in range(group):
        here = {}
        for s in range(steps):
            k = slice(s * K[kind], (s + 1) * K[kind])
            mine_a, mine_b = a[cta * m // group :][: m // group, k], b[cta * n // group :][: n // group, k]
            here[A_AT + s * 32 * m // group] = k_major(shared_rows(mine_a, fmts[0]))
            here[B_AT + s * 32 * n // group] = k_major(shared_rows(mine_b, fmts[1]))
        parts.append(here)
    t = Tensor(image(*parts), arch=arch)
    t.fill()
    bits = idesc(kind, m=m, n=n, a_type=fmts[0], b_type=fmts[1], **fields)
    with t.only(t.leader):
        for s in range(steps):
            first = k_descriptor(A_AT + s * 32 * m // group, m // group)
            second = k_descriptor(B_AT + s * 32 * n // group, n // group)
            t.mma(kind, first, second, bits, add=s > 0, form=".ws" if ws else "")
        t.commit()
    return t.finish(seed=seed), a, b


SHAPES = [
    (64, 8, 1, False), (64, 96, 1, False), (64, 256, 1, False), (128, 8, 1, False), (128, 72, 1, False),
    (128, 256, 1, False), (32, 64, 1, True), (32, 256, 1, True), (64, 128, 1, True), (128, 64, 1, True),
    (128, 32, 2, False), (128, 256, 2, False), (256, 16, 2, False), (256, 240, 2, False),
]  # fmt: skip


@pytest.mark.parametrize("i", range(len(SHAPES)))
def test_shapes(i: int) -> None:
    """Every layout of D (A, B, D, E, F, G), and no cell besides."""
    m, n, group, ws = SHAPES[i]
    got, a, b = product("f16", m, n, ("f16", "f16"), group, ws, seed=i if i % 3 else None)
    assert np.array_equal(got, expected(a @ b.T, m, n, group, ws))


@pytest.mark.parametrize("in_tensor", [False, True])
def test_two_half_tiles_side_by_side(in_tensor: bool) -> None:
    """M 64 uses 16 of every 32 lanes: two products share their columns, one starting at lane 0, one at lane 16; A in
    tensor memory starts where D does."""
    n = 32
    a, b = [values("f16", (64, 16), i) for i in (1, 2)], values("f16", (n, 16), 3)
    lanes = np.zeros((128, 32), np.uint8)
    for i in range(2):
        lanes[16 * i + np.arange(64) % 16 + 32 * (np.arange(64) // 16)] = tensor_rows(a[i], "f16")
    parts = {A_AT + 4096 * i: k_major(shared_rows(a[i], "f16")) for i in range(2)}
    t = Tensor(image(parts | {B_AT: k_major(shared_rows(b, "f16")), 32768: k_major(lanes)}))
    t.fill()
    bits = idesc("f16", m=64, n=n, a_type="f16", b_type="f16")
    with t.only(t.leader):
        if in_tensor:
            t.cp(200, 32768, "128x256b", rows=128)
        for i in range(2):
            first = t.cell(200, 16 * i) if in_tensor else k_descriptor(A_AT + 4096 * i, 64)
            t.mma("f16", first, k_descriptor(B_AT, n), bits, d=t.cell(8, 16 * i))
        t.commit()
    want = poison()
    if in_tensor:
        want[:, 200:208] = lanes.view(np.uint32)
    for i in range(2):
        _, lane, column = d_cells(64, n, 1, False)
        want[lane + 16 * i, column + 8] = (a[i] @ b.T + 0.0).astype(np.float32).view(np.uint32)
    assert np.array_equal(t.finish(seed=1)[0], want)


TYPE_PAIRS = [
    ("f16", "f16", "f16"), ("f16", "bf16", "bf16"), ("tf32", "tf32", "tf32"),
    *(("i8", x, y) for x, y in itertools.product(("s8", "u8"), repeat=2)),
    *(("f8f6f4", x, y) for x, y in itertools.product(SMALL_FLOATS, repeat=2)),
]  # fmt: skip


@pytest.mark.parametrize("seed", [None, 3])
def test_types(seed: int | None) -> None:
    """All 32 pairs of types in one kernel, 16 columns each."""
    n = 16
    a = {f: values(f, (128, K[kind]), i) for i, (kind, f, _) in enumerate(TYPE_PAIRS)}
    b = {f: values(f, (n, K[kind]), 50 + i) for i, (kind, _, f) in enumerate(TYPE_PAIRS)}
    places = {f: A_AT + 4096 * i for i, f in enumerate(a)}, {f: B_AT + 512 * i for i, f in enumerate(b)}
    parts = {places[0][f]: k_major(shared_rows(v, f)) for f, v in a.items()}
    t = Tensor(image(parts | {places[1][f]: k_major(shared_rows(v, f)) for f, v in b.items()}))
    t.fill()
    want = poison()
    with t.only(t.leader):
        for i, (kind, x, y) in enumerate(TYPE_PAIRS):
            bits = idesc(kind, m=128, n=n, a_type=x, b_type=y)
            t.mma(kind, k_descriptor(places[0][x], 128), k_descriptor(places[1][y], n), bits, d=t.cell(n * i))
            d = a[x] @ b[y].T
            words = d.astype(np.int32) if kind == "i8" else (d + 0.0).astype(np.float32)
            want[:, n * i : n * (i + 1)] = words.view(np.uint32)
        t.commit()
    assert np.array_equal(t.finish(seed=seed)[0], want)


@pytest.mark.parametrize("kind,x,y", [("f16", "f16", "f16"), ("f8f6f4", "e4m3", "e2m1"), ("f8f6f4", "e5m2", "e5m2")])
@pytest.mark.parametrize("m,group", [(64, 1), (128, 1), (256, 2)])
def test_half_accumulators(kind: str, x: str, y: str, m: int, group: int) -> None:
    """f16 D lies in the low half of its cell; what the upper half holds is nobody's business."""
    got, a, b = product(kind, m, 64, (x, y), group, d_type="f16")
    cells = d_cells(m, 64, group, False)
    assert np.array_equal(got[cells].astype(np.uint16), (a @ b.T).astype(np.float16).view(np.uint16))
    got[cells] = np.stack([poison()] * group)[cells]
    assert np.array_equal(got, np.stack([poison()] * group))


@pytest.mark.parametrize("kind,fmt,signs", [
    ("f16", "f16", (True, False)), ("tf32", "tf32", (False, True)), ("f8f6f4", "e4m3", (True, True)),
    ("f8f6f4", "e2m1", (False, True)),
])  # fmt: skip
def test_negation(kind: str, fmt: str, signs: tuple[bool, bool]) -> None:
    got, a, b = product(kind, 128, 16, (fmt, fmt), negate_a=signs[0], negate_b=signs[1])
    sign = -1 if signs[0] != signs[1] else 1
    assert np.array_equal(got, expected(sign * (a @ b.T), 128, 16, 1, False))


# -- options of one product ----------------------------------------------------------------------------


def accumulators(t: Tensor, column: int, word: int, columns: int) -> None:
    """The same word in some columns of all lanes."""
    value = t.value("mov.b32", word)
    for c in range(column, column + columns, 8):
        t.emit("tcgen05.st.sync.aligned.32x32b.x8.b32", t.cell(c, 0, t.mine), [value] * 8)
    t.emit("tcgen05.wait::st.sync.aligned")
    t.handover()


def one(kind: str, m: int, n: int, fmt: str, group: int = 1) -> tuple[Tensor, np.ndarray, np.ndarray, int, int]:
    a, b = values(fmt, (m, K[kind]), 1), values(fmt, (n, K[kind]), 2)
    parts = [
        {A_AT: k_major(shared_rows(a[c * m // group :][: m // group], fmt)),
         B_AT: k_major(shared_rows(b[c * n // group :][: n // group], fmt))}
        for c in range(group)
    ]  # fmt: skip
    t = Tensor(image(*parts))
    t.fill()
    return t, a, b, k_descriptor(A_AT, m // group), k_descriptor(B_AT, n // group)


@pytest.mark.parametrize("start,saturate", [(0x7FFFFFF0, True), (0x7FFFFFF0, False), (-0x7FFFFFF0, True), (100, True)])
def test_saturation(start: int, saturate: bool) -> None:
    t, a, b, da, db = one("i8", 128, 32, "s8")
    accumulators(t, 0, start & 0xFFFFFFFF, 32)
    with t.only(t.leader):
        t.mma("i8", da, db, idesc("i8", m=128, n=32, a_type="s8", b_type="s8", saturate=saturate), add=True)
        t.commit()
    exact = (a @ b.T).astype(np.int64) + start
    want = np.clip(exact, -(2**31), 2**31 - 1) if saturate else exact
    words = want.astype(np.uint64).astype(np.uint32).view(np.int32)
    assert np.array_equal(t.finish(), expected(words, 128, 32, 1, False))


@pytest.mark.parametrize("kind,fmt,shift", [("f16", "f16", 0), ("f16", "bf16", 1), ("tf32", "tf32", 15)])
def test_scaled_input(kind: str, fmt: str, shift: int) -> None:
    t, a, b, da, db = one(kind, 128, 32, fmt)
    accumulators(t, 0, int(np.float32(-40960.0).view(np.uint32)), 32)
    with t.only(t.leader):
        t.mma(kind, da, db, idesc(kind, m=128, n=32, a_type=fmt, b_type=fmt), add=True, scale_d=shift)
        t.commit()
    assert np.array_equal(t.finish(), expected(a @ b.T - 40960.0 / 2**shift, 128, 32, 1, False))


@pytest.mark.parametrize("m,group", [(64, 1), (128, 1), (128, 2), (256, 2)])
def test_lanes_switched_off(m: int, group: int) -> None:
    n = 64
    t, a, b, da, db = one("f16", m, n, "f16", group)
    words = [0x80000001, 0, 0xFFFFFFFF, 0x0000FF00, 1, 2, 4, 0xF0000000][: 4 * group]
    with t.only(t.leader):
        mask = [t.value("mov.b32", w) for w in words]
        t.mma("f16", da, db, idesc("f16", m=m, n=n, a_type="f16", b_type="f16"), mask=mask)
        t.commit()
    want = expected(a @ b.T, m, n, group, False)
    off = np.array([[words[4 * c + lane // 32] >> lane % 32 & 1 for lane in range(128)] for c in range(group)], bool)
    want[off] = np.stack([poison()] * group)[off]
    assert np.array_equal(t.finish(seed=2), want)


@pytest.mark.parametrize(
    "bits,fmt,kind", [(16, "f16", "f16"), (8, "e4m3", "f8f6f4"), (8, "s8", "i8"), (32, "tf32", "tf32")]
)
@pytest.mark.parametrize("swizzle,group", [("none", 1), ("32B", 2), ("128B", 1)])
def test_transposed(bits: int, fmt: str, kind: str, swizzle: str, group: int) -> None:
    """MN-major operands; 32-bit ones exist with 32-byte atoms only (table 54)."""
    if bits == 32:
        swizzle = "128B_atom32B"
    m, n, k = 128 * group, 64 * group, K[kind]
    a, b = values(fmt, (m, k), 1), values(fmt, (n, k), 2)
    stripe = {"none": 16, "32B": 32, "128B": 128, "128B_atom32B": 128}[swizzle]

    def operand(v: np.ndarray, at: int) -> tuple[int, dict[int, np.ndarray]]:
        rows = len(v)
        lines = stripe * 8 if swizzle != "128B_atom32B" else stripe * 4
        stripes, deep = rows * bits // 8 // stripe, k * stripe // lines
        lbo, sbo = (lines * stripes, lines) if swizzle == "none" else (lines * deep, lines)
        d = SmemDescriptor("sm_100a", BASE + at, lbo=lbo, sbo=sbo, swizzle=swizzle)
        where = operand_addresses(d, major="MN", rows=rows, k_bytes=k * bits // 8, element_bits=bits) - BASE - at
        assert len(np.unique(where)) == where.size
        raw = np.full(int(where.max()) + bits // 8, 0xFF, np.uint8)
        data = codes(v, fmt).view(np.uint8).reshape(rows, k, bits // 8)
        for byte in range(bits // 8):
            raw[where + byte] = data[..., byte]
        return d.encode(), {at: raw}

    parts = []
    for c in range(group):
        da, here = operand(a[c * 128 :][:128], A_AT)
        db, more = operand(b[c * 64 :][:64], B_AT)
        parts.append(here | more)
    t = Tensor(image(*parts))
    t.fill()
    bits_ = idesc(kind, m=m, n=n, a_type=fmt, b_type=fmt, transpose_a=True, transpose_b=True)
    with t.only(t.leader):
        t.mma(kind, da, db, bits_)
        t.commit()
    want = (a @ b.T).astype(np.int32) if kind == "i8" else a @ b.T
    assert np.array_equal(t.finish(), expected(want, m, n, group, False))


# -- A in tensor memory ---------------------------------------------------------------------------------


def lane_image(a: np.ndarray, fmt: str, m: int, group: int, shift: bool = False) -> list[np.ndarray]:
    """32 bytes for each of 128 lanes, in each CTA: rows as D has them, twice for M 128 on a pair."""
    raw = tensor_rows(a, fmt)
    out = []
    for c in range(group):
        rows = np.full((128, 32), 0xFF, np.uint8)
        mine = raw[c * m // group :][: m // group]
        if m == 64:
            rows[np.arange(64) % 16 + 32 * (np.arange(64) // 16)] = mine
        elif m == 128 and group == 2:
            rows[:64] = rows[64:] = mine
        else:
            rows[:] = mine
        out.append(rows)
    return out


A_TYPES = [("f16", "f16"), ("f16", "bf16"), ("tf32", "tf32"), ("i8", "s8"), *(("f8f6f4", f) for f in SMALL_FLOATS)]


@pytest.mark.parametrize(
    "m,group,ws", [(64, 1, False), (128, 1, False), (128, 1, True), (128, 2, False), (256, 2, False)]
)
def test_a_in_tensor_memory(m: int, group: int, ws: bool) -> None:
    """Every type in one kernel: A of the i-th at column 400 + 8 i, its product at 40 i."""
    n, apart = 32 if not ws else 64, 40 if not ws else 64
    types = A_TYPES if not ws else A_TYPES[:5]
    a = [values(f, (m, K[kind]), i) for i, (kind, f) in enumerate(types)]
    b = [values(f, (n, K[kind]), 9 + i) for i, (kind, f) in enumerate(types)]
    lanes = [lane_image(v, f, m, group) for v, (_, f) in zip(a, types, strict=True)]
    parts: list[dict[int, np.ndarray]] = [{} for _ in range(group)]
    for i, (_, f) in enumerate(types):
        for c in range(group):
            parts[c][A_AT + 4096 * i] = k_major(lanes[i][c])
            parts[c][B_AT + 2048 * i] = k_major(shared_rows(b[i][c * n // group :][: n // group], f))
    t = Tensor(image(*parts))
    t.fill()
    want = np.stack([poison()] * group)
    with t.only(t.leader):
        for i, (kind, f) in enumerate(types):
            t.cp(400 + 8 * i, A_AT + 4096 * i, "128x256b", rows=128)
            second, bits = k_descriptor(B_AT + 2048 * i, n // group), idesc(kind, m=m, n=n, a_type=f, b_type=f)
            t.mma(kind, t.cell(400 + 8 * i), second, bits, d=t.cell(apart * i), form=".ws" if ws else "")
            want[:, :, 400 + 8 * i : 408 + 8 * i] = [x.view(np.uint32) for x in lanes[i]]
            d = a[i] @ b[i].T
            cta, lane, column = d_cells(m, n, group, ws)
            words = d.astype(np.int32) if kind == "i8" else (d + 0.0).astype(np.float32)
            want[cta, lane, column + apart * i] = words.view(np.uint32)
        t.commit()
    assert np.array_equal(t.finish(seed=1), want)


@pytest.mark.parametrize("m,group", [(128, 1), (256, 2)])
def test_shifted_a(m: int, group: int) -> None:
    """.ashift: row r of the product is that of row r + 1 of A; the last row of each CTA keeps its own."""
    n = 64
    a, b = values("f16", (m, 16), 4), values("f16", (n, 16), 5)
    lanes = lane_image(a, "f16", m, group)
    rows_b = shared_rows(b, "f16").reshape(group, n // group, -1)
    parts = [{A_AT: k_major(lanes[c]), B_AT: k_major(rows_b[c])} for c in range(group)]
    t = Tensor(image(*parts))
    t.fill()
    with t.only(t.leader):
        t.cp(200, A_AT, "128x256b", rows=128)
        bits = idesc("f16", m=m, n=n, a_type="f16", b_type="f16")
        t.mma("f16", t.cell(200), k_descriptor(B_AT, n // group), bits, form="|.ashift")
        t.commit()
    before = np.stack([poison()] * group)
    before[:, :, 200:208] = [x.view(np.uint32) for x in lanes]
    rows = np.arange(m) + (np.arange(m) % 128 != 127)
    assert np.array_equal(t.finish(), expected(a[rows] @ b.T, m, n, group, False, before))


def test_copies_of_a_that_differ() -> None:
    """M 128 on a pair wants A twice."""
    lanes = np.repeat(np.arange(128, dtype=np.uint8), 32).reshape(128, 32)
    t = Tensor(image(*[{A_AT: k_major(lanes), B_AT: k_major(np.zeros((32, 32), np.uint8))}] * 2))
    t.fill()
    with t.only(t.leader):
        t.cp(200, A_AT, "128x256b", rows=128)
        t.mma("f16", t.cell(200), k_descriptor(B_AT, 32), idesc("f16", m=128, n=64, a_type="f16", b_type="f16"))
        t.commit()
    with pytest.raises(SmaltiError) as found:
        t.finish()
    assert (found.value.code, found.value.params["row"]) == ("SML0864", 0)


# -- what is refused ------------------------------------------------------------------------------------


def refused(change: str) -> str | None:
    """The code of one product that breaks a rule; None if it runs."""
    t, _, _, da, db = one("f16", 128, 32, "f16", 2 if change.startswith("pair") else 1)
    m = 256 if change.startswith("pair") else 128
    bits = idesc("f16", m=m, n=32, a_type="f16", b_type="f16")
    outside = k_descriptor(160 * 1024, 32)
    if change == "pair":
        da, db = k_descriptor(A_AT, 128), k_descriptor(B_AT, 16)
    d, kind, form = t.cell(0), "f16", ""
    if change == "window":
        db = outside
    elif change == "version":
        db ^= 1 << 46
    elif change == "shape":
        bits = idesc("f16", m=64, n=32, a_type="f16", b_type="f16") & ~(31 << 24) | 5 << 24
    elif change == "sparse":
        bits |= 4
    elif change == "selector":
        bits |= 1
    elif change == "lane":
        d = t.cell(0, 16)
    elif change == "column":
        d = t.cell(500)
    elif change == "a_lane":
        da, d = t.cell(200, 16), t.cell(0)
    elif change == "transposed":
        da, bits = t.cell(200), bits | 1 << 15
    elif change == "ws":
        form = ".ws"
    with t.only(t.leader):
        t.mma(kind, da, db, bits, d=d, form=form)
        t.commit()
    try:
        t.finish()
    except SmaltiError as refusal:
        return refusal.code
    return None


@pytest.mark.parametrize("change,code", [
    ("", None), ("window", "SML0830"), ("version", "SML0873"), ("shape", "SML0873"), ("sparse", "SML0873"),
    ("selector", "SML0873"), ("lane", "SML0877"), ("column", "SML0861"), ("a_lane", "SML0877"),
    ("transposed", "SML0873"), ("ws", "SML0873"),
])  # fmt: skip
def test_refusals(change: str, code: str | None) -> None:
    assert refused(change) == code


def test_the_data_tell() -> None:
    """The values are exact in their formats and differ between rows, so that a wrong row would show."""
    for fmt in TYPES:
        v = values(fmt, (64, 32), 1)
        assert np.array_equal(v.astype(TYPES[fmt]).astype(np.float64), v)
        assert len(np.unique(v @ values(fmt, (64, 32), 2).T, axis=0)) == 64
    assert set(BITS) <= set(TYPES)
