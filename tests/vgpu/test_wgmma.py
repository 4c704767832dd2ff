"""wgmma: every type, swizzle, major-ness and size against plain integer products; sparse; order, hazards, refusals.

Addresses, fragments and metadata are placed by formulas written from PTX 9.7.15.5-6 here, not by the layout package.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from smalti.errors import SmaltiError
from smalti.ptx.module import Guard
from smalti.vgpu.checks import Checks
from tests.vgpu.asm import BASE, Kernel

RNG = np.random.default_rng(2024)
A_AT, B_AT, SHARED = 0, 16384, 16384 + 65536
SPAN = {"none": 16, "32B": 32, "64B": 64, "128B": 128}
CODE = {"none": 0, "128B": 1, "64B": 2, "32B": 3}
# type: NumPy type, bits, K of a dense instruction
TYPES: dict[str, tuple[Any, int, int]] = {
    "f16": (np.float16, 16, 16),
    "bf16": (ml_dtypes.bfloat16, 16, 16),
    "tf32": (np.float32, 32, 8),
    "e4m3": (ml_dtypes.float8_e4m3fn, 8, 32),
    "e5m2": (ml_dtypes.float8_e5m2, 8, 32),
    "s8": (np.int8, 8, 32),
    "u8": (np.uint8, 8, 32),
}


def codes(values: np.ndarray, type_: str) -> np.ndarray:
    dtype, bits, _ = TYPES[type_]
    return np.ascontiguousarray(values.astype(dtype)).view(f"uint{bits}")


def linear(mn: int, k: int, bits: int, major: str, swizzle: str, lbo: int, sbo: int) -> int:
    """Byte offset of an element before the swizzle."""
    size, span = bits // 8, SPAN[swizzle]
    if major == "K":
        byte = k * size
        if swizzle == "none":
            return mn // 8 * sbo + mn % 8 * 16 + byte // 16 * lbo + byte % 16
        if swizzle == "32B" and byte >= 32:  # sparse B (E10)
            byte += lbo - 32
        return mn // 8 * sbo + mn % 8 * span + byte
    t = 16 // size
    if swizzle == "none":
        return mn % t * size + mn // t * sbo + k % 8 * 16 + k // 8 * lbo
    wide = span // 16
    return mn % t * size + mn // t % wide * 16 + mn // (t * wide) * lbo + k % 8 * span + k // 8 * sbo


def swizzled(address: int, swizzle: str) -> int:
    mask = {"none": 0, "32B": 1, "64B": 3, "128B": 7}[swizzle]
    return address ^ ((address >> 7 & mask) << 4)


def strides(rows: int, k: int, bits: int, major: str, swizzle: str) -> tuple[int, int]:
    """LBO and SBO that make the operand dense, with a gap so that a wrong one is seen."""
    span = SPAN[swizzle]
    if major == "K":
        if swizzle == "none":
            return rows * 16 + 128, 128
        return (rows * 32 if swizzle == "32B" else 16), 8 * span
    if swizzle == "none":
        return 128, 256
    stripes_bytes = 8 * span
    return (k // 8) * stripes_bytes, stripes_bytes


def image(values: np.ndarray, at: int, bits: int, major: str, swizzle: str, shift: int = 0) -> tuple[np.ndarray, int]:
    """Shared memory (poisoned elsewhere) that holds an operand [rows, K] from `at` on, and its descriptor."""
    rows, k = values.shape
    out = np.full(SHARED, 0x7F, np.uint8)
    lbo, sbo = strides(rows, k, bits, major, swizzle)
    size = bits // 8
    raw = values.view(np.uint8).reshape(rows, k, size)
    for r in range(rows):
        for c in range(k):
            where = swizzled(BASE + at + shift + linear(r, c, bits, major, swizzle, lbo, sbo), swizzle) - BASE
            out[where : where + size] = raw[r, c]
    start = BASE + at + shift
    return out, start >> 4 | (lbo >> 4) << 16 | (sbo >> 4) << 32 | CODE[swizzle] << 62


def d_place(n: int, bits: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Register, thread, half of each element of D [64, n]."""
    row, column = np.meshgrid(np.arange(64), np.arange(n), indexing="ij")
    thread = 32 * (row // 16) + 4 * (row % 8) + column % 8 // 2
    h, i, j = row % 16 // 8, column % 2, column // 8
    return (4 * j + 2 * h + i, thread, 0 * i) if bits == 32 else (2 * j + h, thread, i)


def a_registers(values: np.ndarray, bits: int) -> np.ndarray:
    """Registers [4, 128] that hold A [64, K]."""
    each = 32 // bits
    row, k = np.meshgrid(np.arange(64), np.arange(values.shape[1]), indexing="ij")
    thread = 32 * (row // 16) + 4 * (row % 8) + k // each % 4
    register = row % 16 // 8 + 2 * (k // (4 * each))
    out = np.zeros((4, 128, each), values.dtype)
    out[register, thread, k % each] = values
    return out.view(np.uint32).reshape(4, 128)


class Case:
    """One wgmma, or several chained ones; everything else is around it."""

    def __init__(self, atype: str, btype: str, dtype: str, n: int, *, sparse: bool = False) -> None:
        self.atype, self.btype, self.dtype, self.n, self.sparse = atype, btype, dtype, n, sparse
        self.bits, self.k = TYPES[atype][1], TYPES[atype][2] * (2 if sparse else 1)
        self.integer = dtype == "s32"
        self.d_bits = 16 if dtype == "f16" else 32
        self.registers = n // 4 if dtype == "f16" else n // 2

    def values(self, rows: int, k: int, type_: str) -> np.ndarray:
        low = 0 if type_ == "u8" else -3
        return RNG.integers(low, 4, (rows, k))

    def opcode(self, saturate: bool = False) -> str:
        sp, sat = ".sp" * self.sparse, ".satfinite" * saturate
        return f"wgmma.mma_async{sp}.sync.aligned.m64n{self.n}k{self.k}{sat}.{self.dtype}.{self.atype}.{self.btype}"

    def tail(
        self, registers: bool, scale: Any = 1, signs: tuple[int, int] = (1, 1), trans: tuple[int, int] = (0, 0)
    ) -> list[Any]:
        out: list[Any] = [scale]
        if not self.integer:
            out += list(signs)
        if self.atype in ("f16", "bf16"):
            out += [trans[1]] if registers else list(trans)
        return out

    def start(self, c: np.ndarray) -> np.ndarray:
        """The accumulator registers that hold C."""
        words = c.astype(np.int32 if self.integer else np.float16 if self.d_bits == 16 else np.float32)
        r, t, p = d_place(self.n, self.d_bits)
        out = np.zeros((self.registers, 128, 32 // self.d_bits), f"uint{self.d_bits}")
        out[r, t, p] = words.view(out.dtype)
        return out.view(np.uint32).reshape(self.registers, 128)

    def result(self, words: np.ndarray) -> np.ndarray:
        r, t, p = d_place(self.n, self.d_bits)
        parts = words.reshape(self.registers, 128, 1).view(f"uint{self.d_bits}")
        dtype = np.int32 if self.integer else np.float16 if self.d_bits == 16 else np.float32
        return np.ascontiguousarray(parts[r, t, p]).view(dtype).astype(np.int64)


def kernel(case: Case, shared: np.ndarray, c: np.ndarray) -> tuple[Kernel, list[Any], Any]:
    """Shared memory filled, accumulators loaded, wgmma.fence done: the kernel, D's registers, the output."""
    k = Kernel(128, shared=SHARED)
    source = k.buffer("shared", shared)
    begin = k.buffer("c", case.start(c))
    out = k.buffer("d", np.zeros((case.registers, 128), np.uint32))
    mine, theirs = k.value("mad.lo.u32", k.tid, 16, k.base), k.element(source, k.tid, 16)
    for i in range(0, SHARED, 2048):
        words = k.regs("b32", 4)
        k.emit("ld.global.v4.b32", words, k.b.address(theirs.base, i))
        k.emit("st.shared.v4.b32", k.at(i, mine), words)
    type_ = {"f32": "f32", "s32": "s32", "f16": "b32"}[case.dtype]
    d = k.regs(type_, case.registers)
    address = k.element(begin, k.tid, 4)
    for i, r in enumerate(d):
        k.emit("ld.global.b32", r, k.b.address(address.base, 512 * i))
    k.emit("fence.proxy.async")
    k.sync()
    k.emit("wgmma.fence.sync.aligned")
    return k, d, out


def finish(k: Kernel, d: list[Any], out: Any, commit: bool = True, wait: bool = True) -> None:
    if commit:
        k.emit("wgmma.commit_group.sync.aligned")
    if wait:
        k.emit("wgmma.wait_group.sync.aligned", 0)
    for i, r in enumerate(d):
        k.emit("st.global.b32", k.b.address(k.element(out, k.tid, 4).base, 512 * i), r)


def descriptor(k: Kernel, bits: int) -> Any:
    return k.value("mov.b64", bits - (1 << 64) if bits >> 63 else bits)


def product(
    case: Case,
    *,
    swizzle: tuple[str, str] = ("128B", "128B"),
    major: tuple[str, str] = ("K", "K"),
    registers: bool = False,
    signs: tuple[int, int] = (1, 1),
    accumulate: bool = True,
    shift: int = 0,
    seed: int | None = None,
    early: bool = False,
) -> None:
    """D = ±A · ±Bᵀ + C with random small integers, compared with NumPy's."""
    a, b = case.values(64, case.k, case.atype), case.values(case.n, case.k, case.btype)
    c = np.arange(64 * case.n).reshape(64, case.n) % 17 - 8
    left, da = image(codes(a, case.atype), A_AT, case.bits, major[0], swizzle[0], shift)
    right, db = image(codes(b, case.btype), B_AT, case.bits, major[1], swizzle[1], shift)
    left[B_AT:] = right[B_AT:]
    k, d, out = kernel(case, left, c)
    trans = (int(major[0] == "MN"), int(major[1] == "MN"))
    first: Any = descriptor(k, da)
    if registers:
        words = k.buffer("a", a_registers(codes(a, case.atype), case.bits))
        first = k.regs("b32", 4)
        address = k.element(words, k.tid, 4)
        for i, r in enumerate(first):
            k.emit("ld.global.b32", r, k.b.address(address.base, 512 * i))
        k.emit("wgmma.fence.sync.aligned")
    on = k.reg("pred")
    k.emit("setp.eq.u32", on, int(accumulate), 1)
    k.emit(case.opcode(), d, first, descriptor(k, db), *case.tail(registers, on, signs, trans))
    finish(k, d, out)
    got = case.result(k.run(seed=seed, early=early)["d"])
    np.testing.assert_array_equal(got, signs[0] * signs[1] * (a @ b.T) + c * accumulate)


PAIRS = [
    ("f16", "f16", "f32"),
    ("f16", "f16", "f16"),
    ("bf16", "bf16", "f32"),
    ("tf32", "tf32", "f32"),
    *((a, b, d) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2") for d in ("f32", "f16")),
    *((a, b, "s32") for a in ("s8", "u8") for b in ("s8", "u8")),
]


@pytest.mark.parametrize("registers", [False, True])
@pytest.mark.parametrize("types", PAIRS, ids="-".join)
def test_types(types: tuple[str, str, str], registers: bool) -> None:
    product(Case(*types, 24), registers=registers)


@pytest.mark.parametrize("swizzle", list(SPAN))
@pytest.mark.parametrize("type_,dtype", [("bf16", "f32"), ("tf32", "f32"), ("s8", "s32"), ("f16", "f16")])
def test_k_major_swizzles(type_: str, dtype: str, swizzle: str) -> None:
    product(Case(type_, type_, dtype, 32), swizzle=(swizzle, swizzle))


@pytest.mark.parametrize("swizzle", list(SPAN))
@pytest.mark.parametrize("major", [("MN", "K"), ("K", "MN"), ("MN", "MN")])
def test_mn_major(major: tuple[str, str], swizzle: str) -> None:
    """Also with an N of several stripes."""
    product(Case("bf16", "bf16", "f32", 136), swizzle=(swizzle, swizzle), major=major)
    product(Case("f16", "f16", "f16", 8), swizzle=("64B", swizzle), major=major)


@pytest.mark.parametrize("n", [8, 16, 40, 96, 200, 256])
def test_sizes(n: int) -> None:
    product(Case("bf16", "bf16", "f32", n))
    product(Case("f16", "f16", "f16", n), registers=True)


@pytest.mark.parametrize("swizzle,shift", [("128B", 32), ("128B", 96), ("64B", 32), ("128B", 1024 + 64)])
def test_a_descriptor_may_start_inside_an_atom(swizzle: str, shift: int) -> None:
    """The K loop advances the start address by 32 bytes with base offset 0 (E10: the XOR is on the address)."""
    product(Case("bf16", "bf16", "f32", 16), swizzle=(swizzle, swizzle), shift=shift)


def test_base_offset_moves_the_phase() -> None:
    """Pattern that starts 256 bytes behind a 1024-byte boundary: base offset 2 (E10)."""
    case = Case("bf16", "bf16", "f32", 8)
    a, b = case.values(64, 16, "bf16"), case.values(8, 16, "bf16")
    c = np.zeros((64, 8), np.int64)
    out = np.full(SHARED, 0x7F, np.uint8)
    raw = codes(a, "bf16").view(np.uint8).reshape(64, 16, 2)
    for r in range(64):
        for kk in range(16):
            address = BASE + 256 + r * 128 + 2 * kk
            address ^= ((address >> 7) - 2 & 7) << 4
            out[address - BASE : address - BASE + 2] = raw[r, kk]
    right, db = image(codes(b, "bf16"), B_AT, 16, "K", "128B")
    out[B_AT:] = right[B_AT:]
    k, d, target = kernel(case, out, c)
    da = BASE + 256 >> 4 | 1 << 16 | 64 << 32 | 2 << 49 | 1 << 62
    k.emit(case.opcode(), d, descriptor(k, da), descriptor(k, db), *case.tail(False))
    finish(k, d, target)
    np.testing.assert_array_equal(case.result(k.run()["d"]), a @ b.T)


@pytest.mark.parametrize("signs", [(-1, 1), (1, -1), (-1, -1)])
def test_signs(signs: tuple[int, int]) -> None:
    product(Case("bf16", "bf16", "f32", 16), signs=signs)
    product(Case("e4m3", "e5m2", "f16", 16), signs=signs, registers=True)


def test_scale_d_false_ignores_the_accumulator() -> None:
    product(Case("bf16", "bf16", "f32", 16), accumulate=False)
    product(Case("f16", "f16", "f16", 16), accumulate=False)
    product(Case("u8", "s8", "s32", 16), accumulate=False)


def test_saturation() -> None:
    case = Case("s8", "s8", "s32", 8)
    a, b = np.full((64, 32), 100), np.full((8, 32), 100)
    for saturate in (False, True):
        c = np.full((64, 8), 2**31 - 1000)
        left, da = image(codes(a, "s8"), A_AT, 8, "K", "32B")
        right, db = image(codes(b, "s8"), B_AT, 8, "K", "32B")
        left[B_AT:] = right[B_AT:]
        k, d, out = kernel(case, left, c)
        k.emit(case.opcode(saturate), d, descriptor(k, da), descriptor(k, db), 1)
        finish(k, d, out)
        got = case.result(k.run()["d"])
        want = 2**31 - 1 if saturate else 2**31 - 1000 + 320000 - 2**32
        assert (got == want).all()


@pytest.mark.parametrize("registers", [False, True])
def test_b1(registers: bool) -> None:
    """popcount of and over 256 bits."""
    a, b = RNG.integers(0, 2, (64, 256)), RNG.integers(0, 2, (16, 256))
    case = Case("u8", "u8", "s32", 16)
    pa, pb = (np.packbits(x.astype(np.uint8), axis=1, bitorder="little") for x in (a, b))
    left, da = image(pa, A_AT, 8, "K", "128B")
    right, db = image(pb, B_AT, 8, "K", "128B")
    left[B_AT:] = right[B_AT:]
    c = np.arange(64 * 16).reshape(64, 16)
    k, d, out = kernel(case, left, c)
    first: Any = descriptor(k, da)
    if registers:  # 32 consecutive k a register
        words = k.buffer("a", a_registers(pa.view(np.uint32), 32))
        first = [k.value("ld.global.b32", k.b.address(k.element(words, k.tid, 4).base, 512 * i)) for i in range(4)]
        k.emit("wgmma.fence.sync.aligned")
    k.emit("wgmma.mma_async.sync.aligned.m64n16k256.s32.b1.b1.and.popc", d, first, descriptor(k, db), 1)
    finish(k, d, out)
    np.testing.assert_array_equal(case.result(k.run()["d"]), a @ b.T + c)


def metadata(meta: np.ndarray, bits: int, selector: int) -> np.ndarray:
    """The metadata register of 128 threads from codes [64, chunks] (notes 2a.5); other threads hold garbage."""
    out = RNG.integers(0, 1 << 32, 128, dtype=np.uint32)
    for row in range(64):
        for chunk in range(meta.shape[1]):
            if bits == 8:
                thread = 32 * (row // 16) + 4 * (row % 8) + row % 16 // 8 + 2 * (chunk // 8)
                bit = 4 * (chunk % 8)
            else:
                thread = 32 * (row // 16) + 4 * (row % 8) + 2 * selector + chunk // 4
                bit = 16 * (row % 16 // 8) + 4 * (chunk % 4)
            out[thread] = int(out[thread]) & ~(15 << bit) | int(meta[row, chunk]) << bit
    return out


@pytest.mark.parametrize("registers", [False, True])
@pytest.mark.parametrize("selector", [0, 1])
@pytest.mark.parametrize(
    "types",
    [("bf16", "bf16", "f32"), ("tf32", "tf32", "f32"), ("s8", "u8", "s32"), ("e5m2", "e4m3", "f16")],
    ids="-".join,
)
@pytest.mark.parametrize("swizzle", ["128B", "32B"])
def test_sparse(types: tuple[str, str, str], selector: int, registers: bool, swizzle: str) -> None:
    case = Case(*types, 16, sparse=True)
    if case.bits == 8 and selector:
        selector = 0
    pairs = [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)]
    tf32 = types[0] == "tf32"
    chunk = 2 if tf32 else 4
    chunks = case.k // chunk
    a = case.values(64, case.k // 2, types[0])
    b = case.values(16, case.k, types[1])
    full, meta = np.zeros((64, case.k), np.int64), np.zeros((64, chunks), np.uint8)
    for r in range(64):
        for q in range(chunks):
            if tf32:
                keep = int(RNG.integers(2))
                meta[r, q] = 0b1110 if keep else 0b0100
                full[r, 2 * q + keep] = a[r, q]
            else:
                i, j = pairs[RNG.integers(6)]
                meta[r, q] = i | j << 2
                full[r, 4 * q + i], full[r, 4 * q + j] = a[r, 2 * q], a[r, 2 * q + 1]
    c = np.arange(64 * 16).reshape(64, 16) % 11
    left, da = image(codes(a, types[0]), A_AT, case.bits, "K", swizzle)
    right, db = image(codes(b, types[1]), B_AT, case.bits, "K", swizzle)
    left[B_AT:] = right[B_AT:]
    k, d, out = kernel(case, left, c)
    words = k.buffer("meta", metadata(meta, case.bits, selector))
    m = k.value("ld.global.b32", k.element(words, k.tid, 4))
    first: Any = descriptor(k, da)
    if registers:
        source = k.buffer("a", a_registers(codes(a, types[0]), case.bits))
        first = [k.value("ld.global.b32", k.b.address(k.element(source, k.tid, 4).base, 512 * i)) for i in range(4)]
    k.emit("wgmma.fence.sync.aligned")
    k.emit(case.opcode(), d, first, descriptor(k, db), m, selector, *case.tail(registers))
    finish(k, d, out)
    np.testing.assert_array_equal(case.result(k.run()["d"]), full @ b.T + c)


# -- order and time --------------------------------------------------------------------------------------


def chain(
    groups: int, newest: int, *, seed: int | None = None, early: bool = False, checks: bool = False
) -> np.ndarray:
    """`groups` groups of one wgmma each, all into its own accumulator; what is seen after wait_group `newest`."""
    case = Case("bf16", "bf16", "f32", 8)
    left, da = image(codes(np.ones((64, 16)), "bf16"), A_AT, 16, "K", "32B")
    right, db = image(codes(np.ones((8, 16)), "bf16"), B_AT, 16, "K", "32B")
    left[B_AT:] = right[B_AT:]
    k, *_ = kernel(case, left, np.zeros((64, 8)))
    out = k.buffer("seen", np.zeros((groups, 128), np.float32))
    first, second = descriptor(k, da), descriptor(k, db)
    accumulators = [k.regs("f32", 4) for _ in range(groups)]
    for acc in accumulators:
        for r in acc:
            k.emit("mov.f32", r, 100.0)
    k.emit("wgmma.fence.sync.aligned")
    for acc in accumulators:
        k.emit(case.opcode(), acc, first, second, *case.tail(False))
        k.emit("wgmma.commit_group.sync.aligned")
    k.emit("wgmma.wait_group.sync.aligned", newest)
    for _ in range(12 if early else 0):
        k.value("mov.b32", 0)
    for i, acc in enumerate(accumulators):
        k.put(out, acc[0], i)
    k.emit("wgmma.wait_group.sync.aligned", 0)
    return k.run(seed=seed, early=early, checks=checks)["seen"]


def test_groups_complete_in_order_and_as_late_as_allowed() -> None:
    got = chain(4, 2)
    assert got[:2].tolist() == [[116.0] * 128] * 2 and got[2:].tolist() == [[100.0] * 128] * 2
    assert (chain(4, 2, early=True) == 116).all()
    assert (chain(4, 0) == 116).all()


def test_reading_an_accumulator_in_flight_is_reported() -> None:
    for newest, code in ((1, "SML0932"), (0, "")):
        if code:
            with pytest.raises(SmaltiError, match=code):
                chain(2, newest, checks=True)
        else:
            assert (chain(2, newest, checks=True) == 116).all()


@pytest.mark.parametrize("missing", ["", "commit", "wait"])
def test_missing_commit_or_wait(missing: str) -> None:
    case = Case("bf16", "bf16", "f32", 8)
    left, da = image(codes(np.ones((64, 16)), "bf16"), A_AT, 16, "K", "32B")
    right, db = image(codes(np.ones((8, 16)), "bf16"), B_AT, 16, "K", "32B")
    left[B_AT:] = right[B_AT:]
    for checks in (False, True):
        k, d, out = kernel(case, left, np.zeros((64, 8)))
        k.emit(case.opcode(), d, descriptor(k, da), descriptor(k, db), *case.tail(False))
        finish(k, d, out, commit=missing != "commit", wait=missing != "wait")
        if missing and checks:
            with pytest.raises(SmaltiError, match="SML0932"):
                k.run(checks=True)
        else:
            got = case.result(k.run(checks=checks)["d"])
            assert (got == (0 if missing else 16)).all()  # without checks: old values, not luck


def test_writing_registers_of_a_in_flight_is_reported_and_changes_the_result() -> None:
    case = Case("bf16", "bf16", "f32", 8)
    right, db = image(codes(np.ones((8, 16)), "bf16"), B_AT, 16, "K", "32B")
    for early, write, read in ((True, True, False), (False, False, True)):
        k, d, out = kernel(case, right, np.zeros((64, 8)))
        a = [k.value("mov.b32", 0x3F803F80) for _ in range(4)]
        k.emit("wgmma.fence.sync.aligned")
        k.emit(case.opcode(), d, a, descriptor(k, db), *case.tail(True))
        k.emit("wgmma.commit_group.sync.aligned")
        if write:
            k.emit("mov.b32", a[2], 0)
        if read:
            k.value("add.u32", a[2], 1)
        finish(k, d, out, commit=False)
        if write:
            with pytest.raises(SmaltiError, match="SML0932"):
                k.run(checks=True)
            late = case.result(k.run(end=False, checks=False)["d"])
            assert (late == 8).any()
        else:
            assert (case.result(k.run(early=early)["d"]) == 16).all()


def test_overwriting_shared_memory_in_flight_is_a_race() -> None:
    case = Case("bf16", "bf16", "f32", 8)
    left, da = image(codes(np.ones((64, 16)), "bf16"), A_AT, 16, "K", "32B")
    right, db = image(codes(np.ones((8, 16)), "bf16"), B_AT, 16, "K", "32B")
    left[B_AT:] = right[B_AT:]
    for waits in (False, True):
        k, d, out = kernel(case, left, np.zeros((64, 8)))
        k.emit(case.opcode(), d, descriptor(k, da), descriptor(k, db), *case.tail(False))
        k.emit("wgmma.commit_group.sync.aligned")
        if waits:
            k.emit("wgmma.wait_group.sync.aligned", 0)
        k.emit("st.shared.b32", k.at(0, k.value("mad.lo.u32", k.tid, 4, k.base)), k.value("mov.b32", 0))
        finish(k, d, out, commit=False)
        if waits:
            assert (case.result(k.run()["d"]) == 16).all()
        else:
            with pytest.raises(SmaltiError, match="SML0930"):
                k.run(early=True)
            assert not (case.result(k.run(end=False, checks=False)["d"]) == 16).all()


@pytest.mark.parametrize("seed", range(16))
def test_seeds(seed: int) -> None:
    """Warps that go their own ways still issue together."""
    product(Case("bf16", "bf16", "f32", 16), seed=seed)


@pytest.mark.parametrize("seed", [None, *range(8)])
def test_two_warpgroups_by_one_instruction(seed: int | None) -> None:
    """256 threads, each warpgroup with its own A; a chain of four with the accumulator in place."""
    k = Kernel(256, shared=SHARED)
    case = Case("bf16", "bf16", "f32", 16)
    a, b = RNG.integers(-3, 4, (2, 64, 16)), RNG.integers(-3, 4, (16, 16))
    shared = np.full(SHARED, 0x7F, np.uint8)
    bits = []
    for g in range(2):
        one, d = image(codes(a[g], "bf16"), A_AT + 8192 * g, 16, "K", "128B")
        shared[8192 * g : 8192 * (g + 1)] = one[8192 * g : 8192 * (g + 1)]
        bits.append(d)
    right, db = image(codes(b, "bf16"), B_AT, 16, "K", "128B")
    shared[B_AT:] = right[B_AT:]
    source, out = k.buffer("shared", shared), k.buffer("d", np.zeros((8, 256), np.uint32))
    mine, theirs = k.value("mad.lo.u32", k.tid, 16, k.base), k.element(source, k.tid, 16)
    for i in range(0, SHARED, 4096):
        words = k.regs("b32", 4)
        k.emit("ld.global.v4.b32", words, k.b.address(theirs.base, i))
        k.emit("st.shared.v4.b32", k.at(i, mine), words)
    k.emit("fence.proxy.async")
    k.sync()
    group = k.value("shr.u32", k.tid, 7)
    wide = k.value("cvt.u64.u32", group, type_="u64")
    da = k.value("mad.lo.u64", wide, 8192 >> 4, descriptor(k, bits[0]))
    d = k.regs("f32", 8)
    k.emit("wgmma.fence.sync.aligned")
    for step in range(4):
        k.emit(case.opcode(), d, da, descriptor(k, db), *case.tail(False, k_scale(k, step)))
    k.emit("wgmma.commit_group.sync.aligned")
    k.emit("wgmma.wait_group.sync.aligned", 0)
    for i, r in enumerate(d):
        k.put(out, r, i)
    got = k.run(seed=seed)["d"].reshape(8, 2, 128)
    for g in range(2):
        np.testing.assert_array_equal(case.result(np.ascontiguousarray(got[:, g])), 4 * (a[g] @ b.T))


def k_scale(k: Kernel, step: int) -> Any:
    p = k.reg("pred")
    k.emit("setp.ne.u32", p, step, 0)
    return p


# -- undefined values ------------------------------------------------------------------------------------


def undefined_case(part: str) -> str:
    """Row 5 of A, row 3 of B or one register of C undefined; the whole of D stored, or what is defined of it."""
    case = Case("bf16", "bf16", "f32", 8)
    k = Kernel(128, shared=SHARED)
    out = k.buffer("d", np.zeros((4, 128), np.uint32))
    zero = k.value("mov.b32", 0)
    row = k.value("mad.lo.u32", k.tid, 32, k.base)
    small = k.reg("pred")
    k.emit("setp.lt.u32", small, k.tid, 64)
    skip = k.reg("pred")
    k.emit("setp.eq.u32", skip, k.tid, 5 if part == "a" else 200)
    k.emit("setp.lt.and.u32", small, k.tid, 64, Not(skip))
    for half in (0, 16):
        k.emit("st.shared.v4.b32", k.at(half, row), [zero] * 4, guard=small)
    few = k.reg("pred")
    k.emit("setp.eq.u32", skip, k.tid, 3 if part == "b" else 200)
    k.emit("setp.lt.and.u32", few, k.tid, 8, Not(skip))
    for half in (0, 16):
        k.emit("st.shared.v4.b32", k.at(B_AT + half, row), [zero] * 4, guard=few)
    k.emit("fence.proxy.async")
    k.sync()
    d = k.regs("f32", 4)
    for i, r in enumerate(d):
        if not (part == "c" and i == 2):
            k.emit("mov.f32", r, 0.0)
    bits = lambda at: BASE + at >> 4 | 1 << 16 | 16 << 32 | 3 << 62  # noqa: E731
    k.emit("wgmma.fence.sync.aligned")
    k.emit(case.opcode(), d, descriptor(k, bits(A_AT)), descriptor(k, bits(B_AT)), *case.tail(False))
    k.emit("wgmma.commit_group.sync.aligned")
    k.emit("wgmma.wait_group.sync.aligned", 0)
    keeps = Flags()
    k.emit("ret")
    machine = k.prepare(None, False, keeps)
    machine.run()
    del out
    flags = keeps.left
    r, t, _ = d_place(8, 32)
    numbers = [machine.program.registers[x] for x in d]
    bad = np.array(
        [[bool(flags.get(numbers[r[m, n]], np.zeros(128, bool))[t[m, n]]) for n in range(8)] for m in range(64)]
    )
    rows, columns = np.flatnonzero(bad.all(axis=1)), np.flatnonzero(bad.all(axis=0))
    return f"{bad.sum()} rows {rows.tolist()} columns {columns.tolist()}"


class Flags(Checks):
    """Remembers which registers were undefined when the CTA's last threads left."""

    left: dict[int, Any] = {}  # noqa: RUF012

    def attach(self, machine: Any) -> None:
        super().attach(machine)
        retire = machine.retire

        def watched(g: Any, leaving: Any) -> Any:
            if not self.left:
                self.left = {n: f.copy() for n, f in g.cta.undefined.items()}
            return retire(g, leaving)

        machine.retire = watched


def Not(register: Any) -> Any:
    from smalti.ptx.module import Not as Negated

    return Negated(register)


def test_undefined_bytes_and_registers_reach_exactly_their_rows_and_columns() -> None:
    assert undefined_case("none") == "0 rows [] columns []"
    assert undefined_case("a") == "8 rows [5] columns []"
    assert undefined_case("b") == "64 rows [] columns [3]"
    assert undefined_case("c") == "128 rows [] columns []"


# -- refusals --------------------------------------------------------------------------------------------


def refused(build: Any, threads: int = 128) -> str:
    k = Kernel(threads, shared=8192)
    zero = k.value("mov.b32", 0)
    address = k.value("mad.lo.u32", k.tid, 16, k.base)
    k.emit("st.shared.v4.b32", k.at(0, address), [zero] * 4)
    k.emit("fence.proxy.async")
    k.sync()
    d = [k.value("mov.f32", 0.0) for _ in range(8)]
    k.emit("wgmma.fence.sync.aligned")
    good = BASE >> 4 | 8 << 16 | 16 << 32
    build(k, d, good)
    k.emit("wgmma.commit_group.sync.aligned")
    k.emit("wgmma.wait_group.sync.aligned", 0)
    try:
        k.run()
    except SmaltiError as refusal:
        return refusal.code
    return ""


def one(k: Kernel, d: list[Any], bits: Any, n: int = 8, guard: Any = None) -> None:
    desc = descriptor(k, bits) if isinstance(bits, int) else bits
    k.emit(
        f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.bf16.bf16", d[: n // 2], desc, desc, 1, 1, 1, 0, 0, guard=guard
    )


def test_refusals_and_their_neighbours() -> None:
    assert refused(lambda k, d, good: one(k, d, good)) == ""
    # the operand reaches past the end, or into the reserved first KiB
    assert refused(lambda k, d, good: one(k, d, good & ~0x3FFF | 0x2400 >> 4)) == "SML0830"
    assert refused(lambda k, d, good: one(k, d, good & ~0x3FFF | 0x100 >> 4)) == "SML0830"
    assert refused(lambda k, d, good: one(k, d, good & ~(0x3FFF << 16) | 0x3F80 << 16)) == "SML0830"
    # another accumulator shape while in flight, and the same one
    assert refused(lambda k, d, good: (one(k, d, good), one(k, d, good))) == ""
    assert refused(lambda k, d, good: (one(k, d, good), one(k, d, good, 16))) == "SML0922"
    assert refused(lambda k, d, good: (one(k, d, good), one(k, d[2:], good))) == "SML0922"

    # descriptors of single threads
    def differs(k: Kernel, d: list[Any], good: int) -> None:
        warp = k.value("cvt.u64.u32", k.value("shr.u32", k.tid, 5), type_="u64")
        one(k, d, k.value("add.u64", warp, descriptor(k, good)))

    assert refused(differs) == "SML0921"
    # a single thread, a single warp, warps that have left
    assert refused(lambda k, d, good: one(k, d, good, guard=k.first)) == "SML0914"

    def lonely(k: Kernel, d: list[Any], good: int) -> None:
        rest = k.reg("pred")
        k.emit("setp.ge.u32", rest, k.tid, 96)
        k.emit("ret", guard=rest)
        one(k, d, good)

    assert refused(lonely) == "SML0920"
    assert refused(lambda k, d, good: one(k, d, good), threads=96) == "SML0920"


def test_an_elected_thread_alone_never_gets_through() -> None:
    def build(k: Kernel, d: list[Any], good: int) -> None:
        skip = k.b.label()
        k.emit("bra", skip, guard=Guard(k.first, True))
        one(k, d, good)
        k.b.place(skip)

    assert refused(build) in ("SML0920", "SML0901")


def test_the_fast_transposition_agrees_with_the_layout() -> None:
    from smalti.layout.fragments import wgmma_d
    from smalti.vgpu.engines import transpose
    from smalti.vgpu.engines.fragments import accumulator, to_matrix

    for n in (8, 72, 256):
        words = RNG.integers(0, 1 << 32, (n // 2, 128), dtype=np.uint32)
        matrix = accumulator(words)
        np.testing.assert_array_equal(matrix, to_matrix(words, wgmma_d(n), 32))
        back = np.zeros_like(words)
        transpose.scatter(matrix, back)
        np.testing.assert_array_equal(back, words)
