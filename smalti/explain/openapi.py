"""The OpenAPI document of what `serve` answers; its schemas are made from the records."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from smalti.explain.record import Answer, Match, Page

NUMBERS = {"limit": (50, 1, 200), "offset": (0, 0, 100_000)}  # numeric parameters: default, least, most


def document() -> dict[str, Any]:
    """OpenAPI 3.1 description of the API."""
    page = {"$ref": "#/components/schemas/Page"}

    def text(name: str, about: str) -> dict[str, Any]:
        return {"name": name, "in": "query", "description": about, "schema": {"type": "string", "maxLength": 2000}}

    def number(name: str) -> dict[str, Any]:
        default, least, most = NUMBERS[name]
        schema = {"type": "integer", "default": default, "minimum": least, "maximum": most}
        return {"name": name, "in": "query", "schema": schema}

    def refused(about: str) -> dict[str, Any]:
        return {"description": about, "content": {"application/json": {"schema": _ERROR}}}

    def ok(schema: dict[str, Any]) -> dict[str, Any]:
        return {"200": {"description": "found", "content": {"application/json": {"schema": schema}}}}

    return {
        "openapi": "3.1.0",
        "info": {"title": "Smalti error reference", "version": "1"},
        "paths": {
            "/api/errors/{id}": {
                "get": {
                    "summary": "One page by its id, an older id, or an id of another catalogue",
                    "parameters": [{"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}],
                    "responses": {
                        **ok(page),
                        "304": {"description": "unchanged"},
                        "404": refused("no such id"),
                    },
                }
            },
            "/api/errors": {
                "get": {
                    "summary": "Full-text search with filters",
                    "parameters": [
                        text("q", "words that must occur; the last may be a beginning"),
                        text("package", "package name"),
                        text("type", "exception type"),
                        text("family", "family"),
                        text("function", "function, its last name or fully dotted"),
                        *map(number, NUMBERS),
                    ],
                    "responses": {
                        **ok({"type": "object", "properties": {"errors": {"type": "array", "items": page}}}),
                        "400": refused("a number that is none, or outside its range"),
                    },
                }
            },
            "/api/match": {
                "post": {
                    "summary": "Pages for a traceback, message or code (the body is the text, or JSON {text})",
                    "requestBody": {"content": {"text/plain": {"schema": {"type": "string"}}}},
                    "responses": {
                        **ok({"$ref": "#/components/schemas/Answer"}),
                        "404": refused("a code that never existed"),
                        "413": refused("too long"),
                    },
                }
            },
            "/api/families": {
                "get": {"summary": "Families with counts and background", "responses": ok({"type": "object"})}
            },
        },
        "components": {"schemas": {one.__name__: _schema(one) for one in (Page, Match, Answer)}},
    }


_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {"error": {"type": "string"}, "code": {"type": "string", "pattern": "^SML[0-9]{4}$"}},
}
_TYPES = {"str": "string", "int": "integer", "bool": "boolean", "list": "array", "dict": "object", "Page": "object"}


def _schema(record: type[Page | Match | Answer]) -> dict[str, Any]:
    """The JSON form of a record: a property for each field that it shows."""
    shown = record(*_BLANK[record]).as_json()
    types = {f.name: _TYPES[str(f.type).split("[")[0]] for f in fields(record)}
    properties = {name: {"type": types.get(name, "integer")} for name in shown} | _REFERENCES.get(record, {})
    return {"type": "object", "required": sorted(properties), "properties": properties}


_PAGE = Page("", "", "", "", "")
_BLANK: dict[type, tuple[Any, ...]] = {Page: ("", "", "", "", ""), Match: (_PAGE, "", []), Answer: ("",)}
_REFERENCES: dict[type, dict[str, Any]] = {
    Match: {"page": {"$ref": "#/components/schemas/Page"}},
    Answer: {"matches": {"type": "array", "items": {"$ref": "#/components/schemas/Match"}}},
}
