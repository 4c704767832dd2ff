"""Upstream tests as evidence: assertions about a message, read (never run) and attached to the sites they fit."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from smalti.explain.template import chunks, weight, words

LARGEST_FILE = 4 << 20
MOST_FILES = 3000
_CALL = re.compile(
    r"(assertRaisesRegex|assertRaisesWithLiteralMatch|pytest\.raises)\(\s*\(?([\w.]+)[^\"']{0,120}?"
    r"(?:match\s*=\s*)?((?:[rRfF]{0,2}(?:\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')\s*){1,12})"
)
_PIECE = re.compile(r"[rRfF]{0,2}(?:\"((?:[^\"\\\n]|\\.)*)\"|'((?:[^'\\\n]|\\.)*)')")
_LITERAL = re.compile(r"[^\\.*+?\[\](){}|^$]+")
_FROM = 12  # letters and digits that a pattern must share to count as evidence


def fingerprint(tests: Path | None) -> list[str]:
    """What an unchanged run may rely on."""
    if tests is None:
        return []
    marks = [f"{p.name}:{p.stat().st_size}:{p.stat().st_mtime_ns}" for p in _files(tests)]
    return [hashlib.sha256("\n".join(marks).encode()).hexdigest()]


def _files(tests: Path) -> list[Path]:
    return [p for p in sorted(tests.rglob("*.py")) if p.is_file() and p.stat().st_size < LARGEST_FILE][:MOST_FILES]


def assertions(tests: Path) -> list[dict[str, Any]]:
    """Expected (type, pattern) with file, line and test name."""
    found = []
    for path in _files(tests):
        text = path.read_text(encoding="utf-8", errors="replace")
        for match in _CALL.finditer(text):
            pattern = "".join(a or b for a, b in _PIECE.findall(match[3]))
            before = text[: match.start()]
            name = re.findall(r"def (test\w*)", before[-20_000:])
            found.append(
                {
                    "file": f"{tests.name}/{path.relative_to(tests).as_posix()}",
                    "line": before.count("\n") + 1,
                    "test": name[-1] if name else "",
                    "type": match[2].rsplit(".", 1)[-1],
                    "pattern": pattern[:300],
                }
            )
    return found


def attach(records: list[dict[str, Any]], tests: Path | None, package: str) -> None:
    """Put each assertion on the one site that it fits; an assertion that fits several is no evidence for any."""
    if tests is None:
        return
    by_word: dict[str, set[int]] = {}
    for number, record in enumerate(records):
        for word in {w for t in record["wordings"] for w in words(t)}:
            by_word.setdefault(word, set()).add(number)
    for one in assertions(tests):
        literals = [piece.strip() for piece in _LITERAL.findall(re.sub(r"\\(.)", r"\1", one["pattern"]))]
        asked = {w for piece in literals for w in words(piece)[1:-1] if len(w) > 2}
        if sum(c.isalnum() for piece in literals for c in piece) < _FROM or not asked:
            continue
        sets = [by_word[w] for w in asked if w in by_word]
        candidates = set.intersection(*sets) if sets else set()
        fitting = [n for n in candidates if records[n]["type"] == one["type"] and _fits(records[n], literals)]
        if len(fitting) == 1:
            records[fitting[0]].setdefault("tests", []).append(one)


def _fits(record: dict[str, Any], literals: list[str]) -> bool:
    for template in record["wordings"]:
        if weight(template) < _FROM:
            continue
        text = "".join(literal + ("\0" if hole is not None else "") for literal, hole in chunks(template))
        flat = " ".join(text.lower().split())
        at = 0
        for literal in literals:
            piece = " ".join(literal.lower().split())
            if not any(c.isalnum() for c in piece):
                continue
            found = flat.find(piece, at)
            if found < 0:
                break
            at = found + len(piece)
        else:
            return True
    return False
