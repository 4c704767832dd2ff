"""Trees of libcst read quickly: child nodes that carry meaning, names and calls in an expression, parameters.

Knows nodes only: no functions, no files.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import libcst as cst

from smalti.explain.index.text import code, dotted

_SKIPPED = {
    "lpar", "rpar", "comma", "semicolon", "leading_lines", "header", "footer", "lines_after_decorators",
    "leading_whitespace", "trailing_whitespace", "equal", "dot", "operator", "asynchronous", "lbracket",
    "rbracket", "lbrace", "rbrace", "newline", "comment", "indent", "colon",
}  # fmt: skip
_FIELDS: dict[type, tuple[str, ...]] = {cst.Name: (), cst.SimpleString: (), cst.Integer: (), cst.Float: ()}
_SILENT = frozenset([cst.Annotation, cst.SimpleString, cst.Integer, cst.Float])
_NO_NODES = frozenset([str, bool, int, cst.MaybeSentinel])


def children(node: cst.CSTNode) -> list[cst.CSTNode]:
    """Child nodes that carry meaning, in order."""
    kind = type(node)
    names = _FIELDS.get(kind)
    if names is None:
        names = tuple(
            f.name for f in dataclasses.fields(kind) if not f.name.startswith("whitespace") and f.name not in _SKIPPED
        )
        _FIELDS[kind] = names
    found: list[cst.CSTNode] = []
    for name in names:
        value = getattr(node, name)
        if value is None:
            continue
        made = value.__class__
        if made is list or made is tuple:
            found.extend(value)
        elif made not in _NO_NODES:
            found.append(value)
    return found


def small_statements(node: cst.CSTNode) -> Any:
    """The statements of one line, or the one of a suite that stands behind its colon; None for a compound one."""
    if isinstance(node, cst.SimpleStatementLine):
        return node.body
    return (node,) if isinstance(node, cst.BaseSmallStatement) else None


def mentions(node: cst.CSTNode, names: set[str], calls: list[cst.Call] | None = None) -> None:
    """Dotted names in an expression or simple statement, and its calls."""
    stack: list[Any] = [node]
    while stack:
        one = stack.pop()
        kind = one.__class__
        if kind is cst.Name:
            names.add(one.value)
        elif kind is cst.Attribute:
            name, inner = dotted(one), one.value
            if name:
                names.add(name)
            if inner.__class__ is cst.Attribute:
                if not name.lstrip(".").count("."):
                    stack.append(inner)
            elif inner.__class__ is not cst.Name:
                stack.append(inner)
        elif kind is cst.Arg:
            stack.append(one.value)
        elif kind not in _SILENT:
            if calls is not None and kind is cst.Call:
                calls.append(one)
            stack.extend(children(one))


def parameters(node: cst.FunctionDef) -> list[tuple[str, str, str | None]]:
    """(name, kind, default text) of each parameter; kinds: place, star, named, spread."""
    p = node.params
    found: list[tuple[str, str, str | None]] = []

    def add(params: Any, kind: str) -> None:
        for one in params:
            default = code(one.default)[:120] if one.default is not None else None
            found.append((one.name.value, kind, default))

    add(p.posonly_params, "place")
    add(p.params, "place")
    if isinstance(p.star_arg, cst.Param):
        found.append((p.star_arg.name.value, "star", None))
    add(p.kwonly_params, "named")
    if p.star_kwarg is not None:
        found.append((p.star_kwarg.name.value, "spread", None))
    return found
