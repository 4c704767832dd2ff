"""One source file as plain data: functions with their raise sites, conditions, definitions, calls and mentions.

Parsed with libcst, so the file may be newer than this Python. Knows one file only; `link` joins files.
"""

from __future__ import annotations

import re
from typing import Any

import libcst as cst

from smalti.explain.index.function import FunctionReader
from smalti.explain.index.nodes import children, small_statements
from smalti.explain.index.text import dotted

FORMAT = 6  # of the summaries; a change makes every cached one stale

_TOKEN = re.compile(
    r"#[^\n]*"
    r"|[rRbBuUfFtT]{0,3}(?:\"\"\"(?:[^\\\"]|\\.|\"(?!\"\"))*\"\"\"|'''(?:[^\\']|\\.|'(?!''))*'''"
    r"|\"(?:[^\\\"\n]|\\.)*\"|'(?:[^\\'\n]|\\.)*')"
    r"|\b(raise|assert|def|class)\b|\n",
    re.DOTALL,
)


def keyword_lines(source: str) -> dict[str, list[int]]:
    """Lines of every raise, assert, def and class in document order, found without a parser."""
    lines: dict[str, list[int]] = {"raise": [], "assert": [], "def": [], "class": []}
    line = 1
    for match in _TOKEN.finditer(source):
        if match[1]:
            lines[match[1]].append(line)
        line += match[0].count("\n")
    return lines


def summarise(source: str, module: str) -> dict[str, Any]:
    """The summary of `source`, the module named `module`. Raises cst.ParserSyntaxError, RecursionError."""
    tree = cst.parse_module(source)
    reader = ModuleReader(tree, source, module)
    return reader.summary


class ModuleReader:
    """Collects module-level facts and reads every function."""

    def __init__(self, tree: cst.Module, source: str, name: str) -> None:
        self.name = name
        self.functions: list[dict[str, Any]] = []
        self.classes: dict[str, dict[str, Any]] = {}
        self.imports: dict[str, str] = {}
        self.constants: dict[str, cst.BaseExpression] = {}
        self.objects: dict[str, str] = {}
        self.exported: list[str] | None = None
        self.helpers: dict[str, cst.FunctionDef] = {}
        self.lines = _Lines(tree, source)
        self.walruses = ":=" in source
        self._declare(tree.body)
        self._declare_nested(tree)
        FunctionReader(self, "<module>", None, "").read(tree.body)
        self.summary: dict[str, Any] = {
            "module": name,
            "functions": self.functions,
            "classes": self.classes,
            "imports": self.imports,
            "objects": self.objects,
            "exported": self.exported,
        }

    def _declare(self, body: Any) -> None:
        for statement in body:
            if (smalls := small_statements(statement)) is not None:
                for small in smalls:
                    self._declare_small(small)
            elif isinstance(statement, cst.FunctionDef):
                self.helpers.setdefault(statement.name.value, statement)
            elif isinstance(statement, cst.ClassDef):
                for inner in statement.body.body:
                    if isinstance(inner, cst.FunctionDef):
                        self.helpers.setdefault(f"self.{inner.name.value}", inner)
            elif isinstance(statement, cst.If | cst.Try):
                self._declare(statement.body.body)
                if isinstance(statement, cst.If) and isinstance(statement.orelse, cst.Else):
                    self._declare(statement.orelse.body.body)

    def _declare_nested(self, tree: cst.Module) -> None:
        """Imports inside functions count for the whole file: names clash too rarely to matter."""
        stack: list[cst.CSTNode] = list(tree.body)
        while stack:
            node = stack.pop()
            if isinstance(node, cst.Import | cst.ImportFrom):
                self._import(node, weak=True)
            elif isinstance(node, cst.Match):
                stack.extend(s for case in node.cases for s in case.body.body)
            elif isinstance(node, cst.BaseCompoundStatement):
                if isinstance(node, cst.FunctionDef):  # one inside a function may make an exception too
                    self.helpers.setdefault(node.name.value, node)
                stack.extend(node.body.body)
                more = (getattr(node, name, None) for name in ("orelse", "finalbody"))
                stack.extend(one for one in more if isinstance(one, cst.CSTNode))
                stack.extend(getattr(node, "handlers", ()))
            elif isinstance(node, cst.Else | cst.Finally | cst.ExceptHandler):
                stack.extend(node.body.body)
            elif isinstance(node, cst.SimpleStatementLine):
                stack.extend(s for s in node.body if isinstance(s, cst.Import | cst.ImportFrom))

    def _declare_small(self, small: cst.BaseSmallStatement) -> None:
        if isinstance(small, cst.Import | cst.ImportFrom):
            self._import(small)
        value = getattr(small, "value", None)
        if isinstance(small, cst.Assign) and value is not None:
            targets = [t.target for t in small.targets]
        elif isinstance(small, cst.AnnAssign) and value is not None:
            targets = [small.target]
        else:
            return
        for target in targets:
            if isinstance(target, cst.Name):
                self.constants[target.value] = value
                self.objects[target.value] = dotted(value) or dotted(getattr(value, "func", value))
                if target.value == "__all__" and isinstance(value, cst.List | cst.Tuple):
                    self.exported = [
                        str(e.value.evaluated_value) for e in value.elements if isinstance(e.value, cst.SimpleString)
                    ]

    def _import(self, node: cst.Import | cst.ImportFrom, weak: bool = False) -> None:
        found: dict[str, str] = {}
        if isinstance(node, cst.Import):
            for name in node.names:
                target = dotted(name.name)
                if name.asname is not None:
                    found[dotted(name.asname.name)] = target
                else:
                    found[target.split(".")[0]] = target.split(".")[0]
        else:
            base = dotted(node.module) if node.module is not None else ""
            if node.relative:
                up = self.name.split(".")[: -len(node.relative)] if node.relative else []
                base = ".".join([*up, base] if base else up)
            if isinstance(node.names, cst.ImportStar):
                found[f"*{base}"] = base
            else:
                for name in node.names:
                    plain = dotted(name.name)
                    found[dotted(name.asname.name) if name.asname else plain] = f"{base}.{plain}"
        for alias, target in found.items():
            if weak:
                self.imports.setdefault(alias, target)
            else:
                self.imports[alias] = target


class _Lines:
    """Line numbers of raise, assert, def and class nodes: taken from a scan of the text, checked by count."""

    def __init__(self, tree: cst.Module, source: str) -> None:
        nodes: dict[str, list[cst.CSTNode]] = {"raise": [], "assert": [], "def": [], "class": []}
        kinds = {cst.Raise: "raise", cst.Assert: "assert", cst.FunctionDef: "def", cst.ClassDef: "class"}
        stack: list[cst.CSTNode] = [tree]
        while stack:
            node = stack.pop()
            if kind := kinds.get(type(node)):
                nodes[kind].append(node)
            if not isinstance(node, cst.BaseExpression):
                stack.extend(reversed(children(node)))
        scanned = keyword_lines(source)
        self.exact: dict[int, int] = {}
        if all(len(nodes[k]) == len(scanned[k]) for k in nodes):
            for kind, found in nodes.items():
                self.exact.update((id(n), line) for n, line in zip(found, scanned[kind], strict=True))
        else:  # slow and sure
            from libcst.metadata import MetadataWrapper, PositionProvider

            places = MetadataWrapper(tree, unsafe_skip_copy=True).resolve(PositionProvider)
            for found in nodes.values():
                self.exact.update((id(n), places[n].start.line) for n in found)
        self.counts = {kind: len(found) for kind, found in nodes.items()}

    def of(self, node: cst.CSTNode) -> int:
        return self.exact.get(id(node), 0)
