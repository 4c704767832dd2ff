"""The Blackwell block-scaled matmul: one accumulator of several row and column tiles, on a CTA or a CTA pair.

The kernel alone; quantisation, the choice of tiles and empty shapes are in `matmul_blackwell_host`.
"""

from __future__ import annotations

from typing import Any

import smalti as sm
from smalti.ops.epilogue import out_tiles, store_accumulator

__all__ = ["mx_matmul"]


@sm.kernel("a[M,K]:scaled, b[N,K]:scaled, alpha[1] -> d[M,N]", arch="sm_100a")
def mx_matmul(
    a: Any,
    b: Any,
    alpha: Any,
    d: Any,
    *,
    tile: Any = (256, 192, 128),
    stages: int = 3,
    slots: int = 1,
    outs: int = 2,
    group: int = 8,
    cluster: Any = (1, 1, 1),
    global_scale: bool = False,
) -> None:
    """d = alpha * (a @ b.T) for MXFP8, MXFP4 and NVFP4 operands. alpha counts with `global_scale` only (NVFP4).

    With cluster=(2, 1, 1) a tile belongs to a CTA pair: each CTA loads its half of the rows of A and of the columns
    of B, the tensor core of the even one reads both. `slots`: accumulators that products and stores use in turn.
    """
    tm, tn, tk = tile
    pair = cluster != (1, 1, 1)
    A, B, D = a.tiles(tm, tk), b.tiles(tn, tk), d.tiles(tm, tn)
    load, mma, store = sm.roles(load=sm.warp, mma=sm.warp, store=sm.warpgroup(1))
    memory = sm.tensor_memory(D, sm.f32, pair=pair)
    width = sm.tcgen05.instruction_n(tn, b.dtype, pair=pair, scaled=True)
    halves = (memory.tile, width) if pair else (0, 0)
    left, right = A.shared(halves=halves[0]), B.shared(halves=halves[1], all_scales=pair)
    ring = sm.ring(stages, a=left, b=right, readers=mma)
    accumulator = sm.channel(memory, writer=mma, reader=store, slots=slots)
    out = out_tiles(memory, d, outs)
    work = sm.persistent(D, group=group, pair=pair)

    with load:
        for i, j in work:
            for k in A.range(1):
                with ring.put() as s:
                    s.a.load(A[i, k])
                    s.b.load(B[j, k])

    with mma.elect(), sm.when(sm.cluster_rank() == 0):
        for _, j in work:
            with accumulator.put() as c:
                for k in A.range(1):
                    with ring.get() as s:
                        scales = s.scales.to_tensor_memory(b=B[j, k])
                        c.mma(s.a, s.b.T, scales=scales, add=k > 0)

    with store:
        level = alpha.scalar() if global_scale else None
        for i, j in work:
            with accumulator.get() as c:
                store_accumulator(c, D[i, j], out, lambda x: (x if level is None else x * level).to(d.dtype))
