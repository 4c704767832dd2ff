"""The OpenAPI document of what `serve` answers. Data only."""

from __future__ import annotations

from typing import Any


def document() -> dict[str, Any]:
    """OpenAPI 3.1 description of the API."""
    page = {"$ref": "#/components/schemas/Page"}

    def text(name: str, about: str) -> dict[str, Any]:
        return {"name": name, "in": "query", "description": about, "schema": {"type": "string", "maxLength": 2000}}

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
                        "404": {"description": "no such id"},
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
                        {"name": "limit", "in": "query", "schema": {"type": "integer", "minimum": 1, "maximum": 200}},
                        {"name": "offset", "in": "query", "schema": {"type": "integer", "minimum": 0}},
                    ],
                    "responses": ok({"type": "object", "properties": {"errors": {"type": "array", "items": page}}}),
                }
            },
            "/api/match": {
                "post": {
                    "summary": "Pages for a traceback, message or code (the body is the text, or JSON {text})",
                    "requestBody": {"content": {"text/plain": {"schema": {"type": "string"}}}},
                    "responses": {**ok({"type": "object"}), "413": {"description": "too long"}},
                }
            },
            "/api/families": {
                "get": {"summary": "Families with counts and background", "responses": ok({"type": "object"})}
            },
        },
        "components": {
            "schemas": {
                "Page": {
                    "type": "object",
                    "required": ["format", "id", "origin", "kind", "type", "message"],
                    "properties": {
                        "format": {"type": "integer"},
                        "id": {"type": "string"},
                        "origin": {"type": "string"},
                        "kind": {"enum": ["own", "raise", "assert", "fault", "known"]},
                        "type": {"type": "string"},
                        "message": {"type": "string"},
                    },
                }
            }
        },
    }
