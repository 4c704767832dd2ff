"""The entry of a code: one TOML file, read on first use and checked strictly.

Knows the file format and nothing of who raises what; `tests/errors` checks entries against the code.
"""

from __future__ import annotations

import builtins
import functools
import re
import string
from dataclasses import dataclass, fields
from importlib import resources
from typing import Any

CODE = re.compile(r"SML\d{4}\Z")
FAMILIES = (
    "shape",
    "dtype",
    "layout",
    "memory-space",
    "resources",
    "synchronisation",
    "race",
    "memory-access",
    "descriptor",
    "ptx",
    "launch",
    "numerics",
    "io",
    "device",
    "explain",
    "control-flow",
)
SUGGESTS = re.compile(r"\b(nearest|largest|smallest|suggest)")  # holes whose value is advice
NEEDS = ("gpu", "asm", "explain", "torch", "jax")  # what an example needs beyond the base install


@dataclass(frozen=True)
class Entry:
    """Everything known about one code. `failing`, `mended` and `advised` are Python source."""

    code: str
    type: str
    title: str
    family: str
    message: str
    meaning: str
    trigger: str
    situations: tuple[str, ...]
    solutions: tuple[str, ...]
    failing: str
    mended: str
    guard: str
    related: tuple[str, ...]
    introduced: str
    removed: str = ""  # version that stopped raising it; the page stays
    source: str = ""  # section of a specification or a measurement
    advised: str = ""  # applies the value that the message suggests, as params["name"]; must run
    prints: str = ""  # the message that the failing example was recorded to give
    needs: tuple[str, ...] = ()

    @property
    def holes(self) -> tuple[str, ...]:
        """Names of the message's parameters, in order of appearance."""
        return holes(self.message)

    @property
    def summary(self) -> str:
        """First sentence of the meaning."""
        return re.split(r"(?<=[.!?])\s", self.meaning.strip(), maxsplit=1)[0]


_LISTS = {"situations", "solutions", "related", "needs"}
_REQUIRED = {f.name for f in fields(Entry)} - {"removed", "source", "advised", "prints", "needs"}


def holes(message: str) -> tuple[str, ...]:
    """Named holes of a message template. Raises ValueError for unnamed, dotted or indexed ones."""
    found: dict[str, None] = {}
    for _, name, _, _ in string.Formatter().parse(message):
        if name is None:
            continue
        if not name.isidentifier() or name == "at":
            raise ValueError(f"hole {{{name}}} must be a plain name other than 'at'")
        found[name] = None
    return tuple(found)


def parse(text: str, name: str) -> Entry:
    """The entry in `text` of the file `name`.toml. Raises ValueError saying what is wrong."""
    import tomllib

    try:
        data: dict[str, Any] = tomllib.loads(text)
    except tomllib.TOMLDecodeError as broken:
        raise ValueError(f"{name}: not TOML: {broken}") from None
    problems = _problems(data, name)
    if problems:
        raise ValueError(f"{name}: " + "; ".join(problems))
    clean: dict[str, Any] = {
        key: tuple(v.strip() for v in value) if key in _LISTS else value.strip() for key, value in data.items()
    }
    return Entry(**clean)


def _problems(data: dict[str, Any], name: str) -> list[str]:
    known = {f.name for f in fields(Entry)}
    problems = [f"unknown key {key!r}" for key in sorted(set(data) - known)]
    problems += [f"missing key {key!r}" for key in sorted(_REQUIRED - set(data))]
    for key in sorted(known & set(data)):
        value = data[key]
        if key in _LISTS:
            if not isinstance(value, list) or not all(isinstance(v, str) and v.strip() for v in value):
                problems.append(f"{key} must be a list of non-empty strings")
        elif not isinstance(value, str):
            problems.append(f"{key} must be a string")
        elif key in _REQUIRED and not value.strip():
            problems.append(f"{key} is empty")
    if problems:
        return problems
    if data["code"] != name or not CODE.match(name):
        problems.append(f"code {data['code']!r} must equal the file's name and look like SML0123")
    kind = getattr(builtins, data["type"], None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        problems.append(f"type {data['type']!r} is no built-in exception")
    if data["family"] not in FAMILIES:
        problems.append(f"family {data['family']!r} is none of {', '.join(FAMILIES)}")
    if "\n" in data["message"].strip() or "\n" in data["title"].strip():
        problems.append("message and title are one line each")
    try:
        named = holes(data["message"])
    except ValueError as bad:
        problems.append(f"message: {bad}")
        named = ()
    if not data["situations"] or not data["solutions"]:
        problems.append("at least one situation and one solution")
    problems += [f"related {code!r} is no code" for code in data["related"] if not CODE.match(code)]
    problems += [f"needs {what!r} is none of {', '.join(NEEDS)}" for what in data.get("needs", ()) if what not in NEEDS]
    if SUGGESTS.search(" ".join(named)) and not data.get("advised"):
        problems.append("the message suggests a value: `advised` must apply it")
    return problems


def codes() -> tuple[str, ...]:
    """Every code that has an entry, retired ones too, sorted."""
    folder = resources.files("smalti.errors") / "entries"
    return tuple(sorted(f.name[:-5] for f in folder.iterdir() if f.name.endswith(".toml")))


@functools.cache
def load(code: str) -> Entry | None:
    """The entry of `code`, or None. A malformed entry is an AssertionError: it is ours."""
    if not CODE.match(code):
        return None
    file = resources.files("smalti.errors") / "entries" / f"{code}.toml"
    if not file.is_file():
        return None
    try:
        return parse(file.read_text(encoding="utf-8"), code)
    except ValueError as bad:
        raise AssertionError(f"malformed entry {bad}") from None


def nearest(code: str) -> str:
    """The existing code that looks most like `code`."""
    import difflib

    known = codes()
    close = difflib.get_close_matches(code.upper()[:40], known, n=1, cutoff=0.0)
    return close[0] if close else known[0]
