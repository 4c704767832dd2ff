"""Rule metadata of pages in SARIF form, so that editors can show them. Data only."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import metadata
from typing import Any

from smalti.errors.page import url
from smalti.explain import shipped
from smalti.explain.record import Page
from smalti.explain.template import chunks

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"


def rules(pages: Iterable[Page] | None = None, name: str = "Smalti", version: str = "") -> dict[str, Any]:
    """A SARIF 2.1.0 log without results: one rule a page, of the own codes or of those given."""
    if pages is None:
        pages, version = shipped.own_pages(), _version()
    driver = {"name": name, "version": version, "rules": [_rule(page) for page in pages]}
    return {"$schema": SCHEMA, "version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": []}]}


def _rule(page: Page) -> dict[str, Any]:
    named = "".join(word.capitalize() for word in page.title.split() if word.isidentifier())
    return {
        "id": page.id,
        "name": (named or page.id)[:80],
        "shortDescription": {"text": page.title},
        "fullDescription": {"text": page.meaning or page.trigger or page.title},
        "messageStrings": {"default": {"text": _numbered(page.message)}},
        "help": {"text": "\n".join(page.solutions) or page.title},
        "helpUri": url(page.id),
        "properties": {"family": page.family, "type": page.type},
    }


def _numbered(message: str) -> str:
    """The text with holes `{0}`, `{1}`: SARIF knows no names."""
    text, number = "", 0
    for literal, hole in chunks(message):
        text += literal.replace("{", "{{").replace("}", "}}")
        if hole is not None:
            text, number = f"{text}{{{number}}}", number + 1
    return text or "-"


def _version() -> str:
    try:
        return metadata.version("smalti")
    except metadata.PackageNotFoundError:
        return "0"
