"""mma.sync and mma.sp of every type against plain products; one NaN and rounding case each where arithmetic shows.

Fragments are placed by formulas written from PTX 9.7.14.5 here, not by the layout package.
"""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest

from smalti.errors import SmaltiError
from smalti.ptx.module import Not
from tests.vgpu.asm import Kernel

RNG = np.random.default_rng(77)
TYPES: dict[str, tuple[Any, int]] = {
    "f16": (np.float16, 16),
    "bf16": (ml_dtypes.bfloat16, 16),
    "tf32": (np.float32, 32),
    "e4m3": (ml_dtypes.float8_e4m3fn, 8),
    "e5m2": (ml_dtypes.float8_e5m2, 8),
    "s8": (np.int8, 8),
    "u8": (np.uint8, 8),
    "s4": (np.int8, 4),
    "u4": (np.uint8, 4),
    "b1": (np.uint8, 1),
    "f64": (np.float64, 64),
}


def values(rows: int, k: int, type_: str) -> np.ndarray:
    low, high = {"u8": (0, 4), "u4": (0, 4), "b1": (0, 2)}.get(type_, (-3, 4))
    return RNG.integers(low, high, (rows, k))


def operand(x: np.ndarray, type_: str, rows_split: bool) -> np.ndarray:
    """Registers [n, 32] that hold A [16 or 8, K] (`rows_split`) or B [8, K] (columns first)."""
    dtype, bits = TYPES[type_]
    if bits == 64:
        codes = x.astype(np.float64).view(np.uint64)
    elif bits < 8:
        codes = (x & (1 << bits) - 1).astype(np.uint64)
    else:
        codes = np.ascontiguousarray(x.astype(dtype)).view(f"uint{bits}").astype(np.uint64)
    each = max(32 // bits, 1)
    rows, k = x.shape
    high = 2 if rows == 16 else 1
    out = np.zeros((high * k // (4 * each), 32), np.uint64)
    for r in range(rows):
        for c in range(k):
            lane = 4 * (r % 8) + c // each % 4
            register = r // 8 + high * (c // (4 * each)) if rows_split else c // (4 * each)
            out[register, lane] |= codes[r, c] << np.uint64(bits * (c % each) if bits < 64 else 0)
    return out if bits == 64 else out.astype(np.uint32)


def d_place(m: int, bits: int) -> tuple[np.ndarray, ...]:
    row, column = np.meshgrid(np.arange(m), np.arange(8), indexing="ij")
    lane, h, i = 4 * (row % 8) + column // 2, row // 8, column % 2
    return (h, lane, i) if bits == 16 else (2 * h + i, lane, 0 * i)


def accumulator(c: np.ndarray, dtype: Any) -> np.ndarray:
    x = np.ascontiguousarray(c.astype(dtype))
    bits = x.dtype.itemsize * 8
    r, lane, p = d_place(len(c), bits)
    out = np.zeros((r.max() + 1, 32, p.max() + 1), f"uint{bits}")
    out[r, lane, p] = x.view(out.dtype)
    return out.view(f"uint{max(bits, 32)}").reshape(-1, 32)


def load(k: Kernel, name: str, words: np.ndarray, warps: int) -> list[Any]:
    """Registers from an array [n, 32] or [warps, n, 32], a warp each."""
    size = words.dtype.itemsize
    data = np.broadcast_to(words, (warps, *words.shape[-2:])).transpose(1, 0, 2)
    pointer = k.buffer(name, np.ascontiguousarray(data))
    address = k.element(pointer, k.tid, size)
    type_ = f"f{8 * size}" if size == 8 else "b32"
    out = k.regs(type_, data.shape[0])
    for i, r in enumerate(out):
        k.emit(f"ld.global.b{8 * size}", r, k.b.address(address.base, i * k.threads * size))
    return out


def run(
    opcode: str,
    a: np.ndarray,
    b: np.ndarray,
    c: np.ndarray,
    *more: Any,
    warps: int = 1,
    seed: int | None = None,
    meta: Any = None,
) -> np.ndarray:
    """Registers of D [n, warps · 32]."""
    k = Kernel(32 * warps)
    out = k.buffer("d", np.zeros((c.shape[-2], 32 * warps), c.dtype))
    regs = [load(k, name, words, warps) for name, words in (("a", a), ("b", b), ("c", c))]
    extra = [load(k, "meta", meta, warps)[0]] if meta is not None else []
    parts = opcode.split(".")
    type_ = next(p for p in parts[parts.index("col") + 1 :] if p != "satfinite")
    d = k.regs({"f16": "b32"}.get(type_, type_), c.shape[-2])
    k.emit(opcode, d, *regs, *extra, *more)
    for i, r in enumerate(d):
        k.put(out, r, i)
    return k.run(seed=seed)["d"]


def result(words: np.ndarray, m: int, dtype: Any) -> np.ndarray:
    bits = np.dtype(dtype).itemsize * 8
    r, lane, p = d_place(m, bits)
    parts = np.ascontiguousarray(words).reshape(len(words), 32, 1).view(f"uint{bits}")
    return np.ascontiguousarray(parts[r, lane, p]).view(dtype)


CASES = [
    *((f"m16n8k{k}", "f16", "f16", d) for k in (8, 16) for d in ("f32", "f16")),
    *((f"m16n8k{k}", "bf16", "bf16", "f32") for k in (8, 16)),
    *((f"m16n8k{k}", "tf32", "tf32", "f32") for k in (4, 8)),
    *(
        (f"m16n8k{k}", a, b, d)
        for k in (16, 32)
        for a, b in (("e4m3", "e4m3"), ("e4m3", "e5m2"), ("e5m2", "e5m2"))
        for d in ("f32", "f16")
    ),
    *(
        (s, a, b, "s32")
        for s in ("m8n8k16", "m16n8k16", "m16n8k32")
        for a, b in (("s8", "s8"), ("u8", "s8"), ("u8", "u8"))
    ),
    *((s, a, b, "s32") for s in ("m8n8k32", "m16n8k32", "m16n8k64") for a, b in (("s4", "s4"), ("u4", "s4"))),
    *((s, "f64", "f64", "f64") for s in ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16")),
]
D_TYPES = {"f32": np.float32, "f16": np.float16, "s32": np.int32, "f64": np.float64}


def shape_of(text: str) -> tuple[int, int]:
    m, rest = text[1:].split("n8k")
    return int(m), int(rest)


@pytest.mark.parametrize("shape,atype,btype,dtype", CASES, ids=["-".join(c) for c in CASES])
def test_dense(shape: str, atype: str, btype: str, dtype: str) -> None:
    m, k = shape_of(shape)
    a, b = values(m, k, atype), values(8, k, btype)
    c = np.arange(m * 8).reshape(m, 8) % 19 - 9
    got = run(
        f"mma.sync.aligned.{shape}.row.col.{dtype}.{atype}.{btype}.{dtype}",
        operand(a, atype, True),
        operand(b, btype, False),
        accumulator(c, D_TYPES[dtype]),
    )
    np.testing.assert_array_equal(result(got, m, D_TYPES[dtype]), a @ b.T + c)


@pytest.mark.parametrize("op", ["and", "xor"])
@pytest.mark.parametrize("shape", ["m8n8k128", "m16n8k128", "m16n8k256"])
def test_b1(shape: str, op: str) -> None:
    m, k = shape_of(shape)
    a, b = values(m, k, "b1"), values(8, k, "b1")
    c = np.arange(m * 8).reshape(m, 8)
    got = run(
        f"mma.sync.aligned.{shape}.row.col.s32.b1.b1.s32.{op}.popc",
        operand(a, "b1", True),
        operand(b, "b1", False),
        accumulator(c, np.int32),
    )
    want = a @ b.T if op == "and" else (a[:, None] != b[None]).sum(axis=2)
    np.testing.assert_array_equal(result(got, m, np.int32), want + c)


def test_saturation() -> None:
    a, b = np.full((16, 32), 127), np.full((8, 32), 127)
    c = np.full((16, 8), 2**31 - 5)
    for satfinite, want in ((".satfinite", 2**31 - 1), ("", 2**31 - 5 + 127 * 127 * 32 - 2**32)):
        opcode = f"mma.sync.aligned.m16n8k32.row.col{satfinite}.s32.s8.s8.s32"
        got = run(opcode, operand(a, "s8", True), operand(b, "s8", False), accumulator(c, np.int32))
        assert (result(got, 16, np.int32) == want).all()


def test_kinds_differ_in_rounding() -> None:
    """2^24 + 1 + 1: one fused sum in f16 inputs; fp8 adds C afterwards, rounding to nearest even."""
    c = np.full((16, 8), 2.0**24)
    one, none = np.zeros((16, 16)), np.zeros((8, 16))
    one[:, :2] = 1
    none[:, :2] = 1
    got = run(
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
        operand(one, "f16", True),
        operand(none, "f16", False),
        accumulator(c, np.float32),
    )
    assert (result(got, 16, np.float32) == 2.0**24 + 2).all()
    small = one * 0.5
    got = run(
        "mma.sync.aligned.m16n8k16.row.col.f32.e4m3.e4m3.f32",
        operand(small, "e4m3", True),
        operand(none, "e4m3", False),
        accumulator(np.full((16, 8), -(2.0**24)), np.float32),
    )
    assert (result(got, 16, np.float32) == -(2.0**24) + 1).all()


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_warps_multiply_their_own(seed: int | None) -> None:
    a, b = RNG.integers(-3, 4, (4, 16, 16)), RNG.integers(-3, 4, (4, 8, 16))
    c = RNG.integers(-9, 9, (4, 16, 8))
    got = run(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
        np.stack([operand(x, "bf16", True) for x in a]),
        np.stack([operand(x, "bf16", False) for x in b]),
        np.stack([accumulator(x, np.float32) for x in c]),
        warps=4,
        seed=seed,
    )
    for w in range(4):
        np.testing.assert_array_equal(result(got[:, 32 * w : 32 * w + 32], 16, np.float32), a[w] @ b[w].T + c[w])


SPARSE = [
    ("m16n8k16", "f16", "f16", "f16", 4),
    ("m16n8k32", "bf16", "bf16", "f32", 2),
    ("m16n8k8", "tf32", "tf32", "f32", 4),
    ("m16n8k16", "tf32", "tf32", "f32", 2),
    ("m16n8k64", "s8", "u8", "s32", 1),
    ("m16n8k64", "e4m3", "e5m2", "f32", 1),
]


@pytest.mark.parametrize("variant", ["sp", "sp::ordered_metadata"])
@pytest.mark.parametrize("shape,atype,btype,dtype,selectors", SPARSE, ids=["-".join(map(str, c)) for c in SPARSE])
def test_sparse(shape: str, atype: str, btype: str, dtype: str, selectors: int, variant: str) -> None:
    """Codes where PTX 9.7.14.6 (measured, E6) has them; the lanes that the selector leaves out hold garbage."""
    m, k = shape_of(shape)
    bits, tf32 = TYPES[atype][1], atype == "tf32"
    chunk = 2 if tf32 else 4
    chunks = k // chunk
    for selector in range(selectors):
        a, b = values(16, k // 2, atype), values(8, k, btype)
        full = np.zeros((16, k), np.int64)
        words = RNG.integers(0, 1 << 32, (1, 32), dtype=np.uint32)
        for r in range(16):
            for q in range(chunks):
                if tf32:
                    keep = int(RNG.integers(2))
                    code, places = (14 if keep else 4), [keep]
                else:
                    places = sorted(RNG.choice(4, 2, replace=False).tolist())
                    code = places[0] | places[1] << 2
                for i, p in enumerate(places):
                    full[r, chunk * q + p] = a[r, q * len(places) + i]
                if bits == 8:
                    lane, bit = 4 * (r % 8) + r // 8 + 2 * (q // 8), 4 * (q % 8)
                elif selectors == 2:
                    lane, bit = 4 * (r % 8) + 2 * selector + q // 4, 16 * (r // 8) + 4 * (q % 4)
                else:
                    lane, bit = 4 * (r % 8) + selector, 16 * (r // 8) + 4 * q
                words[0, lane] = int(words[0, lane]) & ~(15 << bit) | code << bit
        c = np.arange(128).reshape(16, 8) % 13
        got = run(
            f"mma.{variant}.sync.aligned.{shape}.row.col.{dtype}.{atype}.{btype}.{dtype}",
            operand(a, atype, True),
            operand(b, btype, False),
            accumulator(c, D_TYPES[dtype]),
            selector,
            meta=words,
        )
        np.testing.assert_array_equal(result(got, m, D_TYPES[dtype]), full @ b.T + c)


def test_undefined_registers_reach_their_rows_and_columns() -> None:
    """One register of A (two rows' worth of lane 0: row 0), of B (column 0), of C (one element)."""
    for part, want in (("a", 8), ("b", 16), ("c", 1), ("", 0)):
        k = Kernel(32)
        zero = [k.value("mov.b32", 0) for _ in range(10)]
        a, b, c = zero[:4], zero[4:6], [k.value("mov.f32", 0.0) for _ in range(4)]
        hole = k.reg("f32" if part == "c" else "b32")
        k.emit("mov.b32", hole, 0, guard=_others(k))
        {"a": a, "b": b, "c": c, "": [0]}[part][0] = hole
        d = k.regs("f32", 4)
        k.emit("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", d, a, b, c)
        out = k.buffer("out", np.zeros((4, 32), np.uint32))
        bad = 0
        k.emit("ret")
        machine = k.prepare(None, False, True)
        seen: dict[int, Any] = {}
        retire = machine.retire

        def watched(g: Any, leaving: Any, seen: dict[int, Any] = seen, retire: Any = retire) -> Any:
            seen.update({n: f.copy() for n, f in g.cta.undefined.items()})
            return retire(g, leaving)

        machine.retire = watched
        machine.run()
        bad = sum(int(seen[n].sum()) for n in (machine.program.registers[r] for r in d) if n in seen)
        assert bad == want, part
        del out


def _others(k: Kernel) -> Any:
    from smalti.ptx.module import Guard

    return Guard(k.first, True)


@pytest.mark.parametrize("alayout,blayout", [("row", "col"), ("col", "row"), ("row", "row"), ("col", "col")])
@pytest.mark.parametrize("d,c", [("f32", "f32"), ("f16", "f16"), ("f32", "f16")])
def test_four_small_products(alayout: str, blayout: str, d: str, c: str) -> None:
    """m8n8k4: each pair of quads has a product of its own; small integers, every place another one (PTX 9.7.14.5.1)."""
    numbers = np.arange(4)[:, None, None]
    a = (numbers + 2 * np.arange(8)[:, None] - 3 * np.arange(4)) % 7 - 3
    b = (3 * numbers + np.arange(4)[:, None] + 5 * np.arange(8)) % 5 - 2
    start = 16 * numbers + 8 * np.arange(8)[:, None] - np.arange(8)
    want = a @ b + start
    words: dict[str, np.ndarray] = {}
    held = {"a": (a, np.float16), "b": (b, np.float16), "c": (start, np.float32 if c == "f32" else np.float16)}
    for name, (matrix, type_) in held.items():
        out = np.empty((32, 4 if name in "ab" else 8), type_)
        for lane, i in np.ndindex(out.shape):
            out[lane, i] = matrix[
                _small_place(name, lane, i, alayout if name == "a" else blayout if name == "b" else c)
            ]
        words[name] = out.view(np.uint32)
    k = Kernel(32)
    registers = {}
    for name, given in words.items():
        buffer = k.buffer(name, np.ascontiguousarray(given))
        registers[name] = k.regs("b32", given.shape[1])
        address = k.element(buffer, k.tid, 4 * given.shape[1])
        for i, r in enumerate(registers[name]):
            k.emit("ld.global.b32", r, k.b.address(address.base, 4 * i))
    count = 8 if d == "f32" else 4
    result, target = k.regs("b32", count), k.buffer("out", np.zeros((32, count), np.uint32))
    opcode = f"mma.sync.aligned.m8n8k4.{alayout}.{blayout}.{d}.f16.f16.{c}"
    k.emit(opcode, result, registers["a"], registers["b"], registers["c"])
    address = k.element(target, k.tid, 4 * count)
    for i, r in enumerate(result):
        k.emit("st.global.b32", k.b.address(address.base, 4 * i), r)
    got = k.run()["out"].view(np.float32 if d == "f32" else np.float16)
    for lane, i in np.ndindex(got.shape):
        assert got[lane, i] == want[_small_place("d", lane, i, d)], (lane, i)


def _small_place(fragment: str, lane: int, i: int, layout: str) -> tuple[int, int, int]:
    """Quad pair, row and column (B: k and column) of element i, from the tables of PTX 9.7.14.5.1."""
    pair, high = lane // 4 % 4, 4 if lane >= 16 else 0
    if fragment == "a":
        return (pair, lane % 4 + high, i) if layout == "row" else (pair, i % 4 + high, lane % 4)
    if fragment == "b":
        return (pair, lane % 4, i + high) if layout == "row" else (pair, i, lane % 4 + high)
    if layout == "f16":
        return pair, lane % 4 + high, i
    return pair, (lane & 1) + (i & 2) + high, (i & 4) + (lane & 2) + (i & 1)


def test_lanes_that_skip_are_refused() -> None:
    k = Kernel(32)
    f = [k.value("mov.b32", 0) for _ in range(6)]
    c = [k.value("mov.f32", 0.0) for _ in range(4)]
    from smalti.ptx.module import Guard

    k.emit(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32", k.regs("f32", 4), f[:4], f[4:], c, guard=Guard(k.first)
    )
    with pytest.raises(SmaltiError) as caught:
        k.run()
    assert caught.value.code == "SML0914"
    assert isinstance(Not(k.first), Not)
