"""The assembler's report, refusals at the user's line, and what is found in machine code. Needs the dev extra."""

import pytest

from smalti.errors import Loc, SmaltiError
from smalti.run.assemble import assemble, python_line, target_of
from smalti.run.sass import inspect

pytestmark = pytest.mark.ptxas

HEAD = """.version 8.0
.target sm_90a
.address_size 64
.file 1 "/somewhere/kernel.py"
"""


def kernel(body, registers="", directives="", head=HEAD):
    return f"""{head}.visible .entry k(.param .u64 p, .param .u64 d) {directives}
{{
.reg .b32 %r<99>; .reg .b64 %rd<9>; .reg .f32 %f<9>; .reg .pred %p<9>;
{registers}
ld.param.u64 %rd1, [p]; ld.param.u64 %rd2, [d]; ld.global.u32 %r9, [%rd1];
mov.f32 %f0, 0f00000000; mov.f32 %f1, %f0; mov.f32 %f2, %f0; mov.f32 %f3, %f0;
{body}
st.global.f32 [%rd1], %f0; st.global.f32 [%rd1+4], %f1; st.global.u32 [%rd1+8], %r1;
ret;
}}
"""


WGMMA = """wgmma.fence.sync.aligned;
wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {%f0,%f1,%f2,%f3}, %rd2, %rd2, 1, 1, 1, 0, 0;
wgmma.commit_group.sync.aligned;
wgmma.wait_group.sync.aligned 0;
"""
INNER = WGMMA + "add.u32 %r1, %r1, 1;\nsetp.lt.u32 %p1, %r1, %r9;\n@%p1 bra INNER;\n"


def test_resources_and_clean_wgmma():
    text = kernel("mov.u32 %r1, 0;\nINNER:\n" + INNER, directives=".maxntid 128, 1, 1 .minnctapersm 1")
    made = assemble(text)
    assert made.arch == "sm_90a" and made.cubin.startswith(b"\x7fELF")
    resources = made.kernels["k"]
    assert resources.registers >= 8 and resources.spill_loads == resources.spill_stores == 0
    assert made.losses == ()
    assert inspect(made.cubin)["k"].tensor == {"HGMMA": 1}


def test_injected_waits_and_ignored_setmaxnreg_are_reported():
    early = INNER.replace("wgmma.commit", "add.f32 %f0, %f0, %f1;\nwgmma.commit")
    text = kernel("mov.u32 %r1, 0;\nsetmaxnreg.inc.sync.aligned.u32 232;\nINNER:\n" + early)
    codes = {a.code for a in assemble(text).losses}
    assert codes == {"C7508", "C7517"}


def test_static_shared_memory_is_reported():
    text = kernel("bar.sync 3;\nst.shared.f32 [s], %f0;", registers=".shared .b8 s[4096];")
    resources = assemble(text).kernels["k"]
    assert (resources.shared, resources.barriers) == (4096, 4)


def test_the_depth_of_loops():
    text = kernel(
        'mov.u32 %r2, 0;\nOUTER:\nmov.u32 %r1, 0;\n.pragma "nounroll";\nINNER:\n'
        + INNER
        + "st.global.u32 [%rd1+64], %r2;\nadd.u32 %r2, %r2, 1;\nsetp.lt.u32 %p2, %r2, %r9;\n@%p2 bra OUTER;\n"
    )
    code = inspect(assemble(text).cubin)["k"]
    assert [i.depth for i in code.instructions if i.head == "HGMMA"] == [2]
    stores = [i.depth for i in code.instructions if i.head == "STG"]
    assert stores == [1, 0, 0, 0]
    assert code.counts["EXIT"] and all(i.depth == 0 for i in code.instructions if i.head == "EXIT")


def spilling(inside):
    """Sixty values that live across a loop with 32 registers; used inside the loop or only around it."""
    names = [f"%r{n}" for n in range(20, 80)]
    load = "\n".join(f"ld.global.u32 {r}, [%rd1+{4 * n}];" for n, r in enumerate(names))
    use = "\n".join(f"add.u32 %r1, %r1, {r}; xor.b32 {r}, {r}, %r1;" for r in names)
    loop = "LOOP:\n" + (use if inside else "add.u32 %r1, %r1, 3;\nst.global.u32 [%rd1+512], %r1;")
    loop += "\nsetp.lt.u32 %p1, %r1, %r9;\n@%p1 bra LOOP;\n"
    return kernel("mov.u32 %r1, 0;\n" + load + '\n.pragma "nounroll";\n' + loop + use, directives=".maxnreg 32")


def test_spills_inside_a_loop_are_told_from_spills_around_it():
    around, within = (assemble(spilling(inside)) for inside in (False, True))
    assert around.kernels["k"].spill_stores > 0 and within.kernels["k"].spill_stores > 0
    assert inspect(around.cubin)["k"].spills_in_loops == []
    assert len(inspect(within.cubin)["k"].spills_in_loops) > 10


def test_a_refusal_names_the_users_line():
    text = kernel(".loc 1 41 0\nadd.u32 %r1, %r9, 1;\n.loc 1 42 0\nadd.u33 %r1, %r1, 1;")
    with pytest.raises(SmaltiError, match=r"SML0281.*u33.*kernel\.py:42") as caught:
        assemble(text)
    assert caught.value.location == Loc("/somewhere/kernel.py", 42)
    line = caught.value.params["line"]
    assert "add.u33" in text.splitlines()[line - 1]


def test_python_lines():
    text = 'a\n.loc 2 7 0\nb\n.loc 1 9 3\nc\n.file 1 "x.py"\n.file 2 "y.py"\n'
    assert python_line(text, 1) is None
    assert python_line(text, 3) == Loc("y.py", 7)
    assert python_line(text, 5) == Loc("x.py", 9)
    assert python_line(".loc 3 1 1\nb", 2) is None


def test_targets():
    assert target_of("// x\n.version 8.6\n.target sm_100a, debug\n") == "sm_100a"
    text = kernel("mov.u32 %r1, 0;").replace("sm_90a", "sm_100a").replace("8.0", "8.6")
    assert assemble(text).arch == "sm_100a"
    with pytest.raises(SmaltiError, match=r"SML0281.*not supported"):
        assemble(kernel("mov.u32 %r1, 0;\nINNER:\n" + INNER).replace("sm_90a", "sm_100a").replace("8.0", "8.6"))


def test_no_kernel_at_all():
    assert assemble(HEAD).kernels == {}
