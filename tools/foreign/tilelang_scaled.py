"""TileLang: block-scaled products on Blackwell, scale factors by way of tensor memory."""

import numpy as np
import tilelang.language as T
from case import case, integers
from tilelang_launch import DTYPES, launch


@case("sm_100a", e4m3={"dtype": "e4m3"}, e5m2={"dtype": "e5m2"})
def scaled(c, dtype):
    m = n = k = 128
    a, b = c.input("A", dtype, (m, k), integers(1, -3, 3)), c.input("B", dtype, (n, k), integers(2, -3, 3))
    factors = []
    for name, seed in (("SA", 3), ("SB", 4)):
        codes = np.random.default_rng(seed).integers(126, 129, (128, 4))
        factors.append(np.exp2(codes - 127.0).repeat(32, 1))
        c.input(name, "u32", (128,), codes.astype(np.uint8).view("<u4")[:, 0].tolist())  # a row's four factors
    c.output("C", "f32", (a.values * factors[0]) @ (b.values * factors[1]).T)
    of = DTYPES[dtype]

    @T.prim_func
    def main(
        A: T.Tensor((m, k), of),
        B: T.Tensor((n, k), of),
        SA: T.Tensor((m,), "uint32"),
        SB: T.Tensor((n,), "uint32"),
        C: T.Tensor((m, n), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a, b = T.alloc_shared((m, k), of), T.alloc_shared((n, k), of)
            fa, fb = T.alloc_shared((m,), "uint32"), T.alloc_shared((n,), "uint32")
            ta, tb = T.alloc_tmem([m, 4], "uint32"), T.alloc_tmem([n, 4], "uint32")
            acc = T.alloc_tmem([m, n], "float32")
            done = T.alloc_barrier(1)
            out, staged = T.alloc_fragment((m, n), "float32"), T.alloc_shared((m, n), "float32")
            T.copy(A, a)
            T.copy(B, b)
            T.copy(SA, fa)
            T.copy(SB, fb)
            thread = T.get_thread_binding()
            if thread < 32:
                T.tcgen05_sf_warp_transpose(fa)
                T.tcgen05_sf_warp_transpose(fb)
                T.fence_proxy_async()
                T.tcgen05_cp_warpx4(fa, ta)
                T.tcgen05_cp_warpx4(fb, tb)
            T.gemm_blockscaled(
                a,
                b,
                acc,
                ta,
                tb,
                transpose_B=True,
                mbar=done,
                clear_accum=True,
                k_start=0,
                sf_a_granularity_k=32,
                sf_b_granularity_k=32,
            )
            T.tcgen05_after_thread_sync()
            T.copy(acc, out)
            T.copy(out, staged)
            T.copy(staged, C)

    launch(c, main)
