"""The gates of the entries. Select codes with `-k "gate and SML03"`, callers with `-k "gate and run/"`."""

import os
import tomllib
from importlib import resources
from pathlib import Path

import pytest
import sites

import examples
from smalti.errors.catalogue import codes, load, parse

SITES = sites.all_sites()
FILES = sorted({s.file for s in SITES})
ENTRIES = Path(str(resources.files("smalti.errors") / "entries"))
NAMES = sorted(f.stem for f in ENTRIES.iterdir())
GOLDEN = Path(__file__).with_name("codes.txt")
MARKS = {"gpu": pytest.mark.gpu, "asm": pytest.mark.ptxas}


def wellformed(name):
    try:
        return parse((ENTRIES / f"{name}.toml").read_text(encoding="utf-8"), name)
    except ValueError:
        return None  # test_gate_format says what is wrong with it


def parameters(*, advised=False, live=True):
    """One parameter a wellformed entry, marked by what its examples need."""
    found = [e for e in map(wellformed, NAMES) if e and (e.advised or not advised) and not (live and e.removed)]
    return [pytest.param(e, id=e.code, marks=[MARKS[n] for n in e.needs if n in MARKS]) for e in found]


@pytest.mark.parametrize("name", NAMES)
def test_gate_format(name):
    entry = parse((ENTRIES / f"{name}.toml").read_text(encoding="utf-8"), name)
    for code in entry.related:
        assert code in NAMES, f"{name}: related code {code} has no entry"
        assert code != name, f"{name} is related to itself"


def test_every_file_is_an_entry():
    assert {f.suffix for f in ENTRIES.iterdir()} == {".toml"}
    assert list(codes()) == NAMES and len(set(NAMES)) == len(NAMES)


@pytest.mark.parametrize("file", FILES)
def test_gate_call(file):
    """Every raised code has an entry, and the call gives exactly the named values of its message."""
    wrong = []
    for site in (s for s in SITES if s.file == file):
        where = f"{site.file}:{site.line}"
        if site.code is None:
            wrong.append(f"{where}: the code must be a literal")
        elif site.names is None:
            wrong.append(f"{where}: spell the values out as keywords")
        elif not (ENTRIES / f"{site.code}.toml").exists():
            wrong.append(f"{where}: {site.code} has no entry")
        elif (entry := wellformed(site.code)) and set(entry.holes) != site.names:
            wrong.append(f"{where}: {site.code} takes {sorted(entry.holes)}, is given {sorted(site.names)}")
        elif entry and entry.removed:
            wrong.append(f"{where}: {site.code} is retired")
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("entry", parameters(live=False))
def test_gate_raised(entry):
    """Every entry is raised somewhere, unless it is retired."""
    raised = any(s.code == entry.code for s in SITES)
    assert raised != bool(entry.removed), f"{entry.code} is {'retired' if entry.removed else 'not'} raised"


@pytest.mark.parametrize("entry", parameters())
def test_gate_failing(entry, tmp_path):
    before = dict(os.environ)
    raised = examples.refusal(entry.failing, tmp_path, f"{entry.code}_failing.py")
    assert raised.code == entry.code, f"{entry.code}: the failing example raises {raised}"
    assert raised.message == " ".join(entry.message.format_map(raised.params).split("\n"))
    if entry.prints:
        assert raised.message == entry.prints
    inside = Path(raised.location.file).parent == tmp_path if raised.location else None
    assert inside is not False, f"{entry.code}: blames {raised.location}, not a line of the example"
    assert examples.environment_is_clean(before)


@pytest.mark.parametrize("entry", parameters())
def test_gate_mended(entry, tmp_path):
    examples.run(entry.mended, tmp_path, f"{entry.code}_mended.py")


@pytest.mark.parametrize("entry", parameters(advised=True))
def test_gate_advised(entry, tmp_path):
    """The value that the message suggests is applied, and works."""
    raised = examples.refusal(entry.failing, tmp_path, f"{entry.code}_failing.py")
    assert "params[" in entry.advised, f"{entry.code}: `advised` must use the suggested value"
    examples.run(entry.advised, tmp_path, f"{entry.code}_advised.py", params=raised.params)


def test_codes_are_for_ever():
    """A listed code keeps its entry, type and named values; the codes of released versions are all listed."""
    listed = {}
    for line in GOLDEN.read_text(encoding="utf-8").splitlines():
        code, kind, *names = line.split()
        listed[code] = (kind, tuple(names))
    for code, (kind, names) in listed.items():
        entry = load(code)
        assert entry is not None, f"{code} lost its entry: retire it with `removed`, never delete it"
        assert (entry.type, tuple(sorted(entry.holes))) == (kind, names), f"{code} changed: needs review"
    project = tomllib.loads((sites.PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    version = ".".join(project["version"].split(".")[:2])
    older = {e.values[0].code for e in parameters(live=False) if e.values[0].introduced != version}
    assert older <= set(listed), f"released but not listed in {GOLDEN.name}: {sorted(older - set(listed))}"


def test_the_gate_itself_can_fail(tmp_path):
    source = "from smalti.errors import error\nerror('SML0001', code=1, nearest=2)\nerror(c, **d)\n"
    clean, loose = sites.in_source(source, "x.py")
    assert (clean.code, clean.names) == ("SML0001", {"code", "nearest"})
    assert (loose.code, loose.names) == (None, None)
    assert sites.in_source("def error(x): ...\nerror('SML0001')", "x.py") == []
    with pytest.raises(AssertionError, match="raises nothing"):
        examples.refusal("x = 1", tmp_path, "x.py")
