"""Undefined bits: a word counts as undefined only as far as its undefined bits go."""

import numpy as np
import pytest

from smalti.errors import SmaltiError
from tests.vgpu.harness import run_ptx

pytestmark = pytest.mark.virtual

# %r9 and %rs9 are never written; %r1 has their bits in its upper half and 0x1234 in the lower one.
HEAD = """
.visible .entry kernel(.param .u64 out)
{
  .reg .pred %p<4>;
  .reg .b16 %rs<12>;
  .reg .b32 %r<16>;
  .reg .b64 %rd<8>;
  .shared .align 16 .b8 tile[1024];
  ld.param.u64 %rd0, [out];
  mov.u32 %r0, %tid.x;
  mad.wide.u32 %rd1, %r0, 4, %rd0;
  shl.b32 %r10, %r0, 4;
  mov.u32 %r11, tile;
  add.u32 %r11, %r11, %r10;
  mov.u32 %r12, 16;
  mov.u16 %rs0, 0x1234;
  mov.b32 %r1, {%rs0, %rs9};
"""


def kernel(body):
    text = HEAD + body + "  st.global.b32 [%rd1], %r2;\n  ret;\n}\n"
    return set(run_ptx(text, np.full(32, 7, np.uint32), block=32)[0].tolist())


# What makes a defined word of %r1 and its value, and a neighbour that takes an undefined bit along.
CASES = {
    "unpack": ("mov.b32 {%rs1, %rs2}, %r1; cvt.u32.u16 %r2, %rs1;", 0x1234, "cvt.u32.u16 %r2, %rs2;"),
    "sink": ("mov.b32 {%rs1, _}, %r1; cvt.u32.u16 %r2, %rs1;", 0x1234, "mov.b32 {_, %rs1}, %r1; cvt.u32.u16 %r2, %rs1;"),
    "prmt": ("prmt.b32 %r2, %r1, 0x55667788, 0x5410;", 0x77881234, "prmt.b32 %r2, %r1, 0, 0x4210;"),
    "prmt of b": ("prmt.b32 %r2, 0x55667788, %r1, 0x5401;", 0x12348877, "prmt.b32 %r2, 0, %r1, 0x6540;"),
    "prmt, sign": ("prmt.b32 %r2, %r1, 0, 0x9999;", 0, "prmt.b32 %r2, %r1, 0, 0xb444;"),
    "prmt, variable": ("mov.b32 %r3, 0x1010; prmt.b32 %r2, %r1, %r1, %r3;", 0x12341234, "prmt.b32 %r2, 0, 0, %r9;"),
    "and": ("and.b32 %r2, %r1, 0xff0f;", 0x1204, "and.b32 %r2, %r1, 0x1ffff;"),
    "or": ("or.b32 %r2, %r1, 0xffff0000;", 0xFFFF1234, "or.b32 %r2, %r1, 0xfffe0000;"),
    "xor": ("xor.b32 %r3, %r1, 0xf; cvt.u16.u32 %rs1, %r3; cvt.u32.u16 %r2, %rs1;", 0x123B, "xor.b32 %r2, %r1, %r1;"),
    "not": ("not.b32 %r3, %r1; and.b32 %r2, %r3, 0xffff;", 0xEDCB, "not.b32 %r2, %r1;"),
    "shl": ("shl.b32 %r2, %r1, 16;", 0x12340000, "shl.b32 %r2, %r1, 15;"),
    "shl, variable": ("shl.b32 %r2, %r1, %r12;", 0x12340000, "shl.b32 %r2, 1, %r9;"),
    "shr": ("shl.b32 %r3, %r1, 16; shr.u32 %r2, %r3, 20;", 0x123, "shr.s32 %r2, %r1, 16;"),
    "shf": ("shf.l.wrap.b32 %r2, 0x80000000, %r1, 17;", 0x24690000, "shf.l.wrap.b32 %r2, 0, %r1, 15;"),
    "bfe": ("bfe.u32 %r2, %r1, 4, 12;", 0x123, "bfe.s32 %r2, %r1, 4, 13;"),
    "bfi": ("bfi.b32 %r2, %r1, 0, 8, 16;", 0x123400, "bfi.b32 %r2, %r1, 0, 8, 17;"),
    "bfi, under": ("bfi.b32 %r2, 0x5678, %r1, 16, 16;", 0x56781234, "bfi.b32 %r2, 0x5678, %r1, 16, 15;"),
    "cvt": ("cvt.u32.u16 %r2, %r1;", 0x1234, "cvt.s64.s32 %rd2, %r1; cvt.u32.u64 %r2, %rd2;"),
    "selp": ("setp.ne.u32 %p0, %r12, 0; selp.b32 %r3, %r1, %r9, %p0; and.b32 %r2, %r3, 0xff;", 0x34,
             "setp.ne.u32 %p1, %r9, 0; selp.b32 %r2, 1, 2, %p1;"),
    "halves": ("add.f16x2 %r3, %r1, %r1; cvt.u32.u16 %r2, %r3;", 0x1634, "add.f16x2 %r2, %r1, %r1;"),
    "pack": ("mov.f32 %r3, 0f3f800000; cvt.rn.f16x2.f32 %r4, %r9, %r3; cvt.u32.u16 %r2, %r4;", 0x3C00,
             "cvt.rn.f16x2.f32 %r4, %r3, %r9; cvt.u32.u16 %r2, %r4;"),
    "pair": ("mov.b64 %rd2, {%r12, %r9}; cvt.u32.u64 %r2, %rd2;", 16, "shr.u64 %rd3, %rd2, 32; cvt.u32.u64 %r2, %rd3;"),
    "memory": ("st.shared.b32 [%r11], %r1; ld.shared.u16 %r2, [%r11];", 0x1234, "ld.shared.u16 %r2, [%r11+2];"),
    "memory, half": ("st.shared.b16 [%r11], %rs0; ld.shared.b32 %r3, [%r11]; bfe.u32 %r2, %r3, 0, 16;", 0x1234,
                     "ld.shared.b32 %r2, [%r11];"),
    "memory, vector": ("st.shared.v2.b32 [%r11], {%r1, %r12}; ld.shared.b64 %rd2, [%r11]; shr.u64 %rd3, %rd2, 32; cvt.u32.u64 %r2, %rd3;",
                       16, "shr.u64 %rd3, %rd2, 31; cvt.u32.u64 %r2, %rd3;"),
    "memory, signed": ("st.shared.b16 [%r11], %rs0; ld.shared.s32 %rd2, [%r11]; and.b64 %rd3, %rd2, 0xffff; cvt.u32.u64 %r2, %rd3;",
                       0x1234, "shr.u64 %rd3, %rd2, 32; cvt.u32.u64 %r2, %rd3;"),
    "global byte": ("cvt.u16.u32 %rs1, %r1; st.global.b8 [%rd1], %rs1; mov.u32 %r2, 3;", 3, "prmt.b32 %r3, %r1, 0, 2; st.global.b8 [%rd1], %r3;"),
}  # fmt: skip


def lines(text):
    return "".join(f"  {one.strip()};\n" for one in text.split(";") if one.strip())


@pytest.mark.parametrize("name", CASES)
def test_defined_bits_of_an_undefined_word(name):
    good, value, _ = CASES[name]
    assert kernel(lines(good)) == {value}


@pytest.mark.parametrize("name", CASES)
def test_one_undefined_bit_too_many(name):
    good, _, more = CASES[name]
    with pytest.raises(SmaltiError, match="SML0808"):
        kernel(lines(good) + lines(more))


def test_lanes_apart():
    """Thread 5 alone holds the undefined half; a guarded instruction leaves the other lanes' bits as they are."""
    body = """
  mov.u32 %r1, 3;
  setp.eq.u32 %p0, %r0, 5;
  @%p0 mov.b32 %r1, {%rs0, %rs9};
  shl.b32 %r3, %r1, 16;
  @!%p0 mov.u32 %r3, 4;
  mov.u32 %r2, %r3;
"""
    assert kernel(body) == {4, 0x12340000}
    with pytest.raises(SmaltiError, match="SML0808"):
        kernel(body.replace("%r1, 16", "%r1, 15"))


def test_an_overwritten_register_forgets():
    body = "  mov.u32 %r1, 5;\n  mov.u32 %r2, %r1;\n"
    assert kernel(body) == {5}
    with pytest.raises(SmaltiError, match="SML0808"):
        kernel("  and.b32 %r3, %r1, 0xfffff;\n  mul.lo.u32 %r1, %r3, 1;\n  and.b32 %r2, %r1, 0xf;\n")
