"""ld, st, mov, atomics, address arithmetic: every width and vector, every space, partial masks, misuse."""

import numpy as np
import pytest

from smalti.errors import SmaltiError
from tests.vgpu.harness import WORDS, execute, run_ptx, signed, words

HEAD = """
  .reg .pred %p<8>;
  .reg .b16 %h<16>;
  .reg .b32 %r<32>;
  .reg .b64 %rd<32>;
  .reg .b128 %q<4>;
"""


def kernel(params, body):
    """A kernel whose pointer parameters are in %rd10, %rd11 ..., tid in %r0."""
    signature = ", ".join(f".param .u64 {p}" for p in params)
    loads = "".join(f"  ld.param.u64 %rd{10 + i}, [{p}];\n" for i, p in enumerate(params))
    return f".visible .entry kernel({signature})\n{{\n{HEAD}{loads}  mov.u32 %r0, %tid.x;\n{body}  ret;\n}}\n"


def at(register, base, size):
    return f"  mad.wide.u32 {register}, %r0, {size}, {base};\n"


# -- loads and stores --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "t", ["b8", "u8", "s8", "b16", "u16", "s16", "b32", "u32", "s32", "f32", "b64", "u64", "s64", "f64"]
)
def test_load_extends(t):
    """Into a 64-bit register (32 for f32): zero- or sign-extended."""
    bits = int(t[1:])
    data = words(bits, 32)
    wide = "%rd0" if t[0] != "f" else ("%r1" if bits == 32 else "%rd0")
    body = at("%rd1", "%rd10", bits // 8) + f"  ld.global.{t} {wide}, [%rd1];\n"
    body += (
        ("  cvt.u64.u32 %rd0, %r1;\n" if wide == "%r1" else "")
        + at("%rd2", "%rd11", 8)
        + "  st.global.b64 [%rd2], %rd0;\n"
    )
    got = run_ptx(kernel(["a", "out"], body), data, np.full(32, 7, np.uint64))[1]
    assert got.tolist() == [(signed(x, bits) if t[0] == "s" else int(x)) & (1 << 64) - 1 for x in data]


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_store_cuts(bits):
    data = words(64, 32)
    body = at("%rd1", "%rd10", 8) + "  ld.global.b64 %rd0, [%rd1];\n" + at("%rd2", "%rd11", bits // 8)
    body += f"  st.global.b{bits} [%rd2], %rd0;\n"
    got = run_ptx(kernel(["a", "out"], body), data, np.full(33, 7, WORDS[bits]))[1]
    assert got.tolist() == [int(x) & (1 << bits) - 1 for x in data] + [7]


VECTORS = [("v2", 8), ("v4", 8), ("v2", 16), ("v4", 16), ("v2", 32), ("v4", 32), ("v2", 64)]


@pytest.mark.parametrize("vec,bits", VECTORS)
@pytest.mark.parametrize("space", ["global", "shared", "local", ""])
def test_vectors(vec, bits, space):
    """Through each space: a vector in, its items stored one by one reversed, and the other way round."""
    n = int(vec[1:])
    data = words(bits, 32 * n)
    register = {8: "%h", 16: "%h", 32: "%r", 64: "%rd"}[bits]
    first = {8: 1, 16: 1, 32: 1, 64: 0}[bits]
    names = [f"{register}{first + i}" for i in range(n)]
    size = bits // 8
    braces = "{" + ", ".join(names) + "}"
    reverse = "{" + ", ".join(reversed(names)) + "}"
    body = at("%rd15", "%rd10", n * size) + at("%rd16", "%rd11", n * size)
    body += f"  ld.global.{vec}.b{bits} {braces}, [%rd15];\n"
    if space == "shared":
        body = (
            "  .shared .align 16 .b8 tile[2048];\n"
            + body
            + f"  mov.u32 %r20, tile;\n  mad.lo.u32 %r20, %r0, {n * size}, %r20;\n"
        )
        place = "%r20"
    elif space == "local":
        body = "  .local .align 16 .b8 frame[64];\n" + body + "  mov.u64 %rd20, frame;\n"
        place = "%rd20+16"
    else:
        body += at("%rd20", "%rd12", n * size)
        place = "%rd20"
    dot = f".{space}" if space else ""
    body += f"  st{dot}.{vec}.b{bits} [{place}], {reverse};\n"
    body += f"  ld{dot}.{vec}.b{bits} {braces}, [{place}];\n  st.global.{vec}.b{bits} [%rd16], {braces};\n"
    got = run_ptx(
        kernel(["a", "out", "scratch"], body), data, np.full(32 * n, 7, WORDS[bits]), np.zeros(32 * n, WORDS[bits])
    )[1]
    assert got.reshape(32, n).tolist() == data.reshape(32, n)[:, ::-1].tolist()


@pytest.mark.virtual  # sm_100
@pytest.mark.parametrize("vec,bits", [("v8", 32), ("v4", 64)])
def test_wide_vectors(vec, bits):
    n = int(vec[1:])
    data = words(bits, 32 * n)
    register = "%r" if bits == 32 else "%rd"
    braces = "{" + ", ".join(f"{register}{i + 1}" for i in range(n)) + "}"
    body = at("%rd20", "%rd10", 32) + at("%rd21", "%rd11", 32)
    body += f"  ld.global.{vec}.b{bits} {braces}, [%rd20];\n  st.global.{vec}.b{bits} [%rd21], {braces};\n"
    got = run_ptx(kernel(["a", "out"], body), data, np.zeros(32 * n, WORDS[bits]), arch="sm_100a")[1]
    assert (got == data).all()


def test_sinks():
    data = words(32, 128)
    body = at("%rd1", "%rd10", 16) + at("%rd2", "%rd11", 4) + "  ld.global.v4.b32 {_, %r1, _, %r2}, [%rd1];\n"
    body += "  sub.u32 %r1, %r1, %r2;\n  st.global.u32 [%rd2], %r1;\n"
    got = run_ptx(kernel(["a", "out"], body), data, np.zeros(32, np.uint32))[1]
    assert (got == data[1::4] - data[3::4]).all()


def test_128_bits():
    data = np.stack([words(64, 32, 1), words(64, 32, 2)], axis=1)
    body = (
        at("%rd1", "%rd10", 16)
        + at("%rd2", "%rd11", 16)
        + "  ld.global.b128 %q0, [%rd1];\n  mov.b128 {%rd3, %rd4}, %q0;\n"
    )
    body += "  add.u64 %rd3, %rd3, 1;\n  mov.b128 %q1, {%rd4, %rd3};\n  st.global.b128 [%rd2], %q1;\n"
    got = run_ptx(kernel(["a", "out"], body), data, np.zeros_like(data))[1]
    assert (got[:, 0] == data[:, 1]).all() and (got[:, 1] == data[:, 0] + np.uint64(1)).all()


def test_guarded_access():
    """Lanes whose guard is false touch nothing, not even an address that does not exist."""
    data = words(32, 32)
    body = at("%rd1", "%rd10", 4) + at("%rd2", "%rd11", 4) + "  setp.lt.u32 %p0, %r0, 9;\n  mov.u32 %r1, 1234;\n"
    body += "  @!%p0 mov.u64 %rd1, 8;\n  @%p0 ld.global.u32 %r1, [%rd1];\n  st.global.u32 [%rd2], %r1;\n"
    body += "  @!%p0 mov.u64 %rd2, 8;\n  @%p0 st.global.u32 [%rd2+128], %r0;\n"
    got = run_ptx(kernel(["a", "out"], body), data, np.full(64, 5, np.uint32))[1].tolist()
    assert got == [*data[:9].tolist(), *[1234] * 23, *range(9), *[5] * 23]


def test_parameters_and_constants():
    text = """
.const .align 8 .b32 table[4] = {11, 22, 33, 0x44};
.global .align 4 .u32 counter = 5;
.visible .entry kernel(.param .align 16 .b8 s[24], .param .u64 out)
{
  .reg .b16 %h<4>;
  .reg .b32 %r<16>;
  .reg .b64 %rd<8>;
  ld.param.u64 %rd0, [out];
  ld.param.v2.u32 {%r1, %r2}, [s];
  ld.param.u8 %r3, [s+9];
  ld.param.s8 %r4, [s+10];
  ld.param.v4.b32 {%r5, %r6, %r7, %r8}, [s];
  mov.u32 %r9, %tid.x;
  and.b32 %r9, %r9, 3;
  mov.u64 %rd1, table;
  mad.wide.u32 %rd1, %r9, 4, %rd1;
  ld.const.u32 %r10, [%rd1];
  ld.const.u32 %r11, [table+12];
  ld.global.u32 %r12, [counter];
  cvta.const.u64 %rd2, %rd1;
  ld.u32 %r13, [%rd2];
  mov.u64 %rd3, s;
  cvta.param.u64 %rd3, %rd3;
  ld.u32 %r14, [%rd3+20];
  mov.u32 %r15, %tid.x;
  mad.wide.u32 %rd0, %r15, 48, %rd0;
  st.global.v4.b32 [%rd0], {%r1, %r2, %r3, %r4};
  st.global.v4.b32 [%rd0+16], {%r8, %r10, %r11, %r12};
  st.global.v2.b32 [%rd0+32], {%r13, %r14};
  ret;
}
"""
    s = np.arange(24, dtype=np.uint8) * 7 + 100
    out = np.zeros((32, 12), np.uint32)
    got = run_ptx(text, np.void(s.tobytes()), out)[0]
    words_ = s.view(np.uint32)
    table = [11, 22, 33, 0x44]
    for i in range(32):
        want = [
            words_[0],
            words_[1],
            s[9],
            signed(s[10], 8) & 0xFFFFFFFF,
            words_[3],
            table[i % 4],
            0x44,
            5,
            table[i % 4],
            words_[5],
        ]
        assert got[i, :10].tolist() == [int(w) for w in want]


def test_local_memory_is_private():
    body = (
        at("%rd1", "%rd10", 4)
        + """
  .local .align 4 .b8 frame[16];
  mov.u64 %rd2, frame;
  cvta.local.u64 %rd3, %rd2;
  st.local.u32 [%rd2+4], %r0;
  st.u32 [%rd3+8], 77;
  bar.sync 0;
  ld.u32 %r1, [%rd3+4];
  ld.local.u32 %r2, [frame+8];
  mad.lo.u32 %r1, %r2, 1000, %r1;
  st.global.u32 [%rd1], %r1;
"""
    )
    got = run_ptx(kernel(["out"], body), np.zeros(64, np.uint32), block=64)[0]
    assert got.tolist() == [77000 + i for i in range(64)]


def test_module_pointers():
    """Initial values that are addresses."""
    text = """
.global .align 4 .u32 first[2] = {10, 20};
.global .align 8 .u64 where[1] = {generic(first)+4};
.visible .entry kernel(.param .u64 out)
{
  .reg .b32 %r<4>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd0, [out];
  ld.global.u64 %rd1, [where];
  ld.u32 %r0, [%rd1];
  st.global.u32 [%rd0], %r0;
  ret;
}
"""
    assert run_ptx(text, np.zeros(1, np.uint32), block=1)[0][0] == 20


# -- moving, addresses -------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits,parts", [(32, 2), (32, 4), (64, 2), (64, 4)])
def test_pack_and_unpack(bits, parts):
    part = bits // parts
    rows = [words(part, 32, i) for i in range(parts)]
    got = execute(f"mov.b{bits}", f"b{bits}", rows)
    want = [sum(int(r[i]) << part * k for k, r in enumerate(rows)) for i in range(32)]
    assert got.tolist() == want
    back = execute(f"mov.b{bits}", [f"b{part}"] * parts, np.array(want, WORDS[bits]))
    assert all((x == y).all() for x, y in zip(back, rows, strict=True))


def test_unpack_onto_itself():
    body = (
        at("%rd1", "%rd10", 8)
        + "  ld.global.b64 %rd2, [%rd1];\n  mov.b64 {%r1, %r2}, %rd2;\n  mov.b64 %rd2, {%r2, %r1};\n"
    )
    body += "  mov.b64 {%r2, %r1}, %rd2;\n  mov.b64 {%r1, %r2}, %rd2;\n  mov.b64 %rd2, {%r1, %r1};\n"
    body += "  st.global.b64 [%rd1], %rd2;\n"
    data = words(64, 32)
    got = run_ptx(kernel(["a"], body), data)[0]
    assert got.tolist() == [(int(x) >> 32) * 0x100000001 for x in data]


def test_moves():
    a = words(32)
    for t in ("u32", "s32", "b32", "f32"):
        assert (execute(f"mov.{t}", "b32", a) == a).all()
    p = np.arange(64) % 3 == 0
    assert (execute("mov.pred", "pred", p) == p).all()
    assert (execute("mov.f32", "b32", 0.75, block=32) == 0x3F400000).all()
    assert (execute("mov.b64", "b64", -1, block=32) == 0xFFFFFFFFFFFFFFFF).all()


def test_cluster_addresses():
    """As measured (E16): own addresses carry the rank, mapa replaces it, windows and isspacep agree."""
    text = """
.visible .entry kernel(.param .u64 out)
{
  .reg .pred %p<8>;
  .reg .b32 %r<32>;
  .reg .b64 %rd<16>;
  .shared .align 16 .b8 tile[64];
  ld.param.u64 %rd10, [out];
  mov.u32 %r0, %cluster_ctarank;
  xor.b32 %r1, %r0, 1;
  mov.u32 %r2, tile;
  mapa.shared::cluster.u32 %r3, %r2, %r1;
  shr.u32 %r4, %r2, 24;
  shr.u32 %r5, %r3, 24;
  getctarank.shared::cluster.u32 %r6, %r3;
  cvt.u64.u32 %rd0, %r2;
  cvta.shared.u64 %rd1, %rd0;
  cvt.u64.u32 %rd2, %r3;
  cvta.shared::cluster.u64 %rd3, %rd2;
  mapa.u64 %rd4, %rd1, %r1;
  sub.u64 %rd5, %rd4, %rd3;
  cvt.u32.u64 %r7, %rd5;
  getctarank.u64 %r8, %rd4;
  isspacep.shared::cta %p0, %rd1;
  isspacep.shared::cta %p1, %rd3;
  isspacep.shared::cluster %p2, %rd3;
  isspacep.global %p3, %rd3;
  isspacep.global %p4, %rd10;
  isspacep.local %p5, %rd10;
  selp.u32 %r9, 1, 0, %p0;
  selp.u32 %r10, 2, 0, %p1;
  selp.u32 %r11, 4, 0, %p2;
  selp.u32 %r12, 8, 0, %p3;
  selp.u32 %r13, 16, 0, %p4;
  selp.u32 %r14, 32, 0, %p5;
  add.u32 %r9, %r9, %r10;
  add.u32 %r9, %r9, %r11;
  add.u32 %r9, %r9, %r12;
  add.u32 %r9, %r9, %r13;
  add.u32 %r9, %r9, %r14;
  add.u32 %r15, %r0, 500;
  st.shared.u32 [tile+8], %r15;
  barrier.cluster.arrive;
  barrier.cluster.wait;
  ld.shared::cluster.u32 %r16, [%r3+8];
  ld.u32 %r17, [%rd4+8];
  cvta.to.shared::cluster.u64 %rd6, %rd4;
  cvt.u32.u64 %r18, %rd6;
  sub.u32 %r18, %r18, %r3;
  barrier.cluster.arrive;
  barrier.cluster.wait;
  mad.wide.u32 %rd10, %r0, 48, %rd10;
  st.global.v4.u32 [%rd10], {%r4, %r5, %r6, %r7};
  st.global.v4.u32 [%rd10+16], {%r8, %r9, %r16, %r17};
  st.global.u32 [%rd10+32], %r18;
  ret;
}
"""
    got = run_ptx(text, np.zeros((2, 12), np.uint32), grid=2, cluster=2, block=1)[0]
    for rank in (0, 1):
        peer = 1 - rank
        assert got[rank, :9].tolist() == [rank, peer, peer, 0, peer, 1 + 4 + 16, 500 + peer, 500 + peer, 0]


# -- atomics -----------------------------------------------------------------------------------------------

ATOMS = {
    "add.u32": lambda d, s: d + s, "add.s32": lambda d, s: d + s, "min.u32": min, "max.u32": max,
    "min.s32": lambda d, s: min(signed(d, 32), signed(s, 32)),
    "max.s32": lambda d, s: max(signed(d, 32), signed(s, 32)),
    "and.b32": lambda d, s: d & s, "or.b32": lambda d, s: d | s, "xor.b32": lambda d, s: d ^ s,
    "exch.b32": lambda d, s: s, "inc.u32": lambda d, s: 0 if d >= s else d + 1,
    "dec.u32": lambda d, s: s if d == 0 or d > s else d - 1,
    "add.u64": lambda d, s: d + s, "min.s64": lambda d, s: min(signed(d, 64), signed(s, 64)), "max.u64": max,
    "exch.b64": lambda d, s: s, "and.b64": lambda d, s: d & s,
}  # fmt: skip


@pytest.mark.parametrize("op", list(ATOMS))
@pytest.mark.parametrize("space", ["global", "shared"])
def test_atomics(op, space):
    """Each lane on a place of its own: the old value comes back, the new one stays."""
    bits = int(op.split(".")[1][1:])
    size, r = bits // 8, "%r" if bits == 32 else "%rd"
    old, operand = words(bits, 32, 1), words(bits, 32, 2)
    if op.startswith(("inc", "dec")):
        operand = operand % 40
        old[:8] = operand[:8]
    body = at("%rd20", "%rd10", size) + at("%rd21", "%rd11", size) + at("%rd22", "%rd12", size)
    body += f"  ld.global.b{bits} {r}4, [%rd21];\n"
    place = "%rd20"
    if space == "shared":
        body = (
            "  .shared .align 8 .b8 tile[256];\n"
            + body
            + f"  mov.u32 %r20, tile;\n  mad.lo.u32 %r20, %r0, {size}, %r20;\n"
        )
        body += f"  ld.global.b{bits} {r}5, [%rd20];\n  st.shared.b{bits} [%r20], {r}5;\n"
        place = "%r20"
    body += f"  atom.relaxed.gpu.{space}.{op} {r}6, [{place}], {r}4;\n  st.global.b{bits} [%rd22], {r}6;\n"
    if space == "shared":
        body += f"  ld.shared.b{bits} {r}5, [%r20];\n  st.global.b{bits} [%rd20], {r}5;\n"
    now, _, back = run_ptx(kernel(["a", "b", "out"], body), old, operand, np.zeros(32, WORDS[bits]))
    assert (back == old).all()
    assert now.tolist() == [ATOMS[op](int(x), int(y)) & (1 << bits) - 1 for x, y in zip(old, operand, strict=True)]


def test_all_lanes_on_one_place():
    """Sums come out whole, and each lane sees a value of its own (the order is open)."""
    body = "  atom.global.add.u32 %r1, [%rd10], 3;\n" + at("%rd1", "%rd11", 4) + "  st.global.u32 [%rd1], %r1;\n"
    body += "  red.global.max.u32 [%rd10+4], %r0;\n  red.global.add.f32 [%rd10+8], 0f3F800000;\n"
    total, seen = run_ptx(kernel(["a", "out"], body), np.zeros(4, np.uint32), np.zeros(96, np.uint32), block=96)
    assert total.tolist() == [288, 95, 0x42C00000, 0]
    assert sorted(seen.tolist()) == list(range(0, 288, 3))


def test_compare_and_swap():
    old, want, new = words(32, 32, 1), words(32, 32, 2), words(32, 32, 3)
    want[::2] = old[::2]
    body = at("%rd1", "%rd10", 4) + at("%rd2", "%rd11", 4) + at("%rd3", "%rd12", 4) + at("%rd4", "%rd13", 4)
    body += "  ld.global.u32 %r1, [%rd2];\n  ld.global.u32 %r2, [%rd3];\n"
    body += "  atom.acq_rel.gpu.global.cas.b32 %r3, [%rd1], %r1, %r2;\n"
    body += "  st.global.u32 [%rd4], %r3;\n"
    now, _, _, back = run_ptx(kernel(["a", "b", "c", "out"], body), old, want, new, np.zeros(32, np.uint32))
    assert (back == old).all() and (now == np.where(old == want, new, old)).all()


def test_narrow_and_wide_swap():
    body = (
        "  .reg .b16 %s<4>;\n"
        + at("%rd1", "%rd10", 2)
        + "  mov.u16 %s0, 5;\n  mov.u16 %s1, 9;\n  atom.global.cas.b16 %s2, [%rd1], %s0, %s1;\n"
    )
    now = run_ptx(kernel(["a"], body), np.array([5, 6] * 16, np.uint16))[0]
    assert now.tolist() == [9, 6] * 16
    data = np.array([[1, 2], [1, 3]] * 16, np.uint64)
    body = (
        at("%rd1", "%rd10", 16)
        + "  mov.u64 %rd2, 1;\n  mov.u64 %rd3, 2;\n  mov.b128 %q0, {%rd2, %rd3};\n  mov.b128 %q1, {%rd3, %rd3};\n"
    )
    body += "  atom.global.cas.b128 %q2, [%rd1], %q0, %q1;\n  atom.global.exch.b128 %q3, [%rd1+512], %q2;\n"
    now = run_ptx(kernel(["a"], body), np.concatenate([data, data + np.uint64(8)]))[0]
    assert now[:32].tolist() == [[2, 2], [1, 3]] * 16 and (now[32:] == data).all()


def test_float_atomics():
    """f32: subnormals are flushed in global memory and kept in shared memory (E11); packed halves, vectors."""
    data = np.array([1, 0x00800000, 0x3F800000, 0x7F7FFFFF] * 8, np.uint32)
    body = (
        at("%rd1", "%rd10", 4)
        + "  .shared .align 4 .b8 tile[128];\n  mov.u32 %r1, tile;\n  mad.lo.u32 %r1, %r0, 4, %r1;\n"
    )
    body += "  ld.global.u32 %r2, [%rd1];\n  st.shared.u32 [%r1], %r2;\n  red.shared.add.f32 [%r1], 0f00000002;\n"
    body += "  red.global.add.f32 [%rd1], 0f00000002;\n  ld.shared.u32 %r3, [%r1];\n  st.global.u32 [%rd1+128], %r3;\n"
    got = run_ptx(kernel(["a"], body), np.concatenate([data, data]))[0]
    assert got[:4].tolist() == [0, 0x00800000, 0x3F800000, 0x7F7FFFFF]
    assert got[32:36].tolist() == [3, 0x00800002, 0x3F800000, 0x7F7FFFFF]
    halves = np.array([[0x3C00, 0x4000], [0x7BFF, 0xBC00]] * 16, np.uint16)
    body = at("%rd1", "%rd10", 4) + "  mov.b32 %r1, 0x40003C00;\n  atom.global.add.noftz.f16x2 %r2, [%rd1], %r1;\n"
    got = run_ptx(kernel(["a"], body), halves)[0]
    assert got[:2].tolist() == [[0x4000, 0x4400], [0x7BFF, 0x3C00]]
    four = np.arange(128, dtype=np.float32)
    body = at("%rd1", "%rd10", 16) + "  mov.b32 %r1, 0f3F800000;\n  mov.b32 %r2, 0f40000000;\n"
    body += "  red.relaxed.gpu.global.add.v4.f32 [%rd1], {%r1, %r2, %r1, %r2};\n"
    got = run_ptx(kernel(["a"], body), four)[0]
    assert (got == four + np.array([1, 2, 1, 2] * 32, np.float32)).all()


# -- misuse ------------------------------------------------------------------------------------------------


@pytest.mark.virtual
@pytest.mark.parametrize(
    "code,body",
    [
        ("SML0803", at("%rd1", "%rd10", 4) + "  ld.global.u32 %r1, [%rd1+4];\n"),
        ("SML0803", at("%rd1", "%rd10", 4) + "  ld.global.u32 %r1, [%rd1-4];\n"),
        ("SML0804", at("%rd1", "%rd10", 4) + "  ld.global.v2.u32 {%r1, %r2}, [%rd1];\n"),
        ("SML0804", "  atom.global.add.u64 %rd1, [%rd10+4], 1;\n"),
        ("SML0805", "  mov.u64 %rd1, 16;\n  ld.global.u32 %r1, [%rd1];\n"),
        ("SML0805", "  mov.u64 %rd1, 16;\n  ld.u32 %r1, [%rd1];\n"),
        ("SML0803", "  mov.u32 %r1, 16;\n  ld.shared.u32 %r1, [%r1];\n"),
        ("SML0803", "  .shared .align 4 .b8 tile[64];\n  ld.shared.u32 %r1, [tile+64];\n"),
        ("SML0803", "  .local .align 4 .b8 frame[8];\n  mov.u64 %rd1, frame;\n  ld.local.u32 %r1, [%rd1+524288];\n"),
        ("SML0807", "  mov.u64 %rd1, a;\n  cvta.param.u64 %rd1, %rd1;\n  st.u32 [%rd1], %r0;\n"),
    ],
)
def test_refused(code, body):
    with pytest.raises(SmaltiError, match=code):
        run_ptx(kernel(["a"], body), np.zeros(32, np.uint32))


@pytest.mark.virtual
def test_misaligned_buffers_are_addressed_right():
    """A buffer at an odd address: bytes are found, wider accesses refused."""
    from smalti.vgpu.launch import LaunchConfig
    from smalti.vgpu.machine import Machine
    from smalti.vgpu.memory import Memory
    from tests.vgpu.harness import parse_ptx

    body = (
        at("%rd1", "%rd10", 2) + "  ld.global.u16 %h1, [%rd1];\n  add.u16 %h1, %h1, 1;\n  st.global.u16 [%rd1], %h1;\n"
    )
    for shift, fine in ((2, True), (34, True), (1, False)):
        memory = Memory()
        data = np.arange(32, dtype=np.uint16) * 257
        segment = memory.allocate("a", 64, data=data.view(np.uint8), misalign=shift)
        config = LaunchConfig("kernel", (1, 1, 1), (32, 1, 1), segment.address.to_bytes(8, "little"))
        machine = Machine(parse_ptx(kernel(["a"], body)), config, memory)
        if fine:
            machine.run()
            assert segment.data[:64].copy().view(np.uint16).tolist() == (data + 1).tolist()
        else:
            with pytest.raises(SmaltiError, match="SML0804"):
                machine.run()


@pytest.mark.virtual
def test_discarded_values_are_undefined():
    body = (
        at("%rd1", "%rd10", 4)
        + "  discard.global.L2 [%rd10], 128;\n  ld.global.u32 %r1, [%rd1];\n  st.global.u32 [%rd1+128], %r1;\n"
    )
    with pytest.raises(SmaltiError, match="SML0808"):
        run_ptx(kernel(["a"], body), np.zeros(64, np.uint32), block=32)
    clean = body.replace("  ld.global", "  st.global.u32 [%rd1], %r0;\n  ld.global")
    assert run_ptx(kernel(["a"], clean), np.zeros(64, np.uint32), block=32)[0].tolist() == [*range(32)] * 2


@pytest.mark.virtual  # sm_100
def test_bulk_zeros():
    body = (
        "  .shared .align 16 .b8 tile[64];\n  mov.u32 %r1, tile;\n  st.shared.u32 [tile+40], 5;\n  mov.u64 %rd1, 40;\n"
    )
    body += "  st.bulk.weak.shared::cta [%r1], %rd1, 0;\n  ld.shared.v2.u32 {%r2, %r3}, [tile+32];\n"
    body += "  ld.shared.u32 %r4, [tile+40];\n"
    body += "  st.global.v2.u32 [%rd10], {%r2, %r4};\n"
    assert run_ptx(kernel(["a"], body), np.full(2, 9, np.uint32), block=1, arch="sm_100a")[0].tolist() == [0, 5]


# -- asynchronous stores and reductions --------------------------------------------------------------------

REMOTE = """
.visible .entry kernel(.param .u64 out)
{
  .reg .pred %p<4>;
  .reg .b32 %r<16>;
  .reg .b64 %rd<8>;
  .shared .align 16 .b8 tile[64];
  .shared .align 8 .b64 bar;
  ld.param.u64 %rd0, [out];
  mov.u32 %r0, %cluster_ctarank;
  xor.b32 %r1, %r0, 1;
  mov.u32 %r2, tile;
  mov.u32 %r3, bar;
  mov.u32 %r9, 100;
  st.shared.v4.u32 [%r2], {%r9, %r9, %r9, %r9};
  mbarrier.init.shared::cta.b64 [%r3], 1;
  fence.mbarrier_init.release.cluster;
  barrier.cluster.arrive;
  barrier.cluster.wait;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r3], 24;
  mapa.shared::cluster.u32 %r4, %r2, %r1;
  mapa.shared::cluster.u32 %r5, %r3, %r1;
  add.u32 %r6, %r0, 10;
  add.u32 %r7, %r0, 20;
  add.u32 %r11, %r4, 16;
  st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%r4], {%r6, %r7}, [%r5];
  st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%r11], %rd0, [%r5];
  red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.add.u32 [%r4+8], %r6, [%r5];
  red.async.relaxed.cluster.shared::cluster.mbarrier::complete_tx::bytes.max.s32 [%r4+12], %r9, [%r5];
WAIT:
  mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 %p0, [%r3], 0;
  @!%p0 bra WAIT;
  ld.shared.v4.u32 {%r12, %r13, %r14, %r15}, [%r2];
  ld.shared.u64 %rd2, [%r2+16];
  sub.u64 %rd2, %rd2, %rd0;
  cvt.u32.u64 %r8, %rd2;
  add.u32 %r15, %r15, %r8;
  mad.wide.u32 %rd1, %r0, 16, %rd0;
  st.global.v4.u32 [%rd1], {%r12, %r13, %r14, %r15};
  barrier.cluster.arrive;
  barrier.cluster.wait;
  ret;
}
"""


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_asynchronous_stores_to_a_peer(seed):
    out = run_ptx(REMOTE, np.zeros((2, 4), np.uint32), grid=2, cluster=2, block=1, seed=seed)[0]
    for rank in (0, 1):
        peer = 1 - rank
        assert out[rank].tolist() == [10 + peer, 20 + peer, 110 + peer, 100]


@pytest.mark.virtual
def test_hints_do_nothing():
    body = "  prefetch.global.L2 [%rd10];\n  prefetchu.L1 [%rd10];\n"
    body += "  applypriority.global.L2::evict_normal [%rd10], 128;\n"
    body += "  createpolicy.fractional.L2::evict_first.b64 %rd1, 1.0;\n" + at("%rd2", "%rd10", 4)
    body += "  ld.global.L2::cache_hint.u32 %r1, [%rd2], %rd1;\n  add.u32 %r1, %r1, 1;\n"
    body += "  st.global.L2::cache_hint.u32 [%rd2], %r1, %rd1;\n"
    assert run_ptx(kernel(["a"], body), np.arange(32, dtype=np.uint32))[0].tolist() == list(range(1, 33))
