"""tidy: what it removes and shares, and above all what it must leave alone."""

import pytest
from ptxas import assemble

from smalti.ptx.build import Builder
from smalti.ptx.finish import finish
from smalti.ptx.module import SINK, Function, Guard, Module, Not, Pair, Special, Variable
from smalti.ptx.print import print_module
from smalti.ptx.tidy import tidy


@pytest.fixture
def b():
    module = Module(target="sm_90a")
    function = Function("k", params=[Variable("p", "param", "u64")])
    module.items.append(function)
    return Builder(module, function)


def opcodes(b):
    tidy(b.module)
    return [i.opcode for i in b.function.body.instructions()]


def store(b, *values):
    """Makes values observable."""
    for n, v in enumerate(values):
        b.emit("st.local.b32", b.address(None, 8 * n), v)


def test_a_copy_is_read_through(b):
    x, y, z = b.registers("b32", 3)
    b.emit("mov.u32", x, Special("tid.x"))
    b.emit("mov.b32", y, x)
    b.emit("mov.b32", z, y)
    store(b, z)
    assert opcodes(b) == ["mov.u32", "st.local.b32"]
    assert list(b.function.body.instructions())[1].operands[1] is x


def test_equal_computations_are_shared(b):
    x, y, z = b.registers("b32", 3)
    b.emit("mov.u32", x, Special("tid.x"))
    b.emit("shl.b32", y, x, 3)
    b.emit("shl.b32", z, x, 3)
    store(b, y, z)
    assert opcodes(b) == ["mov.u32", "shl.b32", "st.local.b32", "st.local.b32"]


def test_different_computations_are_not(b):
    x, y, z, w, v = b.registers("b32", 5)
    f = b.register("f32")
    b.emit("mov.u32", x, Special("tid.x"))
    b.emit("shl.b32", y, x, 3)
    b.emit("shl.b32", z, x, 4)
    b.emit("shr.u32", w, x, 3)
    b.emit("mov.u32", v, Special("tid.y"))
    b.emit("mov.b32", f, x)
    store(b, y, z, w, v, f)
    assert len(opcodes(b)) == 11


def test_clocks_are_read_each_time(b):
    x, y = b.registers("b32", 2)
    b.emit("mov.u32", x, Special("clock"))
    b.emit("mov.u32", y, Special("clock"))
    store(b, x, y)
    assert opcodes(b).count("mov.u32") == 2


def test_dead_code_goes_in_chains_but_effects_stay(b):
    x, y, z, w = b.registers("b32", 4)
    p = b.register("pred")
    b.emit("mov.u32", x, 1)
    b.emit("add.s32", y, x, 1)
    b.emit("setp.eq.s32", p, y, 2)
    b.emit("selp.b32", z, y, x, p)
    b.emit("ld.local.b32", w, b.address(None, 64))  # only pure instructions go
    b.emit("bar.sync", 0)
    assert opcodes(b) == ["ld.local.b32", "bar.sync"]


def test_carries_stay(b):
    x, y, z = b.registers("b32", 3)
    b.emit("ld.local.b32", x, b.address(None, 64))
    b.emit("add.cc.u32", y, x, x)
    b.emit("addc.u32", z, 0, 0)
    store(b, z)
    assert opcodes(b) == ["ld.local.b32", "add.cc.u32", "addc.u32", "st.local.b32"]


def test_a_place_written_twice_is_no_value(b):
    """`y` keeps the old `x`: reading `x` instead would give the new one."""
    x, y = b.registers("b32", 2)
    b.emit("mov.u32", x, Special("tid.x"))
    b.emit("mov.b32", y, x)
    b.emit("add.s32", x, x, 1)
    store(b, x, y)
    assert opcodes(b) == ["mov.u32", "mov.b32", "add.s32", "st.local.b32", "st.local.b32"]


def test_a_copy_kept_around_a_loop(b):
    """`old` is read before it is written anew: it holds the value of the round before."""
    x, old, n = b.registers("b32", 3)
    p = b.register("pred")
    b.emit("mov.u32", n, 0)
    top = b.label()
    b.place(top)
    store(b, old)
    b.emit("ld.local.b32", x, b.address(None, 64))
    b.emit("mov.b32", old, x)
    b.emit("add.s32", n, n, 1)
    b.emit("setp.lt.s32", p, n, 9)
    b.emit("bra", top, guard=p)
    assert "mov.b32" in opcodes(b)


def test_a_copy_on_one_branch_only(b):
    """The store after the join sees either value of `y`."""
    x, y = b.registers("b32", 2)
    p = b.register("pred")
    b.emit("mov.u32", x, Special("tid.x"))
    b.emit("setp.eq.s32", p, x, 0)
    skip = b.label()
    b.emit("bra", skip, guard=Guard(p, True))
    b.emit("mov.b32", y, x)
    b.place(skip)
    store(b, y)
    assert "mov.b32" in opcodes(b)


def test_a_guarded_copy_stays(b):
    x, y = b.registers("b32", 2)
    p = b.register("pred")
    b.emit("mov.u32", x, Special("tid.x"))
    b.emit("setp.eq.s32", p, x, 0)
    b.emit("mov.b32", y, x, guard=p)
    store(b, y)
    assert opcodes(b).count("mov.b32") == 1


def test_asynchronous_operands_are_left_alone(b):
    """wgmma reads A while the registers it was copied from are loaded anew."""
    a = b.registers("b32", 4)
    copies = b.registers("b32", 4)
    acc = b.registers("f32", 4)
    d = b.register("b64")
    p = b.register("pred")
    b.emit("mov.b64", d, 0)
    b.emit("setp.eq.u64", p, d, 0)
    for x, y in zip(a, copies, strict=True):
        b.emit("ld.local.b32", x, b.address(None, 64))
        b.emit("mov.b32", y, x)
    b.emit("wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16", acc, copies, d, p, 1, 1, 0)
    assert opcodes(b).count("mov.b32") == 4


def test_types_are_kept(b):
    """A .f32 copy of a .f32 register must not reach an integer instruction."""
    f, g = b.registers("f32", 2)
    x = b.register("b32")
    b.emit("ld.local.f32", f, b.address(None, 64))
    b.emit("mov.f32", g, f)
    b.emit("mov.b32", x, g)
    b.emit("add.s32", x, x, 1)
    store(b, x)
    assert opcodes(b) == ["ld.local.f32", "mov.b32", "add.s32", "st.local.b32"]


def test_branches_into_scopes_and_predicates(b):
    x = b.register("b32")
    p, q = b.registers("pred", 2)
    b.emit("mov.u32", x, Special("tid.x"))
    b.emit("setp.eq.s32", p, x, 0)
    b.emit("setp.eq.s32", q, x, 0)
    with b.block(scoped=True):
        end = b.label()
        b.emit("bra", end, guard=Guard(q, True))
        b.emit("setp.lt.and.s32", Pair(b.register("pred"), SINK), x, 5, Not(q))
        store(b, x)
        b.place(end)
    assert opcodes(b) == ["mov.u32", "setp.eq.s32", "bra", "st.local.b32"]


def test_unreachable_code_and_empty_functions(b):
    assert opcodes(b) == []
    b.emit("ret")
    x = b.register("b32")
    b.emit("mov.u32", x, 3)
    store(b, x)
    assert opcodes(b) == ["ret", "mov.u32", "st.local.b32"]


@pytest.mark.ptxas
def test_tidied_code_assembles(b):
    x, y, z, w = b.registers("b32", 4)
    b.emit("mov.u32", x, Special("tid.x"))
    b.emit("mov.b32", y, x)
    b.emit("mad.lo.s32", z, y, y, 7)
    b.emit("mad.lo.s32", w, x, x, 7)
    store(b, y, z, w)
    b.emit("ret")
    tidy(b.module)
    finish(b.module)
    status, messages, _ = assemble(print_module(b.module), "sm_90a")
    assert status == 0, messages
