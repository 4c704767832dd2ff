"""What a raise statement raises: its type and the wordings of its message, as far as one file tells.

Knows the function that it stands in through `FunctionReader`; reads no statements itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from smalti.explain.index import text as words
from smalti.explain.index.nodes import children, small_statements
from smalti.explain.index.text import code, dotted

if TYPE_CHECKING:
    from smalti.explain.index.function import FunctionReader, Path


class Built:
    """What a raise statement raises: type, wordings, and how they were found."""

    def __init__(self, function: FunctionReader, path: Path) -> None:
        self.function = function
        self.path = path
        self.type = ""
        self.wordings: list[str] = []
        self.status = "computed"  # text | none | helper | variable | re-raised | computed
        self.args: list[list[str]] = []

    def read(self, node: cst.BaseExpression | None, depth: int = 2, status: str = "text") -> None:
        caught = {name: types for name, types in self.function.caught if name}
        if node is None:
            self.status = "re-raised"
            self.type = self.function.caught[-1][1] if self.function.caught else ""
            return
        called = getattr(node, "func", None)
        if isinstance(called, cst.Attribute) and called.attr.value == "with_traceback":
            self.read(called.value, depth, status)
            return
        if isinstance(node, cst.Name | cst.Attribute):
            self._name(dotted(node), caught, depth, status)
        elif isinstance(node, cst.Call):
            self._call(node, depth, status)

    def _name(self, name: str, caught: dict[str, str], depth: int, status: str) -> None:
        if name in caught:
            self.status, self.type = "re-raised", caught[name]
            return
        values = [v for v in self.function.lookup(self.path)(name) if isinstance(v, cst.Call)]
        if values and depth and name not in self.function.module.constants:
            self.read(values[-1], depth - 1, "variable" if status == "text" else status)
            return
        self.type, self.wordings, self.status = name, [""], "none"

    def _call(self, node: cst.Call, depth: int, status: str) -> None:
        name = dotted(node.func)
        helper = self.function.module.helpers.get(name)
        if helper is not None and depth:
            for value in returned(helper):
                if isinstance(value, cst.Call) and dotted(value.func)[:1].isupper():
                    self.read(value, depth - 1, "helper")
                    return
        self.type = name
        look = self.function.lookup(self.path)
        self.args = [words.wordings(a.value, look) for a in node.args if not a.star]
        message = next((a for a in node.args if a.keyword is None or a.keyword.value in ("message", "msg")), None)
        if message is None:
            self.wordings, self.status = [""], "none" if status == "text" else status
            return
        self.wordings = words.wordings(message.value, look)
        self.status = status
        if not self.wordings:  # the message is the text of a value
            plain = isinstance(message.value, cst.Name | cst.Call | cst.Attribute | cst.Subscript | cst.Tuple)
            self.status = "value" if plain else "computed"
            self.wordings = [words.hole(code(message.value))] if plain else []


def returned(node: cst.FunctionDef) -> list[cst.BaseExpression]:
    """Expressions that a small helper returns, its local names put in where they are plain."""
    found: list[cst.BaseExpression] = []
    stack: list[Any] = list(node.body.body)
    while stack:
        one = stack.pop(0)
        if (smalls := small_statements(one)) is not None:
            found += [s.value for s in smalls if isinstance(s, cst.Return) and s.value is not None]
        elif isinstance(one, cst.If | cst.With | cst.For | cst.Try | cst.Else):
            stack.extend(one.body.body)
            if isinstance(orelse := getattr(one, "orelse", None), cst.CSTNode):
                stack.append(orelse)
    return found[:4]


def given_message(node: cst.FunctionDef) -> cst.BaseExpression | None:
    """The message that `super().__init__(…)` or `return …` of __str__ gets."""
    stack: list[cst.CSTNode] = [node.body]
    while stack:
        one = stack.pop(0)
        if node.name.value == "__str__" and isinstance(one, cst.Return) and one.value is not None:
            return one.value
        if isinstance(one, cst.Call) and isinstance(one.func, cst.Attribute) and one.args:
            owner = one.func.value
            called = isinstance(owner, cst.Call) and dotted(owner.func) == "super"
            if one.func.attr.value == "__init__" and (called or dotted(owner)[:1].isupper()):
                return one.args[0 if called else min(1, len(one.args) - 1)].value
        stack.extend(children(one))
    return None
