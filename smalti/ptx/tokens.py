"""PTX text as tokens with positions, and PTX constant expressions. Knows nothing of statements."""

from __future__ import annotations

import bisect
import re
import struct
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from smalti.errors import SmaltiError, error

MAX_CHARACTERS = 64 << 20  # of one source; bounds time and memory on strangers' input
MAX_DEPTH = 100  # nested blocks, initialisers and expressions

# Comments have no group; a comment that names a tile, and everything else, is a token.
_TOKEN = re.compile(
    r"""//(?!@tile\ )[^\n]*|/\*[\s\S]*?\*/
    |(//@tile\ [^\n]*
    |[A-Za-z_$%][\w$]*(?:(?:\.|::)[\w$]+)*
    |\.[A-Za-z_]\w*(?:::\w+)*
    |0[fF][0-9A-Fa-f]{8}(?![\w.])|0[dD][0-9A-Fa-f]{16}(?![\w.])
    |\d+\.\d*(?:[eE][+-]?\d+)?(?!\w)|\d+[eE][+-]?\d+(?!\w)
    |\d\w*
    |"(?:[^"\\\n]|\\.)*"
    |<<|>>|<=|>=|==|!=|&&|\|\|
    |[^\s])""",
    re.VERBOSE,
)
_INTEGER = re.compile(r"(0[xX][0-9a-fA-F]+|0[bB][01]+|0[0-7]*|[1-9]\d*)U?")
_DECIMAL = re.compile(r"\d+\.\d*(?:[eE][+-]?\d+)?|\d+[eE][+-]?\d+")


class Tokens:
    """The tokens of a source, `text[i]` starting at character `start[i]`; an empty string ends them."""

    def __init__(self, source: str, name: str) -> None:
        self.source, self.name = source, name
        if len(source) > MAX_CHARACTERS:
            raise error("SML0213", name=name, what="characters", count=len(source), limit=MAX_CHARACTERS)
        self.text: list[str] = []
        self.start: list[int] = []
        for m in _TOKEN.finditer(source):
            token = m[1]
            if token is not None:
                self.text.append(token)
                self.start.append(m.start())
        self.text.append("")
        self.start.append(len(source))
        self._lines = [m.end() for m in re.finditer("\n", source)]  # where each line but the first starts

    def place(self, at: int) -> tuple[int, int]:
        """Line and column, from 1, of token `at`."""
        start = self.start[min(at, len(self.start) - 1)]
        return self.line(at), start - self.source.rfind("\n", 0, start)

    def line(self, at: int) -> int:
        """Line, from 1, of token `at`."""
        return bisect.bisect_right(self._lines, self.start[min(at, len(self.start) - 1)]) + 1

    def wrong(self, at: int, expected: str) -> SmaltiError:
        """The refusal of token `at`."""
        line, column = self.place(at)
        found = self.text[at][:60] or "the end of the text"
        found = found if found.isprintable() else repr(found)
        return error("SML0210", name=self.name, line=line, column=column, expected=expected, found=found)

    def between(self, first: int, last: int) -> str:
        """The source from token `first` up to before token `last`, without space around it."""
        return self.source[self.start[first] : self.start[last]].strip()


@dataclass(frozen=True, slots=True)
class FloatBits:
    """A floating-point constant by its bits; `double` for f64, else f32."""

    bits: int
    double: bool

    def __neg__(self) -> FloatBits:
        return FloatBits(self.bits ^ 1 << (63 if self.double else 31), self.double)


Number: TypeAlias = int | FloatBits

_BINARY: dict[str, tuple[int, Callable[[int, int], int]]] = {
    "||": (1, lambda a, b: int(bool(a) or bool(b))),
    "&&": (2, lambda a, b: int(bool(a) and bool(b))),
    "|": (3, lambda a, b: a | b),
    "^": (4, lambda a, b: a ^ b),
    "&": (5, lambda a, b: a & b),
    "==": (6, lambda a, b: int(a == b)),
    "!=": (6, lambda a, b: int(a != b)),
    "<": (7, lambda a, b: int(a < b)),
    "<=": (7, lambda a, b: int(a <= b)),
    ">": (7, lambda a, b: int(a > b)),
    ">=": (7, lambda a, b: int(a >= b)),
    "<<": (8, lambda a, b: a << (b & 63)),
    ">>": (8, lambda a, b: a >> (b & 63)),
    "+": (9, lambda a, b: a + b),
    "-": (9, lambda a, b: a - b),
    "*": (10, lambda a, b: a * b),
    "/": (10, lambda a, b: abs(a) // abs(b) * (1 if (a < 0) == (b < 0) else -1)),
    "%": (10, lambda a, b: abs(a) % abs(b) * (1 if a >= 0 else -1)),
}


def constant(tokens: Tokens, at: int, depth: int = 0, rank: int = 0) -> tuple[Number, int]:
    """The value of the constant expression at token `at` (PTX 4.5), and the token behind it.

    Integers are 64-bit: between -2^63 and 2^64-1.
    """
    if depth > MAX_DEPTH:
        raise error("SML0213", name=tokens.name, what="nested parentheses", count=depth, limit=MAX_DEPTH)
    value, at = _primary(tokens, at, depth)
    while True:
        operator = tokens.text[at]
        if operator == "?" and rank == 0:
            yes, at = constant(tokens, at + 1, depth + 1)
            if tokens.text[at] != ":":
                raise tokens.wrong(at, ":")
            no, at = constant(tokens, at + 1, depth + 1)
            return (yes if value else no), at
        found = _BINARY.get(operator)
        if found is None or found[0] <= rank:
            return value, at
        right, after = constant(tokens, at + 1, depth + 1, found[0])
        if isinstance(value, FloatBits) or isinstance(right, FloatBits):
            raise tokens.wrong(at, "an integer expression")
        if operator in "/%" and right == 0:
            raise tokens.wrong(after - 1, "a divisor that is not 0")
        value = _in_range(tokens, at, found[1](value, right))
        at = after


def _primary(tokens: Tokens, at: int, depth: int) -> tuple[Number, int]:
    token = tokens.text[at]
    if token == "(":
        if tokens.text[at + 1] in (".s64", ".u64"):  # a cast
            value, after = constant(tokens, at + 3, depth + 1, 11)
            if not isinstance(value, int):
                raise tokens.wrong(at + 3, "an integer")
            bits = value & (1 << 64) - 1
            return (bits - (bits >> 63 << 64) if tokens.text[at + 1] == ".s64" else bits), after
        value, at = constant(tokens, at + 1, depth + 1)
        if tokens.text[at] != ")":
            raise tokens.wrong(at, ")")
        return value, at + 1
    if token in ("-", "+", "!", "~"):
        value, after = constant(tokens, at + 1, depth + 1, 11)
        if token == "-":
            return (_in_range(tokens, at, -value) if isinstance(value, int) else -value), after
        if token == "+":
            return value, after
        if not isinstance(value, int):
            raise tokens.wrong(at + 1, "an integer")
        return (int(not value) if token == "!" else ~value), after
    if token == "WARP_SZ":
        return 32, at + 1
    return number(tokens, at), at + 1


def number(tokens: Tokens, at: int) -> Number:
    """The literal at token `at`."""
    token = tokens.text[at]
    m = _INTEGER.fullmatch(token)
    if m:
        digits = m[1]
        octal = len(digits) > 1 and digits[0] == "0" and digits[1] not in "xXbB"
        return _in_range(tokens, at, int(digits, 8 if octal else 0))
    if token[:2] in ("0f", "0F") and len(token) == 10:
        return FloatBits(int(token[2:], 16), False)
    if token[:2] in ("0d", "0D") and len(token) == 18:
        return FloatBits(int(token[2:], 16), True)
    if _DECIMAL.fullmatch(token):
        return FloatBits(struct.unpack("<Q", struct.pack("<d", float(token)))[0], True)
    raise tokens.wrong(at, "a number")


def _in_range(tokens: Tokens, at: int, value: int) -> int:
    if not -(1 << 63) <= value < 1 << 64:
        raise tokens.wrong(at, "a number of at most 64 bits")
    return value
