"""finish: names, shared memory in one buffer, versions, limits; the result assembles."""

import pytest
from ptxas import assemble

from smalti.errors import SmaltiError
from smalti.ptx.build import Builder
from smalti.ptx.finish import BUFFER, finish, shared_bytes
from smalti.ptx.module import Address, Function, Guard, Module, Pair, Register, Special, SymbolAddress, Tile, Variable
from smalti.ptx.print import print_module


def kernel(target="sm_90a", **directives):
    module = Module(target=target)
    function = Function("k", params=[Variable("out", "param", "u64")], directives=directives)
    module.items.append(function)
    return module, Builder(module, function)


def filled():
    """Two shared variables, a loop, a guard and every prefix of register names."""
    m, b = kernel()
    bar = b.variable("bar", "shared", "b64", (2,), 8)
    tile = b.variable("tile", "shared", "b8", (4096,), 1024)
    out, tid, n, p, f, w, h = (b.register(t) for t in ("b64", "b32", "b32", "pred", "f32", "b64", "b16"))
    b.emit("ld.param.u64", out, b.address(b.function.params[0]))
    b.emit("mov.u32", tid, Special("tid.x"))
    b.emit("mbarrier.init.shared::cta.b64", b.address(bar, 8), 3)
    b.emit("mov.u32", n, tile)
    top = b.label()
    b.place(top)
    with b.block(scoped=True):
        b.emit("ld.shared.f32", f, b.address(tile, 16))
        b.emit("add.s32", n, n, tid)
        b.emit("setp.lt.s32", p, n, 77)
    b.emit("bra", top, guard=p)
    b.emit("mul.wide.u32", w, tid, 4)
    b.emit("add.s64", out, out, w)
    b.emit("cvt.rn.f16.f32", h, f)
    b.emit("st.global.b16", b.address(out), h, guard=Guard(p, True))
    b.emit("ret")
    return m, b


def test_shared_variables_become_one_buffer():
    m, _ = filled()
    m.tiles.append(Tile("tile", "shared", 0, 0, (64, 32), "bf16", "128B", "a"))
    finish(m)
    buffer = m.items[0]
    assert (buffer.name, buffer.linkage, buffer.align, buffer.count) == (BUFFER, "extern", 1024, (0,))
    operands = [o for i in m.function("k").body.instructions() for o in i.operands]
    assert Address(buffer, 4096 + 8) in operands  # bar: behind the tile, whose alignment is larger
    assert SymbolAddress(buffer, 0) in operands and Address(buffer, 16) in operands
    assert m.tiles == [
        Tile("tile", "shared", 0, 4096, (64, 32), "bf16", "128B", "a"),
        Tile("bar", "shared", 4096, 16, (2,), "b64"),
    ]
    assert shared_bytes(m) == 4112
    assert not any("tile" in line or "bar[" in line for line in print_module(m).splitlines() if ".shared" in line)


def test_names_are_unique_and_declared_once():
    m, b = filled()
    named = Register("b32", "%r0")
    b.emit("mov.b32", named, 5)
    finish(m)
    text = print_module(m)
    declared = [line.strip() for line in text.splitlines() if line.strip().startswith(".reg")]
    assert ".reg .pred %p<1>;" in declared and ".reg .f32 %f<1>;" in declared
    assert ".reg .b32 %r_<2>;" in declared and ".reg .b32 %r<1>;" in declared  # ours never meet a given name


def test_finish_twice_changes_nothing():
    m, _ = filled()
    finish(m)
    first = print_module(m)
    finish(m)
    assert print_module(m) == first


def test_lines_and_files():
    m, _ = filled()
    finish(m)
    assert m.files == {1: __file__}
    text = print_module(m)
    assert f'.file 1 "{__file__}"' in text and ".loc 1 " in text


@pytest.mark.parametrize(
    ("target", "opcode", "version"),
    [
        ("sm_90a", "fence.mbarrier_init.release.cluster", (8, 0)),
        ("sm_90a", "fence.acquire.gpu", (8, 6)),
        ("sm_100a", "ret", (8, 6)),
        ("sm_103a", "ret", (8, 8)),
    ],
)
def test_version_is_the_lowest_that_knows_everything(target, opcode, version):
    m, b = kernel(target)
    m.version = (6, 0)
    b.emit(opcode)
    finish(m)
    assert m.version == version


@pytest.mark.parametrize(
    ("code", "directives", "emit"),
    [
        ("SML0501", {}, lambda b: b.variable("v", "shared", "b8", (227 * 1024 + 1,))),
        ("SML0502", {"reqntid": (128,)}, lambda b: b.emit("setmaxnreg.inc.sync.aligned.u32", 240)),
        ("SML0503", {"reqntid": (32, 33)}, lambda b: None),
        ("SML0504", {"reqnctapercluster": (4, 5)}, lambda b: None),
        ("SML0505", {}, lambda b: b.function.params.append(Variable("t", "param", "b8", (32757,)))),
    ],
)
def test_limits(code, directives, emit):
    m, b = kernel(**directives)
    emit(b)
    with pytest.raises(SmaltiError) as raised:
        finish(m)
    assert raised.value.code == code


@pytest.mark.parametrize(
    ("directives", "emit"),
    [
        ({}, lambda b: b.variable("v", "shared", "b8", (227 * 1024,))),
        ({"reqntid": (128,), "minnctapersm": (1,)}, lambda b: b.emit("setmaxnreg.inc.sync.aligned.u32", 240)),
        ({"maxnreg": (64,)}, lambda b: b.emit("setmaxnreg.dec.sync.aligned.u32", 24)),
        ({"reqntid": (32, 32)}, lambda b: None),
        ({"reqnctapercluster": (4, 4)}, lambda b: None),
        ({}, lambda b: b.function.params.append(Variable("t", "param", "b8", (32756,)))),
    ],
)
def test_limits_are_exact(directives, emit):
    m, b = kernel(**directives)
    emit(b)
    finish(m)


def test_the_limit_is_the_targets():
    m, b = kernel("sm_120a")
    b.variable("v", "shared", "b8", (100 * 1024,))
    with pytest.raises(SmaltiError, match="101376"):
        finish(m)


@pytest.mark.ptxas
def test_a_finished_module_assembles():
    m, _ = filled()
    finish(m)
    status, messages, cubin = assemble(print_module(m), "sm_90a")
    assert status == 0, messages
    assert cubin


def test_pairs_and_vectors_are_named():
    m, b = kernel()
    p, q, x = b.register("pred"), b.register("pred"), b.registers("b32", 4)
    b.emit("setp.eq.s32", Pair(p, q), x[0], 1)
    b.emit("mov.b64", b.register("b64"), [x[1], x[2]])
    b.emit("mov.b32", b.label("unused") and x[3], 0, guard=q)
    finish(m)
    assert len({r.name for r in (p, q, *x)}) == 6 and all(r.name for r in (p, q, *x))
