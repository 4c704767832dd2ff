"""Checked reading of JSON values from strangers: every refusal names the place in the file. Knows no meaning."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from smalti.errors import error

T = TypeVar("T")
D = TypeVar("D")


class Reader:
    """Walks the values of one file; `where` is the way to the one at hand."""

    def __init__(self, file: str, folder: Path) -> None:
        self.file, self.folder = file, folder
        self._where: list[str] = []

    @property
    def where(self) -> str:
        return "".join(self._where).lstrip(".") or "the file"

    def refuse(self, problem: str) -> NoReturn:
        raise error("SML0160", file=self.file, where=self.where, problem=problem)

    @contextmanager
    def at(self, step: str) -> Iterator[None]:
        """Inside, refusals name the field `.name` or item `[n]`."""
        self._where.append(step)
        yield
        self._where.pop()

    def fields(self, value: Any, required: str, optional: str = "") -> dict[str, Any]:
        """An object with all the required fields and no unknown one; names separated by spaces."""
        if not isinstance(value, dict):
            self.refuse(f"must be an object, is {kind(value)}")
        known = required.split() + optional.split()
        for key in value:
            if key not in known:
                self.refuse(f"unknown field {key[:60]!r}; known are {', '.join(known)}")
        for key in required.split():
            if key not in value:
                self.refuse(f"field {key!r} is missing")
        return value

    def get(self, fields: dict[str, Any], key: str, read: Callable[[Any], T], default: D) -> T | D:
        """One field read by `read`, or the default where it is missing."""
        if key not in fields:
            return default
        with self.at(f".{key}"):
            return read(fields[key])

    def integer(self, value: Any, low: int, high: int) -> int:
        if type(value) is not int or not low <= value <= high:
            self.refuse(f"must be an integer from {low} to {high}, is {kind(value)}")
        return value

    def within(self, low: int, high: int) -> Callable[[Any], int]:
        return lambda value: self.integer(value, low, high)

    def number(self, value: Any) -> int | float:
        if type(value) not in (int, float) or (type(value) is int and abs(value) >= 1 << 64):
            self.refuse(f"must be a number, is {kind(value)}")
        return value  # type: ignore[no-any-return]

    def truth(self, value: Any) -> bool:
        if type(value) is not bool:
            self.refuse(f"must be true or false, is {kind(value)}")
        return value

    def string(self, value: Any) -> str:
        if not isinstance(value, str) or len(value) > 1000:
            self.refuse(f"must be a string, is {kind(value)}")
        return value

    def among(self, names: Sequence[str]) -> Callable[[Any], str]:
        def read(value: Any) -> str:
            if self.string(value) not in names:
                self.refuse(f"{value[:60]!r} is none of {', '.join(names)}")
            return str(value)

        return read

    def each(self, value: Any, least: int, most: int, read: Callable[[Any], T]) -> tuple[T, ...]:
        """A list of `least` to `most` items."""
        if not isinstance(value, list) or not least <= len(value) <= most:
            self.refuse(f"must be a list of {least} to {most} items, is {kind(value)}")
        out = []
        for n, item in enumerate(value):
            with self.at(f"[{n}]"):
                out.append(read(item))
        return tuple(out)


def kind(value: Any) -> str:
    """A value in a few words."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, dict):
        return "an object"
    return repr(value)[:60]
