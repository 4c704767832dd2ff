"""Hopper's tensor core with A in registers: d = a @ b.T for one CTA's tile, for every type that wgmma takes.

A is loaded straight into the layout of operand A, several 64-row tiles tall and several instructions of K long;
B comes by TMA. Run it: `python examples/wgmma_register_a.py`.
"""

import numpy as np

import smalti as sm


@sm.kernel("a[M,K], b[N,K] -> d[M,N]", arch="sm_90a")
def register_a(a, b, d, *, m=128, n=64, k=128, swizzle="", a_transpose=False):
    A, B, D = a.tiles(m, k), b.tiles(n, k), d.tiles(m, n)
    i, j = sm.block_tile(D)
    ring = sm.ring(1, b=B.shared(swizzle=swizzle))
    acc = sm.wgmma.accumulator(m, n, "s32" if a.dtype.name in ("s8", "u8") else "f32")
    for t in A.range(1):
        with sm.elect(), ring.put() as s:
            s.b.load(B[j, t])
        x = A[i, t].load(sm.wgmma.a_layout(m, k, a.dtype))
        with ring.get() as s:
            acc.mma(x, s.b.T, add=True, a_transpose=a_transpose)
    D[i, j].store(acc.wait().to(d.dtype))


@sm.kernel("a[M,K], b[N,K] -> d[M,N]", arch="sm_90a")
def widened_a(a, b, d, *, m=64, n=64, k=64):
    """8-bit integer weights times bf16: A is loaded as s8 where bf16 operand A lies, and widened in registers."""
    A, B, D = a.tiles(m, k), b.tiles(n, k), d.tiles(m, n)
    i, j = sm.block_tile(D)
    ring = sm.ring(1, b=B.shared())
    acc = sm.wgmma.accumulator(m, n, "f32")
    for t in A.range(1):
        with sm.elect(), ring.put() as s:
            s.b.load(B[j, t])
        x = A[i, t].load(sm.wgmma.a_layout(m, k, b.dtype)).to("f32").to(b.dtype)
        with ring.get() as s:
            acc.mma(x, s.b.T, add=True)
    D[i, j].store(acc.wait().to(d.dtype))


@sm.kernel("a[M,K], b[N,K], c[P,N] -> d[M,P]", arch="sm_90a")
def chained(a, b, c, d, *, m=64, n=128, p=64, k=64):
    """d = (a @ b.T) @ c.T with the first product as A of the second, still in registers.

    A 16-bit accumulator lies as operand A does; an 8-bit one does not, and goes through shared memory.
    """
    A, B, C, D = a.tiles(m, k), b.tiles(n, k), c.tiles(p, n), d.tiles(m, p)
    sa, sb, sc = A.shared(), B.shared(), C.shared()
    ready = sm.barrier(1)
    with sm.elect():
        ready.arrive(expect=sa.bytes + sb.bytes + sc.bytes)
        sa.load(A[0, 0], ready)
        sb.load(B[0, 0], ready)
        sc.load(C[0, 0], ready)
    ready.wait(0)
    first = sm.wgmma.accumulator(m, n, "f32")
    first.mma(sa, sb.T, add=False)
    middle = first.wait().to(c.dtype)
    if c.dtype.bits == 8:
        middle = middle.through(sm.shared((m, n), c.dtype, name="scratch"), sm.wgmma.a_layout(m, n, c.dtype))
    second = sm.wgmma.accumulator(m, p, "f32")
    second.mma(middle, sc.T, add=False)
    D[0, 0].store(second.wait().to(d.dtype))


def main() -> None:
    rng = np.random.default_rng(1)
    a, b = (rng.integers(-3, 4, shape).astype(np.float32) for shape in ((128, 256), (64, 256)))
    for name in ("bf16", "f16", "e4m3", "e5m2"):
        x, y = (v.astype(np.dtype(sm.numpy_dtype(name))) for v in (a, b))
        result = register_a(x, y, d="f32", device="virtual:sm_90a")
        print(name, "exact" if np.array_equal(result, a @ b.T) else "WRONG")


if __name__ == "__main__":
    main()
