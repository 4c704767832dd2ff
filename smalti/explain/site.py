"""The reference as files: a static site with JSON beside it, working from file:// and any static host."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import replace
from importlib import resources
from pathlib import Path

from smalti.errors import error
from smalti.explain import openapi, pages, shipped
from smalti.explain.record import Page
from smalti.explain.search import complete, indexed, page_of
from smalti.explain.store import Store
from smalti.explain.template import skeleton, words

IDENTIFIER = re.compile(r"[A-Za-z0-9]{4,32}\Z")


def put(path: Path, text: str) -> None:
    """Write a file aside and put it in place. Errors: SML1208."""
    aside = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(text, encoding="utf-8", newline="\n")
        os.replace(aside, path)
    except OSError as failed:
        aside.unlink(missing_ok=True)
        raise error("SML1208", path=str(path), reason=str(failed)) from None


def all_pages(stores: list[Store]) -> Iterator[tuple[Page, Store | None]]:
    """Every page once: own codes, faults, indexed sites (the first store of an id wins), known refusals.

    A known refusal that is indexed is the indexed page under its other id.
    """
    for page in shipped.own_pages():
        yield page, None
    for page, _ in shipped.fault_pages():
        yield page, None
    seen: set[str] = set()
    for store in stores:
        for record in store.all():
            if record["id"] not in seen:
                seen.add(record["id"])
                yield page_of(record, store), store
    for page in shipped.known_pages():
        found = indexed(page, stores)
        also = [] if found is None else [*found.also, (found.id, "the indexed site")]
        yield (page if found is None else replace(found, id=page.id, also=also)), None


def asset(name: str) -> str:
    """The text of a style sheet or script that is shipped."""
    return (resources.files("smalti.explain") / "assets" / name).read_text(encoding="utf-8")


def export(directory: Path, stores: list[Store]) -> int:
    """Write the site into `directory`; gives the number of pages. Errors: SML1208."""
    counts: dict[str, int] = {}
    rows = []
    sources: dict[tuple[int, str], list[str]] = {}
    for page, store in all_pages(stores):
        assert IDENTIFIER.match(page.id), page.id
        if store is not None:
            key = (id(store), page.path)
            if key not in sources:
                sources.clear()
                sources[key] = store.source(page.path)
            complete(page, store, sources[key])
        put(directory / "errors" / f"{page.id}.html", pages.page(page))
        put(directory / "api" / "errors" / f"{page.id}.json", json.dumps(page.as_json()))
        if page.kind in ("raise", "assert") and store is None:  # listed under its own id
            continue
        counts[page.family] = counts.get(page.family, 0) + 1
        place = f"{page.path}:{page.line}" if page.line else page.path or page.origin
        text = " ".join(
            words(f"{page.id} {page.type} {skeleton(page.message)} {page.title} {page.function} {page.path}")
        )
        rows.append([page.id, page.type, (page.message or page.title)[:160], page.family, text[:400], place])
    for name in ("style.css", "search.js"):
        put(directory / "assets" / name, asset(name))
    put(directory / "assets" / "pages.js", "window.SMALTI_PAGES = " + _script(rows) + ";\n")
    put(directory / "families.html", pages.families_page(counts))
    put(directory / "report.html", pages.frame("Report a wrong page", pages.REPORT))
    put(
        directory / "index.html",
        pages.frame(
            "Error reference", pages.home(counts, len(rows), served=False) + '<ul class="list" id="results"></ul>'
        ),
    )
    put(directory / "api" / "families.json", json.dumps({"families": counts}))
    put(directory / "api" / "openapi.json", json.dumps(openapi.document(), indent=1))
    return len(rows)


def _script(data: object) -> str:
    """JSON that is safe inside a script file and a script element."""
    return json.dumps(data).replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
