"""Block-scaled tcgen05.mma: scale vectors, types, ids, pairs and odd N against plain products of scaled operands."""

from __future__ import annotations

import numpy as np
import pytest

from smalti.errors import SmaltiError
from tests.vgpu.tensor_asm import SCRATCH, Tensor, idesc, image, k_descriptor, k_major, poison
from tests.vgpu.tensor_data import d_cells, packed, shared_rows, tensor_rows, values

A_AT, B_AT, SFA_AT, SFB_AT = 0, 32768, 65536, 81920
SFA, SFB, A_COLUMN = 256, 280, 320  # columns
KINDS = {  # name of a case: kind, spelling of the vector, formats, K, elements of a block, scale type, factors
    "mx8": ("mxf8f6f4", "", ("e4m3", "e5m2"), 32, 32, "ue8m0"),
    "mx1X": ("mxf8f6f4", ".scale_vec::1X", ("e5m2", "e2m1"), 32, 32, "ue8m0"),
    "mxb32": ("mxf8f6f4", ".block32", ("e3m2", "e2m3"), 32, 32, "ue8m0"),
    "mx4": ("mxf4", "", ("e2m1", "e2m1"), 64, 32, "ue8m0"),
    "mx4.2X": ("mxf4", ".scale_vec::2X", ("e2m1", "e2m1"), 64, 32, "ue8m0"),
    "nv2X": ("mxf4nvf4", ".block32", ("e2m1", "e2m1"), 64, 32, "ue8m0"),
    "nv4X8": ("mxf4nvf4", ".scale_vec::4X", ("e2m1", "e2m1"), 64, 16, "ue8m0"),
    "nv4X": ("mxf4nvf4", ".block16", ("e2m1", "e2m1"), 64, 16, "ue4m3"),
}


def scales(kind: str, rows: int, blocks: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Codes [rows, blocks] and their values, different along rows and blocks."""
    r = np.random.default_rng(seed)
    if kind == "ue8m0":
        c = r.integers(125, 130, (rows, blocks)).astype(np.uint8)
        return c, np.exp2(c.astype(float) - 127)
    mantissa, exponent = r.integers(0, 8, (rows, blocks)), r.integers(7, 9, (rows, blocks))
    return (exponent << 3 | mantissa).astype(np.uint8), (1 + mantissa / 8) * np.exp2(exponent - 7.0)


def cells(codes: np.ndarray, rows: int, at: int) -> np.ndarray:
    """Scale factors as rows of 16 bytes for 32 lanes (r % 32), four groups of 32 rows side by side, the first factor at
    byte `at` of each cell; garbage elsewhere."""
    out = np.full((-(-rows // 128), 32, 4, 4), 0xFF, np.uint8)
    for r in range(rows):
        out[r // 128, r % 32, r // 32 % 4, at : at + codes.shape[1]] = codes[r, : 4 - at]
    return out.reshape(-1, 32, 16)


def halves(codes: np.ndarray, n: int, at: int) -> np.ndarray:
    """SFB of layout B: 64 rows of 16 bytes, n < N/2 in the first 32, the others in the rest."""
    out = np.full((64, 4, 4), 0xFF, np.uint8)
    for j in range(n):
        inside = j % (n // 2)
        out[inside % 32 + 32 * (j >= n // 2), inside // 32, at : at + codes.shape[1]] = codes[j, : 4 - at]
    return out.reshape(64, 16)


def run(
    case: str, m: int, n: int, group: int = 1, *, ids: tuple[int, int] = (0, 0), in_tensor: bool = False,
    seed: int | None = None, break_: str = "",
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """One product; D as the kernel left it, and as it should be."""
    kind, vector, formats, k, block, scale_type = KINDS[case]
    dense4 = kind.startswith("mxf4")
    blocks = k // block
    a, b = values(formats[0], (m, k), 1), values(formats[1], (n, k), 2)
    ca, va = scales(scale_type, m, blocks, 3)
    cb, vb = scales(scale_type, n, blocks, 4)
    rows_a, rows_b = m // group, n // group
    parts = []
    for c in range(group):
        mine_a, mine_b = a[c * rows_a :][:rows_a], b[c * rows_b :][:rows_b]
        raw = (tensor_rows if in_tensor else shared_rows)(mine_a, formats[0], dense4)
        sf = cells(ca[c * rows_a :][:rows_a], rows_a, ids[0])
        if break_ == "pair" and c:
            cb = cb.copy()
            cb[5] += 1
        sfb = [halves(cb, n, ids[1])] if group == 2 and m == 128 else list(cells(cb, n, ids[1]))
        parts.append(
            {A_AT: k_major(raw), B_AT: k_major(shared_rows(mine_b, formats[1], dense4)), SFA_AT: k_major(sf[0])}
            | {SFB_AT + 1024 * i: k_major(x) for i, x in enumerate(sfb)}
        )
    t = Tensor(image(*parts))
    t.fill()
    with t.only(t.leader):
        t.cp(SFA, SFA_AT, "32x128b.warpx4", rows=32)
        if group == 2 and m == 128:
            t.cp(SFB, SFB_AT, "64x128b.warpx2::01_23", rows=64)
        else:
            for i in range(-(-n // 128)):
                t.cp(SFB + 4 * i, SFB_AT + 1024 * i, "32x128b.warpx4", rows=32)
        first = k_descriptor(A_AT, rows_a)
        if in_tensor:
            t.cp(A_COLUMN, A_AT, "128x256b", rows=128)
            first = t.cell(A_COLUMN)
        bits = idesc(kind, m=m, n=n, a_type=formats[0], b_type=formats[1], scale_type=scale_type,
                     scale_a_id=ids[0], scale_b_id=ids[1])  # fmt: skip
        tail = [t.cell(SFA), t.cell(SFB)]
        t.mma(kind, first, k_descriptor(B_AT, rows_b), bits, form=f"|.block_scale{vector}", tail=tail)
        t.commit()
    got = t.finish(seed=seed)
    exact = (a * va.repeat(block, axis=1)) @ (b * vb.repeat(block, axis=1)).T
    assert np.array_equal(got[:, :, 400:], np.stack([poison()[:, 400:]] * group))
    return got[d_cells(m, n, group, False)].view(np.float32), exact.astype(np.float32)


@pytest.mark.parametrize("case", KINDS)
@pytest.mark.parametrize("m,n,group", [(128, 256, 1), (256, 256, 2)])
def test_kinds(case: str, m: int, n: int, group: int) -> None:
    got, want = run(case, m, n, group, seed=group)
    assert np.array_equal(got, want)


@pytest.mark.parametrize("case", ["mx8", "mx4", "nv4X"])
@pytest.mark.parametrize("m,n,group", [(128, 8, 1), (128, 136, 1), (256, 16, 2), (256, 176, 2)])
def test_odd_widths(case: str, m: int, n: int, group: int) -> None:
    got, want = run(case, m, n, group)
    assert np.array_equal(got, want)


@pytest.mark.parametrize("case", ["mx8", "mx4", "nv4X"])
@pytest.mark.parametrize("n", [32, 192, 256])
def test_half_tiles_of_a_pair(case: str, n: int) -> None:
    """M 128 on a pair (layout B): SFA of 64 rows a CTA, SFB split over the lanes."""
    got, want = run(case, 128, n, 2, seed=n)
    assert np.array_equal(got, want)


@pytest.mark.parametrize("case,ids", [("mx8", (1, 2)), ("mx8", (3, 0)), ("mx4", (2, 0)), ("nv2X", (0, 2))])
@pytest.mark.parametrize("group", [1, 2])
def test_scale_ids(case: str, ids: tuple[int, int], group: int) -> None:
    got, want = run(case, 128 * group, 64, group, ids=ids)
    assert np.array_equal(got, want)


@pytest.mark.parametrize("case", ["mx8", "mx1X", "mxb32", "mx4", "nv4X"])
@pytest.mark.parametrize("group", [1, 2])
def test_a_in_tensor_memory(case: str, group: int) -> None:
    got, want = run(case, 128 * group, 64, group, in_tensor=True)
    assert np.array_equal(got, want)


@pytest.mark.parametrize(
    "case,ids,code", [("nv4X", (2, 0), "SML0873"), ("nv4X8", (0, 2), "SML0873"), ("nv4X", (0, 0), "")]
)
def test_ids_that_do_not_fit(case: str, ids: tuple[int, int], code: str) -> None:
    try:
        run(case, 128, 64, ids=ids)
        found = ""
    except SmaltiError as refusal:
        found = refusal.code
    assert found == code


def test_scales_of_the_pair_that_differ() -> None:
    with pytest.raises(SmaltiError) as found:
        run("mx8", 256, 64, 2, break_="pair")
    assert (found.value.code, found.value.params["row"]) == ("SML0864", 5)


@pytest.mark.parametrize("which,code", [(0, ""), (1, "SML0808")])
def test_undefined_scale_bytes(which: int, code: str) -> None:
    """Only the first byte of every scale cell is defined: id 0 gives a defined product, id 1 an undefined one."""
    ones = np.full((128, 32), 0x38, np.uint8)
    t = Tensor(image({A_AT: k_major(ones), B_AT: k_major(ones)}))
    t.fill()
    byte = t.value("mad.lo.u32", t.tid, 4, t.base)
    t.emit("st.shared.b8", t.at(SCRATCH, byte), t.value("mov.u16", 128, type_="b16"))
    t.emit("fence.proxy.async")
    t.sync()
    with t.only(t.leader):
        for column in (SFA, SFB):
            t.cp(column, SCRATCH, "32x128b.warpx4", rows=32)
        bits = idesc("mxf8f6f4", m=128, n=128, a_type="e4m3", b_type="e4m3", scale_a_id=which)
        tail = [t.cell(SFA), t.cell(SFB)]
        t.mma("mxf8f6f4", k_descriptor(A_AT, 128), k_descriptor(B_AT, 128), bits, form="|.block_scale", tail=tail)
        t.commit()
    t.columns = 128  # of which the product is dumped, not the scales
    t.done()
    t.dump()
    t.columns = 512
    t.free()
    try:
        assert (t.run()["dump"].view(np.float32)[0, :, :128] == 128).all()
        found = ""
    except SmaltiError as refusal:
        found = refusal.code
    assert found == code


def test_packing_helper() -> None:
    assert packed(np.array([[1, 2, 3, 4]]), 4).tolist() == [[0x21, 0x43]]
    assert packed(np.array([[1, 2, 3, 4]]), 6).tolist() == [[1 | 2 << 6 & 0xFF, 2 >> 2 | 3 << 4, 3 >> 4 | 4 << 2]]
