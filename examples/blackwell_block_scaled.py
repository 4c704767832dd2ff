"""Block-scaled products of Blackwell from their parts: scale factors in any memory and order, several row and column
tiles in one call, slices of operands and accumulators, a run-time flag that says whether to add.

`smalti.ops.matmul_blackwell` is the ready kernel, whose operands bring their scales themselves. JAX's layer refuses
most of this. Run it: `python examples/blackwell_block_scaled.py`.
"""

from __future__ import annotations

import numpy as np

import smalti as sm
from smalti.run.scaled import tile_scales

V = "virtual:sm_100a"


@sm.kernel("a[M,K], b[N,K], sa[G,P,512], sb[H,P,512] -> d[M,N]", arch="sm_100a")
def scales_in_atoms(a, b, sa, sb, d, *, tile=(256, 128, 128), block=32, scale="ue8m0"):
    """d = (a * sa) @ (b * sb).T with the scales already in atoms of 128 rows x 4 factors: TMA, then tcgen05.cp."""
    tm, tn, tk = tile
    factors = tk // block
    A, B, D = a.tiles(tm, tk), b.tiles(tn, tk), d.tiles(tm, tn)
    SA, SB = sa.tiles(1, factors // 4, 512), sb.tiles(1, factors // 4, 512)
    i, j = sm.block_tile(D)
    load, mma, epilogue = sm.roles(load=sm.warp, mma=sm.warp, epilogue=sm.warpgroup(1))
    memory = sm.tensor_memory(D, sm.f32)
    of_a, of_b = sm.scale_tile((tm, factors), scale, name="of_a"), sm.scale_tile((tn, factors), scale, name="of_b")
    ring = sm.ring(2, a=A.shared(), b=B.shared(), sa=of_a, sb=of_b, readers=mma)
    accumulator = sm.channel(memory, writer=mma, reader=epilogue)
    with load.elect():
        for k in A.range(1):
            with ring.put() as s:
                s.a.load(A[i, k])
                s.b.load(B[j, k])
                s.sa.load(SA[i * (tm // 128), k, 0])  # from that row group on
                s.sb.load(SB[j * (tn // 128), k, 0])
    with mma.elect(), accumulator.put() as c:
        for k in A.range(1):
            with ring.get() as s:
                scales = s.sa.to_tensor_memory(), s.sb.to_tensor_memory()
                c.mma(s.a, s.b.T, scales=scales, add=k > 0)
    with epilogue, accumulator.get() as c:
        for p in c.split():
            D[i, j].like(p).store(p.load().to(d.dtype))


@sm.kernel("a[M,K], b[N,K], sa[M,P], sb[N,P] -> d[M,N]", arch="sm_100a")
def scales_row_major(a, b, sa, sb, d, *, tile=(256, 192, 128), block=32, scale="ue8m0", cluster=(1, 1, 1)):
    """The same with scales as matrices [rows, blocks] in global memory: a warpgroup rearranges them on their way."""
    tm, tn, tk = tile
    pair = cluster != (1, 1, 1)
    factors = tk // block
    A, B, D = a.tiles(tm, tk), b.tiles(tn, tk), d.tiles(tm, tn)
    i, j = sm.block_tile(D, pair=pair)
    load, mma, work = sm.roles(load=sm.warp, mma=sm.warp, work=sm.warpgroup(1))
    memory = sm.tensor_memory(D, sm.f32, pair=pair)
    rows = memory.tile if pair else 0
    mine = tm // 2 if pair else tm  # A's scales are those of a CTA's own rows, B's are all of them
    columns = sm.tcgen05.instruction_n(tn, b.dtype, pair=pair, scaled=True) if pair else 0
    SA, SB = sa.tiles(128, factors), sb.tiles(tn, factors)
    ring = sm.ring(2, a=A.shared(halves=rows), b=B.shared(halves=columns), readers=mma)
    of_a = sm.scale_tile((mine, factors), scale, pair=pair, name="of_a")
    of_b = sm.scale_tile((tn, factors), scale, pair=pair, name="of_b")
    ready = sm.ring(2, sa=of_a, sb=of_b, readers=mma, name="ready")
    accumulator = sm.channel(memory, writer=mma, reader=work)
    with load.elect():
        for k in A.range(1):
            with ring.put() as s:
                s.a.load(A[i, k])
                s.b.load(B[j, k])
    with mma.elect(), sm.when(sm.cluster_rank() == 0), accumulator.put() as c:
        for k in A.range(1):
            with ring.get() as s, ready.get() as f:
                scales = f.sa.to_tensor_memory(), f.sb.to_tensor_memory()
                c.mma(s.a, s.b.T, scales=scales, add=k > 0)
    with work:
        for k in A.range(1):
            with ready.put() as f:
                for g in range(mine // 128):  # the CTAs of a pair take turns in groups of 128 rows
                    group = i * (tm // 128) + (2 * g + sm.cluster_rank() if pair else g)
                    f.sa.rows(g, 128).load(SA[group, k])
                f.sb.load(SB[j, k])
        with accumulator.get() as c:
            for p in c.split():
                D[i, j].like(p).store(p.load().to(d.dtype))


@sm.kernel("a[M,K], b[N,K], sa[M,P], sb[N,P] -> d[M,N]", arch="sm_100a")
def scales_in_shared_memory(a, b, sa, sb, d, *, tile=(128, 128, 512), block=32, scale="ue8m0"):
    """The same with row-major scales that lie in shared memory: to registers, and from there into atoms."""
    tm, tn, tk = tile
    factors = tk // block
    A, B, D = a.tiles(tm, tk), b.tiles(tn, tk), d.tiles(tm, tn)
    SA, SB = sa.tiles(tm, factors), sb.tiles(tn, factors)
    i, j = sm.block_tile(D)
    load, mma, work = sm.roles(load=sm.warp, mma=sm.warp, work=sm.warpgroup(1))
    memory = sm.tensor_memory(D, sm.f32)
    ring = sm.ring(1, a=A.shared(), b=B.shared(), readers=mma)
    raw = sm.ring(1, sa=SA.shared(swizzle="none"), sb=SB.shared(swizzle="none"), readers=work, name="raw")
    of_a, of_b = sm.scale_tile((tm, factors), scale, name="of_a"), sm.scale_tile((tn, factors), scale, name="of_b")
    ready = sm.ring(1, sa=of_a, sb=of_b, readers=mma, name="ready")
    accumulator = sm.channel(memory, writer=mma, reader=work)
    with load.elect():
        for k in A.range(1):
            with raw.put() as r:
                r.sa.load(SA[i, k])
                r.sb.load(SB[j, k])
            with ring.put() as s:
                s.a.load(A[i, k])
                s.b.load(B[j, k])
    with mma.elect(), accumulator.put() as c:
        for k in A.range(1):
            with ring.get() as s, ready.get() as f:
                scales = f.sa.to_tensor_memory(), f.sb.to_tensor_memory()
                c.mma(s.a, s.b.T, scales=scales, add=k > 0)
    with work:
        for _ in A.range(1):
            with raw.get() as r, ready.put() as f:
                f.sa.set(r.sa.get(sm.tcgen05.scale_layout(tm, factors)))
                f.sb.set(r.sb.get(sm.tcgen05.scale_layout(tn, factors)))
        with accumulator.get() as c:
            for p in c.split():
                D[i, j].like(p).store(p.load().to(d.dtype))


@sm.kernel("a[M,K]:scaled, b[N,K]:scaled, flag[1] -> d[M,N]", arch="sm_100a")
def sliced(a, b, flag, d, *, tile=(256, 192, 128), columns=96):
    """d = 2 a @ b.T if the flag is 1; if it is 0, what the last step of K contributes. Each step is multiplied by one
    call that spans all row and column tiles, and once more in slices that the flag adds to D: row tiles of A and D by a
    run-time loop, columns of B and D in parts."""
    tm, tn, tk = tile
    A, B, D = a.tiles(tm, tk), b.tiles(tn, tk), d.tiles(tm, tn)
    i, j = sm.block_tile(D)
    load, mma, epilogue = sm.roles(load=sm.warp, mma=sm.warp, epilogue=sm.warpgroup(1))
    memory = sm.tensor_memory(D, sm.f32)
    ring = sm.ring(2, a=A.shared(), b=B.shared(), readers=mma)
    accumulator = sm.channel(memory, writer=mma, reader=epilogue)
    whole, parts = sm.barrier(1), sm.barrier(1)
    with load:
        for k in A.range(1):
            with ring.put() as s:
                s.a.load(A[i, k])
                s.b.load(B[j, k])
    with mma.elect(), accumulator.put() as c:
        for k in A.range(1):
            with ring.get() as s:
                scales = s.scales.to_tensor_memory(b=B[j, k])
                c.mma(s.a, s.b.T, scales=scales, add=k > 0)
                sm.tcgen05.commit(whole)  # products of another shape are not in order with these
                whole.wait(k & 1)
                sm.tcgen05.fence_after()
                for g in sm.range(tm // 128):
                    for h in range(tn // columns):
                        part = c.rows(g, 128).columns(h, columns)
                        part.mma(s.a.rows(g, 128), s.b.rows(h, columns).T, scales=scales, add=flag.scalar())
                sm.tcgen05.commit(parts)
                parts.wait(k & 1)
                sm.tcgen05.fence_after()
    with epilogue, accumulator.get() as c:
        for p in c.split():
            D[i, j].like(p).store(p.load().to(d.dtype))


def main() -> None:
    rng = np.random.default_rng(1)
    x, y = (rng.integers(-8, 9, (rows, 512)).astype(np.float32) for rows in (256, 128))
    a, b = sm.quantize(x, "mxfp8"), sm.quantize(y, "mxfp8")
    e4m3 = sm.numpy_dtype("e4m3")
    data = a.elements.view(e4m3), b.elements.view(e4m3)
    roads = {
        "scales in atoms": scales_in_atoms(*data, tile_scales(a.scales), tile_scales(b.scales), d="f32", device=V),
        "row-major scales": scales_row_major(*data, a.scales, b.scales, d="f32", device=V),
        "scales in shared memory": scales_in_shared_memory(*data, a.scales, b.scales, d="f32", device=V),
        "slices": sliced(a, b, np.ones(1, np.int32), d="f32", device=V) / 2,
    }
    for name, d in roads.items():
        print(f"{name}: {'exact' if np.array_equal(d, x @ y.T) else 'WRONG'}")


if __name__ == "__main__":
    main()
