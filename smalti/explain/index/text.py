"""Expressions as short text and messages as templates, from libcst nodes. Knows no statements and no files."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Sequence
from typing import Any

import libcst as cst

MOST_WORDINGS = 8  # alternatives kept of one message
LONGEST = 400  # characters of one expression's text
_MODULE = cst.Module([])

_SIGNS: dict[type, str] = {
    cst.Equal: "==", cst.NotEqual: "!=", cst.LessThan: "<", cst.LessThanEqual: "<=", cst.GreaterThan: ">",
    cst.GreaterThanEqual: ">=", cst.In: "in", cst.Is: "is",
    cst.And: "and", cst.Or: "or", cst.Add: "+", cst.Subtract: "-", cst.Multiply: "*", cst.Divide: "/",
    cst.FloorDivide: "//", cst.Modulo: "%", cst.Power: "**", cst.MatrixMultiply: "@", cst.LeftShift: "<<",
    cst.RightShift: ">>", cst.BitAnd: "&", cst.BitOr: "|", cst.BitXor: "^",
}  # fmt: skip
_UNARY: dict[type, str] = {cst.Not: "not", cst.Minus: "-", cst.Plus: "+", cst.BitInvert: "~"}

Lookup = Callable[[str], list[cst.BaseExpression]]  # values that a name can have where the message is built


def code(node: Any) -> str:
    """Source text of an expression on one line."""
    write = _WRITE.get(node.__class__)
    text = write(node) if write is not None and len(node.lpar) < 2 else None
    if text is not None and node.lpar:
        plain = _space(node.lpar[0].whitespace_after) == _space(node.rpar[0].whitespace_before) == ""
        text = f"({text})" if plain else None
    return _generated(node) if text is None else text


def _generated(node: Any) -> str:
    """The same for any node, slowly."""
    text = str(_MODULE.code_for_node(node))
    if "\n" in text or "#" in text:
        text = re.sub(r"(?m)#[^\n'\"]*$", "", text)
        text = " ".join(text.replace("\\\n", " ").split())
        text = re.sub(r"([(\[{]) ", r"\1", re.sub(r",? ([)\]}])", r"\1", text))
    return text


def _space(node: Any) -> str | None:
    """White space as it stands; None for what holds a line's end."""
    return node.value if node.__class__ is cst.SimpleWhitespace and "\n" not in node.value else None


def _comparison(node: cst.Comparison) -> str | None:
    target = node.comparisons[0]
    sign = _SIGNS.get(type(target.operator)) if len(node.comparisons) == 1 else None
    return f"{code(node.left)} {sign} {code(target.comparator)}" if sign else None


def _infix(node: cst.BooleanOperation | cst.BinaryOperation) -> str | None:
    sign: Any = node.operator
    before, after = _space(sign.whitespace_before), _space(sign.whitespace_after)
    if before is None or after is None or type(sign) not in _SIGNS:
        return None
    return f"{code(node.left)}{before}{_SIGNS[type(sign)]}{after}{code(node.right)}"


def _unary(node: cst.UnaryOperation) -> str | None:
    after = _space(node.operator.whitespace_after)
    return None if after is None else f"{_UNARY[type(node.operator)]}{after}{code(node.expression)}"


def _subscript(node: cst.Subscript) -> str | None:
    inner = node.slice[0].slice
    spaces = (node.whitespace_after_value, node.lbracket.whitespace_after, node.rbracket.whitespace_before)
    several = len(node.slice) > 1 or not isinstance(node.slice[0].comma, cst.MaybeSentinel)
    if several or not isinstance(inner, cst.Index) or inner.star or any(_space(space) != "" for space in spaces):
        return None
    return f"{code(node.value)}[{code(inner.value)}]"


_WRITE: dict[type, Callable[[Any], str | None]] = {
    cst.Name: lambda node: str(node.value),
    cst.Integer: lambda node: str(node.value),
    cst.SimpleString: lambda node: None if "\n" in node.value else str(node.value),
    cst.Attribute: lambda node: f"{code(node.value)}.{node.attr.value}",
    cst.Call: lambda node: f"{code(node.func)}({', '.join(map(_argument, node.args))})",
    cst.Comparison: _comparison,
    cst.BooleanOperation: _infix,
    cst.BinaryOperation: _infix,
    cst.UnaryOperation: _unary,
    cst.Subscript: _subscript,
}


def _argument(node: cst.Arg) -> str:
    name = f"{node.keyword.value}=" if node.keyword is not None else node.star
    return name + code(node.value)


def dotted(node: cst.CSTNode) -> str:
    """`a.b.c` of a chain of attributes; `.c` where the chain starts at no name; empty for anything else."""
    parts: list[str] = []
    while isinstance(node, cst.Attribute):
        parts.append(node.attr.value)
        node = node.value
    if isinstance(node, cst.Name):
        return ".".join([node.value, *reversed(parts)])
    return f".{parts[0]}" if parts else ""


def plain(text: str) -> str:
    """Literal text as template text."""
    return text.replace("{", "{{").replace("}", "}}")


def hole(text: str) -> str:
    """A named hole; the expression's text is the name, without what would end it."""
    name = " ".join(text.split())[:80].translate({ord("{"): "(", ord("}"): ")", ord("!"): "¬", ord(":"): "∶"})
    if name.count("[") != name.count("]"):
        name = name.replace("[", "(").replace("]", ")")
    return "{" + name + "}"


def wordings(node: cst.CSTNode, look: Lookup, depth: int = 4) -> list[str]:
    """Templates that the message expression `node` can give; empty where it is no text that can be read."""
    found = _wordings(node, look, depth)
    return list(dict.fromkeys(found))[:MOST_WORDINGS]


def _wordings(node: cst.CSTNode, look: Lookup, depth: int) -> list[str]:
    if depth < 0:
        return []
    if isinstance(node, cst.SimpleString):
        value = node.evaluated_value
        return [plain(value)] if isinstance(value, str) else []
    if isinstance(node, cst.ConcatenatedString):
        return _both(_wordings(node.left, look, depth), _wordings(node.right, look, depth))
    if isinstance(node, cst.FormattedString):
        return [_formatted(node)]
    if isinstance(node, cst.IfExp):
        return _wordings(node.body, look, depth - 1) + _wordings(node.orelse, look, depth - 1)
    if isinstance(node, cst.BinaryOperation):
        return _operation(node, look, depth)
    if isinstance(node, cst.Call):
        return _call(node, look, depth)
    if isinstance(node, cst.Name | cst.Attribute):
        return [w for value in look(dotted(node)) for w in _wordings(value, look, depth - 1)]
    return []


def _both(left: Sequence[str], right: Sequence[str]) -> list[str]:
    return [a + b for a in left for b in right][:MOST_WORDINGS]


def _operation(node: cst.BinaryOperation, look: Lookup, depth: int) -> list[str]:
    left = _wordings(node.left, look, depth)
    if isinstance(node.operator, cst.Add):
        right = _wordings(node.right, look, depth)
        if left or right:
            return _both(left or [hole(code(node.left))], right or [hole(code(node.right))])
    if isinstance(node.operator, cst.Modulo) and left:
        return [_percent(w, node.right) for w in left]
    return []


def _value(node: cst.BaseExpression) -> str:
    """What a value puts into a message: its text where it is a literal, else a hole."""
    value = node.evaluated_value if isinstance(node, cst.SimpleString) else None
    return plain(value) if isinstance(value, str) else hole(code(node))


def _percent(template: str, values: cst.BaseExpression) -> str:
    names = [_value(e.value) for e in values.elements] if isinstance(values, cst.Tuple) else [_value(values)]
    left = iter(names)

    def fill(match: re.Match[str]) -> str:
        if match[0] == "%%":
            return "%"
        return hole(match[1]) if match[1] else next(left, "{value}")

    return re.sub(r"%(?:\((\w+)\))?[-+ #0]*\d*(?:\.\d+)?[sdrifgxXeuac%]", fill, template)


def _call(node: cst.Call, look: Lookup, depth: int) -> list[str]:
    name = dotted(node.func)
    if isinstance(node.func, cst.Attribute):
        owner, method = node.func.value, node.func.attr.value
        if method == "format" and (left := _wordings(owner, look, depth)):
            return [_format(w, node) for w in left]
        if method == "join":
            return [hole(code(node))]
        if method in ("strip", "lstrip", "rstrip", "lower", "capitalize") and not name.startswith("textwrap"):
            return _wordings(owner, look, depth)
    if name.rsplit(".", 1)[-1] in ("dedent", "fill", "str", "cleandoc", "indent") and node.args:
        return [w.strip() for w in _wordings(node.args[0].value, look, depth)]
    return [w for value in look(f"{name}()") for w in _wordings(value, look, depth - 1)]


def _format(template: str, call: cst.Call) -> str:
    places = [_value(a.value) for a in call.args if a.keyword is None and not a.star]
    names = {a.keyword.value: _value(a.value) for a in call.args if a.keyword is not None}
    left = iter(places)

    def fill(match: re.Match[str]) -> str:
        key = re.split(r"[.\[!:]", match[1], maxsplit=1)[0]
        if key.isdigit():
            return places[int(key)] if int(key) < len(places) else "{value}"
        return (names.get(key) or hole(key)) if key else next(left, "{value}")

    raw = template.replace("{{", "\0").replace("}}", "\1")
    # the literal was escaped as plain text, so its own holes are doubled and its doubled braces fourfold
    raw = raw.replace("\0\0", "\2").replace("\1\1", "\3")
    raw = re.sub("\0([^\0\1\2\3]*)\1", fill, raw)
    return raw.replace("\2", "{{").replace("\3", "}}").replace("\0", "{{").replace("\1", "}}")


def _formatted(node: cst.FormattedString) -> str:
    raw = "r" in node.prefix.lower()
    return "".join(_piece(part, raw) for part in node.parts)


def _piece(part: cst.BaseFormattedStringContent, raw: bool) -> str:
    if isinstance(part, cst.FormattedStringText):
        if raw or "\\" not in part.value:
            return str(part.value)  # braces are doubled in the source, as in a template
        try:
            return str(ast.literal_eval('"""' + part.value.replace('"', '\\"') + '"""'))
        except (SyntaxError, ValueError):
            return str(part.value)
    assert isinstance(part, cst.FormattedStringExpression)
    text = code(part.expression)
    label = plain(text) + "=" if part.equal is not None else ""
    return label + hole(text)
