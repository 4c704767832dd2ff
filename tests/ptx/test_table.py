"""The instruction table against the opcodes of real compilers and against the assembler."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest
from instances import SKIPPED, all_instances
from ptxas import assemble, line_errors

from smalti.ptx import check
from smalti.ptx.isa import FAMILIES, TABLE
from smalti.ptx.isa.row import ARCHITECTURES, Need, Row, Table, since
from smalti.ptx.module import Instruction
from smalti.ptx.print import instruction, variable

OPCODES = (Path(__file__).parents[1] / "data" / "opcodes.txt").read_text().split()


def test_every_opcode_of_real_compilers_is_known():
    assert len(OPCODES) > 450
    assert [o for o in OPCODES if TABLE.form(o) is None] == []


UNKNOWN = ["add.s31", "ld.global", "wgmma.mma_async.sync.aligned.m64n12k16.f32.f16.f16", "tex.2d"]


@pytest.mark.parametrize("opcode", UNKNOWN)
def test_unknown_spellings_stay_unknown(opcode):
    assert TABLE.form(opcode) is None


def test_modifiers_in_another_order_mean_the_same():
    for a, b in (
        ("atom.global.gpu.acq_rel.add.u32", "atom.acq_rel.gpu.global.add.u32"),
        ("ldmatrix.sync.aligned.x4.trans.m8n8.shared.b16", "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"),
    ):
        first, second = TABLE.form(a), TABLE.form(b)
        assert first.row is second.row and first.mods == second.mods


def test_the_order_of_types_and_spaces_is_kept():
    assert TABLE.form("cvt.f32.f16").mods["dtype"] == "f32"
    assert TABLE.form("cvt.f64.f32").mods["dtype"] == "f64"
    load = TABLE.form("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes")
    assert load.row.name == "cp.async.bulk.load"
    assert TABLE.form("cp.async.bulk.global.shared::cluster.mbarrier::complete_tx::bytes") is None


def test_rows_are_well_formed():
    for row in TABLE.rows:
        assert row.section.startswith("9.7."), row.name
        for specs in row.lists:
            assert len({s.name for s in specs}) == len(specs), row.name


def test_names_and_families():
    assert sum(map(len, FAMILIES.values())) == len(TABLE.rows)
    with pytest.raises(AssertionError):
        Table([Row("a", "a"), Row("a", "b")])


def test_architecture_sets():
    assert "sm_90a" in since("sm_90") and "sm_89" not in since("sm_90")
    assert all(TABLE.row("wgmma.f16").need.arch == {"sm_90a"} for _ in (0,))
    assert "sm_103a" not in TABLE.row("tcgen05.mma.i8").need.arch
    assert not TABLE.row("tcgen05.mma").need.arch & {"sm_120a", "sm_90a", "sm_100"}
    assert "sm_100a" not in TABLE.row("tcgen05.ld.red").need.arch
    assert Need().arch == set(ARCHITECTURES)


def preamble(operands, target, version):
    """Everything of a module in front of the instructions."""
    v = operands.variables
    wide = tuple(map(int, version.split("."))) >= (8, 3)  # .b128 registers
    return [
        f".version {version}\n.target {target}\n.address_size 64",
        *(f"{variable(v[k])};" for k in ("", "global", "const")),
        f".visible .entry k({variable(v['param'])}) {{\n{variable(v['shared'])};\n{variable(v['local'])};",
        *(f".reg .{r.type} {r.name};" for r in operands.registers if wide or r.type != "b128"),
    ]


@pytest.fixture(scope="module")
def everything():
    return all_instances(limit=60)


def test_instances_are_their_own_row(everything):
    """A spelling made from a row is found again as that row, with the same operands."""
    instances, _ = everything
    assert {r.name for r, _ in instances} == {r.name for r in TABLE.rows} - SKIPPED
    for row, i in instances:
        form = TABLE.find(i.opcode, i.operands)
        assert form.row is row, (i.opcode, form.row.name, row.name)
        assert list(check.operand_problems(i, form)) == [], i.opcode


TARGETS = [
    ("sm_80", "8.5"),
    ("sm_90", "8.8"),
    ("sm_90a", "8.0"),
    ("sm_90a", "8.3"),
    ("sm_90a", "8.5"),
    ("sm_90a", "9.4"),
    ("sm_100a", "8.6"),
    ("sm_100a", "8.7"),
    ("sm_100a", "9.0"),
    ("sm_100a", "9.4"),
    ("sm_100", "9.4"),
    ("sm_100f", "9.4"),
    ("sm_103a", "9.4"),
    ("sm_110a", "9.4"),
    ("sm_120a", "9.4"),
    ("sm_120", "9.4"),
]


@pytest.mark.ptxas
@pytest.mark.parametrize(("target", "version"), TARGETS)
def test_table_and_assembler_agree(everything, target, version):
    """Every instance is accepted by the assembler exactly where the table says that it exists."""
    instances, operands = everything
    number = tuple(map(int, version.split(".")))
    if number < (8, 3):  # no .b128 registers
        instances = [(r, i) for r, i in instances if "b128" not in i.opcode]
    lines = preamble(operands, target, version)
    first = "\n".join(lines).count("\n") + 2
    lines += [instruction(i) for _, i in instances]
    _, messages, _ = assemble("\n".join([*lines, "ret;", "}", ""]), target, generate=False)
    errors = line_errors(messages)
    assert all(first <= line < first + len(instances) for line in errors), messages[:2000]
    differences = []
    for n, (_, i) in enumerate(instances):
        form = TABLE.find(i.opcode, i.operands)
        ours = list(check.need_problems(i, form, target, number))
        theirs = errors.get(first + n, [])
        if bool(ours) != bool(theirs):
            differences.append(f"{instruction(i)[:150]}\n  table: {[str(o) for o in ours]}\n  assembler: {theirs}")
    assert not differences, f"{len(differences)}:\n" + "\n".join(differences[:10])
    if target in ("sm_90a", "sm_100a") and version == "9.4":
        assert 0 < len(errors) < len(instances) / 2  # neither all nor none: the comparison means something


def test_the_reference_page_is_the_table():
    """docs/instructions.md is what tools/instructions.py makes of the table."""
    root = Path(__file__).parents[2]
    spec = spec_from_file_location("instructions", root / "tools" / "instructions.py")
    tool = module_from_spec(spec)
    spec.loader.exec_module(tool)
    assert (root / "docs" / "instructions.md").read_text(encoding="utf-8") == tool.page()


@pytest.mark.ptxas
@pytest.mark.parametrize("target", ["sm_90a", "sm_100a", "sm_103a", "sm_120a"])
def test_every_row_becomes_machine_code(everything, target):
    """One instance of each row goes through the whole assembler, not only its parser."""
    instances, operands = everything
    ends = {"exit", "trap", "ret", "brkpt"}  # what follows would be dropped; and one cta_group a kernel
    chosen: dict[str, Instruction] = {}
    for row, i in instances:
        missing = list(check.need_problems(i, TABLE.find(i.opcode, i.operands), target, (9, 4)))
        if row.name not in ends and "cta_group::2" not in i.opcode and not missing:
            chosen.setdefault(row.name, i)
    assert len(chosen) > 250
    head = preamble(operands, target, "9.4")
    text = "\n".join([*head, *map(instruction, chosen.values()), "ret;", "}", ""])
    status, messages, cubin = assemble(text, target)
    assert status == 0 and cubin, "\n".join(m for m in messages.splitlines() if "error" in m or "fatal" in m)
