"""Families of failures across packages: which one a message belongs to, and the background page of each.

The pages and patterns are data (families.toml).
"""

from __future__ import annotations

import functools
import re
from importlib import resources
from typing import Any


@functools.cache
def table() -> dict[str, dict[str, Any]]:
    """Family -> its page (title, what, how, out) and patterns, in the order in which they are tried."""
    import tomllib

    text = (resources.files("smalti.explain") / "families.toml").read_text(encoding="utf-8")
    return tomllib.loads(text)


@functools.cache
def _patterns() -> list[tuple[str, re.Pattern[str] | None, frozenset[str]]]:
    found = []
    for name, page in table().items():
        words = "|".join(page.get("words", ()))
        pattern = re.compile(words, re.IGNORECASE) if words else None
        found.append((name, pattern, frozenset(page.get("types", ()))))
    return found


def classify(message: str, type_name: str, kind: str = "raise") -> str:
    """The family of a message: by its words, then by its type, else `other`."""
    last = type_name.rsplit(".", 1)[-1]
    if kind == "assert":
        return "invariant"
    for name, pattern, _ in _patterns():
        if pattern is not None and pattern.search(message[:2000]):
            return name
    for name, _, types in _patterns():
        if last in types:
            return name
    return "other"
