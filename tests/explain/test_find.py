"""From questions to pages: certain where it may be, ambiguous where it must be, with values and reasons."""

import importlib.util
import json
import sys
import traceback

import pytest

from smalti.cli import main
from smalti.errors import error
from smalti.explain import families, pages, shipped, show
from smalti.explain.search import find
from smalti.explain.template import fit, skeleton, weight
from tests.explain.test_reading import PLAIN


def test_own_code_message_and_exception():
    made = error("SML0001", code="SML1", nearest="SML0002")
    for question in ("sml0001", str(made), f"Traceback (most recent call last):\nSmaltiKeyError: {made}", made):
        best = find(question).matches[0]
        assert (best.page.id, best.certainty) == ("SML0001", "sure"), question
    assert find(str(made)).matches[0].values == {"code": "'SML1'", "nearest": "SML0002"}
    with pytest.raises(KeyError, match="SML0001"):
        find("SML9998")


def test_own_message_without_its_code():
    best = find("there is no error code 'x'; the nearest is SML0001").matches[0]
    assert best.page.id == "SML0001" and best.values["nearest"] == "SML0001"


def test_traceback_of_the_indexed_version(store):
    answer = find(PLAIN, [store])
    best = answer.matches[0]
    assert not answer.ambiguous and best.certainty == "sure" and best.page.function == "run"
    assert best.page.line == 9 and any("very line" in r for r in best.reasons)
    assert best.values == {"type(x).__name__": "int"}


def test_traceback_of_another_version(store):
    best = find(PLAIN.replace("line 9", "line 41"), [store]).matches[0]
    assert best.certainty == "sure" and any("line 41 in yours" in r for r in best.reasons)


def test_every_site_is_found_from_its_own_traceback(store):
    for record in store.all():
        if record["kind"] != "raise" or record["status"] == "re-raised":
            continue
        message = skeleton(record["message"]).replace("{}", "7")
        text = (
            "Traceback (most recent call last):\n"
            f'  File "C:\\\\p\\\\site-packages\\\\{record["path"]}", line {record["line"]}, in '
            f"{record['function'].rsplit('.', 1)[-1]}\n    raise\npkg.{record['type']}: {message}\n"
        )
        assert find(text, [store]).matches[0].page.id == record["id"], record


def test_messages_alone(store):
    best = find("OverflowError: item 3 is 99, above 16", [store]).matches[0]
    assert best.values == {"index": "3", "item": "99", "limit": "16"} and best.certainty == "sure"
    assert find("ITEM 3 is 99, above   16", [store]).matches[0].page.id == best.page.id
    other = find("ValueError: item 3 is 99, above 16", [store])  # another type than the site has
    assert {m.certainty for m in other.matches} == {"similar"}
    remembered = find("no flag in the fast work", [store]).matches[0]
    assert remembered.certainty == "similar" and remembered.page.message == "no flag with fast work"


CUT = {
    "pkg/__init__.py": """\
def f(a, b):
    if a:
        raise ValueError("the tile of the first operand is too wide for the accumulator")
    if b:
        raise ValueError(f"the tile of the first operand is too tall, its height is {b}")
    raise TypeError("the tile of the first operand is too wild to be read")
"""
}
WIDE = "the tile of the first operand is too wide for the accumulator"


@pytest.fixture(scope="module")
def cut_store(tmp_path_factory):
    pytest.importorskip("libcst")
    from smalti.explain.index.build import Subject, index
    from smalti.explain.store import Store
    from tests.explain.conftest import lay

    root = lay(tmp_path_factory.mktemp("cut"), CUT)
    index(Subject("pkg", root, "1"), root / "i.sqlite")
    opened = Store(root / "i.sqlite")
    yield opened
    opened.close()


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("the tile of the first operand is too wide", [WIDE]),
        ("ValueError: the tile of the first operand is too wide for the", [WIDE]),
        ("the tile of the first operand is too wide for the accu...", [WIDE]),
        ("ValueError: the tile of the first operand is too wi…", [WIDE]),
        ("the tile of the first operand is too tall, its", ["the tile of the first operand is too tall"]),
        ("ValueError: the tile of the first operand is too", [WIDE, "the tile of the first operand is too tall"]),
    ],
)
def test_messages_that_were_cut_off(cut_store, text, messages):
    answer = find(text, [cut_store])
    assert {m.certainty for m in answer.matches} == {"likely"} and answer.ambiguous == (len(messages) > 1)
    assert all(m.reasons == ["the text begins so"] for m in answer.matches)
    assert sorted(m.page.message.split(",")[0] for m in answer.matches) == sorted(messages)


@pytest.mark.parametrize(
    "text",
    [
        "the tile of the first operand is too wide for the accu",  # within a word, and nothing says that it was cut
        "the tile of the first...",  # too short
        "tile of the first operand is too wide for the accu...",  # not the beginning
        "TypeError: the tile of the first operand is too wide for...",  # another type
        "the tile of the frist operand is too wide",
    ],
)
def test_parts_that_are_no_beginning(cut_store, text):
    assert {m.certainty for m in find(text, [cut_store]).matches} == {"similar"}


def test_a_whole_message_is_not_a_beginning(cut_store):
    assert [m.certainty for m in find(WIDE, [cut_store]).matches] == ["sure"]


def test_ambiguity_is_shown(tmp_path):
    pytest.importorskip("libcst")
    from smalti.explain.index.build import Subject, index
    from smalti.explain.store import Store
    from tests.explain.conftest import lay

    text = "def {0}(x):\n    if x > 1:\n        raise ValueError(f'x is {{x}}, not a small number')\n"
    lay(tmp_path, {"twin/__init__.py": text.format("f") + "\n\n" + text.format("g")})
    index(Subject("twin", tmp_path, "1"), tmp_path / "t.sqlite")
    store = Store(tmp_path / "t.sqlite")
    answer = find("ValueError: x is 3, not a small number", [store])
    (one,) = answer.matches  # one text: one answer with both of its places
    assert answer.ambiguous and [p.function for p in one.places] == ["f", "g"] and one.certainty != "sure"
    shown = show.answer(answer)
    assert "Places (2)" in shown and all(f"smalti explain {p.id}" in shown for p in one.places)
    assert [p["function"] for p in answer.as_json()["matches"][0]["places"]] == ["f", "g"]
    assert all(f'href="errors/{p.id}.html"' in pages.answer(answer) for p in one.places)
    framed = PLAIN.replace("pkg/_impl.py", "twin/__init__.py").replace("in run", "in g")
    framed = framed.replace("TypeError: x must be a list, got int", "ValueError: x is 3, not a small number")
    answer = find(framed, [store])
    assert not answer.ambiguous and answer.matches[0].page.function == "g"
    store.close()


def test_a_heavier_text_comes_before_one_that_is_mostly_holes(tmp_path):
    pytest.importorskip("libcst")
    from smalti.explain.index.build import Subject, index
    from smalti.explain.store import Store
    from tests.explain.conftest import lay

    text = "def {}(n, k):\n    if n % k:\n        raise ValueError(f'N must be a multiple of {}, got {{n}}')\n\n\n"
    lay(tmp_path, {"two/__init__.py": text.format("f", "{k}") + text.format("g", "8 and <= 256")})
    index(Subject("two", tmp_path, "1"), tmp_path / "t.sqlite")
    store = Store(tmp_path / "t.sqlite")
    answer = find("N must be a multiple of 8 and <= 256, got 12", [store])
    assert [m.page.function for m in answer.matches] == ["g", "f"] and answer.matches[0].certainty == "likely"
    answer = find("N must be a multiple of 16, got 12", [store])
    assert [m.page.function for m in answer.matches] == ["f"] and answer.matches[0].values == {"k": "16", "n": "12"}
    store.close()


def test_one_wording_in_three_functions_keeps_three_verdicts():
    answer = find("NotImplementedError: Unsupported input dtype: f64")
    (one,) = answer.matches
    assert answer.ambiguous and len(one.places) == 3 and len({p.verdict for p in one.places}) > 1
    paths = {p.function: shipped.refusal_of(p.path, p.function, p.message)["guard"] for p in one.places}
    assert len(set(paths.values())) == 3
    assert shipped.refusal_of(one.page.path, "another_function", one.page.message) is None


def test_a_live_exception_with_its_frames(store, package):
    spec = importlib.util.spec_from_file_location("live", package / "pkg/core.py")
    assert spec is not None and "pkg" not in sys.modules
    code = compile((package / "pkg/_rules.py").read_text(), str(package / "pkg/_rules.py"), "exec")
    space = {
        "__name__": "live",
        "Primitive": type("P", (), {"__init__": lambda s, n: None, "def_impl": lambda s, f: f}),
    }
    source = [c for c in code.co_consts if hasattr(c, "co_name") and c.co_name == "_alone"]
    function = type(test_messages_alone)(source[0], space)
    try:
        function(1)
    except RuntimeError as raised:
        raised.add_note("a note")
        try:
            raise KeyError("wrapped") from raised
        except KeyError as outer:
            best = find(outer, [store]).matches[0]
            assert traceback.format_exception(outer)
    assert best.page.function == "_alone" and best.certainty == "sure"


FAULTS = [
    (
        "XlaRuntimeError: INTERNAL: CUDA_ERROR_ILLEGAL_ADDRESS: an illegal memory access was encountered",
        "memory-access",
        True,
    ),
    ("RuntimeError: CUDA error: misaligned address", "memory-access", True),
    ("RuntimeError: CUDA error: no kernel image is available for execution on the device", "device", False),
    ("ptxas /tmp/x.ptx, line 9; error : Feature 'wgmma' not supported on .target 'sm_80'", "ptx", False),
    ("error: 'vector.load' op failed to verify that memref and vector types match", "ptx", False),
    ("XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory allocating 12345 bytes", "resources", False),
    (
        "ptxas info : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized",
        "synchronisation",
        False,
    ),
]


@pytest.mark.parametrize(("text", "family", "late"), FAULTS)
def test_faults_of_compiled_code(text, family, late):
    answer = find(text)
    page = answer.matches[0].page
    assert (page.kind, page.family, page.asynchronous) == ("fault", family, late)
    assert any("not to blame" in note for note in answer.notes) == late


def test_fault_values():
    assert find(FAULTS[3][0]).matches[0].values == {"feature": "wgmma", "target": "sm_80"}


SAMPLES = [
    ("bc41dabd60da7836", "NotImplementedError: A scale address calculation for multiple M tiles"),
    ("6586b591b816d18e", "ValueError: a_scale must be a TMEM Ref"),
    ("8631583c6363c1b2", "ValueError: Unsupported WGMMA features with A in registers"),
    ("1602ec8d21704352", "NotImplementedError: Sparse meta layout loads unsupported."),
]


@pytest.mark.parametrize(("other", "text"), SAMPLES)
def test_known_refusals_without_an_index(other, text):
    for question in (other, text, text.split(": ", 1)[1].lower().rstrip(".")):
        best = find(question).matches[0]
        assert best.page.id == other and best.page.in_smalti and best.page.verdict and len(best.page.solutions) >= 2


def test_shipped_data_is_whole():
    rows = shipped.refusals()
    assert len(rows) > 300 and {r["verdict"] for r in rows} == set(shipped.VERDICTS)
    for row in rows:
        assert row["guard"] and row["message"] and row["file"].endswith(".py"), row
        for message in row["message"]:
            assert fit(message, skeleton(message).replace("{}", "x")) or "\n" in message or not weight(message), message
    pages = [*shipped.known_pages(), *[p for p, _ in shipped.fault_pages()]]
    assert len({p.id for p in pages}) == len(pages)
    known = set(families.table()) | {"other"}
    for page in (*pages, *shipped.own_pages()):
        assert page.family in known and page.meaning and page.solutions, page.id


def test_command_line(index_file, tmp_path, capsys):
    file = tmp_path / "trace.txt"
    file.write_text(PLAIN)
    assert main(["explain", "--index", str(index_file), str(file)]) == 0
    shown = capsys.readouterr().out
    for part in (
        "x must be a list",
        "not isinstance(x, list)",
        "can be reached from pkg.run",
        "type(x).__name__ = int",
    ):
        assert part in shown
    assert main(["explain", "--json", "--index", str(index_file), "OverflowError: item 3 is 99, above 16"]) == 0
    record = json.loads(capsys.readouterr().out)
    assert record["matches"][0]["page"]["guard"]["1"] == "item > limit"
    assert main(["explain", "--index", str(index_file), "completely unknown words qqq"]) == 1
    assert "Nothing found" in capsys.readouterr().out
    assert main(["explain", "--index", str(tmp_path / "none.sqlite"), "x"]) == 2
    assert capsys.readouterr().err.startswith("SML1204")


def test_terminal_is_not_obeyed(capsys):
    main(["explain", "there is no error code '\x1b]0;title\x07\x9b31m'; the nearest is SML0001"])
    assert "\x1b" not in (out := capsys.readouterr().out) and "\x9b" not in out


def test_a_damaged_index_does_not_hide_the_others(index_file, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SMALTI_INDEX_DIR", str(tmp_path))
    (tmp_path / "old.sqlite").write_bytes(b"not a database" * 500)
    (tmp_path / "good.sqlite").write_bytes(index_file.read_bytes())
    assert main(["explain", "OverflowError: item 3 is 99, above 16"]) == 0
    told = capsys.readouterr()
    assert "pkg/_impl.py" in told.out and "build them again" in told.err


@pytest.mark.parametrize("message", ["size is 7, not 8.", "Size is 7,  not 8", "size is\n    7, not 8."])
def test_a_text_that_ends_in_a_value_and_a_full_stop_fits_whatever_its_spaces(message):
    found = fit("size is {n}, not {m}.", message)
    assert found is not None and found.values == {"n": "7", "m": "8"}
    assert fit("size is {n}, not {m}.", message.replace("not", "but")) is None
