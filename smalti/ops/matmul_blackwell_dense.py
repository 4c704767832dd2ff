"""The Blackwell matmul of plain operands: persistent, accumulators in tensor memory, on a CTA or a CTA pair.

The kernel alone; dtypes, copies of awkward operands and the choice of tiles are in `matmul_blackwell_dense_host`.
"""

from __future__ import annotations

from typing import Any

import smalti as sm
from smalti.ops.epilogue import out_tiles, store_accumulator

__all__ = ["matmul_blackwell"]


@sm.kernel("a[M,K], b[N,K] -> d[M,N]", arch="sm_100a")
def matmul_blackwell(
    a: Any,
    b: Any,
    d: Any,
    *,
    tile: Any = (128, 256, 64),
    stages: int = 4,
    slots: int = 2,
    outs: int = 2,
    group: int = 8,
    cluster: Any = (1, 1, 1),
) -> None:
    """d = a @ b.T for bf16, f16, tf32, fp8 and 8-bit integers; K is not 0.

    With cluster=(2, 1, 1) a tile belongs to a CTA pair. `slots`: accumulators that products and stores use in turn.
    """
    tm, tn, tk = tile
    pair = cluster != (1, 1, 1)
    A, B, D = a.tiles(tm, tk), b.tiles(tn, tk), d.tiles(tm, tn)
    load, mma, store = sm.roles(load=sm.warp, mma=sm.warp, store=sm.warpgroup(1))
    memory = sm.tensor_memory(D, sm.f32 if a.dtype.kind == "float" else sm.s32, pair=pair)
    width = sm.tcgen05.instruction_n(tn, b.dtype, pair=pair, transposed=b.axis == 0)
    halves = (memory.tile, width) if pair else (0, 0)
    ring = sm.ring(stages, a=A.shared(halves=halves[0]), b=B.shared(halves=halves[1]), readers=mma)
    accumulator = sm.channel(memory, writer=mma, reader=store, slots=slots)
    out = out_tiles(memory, d, outs)
    work = sm.persistent(D, group=group, pair=pair)

    with load.elect():
        for i, j in work:
            for k in A.range(1):
                with ring.put() as s:
                    s.a.load(A[i, k])
                    s.b.load(B[j, k])

    with mma.elect(), sm.when(sm.cluster_rank() == 0):
        for _ in work:
            with accumulator.put() as c:
                for k in A.range(1):
                    with ring.get() as s:
                        c.mma(s.a, s.b.T, add=k > 0)

    with store:
        for i, j in work:
            with accumulator.get() as c:
                store_accumulator(c, D[i, j], out, lambda x: x.to(d.dtype))
