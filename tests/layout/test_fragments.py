"""Register fragments against the formulas of PTX, one thread and register at a time."""

import itertools

import numpy as np
import pytest

from smalti.errors import SmaltiError
from smalti.layout import fragments as f


def refused(call):
    with pytest.raises(SmaltiError) as caught:
        call()
    assert caught.value.code == "SML0430"


@pytest.mark.parametrize("n", [8, 16, 24, 64, 200, 256])
@pytest.mark.parametrize("bits", [32, 16])
def test_wgmma_d(n, bits):
    row, column = f.wgmma_d(n, bits).offsets()
    assert row.shape == (128, n // 2 * bits // 32, 32 // bits)
    for t, j, h, i in itertools.product(range(128), range(n // 8), range(2), range(2)):
        at = (t, 4 * j + 2 * h + i, 0) if bits == 32 else (t, 2 * j + h, i)
        w, lane = divmod(t, 32)
        assert (row[at], column[at]) == (16 * w + lane // 4 + 8 * h, 8 * j + 2 * (lane % 4) + i)
    back = f.wgmma_d(n, bits).invert()
    assert back.inputs == {"row": 64, "column": n}
    assert back.invert() == f.wgmma_d(n, bits)


def test_wgmma_d_is_linear_for_powers_of_two():
    assert f.wgmma_d(64).is_linear
    assert not f.wgmma_d(24).is_linear


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_wgmma_a(bits):
    row, k = f.wgmma_a(bits).offsets()
    each = 32 // bits
    assert row.shape == (128, 4, each)
    for t, h, q, i in itertools.product(range(128), range(2), range(2), range(each)):
        w, lane = divmod(t, 32)
        expected_k = {
            8: 4 * (lane % 4) + i + 16 * q,
            16: 2 * (lane % 4) + i + 8 * q,
            32: lane % 4 + 4 * q,
        }[bits]
        assert (row[t, h + 2 * q, i], k[t, h + 2 * q, i]) == (16 * w + lane // 4 + 8 * h, expected_k)
    f.wgmma_a(bits).invert()


def test_wgmma_metadata():
    thread, bit = f.wgmma_metadata(16).offsets()
    assert thread.shape == (64, 8, 2)
    for r, chunk, s in itertools.product(range(64), range(8), range(2)):
        w, lane = r // 16, 4 * (r % 8) + 2 * s + chunk // 4
        assert (thread[r, chunk, s], bit[r, chunk, s]) == (32 * w + lane, 16 * (r // 8 % 2) + chunk % 4 * 4)
    assert f.wgmma_metadata(32) == f.wgmma_metadata(16)
    thread, bit = f.wgmma_metadata(8).offsets()
    assert thread.shape == (64, 16, 1)
    for t, chunk in itertools.product(range(128), range(8)):
        w, lane = divmod(t, 32)
        r = 16 * w + lane // 4 + 8 * (lane & 1)
        c = 8 * (lane >> 1 & 1) + chunk
        assert (thread[r, c, 0], bit[r, c, 0]) == (t, 4 * chunk)
    assert f.wgmma_metadata(16).locate(thread=[6, 6, 6], bit=[0, 20, 21]).T.tolist() == [[1, 0, 1], [9, 1, 1], [-1] * 3]


# PTX 9.7.14.5: element i of a thread, row-major reading of the register vector.
@pytest.mark.parametrize(
    ("k", "bits", "m", "row", "column"),
    [
        (4, 32, 16, lambda g, i: g + 8 * i, lambda t, i: t),
        (8, 16, 16, lambda g, i: g + 8 * (i >= 2), lambda t, i: 2 * t + i % 2),
        (8, 32, 16, lambda g, i: g + 8 * (i % 2), lambda t, i: t + 4 * (i >= 2)),
        (16, 16, 16, lambda g, i: g + 8 * (i % 4 >= 2), lambda t, i: 2 * t + i % 2 + 8 * (i >= 4)),
        (16, 8, 16, lambda g, i: g + 8 * (i >= 4), lambda t, i: 4 * t + i % 4),
        (32, 8, 16, lambda g, i: g + 8 * (i % 8 >= 4), lambda t, i: 4 * t + i % 4 + 16 * (i >= 8)),
        (64, 4, 16, lambda g, i: g + 8 * (i % 16 >= 8), lambda t, i: 8 * t + i % 8 + 32 * (i >= 16)),
        (256, 1, 16, lambda g, i: g + 8 * (i % 64 >= 32), lambda t, i: 32 * t + i % 32 + 128 * (i >= 64)),
        (16, 64, 16, lambda g, i: g + 8 * (i % 2), lambda t, i: t + (i - i % 2) * 2),
        (8, 64, 16, lambda g, i: g + 8 * (i % 2), lambda t, i: t + 4 * (i >= 2)),
        (16, 8, 8, lambda g, i: g, lambda t, i: 4 * t + i),
        (4, 64, 8, lambda g, i: g, lambda t, i: t),
    ],
)
def test_mma_a(k, bits, m, row, column):
    layout = f.mma_a(k, bits, m)
    rows, ks = (x.reshape(32, -1) for x in layout.offsets())
    assert rows.shape[1] == m * k // 32
    for lane, i in itertools.product(range(32), range(rows.shape[1])):
        assert (rows[lane, i], ks[lane, i]) == (row(lane // 4, i), column(lane % 4, i))
    assert layout.invert().inputs == {"row": m, "k": k}


@pytest.mark.parametrize(
    ("k", "bits", "m", "row"),
    [
        (4, 32, 16, lambda t, i: t),
        (8, 32, 16, lambda t, i: t + 4 * i),
        (8, 16, 16, lambda t, i: 2 * t + i),
        (16, 16, 16, lambda t, i: 2 * t + i % 2 + 8 * (i >= 2)),
        (16, 8, 16, lambda t, i: 4 * t + i),
        (32, 8, 16, lambda t, i: 4 * t + i % 4 + 16 * (i >= 4)),
        (64, 4, 16, lambda t, i: 8 * t + i % 8 + 32 * (i >= 8)),
        (16, 64, 16, lambda t, i: t + 4 * i),
        (4, 64, 8, lambda t, i: t),
        # of mma.sp, figures 121 and 132-135 of PTX 9.7.14.6: the dense rule goes on
        (32, 16, 16, lambda t, i: 2 * t + i % 2 + 8 * (i // 2)),
        (64, 8, 16, lambda t, i: 4 * t + i % 4 + 16 * (i // 4)),
    ],
)
def test_mma_b(k, bits, m, row):
    layout = f.mma_b(k, bits, m)
    columns, ks = (x.reshape(32, -1) for x in layout.offsets())
    assert columns.shape[1] == k // 4
    for lane, i in itertools.product(range(32), range(k // 4)):
        assert (columns[lane, i], ks[lane, i]) == (lane // 4, row(lane % 4, i))
    layout.invert()


@pytest.mark.parametrize("bits", [16, 32, 64])
@pytest.mark.parametrize("m", [8, 16])
def test_mma_d(m, bits):
    rows, columns = (x.reshape(32, -1) for x in f.mma_d(bits, m).offsets())
    for lane, i in itertools.product(range(32), range(m // 4)):
        assert (rows[lane, i], columns[lane, i]) == (lane // 4 + 8 * (i >= 2), 2 * (lane % 4) + i % 2)


def test_mma_d_is_a_warp_of_wgmma_d():
    assert np.array_equal(f.mma_d().offsets(), f.wgmma_d(8).offsets()[:, :32])


def test_mma_metadata():
    for k, bits in ((32, 16), (16, 32)):
        lane, bit = f.mma_metadata(k, bits).offsets()
        assert np.array_equal(lane, f.wgmma_metadata(bits).offsets()[0, :16])
        assert np.array_equal(bit, f.wgmma_metadata(bits).offsets()[1, :16])
    assert np.array_equal(f.mma_metadata(64, 8).offsets(), f.wgmma_metadata(8).offsets()[:, :16])
    for k, bits in ((16, 16), (8, 32)):
        lane, bit = f.mma_metadata(k, bits).offsets()
        for r, chunk, s in itertools.product(range(16), range(4), range(4)):
            assert (lane[r, chunk, s], bit[r, chunk, s]) == (4 * (r % 8) + s, 16 * (r // 8) + 4 * chunk)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("name", ["ldmatrix", "stmatrix"])
def test_matrix_transfers_16_bit(name, count):
    make = getattr(f, name)
    line, element = make(count).offsets()
    turned_line, turned_element = make(count, trans=True).offsets()
    assert line.shape == (32, count, 2)
    for lane, j, i in itertools.product(range(32), range(count), range(2)):
        assert (line[lane, j, i], element[lane, j, i]) == (8 * j + lane // 4, 2 * (lane % 4) + i)
        assert (turned_line[lane, j, i], turned_element[lane, j, i]) == (8 * j + 2 * (lane % 4) + i, lane // 4)


def test_ldmatrix_loads_the_fragment_of_a():
    """x4 with lines = rows 0-7, 8-15 of K 0-7, then of K 8-15 gives A of m16n8k16 (what everybody uses it for)."""
    line, element = f.ldmatrix(4).offsets()
    row, k = f.mma_a(16, 16).offsets()
    assert np.array_equal(row, line % 8 + line // 8 % 2 * 8)
    assert np.array_equal(k, line // 16 * 8 + element)


def test_matrix_transfers_8_bit():
    line, element = f.ldmatrix(2, True, "m16n16").offsets()
    assert line.shape == (32, 4, 4)
    for lane, reg, i in itertools.product(range(32), range(4), range(4)):
        assert line[lane, reg, i] == 16 * (reg // 2) + 4 * (lane % 4) + i
        assert element[lane, reg, i] == lane // 4 + 8 * (reg % 2)
    line, element = f.ldmatrix(4, False, "m8n16").offsets()
    for lane, reg, i in itertools.product(range(32), range(4), range(4)):
        assert (line[lane, reg, i], element[lane, reg, i]) == (8 * reg + lane // 4, 4 * (lane % 4) + i)
    line, element = f.stmatrix(4, True, "m16n8").offsets()
    for lane, reg, i in itertools.product(range(32), range(4), range(4)):
        assert line[lane, reg, i] == 8 * reg + 2 * (lane % 4) + i % 2
        assert element[lane, reg, i] == lane // 4 + 8 * (i // 2)


def test_refusals():
    f.wgmma_d(16)
    refused(lambda: f.wgmma_d(12))
    refused(lambda: f.wgmma_d(264))
    refused(lambda: f.wgmma_d(16, 8))
    refused(lambda: f.wgmma_a(4))
    refused(lambda: f.wgmma_metadata(4))
    f.mma_a(16, 16)
    refused(lambda: f.mma_a(32, 16))
    refused(lambda: f.mma_a(16, 16, 8))
    refused(lambda: f.mma_a(16, 5))
    f.mma_b(32, 16)
    refused(lambda: f.mma_b(64, 16))
    refused(lambda: f.mma_b(8, 8))
    refused(lambda: f.mma_b(16, 5))
    refused(lambda: f.mma_d(8))
    refused(lambda: f.mma_metadata(128, 8))
    f.ldmatrix(4)
    refused(lambda: f.ldmatrix(3))
    refused(lambda: f.ldmatrix(1, False, "m16n16"))
    refused(lambda: f.ldmatrix(4, True, "m16n16"))
    refused(lambda: f.ldmatrix(1, True, "m16n8"))
    refused(lambda: f.stmatrix(1, True, "m16n16"))
