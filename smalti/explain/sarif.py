"""Rule metadata of the own codes in SARIF form, so that editors can show the pages. Data only."""

from __future__ import annotations

from importlib import metadata
from typing import Any

from smalti.errors.page import url
from smalti.explain import shipped


def rules() -> dict[str, Any]:
    """A SARIF 2.1.0 log without results: one rule a code."""
    try:
        version = metadata.version("smalti")
    except metadata.PackageNotFoundError:
        version = "0"
    found = [
        {
            "id": page.id,
            "name": "".join(word.capitalize() for word in page.title.split())[:80],
            "shortDescription": {"text": page.title},
            "fullDescription": {"text": page.meaning},
            "messageStrings": {"default": {"text": page.message}},
            "help": {"text": "\n".join(page.solutions)},
            "helpUri": url(page.id),
            "properties": {"family": page.family, "type": page.type},
        }
        for page in shipped.own_pages()
    ]
    driver = {"name": "Smalti", "semanticVersion": version, "rules": found}
    return {"version": "2.1.0", "runs": [{"tool": {"driver": driver}, "results": []}]}
