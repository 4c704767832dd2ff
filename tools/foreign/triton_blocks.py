"""Triton: softmax, norms, attention, scans, sorts, histograms, reductions, atomics, conversions, functions."""

import math

import numpy as np
import triton
import triton.language as tl
from case import case, codes, integers, iota
from triton.language.extra import libdevice
from triton.tools.tensor_descriptor import TensorDescriptor


@triton.jit
def softmax_kernel(x, out, columns, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    row = tl.load(x + tl.program_id(0) * columns + at, mask=at < columns, other=-float("inf"))
    e = tl.exp(row - tl.max(row, 0))
    tl.store(out + tl.program_id(0) * columns + at, e / tl.sum(e, 0), mask=at < columns)


def softmaxed(v):
    e = np.exp(v - v.max(axis=-1, keepdims=True))
    return e / e.sum(axis=-1, keepdims=True)


@case()
def softmax(c):
    x = c.input("x", "f32", (5, 200), integers(1, -8, 8))
    out = c.output("out", "f32", softmaxed(x.values), tolerance=(1e-7, 1e-5))
    c.launch(softmax_kernel, (5,), x, out, 200, BLOCK=256, num_warps=4)


@triton.jit
def norm_kernel(x, weight, bias, out, columns, eps, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)
    mask = at < columns
    row = tl.load(x + tl.program_id(0) * columns + at, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(row, 0) / columns
    centred = tl.where(mask, row - mean, 0.0)
    scale = 1 / tl.sqrt(tl.sum(centred * centred, 0) / columns + eps)
    w, b = tl.load(weight + at, mask=mask), tl.load(bias + at, mask=mask)
    tl.store(out + tl.program_id(0) * columns + at, centred * scale * w + b, mask=mask)


@case()
def layer_norm(c):
    x = c.input("x", "f16", (4, 120), integers(2, -9, 9))
    w, b = c.input("weight", "f32", (120,), integers(3, 1, 4)), c.input("bias", "f32", (120,), integers(4, -4, 4))
    mean = x.values.mean(axis=1, keepdims=True)
    scale = 1 / np.sqrt(((x.values - mean) ** 2).mean(axis=1, keepdims=True) + 1e-5)
    want = (x.values - mean) * scale * w.values + b.values
    out = c.output("out", "f32", want, tolerance=(1e-5, 1e-5))
    c.launch(norm_kernel, (4,), x, w, b, out, 120, 1e-5, BLOCK=128, num_warps=2)


@triton.jit
def attention_kernel(
    q, k, v, o, length, scale, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr
):
    """One pass over the keys with a running maximum and sum."""
    i = tl.program_id(0) * BM
    x = q.load([i, 0])
    acc, top, total = (
        tl.zeros((BM, D), tl.float32),
        tl.full((BM,), -float("inf"), tl.float32),
        tl.zeros((BM,), tl.float32),
    )
    end = i + BM if CAUSAL else length
    for at in range(0, end, BN):
        s = tl.dot(x, k.load([at, 0]).T) * scale
        if CAUSAL:
            s = tl.where((i + tl.arange(0, BM))[:, None] >= (at + tl.arange(0, BN))[None, :], s, -float("inf"))
        new = tl.maximum(top, tl.max(s, 1))
        p = tl.exp2(s - new[:, None])
        old = tl.exp2(top - new)
        total = total * old + tl.sum(p, 1)
        acc = acc * old[:, None]
        acc = tl.dot(p.to(tl.bfloat16), v.load([at, 0]), acc)
        top = new
    o.store([i, 0], acc / total[:, None])


def described(tensor, *block):
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), list(block))


@case(full={"causal": False}, causal={"causal": True})
def attention(c, causal):
    length, depth, bm, bn = 128, 32, 64, 32
    q, k, v = (c.input(n, "bf16", (length, depth), integers(i, -3, 3)) for i, n in enumerate("qkv"))
    scale = math.log2(math.e) / 8
    s = q.values @ k.values.T * scale * math.log(2)
    if causal:
        s = np.where(np.tri(length, dtype=bool), s, -np.inf)
    o = c.output("o", "f32", softmaxed(s) @ v.values, tolerance=(2e-2, 2e-2))
    tiles = described(q, bm, depth), described(k, bn, depth), described(v, bn, depth), described(o, bm, depth)
    shape = {"BM": bm, "BN": bn, "D": depth, "CAUSAL": causal}
    c.launch(attention_kernel, (2,), *tiles, length, scale, **shape, num_warps=4, num_stages=2)


@triton.jit
def scans_kernel(x, sums, products, tops, N: tl.constexpr, M: tl.constexpr, R: tl.constexpr):
    at = tl.arange(0, N)[:, None] * M + tl.arange(0, M)[None, :]
    v = tl.load(x + at)
    tl.store(sums + at, tl.cumsum(v, 1, reverse=R))
    tl.store(products + at, tl.cumprod((v & 1) * 2 - 1, 0))
    tl.store(tops + at, tl.associative_scan(v, 1, _larger))


@triton.jit
def _larger(a, b):
    return tl.maximum(a, b)


@case(forward={"reverse": False}, reverse={"reverse": True})
def scans(c, reverse):
    x = c.input("x", "s32", (16, 64), integers(5, -50, 50))
    v = x.values
    sums = np.cumsum(v[:, ::-1], axis=1)[:, ::-1] if reverse else np.cumsum(v, axis=1)
    outs = (c.output("sums", "s32", sums), c.output("products", "s32", np.cumprod((v & 1) * 2 - 1, axis=0)),
            c.output("tops", "s32", np.maximum.accumulate(v, axis=1)))  # fmt: skip
    c.launch(scans_kernel, (1,), x, *outs, N=16, M=64, R=reverse, num_warps=4)


@triton.jit
def sort_kernel(x, up, down, largest, N: tl.constexpr, M: tl.constexpr):
    at = tl.arange(0, N)[:, None] * M + tl.arange(0, M)[None, :]
    v = tl.load(x + at)
    tl.store(up + at, tl.sort(v))
    tl.store(down + at, tl.flip(tl.sort(v, descending=True), 1))
    tl.store(largest + tl.arange(0, N)[:, None] * 8 + tl.arange(0, 8)[None, :], tl.topk(v, 8))


@case(s32={"dtype": "s32"}, f16={"dtype": "f16"})
def sort(c, dtype):
    x = c.input("x", dtype, (8, 64), integers(6, -1000, 1000))
    s = np.sort(x.values, axis=1)
    outs = c.output("up", dtype, s), c.output("down", dtype, s), c.output("largest", dtype, s[:, :-9:-1])
    c.launch(sort_kernel, (1,), x, *outs, N=8, M=64, num_warps=4)


@triton.jit
def histogram_kernel(x, counts, total, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n, other=0)
    h = tl.histogram(v, 32, mask=at < n)
    tl.atomic_add(counts + tl.arange(0, 32), h)
    tl.atomic_add(total, tl.sum((at < n).to(tl.int32), 0))


@case()
def histogram(c):
    x = c.input("x", "s32", (700,), integers(7, 0, 31))
    counts = c.output("counts", "s32", np.bincount(x.values, minlength=32), rule=0)
    total = c.output("total", "s32", [700], rule=0)
    c.launch(histogram_kernel, (3,), x, counts, total, 700, BLOCK=256, num_warps=4)


@triton.jit
def reductions_kernel(x, out, where, N: tl.constexpr, M: tl.constexpr):
    i, j = tl.arange(0, N), tl.arange(0, M)
    v = tl.load(x + i[:, None] * M + j[None, :])
    tl.store(out + j, tl.sum(v, 0))
    tl.store(out + M + j, tl.max(v, 0))
    tl.store(out + 2 * M + j, tl.min(v, 0))
    tl.store(out + 3 * M + j, tl.xor_sum(v.to(tl.int32), 0).to(tl.float32))
    tl.store(where + i, tl.argmax(v, 1))
    tl.store(where + N + i, tl.argmin(v, 1))
    top, at = tl.max(v, 1, return_indices=True, return_indices_tie_break_left=True)
    tl.store(where + 2 * N + i, at + top.to(tl.int32))


@case()
def reductions(c):
    n, m = 32, 64
    x = c.input("x", "f32", (n, m), integers(8, -99, 99))
    v = x.values
    rows = [v.sum(0), v.max(0), v.min(0), np.bitwise_xor.reduce(v.astype(np.int64), axis=0)]
    out = c.output("out", "f32", np.stack(rows))
    where = c.output("where", "s32", np.stack([v.argmax(1), v.argmin(1), v.argmax(1) + v.max(1).astype(int)]))
    c.launch(reductions_kernel, (1,), x, out, where, N=n, M=m, num_warps=4)


@triton.jit
def atomics_kernel(x, sums, halves, bits, locks, seen, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at)
    tl.atomic_add(sums + v % 8, v.to(tl.float32))
    tl.atomic_add(halves + at % 8, (v % 4).to(tl.float16))
    tl.atomic_max(bits + 0 * at, v)
    tl.atomic_min(bits + 1 + 0 * at, v)
    tl.atomic_or(bits + 2 + 0 * at, 1 << (v % 31))
    tl.atomic_and(bits + 3 + 0 * at, ~(1 << (v % 31)))
    tl.atomic_xor(bits + 4 + 0 * at, v)
    tl.store(seen + at, tl.atomic_cas(locks + at, v, -v))
    tl.atomic_xchg(locks + n + at, v + 1)


@case()
def atomics(c):
    n = 256
    x = c.input("x", "s32", (n,), integers(9, 1, 100))
    v = x.values
    sums = np.array([v[v % 8 == i].sum() for i in range(8)], float)
    halves = np.array([(v[i::8] % 4).sum() for i in range(8)], float)
    ored = np.bitwise_or.reduce(1 << (v % 31))
    bits = [v.max(), v.min(), ored, ~ored, np.bitwise_xor.reduce(v)]
    start = [0, 10**6, 0, -1, 0]
    locks = np.concatenate([np.where(v == 17, -17, 17), v + 1])
    outs = (c.output("sums", "f32", sums, rule=0), c.output("halves", "f16", halves, rule=0),
            c.output("bits", "s32", bits, rule=start), c.output("locks", "s32", locks, rule=17),
            c.output("seen", "s32", np.full(n, 17)))  # fmt: skip
    c.launch(atomics_kernel, (2,), x, *outs, n, BLOCK=128, num_warps=2)


@triton.jit
def conversions_kernel(x, h, b, e4, e5, i8, i16, back, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < n)
    tl.store(h + at, v.to(tl.float16), mask=at < n)
    tl.store(b + at, v.to(tl.bfloat16), mask=at < n)
    tl.store(e4 + at, v.to(tl.float8e4nv), mask=at < n)
    tl.store(e5 + at, v.to(tl.float8e5), mask=at < n)
    tl.store(i8 + at, v.to(tl.int8), mask=at < n)
    tl.store(i16 + at, v.to(tl.int16), mask=at < n)
    tl.store(back + at, tl.load(e4 + at, mask=at < n).to(tl.float32) + v.to(tl.float8e5).to(tl.float16), mask=at < n)


@case()
def conversions(c):
    """Values of 3 bits, which all these formats hold."""
    n = 500
    x = c.input("x", "f32", (n,), integers(10, -7, 7))
    v = x.values
    outs = [c.output(name, t, v) for name, t in (("h", "f16"), ("b", "bf16"), ("e4", "e4m3"), ("e5", "e5m2"))]
    outs += [c.output("i8", "s8", v), c.output("i16", "s16", v), c.output("back", "f32", 2 * v)]
    c.launch(conversions_kernel, (2,), x, *outs, n, BLOCK=256, num_warps=4)


@triton.jit
def formats_kernel(q, f, out, other, n, BLOCK: tl.constexpr):
    """All codes of the 8-bit formats, upwards."""
    at = tl.arange(0, BLOCK)
    tl.store(out + at, tl.load(q + at).to(tl.float32))
    tl.store(other + at, tl.load(f + at).to(tl.bfloat16))


@case()
def formats(c):
    q, f = c.input("q", "e4m3", (256,), codes(1)), c.input("f", "e5m2", (256,), codes(2))
    out = c.output("out", "f32", q.values, tolerance=(0, 0))
    v, byte = f.values, f.buffer.data  # the compiler's own conversion has no infinities and NaNs: exponent 31 goes on
    beyond = (1 + (byte & 3) / 4) * 65536 * np.where(byte & 0x80, -1, 1)
    other = c.output("other", "bf16", np.where((byte & 0x7C) == 0x7C, beyond, v))
    c.launch(formats_kernel, (1,), q, f, out, other, 256, BLOCK=256, num_warps=4)


@triton.jit
def functions_kernel(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.load(x + at) / 16
    tl.store(out + at, tl.exp(v))
    tl.store(out + N + at, tl.log(v + 9))
    tl.store(out + 2 * N + at, tl.sin(v))
    tl.store(out + 3 * N + at, tl.cos(v))
    tl.store(out + 4 * N + at, tl.sqrt_rn(v + 9))
    tl.store(out + 5 * N + at, tl.rsqrt(v + 9))
    tl.store(out + 6 * N + at, libdevice.tanh(v))
    tl.store(out + 7 * N + at, tl.erf(v))
    tl.store(out + 8 * N + at, tl.sigmoid(v))
    tl.store(out + 9 * N + at, tl.div_rn(v, v + 9))
    tl.store(out + 10 * N + at, tl.floor(v) + tl.ceil(v) * 16)
    tl.store(out + 11 * N + at, libdevice.pow(v + 9, 1.5))


@case()
def functions(c):
    n = 128
    x = c.input("x", "f32", (n,), integers(11, -99, 99))
    v = x.values / 16
    rows = [np.exp(v), np.log(v + 9), np.sin(v), np.cos(v), np.sqrt(v + 9), 1 / np.sqrt(v + 9), np.tanh(v),
            np.array([math.erf(i) for i in v]), 1 / (1 + np.exp(-v)), v / (v + 9), np.floor(v) + np.ceil(v) * 16,
            (v + 9) ** 1.5]  # fmt: skip
    out = c.output("out", "f32", np.stack(rows), tolerance=(3e-6, 3e-6))
    c.launch(functions_kernel, (1,), x, out, N=n, num_warps=4)


@triton.jit
def integers_kernel(x, y, out, wide, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b = tl.load(x + at), tl.load(y + at)
    tl.store(out + at, a // b)
    tl.store(out + N + at, a % b)
    tl.store(out + 2 * N + at, (a >> (b & 7)) ^ (a << (b & 15)))
    tl.store(out + 3 * N + at, tl.umulhi(a.to(tl.uint32), b.to(tl.uint32)).to(tl.int32))
    tl.store(out + 4 * N + at, tl.where(a > b, a, b) - tl.minimum(a, -b) + (a == b))
    tl.store(out + 5 * N + at, libdevice.popc(a) * 64 + libdevice.clz(b))
    tl.store(wide + at, a.to(tl.int64) * b * 100003 // 7)
    tl.store(wide + N + at, a.to(tl.int64) * 4294967311 % (b.to(tl.int64) + 1000000007))


@case()
def integer_arithmetic(c):
    n = 256
    x, y = c.input("x", "s32", (n,), integers(12, -(10**9), 10**9)), c.input("y", "s32", (n,), integers(13, 1, 5000))
    a, b = x.values, y.values
    s32 = lambda v: ((v + 2**31) % 2**32) - 2**31  # noqa: E731
    quotient = np.trunc(a / b).astype(np.int64)
    counted = [bin(int(i) & 0xFFFFFFFF).count("1") * 64 + 32 - int(j).bit_length() for i, j in zip(a, b, strict=True)]
    rows = [quotient, a - quotient * b, (a >> (b & 7)) ^ s32(a << (b & 15)), s32((a % 2**32) * b >> 32),
            np.where(a > b, a, b) - np.minimum(a, -b) + (a == b), counted]  # fmt: skip
    big = [int(i) * int(j) * 100003 for i, j in zip(a, b, strict=True)]
    first = [abs(v) // 7 * (1 if v >= 0 else -1) for v in big]
    left = [(int(i) * 4294967311 + 2**63) % 2**64 - 2**63 for i in a]
    second = [abs(v) % (int(j) + 1000000007) * (1 if v >= 0 else -1) for v, j in zip(left, b, strict=True)]
    out, wide = (
        c.output("out", "s32", s32(np.stack([np.asarray(r) for r in rows]))),
        c.output("wide", "s64", [first, second]),
    )
    c.launch(integers_kernel, (1,), x, y, out, wide, N=n, num_warps=4)


@triton.jit
def moves_kernel(x, y, even, joined, turned, picked, N: tl.constexpr, M: tl.constexpr):
    i, j = tl.arange(0, N), tl.arange(0, M)
    at = i[:, None] * M + j[None, :]
    v, w = tl.load(x + at), tl.load(y + at)
    a, b = tl.split(tl.reshape(v, (N, M // 2, 2)))
    tl.store(even + i[:, None] * (M // 2) + tl.arange(0, M // 2)[None, :], a * 1000 + b)
    tl.store(joined + i[:, None] * 2 * M + tl.arange(0, 2 * M)[None, :], tl.interleave(v, w))
    tl.store(turned + j[:, None] * N + i[None, :], tl.trans(v))
    tl.store(picked + at, tl.gather(v, (j[None, :] * 5 + i[:, None]) % M, 1))


@case()
def data_movement(c):
    n, m = 16, 32
    x, y = c.input("x", "s32", (n, m), iota()), c.input("y", "s32", (n, m), iota(start=-1, step=-1))
    v, w = x.values, y.values
    i, j = np.mgrid[:n, :m]
    outs = (c.output("even", "s32", v[:, ::2] * 1000 + v[:, 1::2]),
            c.output("joined", "s32", np.stack([v, w], axis=2).reshape(n, 2 * m)), c.output("turned", "s32", v.T),
            c.output("picked", "s32", v[i, (j * 5 + i) % m]))  # fmt: skip
    c.launch(moves_kernel, (1,), x, y, *outs, N=n, M=m, num_warps=4)


@triton.jit
def random_kernel(out, uniform, seed, N: tl.constexpr):
    at = tl.arange(0, N)
    a, b, c, d = tl.randint4x(seed, at)
    tl.store(out + at * 4, a.to(tl.uint32))
    tl.store(out + at * 4 + 1, b.to(tl.uint32))
    tl.store(out + at * 4 + 2, c.to(tl.uint32))
    tl.store(out + at * 4 + 3, d.to(tl.uint32))
    tl.store(uniform + at, tl.rand(seed, at))


def philox(seed, offset):
    """Philox 4x32-10 (Salmon et al. 2011): counter (offset, 0, 0, 0), key (seed, 0)."""
    c, k = [offset, 0, 0, 0], [seed & 0xFFFFFFFF, seed >> 32]
    for _ in range(10):
        high0, low0 = divmod(0xD2511F53 * c[0], 1 << 32)
        high1, low1 = divmod(0xCD9E8D57 * c[2], 1 << 32)
        c = [high1 ^ c[1] ^ k[0], low1, high0 ^ c[3] ^ k[1], low0]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


@case()
def random(c):
    n, seed = 128, 1234567
    words = np.array([philox(seed, i) for i in range(n)], np.int64)
    first = np.where(words[:, 0] >= 2**31, words[:, 0] - 2**32, words[:, 0])
    uniform = np.where(first < 0, -first - 1, first) * 4.6566127342e-10
    outs = c.output("out", "u32", words), c.output("uniform", "f32", uniform, tolerance=(1e-7, 1e-6))
    c.launch(random_kernel, (1,), *outs, seed, N=n, num_warps=4)


@triton.jit
def flags_kernel(x, parts, ready, out, n, BLOCK: tl.constexpr):
    """Programs hand a running sum on: each waits for the one before it (acquire, release)."""
    p = tl.program_id(0)
    total = tl.sum(tl.load(x + p * BLOCK + tl.arange(0, BLOCK)), 0)
    before = 0
    if p > 0:
        while tl.atomic_add(ready + p - 1, 0, sem="acquire", scope="gpu") == 0:
            pass
        before = tl.load(parts + p - 1)
    tl.store(parts + p, before + total)
    tl.debug_barrier()
    tl.atomic_xchg(ready + p, 1, sem="release", scope="gpu")
    tl.store(out + p, before + total)


@case()
def flags(c):
    x = c.input("x", "s32", (4 * 64,), integers(14, 0, 1000))
    sums = np.cumsum(x.values.reshape(4, 64).sum(axis=1))
    outs = c.output("parts", "s32", sums), c.output("ready", "s32", np.ones(4), rule=0), c.output("out", "s32", sums)
    c.launch(flags_kernel, (4,), x, *outs, 256, BLOCK=64, num_warps=2)


@triton.jit
def assembly_kernel(x, out, N: tl.constexpr):
    at = tl.arange(0, N)
    v = tl.load(x + at)
    w = tl.inline_asm_elementwise(
        "{ .reg .b32 t; shl.b32 t, $1, 3; lop3.b32 $0, t, $1, $2, 0x96; }", "=r,r,r", [v, at], dtype=tl.int32,
        is_pure=True, pack=1)  # fmt: skip
    tl.store(out + at, w)


@case()
def inline_assembly(c):
    x = c.input("x", "s32", (128,), integers(15, 0, 10**8))
    v = x.values
    out = c.output("out", "s32", (((v << 3) & 0xFFFFFFFF) ^ v ^ np.arange(128)).astype(np.uint32).view(np.int32))
    c.launch(assembly_kernel, (1,), x, out, N=128, num_warps=4)


@triton.jit
def _step(x, n):
    while n > 0:
        x = tl.where(x % 2 == 0, x // 2, 3 * x + 1)
        n -= 1
    return x


@triton.jit
def loops_kernel(x, out, limit, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at)
    if limit > 3:
        v = _step(v, limit)
    else:
        v = -v
    for i in tl.static_range(3):
        v += i
    tl.store(out + at, v)


@case()
def loops(c):
    x = c.input("x", "s32", (256,), iota(start=1))
    v = x.values.copy()
    for _ in range(9):
        v = np.where(v % 2 == 0, v // 2, 3 * v + 1)
    out = c.output("out", "s32", v + 3)
    c.launch(loops_kernel, (2,), x, out, 9, BLOCK=128, num_warps=2)
