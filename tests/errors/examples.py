"""Runs the examples of an entry in this process, in a folder of their own."""

import contextlib
import os
from pathlib import Path
from typing import Any

from smalti.errors import SmaltiError


def run(source: str, folder: Path, name: str, **names: Any) -> dict[str, Any]:
    """Execute `source` as the file `name` in `folder`; gives its names. Its exceptions pass."""
    file = folder / name
    file.write_text(source, encoding="utf-8")
    space = {"__name__": "example", "__file__": str(file), **names}
    with contextlib.chdir(folder):
        exec(compile(source, str(file), "exec"), space)
    return space


def refusal(source: str, folder: Path, name: str) -> SmaltiError:
    """The coded error that `source` ends in; AssertionError where it runs through."""
    try:
        run(source, folder, name)
    except SmaltiError as raised:
        return raised
    raise AssertionError(f"{name} raises nothing")


def environment_is_clean(before: dict[str, str]) -> bool:
    """An example must not leave environment variables behind."""
    return dict(os.environ) == before
