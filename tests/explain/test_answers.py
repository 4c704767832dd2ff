"""What pages say of Smalti is true: every name resolves, every program runs, every code and example exists."""

import ast
import importlib
import re
from pathlib import Path

import pytest

from smalti.errors.catalogue import load
from smalti.explain import shipped

ROOT = Path(__file__).parents[2]
ANSWERS = shipped.answers()["answer"]
TENSOR_CORE = ("tcgen05.py", "wgmma.py", "mma.py", "mma_utils.py", "launch_context.py")


def resolve(name):
    """The object of a dotted name, by import and attributes; properties and annotated fields of classes count."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:cut]))
        except ModuleNotFoundError:
            continue
        for part in parts[cut:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("name", ANSWERS)
def test_answer(name, capsys):
    answer = ANSWERS[name]
    assert set(answer) <= {"text", "uses", "kernel", "example", "see", "refused"}
    assert ("kernel" in answer) == ("example" in answer) and (answer.keys() & {"example", "see", "refused"})
    for used in answer.get("uses", ()):
        assert callable(resolve(used)), used
    if refused := answer.get("refused"):
        entry = load(refused)
        assert entry is not None and not entry.removed and entry.failing and entry.mended
    if see := answer.get("see"):
        file, _, function = see.partition(":")
        tree = ast.parse((ROOT / file).read_text(encoding="utf-8"))
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        tests = [p for p in (ROOT / "tests").rglob("test_*.py") if Path(file).stem in p.read_text(encoding="utf-8")]
        assert any(function in p.read_text(encoding="utf-8") for p in tests if p.name != Path(__file__).name), see


def test_names_that_do_not_exist_are_noticed():
    for wrong in ("smalti.no_such", "smalti.lang.tcgen05.no_such", "smalti.lang.scales.ScalesInTensorMemory"):
        with pytest.raises((AttributeError, ModuleNotFoundError)):
            resolve(wrong)


PROGRAMS = sorted({shipped.smalti_example(name) for name in ANSWERS} - {""})


@pytest.mark.parametrize("number", range(len(PROGRAMS)))
def test_program(number, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "program.py"
    file.write_text(PROGRAMS[number], encoding="utf-8")  # kernels are read from their file
    assert PROGRAMS[number].count("assert ") >= 1
    exec(compile(PROGRAMS[number], str(file), "exec"), {"__name__": "program"})


def test_every_refusal_of_the_tensor_core_layer_has_an_answer():
    rows = [row for row in shipped.refusals() if row["file"].endswith(TENSOR_CORE)]
    assert len(rows) > 180 and [row for row in rows if row.get("answer") not in ANSWERS] == []
    answered = {row["answer"] for row in shipped.refusals() if row.get("answer")}
    assert answered == set(ANSWERS)


def test_pages_show_program_and_code():
    row = next(r for r in shipped.refusals() if r.get("answer") == "tiles")
    page = next(p for p in shipped.known_pages() if p.message == row["message"][0])
    assert page.in_smalti.startswith("One `mma` call") and "blackwell(a, b" in page.smalti_example
    assert any("own tests" in proof.how for proof in page.proofs)
    refused = shipped.in_smalti({"answer": "columns", "verdict": "HW"})
    assert "SML0700 (smalti explain SML0700)" in refused
    assert "No call of this version" in shipped.in_smalti({"verdict": "SW"})


def test_faults_name_codes_that_exist():
    named = 0
    for page, _ in shipped.fault_pages():
        for code in re.findall(r"SML\d{4}", page.in_smalti):
            assert load(code) is not None, (page.id, code)
            named += 1
    assert named > 25


def test_the_page_of_the_documentation_runs(monkeypatch, tmp_path):
    monkeypatch.setenv("SMALTI_INDEX_DIR", str(tmp_path))
    text = (ROOT / "docs/errors.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    exec(compile(program, "docs/errors.md", "exec"), {"__name__": "documentation"})
    for command in re.findall(r"^smalti (?:errors )?(\w+)", text, re.MULTILINE):
        assert command in ("explain", "index", "serve", "export"), command
