"""Tensor-memory layouts against the formulas of PTX's tables and figures, written out position by position."""

import itertools

import numpy as np
import pytest

from smalti.errors import SmaltiError
from smalti.layout import fragments, tensor
from smalti.layout.descriptors import SmemDescriptor, operand_units


def refusal(call, code="SML0450"):
    with pytest.raises(SmaltiError) as caught:
        call()
    assert caught.value.code == code


# name, M, CTA group, .ws, sparse, N's; (m, n, N) -> cta, lane, column (notes 2b.5)
ACCUMULATORS = [
    ("A", 256, 2, False, (False, True), (16, 48, 256), lambda m, n, N: (m // 128, m % 128, n)),
    (
        "B",
        128,
        2,
        False,
        (False,),
        (16, 48, 240, 256),
        lambda m, n, N: (m // 64, m % 64 + 64 * (n >= N // 2), n % (N // 2)),
    ),
    (
        "C",
        128,
        2,
        False,
        (True,),
        (16, 256),
        lambda m, n, N: (m // 64, m % 16 + 32 * (m % 64 // 16), n),
    ),
    ("D", 128, 1, False, (False, True), (8, 24, 256), lambda m, n, N: (0, m, n)),
    ("D", 128, 1, True, (False, True), (64, 256), lambda m, n, N: (0, m, n)),
    ("E", 64, 1, True, (False,), (64, 256), lambda m, n, N: (0, m + 64 * (n >= N // 2), n % (N // 2))),
    ("F", 64, 1, False, (False, True), (8, 40, 256), lambda m, n, N: (0, m % 16 + 32 * (m // 16), n)),
    ("G", 32, 1, True, (False,), (64, 128), lambda m, n, N: (0, m + 32 * (n // (N // 4)), n % (N // 4))),
]


@pytest.mark.parametrize(("name", "m", "group", "ws", "sparse", "ns", "formula"), ACCUMULATORS)
def test_accumulator(name, m, group, ws, sparse, ns, formula):
    for s, n in itertools.product(sparse, ns):
        assert tensor.accumulator_name(m, group, ws, s) == name
        layout = tensor.accumulator(m, n, group, ws, s)
        cta, lane, column = layout.offsets()
        rows, columns = np.meshgrid(np.arange(m), np.arange(n), indexing="ij")
        for got, want in zip((cta, lane, column), formula(rows, columns, n), strict=True):
            assert np.array_equal(got, np.broadcast_to(want, got.shape))
        # each cell once
        assert len(set(zip(cta.flat, lane.flat, column.flat, strict=True))) == m * n
        assert layout.extents["column"] == {"B": n // 2, "E": n // 2, "G": n // 4}.get(name, n)
        if name in "ABDEG":
            assert layout.invert().invert() == layout
        else:
            refusal(layout.invert, "SML0402")
            assert layout.locate(cta=0, lane=[15, 16, 32], column=0).tolist() == [[15, -1, 16], [0, -1, 0]]


@pytest.mark.parametrize("bits", [4, 8, 16, 32])
def test_a_operand(bits):
    k = 256 // bits
    for m, group, sparse in ((128, 1, False), (64, 1, False), (256, 2, False), (128, 2, True), (128, 2, False)):
        layout = tensor.a_operand(m, k, bits, group, sparse=sparse)
        cta, lane, column, bit = layout.offsets()
        d_cta, d_lane, _ = tensor.accumulator(m, 16, group, sparse=sparse).offsets()
        for row, at in itertools.product(range(m), range(k)):
            assert cta[row, at, 0] == d_cta[row, 0]
            assert lane[row, at, 0] == d_lane[row, 0]
            assert (column[row, at, 0], bit[row, at, 0]) == (at * bits // 32, at * bits % 32)
        assert layout.inputs["replica"] == (2 if (m, group, sparse) == (128, 2, False) else 1)
        if layout.inputs["replica"] == 2:
            assert np.array_equal(lane[..., 1], lane[..., 0] + 64)
            assert np.array_equal(column[..., 1], column[..., 0])


@pytest.mark.parametrize("factors", [1, 2, 4])
def test_scales(factors):
    for rows in (64, 128):
        lane, column, byte = tensor.scale_cells("A", rows, factors)
        assert lane.shape == (rows, factors, 4)
        for m, s, q in itertools.product(range(rows), range(factors), range(4)):
            assert (lane[m, s, q], column[m, s, q], byte[m, s, q]) == (m % 32 + 32 * q, m // 32, s)
    for n in (8, 24, 128, 200, 256):
        lane, column, byte = tensor.scale_cells("B", n, factors)
        for i, s, q in itertools.product(range(n), range(factors), range(4)):
            assert (lane[i, s, q], column[i, s, q], byte[i, s, q]) == (i % 32 + 32 * q, i // 32, s)
    for n in (16, 48, 96, 128, 208, 256):
        lane, column, byte = tensor.scale_cells("B", n, factors, split=True)
        assert lane.shape == (n, factors, 2)
        for i, s, q in itertools.product(range(n), range(factors), range(2)):
            inside = i % (n // 2)
            base = inside % 32 + (64 if i >= n // 2 else 0)
            assert (lane[i, s, q], column[i, s, q], byte[i, s, q]) == (base + 32 * q, inside // 32, s)


def test_scale_atom():
    byte = tensor.scale_atom().offsets()
    for r, s in itertools.product(range(128), range(4)):
        assert byte[r, s] == r % 32 * 16 + r // 32 * 4 + s
    big = tensor.scale_atom(384, 12)
    for r, s in itertools.product(range(0, 384, 7), range(12)):
        tile = r // 128 * 3 + s // 4
        assert big(row=r, factor=s) == tile * 512 + byte[r % 128, s % 4]
    assert big.invert().inputs == {"byte": 384 * 12}


def test_copying_an_atom_gives_the_scales():
    """An atom in shared memory, copied by tcgen05.cp.32x128b.warpx4, is SFA (and SFB of 128 columns)."""
    lane, column, bit = tensor.copy("32x128b", "warpx4").offsets()
    memory = np.full((128, 16), -1)
    atom = tensor.scale_atom().offsets()
    source = {int(atom[r, s]): (r, s) for r, s in itertools.product(range(128), range(4))}
    # the 32 rows of 16 bytes as an unswizzled K-major operand: one core-matrix column, SBO 128
    units = operand_units(SmemDescriptor("sm_100a", 0, 16, 128), major="K", rows=32, k_bytes=16)
    for row, byte, replica in itertools.product(range(32), range(16), range(4)):
        r, s = source[int(units[row, 0]) * 16 + byte]
        at = lane[row, byte, replica], 4 * column[row, byte, replica] + bit[row, byte, replica] // 8
        memory[at] = 4 * r + s
    lanes, columns, bytes_ = tensor.scale_cells("A", 128, 4)
    for r, s, q in itertools.product(range(128), range(4), range(4)):
        assert memory[lanes[r, s, q], 4 * columns[r, s, q] + bytes_[r, s, q]] == 4 * r + s


def test_metadata():
    for m, group in ((128, 1), (256, 2)):
        for bits in (16, 32):
            lane, column, bit = tensor.metadata(m, bits, group).offsets()
            assert lane.shape == (128, 8, 2, 1)
            for r, c, s in itertools.product(range(128), range(8), range(2)):
                want = (r % 8 + 16 * (r // 16) + 8 * (c >= 4), s, 16 * (r // 8 % 2) + 4 * (c % 4))
                assert (lane[r, c, s, 0], column[r, c, s, 0], bit[r, c, s, 0]) == want
        for bits in (4, 8):
            lane, column, bit = tensor.metadata(m, bits, group).offsets()
            assert lane.shape == (128, 16, 1, 1)
            for r, c in itertools.product(range(128), range(16)):
                assert (lane[r, c, 0, 0], column[r, c, 0, 0], bit[r, c, 0, 0]) == (r, c // 8, 4 * (c % 8))


@pytest.mark.parametrize("m", [32, 64, 128])
@pytest.mark.parametrize("bits", [8, 16, 32])
def test_metadata_ws(m, bits):
    full = tensor.metadata(128, bits).offsets()
    got = tensor.metadata(m, bits, ws=True).offsets()
    assert got.shape[-1] == 128 // m
    for q in range(128 // m):
        assert np.array_equal(got[0, ..., q], full[0, :m, ..., 0] + m * q)
        assert np.array_equal(got[1:, ..., q], full[1:, :m, ..., 0])


# shape, registers of x1, (t, r) -> lane, column (notes 2b.10)
MOVES = [
    ("32x32b", 1, 128, lambda t, r: (t, r)),
    ("16x64b", 1, 128, lambda t, r: ((t >> 2) + 8 * (t & 1), 2 * r + (t >> 1 & 1))),
    ("16x128b", 2, 64, lambda t, r: (t // 4 + 8 * (r % 2), 4 * (r // 2) + t % 4)),
    ("16x256b", 4, 32, lambda t, r: (t // 4 + 8 * (r // 2 % 2), 8 * (r // 4) + 2 * (t % 4) + r % 2)),
    ("16x32bx2", 1, 128, lambda t, r: (t % 16, r + 64 * (t // 16))),
]


@pytest.mark.parametrize(("shape", "each", "most", "formula"), MOVES)
def test_load_store(shape, each, most, formula):
    split = 64 if shape == "16x32bx2" else 0
    for num in (1, 2, 8, most):
        lane, column = tensor.load_store(shape, num, split=split).offsets()
        assert lane.shape == (32, each * num, 1)
        packed_lane, packed_column = tensor.load_store(shape, num, True, split).offsets()
        assert packed_lane.shape == (32, each * num, 2)
        for t, r in itertools.product(range(32), range(each * num)):
            assert (lane[t, r, 0], column[t, r, 0]) == formula(t, r)
            for part in (0, 1):
                assert packed_lane[t, r, part] == lane[t, r, 0]
                own = column[t, r, 0] - split * (t // 16)
                assert packed_column[t, r, part] == 2 * own + part + split * (t // 16)
    refusal(lambda: tensor.load_store(shape, 2 * most))


def test_16x256b_is_half_a_warp_of_wgmma_d():
    """The shape exists so that two of them give the wgmma fragment."""
    row, column = fragments.wgmma_d(32).offsets()
    lane, cell = tensor.load_store("16x256b", 4).offsets()
    assert np.array_equal(lane, row[:32]) and np.array_equal(cell, column[:32])


COPIES = [
    ("128x256b", "", 128, 32, 1, lambda r, q: r),
    ("128x128b", "", 128, 16, 1, lambda r, q: r),
    ("4x256b", "", 4, 32, 1, lambda r, q: 32 * r),
    ("64x128b", "warpx2::02_13", 64, 16, 2, lambda r, q: r + 64 * q),
    ("64x128b", "warpx2::01_23", 64, 16, 2, lambda r, q: r % 32 + 64 * (r // 32) + 32 * q),
    ("32x128b", "warpx4", 32, 16, 4, lambda r, q: r + 32 * q),
]


@pytest.mark.parametrize(("shape", "multicast", "rows", "width", "copies", "formula"), COPIES)
def test_copy(shape, multicast, rows, width, copies, formula):
    lane, column, bit = tensor.copy(shape, multicast).offsets()
    assert lane.shape == (rows, width, copies)
    for r, b, q in itertools.product(range(rows), range(width), range(copies)):
        assert (lane[r, b, q], column[r, b, q], bit[r, b, q]) == (formula(r, q), b // 4, 8 * (b % 4))


def test_refusals():
    tensor.accumulator(64, 64, ws=True)
    refusal(lambda: tensor.accumulator(32, 64))
    refusal(lambda: tensor.accumulator(64, 64, 2))
    refusal(lambda: tensor.accumulator(256, 64))
    refusal(lambda: tensor.accumulator(128, 20))
    refusal(lambda: tensor.accumulator(128, 264))
    refusal(lambda: tensor.accumulator(128, 24, 2))
    refusal(lambda: tensor.a_operand(128, 3, 16))
    refusal(lambda: tensor.a_operand(128, 16, 6))
    refusal(lambda: tensor.a_operand(64, 16, 16, ws=True), "SML0451")
    refusal(lambda: tensor.scales_a(96, 1))
    refusal(lambda: tensor.scales_a(128, 3))
    refusal(lambda: tensor.scales_b(24, 1, split=True))
    refusal(lambda: tensor.scale_atom(100, 4))
    refusal(lambda: tensor.metadata(64, 16), "SML0451")
    refusal(lambda: tensor.metadata(128, 16, 2), "SML0451")
    refusal(lambda: tensor.metadata(64, 4, ws=True))
    refusal(lambda: tensor.metadata(128, 64))
    tensor.load_store("16x64b", 8)
    refusal(lambda: tensor.load_store("16x64b", 3))
    refusal(lambda: tensor.load_store("8x32b", 1))
    refusal(lambda: tensor.load_store("16x64b", 8, split=4))
    tensor.copy("64x128b", "warpx2::02_13")
    refusal(lambda: tensor.copy("64x128b"))
    refusal(lambda: tensor.copy("128x256b", "warpx4"))
