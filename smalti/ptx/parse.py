"""PTX text, ours or anyone's, to a module. Names become objects here; unknown instructions are kept.

Knows the grammar of PTX (4, 5, 9.7.12, 11) and of the instruction table only how to tell labels from values.
"""

from __future__ import annotations

import difflib
import json
import re
from typing import NoReturn

from smalti.errors import Loc, error
from smalti.ptx.declarations import Declarations
from smalti.ptx.module import (
    SINK,
    Address,
    Block,
    BranchTargets,
    CallPrototype,
    Declare,
    Directive,
    Function,
    Guard,
    Immediate,
    Instruction,
    Label,
    Lane,
    Mark,
    Module,
    Not,
    Operand,
    Pair,
    Register,
    Special,
    SymbolAddress,
    Tile,
    Variable,
    Vector,
)
from smalti.ptx.print import TILE_COMMENT
from smalti.ptx.special import SPECIAL
from smalti.ptx.tokens import MAX_DEPTH, FloatBits, Tokens, constant

_TILE_FIELDS: dict[str, type] = {
    **dict.fromkeys(("name", "place", "dtype", "layout", "role"), str),
    **dict.fromkeys(("offset", "size"), int),
    "shape": list,
}
_NAME = re.compile(r"[A-Za-z_$%]")
_ENDS = frozenset((",", ";", "]", "}", ")"))


def parse(text: str, name: str = "PTX") -> Module:
    """The module that `text` spells; `name` stands for it in messages.

    Comments are dropped, except those in which the printer keeps the names of tiles. `.loc` becomes the `loc` of
    the instructions behind it. A call's function may be a declaration: look the definition up by its name.

    Errors: SML0210 syntax, SML0211 unknown name, SML0212 name declared twice, SML0213 too large or nested too
    deep, SML0214 a feature of PTX that is not supported; each with line and column.
    """
    return _Parser(Tokens(text, name)).module()


class _Parser(Declarations):
    """Recursive descent over the tokens. `self.at` is the next one."""

    def module(self) -> Module:
        module = self.made
        text = self.text
        self.read_files()
        self.scopes = [{}]
        while text[self.at]:
            token = text[self.at]
            if token.startswith(TILE_COMMENT):
                module.tiles.append(self.tile())
            elif token in _HEADS:
                _HEADS[token](self)
            elif token in (".visible", ".extern", ".weak", ".common", ".entry", ".func"):
                self.linked()
            elif token in (".global", ".const", ".shared", ".local", ".param"):
                module.items += self.variables("")
            elif token == ".section":
                module.items.append(Directive(self.section()))
            elif token in (".pragma", ".alias", ".metadata_section"):
                module.items.append(Directive(self.raw()))
            elif token == ";":
                self.at += 1
            elif token in (".texref", ".samplerref", ".surfref", ".tex"):
                self.unsupported(f"{token} declarations")
            else:
                raise self.tokens.wrong(self.at, "a directive of the module")
        if not self.has_target:
            raise self.tokens.wrong(self.at, ".version and .target")
        return module

    # -- heads of the module --

    def version(self) -> None:
        self.at += 1
        major, dot, minor = self.text[self.at].partition(".")
        if not (dot and major.isdecimal() and minor.isdecimal() and len(major + minor) < 6):
            raise self.tokens.wrong(self.at, "a version such as 8.6")
        self.made.version = (int(major), int(minor))
        self.at += 1

    def target(self) -> None:
        names: list[str] = []
        while not names or self.text[self.at] == ",":
            self.at += 1
            names.append(self.name("a target such as sm_90a"))
        self.made.target, self.made.target_options = names[0], tuple(names[1:])
        self.has_target = True

    def address_size(self) -> None:
        self.at += 1
        if self.text[self.at] != "64":
            raise self.tokens.wrong(self.at, "64 (32-bit addresses are not supported)")
        self.at += 1

    def read_files(self) -> None:
        """The `.file` table, which may stand behind the functions that refer to it."""
        text = self.text
        for at, token in enumerate(text):
            if token == ".file" and text[at + 1].isdecimal() and text[at + 2].startswith('"'):
                name = text[at + 2][1:-1].replace('\\"', '"').replace("\\\\", "\\")
                self.made.files[int(text[at + 1][:9])] = name

    def file(self) -> None:
        self.at += 1
        self.integer()
        if not self.text[self.at].startswith('"'):
            raise self.tokens.wrong(self.at, "a quoted file name")
        self.at += 1
        while self.text[self.at] == ",":  # timestamp and size
            self.at += 1
            self.integer()

    def tile(self) -> Tile:
        """A tile's comment, as the printer writes it."""
        try:
            data = json.loads(self.text[self.at][len(TILE_COMMENT) :])
            good = isinstance(data, dict) and all(isinstance(v, _TILE_FIELDS[k]) for k, v in data.items())
            data["shape"] = tuple(int(n) for n in data.get("shape", ()))
            made = Tile(**data) if good else None
        except (ValueError, KeyError, TypeError, RecursionError):
            made = None
        if made is None:
            raise self.tokens.wrong(self.at, "the description of a tile")
        self.at += 1
        return made

    # -- functions --

    def linked(self) -> None:
        """`.visible` and its like, then a variable or a function."""
        linkage = ""
        if self.text[self.at] in (".visible", ".extern", ".weak", ".common"):
            linkage = self.text[self.at][1:]
            self.at += 1
        token = self.text[self.at]
        if token in (".entry", ".func"):
            self.function(linkage)
        elif token in (".global", ".const", ".shared"):
            self.made.items += self.variables(linkage)
        else:
            raise self.tokens.wrong(self.at, "a variable or function")

    def function(self, linkage: str) -> None:
        entry = self.text[self.at] == ".entry"
        self.at += 1
        before = []
        while self.text[self.at].startswith("."):
            before.append(self.attribute())
        self.scopes.append({})
        returns = self.parameters() if self.text[self.at] == "(" and not entry else []
        where = self.at
        name = self.name("the function's name")
        params = self.parameters() if self.text[self.at] == "(" else []
        directives, after = self.directives()
        f = Function(name, entry, linkage, returns, params, directives, None, (*before, *after))
        known = self.scopes[0].get(name)
        if known is None or (isinstance(known, Function) and known.body is None and self.text[self.at] == "{"):
            self.scopes[0].setdefault(name, f)
        elif self.text[self.at] == "{" or not isinstance(known, Function):
            self.twice(where, name)
        self.made.items.append(f)
        if self.text[self.at] == ";":
            self.at += 1
        elif self.text[self.at] == "{":
            f.body = self.body()
        else:
            raise self.tokens.wrong(self.at, "{ or ;")
        self.scopes.pop()

    def labels(self) -> dict[int, dict[str, Label]]:
        """The labels of each block of the body that opens at the next token, by the token that opens the block.

        A label may be used before its place, so they are collected first.
        """
        text, at = self.text, self.at
        found: dict[int, dict[str, Label]] = {}
        open_blocks: list[dict[str, Label]] = []
        start = True  # of a statement
        braces = 0  # open ones of an operand
        while True:
            token = text[at]
            if not token:
                raise self.tokens.wrong(at, "}")
            if start:
                if token == "{":
                    open_blocks.append(found.setdefault(at, {}))
                    if len(open_blocks) > MAX_DEPTH:
                        self.too_many("nested blocks", len(open_blocks), MAX_DEPTH)
                elif token == "}":
                    open_blocks.pop()
                    if not open_blocks:
                        return found
                elif token == ".loc":
                    at = self.skip_loc(at)
                    continue
                elif text[at + 1] == ":" and not token.startswith((".", '"', "@")):
                    if token in open_blocks[-1]:
                        self.twice(at, token)
                    open_blocks[-1][token] = Label(token)
                    at += 1
                elif token != ";" and not token.startswith("//"):
                    start = False
            elif token == ";":
                start, braces = True, 0
            elif token == "{":
                braces += 1
            elif token == "}":
                if not braces:
                    raise self.tokens.wrong(at, ";")
                braces -= 1
            at += 1

    def skip_loc(self, at: int) -> int:
        """The token behind a `.loc` with its attributes."""
        text = self.text
        at += 4
        while text[at] == ",":
            if text[at + 1] == "function_name":
                at += 3
                if text[at] == "+":
                    at += 2
            elif text[at + 1] == "inlined_at":
                at += 5
            else:
                raise self.tokens.wrong(at + 1, "function_name or inlined_at")
        return at

    def body(self) -> Block:
        """The statements between braces, nested ones too; without recursion."""
        text = self.text
        labels = self.labels()
        outer: list[Block] = []
        block = Block()
        depth = len(self.scopes)
        self.label_scopes = [labels[self.at]]
        self.at += 1
        loc: Loc | None = None
        while True:
            token = text[self.at]
            if token == "}":
                self.at += 1
                self.label_scopes.pop()
                if not outer:
                    assert len(self.scopes) == depth
                    return block
                self.scopes.pop()
                block = outer.pop()
            elif token == "{":
                nested = Block(scoped=True)
                block.statements.append(nested)
                outer.append(block)
                block = nested
                self.scopes.append({})
                self.label_scopes.append(labels[self.at])
                self.at += 1
            elif token == ";":
                self.at += 1
            elif token == ".loc":
                loc = self.loc()
            elif token.startswith("."):
                self.statement_directive(block)
            elif text[self.at + 1] == ":":
                self.labelled(block)
            elif token.startswith(TILE_COMMENT):
                self.made.tiles.append(self.tile())
            else:
                block.statements.append(self.instruction(loc or Loc(self.tokens.name, self.tokens.line(self.at))))

    def loc(self) -> Loc | None:
        where = self.at
        self.at += 1
        file, line = self.integer(), self.integer()
        self.at = self.skip_loc(where)
        name = self.made.files.get(file)
        return Loc(name, line) if name is not None else None

    def statement_directive(self, block: Block) -> None:
        token = self.text[self.at]
        if token == ".reg":
            block.statements.append(Declare(registers=self.registers()))
        elif token in (".shared", ".local", ".param", ".global", ".const"):
            block.statements += [Declare(variable=v) for v in self.variables("")]
        elif token == ".extern" and self.text[self.at + 1] == ".shared":
            self.at += 1
            block.statements += [Declare(variable=v) for v in self.variables("extern")]
        else:
            block.statements.append(Directive(self.raw()))

    def labelled(self, block: Block) -> None:
        label = self.label_scopes[-1][self.text[self.at]]
        self.at += 2
        token = self.text[self.at]
        if token == ".branchtargets":
            targets: list[Label] = []
            while not targets or self.text[self.at] == ",":
                self.at += 1
                target = self.look_up(self.at, self.text[self.at])
                if not isinstance(target, Label):
                    raise self.tokens.wrong(self.at, "a label")
                targets.append(target)
                self.at += 1
            self.expect(";")
            block.statements.append(BranchTargets(label, tuple(targets)))
        elif token in (".callprototype", ".calltargets"):
            if token == ".calltargets":
                self.unsupported(".calltargets")
            text = self.raw()
            block.statements.append(CallPrototype(label, text[len(token) :].rstrip(";").strip()))
        else:
            block.statements.append(Mark(label))

    # -- instructions --

    def instruction(self, loc: Loc | None) -> Instruction:
        text = self.text
        guard = None
        if text[self.at] == "@":
            self.at += 1
            negated = text[self.at] == "!"
            self.at += negated
            register = self.look_up(self.at, text[self.at])
            if not isinstance(register, Register):
                raise self.tokens.wrong(self.at, "a predicate register")
            guard = Guard(register, negated)
            self.at += 1
        opcode = text[self.at]
        if not (opcode[:1].isalpha() or opcode[:1] == "_"):
            raise self.tokens.wrong(self.at, "an instruction")
        self.at += 1
        while text[self.at].startswith("."):  # modifiers with space between
            opcode += text[self.at]
            self.at += 1
        operands: list[Operand] = []
        if text[self.at] != ";":
            call = opcode.split(".", 1)[0] == "call"
            while True:
                operands.append(self.operand(call))
                token = text[self.at]
                if token != ",":
                    break
                self.at += 1
            if token != ";":
                raise self.tokens.wrong(self.at, ", or ;")
        self.at += 1
        return Instruction(opcode, tuple(operands), guard, loc)

    def operand(self, call: bool = False) -> Operand:
        first = self.simple(call)
        if self.text[self.at] == "|":
            self.at += 1
            return Pair(first, self.simple(call))
        return first

    def simple(self, call: bool) -> Operand:
        """One operand that is no `d|p`."""
        text, at = self.text, self.at
        token = text[at]
        head = token[:1]
        if head == "%" or head == "$" or head == "_" or head.isalpha():
            self.at = at + 1
            found = self.look_up(at, token)
            if isinstance(found, Variable | Function) and not call:
                return SymbolAddress(found, self.offset())
            return found
        if head == "[":
            return self.address()
        if head == "{":
            return Vector(self.list_until("}", False))
        if head == "(" and call:
            return self.list_until(")", True)
        if head == "!" and _NAME.match(text[at + 1]):
            found = self.look_up(at + 1, text[at + 1])
            if not isinstance(found, Register):
                raise self.tokens.wrong(at + 1, "a predicate register")
            self.at = at + 2
            return Not(found)
        if token.isdecimal() and text[at + 1] in _ENDS and (token[0] != "0" or token == "0"):
            self.at = at + 1
            return Immediate(int(token)) if len(token) < 19 else self.constant(at)
        return self.constant(at)

    def constant(self, at: int) -> Immediate:
        value, self.at = constant(self.tokens, at)
        if isinstance(value, FloatBits):
            return Immediate(value.bits, "f64" if value.double else "f32")
        return Immediate(value)

    def list_until(self, end: str, call: bool) -> tuple[Operand, ...]:
        """Operands in braces or parentheses."""
        text = self.text
        items: list[Operand] = []
        self.at += 1
        if text[self.at] == end:
            self.at += 1
            return ()
        while True:
            token = text[self.at]
            if token in ("{", "["):
                raise self.tokens.wrong(self.at, "a register or constant")
            items.append(self.simple(call))
            token = text[self.at]
            self.at += 1
            if token == end:
                return tuple(items)
            if token != ",":
                raise self.tokens.wrong(self.at - 1, f", or {end}")

    def address(self) -> Address:
        text = self.text
        self.at += 1
        token = text[self.at]
        base: Register | Variable | None = None
        offset = 0
        if token[:1] in ("%", "$", "_") or token[:1].isalpha():
            found = self.look_up(self.at, token)
            if not isinstance(found, Register | Variable):
                raise self.tokens.wrong(self.at, "a register or variable")
            base = found
            self.at += 1
            offset = self.offset()
        else:
            offset = self.integer()
        coordinates = None
        if text[self.at] == ",":
            self.at += 1
            if text[self.at] != "{":
                raise self.tokens.wrong(self.at, "{")
            coordinates = Vector(self.list_until("}", False))
        self.expect("]")
        return Address(base, offset, coordinates)

    def offset(self) -> int:
        """`+n` or `-n` behind a base; 0 where there is none."""
        token = self.text[self.at]
        if token not in ("+", "-"):
            return 0
        where = self.at + (token == "+")
        value, self.at = constant(self.tokens, where)
        if not isinstance(value, int):
            raise self.tokens.wrong(where, "an integer")
        return value

    # -- names --

    def look_up(self, at: int, token: str) -> Operand:
        for scope in reversed(self.scopes):
            found = scope.get(token)
            if found is not None:
                return found
        return self.other_name(at, token)

    def other_name(self, at: int, token: str) -> Operand:
        if token == "_":
            return SINK
        for scope in reversed(self.label_scopes):
            if token in scope:
                return scope[token]
        if token[0] == "%" and token[1:] in SPECIAL:
            return Special(token[1:])
        if token == "WARP_SZ":
            return Immediate(32)
        base, dot, selector = token.rpartition(".")
        if dot:
            register = next((s[base] for s in reversed(self.scopes) if base in s), None)
            if isinstance(register, Register):
                return Lane(register, selector)
        known = [n for s in self.scopes for n in s] + [n for s in self.label_scopes for n in s]
        near = [n for n in known if abs(len(n) - len(token)) < 3 and len(n) < 100]
        close = difflib.get_close_matches(token[:100], near[:2000], n=1)
        line, column = self.tokens.place(at)
        like = f"; is {close[0]} meant?" if close else ""
        raise error("SML0211", name=self.tokens.name, line=line, column=column, what=token[:100], like=like)

    def unsupported(self, feature: str) -> NoReturn:
        line, column = self.tokens.place(self.at)
        raise error("SML0214", name=self.tokens.name, line=line, column=column, feature=feature)


_HEADS = {
    ".version": _Parser.version,
    ".target": _Parser.target,
    ".address_size": _Parser.address_size,
    ".file": _Parser.file,
}
