"""How long the virtual GPU takes for one instruction, by kind: a loop of copies of it, 128 lanes, no checks.

Prints microseconds for one execution on a gang of four warps, the loop around it included.
"""

from __future__ import annotations

import time

import numpy as np

from smalti.ptx.parse import parse
from smalti.vgpu.launch import LaunchConfig
from smalti.vgpu.machine import Machine
from smalti.vgpu.memory import Memory

COPIES, TURNS = 32, 200

KINDS = {
    "add.u32 reg": "add.u32 %r1, %r2, %r3;",
    "add.u32 const": "add.u32 %r1, %r2, 17;",
    "and.b32": "and.b32 %r1, %r2, 255;",
    "mad.lo.u32": "mad.lo.u32 %r1, %r2, %r3, %r4;",
    "mul.wide.u32": "mul.wide.u32 %rd1, %r2, 4;",
    "shl.b32": "shl.b32 %r1, %r2, 3;",
    "setp.lt.s32": "setp.lt.s32 %p1, %r2, %r3;",
    "selp.b32": "selp.b32 %r1, %r2, %r3, %p1;",
    "mov.b32": "mov.b32 %r1, %r2;",
    "mov.b32 const": "mov.b32 %r1, 7;",
    "mov.b64 pack": "mov.b64 %rd1, {%r1, %r2};",
    "cvt.u64.u32": "cvt.u64.u32 %rd1, %r2;",
    "prmt.b32": "prmt.b32 %r1, %r2, %r3, 0x5410;",
    "lop3.b32": "lop3.b32 %r1, %r2, %r3, %r4, 0x96;",
    "add.f32": "add.f32 %f1, %f2, %f3;",
    "mul.f32": "mul.f32 %f1, %f2, 0f3F000000;",
    "fma.rn.f32": "fma.rn.f32 %f1, %f2, %f3, %f4;",
    "max.f32": "max.f32 %f1, %f2, %f3;",
    "ex2.approx.ftz.f32": "ex2.approx.ftz.f32 %f1, %f2;",
    "cvt.rn.bf16x2.f32": "cvt.rn.bf16x2.f32 %r1, %f2, %f3;",
    "cvt.rn.f16x2.f32": "cvt.rn.f16x2.f32 %r1, %f2, %f3;",
    "guarded add": "@%p2 add.u32 %r1, %r2, %r3;",
    "guarded off": "@%p3 add.u32 %r1, %r2, %r3;",
    "shfl.sync.bfly": "shfl.sync.bfly.b32 %r1, %r2, 1, 31, 0xffffffff;",
    "elect.sync": "elect.sync %r1|%p1, 0xffffffff;",
    "ld.global.b32": "ld.global.b32 %r1, [%rd2];",
    "ld.global.v4.b32": "ld.global.v4.b32 {%r1, %r5, %r6, %r7}, [%rd3];",
    "st.global.b32": "st.global.b32 [%rd2], %r2;",
    "ld.shared.b32": "ld.shared.b32 %r1, [%r9];",
    "ld.shared.v4.b32": "ld.shared.v4.b32 {%r1, %r5, %r6, %r7}, [%r10];",
    "st.shared.b32": "st.shared.b32 [%r9], %r2;",
    "st.shared.v4.b32": "st.shared.v4.b32 [%r10], {%r1, %r2, %r3, %r4};",
    "ld.param.b64": "ld.param.b64 %rd1, [a];",
    "bar.sync": "bar.sync 0;",
}

TEXT = """
.version 8.8
.target sm_90a
.address_size 64
.visible .entry kernel(.param .u64 a)
{
  .reg .pred %p<8>;
  .reg .b32 %r<32>;
  .reg .f32 %f<8>;
  .reg .b64 %rd<8>;
  .shared .align 16 .b8 tile[4096];
  ld.param.u64 %rd0, [a];
  mov.u32 %r0, %tid.x;
  mov.u32 %r1, 0;
  mad.lo.u32 %r2, %r0, 7, 3;
  mad.lo.u32 %r3, %r0, 5, 1;
  mov.u32 %r4, 9;
  mov.u32 %r9, tile;
  mad.lo.u32 %r10, %r0, 16, %r9;
  mad.lo.u32 %r9, %r0, 4, %r9;
  st.shared.v4.b32 [%r10], {%r1, %r2, %r3, %r4};
  mad.wide.u32 %rd2, %r0, 4, %rd0;
  mad.wide.u32 %rd3, %r0, 16, %rd0;
  cvt.rn.f32.u32 %f2, %r2;
  mul.f32 %f2, %f2, 0f3C000000;
  cvt.rn.f32.u32 %f3, %r3;
  mov.f32 %f4, 0f3FC00000;
  mov.f32 %f1, %f4;
  setp.lt.u32 %p1, %r0, 50;
  setp.lt.u32 %p2, %r0, 70;
  setp.gt.u32 %p3, %r0, 999;
  mov.u32 %r20, 0;
LOOP:
BODY
  add.u32 %r20, %r20, 1;
  setp.lt.u32 %p4, %r20, TURNS;
  @%p4 bra LOOP;
  ret;
}
"""


def seconds(body: str) -> float:
    """Of one run with the body in its loop."""
    memory = Memory()
    buffer = memory.allocate("a", 128 * 16)
    module = parse(TEXT.replace("BODY", body).replace("TURNS", str(TURNS)), "benchmark")
    config = LaunchConfig("kernel", (1, 1, 1), (128, 1, 1), np.uint64(buffer.address).tobytes())
    machine = Machine(module, config, memory)
    start = time.process_time()
    machine.run()
    return time.process_time() - start


def main() -> None:
    empty = min(seconds("") for _ in range(3))
    print(f"{'loop alone':22}{empty / TURNS * 1e6:7.2f} us a turn")
    for name, line in KINDS.items():
        total = min(seconds(f"  {line}\n" * COPIES) for _ in range(3))
        print(f"{name:22}{(total - empty) / TURNS / COPIES * 1e6:7.2f} us")


if __name__ == "__main__":
    main()
