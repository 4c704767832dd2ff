"""PTX as data: modules, functions, statements, instructions, operands.

Names are resolved once: a register, variable or label is an object, compared by identity, so that nested
scopes may reuse a name. This file knows nothing of text (parse, print), legality (isa, validate) or execution.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from smalti.errors import Loc

# -- things with identity ------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class Register:
    """A virtual register. `type` is a PTX type without dot: pred b8 b16 b32 b64 b128 u32 s32 f32 ..."""

    type: str
    name: str = ""  # given by the parser, or by finish


@dataclass(eq=False, slots=True)
class Variable:
    """A symbol in a state space (global, shared, const, local, param, reg-param), or a kernel parameter.

    `count` is the number of elements, () for a scalar, (0,) for `[]` of unknown size; `size` is in bytes.
    """

    name: str
    space: str  # global shared const local param
    type: str  # element type: b8 u32 f32 b64 ...
    count: tuple[int, ...] = ()
    align: int = 0  # 0: natural
    vector: int = 1
    linkage: str = ""  # extern visible weak common
    initial: tuple[int | InitialAddress, ...] = ()  # raw element bits
    ptr: str = ""  # the text of a parameter's `.ptr ...` attribute
    attributes: tuple[str, ...] = ()  # other attributes as written, e.g. ".attribute(.managed)"

    @property
    def size(self) -> int:
        total = type_bits(self.type) // 8 * self.vector
        for n in self.count:
            total *= n
        return total


@dataclass(frozen=True, slots=True)
class InitialAddress:
    """An address used as an initial value: `generic(symbol)+offset`."""

    variable: Variable | Function
    offset: int = 0
    generic: bool = False


@dataclass(eq=False, slots=True)
class Label:
    name: str = ""


# -- operands ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Immediate:
    """An integer (`kind` int; value as written), or the bits of an f32 or f64 constant."""

    value: int
    kind: Literal["int", "f32", "f64"] = "int"


@dataclass(frozen=True, slots=True)
class Special:
    """A special register such as `%tid.x`; `name` has no percent sign."""

    name: str


@dataclass(frozen=True, slots=True)
class SymbolAddress:
    """The address of a variable or function used as a value: `symbol+offset`."""

    symbol: Variable | Function
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Address:
    """`[base+offset]`; with `coordinates` a tensor coordinate list: `[base, {c0, c1}]`.

    A register offset (`[taddr + r]`) does not exist in PTX; `base` None means an absolute immediate.
    """

    base: Register | Variable | None
    offset: int = 0
    coordinates: Vector | None = None


@dataclass(frozen=True, slots=True)
class Vector:
    items: tuple[Operand, ...]


@dataclass(frozen=True, slots=True)
class Pair:
    """`d|p`: two results of one instruction."""

    first: Operand
    second: Operand


@dataclass(frozen=True, slots=True)
class Not:
    """`!p` used as an operand."""

    register: Register


@dataclass(frozen=True, slots=True)
class Lane:
    """A part of a vector register or video selector: `r.x`, `r.b0`."""

    register: Register
    selector: str


class Sink:
    """`_`: a result that is dropped."""

    def __repr__(self) -> str:
        return "_"


SINK = Sink()

Operand: TypeAlias = (
    "Register | Variable | Immediate | Special | SymbolAddress | Address | Vector | Pair | Not | Lane | Sink "
    "| Label | Function | tuple[Operand, ...]"  # tuple: a parenthesised list of `call`
)


@dataclass(frozen=True, slots=True)
class Guard:
    register: Register
    negated: bool = False


# -- statements ----------------------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class Instruction:
    """One instruction. `opcode` is the full spelling, e.g. `ld.shared.u32`; the table gives it meaning."""

    opcode: str
    operands: tuple[Operand, ...] = ()
    guard: Guard | None = None
    loc: Loc | None = None


@dataclass(eq=False, slots=True)
class Mark:
    """The place of a label."""

    label: Label


@dataclass(eq=False, slots=True)
class BranchTargets:
    """`label: .branchtargets a, b, c;`"""

    label: Label
    targets: tuple[Label, ...]


@dataclass(eq=False, slots=True)
class CallPrototype:
    """`label: .callprototype ...;`, kept as written."""

    label: Label
    text: str


@dataclass(eq=False, slots=True)
class Declare:
    """Declares registers (`registers`) or a variable in the enclosing block."""

    registers: tuple[Register, ...] = ()
    variable: Variable | None = None


@dataclass(eq=False, slots=True)
class Directive:
    """A directive kept as written, without the final semicolon's newline: `.pragma "nounroll";`, `.loc ...`."""

    text: str


@dataclass(eq=False, slots=True)
class Comment:
    text: str


@dataclass(eq=False, slots=True)
class Block:
    """A region: a list of statements; printed with braces if `scoped`."""

    statements: list[Statement] = field(default_factory=list)
    scoped: bool = False

    def walk(self) -> Iterator[Statement]:
        """All statements in order, nested blocks flattened (the blocks themselves are not yielded)."""
        for s in self.statements:
            if isinstance(s, Block):
                yield from s.walk()
            else:
                yield s

    def instructions(self) -> Iterator[Instruction]:
        return (s for s in self.walk() if isinstance(s, Instruction))


Statement: TypeAlias = "Instruction | Mark | BranchTargets | CallPrototype | Declare | Directive | Comment | Block"


def registers_of(o: Operand | Guard) -> Iterator[Register]:
    """Every register in an operand or guard."""
    if isinstance(o, Register):
        yield o
    elif isinstance(o, Address):
        if isinstance(o.base, Register):
            yield o.base
        if o.coordinates is not None:
            yield from registers_of(o.coordinates)
    elif isinstance(o, Vector):
        for item in o.items:
            yield from registers_of(item)
    elif isinstance(o, tuple):
        for item in o:
            yield from registers_of(item)
    elif isinstance(o, Pair):
        yield from registers_of(o.first)
        yield from registers_of(o.second)
    elif isinstance(o, Not | Lane | Guard):
        yield o.register


# -- functions and modules -----------------------------------------------------------------------------


@dataclass(eq=False, slots=True)
class Function:
    """A kernel (`entry`) or a device function. `directives` holds performance directives by name without
    dot, e.g. {"reqntid": (384, 1, 1), "minnctapersm": (1,), "explicitcluster": ()}."""

    name: str
    entry: bool = True
    linkage: str = "visible"
    returns: list[Variable] = field(default_factory=list)
    params: list[Variable] = field(default_factory=list)
    directives: dict[str, tuple[int, ...]] = field(default_factory=dict)
    body: Block | None = field(default_factory=Block)
    attributes: tuple[str, ...] = ()  # e.g. ".noreturn"


@dataclass(frozen=True, slots=True)
class Tile:
    """What the author calls a piece of memory; survives printing as a comment, used by reports.

    `place` is "shared", "tensor" or "param <name>"; `offset`/`size` are bytes (columns for tensor memory).
    """

    name: str
    place: str
    offset: int
    size: int
    shape: tuple[int, ...] = ()
    dtype: str = ""
    layout: str = ""
    role: str = ""


@dataclass(eq=False, slots=True)
class Module:
    version: tuple[int, int] = (8, 0)
    target: str = "sm_90a"
    target_options: tuple[str, ...] = ()
    address_size: int = 64
    items: list[Variable | Function | Directive | Comment] = field(default_factory=list)
    files: dict[int, str] = field(default_factory=dict)  # `.file` table
    tiles: list[Tile] = field(default_factory=list)

    def functions(self) -> list[Function]:
        return [f for f in self.items if isinstance(f, Function)]

    def function(self, name: str) -> Function:
        """The function or kernel called `name` (KeyError if there is none)."""
        for f in self.functions():
            if f.name == name and f.body is not None:
                return f
        raise KeyError(name)


def type_bits(type_: str) -> int:
    """Width in bits of a fundamental PTX type; `pred` counts as 1."""
    if type_ == "pred":
        return 1
    packed = {"f16x2": 32, "bf16x2": 32, "f32x2": 64, "e4m3x2": 16, "e5m2x2": 16, "tf32": 32, "bf16": 16}
    if type_ in packed:
        return packed[type_]
    return int("".join(c for c in type_ if c.isdigit()))
