"""Down to PTX: any instruction of the table by its own name, results given back as values.

`x = sm.emit("prmt.b32", a, b, 0x3210)`.
"""

from __future__ import annotations

from typing import Any

from smalti.errors import error
from smalti.lang.dtypes import DTYPES, DType
from smalti.lang.trace import current
from smalti.lang.values import Value
from smalti.ptx.isa import TABLE
from smalti.ptx.module import Address, Operand, Pair

__all__ = ["address", "emit"]

_REGISTERS = {
    "b32": "u32",
    "b64": "u64",
    "b16": "u16",
    "f16": "f16",
    "bf16": "bf16",
}  # what a value of an untyped register is called


def emit(opcode: str, *operands: Any, guard: Value | None = None) -> Any:
    """Emit one instruction of the table.

    operands: values, Python numbers, lists for `{...}` vectors, PTX operands (`.raw`). If only the operands that
    are read are given, the written ones are made and returned (one value, or a tuple); vectors that are written
    must be given. Errors: those of the builder, SML0201 to SML0204.
    """
    trace = current()
    form = TABLE.form(opcode)
    given = list(operands)
    results: list[Value] = []
    if form is not None:
        outs = [s for s in form.row.specs if s.role == "out" and not s.vector and not s.optional]
        wanted = [s for s in form.row.specs if not s.optional]
        if outs and len(given) == len(wanted) - len(outs):
            results += [_result(form.mods.get(spec.type, spec.type), opcode) for spec in outs]
            made: list[Operand] = []
            for spec, value in zip(outs, results, strict=True):
                if spec.pair:
                    first = made.pop()
                    made.append(Pair(first, value.register))
                else:
                    made.append(value.register)
            given = [*made, *given]
    trace.emit(opcode, *given, guard=guard)
    return results[0] if len(results) == 1 else tuple(results) or None


def address(base: Value, offset: int = 0) -> Address:
    """A memory operand `[base + offset]` for `emit`: `sm.address(a.pointer + 4)`."""
    return Address(current().read(base), offset)


def _result(type_: str, opcode: str) -> Value:
    trace = current()
    name = _REGISTERS.get(type_, type_)
    if name not in DTYPES:
        raise error("SML0360", opcode=opcode, type=type_)
    kind: DType = DTYPES[name]
    register = trace.register(type_ if type_ in ("b16", "b32", "b64") else kind.register)
    return Value(kind, register, trace.region)
