"""Parsing of declarations: registers, variables with initial values, parameters, performance directives.

The lower half of the parser: what stands between names and semicolons, and nothing of instructions.
"""

from __future__ import annotations

import re
import struct
from typing import NoReturn, TypeAlias

from smalti.errors import error
from smalti.ptx.isa.types import REGISTER_TYPES
from smalti.ptx.module import Function, InitialAddress, Label, Module, Register, Variable, type_bits
from smalti.ptx.tokens import MAX_DEPTH, FloatBits, Tokens, constant

MAX_REGISTERS = 1 << 20  # of one module; bounds memory on strangers' input
MAX_ELEMENTS = 1 << 22  # of one initial value

Named: TypeAlias = "Register | Variable | Function"
_TYPES = frozenset(f".{t}" for t in (*REGISTER_TYPES, "bf16", "bf16x2", "tf32"))
_SPACES = frozenset((".global", ".const", ".shared", ".local", ".param"))


class Declarations:
    """State of the parser, and everything it needs to read declarations."""

    def __init__(self, tokens: Tokens) -> None:
        self.tokens = tokens
        self.text = tokens.text
        self.at = 0
        self.made = Module()
        self.has_target = False
        self.scopes: list[dict[str, Named]] = []
        self.label_scopes: list[dict[str, Label]] = []
        self.register_count = 0

    # -- small steps --

    def expect(self, token: str) -> None:
        if self.text[self.at] != token:
            raise self.tokens.wrong(self.at, token)
        self.at += 1

    def name(self, what: str) -> str:
        token = self.text[self.at]
        if not re.fullmatch(r"[A-Za-z_$%][\w$]*", token):
            raise self.tokens.wrong(self.at, what)
        self.at += 1
        return token

    def integer(self) -> int:
        where = self.at
        value, self.at = constant(self.tokens, where)
        if not isinstance(value, int):
            raise self.tokens.wrong(where, "an integer")
        return value

    def raw(self) -> str:
        """The source up to and with the next semicolon."""
        first = self.at
        while self.text[self.at] != ";":
            if self.text[self.at] in ("", "{", "}"):
                raise self.tokens.wrong(self.at, ";")
            self.at += 1
        self.at += 1
        return self.tokens.between(first, self.at - 1) + ";"

    def section(self) -> str:
        """`.section name { … }`, as written."""
        first = self.at
        while self.text[self.at] not in ("{", ""):
            self.at += 1
        while self.text[self.at] != "}":
            if not self.text[self.at]:
                raise self.tokens.wrong(self.at, "}")
            self.at += 1
        self.at += 1
        return self.tokens.between(first, self.at - 1) + "\n}"

    def declare(self, at: int, name: str, thing: Named) -> None:
        if name in self.scopes[-1]:
            self.twice(at, name)
        self.scopes[-1][name] = thing

    def twice(self, at: int, name: str) -> NoReturn:
        line, column = self.tokens.place(at)
        raise error("SML0212", name=self.tokens.name, line=line, column=column, what=name[:100])

    def too_many(self, what: str, count: int, limit: int) -> NoReturn:
        raise error("SML0213", name=self.tokens.name, what=what, count=count, limit=limit)

    # -- registers --

    def registers(self) -> tuple[Register, ...]:
        """`.reg .b32 %r<9>, x;`"""
        self.at += 1
        token = self.text[self.at]
        if token in (".v2", ".v4"):
            self.unsupported("vector registers")
        type_ = token[1:]
        if type_ not in REGISTER_TYPES:
            raise self.tokens.wrong(self.at, "a register type")
        made: list[Register] = []
        while not made or self.text[self.at] == ",":
            self.at += 1
            where = self.at
            name = self.name("a register's name")
            if self.text[self.at] != "<":
                made.append(Register(type_, name))
                self.declare(where, name, made[-1])
                continue
            self.at += 1
            token = self.text[self.at]
            if not token.isdecimal() or not int(token[:20]):
                raise self.tokens.wrong(self.at, "a number of registers")
            count = int(token[:20])
            if self.register_count + count > MAX_REGISTERS:
                self.too_many("registers", self.register_count + count, MAX_REGISTERS)
            self.at += 1
            self.expect(">")
            group = [Register(type_, f"{name}{n}") for n in range(count)]
            scope = self.scopes[-1]
            for r in group:
                if r.name in scope:
                    self.twice(where, r.name)
                scope[r.name] = r
            made += group
            self.register_count += count
        self.expect(";")
        return tuple(made)

    def unsupported(self, feature: str) -> NoReturn:
        line, column = self.tokens.place(self.at)
        raise error("SML0214", name=self.tokens.name, line=line, column=column, feature=feature)

    # -- variables --

    def variables(self, linkage: str) -> list[Variable]:
        """A variable declaration with its semicolon; several names share what stands before them."""
        space = self.text[self.at][1:]
        self.at += 1
        type_, align, vector, _, attributes = self.qualifiers()
        made = []
        while True:
            where = self.at
            name = self.name("a variable's name")
            v = Variable(name, space, type_, self.dimensions(), align, vector, linkage, attributes=attributes)
            self.declare(where, name, v)
            if self.text[self.at] == "=":
                self.at += 1
                v.initial, v.count = self.initial(v)
            made.append(v)
            if self.text[self.at] != ",":
                break
            self.at += 1
        self.expect(";")
        return made

    def qualifiers(self) -> tuple[str, int, int, str, tuple[str, ...]]:
        """Type, alignment, vector size, text of `.ptr`, attributes: whatever stands before a variable's name."""
        type_, align, vector, ptr = "", 0, 1, ""
        attributes: list[str] = []
        while self.text[self.at].startswith("."):
            token = self.text[self.at]
            if token == ".align":
                self.at += 1
                align = self.alignment()
            elif token in (".v2", ".v4"):
                vector = int(token[2])
                self.at += 1
            elif token == ".attribute":
                attributes.append(self.attribute())
            elif token == ".ptr":
                ptr = self.pointer()
            elif token in _TYPES:
                type_ = token[1:]
                self.at += 1
            elif token in (".texref", ".samplerref", ".surfref"):
                self.unsupported(f"{token} parameters")
            else:
                raise self.tokens.wrong(self.at, "a type")
        if not type_:
            raise self.tokens.wrong(self.at, "a type")
        return type_, align, vector, ptr, tuple(attributes)

    def alignment(self) -> int:
        where = self.at
        value = self.integer()
        if not (0 < value <= 1 << 20 and value & (value - 1) == 0):
            raise self.tokens.wrong(where, "an alignment, a power of two")
        return value

    def pointer(self) -> str:
        first = self.at
        self.at += 1
        while self.text[self.at] in _SPACES or self.text[self.at] == ".align":
            self.at += 2 if self.text[self.at] == ".align" else 1
        return " ".join(self.text[first : self.at])

    def attribute(self) -> str:
        """A directive with its parenthesised arguments, as written."""
        first = self.at
        self.at += 1
        if self.text[self.at] == "(" and self.text[first] != ".func":
            while self.text[self.at] not in (")", "", ";", "{"):
                self.at += 1
            self.expect(")")
        return self.tokens.source[self.tokens.start[first] : self.tokens.start[self.at - 1]] + self.text[self.at - 1]

    def dimensions(self) -> tuple[int, ...]:
        found: list[int] = []
        while self.text[self.at] == "[":
            self.at += 1
            where = self.at
            found.append(0 if self.text[self.at] == "]" else self.integer())
            if not 0 <= found[-1] < 1 << 48 or len(found) > MAX_DEPTH:
                raise self.tokens.wrong(where, "a number of elements")
            self.expect("]")
        return tuple(found)

    # -- initial values --

    def initial(self, v: Variable) -> tuple[tuple[int | InitialAddress, ...], tuple[int, ...]]:
        """The elements of an initial value, and the variable's dimensions completed by it."""
        if self.text[self.at] != "{":
            return (self.element(v.type),), v.count
        count = (*v.count, *((v.vector,) if v.vector > 1 else ())) or (1,)
        values = self.nested(v.type, count, 0)
        if v.count and v.count[0] == 0:
            row = 1
            for n in count[1:]:
                row *= n
            return tuple(values), (-(-len(values) // row), *v.count[1:])
        return tuple(values), v.count

    def nested(self, type_: str, count: tuple[int, ...], level: int) -> list[int | InitialAddress]:
        """One braced level; rows that are written short are filled with zeros."""
        if level >= len(count):
            raise self.tokens.wrong(self.at, "an element")
        row = 1
        for n in count[level + 1 :]:
            row *= n
        values: list[int | InitialAddress] = []
        self.at += 1
        while self.text[self.at] != "}":
            if self.text[self.at] == "{":
                inner = self.nested(type_, count, level + 1)
                values += inner + [0] * (row - len(inner))
            else:
                values.append(self.element(type_))
            if len(values) > MAX_ELEMENTS:
                self.too_many("initial values", len(values), MAX_ELEMENTS)
            if 0 < count[level] * row < len(values):
                raise self.tokens.wrong(self.at, f"at most {count[level] * row} initial values")
            if self.text[self.at] == ",":
                self.at += 1
            elif self.text[self.at] != "}":
                raise self.tokens.wrong(self.at, ", or }")
        self.at += 1
        return values

    def element(self, type_: str) -> int | InitialAddress:
        token = self.text[self.at]
        generic = token == "generic" and self.text[self.at + 1] == "("
        if generic or re.match(r"[A-Za-z_$%]", token):
            if generic:
                self.at += 2
            where = self.at
            name = self.name("a variable")
            found = next((s[name] for s in reversed(self.scopes) if name in s), None)
            if not isinstance(found, Variable | Function):
                raise self.tokens.wrong(where, "a variable or function declared before")
            if generic:
                self.expect(")")
            offset = 0
            if self.text[self.at] in ("+", "-"):
                offset = self.integer()
            return InitialAddress(found, offset, generic)
        where = self.at
        value, self.at = constant(self.tokens, where)
        if isinstance(value, FloatBits):
            return _float_bits(value, type_)
        if type_[0] == "f":
            return _float_bits(FloatBits(struct.unpack("<Q", struct.pack("<d", float(value)))[0], True), type_)
        return value & (1 << type_bits(type_)) - 1

    # -- functions --

    def parameters(self) -> list[Variable]:
        """`( .param … , .param … )`; the names go into the innermost scope."""
        self.expect("(")
        made: list[Variable] = []
        while self.text[self.at] != ")":
            if self.text[self.at] == ".reg":
                self.unsupported("parameters in registers")
            self.expect(".param")
            type_, align, vector, ptr, attributes = self.qualifiers()
            where = self.at
            name = self.name("a parameter's name")
            v = Variable(name, "param", type_, self.dimensions(), align, vector, ptr=ptr, attributes=attributes)
            if name != "_":
                self.declare(where, name, v)
            made.append(v)
            if self.text[self.at] == ",":
                self.at += 1
            elif self.text[self.at] != ")":
                raise self.tokens.wrong(self.at, ", or )")
        self.at += 1
        return made

    def directives(self) -> tuple[dict[str, tuple[int, ...]], tuple[str, ...]]:
        """Performance directives between a function's parameters and its body; `.pragma` and `.noreturn` as written."""
        values: dict[str, tuple[int, ...]] = {}
        written: list[str] = []
        while self.text[self.at].startswith("."):
            token = self.text[self.at]
            if token == ".pragma":
                written.append(self.raw())
                continue
            if token == ".noreturn":
                written.append(token)
                self.at += 1
                continue
            self.at += 1
            numbers: list[int] = []
            while self.text[self.at][:1].isdecimal():
                numbers.append(self.integer())
                if self.text[self.at] == ",":
                    self.at += 1
            values[token[1:]] = tuple(numbers)
        return values, tuple(written)


def _float_bits(value: FloatBits, type_: str) -> int:
    """The bits of a floating constant as an element of `type_`."""
    if value.double == (type_ == "f64") or type_[0] != "f":
        return value.bits
    if value.double:
        number = struct.unpack("<d", struct.pack("<Q", value.bits))[0]
        try:
            return int(struct.unpack("<I", struct.pack("<f", number))[0])
        except OverflowError:
            return 0x7F800000 | (0x80000000 if number < 0 else 0)
    single = struct.unpack("<f", struct.pack("<I", value.bits))[0]
    return int(struct.unpack("<Q", struct.pack("<d", single))[0])
