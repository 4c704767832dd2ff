"""Where the reference meets other programs: pytest, IPython, and editors that read SARIF."""

import json
import re
import subprocess
import sys

import pytest

from smalti.cli import main
from smalti.explain import hooks
from smalti.explain.sarif import rules

FAILING = (
    'def test_it():\n    raise ValueError("a_scale must be a TMEM Ref")\n\n\ndef test_other():\n    assert 1 == 2\n'
)


def test_pytest_adds_a_section_to_the_failures_that_it_knows(tmp_path):
    (tmp_path / "test_it.py").write_text(FAILING)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "smalti.explain.hooks",
        "-p",
        "no:cacheprovider",
        "test_it.py",
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1, done.stdout + done.stderr
    assert re.findall(r"^(\w+): smalti explain \1$", done.stdout, re.MULTILINE) == ["6586b591b816d18e"]


def test_ipython_prints_a_line_under_the_traceback(capsys):
    pytest.importorskip("IPython")
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.run_line_magic("load_ext", "smalti.explain.hooks")
    shell.run_cell('raise ValueError("a_scale must be a TMEM Ref")')
    assert "6586b591b816d18e: smalti explain 6586b591b816d18e" in capsys.readouterr().err
    shell.run_line_magic("unload_ext", "smalti.explain.hooks")
    shell.run_cell('raise ValueError("a_scale must be a TMEM Ref")')
    assert "smalti explain" not in capsys.readouterr().err


def test_a_text_of_several_places_names_one_of_them(index_file, monkeypatch, tmp_path):
    found = hooks.hint(NotImplementedError("Unsupported input dtype: f64"))
    assert re.fullmatch(r"(JMG\w{9}): smalti explain \1 \(one of 3 places of this text\)", found)


def test_sarif_numbers_the_holes():
    log = rules()
    assert log["$schema"].endswith("sarif-schema-2.1.0.json") and log["version"] == "2.1.0"
    by_id = {rule["id"]: rule for rule in log["runs"][0]["tool"]["driver"]["rules"]}
    text = by_id["SML0001"]["messageStrings"]["default"]["text"]
    assert text == "there is no error code {0}; the nearest is {1}"
    for rule in by_id.values():
        plain = re.sub(r"\{\{|\}\}|\{\d+\}", "", rule["messageStrings"]["default"]["text"])
        assert "{" not in plain and "}" not in plain and rule["name"].isidentifier() and rule["help"]["text"]


def test_sarif_of_an_index(index_file, tmp_path):
    target = tmp_path / "rules.json"
    assert main(["errors", "sarif", "--index", str(index_file), "-o", str(target)]) == 0
    driver = json.loads(target.read_text())["runs"][0]["tool"]["driver"]
    assert (driver["name"], driver["version"]) == ("pkg", "1.0") and len(driver["rules"]) > 10
    texts = [rule["messageStrings"]["default"]["text"] for rule in driver["rules"]]
    assert "item {0} is {1}, above {2}" in texts


def test_json_of_an_answer_is_whole(index_file, capsys):
    assert main(["explain", "--json", "--index", str(index_file), "OverflowError: item 3 is 99, above 16"]) == 0
    answer = json.loads(capsys.readouterr().out)
    (match,) = answer["matches"]
    page = match["page"]
    assert (answer["format"], answer["ambiguous"], match["certainty"], match["places"]) == (1, False, "sure", [])
    assert match["values"] == {"index": "3", "item": "99", "limit": "16"} and match["reasons"]
    assert dict(page["excerpt"])[page["line"]].strip().startswith("raise OverflowError")
    assert {"guard", "entries", "proofs", "related", "version", "family", "solutions", "smalti_example"} <= set(page)
    assert all(set(proof) == {"statement", "how", "when"} for proof in page["proofs"])
