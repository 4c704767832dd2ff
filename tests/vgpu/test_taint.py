"""Undefined values: they travel through registers and memory, and are refused only where they decide something."""

import numpy as np
import pytest

from smalti.errors import SmaltiError
from smalti.vgpu.execute import load_all
from tests.vgpu.harness import machine_for, parse_ptx, results, run_ptx

pytestmark = pytest.mark.virtual

HEAD = """
.visible .entry kernel(.param .u64 out)
{
  .reg .pred %p<8>;
  .reg .b32 %r<32>;
  .reg .b64 %rd<8>;
  .shared .align 16 .b8 tile[1024];
  ld.param.u64 %rd0, [out];
  mov.u32 %r0, %tid.x;
  mov.u32 %r20, tile;
  mad.lo.u32 %r21, %r0, 4, %r20;
"""
STORE = "  mad.wide.u32 %rd1, %r0, 4, %rd0;\n  st.global.u32 [%rd1], %r2;\n"
UNDEFINED = "  ld.shared.u32 %r1, [%r21];\n"  # nobody has written it


def kernel(body, block=32, store=True, **options):
    text = HEAD + body + (STORE if store else "") + "  ret;\n}\n"
    return run_ptx(text, np.full(64, 7, np.uint32), block=block, **options)[0].tolist()[:block]


def refused(code, body, **options):
    with pytest.raises(SmaltiError, match=code) as caught:
        kernel(body, **options)
    return caught.value


@pytest.mark.parametrize(
    "body",
    [
        "  add.u32 %r2, %r1, 1;\n",
        "  mov.u32 %r2, %r1;\n",
        "  mul.lo.u32 %r2, %r0, %r1;\n",
        "  selp.u32 %r2, %r1, %r0, %p7;\n",
        "  mov.b64 %rd2, {%r0, %r1};\n  mov.b64 {%r3, %r2}, %rd2;\n",
        "  st.shared.u32 [%r21+512], %r1;\n  ld.shared.u32 %r2, [%r21+512];\n",
        "  shfl.sync.bfly.b32 %r2, %r1, 1, 31, 0xffffffff;\n",
        "  redux.sync.add.u32 %r2, %r1, 0xffffffff;\n",
        "  setp.eq.u32 %p1, %r1, 0;\n  vote.sync.ballot.b32 %r2, %p1, 0xffffffff;\n",
        "  setp.eq.u32 %p1, %r1, 0;\n  selp.u32 %r2, 1, 2, %p1;\n",
        "  cvt.rn.f32.u32 %r3, %r1;\n  add.f32 %r2, %r3, %r3;\n",
        "  and.b32 %r2, %r1, 255;\n",
        "  add.cc.u32 %r3, %r1, %r1;\n  addc.u32 %r2, 0, 0;\n",
        "  mov.u32 %r3, 0;\n  div.u32 %r2, %r0, %r3;\n",
    ],
)
def test_reaches_a_store(body):
    """The result of anything computed from an undefined value is undefined."""
    lead = "  setp.lt.u32 %p7, %r0, 99;\n" + UNDEFINED
    error = refused("SML0808", lead + body)
    assert "p0" in str(error)
    defined = lead.replace(UNDEFINED, "  mov.u32 %r1, 3;\n") + body.replace("mov.u32 %r3, 0;", "mov.u32 %r3, 5;")
    kernel(defined)


@pytest.mark.parametrize(
    "body,want",
    [
        ("  selp.u32 %r2, %r0, %r1, %p7;\n", lambda i: i),  # not chosen
        ("  and.b32 %r2, %r1, 0;\n", lambda i: 0),
        ("  mov.u32 %r3, 0;\n  and.b32 %r2, %r3, %r1;\n", lambda i: 0),
        ("  or.b32 %r2, %r1, -1;\n", lambda i: 0xFFFFFFFF),
        ("  mov.b64 %rd2, {%r0, %r1};\n  mov.u32 %r1, 5;\n  add.u32 %r2, %r1, %r0;\n", lambda i: 5 + i),  # overwritten
        ("  st.shared.u32 [%r21], %r0;\n  ld.shared.u32 %r2, [%r21];\n", lambda i: i),
        ("  ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [tile+512];\n  mov.u32 %r2, 9;\n", lambda i: 9),
        ("  setp.lt.u32 %p1, %r0, 99;\n  or.pred %p2, %p1, %p6;\n  selp.u32 %r2, 1, 2, %p2;\n", lambda i: 1),
    ],
)
def test_does_no_harm(body, want):
    lead = "  setp.lt.u32 %p7, %r0, 99;\n" + UNDEFINED + "  setp.eq.u32 %p6, %r1, 3;\n"
    assert kernel(lead + body) == [want(i) for i in range(32)]


def test_lane_by_lane():
    """Only the lanes that hold an undefined value are refused; the message names one of them."""
    body = "  mov.u32 %r2, 4;\n  setp.eq.u32 %p0, %r0, 5;\n  @%p0 ld.shared.u32 %r2, [%r21];\n"
    guarded = body + "  setp.eq.u32 %p1, %r0, 5;\n  @%p1 mov.u32 %r2, 8;\n"
    assert kernel(guarded) == [8 if i == 5 else 4 for i in range(32)]
    refused("SML0808", body)
    branch = body + "  setp.eq.u32 %p2, %r2, 4;\n  @%p2 bra END;\n  mov.u32 %r2, 1;\nEND:\n"
    error = refused("SML0813", branch)
    assert error.params["thread"] == 5 and error.params["register"] == "%p2"


@pytest.mark.parametrize(
    "body,register",
    [
        ("  setp.eq.u32 %p1, %r1, 0;\n  @%p1 bra END;\n  mov.u32 %r2, 1;\nEND:\n", "%p1"),
        ("  setp.eq.u32 %p1, %r1, 0;\n  @%p1 mov.u32 %r2, 1;\n", "%p1"),
        ("  setp.eq.u32 %p1, %r1, 0;\n  @%p1 exit;\n", "%p1"),
        ("  ld.shared.u32 %r2, [%r1];\n", "%r1"),
        ("  cvt.u64.u32 %rd3, %r1;\n  st.global.u32 [%rd3], %r0;\n", "%rd3"),
        ("TABLE: .branchtargets ONE, TWO;\n  brx.idx %r1, TABLE;\nONE:\nTWO:\n", "%r1"),
    ],
)
def test_decides_something(body, register):
    lead = "  mov.u32 %r2, 0;\n" + UNDEFINED
    assert refused("SML0813", lead + body).params["register"] == register


def test_uninitialised_registers():
    """A register that some path reads before it is written counts as undefined; a guarded write does not define it."""
    refused("SML0808", "  add.u32 %r2, %r9, 1;\n")
    some = "  setp.lt.u32 %p0, %r0, 16;\n  @%p0 mov.u32 %r9, 3;\n"
    refused("SML0808", some + "  add.u32 %r2, %r9, 1;\n")
    both = some + "  @!%p0 mov.u32 %r9, 4;\n  add.u32 %r2, %r9, 1;\n"
    assert kernel(both) == [4] * 16 + [5] * 16


def test_partly_defined_vectors():
    """Each item of a vector load has its own state; bytes count."""
    body = "  mad.lo.u32 %r22, %r0, 16, %r20;\n  st.shared.u32 [%r22+4], %r0;\n  st.shared.u8 [%r22+8], %r0;\n"
    body += "  ld.shared.v4.u32 {%r4, %r5, %r6, %r7}, [%r22];\n"
    assert kernel(body + "  mov.u32 %r2, %r5;\n") == list(range(32))
    for other in (4, 6, 7):
        refused("SML0808", body + f"  mov.u32 %r2, %r{other};\n")


def test_vector_stores_keep_the_state():
    body = UNDEFINED + "  mad.lo.u32 %r22, %r0, 16, %r20;\n  st.shared.v4.u32 [%r22], {%r0, %r1, %r0, %r0};\n"
    assert kernel(body + "  ld.shared.u32 %r2, [%r22+8];\n") == list(range(32))
    refused("SML0808", body + "  ld.shared.u32 %r2, [%r22+4];\n")


def test_atomics():
    refused("SML0808", UNDEFINED + "  red.global.add.u32 [%rd0], %r1;\n", store=False)
    body = "  atom.shared.add.u32 %r3, [tile], 1;\n  mov.u32 %r2, 4;\n"
    assert kernel(body) == [4] * 32
    refused("SML0808", body + "  mov.u32 %r2, %r3;\n")
    refused("SML0808", "  atom.shared.exch.b32 %r3, [%r21], %r0;\n  mov.u32 %r2, %r3;\n")
    assert kernel("  atom.shared.exch.b32 %r3, [%r21], %r0;\n  ld.shared.u32 %r2, [%r21];\n") == list(range(32))


def test_global_buffers_without_values():
    text = HEAD + "  ld.global.u32 %r2, [%rd0];\n  add.u32 %r2, %r2, 1;\n" + STORE + "  ret;\n}\n"
    with pytest.raises(SmaltiError, match="SML0808"):
        run_ptx(text, np.zeros(32, np.uint32), undefined=(0,))
    assert run_ptx(text, np.zeros(32, np.uint32))[0].tolist() == [1] * 32


def test_the_slow_path_ends():
    """Once everything is defined again nothing is checked any more."""
    load_all()
    body = UNDEFINED + "  mov.u32 %r1, 3;\n  add.u32 %r2, %r1, 1;\n" + STORE
    machine = machine_for(parse_ptx(HEAD + body + "  ret;\n}\n"), np.zeros(32, np.uint32))
    states = []
    original = machine._slow_step
    machine._slow_step = lambda g: (states.append(g.pc), original(g))[1]
    machine.run()
    assert results(machine)[0].tolist() == [4] * 32
    names = [machine.program.steps[pc].opcode for pc in states]
    assert "mov.u32" in names and "st.global.u32" not in names


def test_partial_warps_and_exited_lanes_do_not_count():
    """Lanes that do not exist, or have left, hold nothing undefined."""
    body = (
        "  setp.lt.u32 %p0, %r0, 10;\n  @!%p0 exit;\n  mov.u32 %r9, 3;\n  vote.sync.ballot.b32 %r3, %p0, 0xffffffff;\n"
    )
    assert kernel(body + "  add.u32 %r2, %r9, %r3;\n", block=20)[:10] == [3 + 1023] * 10
