"""Expression trees that nobody changes once they are made: text, names in them, rebuilding, each worked out once.

What is worked out about a node is kept on it. Knows no conditions and no functions.
"""

from __future__ import annotations

import ast
import re
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

_VERSION = re.compile(r"·[\dxt·]*")
_NO_NODES = frozenset(["ctx", "op", "ops", "kind", "conversion", "is_async", "attr", "id", "type_comment"])
_FIELDS: dict[type, tuple[str, ...]] = {ast.Constant: (), ast.Name: ()}

# Binding strength, as `ast.unparse` counts it: a part that binds less than its place asks for gets parentheses.
TEST, OR, AND, NOT, CMP, EXPR, BXOR, BAND, SHIFT, ARITH, TERM, FACTOR, POWER, AWAIT, ATOM = range(4, 19)
_BINARY: dict[type, tuple[str, int]] = {
    ast.Add: ("+", ARITH), ast.Sub: ("-", ARITH), ast.Mult: ("*", TERM), ast.MatMult: ("@", TERM),
    ast.Div: ("/", TERM), ast.Mod: ("%", TERM), ast.FloorDiv: ("//", TERM), ast.LShift: ("<<", SHIFT),
    ast.RShift: (">>", SHIFT), ast.BitOr: ("|", EXPR), ast.BitXor: ("^", BXOR), ast.BitAnd: ("&", BAND),
    ast.Pow: ("**", POWER),
}  # fmt: skip
_UNARY: dict[type, tuple[str, int]] = {
    ast.Not: ("not ", NOT), ast.Invert: ("~", FACTOR), ast.UAdd: ("+", FACTOR), ast.USub: ("-", FACTOR),
}  # fmt: skip
_COMPARED: dict[type, str] = {
    ast.Eq: "==", ast.NotEq: "!=", ast.Lt: "<", ast.LtE: "<=", ast.Gt: ">", ast.GtE: ">=",
    ast.Is: "is", ast.IsNot: "is not", ast.In: "in", ast.NotIn: "not in",
}  # fmt: skip
_LOOSE: dict[type, int] = {ast.Lambda: TEST, ast.Await: AWAIT}  # what `ast.unparse` leaves bare


def parse(text: str) -> ast.expr | None:
    """The expression `text`, or None."""
    try:
        return ast.parse(f"({text})", mode="eval").body
    except (SyntaxError, ValueError, MemoryError, RecursionError):
        return None


def key(tree: ast.AST) -> str:
    """Text with versions."""
    text = tree.__dict__.get("_key")
    if text is None:
        try:
            text = _text(tree, TEST)
        except (ValueError, RecursionError):  # a string that this Python cannot write: equal to nothing but itself
            text = f"(…{id(tree)})"
        tree.__dict__["_key"] = text
    return str(text)


def show(tree: ast.AST) -> str:
    """Text without versions."""
    text = key(tree)
    if "·" in text:
        text = _VERSION.sub("", text)
    return re.sub(r"\(…\d+\)", "(…)", text) if "(…" in text else text


def _text(tree: Any, asked: int) -> str:
    """What `ast.unparse` gives, with the parts' texts kept."""
    kept = tree.__dict__.get("_body")
    if kept is None:
        write = _WRITE.get(type(tree))
        kept = (write and write(tree)) or (ast.unparse(tree), _LOOSE.get(type(tree), ATOM))
        tree.__dict__["_body"] = kept
    body, own = kept
    return f"({body})" if asked > own else body


Written = tuple[str, int] | None  # text and how strongly it binds; None: left to ast.unparse


def _constant(tree: ast.Constant) -> Written:
    plain = isinstance(tree.value, str | int | bytes) or tree.value is None
    return (repr(tree.value), ATOM) if plain and tree.kind is None else None


def _attribute(tree: ast.Attribute) -> Written:
    number = isinstance(tree.value, ast.Constant)
    return None if number else (f"{_text(tree.value, ATOM)}.{tree.attr}", ATOM)


def _call(tree: ast.Call) -> Written:
    parts = [f"*{_text(a.value, EXPR)}" if type(a) is ast.Starred else _text(a, TEST) for a in tree.args]
    parts += [f"{k.arg}={_text(k.value, TEST)}" if k.arg else f"**{_text(k.value, TEST)}" for k in tree.keywords]
    return f"{_text(tree.func, ATOM)}({', '.join(parts)})", ATOM


def _compare(tree: ast.Compare) -> Written:
    text = _text(tree.left, CMP + 1)
    for op, right in zip(tree.ops, tree.comparators, strict=True):
        text += f" {_COMPARED[type(op)]} {_text(right, CMP + 1)}"
    return text, CMP


def _boolean(tree: ast.BoolOp) -> Written:
    word, own = ("and", AND) if type(tree.op) is ast.And else ("or", OR)
    return f" {word} ".join(_text(v, min(own + 1 + i, ATOM)) for i, v in enumerate(tree.values)), own


def _unary(tree: ast.UnaryOp) -> Written:
    sign, own = _UNARY[type(tree.op)]
    return sign + _text(tree.operand, own), own


def _binary(tree: ast.BinOp) -> Written:
    sign, own = _BINARY[type(tree.op)]
    left, right = (own + 1, own) if sign == "**" else (own, own + 1)
    return f"{_text(tree.left, left)} {sign} {_text(tree.right, right)}", own


def _subscript(tree: ast.Subscript) -> Written:
    if isinstance(tree.slice, ast.Tuple | ast.Slice):
        return None
    return f"{_text(tree.value, ATOM)}[{_text(tree.slice, TEST)}]", ATOM


def _choice(tree: ast.IfExp) -> Written:
    return f"{_text(tree.body, TEST + 1)} if {_text(tree.test, TEST + 1)} else {_text(tree.orelse, TEST)}", TEST


_WRITE: dict[type, Callable[[Any], Written]] = {
    ast.Name: lambda tree: (tree.id, ATOM), ast.Constant: _constant, ast.Attribute: _attribute, ast.Call: _call,
    ast.Compare: _compare, ast.BoolOp: _boolean, ast.UnaryOp: _unary, ast.BinOp: _binary,
    ast.Subscript: _subscript, ast.IfExp: _choice,
}  # fmt: skip


def _fields(kind: type[ast.AST]) -> tuple[str, ...]:
    """Names of the fields that can hold nodes of meaning."""
    known = _FIELDS.get(kind)
    if known is None:
        known = _FIELDS[kind] = tuple(name for name in kind._fields if name not in _NO_NODES)
    return known


def parts(node: ast.AST) -> Iterator[Any]:
    """Child nodes of meaning: no contexts, no operators."""
    found = node.__dict__
    for name in _fields(type(node)):
        value = found.get(name)
        if value.__class__ is list:
            for one in value:
                if isinstance(one, ast.AST):
                    yield one
        elif isinstance(value, ast.AST):
            yield value


def walk(tree: ast.AST) -> Iterator[Any]:
    """All nodes of meaning, level by level."""
    waiting = deque([tree])
    while waiting:
        node = waiting.popleft()
        yield node
        waiting.extend(parts(node))


def names(tree: ast.AST) -> frozenset[str]:
    """Every name in a tree; kept for the tree that was asked about."""
    known = tree.__dict__.get("_names")
    if known is None:
        known = tree.__dict__["_names"] = frozenset(n.id for n in walk(tree) if n.__class__ is ast.Name)
    return known


def versioned(tree: ast.AST) -> bool:
    """Whether a name in the tree carries a version; kept for every node of it."""
    known = tree.__dict__.get("_versioned")
    if known is None:
        known = "·" in tree.id if isinstance(tree, ast.Name) else any(map(versioned, list(parts(tree))))
        tree.__dict__["_versioned"] = known
    return known


def holds(tree: ast.AST, kind: type[ast.AST]) -> bool:
    """Whether a node of this kind is in the tree."""
    return any(node.__class__ is kind for node in walk(tree))


def rebuilt(node: Any, change: Callable[[Any], Any]) -> Any:
    """`node` with `change` applied to its children; the same object where none changed."""
    altered: dict[str, Any] = {}
    found = node.__dict__
    for name in _fields(type(node)):
        value = found.get(name)
        if value.__class__ is list:
            items = [change(v) if isinstance(v, ast.AST) else v for v in value]
            if any(a is not b for a, b in zip(items, value, strict=True)):
                altered[name] = items
        elif isinstance(value, ast.AST) and (new := change(value)) is not value:
            altered[name] = new
    if not altered:
        return node
    return type(node)(**{n: altered.get(n, found.get(n)) for n in node._fields})


def tidy(tree: Any) -> Any:
    """The same condition without what constants decide in it."""
    tree = rebuilt(tree, tidy)
    if isinstance(tree, ast.IfExp) and isinstance(tree.test, ast.Constant):
        return tree.body if tree.test.value else tree.orelse
    if isinstance(tree, ast.Compare) and len(tree.ops) == 1 and isinstance(tree.ops[0], ast.Is | ast.IsNot):
        left, right = tree.left, tree.comparators[0]
        if isinstance(left, ast.Constant) and isinstance(right, ast.Constant) and None in (left.value, right.value):
            return ast.Constant((left.value is right.value) == isinstance(tree.ops[0], ast.Is))
    if isinstance(tree, ast.UnaryOp) and isinstance(tree.op, ast.Not) and isinstance(tree.operand, ast.Constant):
        return ast.Constant(not tree.operand.value)
    if isinstance(tree, ast.BoolOp):
        neutral = isinstance(tree.op, ast.And)
        kept = [v for v in tree.values if not (isinstance(v, ast.Constant) and v.value is neutral)]
        if len(kept) < len(tree.values):
            return ast.Constant(neutral) if not kept else kept[0] if len(kept) == 1 else ast.BoolOp(tree.op, kept)
    return tree
