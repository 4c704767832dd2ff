"""Register arrays: matrices whose elements lie in the registers of a warpgroup, by a distribution.

Arithmetic is element by element and makes new registers; `to` converts the dtype, in packed pairs where PTX has
such conversions. Another distribution is reached only through shared memory, by an explicit call.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from smalti.errors import error
from smalti.lang.distribution import Distribution
from smalti.lang.dtypes import DTYPES, DType, dtype
from smalti.lang.trace import Region, current
from smalti.lang.values import Scalar, Value, constant
from smalti.ptx.module import Register

__all__ = ["Array", "full"]

_PACKED = {"bf16": "bf16x2", "f16": "f16x2"}
_F32 = {"+": "add.rn.f32", "-": "sub.rn.f32", "*": "mul.rn.f32", "/": "div.rn.f32", "min": "min.f32", "max": "max.f32"}
_INT = {"+": "add.{t}", "-": "sub.{t}", "*": "mul.lo.{t}", "min": "min.{t}", "max": "max.{t}"}
_HALF = {"+": "add.rn.{t}", "-": "sub.rn.{t}", "*": "mul.rn.{t}", "min": "min.{t}", "max": "max.{t}"}


class Array:
    """A matrix in registers: `shape`, `dtype`, `distribution`. Elements narrower than 32 bits are packed.

    `+ - * /`, `minimum`, `maximum` take an array of the same distribution and dtype, or a scalar.
    """

    __slots__ = ("_loan", "distribution", "dtype", "region", "registers")

    def __init__(
        self,
        dtype: DType,
        distribution: Distribution,
        registers: list[Register],
        region: Region,
        loan: Callable[[], None] | None = None,
    ) -> None:
        assert len(registers) * dtype.per_register == distribution.elements, (len(registers), distribution)
        self.dtype, self.distribution, self.registers, self.region = dtype, distribution, registers, region
        self._loan = loan  # asks whether registers that belong to an accumulator still hold these values

    def __repr__(self) -> str:
        return f"<{self.dtype.name} array, {self.distribution}>"

    @property
    def shape(self) -> tuple[int, int]:
        return self.distribution.shape

    @property
    def raw(self) -> list[Register]:
        """The PTX registers of each thread, in the distribution's element order."""
        self._visible()
        return list(self.registers)

    def _visible(self) -> None:
        trace = current()
        if not trace.region.inside(self.region):
            raise error("SML0306", where=self.region.kind, role=self.region.threads.describe())
        if self._loan is not None:
            self._loan()

    def copy(self) -> Array:
        """The same values in registers of their own."""
        registers = [_emit("mov.b32", r.type, r) for r in self.raw]
        return Array(self.dtype, self.distribution, registers, current().region)

    # arithmetic

    def __add__(self, o: Array | Scalar) -> Array:
        return self._binary("+", o)

    def __radd__(self, o: Scalar) -> Array:
        return self._binary("+", o)

    def __sub__(self, o: Array | Scalar) -> Array:
        return self._binary("-", o)

    def __mul__(self, o: Array | Scalar) -> Array:
        return self._binary("*", o)

    def __rmul__(self, o: Scalar) -> Array:
        return self._binary("*", o)

    def __truediv__(self, o: Array | Scalar) -> Array:
        return self._binary("/", o)

    def minimum(self, o: Array | Scalar) -> Array:
        return self._binary("min", o)

    def maximum(self, o: Array | Scalar) -> Array:
        return self._binary("max", o)

    def each(self, opcode: str, *others: Array | Scalar, dtype: str = "") -> Array:
        """Apply an instruction of the table to every element (every register): `x.each("ex2.approx.ftz.f32")`."""
        trace = current()
        self._visible()
        kind = DTYPES[dtype] if dtype else self.dtype
        made = []
        for o in others:
            if isinstance(o, Array):
                o._visible()
        for n, register in enumerate(self.registers):
            result = trace.register(_register(kind))
            mates = [o.registers[n] if isinstance(o, Array) else self._scalar(o) for o in others]
            trace.emit(opcode, result, register, *mates)
            made.append(result)
        return Array(kind, self.distribution, made, trace.region)

    def _binary(self, op: str, other: Array | Scalar) -> Array:
        name = self.dtype.name
        table = _F32 if name == "f32" else _HALF if name in _PACKED else _INT if name in ("s32", "u32") else {}
        spelling = table.get(op)
        if spelling is None:
            raise error("SML0308", op=op, dtype=name)
        if isinstance(other, Array):
            self._same(other, op)
        elif name in _PACKED:
            raise error("SML0308", op=f"{op} with a scalar", dtype=name)
        return self.each(spelling.format(t=_PACKED.get(name, self.dtype.register)), other)

    def _same(self, other: Array, op: str) -> None:
        other._visible()
        if other.dtype is not self.dtype:
            raise error("SML0303", op=op, left=self.dtype.name, right=other.dtype.name)
        if other.distribution != self.distribution:
            raise error("SML0307", left=str(self.distribution), right=str(other.distribution))

    def _scalar(self, x: Scalar) -> Any:
        if isinstance(x, Value):
            if x.dtype is not self.dtype:
                raise error("SML0303", op="array and scalar", left=self.dtype.name, right=x.dtype.name)
            return x
        return constant(x, self.dtype)

    def through(self, scratch: Any, distribution: Distribution) -> Array:
        """The same array in another distribution, by way of a shared tile of its shape and dtype.

        The only conversion of layouts there is: two passes over shared memory with a barrier between.
        """
        scratch.set(self)
        found: Array = scratch.get(distribution)
        return found

    def columns(self, p: int, n: int) -> Array:
        """Columns p*n to p*n + n - 1, as an array of its own. n must keep whole fragments. Errors: SML0337."""
        d, each = self.distribution, self.dtype.per_register
        narrow = d.narrowed(n)
        if narrow is None or not 0 <= p < self.shape[1] // n:
            raise error("SML0337", columns=n, have=str(d), unit=8)
        chosen = [e for e, (_, column) in enumerate(d.positions) if p * n <= column < (p + 1) * n]
        registers = [self.registers[e // each] for e in chosen[::each]]
        return Array(self.dtype, narrow, registers, self.region, self._loan)

    # conversion

    def to(self, to: DType | str) -> Array:
        """The array in another dtype: floats round to nearest even, 8-bit ones saturate to the largest finite value."""
        target = dtype(to)
        if target is self.dtype:
            return self
        self._visible()
        direct = _CONVERSIONS.get((self.dtype.name, target.name))
        if direct is not None:
            return Array(target, self.distribution, direct(self), current().region)
        if "f32" in (self.dtype.name, target.name) or (self.dtype.name, "f32") not in _CONVERSIONS:
            raise error("SML0303", op="to", left=self.dtype.name, right=target.name)
        return self.to("f32").to(target)


def check_array(array: Any, shape: tuple[int, int], kind: DType | None, op: str) -> None:
    """What `op` stores is a register array of that shape and dtype (None: any). Errors: SML0334, SML0330, SML0303."""
    if not isinstance(array, Array):
        raise error("SML0334", what=op, wanted="a register array", given=type(array).__name__)
    if array.shape != shape:
        raise error("SML0330", what="register array", have=array.shape, wanted=shape)
    if kind is not None and array.dtype is not kind:
        raise error("SML0303", op=op, left=kind.name, right=array.dtype.name)


def check_distribution(distribution: Any, shape: tuple[int, int], op: str) -> None:
    """What `op` loads in is a layout of that shape. Errors: SML0334, SML0330."""
    if not isinstance(distribution, Distribution):
        wanted = "a layout (sm.wgmma.d_layout, sm.wgmma.a_layout, or an array's .distribution)"
        raise error("SML0334", what=op, wanted=wanted, given=type(distribution).__name__)
    if distribution.shape != shape:
        raise error("SML0330", what="tile", have=shape, wanted=distribution.shape)


def full(distribution: Distribution, value: float | int, dtype: DType | str) -> Array:
    """An array of one 32-bit number."""
    kind = DTYPES[dtype] if isinstance(dtype, str) else dtype
    trace = current()
    registers = [trace.register(kind.register) for _ in range(distribution.elements)]
    for r in registers:
        trace.emit(f"mov.{kind.register}", r, constant(value, kind))
    return Array(kind, distribution, registers, trace.region)


def _register(kind: DType) -> str:
    return kind.register if kind.bits == 32 else "b32"


def _emit(opcode: str, type_: str, *operands: Any) -> Register:
    trace = current()
    result = trace.register(type_)
    trace.emit(opcode, result, *operands)
    return result


# -- conversions: each gives the new registers ----------------------------------------------------------


def _pairs(opcode: str) -> Callable[[Array], list[Register]]:
    """Two f32 to one packed register; the second operand becomes the low half (PTX ISA 9.7.9.21, cvt)."""

    def convert(a: Array) -> list[Register]:
        r = a.registers
        return [_emit(opcode, "b32", r[i + 1], r[i]) for i in range(0, len(r), 2)]

    return convert


def _quads(opcode: str) -> Callable[[Array], list[Register]]:
    """Four f32 to one register of 8-bit floats."""

    def convert(a: Array) -> list[Register]:
        r = a.registers
        halves = [_emit(opcode, "b16", r[i + 1], r[i]) for i in range(0, len(r), 2)]
        return [_emit("mov.b32", "b32", [halves[i], halves[i + 1]]) for i in range(0, len(halves), 2)]

    return convert


def _each(opcode: str, type_: str) -> Callable[[Array], list[Register]]:
    return lambda a: [_emit(opcode, type_, r) for r in a.registers]


def _bf16_to_f32(a: Array) -> list[Register]:
    """Exact: bf16 is the upper half of an f32."""
    made = []
    for r in a.registers:
        made += [_emit("shl.b32", "f32", r, 16), _emit("and.b32", "f32", r, 0xFFFF0000)]
    return made


def _halves(r: Register) -> tuple[Register, Register]:
    trace = current()
    low, high = trace.register("b16"), trace.register("b16")
    trace.emit("mov.b32", [low, high], r)
    return low, high


def _f16_to_f32(a: Array) -> list[Register]:
    return [_emit("cvt.f32.f16", "f32", half) for r in a.registers for half in _halves(r)]


def _f8_to_f16(name: str) -> Callable[[Array], list[Register]]:
    def convert(a: Array) -> list[Register]:
        return [_emit(f"cvt.rn.f16x2.{name}x2", "b32", half) for r in a.registers for half in _halves(r)]

    return convert


def _f8_to_f32(name: str) -> Callable[[Array], list[Register]]:
    def convert(a: Array) -> list[Register]:
        wide = [_emit(f"cvt.rn.f16x2.{name}x2", "b32", half) for r in a.registers for half in _halves(r)]
        return [_emit("cvt.f32.f16", "f32", half) for r in wide for half in _halves(r)]

    return convert


def _i8_to_s32(signed: bool) -> Callable[[Array], list[Register]]:
    opcode, type_ = ("bfe.s32", "s32") if signed else ("bfe.u32", "s32")
    return lambda a: [_emit(opcode, type_, r, 8 * i, 8) for r in a.registers for i in range(4)]


def _i8_to_f32(signed: bool) -> Callable[[Array], list[Register]]:
    widen = _i8_to_s32(signed)
    return lambda a: [_emit("cvt.rn.f32.s32", "f32", r) for r in widen(a)]


_CONVERSIONS: dict[tuple[str, str], Callable[[Array], list[Register]]] = {
    ("f32", "bf16"): _pairs("cvt.rn.bf16x2.f32"),
    ("f32", "f16"): _pairs("cvt.rn.f16x2.f32"),
    ("f32", "e4m3"): _quads("cvt.rn.satfinite.e4m3x2.f32"),
    ("f32", "e5m2"): _quads("cvt.rn.satfinite.e5m2x2.f32"),
    ("f32", "tf32"): _each("cvt.rn.tf32.f32", "b32"),
    ("tf32", "f32"): _each("mov.b32", "f32"),
    ("f32", "s32"): _each("cvt.rzi.s32.f32", "s32"),
    ("s32", "f32"): _each("cvt.rn.f32.s32", "f32"),
    ("bf16", "f32"): _bf16_to_f32,
    ("f16", "f32"): _f16_to_f32,
    ("e4m3", "f16"): _f8_to_f16("e4m3"),
    ("e5m2", "f16"): _f8_to_f16("e5m2"),
    ("e4m3", "f32"): _f8_to_f32("e4m3"),
    ("e5m2", "f32"): _f8_to_f32("e5m2"),
    ("s8", "s32"): _i8_to_s32(True),
    ("u8", "s32"): _i8_to_s32(False),
    ("s8", "f32"): _i8_to_f32(True),
    ("u8", "f32"): _i8_to_f32(False),
}
