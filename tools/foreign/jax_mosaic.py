"""JAX: Pallas kernels for Mosaic GPU. Products by wgmma and tcgen05, pairs, block scales, structured sparsity."""

import jax.numpy as jnp
import numpy as np
from case import case, integers
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax_launch import DTYPES, finish, launch, tiled


@case()
def elementwise(c):
    """TMA in, arithmetic of a warpgroup, TMA out."""
    x = c.input("x", "f32", (128, 64), integers(1, -1000, 1000))
    out = c.output("out", "f32", x.values * 2 + 1)

    def body(x, out, sx, so, bar):
        plgpu.copy_gmem_to_smem(x, sx, bar)
        plgpu.barrier_wait(bar)
        so[...] = sx[...] * 2.0 + 1.0
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(so, out)
        plgpu.wait_smem_to_gmem(0)

    smem = plgpu.SMEM((128, 64), jnp.float32)
    launch(c, body, [out], [x], scratch_types=[smem, smem, plgpu.Barrier()])


@case("sm_90a", **{t: {"dtype": t} for t in ("f16", "bf16", "e4m3", "s8")})
def wgmma(c, dtype):
    m, n, k, bk = 64, 64, 256, 64 if "f16" in dtype else 128
    top = 100 if dtype == "s8" else 3
    a, b = c.input("a", dtype, (m, k), integers(1, -top, top)), c.input("b", dtype, (n, k), integers(2, -top, top))
    kind = "s32" if dtype == "s8" else "f32"
    d = c.output("d", kind, a.values @ b.values.T)

    def body(a, b, d, sa, sb, sd, bars):
        def multiply(acc):
            for s in range(k // bk):
                plgpu.copy_gmem_to_smem(a.at[:, pl.ds(s * bk, bk)], sa.at[s], bars.at[s])
                plgpu.copy_gmem_to_smem(b.at[:, pl.ds(s * bk, bk)], sb.at[s], bars.at[s])
            for s in range(k // bk):
                plgpu.barrier_wait(bars.at[s])
                plgpu.wgmma(acc, sa.at[s], plgpu.transpose_ref(sb.at[s], (1, 0)))
            plgpu.wgmma_wait(0)
            return acc[...]

        kind_ = jnp.int32 if dtype == "s8" else jnp.float32
        sd[...] = pl.run_scoped(multiply, plgpu.ACC((m, n), kind_))
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(sd, d)
        plgpu.wait_smem_to_gmem(0)

    stages = k // bk
    bars = plgpu.Barrier(num_arrivals=2, num_barriers=stages)
    scratch = [tiled((stages, m, bk), DTYPES[dtype]), tiled((stages, n, bk), DTYPES[dtype]),
               plgpu.SMEM((m, n), getattr(jnp, DTYPES[kind])), bars]  # fmt: skip
    launch(c, body, [d], [a, b], scratch_types=scratch)


@case("sm_100a", **{t: {"dtype": t} for t in ("f16", "bf16", "e4m3", "s8")}, swizzle={"dtype": "f16", "swizzle": 64})
def tcgen05(c, dtype, swizzle=128):
    m, n, k = 128, 64, 64 if "f16" in dtype else 128
    top = 100 if dtype == "s8" else 3
    a, b = c.input("a", dtype, (m, k), integers(1, -top, top)), c.input("b", dtype, (n, k), integers(2, -top, top))
    kind = "s32" if dtype == "s8" else "f32"
    d = c.output("d", kind, a.values @ b.values.T)

    def body(a, b, d, sa, sb, sd, acc, loaded, done):
        plgpu.copy_gmem_to_smem(a, sa, loaded)
        plgpu.copy_gmem_to_smem(b, sb, loaded)
        plgpu.barrier_wait(loaded)
        plgpu.tcgen05_mma(acc, sa, plgpu.transpose_ref(sb, (1, 0)), done, accumulate=False)
        plgpu.barrier_wait(done)
        finish(acc, sd, d)

    kind = getattr(jnp, DTYPES[kind])
    scratch = [tiled((m, k), DTYPES[dtype], swizzle), tiled((n, k), DTYPES[dtype], swizzle), plgpu.SMEM((m, n), kind),
               plgpu.TMEM((m, n), kind), plgpu.Barrier(num_arrivals=2),
               plgpu.Barrier(orders_tensor_core=True)]  # fmt: skip
    launch(c, body, [d], [a, b], scratch_types=scratch)


@case("sm_100a", f16={"dtype": "f16"}, bf16={"dtype": "bf16"})
def tensor_a(c, dtype):
    """A goes through registers into tensor memory."""
    m, n, k = 128, 64, 64
    a, b = c.input("a", dtype, (m, k), integers(3, -3, 3)), c.input("b", dtype, (n, k), integers(4, -3, 3))
    d = c.output("d", "f32", a.values @ b.values.T)

    def body(a, b, d, sa, sb, sd, ta, acc, loaded, done):
        plgpu.copy_gmem_to_smem(a, sa, loaded)
        plgpu.copy_gmem_to_smem(b, sb, loaded)
        plgpu.barrier_wait(loaded)
        plgpu.async_store_tmem(ta, plgpu.load(sa, (), layout=plgpu.Layout.TCGEN05))
        plgpu.commit_tmem()
        plgpu.tcgen05_mma(acc, ta, plgpu.transpose_ref(sb, (1, 0)), done, accumulate=False)
        plgpu.barrier_wait(done)
        finish(acc, sd, d)

    kind = getattr(jnp, DTYPES[dtype])
    scratch = [tiled((m, k), DTYPES[dtype]), tiled((n, k), DTYPES[dtype]), plgpu.SMEM((m, n), jnp.float32),
               plgpu.TMEM((m, k), kind, packed=True), plgpu.TMEM((m, n), jnp.float32), plgpu.Barrier(num_arrivals=2),
               plgpu.Barrier(orders_tensor_core=True)]  # fmt: skip
    launch(c, body, [d], [a, b], scratch_types=scratch)


@case("sm_100a", f16={"dtype": "f16"}, e4m3={"dtype": "e4m3"})
def pair(c, dtype):
    """Two CTAs multiply together: each has half of A's rows and half of B's."""
    m, n, k = 256, 128, 64 if dtype == "f16" else 128
    a, b = c.input("a", dtype, (m, k), integers(5, -3, 3)), c.input("b", dtype, (n, k), integers(6, -3, 3))
    d = c.output("d", "f32", a.values @ b.values.T)

    def body(a, b, d, sa, sb, sd, acc, loaded, done, met):
        rank = lax.axis_index("x")
        plgpu.copy_gmem_to_smem(a, sa, loaded, collective_axes="x", leader_tracked=plgpu.CopyPartition.PARTITIONED(0))
        plgpu.copy_gmem_to_smem(b, sb, loaded, collective_axes="x", leader_tracked=plgpu.CopyPartition.PARTITIONED(0))

        @pl.when(rank == 0)
        def _():
            plgpu.barrier_wait(loaded)
            plgpu.tcgen05_mma(acc, sa, plgpu.transpose_ref(sb, (1, 0)), done, accumulate=False, collective_axis="x")

        plgpu.barrier_wait(done)
        sd[...] = plgpu.async_load_tmem(acc)
        plgpu.wait_load_tmem()
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(sd, d.at[pl.ds(rank * 128, 128)])
        plgpu.wait_smem_to_gmem(0)
        plgpu.barrier_arrive(met)
        plgpu.barrier_wait(met)

    kind = DTYPES[dtype]
    scratch = [tiled((m // 2, k), kind), tiled((n // 2, k), kind), plgpu.SMEM((m // 2, n), jnp.float32),
               plgpu.TMEM((m // 2, n), jnp.float32, collective=True), plgpu.Barrier(num_arrivals=2),
               plgpu.Barrier(orders_tensor_core=True), plgpu.ClusterBarrier(collective_axes=("x",))]  # fmt: skip
    launch(c, body, [d], [a, b], scratch_types=scratch, cluster=(2,), cluster_names=("x",))


@case(
    "sm_100a",
    mxfp8={"form": "e4m3"},
    mxfp8_e5m2={"form": "e5m2"},
    mxfp4={"form": "e2m1"},
    nvfp4={"form": "e2m1", "vec": 16},
)
def scaled(c, form, vec=32):
    m = n = 128
    k = 256
    a, b = c.input("a", form, (m, k), integers(7, -2, 2)), c.input("b", form, (n, k), integers(8, -2, 2))
    scales = []
    for name, rows, seed in (("sfa", m, 9), ("sfb", n, 10)):
        shape = (rows // 128, k // vec // 4, 32, 16)
        s = c.input(name, "e4m3" if vec == 16 else "u8", shape, integers(seed, *((1, 3) if vec == 16 else (126, 128))))
        s.seen = shape, "float8_e4m3fn" if vec == 16 else "float8_e8m0fnu"
        plain = s.values.reshape(rows // 128, k // vec // 4, 32, 4, 4).transpose(0, 3, 2, 1, 4).reshape(rows, k // vec)
        scales.append((s, plain if vec == 16 else np.exp2(plain - 127.0)))
    (sa, va), (sb, vb) = scales
    d = c.output("d", "f32", (a.values * va.repeat(vec, 1)) @ (b.values * vb.repeat(vec, 1)).T)
    kind, scale = DTYPES[form], getattr(jnp, sa.seen[1])

    def body(a, b, sfa, sfb, d, xa, xb, ya, yb, sd, acc, ta, tb, loaded, done):
        for source, target in ((a, xa), (b, xb), (sfa, ya), (sfb, yb)):
            plgpu.copy_gmem_to_smem(source, target, loaded)
        plgpu.barrier_wait(loaded)
        plgpu.async_copy_scales_to_tmem(ya, ta)
        plgpu.async_copy_scales_to_tmem(yb, tb)
        plgpu.tcgen05_mma(acc, xa, plgpu.transpose_ref(xb, (1, 0)), done, a_scale=ta, b_scale=tb, accumulate=False)
        plgpu.barrier_wait(done)
        finish(acc, sd, d)

    def scales_tmem(rows):
        return plgpu.TMEM((rows, k // vec), scale, layout=plgpu.TMEMLayout.SCALES_LAYOUT)

    scratch = [tiled((m, k), kind), tiled((n, k), kind), plgpu.SMEM(sa.shape, scale), plgpu.SMEM(sb.shape, scale),
               plgpu.SMEM((m, n), jnp.float32), plgpu.TMEM((m, n), jnp.float32), scales_tmem(m), scales_tmem(n),
               plgpu.Barrier(num_arrivals=4), plgpu.Barrier(orders_tensor_core=True)]  # fmt: skip
    launch(c, body, [d], [a, b, sa, sb], scratch_types=scratch)


@case("sm_100a", f16={"dtype": "f16"}, bf16={"dtype": "bf16"}, e4m3={"dtype": "e4m3"}, s8={"dtype": "s8"})
def sparse(c, dtype):
    """Two of four elements of A are kept; their places are metadata in tensor memory."""
    m, n, k = 128, 64, 128
    a, b = c.input("a", dtype, (m, k // 2), integers(11, -3, 3)), c.input("b", dtype, (n, k), integers(12, -3, 3))
    choice = c.input("choice", "u8", (m, k // 4), integers(13, 0, 5)).values  # which pair of places
    del c.operands["choice"]
    places = np.array([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)])[choice]  # [m, k/4, 2]
    wide = np.zeros((m, k // 4, 4))
    np.put_along_axis(wide, places, a.values.reshape(m, k // 4, 2), axis=2)
    kind = "s32" if dtype == "s8" else "f32"
    d = c.output("d", kind, wide.reshape(m, k) @ b.values.T)
    laid = np.asarray(plgpu.format_tcgen05_sparse_metadata(jnp.asarray(places, jnp.uint2), getattr(jnp, DTYPES[dtype])))
    four = laid.astype(np.uint8).reshape(*laid.shape[:-1], -1, 4)
    packed = (four << np.array([0, 2, 4, 6], np.uint8)).sum(axis=-1).astype(np.uint8)
    meta = c.input("meta", "u8", packed.shape, packed.tolist())
    meta.seen = laid.shape, "uint2"

    def body(a, b, meta, d, sa, sb, sm, sd, acc, tm, loaded, done):
        for source, target in ((a, sa), (b, sb), (meta, sm)):
            plgpu.copy_gmem_to_smem(source, target, loaded)
        plgpu.barrier_wait(loaded)
        plgpu.async_copy_sparse_metadata_to_tmem(sm, tm)
        plgpu.tcgen05_mma(acc, sa, plgpu.transpose_ref(sb, (1, 0)), done, a_sparse_metadata=tm, accumulate=False)
        plgpu.barrier_wait(done)
        finish(acc, sd, d)

    kind, size = getattr(jnp, DTYPES[kind]), 2 if "f16" in dtype else 1
    swizzle = 64 * size
    scratch = [tiled((m, k // 2), DTYPES[dtype], swizzle), tiled((n, k), DTYPES[dtype], swizzle),
               plgpu.SMEM(laid.shape, jnp.uint2),
               plgpu.SMEM((m, n), kind), plgpu.TMEM((m, n), kind),
               plgpu.TMEM((m, k // 2), jnp.uint2, layout=plgpu.TMEMLayout.SPARSE_METADATA_LAYOUT),
               plgpu.Barrier(num_arrivals=3), plgpu.Barrier(orders_tensor_core=True)]  # fmt: skip
    launch(c, body, [d], [a, b, meta], scratch_types=scratch)
