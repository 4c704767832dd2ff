"""Answers and pages as plain text for a terminal. Decides nothing; escapes what a terminal would obey."""

from __future__ import annotations

import re
import textwrap
from typing import Any

from smalti.explain import families
from smalti.explain.record import Answer, Match, Page

NEAR = 4  # source lines shown on each side of a raise
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def answer(found: Answer, width: int = 100) -> str:
    """The best page in full where it is certain, one text with all its places, or a list to choose from."""
    if not found.matches:
        told = found.notes or ["Try fewer words, or index the package: smalti errors index PACKAGE"]
        return "\n".join(["Nothing found.", *told]) + "\n"
    blocks = list(found.notes)
    first, others = found.matches[0], found.matches[1:]
    near = first.certainty == "similar"
    if near and first.strength >= 80 and all(first.strength >= other.strength + 15 for other in others):
        blocks += ["No page has exactly this text. By far the nearest:", match(first, width)]
    elif found.tied or near:
        why = "No page has exactly this text. The nearest:" if near else "Several pages fit equally well:"
        blocks.append(why + "\n" + "\n".join(_line(m) for m in found.matches))
        blocks.append(f"Read one with: smalti explain {first.page.id}")
    else:
        blocks.append(_group(first, width) if first.places else match(first, width))
        if others:
            blocks.append("Also\n" + "\n".join(_line(m) for m in others))
    return _CONTROL.sub("?", "\n\n".join(blocks)) + "\n"


def _line(one: Match) -> str:
    place = f"{one.page.path}:{one.page.line}" if one.page.line else one.page.path or one.page.origin
    text = f"{one.page.type}: {_flat(one.page.message, 90) or one.page.title}"
    rest = [f"{p.path}:{p.line} {p.id}" for p in one.places[1:9]]
    more = [f"{len(one.places) - 9} more places"] if len(one.places) > 9 else []
    below = "".join(f"\n{'':20}{other}" for other in rest + more)
    return f"  {one.page.id:<17} {text}\n{'':20}{place}  ({'; '.join(one.reasons)}){below}"


def _group(one: Match, width: int) -> str:
    """One text that is raised at several places: what they share, then each with what tells it apart."""
    shared = one.page
    why = (
        f"Found because {'; '.join(one.reasons)}. Which of the places it was, the text alone does not say: "
        "the end of a full traceback does, or the function that you called."
    )
    blocks = [f"{shared.type}: {shared.title}   [{shared.origin}]", textwrap.fill(why, width)]
    if one.values:
        blocks.append(_values(one))
    same = [name for name in ("meaning", "in_smalti") if len({getattr(p, name) for p in one.places}) == 1]
    _add(blocks, "What it means", shared.meaning if "meaning" in same else "", width)
    if len({tuple(p.solutions) for p in one.places}) == 1:
        _list(blocks, "What to do", shared.solutions, width)
    _add(blocks, "In Smalti", shared.in_smalti if "in_smalti" in same else "", width)
    rows = []
    for place in one.places:
        types = f"{place.type}, " if len({p.type for p in one.places}) > 1 else ""
        where = f"{place.path}:{place.line}" if place.line else place.path
        rows.append(f"  {where} in {place.function}   {types}smalti explain {place.id}")
        if place.guard.get("1"):
            rows.append(f"      if {place.guard['1']}"[:width])
        ways = [e["entry"] or "any caller" for e in place.entries if e["verdict"] != "refuted"]
        if ways:
            rows.append(f"      called through {', '.join(ways[:4])}"[:width])
        elif place.entries:
            rows.append("      cannot be reached from the public entry points that were followed")
    blocks.append(f"Places ({len(one.places)})\n" + "\n".join(rows))
    return "\n\n".join(blocks)


def _values(one: Match) -> str:
    return "Your values\n" + "\n".join(f"  {name} = {_flat(value, 200)}" for name, value in one.values.items())


def _flat(text: str, most: int) -> str:
    flat = " ".join(text.split())
    return flat if len(flat) <= most else flat[: most - 1] + "…"


def match(one: Match, width: int = 100) -> str:
    """A page with the reason for it and the values of the message."""
    head = textwrap.fill(f"Found because {'; '.join(one.reasons)}.", width)
    return page(one.page, width, head + (f"\n\n{_values(one)}" if one.values else ""))


def page(one: Page, width: int = 100, head: str = "") -> str:
    """A page as text."""
    blocks = [f"{one.id}  {one.type}: {one.title}   [{one.origin}]"]
    if one.status.startswith("retired"):
        blocks.append(one.status)
    if head:
        blocks.append(head)
    if one.asynchronous:
        blocks.append("The line that reports this is not to blame: it happened earlier on the device.")
    _add(blocks, "Message", one.message, width)
    _add(blocks, "What it means", one.meaning, width)
    _list(blocks, "What to do", one.solutions, width)
    _add(blocks, "In Smalti", one.in_smalti, width)
    if one.path:
        place = f"{one.path}:{one.line}" if one.line else one.path
        blocks.append(f"Raised at\n  {place} in {one.function}" + (f" ({one.origin})" if one.line else ""))
    if one.excerpt:
        near = [(number, text) for number, text in one.excerpt if abs(number - one.line) <= NEAR]
        rows = [f"  {'>' if number == one.line else ' '} {number:>5}  {text}" for number, text in near]
        blocks.append("Source\n" + "\n".join(rows))
    blocks += [text for text in (_guard(one.guard), _reach(one.entries)) if text]
    if one.trigger != f"`{one.guard.get('1')}`":
        _add(blocks, "When it is raised", one.trigger, width)
    _list(blocks, "How people meet it", one.situations, width)
    examples = (("Works in Smalti", one.smalti_example), ("Fails", one.failing), ("Works", one.mended))
    for title, text in examples:
        if text:
            blocks.append(f"{title}\n{textwrap.indent(text, '  ')}")
    if one.tests:
        blocks.append(
            "Upstream tests that expect it\n"
            + "\n".join(f"  {t['file']}:{t['line']} {t['test']}" for t in one.tests[:4])
        )
    if family := families.table().get(one.family):
        _add(blocks, "This kind of failure", f"{family['title']}. {family['out']}", width)
    if one.related:
        blocks.append("Related\n" + "\n".join(f"  {i:<17} {t[:90]}" for i, t in one.related))
    proofs = "\n".join(f"  {p.statement}: {p.how}{f', {p.when}' if p.when else ''}" for p in one.proofs)
    blocks.append(f"How this is known\n{proofs}")
    return "\n\n".join(blocks)


def _add(blocks: list[str], title: str, text: str, width: int) -> None:
    if text:
        blocks.append(
            f"{title}\n" + textwrap.fill(" ".join(text.split()), width, initial_indent="  ", subsequent_indent="  ")
        )


def _list(blocks: list[str], title: str, items: list[str], width: int) -> None:
    if items:
        lines = [
            textwrap.fill(" ".join(item.split()), width, initial_indent=f"  {i}. ", subsequent_indent="     ")
            for i, item in enumerate(items, 1)
        ]
        blocks.append(title + "\n" + "\n".join(lines))


def _guard(guard: dict[str, Any]) -> str:
    if not guard.get("1"):
        return ""
    lines = [f"  tested          {guard['1']}"]
    before = guard.get("2", [])[:-1]
    if before:
        lines.append("  on the way      " + "\n                  ".join(before[-8:]))
    if guard.get("3"):
        lines.append(f"  in the terms of {guard['3 of']}\n                  {guard['3']}")
    return "Condition\n" + "\n".join(lines)


def _reach(entries: list[dict[str, Any]]) -> str:
    lines = []
    for one in entries:
        name = one["entry"] or "any caller"
        if one["verdict"] == "refuted":
            lines.append(f"  cannot be reached from {name}: {one['reason']}")
        else:
            way = " -> ".join(step["node"].rsplit(".", 1)[-1] for step in one["path"])
            weak = " (by name only)" if any(step["by"] == "name" for step in one["path"]) else ""
            lines.append(f"  can be reached from {name}{weak}" + (f"\n      by {way}" if len(one["path"]) > 1 else ""))
    return "Reachability\n" + "\n".join(lines) if lines else ""
