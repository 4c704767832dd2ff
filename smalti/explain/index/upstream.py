"""Upstream tests as evidence: assertions about a message, read (never run) and attached to the sites they fit."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

from smalti.explain.template import chunks, skeleton, weight, words

LARGEST_FILE = 4 << 20
MOST_FILES = 3000
_CALL = re.compile(
    r"(assertRaisesRegex|assertRaisesWithLiteralMatch|pytest\.raises)\(\s*\(?([\w.]+)[^\"']{0,120}?"
    r"(?:match\s*=\s*)?((?:[rRfF]{0,2}(?:\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*')\s*){1,12})"
)
_PIECE = re.compile(r"[rRfF]{0,2}(?:\"((?:[^\"\\\n]|\\.)*)\"|'((?:[^'\\\n]|\\.)*)')")
_FROM = 10  # letters and digits that a pattern must share to count as evidence


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
    """Put each assertion on the one site that it fits; one that fits several equally is no evidence for any."""
    if tests is None:
        return
    by_word: dict[str, set[int]] = {}
    for number, record in enumerate(records):
        for word in {w for t in record["wordings"] for w in words(skeleton(t))}:
            by_word.setdefault(word, set()).add(number)
    for one in assertions(tests):
        pattern = re.sub(r"\\(.)", r"\1", re.sub(r"\.[*+]\??", "\0", one["pattern"]))
        pieces = [" ".join(piece.lower().split()) for piece in pattern.split("\0")]
        asked = [w for piece in pieces for w in words(piece) if len(w) > 2]
        if sum(map(len, asked)) < _FROM:
            continue
        votes: dict[int, int] = {}
        for word in set(asked):
            for number in by_word.get(word, ()):
                votes[number] = votes.get(number, 0) + 1
        enough = 0.6 * len(set(asked))
        near = [n for n, v in votes.items() if v >= enough and records[n]["type"] == one["type"]]
        fitting = [n for n in near if any(_fits(t, pieces) for t in records[n]["wordings"])]
        if len(fitting) > 1:
            fitting = _closest(one["file"], fitting, records)
        if len(fitting) == 1:
            records[fitting[0]].setdefault("tests", []).append(one)


def _closest(file: str, fitting: list[int], records: list[dict[str, Any]]) -> list[int]:
    """Of several sites those whose path shares most words with the test's."""
    own = set(re.split(r"[/._]", file))
    shared = {n: len(own & set(re.split(r"[/._]", records[n]["path"]))) for n in fitting}
    return [n for n in fitting if shared[n] == max(shared.values())]


def _fits(template: str, pieces: list[str]) -> bool:
    """The literal text of the template occurs in the pattern in order (or holds it) and makes up most of it."""
    literals = [" ".join(literal.lower().split()) for literal, _ in chunks(template)]
    flat = "\0".join(literals)
    if all(piece in flat for piece in pieces if any(map(str.isalnum, piece))):
        return weight(template) >= _FROM
    text = "\0".join(pieces)
    at = score = 0
    for literal in literals:
        letters = sum(map(str.isalnum, literal))
        found = text.find(literal, at)
        if letters >= 3 and found >= 0:
            score += letters
            at = found + len(literal)
        elif letters >= 3 and at:  # the pattern may end before the message does
            break
    return score >= _FROM and score >= 0.6 * sum(map(str.isalnum, text))
