"""One function as plain data: its statements in order, with the conditions that hold at each raise and call.

Reads one function's tree; knows of its file only the names that the file declares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import libcst as cst

from smalti.explain.index import text as words
from smalti.explain.index.nodes import children, mentions, parameters, small_statements
from smalti.explain.index.raised import Built, given_message, returned
from smalti.explain.index.text import code, dotted

if TYPE_CHECKING:
    from smalti.explain.index.module import ModuleReader

MOST_CALLS = 400  # argument texts kept in one function

Path = list[tuple[int, bool]]  # conditions of the enclosing function that hold, and how
_BUILTIN_CALLS = frozenset(  # say nothing of who can reach whom
    ["isinstance", "len", "range", "zip", "enumerate", "print", "getattr", "setattr", "hasattr", "str", "int", "float"]
    + ["bool", "tuple", "list", "dict", "set", "type", "repr", "sum", "max", "min", "any", "all", "map", "filter"]
    + ["sorted", "reversed", "iter", "next", "super", "id", "hash", "abs", "frozenset"]
)


class FunctionReader:
    """Reads one function's statements in order, keeping the conditions that hold at each."""

    def __init__(self, module: ModuleReader, qualified: str, node: cst.FunctionDef | None, owner: str) -> None:
        self.module = module
        self.owner = owner  # qualified name of the class that holds it, if any
        self.qualified = qualified
        self.order = 0
        self.conditions: list[tuple[str, str, int]] = []  # (kind, text, order)
        self.definitions: dict[str, list[tuple[int, str | None, Path]]] = {}
        self.values: dict[str, list[tuple[int, cst.BaseExpression, Path]]] = {}
        self.loops: list[tuple[int, int]] = []
        self.calls: list[dict[str, Any]] = []
        self.refs: set[str] = set()
        self.groups: list[list[str]] = []  # names that one module-level statement ties together
        self.sites: list[dict[str, Any]] = []
        self.caught: list[tuple[str, str]] = []  # (name, types) of the handlers around
        self.result: list[str] = []
        self.shared: set[str] = set()  # names that an inner function sets
        self.outside: set[str] = set()  # names declared nonlocal or global here or further in
        self.node = node

    def read(self, body: Any) -> None:
        self._block(body, [])
        node = self.node
        entry: dict[str, Any] = {
            "name": self.qualified,
            "class": self.owner,
            "line": self.module.lines.of(node) if node is not None else 0,
            "params": parameters(node) if node is not None else [],
            "conditions": self.conditions,
            "definitions": self.definitions,
            "loops": self.loops,
            "calls": self.calls,
            "refs": sorted(self.refs),
            "sites": self.sites,
            "registered": [],
            "decorators": [],
            "result": self.result[:4],
            "groups": self.groups,
            "shared": sorted(self.shared),
        }
        if node is not None:
            for decorator in node.decorators:
                names: set[str] = set()
                mentions(decorator, names)
                entry["registered"].append(sorted(names))
                called = getattr(decorator.decorator, "func", decorator.decorator)
                entry["decorators"].append(dotted(called))
        self.module.functions.append(entry)

    # --- statements ---------------------------------------------------------------------------------------

    def _block(self, body: Any, path: Path) -> bool:
        """Read statements under `path`; True where the block never falls through its end."""
        path = list(path)
        for statement in body:
            self.order += 1
            if (smalls := small_statements(statement)) is not None:
                for small in smalls:
                    if self._small(small, path):
                        return True
            elif self._compound(statement, path):
                return True
        return False

    def _small(self, node: cst.BaseSmallStatement, path: Path) -> bool:
        if isinstance(node, cst.Raise):
            self._site(node, "raise", node.exc, path)
        elif isinstance(node, cst.Assert):
            test = self._condition("assert", node.test)
            self._mention(node.test, path)
            site = self._site(node, "assert", None, [*path, (test, False)])
            if node.msg is not None:
                site["wordings"] = words.wordings(node.msg, self.lookup(path))
                site["status"] = "text" if site["wordings"] else "computed"
                self._mention(node.msg, path)
            path.append((test, True))
            return code(node.test) == "False"
        elif isinstance(node, cst.Assign | cst.AnnAssign | cst.AugAssign):
            self._assign(node, path)
        elif isinstance(node, cst.Return) and node.value is not None:
            self.result.append(words.code(node.value)[: words.LONGEST])
        if isinstance(node, cst.Global | cst.Nonlocal):
            declared = {item.name.value for item in node.names}
            self.shared |= declared
            self.outside |= declared
        elif isinstance(node, cst.Del):
            self._unbind(node.target)
        if not isinstance(node, cst.Import | cst.ImportFrom | cst.Global | cst.Nonlocal):
            self._walruses(node)
            self._mention(node, path)
            if self.qualified == "<module>":
                names: set[str] = set()
                mentions(node, names)
                if 2 <= len(names) <= 40:
                    self.groups.append(sorted(names))
        return isinstance(node, cst.Raise | cst.Return | cst.Continue | cst.Break)

    def _assign(self, node: cst.Assign | cst.AnnAssign | cst.AugAssign, path: Path) -> None:
        targets = [t.target for t in node.targets] if isinstance(node, cst.Assign) else [node.target]
        value = node.value
        for target in targets:
            if isinstance(node, cst.AugAssign):
                self._define(dotted(target), None, None, path)
                if isinstance(target, cst.Name) and isinstance(node.operator, cst.AddAssign):
                    joined = cst.BinaryOperation(cst.Name(target.value), cst.Add(), node.value)
                    self.values.setdefault(f"+{target.value}", []).append((self.order, joined, list(path)))
            elif isinstance(target, cst.Name | cst.Attribute):
                self._define(dotted(target), value, value, path)
            elif isinstance(target, cst.Tuple | cst.List):
                parts = value.elements if isinstance(value, cst.Tuple) else ()
                for index, element in enumerate(target.elements):
                    if len(parts) == len(target.elements):
                        self._bind(element.value, parts[index].value, path)
                    else:
                        self._bind(element.value, _item(value, index), path)

    def _bind(self, target: cst.CSTNode, value: cst.BaseExpression | None, path: Path) -> None:
        if isinstance(target, cst.Tuple | cst.List):
            for index, element in enumerate(target.elements):
                self._bind(element.value, _item(value, index), path)
        elif isinstance(target, cst.Name | cst.Attribute):
            self._define(dotted(target), value, value, path)

    def _unbind(self, target: cst.CSTNode) -> None:
        for one in (target, *children(target)):
            name = getattr(one, "value", one)
            if isinstance(name, cst.Name):
                self._define(name.value, None, None, [])

    def _define(self, name: str, value: cst.BaseExpression | None, node: cst.BaseExpression | None, path: Path) -> None:
        if not name:
            return
        shown = None
        if value is not None:
            shown = code(value)
            if len(shown) > words.LONGEST:
                shown = None
        self.definitions.setdefault(name, []).append((self.order, shown, list(path)))
        if node is not None:
            self.values.setdefault(name, []).append((self.order, node, list(path)))

    def _condition(self, kind: str, node: cst.CSTNode | str) -> int:
        shown = node if isinstance(node, str) else code(node)
        self.conditions.append((kind, shown[: words.LONGEST], self.order))
        if not isinstance(node, str):
            self._walruses(node)
        return len(self.conditions) - 1

    def _walruses(self, node: cst.CSTNode) -> None:
        stack = [node] if self.module.walruses else []
        while stack:
            one = stack.pop()
            if isinstance(one, cst.NamedExpr) and isinstance(one.target, cst.Name):
                self._define(one.target.value, one.value, one.value, [])
            stack.extend(children(one))

    def _compound(self, node: Any, path: Path) -> bool:
        if isinstance(node, cst.If):
            return self._if(node, path)
        if isinstance(node, cst.FunctionDef):
            self._function(node, self.qualified, "")
        elif isinstance(node, cst.ClassDef):
            self._class(node)
        elif isinstance(node, cst.For | cst.While):
            self._loop(node, path)
        elif isinstance(node, cst.With):
            for item in node.items:
                self._mention(item, path)
                if item.asname is not None:
                    self._bind(item.asname.name, None, path)
            return self._block(node.body.body, path)
        elif isinstance(node, cst.Try | cst.TryStar):
            return self._try(node, path)
        elif isinstance(node, cst.Match):
            return self._match(node, path)
        return False

    def _if(self, node: cst.If, path: Path) -> bool:
        test = self._condition("if", node.test)
        self._mention(node.test, path)
        ends = self._block(node.body.body, [*path, (test, True)])
        other = False
        if isinstance(node.orelse, cst.If):
            self.order += 1
            other = self._if(node.orelse, [*path, (test, False)])
        elif node.orelse is not None:
            other = self._block(node.orelse.body.body, [*path, (test, False)])
        if ends and not other:
            path.append((test, False))
            current: Any = node.orelse  # each `elif` that ends leaves its negation too
            index = test
            while isinstance(current, cst.If):
                index = self._index(current, index)
                if index < 0 or not _ends(current.body.body):
                    break
                path.append((index, False))
                current = current.orelse
        elif other and not ends:
            path.append((test, True))
        return ends and other

    def _index(self, node: cst.If, after: int) -> int:
        shown = code(node.test)[: words.LONGEST]
        for index in range(after + 1, len(self.conditions)):
            if self.conditions[index][:2] == ("if", shown):
                return index
        return -1

    def _loop(self, node: cst.For | cst.While, path: Path) -> None:
        start = self.order
        if isinstance(node, cst.For):
            self._mention(node.iter, path)
            self._bind(node.target, None, path)
            each = self._condition("for", f"{code(node.target)} in {code(node.iter)}")
        else:
            self._mention(node.test, path)
            each = self._condition("while", node.test)
        self._block(node.body.body, [*path, (each, True)])
        self.loops.append((start, self.order))
        if node.orelse is not None:
            self._block(node.orelse.body.body, path)

    def _try(self, node: Any, path: Path) -> bool:
        ends = self._block(node.body.body, path)
        tried = code(node.body.body[0])[:120] if node.body.body else ""
        all_end = bool(node.handlers)
        for handler in node.handlers:
            types = code(handler.type) if handler.type is not None else "any exception"
            name = dotted(handler.name.name) if handler.name is not None else ""
            self.order += 1
            if name:
                self._define(name, None, None, path)
            index = self._condition("except", f"{types} from `{tried}`")
            if handler.type is not None:
                self._mention(handler.type, path)
            self.caught.append((name, types))
            all_end &= self._block(handler.body.body, [*path, (index, True)])
            self.caught.pop()
        if node.orelse is not None:
            ends = self._block(node.orelse.body.body, path) or ends
        if node.finalbody is not None:
            self._block(node.finalbody.body.body, path)
        return ends and all_end

    def _match(self, node: cst.Match, path: Path) -> bool:
        self._mention(node.subject, path)
        subject = code(node.subject)
        path = list(path)
        ended, catch_all = True, False
        for case in node.cases:
            self.order += 1
            pattern = code(case.pattern)
            shown = f"{subject} matches {pattern}"
            if case.guard is not None:
                shown += f" and {code(case.guard)}"
                self._mention(case.guard, path)
            index = self._condition("case", shown)
            self._captures(case.pattern, path)
            catch_all |= pattern == "_" and case.guard is None
            self._mention(case.pattern, path)
            ended &= self._block(case.body.body, [*path, (index, True)])
            path.append((index, False))
        return ended and catch_all

    def _captures(self, pattern: cst.CSTNode, path: Path) -> None:
        """Names that a pattern binds."""
        stack = [pattern]
        while stack:
            one = stack.pop()
            for name in ("name", "rest"):
                if isinstance(one, cst.MatchPattern | cst.MatchStar) and isinstance(
                    bound := getattr(one, name, None), cst.Name
                ):
                    self._define(bound.value, None, None, path)
            stack.extend(children(one))

    def _function(self, node: cst.FunctionDef, outer: str, owner: str) -> None:
        name = node.name.value if outer == "<module>" else f"{outer}.{node.name.value}"
        if not owner:
            self.refs.add(f"<local>{name}" if outer != "<module>" else "")
            self.refs.discard("")
        for decorator in node.decorators:
            self._mention(decorator, [])
        inner = FunctionReader(self.module, name, node, owner)
        inner.read(node.body.body)
        self.shared |= inner.outside  # what it declares nonlocal or global may change at any call
        if not owner:
            self._define(node.name.value, None, None, [])

    def _class(self, node: cst.ClassDef) -> None:
        name = node.name.value if self.qualified == "<module>" else f"{self.qualified}.{node.name.value}"
        methods = []
        for statement in node.body.body:
            if isinstance(statement, cst.FunctionDef):
                methods.append(statement.name.value)
                self._function(statement, name, name)
            elif isinstance(statement, cst.ClassDef):
                inner = FunctionReader(self.module, name, None, "")
                inner._class(statement)
            elif isinstance(statement, cst.If):
                for extra in statement.body.body:
                    if isinstance(extra, cst.FunctionDef):
                        methods.append(extra.name.value)
                        self._function(extra, name, name)
        made: set[str] = set()
        for decorator in node.decorators:
            mentions(decorator, made)
        self.refs |= made
        self.module.classes[name] = {
            "bases": [dotted(a.value) or dotted(getattr(a.value, "value", a.value)) for a in node.bases],
            "methods": methods,
            "line": self.module.lines.of(node),
            "decorators": sorted(made),
            "init": self._init(node),
        }

    def _init(self, node: cst.ClassDef) -> dict[str, Any] | None:
        """Wordings that an exception class gives itself in __init__, in terms of its parameters."""
        for statement in node.body.body:
            if isinstance(statement, cst.FunctionDef) and statement.name.value in ("__init__", "__str__"):
                reader = FunctionReader(self.module, "", statement, "")
                stack: list[cst.CSTNode] = list(statement.body.body)
                for one in stack:
                    for small in small_statements(one) or ():
                        if isinstance(small, cst.Assign):
                            reader._assign(small, [])
                found = given_message(statement)
                if found is not None:
                    wordings = words.wordings(found, reader.lookup([]))
                    params = [p[0] for p in parameters(statement)][1:]
                    if not wordings and isinstance(found, cst.Name) and found.value in params:
                        wordings = [words.hole(found.value)]
                    return {"params": params, "wordings": wordings}
        return None

    # --- expressions --------------------------------------------------------------------------------------

    def _mention(self, node: cst.CSTNode, path: Path) -> None:
        calls: list[cst.Call] = []
        mentions(node, self.refs, calls)
        for call in calls:
            name = dotted(call.func)
            if not name or name in _BUILTIN_CALLS or len(self.calls) >= MOST_CALLS:
                continue
            root = name.split(".")[0]
            here = self.module
            known = root == "self" or root in here.imports or root in here.helpers or root in here.objects
            if not known and f"self.{name[1:]}" not in here.helpers:
                continue
            self.calls.append(
                {
                    "to": name,
                    "args": [code(a.value)[:120] for a in call.args if a.keyword is None and not a.star],
                    "named": {a.keyword.value: code(a.value)[:120] for a in call.args if a.keyword is not None},
                    "spread": [a.star + code(a.value)[:120] for a in call.args if a.star],
                    "path": list(path),
                    "order": self.order,
                }
            )

    def lookup(self, path: Path) -> words.Lookup:
        """Values of a name at this place: the last definition on each way here, helpers, module constants."""

        def look(name: str) -> list[cst.BaseExpression]:
            if name.endswith("()"):
                helper = self.module.helpers.get(name[:-2])
                return returned(helper) if helper is not None else []
            found = [v for v in self.values.get(name, []) if _compatible(v[2], path)]
            if found:
                cover = max((i for i, v in enumerate(found) if _within(v[2], path)), default=0)
                values = [v[1] for v in found[cover:]]
                grown = [v for v in self.values.get(f"+{name}", []) if _within(v[2], path)]
                if grown and len(values) == 1:
                    whole: cst.BaseExpression = values[0]
                    for _, more, _ in grown[:3]:
                        assert isinstance(more, cst.BinaryOperation)
                        whole = cst.BinaryOperation(whole, cst.Add(), more.right)
                    return [whole]
                return values
            constant = self.module.constants.get(name)
            return [constant] if constant is not None and name not in self.definitions else []

        return look

    def _site(self, node: cst.CSTNode, kind: str, raised: Any, path: Path) -> dict[str, Any]:
        built = Built(self, path)
        if kind == "assert":
            built.type, built.status, built.wordings = "AssertionError", "none", [""]
        else:
            built.read(raised)
        site = {
            "kind": kind,
            "type": built.type,
            "wordings": built.wordings,
            "args": built.args,
            "status": built.status,
            "line": self.module.lines.of(node),
            "path": list(path),
            "order": self.order,
        }
        self.sites.append(site)
        return site


def _item(value: cst.BaseExpression | None, index: int) -> cst.BaseExpression | None:
    """`value[index]`, for what an unpacking binds."""
    if not isinstance(value, cst.Name | cst.Attribute | cst.Call | cst.Subscript):
        return None
    place = cst.SubscriptElement(cst.Index(cst.Integer(str(index))))
    return cst.Subscript(value, [place])


def _ends(body: Any) -> bool:
    smalls = small_statements(body[-1]) if body else None
    return smalls is not None and isinstance(smalls[-1], cst.Raise | cst.Return | cst.Continue | cst.Break)


def _within(inner: Path, outer: Path) -> bool:
    return all(step in outer for step in inner)


def _compatible(one: Path, other: Path) -> bool:
    return not any((index, not held) in other for index, held in one)
