"""Shared tiles: TMA boxes and descriptors must name the same bytes, for every swizzle, major-ness and element size."""

import itertools

import numpy as np
import pytest

from smalti.errors import SmaltiError
from smalti.layout.descriptors import describe, operand_addresses
from smalti.layout.linear import Layout
from smalti.layout.shared import SharedTile
from smalti.layout.swizzle import SWIZZLES, swizzle_address


def refusal(call, code):
    with pytest.raises(SmaltiError) as caught:
        call()
    assert caught.value.code == code


def fill_by_tma(tile, start):
    """Shared memory after the tile's boxes: (row, column) of each byte, -1 where nothing was written.

    Independent of the layout: lines of a box at the pitch of the span, then the chunk permutation by address (E11).
    """
    memory = np.full((1 << 18, 2), -1)
    step = tile.bits // 8
    for box in tile.boxes():
        for line in range(box.extent[1]):
            for byte in range(box.extent[0] * step):
                linear = start + box.offset + line * tile.span + byte
                at = int(swizzle_address(np.array(linear), tile.swizzle))
                along, across = box.at[0] + byte // step, box.at[1] + line
                memory[at] = (across, along) if tile.major == "K" else (along, across)
    return memory


TILES = [
    SharedTile(64, 64, "bf16", "128B"),
    SharedTile(24, 128, "f16", "128B"),
    SharedTile(40, 32, "f16", "64B"),
    SharedTile(16, 64, "e4m3", "32B"),
    SharedTile(16, 64, "u8", "none"),
    SharedTile(264, 16, "bf16", "32B"),
    SharedTile(64, 16, "tf32", "64B"),
    SharedTile(64, 16, "tf32", "none"),
    SharedTile(64, 32, "bf16", "128B", "MN"),
    SharedTile(128, 16, "bf16", "64B", "MN"),
    SharedTile(64, 48, "f16", "32B", "MN"),
    SharedTile(64, 32, "f16", "none", "MN"),
    SharedTile(16, 16, "e2m3", "128B", padded=True),
]


@pytest.mark.parametrize("tile", TILES, ids=str)
@pytest.mark.parametrize("start", [2048, 4096 + 128])
def test_descriptors_read_what_tma_wrote(tile, start):
    memory = fill_by_tma(tile, start)
    k = min(256 // tile.bits, tile.columns)
    rows = 64 if tile.rows % 64 == 0 else 8
    arch = "sm_100a" if tile.dtype == "e2m3" else "sm_90a"
    for row, column in itertools.product(range(0, tile.rows, rows), range(0, tile.columns, k)):
        d = tile.descriptor(arch, start, row=row, column=column, rows=rows, columns=k)
        addresses = operand_addresses(
            d, major=tile.major, rows=rows, k_bytes=k * tile.bits // 8, element_bits=tile.bits
        )
        want = np.stack(np.meshgrid(row + np.arange(rows), column + np.arange(k), indexing="ij"), axis=-1)
        assert np.array_equal(memory[addresses], want)
        assert d.encode() >> 0 & 0x3FFF == d.start >> 4
    assert (memory[:, 0] >= 0).sum() == tile.rows * tile.columns * tile.bits // 8
    assert tile.size >= tile.rows * tile.columns * tile.bits // 8


def test_worked_tile():
    """The usual Hopper operand: 128 x 64 bf16, 128B: one box, SBO 1024, K steps of 32 bytes."""
    tile = SharedTile(128, 64, "bf16")
    assert tile.boxes() == (((64, 128), (0, 0), 0),)
    assert (tile.size, tile.alignment, tile.span) == (16384, 1024, 128)
    for step in range(4):
        d = tile.descriptor("sm_90a", 4096, row=64, column=16 * step, rows=64, columns=16)
        assert (d.start, d.sbo) == (4096 + 64 * 128 + 32 * step, 1024)
    assert tile.layout(row=9, column=3) == 9 * 128 + 6
    assert tile.swizzled(row=9, column=3) == 9 * 128 + (6 ^ 16)


def test_two_stripes_and_tall_tiles():
    tile = SharedTile(320, 128, "f16")
    assert tile.boxes() == (
        ((64, 256), (0, 0), 0),
        ((64, 64), (0, 256), 256 * 128),
        ((64, 256), (64, 0), 320 * 128),
        ((64, 64), (64, 256), 320 * 128 + 256 * 128),
    )
    tile = SharedTile(128, 64, "f16", major="MN")
    assert tile.boxes() == (((64, 64), (0, 0), 0), ((64, 64), (64, 0), 64 * 128))
    d = tile.descriptor("sm_90a", 0, column=16, rows=128, columns=16)
    assert (d.start, d.lbo, d.sbo) == (2048, 8192, 1024)


def test_b_of_a_sparse_instruction_with_32b():
    """64 bytes of K from two stripes: the LBO of the descriptor is the stripe."""
    tile = SharedTile(16, 64, "e4m3", "32B")
    d = tile.descriptor("sm_90a", 0, rows=16, columns=64)
    assert (d.lbo, d.sbo) == (512, 256)
    # 128B holds them in one span, and a step that leaves the span is no operand
    wide = SharedTile(16, 256, "e4m3", "128B")
    assert wide.descriptor("sm_90a", 0, column=64, rows=16, columns=64).start == 64
    refusal(lambda: wide.descriptor("sm_90a", 0, column=96, rows=16, columns=64), "SML0419")


def test_packed_elements():
    tile = SharedTile(128, 256, "e2m1")
    assert (tile.bits, tile.size) == (4, 128 * 128)
    assert tile.boxes() == (((256, 128), (0, 0), 0),)
    d = tile.descriptor("sm_100a", 1024, column=64, rows=128, columns=64)
    assert (d.start, d.sbo) == (1024 + 32, 1024)
    assert SharedTile(128, 128, "e2m1", padded=True).size == 128 * 128


def test_transposed_tf32_needs_32_byte_atoms():
    tile = SharedTile(64, 16, "tf32", "128B_atom32B", "MN")
    d = tile.descriptor("sm_100a", 0, column=8, rows=64, columns=8)
    assert (d.start, d.lbo, d.sbo) == (8 * 128, 16 * 128, 4 * 128)
    refusal(lambda: SharedTile(64, 16, "tf32", "128B", "MN").descriptor("sm_100a", 0, rows=64, columns=8), "SML0414")
    refusal(lambda: tile.descriptor("sm_90a", 0, rows=64, columns=8), "SML0414")


@pytest.mark.parametrize("mode", SWIZZLES)
def test_swizzled_layout(mode):
    tile = SharedTile(64, 256, "u8", mode)
    linear = tile.layout.offsets()
    assert np.array_equal(tile.swizzled.offsets(), swizzle_address(linear, mode))
    assert len(np.unique(linear)) == 64 * 256 == tile.size
    assert tile.swizzled.invert().then(tile.swizzled).offsets().tolist() == list(range(tile.size))


def test_any_layout_can_be_described():
    padded = Layout(
        {"row": [(8, {"offset": 16}), (4, {"offset": 144})], "column": [(8, {"offset": 2}), (2, {"offset": 4096})]},
        ["offset"],
    )
    d = describe(padded, arch="sm_90a", start=1024, swizzle="none", major="K", element_bits=16, rows=32, k_bytes=32)
    assert (d.start, d.lbo, d.sbo) == (1024, 4096, 144)
    plain = Layout({"row": [(32, {"offset": 48})], "column": [(16, {"offset": 2})]}, ["offset"])
    for mode in ("none", "32B", "64B"):
        refusal(
            lambda mode=mode: describe(
                plain, arch="sm_90a", start=0, swizzle=mode, major="K", element_bits=16, rows=32, k_bytes=32
            ),
            "SML0419",
        )


def test_refusals():
    SharedTile(64, 64, "bf16")
    refusal(lambda: SharedTile(64, 96, "bf16"), "SML0440")
    refusal(lambda: SharedTile(64, 4, "bf16"), "SML0440")
    refusal(lambda: SharedTile(0, 64, "bf16"), "SML0440")
    refusal(lambda: SharedTile(64, 64, "bf16", major="M"), "SML0440")
    refusal(lambda: SharedTile(64, 64, "bf16", "96B"), "SML0412")
    refusal(lambda: SharedTile(64, 64, "bfloat16"), "SML1001")
    mn = SharedTile(128, 16, "bf16", "64B", "MN")
    mn.descriptor("sm_90a", 0, row=32, rows=64, columns=16)
    refusal(lambda: mn.descriptor("sm_90a", 0, row=16, rows=64, columns=16), "SML0419")
    refusal(lambda: mn.descriptor("sm_90a", 8, rows=64, columns=16), "SML0410")
    refusal(lambda: mn.descriptor("sm_90a", 0, row=96, rows=64, columns=16), "SML0405")
    refusal(lambda: SharedTile(64, 32, "u8", "32B", "MN").descriptor("sm_90a", 0, rows=64, columns=32), "SML0414")
