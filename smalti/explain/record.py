"""One page of the reference as a value, whatever it came from: own entry, indexed site, known refusal, fault.

Plain data with a JSON form; it decides nothing.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

FORMAT = 1  # of the JSON form


@dataclass
class Proof:
    """How a statement of the page was obtained: executed, static analysis, upstream test, hand-written, recorded."""

    statement: str
    how: str
    when: str = ""


@dataclass
class Page:
    """A page. Empty fields are unknown or do not apply."""

    id: str
    origin: str  # "smalti", "jax 0.11.1", "faults of compiled code", "known refusals"
    kind: str  # own | raise | assert | fault | known
    type: str
    message: str
    title: str = ""
    family: str = "other"
    meaning: str = ""
    trigger: str = ""
    situations: list[str] = field(default_factory=list)
    solutions: list[str] = field(default_factory=list)
    failing: str = ""
    mended: str = ""
    guard: dict[str, Any] = field(default_factory=dict)
    module: str = ""
    function: str = ""
    path: str = ""
    line: int = 0
    excerpt: list[tuple[int, str]] = field(default_factory=list)  # numbered source lines around the raise
    version: str = ""
    commit: str = ""
    entries: list[dict[str, Any]] = field(default_factory=list)
    tests: list[dict[str, Any]] = field(default_factory=list)
    related: list[tuple[str, str]] = field(default_factory=list)
    also: list[tuple[str, str]] = field(default_factory=list)  # other ids that lead here, with the reason
    verdict: str = ""  # of a refusal: what forbids it
    in_smalti: str = ""
    smalti_example: str = ""  # a whole program that does it, run by Smalti's tests
    asynchronous: bool = False  # the frame that reports it is not to blame
    proofs: list[Proof] = field(default_factory=list)
    status: str = ""
    executed: list[dict[str, Any]] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """The page as JSON-able data, with a format number."""
        return {"format": FORMAT, **asdict(self)}


@dataclass
class Match:
    """A page that may explain what was asked, and why it was found."""

    page: Page
    certainty: str  # "sure" | "likely" | "similar"
    reasons: list[str]
    values: dict[str, str] = field(default_factory=dict)
    asked: str = ""  # the exception of the text that it explains, as `Type: message`
    hit: str = ""  # the words of the message that led to a fault of compiled code
    carrier: bool = False  # the page only passes on the message of another match
    strength: int = 0  # letters and digits of the message that are literal in its template
    places: list[Page] = field(
        default_factory=list
    )  # all pages of this one text, `page` first; empty where it is alone

    def as_json(self) -> dict[str, Any]:
        """The match as JSON-able data; a place is told in short, its page is at its id."""
        short = ("id", "type", "message", "origin", "module", "function", "path", "line")
        return {
            "certainty": self.certainty,
            "reasons": self.reasons,
            "values": self.values,
            "asked": self.asked,
            "page": self.page.as_json(),
            "places": [
                {**{name: getattr(p, name) for name in short}, "tested": p.guard.get("1", "")} for p in self.places
            ],
        }


@dataclass
class Answer:
    """All that was found for one question; `ambiguous` where several pages fit equally well.

    Pages that what was asked cannot tell apart (one text raised at several places of a package) are one match.
    """

    question: str  # "code" | "id" | "message" | "traceback" | "nothing"
    matches: list[Match] = field(default_factory=list)
    ambiguous: bool = False
    notes: list[str] = field(default_factory=list)

    @property
    def tied(self) -> bool:
        """Whether several texts fit equally well, not only several places of one text."""
        first = self.matches[0] if self.matches else None
        if first is None or not self.ambiguous:
            return False
        best = (first.certainty, first.strength)
        return not first.places or any((m.certainty, m.strength) == best for m in self.matches[1:])

    def as_json(self) -> dict[str, Any]:
        """The answer as JSON-able data."""
        return {
            "format": FORMAT,
            "question": self.question,
            "ambiguous": self.ambiguous,
            "notes": self.notes,
            "matches": [m.as_json() for m in self.matches],
        }
