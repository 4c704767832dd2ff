"""JAX: Pallas kernels for Mosaic GPU on Hopper. Types and shapes of wgmma, A in registers, pipelines, warp-specialised
roles, multicast, distributed shared memory, atomics, reduce stores, softmax, layer norm, attention."""

import math

import jax.numpy as jnp
import numpy as np
from case import case, integers, iota
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu
from jax_launch import DTYPES, launch, leave, product, tiled

ROWS = plgpu.Layout.WGMMA.reduce(1)


@case("sm_90a",
      e5m2={"dtype": "e5m2", "n": 64}, f16_128={"dtype": "f16", "n": 128}, bf16_128={"dtype": "bf16", "n": 128},
      e4m3_128={"dtype": "e4m3", "n": 128}, s8_128={"dtype": "s8", "n": 128}, f16_256={"dtype": "f16", "n": 256},
      f16_n_major={"dtype": "f16", "n": 128, "transposed": True},
      bf16_n_major={"dtype": "bf16", "n": 64, "transposed": True},
      bf16_64={"dtype": "bf16", "n": 96, "swizzle": 64}, f16_32={"dtype": "f16", "n": 32, "swizzle": 32})  # fmt: skip
def shapes(c, dtype, n, transposed=False, swizzle=128):
    m, k = 64, 64 if "f16" in dtype else 128
    a, b, d, kind = product(c, dtype, m, n, k, transposed=transposed)

    def body(a, b, d, sa, sb, sd, bar):
        plgpu.copy_gmem_to_smem(a, sa, bar)
        plgpu.copy_gmem_to_smem(b, sb, bar)
        plgpu.barrier_wait(bar)

        def multiply(acc):
            plgpu.wgmma(acc, sa, sb if transposed else plgpu.transpose_ref(sb, (1, 0)))
            return acc[...]

        leave(pl.run_scoped(multiply, plgpu.ACC((m, n), getattr(jnp, DTYPES[kind]))), sd, d)

    scratch = [tiled((m, k), DTYPES[dtype], swizzle), tiled(b.elements, DTYPES[dtype], swizzle),
               plgpu.SMEM((m, n), getattr(jnp, DTYPES[kind])), plgpu.Barrier(num_arrivals=2)]  # fmt: skip
    launch(c, body, [d], [a, b], scratch_types=scratch)


@case("sm_90a", f16={"dtype": "f16"}, bf16={"dtype": "bf16"})
def registers_a(c, dtype):
    """A is computed in registers; the accumulator starts from a tile and is kept over two products."""
    m, n, k = 64, 64, 128
    a, b, _, _ = product(c, dtype, m, n, k)
    d = c.output("d", "f32", 1 + 2 * (a.values * 2 - 1) @ b.values.T)

    def body(a, b, d, sa, sb, sd, bar):
        plgpu.copy_gmem_to_smem(a, sa, bar)
        plgpu.copy_gmem_to_smem(b, sb, bar)
        plgpu.barrier_wait(bar)
        left = plgpu.load(sa, (), layout=plgpu.Layout.WGMMA) * 2 - 1

        def multiply(acc):
            for _ in range(2):
                plgpu.wgmma(acc, left, plgpu.transpose_ref(sb, (1, 0)))

        ones = plgpu.layout_cast(jnp.full((m, n), 1, jnp.float32), plgpu.Layout.WGMMA)
        leave(pl.run_state(multiply)(plgpu.ACC.init(ones)), sd, d)

    scratch = [tiled((m, k), DTYPES[dtype]), tiled((n, k), DTYPES[dtype]), plgpu.SMEM((m, n), jnp.float32),
               plgpu.Barrier(num_arrivals=2)]  # fmt: skip
    launch(c, body, [d], [a, b], scratch_types=scratch)


@case("sm_90a", f16={"dtype": "f16"}, e4m3={"dtype": "e4m3"})
def pipeline(c, dtype):
    """Mosaic's software pipeline over K, a grid of tiles."""
    m, n, k, bk = 128, 128, 256, 64 if dtype == "f16" else 128
    a, b, d, _ = product(c, dtype, m, n, k)

    def body(a, b, d, sd):
        i, j = lax.axis_index("i"), lax.axis_index("j")

        def multiply(acc):
            def step(_, ta, tb):
                plgpu.wgmma(acc, ta, plgpu.transpose_ref(tb, (1, 0)))
                plgpu.wgmma_wait(1)

            def spec(at):
                transforms = (plgpu.TilingTransform((8, bk)), plgpu.SwizzleTransform(128))
                return plgpu.BlockSpec((64, bk), lambda s: (at, s), transforms=transforms, delay_release=1)

            plgpu.emit_pipeline(step, grid=(k // bk,), in_specs=[spec(i), spec(j)], max_concurrent_steps=2)(a, b)
            return acc[...]

        value = pl.run_scoped(multiply, plgpu.ACC((64, 64), jnp.float32))
        leave(value, sd, d.at[pl.ds(i * 64, 64), pl.ds(j * 64, 64)])

    scratch = [plgpu.SMEM((64, 64), jnp.float32)]
    launch(c, body, [d], [a, b], scratch_types=scratch, grid=(2, 2), grid_names=("i", "j"))


@case("sm_90a", f16={"dtype": "f16"}, bf16={"dtype": "bf16"})
def roles(c, dtype):
    """One warpgroup loads, two multiply; registers move between them; a persistent loop over tiles."""
    m, n, k, bk, stages = 256, 128, 192, 64, 2
    a, b, d, _ = product(c, dtype, m, n, k)

    def body(a, b, d, sa, sb, sd, full, empty):
        group, core = lax.axis_index("wg"), lax.axis_index("core")

        @pl.when(group == 2)
        def _():
            plgpu.set_max_registers(40, action="decrease")

            @pl.loop(0, 2)
            def _(tile):
                @pl.loop(0, k // bk)
                def _(s):
                    at = tile * (k // bk) + s
                    slot = lax.rem(at, jnp.int32(stages))

                    @pl.when(at >= stages)
                    def _():
                        plgpu.barrier_wait(empty.at[slot])

                    rows = pl.ds((tile * 2 + core) // 2 * 128, 128)
                    columns = pl.ds(lax.rem(tile * 2 + core, jnp.int32(2)) * 64, 64)
                    plgpu.copy_gmem_to_smem(a.at[rows, pl.ds(s * bk, bk)], sa.at[slot], full.at[slot])
                    plgpu.copy_gmem_to_smem(b.at[columns, pl.ds(s * bk, bk)], sb.at[slot], full.at[slot])

        @pl.when(group < 2)
        def _():
            plgpu.set_max_registers(232, action="increase")

            @pl.loop(0, 2)
            def _(tile):
                def multiply(acc):
                    @pl.loop(0, k // bk)
                    def _(s):
                        slot = lax.rem(tile * (k // bk) + s, jnp.int32(stages))
                        plgpu.barrier_wait(full.at[slot])
                        mine = sa.at[slot, pl.ds(group * 64, 64)]
                        plgpu.wgmma(acc, mine, plgpu.transpose_ref(sb.at[slot], (1, 0)))
                        plgpu.wgmma_wait(0)
                        plgpu.barrier_arrive(empty.at[slot])

                    return acc[...]

                value = pl.run_scoped(multiply, plgpu.ACC((64, 64), jnp.float32))
                rows = pl.ds((tile * 2 + core) // 2 * 128 + group * 64, 64)
                columns = pl.ds(lax.rem(tile * 2 + core, jnp.int32(2)) * 64, 64)
                leave(value, sd.at[group], d.at[rows, columns])

    scratch = [tiled((stages, 128, bk), DTYPES[dtype]), tiled((stages, 64, bk), DTYPES[dtype]),
               plgpu.SMEM((2, 64, 64), jnp.float32), plgpu.Barrier(num_arrivals=2, num_barriers=stages),
               plgpu.Barrier(num_arrivals=2, num_barriers=stages)]  # fmt: skip
    launch(c, body, [d], [a, b], scratch_types=scratch, num_threads=3, thread_name="wg", grid=(2,),
           grid_names=("core",))  # fmt: skip


@case("sm_90a", f16={"dtype": "f16"}, s8={"dtype": "s8"})
def multicast(c, dtype):
    """Two CTAs of a cluster share the columns: each loads half of B's tile for both."""
    m, n, k = 128, 64, 64 if dtype == "f16" else 128
    a, b, d, kind = product(c, dtype, m, n, k)

    def body(a, b, d, sa, sb, sd, bar, met):
        rank = lax.axis_index("x")
        plgpu.copy_gmem_to_smem(a.at[pl.ds(rank * 64, 64)], sa, bar)
        plgpu.copy_gmem_to_smem(b, sb, bar, collective_axes="x")
        plgpu.barrier_wait(bar)

        def multiply(acc):
            plgpu.wgmma(acc, sa, plgpu.transpose_ref(sb, (1, 0)))
            return acc[...]

        value = pl.run_scoped(multiply, plgpu.ACC((64, n), getattr(jnp, DTYPES[kind])))
        plgpu.barrier_arrive(met)
        plgpu.barrier_wait(met)
        leave(value, sd, d.at[pl.ds(rank * 64, 64)])

    scratch = [tiled((64, k), DTYPES[dtype]), tiled((n, k), DTYPES[dtype]),
               plgpu.SMEM((64, n), getattr(jnp, DTYPES[kind])), plgpu.Barrier(num_arrivals=2),
               plgpu.ClusterBarrier(collective_axes=("x",))]  # fmt: skip
    launch(c, body, [d], [a, b], scratch_types=scratch, cluster=(2,), cluster_names=("x",))


@case("sm_90a")
def neighbours(c):
    """Each of two CTAs stores its registers into the other's shared memory (st.async)."""
    x = c.input("x", "s32", (2, 64, 8), iota(5, 3))
    d = c.output("d", "s32", np.roll(x.values, 1, axis=0) * 3)

    def body(x, d, sx, got, loaded, there, met):
        rank = lax.axis_index("x")
        plgpu.copy_gmem_to_smem(x.at[rank], sx, loaded)
        plgpu.barrier_wait(loaded)
        value = plgpu.load(sx, (), layout=plgpu.Layout.WGMMA) * 3
        plgpu.barrier_arrive(met)
        plgpu.barrier_wait(met)
        plgpu.async_store_smem(value, got, there, cluster_idx=1 - rank, cluster_dim="x")
        plgpu.barrier_wait(there)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(got, d.at[rank])
        plgpu.wait_smem_to_gmem(0)

    scratch = [
        tiled((64, 8), "int32", 32),
        tiled((64, 8), "int32", 32),
        plgpu.Barrier(),
        plgpu.Barrier(),
        plgpu.ClusterBarrier(collective_axes=("x",)),
    ]
    launch(c, body, [d], [x], scratch_types=scratch, cluster=(2,), cluster_names=("x",))


@case(f32={"dtype": "f32"}, s32={"dtype": "s32"}, f16={"dtype": "f16"}, bf16={"dtype": "bf16"})
def reduce_store(c, dtype):
    """Four CTAs add their tiles to one by TMA: split-K without the product."""
    x = c.input("x", dtype, (4, 64, 64), integers(3, -8, 8))
    start = c.input("start", dtype, (64, 64), integers(4, -8, 8))
    d = c.output("d", dtype, start.values + x.values.sum(axis=0), rule=integers(4, -8, 8))
    del c.operands["start"]

    def body(x, d, sx, bar):
        plgpu.copy_gmem_to_smem(x.at[lax.axis_index("part")], sx, bar)
        plgpu.barrier_wait(bar)
        plgpu.copy_smem_to_gmem(sx, d, reduction_op="add")
        plgpu.wait_smem_to_gmem(0)

    scratch = [plgpu.SMEM((64, 64), getattr(jnp, DTYPES[dtype])), plgpu.Barrier()]
    launch(c, body, [d], [x], scratch_types=scratch, grid=(4,), grid_names=("part",))


@case(s32={"dtype": "s32"}, f32={"dtype": "f32"})
def split_k(c, dtype):
    """Parts of a sum meet by atomics."""
    x = c.input("x", dtype, (4, 64, 32), integers(3, -100, 100))
    d = c.output("d", dtype, x.values.sum(axis=0), rule=0)

    def body(x, d, sx, bar):
        plgpu.copy_gmem_to_smem(x.at[lax.axis_index("part")], sx, bar)
        plgpu.barrier_wait(bar)
        plgpu.atomic_add(d, plgpu.load(sx, (), layout=plgpu.Layout.WGMMA))

    scratch = [tiled((64, 32), DTYPES[dtype]), plgpu.Barrier()]
    launch(c, body, [d], [x], scratch_types=scratch, grid=(4,), grid_names=("part",))


@case()
def softmax(c):
    m, n = 64, 128
    x = c.input("x", "f32", (m, n), integers(5, -8, 8))
    e = np.exp(x.values - x.values.max(axis=1, keepdims=True))
    d = c.output("d", "f32", e / e.sum(axis=1, keepdims=True), tolerance=(1e-7, 1e-5))

    def body(x, d, sx, sd, bar):
        plgpu.copy_gmem_to_smem(x, sx, bar)
        plgpu.barrier_wait(bar)
        value = plgpu.load(sx, (), layout=plgpu.Layout.WGMMA)
        value = jnp.exp2((value - lax.broadcast_in_dim(value.max(axis=1), (m, n), [0])) * math.log2(math.e))
        leave(value / lax.broadcast_in_dim(value.sum(axis=1), (m, n), [0]), sd, d)

    tile = tiled((m, n), "float32")
    launch(c, body, [d], [x], scratch_types=[tile, tile, plgpu.Barrier()],
           compiler_params=plgpu.CompilerParams(approx_math=True))  # fmt: skip


@case(f32={"dtype": "f32"}, bf16={"dtype": "bf16"})
def layer_norm(c, dtype):
    m, n = 64, 128
    x = c.input("x", dtype, (m, n), integers(6, -16, 16))
    v = x.values - x.values.mean(axis=1, keepdims=True)
    exact = v / np.sqrt((v * v).mean(axis=1, keepdims=True) + 1e-5)
    d = c.output("d", dtype, exact, tolerance=(1e-5, 1e-5 if dtype == "f32" else 1e-2))

    def body(x, d, sx, sd, bar):
        plgpu.copy_gmem_to_smem(x, sx, bar)
        plgpu.barrier_wait(bar)
        value = plgpu.load(sx, (), layout=plgpu.Layout.WGMMA).astype(jnp.float32)

        def rows(v):
            return lax.broadcast_in_dim(v, (m, n), [0])

        value = value - rows(value.sum(axis=1) * (1 / n))
        value = value * rows(lax.rsqrt((value * value).sum(axis=1) * (1 / n) + 1e-5))
        leave(value.astype(sd.dtype), sd, d)

    tile = tiled((m, n), DTYPES[dtype])
    launch(c, body, [d], [x], scratch_types=[tile, tile, plgpu.Barrier()],
           compiler_params=plgpu.CompilerParams(approx_math=True))  # fmt: skip


@case("sm_90a", full={"causal": False}, causal={"causal": True})
def attention(c, causal):
    """One head: products by wgmma, probabilities stay in registers, a running softmax over two blocks of keys."""
    m, n, block, d = 64, 128, 64, 64
    q, k, v = (c.input(x, "f16", (r, d), integers(s, -2, 2)) for x, r, s in (("q", m, 1), ("k", n, 2), ("v", n, 3)))
    scores = q.values @ k.values.T / 8
    if causal:
        scores[np.arange(n) > np.arange(m)[:, None] + 64] = -np.inf
    p = np.exp(scores - scores.max(axis=1, keepdims=True))
    out = c.output("o", "f32", p / p.sum(axis=1, keepdims=True) @ v.values, tolerance=(4e-3, 4e-3))

    def body(q, k, v, o, sq, sk, sv, so, bar):
        plgpu.copy_gmem_to_smem(q, sq, bar)
        plgpu.copy_gmem_to_smem(k, sk, bar)
        plgpu.copy_gmem_to_smem(v, sv, bar)
        plgpu.barrier_wait(bar)

        def rows(x, width):
            return lax.broadcast_in_dim(x, (m, width), [0])

        def step(s, carry):
            acc, top, total = carry

            def first(ref):
                plgpu.wgmma(ref, sq, plgpu.transpose_ref(sk.at[pl.ds(s * block, block)], (1, 0)))
                return ref[...]

            scores = pl.run_scoped(first, plgpu.ACC((m, block), jnp.float32)) * (math.log2(math.e) / 8)
            if causal:
                at = plgpu.broadcasted_iota(jnp.int32, (m, block), 0, layout=plgpu.Layout.WGMMA)
                key = plgpu.broadcasted_iota(jnp.int32, (m, block), 1, layout=plgpu.Layout.WGMMA)
                scores = jnp.where(key + s * block <= at + 64, scores, -jnp.inf)
            new = jnp.maximum(top, scores.max(axis=1))
            p, alpha = jnp.exp2(scores - rows(new, block)), jnp.exp2(top - new)
            total = total * alpha + p.sum(axis=1)

            def second(ref):
                plgpu.wgmma(ref, p.astype(jnp.float16), sv.at[pl.ds(s * block, block)])

            return pl.run_state(second)(plgpu.ACC.init(acc * rows(alpha, d))), new, total

        def start(value, *shape):
            layout = plgpu.Layout.WGMMA if len(shape) == 2 else ROWS
            return plgpu.layout_cast(jnp.full(shape, value, jnp.float32), layout)

        acc, _, total = lax.fori_loop(0, n // block, step, (start(0, m, d), start(-jnp.inf, m), start(0, m)))
        leave(acc / rows(total, d), so, o)

    scratch = [tiled((m, d), "float16"), tiled((n, d), "float16"), tiled((n, d), "float16"),
               plgpu.SMEM((m, d), jnp.float32), plgpu.Barrier(num_arrivals=3)]  # fmt: skip
    launch(c, body, [out], [q, k, v], scratch_types=scratch,
           compiler_params=plgpu.CompilerParams(approx_math=True))  # fmt: skip
