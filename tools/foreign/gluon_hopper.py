"""Gluon on Hopper, and what both architectures have: wgmma forms, roles, clusters, im2col, TMA reductions, cp.async."""

# ruff: noqa: SIM113  (kernels have no enumerate)

import numpy as np
from case import case, integers, iota
from gluon_blackwell import TYPES, operand
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.ampere import async_copy, mma_v2
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor, TensorDescriptorIm2Col


def described(tensor, block, cga=(), **options):
    layout = gl.NVMMASharedLayout.get_default_for(
        block, TYPES[tensor.format], cga_layout=[list(v) for v in cga], **options
    )
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block, layout)


@gluon.jit
def wgmma_kernel(a, b, d, K, ACC: gl.constexpr, IK: gl.constexpr, N: gl.constexpr, REGISTERS: gl.constexpr):
    """D = A B^T; A from shared memory, or through registers, where it is doubled."""
    BM: gl.constexpr = a.block_shape[0]
    BK: gl.constexpr = a.block_shape[1]
    sa = gl.allocate_shared_memory(a.dtype, a.block_shape, a.layout)
    sb = gl.allocate_shared_memory(b.dtype, b.block_shape, b.layout)
    full = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, N, IK])
    operands: gl.constexpr = gl.DotOperandLayout(0, layout, 32 // a.dtype.primitive_bitwidth)
    acc = gl.zeros([BM, b.block_shape[0]], ACC, layout)
    phase = 0
    for k in range(0, K, BK):
        mbarrier.expect(full, a.nbytes_per_cta + b.nbytes_per_cta)
        tma.async_load(a, [0, k], full, sa)
        tma.async_load(b, [0, k], full, sb)
        mbarrier.wait(full, phase)
        phase ^= 1
        if REGISTERS:
            x = sa.load(operands)
            acc = hopper.warpgroup_mma(x + x, sb.permute((1, 0)), acc, is_async=True)
        else:
            acc = hopper.warpgroup_mma(sa, sb.permute((1, 0)), acc, is_async=True)
        acc = hopper.warpgroup_mma_wait(0, deps=(acc,))
    mbarrier.invalidate(full)
    sd = gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout)
    sd.store(acc.to(d.dtype))
    fence_async_shared()
    tma.async_store(d, [0, 0], sd)
    tma.store_wait(0)


@case("sm_90a", **{n: {"dtype": n} for n in ("f16", "bf16", "f32", "e4m3", "e5m2", "s8")},
      n8={"dtype": "f16", "n": 8}, n128={"dtype": "bf16", "n": 128, "tile": 64}, n256={"dtype": "e4m3", "n": 256},
      two={"dtype": "f16", "m": 128, "warps": 8}, registers={"dtype": "f16", "registers": True},
      **{f"{t}_128": {"dtype": t, "n": 128} for t in ("f16", "bf16", "e4m3", "s8")}, f16_256={"dtype": "f16", "n": 256},
      half={"dtype": "f16", "acc": "f16"}, half_e5m2={"dtype": "e5m2", "acc": "f16"})  # fmt: skip
def wgmma(c, dtype, m=64, n=32, tile=0, acc="", warps=4, registers=False):
    k, bk = (64, 32) if dtype == "f32" else (128, 64)
    a, b = operand(c, "a", dtype, (m, k), 1), operand(c, "b", dtype, (n, k), 2)
    acc = acc or ("s32" if dtype == "s8" else "f32")
    d = c.output("d", acc, (1 + registers) * a.values @ b.values.T)
    size = 4 if dtype == "f32" else 2 if "f16" in dtype else 1
    c.launch(wgmma_kernel, (1,), described(a, [m, bk]), described(b, [n, bk]), described(d, [m, n]), k, ACC=TYPES[acc],
             IK=32 // size, N=tile or n, REGISTERS=registers, num_warps=warps)  # fmt: skip


@gluon.jit
def _load(a, b, sa, sb, full, empty, K, STAGES: gl.constexpr):
    BK: gl.constexpr = a.block_shape[1]
    i, j = gl.program_id(0) * a.block_shape[0], gl.program_id(1) * b.block_shape[0]
    n = 0
    for k in range(0, K, BK):
        s = n % STAGES
        mbarrier.wait(empty.index(s), (n // STAGES & 1) ^ 1)
        mbarrier.expect(full.index(s), a.nbytes_per_cta + b.nbytes_per_cta)
        tma.async_load(a, [i, k], full.index(s), sa.index(s))
        tma.async_load(b, [j, k], full.index(s), sb.index(s))
        n += 1


@gluon.jit
def _multiply(d, sa, sb, full, empty, K, STAGES: gl.constexpr, BK: gl.constexpr):
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [gl.num_warps(), 1], [16, d.block_shape[1], 16])
    acc = gl.zeros(d.block_shape, gl.float32, layout)
    n = 0
    for _k in range(0, K, BK):
        s = n % STAGES
        mbarrier.wait(full.index(s), n // STAGES & 1)
        acc = hopper.warpgroup_mma(sa.index(s), sb.index(s).permute((1, 0)), acc, is_async=True)
        acc = hopper.warpgroup_mma_wait(0, deps=(acc,))
        mbarrier.arrive(empty.index(s), count=1)
        n += 1
    sd = gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout)
    sd.store(acc.to(d.dtype))
    fence_async_shared()
    tma.async_store(d, [gl.program_id(0) * d.block_shape[0], gl.program_id(1) * d.block_shape[1]], sd)
    tma.store_wait(0)


@gluon.jit
def roles_kernel(a, b, d, K, STAGES: gl.constexpr):
    """A warpgroup that multiplies, and a warp that loads."""
    BK: gl.constexpr = a.block_shape[1]
    sa = gl.allocate_shared_memory(a.dtype, [STAGES] + a.block_shape, a.layout)
    sb = gl.allocate_shared_memory(b.dtype, [STAGES] + b.block_shape, b.layout)
    full = mbarrier.allocate_mbarrier(batch=STAGES)
    empty = mbarrier.allocate_mbarrier(batch=STAGES)
    for s in gl.static_range(STAGES):
        mbarrier.init(full.index(s), count=1)
        mbarrier.init(empty.index(s), count=1)
    gl.warp_specialize(
        [
            (_multiply, (d, sa, sb, full, empty, K, STAGES, BK)),
            (_load, (a, b, sa, sb, full, empty, K, STAGES)),
        ],
        [1],
        [24],
    )


@case("sm_90a", two={"stages": 2}, four={"stages": 4})
def hopper_roles(c, stages):
    a, b = c.input("a", "bf16", (128, 160), integers(5, -1, 1)), c.input("b", "bf16", (64, 160), integers(6, -1, 1))
    d = c.output("d", "bf16", a.values @ b.values.T)
    c.launch(roles_kernel, (2, 2), described(a, [64, 32]), described(b, [32, 32]), described(d, [64, 32]), 160,
             STAGES=stages, num_warps=4)  # fmt: skip


@gluon.jit
def multicast_kernel(a, b, d, K, BK: gl.constexpr, MULTICAST: gl.constexpr):
    """A cluster shares one operand: each CTA loads a part of it for all."""
    sa = gl.allocate_shared_memory(a.dtype, a.block_shape, a.layout)
    sb = gl.allocate_shared_memory(b.dtype, b.block_shape, b.layout)
    full = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 32, 16], [[1, 0]])
    acc = gl.zeros(d.block_shape, gl.float32, layout)
    phase = 0
    for k in range(0, K, BK):
        gl.barrier(cluster=True)
        mbarrier.expect(full, a.nbytes_per_cta + b.nbytes_per_cta)
        tma.async_load(a, [0, k], full, sa)
        tma.async_load(b, [0, k], full, sb, multicast=MULTICAST)
        mbarrier.wait(full, phase)
        phase ^= 1
        acc = hopper.warpgroup_mma(sa, sb.permute((1, 0)), acc, is_async=True)
        acc = hopper.warpgroup_mma_wait(0, deps=(acc,))
    gl.barrier(cluster=True)
    sd = gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout)
    sd.store(acc.to(d.dtype))
    fence_async_shared()
    tma.async_store(d, [0, 0], sd)
    tma.store_wait(0)


@case("sm_90a", one={"multicast": False}, all={"multicast": True})
def cluster(c, multicast):
    a, b = operand(c, "a", "f16", (128, 96), 7), operand(c, "b", "f16", (32, 96), 8)
    d = c.output("d", "f32", a.values @ b.values.T)
    c.launch(multicast_kernel, (1,), described(a, [128, 32], [[1, 0]]), described(b, [32, 32], [[0, 0]]),
             described(d, [128, 32], [[1, 0]]), 96, BK=32, MULTICAST=multicast, num_warps=4, num_ctas=2)  # fmt: skip


@gluon.jit
def im2col_kernel(x, d, PIXELS: gl.constexpr, CHANNELS: gl.constexpr):
    """The pixels under a filter tap at (1, 2), taken from a picture by TMA."""
    tile = gl.allocate_shared_memory(x.dtype, [PIXELS, CHANNELS], x.layout)
    bar = mbarrier.allocate_mbarrier()
    mbarrier.init(bar, count=1)
    mbarrier.expect(bar, PIXELS * CHANNELS * 2)
    tma.async_load_im2col(x, [0, -1, -1, 0], [1, 2], bar, tile)
    mbarrier.wait(bar, 0)
    mbarrier.invalidate(bar)
    tma.async_store(d, [0, 0], tile)
    tma.store_wait(0)


@case()
def im2col(c):
    n, h, w, channels, pixels = 2, 6, 8, 32, 64
    x = c.input("x", "f16", (n, h, w, channels), iota(modulo=2039))
    padded = np.zeros((n, h + 2, w + 2, channels))
    padded[:, 1:-1, 1:-1] = x.values
    taps = padded[:, 1 : 1 + h, 2 : 2 + w].reshape(-1, channels)[:pixels]
    d = c.output("d", "f16", taps)
    layout = gl.NVMMASharedLayout(64, 16, 2)
    source = TensorDescriptorIm2Col(x, list(x.shape), list(x.stride()), [pixels, channels], layout, "zero", False,
                                    [1, 1, 1, 1], [-1, -1], [-1, -1])  # fmt: skip
    target = TensorDescriptor(d, list(d.shape), list(d.stride()), [pixels, channels], layout)
    c.launch(im2col_kernel, (1,), source, target, PIXELS=pixels, CHANNELS=channels)


@gluon.jit
def reduce_kernel(x, adds, lows, tops, ands, ors, xors, M: gl.constexpr, N: gl.constexpr):
    """Every program combines its tile into the same place, in each way that TMA knows."""
    layout: gl.constexpr = gl.BlockedLayout([1, 4], [4, 8], [4, 1], [1, 0])
    i, j = gl.arange(0, M, gl.SliceLayout(1, layout)), gl.arange(0, N, gl.SliceLayout(0, layout))
    v = gl.load(x + gl.program_id(0) * M * N + i[:, None] * N + j[None, :])
    tile = gl.allocate_shared_memory(gl.int32, [M, N], adds.layout)
    tile.store(v)
    fence_async_shared()
    tma.async_atomic_add(adds, [0, 0], tile)
    tma.async_atomic_min(lows, [0, 0], tile)
    tma.async_atomic_max(tops, [0, 0], tile)
    tma.async_atomic_and(ands, [0, 0], tile)
    tma.async_atomic_or(ors, [0, 0], tile)
    tma.async_atomic_xor(xors, [0, 0], tile)
    tma.store_wait(0)


@case()
def tma_reductions(c):
    p, m, n = 3, 16, 32
    x = c.input("x", "s32", (p, m, n), integers(9, -(2**30), 2**30))
    v = x.values
    made = {"adds": (v.sum(0) + 5, 5), "lows": (np.minimum(v.min(0), 5), 5), "tops": (np.maximum(v.max(0), 5), 5),
            "ands": (np.bitwise_and.reduce(v, 0), -1), "ors": (np.bitwise_or.reduce(v, 0), 0),
            "xors": (np.bitwise_xor.reduce(v, 0) ^ 5, 5)}  # fmt: skip
    outs = []
    for name, (want, start) in made.items():
        want = (want + 2**31) % 2**32 - 2**31
        outs.append(described(c.output(name, "s32", want, rule=start), [m, n]))
    c.launch(reduce_kernel, (p,), x, *outs, M=m, N=n, num_warps=4)


@gluon.jit
def ampere_kernel(a, b, d, K, M: gl.constexpr, N: gl.constexpr, BK: gl.constexpr, IK: gl.constexpr):
    """cp.async in two stages, ldmatrix, mma.sync."""
    blocked: gl.constexpr = gl.BlockedLayout([1, 16 // IK], [8, 4], [gl.num_warps(), 1], [1, 0])
    shared: gl.constexpr = gl.SwizzledSharedLayout(8, 1, 4, [1, 0])
    layout: gl.constexpr = gl.NVMMADistributedLayout([2, 0], [2, 2], [16, 8])
    sa = gl.allocate_shared_memory(a.dtype.element_ty, [2, M, BK], shared)
    sb = gl.allocate_shared_memory(b.dtype.element_ty, [2, N, BK], shared)
    i, j = gl.arange(0, M, gl.SliceLayout(1, blocked)), gl.arange(0, BK, gl.SliceLayout(0, blocked))
    n = gl.arange(0, N, gl.SliceLayout(1, blocked))
    acc = gl.zeros([M, N], gl.float32, layout)
    async_copy.async_load(sa.index(0), a + i[:, None] * K + j[None, :])
    async_copy.async_load(sb.index(0), b + n[:, None] * K + j[None, :])
    async_copy.commit_group()
    s = 0
    for k in range(0, K, BK):
        more = k + BK < K
        async_copy.async_load(sa.index(s ^ 1), a + i[:, None] * K + (k + BK + j)[None, :], mask=more & (i[:, None] < M))
        async_copy.async_load(sb.index(s ^ 1), b + n[:, None] * K + (k + BK + j)[None, :], mask=more & (n[:, None] < N))
        async_copy.commit_group()
        async_copy.wait_group(1)
        gl.barrier()
        x = sa.index(s).load(gl.DotOperandLayout(0, layout, 2))
        y = sb.index(s).permute((1, 0)).load(gl.DotOperandLayout(1, layout, 2))
        acc = mma_v2(x, y, acc)
        gl.barrier()
        s ^= 1
    async_copy.wait_group(0)
    i, j = gl.arange(0, M, gl.SliceLayout(1, layout)), gl.arange(0, N, gl.SliceLayout(0, layout))
    gl.store(d + i[:, None] * N + j[None, :], acc)


@case(f16={"dtype": "f16"}, bf16={"dtype": "bf16"})
def ampere(c, dtype):
    a, b = operand(c, "a", dtype, (64, 96), 10), operand(c, "b", dtype, (32, 96), 11)
    d = c.output("d", "f32", a.values @ b.values.T)
    c.launch(ampere_kernel, (1,), a, b, d, 96, M=64, N=32, BK=32, IK=2, num_warps=4)


@gluon.jit
def exchange_kernel(x, out, sums, M: gl.constexpr, N: gl.constexpr):
    """The CTAs of a cluster exchange halves of a matrix through each other's shared memory."""
    rows: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0], [[1, 0]])
    columns: gl.constexpr = gl.BlockedLayout([1, 1], [1, 32], [4, 1], [1, 0], [[0, 1]])
    i, j = gl.arange(0, M, gl.SliceLayout(1, rows)), gl.arange(0, N, gl.SliceLayout(0, rows))
    v = gl.load(x + i[:, None] * N + j[None, :])
    gl.store(sums + j, gl.sum(v, 0))
    w = gl.convert_layout(v, columns)
    i, j = gl.arange(0, M, gl.SliceLayout(1, columns)), gl.arange(0, N, gl.SliceLayout(0, columns))
    gl.store(out + i[:, None] * N + j[None, :], w * (j[None, :] + 1))


@case()
def exchange(c):
    m, n = 16, 64
    x = c.input("x", "s32", (m, n), integers(12, -1000, 1000))
    outs = c.output("out", "s32", x.values * np.arange(1, n + 1)), c.output("sums", "s32", x.values.sum(0))
    c.launch(exchange_kernel, (1,), x, *outs, M=m, N=n, num_warps=4, num_ctas=2)
