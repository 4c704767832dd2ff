"""JAX: Pallas kernels for Mosaic GPU on Blackwell. Tiles and majors of tcgen05.mma, loops over K, warps with roles,
work by cluster launch control, pairs with scales, copies to tensor memory, gather and scatter, attention."""

import math

import jax.numpy as jnp
import numpy as np
from case import case, integers, iota
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax_launch import DTYPES, finish, launch, leave, product, tiled


@case("sm_100a",
      e5m2={"dtype": "e5m2", "n": 64}, f16_128={"dtype": "f16", "n": 128}, bf16_256={"dtype": "bf16", "n": 256},
      e4m3_128={"dtype": "e4m3", "n": 128}, s8_256={"dtype": "s8", "n": 256},
      f16_n_major={"dtype": "f16", "n": 128, "transposed": True}, s8_32={"dtype": "s8", "n": 64, "swizzle": 64},
      bf16_n_major={"dtype": "bf16", "n": 64, "transposed": True},
      bf16_32={"dtype": "bf16", "n": 96, "swizzle": 32})  # fmt: skip
def tiles(c, dtype, n, transposed=False, swizzle=128):
    """Two products in a loop, the second adds to the first."""
    m, bk, steps = 128, 64 if "f16" in dtype else 128, 2
    a, b, d, kind = product(c, dtype, m, n, bk * steps, transposed=transposed)

    def body(a, b, d, sa, sb, sd, acc, loaded, done):
        @pl.loop(0, steps)
        def _(s):
            here = pl.ds(s * bk, bk)
            plgpu.copy_gmem_to_smem(a.at[:, here], sa, loaded)
            plgpu.copy_gmem_to_smem(b.at[here] if transposed else b.at[:, here], sb, loaded)
            plgpu.barrier_wait(loaded)
            plgpu.tcgen05_mma(acc, sa, sb if transposed else plgpu.transpose_ref(sb, (1, 0)), done, accumulate=s > 0)
            plgpu.barrier_wait(done)

        finish(acc, sd, d)

    kind = getattr(jnp, DTYPES[kind])
    block = (bk, n) if transposed else (n, bk)
    scratch = [tiled((m, bk), DTYPES[dtype], swizzle), tiled(block, DTYPES[dtype], swizzle),
               plgpu.SMEM((m, n), kind), plgpu.TMEM((m, n), kind),
               plgpu.Barrier(num_arrivals=2), plgpu.Barrier(orders_tensor_core=True)]  # fmt: skip
    launch(c, body, [d], [a, b], scratch_types=scratch)


@case("sm_100a", f16={"dtype": "f16"}, bf16={"dtype": "bf16"}, e4m3={"dtype": "e4m3"})
def tensor_a_from_shared(c, dtype):
    """A goes from shared to tensor memory by tcgen05.cp."""
    m, n, k = 128, 64, 64 if "f16" in dtype else 128
    a, b, d, _ = product(c, dtype, m, n, k)

    def body(a, b, d, sa, sb, sd, ta, acc, loaded, done):
        plgpu.copy_gmem_to_smem(a, sa, loaded)
        plgpu.copy_gmem_to_smem(b, sb, loaded)
        plgpu.barrier_wait(loaded)
        plgpu.async_copy_smem_to_tmem(sa, ta)
        plgpu.tcgen05_mma(acc, ta, plgpu.transpose_ref(sb, (1, 0)), done, accumulate=False)
        plgpu.barrier_wait(done)
        finish(acc, sd, d)

    kind = getattr(jnp, DTYPES[dtype])
    scratch = [tiled((m, k), DTYPES[dtype]), tiled((n, k), DTYPES[dtype]), plgpu.SMEM((m, n), jnp.float32),
               plgpu.TMEM((m, k), kind, packed=True), plgpu.TMEM((m, n), jnp.float32), plgpu.Barrier(num_arrivals=2),
               plgpu.Barrier(orders_tensor_core=True)]  # fmt: skip
    launch(c, body, [d], [a, b], scratch_types=scratch)


@case("sm_100a", f16={"dtype": "f16"}, e4m3={"dtype": "e4m3"}, pair={"dtype": "bf16", "pair": True})
def roles(c, dtype, pair=False):
    """A warp loads, a warp multiplies, a warpgroup stores; tiles come by cluster launch control."""
    n, bk, stages, size = 64, 64 if "f16" in dtype else 128, 2, 2 if pair else 1
    rows, tile, k = 512 if pair else 256, 128 * size, bk * 3
    a, b, d, _ = product(c, dtype, rows, 2 * n, k)
    loads = {"collective_axes": "x", "leader_tracked": plgpu.CopyPartition.PARTITIONED(0)} if pair else {}
    with_pair = {"collective_axis": "x"} if pair else {}

    def body(a, b, d, sa, sb, sd, acc, full, empty, made, stored):
        group, rank = lax.axis_index("wg"), lax.axis_index("x")

        def loop(body):
            """Cluster launch control; not for pairs, where JAX 0.10.2 lets warp 0 alone say that all have read."""
            if pair:
                pl.loop(0, 4)(lambda at: body(at, at))
            else:
                schedule = plgpu.dynamic_scheduling_loop(grid_names=("tile",), thread_axis="wg")
                schedule(lambda info: body(info.index[0], info.local_index))

        @loop
        def _(at, local):
            i, j = at // 2, lax.rem(at, jnp.int32(2))

            @pl.when(group == 0)
            def _():
                @pl.core_map(plgpu.WarpMesh(axis_name="warp"))
                def _():
                    warp = lax.axis_index("warp")

                    @pl.when(warp == 0)
                    def _():
                        @pl.loop(0, 3)
                        def _(s):
                            step = local * 3 + s
                            slot = lax.rem(step, jnp.int32(stages))

                            @pl.when(step >= stages)
                            def _():
                                plgpu.barrier_wait(empty.at[slot])

                            here = pl.ds(s * bk, bk)
                            own, across = a.at[pl.ds(i * tile, tile), here], b.at[pl.ds(j * n, n), here]
                            plgpu.copy_gmem_to_smem(own, sa.at[slot], full.at[slot], **loads)
                            plgpu.copy_gmem_to_smem(across, sb.at[slot], full.at[slot], **loads)

                    @pl.when(jnp.logical_and(warp == 1, local > 0))
                    def _():
                        plgpu.barrier_wait(stored)

                    @pl.when(jnp.logical_and(warp == 1, rank == 0))
                    def _():
                        @pl.loop(0, 3)
                        def _(s):
                            slot = lax.rem(local * 3 + s, jnp.int32(stages))
                            plgpu.barrier_wait(full.at[slot])
                            right = plgpu.transpose_ref(sb.at[slot], (1, 0))
                            plgpu.tcgen05_mma(acc, sa.at[slot], right, empty.at[slot], accumulate=s > 0, **with_pair)

                        plgpu.tcgen05_commit_arrive(made, **with_pair)

            @pl.when(group == 1)
            def _():
                plgpu.barrier_wait(made)
                sd[...] = plgpu.async_load_tmem(acc)
                plgpu.wait_load_tmem()
                plgpu.barrier_arrive(stored)
                plgpu.commit_smem()
                plgpu.copy_smem_to_gmem(sd, d.at[pl.ds(i * tile + rank * 128, 128), pl.ds(j * n, n)])
                plgpu.wait_smem_to_gmem(0)

    kind = DTYPES[dtype]
    if pair:
        stored = plgpu.ClusterBarrier(collective_axes=("x",), num_arrivals=1, orders_tensor_core=True)
    else:
        stored = plgpu.Barrier(orders_tensor_core=True)
    scratch = [tiled((stages, 128, bk), kind), tiled((stages, n // size, bk), kind), plgpu.SMEM((128, n), jnp.float32),
               plgpu.TMEM((128, n), jnp.float32, collective=pair), plgpu.Barrier(num_arrivals=2, num_barriers=stages),
               plgpu.Barrier(num_barriers=stages, orders_tensor_core=True), plgpu.Barrier(orders_tensor_core=True),
               stored]  # fmt: skip
    launch(c, body, [d], [a, b], scratch_types=scratch, grid=(1 if pair else 4,), grid_names=("tile",), num_threads=2,
           thread_name="wg", cluster=(size,), cluster_names=("x",))  # fmt: skip


def scales(c, name, rows, k, vec, seed):
    """Scale factors in the order of the tensor core; the operand and the factors as [rows, k / vec]."""
    shape = (rows // 128, k // vec // 4, 32, 16)
    s = c.input(name, "e4m3" if vec == 16 else "u8", shape, integers(seed, *((1, 3) if vec == 16 else (126, 128))))
    s.seen = shape, "float8_e4m3fn" if vec == 16 else "float8_e8m0fnu"
    plain = s.values.reshape(rows // 128, k // vec // 4, 32, 4, 4).transpose(0, 3, 2, 1, 4).reshape(rows, k // vec)
    return s, plain if vec == 16 else np.exp2(plain - 127.0)


@case("sm_100a", mxfp8={"form": "e4m3"}, mxfp4={"form": "e2m1"}, nvfp4={"form": "e2m1", "vec": 16})
def pair_scaled(c, form, vec=32):
    m, n, k = 256, 256, 256
    a, b = c.input("a", form, (m, k), integers(7, -2, 2)), c.input("b", form, (n, k), integers(8, -2, 2))
    (sfa, va), (sfb, vb) = scales(c, "sfa", m, k, vec, 9), scales(c, "sfb", n, k, vec, 10)
    d = c.output("d", "f32", (a.values * va.repeat(vec, 1)) @ (b.values * vb.repeat(vec, 1)).T)
    half, every = plgpu.CopyPartition.PARTITIONED(0), plgpu.CopyPartition.REPLICATED

    def body(a, b, sfa, sfb, d, xa, xb, ya, yb, sd, acc, ta, tb, loaded, done, met):
        rank = lax.axis_index("x")
        for source, target, part in ((a, xa, half), (b, xb, half), (sfa, ya, half), (sfb, yb, every)):
            plgpu.copy_gmem_to_smem(source, target, loaded, collective_axes="x", leader_tracked=part)

        @pl.when(rank == 0)
        def _():
            plgpu.barrier_wait(loaded)
            plgpu.async_copy_scales_to_tmem(ya, ta, collective_axis="x")
            plgpu.async_copy_scales_to_tmem(yb, tb, collective_axis="x")
            plgpu.tcgen05_mma(acc, xa, plgpu.transpose_ref(xb, (1, 0)), done, a_scale=ta, b_scale=tb, accumulate=False,
                              collective_axis="x")  # fmt: skip

        plgpu.barrier_wait(done)
        for i in range(2):
            sd[...] = plgpu.async_load_tmem(acc.at[:, pl.ds(i * 128, 128)])
            plgpu.wait_load_tmem()
            plgpu.commit_smem()
            plgpu.copy_smem_to_gmem(sd, d.at[pl.ds(rank * 128, 128), pl.ds(i * 128, 128)])
            plgpu.wait_smem_to_gmem(0)
        plgpu.barrier_arrive(met)
        plgpu.barrier_wait(met)

    kind, scale = DTYPES[form], getattr(jnp, sfa.seen[1])

    def scales_tmem(rows):
        return plgpu.TMEM((rows, k // vec), scale, layout=plgpu.TMEMLayout.SCALES_LAYOUT, collective=True)

    scratch = [tiled((m // 2, k), kind), tiled((n // 2, k), kind), plgpu.SMEM((1, *sfa.elements[1:]), scale),
               plgpu.SMEM(sfb.elements, scale), plgpu.SMEM((128, 128), jnp.float32),
               plgpu.TMEM((128, n), jnp.float32, collective=True), scales_tmem(128), scales_tmem(n),
               plgpu.Barrier(num_arrivals=4), plgpu.Barrier(orders_tensor_core=True),
               plgpu.ClusterBarrier(collective_axes=("x",))]  # fmt: skip
    launch(c, body, [d], [a, b, sfa, sfb], scratch_types=scratch, cluster=(2,), cluster_names=("x",))


@case("sm_100a", mxfp8={"form": "e4m3"}, mxfp4={"form": "e2m1"})
def scaled_loop(c, form, vec=32):
    """Two blocks of K, each with scales of its own."""
    m, n, bk = 128, 128, 256
    k = 2 * bk
    a, b = c.input("a", form, (m, k), integers(7, -2, 2)), c.input("b", form, (n, k), integers(8, -2, 2))
    (sfa, va), (sfb, vb) = scales(c, "sfa", m, k, vec, 9), scales(c, "sfb", n, k, vec, 10)
    d = c.output("d", "f32", (a.values * va.repeat(vec, 1)) @ (b.values * vb.repeat(vec, 1)).T)

    def body(a, b, sfa, sfb, d, xa, xb, ya, yb, sd, acc, ta, tb, loaded, done):
        @pl.loop(0, 2)
        def _(s):
            here, scaling = pl.ds(s * bk, bk), pl.ds(s * (bk // vec // 4), bk // vec // 4)
            plgpu.copy_gmem_to_smem(a.at[:, here], xa, loaded)
            plgpu.copy_gmem_to_smem(b.at[:, here], xb, loaded)
            plgpu.copy_gmem_to_smem(sfa.at[:, scaling], ya, loaded)
            plgpu.copy_gmem_to_smem(sfb.at[:, scaling], yb, loaded)
            plgpu.barrier_wait(loaded)
            plgpu.async_copy_scales_to_tmem(ya, ta)
            plgpu.async_copy_scales_to_tmem(yb, tb)
            plgpu.tcgen05_mma(acc, xa, plgpu.transpose_ref(xb, (1, 0)), done, a_scale=ta, b_scale=tb, accumulate=s > 0)
            plgpu.barrier_wait(done)

        finish(acc, sd, d)

    kind, scale = DTYPES[form], getattr(jnp, sfa.seen[1])

    def scales_tmem(rows):
        return plgpu.TMEM((rows, bk // vec), scale, layout=plgpu.TMEMLayout.SCALES_LAYOUT)

    block = plgpu.SMEM((1, bk // vec // 4, 32, 16), scale)
    scratch = [tiled((m, bk), kind), tiled((n, bk), kind), block, block, plgpu.SMEM((m, n), jnp.float32),
               plgpu.TMEM((m, n), jnp.float32), scales_tmem(m), scales_tmem(n), plgpu.Barrier(num_arrivals=4),
               plgpu.Barrier(orders_tensor_core=True)]  # fmt: skip
    launch(c, body, [d], [a, b, sfa, sfb], scratch_types=scratch)


@case("sm_100a")
def gather_scatter(c):
    """Rows by index, each way."""
    x = c.input("x", "f32", (256, 64), iota(1, 3, 1 << 20))
    rows = c.input("rows", "u32", (64,), [(7 + 37 * i) % 256 for i in range(64)])
    expected = np.zeros((256, 64))
    expected[rows.values] = x.values[rows.values] + 1
    d = c.output("d", "f32", expected, rule=0)

    def body(x, rows, d, sx, bar):
        layout = plgpu.Layout.TMA_INDICES
        at = plgpu.load(rows, (), layout=layout, optimized=False)
        plgpu.copy_gmem_to_smem(x.at[at], sx, bar)
        plgpu.barrier_wait(bar)
        sx[...] = plgpu.load(sx, (), layout=plgpu.Layout.WGMMA) + 1
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(sx, d.at[at])
        plgpu.wait_smem_to_gmem(0)

    launch(c, body, [d], [x, rows], scratch_types=[tiled((64, 64), "float32"), plgpu.Barrier()])


@case("sm_100a", full={"causal": False}, causal={"causal": True})
def attention(c, causal):
    """Scores and probabilities by way of tensor memory, P as A of the second product."""
    m, n, d = 128, 128, 64
    q, k, v = (c.input(x, "bf16", (r, d), integers(s, -2, 2)) for x, r, s in (("q", m, 1), ("k", n, 2), ("v", n, 3)))
    scores = q.values @ k.values.T / 8
    if causal:
        scores[np.arange(n) > np.arange(m)[:, None]] = -np.inf
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    out = c.output("o", "f32", p / p.sum(axis=1, keepdims=True) @ v.values, tolerance=(2e-2, 2e-2))

    def body(q, k, v, o, sq, sk, sv, so, first, second, tp, loaded, done):
        for source, target in ((q, sq), (k, sk), (v, sv)):
            plgpu.copy_gmem_to_smem(source, target, loaded)
        plgpu.barrier_wait(loaded)
        plgpu.tcgen05_mma(first, sq, plgpu.transpose_ref(sk, (1, 0)), done, accumulate=False)
        plgpu.barrier_wait(done)
        scores = plgpu.async_load_tmem(first) * (math.log2(math.e) / 8)
        plgpu.wait_load_tmem()
        if causal:
            row, column = (plgpu.broadcasted_iota(jnp.int32, (m, n), i, layout=plgpu.Layout.TCGEN05) for i in (0, 1))
            scores = jnp.where(column <= row, scores, -jnp.inf)
        p = jnp.exp2(scores - lax.broadcast_in_dim(scores.max(axis=1), (m, n), [0]))
        total = p.sum(axis=1)
        plgpu.async_store_tmem(tp, p.astype(jnp.bfloat16))
        plgpu.commit_tmem()
        plgpu.tcgen05_mma(second, tp, sv, done, accumulate=False)
        plgpu.barrier_wait(done)
        value = plgpu.async_load_tmem(second)
        plgpu.wait_load_tmem()
        leave(value / lax.broadcast_in_dim(total, (m, d), [0]), so, o)

    scratch = [*[tiled((r, d), "bfloat16") for r in (m, n, n)], plgpu.SMEM((m, d), jnp.float32),
               plgpu.TMEM((m, n), jnp.float32), plgpu.TMEM((m, d), jnp.float32),
               plgpu.TMEM((m, n), jnp.bfloat16, packed=True), plgpu.Barrier(num_arrivals=3),
               plgpu.Barrier(orders_tensor_core=True)]  # fmt: skip
    launch(c, body, [out], [q, k, v], scratch_types=scratch,
           compiler_params=plgpu.CompilerParams(approx_math=True))  # fmt: skip
