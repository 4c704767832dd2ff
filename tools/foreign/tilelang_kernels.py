"""TileLang: products with wgmma and tcgen05, weight-stationary forms among them, a reduction, a software pipeline."""

import numpy as np
import tilelang.language as T
from case import case, integers
from tilelang_launch import launch, operands


@case(**{t: {"dtype": t} for t in ("f16", "bf16", "e4m3", "s8")})
def matmul(c, dtype):
    m, n, k, bm, bn, bk = 128, 64, 128, 64 if c.arch == "sm_90a" else 128, 64, 64
    of, to = operands(c, m, n, k, dtype)
    if c.arch == "sm_100a":
        launch(c, tensor_memory(m, n, k, bm, bn, bk, of, to))
        return

    @T.prim_func
    def main(A: T.Tensor((m, k), of), B: T.Tensor((n, k), of), C: T.Tensor((m, n), to)):
        with T.Kernel(n // bn, m // bm, threads=128) as (x, y):
            a, b = T.alloc_shared((bm, bk), of), T.alloc_shared((bn, bk), of)
            acc = T.alloc_fragment((bm, bn), to)
            T.clear(acc)
            for at in T.Pipelined(k // bk, num_stages=2):
                T.copy(A[y * bm, at * bk], a)
                T.copy(B[x * bn, at * bk], b)
                T.gemm(a, b, acc, transpose_B=True)
            T.copy(acc, C[y * bm, x * bn])

    launch(c, main)


def tensor_memory(m, n, k, bm, bn, bk, of, to):
    @T.prim_func
    def main(A: T.Tensor((m, k), of), B: T.Tensor((n, k), of), C: T.Tensor((m, n), to)):
        with T.Kernel(n // bn, m // bm, threads=128) as (x, y):
            a, b = T.alloc_shared((bm, bk), of), T.alloc_shared((bn, bk), of)
            acc = T.alloc_tmem([bm, bn], to)
            done = T.alloc_barrier(1)
            out, staged = T.alloc_fragment((bm, bn), to), T.alloc_shared((bm, bn), to)
            for at in T.Pipelined(k // bk, num_stages=1):
                T.copy(A[y * bm, at * bk], a)
                T.copy(B[x * bn, at * bk], b)
                T.gemm(a, b, acc, transpose_B=True, mbar=done, clear_accum=(at == 0))
            T.tcgen05_after_thread_sync()
            T.copy(acc, out)
            T.copy(out, staged)
            T.copy(staged, C[y * bm, x * bn])

    return main


@case("sm_100a", f16_64={"dtype": "f16", "rows": 64}, f16_32={"dtype": "f16", "rows": 32},
      e4m3_32={"dtype": "e4m3", "rows": 32}, s8_64={"dtype": "s8", "rows": 64})  # fmt: skip
def weight_stationary(c, dtype, rows):
    """Tiles of fewer than 128 rows: tcgen05.mma.ws."""
    m, n, k = 64, 64, 128
    of, to = operands(c, m, n, k, dtype)
    launch(c, tensor_memory(m, n, k, rows, 64, 64, of, to))


@case()
def row_sums(c):
    m, n = 64, 256
    x = c.input("A", "f32", (m, n), integers(3, -1000, 1000))
    c.output("C", "f32", np.stack([x.values.sum(1), x.values.max(1)]))

    @T.prim_func
    def main(A: T.Tensor((m, n), "float32"), C: T.Tensor((2, m), "float32")):
        with T.Kernel(m // 16, threads=128) as x:
            tile = T.alloc_fragment((16, n), "float32")
            total, top = T.alloc_fragment((16,), "float32"), T.alloc_fragment((16,), "float32")
            T.copy(A[x * 16, 0], tile)
            T.reduce_sum(tile, total, dim=1)
            T.reduce_max(tile, top, dim=1)
            T.copy(total, C[0, x * 16])
            T.copy(top, C[1, x * 16])

    launch(c, main)
