"""Tests of upstream run in a child and watched: which raises they reach, which of these the package itself catches."""

import sys

import pytest

from smalti.explain.index.build import Subject, index
from smalti.explain.store import Store
from smalti.explain.watched import watch
from tests.explain.conftest import lay

PACKAGE = {
    "own/__init__.py": """\
def loud(x):
    if x < 0:
        raise ValueError("below zero")
    return quiet(x)


def quiet(x):
    try:
        if x > 9:
            raise KeyError("inside")
        return int("7")
    except KeyError:
        return 0


def let_through(text):
    try:
        return int(text)
    except ValueError as bad:
        raise RuntimeError("no number") from bad
""",
    "own/helper.py": "def never():\n    raise OSError('never')\n",
}
TESTS = {
    "checks/test_own.py": """\
import os
import unittest
from own import let_through, loud


class Own(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.low = -1

    def test_below(self):
        with self.assertRaises(ValueError):
            loud(self.low)

    def test_inside(self):
        self.assertEqual(loud(10), 0)
        self.assertRaises(TypeError, loud, None)

    def test_text(self):
        with self.assertRaises(RuntimeError):
            let_through("seven")

    def test_dies(self):
        self.assertRaises(ValueError, os._exit, 3)

    def test_expects_nothing(self):
        loud(-2)
""",
}
WORK = {
    "package": "own", "prefixes": ["own/"], "levels": [["checked", "test_text"]],
    "file": [{"path": "test_own.py", "setting": "plain"}],
}  # fmt: skip


@pytest.fixture
def watched(tmp_path, monkeypatch):
    root = lay(tmp_path / "src", {**PACKAGE, **TESTS})
    path = tmp_path / "own.sqlite"
    index(Subject("own", root, "1"), path)
    start = tmp_path / "python"  # a Python that has the package
    start.write_text(f'#!/bin/sh\nPYTHONPATH={root} exec {sys.executable} "$@"\n')
    start.chmod(0o755)
    said = []
    results = watch(path, root / "checks", str(start), every=True, work=WORK, say=said.append)
    store = Store(path)
    rows = {r["message"]: r.get("executed", []) for r in store.all()}
    store.close()
    return results, rows, said


@pytest.mark.skipif(sys.platform == "win32", reason="starts a shell script")
def test_raises_are_recorded_with_the_test_that_reaches_them(watched):
    results, rows, said = watched
    (below,) = rows["below zero"]
    assert below["trigger"] == "checks/test_own.py: Own.test_below" and below["by"] == "upstream test"
    assert below["level"] == "argument" and not below["caught"] and below["source"] == ""
    (inside,) = rows["inside"]
    assert inside["caught"] and inside["trigger"].endswith("Own.test_inside")
    (text,) = rows["no number"]
    assert text["level"] == "checked" and not text["caught"]
    assert rows["never"] == [] and len(results) == 3
    assert any("ended with 3" in line and "test_dies" in line for line in said)


@pytest.mark.skipif(sys.platform == "win32", reason="starts a shell script")
def test_only_the_named_tests_run(tmp_path):
    root = lay(tmp_path / "src", {**PACKAGE, **TESTS})
    path = tmp_path / "own.sqlite"
    index(Subject("own", root, "1"), path)
    start = tmp_path / "python"
    start.write_text(f'#!/bin/sh\nPYTHONPATH={root} exec {sys.executable} "$@"\n')
    start.chmod(0o755)
    work = {**WORK, "file": [{"path": "test_own.py", "setting": "plain", "tests": ["Own.test_text"]}]}
    assert [r["name"] for r in watch(path, root / "checks", str(start), work=work)] == [
        "checks/test_own.py: Own.test_text"
    ]
