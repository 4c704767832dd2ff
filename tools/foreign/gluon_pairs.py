"""Gluon on Blackwell, clusters: pairs of CTAs that multiply together, multicast, block scales."""

import numpy as np
from case import case, integers
from gluon_blackwell import TYPES, operand
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import blackwell as bw
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, mbarrier, tma
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor


def described(tensor, block, cga=(), **options):
    """A tile spread over the CTAs of a cluster as `cga` says: the basis of each bit of the CTA's rank."""
    cga = [list(basis) for basis in cga]
    layout = gl.NVMMASharedLayout.get_default_for(block, TYPES[tensor.format], cga_layout=cga, **options)
    return TensorDescriptor(tensor, list(tensor.shape), list(tensor.stride()), block, layout)


@gluon.jit
def pair_kernel(a, b, d, K, ACC: gl.constexpr, LAYOUT: gl.constexpr, MULTICAST: gl.constexpr, BK: gl.constexpr):
    """D = A B^T, the tile spread over a cluster of pairs; both CTAs of a pair give half of B."""
    sa = gl.allocate_shared_memory(a.dtype, a.block_shape, a.layout)
    sb = gl.allocate_shared_memory(b.dtype, b.block_shape, b.layout)
    full = mbarrier.allocate_mbarrier(two_ctas=True)
    done = mbarrier.allocate_mbarrier()
    count: gl.constexpr = bw.tcgen05_mma_barrier_count([sa, sb], multicast=MULTICAST, two_ctas=True)
    mbarrier.init(full, count=1)
    mbarrier.init(done, count=count)
    acc = bw.allocate_tensor_memory(ACC, [a.block_shape[0], b.block_shape[0]], LAYOUT)
    phase = 0
    for k in range(0, K, BK):
        mbarrier.expect(full, a.nbytes_per_cta + b.nbytes_per_cta)
        tma.async_load(a, [0, k], full, sa, multicast=MULTICAST)
        tma.async_load(b, [0, k], full, sb, multicast=MULTICAST)
        mbarrier.wait(full, phase)
        bw.tcgen05_mma(sa, sb.permute((1, 0)), acc, use_acc=k > 0, multicast=MULTICAST, mbarriers=[done])
        mbarrier.wait(done, phase)
        phase ^= 1
    mbarrier.invalidate(full)
    mbarrier.invalidate(done)
    sd = gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout)
    sd.store(acc.load().to(d.dtype))
    fence_async_shared()
    tma.async_store(d, [0, 0], sd)
    tma.store_wait(0)


PAIR = ((1, 0),)
FOUR = ((1, 0), (0, 1))  # two pairs side by side: they share A, and each has its own B
TALL = ((1, 0), (2, 0))  # two pairs, one above the other: they share B


@case(
    "sm_100a", **{n: {"dtype": n} for n in ("f16", "bf16", "f32", "e4m3", "s8")}, m128={"dtype": "f16", "m": 128},
    n256={"dtype": "e4m3", "m": 128, "n": 256},
    four={"dtype": "f16", "cga": FOUR, "a": ((1, 0), (0, 0)), "b": ((1, 0), (2, 0)), "n": 128, "multicast": True},
    tall={"dtype": "e4m3", "cga": TALL, "a": TALL, "b": ((1, 0), (0, 0)), "m": 512, "multicast": True},
)  # fmt: skip
def pair(c, dtype, m=256, n=64, cga=PAIR, a=PAIR, b=PAIR, multicast=False):
    k, bk = (64, 32) if dtype == "f32" else (128, 64)
    x, y = operand(c, "a", dtype, (m, k), 1), operand(c, "b", dtype, (n, k), 2)
    out, acc = ("s32", gl.int32) if dtype == "s8" else ("f32" if dtype == "f32" else "f16", gl.float32)
    d = c.output("d", out, x.values @ y.values.T)
    rows, columns = (2 ** sum(v[i] != 0 for v in cga) for i in (0, 1))
    layout = bw.TensorMemoryLayout(
        [m // rows, n // columns], col_stride=1, cga_layout=[list(v) for v in cga], two_ctas=True
    )
    tiles = described(x, [m, bk], a), described(y, [n, bk], b), described(d, [m, n], cga)
    options = {"ACC": acc, "LAYOUT": layout, "MULTICAST": multicast, "BK": bk}
    c.launch(pair_kernel, (1,), *tiles, k, **options, num_ctas=2 ** len(cga))


@gluon.jit
def pair_tensor_a_kernel(a, b, d, K: gl.constexpr):
    """Each CTA of the pair keeps its half of A in tensor memory."""
    BM: gl.constexpr = a.block_shape[0]
    BN: gl.constexpr = b.block_shape[0]
    sa = gl.allocate_shared_memory(a.dtype, a.block_shape, a.layout)
    sb = gl.allocate_shared_memory(b.dtype, b.block_shape, b.layout)
    full = mbarrier.allocate_mbarrier(two_ctas=True)
    own = mbarrier.allocate_mbarrier()
    done = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    mbarrier.init(own, count=1)
    mbarrier.init(done, count=1)
    mbarrier.expect(own, a.nbytes_per_cta)
    tma.async_load(a, [0, 0], own, sa)
    mbarrier.expect(full, b.nbytes_per_cta)
    tma.async_load(b, [0, 0], full, sb)
    mbarrier.wait(own, 0)
    ta = bw.allocate_tensor_memory(
        a.dtype, [BM, K], bw.TensorMemoryLayout([BM // 2, K], col_stride=1, cga_layout=[[1, 0]], two_ctas=True)
    )
    ta.store(sa.load(ta.get_reg_layout()))
    acc = bw.allocate_tensor_memory(
        gl.float32, [BM, BN], bw.TensorMemoryLayout([BM // 2, BN], col_stride=1, cga_layout=[[1, 0]], two_ctas=True)
    )
    mbarrier.wait(full, 0)
    gl.barrier(cluster=True)
    bw.tcgen05_mma(ta, sb.permute((1, 0)), acc, use_acc=False, mbarriers=[done])
    mbarrier.wait(done, 0)
    sd = gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout)
    sd.store(acc.load().to(d.dtype))
    fence_async_shared()
    tma.async_store(d, [0, 0], sd)
    tma.store_wait(0)


@case("sm_100a", bf16={"dtype": "bf16"}, e5m2={"dtype": "e5m2"})
def pair_tensor_a(c, dtype):
    a, b = operand(c, "a", dtype, (256, 64), 3), operand(c, "b", dtype, (64, 64), 4)
    d = c.output("d", "f32", a.values @ b.values.T)
    c.launch(pair_tensor_a_kernel, (1,), described(a, [256, 64], PAIR), described(b, [64, 64], PAIR),
             described(d, [256, 64], PAIR), K=64, num_ctas=2)  # fmt: skip


@gluon.jit
def scaled_kernel(
    a,
    b,
    sfa,
    sfb,
    d,
    K: gl.constexpr,
    FA: gl.constexpr,
    FB: gl.constexpr,
    VEC: gl.constexpr,
    CGA: gl.constexpr,
    SCALES_B: gl.constexpr,
):
    """Block scales: loaded into registers and stored to tensor memory."""
    BM: gl.constexpr = d.block_shape[0]
    BN: gl.constexpr = d.block_shape[1]
    TWO: gl.constexpr = gl.num_ctas() > 1
    ROWS: gl.constexpr = BM // gl.num_ctas()
    sa = gl.allocate_shared_memory(a.dtype, a.block_shape, a.layout)
    sb = gl.allocate_shared_memory(b.dtype, b.block_shape, b.layout)
    full = mbarrier.allocate_mbarrier(two_ctas=TWO)
    done = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    mbarrier.init(done, count=1)
    ta = bw.allocate_tensor_memory(sfa.dtype.element_ty, [BM, K // VEC], bw.TensorMemoryScalesLayout(CGA))
    tb = bw.allocate_tensor_memory(sfb.dtype.element_ty, [BN, K // VEC], bw.TensorMemoryScalesLayout(SCALES_B))
    acc = bw.allocate_tensor_memory(
        gl.float32, [BM, BN], bw.TensorMemoryLayout([ROWS, BN], col_stride=1, cga_layout=CGA, two_ctas=TWO)
    )
    mbarrier.expect(full, a.nbytes_per_cta + b.nbytes_per_cta)
    tma.async_load(a, [0, 0], full, sa)
    tma.async_load(b, [0, 0], full, sb)
    la: gl.constexpr = ta.get_reg_layout()
    lb: gl.constexpr = tb.get_reg_layout()
    i, j = gl.arange(0, BM, gl.SliceLayout(1, la)), gl.arange(0, K // VEC, gl.SliceLayout(0, la))
    va = gl.load(sfa + i[:, None] * (K // VEC) + j[None, :])
    i, j = gl.arange(0, BN, gl.SliceLayout(1, lb)), gl.arange(0, K // VEC, gl.SliceLayout(0, lb))
    vb = gl.load(sfb + i[:, None] * (K // VEC) + j[None, :])
    ta.store(va)
    tb.store(vb)
    mbarrier.wait(full, 0)
    if TWO:
        gl.barrier(cluster=True)
    bw.tcgen05_mma_scaled(sa, sb.permute((1, 0)), acc, ta, tb, FA, FB, use_acc=False, mbarriers=[done])
    mbarrier.wait(done, 0)
    sd = gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout)
    sd.store(acc.load().to(d.dtype))
    fence_async_shared()
    tma.async_store(d, [0, 0], sd)
    tma.store_wait(0)


MX = {
    "mxfp8": {"fa": "e4m3", "fb": "e4m3"},
    "mxfp4": {"fa": "e2m1", "fb": "e2m1"},
    "nvfp4": {"fa": "e2m1", "fb": "e2m1", "vec": 16},
    "mixed": {"fa": "e5m2", "fb": "e2m1"},
}


def elements(c, name, form, other, shape, block, seed, cga):
    """Elements of -2 ... 2; 4-bit ones beside 8-bit ones are padded to bytes on the way into shared memory."""
    x = c.input(name, form, shape, integers(seed, -2, 2))
    if form != "e2m1":
        return x.values, described(x, block, cga)
    cga = [list(basis) for basis in cga]
    packed = [block[0], block[1] // 2]
    layout = gl.NVMMASharedLayout.get_default_for(packed, gl.uint8, fp4_padded=other != "e2m1", cga_layout=cga)
    return x.values, TensorDescriptor(x, list(x.shape), list(x.stride()), packed, layout)


def scaled(c, fa, fb, vec=32, m=128, n=64, k=128, cga=()):
    a, da = elements(c, "a", fa, fb, (m, k), [m, k], 1, cga)
    b, db = elements(c, "b", fb, fa, (n, k), [n, k], 2, cga)
    scales = []
    for name, rows, seed in (("sfa", m, 3), ("sfb", n, 4)):
        if vec == 16:
            s = c.input(name, "e4m3", (rows, k // vec), integers(seed, 1, 3))
            scales.append((s, s.values))
        else:
            s = c.input(name, "u8", (rows, k // vec), integers(seed, 126, 129))
            scales.append((s, np.exp2(s.values - 127.0)))
    (sa, va), (sb, vb) = scales
    d = c.output("d", "f32", (a * va.repeat(vec, axis=1)) @ (b * vb.repeat(vec, axis=1)).T)
    whole = tuple((0, 0) for _ in cga)  # both CTAs of a pair need the scales of all columns
    c.launch(scaled_kernel, (1,), da, db, sa, sb, described(d, [m, n], cga), K=k, FA=fa, FB=fb, VEC=vec,
             CGA=tuple(cga), SCALES_B=whole, num_ctas=2 ** len(cga))  # fmt: skip


@case("sm_100a", **MX)
def scaled_tile(c, **kind):
    scaled(c, **kind)


@case("sm_100a", **MX)
def scaled_pair(c, **kind):
    scaled(c, **kind, m=256, n=64, cga=PAIR)


@gluon.jit
def copied_kernel(a, b, sfa, sfb, d, K: gl.constexpr, FA: gl.constexpr, FB: gl.constexpr, VEC: gl.constexpr):
    """The scales come by TMA in the order of the hardware, and go to tensor memory by tcgen05.cp."""
    BM: gl.constexpr = d.block_shape[0]
    BN: gl.constexpr = d.block_shape[1]
    REP: gl.constexpr = K // VEC // 4
    sa = gl.allocate_shared_memory(a.dtype, a.block_shape, a.layout)
    sb = gl.allocate_shared_memory(b.dtype, b.block_shape, b.layout)
    xa = gl.allocate_shared_memory(sfa.dtype, sfa.block_shape, sfa.layout)
    xb = gl.allocate_shared_memory(sfb.dtype, sfb.block_shape, sfb.layout)
    full = mbarrier.allocate_mbarrier()
    done = mbarrier.allocate_mbarrier()
    mbarrier.init(full, count=1)
    mbarrier.init(done, count=1)
    ta = bw.allocate_tensor_memory(sfa.dtype, [BM, K // VEC], bw.TensorMemoryScalesLayout())
    tb = bw.allocate_tensor_memory(sfb.dtype, [BN, K // VEC], bw.TensorMemoryScalesLayout())
    acc = bw.allocate_tensor_memory(gl.float32, [BM, BN], bw.TensorMemoryLayout([BM, BN], col_stride=1))
    mbarrier.expect(full, a.nbytes_per_cta + b.nbytes_per_cta + sfa.nbytes_per_cta + sfb.nbytes_per_cta)
    tma.async_load(a, [0, 0], full, sa)
    tma.async_load(b, [0, 0], full, sb)
    tma.async_load(sfa, [0, 0, 0, 0, 0], full, xa)
    tma.async_load(sfb, [0, 0, 0, 0, 0], full, xb)
    mbarrier.wait(full, 0)
    ya = xa.reshape((BM // 128, REP, 32, 4, 4)).permute((0, 3, 2, 1, 4)).reshape((BM, K // VEC))
    yb = xb.reshape((BN // 128, REP, 32, 4, 4)).permute((0, 3, 2, 1, 4)).reshape((BN, K // VEC))
    bw.tcgen05_copy(ya, ta)
    bw.tcgen05_copy(yb, tb)
    bw.tcgen05_mma_scaled(sa, sb.permute((1, 0)), acc, ta, tb, FA, FB, use_acc=False, mbarriers=[done])
    mbarrier.wait(done, 0)
    sd = gl.allocate_shared_memory(d.dtype, d.block_shape, d.layout)
    sd.store(acc.load().to(d.dtype))
    fence_async_shared()
    tma.async_store(d, [0, 0], sd)
    tma.store_wait(0)


@case("sm_100a", **MX)
def scaled_copied(c, fa, fb, vec=32):
    m = n = 128
    k = 256 if "e2m1" in (fa, fb) and fa == fb else 128
    a, da = elements(c, "a", fa, fb, (m, k), [m, k], 1, ())
    b, db = elements(c, "b", fb, fa, (n, k), [n, k], 2, ())
    made = []
    for name, seed in (("sfa", 3), ("sfb", 4)):
        shape = (1, m // 128, k // vec // 4, 2, 256)
        s = c.input(name, "e4m3" if vec == 16 else "u8", shape, integers(seed, *((1, 3) if vec == 16 else (126, 129))))
        plain = s.values.reshape(m // 128, k // vec // 4, 32, 4, 4).transpose(0, 3, 2, 1, 4).reshape(m, k // vec)
        layout = gl.NVMMASharedLayout(0, 8, 5)
        described_scales = TensorDescriptor(s, list(s.shape), list(s.stride()), list(shape), layout)
        made.append((described_scales, plain if vec == 16 else np.exp2(plain - 127.0)))
    (sa, va), (sb, vb) = made
    d = c.output("d", "f32", (a * va.repeat(vec, axis=1)) @ (b * vb.repeat(vec, axis=1)).T)
    c.launch(copied_kernel, (1,), da, db, sa, sb, described(d, [m, n]), K=k, FA=fa, FB=fb, VEC=vec)
