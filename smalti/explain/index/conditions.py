"""Conditions of a raise site, rewritten and decided: versions of names, substitution, simple contradictions.

Works on one function's summary and on texts; an expression that this Python cannot parse stays opaque.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from smalti.explain.index.trees import holds, key, names, parse, rebuilt, show, versioned, walk

_SIMPLE = frozenset(["None", "True", "False", "0", "1"])
DEEPEST = 6  # layers of definitions put in
LONGEST = 600
_VERSION = re.compile(r"·[\dxt·]*")

Never = Callable[[ast.expr, str], str | None]  # (value, class text) -> why it is never an instance


@dataclass(frozen=True)
class Condition:
    """One conjunct: `text` as the user reads it, `tree` with versioned names (None: opaque), `kind` of statement."""

    kind: str
    text: str
    tree: ast.expr | None
    stale: bool = False


def _as_call(text: str) -> str:
    """`subject matches pattern` as a call, so that names in the subject can be followed."""
    subject, _, pattern = text.partition(" matches ")
    return f"matches({subject}, {pattern!r})"


class View:
    """A function's definitions as a reader of the code sees them at a place."""

    def __init__(self, function: dict[str, Any]) -> None:
        self.function = function
        self.params = {p[0]: p for p in function["params"]}
        self.definitions: dict[str, list[Any]] = function["definitions"]
        self.shared = frozenset(function.get("shared", ()))
        self._seen: dict[Any, ast.expr | None] = {}
        self.attributes = any("." in name for name in self.definitions)

    def conditions(self, site: dict[str, Any]) -> list[Condition]:
        """Tier 2: every condition on the way to the site, outermost first."""
        found = []
        seen: dict[str, set[str]] = {}
        for index, held in site["path"]:
            kind, text, order = self.function["conditions"][index]
            if kind == "while" and text == "True":  # says nothing
                continue
            asked = text if kind in ("if", "assert", "while") else _as_call(text) if kind == "case" else ""
            tree = self._versioned(asked, order, site["path"]) if asked else None
            if tree is not None and not held:
                tree = negate(tree)
            if tree is not None and kind != "case":
                shown = show(tree)
            elif kind == "for":
                shown = f"for some {text}"
            elif kind == "except":
                shown = f"caught {text}"
            elif kind == "case":
                shown = text if held else f"not ({text})"
            else:
                shown = text if held else f"not ({text})"
            found.append(Condition(kind, shown, tree))
            for name in names(tree) if tree is not None else ():
                if "·" in name:
                    seen.setdefault(_VERSION.sub("", name), set()).add(name)
        mixed = {name for name, versions in seen.items() if len(versions) > 1}
        return [Condition(c.kind, c.text, c.tree, _uses(c.tree, mixed)) for c in found]

    def reaching(self, name: str, time: int, path: list[Any]) -> list[Any]:
        """Definitions of `name` that can be in force; a leading None where the value from before can be too."""
        if name in self.shared:  # an inner function may set it at any time
            return [None, (f"t{time}", None, [])]
        steps = [tuple(step) for step in path]
        before = [d for d in self.definitions.get(name, ()) if d[0] < time and _compatible(d[2], steps)]
        for start, end in self.function["loops"]:
            if start < time <= end:  # what an earlier turn of the loop left, on whichever way it went
                before += [d for d in self.definitions[name] if start < d[0] <= end and d not in before]
        sure = [i for i, d in enumerate(before) if all(tuple(s) in steps for s in d[2]) and d[0] < time]
        if sure:
            return [d for i, d in enumerate(before) if i >= sure[-1]]
        if len(before) == 2 and self._branch(before[0][2], before[1][2], steps) is not None:
            return before
        return [None, *before] if before else []

    def _versioned(self, text: str, time: int, path: list[Any]) -> ast.expr | None:
        known = (text, time, tuple(map(tuple, path)))
        if known not in self._seen:
            tree = parse(text)
            self._seen[known] = None if tree is None else self._mark(tree, time, path)
        return self._seen[known]

    def _mark(self, tree: ast.expr, time: int, path: list[Any]) -> ast.expr:
        def marked(name: str) -> ast.Name | None:
            known = name in self.definitions or name in self.shared
            reach = self.reaching(name, time, path) if known else []
            if not reach:
                return None
            return ast.Name(id=f"{name}·" + "·".join("x" if d is None else str(d[0]) for d in reach), ctx=ast.Load())

        def change(node: Any) -> Any:
            if isinstance(node, ast.Name):
                return marked(node.id) or node
            if isinstance(node, ast.NamedExpr):
                return change(node.value)
            if isinstance(node, ast.Attribute) and self.attributes and (new := marked(key(node))):
                return new
            return rebuilt(node, change)

        return change(tree)  # type: ignore[no-any-return]

    def expand(self, tree: ast.expr, path: list[Any]) -> ast.expr:
        """One layer of definitions put in for versioned names."""

        def change(node: Any) -> Any:
            if not versioned(node):
                return node
            if isinstance(node, ast.IfExp):  # tests stay as they are, so that equal ones are seen to be equal
                body, other = change(node.body), change(node.orelse)
                same = body is node.body and other is node.orelse
                return node if same else ast.IfExp(node.test, body, other)
            if not isinstance(node, ast.Name):
                return rebuilt(node, change)
            if "·" not in node.id:
                return node
            name, _, marks = node.id.partition("·")
            orders = marks.split("·")
            chosen = [d for d in self.definitions.get(name, ()) if str(d[0]) in orders]
            if any(d[1] is None for d in chosen) or not chosen:
                return node
            if len(chosen) == 1 and "x" not in orders:
                return self._versioned(chosen[0][1], chosen[0][0], chosen[0][2]) or node
            both = self._either(chosen, path) if len(chosen) == 2 and "x" not in orders else None
            return both or self._chain(name, chosen, "x" in orders, path) or node

        return change(tree)  # type: ignore[no-any-return]

    def _chain(self, name: str, chosen: list[Any], before: bool, path: list[Any]) -> ast.expr | None:
        """A value that later conditional assignments may replace, as nested choices; None where loops have a part."""
        steps = [tuple(step) for step in path]
        if len(chosen) > 3 or (before and self._earlier(name, chosen[0][0])):
            return None
        value: ast.expr | None = ast.Name(id=name, ctx=ast.Load()) if before and name in self.params else None
        for order, text, where in chosen:
            made = self._versioned(text, order, where)
            extra = [(self.function["conditions"][i], held) for i, held in where if (i, held) not in steps]
            if made is None or any(c[0] not in ("if", "assert") for c, _ in extra):
                return None
            tests = [(c, held) for c, held in extra if c[0] == "if"]
            if value is None and (tests or before):
                return None
            if value is None or not tests:
                value = made
                continue
            parts = [self._versioned(c[1], c[2], where) for c, _ in tests]
            if any(part is None for part in parts):
                return None
            signed = [p if h else negate(p) for p, (_, h) in zip(parts, tests, strict=True) if p is not None]
            test = signed[0] if len(signed) == 1 else ast.BoolOp(ast.And(), signed)
            value = ast.IfExp(test, made, value)
        return value

    def _earlier(self, name: str, order: int) -> bool:
        return any(d[0] < order for d in self.definitions.get(name, ()))

    def _branch(self, one: list[Any], other: list[Any], steps: list[Any]) -> int | None:
        """The condition whose two branches are the only difference of two paths (asserts in them aside)."""
        kinds = self.function["conditions"]
        a, b = (
            [tuple(s) for s in path if tuple(s) not in steps and kinds[s[0]][0] != "assert"] for path in (one, other)
        )
        if len(a) == len(b) == 1 and a[0][0] == b[0][0] and a[0][1] != b[0][1]:
            return int(a[0][0])
        return None

    def deciding(self, tree: ast.expr) -> bool:
        """Values that can decide a condition: constants, choices with one, names that hold one."""
        if isinstance(tree, ast.Constant):
            return True
        if isinstance(tree, ast.IfExp):
            return self.deciding(tree.body) or self.deciding(tree.orelse)
        return isinstance(tree, ast.Name) and any(t in _SIMPLE or " else " in t for t in self._texts(tree))

    def promising(self, found: list[Condition]) -> bool:
        """Whether the innermost conditions can be decided at all by what their names stand for."""
        for tree in [c.tree for c in found if c.tree is not None][-TRIED:]:
            for node in walk(tree):
                if isinstance(node, ast.BinOp) and isinstance(node.op, ast.FloorDiv | ast.Mod | ast.Sub | ast.Div):
                    return True
                names = self._texts(node) if isinstance(node, ast.Name) else []
                if any(t in _SIMPLE or "//" in t or "%" in t for t in names):
                    return True
        return False

    def _texts(self, name: ast.Name) -> list[str]:
        plain, _, marks = name.id.partition("·")
        orders = marks.split("·")
        return [d[1] for d in self.definitions.get(plain, ()) if d[1] is not None and str(d[0]) in orders]

    def _either(self, two: list[Any], path: list[Any]) -> ast.expr | None:
        index = self._branch(two[0][2], two[1][2], [tuple(s) for s in path])
        if index is None:
            return None
        kind, text, order = self.function["conditions"][index]
        if kind != "if":
            return None
        test = self._versioned(text, order, path)
        values = {}
        for order_, value, where in two:
            held = next(bool(h) for i, h in where if i == index)
            values[held] = self._versioned(value, order_, where)
        if test is None or values.get(True) is None or values.get(False) is None:
            return None
        body, other = values[True], values[False]
        assert body is not None and other is not None
        return ast.IfExp(test=test, body=body, orelse=other)


def _uses(tree: ast.expr | None, mixed: set[str]) -> bool:
    if tree is None or not mixed:
        return False
    return any(_VERSION.sub("", name) in mixed for name in names(tree))


def _compatible(one: list[Any], steps: list[Any]) -> bool:
    return not any((index, not held) in steps for index, held in one)


_OPPOSITE: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq, ast.NotEq: ast.Eq, ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
}  # fmt: skip


def negate(tree: ast.expr) -> ast.expr:
    """The opposite, written the short way where that means the same."""
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not):
        return tree.operand
    if isinstance(tree, ast.Compare) and len(tree.ops) == 1:
        opposite = _OPPOSITE[type(tree.ops[0])]
        if type(tree.ops[0]) in (ast.Eq, ast.NotEq, ast.Is, ast.IsNot, ast.In, ast.NotIn):
            return ast.Compare(tree.left, [opposite()], tree.comparators)
    return ast.UnaryOp(ast.Not(), tree)


# --- deciding ---------------------------------------------------------------------------------------------


@dataclass
class Decider:
    """Facts that hold, what can never be an instance, and the reasons used so far."""

    facts: dict[str, bool]
    never: Never
    why: list[str]

    def truth(self, tree: ast.expr) -> bool | None:
        """Truth of a condition by its own form; None where that does not decide it."""
        return self._known(self.small(tree))

    def _known(self, tree: ast.expr) -> bool | None:
        if isinstance(tree, ast.Constant):
            return bool(tree.value)
        if self.facts and (known := self.facts.get(key(tree))) is not None:
            return known
        if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not):
            inner = self._known(tree.operand)
            return None if inner is None else not inner
        if isinstance(tree, ast.BoolOp):
            parts = [self._known(v) for v in tree.values]
            stop = isinstance(tree.op, ast.Or)
            if stop in parts:
                return stop
            return None if None in parts else not stop
        return None

    def small(self, tree: Any) -> Any:
        """The same value, smaller where its form alone decides it."""
        if isinstance(tree, ast.IfExp):
            test = self._known(self.small(tree.test))
            if test is not None:
                return self.small(tree.body if test else tree.orelse)
        tree = rebuilt(tree, self.small)
        if isinstance(tree, ast.BinOp):
            return self._operation(tree)
        if isinstance(tree, ast.Compare) and len(tree.ops) == 1:
            truth = _compare(tree)
            return tree if truth is None else ast.Constant(truth)
        if isinstance(tree, ast.Call) and len(tree.args) == 2 and key(tree.func) == "isinstance":
            value, kinds = tree.args
            if isinstance(value, ast.Constant) and value.value is None:
                return ast.Constant(False)
            if reason := self.never(value, show(kinds)):
                self.why.append(reason)
                return ast.Constant(False)
        return tree

    def _operation(self, tree: ast.BinOp) -> ast.expr:
        if isinstance(tree.left, ast.Constant) and isinstance(tree.right, ast.Constant):
            return _arithmetic(tree) or tree
        same = isinstance(tree.op, ast.FloorDiv | ast.Div | ast.Mod | ast.Sub) and key(tree.left) == key(tree.right)
        if same and not holds(tree.left, ast.Call):
            value = 1 if isinstance(tree.op, ast.FloorDiv | ast.Div) else 0
            self.why.append(f"`{show(tree)}` is {value}")
            return ast.Constant(value)
        return tree


def _arithmetic(node: ast.BinOp) -> ast.expr | None:
    assert isinstance(node.left, ast.Constant) and isinstance(node.right, ast.Constant)
    a, b = node.left.value, node.right.value
    if not (isinstance(a, int) and isinstance(b, int)) or max(abs(a), abs(b)) > 1 << 32:
        return None
    if isinstance(node.op, ast.Add):
        return ast.Constant(a + b)
    if isinstance(node.op, ast.Sub):
        return ast.Constant(a - b)
    if isinstance(node.op, ast.Mult):
        return ast.Constant(a * b)
    if isinstance(node.op, ast.FloorDiv) and b:
        return ast.Constant(a // b)
    if isinstance(node.op, ast.Mod) and b:
        return ast.Constant(a % b)
    return None


def _compare(node: ast.Compare) -> bool | None:
    left, right, op = node.left, node.comparators[0], node.ops[0]
    if isinstance(left, ast.Constant) and isinstance(right, ast.Constant):
        a, b = left.value, right.value
        if isinstance(op, ast.Is | ast.IsNot):
            if a is None or b is None or isinstance(a, bool) or isinstance(b, bool):
                return (a is b) == isinstance(op, ast.Is)
            return None
        if isinstance(op, ast.Eq | ast.NotEq):
            return (a == b) == isinstance(op, ast.Eq)
        if isinstance(a, int | float) and isinstance(b, int | float):
            ordered = {ast.Lt: a < b, ast.LtE: a <= b, ast.Gt: a > b, ast.GtE: a >= b}
            return ordered.get(type(op))
    displays = ast.Dict | ast.List | ast.Tuple | ast.Set | ast.JoinedStr | ast.Lambda
    none = isinstance(right, ast.Constant) and right.value is None
    if none and isinstance(left, displays) and isinstance(op, ast.Is | ast.IsNot):
        return isinstance(op, ast.IsNot)
    return None


TRIED = 6  # innermost conditions looked at for a contradiction; the others are facts


def contradiction(found: list[Condition], never: Never) -> str | None:
    """Why the conditions can never hold together, or None. Cases of conditional values are tried one by one."""
    known = [c for c in found if c.tree is not None]
    if (reason := _clash(known, {}, never)) is not None:
        return reason
    tests = _choices([c.tree for c in known[-TRIED:] if c.tree is not None])
    for count in range(1, len(tests) + 1):
        reasons: list[str] = []
        for bits in range(1 << count):
            facts = {key(t): bool(bits >> i & 1) for i, t in enumerate(tests[:count])}
            if (reason := _clash(known, facts, never)) is None:
                break
            said = (f"`{show(t)}`" + ("" if facts[key(t)] else " is false") for t in tests[:count])
            reasons.append(f"where {' and '.join(said)}: {reason}")
        else:
            return "; ".join(dict.fromkeys(reasons))
    return None


def _choices(trees: list[ast.expr]) -> list[ast.expr]:
    """The tests that most conditional values hang on; any choice of tests is sound."""
    found: dict[str, list[ast.expr]] = {}
    for tree in trees:
        for node in walk(tree) if holds(tree, ast.IfExp) else ():
            if isinstance(node, ast.IfExp):
                found.setdefault(key(node.test), []).append(node.test)
    return [nodes[0] for nodes in sorted(found.values(), key=len, reverse=True)[:2]]


def _clash(found: list[Condition], given: dict[str, bool], never: Never) -> str | None:
    facts = dict(given)
    for index, condition in enumerate(found):
        tree = condition.tree
        assert tree is not None
        if index >= len(found) - TRIED:
            decider = Decider(facts, never, [])
            if decider.truth(tree) is False:
                steps = f" since {', '.join(dict.fromkeys(decider.why))}" if decider.why else ""
                return f"`{condition.text}` is false{steps}"
        for part in tree.values if isinstance(tree, ast.BoolOp) and isinstance(tree.op, ast.And) else [tree]:
            if isinstance(part, ast.UnaryOp) and isinstance(part.op, ast.Not):
                if _lasts(part.operand):
                    facts.setdefault(key(part.operand), False)
            elif _lasts(part):
                facts.setdefault(key(part), True)
    return None


def _lasts(tree: ast.expr) -> bool:
    """Whether a condition once true stays true while its names keep their values: nothing in it can be changed."""
    if isinstance(tree, ast.Call):
        one = tree.args[0] if len(tree.args) == 2 else None
        return key(tree.func) == "isinstance" and isinstance(one, ast.Name)
    if isinstance(tree, ast.Compare):
        parts = [tree.left, *tree.comparators]
        return all(isinstance(p, ast.Name | ast.Constant) for p in parts)
    if isinstance(tree, ast.BoolOp):
        return all(map(_lasts, tree.values))
    return isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not) and _lasts(tree.operand)
