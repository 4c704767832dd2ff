"""Message templates: literal text with `{named}` holes, and matching a message against one in linear time.

A template is written as in format strings (doubled braces are literal). Knows no catalogue.
"""

from __future__ import annotations

import functools
import re
import string
from dataclasses import dataclass

Chunks = tuple[tuple[str, str | None], ...]  # (literal text, name of the hole that follows or None)


def chunks(template: str) -> Chunks:
    """Literal pieces and the holes between them. Any text parses: broken braces are literal."""
    try:
        parsed = list(string.Formatter().parse(template))
    except ValueError:
        return ((template, None),)
    joined: list[tuple[str, str | None]] = []
    for literal, name, _, _ in parsed:
        if joined and joined[-1][1] is None:  # a doubled brace ends a piece early
            joined[-1] = (joined[-1][0] + literal, name)
        else:
            joined.append((literal, name))
    return tuple(joined)


def normal(text: str) -> str:
    """White space collapsed, case kept."""
    return " ".join(text.split())


def skeleton(template: str) -> str:
    """The template with unnamed holes and collapsed white space: what identity rests on."""
    return normal("".join(literal + ("{}" if name is not None else "") for literal, name in chunks(template)))


def words(text: str) -> list[str]:
    """Lower-case words and numbers of a text."""
    return re.findall(r"[a-z0-9_]+", text.lower())


def weight(template: str) -> int:
    """Letters and digits that are literal: how much a full match proves."""
    return sum(sum(c.isalnum() for c in literal) for literal, _ in chunks(template))


@dataclass(frozen=True)
class Fit:
    """A message that a template can have produced."""

    values: dict[str, str]
    exact: bool  # letter by letter; False where case, space or a trailing remark was ignored


def fit(template: str, message: str) -> Fit | None:
    """How `template` gives `message`, or None. The message may carry more lines, or differ in case and space."""
    pieces, message = chunks(template.rstrip()), message.rstrip()
    for text, exact in ((message, True), (message.split("\n", 1)[0], True)):
        if (values := _walk(pieces, text)) is not None:
            return Fit(values, exact)
    folded = tuple((_fold(literal, i == 0), name) for i, (literal, name) in enumerate(pieces))
    if (values := _walk(folded, _fold(message, True).rstrip(" .!"), loose=True)) is not None:
        return Fit(values, False)
    return None


@functools.lru_cache(64)
def _fold(text: str, first: bool) -> str:
    folded = re.sub(r"\s+", " ", text).lower()
    return folded.lstrip() if first else folded


def _walk(pieces: Chunks, text: str, loose: bool = False) -> dict[str, str] | None:
    """Leftmost search of each literal: complete for patterns whose only wildcard is 'any text'."""
    if not pieces:
        return {} if not text.strip() else None
    head = pieces[0][0]
    if not text.startswith(head.rstrip(" .!") if loose and len(pieces) == 1 else head):
        return None
    values: dict[str, str] = {}
    at, hole = len(head), pieces[0][1]
    for index, (literal, following) in enumerate(pieces[1:], 1):
        last = index == len(pieces) - 1 and following is None
        if loose and last:
            literal = literal.rstrip(" .!")
        found = (text.rfind(literal, at) if literal else len(text)) if last else text.find(literal, at)
        if last and (found < 0 or found + len(literal) != len(text)):
            return None
        if found < 0:
            return None
        if hole is not None:
            values.setdefault(hole, text[at:found] if literal or not last else text[at:])
        at, hole = found + len(literal), following
    if hole is not None:
        values.setdefault(hole, text[at:])
        at = len(text)
    if at < len(text) and not (loose and len(pieces) == 1):
        return None
    if loose and len(pieces) == 1 and text[len(head.rstrip(" .!")) :].strip(" .!"):
        return None
    return values


def likeness(template: str, message: str, part: bool = False) -> float:
    """0..1: runs of three letters that both have, so that a wrong letter costs little. With `part` the message may be
    a part of the text."""
    a, b = _runs(template), _runs(message)
    if not a or not b:
        return 0.0
    common = len(a & b)
    whole = 2 * common / (len(a) + len(b))
    return max(whole, 0.9 * common / len(b)) if part and len(b) >= 12 else whole


@functools.lru_cache(4096)
def _runs(text: str) -> frozenset[str]:
    plain = f"  {' '.join(words(text))} "
    return frozenset(plain[i : i + 3] for i in range(len(plain) - 2))
