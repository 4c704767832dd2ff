"""The text of a module. Knows the grammar of PTX and nothing of what any instruction means.

`parse(print_module(m))` gives back `m`, comments apart.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable

from smalti.errors import Loc
from smalti.ptx.module import (
    Address,
    Block,
    BranchTargets,
    Comment,
    Declare,
    Directive,
    Function,
    Immediate,
    InitialAddress,
    Instruction,
    Label,
    Lane,
    Mark,
    Module,
    Not,
    Operand,
    Pair,
    Register,
    Sink,
    Special,
    Statement,
    SymbolAddress,
    Tile,
    Variable,
    Vector,
)

TILE_COMMENT = "//@tile "


def print_module(module: Module) -> str:
    """The PTX text of `module`. Every register, label and variable must have its name (`finish` gives them)."""
    target = ", ".join((module.target, *module.target_options))
    lines = [
        f".version {module.version[0]}.{module.version[1]}",
        f".target {target}",
        f".address_size {module.address_size}",
        "",
    ]
    lines += [f'.file {index} "{_escape(name)}"' for index, name in sorted(module.files.items())]
    lines += [TILE_COMMENT + _tile(t) for t in module.tiles]
    out = _Printer(lines, {name: index for index, name in module.files.items()})
    for item in module.items:
        if isinstance(item, Function):
            out.function(item)
        elif isinstance(item, Variable):
            lines.append(variable(item) + ";")
        else:
            lines.append(item.text if isinstance(item, Directive) else f"// {item.text}")
    return "\n".join(lines) + "\n"


def operand(value: Operand) -> str:
    """One operand as text."""
    return _OPERANDS[type(value)](value)


def instruction(i: Instruction) -> str:
    """One instruction as text, with its guard and semicolon."""
    guard = f"@{'!' * i.guard.negated}{i.guard.register.name} " if i.guard else ""
    operands = i.operands
    if i.opcode.startswith("call") and operands and isinstance(operands[0], tuple):
        text = operand(operands[0]) + ", " + ", ".join(map(operand, operands[1:]))
    else:
        text = ", ".join(map(operand, operands))
    return f"{guard}{i.opcode}{' ' * bool(operands)}{text};"


def variable(v: Variable) -> str:
    """The declaration of a variable or parameter, without a semicolon."""
    parts = [f".{v.linkage}"] if v.linkage else []
    parts += [f".{v.space}", *v.attributes]
    if v.align:
        parts.append(f".align {v.align}")
    if v.vector > 1:
        parts.append(f".v{v.vector}")
    parts.append(f".{v.type}")
    if v.ptr:
        parts.append(v.ptr)
    parts.append(v.name + "".join(f"[{n}]" if n else "[]" for n in v.count))
    text = " ".join(parts)
    if v.initial:
        shape = (*v.count, *((v.vector,) if v.vector > 1 else ()))
        text += " = " + _nested([_initial(x, v.type) for x in v.initial], shape)
    return text


class _Printer:
    """Appends the lines of functions; remembers the last source line so that `.loc` is printed on changes only."""

    def __init__(self, lines: list[str], files: dict[str, int]) -> None:
        self.lines = lines
        self.files = files
        self.loc: Loc | None = None

    def function(self, f: Function) -> None:
        self.loc = None
        head = [f".{f.linkage}"] if f.linkage else []
        head.append(".entry" if f.entry else ".func")
        head += [a for a in f.attributes if a.startswith(".attribute")]
        if f.returns:
            head.append("(" + ", ".join(map(variable, f.returns)) + ")")
        head.append(f.name)
        params = ",\n".join("    " + variable(p) for p in f.params)
        self.lines.append(" ".join(head) + (f"(\n{params}\n)" if params else "()"))
        self.lines += [a for a in f.attributes if not a.startswith(".attribute")]
        self.lines += [
            f".{name}" + (" " + ", ".join(map(str, values)) if values else "") for name, values in f.directives.items()
        ]
        if f.body is None:
            self.lines[-1] += ";"
            return
        self.lines.append("{")
        self.block(f.body.statements, "    ")
        self.lines.append("}")

    def block(self, statements: Iterable[Statement], indent: str) -> None:
        for s in statements:
            if isinstance(s, Block):
                if s.scoped:
                    self.lines.append(indent + "{")
                    self.block(s.statements, indent + "    ")
                    self.lines.append(indent + "}")
                else:
                    self.block(s.statements, indent)
            elif isinstance(s, Instruction):
                self.location(s.loc, indent)
                self.lines.append(indent + instruction(s))
            elif isinstance(s, Mark):
                self.lines.append(f"{indent[4:]}{s.label.name}:")
            elif isinstance(s, Declare):
                if s.variable is not None:
                    self.lines.append(f"{indent}{variable(s.variable)};")
                self.lines += [f"{indent}{text}" for text in registers(s.registers)]
            elif isinstance(s, Directive):
                self.lines.append(indent + s.text)
            elif isinstance(s, Comment):
                self.lines += [f"{indent}// {line}" for line in s.text.splitlines()]
            elif isinstance(s, BranchTargets):
                names = ", ".join(t.name for t in s.targets)
                self.lines.append(f"{indent[4:]}{s.label.name}: .branchtargets {names};")
            else:
                self.lines.append(f"{indent[4:]}{s.label.name}: .callprototype {s.text};")

    def location(self, loc: Loc | None, indent: str) -> None:
        if loc is not None and loc != self.loc and loc.file in self.files:
            self.lines.append(f"{indent}.loc {self.files[loc.file]} {loc.line} 0")
            self.loc = loc


def registers(declared: tuple[Register, ...]) -> list[str]:
    """The `.reg` lines of a declaration: `%r<3>` for %r0 %r1 %r2, else the names."""
    lines = []
    at = 0
    while at < len(declared):
        type_ = declared[at].type
        m = re.fullmatch(r"(.*?\D)0", declared[at].name)
        run = at
        while m and run < len(declared) and declared[run].type == type_ and declared[run].name == f"{m[1]}{run - at}":
            run += 1
        if m and run > at:
            lines.append(f".reg .{type_} {m[1]}<{run - at}>;")
        else:
            run = at + 1
            while run < len(declared) and declared[run].type == type_ and not declared[run].name.endswith("0"):
                run += 1
            lines.append(f".reg .{type_} " + ", ".join(r.name for r in declared[at:run]) + ";")
        at = run
    return lines


def _immediate(i: Immediate) -> str:
    if i.kind == "int":
        return str(i.value)
    return f"0f{i.value:08X}" if i.kind == "f32" else f"0d{i.value:016X}"


def _offset(name: str, offset: int) -> str:
    return name + (f"+{offset}" if offset > 0 else str(offset) if offset < 0 else "")


def _address(a: Address) -> str:
    inner = str(a.offset) if a.base is None else _offset(a.base.name, a.offset)
    if a.coordinates is not None:
        inner += ", " + operand(a.coordinates)
    return f"[{inner}]"


def _nested(values: list[str], shape: tuple[int, ...]) -> str:
    """The values of an array, a pair of braces for each dimension."""
    if not shape:
        return values[0]
    row = 1
    for n in shape[1:]:
        row *= n
    rows = (_nested(values[i : i + row], shape[1:]) for i in range(0, len(values), row))
    return "{" + ", ".join(rows) + "}"


def _initial(value: int | InitialAddress, type_: str) -> str:
    if isinstance(value, int):
        if type_ in ("f32", "f64"):
            return _immediate(Immediate(value, "f32" if type_ == "f32" else "f64"))
        return str(value)
    name = value.variable.name
    return _offset(f"generic({name})" if value.generic else name, value.offset)


def _tile(t: Tile) -> str:
    fields = {name: getattr(t, name) for name in Tile.__slots__}
    return json.dumps({k: v for k, v in fields.items() if v not in ("", ())})


def _escape(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


_OPERANDS: dict[type, Callable[..., str]] = {
    Register: lambda v: v.name,
    Variable: lambda v: v.name,
    Function: lambda v: v.name,
    Label: lambda v: v.name,
    Immediate: _immediate,
    Special: lambda v: f"%{v.name}",
    SymbolAddress: lambda v: _offset(v.symbol.name, v.offset),
    Address: _address,
    Vector: lambda v: "{" + ", ".join(map(operand, v.items)) + "}",
    Pair: lambda v: f"{operand(v.first)}|{operand(v.second)}",
    Not: lambda v: f"!{v.register.name}",
    Lane: lambda v: f"{v.register.name}.{v.selector}",
    Sink: lambda v: "_",
    tuple: lambda v: "(" + ", ".join(map(operand, v)) + ")",
}
