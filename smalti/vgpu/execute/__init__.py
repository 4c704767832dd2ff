"""Turning instructions into operations on gangs: the registry of executors and what they are given.

An executor is registered under the name of a table row and returns, for one instruction of a program, a function
of a gang. That function computes for all active lanes and returns None (next instruction), a new pc, or a Wait.
Guards, undefined registers and registers in flight are handled around it, by the machine.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import numpy.typing as npt

from smalti.errors import error
from smalti.ptx.module import (
    Address,
    Immediate,
    Label,
    Not,
    Operand,
    Register,
    Special,
    SymbolAddress,
    Variable,
    type_bits,
)
from smalti.vgpu.memory import CONST_WINDOW, LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW
from smalti.vgpu.program import Program, Step
from smalti.vgpu.warp import WARP, Gang, Wait

if TYPE_CHECKING:
    from smalti.vgpu.machine import Machine

Row = npt.NDArray[Any]
Result: TypeAlias = "int | Wait | None"
Operation: TypeAlias = Callable[[Gang], Result]
Source: TypeAlias = Callable[[Gang], Any]
Builder: TypeAlias = "Callable[[Context, Step], Operation]"

UNSIGNED: dict[int, Any] = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}
SIGNED: dict[int, Any] = {8: np.int8, 16: np.int16, 32: np.int32, 64: np.int64}
FLOATS: dict[int, Any] = {16: np.float16, 32: np.float32, 64: np.float64}

EXECUTORS: dict[str, Builder] = {}
HANDLES_UNDEFINED: set[str] = set()  # executors that say themselves which results are undefined
OWN_GUARD: set[str] = set()  # executors that interpret their guard themselves (branches, exit)


def executor(*names: str, undefined: bool = False, own_guard: bool = False) -> Callable[[Builder], Builder]:
    """Register a builder for table rows. `undefined`: it sets the undefinedness of its results itself."""

    def register(build: Builder) -> Builder:
        for n in names:
            assert n not in EXECUTORS, f"two executors for {n}"
            EXECUTORS[n] = build
            if undefined:
                HANDLES_UNDEFINED.add(n)
            if own_guard:
                OWN_GUARD.add(n)
        return build

    return register


def load_all() -> None:
    """Import every family, once."""
    for family in pkgutil.iter_modules(__path__):
        importlib.import_module(f"{__name__}.{family.name}")


class Context:
    """What a builder may ask: register numbers, sources of operands, addresses, symbols, labels."""

    def __init__(self, machine: Machine, program: Program) -> None:
        self.machine, self.program = machine, program
        self._scratch: dict[str, int] = {}

    def bind(self, step: Step) -> dict[str, Operand]:
        """The operands of an instruction by their names in the table; optional ones that are not there are absent."""
        bound = step.form.bind(step.instruction.operands)
        assert bound is not None, step.instruction
        return bound

    def number(self, operand: Operand) -> int:
        """The number of a register operand."""
        assert isinstance(operand, Register), operand
        return self.program.registers[operand]

    def scratch(self, name: str, bits: int) -> int:
        """The number of a register of the machine's own (the carry flag), the same for every instruction."""
        if name not in self._scratch:
            self._scratch[name] = len(self.program.widths)
            self.program.widths.append(bits)
        return self._scratch[name]

    def label(self, operand: Operand) -> int:
        assert isinstance(operand, Label), operand
        return self.program.labels[operand]

    def source(self, operand: Operand, type_: str) -> Source:
        """A function of a gang that gives the operand's values read as `type_`: a row of lo … hi−1, or a scalar.

        `type_`: u/s/b 8-64, f16 f32 f64, pred; a b128 register gives a row of pairs. Registers wider or narrower
        than the type are cut or zero-extended (as ld, st and cvt allow).
        """
        if isinstance(operand, Register):
            return self._register(operand, type_)
        if isinstance(operand, Not):
            n = self.number(operand.register)
            return lambda g: ~g.bank.u[n]
        if isinstance(operand, Immediate):
            value = np.asarray(self.constant(operand, type_))  # 0-d arrays are faster than NumPy scalars
            return lambda g: value
        if isinstance(operand, Special):
            name = operand.name
            dtype = _dtype(type_)
            return lambda g: g.cta.special(name, g).astype(dtype, copy=False)
        if isinstance(operand, (Variable, SymbolAddress)):
            return self._symbol(operand, type_)
        raise AssertionError(f"not a value: {operand!r}")

    def _register(self, operand: Register, type_: str) -> Source:
        n = self.number(operand)
        width = self.program.widths[n]
        bits = 1 if type_ == "pred" else type_bits(type_)
        if width == bits or bits == 128:
            if type_[0] == "s":
                return lambda g: g.bank.s[n]
            if type_[0] == "f" and type_ in ("f16", "f32", "f64"):
                return lambda g: g.bank.f[n]
            return lambda g: g.bank.u[n]
        dtype = _dtype(type_)
        return lambda g: g.bank.u[n].astype(dtype)

    def constant(self, operand: Immediate, type_: str) -> Any:
        """An immediate as a NumPy scalar of `type_`."""
        if type_ == "pred":
            return np.bool_(operand.value)
        bits = type_bits(type_)
        if operand.kind == "int":
            if type_ in ("f16", "f32", "f64"):
                return FLOATS[bits](operand.value)
            raw = np.array([operand.value & ((1 << bits) - 1)], np.uint64).astype(UNSIGNED[bits])
            return raw.view(_dtype(type_))[0]
        raw = np.array([operand.value], np.uint32 if operand.kind == "f32" else np.uint64)
        value = raw.view(np.float32 if operand.kind == "f32" else np.float64)[0]
        if type_ in ("f16", "f32", "f64"):
            return FLOATS[bits](value)
        own = 32 if operand.kind == "f32" else 64
        return raw[0] if own == bits else FLOATS[bits](value).view(UNSIGNED[bits])

    def _symbol(self, operand: Variable | SymbolAddress, type_: str) -> Source:
        variable, offset = (operand, 0) if isinstance(operand, Variable) else (operand.symbol, operand.offset)
        dtype = _dtype(type_)
        machine = self.machine
        if not isinstance(variable, Variable):
            code = np.asarray(machine.function_address(variable) + offset, dtype)
            return lambda g: code
        if variable.space == "local" or self.is_argument(variable):
            return lambda g: (g.cta.local_base(g) + machine.place_of(variable) + offset).astype(dtype)
        if variable.space == "shared":
            place = machine.place_of(variable) + offset
            return lambda g: dtype(place | g.cta.rank << 24)
        return lambda g: dtype(machine.place_of(variable) + offset)

    def is_argument(self, variable: Variable) -> bool:
        """Whether a variable holds an argument or result of a call: `.param` in a body, kept in the local frame."""
        return variable.space == "param" and variable not in self.program.function.params

    def address(self, operand: Operand, space: str) -> Source:
        """A function of a gang that gives the addresses (int64) of lo … hi−1, or one scalar address, in `space`."""
        assert isinstance(operand, Address), operand
        offset, base = operand.offset, operand.base
        if base is None:
            return lambda g: np.int64(offset)
        if isinstance(base, Register):
            n = self.number(base)
            if self.program.widths[n] == 32:
                if offset == 0:
                    return lambda g: g.bank.u[n].astype(np.int64)
                return lambda g: (g.bank.u[n] + np.uint32(offset & 0xFFFFFFFF)).astype(np.int64)
            return lambda g: g.bank.s[n] + offset
        source = self._symbol(base, "s64")
        window = {
            "shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW, "const": CONST_WINDOW,
        }.get(base.space, 0)  # fmt: skip
        shift = offset + (window if space in ("", "generic") else 0)
        return lambda g: source(g) + shift


def _dtype(type_: str) -> Any:
    if type_ == "pred":
        return np.bool_
    bits = type_bits(type_)
    if type_ in ("f16", "f32", "f64"):
        return FLOATS[bits]
    return (SIGNED if type_[0] == "s" else UNSIGNED)[bits]


def spread(values: Any, gang: Gang) -> Row:
    """A scalar or row as a row of lo … hi−1."""
    row = np.asarray(values)
    return row if row.ndim else np.broadcast_to(row, gang.width)


def build(machine: Machine, program: Program) -> list[Operation]:
    """One operation a step, guards included."""
    load_all()
    context = Context(machine, program)
    missing = sorted({s.opcode for s in program.steps if s.form.executor not in EXECUTORS})
    if missing:
        raise error("SML0802", count=len(missing), listing=", ".join(missing))
    out: list[Operation] = []
    for step in program.steps:
        op = EXECUTORS[step.form.executor](context, step)
        guard = step.instruction.guard
        if guard is not None and step.form.executor not in OWN_GUARD:
            op = _guarded(op, context.number(guard.register), guard.negated)
        out.append(op)
    out.append(lambda g: g.machine.retire(g, g.active()))  # behind the last instruction
    return out


def _guarded(op: Operation, number: int, negated: bool) -> Operation:
    """Run `op` for the lanes whose guard holds."""

    def run(g: Gang) -> Result:
        p = g.bank.u[number]
        if negated:
            p = ~p
        mask, count = g.mask, g.count
        if mask is not None:
            p = p & mask
        active = int(np.count_nonzero(p))
        if active == count:
            return op(g)
        if active == 0:
            return None
        g.mask, g.count = (p if negated or mask is not None else p.copy()), active
        try:
            result = op(g)
        finally:
            g.mask, g.count = mask, count
        if isinstance(result, Wait):
            let_go(g, p)
        return result

    return run


def let_go(g: Gang, executing: npt.NDArray[np.bool_]) -> None:
    """A gang is about to wait, but only for the `executing` lanes (of lo … hi−1): warps without one go on."""
    whole = executing.reshape(-1, WARP).any(axis=1).repeat(WARP)
    rest = g.active() & ~whole
    if rest.any():
        g.cta.gangs.append(Gang(g.cta, g.lo, g.hi, rest, g.pc + 1, g.joins))
        g.place(g.lo, g.hi, g.active() & whole)
