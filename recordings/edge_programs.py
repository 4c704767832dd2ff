"""Edges: im2col and strided boxes, interleaved tensor maps, multicast, old mbarrier tokens, elections, addresses of cluster
peers, every width of wgmma, exponent floors.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from programs import Program, raw, wgmma_program
from random_async import _coordinates, _load, _tensor, _tensor_data, image_loads, tensor_stores
from random_cluster import multicast
from random_collective import group
from random_kernel import Kernel

from smalti.layout.tensor_map import TensorMap

STATED = ["u8", "u16", "u32", "f16", "bf16", "f32", "f32.ftz", "tf32", "tf32.ftz", "f64", "s64"]


def boxes() -> Iterator[Program]:
    """Boxes with element strides, and im2col, of random maps; stores and reductions of ranks 1 to 5."""
    for n in range(6):
        k = Kernel(f"tma strides {n}", 4)
        for _ in range(4):
            m = _tensor(k, 4096, STATED, True, True)
            _load(
                k,
                m,
                k.tensor_map(m, _tensor_data(k, m), False),
                "",
                4096,
                m.transfer_bytes,
                _coordinates(k, m, True),
                "",
            )
        yield k.program("tma load")
        k = Kernel(f"tma im2col {n}", 4)
        for _ in range(4):
            image_loads(k)
        yield k.program("tma im2col")
        k = Kernel(f"tma stores {n}", 4)
        for _ in range(4):
            tensor_stores(k)
        yield k.program("tma store")


def interleaved() -> Iterator[Program]:
    """NC/8HWC8 and NC/16HWC16 maps: boxes inside and over every edge; what of the destination is written."""
    kinds = (("16B", "none"), ("16B", "32B"), ("16B", "64B"), ("16B", "128B"), ("32B", "32B"))
    for (interleave, swizzle), rank in itertools.product(kinds, (3, 4, 5)):
        k = Kernel(f"tma interleave {interleave} {swizzle} {rank}d", 2)
        for type_ in ("u8", "f16", "f32", "u64"):
            m = interleaved_map(k, interleave, swizzle, rank, type_)
            data = raw(f"{k.name}{type_}", -(-m.extent // 16) * 16 + 64, 8)
            at = k.news("b32", rank)
            for register, size in zip(at, m.size, strict=True):
                k.emit(f"mad.lo.s32 {register}, %cta, {k.dice.below(3)}, {k.dice.between(-2, size)};")
            _load(k, m, k.tensor_map(m, data, False), "", 8192, m.transfer_bytes, at, "", sure=False)
        yield k.program("tma interleave")


def interleaved_stores() -> Iterator[Program]:
    """Stores and reductions of interleaved boxes; the whole tensor is kept."""
    for (interleave, swizzle), rank in itertools.product((("16B", "none"), ("16B", "64B"), ("32B", "32B")), (3, 4, 5)):
        k = Kernel(f"tma interleave store {interleave} {swizzle} {rank}d", 1)
        for type_ in ("u32", "f16"):
            m = replace(interleaved_map(k, interleave, swizzle, rank, type_), element_stride=(1,) * rank)
            while m.transfer_bytes > 8192:
                m = replace(interleaved_map(k, interleave, swizzle, rank, type_), element_stride=(1,) * rank)
            address = k.tensor_map(m, raw(f"{k.name}{type_}", -(-m.extent // 16) * 16 + 64, 8), True)
            start = k.region(8192)
            k.fill(start, k.random_words(16))
            k.emit("fence.proxy.async.shared::cta;")
            k.sync()
            at = k.news("b32", rank)
            for register, size in zip(at, m.size, strict=True):
                k.emit(f"mov.b32 {register}, {k.dice.below(size)};")
            op = k.dice.pick(["", ".add", ".max"])
            verb = f"cp{'.reduce' if op else ''}.async.bulk.tensor.{rank}d.global.shared::cta{op}.tile.bulk_group"
            k.emit(f"@%first {verb} [{address}, {group(at)}], [%base+{start}];")
            k.emit("cp.async.bulk.commit_group;", "cp.async.bulk.wait_group 0;")
        yield k.program("tma interleave")


def interleaved_map(k: Kernel, interleave: str, swizzle: str, rank: int, type_: str) -> TensorMap:
    d, unit = k.dice, 16 if interleave == "16B" else 32
    inner = 16 * 8 // int(type_[1:]) * d.pick([1, 1, 2])
    while True:
        box = (inner, *(d.between(1, 4) for _ in range(rank - 1)))
        size = tuple(d.between(2, 8) for _ in range(rank))
        stride, pitch = [], 8 * unit
        for n in size[1:]:
            pitch += unit * d.below(2)
            stride.append(pitch)
            pitch *= n
        step = (d.pick([1, 2]), *(d.pick([1, 1, 2]) for _ in range(rank - 1)))
        m = TensorMap(type_, size, tuple(stride), box, interleave=interleave, swizzle=swizzle, element_stride=step)
        if m.transfer_bytes <= 8192:
            return m


def casts() -> Iterator[Program]:
    """Clusters of 2 and 4: boxes over the edges into the CTAs of every mask, issued by any of them."""
    for n in range(6):
        k = Kernel(f"tma multicast {n}", 4, (2, 2, 4)[n % 3])
        for _ in range(4):
            multicast(k)
        yield k.program("tma multicast")


def tokens() -> Iterator[Program]:
    """test_wait with tokens of the phase, of one and of two phases ago and older; what a live barrier's memory holds."""
    k = Kernel("mbarrier tokens", 1)
    at = k.region(8, 8)
    k.emit("bar.sync 0;")
    word, states = k.new("b64"), k.news("b64", 7)
    mine = k.new("pred")
    k.emit(f"mov.b64 {word}, 0x0123456789ABCDEF;", f"@%first st.shared.b64 [%base+{at}], {word};", "bar.sync 0;")
    k.emit(f"setp.eq.u32 {mine}, %me, 0;", f"@{mine} mbarrier.init.shared::cta.b64 [%base+{at}], 1;", "bar.sync 0;")
    k.emit(f"ld.shared.b64 {word}, [%base+{at}];", "bar.sync 0;")
    k.trace("b64", word, "plain load of a live mbarrier")
    high = k.new("b64")
    for n, state in enumerate(states):
        done = k.new("pred")
        k.emit(
            f"mov.b64 {state}, 0;",
            f"@{mine} mbarrier.arrive.shared::cta.b64 {state}, [%base+{at}];",
            "bar.warp.sync 0xffffffff;",
            "bar.sync 0;",
        )
        for old in range(n + 1):
            k.emit(
                f"setp.ne.u32 {done}, 0, 0;",
                f"@{mine} mbarrier.test_wait.shared::cta.b64 {done}, [%base+{at}], {states[old]};",
            )
            k.trace("pred", done, f"test_wait with the token of phase {old} in phase {n + 1}")
        k.emit(f"shr.u64 {high}, {state}, 32;")
        k.trace("b64", high, "high word of a token")
        count = k.new("b32")
        k.emit(f"mov.b32 {count}, 0;", f"@{mine} mbarrier.pending_count.b64 {count}, {state};")
        k.trace("b32", count, "pending_count")
    k.source(k.random_words(1))
    yield k.program("mbarrier")


def elections() -> Iterator[Program]:
    """elect.sync among the lanes of random masks."""
    k = Kernel("elect of masks", 16)
    for n in range(6):
        mask, mine, leader, p = k.new("b32"), k.new("pred"), k.new("b32"), k.new("pred")
        warps = k.dice.bits(k.total // 32, 32) | np.uint32(1) << (k.dice.bits(k.total // 32, 32) % np.uint32(32))
        if n % 2:
            warps &= k.dice.bits(k.total // 32, 32) | warps & (~warps + np.uint32(1))
        k.emit(f"mov.b32 {mask}, {k.source(np.repeat(warps, 32).reshape(1, -1).astype(np.uint32))[0]};")
        bit = k.new("b32")
        k.emit(
            f"and.b32 {bit}, %me, 31;",
            f"shr.u32 {bit}, {mask}, {bit};",
            f"and.b32 {bit}, {bit}, 1;",
            f"setp.ne.u32 {mine}, {bit}, 0;",
        )
        k.emit(f"mov.b32 {leader}, 99;", f"setp.ne.u32 {p}, 0, 0;")
        k.emit(f"@{mine} elect.sync {leader}|{p}, {mask};", "bar.warp.sync 0xffffffff;")
        k.trace("b32", leader, "elect.sync")
        k.trace("pred", p, "elect.sync")
    yield k.program("warp")


def addresses() -> Iterator[Program]:
    """How addresses of a CTA's own and of others' shared memory look in clusters of 1, 2, 4 and 8."""
    for size in (1, 2, 4, 8):
        k = Kernel(f"cluster addresses {size}", 8, size)
        at = k.region(16)
        k.source(k.random_words(1))
        own, window, generic, word, p = k.new("b32"), k.new("b64"), k.new("b64"), k.new("b32"), k.new("pred")
        k.emit(f"add.u32 {own}, %base, {at};", f"mov.b64 {window}, 0;", f"cvta.shared.u64 {window}, {window};")
        k.trace("b32", own, "mov of a shared variable")
        k.emit(
            f"cvt.u64.u32 {generic}, {own};",
            f"cvta.shared.u64 {generic}, {generic};",
            f"sub.s64 {generic}, {generic}, {window};",
        )
        k.trace("b64", generic, "cvta.shared less the window")
        for rank in range(size):
            peer, wide = k.new("b32"), k.new("b64")
            k.emit(f"mapa.shared::cluster.u32 {peer}, {own}, {rank};")
            k.trace("b32", peer, "mapa")
            k.emit(f"mapa.shared::cluster.u32 {word}, {peer}, 0;", f"getctarank.shared::cluster.u32 {word}, {peer};")
            k.trace("b32", word, "getctarank")
            k.emit(
                f"cvt.u64.u32 {wide}, {own};", f"cvta.shared.u64 {wide}, {wide};", f"mapa.u64 {wide}, {wide}, {rank};"
            )
            for space in ("shared::cta", "shared::cluster", "global"):
                k.emit(f"isspacep.{space} {p}, {wide};")
                k.trace("pred", p, f"isspacep.{space} of a peer")
            k.emit(f"cvta.to.shared.u64 {generic}, {wide};")
            k.trace("b64", generic, "cvta.to.shared of a peer")
            k.emit(f"sub.s64 {generic}, {wide}, {window};")
            k.trace("b64", generic, "mapa.u64 less the window")
        k.emit(f"mov.u32 {word}, %cluster_ctarank;")
        k.trace("b32", word, "%cluster_ctarank")
        yield k.program("cluster")


def additions() -> Iterator[Program]:
    """Additions of f64 in global and shared memory, by threads and by the copy engine: NaN, infinities, overflow."""
    chosen = [0, 1 << 63, 1, 0x3FF0 << 48, 0xBFF0 << 48, 0x7FEF << 48 | 1, 0xFFEF << 48, 0x7FF0 << 48, 0xFFF0 << 48,
              0x7FF8 << 48, 0xFFF8 << 48 | 0x1234, 0x7FF0 << 48 | 0x55, 0xFFF4 << 48 | 0xABC00000000, 0x7FFF << 48 | 0x77]  # fmt: skip
    pairs = np.array(list(itertools.product(chosen, chosen)), np.uint64)
    pairs = np.concatenate([pairs, pairs[: 256 - len(pairs)]])
    k = Kernel("additions of f64 in memory", 2)
    old, new = pairs[:, 0].copy(), pairs[:, 1].copy()
    low, high = k.source(np.stack([new & np.uint64(0xFFFFFFFF), new >> np.uint64(32)]).astype(np.uint32))
    value, at, mine, before = k.new("b64"), k.new("b64"), k.new("b32"), k.new("b64")
    places = [k.global_words(old.view(np.uint32)) for _ in range(3)]
    operands = k.global_words(new.view(np.uint32))
    k.emit(f"mov.b64 {value}, {{{low}, {high}}};", f"mad.wide.u32 {at}, %gid, 8, %rw;")
    k.emit(
        f"atom.global.add.f64 {before}, [{at}+{places[0]}], {value};",
        f"red.global.add.f64 [{at}+{places[1]}], {value};",
    )
    k.trace("b64", before, "atom.global.add.f64")
    start = k.region(1024)
    k.emit(f"mad.lo.u32 {mine}, %me, 8, %base;", f"ld.global.b64 {before}, [{at}+{operands}];")
    k.emit(f"st.shared.b64 [{mine}+{start}], {before};", "fence.proxy.async;")
    k.sync()
    k.emit(f"mad.wide.u32 {at}, %cta, 1024, %rw;")
    k.emit(
        f"@%first cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f64 [{at}+{places[2]}], [%base+{start}], 1024;"
    )
    k.emit("cp.async.bulk.commit_group;", "cp.async.bulk.wait_group 0;")
    k.sync()
    low, high = k.source(np.stack([old & np.uint64(0xFFFFFFFF), old >> np.uint64(32)]).astype(np.uint32))
    k.emit(f"mov.b64 {before}, {{{low}, {high}}};", f"st.shared.b64 [{mine}+{start}], {before};")
    k.emit(f"atom.shared.add.f64 {before}, [{mine}+{start}], {value};", f"ld.shared.b64 {before}, [{mine}+{start}];")
    k.trace("b64", before, "atom.shared.add.f64")
    yield k.program("atomics")


def widths() -> Iterator[Program]:
    """wgmma of many N: where each element of the accumulator lies."""
    for n in (8, 24, 40, 64, 80, 104, 128, 160, 192, 208, 224, 248, 256):
        spelling = f"wgmma.mma_async.sync.aligned.m64n{n}k16.f32.f16.f16"
        yield wgmma_program(
            spelling,
            spelling,
            "f16",
            "f16",
            "f32",
            n,
            False,
            n % 16 == 8,
            "%p1, 1, 1, 0" if n % 16 == 8 else "%p1, 1, 1, 0, 0",
            ("window",),
            1,
        )
        if n in (24, 128, 256):
            for a, d, k in (("s8", "s32", 32), ("tf32", "f32", 8), ("e4m3", "f16", 32)):
                spelling = f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{d}.{a}.{a}"
                tail = "%p1" if d == "s32" else "%p1, 1, 1"
                yield wgmma_program(
                    spelling, spelling, a, a, d, n, False, True, tail, ("window",) if d != "s32" else ("bits",), 1
                )


def floors() -> Iterator[Program]:
    """Sums of products below the least exponent of alignment, which just reach or miss a rounding boundary of D.

    f32 results: whole numbers times 2^-159 that sum to about 2^-149, the least f32; -133 - 25 leaves bits down to 2^-158.
    f16 results: 2^-25, half of the least f16, and a few numbers times 2^-47; -21 - 25 leaves bits down to 2^-46.
    """
    for a, d, k, most in (("bf16", "f32", 16, 128), ("tf32", "f32", 8, 256), ("f16", "f16", 16, 0)):
        name = f"wgmma.mma_async.sync.aligned.m64n16k{k}.{d}.{a}.{a}"
        ctas = 16
        number = raw(f"{name} numbers", ctas * 64 * k, 32).reshape(ctas, 64, k)
        choice = raw(f"{name} choice", ctas * 16 * k, 32).reshape(ctas, 16, k) % 8
        if most:
            left = np.ldexp((number % np.uint32(most)).astype(np.float64), -80).astype(np.float32)
            right = np.ldexp(np.where(choice == 0, 0.0, np.where(choice == 1, 2.0, 1.0)), -79).astype(np.float32)
            codes_a, codes_b = (x.view(np.uint32) >> np.uint32(16) for x in (left, right))
            if a == "tf32":
                codes_a, codes_b = left.view(np.uint32), right.view(np.uint32)
        else:
            small = (number % 4).astype(np.uint32) | (number >> np.uint32(8) & np.uint32(1)) << np.uint32(15)
            codes_a = np.where(number >> np.uint32(16) & np.uint32(3), 0, small)
            codes_b = np.where(choice < 6, 0x0002, 0)
            codes_a[:, :, 0], codes_b[:, :, 0] = 0x0C00, 0x0800  # 2^-12, 2^-13
        size = 4 if a == "tf32" else 2
        images = {}
        for what, codes in (("a", codes_a), ("b", codes_b)):  # 16-byte columns of K, one after the other
            rows = codes.shape[1]
            columns = codes.reshape(ctas, rows, k * size // 16, 16 // size).transpose(0, 2, 1, 3)
            images[what] = np.ascontiguousarray(columns).astype(f"u{size}")
        images["c"] = np.zeros(ctas * 128 * (8 if d == "f32" else 4), np.uint32)
        turns = "" if a == "tf32" else ", 0, 0"
        yield wgmma_program(
            f"{name} floor", name, a, a, d, 16, False, False, f"%p1, 1, 1{turns}", ("floor",), ctas, images
        )


def programs() -> list[Program]:
    return [
        *boxes(),
        *interleaved(),
        *interleaved_stores(),
        *additions(),
        *casts(),
        *tokens(),
        *elections(),
        *addresses(),
        *widths(),
        *floors(),
    ]
