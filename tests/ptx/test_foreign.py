"""PTX of other compilers: Triton, Gluon and nvcc on kernels of ours (made by tools/foreign)."""

from pathlib import Path

import pytest
from ptxas import assemble, sass
from same import shape

from smalti.ptx.isa import TABLE
from smalti.ptx.parse import parse
from smalti.ptx.print import print_module
from smalti.ptx.validate import validate

FILES = sorted((Path(__file__).parents[1] / "data" / "foreign").glob("*.ptx"))


@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_round_trip_and_rules(file):
    m = parse(file.read_text(), file.name)
    assert shape(parse(print_module(m))) == shape(m)
    unknown = {i.opcode for f in m.functions() if f.body for i in f.body.instructions() if TABLE.form(i.opcode) is None}
    assert not unknown
    validate(m)
    assert m.target in file.name


@pytest.mark.ptxas
@pytest.mark.parametrize("file", FILES, ids=lambda f: f.stem)
def test_machine_code_is_the_same(file):
    source = file.read_text()
    m = parse(source, file.name)
    options = ("-lineinfo",) if ".loc" in source else ()
    made = []
    for text in (source, print_module(m)):
        status, messages, cubin = assemble(text, m.target, options=options)
        assert status == 0, messages
        made.append([line for line in sass(cubin) if not line.startswith("//##")])  # source lines apart
    assert made[0] == made[1] and len(made[0]) > 50


@pytest.mark.ptxas
def test_a_changed_instruction_changes_the_machine_code():
    """The comparison above is able to fail."""
    source = (FILES[0].parent / "add.sm_90a.ptx").read_text()
    changed = print_module(parse(source)).replace("add.f32", "sub.f32", 1)
    first, second = (sass(assemble(text, "sm_90a")[2]) for text in (source, changed))
    assert first != second
