"""Emitting instructions into a function, with the user's source line on each.

Looks opcodes up in the table and refuses wrong operands at once; knows nothing of what is emitted or why.
"""

from __future__ import annotations

import functools
import os
import struct
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias

from smalti.errors import Loc, error
from smalti.ptx import check
from smalti.ptx.isa import TABLE
from smalti.ptx.isa.types import REGISTER_TYPES
from smalti.ptx.module import (
    Address,
    Block,
    Comment,
    Declare,
    Function,
    Guard,
    Immediate,
    Instruction,
    Label,
    Mark,
    Module,
    Operand,
    Register,
    SymbolAddress,
    Variable,
    Vector,
)

Value: TypeAlias = "Operand | int | float | list[Value]"

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_KERNELS = _PACKAGE + "ops" + os.sep  # kernels of our own keep their own lines
_STDLIB = os.path.dirname(os.path.abspath(os.__file__)) + os.sep


class Builder:
    """Emits into one function of a module.

    `block` is where the next statement goes. Registers and labels get their names from `finish`.
    """

    def __init__(self, module: Module, function: Function) -> None:
        assert function.body is not None, "a declaration has no body to emit into"
        self.module = module
        self.function = function
        self.current: Block = function.body

    def emit(self, opcode: str, *operands: Value, guard: Guard | Register | None = None) -> Instruction:
        """Append one instruction. Python ints and floats become immediates, lists vectors, variables their addresses.

        Errors: SML0201 unknown opcode, SML0202 number or kind of operands, SML0203 type, SML0204 immediate.
        """
        call = opcode.split(".")[0] == "call"
        made = tuple(_operand(o, call) for o in operands)
        form = TABLE.find(opcode, made)
        if form is None:
            raise error("SML0201", opcode=opcode, like=check.nearest(opcode))
        if isinstance(guard, Register):
            guard = Guard(guard)
        i = Instruction(opcode, made, guard, user_line())
        for problem in check.operand_problems(i, form):
            raise problem
        self.current.statements.append(i)
        return i

    def register(self, type_: str) -> Register:
        """A fresh virtual register; `finish` names and declares it."""
        assert type_ in REGISTER_TYPES, type_
        return Register(type_)

    def registers(self, type_: str, count: int) -> list[Register]:
        return [self.register(type_) for _ in range(count)]

    def label(self, name: str = "") -> Label:
        return Label(name)

    def place(self, label: Label) -> None:
        """Put the label here."""
        self.current.statements.append(Mark(label))

    def variable(
        self,
        name: str,
        space: str,
        type_: str,
        count: Sequence[int] = (),
        align: int = 0,
        linkage: str = "",
    ) -> Variable:
        """Declare a variable: a module item for global and const, in this block for shared, local and param."""
        made = Variable(name, space, type_, tuple(count), align, linkage=linkage)
        if space in ("global", "const") or linkage == "extern":
            self.module.items.insert(0, made)
        else:
            self.current.statements.append(Declare(variable=made))
        return made

    def comment(self, text: str) -> None:
        self.current.statements.append(Comment(text))

    @contextmanager
    def block(self, scoped: bool = False) -> Iterator[Block]:
        """A nested region; statements go into it until the `with` ends."""
        made = Block(scoped=scoped)
        self.current.statements.append(made)
        with self.at(made):
            yield made

    @contextmanager
    def at(self, block: Block) -> Iterator[Block]:
        """Emit at the end of an earlier region."""
        before, self.current = self.current, block
        try:
            yield block
        finally:
            self.current = before

    def address(self, base: Register | Variable | None, offset: int = 0) -> Address:
        return Address(base, offset)

    def tensor_address(self, base: Register | Variable, coordinates: Sequence[Value]) -> Address:
        """`[map, {c0, c1, …}]`, the operand of tensor copies; the innermost coordinate first."""
        items = tuple(_operand(c, False) for c in coordinates)
        return Address(base, 0, Vector(items))


def _operand(value: Value, call: bool) -> Operand:
    if isinstance(value, bool | int):
        return Immediate(int(value))
    if isinstance(value, float):
        return Immediate(struct.unpack("<Q", struct.pack("<d", value))[0], "f64")
    if isinstance(value, list):
        return Vector(tuple(_operand(v, call) for v in value))
    if isinstance(value, Variable) and not call:
        return SymbolAddress(value)
    return value


@functools.cache
def _ours(file: str) -> bool:
    if file.startswith(_KERNELS):
        return False
    if file.startswith((_PACKAGE, "<frozen")):
        return True
    return file.startswith(_STDLIB) and "site-packages" not in file and "dist-packages" not in file


def user_line() -> Loc | None:
    """File and line of the innermost frame outside this package (its ready kernels count as outside)."""
    frame = sys._getframe(1)
    while frame is not None:
        if not _ours(frame.f_code.co_filename):
            return Loc(frame.f_code.co_filename, frame.f_lineno)
        frame = frame.f_back  # type: ignore[assignment]
    return None
