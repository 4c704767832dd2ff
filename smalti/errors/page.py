"""The page of a code as plain text, and its address. Reads entries; decides nothing about them."""

from __future__ import annotations

import os
import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smalti.errors import SmaltiError
    from smalti.errors.catalogue import Entry

SERVED = "http://127.0.0.1:8642"  # where `smalti serve` answers unless told otherwise


def url(code: str) -> str:
    """Address of the page: below $SMALTI_ERRORS_URL (an exported site), else the local server."""
    return f"{os.environ.get('SMALTI_ERRORS_URL', SERVED).rstrip('/')}/errors/{code}.html"


def render(entry: Entry, raised: SmaltiError | None = None, width: int = 100) -> str:
    """The page of `entry`; with `raised`, its message and values come first."""
    blocks = [f"{entry.code}  {entry.title}  ({entry.type}, family {entry.family})"]
    if entry.removed:
        blocks.append(f"Retired: not raised since {entry.removed}.")
    if raised is not None:
        where = f"\n  at {raised.location}" if raised.location else ""
        blocks.append(f"Here\n  {raised.message}{where}")
    blocks.append(f"Message\n  {entry.message}")
    for heading, text in (("What it means", entry.meaning), ("When it is raised", entry.trigger)):
        blocks.append(f"{heading}\n{_paragraph(text, width)}")
    blocks.append(f"Condition\n{textwrap.indent(entry.guard, '  ')}")
    blocks.append("How people meet it\n" + _bullets(entry.situations, "-", width))
    blocks.append("What to do\n" + _bullets(entry.solutions, "", width))
    blocks.append("Fails\n" + textwrap.indent(entry.failing, "  "))
    blocks.append("Works\n" + textwrap.indent(entry.mended, "  "))
    if entry.related:
        blocks.append("Related\n  " + ", ".join(entry.related))
    if entry.source:
        blocks.append(f"Source\n{_paragraph(entry.source, width)}")
    since = f"since {entry.introduced}" + (f", until {entry.removed}" if entry.removed else "")
    blocks.append(f"Both examples are executed by Smalti's own tests. In Smalti {since}.")
    return "\n\n".join(blocks) + "\n"


def _paragraph(text: str, width: int) -> str:
    return "\n\n".join(
        textwrap.fill(" ".join(p.split()), width, initial_indent="  ", subsequent_indent="  ")
        for p in text.split("\n\n")
    )


def _bullets(items: tuple[str, ...], mark: str, width: int) -> str:
    lines = []
    for number, item in enumerate(items, 1):
        head = f"  {mark or f'{number}.'} "
        lines.append(
            textwrap.fill(" ".join(item.split()), width, initial_indent=head, subsequent_indent=" " * len(head))
        )
    return "\n".join(lines)
