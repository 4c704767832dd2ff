"""Pasted text of every kind gives the same exceptions and frames; hostile text costs little."""

import time

import pytest

from smalti.explain.reading import LARGEST, Frame, clean, decode, exceptions, split_message

PLAIN = """\
Traceback (most recent call last):
  File "/home/u/k.py", line 12, in <module>
    run(x)
    ~~~^^^
  File "/v/lib/python3.12/site-packages/pkg/_impl.py", line 9, in run
    raise TypeError(f"x must be a list, got {type(x).__name__}")
TypeError: x must be a list, got int
"""
FRAMES = [Frame("/home/u/k.py", 12, "<module>"), Frame("/v/lib/python3.12/site-packages/pkg/_impl.py", 9, "run")]


def one(text):
    found = exceptions(clean(text))
    assert len(found) == 1, found
    return found[0]


def same(text):
    found = one(text)
    assert (found.type, found.message, found.frames) == ("TypeError", "x must be a list, got int", FRAMES)


def test_plain():
    same(PLAIN)


@pytest.mark.parametrize(
    "change",
    [
        lambda t: t.replace("\n", "\r\n"),
        lambda t: "\n".join(f"\x1b[31m{line}\x1b[0m" for line in t.split("\n")),
        lambda t: "\n".join(f"[rank0]: {line}" for line in t.split("\n")),
        lambda t: "\n".join(f"2026-11-30T10:00:00.1234567Z {line}" for line in t.split("\n")),
        lambda t: "\n".join(f"worker_1  | {line}" for line in t.split("\n")),
        lambda t: "some words before\n\n" + t + "\n$ echo done\n",
        lambda t: t.partition("\n")[2],  # the first line was not copied
        lambda t: "\x00\x07" + t + "\ufeff",
        lambda t: decode(t.encode("utf-16")),
    ],
)
def test_dressed(change):
    same(change(PLAIN))


def test_truncated_head_keeps_the_end():
    cut = PLAIN.split("\n", 4)[4]
    found = one(cut)
    assert found.frames[-1] == FRAMES[-1] and found.type == "TypeError"


def test_message_of_several_lines_and_notes():
    text = PLAIN.replace("got int\n", "got int\nsecond line\n\nthird\nnote: added\n")
    assert one(text).message == "x must be a list, got int\nsecond line\n\nthird\nnote: added"


def test_chain():
    link = "\nThe above exception was the direct cause of the following exception:\n\n"
    during = "\nDuring handling of the above exception, another exception occurred:\n\n"
    text = PLAIN + link + PLAIN.replace("TypeError", "ValueError") + during + PLAIN.replace("TypeError", "KeyError")
    found = exceptions(clean(text))
    assert [f.type for f in found] == ["TypeError", "ValueError", "KeyError"]
    assert [f.note for f in found] == ["", "caused by the one before", "while handling the one before"]


def test_group():
    text = """\
  + Exception Group Traceback (most recent call last):
  |   File "/home/u/k.py", line 3, in <module>
  |     raise ExceptionGroup("two", [a, b])
  | ExceptionGroup: two (2 sub-exceptions)
  +-+---------------- 1 ----------------
    | Traceback (most recent call last):
    |   File "/home/u/k.py", line 7, in f
    |     raise ValueError("one")
    | ValueError: one
    +---------------- 2 ----------------
    | Traceback (most recent call last):
    |   File "/home/u/k.py", line 8, in g
    |     raise KeyError("two")
    | KeyError: 'two'
    +------------------------------------
"""
    found = exceptions(clean(text))
    assert [(f.type, f.message) for f in found] == [
        ("ExceptionGroup", "two (2 sub-exceptions)"), ("ValueError", "one"), ("KeyError", "'two'"),
    ]  # fmt: skip
    assert found[1].frames == [Frame("/home/u/k.py", 7, "f")]


def test_ipython():
    text = '''\
---------------------------------------------------------------------------
TypeError                                 Traceback (most recent call last)
Cell In[3], line 1
----> 1 run(3)

File /v/lib/python3.12/site-packages/pkg/_impl.py:9, in run(x, mode, size)
      7 """The public way in."""
      8 if not isinstance(x, list):
----> 9     raise TypeError(f"x must be a list, got {type(x).__name__}")
     10 group = size

TypeError: x must be a list, got int
'''
    found = one(text)
    assert (found.type, found.message) == ("TypeError", "x must be a list, got int")
    assert found.frames == [Frame("Cell In[3]", 1, ""), FRAMES[1]]


def test_older_ipython():
    text = """\
TypeError                                 Traceback (most recent call last)
<ipython-input-3-abc> in <module>()
----> 1 run(3)

/v/lib/python3.12/site-packages/pkg/_impl.py in run(x, mode)
      8 if not isinstance(x, list):
----> 9     raise TypeError("x")

TypeError: x must be a list, got int
"""
    found = one(text)
    assert found.message == "x must be a list, got int" and found.frames[-1] == FRAMES[1]


def test_pytest():
    text = """\
____________________________________ test_x ____________________________________

    def test_x():
>       run(3)

test_k.py:5:
_ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _ _

x = 3, mode = 'fast'

    def run(x, mode="fast", *, size=8):
        if not isinstance(x, list):
>           raise TypeError(f"x must be a list, got {type(x).__name__}")
E           TypeError: x must be a list, got int

/v/lib/python3.12/site-packages/pkg/_impl.py:9: TypeError
=========================== short test summary info ============================
FAILED test_k.py::test_x - TypeError: x must be a list, got int
"""
    found = one(text)
    assert (found.type, found.message) == ("TypeError", "x must be a list, got int")
    assert found.frames == [Frame("test_k.py", 5, "test_x"), FRAMES[1]]


def test_windows_paths():
    text = PLAIN.replace("/v/lib/python3.12/site-packages/pkg/_impl.py", r"C:\py\Lib\site-packages\pkg\_impl.py")
    assert one(text).frames[-1].file == r"C:\py\Lib\site-packages\pkg\_impl.py"


def test_frames_that_jax_filtered():
    text = PLAIN.replace(
        "TypeError: x must",
        "jax.errors.SimplifiedTraceback: For simplicity, JAX has removed its internal frames.\n"
        "\nThe above exception was the direct cause of the following exception:\n\n"
        'Traceback (most recent call last):\n  File "/home/u/k.py", line 12, in <module>\n'
        "    run(x)\nTypeError: x must",
    )
    assert one(text).type == "TypeError"
    tail = PLAIN + "--------------------\nFor simplicity, JAX has removed its internal frames from the traceback.\n"
    same(tail)


@pytest.mark.parametrize(
    ("text", "kind", "message"),
    [
        ("TypeError: x must be", "TypeError", "x must be"),
        ("jax.errors.ConcretizationTypeError: y", "jax.errors.ConcretizationTypeError", "y"),
        ("x must be a list", "", "x must be a list"),
        ("note: this is no type", "", "note: this is no type"),
        ("AssertionError", "AssertionError", ""),
    ],
)
def test_messages(text, kind, message):
    assert split_message(text) == (kind, message)


@pytest.mark.parametrize(
    "text",
    [
        "a" * 30_000_000,
        "\n" * 3_000_000,
        '  File "x", line 1, in f\n' * 400_000,
        "Traceback (most recent call last):\n" * 300_000,
        "\x1b[" * 2_000_000,
        "\x1b]" + "x" * 5_000_000,
        "E   " + "x: " * 1_000_000,
        ("| " * 1000 + "Exception Group\n") * 2000,
        "ValueError: " + "{" * 1_000_000,
        "x" * 999 + ".py:" + "1" * 100_000,
        "".join(map(chr, range(1, 2000))) * 500,
    ],
    ids=range(11),
)
def test_hostile_text_is_bounded(text):
    start = time.process_time()
    found = exceptions(clean(text))
    assert len(found) <= 200 and all(len(f.message) <= 8000 for f in found)
    assert time.process_time() - start < 10


def test_a_hundred_megabytes_keep_head_and_tail():
    text = clean(PLAIN.replace("TypeError: x", "KeyError: x") + "noise\n" * (LARGEST // 3) + PLAIN)
    assert {f.type for f in exceptions(text)} >= {"KeyError", "TypeError"}
