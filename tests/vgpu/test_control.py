"""Calls, parameters of functions, system calls, stops, sleeping, register counts, cluster launch control."""

import numpy as np
import pytest

from smalti.errors import SmaltiError
from tests.vgpu.harness import machine_for, parse_ptx, results, run_ptx

FUNCTIONS = """
.func (.param .b32 result) triple(.param .b32 x)
{
  .reg .b32 %r<3>;
  ld.param.b32 %r0, [x];
  mul.lo.u32 %r1, %r0, 3;
  st.param.b32 [result], %r1;
  ret;
}
.func (.param .b32 result) collatz(.param .b32 x)
{
  .reg .pred %p<3>;
  .reg .b32 %r<8>;
  ld.param.b32 %r0, [x];
  mov.u32 %r1, 0;
LOOP:
  setp.le.u32 %p0, %r0, 1;
  @%p0 bra DONE;
  add.u32 %r1, %r1, 1;
  and.b32 %r2, %r0, 1;
  setp.eq.u32 %p1, %r2, 0;
  @%p1 bra EVEN;
  {
    .param .b32 p0;
    .param .b32 r0;
    st.param.b32 [p0], %r0;
    call.uni (r0), triple, (p0);
    ld.param.b32 %r0, [r0];
  }
  add.u32 %r0, %r0, 1;
  bra LOOP;
EVEN:
  shr.u32 %r0, %r0, 1;
  bra LOOP;
DONE:
  st.param.b32 [result], %r1;
  ret;
}
"""


def collatz(n):
    steps = 0
    while n > 1:
        n, steps = (3 * n + 1 if n % 2 else n // 2), steps + 1
    return steps


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_device_functions(seed):
    """Nested calls with parameters, loops inside, lanes that return at different times, twice in one kernel."""
    text = (
        FUNCTIONS
        + """
.visible .entry kernel(.param .u64 out)
{
  .reg .b32 %r<8>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd0, [out];
  mov.u32 %r0, %tid.x;
  {
    .param .b32 a;
    .param .b32 b;
    st.param.b32 [a], %r0;
    call.uni (b), collatz, (a);
    ld.param.b32 %r1, [b];
  }
  add.u32 %r2, %r0, 100;
  {
    .param .b32 a;
    .param .b32 b;
    st.param.b32 [a], %r2;
    call.uni (b), collatz, (a);
    ld.param.b32 %r3, [b];
  }
  mad.lo.u32 %r1, %r3, 1000, %r1;
  mad.wide.u32 %rd1, %r0, 4, %rd0;
  st.global.u32 [%rd1], %r1;
  ret;
}
"""
    )
    got = run_ptx(text, np.zeros(48, np.uint32), block=48, seed=seed)[0].tolist()
    assert got == [1000 * collatz(i + 100) + collatz(i) for i in range(48)]


def test_registers_as_arguments_and_early_return():
    text = """
.func (.param .u32 result) clamp(.param .u32 x, .param .u32 top)
{
  .reg .pred %p;
  .reg .b32 %r<2>;
  ld.param.u32 %r0, [x];
  ld.param.u32 %r1, [top];
  st.param.u32 [result], %r0;
  setp.le.u32 %p, %r0, %r1;
  @%p ret;
  st.param.u32 [result], %r1;
  ret;
}
.visible .entry kernel(.param .u64 out)
{
  .reg .b32 %r<8>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd0, [out];
  mov.u32 %r0, %tid.x;
  call (%r1), clamp, (%r0, 20);
  mad.wide.u32 %rd1, %r0, 4, %rd0;
  st.global.u32 [%rd1], %r1;
  ret;
}
"""
    assert run_ptx(text, np.zeros(32, np.uint32))[0].tolist() == [min(i, 20) for i in range(32)]


def test_guarded_call():
    text = """
.global .u32 count = 0;
.func bump
{
  .reg .b32 %r;
  atom.global.add.u32 %r, [count], 1;
  ret;
}
.visible .entry kernel(.param .u64 out)
{
  .reg .pred %p;
  .reg .b32 %r<4>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd0, [out];
  mov.u32 %r0, %tid.x;
  setp.lt.u32 %p, %r0, 13;
  @%p call bump;
  bar.sync 0;
  ld.global.u32 %r1, [count];
  st.global.u32 [%rd0], %r1;
  ret;
}
"""
    assert run_ptx(text, np.zeros(1, np.uint32))[0].tolist() == [13]


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_calls_through_a_table(seed):
    """Each lane picks its function; only those of the right shape are thought of."""
    text = """
.func (.param .b32 r) double(.param .b32 x)
{
  .reg .b32 %r<2>;
  ld.param.b32 %r0, [x];
  add.u32 %r0, %r0, %r0;
  st.param.b32 [r], %r0;
  ret;
}
.func (.param .b32 r) square(.param .b32 x)
{
  .reg .b32 %r<2>;
  ld.param.b32 %r0, [x];
  mul.lo.u32 %r0, %r0, %r0;
  st.param.b32 [r], %r0;
  ret;
}
.func other(.param .b64 x)
{
  trap;
}
.global .u64 table[2] = {square, double};
.visible .entry kernel(.param .u64 out)
{
  .reg .b32 %r<4>;
  .reg .b64 %rd<8>;
  ld.param.u64 %rd0, [out];
  mov.u32 %r0, %tid.x;
  and.b32 %r1, %r0, 1;
  mov.u64 %rd2, table;
  mad.wide.u32 %rd2, %r1, 8, %rd2;
  ld.global.u64 %rd3, [%rd2];
  {
    .param .b32 a;
    .param .b32 b;
    st.param.b32 [a], %r0;
shape: .callprototype (.param .b32 _) _ (.param .b32 _);
    call (b), %rd3, (a), shape;
    ld.param.b32 %r2, [b];
  }
  mad.wide.u32 %rd1, %r0, 4, %rd0;
  st.global.u32 [%rd1], %r2;
  ret;
}
"""
    got = run_ptx(text, np.zeros(40, np.uint32), block=40, seed=seed)[0].tolist()
    assert got == [2 * i if i % 2 else i * i for i in range(40)]


@pytest.mark.virtual
@pytest.mark.parametrize(
    "body,what",
    [
        (".func f\n{\n  call.uni f;\n  ret;\n}\n.visible .entry kernel()\n{\n  call.uni f;\n  ret;\n}\n", "recursion"),
        (".extern .func f;\n.visible .entry kernel()\n{\n  call.uni f;\n  ret;\n}\n", "external function f"),
    ],
)
def test_calls_that_are_not_modelled(body, what):
    with pytest.raises(SmaltiError, match=f"SML0809.*{what}"):
        run_ptx(body)


PRINTF = """
.extern .func (.param .b32 result) vprintf(.param .b64 format, .param .b64 args);
.global .align 1 .b8 format[] = {FORMAT};
.global .align 1 .b8 word[3] = {104, 105, 0};
.visible .entry kernel()
{
  .reg .b32 %r<4>;
  .reg .b64 %rd<8>;
  .local .align 8 .b8 args[32];
  mov.u32 %r0, %tid.x;
  mov.u64 %rd0, args;
  cvta.local.u64 %rd1, %rd0;
  st.local.u32 [%rd0], %r0;
  mov.b64 %rd2, 0d3FF8000000000000;
  st.local.b64 [%rd0+8], %rd2;
  mov.u64 %rd4, word;
  cvta.global.u64 %rd4, %rd4;
  st.local.b64 [%rd0+16], %rd4;
  mov.u64 %rd3, format;
  cvta.global.u64 %rd3, %rd3;
  {
    .param .b64 p0;
    .param .b64 p1;
    .param .b32 q;
    st.param.b64 [p0], %rd3;
    st.param.b64 [p1], %rd1;
    call.uni (q), vprintf, (p0, p1);
    ld.param.b32 %r1, [q];
  }
  ret;
}
"""


@pytest.mark.virtual
def test_printf():
    format_ = "t=%d %5.2f|%-4s|%%\n\0"
    text = PRINTF.replace("FORMAT", ", ".join(str(b) for b in format_.encode())).replace(
        "format[]", f"format[{len(format_)}]"
    )
    machine = machine_for(parse_ptx(text), block=3)
    machine.run()
    assert machine.printed == [f"t={i}  1.50|hi  |%\n" for i in range(3)]


@pytest.mark.virtual
def test_stops():
    def text(body):
        head = ".visible .entry kernel()\n{\n  .reg .pred %p;\n  .reg .b32 %r;\n  mov.u32 %r, %tid.x;\n"
        return head + body + "  ret;\n}\n"

    for op in ("trap", "brkpt"):
        with pytest.raises(SmaltiError, match=r"SML0814.*lanes 7 of"):
            run_ptx(text(f"  setp.eq.u32 %p, %r, 7;\n  @%p {op};\n"))
        run_ptx(text(f"  setp.eq.u32 %p, %r, 77;\n  @%p {op};\n"))


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_sleeping_lets_others_go(seed):
    """Block 0 sleeps until block 3 has written, polling with plain loads."""
    text = """
.visible .entry kernel(.param .u64 flag)
{
  .reg .pred %p<2>;
  .reg .b32 %r<4>;
  .reg .b64 %rd<2>;
  ld.param.u64 %rd0, [flag];
  mov.u32 %r0, %ctaid.x;
  setp.eq.u32 %p0, %r0, 0;
  @%p0 bra WAIT;
  setp.eq.u32 %p0, %r0, 3;
  @%p0 st.volatile.global.u32 [%rd0], 9;
  ret;
WAIT:
  ld.volatile.global.u32 %r1, [%rd0];
  nanosleep.u32 100;
  setp.eq.u32 %p1, %r1, 0;
  @%p1 bra WAIT;
  st.global.u32 [%rd0+4], %r1;
  ret;
}
"""
    assert run_ptx(text, np.zeros(2, np.uint32), block=1, grid=4, seed=seed)[0].tolist() == [9, 9]


# -- register counts ---------------------------------------------------------------------------------------


def registers(directives, steps):
    body = "".join(f"  setmaxnreg.{a}.sync.aligned.u32 {n};\n" for a, n in steps[0])
    other = "".join(f"  setmaxnreg.{a}.sync.aligned.u32 {n};\n" for a, n in steps[1])
    return f"""
.visible .entry kernel(.param .u64 out)
{directives}
{{
  .reg .pred %p;
  .reg .b32 %r<4>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd0, [out];
  mov.u32 %r0, %tid.x;
  setp.lt.u32 %p, %r0, 128;
  @%p bra FIRST;
{other}  bra END;
FIRST:
{body}END:
  mad.wide.u32 %rd1, %r0, 4, %rd0;
  st.global.u32 [%rd1], %r0;
  ret;
}}
"""


BOUND = ".reqntid 256, 1, 1\n.minnctapersm 1"  # 256 registers a thread would fit: 248 is the most, 255 rounded down


@pytest.mark.virtual
@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_register_pool(seed):
    """The consumers get what the producers give up, whoever comes first."""
    text = registers(".reqntid 256, 1, 1\n.maxnreg 128", ([("dec", 40)], [("inc", 216)]))
    assert run_ptx(text, np.zeros(256, np.uint32), block=256, seed=seed)[0].tolist() == list(range(256))
    back = registers(".reqntid 256, 1, 1\n.maxnreg 128", ([("dec", 40), ("dec", 24)], [("inc", 216), ("inc", 232)]))
    run_ptx(back, np.zeros(256, np.uint32), block=256, seed=seed)


@pytest.mark.virtual
def test_register_pool_runs_dry():
    text = registers(".reqntid 256, 1, 1\n.maxnreg 128", ([("dec", 40)], [("inc", 224)]))
    with pytest.raises(SmaltiError, match=r"SML0901.*224 registers"):
        run_ptx(text, np.zeros(256, np.uint32), block=256)
    wrong = registers(".reqntid 256, 1, 1\n.maxnreg 128", ([("inc", 40)], [("inc", 216)]))
    with pytest.raises(SmaltiError, match="SML0817"):
        run_ptx(wrong, np.zeros(256, np.uint32), block=256)
    ignored = registers(".reqntid 256, 1, 1", ([("inc", 40)], [("inc", 224)]))  # no launch count: no effect
    assert run_ptx(ignored, np.zeros(256, np.uint32), block=256)[0].tolist() == list(range(256))


@pytest.mark.virtual
def test_launch_registers():
    from smalti.vgpu.execute.control import launch_registers
    from smalti.vgpu.program import prepare

    for directives, want in (
        (".reqntid 384, 1, 1\n.minnctapersm 1", 168), (".maxntid 512, 1, 1\n.minnctapersm 1", 128),
        (".maxntid 128, 1, 1\n.minnctapersm 2", 255), (".maxnreg 72", 72), (".reqntid 384, 1, 1", None),
    ):  # fmt: skip
        module = parse_ptx(f".visible .entry kernel()\n{directives}\n{{\n  ret;\n}}\n")
        assert launch_registers(prepare(module, "kernel")) == want


@pytest.mark.virtual
def test_launch_registers_are_no_more_than_the_largest_increase():
    """As ptxas has it: two warpgroups could start with 255, but start with what the consumers want."""
    text = registers(".maxntid 256, 1, 1\n.minnctapersm 1", ([("dec", 24)], [("inc", 240)]))
    assert run_ptx(text, np.zeros(256, np.uint32), block=256)[0].tolist() == list(range(256))
    with pytest.raises(SmaltiError, match="SML0817"):  # another one wants more
        run_ptx(
            text.replace("END:", "  @%p setmaxnreg.inc.sync.aligned.u32 248;\nEND:"),
            np.zeros(256, np.uint32),
            block=256,
        )


# -- cluster launch control --------------------------------------------------------------------------------


@pytest.mark.virtual  # sm_100
@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_work_stealing(seed):
    """CTAs take over clusters that have not started, until none is left: every tile is done once."""
    text = """
.visible .entry kernel(.param .u64 out)
{
  .reg .pred %p<4>;
  .reg .b32 %r<16>;
  .reg .b64 %rd<8>;
  .reg .b128 %q;
  .shared .align 16 .b8 answer[16];
  .shared .align 8 .b64 bar;
  ld.param.u64 %rd0, [out];
  mov.u32 %r0, %ctaid.x;
  mov.u32 %r5, answer;
  mov.u32 %r6, bar;
  mov.u32 %r7, 0;
  mbarrier.init.shared::cta.b64 [%r6], 1;
  fence.proxy.async;
NEXT:
  mad.wide.u32 %rd1, %r0, 4, %rd0;
  red.global.add.u32 [%rd1], 1;
  mbarrier.arrive.expect_tx.shared::cta.b64 _, [%r6], 16;
  clusterlaunchcontrol.try_cancel.async.shared::cta.mbarrier::complete_tx::bytes.b128 [%r5], [%r6];
WAIT:
  mbarrier.try_wait.parity.shared::cta.b64 %p0, [%r6], %r7;
  @!%p0 bra WAIT;
  xor.b32 %r7, %r7, 1;
  ld.shared.b128 %q, [%r5];
  clusterlaunchcontrol.query_cancel.is_canceled.pred.b128 %p1, %q;
  @!%p1 bra END;
  clusterlaunchcontrol.query_cancel.get_first_ctaid::x.b32.b128 %r0, %q;
  clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128 {%r8, %r9, %r10, _}, %q;
  setp.ne.u32 %p2, %r8, %r0;
  @%p2 trap;
  fence.proxy.async;
  bra NEXT;
END:
  ret;
}
"""
    machine = machine_for(parse_ptx(text, "sm_100a"), np.zeros(40, np.uint32), grid=40, block=1, seed=seed)
    machine.run()
    assert results(machine)[0].tolist() == [1] * 40
    assert machine.performed["launch"] > 0
