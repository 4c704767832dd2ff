"""Launches as values: parameters become bytes in the order and at the places of the kernel's signature."""

import numpy as np
import pytest

from smalti.errors import SmaltiError
from smalti.layout.tensor_map import decode, row_major
from smalti.ptx.module import Function, Module, Variable
from smalti.run.launch import (
    Buffer,
    Launch,
    MapOf,
    Pointer,
    Scalar,
    Scratch,
    Struct,
    kernel_of,
    parameter_block,
    resolve,
)

ONE = {"grid": (1, 1, 1), "block": (32, 1, 1)}


def buffer(name="a", shape=(4, 8), dtype="u8", **more):
    return Buffer(name, dtype, shape, **more)


def test_parameters_become_bytes():
    map_ = row_major("u8", (4, 32), (4, 16))
    params = (
        Scalar("u32", 7),
        Pointer("a", 16),
        Struct(bytes(range(40)), ((8, Pointer("b")), (32, Scalar("s16", -2)))),
        MapOf("a", map_, 16),
        Scratch(100),
        Scratch(),
        Scalar("f32", 1.5),
        Scalar("bf16", -2.0),
    )
    asked = []
    places = {"a": 0x10000, "b": 0x20000}
    out = resolve(params, places.get, lambda size: asked.append(size) or 0x30000)
    assert out[0] == b"\x07\0\0\0"
    assert out[1] == (0x10010).to_bytes(8, "little")
    assert out[2] == bytes(range(8)) + (0x20000).to_bytes(8, "little") + bytes(range(16, 32)) + b"\xfe\xff" + bytes(
        range(34, 40)
    )
    assert decode(out[3]) == map_.at(0x10010)
    assert (out[4], out[5]) == ((0x30000).to_bytes(8, "little"), bytes(8)) and asked == [100]
    assert out[6:] == [b"\0\0\xc0\x3f", b"\0\xc0"]


def test_the_block_of_parameters_is_aligned_as_declared():
    variables = [
        Variable("n", "param", "u16"),
        Variable("p", "param", "u64"),
        Variable("m", "param", "b8", count=(128,), align=64),
        Variable("k", "param", "u32"),
    ]
    pieces = [b"\x01\x02", b"\x03" * 8, b"\x04" * 128, b"\x05" * 4]
    block = parameter_block(variables, pieces)
    assert len(block) == 64 + 128 + 4
    assert block[:2] == pieces[0] and block[8:16] == pieces[1] and block[64:192] == pieces[2]
    assert block[192:] == pieces[3] and not any(block[2:8] + block[16:64])


@pytest.mark.parametrize(
    ("type_", "low", "high"),
    [("u8", 0, 255), ("s8", -128, 127), ("b16", -(1 << 15), (1 << 16) - 1), ("s64", -(1 << 63), (1 << 63) - 1)],
)
def test_scalars_at_their_limits(type_, low, high):
    for value in (low, high):
        size = int(type_[1:]) // 8
        assert Scalar(type_, value).encode() == (value % (1 << 8 * size)).to_bytes(size, "little")
    for value in (low - 1, high + 1, 0.5):
        with pytest.raises(SmaltiError, match="SML0158"):
            Scalar(type_, value).encode()


def test_kernel_and_signature():
    module = Module(
        items=[
            Function("helper", entry=False),
            Function("k", params=[Variable("p", "param", "u64"), Variable("m", "param", "b8", (128,), 64)]),
        ]
    )
    a = {"a": buffer(shape=(4, 32))}
    good = (Pointer("a"), MapOf("a", row_major("u8", (4, 32), (4, 16))))
    assert kernel_of(module, Launch("k", params=good, buffers=a, **ONE)).name == "k"
    for params, entry, code in (
        (good, "helper", "SML0152"),
        (good[:1], "k", "SML0153"),
        (good[::-1], "k", "SML0154"),
        ((good[0], Struct(bytes(64))), "k", "SML0154"),
    ):
        with pytest.raises(SmaltiError, match=code):
            kernel_of(module, Launch(entry, params=params, buffers=a, **ONE))


def test_references_must_stay_inside_their_buffers():
    a = {"a": buffer(shape=(4, 32))}
    whole = row_major("u8", (4, 32), (4, 16))
    Launch("k", params=(MapOf("a", whole), Pointer("a", 128)), buffers=a, **ONE)
    inside = Struct(bytes(256), ((0, MapOf("a", whole, 1)),))
    for bad in (MapOf("a", whole, 1), Pointer("a", 129), Pointer("a", -1), inside):
        with pytest.raises(SmaltiError, match="SML0156"):
            Launch("k", params=(bad,), buffers=a, **ONE)
    with pytest.raises(SmaltiError, match="SML0155"):
        Launch("k", params=(Pointer("z"),), buffers=a, **ONE)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"grid": (0, 1, 1)}, "SML0150"),
        ({"grid": (1, 1, 65536)}, "SML0150"),
        ({"block": (32, 33, 1)}, "SML0150"),
        ({"block": (1, 1, 65)}, "SML0150"),
        ({"grid": (6, 6, 6), "cluster": (3, 3, 2)}, "SML0150"),
        ({"grid": (6, 5, 1), "cluster": (2, 2, 1)}, "SML0151"),
        ({"shared": -1}, "SML0157"),
        ({"shared": 227 * 1024 + 1}, "SML0157"),
    ],
)
def test_shape_of_the_launch(change, code):
    Launch("k", (2**31 - 1, 65535, 65535), (32, 32, 1), shared=227 * 1024)
    Launch("k", (6, 6, 6), (1, 1, 64), cluster=(2, 2, 2))
    with pytest.raises(SmaltiError, match=code):
        Launch("k", **{**ONE, **change})


def test_buffers_with_gaps():
    b = buffer(shape=(3, 2), strides=(5, 1), dtype="u16")
    assert (b.extent, b.nbytes) == (12, 24)
    memory = np.arange(12, dtype=np.uint16).view(np.uint8)
    assert b.array_in(memory).tolist() == [[0, 1], [5, 6], [10, 11]]
    assert buffer(shape=(0, 5), strides=(8, 1)).nbytes == 0
    assert buffer(shape=(3, 5), dtype="e2m1").nbytes == 8
    assert buffer(shape=(8,), dtype="e3m2", dense=True).nbytes == 6
