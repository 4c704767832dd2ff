"""Scalars of a kernel: typed values in registers, with Python's operators, each emitting one instruction.

Python numbers stay Python numbers (they are folded) until they meet a value. Knows nothing of memory.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NoReturn, TypeAlias

from smalti.errors import error
from smalti.lang.dtypes import DTYPES, DType, dtype
from smalti.lang.trace import Region, Trace, current
from smalti.ptx.module import Guard, Immediate, Register

__all__ = ["Scalar", "Value", "Var", "as_value", "cdiv", "constant", "maximum", "minimum", "select", "var"]

Number: TypeAlias = "int | float | bool"
Scalar: TypeAlias = "Value | int | float | bool"

# operator -> spelling for (unsigned, signed, float, pred); {t} is the type, {b} its bit type
_BINARY: dict[str, tuple[str | None, str | None, str | None, str | None]] = {
    "+": ("add.{t}", "add.{t}", "add.rn.{t}", None),
    "-": ("sub.{t}", "sub.{t}", "sub.rn.{t}", None),
    "*": ("mul.lo.{t}", "mul.lo.{t}", "mul.rn.{t}", None),
    "/": (None, None, "div.rn.{t}", None),
    "//": ("div.{t}", None, None, None),
    "%": ("rem.{t}", None, None, None),
    "&": ("and.{b}", "and.{b}", None, "and.pred"),
    "|": ("or.{b}", "or.{b}", None, "or.pred"),
    "^": ("xor.{b}", "xor.{b}", None, "xor.pred"),
    "<<": ("shl.{b}", "shl.{b}", None, None),
    ">>": ("shr.{t}", "shr.{t}", None, None),
    "min": ("min.{t}", "min.{t}", "min.{t}", None),
    "max": ("max.{t}", "max.{t}", "max.{t}", None),
}
_KIND = {"unsigned": 0, "signed": 1, "float": 2, "pred": 3}
_COMPARE = {"<": "lt", "<=": "le", ">": "gt", ">=": "ge", "==": "eq", "!=": "ne"}
_UNORDERED = {"!=": "neu"}  # Python's != holds for NaN


class Value:
    """A traced scalar: `dtype`, and the register that holds it. Made by the language, not by users.

    Operators take values of the same dtype and Python numbers. `bool()`, `int()`, `len()` and iteration are
    refused with SML0301: a traced value has no value yet.
    """

    __slots__ = ("dtype", "region", "register")

    def __init__(self, dtype: DType, register: Register, region: Region) -> None:
        self.dtype = dtype
        self.register = register
        self.region = region

    def __repr__(self) -> str:
        return f"<{self.dtype.name} value>"

    def as_operand(self, trace: Trace) -> Register:
        return trace.read(self)

    @property
    def raw(self) -> Register:
        """The PTX register."""
        return current().read(self)

    # what a traced value cannot be

    def _unknown(self, use: str) -> NoReturn:
        raise error("SML0301", dtype=self.dtype.name, use=use)

    def __bool__(self) -> bool:
        self._unknown("a condition of Python's if, while, and, or, not")

    def __int__(self) -> int:
        self._unknown("int()")

    def __index__(self) -> int:
        self._unknown("an index or a count of Python's range")

    def __float__(self) -> float:
        self._unknown("float()")

    def __iter__(self) -> Iterator[Any]:
        self._unknown("iteration")

    def __len__(self) -> int:
        self._unknown("len()")

    __hash__ = object.__hash__

    # arithmetic

    def _binary(self, op: str, other: Any, swapped: bool = False) -> Any:
        mate = _mate(self, other, op)
        if mate is None:
            return NotImplemented
        a, b = (mate, self) if swapped else (self, mate)
        return _arithmetic(op, a, b, self.dtype)

    def __add__(self, o: Any) -> Any:
        return self._binary("+", o)

    def __radd__(self, o: Any) -> Any:
        return self._binary("+", o, True)

    def __sub__(self, o: Any) -> Any:
        return self._binary("-", o)

    def __rsub__(self, o: Any) -> Any:
        return self._binary("-", o, True)

    def __mul__(self, o: Any) -> Any:
        return self._binary("*", o)

    def __rmul__(self, o: Any) -> Any:
        return self._binary("*", o, True)

    def __truediv__(self, o: Any) -> Any:
        return self._binary("/", o)

    def __rtruediv__(self, o: Any) -> Any:
        return self._binary("/", o, True)

    def __floordiv__(self, o: Any) -> Any:
        return self._binary("//", o)

    def __rfloordiv__(self, o: Any) -> Any:
        return self._binary("//", o, True)

    def __mod__(self, o: Any) -> Any:
        return self._binary("%", o)

    def __rmod__(self, o: Any) -> Any:
        return self._binary("%", o, True)

    def __and__(self, o: Any) -> Any:
        return self._binary("&", o)

    def __rand__(self, o: Any) -> Any:
        return self._binary("&", o, True)

    def __or__(self, o: Any) -> Any:
        return self._binary("|", o)

    def __ror__(self, o: Any) -> Any:
        return self._binary("|", o, True)

    def __xor__(self, o: Any) -> Any:
        return self._binary("^", o)

    def __rxor__(self, o: Any) -> Any:
        return self._binary("^", o, True)

    def __lshift__(self, o: Any) -> Any:
        return self._binary("<<", o)

    def __rshift__(self, o: Any) -> Any:
        return self._binary(">>", o)

    def __neg__(self) -> Any:
        if self.dtype.kind == "unsigned":
            return self._binary("-", 0, True)
        return _unary(f"neg.{self.dtype.register}", self)

    def __invert__(self) -> Any:
        return _unary("not.pred" if self.dtype.kind == "pred" else f"not.b{self.dtype.bits}", self)

    def __abs__(self) -> Any:
        return self if self.dtype.kind == "unsigned" else _unary(f"abs.{self.dtype.register}", self)

    def _compare(self, op: str, other: Any) -> Any:
        mate = _mate(self, other, op)
        if mate is None:
            raise error("SML0303", op=op, left=self.dtype.name, right=_kind_of(other))
        trace = current()
        name = _UNORDERED.get(op, _COMPARE[op]) if self.dtype.kind == "float" else _COMPARE[op]
        result = fresh("pred")
        trace.emit(f"setp.{name}.{self.dtype.register}", result.register, self, mate)
        return result

    def __lt__(self, o: Any) -> Any:
        return self._compare("<", o)

    def __le__(self, o: Any) -> Any:
        return self._compare("<=", o)

    def __gt__(self, o: Any) -> Any:
        return self._compare(">", o)

    def __ge__(self, o: Any) -> Any:
        return self._compare(">=", o)

    def __eq__(self, o: object) -> Any:
        return self._compare("==", o)

    def __ne__(self, o: object) -> Any:
        return self._compare("!=", o)

    def to(self, to: DType | str) -> Value:
        """The value in another dtype: integers wrap, floats round to nearest even, and toward zero to integers."""
        target = dtype(to)
        source = self.get() if isinstance(self, Var) else self
        return source if target is self.dtype else _convert(source, target)


class Var(Value):
    """State of a loop: a register that can be set again. Made by `sm.var`."""

    __slots__ = ()

    def set(self, value: Scalar, *, when: Value | None = None) -> None:
        """Give it a new value (for the threads for which `when` holds)."""
        trace = current()
        source = value if isinstance(value, Value) else constant(value, self.dtype)
        if isinstance(source, Value) and source.dtype is not self.dtype:
            raise error("SML0303", op="set", left=self.dtype.name, right=source.dtype.name)
        guard = Guard(trace.read(when)) if when is not None else None
        trace.read(self)
        if self.dtype.kind == "pred" and not isinstance(source, Value):
            source = as_value(bool(value), self.dtype)
        trace.emit(_move(self.dtype), self.register, source, guard=guard)

    def get(self) -> Value:
        """Its present value, as a value of its own."""
        trace = current()
        result = fresh(self.dtype.name)
        trace.emit(_move(self.dtype), result.register, self)
        return result

    def update(self, op: str, other: Scalar, *, when: Value | None = None) -> Var:
        """x = x op other in place, one instruction (for the threads for which `when` holds)."""
        mate = _mate(self, other, op)
        spelling = _BINARY[op][_KIND[self.dtype.kind]]
        if mate is None or spelling is None or not self.dtype.native:
            raise error("SML0303", op=f"{op}=", left=self.dtype.name, right=_kind_of(other))
        trace = current()
        guard = Guard(trace.read(when)) if when is not None else None
        if self.dtype.kind == "pred":
            mate = as_value(mate, self.dtype)
        opcode = spelling.format(t=self.dtype.register, b=f"b{self.dtype.bits}")
        trace.emit(opcode, self.register, self, mate, guard=guard)
        return self

    def __iadd__(self, o: Scalar) -> Var:  # type: ignore[misc]
        return self.update("+", o)

    def __isub__(self, o: Scalar) -> Var:  # type: ignore[misc]
        return self.update("-", o)

    def __imul__(self, o: Scalar) -> Var:  # type: ignore[misc]
        return self.update("*", o)

    def __ixor__(self, o: Scalar) -> Var:  # type: ignore[misc]
        return self.update("^", o)

    def __iand__(self, o: Scalar) -> Var:  # type: ignore[misc]
        return self.update("&", o)

    def __ior__(self, o: Scalar) -> Var:  # type: ignore[misc]
        return self.update("|", o)


def var(value: Scalar, dtype: DType | str | None = None) -> Var:
    """Loop state: a register that starts as `value` and can be `set` again, also with `+=`.

    dtype: of the value if it is traced; pred for a bool, u32 for an int, f32 for a float unless given.
    """
    trace = current()
    kind = _dtype_of(value, dtype)
    place = Var(kind, trace.register(kind.register), trace.region)
    place.set(value)
    return place


def constant(number: Number, dtype: DType) -> int | Immediate | Any:
    """A Python number as an immediate of `dtype`. Errors: SML0302 if it does not fit."""
    if dtype.kind == "float":
        if dtype.name == "f32":
            return Immediate(struct.unpack("<I", struct.pack("<f", number))[0], "f32")
        assert dtype.name == "f64", dtype
        return Immediate(struct.unpack("<Q", struct.pack("<d", number))[0], "f64")
    if dtype.kind == "pred":
        return number
    if isinstance(number, float) or not _fits(int(number), dtype):
        raise error("SML0302", number=number, dtype=dtype.name)
    return int(number)


def as_value(x: Scalar, dtype: DType | str) -> Value:
    """`x` in a register: the value itself, or a Python number moved into a new one."""
    if isinstance(x, Value):
        return x
    kind = DTYPES[dtype] if isinstance(dtype, str) else dtype
    trace = current()
    result = fresh(kind.name)
    if kind.kind == "pred":  # there is no mov of an immediate to a predicate
        trace.emit(f"setp.{'eq' if x else 'ne'}.u32", result.register, 0, 0)
    else:
        trace.emit(_move(kind), result.register, constant(x, kind))
    return result


def fresh(dtype: str) -> Value:
    """A value whose register the caller writes."""
    trace = current()
    kind = DTYPES[dtype]
    return Value(kind, trace.register(kind.register), trace.region)


def cdiv(a: Scalar, b: Scalar) -> Any:
    """a / b rounded up, for unsigned values and whole Python numbers."""
    if not isinstance(a, Value) and not isinstance(b, Value):
        return -(-a // b)
    return (a + (b - 1)) // b


def minimum(*values: Scalar) -> Any:
    """The smallest of the arguments."""
    return _reduce("min", min, values)


def maximum(*values: Scalar) -> Any:
    """The largest of the arguments."""
    return _reduce("max", max, values)


def select(condition: Scalar, a: Scalar, b: Scalar) -> Any:
    """`a` where `condition` holds, else `b`; both are evaluated."""
    if not isinstance(condition, Value):
        return a if condition else b
    mate = a if isinstance(a, Value) else b
    kind = mate.dtype if isinstance(mate, Value) else _dtype_of(mate, None)
    if kind.kind == "pred":
        return (condition & a) | (~condition & b)
    result = fresh(kind.name)
    operands = [x if isinstance(x, Value) else constant(x, kind) for x in (a, b)]
    current().emit(f"selp.{kind.register}", result.register, *operands, condition)
    return result


def _reduce(op: str, plain: Any, values: tuple[Scalar, ...]) -> Any:
    fixed = [v for v in values if not isinstance(v, Value)]
    traced = [v for v in values if isinstance(v, Value)]
    result: Any = plain(fixed) if fixed else traced.pop(0)
    for v in traced:
        result = v._binary(op, result)
    return result


def _dtype_of(x: Scalar, given: DType | str | None) -> DType:
    if given is not None:
        return dtype(given)
    if isinstance(x, Value):
        return x.dtype
    return DTYPES["pred" if isinstance(x, bool) else "u32" if isinstance(x, int) else "f32"]


def _kind_of(x: object) -> str:
    return x.dtype.name if isinstance(x, Value) else type(x).__name__


def _fits(n: int, dtype: DType) -> bool:
    low = -(1 << (dtype.bits - 1))  # bit patterns with the top bit set are written either way
    return low <= n < 1 << dtype.bits


def _mate(value: Value, other: Any, op: str) -> Any:
    """The other operand, of the same dtype, or an immediate; None for what is no scalar."""
    if isinstance(other, Value):
        if op in ("<<", ">>"):
            return other
        if other.dtype is not value.dtype:
            raise error("SML0303", op=op, left=value.dtype.name, right=other.dtype.name)
        return other
    if isinstance(other, bool | int | float):
        return other if value.dtype.kind == "pred" else constant(other, value.dtype)
    return None


def _arithmetic(op: str, a: Any, b: Any, kind: DType) -> Any:
    folded = _fold(op, a, b, kind)
    if folded is not None:
        return folded
    spelling = _BINARY[op][_KIND[kind.kind]]
    if spelling is None or not kind.native:
        raise error("SML0303", op=op, left=_kind_of(a), right=_kind_of(b))
    result = fresh(kind.name)
    if kind.kind == "pred":
        a, b = as_value(a, kind), as_value(b, kind)
    elif not isinstance(a, Value):
        a = as_value(a, kind) if not isinstance(a, Immediate) else _moved(a, kind)
    current().emit(spelling.format(t=kind.register, b=f"b{kind.bits}"), result.register, a, b)
    return result


def _fold(op: str, a: Any, b: Any, kind: DType) -> Any:
    """Identities and powers of two: x*1, x+0, x//2^n, x%2^n, p & True ..."""
    if kind.kind == "pred" and isinstance(b, bool) and isinstance(a, Value):
        if op == "&":
            return a if b else False
        if op == "|":
            return True if b else a
        return ~a if b else a
    if kind.kind == "float" or not isinstance(b, int) or not isinstance(a, Value):
        return None
    if isinstance(a, Var) and b in (0, 1):
        return None  # a copy is wanted: the place may change
    if (op in ("+", "-", "<<", ">>", "|", "^") and b == 0) or (op in ("*", "//") and b == 1):
        return a
    if op in ("*", "&") and b == 0:
        return 0
    if b > 1 and b & (b - 1) == 0 and kind.kind == "unsigned":
        if op == "//":
            return a >> (b.bit_length() - 1)
        if op == "%":
            return a & (b - 1)
        if op == "*":
            return a << (b.bit_length() - 1)
    return None


def _moved(immediate: Immediate, kind: DType) -> Value:
    result = fresh(kind.name)
    current().emit(_move(kind), result.register, immediate)
    return result


def _unary(opcode: str, a: Value) -> Value:
    result = fresh(a.dtype.name)
    current().emit(opcode, result.register, a)
    return result


def _move(kind: DType) -> str:
    return f"mov.{kind.register}"


def _convert(value: Value, to: DType) -> Value:
    source, trace = value.dtype, current()
    if not (source.native and to.native) or "pred" in (source.name, to.name):
        if source.name == "pred" and to.kind in ("unsigned", "signed"):
            return select(value, 1, 0) if to.name == "u32" else _convert(select(value, 1, 0), to)
        raise error("SML0303", op="to", left=source.name, right=to.name)
    if source.kind != "float" and to.kind != "float" and source.bits == to.bits:
        return Value(to, trace.read(value), trace.region)  # the same bits
    result = fresh(to.name)
    if to.kind == "float":
        rounding = "" if source.kind == "float" and source.bits < to.bits else ".rn"
    else:
        rounding = ".rzi" if source.kind == "float" else ""
    trace.emit(f"cvt{rounding}.{to.register}.{source.register}", result.register, value)
    return result
