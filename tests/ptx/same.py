"""Whether two modules are the same up to the identity of their objects, comments apart."""

from dataclasses import fields, is_dataclass

from smalti.errors import Loc
from smalti.ptx.module import Comment, Declare, Function, Label, Module, Register, Variable


def shape(module: Module) -> object:
    """The module as nested tuples; registers, variables, labels and functions by order of appearance."""
    seen: dict[int, int] = {}
    files = set(module.files.values())

    def go(x: object) -> object:
        if isinstance(x, Register | Variable | Label | Function):
            if id(x) in seen:
                return ("again", seen[id(x)])
            seen[id(x)] = len(seen)
        if isinstance(x, Declare) and x.variable is None and not x.registers:
            return None
        if isinstance(x, Loc) and x.file not in files:
            return None  # a line of the text itself
        if is_dataclass(x):
            return (type(x).__name__, *((f.name, go(getattr(x, f.name))) for f in fields(x)))
        if isinstance(x, list | tuple):
            return tuple(go(y) for y in _joined(x) if not isinstance(y, Comment))
        if isinstance(x, dict):
            return tuple((k, go(v)) for k, v in x.items())
        return x

    return go(module)


def _joined(items: object) -> list[object]:
    """Neighbouring register declarations as one: how they are split over lines says nothing."""
    out: list[object] = []
    for x in items:  # type: ignore[attr-defined]
        if isinstance(x, Declare) and x.registers and out and isinstance(out[-1], Declare) and out[-1].registers:
            out[-1] = Declare(out[-1].registers + x.registers)
        else:
            out.append(x)
    return out
