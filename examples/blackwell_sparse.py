"""Sparse metadata in tensor memory: in by copy from shared memory, out to registers, in again by store, and used by
sparse products on both roads. JAX's layer refuses the loads and stores.

Run it: `python examples/blackwell_sparse.py`.
"""

from __future__ import annotations

import numpy as np

import smalti as sm

V = "virtual:sm_100a"


@sm.kernel("a[M,H], b[N,K], e[R,C] -> d[M,N]", arch="sm_100a")
def sparse_by_copy(a, b, e, d, *, tile=(128, 64, 128), cluster=(1, 1, 1)):
    """d = A @ b.T where a holds the kept half of A and e the words of its metadata (`Sparse.words()`)."""
    tm, tn, tk = tile
    pair = cluster != (1, 1, 1)
    A, B, D = a.tiles(tm, tk // 2), b.tiles(tn, tk), d.tiles(tm, tn)
    i, j = sm.block_tile(D, pair=pair)
    load, mma, epilogue = sm.roles(load=sm.warp, mma=sm.warp, epilogue=sm.warpgroup(1))
    memory = sm.tensor_memory(D, "s32" if a.dtype.name in ("s8", "u8") else "f32", pair=pair)
    metadata = sm.metadata_memory((tm, tk), a.dtype, pair=pair)
    E = e.tiles(*metadata.words.shape)
    rows, columns = (memory.tile, tn) if pair else (0, 0)  # what the CTAs of a pair halve
    words = E.shared(swizzle="none", halves=rows)
    ring = sm.ring(2, a=A.shared(halves=rows), b=B.shared(halves=columns), e=words, readers=mma)
    accumulator = sm.channel(memory, writer=mma, reader=epilogue)
    with load.elect():
        for k in A.range(1):
            with ring.put() as s:
                s.a.load(A[i, k])
                s.b.load(B[j, k])
                s.e.load(E[i, k])
    with mma.elect(), sm.when(sm.cluster_rank() == 0), accumulator.put() as c:
        for k in A.range(1):
            with ring.get() as s:
                metadata.copy(s.e)
                c.mma(s.a, s.b.T, metadata=metadata, add=k > 0)
    with epilogue, accumulator.get() as c:
        for p in c.split():
            D[i, j].like(p).store(p.load().to(d.dtype))


@sm.kernel("a[M,H], b[N,K], e[R,C] -> d[M,N], seen[R,C]", arch="sm_100a")
def sparse_by_registers(a, b, e, d, seen, *, tile=(128, 64, 128)):
    """The same, but a warpgroup loads the metadata that was copied and stores it elsewhere in tensor memory, from where
    the products take it. What it saw goes to `seen`, too."""
    tm, tn, tk = tile
    A, B, D = a.tiles(tm, tk // 2), b.tiles(tn, tk), d.tiles(tm, tn)
    i, j = sm.block_tile(D)
    load, mma, work = sm.roles(load=sm.warp, mma=sm.warp, work=sm.warpgroup(1))
    memory = sm.tensor_memory(D, "s32" if a.dtype.name in ("s8", "u8") else "f32")
    copied, stored = (sm.metadata_memory((tm, tk), a.dtype, name=n) for n in ("copied", "stored"))
    E, S = e.tiles(*copied.words.shape), seen.tiles(*copied.words.shape)
    ring = sm.ring(2, a=A.shared(), b=B.shared(), e=E.shared(swizzle="none"), readers=mma)
    there = sm.channel(copied, writer=mma, reader=work)
    back = sm.channel(stored, writer=work, reader=mma)
    accumulator = sm.channel(memory, writer=mma, reader=work)
    with load.elect():
        for k in A.range(1):
            with ring.put() as s:
                s.a.load(A[i, k])
                s.b.load(B[j, k])
                s.e.load(E[i, k])
    with mma.elect(), accumulator.put() as c:
        for k in A.range(1):
            with ring.get() as s:
                with there.put() as m:  # tcgen05.cp; commit tells the warpgroup
                    m.copy(s.e)
                with back.get() as m:
                    c.mma(s.a, s.b.T, metadata=m, add=k > 0)
    with work:
        for k in A.range(1):
            with there.get() as m, back.put() as other:
                for p, q in zip(m.split(), other.split(), strict=True):
                    words = p.load()  # tcgen05.ld, wait::ld
                    q.store(words)  # tcgen05.st, wait::st
                    S[i, k].like(p).store(words)
        with accumulator.get() as c:
            for p in c.split():
                D[i, j].like(p).store(p.load().to(d.dtype))


def main() -> None:
    rng = np.random.default_rng(1)
    for name in ("f16", "bf16", "e4m3", "s8"):
        kind = sm.numpy_dtype(name)
        a = sm.compress(sm.prune(rng.integers(-7, 8, (128, 256)).astype(np.float32).astype(kind)))
        b = rng.integers(-7, 8, (64, 256)).astype(np.float32).astype(kind)
        want = a.dense().astype(np.float64) @ b.astype(np.float64).T
        result = "s32" if name == "s8" else "f32"
        first = sparse_by_copy(a.kept, b, a.words(), d=result, device=V)
        second, seen = sparse_by_registers(a.kept, b, a.words(), d=result, seen="u32", device=V)
        same = np.array_equal(first, second) and np.array_equal(seen, a.words())
        print(name, "exact," if np.array_equal(first, want) else "WRONG,", "equal" if same else "DIFFERENT", "roads")


if __name__ == "__main__":
    main()
