"""A Hopper matmul in PTX by hand: D = A · Bᵀ in bf16, one 128 x 256 tile a CTA, one producer and two consumer
warpgroups, a ring of TMA loads, wgmma from shared memory, an epilogue by stmatrix and TMA stores. Any size that TMA
can address.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from smalti.layout.tensor_map import TensorMap
from smalti.ptx.module import SINK, Guard, Special
from tests.vgpu.asm import Kernel

TM, TN, TK = 128, 256, 64
A_BYTES, B_BYTES = TM * TK * 2, TN * TK * 2
STAGE = A_BYTES + B_BYTES
LOAD = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"


def descriptor_base(k: Kernel, address: Any) -> Any:
    """The descriptor of a K-major tile with 128-byte swizzle that starts at a shared address."""
    wide = k.value("cvt.u64.u32", address, type_="u64")
    start = k.value("shr.u64", wide, 4)
    masked = k.value("and.b64", start, 0x3FFF)
    return k.value("or.b64", masked, 1 << 16 | 64 << 32 | 1 << 62)


def build(a: np.ndarray, b: np.ndarray, stages: int = 3, omit: frozenset[str] = frozenset()) -> Kernel:
    """a [M, K], b [N, K] bf16 codes. `omit` leaves out a synchronisation, for tests that must fail."""
    (m, depth), n = a.shape, len(b)
    grid = (-(-n // TN), -(-m // TM))
    steps = -(-depth // TK)
    barriers = stages * STAGE
    k = Kernel(384, grid=grid[0] * grid[1], shared=barriers + 64 * stages + 64)
    k.buffer("a", a)
    k.buffer("b", b)
    k.buffer("d", np.zeros((m, n), np.uint16))
    map_a = k.map("a", TensorMap("bf16", (depth, m), (2 * depth,), (TK, TM), swizzle="128B"))
    map_b = k.map("b", TensorMap("bf16", (depth, n), (2 * depth,), (TK, TN), swizzle="128B"))
    map_d = k.map("d", TensorMap("bf16", (n, m), (2 * n,), (64, 64), swizzle="128B"))
    full, empty = (lambda s: barriers + 8 * s), (lambda s: barriers + 8 * (stages + s))
    cta = k.value("mov.u32", Special("ctaid.x"))
    column = k.value("mul.lo.u32", k.value("rem.u32", cta, grid[0]), TN)
    row = k.value("mul.lo.u32", k.value("div.u32", cta, grid[0]), TM)
    for s in range(stages):
        k.emit("mbarrier.init.shared::cta.b64", k.at(full(s)), 1, guard=k.first)
        k.emit("mbarrier.init.shared::cta.b64", k.at(empty(s)), 2, guard=k.first)
    k.emit("fence.mbarrier_init.release.cluster", guard=k.first)
    k.sync()
    group = k.value("shr.u32", k.tid, 7)
    consumer, end = k.reg("pred"), k.b.label()
    k.emit("setp.ne.u32", consumer, group, 0)
    consume = k.b.label()
    k.emit("bra", consume, guard=consumer)
    # -- producer: one thread
    k.emit("setmaxnreg.dec.sync.aligned.u32", 40)
    k.emit("bra", end, guard=Guard(k.first, True))
    step, phase = k.value("mov.u32", 0), k.value("mov.u32", 1)
    loop, done = k.b.label(), k.reg("pred")
    k.b.place(loop)
    for s in range(stages):
        if "empty" not in omit:
            k.wait(k.at(empty(s)), phase)
        k.emit("mbarrier.arrive.expect_tx.shared::cta.b64", SINK, k.at(full(s)), STAGE)
        at = k.value("mul.lo.u32", step, TK)
        k.emit(LOAD, k.at(s * STAGE), k.box(map_a, at, row), k.at(full(s)))
        k.emit(LOAD, k.at(s * STAGE + A_BYTES), k.box(map_b, at, column), k.at(full(s)))
        k.emit("add.u32", step, step, 1)
        k.emit("setp.ge.u32", done, step, steps)
        k.emit("bra", end, guard=done)
    k.emit("xor.b32", phase, phase, 1)
    k.emit("bra", loop)
    # -- consumers: 64 rows each
    k.b.place(consume)
    k.emit("setmaxnreg.inc.sync.aligned.u32", 232)
    half = k.value("sub.u32", group, 1)
    lane = k.value("and.b32", k.tid, 127)
    lead, off = k.reg("pred"), k.reg("pred")
    k.emit("setp.eq.u32", lead, lane, 0)
    k.emit("setp.ne.u32", off, 0, 0)
    acc = k.regs("f32", TN // 2)
    own = k.value("mad.lo.u32", half, 64 * 128, k.base)
    da, db = descriptor_base(k, own), descriptor_base(k, k.value("add.u32", k.base, A_BYTES))
    index, parity = k.value("mov.u32", 0), k.value("mov.u32", 0)
    adds = k.reg("pred")
    k.emit("setp.ne.u32", adds, 0, 0)
    body, out = k.b.label(), k.b.label()
    last = k.reg("pred")
    k.b.place(body)
    for s in range(stages):
        k.wait(k.at(full(s)), parity)
        k.emit("wgmma.fence.sync.aligned")
        for part in range(TK // 16):
            shift = (s * STAGE + 32 * part) >> 4
            k.emit(
                "wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16", acc, k.value("add.u64", da, shift),
                k.value("add.u64", db, shift), adds if part == 0 else _true(k), 1, 1, 0, 0,
            )  # fmt: skip
        k.emit("setp.eq.u32", adds, 0, 0)
        k.emit("wgmma.commit_group.sync.aligned")
        if "wait" not in omit:
            k.emit("wgmma.wait_group.sync.aligned", 1)
        if s > 0:  # the slot before this one is free
            k.emit("mbarrier.arrive.shared::cta.b64", SINK, k.at(empty(s - 1)), guard=lead)
        else:
            later = k.reg("pred")
            k.emit("setp.ne.u32", later, index, 0)
            k.emit("and.pred", later, later, lead)
            k.emit("mbarrier.arrive.shared::cta.b64", SINK, k.at(empty(stages - 1)), guard=later)
        k.emit("add.u32", index, index, 1)
        k.emit("setp.ge.u32", last, index, steps)
        k.emit("bra", out, guard=last)
    k.emit("xor.b32", parity, parity, 1)
    k.emit("bra", body)
    k.b.place(out)
    k.emit("wgmma.wait_group.sync.aligned", 0)
    # -- epilogue: both consumers are through with the ring
    k.emit("bar.sync", 1, 256)
    tile = k.value("mad.lo.u32", half, 64 * TN * 2, k.base)
    warp, low = k.value("shr.u32", lane, 5), k.value("and.b32", k.tid, 31)
    line = k.value("mad.lo.u32", warp, 16, k.value("and.b32", low, 15))
    upper = k.value("shr.u32", low, 4)
    for j in range(TN // 16):
        packed = [
            k.value("cvt.rn.bf16x2.f32", acc[8 * j + 2 * i + 1], acc[8 * j + 2 * i], type_="b32") for i in range(4)
        ]
        chunk = k.value("add.u32", upper, 2 * (j % 4))
        place = k.value("xor.b32", chunk, k.value("and.b32", line, 7))
        linear = k.value("mad.lo.u32", line, 128, k.value("mad.lo.u32", place, 16, tile))
        k.emit("stmatrix.sync.aligned.m8n8.x4.shared.b16", k.at(8192 * (j // 4), linear), packed)
    if "fence" not in omit:
        k.emit("fence.proxy.async.shared::cta")
    k.emit("bar.sync", k.value("add.u32", group, 1), 128)
    first_row = k.value("mad.lo.u32", half, 64, row)
    for q in range(TN // 64):
        box = k.box(map_d, k.value("add.u32", column, 64 * q), first_row)
        k.emit("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group", box, k.at(8192 * q, tile), guard=lead)
    k.emit("cp.async.bulk.commit_group")
    if "store" not in omit:
        k.emit("cp.async.bulk.wait_group.read", 0)
    k.b.place(end)
    return k


def _true(k: Kernel) -> Any:
    p = k.reg("pred")
    k.emit("setp.eq.u32", p, 0, 0)
    return p
