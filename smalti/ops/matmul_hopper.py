"""The Hopper matmul: persistent, one producer and one or two consumer warpgroups, TMA in and, where D allows, out.

The kernel alone; dtypes, copies of awkward operands and the choice of tiles are in `matmul_hopper_host`.
"""

from __future__ import annotations

from typing import Any

import smalti as sm

__all__ = ["matmul_hopper"]


@sm.kernel("a[M,K], b[N,K] -> d[M,N]", arch="sm_90a")
def matmul_hopper(
    a: Any,
    b: Any,
    d: Any,
    *,
    tile: Any = (128, 256, 64),
    stages: int = 4,
    parts: int = 4,
    group: int = 8,
    cluster: Any = (1, 1, 1),
) -> None:
    """d = a @ b.T. `parts`: column parts in which D leaves, through two shared tiles in turn.

    The CTAs of a cluster take tiles below each other and load B once for all of them.
    """
    tm, tn, tk = tile
    A, B, D = a.tiles(tm, tk), b.tiles(tn, tk), d.tiles(tm, tn)
    consumers = 2 if tm >= 128 else 1
    rows, part = tm // consumers, tn // parts
    budget = {"load": 40, "mma": 232} if consumers == 2 else {"load": 0, "mma": 0}
    load, mma = sm.roles(load=sm.warpgroup(1, regs=budget["load"]), mma=sm.warpgroup(consumers, regs=budget["mma"]))
    ring = sm.ring(stages, a=A.shared(), b=B.shared(), readers=mma, multicast=("b",) if cluster[0] > 1 else ())
    outs = [sm.shared((tm, part), d.dtype, name="d_out") for _ in range(min(parts, 2))] if d.bulk else []
    accumulated = sm.f32 if a.dtype.kind == "float" else sm.s32
    work = sm.persistent(D, group=group)

    with load.elect():
        for i, j in work:
            for k in A.range(1):
                with ring.put() as s:
                    s.a.load(A[i, k])
                    s.b.load(B[j, k])

    with mma as g:
        acc = sm.wgmma.accumulator(rows, tn, accumulated)  # K = 0: stays zero
        for i, j in work:
            for k in A.range(1):
                with ring.get(behind=1) as s:
                    acc.mma(s.a.rows(g, rows), s.b.T, add=k > 0)
            values = acc.wait().to(d.dtype)
            for p in range(parts):
                target = D[i, j].rows(g, rows).columns(p, part)
                if not outs:
                    target.store(values.columns(p, part))
                else:
                    mine = outs[p % len(outs)].rows(g, rows)
                    mine.set(values.columns(p, part))
                    target.store(mine)
