"""Executing triggers on request, rule metadata, hooks, and the commands around them."""

import json
import sys
import types

import pytest

from smalti.cli import main
from smalti.errors import error
from smalti.explain import hooks
from smalti.explain.prove import prove, run, shipped_triggers, triggers
from smalti.explain.sarif import rules
from smalti.explain.store import Store

TRIGGERS = '''
prelude = """
import sys
sys.path.insert(0, {root!r})
from pkg import Box, run
"""
[[trigger]]
name = "no list"
path = "pkg/_impl.py"
function = "run"
type = "TypeError"
source = "run(3)"
mended = "run([3])"
[[trigger]]
name = "wrong function"
path = "pkg/_impl.py"
function = "_work"
type = "TypeError"
source = "run(3)"
[[trigger]]
name = "mended does not help"
path = "pkg/_impl.py"
function = "Box.__init__"
type = "ValueError"
source = "Box(-1)"
mended = "Box(-2)"
[[trigger]]
name = "dies"
path = "pkg/_impl.py"
function = "run"
type = "ValueError"
source = "import os; os._exit(3)"
[[trigger]]
name = "through a helper"
path = "pkg/_impl.py"
function = "Box.fold"
type = "Refused"
source = "Box(1).fold(9)"
[[trigger]]
name = "nothing"
path = "pkg/_impl.py"
function = "run"
type = "ValueError"
source = "x = 1"
'''


@pytest.fixture
def proved(index_file, package, tmp_path):
    index = tmp_path / "pkg.sqlite"
    index.write_bytes(index_file.read_bytes())
    file = tmp_path / "t.toml"
    file.write_text(TRIGGERS.format(root=str(package)))
    return index, prove(index, [file], sys.executable, 30)


def test_only_what_reaches_its_raise_is_proved(proved):
    index, results = proved
    told = {r["name"]: (r["proved"], r["detail"]) for r in results}
    assert told["no list"][0] and "the mended one runs" in told["no list"][1]
    assert told["through a helper"][0]
    assert not told["wrong function"][0] and not told["nothing"][0] and not told["mended does not help"][0]
    assert not told["dies"][0] and "ended with 3" in told["dies"][1]
    store = Store(index)
    rows = {r["function"]: r for r in store.all() if r.get("executed")}
    assert set(rows) == {"run", "Box.fold"}
    assert rows["run"]["executed"][0]["mended"] == "run([3])"
    store.close()
    assert "pkg" not in sys.modules


def test_a_page_says_executed(proved, capsys):
    index, _ = proved
    assert main(["explain", "--index", str(index), "TypeError: x must be a list, got int"]) == 0
    assert "`no list` raised it: executed" in capsys.readouterr().out


def test_time_limit():
    (outcome,) = run("", ["while True: pass"], sys.executable, 2)
    assert "failed" in outcome
    (outcome,) = run("raise SystemExit(4)", ["x = 1"], sys.executable, 20)
    assert "ended with 4" in outcome["failed"]


def test_shipped_triggers_are_wellformed():
    found = []
    for file in shipped_triggers():
        prelude, here = triggers(file)
        compile(prelude, "prelude", "exec")
        found += here
    assert len(found) > 450 and len({t["name"] for t in found}) == len(found)
    for one in found:
        compile(one["source"], one["name"], "exec")
        assert one["path"].startswith("jax/") and one["path"].endswith(".py")


def test_rule_metadata():
    found = rules()["runs"][0]["tool"]["driver"]["rules"]
    assert {"SML0001", "SML1210"} <= {r["id"] for r in found}
    assert all(r["shortDescription"]["text"] and r["helpUri"].endswith(f"{r['id']}.html") for r in found)


def test_hint_lines(tmp_path, monkeypatch):
    monkeypatch.setenv("SMALTI_INDEX_DIR", str(tmp_path))
    assert hooks.hint(error("SML0001", code="x", nearest="y")) == "SML0001: smalti explain SML0001"
    known = hooks.hint(NotImplementedError("Sparse meta layout loads unsupported."))
    assert known == "1602ec8d21704352: smalti explain 1602ec8d21704352"
    assert hooks.hint(ValueError("something nobody indexed at all zzz")) == ""


def test_pytest_and_ipython_hooks(capsys):
    report = types.SimpleNamespace(sections=[])
    call = types.SimpleNamespace(excinfo=types.SimpleNamespace(value=error("SML0001", code="x", nearest="y")))
    hooks.pytest_exception_interact(None, call, report)
    assert report.sections == [("smalti explain", "SML0001: smalti explain SML0001")]
    shown = []
    shell = types.SimpleNamespace(
        set_custom_exc=lambda kinds, f: shown.append(f), showtraceback=lambda *a, **k: shown.append("traceback")
    )
    hooks.load_ipython_extension(shell)
    shown[0](shell, KeyError, call.excinfo.value, None)
    assert shown[1] == "traceback" and "smalti explain SML0001" in capsys.readouterr().err


def test_commands(package, tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("SMALTI_INDEX_DIR", str(tmp_path / "indexes"))
    assert main(["errors", "index", "pkg", "--source", str(package), "--release", "3"]) == 0
    out = capsys.readouterr()
    assert "sites of pkg 3" in out.out and "pkg/broken.py" in out.err
    assert main(["errors", "index", "pkg", "--source", str(package), "--release", "3"]) == 0
    assert "unchanged" in capsys.readouterr().out
    assert main(["errors", "list"]) == 0
    assert "pkg 3:" in capsys.readouterr().out
    assert main(["errors", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["indexes"][0]["package"] == "pkg"
    assert main(["explain", "OverflowError: item 3 is 99, above 16"]) == 0
    assert "pkg/_impl.py" in capsys.readouterr().out
    assert main(["errors", "index", "../etc", "--source", str(package)]) == 2
    assert capsys.readouterr().err.startswith("SML1209")
    assert main(["errors", "sarif", "-o", str(tmp_path / "rules.json")]) == 0
    assert json.loads((tmp_path / "rules.json").read_text())["version"] == "2.1.0"
