"""Gluon on Blackwell, one CTA: products of every type, A in tensor memory, warp roles, copies, tensor-memory shapes."""

# ruff: noqa: SIM113  (kernels have no enumerate)

import numpy as np
from case import case, integers, iota
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import blackwell as bw
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

TYPES = {"f16": gl.float16, "bf16": gl.bfloat16, "f32": gl.float32, "e4m3": gl.float8e4nv, "e5m2": gl.float8e5,
         "s8": gl.int8, "u8": gl.uint8, "s32": gl.int32}  # fmt: skip


def described(tensor, block, **options):
    layout = gl.NVMMASharedLayout.get_default_for(block, TYPES[tensor.format], **options)
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block, layout)


def operand(c, name, dtype, shape, seed):
    top = 100 if dtype == "s8" else 4
    return c.input(name, dtype, shape, integers(seed, -top, top))


@gluon.jit
def tile_kernel(a, b, d, K, ACC: gl.constexpr, BM: gl.constexpr):
    """D = A B^T: one output tile, one buffer; the loads wait for the products."""
    BN: gl.constexpr = b.block_shape[0]
    BK: gl.constexpr = a.block_shape[1]
    sa = gl.allocate_shared_memory(a.dtype, a.block_shape, a.layout)
    sb = gl.allocate_shared_memory(b.dtype, b.block_shape, b.layout)
    full = mbarrier.allocate_mbarrier()
    done = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    mbarrier.init(done, count=1)
    acc = bw.allocate_tensor_memory(ACC, [BM, BN], bw.TensorMemoryLayout([BM, BN], col_stride=1))
    phase = 0
    for k in range(0, K, BK):
        mbarrier.expect(full, a.nbytes_per_cta + b.nbytes_per_cta)
        tma.async_load(a, [0, k], full, sa)
        tma.async_load(b, [0, k], full, sb)
        mbarrier.wait(full, phase)
        bw.tcgen05_mma(sa, sb.permute((1, 0)), acc, use_acc=k > 0, mbarriers=[done])
        mbarrier.wait(done, phase)
        phase ^= 1
    mbarrier.invalidate(full)
    mbarrier.invalidate(done)
    sd = gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout)
    sd.store(acc.load().to(d.dtype))
    fence_async_shared()
    tma.async_store(d, [0, 0], sd)
    tma.store_wait(0)


@case("sm_100a", **{n: {"dtype": n} for n in ("f16", "bf16", "f32", "e4m3", "e5m2", "s8")},
      m64={"dtype": "f16", "m": 64}, n256={"dtype": "e4m3", "n": 256})  # fmt: skip
def tile(c, dtype, m=128, n=64):
    k, bk = (64, 32) if dtype == "f32" else (128, 64)
    a, b = operand(c, "a", dtype, (m, k), 1), operand(c, "b", dtype, (n, k), 2)
    out, acc = ("s32", gl.int32) if dtype == "s8" else ("f32" if dtype == "f32" else "f16", gl.float32)
    d = c.output("d", out, a.values @ b.values.T)
    c.launch(tile_kernel, (1,), described(a, [m, bk]), described(b, [n, bk]), described(d, [m, n]), k, ACC=acc, BM=m)


@gluon.jit
def tensor_a_kernel(a, b, d, K: gl.constexpr):
    """A goes through registers into tensor memory and is doubled on the way."""
    BM: gl.constexpr = a.block_shape[0]
    BN: gl.constexpr = b.block_shape[0]
    sa = gl.allocate_shared_memory(a.dtype, a.block_shape, a.layout)
    sb = gl.allocate_shared_memory(b.dtype, b.block_shape, b.layout)
    full = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    mbarrier.expect(full, a.nbytes_per_cta + b.nbytes_per_cta)
    tma.async_load(a, [0, 0], full, sa)
    tma.async_load(b, [0, 0], full, sb)
    mbarrier.wait(full, 0)
    mbarrier.invalidate(full)
    done = mbarrier.allocate_mbarrier()
    mbarrier.init(done, count=1)
    ta = bw.allocate_tensor_memory(a.dtype, [BM, K], bw.TensorMemoryLayout([BM, K], col_stride=1))
    x = sa.load(ta.get_reg_layout())
    ta.store((x.to(gl.float32) * 2).to(a.dtype))
    acc = bw.allocate_tensor_memory(gl.float32, [BM, BN], bw.TensorMemoryLayout([BM, BN], col_stride=1))
    acc.store(gl.full([BM, BN], 5.0, gl.float32, acc.get_reg_layout()))
    bw.tcgen05_mma(ta, sb.permute((1, 0)), acc)
    bw.tcgen05_commit(done)
    mbarrier.wait(done, 0)
    mbarrier.invalidate(done)
    sd = gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout)
    sd.store(acc.load())
    fence_async_shared()
    tma.async_store(d, [0, 0], sd)
    tma.store_wait(0)


@case("sm_100a", f16={"dtype": "f16"}, e4m3={"dtype": "e4m3"})
def tensor_a(c, dtype):
    a, b = operand(c, "a", dtype, (128, 64), 3), operand(c, "b", dtype, (32, 64), 4)
    d = c.output("d", "f32", 2 * a.values @ b.values.T + 5)
    c.launch(tensor_a_kernel, (1,), described(a, [128, 64]), described(b, [32, 64]), described(d, [128, 32]), K=64)


@gluon.jit
def _load(a, b, sa, sb, full, empty, tiles, columns, K, STAGES: gl.constexpr):
    BK: gl.constexpr = a.block_shape[1]
    n = 0
    for t in range(gl.program_id(0), tiles, gl.num_programs(0)):
        i, j = t // columns * a.block_shape[0], t % columns * b.block_shape[0]
        for k in range(0, K, BK):
            s = n % STAGES
            mbarrier.wait(empty.index(s), (n // STAGES & 1) ^ 1)
            mbarrier.expect(full.index(s), a.nbytes_per_cta + b.nbytes_per_cta)
            tma.async_load(a, [i, k], full.index(s), sa.index(s))
            tma.async_load(b, [j, k], full.index(s), sb.index(s))
            n += 1


@gluon.jit
def _multiply(sa, sb, full, empty, acc, ready, free, tiles, K, BK: gl.constexpr, STAGES: gl.constexpr):
    n = 0
    m = 0
    for _t in range(gl.program_id(0), tiles, gl.num_programs(0)):
        mbarrier.wait(free.index(m % 2), (m // 2 & 1) ^ 1)
        for k in range(0, K, BK):
            s = n % STAGES
            mbarrier.wait(full.index(s), n // STAGES & 1)
            bw.tcgen05_mma(sa.index(s), sb.index(s).permute((1, 0)), acc.index(m % 2), use_acc=k > 0,
                           mbarriers=[empty.index(s)])  # fmt: skip
            n += 1
        bw.tcgen05_commit(ready.index(m % 2))
        m += 1


@gluon.jit
def _finish(d, acc, ready, free, tiles, columns):
    sd = gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout)
    m = 0
    for t in range(gl.program_id(0), tiles, gl.num_programs(0)):
        mbarrier.wait(ready.index(m % 2), m // 2 & 1)
        value = acc.index(m % 2).load()
        mbarrier.arrive(free.index(m % 2), count=1)
        tma.store_wait(0)
        sd.store(value.to(d.dtype))
        fence_async_shared()
        tma.async_store(d, [t // columns * d.block_shape[0], t % columns * d.block_shape[1]], sd)
        m += 1
    tma.store_wait(0)


@gluon.jit
def roles_kernel(a, b, d, tiles, columns, K, STAGES: gl.constexpr):
    """Warps that load, that multiply, that finish; two accumulators, a ring of operands."""
    BM: gl.constexpr = a.block_shape[0]
    BN: gl.constexpr = b.block_shape[0]
    BK: gl.constexpr = a.block_shape[1]
    sa = gl.allocate_shared_memory(a.dtype, [STAGES] + a.block_shape, a.layout)
    sb = gl.allocate_shared_memory(b.dtype, [STAGES] + b.block_shape, b.layout)
    full = mbarrier.allocate_mbarrier(batch=STAGES)
    empty = mbarrier.allocate_mbarrier(batch=STAGES)
    ready = mbarrier.allocate_mbarrier(batch=2)
    free = mbarrier.allocate_mbarrier(batch=2)
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=1)
        mbarrier.init(empty.index(s), count=1)
    for s in gl.static_range(2):
        mbarrier.init(ready.index(s), count=1)
        mbarrier.init(free.index(s), count=1)
    acc = bw.allocate_tensor_memory(gl.float32, [2, BM, BN], bw.TensorMemoryLayout([BM, BN], col_stride=1))
    gl.warp_specialize(
        [
            (_finish, (d, acc, ready, free, tiles, columns)),
            (_load, (a, b, sa, sb, full, empty, tiles, columns, K, STAGES)),
            (_multiply, (sa, sb, full, empty, acc, ready, free, tiles, K, BK, STAGES)),
        ],
        [1, 1],
        [24, 24],
    )


@case("sm_100a", two={"stages": 2}, three={"stages": 3})
def roles(c, stages):
    a, b = operand(c, "a", "f16", (384, 96), 5), operand(c, "b", "f16", (128, 96), 6)
    d = c.output("d", "f16", a.values @ b.values.T)
    c.launch(roles_kernel, (2,), described(a, [128, 32]), described(b, [64, 32]), described(d, [128, 64]), 6, 2, 96,
             STAGES=stages)  # fmt: skip


@gluon.jit
def shapes_kernel(x, out, M: gl.constexpr, N: gl.constexpr, VARIANT: gl.constexpr, BM: gl.constexpr):
    """A round trip through tensor memory, each way in another shape."""
    t = bw.allocate_tensor_memory(x.dtype.element_ty, [M, N], bw.TensorMemoryLayout([BM, N], col_stride=1))
    there: gl.constexpr = t.get_reg_layout(instr_variant="32x32b")
    back: gl.constexpr = t.get_reg_layout(instr_variant=VARIANT)
    i, j = gl.arange(0, M, gl.SliceLayout(1, there)), gl.arange(0, N, gl.SliceLayout(0, there))
    t.store(gl.load(x + i[:, None] * N + j[None, :]))
    v = t.load(back)
    i, j = gl.arange(0, M, gl.SliceLayout(1, back)), gl.arange(0, N, gl.SliceLayout(0, back))
    gl.store(out + i[:, None] * N + j[None, :], v)
    t.store(v)
    u = gl.convert_layout(t.load(there), there)
    i, j = gl.arange(0, M, gl.SliceLayout(1, there)), gl.arange(0, N, gl.SliceLayout(0, there))
    gl.store(out + M * N + i[:, None] * N + j[None, :], u + 1)


@case("sm_100a", **{f"by_{v[3:]}": {"variant": v} for v in ("16x64b", "16x128b", "16x256b")},
      m64={"variant": "16x256b", "m": 64}, f16={"variant": "16x256b", "dtype": "f16"})  # fmt: skip
def tensor_memory(c, variant, m=128, dtype="s32"):
    n = 64
    x = c.input("x", dtype, (m, n), iota(modulo=2000))
    out = c.output("out", dtype, np.stack([x.values, x.values + 1]))
    c.launch(shapes_kernel, (1,), x, out, M=m, N=n, VARIANT=variant, BM=m, num_warps=4)


@gluon.jit
def slices_kernel(x, out, M: gl.constexpr, N: gl.constexpr):
    """Columns of a tile in tensor memory by themselves, eight warps."""
    t = bw.allocate_tensor_memory(gl.float32, [M, N], bw.TensorMemoryLayout([128, N], col_stride=1))
    whole: gl.constexpr = t.get_reg_layout()
    i, j = gl.arange(0, M, gl.SliceLayout(1, whole)), gl.arange(0, N, gl.SliceLayout(0, whole))
    t.store(gl.load(x + i[:, None] * N + j[None, :]))
    for s in gl.static_range(N // 32):
        part = t.slice(s * 32, 32)
        part.store(part.load() * (s + 1))
    i, j = gl.arange(0, M, gl.SliceLayout(1, whole)), gl.arange(0, N, gl.SliceLayout(0, whole))
    gl.store(out + i[:, None] * N + j[None, :], t.load(whole))


@case("sm_100a")
def tensor_slices(c):
    x = c.input("x", "f32", (128, 128), integers(7, -1000, 1000))
    out = c.output("out", "f32", x.values * (np.arange(128) // 32 + 1))
    c.launch(slices_kernel, (1,), x, out, M=128, N=128, num_warps=8)


@gluon.jit
def packed_kernel(x, y, z, out, N: gl.constexpr):
    """Two f32 at once: add, sub, mul, fma in pairs."""
    layout: gl.constexpr = gl.BlockedLayout([4], [32], [4], [0])
    at = gl.arange(0, N, layout)
    a, b, c = gl.load(x + at), gl.load(y + at), gl.load(z + at)
    gl.store(out + at, bw.add2(a, b))
    gl.store(out + N + at, bw.sub2(a, b))
    gl.store(out + 2 * N + at, bw.mul2(a, b))
    gl.store(out + 3 * N + at, bw.fma2(a, b, c))


@case("sm_100a", f32={"dtype": "f32"}, f16={"dtype": "f16"})
def packed_arithmetic(c, dtype):
    x, y, z = (c.input(n, dtype, (512,), integers(i, -20, 20)) for i, n in enumerate("xyz"))
    a, b, e = x.values, y.values, z.values
    out = c.output("out", dtype, np.stack([a + b, a - b, a * b, a * b + e]))
    c.launch(packed_kernel, (1,), x, y, z, out, N=512, num_warps=4)


@gluon.jit
def clc_kernel(x, out, seen, N: gl.constexpr):
    """Programs take over the work of others that have not begun (cluster launch control)."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    answer = gl.allocate_shared_memory(gl.int64, [2], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    tile = gl.program_id(0)
    more = gl.to_tensor(True)
    phase = 0
    at = gl.arange(0, N, layout)
    while more:
        mbarrier.expect(bar, 16)
        bw.clc.try_cancel(answer, bar)
        gl.store(out + tile * N + at, gl.load(x + tile * N + at) * (tile + 1))
        gl.atomic_add(seen + tile, 1)
        mbarrier.wait(bar, phase)
        phase ^= 1
        found = bw.clc.load_result(answer)
        more = found.is_canceled()
        if more:
            tile = found.program_id(0)
        gl.barrier()
    mbarrier.invalidate(bar)


@case("sm_100a")
def cluster_launch_control(c):
    n, tiles = 128, 12
    x = c.input("x", "s32", (tiles, n), integers(8, -1000, 1000))
    out = c.output("out", "s32", x.values * np.arange(1, tiles + 1)[:, None])
    seen = c.output("seen", "s32", np.ones(tiles), rule=0)
    c.launch(clc_kernel, (tiles,), x, out, seen, N=n, num_warps=4)


@gluon.jit
def gather_kernel(source, d, rows, M: gl.constexpr, N: gl.constexpr):
    """Rows by their numbers into shared memory, and out again to other rows."""
    layout: gl.constexpr = gl.SliceLayout(0, gl.BlockedLayout([1, 4], [32, 1], [1, gl.num_warps()], [1, 0]))
    at = gl.load(rows + gl.arange(0, M, layout))
    tile = gl.allocate_shared_memory(source.dtype, [M, N], source.layout)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    mbarrier.expect(bar, M * N * 2)
    bw.tma.async_gather(source, at, 16, bar, tile)
    mbarrier.wait(bar, 0)
    mbarrier.invalidate(bar)
    bw.tma.async_scatter(d, M - 1 - gl.arange(0, M, layout), 0, tile)
    bw.tma.store_wait(0)


@case("sm_100a")
def gather_scatter(c):
    source = c.input("source", "bf16", (40, 96), integers(9, -100, 100))
    rows = c.input("rows", "s32", (32,), integers(10, 0, 45))  # beyond 39: zeros
    full = np.vstack([source.values, np.zeros((8, 96))])
    d = c.output("d", "bf16", full[rows.values][::-1, 16:80])
    tiles = [
        TensorDescriptor(t, list(t.shape), list(t.stride()), [1, 64], gl.NVMMASharedLayout(128, 16, 2))
        for t in (source, d)
    ]
    c.launch(gather_kernel, (1,), tiles[0], tiles[1], rows, M=32, N=64, num_warps=4)
