"""Finds every `error("SMLxxxx", name=...)` of the package by its syntax tree, for the gates."""

import ast
import re
from dataclasses import dataclass
from pathlib import Path

import smalti

PACKAGE = Path(smalti.__file__).parent
CODE = re.compile(r"SML\d{4}\Z")


@dataclass(frozen=True)
class Site:
    """One call: `code` is None where it is no literal, `names` None where keywords are spread with `**`."""

    file: str
    line: int
    code: str | None
    names: frozenset[str] | None


def in_source(text: str, file: str) -> list[Site]:
    """Calls of `error` in one source text; `error` must come from smalti.errors or be its attribute."""
    tree = ast.parse(text)
    names, modules = set(), set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module in ("smalti.errors", "smalti"):
            names |= {a.asname or a.name for a in node.names if a.name == "error"}
            modules |= {a.asname or a.name for a in node.names if a.name == "errors"}
    if file.endswith("smalti/errors/__init__.py"):
        names.add("error")
    found = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        if called not in names and called not in {f"{m}.error" for m in modules} | {"smalti.errors.error"}:
            continue
        first = node.args[0] if node.args else None
        literal = isinstance(first, ast.Constant) and isinstance(first.value, str) and CODE.match(first.value)
        spread = any(k.arg is None for k in node.keywords) or len(node.args) > 2
        keywords = frozenset(k.arg for k in node.keywords if k.arg not in (None, "at"))
        found.append(Site(file, node.lineno, first.value if literal else None, None if spread else keywords))
    return found


def all_sites() -> list[Site]:
    """Every call in the package."""
    return [
        site
        for path in sorted(PACKAGE.rglob("*.py"))
        for site in in_source(path.read_text(encoding="utf-8"), path.relative_to(PACKAGE.parent).as_posix())
    ]
