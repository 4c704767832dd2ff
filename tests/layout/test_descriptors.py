"""Shared-memory descriptors and swizzles against PTX's tables, its worked values, and explicit address formulas."""

import itertools
import time

import numpy as np
import pytest

from smalti.errors import SmaltiError
from smalti.layout.descriptors import (
    SmemDescriptor,
    check_operand,
    decode_smem,
    encode_smem,
    operand_addresses,
    operand_units,
)
from smalti.layout.shared import SWIZZLES, swizzle_address, swizzle_layout

SPAN = {"none": 16, "32B": 32, "64B": 64, "128B": 128, "128B_atom32B": 128}


def refusal(call, code):
    with pytest.raises(SmaltiError) as caught:
        call()
    assert caught.value.code == code


def swizzled(address, mode, base_offset=0):
    """Notes 2c.3, on the 16-byte chunk index; the phase rule of E10."""
    line, chunk, rest = (address >> 7) - base_offset, address >> 4 & 7, address & ~0x70
    if mode == "32B":
        chunk ^= line & 1
    elif mode == "64B":
        chunk ^= line & 3
    elif mode == "128B":
        chunk ^= line & 7
    elif mode.startswith("128B_atom32B"):
        chunk ^= (line & 3) << 1
    elif mode == "128B_atom64B":
        chunk ^= (line & 1) << 2
    found = rest | chunk << 4
    return found ^ 8 if mode.endswith("flip8B") and line & 1 else found


def address_of(d, major, row, k, bits, sparse_b=False):
    """Byte address of element (row, k): notes 2a.3 spelled out in bytes."""
    span = SPAN[d.swizzle]
    if major == "K":
        byte = k * bits // 8
        if d.swizzle == "none":
            linear = row % 8 * 16 + row // 8 * d.sbo + byte % 16 + byte // 16 * d.lbo
        elif sparse_b and d.swizzle == "32B":
            linear = row % 8 * 32 + row // 8 * d.sbo + byte % 32 + byte // 32 * d.lbo
        else:
            linear = row % 8 * span + row // 8 * d.sbo + byte
    else:
        byte = row * bits // 8
        if d.swizzle == "none":
            linear = byte % 16 + byte // 16 * d.sbo + k % 8 * 16 + k // 8 * d.lbo
        else:
            tall = 4 if d.swizzle == "128B_atom32B" else 8
            linear = byte % span + byte // span * d.lbo + k % tall * span + k // tall * d.sbo
    return swizzled(d.start + linear, d.swizzle, d.base_offset)


@pytest.mark.parametrize("mode", SWIZZLES)
def test_swizzle(mode):
    addresses = np.arange(4096)
    expected = [swizzled(a, mode) for a in range(4096)]
    assert swizzle_address(addresses, mode).tolist() == expected
    layout = swizzle_layout(mode, 4096)
    assert layout.is_linear
    assert layout.offsets().tolist() == expected
    assert sorted(expected) == list(range(4096))
    for b in range(8):
        assert swizzle_address(addresses + 4096, mode, b).tolist() == [swizzled(a + 4096, mode, b) for a in range(4096)]
    period = SWIZZLES[mode].period
    shifted = swizzle_address(addresses + period, mode) - period
    assert shifted.tolist() == expected
    if mode != "none":
        assert (swizzle_address(addresses + period // 2, mode) - period // 2).tolist() != expected


def test_worked_values():
    """PTX ISA 9.7.15.5.1.2.1: element offset as the CuTe layout says, and the encoded LBO and SBO."""

    def cute(shape, stride, index):
        total = 0
        for size, step in zip(shape, stride, strict=True):
            index, at = divmod(index, size)
            total += at * step
        return total

    # name, major, bits, swizzle, LBO, SBO (elements), MN shape, stride, K shape, stride, encoded LBO, SBO
    cases = [
        ("tf32 K none", "K", 32, "none", 64, 32, (8, 2), (4, 32), (4, 4), (1, 64), 16, 8),
        ("tf32 K 32B", "K", 32, "32B", 4, 64, (8, 2), (8, 64), (4, 2), (1, 4), 1, 16),
        ("bf16 MN none", "MN", 16, "none", 128, 64, (8, 1, 2), (1, 8, 64), (8, 2), (8, 128), 16, 8),
        ("bf16 MN 32B", "MN", 16, "32B", 128, 256, (8, 2, 2), (1, 8, 128), (8, 2), (16, 256), 16, 32),
        ("bf16 MN 64B", "MN", 16, "64B", 256, 512, (8, 4, 2), (1, 8, 256), (8, 2), (32, 512), 32, 64),
    ]
    for name, major, bits, mode, lbo, sbo, mn, mn_stride, k, k_stride, encoded_lbo, encoded_sbo in cases:
        size = bits // 8
        descriptor = SmemDescriptor("sm_90a", 4096, lbo * size, sbo * size, 0, mode)
        word = descriptor.encode()
        assert (word >> 16 & 0x3FFF, word >> 32 & 0x3FFF) == (encoded_lbo, encoded_sbo), name
        rows, columns = int(np.prod(mn)), int(np.prod(k))
        got = operand_addresses(descriptor, major=major, rows=rows, k_bytes=columns * size, element_bits=bits)
        for i, j in itertools.product(range(rows), range(columns)):
            linear = 4096 + size * (cute(mn, mn_stride, i) + cute(k, k_stride, j))
            assert got[i, j] == swizzled(linear, mode), name


@pytest.mark.parametrize(
    ("arch", "mode", "code"),
    [
        ("sm_90a", "none", 0),
        ("sm_90a", "128B", 1 << 62),
        ("sm_90a", "64B", 2 << 62),
        ("sm_90a", "32B", 3 << 62),
        ("sm_100a", "none", 1 << 46),
        ("sm_100a", "128B_atom32B", 1 << 61 | 1 << 46),
        ("sm_103a", "128B", 2 << 61 | 1 << 46),
        ("sm_100f", "64B", 4 << 61 | 1 << 46),
        ("sm_100a", "32B", 6 << 61 | 1 << 46),
    ],
)
def test_bits(arch, mode, code):
    base = 0 if mode == "none" else 5
    word = encode_smem(arch, start=0x2F430, lbo=0x1230, sbo=0x3FFF0, base_offset=base, swizzle=mode)
    assert word == code | 0x2F43 | 0x123 << 16 | 0x3FFF << 32 | base << 49
    assert decode_smem(arch, word) == SmemDescriptor(arch, 0x2F430, 0x1230, 0x3FFF0, base, mode)
    # the rank of a CTA in its cluster sits in bits 24.. and is dropped
    assert encode_smem(arch, 3 << 24 | 0x2F430, 0x1230, 0x3FFF0, base, mode) == word
    for other in (word ^ 1, word ^ 1 << 16, word ^ 1 << 33):
        assert decode_smem(arch, other) != decode_smem(arch, word)


def test_ignored_and_constant_bits():
    word = encode_smem("sm_90a", 1024, 16, 1024, swizzle="128B")
    for bit in (14, 15, 30, 31, 46, 47, 48, *range(52, 62)):
        assert decode_smem("sm_90a", word | 1 << bit) == decode_smem("sm_90a", word), bit
    word = encode_smem("sm_100a", 1024, 16, 1024, swizzle="128B")
    for bit in (14, 15, 30, 31):
        assert decode_smem("sm_100a", word | 1 << bit) == decode_smem("sm_100a", word), bit
    for bit in (46, 47, 48, *range(53, 61)):
        refusal(lambda bit=bit: decode_smem("sm_100a", word ^ 1 << bit), "SML0416")
    for code in (3, 5, 7):
        refusal(lambda code=code: decode_smem("sm_100a", 1 << 46 | code << 61), "SML0416")


K_MAJOR = [
    ("none", 256, 128),
    ("none", 4096, 144),
    ("32B", 16, 256),
    ("64B", 16, 512),
    ("128B", 16, 1024),
    ("128B", 0, 2064),
]


@pytest.mark.parametrize(("mode", "lbo", "sbo"), K_MAJOR)
@pytest.mark.parametrize("bits", [8, 16, 32])
def test_k_major(mode, lbo, sbo, bits):
    for start, base in itertools.product((0, 32, 96, 1024, 4096 + 112, 0x38000), (0, 3, 7)):
        if mode == "none" and base:
            continue
        d = SmemDescriptor("sm_90a", start, lbo, sbo, base, mode)
        got = operand_addresses(d, major="K", rows=24, k_bytes=32, element_bits=bits)
        assert got.shape == (24, 256 // bits)
        for row, k in itertools.product(range(24), range(256 // bits)):
            assert got[row, k] == address_of(d, "K", row, k, bits)
        units = operand_units(d, major="K", rows=24, k_bytes=32, element_bits=bits)
        assert np.array_equal(units, got[:, :: 128 // bits] >> 4)


MN_MAJOR = [
    ("none", 16, 16, 256, 128),
    ("32B", 16, 16, 512, 256),
    ("64B", 16, 16, 4096, 512),
    ("128B", 16, 16, 2048, 1024),
    ("128B", 8, 32, 4096, 1024),
    ("32B", 8, 32, 1024, 256),
    ("128B_atom32B", 32, 8, 1024, 512),
]


@pytest.mark.parametrize(("mode", "bits", "k", "lbo", "sbo"), MN_MAJOR)
@pytest.mark.parametrize("rows", [16, 64, 96])
def test_mn_major(mode, bits, k, lbo, sbo, rows):
    for start in (0, 64, 5 * 1024 + 16):
        d = SmemDescriptor("sm_100a", start, lbo, sbo, 0, mode)
        got = operand_addresses(d, major="MN", rows=rows, k_bytes=k * bits // 8, element_bits=bits)
        assert got.shape == (rows, k)
        for row, j in itertools.product(range(rows), range(k)):
            assert got[row, j] == address_of(d, "MN", row, j, bits)
        units = operand_units(d, major="MN", rows=rows, k_bytes=k * bits // 8, element_bits=bits)
        assert units.shape == (k, rows * bits // 128)
        assert np.array_equal(units, got.T[:, :: 128 // bits] >> 4)


@pytest.mark.parametrize("mode", ["none", "32B", "64B", "128B"])
def test_b_of_sparse(mode):
    """64 bytes of K: LBO is used without swizzle and, measured, with 32B."""
    d = SmemDescriptor("sm_90a", 2048 + 256, 8192, 1024, 0, mode)
    got = operand_addresses(d, major="K", rows=16, k_bytes=64, element_bits=8)
    for row, k in itertools.product(range(16), range(64)):
        assert got[row, k] == address_of(d, "K", row, k, 8, sparse_b=True)
    moved = d._replace(lbo=4096)
    same = np.array_equal(got, operand_addresses(moved, major="K", rows=16, k_bytes=64, element_bits=8))
    assert same == (mode in ("64B", "128B"))


def test_packed_elements_and_no_wrap():
    d = SmemDescriptor("sm_100a", 0x3FC00, 16, 1024, 0, "128B")
    got = operand_addresses(d, major="K", rows=16, k_bytes=32, element_bits=4)
    assert got.shape == (16, 32)
    assert got[8, 0] == 0x40000  # not 0: sums do not wrap at 2**18
    assert got[0, 1] - got[0, 0] == 1


def test_gather_by_units():
    """The documented way: one fancy index on a view of 16-byte items."""
    memory = np.arange(1 << 15, dtype=np.uint16).view(np.uint8)
    d = SmemDescriptor("sm_90a", 2048, 16, 1024, 0, "128B")
    units = operand_units(d, major="K", rows=64, k_bytes=32)
    got = memory.view("V16")[units].view(np.uint16)
    assert got.shape == (64, 16)
    assert np.array_equal(got, operand_addresses(d, major="K", rows=64, k_bytes=32) // 2)


def test_repeated_calls_are_cheap():
    d = SmemDescriptor("sm_90a", 0, 16, 1024, 0, "128B")
    operand_units(d, major="K", rows=256, k_bytes=32)
    fastest = min(_timed(d.advance(1024 * i)) for i in range(100))
    assert fastest < 100e-6  # it is about 3 us; the bound only catches a lost cache


def _timed(d):
    begin = time.perf_counter()
    operand_units(d, major="K", rows=256, k_bytes=32)
    return time.perf_counter() - begin


LEGAL_WGMMA = {("K", b, m) for b in (8, 16, 32) for m in ("none", "32B", "64B", "128B")} | {
    ("MN", 16, m) for m in ("none", "32B", "64B", "128B")
}
LEGAL_TCGEN05 = (
    {("K", b, m) for b in (4, 6, 8, 16, 32) for m in SPAN}
    | {("MN", b, m) for b in (8, 16) for m in ("none", "32B", "64B", "128B")}
    | {("MN", 32, "128B_atom32B")}
)


@pytest.mark.parametrize(("instruction", "legal"), [("wgmma", LEGAL_WGMMA), ("tcgen05", LEGAL_TCGEN05)])
def test_operand_combinations(instruction, legal):
    sizes = (8, 16, 32) if instruction == "wgmma" else (4, 6, 8, 16, 32)
    for major, bits, mode in itertools.product(("K", "MN"), sizes, SPAN):
        if (major, bits, mode) in legal:
            check_operand(instruction, mode, major, bits)
        else:
            refusal(lambda a=(instruction, mode, major, bits): check_operand(*a), "SML0414")
    refusal(lambda: check_operand(instruction, "128B", "M", 16), "SML0414")


def test_refusals():
    good = {"arch": "sm_90a", "start": 1024, "lbo": 16, "sbo": 1024, "base_offset": 0, "swizzle": "128B"}
    encode_smem(**good)
    for change, code in (
        ({"start": 1032}, "SML0410"),
        ({"start": -16}, "SML0410"),
        ({"lbo": 24}, "SML0411"),
        ({"sbo": 1 << 18}, "SML0411"),
        ({"sbo": -1024}, "SML0411"),
        ({"swizzle": "128B_atom32B"}, "SML0412"),
        ({"swizzle": "96B"}, "SML0412"),
        ({"base_offset": 8}, "SML0413"),
        ({"base_offset": 1, "swizzle": "none"}, "SML0413"),
        ({"absolute": True}, "SML0417"),
        ({"arch": "sm_80"}, "SML0418"),
        ({"arch": "sm_120a"}, "SML0418"),
    ):
        refusal(lambda change=change: encode_smem(**good | change), code)
    d = decode_smem("sm_90a", encode_smem(**good))
    operand_units(d, major="K", rows=16, k_bytes=32)
    refusal(lambda: operand_units(d, major="K", rows=12, k_bytes=32), "SML0415")
    refusal(lambda: operand_units(d, major="K", rows=16, k_bytes=24), "SML0415")
    refusal(lambda: operand_units(d, major="MN", rows=12, k_bytes=32), "SML0415")
    absolute = SmemDescriptor("sm_103a", 0, 1024, 1024, 0, "128B", True)
    assert decode_smem("sm_103a", absolute.encode()) == absolute
    refusal(lambda: operand_units(absolute, major="K", rows=16, k_bytes=48), "SML0417")
    refusal(lambda: operand_addresses(absolute, major="K", rows=16, k_bytes=48), "SML0417")
    refusal(lambda: swizzle_address(np.arange(4), "96B"), "SML0412")
