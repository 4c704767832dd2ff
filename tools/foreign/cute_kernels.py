"""CuTe DSL: products by wgmma, by tcgen05 alone and in pairs. Operands come to shared memory by plain stores."""

from cute_launch import launch  # isort: skip  (first: it sets what the compiler reads as it is imported)

import cutlass
import cutlass.cute as cute
import cutlass.memory
import cutlass.tensor_utils
import cutlass.utils.blackwell_helpers as sm100
import cutlass.utils.blockscaled_layout as scaling
import cutlass.utils.hopper_helpers as sm90
import numpy as np
from case import case, integers
from cutlass.cute.nvgpu import OperandMajorMode, tcgen05, warpgroup

ROWS, K_MAJOR = cutlass.tensor_utils.LayoutEnum.ROW_MAJOR, OperandMajorMode.K


@cute.kernel
def hopper_kernel(tiled: cute.TiledMma, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, la: cute.ComposedLayout, lb: cute.ComposedLayout):  # fmt: skip  # noqa: E501
    t, _, _ = cute.arch.thread_idx()
    shared = cutlass.memory.SmemAllocator()
    sa = shared.allocate_tensor(a.element_type, la.outer, 1024, swizzle=la.inner)
    sb = shared.allocate_tensor(b.element_type, lb.outer, 1024, swizzle=lb.inner)
    for i in range(cute.size(a) // 128):
        at = i * 128 + t
        sa[at // a.shape[1], at % a.shape[1], 0] = a[at // a.shape[1], at % a.shape[1]]
    for i in range(cute.size(b) // 128):
        at = i * 128 + t
        sb[at // b.shape[1], at % b.shape[1], 0] = b[at // b.shape[1], at % b.shape[1]]
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.barrier()
    mine = tiled.get_slice(t)
    ra, rb = tiled.make_fragment_A(mine.partition_A(sa)), tiled.make_fragment_B(mine.partition_B(sb))
    out = mine.partition_C(d)
    acc = cute.make_rmem_tensor(out.shape, d.element_type)
    warpgroup.fence()
    tiled.set(warpgroup.Field.ACCUMULATE, False)
    for k in cutlass.range_constexpr(cute.size(ra, mode=[2])):
        cute.gemm(tiled, acc, ra[None, None, k, 0], rb[None, None, k, 0], acc)
        tiled.set(warpgroup.Field.ACCUMULATE, True)
    warpgroup.commit_group()
    warpgroup.wait_group(0)
    for i in cutlass.range_constexpr(cute.size(acc)):
        out[i] = acc[i]


@cute.jit
def hopper(a: cute.Tensor, b: cute.Tensor, d: cute.Tensor):
    m, n, k = a.shape[0], b.shape[0], a.shape[1]
    tiled = sm90.make_trivial_tiled_mma(
        a.element_type, b.element_type, K_MAJOR, K_MAJOR, d.element_type, (1, 1, 1), (64, n)
    )
    la = sm90.make_smem_layout_a(ROWS, (m, n, k), a.element_type, 1)
    lb = sm90.make_smem_layout_b(ROWS, (m, n, k), b.element_type, 1)
    hopper_kernel(tiled, a, b, d, la, lb).launch(grid=(1, 1, 1), block=(128, 1, 1))


def operands(c, dtype, m, n, k):
    top = 100 if dtype == "s8" else 3
    a, b = c.input("a", dtype, (m, k), integers(1, -top, top)), c.input("b", dtype, (n, k), integers(2, -top, top))
    c.output("d", "s32" if dtype == "s8" else "f32", a.values @ b.values.T)
    return (m + n) * k * (2 if "f16" in dtype else 1)


@case("sm_90a", f16={"dtype": "f16", "n": 64}, bf16={"dtype": "bf16", "n": 128}, e4m3={"dtype": "e4m3", "n": 32},
      e5m2={"dtype": "e5m2", "n": 64}, s8={"dtype": "s8", "n": 64})  # fmt: skip
def matmul_hopper(c, dtype, n):
    size = operands(c, dtype, 64, n, 128)
    launch(c, hopper, "abd", shared=size)


@cute.kernel
def blackwell_kernel(tiled: cute.TiledMma, a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, la: cute.ComposedLayout, lb: cute.ComposedLayout, pair: cutlass.Constexpr):  # fmt: skip  # noqa: E501
    t, _, _ = cute.arch.thread_idx()
    rank, _, _ = cute.arch.block_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    shared = cutlass.memory.SmemAllocator()
    sa = shared.allocate_tensor(a.element_type, la.outer, 1024, swizzle=la.inner)
    sb = shared.allocate_tensor(b.element_type, lb.outer, 1024, swizzle=lb.inner)
    done = shared.allocate_array(cutlass.Int64, 1)
    place = shared.allocate_array(cutlass.Int32, 1)
    group = tcgen05.CtaGroup.TWO if cutlass.const_expr(pair) else tcgen05.CtaGroup.ONE
    if warp == 0:
        cute.arch.alloc_tmem(64, place, is_two_cta=pair)
        cute.arch.relinquish_tmem_alloc_permit(is_two_cta=pair)
    if t == 32:
        cute.arch.mbarrier_init(done, 1)
        cute.arch.mbarrier_init_fence()
    mine = tiled.get_slice(rank)
    ga, gb = mine.partition_A(a), mine.partition_B(b)
    for i in range(cute.size(ga) // 128):
        sa[i * 128 + t] = ga[i * 128 + t]
    for i in range(cute.size(gb) // 128):
        sb[i * 128 + t] = gb[i * 128 + t]
    cute.arch.fence_proxy("async.shared", space="cta")
    if cutlass.const_expr(pair):
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
    cute.arch.barrier()
    start = cute.arch.retrieve_tmem_ptr(d.element_type, alignment=16, ptr_to_buffer_holding_addr=place)
    plain = tiled.make_fragment_C(tiled.partition_shape_C((d.shape[0], d.shape[1])))
    acc = cute.make_tensor(start, plain.layout)
    ra, rb = tiled.make_fragment_A(sa), tiled.make_fragment_B(sb)
    if warp == 0 and rank == 0:
        for k in cutlass.range_constexpr(cute.size(ra, mode=[2])):
            tiled.set(tcgen05.Field.ACCUMULATE, k != 0)
            cute.gemm(tiled, acc, ra[None, None, k, 0], rb[None, None, k, 0], acc)
        with cute.arch.elect_one():
            tcgen05.commit(done, 3 if cutlass.const_expr(pair) else None, group)
    cute.arch.mbarrier_wait(done, 0)
    out = mine.partition_C(d)[(None, None), 0, 0]
    atom = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(64)), d.element_type)
    copy = tcgen05.make_tmem_copy(atom, acc[(None, None), 0, 0])
    part = copy.get_slice(t)
    source, target = part.partition_S(acc[(None, None), 0, 0]), part.partition_D(out)
    values = cute.make_rmem_tensor(target.shape, d.element_type)
    cute.copy(copy, source, values)
    cute.arch.fence_view_async_tmem_load()
    for i in cutlass.range_constexpr(cute.size(values)):
        target[i] = values[i]
    if cutlass.const_expr(pair):
        cute.arch.cluster_arrive()
        cute.arch.cluster_wait()
    cute.arch.barrier()
    if warp == 0:
        cute.arch.dealloc_tmem(start, 64, is_two_cta=pair)


@cute.jit
def blackwell(a: cute.Tensor, b: cute.Tensor, d: cute.Tensor, pair: cutlass.Constexpr):
    shape = (a.shape[0], b.shape[0], a.shape[1])
    group = tcgen05.CtaGroup.TWO if cutlass.const_expr(pair) else tcgen05.CtaGroup.ONE
    tiled = sm100.make_trivial_tiled_mma(
        a.element_type, b.element_type, K_MAJOR, K_MAJOR, d.element_type, group, shape[:2]
    )
    la, lb = (make(tiled, shape, x.element_type, 1) for make, x in ((sm100.make_smem_layout_a, a), (sm100.make_smem_layout_b, b)))  # fmt: skip  # noqa: E501
    ctas = 2 if cutlass.const_expr(pair) else 1
    blackwell_kernel(tiled, a, b, d, la, lb, pair).launch(grid=(ctas, 1, 1), block=(128, 1, 1), cluster=(ctas, 1, 1))


@case("sm_100a", f16={"dtype": "f16"}, bf16={"dtype": "bf16"}, e4m3={"dtype": "e4m3"}, s8={"dtype": "s8"},
      pair_f16={"dtype": "f16", "pair": True}, pair_e4m3={"dtype": "e4m3", "pair": True})  # fmt: skip
def matmul_blackwell(c, dtype, pair=False):
    ctas = 1 + pair
    size = operands(c, dtype, 128 * ctas, 64, 128)
    launch(c, blackwell, "abd", pair, shared=size // ctas + 1024, ctas=ctas)


@cute.kernel
def scaled_kernel(tiled: cute.TiledMma, a: cute.Tensor, b: cute.Tensor, sfa: cute.Tensor, sfb: cute.Tensor, d: cute.Tensor, la: cute.ComposedLayout, lb: cute.ComposedLayout, lsa: cute.Layout, lsb: cute.Layout):  # fmt: skip  # noqa: E501
    t, _, _ = cute.arch.thread_idx()
    warp = cute.arch.make_warp_uniform(cute.arch.warp_idx())
    shape = (a.shape[0], b.shape[0], a.shape[1])
    shared = cutlass.memory.SmemAllocator()
    sa = shared.allocate_tensor(a.element_type, la.outer, 1024, swizzle=la.inner)
    sb = shared.allocate_tensor(b.element_type, lb.outer, 1024, swizzle=lb.inner)
    fa = shared.allocate_tensor(cutlass.Float8E8M0FNU, lsa, 1024)
    fb = shared.allocate_tensor(cutlass.Float8E8M0FNU, lsb, 1024)
    done = shared.allocate_array(cutlass.Int64, 1)
    place = shared.allocate_array(cutlass.Int32, 1)
    one = tcgen05.CtaGroup.ONE
    if warp == 0:
        cute.arch.alloc_tmem(256, place)
        cute.arch.relinquish_tmem_alloc_permit()
    if t == 32:
        cute.arch.mbarrier_init(done, 1)
        cute.arch.mbarrier_init_fence()
    mine = tiled.get_slice(0)
    ga, gb = mine.partition_A(a), mine.partition_B(b)
    for i in range(cute.size(ga) // 128):
        sa[i * 128 + t] = ga[i * 128 + t]
    for i in range(cute.size(gb) // 128):
        sb[i * 128 + t] = gb[i * 128 + t]
    words_a = cute.make_tensor(cute.recast_ptr(fa.iterator, dtype=cutlass.Int32), cute.make_layout(128))
    words_b = cute.make_tensor(cute.recast_ptr(fb.iterator, dtype=cutlass.Int32), cute.make_layout(128))
    words_a[t] = sfa[t]
    words_b[t] = sfb[t]
    cute.arch.fence_proxy("async.shared", space="cta")
    cute.arch.barrier()
    start = cute.arch.retrieve_tmem_ptr(d.element_type, alignment=16, ptr_to_buffer_holding_addr=place)
    plain = tiled.make_fragment_C(tiled.partition_shape_C(shape[:2]))
    acc = cute.make_tensor(start, plain.layout)
    at = tcgen05.find_tmem_tensor_col_offset(acc)
    place_a = cute.recast_ptr(start + at, dtype=cutlass.Float8E8M0FNU)
    ma = scaling.make_tmem_layout_sfa(tiled, shape, 32, cute.slice_(lsa, (None, None, None, 0)))
    mb = scaling.make_tmem_layout_sfb(tiled, shape, 32, cute.slice_(lsb, (None, None, None, 0)))
    ta = cute.make_tensor(place_a, ma)
    after = at + tcgen05.find_tmem_tensor_col_offset(ta)
    place_b = cute.recast_ptr(start + after, dtype=cutlass.Float8E8M0FNU)
    tb = cute.make_tensor(place_b, mb)
    ra, rb = tiled.make_fragment_A(sa), tiled.make_fragment_B(sb)
    if warp == 0:
        atom = cute.make_copy_atom(tcgen05.Cp4x32x128bOp(one), cutlass.Float8E8M0FNU)
        for source, target in ((fa, ta), (fb, tb)):
            compact_source, compact_target = cute.filter_zeros(source), cute.filter_zeros(target)
            copy = tcgen05.make_s2t_copy(atom, compact_target)
            part = copy.get_slice(0)
            tiles = tcgen05.get_s2t_smem_desc_tensor(copy, part.partition_S(compact_source))
            cute.copy(copy, tiles[None, None, None, None, 0], part.partition_D(compact_target))
        for k in cutlass.range_constexpr(cute.size(ra, mode=[2])):
            tiled.set(tcgen05.Field.ACCUMULATE, k != 0)
            tiled.set(tcgen05.Field.SFA, ta[None, None, k].iterator)
            tiled.set(tcgen05.Field.SFB, tb[None, None, k].iterator)
            cute.gemm(tiled, acc, ra[None, None, k, 0], rb[None, None, k, 0], acc)
        with cute.arch.elect_one():
            tcgen05.commit(done)
    cute.arch.mbarrier_wait(done, 0)
    out = mine.partition_C(d)[(None, None), 0, 0]
    load = cute.make_copy_atom(tcgen05.Ld32x32bOp(tcgen05.Repetition(128)), d.element_type)
    read = tcgen05.make_tmem_copy(load, acc[(None, None), 0, 0])
    share = read.get_slice(t)
    origin, target = share.partition_S(acc[(None, None), 0, 0]), share.partition_D(out)
    values = cute.make_rmem_tensor(target.shape, d.element_type)
    cute.copy(read, origin, values)
    cute.arch.fence_view_async_tmem_load()
    for i in cutlass.range_constexpr(cute.size(values)):
        target[i] = values[i]
    cute.arch.barrier()
    if warp == 0:
        cute.arch.dealloc_tmem(start, 256)


@cute.jit
def scaled(a: cute.Tensor, b: cute.Tensor, sfa: cute.Tensor, sfb: cute.Tensor, d: cute.Tensor):
    shape = (a.shape[0], b.shape[0], a.shape[1])
    tiled = sm100.make_blockscaled_trivial_tiled_mma(
        a.element_type, b.element_type, K_MAJOR, K_MAJOR, cutlass.Float8E8M0FNU, 32, tcgen05.CtaGroup.ONE, shape[:2]
    )
    la = sm100.make_smem_layout_a(tiled, shape, a.element_type, 1)
    lb = sm100.make_smem_layout_b(tiled, shape, b.element_type, 1)
    lsa = scaling.make_smem_layout_sfa(tiled, shape, 32, 1)
    lsb = scaling.make_smem_layout_sfb(tiled, shape, 32, 1)
    scaled_kernel(tiled, a, b, sfa, sfb, d, la, lb, lsa, lsb).launch(grid=(1, 1, 1), block=(128, 1, 1))


@case("sm_100a", e4m3={"form": "e4m3"}, e5m2={"form": "e5m2"})
def matmul_scaled(c, form):
    """MXFP8: one factor for 32 elements."""
    m = n = k = 128
    a, b = c.input("a", form, (m, k), integers(7, -2, 2)), c.input("b", form, (n, k), integers(8, -2, 2))
    factors = []
    for name, seed in (("sfa", 9), ("sfb", 10)):
        codes = np.random.default_rng(seed).integers(126, 129, (128, 4))
        factors.append(np.exp2(codes - 127.0).repeat(32, 1))
        words = codes.astype(np.uint8).view("<i4").reshape(4, 32).T  # row r: lane r % 32, word r / 32
        c.input(name, "s32", (128,), words.reshape(-1).tolist())
    c.output("d", "f32", (a.values * factors[0]) @ (b.values * factors[1]).T)
    launch(c, scaled, ["a", "b", "sfa", "sfb", "d"], shared=2 * 16384 + 3072)
