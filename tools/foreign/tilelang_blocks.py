"""TileLang: majors and wide tiles, split-K with atomics, reduce stores, attention, softmax, layer norm, cumulative sum,
histogram, a persistent loop, tf32, A in registers, gather and scatter."""

import numpy as np
import tilelang.language as T
from case import case, integers, iota
from tilelang_launch import DTYPES, launch, operands


@case("sm_90a", f16={"dtype": "f16"}, bf16={"dtype": "bf16"}, e5m2={"dtype": "e5m2"}, s8={"dtype": "s8"})
def matmul_wide(c, dtype):
    """Two warpgroups, a tile of 128 x 128, three stages; a producer warp of TileLang's own."""
    m = n = 128
    k, bk = 256, 64
    of, to = operands(c, m, n, k, dtype)

    @T.prim_func
    def main(A: T.Tensor((m, k), of), B: T.Tensor((n, k), of), C: T.Tensor((m, n), to)):
        with T.Kernel(1, threads=256):
            a, b = T.alloc_shared((m, bk), of), T.alloc_shared((n, bk), of)
            acc = T.alloc_fragment((m, n), to)
            T.clear(acc)
            for at in T.Pipelined(k // bk, num_stages=3):
                T.copy(A[0, at * bk], a)
                T.copy(B[0, at * bk], b)
                T.gemm(a, b, acc, transpose_B=True)
            T.copy(acc, C)

    launch(c, main)


@case("sm_90a", b={"left": False}, a={"left": True})
def matmul_major(c, left):
    """B lies [K, N]; or A lies [K, M]."""
    m, n, k, bk = 64, 64, 128, 64
    a = c.input("A", "f16", (k, m) if left else (m, k), integers(1, -3, 3))
    b = c.input("B", "f16", (n, k) if left else (k, n), integers(2, -3, 3))
    c.output("C", "f32", a.values.T @ b.values.T if left else a.values @ b.values)

    if left:

        @T.prim_func
        def main(A: T.Tensor((k, m), "float16"), B: T.Tensor((n, k), "float16"), C: T.Tensor((m, n), "float32")):
            with T.Kernel(1, threads=128):
                a, b = T.alloc_shared((bk, m), "float16"), T.alloc_shared((n, bk), "float16")
                acc = T.alloc_fragment((m, n), "float32")
                T.clear(acc)
                for at in T.Pipelined(k // bk, num_stages=2):
                    T.copy(A[at * bk, 0], a)
                    T.copy(B[0, at * bk], b)
                    T.gemm(a, b, acc, transpose_A=True, transpose_B=True)
                T.copy(acc, C)

    else:

        @T.prim_func
        def main(A: T.Tensor((m, k), "float16"), B: T.Tensor((k, n), "float16"), C: T.Tensor((m, n), "float32")):
            with T.Kernel(1, threads=128):
                a, b = T.alloc_shared((m, bk), "float16"), T.alloc_shared((bk, n), "float16")
                acc = T.alloc_fragment((m, n), "float32")
                T.clear(acc)
                for at in T.Pipelined(k // bk, num_stages=2):
                    T.copy(A[0, at * bk], a)
                    T.copy(B[at * bk, 0], b)
                    T.gemm(a, b, acc)
                T.copy(acc, C)

    launch(c, main)


@case("sm_90a", f16={"dtype": "f16"}, s8={"dtype": "s8"})
def split_k(c, dtype):
    """Parts of K meet by atomic adds from registers."""
    m, n, k, part, bk = 64, 64, 256, 128, 64
    top = 3
    a, b = c.input("A", dtype, (m, k), integers(1, -top, top)), c.input("B", dtype, (n, k), integers(2, -top, top))
    out = "s32" if dtype == "s8" else "f32"
    c.output("C", out, a.values @ b.values.T, rule=0)
    of, to = DTYPES[dtype], DTYPES[out]

    @T.prim_func
    def main(A: T.Tensor((m, k), of), B: T.Tensor((n, k), of), C: T.Tensor((m, n), to)):
        with T.Kernel(k // part, threads=128) as p:
            a, b = T.alloc_shared((m, bk), of), T.alloc_shared((n, bk), of)
            acc = T.alloc_fragment((m, n), to)
            T.clear(acc)
            for at in T.Pipelined(part // bk, num_stages=2):
                T.copy(A[0, p * part + at * bk], a)
                T.copy(B[0, p * part + at * bk], b)
                T.gemm(a, b, acc, transpose_B=True)
            for i, j in T.Parallel(m, n):
                T.atomic_add(C[i, j], acc[i, j])

    launch(c, main)


@case()
def reduce_store(c):
    """Tiles add up in global memory by TMA."""
    x = c.input("A", "f32", (4, 64, 32), integers(3, -8, 8))
    c.output("C", "f32", x.values.sum(axis=0), rule=0)

    @T.prim_func
    def main(A: T.Tensor((4, 64, 32), "float32"), C: T.Tensor((64, 32), "float32")):
        with T.Kernel(4, threads=128) as p:
            tile = T.alloc_shared((64, 32), "float32")
            T.copy(A[p, 0, 0], tile)
            T.atomic_add(C, tile, use_tma=True)

    launch(c, main)


@case(f16={"dtype": "f16"}, bf16={"dtype": "bf16"})
def attention(c, dtype):
    """A running softmax over two blocks of keys; P stays in registers."""
    m, n, bn, d = 64, 128, 64, 64
    q, k, v = (c.input(x, dtype, (r, d), integers(s, -2, 2)) for x, r, s in (("Q", m, 1), ("K", n, 2), ("V", n, 3)))
    scores = q.values @ k.values.T / 8
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    close = 4e-3 if dtype == "f16" else 3e-2
    c.output("Y", "f32", p / p.sum(axis=1, keepdims=True) @ v.values, tolerance=(close, close))
    of, scale = DTYPES[dtype], 1.4426950408889634 / 8

    @T.prim_func
    def main(Q: T.Tensor((m, d), of), K: T.Tensor((n, d), of), V: T.Tensor((n, d), of), Y: T.Tensor((m, d), "float32")):
        with T.Kernel(1, threads=128):
            sq, sk, sv = T.alloc_shared((m, d), of), T.alloc_shared((bn, d), of), T.alloc_shared((bn, d), of)
            s, p = T.alloc_fragment((m, bn), "float32"), T.alloc_fragment((m, bn), of)
            acc = T.alloc_fragment((m, d), "float32")
            top, before = T.alloc_fragment((m,), "float32"), T.alloc_fragment((m,), "float32")
            total, row, factor = (T.alloc_fragment((m,), "float32"), T.alloc_fragment((m,), "float32"),
                                  T.alloc_fragment((m,), "float32"))  # fmt: skip
            T.copy(Q, sq)
            T.clear(acc)
            T.clear(total)
            T.fill(top, -1e30)
            for at in T.Pipelined(n // bn, num_stages=1):
                T.copy(K[at * bn, 0], sk)
                T.clear(s)
                T.gemm(sq, sk, s, transpose_B=True, policy=T.GemmWarpPolicy.FullRow)
                T.copy(top, before)
                T.reduce_max(s, top, dim=1, clear=False)
                for i in T.Parallel(m):
                    factor[i] = T.exp2((before[i] - top[i]) * scale)
                for i, j in T.Parallel(m, bn):
                    s[i, j] = T.exp2((s[i, j] - top[i]) * scale)
                T.reduce_sum(s, row, dim=1)
                for i in T.Parallel(m):
                    total[i] = total[i] * factor[i] + row[i]
                for i, j in T.Parallel(m, d):
                    acc[i, j] *= factor[i]
                T.copy(s, p)
                T.copy(V[at * bn, 0], sv)
                T.gemm(p, sv, acc, policy=T.GemmWarpPolicy.FullRow)
            for i, j in T.Parallel(m, d):
                acc[i, j] /= total[i]
            T.copy(acc, Y)

    launch(c, main)


@case()
def softmax(c):
    m, n = 32, 256
    x = c.input("A", "f32", (m, n), integers(5, -8, 8))
    e = np.exp(x.values - x.values.max(axis=1, keepdims=True))
    c.output("C", "f32", e / e.sum(axis=1, keepdims=True), tolerance=(1e-7, 1e-5))

    @T.prim_func
    def main(A: T.Tensor((m, n), "float32"), C: T.Tensor((m, n), "float32")):
        with T.Kernel(m // 16, threads=128) as x:
            tile, top, total = (T.alloc_fragment((16, n), "float32"), T.alloc_fragment((16,), "float32"),
                                T.alloc_fragment((16,), "float32"))  # fmt: skip
            T.copy(A[x * 16, 0], tile)
            T.reduce_max(tile, top, dim=1)
            for i, j in T.Parallel(16, n):
                tile[i, j] = T.exp2((tile[i, j] - top[i]) * 1.4426950408889634)
            T.reduce_sum(tile, total, dim=1)
            for i, j in T.Parallel(16, n):
                tile[i, j] /= total[i]
            T.copy(tile, C[x * 16, 0])

    launch(c, main)


@case()
def layer_norm(c):
    m, n = 32, 256
    x = c.input("A", "bf16", (m, n), integers(6, -16, 16))
    w = c.input("W", "f32", (n,), integers(7, -4, 4))
    v = x.values - x.values.mean(axis=1, keepdims=True)
    exact = v / np.sqrt((v * v).mean(axis=1, keepdims=True) + 1e-5) * w.values
    c.output("C", "bf16", exact, tolerance=(1e-5, 1e-2))

    @T.prim_func
    def main(A: T.Tensor((m, n), "bfloat16"), W: T.Tensor((n,), "float32"), C: T.Tensor((m, n), "bfloat16")):
        with T.Kernel(m // 16, threads=128) as x:
            tile, square = T.alloc_fragment((16, n), "float32"), T.alloc_fragment((16, n), "float32")
            mean, spread = T.alloc_fragment((16,), "float32"), T.alloc_fragment((16,), "float32")
            T.copy(A[x * 16, 0], tile)
            T.reduce_sum(tile, mean, dim=1)
            for i, j in T.Parallel(16, n):
                tile[i, j] -= mean[i] / n
            for i, j in T.Parallel(16, n):
                square[i, j] = tile[i, j] * tile[i, j]
            T.reduce_sum(square, spread, dim=1)
            for i, j in T.Parallel(16, n):
                tile[i, j] = tile[i, j] * T.rsqrt(spread[i] / n + 1e-5) * W[j]
            T.copy(tile, C[x * 16, 0])

    launch(c, main)


@case(forward={"reverse": False}, reverse={"reverse": True})
def cumulative_sum(c, reverse):
    m, n = 32, 128
    x = c.input("A", "s32", (m, n), integers(8, -1000, 1000))
    c.output("C", "s32", np.cumsum(x.values[:, ::-1], 1)[:, ::-1] if reverse else np.cumsum(x.values, 1))

    @T.prim_func
    def main(A: T.Tensor((m, n), "int32"), C: T.Tensor((m, n), "int32")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((m, n), "int32")
            T.copy(A, tile)
            T.cumsum(tile, dim=1, reverse=reverse)
            T.copy(tile, C)

    launch(c, main)


@case()
def histogram(c):
    """Counts in shared memory, then in global memory."""
    n, bins = 2048, 64
    x = c.input("A", "s32", (n,), integers(9, 0, bins - 1))
    c.output("C", "s32", np.bincount(x.values, minlength=bins), rule=0)

    @T.prim_func
    def main(A: T.Tensor((n,), "int32"), C: T.Tensor((bins,), "int32")):
        with T.Kernel(n // 512, threads=128) as x:
            counts = T.alloc_shared((bins,), "int32")
            T.clear(counts)
            for i in T.Parallel(512):
                T.atomic_add(counts[A[x * 512 + i]], 1)
            T.sync_threads()
            for i in T.Parallel(bins):
                T.atomic_add(C[i], counts[i])

    launch(c, main)


@case("sm_90a")
def persistent(c):
    """Two CTAs go through six tiles."""
    m, n, k, bk = 192, 128, 128, 64
    of, to = operands(c, m, n, k, "f16")

    @T.prim_func
    def main(A: T.Tensor((m, k), of), B: T.Tensor((n, k), of), C: T.Tensor((m, n), to)):
        with T.Kernel(2, threads=128) as x:
            a, b = T.alloc_shared((64, bk), of), T.alloc_shared((64, bk), of)
            acc = T.alloc_fragment((64, 64), to)
            for i, j in T.Persistent([m // 64, n // 64], 2, x):
                T.clear(acc)
                for at in T.Pipelined(k // bk, num_stages=2):
                    T.copy(A[i * 64, at * bk], a)
                    T.copy(B[j * 64, at * bk], b)
                    T.gemm(a, b, acc, transpose_B=True)
                T.copy(acc, C[i * 64, j * 64])

    launch(c, main)


@case("sm_90a")
def matmul_tf32(c):
    """f32 by mma.sync."""
    m, n, k, bk = 64, 64, 64, 32
    a, b = c.input("A", "f32", (m, k), integers(1, -3, 3)), c.input("B", "f32", (n, k), integers(2, -3, 3))
    c.output("C", "f32", a.values @ b.values.T)

    @T.prim_func
    def main(A: T.Tensor((m, k), "float32"), B: T.Tensor((n, k), "float32"), C: T.Tensor((m, n), "float32")):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((m, bk), "float32"), T.alloc_shared((n, bk), "float32")
            acc = T.alloc_fragment((m, n), "float32")
            T.clear(acc)
            for at in T.Pipelined(k // bk, num_stages=2):
                T.copy(A[0, at * bk], a)
                T.copy(B[0, at * bk], b)
                T.gemm(a, b, acc, transpose_B=True)
            T.copy(acc, C)

    launch(c, main)


@case("sm_90a")
def weights_in_registers(c):
    """int8 weights become f16 in registers, which are A of wgmma."""
    m, n, k = 64, 64, 64
    a, b = c.input("A", "s8", (m, k), integers(1, -8, 8)), c.input("B", "f16", (n, k), integers(2, -3, 3))
    c.output("C", "f32", a.values @ b.values.T)

    @T.prim_func
    def main(A: T.Tensor((m, k), "int8"), B: T.Tensor((n, k), "float16"), C: T.Tensor((m, n), "float32")):
        with T.Kernel(1, threads=128):
            sa, sb = T.alloc_shared((m, k), "int8"), T.alloc_shared((n, k), "float16")
            a, acc = T.alloc_fragment((m, k), "float16"), T.alloc_fragment((m, n), "float32")
            T.clear(acc)
            T.copy(A, sa)
            T.copy(B, sb)
            for i, j in T.Parallel(m, k):
                a[i, j] = T.cast(sa[i, j], "float16")
            T.gemm(a, sb, acc, transpose_B=True)
            T.copy(acc, C)

    launch(c, main)


@case()
def transpose(c):
    m, n = 64, 128
    x = c.input("A", "f16", (m, n), iota(-4000, 1))
    c.output("C", "f16", x.values.T)

    @T.prim_func
    def main(A: T.Tensor((m, n), "float16"), C: T.Tensor((n, m), "float16")):
        with T.Kernel(n // 32, threads=128) as x:
            tile, turned = T.alloc_shared((m, 32), "float16"), T.alloc_shared((32, m), "float16")
            T.copy(A[0, x * 32], tile)
            T.transpose(tile, turned)
            T.copy(turned, C[x * 32, 0])

    launch(c, main)
