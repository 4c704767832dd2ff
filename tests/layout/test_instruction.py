"""Instruction descriptors of tcgen05, bit by bit, and the shapes of table 39."""

import itertools

import pytest

from smalti.errors import SmaltiError
from smalti.layout.descriptors import InstructionDescriptor, decode_idesc, encode_idesc
from smalti.layout.instruction import mma_k


def refusal(call, code):
    with pytest.raises(SmaltiError) as caught:
        call()
    assert caught.value.code == code


SHAPE = {"m": 128, "n": 200}
N = 25 << 17
CASES = [
    ("f16", {"a_type": "bf16", "b_type": "f16"}, 1 << 4 | 1 << 7 | N | 8 << 24),
    ("f16", {"a_type": "f16", "b_type": "bf16", "d_type": "f16"}, 1 << 10 | N | 8 << 24),
    ("f16", {"a_type": "f16", "b_type": "f16", "negate_a": True}, 1 << 4 | 1 << 13 | N | 8 << 24),
    ("f16", {"a_type": "f16", "b_type": "f16", "negate_b": True}, 1 << 4 | 1 << 14 | N | 8 << 24),
    ("f16", {"a_type": "f16", "b_type": "f16", "transpose_a": True}, 1 << 4 | 1 << 15 | N | 8 << 24),
    ("f16", {"a_type": "f16", "b_type": "f16", "transpose_b": True}, 1 << 4 | 1 << 16 | N | 8 << 24),
    ("f16", {"a_type": "f16", "b_type": "f16", "sparse": True, "selector": 1}, 5 | 1 << 4 | N | 8 << 24),
    ("f16", {"a_type": "f16", "b_type": "f16", "max_shift": 32}, 1 << 4 | N | 8 << 24 | 3 << 30),
    ("tf32", {"a_type": "tf32", "b_type": "tf32"}, 1 << 4 | 2 << 7 | 2 << 10 | N | 8 << 24),
    ("f8f6f4", {"a_type": "e5m2", "b_type": "e2m3"}, 1 << 4 | 1 << 7 | 3 << 10 | N | 8 << 24),
    ("f8f6f4", {"a_type": "e3m2", "b_type": "e2m1"}, 1 << 4 | 4 << 7 | 5 << 10 | N | 8 << 24),
    ("i8", {"a_type": "s8", "b_type": "u8", "saturate": True}, 1 << 3 | 2 << 4 | 1 << 7 | N | 8 << 24),
    ("mxf8f6f4", {"a_type": "e5m2", "b_type": "e2m1"}, 1 << 7 | 5 << 10 | N | 1 << 23 | 1 << 27),
    (
        "mxf8f6f4",
        {"a_type": "e4m3", "b_type": "e4m3", "scale_a_id": 3, "scale_b_id": 1, "sparse": True},
        1 << 2 | 1 << 4 | N | 1 << 23 | 1 << 27 | 3 << 29,
    ),
    ("mxf8f6f4", {"a_type": "e4m3", "b_type": "e4m3", "transpose_b": True}, 1 << 16 | N | 1 << 23 | 1 << 27),
    ("mxf4", {"a_type": "e2m1", "b_type": "e2m1", "scale_b_id": 2}, 2 << 4 | 1 << 7 | 1 << 10 | N | 1 << 23 | 1 << 27),
    ("mxf4", {"a_type": "e2m1", "b_type": "e2m1", "k96": True}, 1 << 7 | 1 << 10 | N | 1 << 23 | 1 << 27 | 1 << 31),
    ("mxf4nvf4", {"a_type": "e2m1", "b_type": "e2m1", "scale_type": "ue4m3"}, 1 << 7 | 1 << 10 | N | 1 << 27),
    (
        "mxf4nvf4",
        {"a_type": "e2m1", "b_type": "e2m1", "negate_b": True},
        1 << 7 | 1 << 10 | 1 << 14 | N | 1 << 23 | 1 << 27,
    ),
]


@pytest.mark.parametrize(("kind", "fields", "bits"), CASES)
def test_bits(kind, fields, bits):
    assert encode_idesc(kind, **SHAPE, **fields) == bits
    found = decode_idesc(kind, bits)
    assert isinstance(found, InstructionDescriptor)
    for name, value in (SHAPE | fields).items():
        assert getattr(found, name) == value
    assert found.encode() == bits


def test_large_m():
    assert encode_idesc("f16", m=256, n=8, a_type="f16", b_type="f16") >> 24 & 31 == 16
    assert encode_idesc("mxf4", m=256, n=8, a_type="e2m1", b_type="e2m1") >> 27 & 3 == 2
    assert encode_idesc("f16", m=64, n=256, a_type="f16", b_type="f16") >> 17 & 63 == 32


@pytest.mark.parametrize("kind", ["tf32", "f16", "f8f6f4", "i8", "mxf8f6f4", "mxf4", "mxf4nvf4"])
def test_every_bit_is_a_field_or_reserved(kind):
    """Flipping any bit gives another descriptor or a refusal, never the same one."""
    types = {"tf32": "tf32", "f16": "f16", "i8": "u8", "f8f6f4": "e4m3", "mxf8f6f4": "e4m3"}
    a = types.get(kind, "e2m1")
    bits = encode_idesc(kind, m=128, n=64, a_type=a, b_type=a)
    base = decode_idesc(kind, bits)
    for bit in range(32):
        try:
            other = decode_idesc(kind, bits ^ 1 << bit)
        except SmaltiError as refused:
            assert refused.code == "SML0422"
            continue
        assert other != base and other.encode() == bits ^ 1 << bit


def test_refusals():
    good = {"m": 128, "n": 64, "a_type": "e4m3", "b_type": "e4m3"}
    encode_idesc("f8f6f4", **good)
    for change in (
        {"a_type": "bf16"},
        {"n": 12},
        {"m": 96 + 8},
        {"n": 264},
        {"d_type": "s32"},
        {"scale_a_id": 1},
        {"saturate": True},
        {"k96": True},
        {"max_shift": 4},
        {"colour": 1},
    ):
        refusal(lambda change=change: encode_idesc("f8f6f4", **good | change), "SML0421")
    refusal(lambda: encode_idesc("fp8", **good), "SML0420")
    refusal(lambda: decode_idesc("fp8", 0), "SML0420")
    refusal(lambda: encode_idesc("i8", m=128, n=64, a_type="s8", b_type="s8", negate_a=True), "SML0421")
    refusal(lambda: encode_idesc("mxf4", m=128, n=64, a_type="e2m1", b_type="e2m1", transpose_b=True), "SML0421")
    refusal(lambda: encode_idesc("mxf4", m=128, n=64, a_type="e2m1", b_type="e2m1", scale_type="ue4m3"), "SML0421")
    refusal(lambda: encode_idesc("mxf8f6f4", **good | {"m": 64}), "SML0421")


def descriptor(kind, m, n, **more):
    a = {"tf32": "tf32", "f16": "f16", "i8": "s8", "f8f6f4": "e4m3", "mxf8f6f4": "e4m3"}.get(kind, "e2m1")
    return InstructionDescriptor(kind, m, n, a, a, **more)


K = {"tf32": 8, "f16": 16, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}


def table_39(kind, group, sparse, ws):
    """M and N as the table prints them."""
    scaled = kind.startswith("mx")
    if ws:
        return ((32, 64, 128), (64, 128) if sparse else (64, 128, 256)) if group == 1 and not scaled else ((), ())
    n = range(8, 257, 8) if group == 1 else range(16, 257, 16)
    if kind == "i8":
        n = (8, 16, 24, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256)
        n = n if group == 1 else range(32, 257, 32)
    if scaled:
        return ((128,) if group == 1 else (256,) if sparse else (128, 256)), n
    return ((64, 128) if group == 1 else (128, 256)), n


@pytest.mark.parametrize("kind", K)
def test_shapes(kind):
    for group, sparse, ws in itertools.product((1, 2), (False, True), (False, True)):
        rows, columns = table_39(kind, group, sparse, ws)
        for m, n in itertools.product((32, 64, 96, 128, 192, 256), range(8, 257, 8)):
            d = descriptor(kind, m, n, sparse=sparse)
            if m in rows and n in columns:
                assert mma_k(d, group, ws) == K[kind] * (2 if sparse else 1)
            else:
                refusal(lambda a=(d, group, ws): mma_k(*a), "SML0423")


def test_transposed_bytes_and_k96():
    for kind in ("f8f6f4", "mxf8f6f4", "i8"):
        for n in (16, 48, 256):
            assert mma_k(descriptor(kind, 128, n, transpose_b=True)) == 32
        refusal(lambda kind=kind: mma_k(descriptor(kind, 128, 24, transpose_b=True)), "SML0423")
        refusal(lambda kind=kind: mma_k(descriptor(kind, 256, 48, transpose_b=True), 2), "SML0423")
        assert mma_k(descriptor(kind, 256, 64, transpose_b=True), 2) == 32
    assert mma_k(descriptor("f16", 128, 24, transpose_b=True)) == 16
    assert mma_k(descriptor("mxf4", 256, 64, k96=True), 2) == 96
    assert mma_k(descriptor("mxf4", 128, 64, k96=True), 1) == 96
    refusal(lambda: mma_k(descriptor("mxf4", 128, 72, k96=True), 1), "SML0423")
    refusal(lambda: mma_k(descriptor("mxf4", 256, 64, k96=True, sparse=True), 2), "SML0423")
