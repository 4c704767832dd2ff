"""The reference over HTTP: the pages of `site` and an API. Loopback by default, no cross-origin access by default.

Needs the extra `explain` (starlette, uvicorn). Reads stores; writes nothing.
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
import threading
from typing import Any
from urllib.parse import parse_qs

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from smalti.errors import SmaltiError
from smalti.explain import families, openapi, pages, shipped
from smalti.explain.record import Page
from smalti.explain.search import complete, find, indexed, page_of
from smalti.explain.site import IDENTIFIER, asset
from smalti.explain.store import Store
from smalti.explain.template import skeleton, words

LARGEST_BODY = 8 << 20
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
_REFUSED = {404: "no such path", 405: "no such method here"}
_SAFE = {
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'self'; script-src 'self'; form-action 'self'; base-uri 'none'"
    ),
}


class Reference:
    """What is served: shipped pages and stores. One lock, since a SQLite connection is used by one thread at a time."""

    def __init__(self, stores: list[Store]) -> None:
        self.stores = stores
        self.lock = threading.Lock()
        self.own = {p.id: p for p in shipped.own_pages()}
        self.shipped = {**self.own, **{p.id: p for p, _ in shipped.fault_pages()}}
        self.shipped.update({p.id: p for p in shipped.known_pages()})

    def page(self, identifier: str) -> Page | None:
        with self.lock:
            if (shipped_page := self.shipped.get(identifier)) is not None:
                return (indexed(shipped_page, self.stores) if shipped_page.kind == "known" else None) or shipped_page
            for store in self.stores:
                if (record := store.row(identifier)) is not None:
                    return complete(page_of(record, store), store)
        return None

    def search(self, query: dict[str, str], limit: int, offset: int) -> list[Page]:
        package = query.get("package", "")
        found: list[Page] = []
        with self.lock:
            for store in self.stores:
                if package in ("", store.package):
                    rows = store.search(
                        query.get("q", ""), type=query.get("type", ""), family=query.get("family", ""),
                        function=query.get("function", ""), limit=limit + offset,
                    )  # fmt: skip
                    found += [page_of(row, store) for row in rows]
        indexed_texts = {skeleton(p.message) for p in found}
        for page in self.shipped.values() if package in ("", "smalti") else ():
            if _fits(page, query) and not (page.kind == "known" and skeleton(page.message) in indexed_texts):
                found.append(page)
        return found[offset : offset + limit]

    def families(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for page in self.shipped.values():
            counts[page.family] = counts.get(page.family, 0) + 1
        with self.lock:
            for store in self.stores:
                for name, count in store.families().items():
                    counts[name] = counts.get(name, 0) + count
        return counts

    def match(self, text: str) -> Any:
        with self.lock:
            return find(text, self.stores)


def _fits(page: Page, query: dict[str, str]) -> bool:
    if any(query.get(name) and getattr(page, name) != query[name] for name in ("type", "family", "function")):
        return False
    text = f"{page.id} {page.type} {page.message} {page.title} {page.meaning}".lower()
    return all(word in text for word in words(query.get("q", "")))


def any_host(host: str) -> bool:
    """Whether listening on `host` means every address, so that no Host header can be called foreign."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_unspecified
    except ValueError:
        return not host


class _Hosts:
    """Refuses (400) what names another host: a foreign name that was made to resolve to this machine is not asked here.

    Besides the given names the address that the connection came to is one: a page's own name is never an address.
    """

    def __init__(self, app: ASGIApp, names: list[str]) -> None:
        self.app, self.names = app, names

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        came_to = _bracketed((scope.get("server") or ("localhost", None))[0])
        checked = TrustedHostMiddleware(self.app, [*self.names, came_to], www_redirect=False)
        await checked(scope, receive, send)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host


def application(stores: list[Store], allow_origin: str = "", host: str = "127.0.0.1") -> Starlette:
    """The ASGI application over these stores. `host` is the name or address listened on: with the loopback names the
    only ones that a Host header may hold (others get 400), unless it means every address (see `any_host`)."""
    reference = Reference(stores)

    def reply(request: Request, body: str, kind: str, status: int = 200) -> Response:
        tag = '"' + hashlib.sha256(body.encode()).hexdigest()[:32] + '"'
        headers = {"ETag": tag, "Cache-Control": "no-cache", **_SAFE}
        if allow_origin:
            headers["Access-Control-Allow-Origin"] = allow_origin
        if status == 200 and tag in request.headers.get("if-none-match", ""):
            return Response(status_code=304, headers=headers)
        return Response(body, status, headers, media_type=kind)

    def as_json(request: Request, data: Any, status: int = 200) -> Response:
        return reply(request, json.dumps(data), "application/json", status)

    def as_page(request: Request, body: str, status: int = 200) -> Response:
        return reply(request, body, "text/html; charset=utf-8", status)

    def missing(request: Request) -> Response:
        return as_page(request, pages.frame("Not found", "<h1>No such page</h1>", "/"), 404)

    async def api_error(request: Request) -> Response:
        identifier = request.path_params["id"].removesuffix(".json")
        found = await run_in_threadpool(reference.page, identifier) if IDENTIFIER.match(identifier) else None
        if found is None:
            return as_json(request, {"error": "no such id"}, 404)
        return as_json(request, found.as_json())

    async def api_search(request: Request) -> Response:
        query = {k: v[:2000] for k, v in request.query_params.items()}
        try:
            limit, offset = _number(query, "limit"), _number(query, "offset")
        except ValueError as refused:
            return as_json(request, {"error": str(refused)}, 400)
        found = await run_in_threadpool(reference.search, query, limit, offset)
        return as_json(request, {"errors": [p.as_json() for p in found], "limit": limit, "offset": offset})

    async def api_match(request: Request) -> Response:
        text = await _body(request)
        if text is None:
            return as_json(request, {"error": f"more than {LARGEST_BODY} bytes"}, 413)
        try:
            answer = await run_in_threadpool(reference.match, text)
        except SmaltiError as refused:
            return as_json(request, {"error": str(refused), "code": refused.code}, 404)
        return as_json(request, answer.as_json())

    async def api_families(request: Request) -> Response:
        counts = await run_in_threadpool(reference.families)
        table = {
            n: {**{k: p[k] for k in ("title", "what", "how", "out")}, "pages": counts.get(n, 0)}
            for n, p in families.table().items()
        }
        return as_json(request, {"families": table})

    async def one_page(request: Request) -> Response:
        identifier = request.path_params["id"].removesuffix(".html")
        found = await run_in_threadpool(reference.page, identifier) if IDENTIFIER.match(identifier) else None
        return missing(request) if found is None else as_page(request, pages.page(found))

    async def home(request: Request) -> Response:
        query = {k: v[:2000] for k, v in request.query_params.items()}
        counts = await run_in_threadpool(reference.families)
        asked, family = query.get("q", ""), query.get("family", "")
        body = pages.home(counts, sum(counts.values()), served=True, asked=asked, family=family)
        if query.get("q") or query.get("family"):
            found = await run_in_threadpool(reference.search, query, 100, 0)
            rows = [(p.id, p.type, p.message or p.title, f"{p.path}:{p.line}" if p.line else p.origin) for p in found]
            body += f"<h2>{len(rows)} found</h2>" + pages.listing(rows, "")
        return as_page(request, pages.frame("Error reference", body))

    async def match_page(request: Request) -> Response:
        text = await _body(request)
        if text is None:
            return as_page(request, pages.frame("Too long", "<h1>Too long</h1>"), 413)
        try:
            answer = await run_in_threadpool(reference.match, text)
        except SmaltiError as refused:
            return as_page(request, pages.frame("Not found", f"<h1>{pages.esc(refused)}</h1>"), 404)
        return as_page(request, pages.answer(answer))

    async def families_page(request: Request) -> Response:
        return as_page(request, pages.families_page(await run_in_threadpool(reference.families)))

    async def report(request: Request) -> Response:
        return as_page(request, pages.frame("Report a wrong page", pages.REPORT))

    async def assets(request: Request) -> Response:
        kinds = {"style.css": "text/css", "search.js": "text/javascript"}
        name = request.path_params["name"]
        return reply(request, asset(name), kinds[name]) if name in kinds else missing(request)

    async def description(request: Request) -> Response:
        return as_json(request, openapi.document())

    async def refused(request: Request, failed: Exception) -> Response:
        """What no route answers: JSON below /api, a page elsewhere."""
        assert isinstance(failed, HTTPException)
        if request.scope["path"].split("/")[1:2] == ["api"]:
            answer = as_json(request, {"error": _REFUSED.get(failed.status_code, failed.detail)}, failed.status_code)
        elif failed.status_code == 404:
            answer = missing(request)
        else:
            answer = as_page(
                request, pages.frame("Refused", f"<h1>{pages.esc(failed.detail)}</h1>"), failed.status_code
            )
        answer.headers.update(failed.headers or {})
        return answer

    names = ["*"] if any_host(host) else [*LOOPBACK, _bracketed(host)]

    return Starlette(
        routes=[
            Route("/", home), Route("/index.html", home), Route("/errors/{id}", one_page),
            Route("/match.html", match_page, methods=["POST"]), Route("/families.html", families_page),
            Route("/report.html", report), Route("/assets/{name}", assets), Route("/api/errors", api_search),
            Route("/api/errors/{id}", api_error), Route("/api/match", api_match, methods=["POST"]),
            Route("/api/families", api_families), Route("/api/openapi.json", description),
            Route("/openapi.json", description),
        ],
        exception_handlers={HTTPException: refused},
        middleware=[Middleware(_Hosts, names=names)],
    )  # fmt: skip


def _number(query: dict[str, str], name: str) -> int:
    """The value of a numeric parameter; ValueError says the legal range."""
    default, least, most = openapi.NUMBERS[name]
    text = query.get(name, str(default))
    if re.fullmatch("[0-9]{1,9}", text) is None or not least <= int(text) <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}, not {text[:40]!r}")
    return int(text)


async def _body(request: Request) -> str | None:
    """The text that was posted: plain, JSON {text}, or a form; None where it is too long."""
    data = b""
    async for chunk in request.stream():
        data += chunk
        if len(data) > LARGEST_BODY:
            return None
    kind = request.headers.get("content-type", "").split(";")[0]
    text = data.decode("utf-8", errors="replace")
    if kind == "application/json":
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            return text
        return str(found.get("text", "")) if isinstance(found, dict) else text
    if kind == "application/x-www-form-urlencoded":
        try:  # clients that post plain text call it a form too
            return parse_qs(text, max_num_fields=4).get("text", [text])[0]
        except ValueError:
            return text
    return text
