"""Refuses arguments of another type where a user calls the package: a number that is no whole number, a name that is
no text. Knows nothing of layouts; ranges are the business of the functions themselves.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable
from typing import ParamSpec, TypeVar

from smalti.errors import SmaltiError, error

__all__ = ["checked", "checked_fields", "whole"]

P = ParamSpec("P")
R = TypeVar("R")

_TYPES: dict[str, type] = {"int": int, "str": str, "bool": bool}  # by annotation; others are not checked
_WANTED = {int: "a whole number", str: "text", bool: "True or False"}


def _refusal(where: str, name: str, value: object, kind: type) -> SmaltiError:
    return error("SML0406", function=where, name=name, value=repr(value)[:80], wanted=_WANTED[kind])


def _converted(where: str, name: str, value: object, kind: type) -> object:
    """NumPy's whole numbers count as whole numbers, 0 and 1 as truth values; True is no number."""
    if kind is int and not isinstance(value, bool):
        try:
            return operator.index(value)  # type: ignore[arg-type]
        except TypeError:
            pass
    elif kind is bool and hasattr(value, "__index__") and value in (0, 1):
        return bool(value)
    elif kind is str and isinstance(value, str):
        return str(value)
    raise _refusal(where, name, value, kind)


def whole(where: str, name: str, value: object) -> int:
    """`value` as an int. Errors: SML0406."""
    if type(value) is int:
        return value
    found = _converted(where, name, value, int)
    assert isinstance(found, int)
    return found


def checked(function: Callable[P, R]) -> Callable[P, R]:
    """`function`, its arguments annotated int, str or bool being of that type when it runs; SML0406 otherwise.

    Outside of a cache, so that what is cached are exact values.
    """
    inner = getattr(function, "__wrapped__", function)
    kinds = {name: _TYPES[text] for name, text in inner.__annotations__.items() if text in _TYPES and name != "return"}
    names = inner.__code__.co_varnames[: inner.__code__.co_argcount]
    positional = [(name, kinds.get(name)) for name in names]
    where = function.__name__

    @functools.wraps(function)
    def call(*args: P.args, **kwargs: P.kwargs) -> R:
        given = args
        for at, (value, (name, kind)) in enumerate(zip(args, positional, strict=False)):
            if kind is not None and type(value) is not kind:
                given = (*given[:at], _converted(where, name, value, kind), *given[at + 1 :])  # type: ignore[assignment]
        for name, value in kwargs.items():
            kind = kinds.get(name)
            if kind is not None and type(value) is not kind:
                kwargs[name] = _converted(where, name, value, kind)
        return function(*given, **kwargs)

    return call


def checked_fields(made: object, names: Iterable[str]) -> None:
    """The same for the fields of a (frozen) dataclass, from its `__post_init__`."""
    kinds = type(made).__annotations__
    for name in names:
        kind, value = _TYPES[kinds[name]], getattr(made, name)
        if type(value) is not kind:
            object.__setattr__(made, name, _converted(type(made).__name__, name, value, kind))
