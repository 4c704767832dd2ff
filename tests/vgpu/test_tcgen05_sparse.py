"""Sparse tcgen05.mma: where the metadata of every kind lies, what its codes select, selectors, pairs and .ws."""

from __future__ import annotations

import numpy as np
import pytest

from smalti.errors import SmaltiError
from tests.vgpu.tensor_asm import Tensor, idesc, image, k_descriptor, k_major, poison
from tests.vgpu.tensor_data import d_cells, shared_rows, tensor_rows, values

A_AT, B_AT, META_AT, SFA_AT, SFB_AT = 0, 32768, 65536, 81920, 90112
META, SFA, SFB = 256, 264, 268  # columns; META is even
ORDERED = [0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110]
# case: kind, formats, logical K, elements of a chunk
KINDS = {
    "f16": ("f16", ("f16", "f16"), 32, 4),
    "bf16": ("f16", ("bf16", "bf16"), 32, 4),
    "tf32": ("tf32", ("tf32", "tf32"), 16, 2),
    "f8": ("f8f6f4", ("e4m3", "e5m2"), 64, 4),
    "f6": ("f8f6f4", ("e2m3", "e2m1"), 64, 4),
    "i8": ("i8", ("s8", "u8"), 64, 4),
    "mx8": ("mxf8f6f4", ("e4m3", "e4m3"), 64, 4),
    "mx4": ("mxf4", ("e2m1", "e2m1"), 128, 8),
    "nv4": ("mxf4nvf4", ("e2m1", "e2m1"), 128, 8),
}


def widen(kept: np.ndarray, codes: np.ndarray, chunk: int) -> np.ndarray:
    """The dense matrix: each code places one (tf32), two, or two pairs (4-bit) of kept elements in its chunk."""
    rows, chunks = codes.shape
    out = np.zeros((rows, chunks, chunk))
    every = np.arange(rows)[:, None], np.arange(chunks)[None, :]
    given = kept.reshape(rows, chunks, -1)
    first, second = codes & 3, codes >> 2
    if chunk == 2:
        out[(*every, (codes == 0b1110).astype(int))] = given[..., 0]
    elif chunk == 4:
        out[(*every, first)] = given[..., 0]
        out[(*every, second)] = given[..., 1]
    else:
        for i in range(2):
            out[(*every, 2 * first + i)] = given[..., i]
            out[(*every, 2 * second + i)] = given[..., 2 + i]
    return out.reshape(rows, -1)


def metadata(codes: np.ndarray, kind: str, selector: int) -> np.ndarray:
    """Cells [128 lanes, 4 columns] of the codes of up to 128 rows; garbage where none belong."""
    out = np.full((128, 4), 0x55AA55AA, np.uint32)
    rows, chunks = codes.shape
    for m in range(rows):
        for c in range(chunks):
            if kind in ("f16", "tf32"):  # 8 chunks: four in a half-word, the second four in lanes 8 further on
                lane, column = m % 8 + 16 * (m // 16) + 8 * (c // 4), selector
                bit = 16 * (m // 8 % 2) + 4 * (c % 4)
            else:
                lane, column, bit = m, c // 8, 4 * (c % 8)
            out[lane, column] = int(out[lane, column]) & ~(15 << bit) | int(codes[m, c]) << bit
    return out


def run(
    case: str, m: int, n: int, group: int = 1, ws: bool = False, *, selector: int = 0, in_tensor: bool = False,
    legal: list[int] | None = None, seed: int | None = None,
) -> tuple[np.ndarray, np.ndarray]:  # fmt: skip
    """One product; all cells, and all cells as they should be."""
    kind, formats, k, chunk = KINDS[case]
    dense4 = kind.startswith("mxf4")
    a, b = values(formats[0], (m, k // 2), 1), values(formats[1], (n, k), 2)
    legal = legal or ([0b0100, 0b1110] if chunk == 2 else [*ORDERED, 0b0110])
    codes = np.array(legal)[np.random.default_rng(3).integers(0, len(legal), (m, k // chunk))]
    rows_a, rows_b = m // group, n // group
    parts, cells = [], []
    for c in range(group):
        mine_a, mine_b = a[c * rows_a :][:rows_a], b[c * rows_b :][:rows_b]
        meta = metadata(codes[c * rows_a :][:rows_a], kind, selector)
        for copy in range(1, 128 // rows_a if ws else 1):
            meta[copy * rows_a : (copy + 1) * rows_a] = meta[:rows_a]
        cells.append(meta)
        raw = (tensor_rows if in_tensor else shared_rows)(mine_a, formats[0], dense4)
        parts.append({
            A_AT: k_major(raw), B_AT: k_major(shared_rows(mine_b, formats[1], dense4)),
            META_AT: k_major(meta.view(np.uint8)),
            SFA_AT: np.full(512, 127, np.uint8), SFB_AT: np.full(512, 127, np.uint8),
        })  # fmt: skip
    t = Tensor(image(*parts))
    t.fill()
    with t.only(t.leader):
        t.cp(META, META_AT, "128x128b", rows=128)
        tail = None
        form = ".sp" if not ws else ".ws.sp"
        fields = {}
        if kind.startswith("mx"):
            t.cp(SFA, SFA_AT, "32x128b.warpx4", rows=32)
            t.cp(SFB, SFB_AT, "32x128b.warpx4", rows=32)
            form += "|.block_scale" + (".block32" if kind == "mxf4nvf4" else "")
            tail = [t.cell(SFA), t.cell(SFB)]
        first = k_descriptor(A_AT, rows_a)
        if in_tensor:
            t.cp(280, A_AT, "128x256b", rows=128)
            first = t.cell(280)
        if selector:
            fields["selector"] = selector
        bits = idesc(kind, m=m, n=n, a_type=formats[0], b_type=formats[1], sparse=True, **fields)
        t.mma(kind, first, k_descriptor(B_AT, rows_b), bits, form=form, tail=tail, meta=t.cell(META))
        t.commit()
    got = t.finish(seed=seed)
    want = np.stack([poison()] * group)
    want[:, :, META : META + 4] = cells
    if kind.startswith("mx"):
        want[:, :, SFA : SFA + 8] = 0x7F7F7F7F
    if in_tensor:
        want[:, :, 280:288] = got[:, :, 280:288]
    d = widen(a, codes, chunk) @ b.T
    words = d.astype(np.int32) if kind == "i8" else (d + 0.0).astype(np.float32)
    want[d_cells(m, n, group, ws, True)] = words.view(np.uint32)
    return got, want


@pytest.mark.parametrize("case", KINDS)
@pytest.mark.parametrize("group", [1, 2])
def test_kinds(case: str, group: int) -> None:
    got, want = run(case, 128 * group, 64, group, seed=group)
    assert np.array_equal(got, want)


@pytest.mark.parametrize("case", ["f16", "tf32"])
@pytest.mark.parametrize("group", [1, 2])
def test_selectors(case: str, group: int) -> None:
    """Selector 1 takes the second column of the pair."""
    got, want = run(case, 128 * group, 32, group, selector=1)
    assert np.array_equal(got, want)


@pytest.mark.parametrize("case", ["f16", "tf32", "f8", "i8"])
@pytest.mark.parametrize("m", [32, 64, 128])
def test_weight_stationary(case: str, m: int) -> None:
    got, want = run(case, m, 64, 1, True)
    assert np.array_equal(got, want)


@pytest.mark.parametrize("case", ["f16", "f8", "mx4"])
@pytest.mark.parametrize("group", [1, 2])
def test_a_in_tensor_memory(case: str, group: int) -> None:
    got, want = run(case, 128 * group, 32, group, in_tensor=True)
    assert np.array_equal(got, want)


def code_of(*args: object, **how: object) -> str:
    try:
        run(*args, **how)  # type: ignore[arg-type]
    except SmaltiError as refusal:
        return refusal.code
    return ""


@pytest.mark.parametrize("case,codes,found", [
    ("f16", [0b0100, 0b0000], "SML0865"), ("f16", [0b1011], "SML0865"), ("f8", [0b1010], "SML0865"),
    ("tf32", [0b0100, 0b1000], "SML0865"), ("mx4", [0b1111], "SML0865"), ("f16", [0b0110], ""), ("f8", ORDERED, ""),
])  # fmt: skip
def test_codes(case: str, codes: list[int], found: str) -> None:
    assert code_of(case, 128, 16, legal=codes) == found


@pytest.mark.parametrize("m,group,ws,found", [
    (64, 1, False, "SML0451"), (128, 2, False, "SML0451"), (64, 1, True, ""), (256, 2, False, ""),
])  # fmt: skip
def test_metadata_that_no_source_tells(m: int, group: int, ws: bool, found: str) -> None:
    assert code_of("f16", m, 64, group, ws) == found


def test_illegal_codes_for_zeros_pass() -> None:
    """Padding: rows of zeros with metadata of zeros."""
    t = Tensor(image({A_AT: np.zeros(4096, np.uint8), B_AT: k_major(shared_rows(values("f16", (16, 32), 1), "f16")),
                      META_AT: np.zeros(2048, np.uint8)}))  # fmt: skip
    t.fill()
    with t.only(t.leader):
        t.cp(META, META_AT, "128x128b", rows=128)
        bits = idesc("f16", m=128, n=16, a_type="f16", b_type="f16", sparse=True)
        t.mma("f16", k_descriptor(A_AT, 128), k_descriptor(B_AT, 16), bits, form=".sp", meta=t.cell(META))
        t.commit()
    assert not t.finish()[0, :, :16].any()
