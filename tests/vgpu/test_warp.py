"""Shuffles, votes, matches, reductions, elections: whole warps, parts of warps, several masks, partial warps."""

import numpy as np
import pytest

from smalti.errors import SmaltiError
from tests.vgpu import rational as r
from tests.vgpu.harness import execute, run_ptx, signed, words

FULL = 0xFFFFFFFF
N = 96


def warps(n=N):
    return [range(w, min(w + 32, n)) for w in range(0, n, 32)]


# -- shuffles: the formulas of PTX 9.7.9.6, lane by lane ----------------------------------------------------


def source(mode, lane, b, c):
    limit, segment = c & 31, c >> 8 & 31
    low = lane & segment
    high = low | limit & ~segment
    offset = b & 31
    if mode == "up":
        j = lane - offset
        fine = j >= high
    elif mode == "idx":
        j = low | offset & ~segment
        fine = j <= high
    else:
        j = lane + offset if mode == "down" else lane ^ offset
        fine = j <= high
    return (j if fine else lane), fine


@pytest.mark.parametrize("mode", ["up", "down", "bfly", "idx"])
@pytest.mark.parametrize("c", [0x1F, 0x181F, 0x1C07, 0x1000, 0])
def test_shuffle(mode, c):
    a = words(32, N)
    for b in (0, 1, 3, 16, 31):
        want = [source(mode, i % 32, b, c) for i in range(N)]
        d, p = execute(f"shfl.sync.{mode}.b32", ("b32", "pred"), a, b, c, FULL)
        assert d.tolist() == [int(a[i // 32 * 32 + j]) for i, (j, _) in enumerate(want)]
        assert p.tolist() == [fine for _, fine in want]
    b = (np.arange(N) * 7 % 32).astype(np.uint32)
    want = [source(mode, i % 32, int(b[i]), c) for i in range(N)]
    d = execute(f"shfl.sync.{mode}.b32", "b32", a, b, c, FULL)
    assert d.tolist() == [int(a[i // 32 * 32 + j]) for i, (j, _) in enumerate(want)]


def test_shuffle_in_halves():
    """Two halves of a warp with masks of their own."""
    a = words(32, N)
    mask = np.where(np.arange(N) % 32 < 16, 0xFFFF, 0xFFFF0000).astype(np.uint32)
    d = execute("shfl.sync.bfly.b32", "b32", a, 8, 0x1F, mask)
    assert d.tolist() == [int(a[i ^ 8]) for i in range(N)]


def test_shuffle_under_guard():
    a = words(32, N)
    guard = np.arange(N) % 32 < 8
    d = execute("shfl.sync.bfly.b32", "b32", a, 1, 0x1F, 0xFF, guard=guard)
    assert d.tolist() == [int(a[i ^ 1]) if guard[i] else 0xC3C3C3C3 for i in range(N)]


@pytest.mark.virtual
def test_shuffle_from_a_lane_that_is_not_there():
    """Such a value is undefined: it may not be stored, but it may be thrown away."""
    a = words(32, 32)
    guard = np.arange(32) < 16
    with pytest.raises(SmaltiError, match="SML0808"):
        execute("shfl.sync.bfly.b32", "b32", a, 16, 0x1F, 0xFFFF, guard=guard)
    text = """
.visible .entry kernel(.param .u64 out)
{
  .reg .pred %p<4>;
  .reg .b32 %r<8>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd0, [out];
  mov.u32 %r0, %tid.x;
  setp.lt.u32 %p0, %r0, 16;
  @!%p0 bra END;
  shfl.sync.down.b32 %r1, %r0, 4, 31, 0xffff;
  setp.lt.u32 %p1, %r0, 12;
  selp.u32 %r1, %r1, 77, %p1;
  mad.wide.u32 %rd1, %r0, 4, %rd0;
  st.global.u32 [%rd1], %r1;
END:
  ret;
}
"""
    got = run_ptx(text, np.zeros(16, np.uint32))[0]
    assert got.tolist() == [*range(4, 16), 77, 77, 77, 77]


@pytest.mark.virtual
def test_own_lane_must_be_named():
    with pytest.raises(SmaltiError, match="SML0840"):
        execute("shfl.sync.idx.b32", "b32", words(32, 32), 0, 31, 0x0FFFFFFF)
    with pytest.raises(SmaltiError, match="SML0840"):
        execute("vote.sync.any.pred", "pred", np.arange(32) > 3, 1 << 5)


# -- votes, matches ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("n", [96, 45])
def test_vote(n):
    for p in (np.arange(n) % 3 == 1, np.ones(n, np.bool_), np.zeros(n, np.bool_), np.arange(n) < 32):
        rows = [[bool(p[i]) for i in w] for w in warps(n)]
        spread = [len(w) for w in warps(n)]
        for mode, function in (("all", all), ("any", any), ("uni", lambda x: all(x) or not any(x))):
            want = [function(row) for row, k in zip(rows, spread, strict=True) for _ in range(k)]
            assert execute(f"vote.sync.{mode}.pred", "pred", p, FULL).tolist() == want, mode
        want = [sum(x << i for i, x in enumerate(row)) for row, k in zip(rows, spread, strict=True) for _ in range(k)]
        assert execute("vote.sync.ballot.b32", "b32", p, FULL).tolist() == want


def test_vote_in_groups():
    p = np.arange(N) % 5 == 0
    mask = np.where(np.arange(N) % 2 == 0, 0x55555555, 0xAAAAAAAA).astype(np.uint32)
    want = []
    for i in range(N):
        mates = [j for j in range(i // 32 * 32, i // 32 * 32 + 32) if j % 2 == i % 2]
        want.append(sum(1 << j % 32 for j in mates if p[j]))
    assert execute("vote.sync.ballot.b32", "b32", p, mask).tolist() == want


@pytest.mark.parametrize("bits", [32, 64])
def test_match(bits):
    a = words(bits, N) % np.array(5, words(bits, 1).dtype)
    a[64:] = 3
    d = execute(f"match.any.sync.b{bits}", "b32", a, FULL)
    assert d.tolist() == [sum(1 << k for k, j in enumerate(w) if a[j] == a[i]) for w in warps() for i in w]
    d, p = execute(f"match.all.sync.b{bits}", ("b32", "pred"), a, FULL)
    same = [len(set(a[list(w)].tolist())) == 1 for w in warps() for _ in w]
    assert p.tolist() == same and d.tolist() == [FULL if s else 0 for s in same]
    assert any(same) and not all(same)


# -- reductions --------------------------------------------------------------------------------------------


def test_reductions():
    a = words(32, N)
    operations = {
        "add.u32": sum, "add.s32": sum, "min.u32": min, "max.u32": max,
        "min.s32": lambda xs: min(signed(x, 32) for x in xs), "max.s32": lambda xs: max(signed(x, 32) for x in xs),
    }  # fmt: skip
    for name, function in operations.items():
        want = [function([int(a[j]) for j in w]) & FULL for w in warps() for _ in w]
        assert execute(f"redux.sync.{name}", "b32", a, FULL).tolist() == want, name
    dense = a | np.uint32(0xF0F0F00F)
    for name, ufunc, row in (("and", np.bitwise_and, dense), ("or", np.bitwise_or, a), ("xor", np.bitwise_xor, a)):
        want = [int(ufunc.reduce(row[list(w)])) for w in warps() for _ in w]
        assert execute(f"redux.sync.{name}.b32", "b32", row, FULL).tolist() == want, name
    guard = np.arange(N) % 32 >= 24
    got = execute("redux.sync.add.u32", "b32", a, 0xFF000000, guard=guard)
    want = [sum(int(a[j]) for j in w if guard[j]) & FULL if guard[i] else 0xC3C3C3C3 for w in warps() for i in w]
    assert got.tolist() == want


@pytest.mark.virtual  # sm_100a
@pytest.mark.parametrize("op", ["min", "max"])
def test_float_reductions(op):
    a = r.samples("f32", N, 4)
    a[:32] = np.where(np.arange(32) % 2, 0x80000000, 0)  # zeros of both signs
    a[40] = 0x7FC00000
    for name, absolute, propagate in (
        ("", False, False),
        (".abs", True, False),
        (".NaN", False, True),
        (".abs.NaN", True, True),
    ):
        got = execute(f"redux.sync.{op}{name}.f32", "b32", a, FULL, arch="sm_100a")
        for w in warps():
            row = [int(a[j]) & (0x7FFFFFFF if absolute else FULL) for j in w]
            numbers = [x for x in row if not r.is_nan(x, "f32")]

            def key(x):
                magnitude = 2**200 if r.is_inf(x, "f32") else abs(r.value(x, "f32"))
                return (-magnitude, 0) if x >> 31 else (magnitude, 1)

            want = (max if op == "max" else min)(numbers, key=key)
            if propagate and len(numbers) < len(row):
                want = r.nan("f32")
            assert got[list(w)].tolist() == [want] * 32


# -- elections ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [FULL, 0x80000000, 0x00010010, 0xFFFFFFFE])
def test_elect(mask):
    inside = np.array([mask >> i % 32 & 1 for i in range(N)], np.bool_)
    leader = (mask & -mask).bit_length() - 1
    zero = np.zeros(N, np.uint32)
    guard = inside if mask != FULL else None
    d, p = execute("elect.sync", ("b32", "pred"), zero + np.uint32(mask), guard=guard)
    assert d.tolist() == [leader if x else 0xC3C3C3C3 for x in inside]
    assert p.tolist() == [bool(x) and i % 32 == leader for i, x in enumerate(inside)]


def test_active_mask():
    guard = np.arange(45) % 4 == 0
    got = execute("activemask.b32", "b32", guard=guard, block=45)
    want = [sum(1 << k for k, j in enumerate(w) if guard[j]) for w in warps(45) for _ in w]
    assert got.tolist() == [m if g else 0xC3C3C3C3 for m, g in zip(want, guard, strict=True)]


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_sync_gathers_lanes(seed):
    """Lanes that come to a shuffle by different ways, at different times."""
    text = """
.visible .entry kernel(.param .u64 out)
{
  .reg .pred %p<4>;
  .reg .b32 %r<8>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd0, [out];
  mov.u32 %r0, %tid.x;
  and.b32 %r1, %r0, 7;
  mov.u32 %r2, 0;
LOOP:
  add.u32 %r2, %r2, %r1;
  sub.u32 %r1, %r1, 1;
  setp.gt.s32 %p0, %r1, 0;
  @%p0 bra LOOP;
  shfl.sync.bfly.b32 %r3, %r2, 1, 31, 0xffffffff;
  add.u32 %r3, %r3, %r2;
  mad.wide.u32 %rd1, %r0, 4, %rd0;
  st.global.u32 [%rd1], %r3;
  ret;
}
"""
    got = run_ptx(text, np.zeros(64, np.uint32), block=64, seed=seed)[0].tolist()

    def triangle(k):
        return k * (k + 1) // 2

    assert got == [triangle(i % 8) + triangle((i ^ 1) % 8) for i in range(64)]


def test_only_part_of_a_warp_shuffles():
    """The rest of the warp waits elsewhere meanwhile, at a barrier of the CTA."""
    text = """
.visible .entry kernel(.param .u64 out)
{
  .reg .pred %p<4>;
  .reg .b32 %r<8>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd0, [out];
  mov.u32 %r0, %tid.x;
  mov.u32 %r3, 5;
  setp.lt.u32 %p0, %r0, 8;
  @!%p0 bra MEET;
  shfl.sync.idx.b32 %r3, %r0, 3, 31, 0xff;
MEET:
  barrier.sync 1;
  mad.wide.u32 %rd1, %r0, 4, %rd0;
  st.global.u32 [%rd1], %r3;
  ret;
}
"""
    for seed in (None, 1, 2):
        got = run_ptx(text, np.zeros(64, np.uint32), block=64, seed=seed)[0].tolist()
        assert got == [3] * 8 + [5] * 56
