"""More questions to a Hopper GPU: what descriptors read, what TMA writes, what barriers count, what warps exchange."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
from programs import HEADER, Program, raw

from smalti.layout.descriptors import encode_smem
from smalti.layout.tensor_map import TensorMap
from smalti.run import Buffer, Launch, MapOf, Pointer

WINDOW = 65536
BASE = 0x400  # where a CTA's shared memory begins (h200: the first KiB is the system's)


def descriptors() -> Iterator[Program]:
    """B of wgmma bf16 read through many descriptors of a window of random small numbers; A is the identity, repeated."""
    values = raw("window", WINDOW // 2, 16) & 0x7F | 0x3F00  # bf16 in [0.5, 2): every element tells on itself
    for major, swizzle in itertools.product(("K", "MN"), ("none", "32B", "64B", "128B")):
        chosen = [(16 * n, 256, 512, 0) for n in range(72)]
        chosen += [(1024 + 16 * n, 64 * 2**m, 1024, b) for n in range(0, 9, 4) for m in range(4) for b in range(8)]
        chosen += [(128 * n, 16 * n + 16, 2048 - 16 * n, 0) for n in range(24)]
        codes = [
            encode_smem("sm_90a", BASE + start, lbo, sbo, base if swizzle != "none" else 0, swizzle)
            for start, lbo, sbo, base in chosen
        ]
        yield _descriptor_program(
            f"descriptor {major}-major {swizzle}", np.array(codes, np.uint64), values, int(major == "MN")
        )


def _descriptor_program(name: str, codes: Any, values: Any, turned: int) -> Program:
    a = np.zeros((2, 8, 8, 8), np.uint16)  # columns of 16 bytes, groups of 8 rows, rows, elements
    for row in range(64):
        k = row % 16
        a[k // 8, row // 8, row % 8, k % 8] = 0x3F80
    own = encode_smem("sm_90a", BASE + WINDOW, 1024, 128, 0, "none")
    lines = [HEADER, ".extern .shared .align 1024 .b8 smem[];"]
    lines += [
        ".visible .entry kernel(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d)\n.reqntid 128, 1, 1\n{"
    ]
    lines += [".reg .b32 %r<12>; .reg .b64 %x<16>; .reg .f32 %f<8>; .reg .pred %p<2>;"]
    lines += ["mov.u32 %r0, %tid.x;", "mov.u32 %r1, %ctaid.x;", "mov.u32 %r2, smem;", "mad.lo.u32 %r3, %r0, 16, %r2;"]
    lines += ["ld.param.u64 %x0, [a];", "ld.param.u64 %x1, [b];", "ld.param.u64 %x2, [c];", "ld.param.u64 %x3, [d];"]
    lines += ["mad.wide.u32 %x4, %r0, 16, %x1;", "mad.wide.u32 %x5, %r0, 16, %x0;", "mad.wide.u32 %x6, %r1, 8, %x2;"]
    for at in range(0, WINDOW, 2048):
        lines += [
            f"ld.global.v4.b32 {{%r4, %r5, %r6, %r7}}, [%x4+{at}];",
            f"st.shared.v4.b32 [%r3+{at}], {{%r4, %r5, %r6, %r7}};",
        ]
    lines += [
        "ld.global.v4.b32 {%r4, %r5, %r6, %r7}, [%x5];",
        f"st.shared.v4.b32 [%r3+{WINDOW}], {{%r4, %r5, %r6, %r7}};",
    ]
    acc = "{%f0, %f1, %f2, %f3, %f4, %f5, %f6, %f7}"
    lines += [
        "ld.global.u64 %x7, [%x6];",
        "fence.proxy.async;",
        "bar.sync 0;",
        f"mov.u64 %x8, {own};",
        "setp.ne.u32 %p0, 0, 0;",
    ]
    lines += [f"mov.f32 %f{i}, 0f00000000;" for i in range(8)]
    lines += ["wgmma.fence.sync.aligned;",
              f"wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 {acc}, %x8, %x7, %p0, 1, 1, 0, {turned};",
              "wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"]  # fmt: skip
    lines += ["mad.lo.u32 %r8, %r1, 1024, %r0;", "mad.wide.u32 %x9, %r8, 4, %x3;"]
    lines += [f"st.global.f32 [%x9+{512 * i}], %f{i};" for i in range(8)] + ["ret;", "}"]
    buffers = {
        "a": Buffer("a", "u8", (2048,), data=a.view(np.uint8).reshape(-1)),
        "b": Buffer("b", "u8", (WINDOW,), data=values.astype(np.uint16).view(np.uint8)),
        "c": Buffer("c", "u8", (len(codes) * 8,), data=codes.view(np.uint8)),
        "d": Buffer("d", "u32", (len(codes) * 1024,), output=True),
    }
    launch = Launch(
        "kernel", (len(codes), 1, 1), (128, 1, 1), tuple(Pointer(p) for p in "abcd"), buffers, shared=WINDOW + 2048
    )
    return Program(name, "descriptors", "\n".join(lines), launch)


# -- TMA -------------------------------------------------------------------------------------------------

SIDE = 48  # rows of the source
SHARED = 16384


def loads() -> Iterator[Program]:
    """Boxes of every swizzle at places inside, over the edges and outside; the whole destination is kept."""
    cases = [
        ("u8", "none", (64, 8)), ("u16", "32B", (16, 16)), ("bf16", "64B", (32, 8)), ("f16", "128B", (64, 16)), ("f32", "128B", (16, 32)),
        ("u16", "128B", (24, 8)), ("u8", "64B", (48, 5)), ("tf32", "128B", (32, 8)), ("f32", "none", (4, 3)), ("u32", "32B", (8, 24)),
    ]  # fmt: skip
    for (kind, swizzle, box), fill in itertools.product(cases, ("zero", "nan")):
        if fill == "nan" and kind.startswith("u"):
            continue
        bits = (
            int("".join(c for c in kind if c.isdigit()).replace("19", "32") or 32)
            if kind not in ("bf16", "tf32")
            else {"bf16": 16, "tf32": 32}[kind]
        )
        size = bits // 8
        columns = 160 // size
        step = 16 // size
        places = [(step * x, y) for x in (0, 1, -1, 7, 9, 12, -20) for y in (0, 5, -3, 40, 47, 60, -50)]
        made = TensorMap(kind, size=(columns, SIDE), stride=(columns * size,), box=box, swizzle=swizzle, fill=fill)
        yield _load_program(f"load {kind} {swizzle} {box[0]}x{box[1]} {fill}", made, places, box[0] * box[1] * size)


def _load_program(name: str, made: TensorMap, places: list[tuple[int, int]], size: int) -> Program:
    source = raw(name, SIDE * 160, 8)
    lines = [HEADER, ".extern .shared .align 1024 .b8 smem[];"]
    lines += [
        ".visible .entry kernel(.param .align 64 .b8 map[128], .param .u64 c, .param .u64 d)\n.reqntid 128, 1, 1\n{"
    ]
    lines += [".reg .b32 %r<12>; .reg .b64 %x<10>; .reg .pred %p<3>;", "mov.u32 %r0, %tid.x;", "mov.u32 %r1, %ctaid.x;"]
    lines += [
        "mov.u32 %r2, smem;",
        "ld.param.u64 %x0, [c];",
        "ld.param.u64 %x1, [d];",
        "mov.b64 %x2, map;",
        "cvta.param.u64 %x3, %x2;",
    ]
    lines += ["mad.lo.u32 %r3, %r0, 4, %r2;", "mov.u32 %r4, 0xA5A5A5A5;"]
    lines += [f"st.shared.u32 [%r3+{at}], %r4;" for at in range(0, SHARED, 512)]
    lines += ["setp.eq.u32 %p0, %r0, 0;", f"add.u32 %r5, %r2, {SHARED};", "@%p0 mbarrier.init.shared::cta.b64 [%r5], 1;",
              "fence.mbarrier_init.release.cluster;", "fence.proxy.async;", "bar.sync 0;", "mad.wide.u32 %x4, %r1, 8, %x0;",
              "ld.global.v2.u32 {%r6, %r7}, [%x4];", "@!%p0 bra WAIT;", f"mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r5], {size};",
              "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r2], [%x3, {%r6, %r7}], [%r5];", "WAIT:",
              "mbarrier.try_wait.parity.shared::cta.b64 %p1, [%r5], 0;", "@!%p1 bra WAIT;",
              f"mad.lo.u32 %r8, %r1, {SHARED // 4}, %r0;", "mad.wide.u32 %x5, %r8, 4, %x1;"]  # fmt: skip
    for at in range(0, SHARED, 512):
        lines += [f"ld.shared.u32 %r9, [%r3+{at}];", f"st.global.u32 [%x5+{at}], %r9;"]
    lines += ["ret;", "}"]
    coordinates = np.array(places, np.int32)
    buffers = {
        "s": Buffer("s", "u8", source.shape, data=source),
        "c": Buffer("c", "u8", (coordinates.nbytes,), data=coordinates.view(np.uint8).reshape(-1)),
        "d": Buffer("d", "u32", (len(places) * SHARED // 4,), output=True),
    }
    launch = Launch(
        "kernel",
        (len(places), 1, 1),
        (128, 1, 1),
        (MapOf("s", made), Pointer("c"), Pointer("d")),
        buffers,
        shared=SHARED + 16,
    )
    return Program(name, "tma load", "\n".join(lines), launch)


def stores() -> Iterator[Program]:
    """Stores and reductions of one box over the edges of a matrix; the whole matrix is kept."""
    for kind, op in [("u32", ""), ("f16", ""), ("u8", ""), ("f32", "add"), ("f16", "add"), ("bf16", "add"), ("f16", "min"), ("bf16", "max"),
                     ("u32", "add"), ("s32", "min"), ("u32", "max"), ("u32", "inc"), ("u32", "dec"), ("u32", "and"), ("u32", "or"), ("u32", "xor")]:  # fmt: skip
        size = {"u32": 4, "s32": 4, "f32": 4, "f16": 2, "bf16": 2, "u8": 1}[kind]
        columns, step = 80 // size, 16 // size
        for x, y in ((0, 0), (step, 3), (4 * step, 1), (0, 6), (4 * step, 7), (5 * step, 0)):
            made = TensorMap(kind, size=(columns - (3 if size > 1 else 5), 9), stride=(80,), box=(2 * step, 4))
            yield _store_program(f"store {kind} {op or 'plain'} at {x},{y}", made, op, x, y, 2 * step * 4 * size)


def _store_program(name: str, made: TensorMap, op: str, x: int, y: int, size: int) -> Program:
    data, before = raw(name, 512, 8), raw(name + "before", 720 + 80, 8)
    verb = (
        f"cp.reduce.async.bulk.tensor.2d.global.shared::cta.{op}.tile.bulk_group"
        if op
        else "cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group"
    )
    text = f"""{HEADER}.visible .entry kernel(.param .align 64 .b8 map[128], .param .u64 a)
.reqntid 128, 1, 1
{{
.shared .align 128 .b8 smem[512];
.reg .b32 %r<8>; .reg .b64 %x<6>; .reg .pred %p<2>;
mov.u32 %r0, %tid.x;
mov.u32 %r1, smem;
ld.param.u64 %x0, [a];
mov.b64 %x1, map;
cvta.param.u64 %x2, %x1;
mad.wide.u32 %x3, %r0, 4, %x0;
mad.lo.u32 %r2, %r0, 4, %r1;
ld.global.u32 %r3, [%x3];
st.shared.u32 [%r2], %r3;
fence.proxy.async;
bar.sync 0;
setp.eq.u32 %p0, %r0, 0;
@!%p0 bra DONE;
{verb} [%x2, {{{x}, {y}}}], [%r1];
cp.async.bulk.commit_group;
cp.async.bulk.wait_group 0;
DONE:
ret;
}}
"""
    buffers = {"a": Buffer("a", "u8", (512,), data=data), "d": Buffer("d", "u32", (200,), data=before, output=True)}
    return Program(
        name, "tma store", text, Launch("kernel", (1, 1, 1), (128, 1, 1), (MapOf("d", made), Pointer("a")), buffers)
    )


# -- barriers and warps ----------------------------------------------------------------------------------


def barriers() -> Iterator[Program]:
    """Sequences of operations on one mbarrier: every result, and the word that inval leaves after each prefix."""
    steps = [
        "mbarrier.arrive.shared::cta.b64 %x4, [%r1];", "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%r1], 1000;",
        "mbarrier.arrive.shared::cta.b64 %x4, [%r1], 2;", "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r1], 600;",
        "mbarrier.arrive.expect_tx.shared::cta.b64 %x4, [%r1], 48;", "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r1], 400;",
        "mbarrier.arrive_drop.shared::cta.b64 %x4, [%r1];", "mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%r1], 48;",
        "mbarrier.arrive.shared::cta.b64 %x4, [%r1], 3;", "mbarrier.arrive.shared::cta.b64 %x4, [%r1];",
    ]  # fmt: skip
    for count in range(len(steps) + 1):
        # only the high word of a returned state is state (h200: the low word holds what it likes)
        body = "\n".join(
            f"{s}\nshr.u64 %x4, %x4, 32;\nst.global.b64 [%x0+{16 + 8 * n}], %x4;" for n, s in enumerate(steps[:count])
        )
        text = f"""{HEADER}.visible .entry kernel(.param .u64 d)
{{
.shared .align 8 .b64 bar;
.reg .b32 %r<8>; .reg .b64 %x<6>; .reg .pred %p<3>;
mov.u32 %r0, %tid.x;
mov.u32 %r1, bar;
ld.param.u64 %x0, [d];
mov.u64 %x4, 0;
mbarrier.init.shared::cta.b64 [%r1], 5;
{body}
mbarrier.test_wait.parity.shared::cta.b64 %p0, [%r1], 0;
mbarrier.test_wait.parity.shared::cta.b64 %p1, [%r1], 1;
selp.u32 %r2, 1, 0, %p0;
selp.u32 %r3, 2, 0, %p1;
or.b32 %r2, %r2, %r3;
st.global.u32 [%x0+8], %r2;
mbarrier.inval.shared::cta.b64 [%r1];
ld.shared.b64 %x5, [%r1];
st.global.b64 [%x0], %x5;
ret;
}}
"""
        buffers = {"d": Buffer("d", "u32", (32,), data=np.zeros(128, np.uint8), output=True)}
        yield Program(
            f"mbarrier after {count} operations",
            "mbarrier",
            text,
            Launch("kernel", (1, 1, 1), (1, 1, 1), (Pointer("d"),), buffers),
        )


def warps() -> Iterator[Program]:
    """Exchange between lanes: all modes and masks of shfl, votes, reductions, matches, the elected lane."""
    full = "0xffffffff"
    bodies = {
        **{f"shfl {m} {c}": f"and.b32 %r5, %r2, 31;\nshfl.sync.{m}.b32 %r4|%p0, %r2, %r5, {c}, {full};\n@!%p0 xor.b32 %r4, %r4, 0x80000000;"
           for m in ("up", "down", "bfly", "idx") for c in ((0, 0x1800) if m == "up" else (31, 0x181F, 0x0807))},
        **{f"redux {o}": f"redux.sync.{o} %r4, %r2, {full};" for o in ("add.u32", "min.u32", "max.s32", "and.b32", "or.b32", "xor.b32")},
        "vote ballot": f"setp.lt.s32 %p0, %r2, 0;\nvote.sync.ballot.b32 %r4, %p0, {full};",
        "match any": f"and.b32 %r5, %r2, 7;\nmatch.any.sync.b32 %r4, %r5, {full};",
        "elect": f"elect.sync %r4|%p0, {full};\n@%p0 add.u32 %r4, %r4, 100;",
        "prmt": "not.b32 %r5, %r2;\nprmt.b32 %r4, %r2, %r5, %r2;", "lop3": "not.b32 %r5, %r2;\nshl.b32 %r6, %r2, 5;\nlop3.b32 %r4, %r2, %r5, %r6, 0xCA;",
        "bfind": "bfind.s32 %r4, %r2;", "fns": "fns.b32 %r4, %r2, 3, 2;", "dp4a": "not.b32 %r5, %r2;\ndp4a.s32.u32 %r4, %r2, %r5, %r2;",
    }  # fmt: skip
    inputs = raw("lanes", 4096, 32)
    for name, body in bodies.items():
        text = f"""{HEADER}.visible .entry kernel(.param .u64 a, .param .u64 d)
{{
.reg .b32 %r<8>; .reg .b64 %x<6>; .reg .pred %p<3>;
mov.u32 %r0, %tid.x;
mov.u32 %r1, %ctaid.x;
mad.lo.u32 %r1, %r1, 256, %r0;
ld.param.u64 %x0, [a];
ld.param.u64 %x1, [d];
mad.wide.u32 %x2, %r1, 4, %x0;
mad.wide.u32 %x3, %r1, 4, %x1;
ld.global.b32 %r2, [%x2];
{body}
st.global.b32 [%x3], %r4;
ret;
}}
"""
        buffers = {
            "a": Buffer("a", "u8", (16384,), data=inputs.view(np.uint8)),
            "d": Buffer("d", "u32", (4096,), output=True),
        }
        yield Program(
            name, "warp", text, Launch("kernel", (16, 1, 1), (256, 1, 1), (Pointer("a"), Pointer("d")), buffers)
        )


def programs() -> list[Program]:
    return [*descriptors(), *loads(), *stores(), *barriers(), *warps()]
