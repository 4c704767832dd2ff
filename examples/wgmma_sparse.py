"""2:4 sparse wgmma: d = dense(a) @ b.T where A holds the two kept elements of each four, and E says which they were.

Run it: `python examples/wgmma_sparse.py`.
"""

import ml_dtypes
import numpy as np

import smalti as sm


@sm.kernel("a[M,P], e[M,C], b[N,K] -> d[M,N]", arch="sm_90a")
def sparse_matmul(a, e, b, d, *, m=64, n=64, k=128, from_registers=False):
    """a: packed [M, K/2], e: metadata bytes [M, K/8] (tf32: [M, K/4]), b: [N, K]."""
    per_byte = 4 if a.dtype.bits == 32 else 8
    A, E, B, D = a.tiles(m, k // 2), e.tiles(m, k // per_byte), b.tiles(n, k), d.tiles(m, n)
    i, j = sm.block_tile(D)
    ring = sm.ring(2, a=A.shared(), b=B.shared())
    acc = sm.wgmma.accumulator(m, n, "s32" if a.dtype.kind != "float" else "f32")
    for t in B.range(1):
        with sm.elect(), ring.put() as s:
            s.a.load(A[i, t])
            s.b.load(B[j, t])
        codes = sm.sparse_metadata(E[i, t], a.dtype)
        with ring.get() as s:
            left = s.a.get(sm.wgmma.a_layout(m, k // 2, a.dtype)) if from_registers else s.a
            acc.mma(left, s.b.T, add=True, metadata=codes)
    D[i, j].store(acc.wait().to(d.dtype))


def compress(dense):
    """A matrix with at most two nonzero elements in each four of a row: packed elements, and metadata bytes."""
    chunk = 2 if dense.itemsize == 4 else 4
    rows, k = dense.shape
    groups = dense.reshape(rows, k // chunk, chunk)
    keep = chunk // 2
    order = np.argsort(groups.astype(np.float64) == 0, axis=-1, kind="stable")[..., :keep]
    order.sort(axis=-1)
    packed = np.take_along_axis(groups, order, axis=-1).reshape(rows, k // 2)
    codes = np.where(order[..., 0] == 0, 0b0100, 0b1110) if chunk == 2 else order[..., 0] | order[..., 1] << 2
    pairs = codes.reshape(rows, -1, 2).astype(np.uint8)
    return packed, pairs[..., 0] | pairs[..., 1] << 4


def prune(dense, rng):
    """Set all but two random elements of each four (tf32: one of each two) of a row to zero."""
    chunk = 2 if dense.itemsize == 4 else 4
    groups = dense.reshape(dense.shape[0], -1, chunk)
    drop = np.argsort(rng.random(groups.shape), axis=-1)[..., : chunk // 2]
    np.put_along_axis(groups, drop, dense.dtype.type(0), axis=-1)
    return groups.reshape(dense.shape)


def main() -> None:
    rng = np.random.default_rng(1)
    dense = prune(rng.integers(-3, 4, (100, 256)).astype(ml_dtypes.bfloat16), rng)
    b = rng.integers(-3, 4, (72, 256)).astype(ml_dtypes.bfloat16)
    packed, codes = compress(dense)
    d = sparse_matmul(packed, codes, b, d="f32", device="virtual:sm_90a")
    exact = dense.astype(np.float32) @ b.astype(np.float32).T
    print("exact" if np.array_equal(d, exact) else "WRONG")


if __name__ == "__main__":
    main()
