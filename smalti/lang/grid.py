"""How many CTAs a launch needs: small expressions over sizes and the device, which the host evaluates.

They are plain nested lists, so that a cached kernel keeps them as JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

__all__ = ["Expression", "cdiv", "evaluate", "least", "show", "times"]

# a number, the name of a size, "#sms" (multiprocessors), or [operation, left, right]
Expression: TypeAlias = "int | str | list[Any]"
SMS = "#sms"

_OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "cdiv": lambda a, b: -(-a // b),
    "*": lambda a, b: a * b,
    "min": min,
    "max": max,
    "//": lambda a, b: a // b,
}


def cdiv(a: Expression, b: Expression) -> Expression:
    return ["cdiv", a, b]


def times(a: Expression, b: Expression) -> Expression:
    if a == 1:
        return b
    return a if b == 1 else ["*", a, b]


def least(a: Expression, b: Expression) -> Expression:
    return ["min", a, b]


def evaluate(expression: Expression, sizes: Mapping[str, int], sms: int) -> int:
    """The number, given the sizes by name and the device's multiprocessors."""
    if isinstance(expression, int):
        return expression
    if isinstance(expression, str):
        return sms if expression == SMS else sizes[expression]
    name, a, b = expression
    return int(_OPERATIONS[name](evaluate(a, sizes, sms), evaluate(b, sizes, sms)))


def show(expression: Expression) -> str:
    if isinstance(expression, list):
        name, a, b = expression
        return f"{show(a)}{name}{show(b)}" if name in ("*", "//") else f"{name}({show(a)}, {show(b)})"
    return "SMs" if expression == SMS else str(expression)
