"""What an index says of a small package: wordings, guards, paths, refutations, ids. Nothing is imported or run."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from smalti.errors import SmaltiError
from smalti.explain.index.build import Subject, index
from smalti.explain.index.module import keyword_lines
from smalti.explain.store import Store, locked, write
from tests.explain.conftest import SOURCE, lay


def test_every_raise_is_found_with_its_line(store):
    for name, text in SOURCE.items():
        if name == "pkg/broken.py":
            continue
        lines = [n for n, line in enumerate(text.splitlines(), 1) if line.strip().startswith(("raise", "assert"))]
        assert [r["line"] for r in store.all() if r["path"] == name] == lines, name
        counted = keyword_lines(text)
        assert sorted(counted["raise"] + counted["assert"]) == lines


def test_newer_syntax_than_this_python(site):
    found = site("which is ")
    assert found["type"] == "IndexError" and found["guard"]["1"] == "which not in (0, 1)"


@pytest.mark.parametrize(
    ("start", "whole", "kind"),
    [
        ("x must be", "x must be a list, got {type(x).__name__}", "TypeError"),
        ("unknown mode", "unknown mode {mode}, choose fast or slow", "ValueError"),
        ("item ", "item {index} is {item}, above {limit}", "OverflowError"),
        ("refused: odd", "refused: odd number {n}", "Refused"),
        ("refused: lost", "refused: lost", "Refused"),
        ("refused: cannot", "refused: cannot fold {times} times", "Refused"),
    ],
)
def test_wordings(site, start, whole, kind):
    found = site(start)
    assert (found["message"], found["type"]) == (whole, kind)


def test_bare_and_again(store):
    rows = {(r["function"], r["status"]): r for r in store.all()}
    assert rows["Box.__init__", "none"]["wordings"] == [""]
    assert rows["_work", "re-raised"]["type"] == "IndexError"


def test_guards(site):
    assert site("x must")["guard"]["1"] == "not isinstance(x, list)"
    over = site("item ")["guard"]
    assert over["1"] == "item > limit"
    assert over["2"] == ["flag is None", "for some index, item in enumerate(items)", "item > limit"]
    odd = site("refused: odd")["guard"]
    assert odd["2"][-1] == "n % 2" and odd["2"][0] == "flag is None"
    assert site("refused: cannot")["guard"]["2"] == ["not (times matches 0 | 1)", "times matches _"]
    assert site("unknown")["guard"]["2"][-2:] == ["mode != 'fast'", "mode != 'slow'"]


def test_guard_in_the_entrys_parameters(site):
    assert site("unknown")["guard"]["3"] == "mode != 'slow'"
    wide = site("wide tasks")["guard"]
    assert (wide["3"], wide["3 of"]) == ("size > 4", "pkg.run")
    assert site("item ")["guard"]["3"] == "some_item > size * 2"


def test_a_rebound_name_is_not_mixed_up(store):
    found = next(r for r in store.all() if r["kind"] == "assert")
    assert found["message"] == "empty input" and found["guard"]["1"] == "not n >= 0"
    assert found["guard"]["3"] == "not len(x) - 1 >= 0"


def test_paths_and_refutations(site):
    wide = site("wide tasks")["entries"]
    assert wide[0]["entry"] == "pkg.run" and wide[0]["verdict"] == "reached"
    assert [step["by"] for step in wide[0]["path"]][-1] == "registered"
    several = site("several groups")["entries"]
    assert several[0]["verdict"] == "refuted"
    flag = site("no flag")["entries"]
    assert flag[0]["verdict"] == "refuted" and "flag" in flag[0]["reason"]
    assert site("item ")["entries"][0]["verdict"] == "reached"
    assert site("nobody comes")["entries"] == []


def test_upstream_test_is_evidence(site):
    assert site("x must")["tests"][0]["test"] == "test_list"
    assert "tests" not in site("unknown")


def test_nothing_is_imported(package):
    assert not [name for name in sys.modules if name.split(".")[0] == "pkg"]


def copy(tmp_path, change=lambda name, text: text):
    return lay(tmp_path, {name: change(name, text) for name, text in SOURCE.items()})


def test_ids_survive_other_lines_and_hole_names(store, tmp_path):
    def change(name, text):
        return "# a line more\n\n" + text.replace("type(x).__name__", "kind(x)")

    index(Subject("pkg", copy(tmp_path / "src", change), "1.1"), tmp_path / "b.sqlite")
    other = Store(tmp_path / "b.sqlite")
    assert {r["id"] for r in other.all()} == {r["id"] for r in store.all()}
    other.close()


def test_a_reworded_message_keeps_its_old_id_as_alias(tmp_path):
    path = tmp_path / "a.sqlite"
    index(Subject("pkg", copy(tmp_path / "one"), "1"), path)
    first = Store(path)
    old = next(r["id"] for r in first.all() if r["message"].startswith("unknown mode"))
    first.close()
    renamed = copy(
        tmp_path / "two", lambda n, t: t.replace("unknown mode %r, choose %s", "unknown mode %r; choose one of %s")
    )
    assert not index(Subject("pkg", renamed, "2"), path).unchanged
    second = Store(path)
    found = second.row(old)
    assert found["message"].startswith("unknown mode {mode}; choose") and "reworded" in found["asked_as"]
    assert found["id"] != old
    second.close()


def test_an_unchanged_run_reads_nothing(tmp_path):
    subject = Subject("pkg", copy(tmp_path / "src"), "1")
    first = index(subject, tmp_path / "a.sqlite")
    again = index(subject, tmp_path / "a.sqlite")
    assert first.read == 7 and again.unchanged and again.sites == first.sites
    (tmp_path / "src/pkg/errors.py").write_text(SOURCE["pkg/errors.py"] + "# more\n")
    third = index(subject, tmp_path / "a.sqlite")
    assert not third.unchanged and third.read == 2  # the changed one, and the one that cannot be read


def test_a_damaged_index_is_refused_and_built_anew(tmp_path):
    path = tmp_path / "a.sqlite"
    subject = Subject("pkg", copy(tmp_path / "src"), "1")
    index(subject, path)
    good = path.read_bytes()
    path.write_bytes(good[: len(good) // 3])
    with pytest.raises(SmaltiError, match="SML1204"):
        Store(path)
    assert index(subject, path).sites > 0


def test_an_interrupted_run_leaves_nothing_half_done(tmp_path, monkeypatch):
    path = tmp_path / "a.sqlite"
    write(path, {"package": "p", "version": "1"}, {})
    before = path.read_bytes()

    def rows():
        yield ("k", "v")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write(path, {"package": "p", "version": "1"}, {"alias": rows()})
    assert path.read_bytes() == before
    index(Subject("pkg", copy(tmp_path / "src"), "1"), path)
    assert not list(tmp_path.glob("*.part*"))


def test_a_full_disk_is_said(tmp_path, monkeypatch):
    def full(*a, **k):
        raise sqlite3.OperationalError("database or disk is full")

    path = tmp_path / "a.sqlite"
    write(path, {"package": "p", "version": "1"}, {})
    before = path.read_bytes()
    monkeypatch.setattr(sqlite3, "connect", full)
    with pytest.raises(SmaltiError, match=r"SML1208.*full"):
        write(path, {"package": "p", "version": "1"}, {})
    assert path.read_bytes() == before


def test_reading_while_another_index_is_put_in_place(index_file, tmp_path):
    path = tmp_path / "a.sqlite"
    path.write_bytes(index_file.read_bytes())
    reader = Store(path)
    count = reader.count()
    write(path, {"package": "p", "version": "9"}, {})
    assert reader.count() == count and len(list(reader.all())) == count
    reader.close()
    opened = Store(path)
    assert opened.count() == 0
    opened.close()


NESTED = {
    "deep": "x = " + "(" * 50_000 + ")" * 50_000,
    "minus": "x = " + "-" * 200_000 + "1",
    "otherwise": "if x:\n    pass\n" + "elif y:\n    raise ValueError\n" * 60_000,
}


def test_what_cannot_be_parsed_costs_its_own_file(tmp_path):
    lines = {"noise": "\x7f\x00\x01" * 1000, "half": "raise (\n", **NESTED}
    files = {f"pkg/{name}.py": text + "\n" for name, text in lines.items()}
    root = lay(copy(tmp_path / "src"), files)
    outcome = index(Subject("pkg", root, "1"), tmp_path / "a.sqlite")
    assert {name for name, _ in outcome.skipped} == {*files, "pkg/broken.py"}
    assert dict(outcome.skipped)["pkg/deep.py"] == "nested too deeply for the parser"
    opened = Store(tmp_path / "a.sqlite")
    assert {r["path"] for r in opened.all()} >= {"pkg/_impl.py", "pkg/newer.py"}
    assert "pkg/deep.py" in opened.meta["skipped"]
    opened.close()


def test_a_file_that_cannot_be_read_is_named(tmp_path, monkeypatch):
    root = lay(copy(tmp_path / "src"), {"pkg/closed.py": "raise ValueError\n", "pkg/huge.py": "#" * (5 << 20)})
    read = Path.read_bytes

    def closed(path):
        if path.name == "closed.py":
            raise PermissionError(13, "Permission denied")
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", closed)
    outcome = index(Subject("pkg", root, "1"), tmp_path / "a.sqlite")
    assert dict(outcome.skipped)["pkg/closed.py"] == "cannot be read: Permission denied"
    assert dict(outcome.skipped)["pkg/huge.py"] == "larger than 4 MiB"


def test_statements_behind_a_colon(tmp_path):
    text = (
        "def one(x):\n    if x: raise ValueError('one')\n    return x\n\n\n"
        "class A:\n    def two(self): assert False, 'two'\n\n    def three(self, y):\n"
        "        while y: raise KeyError('three'); return\n        raise IndexError('four')\n"
    )
    index(Subject("pkg", lay(tmp_path, {"pkg/__init__.py": text}), "1"), tmp_path / "a.sqlite")
    opened = Store(tmp_path / "a.sqlite")
    found = {r["message"]: (r["line"], r["function"], r["guard"]["1"]) for r in opened.all()}
    opened.close()
    assert found == {
        "one": (2, "one", "x"),
        "two": (7, "A.two", "always, once this line is reached"),
        "three": (10, "A.three", "y"),
        "four": (11, "A.three", "always, once this line is reached"),
    }


CHILD = """
import sys
from pathlib import Path
from smalti.explain.index.build import Subject, index
root, path, limit = sys.argv[1:]
if int(limit):
    import resource, signal
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
print("begins", flush=True)
index(Subject("pkg", Path(root), "2"), Path(path), lambda text: print(text, flush=True))
"""


def build(root, path, limit=0):
    """An index built by a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, str(root), str(path), str(limit)], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_a_killed_run_leaves_the_old_index_and_no_lock(tmp_path):
    many = {f"pkg/m{i}.py": f"def f{i}(x):\n    if x:\n        raise ValueError('m{i}')\n" for i in range(300)}
    root, path = copy(tmp_path / "src"), tmp_path / "a.sqlite"
    index(Subject("pkg", root, "1"), path)
    before = path.read_bytes()
    child = build(lay(root, many), path)
    assert child.stdout.readline() == b"begins\n" and child.stdout.readline() == b"read 100 of 301 files\n"
    child.kill()
    child.communicate()
    assert path.read_bytes() == before
    outcome = index(Subject("pkg", root, "2"), path)
    assert outcome.read == 301 and not list(tmp_path.glob("*.part*"))
    opened = Store(path)
    assert {r["message"] for r in opened.all()} >= {f"m{i}" for i in range(300)}
    opened.close()


def test_a_file_that_may_not_grow_is_a_coded_error(tmp_path):
    pytest.importorskip("resource")
    root, path = copy(tmp_path / "src"), tmp_path / "a.sqlite"
    child = build(root, path, 20_000)
    _, errors = child.communicate(timeout=60)
    assert child.returncode != 0 and b"SML1208" in errors
    assert not path.exists() and not list(tmp_path.glob("*.part*"))
    index(Subject("pkg", root, "2"), path)
    before = path.read_bytes()
    (root / "pkg/more.py").write_text("raise ValueError('more')\n")
    child = build(root, path, 20_000)
    assert b"SML1208" in child.communicate(timeout=60)[1]
    assert path.read_bytes() == before


def test_one_builder_at_a_time_and_readers_meanwhile(tmp_path):
    root, path = copy(tmp_path / "src"), tmp_path / "a.sqlite"
    index(Subject("pkg", root, "1"), path)
    with locked(path):
        with pytest.raises(SmaltiError, match="SML1207"):
            index(Subject("pkg", root, "2"), path)
        opened = Store(path)
        assert opened.version == "1" and opened.count() > 5
        opened.close()
    children = [build(root, path) for _ in range(3)]
    seen = set()
    while any(child.poll() is None for child in children):
        opened = Store(path)
        seen.add((opened.version, len(list(opened.all()))))
        opened.close()
    said = [child.communicate()[1] for child in children]
    failed = [text for child, text in zip(children, said, strict=True) if child.returncode]
    assert all(b"SML1207" in text for text in failed) and len(failed) < 3
    opened = Store(path)
    assert opened.version == "2" and len({count for _, count in seen}) == 1
    opened.close()


def test_links_out_of_the_source_are_not_followed(tmp_path):
    secret = tmp_path / "secret.py"
    secret.write_text("def f():\n    raise ValueError('secret')\n")
    root = copy(tmp_path / "src")
    (root / "pkg/link.py").symlink_to(secret)
    index(Subject("pkg", root, "1"), tmp_path / "a.sqlite")
    opened = Store(tmp_path / "a.sqlite")
    assert not [r for r in opened.all() if "secret" in r["message"]]
    opened.close()


UNSURE = {
    "capture": """
def f(x):
    found = None
    match x:
        case [found, *_]:
            pass
    if found is not None:
        raise ValueError("captured by a pattern")
""",
    "inner": """
def f(x):
    done = None

    def finish():
        nonlocal done
        done = 1
    x(finish)
    if done is not None:
        raise ValueError("set by an inner function")
""",
    "definition": """
def f(xs):
    last = None
    for x in xs:
        if last is not None:
            raise ValueError("bound by a definition")
        def last(): pass
""",
    "loop": """
def f(xs):
    last = None
    for x in xs:
        if last is not None:
            raise ValueError("left by an earlier turn")
        last = x
""",
    "recursion": """
def f(x):
    return _g(x, 4)

def _g(x, fuel):
    if fuel == 0:
        raise ValueError("out of fuel")
    return _g(x, fuel - 1)
""",
    "mutation": """
def f(box):
    if box.full:
        return None
    box.fill()
    if box.full:
        raise ValueError("changed by a call")
""",
    "walrus": """
def f(x):
    y = None
    print(y := x)
    if y is not None:
        raise ValueError("bound inside an expression")
""",
    "other caller": """
def f(x):
    return _g(x, None)

def h(x):
    call = _g
    return call(x, 3)

def _g(x, flag):
    if flag is not None:
        raise ValueError("mentioned elsewhere")
""",
}


@pytest.mark.parametrize("name", UNSURE)
def test_no_refutation_where_a_value_may_change(name, tmp_path):
    lay(tmp_path, {"src/unsure/__init__.py": UNSURE[name]})
    index(Subject("unsure", tmp_path / "src", "1"), tmp_path / "u.sqlite")
    opened = Store(tmp_path / "u.sqlite")
    (found,) = [r for r in opened.all() if r["kind"] == "raise"]
    opened.close()
    assert found["entries"] and any(e["verdict"] == "reached" for e in found["entries"]), found["entries"]
