"""Tensor maps: coding, tensormap.replace, sizes; rules at their borders (the entries' examples show each)."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from smalti.errors import SmaltiError
from smalti.layout.tensor_map import SWIZZLES, TYPES, TensorMap, decode, replace_field, row_major


def plain(**changes):
    fields = {"type": "bf16", "size": (256, 64), "stride": (512,), "box": (64, 32), "swizzle": "128B"}
    return TensorMap(**{**fields, **changes})


@st.composite
def maps(draw):
    rank = draw(st.integers(1, 5))
    numbers = lambda low, high, n: tuple(draw(st.integers(low, high)) for _ in range(n))  # noqa: E731
    common = {
        "type": draw(st.sampled_from(list(TYPES))),
        "size": numbers(1, 1 << 32, rank),
        "stride": tuple(16 * s for s in numbers(0, (1 << 36) - 1, rank - 1)),
        "address": draw(st.integers(0, (1 << 64) - 1)),
        "element_stride": numbers(1, 8, rank),
        "interleave": draw(st.sampled_from(("none", "16B", "32B"))),
        "swizzle": draw(st.sampled_from(list(SWIZZLES))),
        "fill": draw(st.sampled_from(("zero", "nan"))),
        "l2_promotion": draw(st.sampled_from(("none", "64B", "128B", "256B"))),
    }
    if rank < 3 or draw(st.booleans()):
        return TensorMap(**common, box=numbers(1, 256, rank))
    mode = draw(st.sampled_from(("im2col", "im2col_w", "im2col_w128")))
    corners = rank - 2 if mode == "im2col" else 1
    return TensorMap(
        **common,
        mode=mode,
        lower=numbers(-(1 << 15), (1 << 15) - 1, corners),
        upper=numbers(-(1 << 15), (1 << 15) - 1, corners),
        channels=draw(st.integers(1, 256)),
        pixels=draw(st.integers(1, 1024)),
    )


@given(maps())
def test_coding_keeps_every_field(m):
    raw = m.encode()
    assert len(raw) == 128
    assert decode(raw) == m


def test_fields_lie_where_foreign_code_shows_them():
    m = TensorMap("bf16", (40, 30, 20), (96, 1 << 37), (8, 7, 6), address=0x7F00_1234_5670, swizzle="64B")
    raw = m.encode()
    word = [int.from_bytes(raw[4 * i : 4 * i + 4], "little") for i in range(32)]
    assert word[0] | word[1] << 32 == 0x7F00_1234_5670
    assert (word[2] >> 4 & 7, word[2] >> 7 & 15, word[2] >> 13 & 3) == (2, 10, 2)
    assert word[3:5] == [96 // 16, (1 << 37) // 16 & 0xFFFF_FFFF]
    assert word[8:11] == [39, 29, 19]
    assert tuple(raw[55:58]) == (7, 6, 5)


def test_a_map_can_be_built_by_replacing_every_field_of_zeros():
    want = TensorMap("f32", (100, 50), (416,), (32, 8), address=0x2000, swizzle="128B_atom32B", element_stride=(1, 2))
    raw = bytes(128)
    steps = [("global_address", 0x2000, 0), ("rank", 1, 0), ("elemtype", 7, 0), ("swizzle_mode", 3, 0)]
    steps += [("swizzle_atomicity", 1, 0), ("fill_mode", 0, 0), ("interleave_layout", 0, 0)]
    steps += [("global_stride", 416, 0)]
    steps += [("global_dim", n, d) for d, n in enumerate(want.size)]
    steps += [("box_dim", n, d) for d, n in enumerate(want.box)]
    steps += [("element_stride", n, d) for d, n in enumerate(want.element_stride)]
    for order in (steps, steps[::-1]):
        raw = bytes(128)
        for field, value, ordinal in order:
            raw = replace_field(raw, field, value, ordinal)
        assert decode(raw) == want


def test_replacing_one_field_changes_no_other():
    m = plain(size=(256, 64, 3), stride=(512, 1 << 39), box=(64, 32, 1), element_stride=(1, 3, 2))
    raw = replace_field(m.encode(), "global_stride", 0xF0_1234_5670, 1)
    assert decode(raw) == plain(**{**_fields(m), "stride": (512, 0xF0_1234_5670)})
    raw = replace_field(m.encode(), "global_dim", 7, 1)
    assert decode(raw) == plain(**{**_fields(m), "size": (256, 7, 3)})


def _fields(m):
    return {n: getattr(m, n) for n in ("type", "size", "stride", "box", "swizzle", "element_stride", "address")}


@pytest.mark.parametrize(
    ("m", "row", "pitch", "total"),
    [
        (plain(), 128, 128, 128 * 32),
        (plain(box=(32, 32)), 64, 128, 64 * 32),  # narrower than the swizzle: the gap is not counted
        (plain(box=(32, 32), swizzle="none"), 64, 64, 64 * 32),
        (plain(element_stride=(2, 3)), 128, 128, 128 * 11),  # dimension 0 has no stride
        (plain(type="b4x16", size=(256, 64), stride=(128,), box=(256, 2)), 128, 128, 256),
        (plain(type="b4x16_p64", size=(256, 64), stride=(128,), box=(128, 2)), 128, 128, 128),  # without the gaps
        (plain(type="b6x16_p32", size=(256, 64), stride=(192,), box=(128, 2)), 128, 128, 192),
    ],
)
def test_bytes_of_a_transfer(m, row, pitch, total):
    m.check()
    assert (m.row_bytes, m.row_pitch, m.transfer_bytes) == (row, pitch, total)


def test_extent_ends_with_the_last_element():
    assert TensorMap("u8", (17, 3), (32,), (16, 1)).extent == 2 * 32 + 17
    assert TensorMap("b4x16", (34, 2), (32,), (32, 1)).extent == 32 + 17


def test_row_major():
    m = row_major("bf16", (300, 1056), (128, 64), swizzle="128B")
    assert m == TensorMap("bf16", (1056, 300), (2112,), (64, 128), swizzle="128B")
    assert row_major("u8", (2, 3, 20), (1, 1, 16), pitch=32).stride == (32, 96)


BORDERS = [
    (plain(box=(64, 256)), plain(box=(64, 257)), "SML0135"),
    (plain(element_stride=(1, 8)), plain(element_stride=(1, 9)), "SML0138"),
    (plain(stride=((1 << 40) - 16,)), plain(stride=(1 << 40,)), "SML0134"),
    (plain(size=(1 << 32, 1)), plain(size=((1 << 32) + 1, 1)), "SML0133"),
    (plain(swizzle="64B", box=(32, 8)), plain(swizzle="64B", box=(40, 8)), "SML0137"),
    (plain(address=1 << 63), plain(address=1 << 64), "SML0132"),
    (plain(fill="nan"), plain(fill="nan", type="u16"), "SML0141"),
]


@pytest.mark.parametrize(("good", "bad", "code"), BORDERS)
def test_rules_at_their_borders(good, bad, code):
    good.check()
    with pytest.raises(SmaltiError) as caught:
        bad.check()
    assert caught.value.code == code


@pytest.mark.parametrize(("rank", "bits"), [(3, 16), (4, 8), (5, 5)])
def test_im2col_corners_by_rank(rank, bits):
    limit = 1 << bits - 1
    size = (64,) + (1 << 17,) * (rank - 2) + (2,)
    strides = tuple(itertools.accumulate((1 << 10,) * (rank - 1), lambda a, b: a * 16))
    image = {"type": "u8", "size": size, "stride": strides, "mode": "im2col", "channels": 64, "pixels": 32}
    TensorMap(**image, lower=(-limit,) * (rank - 2), upper=(limit - 1,) * (rank - 2)).check()
    with pytest.raises(SmaltiError, match="SML0142"):
        TensorMap(**image, lower=(-limit - 1,) * (rank - 2), upper=(0,) * (rank - 2)).check()
