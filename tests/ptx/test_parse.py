"""The parser: PTX as it is in the wild, errors with their place, bounds on strangers' input, speed."""

import struct
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from instances import SKIPPED, Operands, instances
from same import shape

from smalti.errors import Loc, SmaltiError
from smalti.ptx.isa import TABLE
from smalti.ptx.module import (
    SINK,
    Address,
    Block,
    BranchTargets,
    CallPrototype,
    Declare,
    Directive,
    Function,
    Guard,
    Immediate,
    InitialAddress,
    Instruction,
    Label,
    Lane,
    Mark,
    Module,
    Not,
    Pair,
    Register,
    Special,
    SymbolAddress,
    Tile,
    Variable,
    Vector,
)
from smalti.ptx.parse import parse
from smalti.ptx.print import print_module

HEAD = ".version 9.0\n.target sm_90a\n.address_size 64\n"


def kernel(body: str, params: str = "", before: str = "") -> Module:
    """Parses a kernel `k`, and checks on the way that printing and parsing again changes nothing."""
    return round_trip(f"{HEAD}{before}\n.visible .entry k({params})\n{{\n{body}\n}}\n")


def round_trip(text: str) -> Module:
    m = parse(text, "x.ptx")
    again = parse(print_module(m), "again.ptx")
    assert shape(again) == shape(m)
    return m


def only(m: Module) -> Instruction:
    (i,) = m.function("k").body.instructions()
    return i


def refuse(text: str) -> SmaltiError:
    with pytest.raises(SmaltiError) as raised:
        parse(text, "x.ptx")
    return raised.value


# -- heads, variables, functions ----------------------------------------------------------------------


def test_heads_and_files():
    m = round_trip(
        "// made by hand\n.version 8.7\n.target sm_100a, debug /* why not */\n.address_size 64\n"
        '.file 1 "/a \\"b\\"/c.py", 1700000000, 5\n.file 2 "d.py"\n'
    )
    assert (m.version, m.target, m.target_options, m.address_size) == ((8, 7), "sm_100a", ("debug",), 64)
    assert m.files == {1: '/a "b"/c.py', 2: "d.py"}


def test_variables_with_initial_values():
    m = round_trip(
        HEAD
        + """
.global .align 4 .b32 a[2][3] = {{1, 2}, {0x10, 5U}};
.visible .const .f32 f = -1.5, g = 0f3F800000;
.global .f64 d[2] = {1e2, 3};
.global .b8 text[] = {72, 105, 0};
.global .v2 .b16 v[2] = {{1, 2}, {3, 0xFFFF}};
.weak .global .u64 pointers[3] = {a, generic(a)+8, 0};
.extern .shared .align 1024 .b8 dynamic[];
.common .global .b32 zero;
.global .attribute(.managed) .s16 negative = -2;
"""
    )
    a, f, g, d, text, v, pointers, dynamic, zero, negative = m.items
    assert (a.count, a.align, a.initial) == ((2, 3), 4, (1, 2, 0, 16, 5, 0))
    assert (f.linkage, f.space, f.initial) == ("visible", "const", (struct.unpack("<I", struct.pack("<f", -1.5))[0],))
    assert g.initial == (0x3F800000,)
    assert d.initial == tuple(struct.unpack("<Q", struct.pack("<d", x))[0] for x in (100.0, 3.0))
    assert (text.count, text.size) == ((3,), 3)
    assert (v.vector, v.count, v.initial, v.size) == (2, (2,), (1, 2, 3, 65535), 8)
    assert pointers.initial == (InitialAddress(a, 0), InitialAddress(a, 8, True), 0)
    assert (dynamic.linkage, dynamic.count, dynamic.align) == ("extern", (0,), 1024)
    assert (zero.linkage, zero.initial) == ("common", ())
    assert (negative.attributes, negative.initial) == ((".attribute(.managed)",), (0xFFFE,))


def test_parameters_and_directives():
    m = round_trip(
        HEAD
        + """
.visible .entry k(
    .param .u64 .ptr .global .align 16 p,
    .param .align 64 .b8 map[128],
    .param .b32 n
)
.reqntid 384, 1, 1
.minnctapersm 1
.explicitcluster
.reqnctapercluster 2
.maxnreg 168
.pragma "nounroll";
{
    ret;
}
"""
    )
    k = m.function("k")
    assert [(p.name, p.type, p.size, p.align, p.ptr) for p in k.params] == [
        ("p", "u64", 8, 0, ".ptr .global .align 16"),
        ("map", "b8", 128, 64, ""),
        ("n", "b32", 4, 0, ""),
    ]
    assert k.directives == {
        "reqntid": (384, 1, 1),
        "minnctapersm": (1,),
        "explicitcluster": (),
        "reqnctapercluster": (2,),
        "maxnreg": (168,),
    }
    assert k.attributes == ('.pragma "nounroll";',)


def test_functions_calls_and_prototypes():
    m = round_trip(
        HEAD
        + """
.extern .func __assertfail (.param .b64 a, .param .b32 line) .noreturn;
.func (.param .b32 result) add_one (.param .b32 x);
.weak .func (.param .align 8 .b8 result[8]) pair (.param .b32 x) { ret; }
.visible .entry k()
{
    .reg .b32 %r<3>;
    .reg .b64 %rd<2>;
    { // callseq 1, 0
    .param .b32 param0;
    st.param.b32 [param0+0], %r1;
    .param .b32 retval0;
    call.uni (retval0), add_one, (param0);
    ld.param.b32 %r2, [retval0];
    }
    call.uni
    __assertfail,
    (
    %rd1,
    7
    );
    prototype_1: .callprototype (.param .b32 _) _ (.param .b32 _);
    call (%r1), %rd1, (%r2), prototype_1;
    ret;
}
.func (.param .b32 result) add_one (.param .b32 x) { ret; }
"""
    )
    declared, first, pair, k, defined = m.items
    assert (declared.linkage, declared.body, declared.attributes) == ("extern", None, (".noreturn",))
    assert first.body is None and m.function("add_one") is defined
    assert pair.returns[0].size == 8 and not pair.entry
    calls = [i for i in k.body.instructions() if i.opcode.startswith("call")]
    assert [type(o) for o in calls[0].operands] == [tuple, Function, tuple]
    assert calls[0].operands[0][0].name == "retval0" and calls[0].operands[1] is first
    assert calls[1].operands[0] is declared and calls[1].operands[1][1] == Immediate(7)
    assert isinstance(calls[2].operands[3], Label) and calls[2].operands[3].name == "prototype_1"
    prototype = next(s for s in k.body.statements if isinstance(s, CallPrototype))
    assert prototype.text == "(.param .b32 _) _ (.param .b32 _)" and prototype.label is calls[2].operands[3]


# -- statements ----------------------------------------------------------------------------------------


def test_scopes_may_reuse_names():
    m = kernel(
        """
    .reg .b32 %r<3>, tmp;
    .reg .pred p;
    mov.b32 tmp, 1;
    {
        .reg .b64 tmp; .reg .pred p;
        mov.b64 tmp, 2;
    AGAIN: @p bra AGAIN;
    }
    {
    AGAIN:
        @!p bra AGAIN;
        mov.b32 tmp, 3;
    }
    ret;"""
    )
    body = m.function("k").body
    outer = [r for s in body.statements if isinstance(s, Declare) for r in s.registers]
    assert [r.name for r in outer] == ["%r0", "%r1", "%r2", "tmp", "p"]
    first, second = (s for s in body.statements if isinstance(s, Block))
    assert first.scoped and first.statements[2].operands[0].type == "b64"
    assert second.statements[2].operands[0] is outer[3]
    assert first.statements[4].guard.register is not outer[4] and second.statements[1].guard == Guard(outer[4], True)
    assert first.statements[4].operands[0] is first.statements[3].label is not second.statements[0].label


def test_labels_before_their_place_and_from_inside():
    m = kernel("bra OUT;\n{ bra OUT; { bra OUT; IN: bra IN; } }\nOUT:\nret;")
    marks = [s for s in m.function("k").body.walk() if isinstance(s, Mark)]
    targets = [i.operands[0] for i in m.function("k").body.instructions() if i.opcode == "bra"]
    assert [marks[1].label] * 3 == targets[:3] and targets[3] is marks[0].label


def test_branch_targets():
    m = kernel(".reg .b32 %r<2>;\nts: .branchtargets A, B ,A;\n@!p brx.idx %r1, ts;\nA:\nB: ret;".replace("@!p ", ""))
    table = next(s for s in m.function("k").body.statements if isinstance(s, BranchTargets))
    jump = next(m.function("k").body.instructions())
    assert [t.name for t in table.targets] == ["A", "B", "A"] and jump.operands[1] is table.label


def test_lines_and_debug_sections():
    m = round_trip(
        HEAD
        + """
.file 1 "/src/k.py"
.visible .entry k()
{
.loc 1 7 3
$L__func_begin0:
    bar.sync 0;
    .loc	1 9 12, function_name $L__info_string0, inlined_at 1 7 3
$L__tmp0: bar.sync 1;
    bar.sync 2;
    .pragma "nounroll";
    ret;
}
.section .debug_abbrev
{
.b8 1 // Abbreviation
.b8 17
}
.section	.debug_info { .b32 $L__func_begin0
}
"""
    )
    lines = [i.loc.line for i in m.function("k").body.instructions()]
    assert lines == [7, 9, 9, 9] and next(m.function("k").body.instructions()).loc.file == "/src/k.py"
    sections = [d.text for d in m.items if isinstance(d, Directive)]
    assert sections[0].startswith(".section .debug_abbrev") and ".b8 17" in sections[0]
    assert any(isinstance(s, Directive) and s.text == '.pragma "nounroll";' for s in m.function("k").body.statements)


def test_source_lines_survive_scopes():
    m = parse(HEAD + '.file 1 "a.py"\n.visible .entry k() {\n.loc 1 5 0\n{\nbar.sync 0;\n}\nret;\n}')
    assert [i.loc for i in m.function("k").body.instructions()] == [Loc("a.py", 5)] * 2


def test_tiles_are_read_back():
    text = (
        HEAD + '//@tile {"name": "a", "place": "shared", "offset": 64, "size": 128, "shape": [8, 16], "dtype": "u8"}\n'
    )
    m = round_trip(text + ".visible .entry k() { ret; }")
    assert m.tiles == [Tile("a", "shared", 64, 128, (8, 16), "u8")]


# -- operands ------------------------------------------------------------------------------------------

OPERANDS = {
    "ld.global.b32 %r1, [ %rd1 + 0 ]": [Address, 0],
    "ld.global.b32 %r1, [%rd1+-8]": [Address, -8],
    "ld.global.b32 %r1, [%rd1+0x10]": [Address, 16],
    "ld.shared.b32 %r1, [s+4]": [Address, 4],
}


@pytest.mark.parametrize("text", OPERANDS)
def test_addresses(text):
    m = kernel(f".reg .b32 %r<3>; .reg .b64 %rd<3>; .shared .b32 s[4];\n{text};")
    a = only(m).operands[1]
    assert a.offset == OPERANDS[text][1] and a.base.name in ("%rd1", "s")


def test_absolute_and_tensor_addresses():
    m = kernel(
        ".reg .b32 %r<5>; .reg .b64 %rd<3>;\nld.local.b32 %r1, [16];\n"
        "cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%rd1, {%r1, 7}], [%r3];"
    )
    load, store = m.function("k").body.instructions()
    assert load.operands[1] == Address(None, 16)
    r1 = load.operands[0]
    assert store.operands[0].coordinates == Vector((r1, Immediate(7)))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", Immediate(5)),
        ("-5", Immediate(-5)),
        ("0x1F", Immediate(31)),
        ("017", Immediate(15)),
        ("0b101", Immediate(5)),
        ("7U", Immediate(7)),
        ("0xFFFFFFFFFFFFFFFF", Immediate(2**64 - 1)),
        ("0f3F800000", Immediate(0x3F800000, "f32")),
        ("0F7F800001", Immediate(0x7F800001, "f32")),
        ("0d3FF8000000000000", Immediate(0x3FF8000000000000, "f64")),
        ("1.5", Immediate(0x3FF8000000000000, "f64")),
        ("-1.5", Immediate(0xBFF8000000000000, "f64")),
        ("1e1", Immediate(0x4024000000000000, "f64")),
        ("1 + 2 * 3", Immediate(7)),
        ("(1 + 2) * 3", Immediate(9)),
        ("-7 / 2", Immediate(-3)),
        ("-7 % 2", Immediate(-1)),
        ("1 << 4 | 3", Immediate(19)),
        ("~0", Immediate(-1)),
        ("!3", Immediate(0)),
        ("2 > 1 ? 10 : 20", Immediate(10)),
        ("(.u64) -1", Immediate(2**64 - 1)),
        ("WARP_SZ", Immediate(32)),
        ("%tid.x", Special("tid.x")),
        ("%clock64", Special("clock64")),
        ("%cluster_ctarank", Special("cluster_ctarank")),
    ],
)
def test_values(text, value):
    assert only(kernel(f".reg .b64 %rd<3>;\nmov.b64 %rd1, {text};")).operands[1] == value


def test_other_operands():
    m = kernel(
        """.reg .b32 %r<9>; .reg .pred %p<9>; .reg .b64 %rd<3>; .reg .b128 %q; .reg .b64 a;
    setp.lt.and.s32 %p1|_, %r1, %r2, !%p3;
    mov.b64 {%r1, _}, %rd1;
    mov.b128 %q, {%rd1, a};
    mov.u64 %rd1, g+12;
    mov.u64 %rd2, k;
    vadd.s32.u32.u32 %r1, %r2.b0, %r3.h1;
    @!%p2 ld.global .v2 .b32 {%r3, %r4}, [g];""",
        before=".global .b8 g[64];",
    )
    setp, unpack, pack, address, own, video, load = m.function("k").body.instructions()
    assert isinstance(setp.operands[0], Pair) and setp.operands[0].second is SINK
    assert isinstance(setp.operands[3], Not)
    assert unpack.operands[0].items[1] is SINK
    assert pack.operands[0].type == "b128"
    assert address.operands[1] == SymbolAddress(m.items[0], 12)
    assert own.operands[1] == SymbolAddress(m.function("k"), 0)
    assert video.operands[1] == Lane(setp.operands[2], "b0")
    assert (load.opcode, load.guard.negated) == ("ld.global.v2.b32", True)


def test_unknown_instructions_are_kept():
    i = only(kernel(".reg .b32 %r<4>;\ntex.2d.v4.u32.f32 {%r0, %r1, %r2, %r3}, [%r0, {%r1, %r2}];"))
    assert i.opcode == "tex.2d.v4.u32.f32" and TABLE.form(i.opcode) is None
    assert len(i.operands[0].items) == 4


# -- errors --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("code", "body", "line", "column"),
    [
        ("SML0210", "mov.b32 %r1 5;", 7, 13),
        ("SML0210", "mov.b32 %r1, 5", 8, 1),
        ("SML0210", "mov.b32 %r1, 0xG;", 7, 14),
        ("SML0210", "mov.b32 %r1, 99999999999999999999;", 7, 14),
        ("SML0210", "ld.global.b32 %r1, [%r1;", 7, 24),
        ("SML0210", "ld.global.b32 %r1, [%r1 %r1];", 7, 25),
        ("SML0210", "mov.b32 %r1, 1 / 0;", 7, 18),
        ("SML0210", ".reg .b33 x;", 7, 6),
        ("SML0210", ".reg .b32 %x<0>;", 7, 14),
        ("SML0210", "@%r9 ret;", 7, 2),
        ("SML0211", "mov.b32 %r1, %r9;", 7, 14),
        ("SML0211", "bra NOWHERE;", 7, 5),
        ("SML0211", "{ A: ret; } bra A;", 7, 17),
        ("SML0212", ".reg .b32 %r1;", 7, 11),
        ("SML0212", "A: ret; A: ret;", 7, 9),
        ("SML0214", ".reg .v2 .b32 x;", 7, 6),
    ],
)
def test_errors_say_where(code, body, line, column):
    text = f"{HEAD}.visible .entry k()\n{{\n.reg .b32 %r<3>;\n{body}\n}}\n"
    if body.startswith("@"):
        code = "SML0211"
    e = refuse(text)
    assert (e.code, e.params["line"], e.params["column"]) == (code, line, column)
    assert (e.params["name"] == "x.ptx" and "x.ptx:7" in str(e)) or line == 8


def test_names_that_are_meant():
    e = refuse(f"{HEAD}.visible .entry k() {{ .reg .b32 count; mov.b32 cuont, 1; }}")
    assert e.code == "SML0211" and "count" in e.params["like"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "hello",
        HEAD[:-3],
        ".version 9\n.target sm_90\n",
        ".version 9.0\n.target sm_90a\n.address_size 32\n",
        HEAD + ".entry",
        HEAD + ".entry k(",
        HEAD + ".entry k() {",
        HEAD + ".entry k() { { ret; }",
        HEAD + ".func f() ret;",
        HEAD + ".global .b32",
        HEAD + ".global .b32 x = ;",
        HEAD + ".global .b32 x[2] = {1, 2",
        HEAD + ".section .x { 1",
        HEAD + ".global .b32 x = y;",
        HEAD + ".entry k() { /* ret; }",
        HEAD + '.file 1 "x',
        "\x7fELF\x00\x01",
        HEAD + "\x00",
        HEAD + "//@tile {]",
        HEAD + '//@tile {"name": 5}',
        HEAD + ".entry k() { call (; }",
        HEAD + ".entry k() { .loc 1; }",
    ],
)
def test_broken_text_is_refused(text):
    assert refuse(text).code in ("SML0210", "SML0211")


# -- bounds --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body",
    [
        "{" * 200 + "}" * 200,
        ".reg .b32 %r<99999999999>;",
        ".reg .b32 %r<1048577>;",
        "mov.b32 x, " + "(" * 300 + "1" + ")" * 300 + ";",
        "mov.b32 x, " + "-" * 300 + "1;",
        "mov.b32 x, " + "1 ? 2 : " * 300 + "3;",
    ],
)
def test_hostile_nesting_and_counts(body):
    assert refuse(f"{HEAD}.visible .entry k() {{ .reg .b32 x; {body} }}").code == "SML0213"


def test_hostile_initialisers():
    assert refuse(f"{HEAD}.global .b32 x{'[1]' * 200} = 1;").code == "SML0210"
    assert refuse(f"{HEAD}.global .b32 x[2] = {'{' * 200}").code == "SML0210"
    assert refuse(f"{HEAD}.global .b8 x[9999999999][9999999] = {{{{1}}}};").code == "SML0213"


def test_hostile_opcodes_are_quick():
    start = time.process_time()
    for head in ("mma", "wgmma", "cvt", "cp"):
        assert TABLE.form(".".join([head, *["f32"] * 5000])) is None
        assert TABLE.form(".".join([head, *["f32"] * 23])) is None
    assert time.process_time() - start < 0.5


def test_ten_thousand_lines_take_well_under_a_second():
    line = "    mad.lo.s32 %r{a}, %r{b}, %r7, 12;\n    ld.global.v2.b32 {{%r1, %r2}}, [%rd{c}+{a}];\n"
    body = "".join(line.format(a=n % 900, b=n % 800, c=n % 90) for n in range(5000))
    text = f"{HEAD}.visible .entry k() {{\n.reg .b32 %r<1000>;\n.reg .b64 %rd<100>;\n{body}ret;\n}}\n"
    start = time.process_time()
    m = parse(text)
    assert time.process_time() - start < 1.0
    assert len(m.function("k").body.statements) == 10003


# -- every form ----------------------------------------------------------------------------------------


def test_every_row_round_trips():
    """Each form of the table, with operands of every kind that it takes."""
    operands = Operands()
    f = Function("k", params=[operands.variables["param"]])
    m = Module((9, 4), "sm_100a", items=[operands.variables[k] for k in ("", "global", "const")] + [f])
    body = f.body.statements
    made = [i for row in TABLE.rows if row.name not in SKIPPED for i in instances(row, operands, 3)]
    body += [Declare(variable=operands.variables[k]) for k in ("local", "shared")]
    body += [Declare(tuple(operands.registers)), *made, Mark(operands.label), Instruction("ret")]
    again = parse(print_module(m))
    assert shape(again) == shape(m)
    assert len(made) > 1000


IMMEDIATES = st.one_of(
    st.integers(-(2**63), 2**64 - 1).map(Immediate),
    st.integers(0, 2**32 - 1).map(lambda b: Immediate(b, "f32")),
    st.integers(0, 2**64 - 1).map(lambda b: Immediate(b, "f64")),
)


@st.composite
def modules(draw):
    """Modules with nested scopes that reuse names, labels, all kinds of operands."""
    shared = Variable("s", "shared", "b8", (4096,), 16)
    f = Function("k", params=[Variable("p", "param", "u64")])

    def block(depth):
        names = draw(st.lists(st.sampled_from(["%r0", "%r1", "x", "%p3", "$t"]), unique=True, min_size=1, max_size=4))
        registers = [Register("b32", n) for n in names]
        statements = [Declare(tuple(registers))]
        label = Label(draw(st.sampled_from(["L0", "$L__1", "OUT"])))
        for _ in range(draw(st.integers(0, 5))):
            r = draw(st.sampled_from(registers))
            operand = draw(
                st.one_of(
                    IMMEDIATES,
                    st.sampled_from(registers),
                    st.just(Special("tid.y")),
                    st.integers(-9, 9).map(lambda n: SymbolAddress(shared, n)),
                    st.integers(-(2**40), 2**40).map(lambda n: Address(r, n)),  # noqa: B023
                    st.just(Address(shared, 8, Vector((r, Immediate(-1))))),
                    st.lists(IMMEDIATES, min_size=1, max_size=4).map(lambda v: Vector(tuple(v))),
                )
            )
            guard = draw(st.none() | st.booleans().map(lambda n: Guard(r, n)))  # noqa: B023
            statements.append(Instruction("foo.b32", (r, operand), guard))
        statements.append(Instruction("bra", (label,)))
        if depth < 3 and draw(st.booleans()):
            statements.append(Block(block(depth + 1), True))
        statements.append(Mark(label))
        return statements

    f.body.statements = block(0)
    return Module((8, draw(st.integers(0, 8))), "sm_90a", items=[shared, f])


@given(modules())
@settings(max_examples=60, deadline=None)
def test_modules_round_trip(m):
    assert shape(parse(print_module(m))) == shape(m)


@given(st.binary(max_size=200) | st.text(max_size=200))
@settings(max_examples=100, deadline=None)
def test_noise_is_refused_or_read(data):
    text = data.decode("latin-1") if isinstance(data, bytes) else data
    for source in (text, HEAD + text, f"{HEAD}.entry k() {{ {text} }}"):
        try:
            parse(source)
        except SmaltiError as refused:
            assert refused.code.startswith("SML021")
