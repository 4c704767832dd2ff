"""Pages as HTML. Everything that comes from an entry, an index or a question is escaped here, at one place.

Knows how a page looks, not where it comes from; links are relative, so that pages work from any place.
"""

from __future__ import annotations

import difflib
import html
import os
import re
from collections.abc import Iterable
from typing import Any
from urllib.parse import quote

from smalti.explain import families
from smalti.explain.record import Answer, Match, Page

_CODE = re.compile(r"`([^`]{1,300})`")


def esc(text: object) -> str:
    """Text for HTML, attributes included."""
    return html.escape(str(text), quote=True)


def frame(title: str, body: str, up: str = "") -> str:
    """A whole document; `up` leads to the root ('' or '../')."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{esc(title)}</title><link rel="stylesheet" href="{up}assets/style.css">'
        f'<script defer src="{up}assets/search.js"></script></head><body>'
        '<a class="skip" href="#main">Skip to the page</a>'
        f'<header><a href="{up}index.html"><strong>Error reference</strong></a>'
        f'<a href="{up}families.html">Families</a></header><main id="main">{body}</main>'
        "<footer>Press / to search. Statements say how they were obtained; nothing of an indexed package was run "
        "unless a statement says executed.</footer></body></html>\n"
    )


def page(one: Page, up: str = "../") -> str:
    """The document of one page."""
    parts = [
        f'<p class="tags">{esc(one.origin)} · {esc(one.kind)} · {esc(one.type)} · '
        f'<a href="{up}families.html#{esc(one.family)}">{esc(one.family)}</a></p>',
        f"<h1>{esc(one.title)}</h1>",
    ]
    if one.status.startswith("retired"):
        parts.append(f'<p class="warn">This code is {esc(one.status)}; the page stays.</p>')
    if one.asynchronous:
        parts.append('<p class="warn">Reported late: the line that shows it is not to blame.</p>')
    if one.message:
        text = f"{esc(one.type)}: {esc(one.message)}"
        parts.append(f'<h2 id="message">Error message</h2><pre class="message" tabindex="0">{text}</pre>')
    parts += [_text("What it means", one.meaning), _list("Solutions", one.solutions, "ol")]
    parts.append(_text("In Smalti", one.in_smalti, "answer"))
    if one.smalti_example:
        parts.append(
            f'<details><summary>A program that does it, run by the tests</summary><pre tabindex="0">'
            f"{esc(one.smalti_example)}</pre></details>"
        )
    parts.append(_reach(one.entries))
    parts.append(_guard(one))
    parts.append(_source(one))
    if one.trigger != f"`{one.guard.get('1')}`":
        parts.append(_text("When it is raised", one.trigger))
    parts.append(_list("Situations", one.situations, "ul"))
    parts += [_example(one), _background(one, up)]
    if one.tests:
        rows = "".join(f"<li><code>{esc(t['file'])}:{t['line']}</code> {esc(t['test'])}</li>" for t in one.tests)
        parts.append(f"<h2>Upstream tests that expect it</h2><ul>{rows}</ul>")
    if one.related:
        rows = "".join(f'<li><a href="{esc(i)}.html">{esc(t or i)}</a></li>' for i, t in one.related)
        parts.append(f"<h2>Related</h2><ul>{rows}</ul>")
    parts.append(_proofs(one))
    if one.also:
        rows = "".join(f"<li><code>{esc(i)}</code> {esc(reason)}</li>" for i, reason in one.also)
        parts.append(f"<h2>Other ids and versions</h2><ul>{rows}</ul>")
    parts.append(_report(one, up))
    return frame(f"{one.type}: {one.title}", "".join(parts), up)


def _text(title: str, text: str, kind: str = "") -> str:
    mark = f' class="{kind}"' if kind else ""
    return f"<h2>{title}</h2><p{mark}>{prose(text)}</p>" if text else ""


def prose(text: str) -> str:
    """Running text for HTML, with `code` as such."""
    return _CODE.sub(r"<code>\1</code>", esc(" ".join(text.split())))


def _list(title: str, items: list[str], tag: str) -> str:
    if not items:
        return ""
    return f"<h2>{title}</h2><{tag}>{''.join(f'<li>{prose(item)}</li>' for item in items)}</{tag}>"


def _guard(one: Page) -> str:
    guard = one.guard
    if not guard.get("1"):
        return ""
    rows = [f"<tr><th>innermost test</th><td><code>{esc(guard['1'])}</code></td></tr>"]
    if guard.get("2"):
        steps = "<br>".join(f"<code>{esc(step)}</code>" for step in guard["2"])
        rows.append(f"<tr><th>whole way in this function</th><td>{steps}</td></tr>")
    if guard.get("3"):
        rows.append(
            f"<tr><th>in the parameters of<br><code>{esc(guard['3 of'])}</code></th>"
            f"<td><code>{esc(guard['3'])}</code></td></tr>"
        )
    if one.executed:
        rows.append(f"<tr><th>confirmed by execution</th><td>{esc(len(one.executed))} trigger(s)</td></tr>")
    return f"<h2>Guard</h2><table>{''.join(rows)}</table>"


def _reach(entries: list[dict[str, Any]]) -> str:
    rows = []
    for entry in entries:
        name = esc(entry["entry"] or "any caller")
        if entry["verdict"] == "refuted":
            rows.append(f"<li>not reachable from <code>{name}</code>: {prose(entry['reason'])}</li>")
        else:
            way = " → ".join(esc(step["node"].rsplit(".", 1)[-1]) for step in entry["path"])
            weak = " (one step is by method name only)" if any(s["by"] == "name" for s in entry["path"]) else ""
            rows.append(f"<li>reachable from <code>{name}</code>{weak}<br><small>{way}</small></li>")
    return f"<h2>Reachability</h2><ul>{''.join(rows)}</ul>" if rows else ""


def _source(one: Page) -> str:
    if not one.path:
        return ""
    place = f"{one.path}:{one.line}" if one.line else one.path
    version = f" at {one.origin}" + (f", commit {one.commit[:12]}" if one.commit else "")
    head = (
        f"<h2>Source</h2><p>Raised at <code>{esc(place)}</code> in <code>{esc(one.function)}</code>{esc(version)}.</p>"
    )
    rows = []
    for number, line in one.excerpt:
        text = f"{number:>5}  {esc(line)}"
        rows.append(f'<span class="at" aria-label="raised here">{text}</span>' if number == one.line else text)
    return f'{head}<pre tabindex="0">{chr(10).join(rows)}</pre>' if rows else head


def _example(one: Page) -> str:
    if not one.failing:
        return ""
    if not one.mended:
        return f'<h2>Example that raises it</h2><pre tabindex="0">{esc(one.failing)}</pre>'
    lines = difflib.ndiff(one.failing.splitlines(), one.mended.splitlines())
    rows = []
    for line in lines:
        if line.startswith("?"):
            continue
        kind = {"-": "out", "+": "in"}.get(line[0])
        rows.append(f'<span class="{kind}">{esc(line)}</span>' if kind else esc(line))
    return f'<h2>Example: fails (-), works (+)</h2><pre tabindex="0">{chr(10).join(rows)}</pre>'


def _background(one: Page, up: str) -> str:
    family = families.table().get(one.family)
    if family is None:
        return ""
    return (
        f'<h2>This kind of failure</h2><p><a href="{up}families.html#{esc(one.family)}">{esc(family["title"])}</a>. '
        f"{esc(family['what'])} {esc(family['out'])}</p>"
    )


def _proofs(one: Page) -> str:
    rows = "".join(
        f"<tr><td>{esc(p.statement)}</td><td>{esc(p.how)}</td><td>{esc(p.when)}</td></tr>" for p in one.proofs
    )
    return (
        f"<h2>How this is known</h2><table><tr><th>statement</th><th>obtained by</th><th>when</th></tr>{rows}</table>"
    )


def _report(one: Page, up: str) -> str:
    base = os.environ.get("SMALTI_REPORT_URL", "")
    target = base if base.startswith("https://") else f"{up}report.html"
    return (
        f'<p><a href="{esc(target)}?title={quote("wrong page " + one.id)}">Report a wrong page</a> · '
        f'<a href="{up}api/errors/{esc(one.id)}.json">This page as JSON</a></p>'
    )


def listing(rows: Iterable[tuple[str, str, str, str]], up: str) -> str:
    """A list of (id, type, message, place)."""
    items = "".join(
        f'<li><a href="{up}errors/{esc(i)}.html">{esc(t)}: {esc(m[:160])}</a><small>{esc(place)}</small></li>'
        for i, t, m, place in rows
    )
    return f'<ul class="list" id="results">{items}</ul>'


def families_page(counts: dict[str, int]) -> str:
    """Background pages of all families on one page."""
    parts = ["<h1>Families of failures</h1>"]
    for name, page in families.table().items():
        tags = f"{esc(name)} · {counts.get(name, 0)} pages"
        parts.append(
            f'<h2 id="{esc(name)}">{esc(page["title"])}</h2><p class="tags">{tags}</p>'
            f"<p>{esc(page['what'])}</p><p><strong>How libraries raise it.</strong> {esc(page['how'])}</p>"
            f"<p><strong>The way out.</strong> {esc(page['out'])}</p>"
        )
    return frame("Families of failures", "".join(parts))


def home(counts: dict[str, int], total: int, served: bool, asked: str = "", family: str = "") -> str:
    """The start page: search (`asked`, in a `family`), and for a server the box that takes a traceback."""
    options = "".join(
        f'<option value="{esc(n)}"{" selected" * (n == family)}>{esc(n)} ({c})</option>'
        for n, c in sorted(counts.items())
    )
    paste = (
        '<h2>Paste a traceback</h2><form method="post" action="match.html"><label for="t">Traceback or message</label>'
        '<textarea id="t" name="text"></textarea><p><button>Explain</button></p></form>'
        if served
        else '<script src="assets/pages.js"></script>'
    )
    form = (
        '<form method="get" action="index.html"><p><label for="q">Search messages, functions, types</label>'
        f'<input type="search" id="q" name="q" value="{esc(asked)}" autocomplete="off"></p>'
        '<p><label for="family">Family</label> '
        f'<select id="family" name="family"><option value="">all</option>{options}</select> '
        '<button>Search</button> <span id="state" role="status"></span></p></form>'
    )
    return f"<h1>Error reference</h1><p>{total} pages.</p>{paste if not served else ''}{form}{paste if served else ''}"


def answer(found: Answer) -> str:
    """The result of a question, as a document."""
    notes = "".join(f'<p class="warn">{esc(note)}</p>' for note in found.notes)
    head = "Several pages fit equally well" if found.tied else "Found"
    if found.matches and found.matches[0].places and not found.tied:
        head = f"One text, raised at {len(found.matches[0].places)} places"
    if not found.matches:
        head, notes = "Nothing found", "<p>Try fewer words, or index the package that raised it.</p>"
    items = "".join(_match(one) for one in found.matches)
    return frame("Explanation", f'<h1>{head}</h1>{notes}<ul class="list">{items}</ul>')


def _match(one: Match) -> str:
    values = "".join(f"<br><code>{esc(n)} = {esc(v[:200])}</code>" for n, v in one.values.items())
    text = f"{one.page.type}: {one.page.message or one.page.title}"
    reasons = f"<small>{esc(one.certainty)}: {esc('; '.join(one.reasons))}</small>{values}"
    if not one.places:
        return f'<li><a href="errors/{esc(one.page.id)}.html">{esc(text)}</a>{reasons}</li>'
    rows = "".join(
        f'<li><a href="errors/{esc(p.id)}.html">{esc(f"{p.path}:{p.line}" if p.line else p.path)}</a> '
        f"in <code>{esc(p.function)}</code>"
        f"<small>if <code>{esc(p.guard.get('1', p.trigger))}</code></small></li>"
        for p in one.places
    )
    return f"<li>{esc(text)}{reasons}<ul>{rows}</ul></li>"


REPORT = (
    "<h1>Report a wrong page</h1><p>Say which page (its id is in the address you came from), which statement is wrong, "
    "and how you know: a call and what it raised, with versions. Send it to whoever gave you this site; "
    "for Smalti's own pages, open an issue in its repository.</p>"
)
