"""Small PTX kernels with launches whose results are known exactly; for the virtual GPU and for a real one."""

import numpy as np

from smalti.layout.tensor_map import row_major
from smalti.run import Buffer, Launch, MapOf, Pointer, Scalar, Scratch, Struct

HEAD = """.version 8.0
.target sm_90a
.address_size 64
.file 1 "/somewhere/kernel.py"
"""

ADD = f"""{HEAD}
.visible .entry add(.param .u64 x, .param .u64 y, .param .u64 d, .param .u32 n)
{{
    .reg .pred %p<2>; .reg .b32 %r<8>; .reg .f32 %f<4>; .reg .b64 %rd<8>;
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    ld.param.u64 %rd3, [d];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %ctaid.x;
    mov.u32 %r3, %ntid.x;
    mov.u32 %r4, %tid.x;
    mad.lo.u32 %r5, %r2, %r3, %r4;
    setp.ge.u32 %p1, %r5, %r1;
    @%p1 bra DONE;
    mul.wide.u32 %rd4, %r5, 4;
    add.u64 %rd5, %rd1, %rd4;
    add.u64 %rd6, %rd2, %rd4;
    add.u64 %rd7, %rd3, %rd4;
    .loc 1 12 0
    ld.global.f32 %f1, [%rd5];
    ld.global.f32 %f2, [%rd6];
    add.rn.f32 %f3, %f1, %f2;
    .loc 1 13 0
    st.global.f32 [%rd7], %f3;
DONE:
    ret;
}}
"""

# Every kind of parameter: thread 0 copies what it finds to d; the struct holds a pointer at byte 8.
PARAMETERS = f"""{HEAD}
.visible .entry parameters(.param .align 8 .b8 s[24], .param .u16 h, .param .b8 t[12], .param .f64 f,
                           .param .u64 scratch, .param .u64 null)
{{
    .reg .b16 %h<3>; .reg .b32 %r<4>; .reg .b64 %rd<8>; .reg .pred %p<2>;
    mov.u32 %r1, %tid.x;
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra DONE;
    ld.param.u64 %rd1, [s+8];
    ld.param.u32 %r2, [s];
    ld.param.u32 %r3, [s+20];
    ld.param.u16 %h1, [h];
    ld.param.u8 %h2, [t+11];
    ld.param.b64 %rd2, [f];
    ld.param.u64 %rd3, [scratch];
    ld.param.u64 %rd4, [null];
    st.global.b64 [%rd3+56], %rd2;
    ld.global.b64 %rd5, [%rd3+56];
    st.global.u32 [%rd1], %r2;
    st.global.u32 [%rd1+4], %r3;
    st.global.u16 [%rd1+8], %h1;
    st.global.u8 [%rd1+10], %h2;
    st.global.b64 [%rd1+16], %rd5;
    st.global.b64 [%rd1+24], %rd4;
DONE:
    ret;
}}
"""

# One TMA load of a 16x64 bf16 box at (0, row) with 128-byte swizzle; the threads copy shared memory out as it lies.
TMA = f"""{HEAD}
.visible .entry tma(.param .align 64 .b8 map[128], .param .u64 d, .param .u32 row)
{{
    .reg .pred %p<4>; .reg .b32 %r<16>; .reg .b64 %rd<8>;
    .shared .align 1024 .b8 tile[2048];
    .shared .align 8 .b8 bar[8];
    mov.u32 %r1, %tid.x;
    mov.u32 %r2, tile;
    mov.u32 %r3, bar;
    ld.param.u32 %r4, [row];
    ld.param.u64 %rd1, [d];
    setp.ne.u32 %p1, %r1, 0;
    @%p1 bra READY;
    mbarrier.init.shared::cta.b64 [%r3], 1;
    fence.mbarrier_init.release.cluster;
READY:
    bar.sync 0;
    @%p1 bra WAIT;
    mov.b64 %rd2, map;
    cvta.param.u64 %rd3, %rd2;
    mov.u32 %r5, 0;
    mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 2048;
    cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes [%r2], [%rd3, {{%r5, %r4}}], [%r3];
WAIT:
    mbarrier.try_wait.parity.shared::cta.b64 %p2, [%r3], 0;
    @!%p2 bra WAIT;
    shl.b32 %r6, %r1, 4;
    add.u32 %r7, %r2, %r6;
    ld.shared.v4.u32 {{%r8, %r9, %r10, %r11}}, [%r7];
    cvt.u64.u32 %rd4, %r6;
    add.u64 %rd5, %rd1, %rd4;
    st.global.v4.u32 [%rd5], {{%r8, %r9, %r10, %r11}};
    ret;
}}
"""


def add(n=250, given=250):
    x, y = np.arange(-100, n - 100, dtype=np.float32), np.arange(1, 2 * n, 2, dtype=np.float32)
    buffers = {
        "x": Buffer("x", "f32", (n,), data=x.view(np.uint8)),
        "y": Buffer("y", "f32", (n,), data=y.view(np.uint8)),
        "d": Buffer("d", "f32", (n,), output=True, expected=(x + y).view(np.uint32)),
    }
    params = (Pointer("x"), Pointer("y"), Pointer("d"), Scalar("u32", given))
    return ADD, Launch("add", (2, 1, 1), (128, 1, 1), params, buffers)


def parameters():
    struct = Struct(bytes([1, 2, 3, 4]) + bytes(20), ((8, Pointer("d", 32)), (20, Scalar("s32", -2))))
    params = (struct, Scalar("u16", 0xBEEF), Struct(bytes(range(60, 72))), Scalar("f64", 1.5), Scratch(64), Scratch())
    want = np.full(64, 0x11, np.uint8)
    want[32:43] = np.frombuffer(bytes.fromhex("01020304 feffffff efbe 47"), np.uint8)
    want[48:56] = np.array([1.5]).view(np.uint8)
    want[56:64] = 0
    buffers = {"d": Buffer("d", "u8", (64,), data=np.full(64, 0x11, np.uint8), output=True, expected=want)}
    return PARAMETERS, Launch("parameters", (1, 1, 1), (32, 1, 1), params, buffers)


def tma(row=24):
    """The box ends 8 rows past the tensor's 32, so that half of it reads as zeros."""
    source = np.arange(32 * 64, dtype=np.uint16).reshape(32, 64) + 1
    want = np.zeros((16, 64), np.uint16)
    inside = source[row:]
    want[: len(inside)] = inside
    chunks = want.reshape(16, 8, 8)
    lines = np.arange(16)[:, None]
    swizzled = np.empty_like(chunks)
    swizzled[lines, np.arange(8)[None] ^ lines % 8] = chunks
    buffers = {
        "a": Buffer("a", "bf16", (32, 64), data=source.view(np.uint8).reshape(-1)),
        "d": Buffer("d", "bf16", (16, 64), output=True, expected=swizzled.reshape(16, 64)),
    }
    map_ = row_major("bf16", (32, 64), (16, 64), swizzle="128B")
    params = (MapOf("a", map_), Pointer("d"), Scalar("u32", row))
    return TMA, Launch("tma", (1, 1, 1), (128, 1, 1), params, buffers)


ALL = {"add": add, "parameters": parameters, "tma": tma}
