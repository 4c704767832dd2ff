"""The exception itself: values, one line, page, location, pickling, traceback."""

import builtins
import pickle
import subprocess
import sys
import traceback

import numpy as np
import pytest

import smalti.errors as errors
from smalti.errors import Loc, SmaltiError, error, public
from smalti.errors.catalogue import parse

THIS = __file__


def test_carries_code_values_line_and_address():
    made = error("SML0001", code="SML1", nearest=np.int64(7))
    line = traceback.extract_stack()[-1].lineno - 1
    assert isinstance(made, SmaltiError) and isinstance(made, KeyError)
    assert made.code == "SML0001" and made.params == {"code": "SML1", "nearest": 7}
    assert type(made.params["nearest"]) is int
    assert made.location == Loc(THIS, line)
    assert str(made) == "SML0001: there is no error code 'SML1'; the nearest is 7"
    assert repr(made) == "SmaltiKeyError('SML0001', code='SML1', nearest=7)"
    assert made.url.endswith("/errors/SML0001.html")
    assert made.entry.family == "explain"


def test_page_holds_everything():
    text = error("SML0001", code="x", nearest="SML0001").page()
    for part in (
        "What it means",
        "What to do",
        "Fails",
        "Works",
        "Condition",
        "there is no error code 'x'",
        THIS,
    ):
        assert part in text


def test_given_line_is_said():
    assert str(error("SML0001", at=("k/er.py", 12), code="x", nearest="y")).endswith("nearest is y (er.py:12)")


def test_message_stays_one_short_line():
    text = str(error("SML0001", code="a", nearest="b\nc" + "d" * 10_000))
    assert "\n" not in text and len(text) < 2100


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickles(protocol):
    made = error("SML0001", code="SML1", nearest=(np.float32(0.5), object))
    back = pickle.loads(pickle.dumps(made, protocol))
    assert type(back) is type(made) and str(back) == str(made) and repr(back) == repr(made)
    assert back.location == made.location and back.params == made.params


def test_every_built_in_can_be_the_type():
    for name in ("OSError", "KeyError", "MemoryError", "NotImplementedError", "ImportError", "IndexError"):
        made = errors._class_for(name)("x")
        assert isinstance(made, getattr(builtins, name)) and isinstance(made, SmaltiError)


def test_missing_entry_and_wrong_names_are_loud():
    with pytest.raises(AssertionError, match="no entry"):
        error("SML9999")
    with pytest.raises(AssertionError, match="takes"):
        error("SML0001", code="x")
    with pytest.raises(AssertionError, match="takes"):
        error("SML0001", code="x", nearest="y", more=1)


def test_traceback_ends_at_the_users_line():
    with pytest.raises(SmaltiError) as caught:
        exec(compile("import smalti.errors as e\ne.public(e.entry)('SML1')", "user.py", "exec"), {})
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert [f.filename for f in frames] == [THIS, "user.py"] and frames[-1].lineno == 2
    assert caught.value.location == Loc("user.py", 2)


def test_callbacks_keep_the_inner_user_frame(monkeypatch):
    inner = public(errors.entry)

    def body():
        inner("SML1")

    outer = public(lambda: body())
    outer.__wrapped__.__code__ = outer.__wrapped__.__code__.replace(co_filename=errors.__file__)
    with pytest.raises(SmaltiError) as caught:
        outer()
    assert [f.name for f in traceback.extract_tb(caught.value.__traceback__)][1:] == ["body"]
    monkeypatch.setenv("SMALTI_TRACEBACK", "full")
    with pytest.raises(SmaltiError) as caught:
        outer()
    assert "entry" in [f.name for f in traceback.extract_tb(caught.value.__traceback__)]


def test_other_exceptions_pass_untouched():
    def fails():
        raise ZeroDivisionError("x")

    with pytest.raises(ZeroDivisionError) as caught:
        public(fails)()
    assert traceback.extract_tb(caught.value.__traceback__)[-1].name == "fails"


def test_import_is_light():
    heavy = ("tomllib", "inspect", "difflib", "smalti.errors.catalogue", "smalti.errors.page")
    code = f"import sys, smalti.errors; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "[]\n"


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ("family = 'shape'\nfamily = 'x'", "not TOML"),
        ("colour = 'red'", "unknown key 'colour'"),
        ("needs = ['luck']", "needs 'luck'"),
    ],
)
def test_malformed_entries_are_refused(change, says):
    from importlib import resources

    text = (resources.files("smalti.errors") / "entries" / "SML0001.toml").read_text()
    assert parse(text, "SML0001").code == "SML0001"
    with pytest.raises(ValueError, match=says):
        parse(text + "\n" + change, "SML0001")
    with pytest.raises(ValueError, match="must equal the file's name"):
        parse(text, "SML0002")
    with pytest.raises(ValueError, match="plain name"):
        parse(text.replace("{nearest}", "{nearest.x}"), "SML0001")
    with pytest.raises(ValueError, match="no built-in exception"):
        parse(text.replace('"KeyError"', '"print"'), "SML0001")
