"""Triton: matrix products fed by pointers and by tensor maps, of every type; persistent, split, chained, clipped."""

import triton
import triton.language as tl
from case import case, integers
from triton.tools.tensor_descriptor import TensorDescriptor

SMALL = {"bf16": 4, "f16": 4, "f32": 4, "e4m3": 4, "e5m2": 4, "s8": 100}
TYPES = {n: {"dtype": n} for n in SMALL}


def operand(c, name, dtype, shape, seed):
    """Integers that every type holds exactly, another one in each row and column."""
    top = SMALL[dtype]
    return c.input(name, dtype, shape, integers(seed, -top, top))


@triton.jit
def pointers(a, b, d, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """D[M,N] = A[M,K] B[K,N], any sizes: tails are masked."""
    i, j = tl.program_id(0) * BM + tl.arange(0, BM), tl.program_id(1) * BN + tl.arange(0, BN)
    depth = tl.arange(0, BK)
    acc = tl.zeros((BM, BN), d.dtype.element_ty)
    for at in range(0, k, BK):
        x = tl.load(
            a + i[:, None] * k + at + depth[None, :], mask=(i[:, None] < m) & (at + depth[None, :] < k), other=0.0
        )
        y = tl.load(
            b + (at + depth[:, None]) * n + j[None, :], mask=(j[None, :] < n) & (at + depth[:, None] < k), other=0.0
        )
        acc = tl.dot(x, y, acc)
    tl.store(d + i[:, None] * n + j[None, :], acc, mask=(i[:, None] < m) & (j[None, :] < n))


@case(**TYPES)
def matmul(c, dtype):
    a, b = operand(c, "a", dtype, (128, 96), 1), operand(c, "b", dtype, (96, 64), 2)
    d = c.output("d", "s32" if dtype == "s8" else "f32", a.values @ b.values)
    c.launch(pointers, (2, 1), a, b, d, 128, 64, 96, BM=64, BN=64, BK=32, num_warps=4, num_stages=2)


@case()
def matmul_tails(c):
    a, b = operand(c, "a", "f16", (77, 40), 1), operand(c, "b", "f16", (40, 56), 2)
    d = c.output("d", "f32", a.values @ b.values)
    c.launch(pointers, (2, 1), a, b, d, 77, 56, 40, BM=64, BN=64, BK=32, num_warps=4, num_stages=3)


@triton.jit
def tma(a, b, d, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr, TRANS: tl.constexpr):
    """D = A B^T (or A B) with tensor maps made by the host."""
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), ACC)
    for at in range(0, k, BK):
        if TRANS:
            acc = tl.dot(a.load([i, at]), b.load([j, at]).T, acc)
        else:
            acc = tl.dot(a.load([i, at]), b.load([at, j]), acc)
    d.store([i, j], acc.to(d.dtype))


def described(tensor, *block):
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), list(block))


@case(**TYPES)
def matmul_tma(c, dtype):
    a, b = operand(c, "a", dtype, (128, 128), 3), operand(c, "b", dtype, (64, 128), 4)
    d = c.output("d", "s32" if dtype == "s8" else "f32", a.values @ b.values.T)
    acc = tl.int32 if dtype == "s8" else tl.float32
    bk = 32 if dtype == "f32" else 64
    tiles = described(a, 128, bk), described(b, 32, bk), described(d, 128, 32)
    c.launch(tma, (1, 2), *tiles, 128, BM=128, BN=32, BK=bk, ACC=acc, TRANS=True, num_warps=4, num_stages=3)


@case(f16={"dtype": "f16"}, bf16={"dtype": "bf16"})
def matmul_tma_n_major(c, dtype):
    a, b = operand(c, "a", dtype, (128, 64), 3), operand(c, "b", dtype, (64, 64), 4)
    d = c.output("d", "f32", a.values @ b.values)
    tiles = described(a, 128, 32), described(b, 32, 64), described(d, 128, 64)
    c.launch(tma, (1, 1), *tiles, 64, BM=128, BN=64, BK=32, ACC=tl.float32, TRANS=False, num_warps=8, num_stages=2)


@case()
def matmul_tma_clipped(c):
    """Boxes that reach out of the tensors: zeros in, nothing out."""
    a, b = operand(c, "a", "f16", (72, 56), 3), operand(c, "b", "f16", (48, 56), 4)
    d = c.output("d", "f16", a.values @ b.values.T)
    tiles = described(a, 64, 32), described(b, 32, 32), described(d, 64, 32)
    c.launch(tma, (2, 2), *tiles, 56, BM=64, BN=32, BK=32, ACC=tl.float32, TRANS=True, num_warps=4, num_stages=2)


@case()
def matmul_f16_accumulator(c):
    a, b = operand(c, "a", "f16", (64, 64), 5), operand(c, "b", "f16", (64, 64), 6)
    d = c.output("d", "f16", a.values @ b.values.T)
    tiles = described(a, 64, 32), described(b, 64, 32), described(d, 64, 64)
    c.launch(tma, (1, 1), *tiles, 64, BM=64, BN=64, BK=32, ACC=tl.float16, TRANS=True, num_warps=4, num_stages=2)


@triton.jit
def computed_a(a, b, d, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """A passes through registers: wgmma with A in registers, tcgen05 with A in tensor memory."""
    acc = tl.zeros((BM, BN), tl.float32)
    for at in range(0, k, BK):
        x = a.load([0, at]).to(tl.float32) * 2 + 1
        acc = tl.dot(x.to(tl.bfloat16), b.load([0, at]).T, acc)
    d.store([0, 0], acc)


@case()
def matmul_computed_a(c):
    a, b = operand(c, "a", "bf16", (128, 64), 5), operand(c, "b", "bf16", (64, 64), 6)
    d = c.output("d", "f32", (a.values * 2 + 1) @ b.values.T)
    c.launch(computed_a, (1,), described(a, 128, 32), described(b, 64, 32), described(d, 128, 64), 64,
             BM=128, BN=64, BK=32, num_warps=4, num_stages=2)  # fmt: skip


@triton.jit
def device_maps(a, b, d, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """The kernel builds its tensor maps itself, in global scratch."""
    ta = tl.make_tensor_descriptor(a, [m, k], [k, 1], [BM, BK])
    tb = tl.make_tensor_descriptor(b, [n, k], [k, 1], [BN, BK])
    td = tl.make_tensor_descriptor(d, [m, n], [n, 1], [BM, BN])
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for at in range(0, k, BK):
        acc = tl.dot(ta.load([i, at]), tb.load([j, at]).T, acc)
    td.store([i, j], acc)


@case()
def matmul_device_maps(c):
    a, b = operand(c, "a", "f16", (128, 64), 7), operand(c, "b", "f16", (64, 64), 8)
    d = c.output("d", "f32", a.values @ b.values.T)
    c.launch(device_maps, (2, 1), a, b, d, 128, 64, 64, BM=64, BN=64, BK=32, num_warps=4, num_stages=2)


@triton.jit
def persistent(a, b, d, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, WS: tl.constexpr):
    """Each program walks over output tiles; with WS in warps of different roles."""
    columns = n // BN
    for tile in tl.range(tl.program_id(0), m // BM * columns, tl.num_programs(0), flatten=not WS, warp_specialize=WS):
        i, j = tile // columns * BM, tile % columns * BN
        acc = tl.zeros((BM, BN), tl.float32)
        for at in range(0, k, BK):
            acc = tl.dot(a.load([i, at]), b.load([j, at]).T, acc)
        d.store([i, j], acc.to(d.dtype))


def persistently(c, bm, bn, ws, warps):
    a, b = operand(c, "a", "f16", (3 * bm, 96), 7), operand(c, "b", "f16", (2 * bn, 96), 8)
    d = c.output("d", "f16", a.values @ b.values.T)
    tiles = described(a, bm, 32), described(b, bn, 32), described(d, bm, bn)
    c.launch(persistent, (2,), *tiles, 3 * bm, 2 * bn, 96, BM=bm, BN=bn, BK=32, WS=ws, num_warps=warps, num_stages=2)


@case()
def matmul_persistent(c):
    persistently(c, 64, 32, False, 4)


@case("sm_100a")
def matmul_specialised(c):
    persistently(c, 128, 64, True, 4)


@triton.jit
def split(a, b, d, m, n, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr):
    """Programs share an output tile and add their parts atomically."""
    part = tl.program_id(2)
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for at in range(part * (k // PARTS), (part + 1) * (k // PARTS), BK):
        acc = tl.dot(a.load([i, at]), b.load([j, at]).T, acc)
    rows, columns = i + tl.arange(0, BM), j + tl.arange(0, BN)
    tl.atomic_add(d + rows[:, None] * n + columns[None, :], acc, sem="relaxed")


@case()
def matmul_split_k(c):
    a, b = operand(c, "a", "bf16", (64, 128), 9), operand(c, "b", "bf16", (32, 128), 10)
    d = c.output("d", "f32", a.values @ b.values.T, rule=0)
    c.launch(split, (1, 1, 4), described(a, 64, 32), described(b, 32, 32), d, 64, 32, 128,
             BM=64, BN=32, BK=32, PARTS=4, num_warps=4, num_stages=1)  # fmt: skip


@triton.jit
def reduce_store(a, b, d, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr):
    """As split, by TMA stores that add."""
    part = tl.program_id(0)
    acc = tl.zeros((BM, BN), tl.float32)
    for at in range(part * (k // PARTS), (part + 1) * (k // PARTS), BK):
        acc = tl.dot(a.load([0, at]), b.load([0, at]).T, acc)
    d.atomic_add([0, 0], acc.to(d.dtype))


@case(f32={"dtype": "f32"}, f16={"dtype": "f16"}, bf16={"dtype": "bf16"})
def matmul_reduce_store(c, dtype):
    a, b = c.input("a", "f16", (64, 128), integers(9, -1, 1)), c.input("b", "f16", (32, 128), integers(10, -1, 1))
    d = c.output("d", dtype, a.values @ b.values.T, rule=0)
    c.launch(reduce_store, (2,), described(a, 64, 32), described(b, 32, 32), described(d, 64, 32), 128,
             BM=64, BN=32, BK=32, PARTS=2, num_warps=4, num_stages=2)  # fmt: skip


@triton.jit
def chained(q, k, v, o, BM: tl.constexpr, BN: tl.constexpr, D: tl.constexpr):
    """O = (Q K^T) V: the first product is an operand of the second."""
    s = tl.dot(q.load([0, 0]), k.load([0, 0]).T)
    o.store([0, 0], tl.dot(s.to(tl.bfloat16), v.load([0, 0])))


@case()
def matmul_chained(c):
    q, k = c.input("q", "bf16", (64, 32), integers(1, -1, 1)), c.input("k", "bf16", (64, 32), integers(2, -1, 1))
    v = c.input("v", "bf16", (64, 64), integers(3, -2, 2))
    o = c.output("o", "f32", (q.values @ k.values.T) @ v.values)
    c.launch(chained, (1,), described(q, 64, 32), described(k, 64, 32), described(v, 64, 64), described(o, 64, 64),
             BM=64, BN=64, D=32, num_warps=4)  # fmt: skip


@triton.jit
def transposed(a, b, d, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """A is stored [K,M], B [N,K]."""
    d.store([0, 0], tl.dot(a.load([0, 0]).T, b.load([0, 0]).T))


@case(f16={"dtype": "f16"}, e4m3={"dtype": "e4m3"}, f32={"dtype": "f32"})
def matmul_transposed(c, dtype):
    a, b = operand(c, "a", dtype, (32, 64), 11), operand(c, "b", dtype, (64, 32), 12)
    d = c.output("d", "f32", a.values.T @ b.values.T)
    c.launch(transposed, (1,), described(a, 32, 64), described(b, 64, 32), described(d, 64, 64),
             BM=64, BN=64, BK=32, num_warps=4)  # fmt: skip


@triton.jit
def batched(a, b, d, B: tl.constexpr, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    """Three-dimensional dot: a batch of small products, by mma.sync."""
    z, i, j, k = tl.arange(0, B), tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    x = tl.load(a + z[:, None, None] * (M * K) + i[None, :, None] * K + k[None, None, :])
    y = tl.load(b + z[:, None, None] * (K * N) + k[None, :, None] * N + j[None, None, :])
    tl.store(d + z[:, None, None] * (M * N) + i[None, :, None] * N + j[None, None, :], tl.dot(x, y))


@case(f16={"dtype": "f16"}, e4m3={"dtype": "e4m3"})
def matmul_batched(c, dtype):
    a, b = operand(c, "a", dtype, (4, 32, 32), 13), operand(c, "b", dtype, (4, 32, 16), 14)
    d = c.output("d", "f32", a.values @ b.values)
    c.launch(batched, (1,), a, b, d, B=4, M=32, N=16, K=32, num_warps=4)


@triton.jit
def gather(source, rows, d, BM: tl.constexpr, BN: tl.constexpr):
    """Rows of a tensor by their numbers, through TMA, and back to other rows."""
    at = tl.load(rows + tl.arange(0, BM))
    d.scatter(source.gather(at, 0), (BM - 1) - tl.arange(0, BM), 0)


@case("sm_100a")
def tma_gather_scatter(c):
    source = c.input("source", "f16", (64, 64), integers(1, -1000, 1000))
    rows = c.input("rows", "s32", (32,), integers(2, 0, 63))
    d = c.output("d", "f16", source.values[rows.values][::-1])
    c.launch(gather, (1,), described(source, 1, 64), rows, described(d, 1, 64), BM=32, BN=64, num_warps=4)


@triton.jit
def copy_3d(a, d, B: tl.constexpr, M: tl.constexpr, N: tl.constexpr):
    d.store([1, 2, 0], a.load([0, -1, 8]) + 1)


@case()
def tma_3d(c):
    """Three dimensions, a box that starts before the tensor, a store that is clipped."""
    import numpy as np

    a = c.input("a", "f32", (4, 8, 32), integers(1, -1000, 1000))
    read = np.zeros((2, 8, 16))
    read[:, 1:] = a.values[:2, :7, 8:24]
    d = np.full((4, 8, 32), -7.0)
    d[1:3, 2:, :16] = read[:, :6] + 1
    d = c.output("d", "f32", d, rule=-7)
    c.launch(copy_3d, (1,), described(a, 2, 8, 16), described(d, 2, 8, 16), B=2, M=8, N=16, num_warps=4)


@triton.jit
def two_ctas(a, b, d, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    i, j = tl.program_id(0) * BM, tl.program_id(1) * BN
    acc = tl.zeros((BM, BN), tl.float32)
    for at in range(0, k, BK):
        acc = tl.dot(a.load([i, at]), b.load([j, at]).T, acc)
    d.store([i, j], acc.to(d.dtype))


@case(two={"n": 2}, four={"n": 4})
def matmul_cluster(c, n):
    """A program spread over the CTAs of a cluster."""
    a, b = operand(c, "a", "f16", (256, 64), 15), operand(c, "b", "f16", (128, 64), 16)
    d = c.output("d", "f16", a.values @ b.values.T)
    tiles = described(a, 256, 32), described(b, 64, 32), described(d, 256, 64)
    c.launch(two_ctas, (1, 2), *tiles, 64, BM=256, BN=64, BK=32, num_warps=4, num_stages=2, num_ctas=n)
