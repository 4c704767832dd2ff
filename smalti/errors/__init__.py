"""Coded refusals: `raise error("SML0301", k=24)` builds an exception from the entry of that code.

The text, the built-in type and the page come from `entries/SML0301.toml`; nothing here knows any code.
Light on purpose: entries, tomllib and tracebacks are touched only when an error is made.
"""

from __future__ import annotations

import builtins
import functools
import os
import sys
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

if TYPE_CHECKING:
    from smalti.errors.catalogue import Entry

__all__ = ["Loc", "SmaltiError", "entry", "error", "public"]

P = ParamSpec("P")
R = TypeVar("R")

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_CLI = _PACKAGE + "cli" + os.sep
_STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep
_LONGEST_MESSAGE = 2000


class Loc(NamedTuple):
    """A line of the user's source: `file`, 1-based `line`."""

    file: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


class SmaltiError(Exception):
    """Base of every coded refusal.

    `code` is the stable id, `params` the named values of the message, `message` the filled template,
    `location` the user's line (or None), `url` the address of the page,
    `entry` all that is known about the code. `str()` gives one line, `page()` the whole page.
    """

    code: str
    params: dict[str, Any]
    message: str
    location: Loc | None
    pointed: bool  # the location was given by the raiser, so that no traceback line shows it

    def __str__(self) -> str:
        where = ""
        if self.pointed and self.location is not None:
            where = f" ({os.path.basename(self.location.file)}:{self.location.line})"
        return f"{self.code}: {self.message}{where}"

    def __repr__(self) -> str:
        values = "".join(f", {name}={value!r}" for name, value in self.params.items())
        return f"{type(self).__name__}({self.code!r}{values})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (self.code, self.params, self.location, self.pointed)

    @property
    def entry(self) -> Entry:
        """The entry of this code."""
        return entry(self.code)

    @property
    def url(self) -> str:
        """Address of the page: below $SMALTI_ERRORS_URL, else where `smalti serve` answers."""
        from smalti.errors.page import url

        return url(self.code)

    def page(self) -> str:
        """The whole page as plain text, with this error's own values."""
        from smalti.errors.page import render

        return render(self.entry, self)


def error(code: str, /, at: Loc | tuple[str, int] | None = None, **params: Any) -> SmaltiError:
    """Build the exception of `code`; the caller raises it.

    `params` must be exactly the named holes of the entry's message. `at` is the user's line where no frame of
    the call stack shows it; otherwise the innermost frame outside this package is taken.
    """
    location = Loc(*at) if at is not None else _user_line(sys._getframe(1))
    return _rebuild(code, {k: _plain(v) for k, v in params.items()}, location, at is not None)


def entry(code: str) -> Entry:
    """The entry of `code`, retired ones included. Errors: SML0001 for a code that never existed."""
    from smalti.errors.catalogue import load, nearest

    found = load(code)
    if found is None:
        raise error("SML0001", code=code, nearest=nearest(code))
    return found


def public(function: Callable[P, R]) -> Callable[P, R]:
    """Decorator of public functions: a coded error leaves with the user's frames only.

    Set SMALTI_TRACEBACK=full to see this package's frames too.
    """

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except SmaltiError as refusal:
            if os.environ.get("SMALTI_TRACEBACK") != "full":
                refusal.__traceback__ = _user_frames(refusal.__traceback__)
                if refusal.__cause__ is None:
                    refusal.__suppress_context__ = True
            raise  # a bare raise does not add this frame again

    return call


def _rebuild(code: str, params: dict[str, Any], location: Loc | None, pointed: bool) -> SmaltiError:
    from smalti.errors.catalogue import load

    found = load(code)
    assert found is not None, f"{code} has no entry: add smalti/errors/entries/{code}.toml"
    wanted, given = set(found.holes), set(params)
    assert wanted == given, f"{code} takes {sorted(wanted)}, was given {sorted(given)}"
    message = " ".join(found.message.format_map(params).split("\n"))
    if len(message) > _LONGEST_MESSAGE:
        message = message[: _LONGEST_MESSAGE - 2] + " …"
    made = _class_for(found.type)(f"{code}: {message}")
    made.code, made.params, made.message = code, params, message
    made.location, made.pointed = (Loc(*location) if location is not None else None), pointed
    return made


@functools.cache
def _class_for(builtin: str) -> type[SmaltiError]:
    base = getattr(builtins, builtin)
    return type(f"Smalti{builtin}", (SmaltiError, base), {"__module__": __name__, "__doc__": SmaltiError.__doc__})


def _plain(value: Any) -> Any:
    """Values that pickle and print anywhere: plain scalars and containers, anything else as its text."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return type(value)(map(_plain, value)) if type(value) in (list, tuple) else tuple(map(_plain, value))
    if isinstance(value, dict):
        return {str(k): _plain(v) for k, v in value.items()}
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):
        item = value.item()
        return item if isinstance(item, bool | int | float) else str(value)
    return str(value)


def _inside(frame: FrameType) -> bool:
    """Frames that are not the user's: this package, and the standard library that it calls through."""
    file = frame.f_code.co_filename
    if file.startswith((_PACKAGE, "<frozen")):
        return True
    if file == "<string>":  # the __init__ that a dataclass of this package generates
        return str(frame.f_globals.get("__name__", "")).startswith("smalti.")
    return file.startswith(_STDLIB) and "site-packages" not in file and "dist-packages" not in file


def _user_line(frame: Any) -> Loc | None:
    while frame is not None:
        file = frame.f_code.co_filename
        if file.startswith(_CLI):  # the command line has no user's line: only its own start script is outside
            return None
        if not _inside(frame):
            return Loc(file, frame.f_lineno)
        frame = frame.f_back
    return None


def _user_frames(traceback: TracebackType | None) -> TracebackType | None:
    frames = []
    while traceback is not None:
        if not _inside(traceback.tb_frame):
            frames.append(traceback)
        traceback = traceback.tb_next
    kept: TracebackType | None = None
    for one in reversed(frames):
        kept = TracebackType(kept, one.tb_frame, one.tb_lasti, one.tb_lineno)
    return kept
