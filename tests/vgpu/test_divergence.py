"""Lanes that part and meet again: branches, loops, indexed branches, early exits, locks, roles, partial warps."""

import numpy as np
import pytest

from smalti.errors import SmaltiError
from tests.vgpu.harness import run_ptx

HEAD = """
.visible .entry kernel(.param .u64 out)
{
  .reg .pred %p<8>;
  .reg .b32 %r<32>;
  .reg .b64 %rd<8>;
  ld.param.u64 %rd0, [out];
  mov.u32 %r0, %tid.x;
  mov.u32 %r1, %laneid;
"""
STORE = """
  mad.wide.u32 %rd1, %r0, 4, %rd0;
  st.global.u32 [%rd1], %r2;
"""
TAIL = "  ret;\n}\n"


def kernel(body, n=32, block=None, **options):
    """The value of %r2 of every thread after `body`."""
    out = np.full(n, 0xEEEEEEEE, np.uint32)
    return run_ptx(HEAD + body + STORE + TAIL, out, block=block or n, **options)[0].tolist()


@pytest.fixture(params=[None, 1, 2, 3, 4, 5])
def seed(request):
    """The default schedule and adversarial ones."""
    return request.param


def test_if_else(seed):
    body = """
  setp.lt.u32 %p0, %r0, 11;
  @%p0 bra THEN;
  mul.lo.u32 %r2, %r0, 3;
  bra END;
THEN:
  add.u32 %r2, %r0, 100;
END:
  add.u32 %r2, %r2, 1;
"""
    assert kernel(body, 64, seed=seed) == [i + 101 if i < 11 else 3 * i + 1 for i in range(64)]


def test_nested(seed):
    body = """
  mov.u32 %r2, 0;
  and.b32 %r3, %r0, 1;
  and.b32 %r4, %r0, 2;
  setp.ne.u32 %p0, %r3, 0;
  setp.ne.u32 %p1, %r4, 0;
  @!%p0 bra EVEN;
  @!%p1 bra INNER;
  add.u32 %r2, %r2, 10;
  bra JOIN;
INNER:
  add.u32 %r2, %r2, 20;
JOIN:
  add.u32 %r2, %r2, 1;
  bra END;
EVEN:
  @%p1 bra FOUR;
  add.u32 %r2, %r2, 30;
  bra END;
FOUR:
  add.u32 %r2, %r2, 40;
END:
  add.u32 %r2, %r2, 1000;
"""
    want = {0: 1030, 1: 1021, 2: 1040, 3: 1011}
    assert kernel(body, 96, seed=seed) == [want[i % 4] for i in range(96)]


def test_trip_counts(seed):
    """Each lane runs its own number of turns; all meet behind the loop."""
    body = """
  mov.u32 %r2, 0;
  mov.u32 %r3, 0;
LOOP:
  setp.ge.u32 %p0, %r3, %r1;
  @%p0 bra END;
  add.u32 %r3, %r3, 1;
  add.u32 %r2, %r2, %r3;
  bra LOOP;
END:
  vote.sync.ballot.b32 %r4, %p0, 0xffffffff;
  popc.b32 %r4, %r4;
  mad.lo.u32 %r2, %r4, 1000, %r2;
"""
    assert kernel(body, 64, seed=seed) == [32000 + (i % 32) * (i % 32 + 1) // 2 for i in range(64)]


def test_nested_loops(seed):
    body = """
  mov.u32 %r2, 0;
  mov.u32 %r3, 0;
OUTER:
  mov.u32 %r4, 0;
INNER:
  add.u32 %r2, %r2, 1;
  add.u32 %r4, %r4, 1;
  and.b32 %r5, %r0, 3;
  setp.le.u32 %p0, %r4, %r5;
  @%p0 bra INNER;
  add.u32 %r3, %r3, 1;
  setp.lt.u32 %p1, %r3, %r1;
  @%p1 bra OUTER;
"""
    assert kernel(body, 40, block=40, seed=seed) == [max(i % 32, 1) * (i % 4 + 1) for i in range(40)]


def test_indexed_branch(seed):
    body = """
  rem.u32 %r3, %r0, 5;
  mov.u32 %r2, 7;
  setp.lt.u32 %p0, %r3, 4;
TABLE: .branchtargets ZERO, ONE, TWO, ONE;
  @%p0 brx.idx %r3, TABLE;
  add.u32 %r2, %r2, 50;
  bra END;
ZERO:
  add.u32 %r2, %r2, 10;
  bra END;
ONE:
  add.u32 %r2, %r2, 20;
TWO:
  add.u32 %r2, %r2, 30;
END:
  add.u32 %r2, %r2, %r3;
"""
    want = [17, 58, 39, 60, 61]
    assert kernel(body, 64, seed=seed) == [want[i % 5] for i in range(64)]


def test_early_exit(seed):
    """Lanes that leave do not keep the others waiting, neither at a join nor at a warp barrier."""
    body = """
  mov.u32 %r2, 1;
  and.b32 %r3, %r0, 3;
  setp.eq.u32 %p0, %r3, 1;
  setp.lt.u32 %p1, %r0, 20;
  @%p1 bra LOW;
  @%p0 exit;
  add.u32 %r2, %r2, 10;
  bra END;
LOW:
  @%p0 bra GONE;
  add.u32 %r2, %r2, 20;
END:
  bar.warp.sync 0xffffffff;
  activemask.b32 %r4;
  popc.b32 %r4, %r4;
  mad.lo.u32 %r2, %r4, 100, %r2;
"""
    got = run_ptx(HEAD + body + STORE + "  ret;\nGONE:\n  ret;\n}\n", np.full(64, 9, np.uint32), block=64, seed=seed)[0]
    want = [9 if i % 4 == 1 else 2400 + (21 if i < 20 else 11) for i in range(64)]
    assert got.tolist() == want


def test_partial_last_warp(seed):
    body = """
  vote.sync.ballot.b32 %r3, 1, 0xffffffff;
  popc.b32 %r2, %r3;
  mov.u32 %r4, %ntid.x;
  mad.lo.u32 %r2, %r4, 100, %r2;
"""
    body = body.replace("%r3, 1,", "%r3, %p0,").replace("  vote", "  setp.ge.u32 %p0, %r0, 0;\n  vote", 1)
    assert kernel(body, 45, seed=seed) == [4532] * 32 + [4513] * 13


def test_spin_lock_between_lanes(seed):
    """Each lane of a warp takes the same lock in turn: needs progress of single lanes."""
    text = """
.visible .entry kernel(.param .u64 out, .param .u64 lock)
{
  .reg .pred %p<4>;
  .reg .b32 %r<16>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd0, [out];
  ld.param.u64 %rd1, [lock];
SPIN:
  atom.acquire.gpu.global.cas.b32 %r0, [%rd1], 0, 1;
  setp.ne.u32 %p0, %r0, 0;
  @%p0 bra SPIN;
  ld.global.u32 %r1, [%rd0];
  mov.u32 %r2, %tid.x;
  mad.lo.u32 %r3, %r1, 1, %r2;
  st.global.u32 [%rd0], %r3;
  st.release.gpu.global.u32 [%rd1], 0;
  ret;
}
"""
    out, lock = run_ptx(text, np.zeros(1, np.uint32), np.zeros(1, np.uint32), block=70, seed=seed)
    assert (out[0], lock[0]) == (69 * 70 // 2, 0)


def test_roles(seed):
    """Warp 0 hands values to warp 1 through shared memory and a flag that is polled."""
    text = """
.visible .entry kernel(.param .u64 out)
{
  .reg .pred %p<4>;
  .reg .b32 %r<16>;
  .reg .b64 %rd<4>;
  .shared .align 4 .b8 data[128];
  .shared .align 4 .u32 flag;
  ld.param.u64 %rd0, [out];
  mov.u32 %r0, %tid.x;
  and.b32 %r1, %r0, 31;
  mov.u32 %r6, data;
  mad.lo.u32 %r2, %r1, 4, %r6;
  setp.eq.u32 %p1, %r0, 0;
  @%p1 st.shared.u32 [flag], 0;
  bar.sync 0;
  setp.ge.u32 %p0, %r0, 32;
  @%p0 bra READER;
  mul.lo.u32 %r3, %r1, %r1;
  st.shared.u32 [%r2], %r3;
  bar.warp.sync 0xffffffff;
  @%p1 st.release.cta.shared.u32 [flag], 1;
  ret;
READER:
  ld.acquire.cta.shared.u32 %r4, [flag];
  setp.eq.u32 %p2, %r4, 0;
  @%p2 bra READER;
  ld.shared.u32 %r5, [%r2];
  mad.wide.u32 %rd1, %r1, 4, %rd0;
  st.global.u32 [%rd1], %r5;
  ret;
}
"""
    out = run_ptx(text, np.full(32, 7, np.uint32), block=64, seed=seed)[0]
    assert out.tolist() == [i * i for i in range(32)]


def test_sync_in_both_arms(seed):
    """The same warp barrier instruction in two arms: lanes wait for each other wherever they are."""
    body = """
  .shared .align 4 .b8 place[128];
  mov.u32 %r5, place;
  mad.lo.u32 %r6, %r1, 4, %r5;
  xor.b32 %r7, %r6, 4;
  setp.lt.u32 %p0, %r1, 16;
  st.shared.u32 [%r6], %r0;
  and.b32 %r8, %r1, 1;
  setp.ne.u32 %p1, %r8, 0;
  @%p1 bra ODD;
  bar.warp.sync 0xffffffff;
  ld.shared.u32 %r2, [%r7];
  bra END;
ODD:
  bar.warp.sync 0xffffffff;
  ld.shared.u32 %r2, [%r7];
  add.u32 %r2, %r2, 100;
END:
"""
    assert kernel(body, 32, seed=seed) == [i ^ 1 if i % 2 == 0 else (i ^ 1) + 100 for i in range(32)]


def test_guarded_instructions():
    body = """
  mov.u32 %r2, 5;
  setp.gt.u32 %p0, %r0, 30;
  @%p0 add.u32 %r2, %r2, 1;
  @!%p0 sub.u32 %r2, %r2, 1;
  @%p0 setp.lt.u32 %p0, %r0, 40;
  @%p0 add.u32 %r2, %r2, 10;
"""
    assert kernel(body, 64) == [4 if i <= 30 else 16 if i < 40 else 6 for i in range(64)]


@pytest.mark.virtual
def test_index_out_of_range():
    body = """
TABLE: .branchtargets ONE, TWO;
  mov.u32 %r2, 0;
  brx.idx %r0, TABLE;
ONE:
TWO:
  add.u32 %r2, %r2, 1;
"""
    assert kernel(body, 2) == [1, 1]
    with pytest.raises(SmaltiError, match="SML0819"):
        kernel(body, 3)


@pytest.mark.virtual
def test_endless_loops_end():
    """A loop that nobody can end is a deadlock, whether it polls or not; a counting one goes on."""
    for body in ("SELF:\n  bra SELF;\n", "  ld.volatile.global.u32 %r3, [%rd0];\n  bra AGAIN;\n"):
        text = "AGAIN:\n" + body if "AGAIN" in body else body
        with pytest.raises(SmaltiError, match="SML0901"):
            kernel(text)
    counting = """
  mov.u32 %r2, 0;
COUNT:
  ld.volatile.global.u32 %r3, [%rd0];
  add.u32 %r2, %r2, 1;
  setp.lt.u32 %p0, %r2, 50;
  @%p0 bra COUNT;
"""
    assert kernel(counting) == [50] * 32
    with pytest.raises(SmaltiError, match="SML0816"):
        kernel(counting, max_steps=60)
