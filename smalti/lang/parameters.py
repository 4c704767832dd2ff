"""The parameters of a traced kernel: sizes, pointers, strides, tensor maps; each is declared when first used.

The order that the entry declares them in is maps, pointers, strides, sizes; `specs` says it to the launcher.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from smalti.lang.dtypes import DTYPES
from smalti.ptx.module import Address, SymbolAddress, Variable

if TYPE_CHECKING:
    from smalti.lang.trace import Trace
    from smalti.lang.values import Value

__all__ = ["MapParameter", "Parameter", "Parameters", "PointerParameter", "SizeParameter", "StrideParameter"]

MAP_BYTES, MAP_ALIGNMENT = 128, 64  # PTX ISA 5.5


@dataclass(frozen=True, slots=True)
class SizeParameter:
    """A dimension, u32."""

    dim: str

    def describe(self) -> str:
        return f"u32 {self.dim}"


@dataclass(frozen=True, slots=True)
class PointerParameter:
    """The address of a tensor's first element, u64."""

    tensor: str

    def describe(self) -> str:
        return f"u64 {self.tensor}"


@dataclass(frozen=True, slots=True)
class StrideParameter:
    """Bytes from one index to the next along `axis` of a tensor, u64."""

    tensor: str
    axis: int

    def describe(self) -> str:
        return f"u64 stride {self.axis} of {self.tensor}"


@dataclass(frozen=True, slots=True)
class MapParameter:
    """A tensor map: element type, box (innermost dimension first), swizzle. `order` gives the tensor's axes,
    innermost first."""

    tensor: str
    type: str
    order: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: str
    l2_promotion: str = "256B"
    pack: int = 1  # elements of the tensor in one of the map, along the innermost dimension

    def describe(self) -> str:
        return f"map of {self.tensor} (box {'x'.join(map(str, reversed(self.box)))}, {self.swizzle})"


Parameter: TypeAlias = "SizeParameter | PointerParameter | StrideParameter | MapParameter"
_ORDER = (MapParameter, PointerParameter, StrideParameter, SizeParameter)


class Parameters:
    """Declares and loads parameters, each once."""

    def __init__(self) -> None:
        self._variables: dict[Parameter, Variable] = {}
        self._values: dict[Parameter, Value] = {}

    def size(self, trace: Trace, dim: str) -> Value:
        return self._loaded(trace, SizeParameter(dim), dim, "u32")

    def pointer(self, trace: Trace, tensor: str) -> Value:
        return self._loaded(trace, PointerParameter(tensor), f"{tensor}_pointer", "u64")

    def stride(self, trace: Trace, tensor: str, axis: int) -> Value:
        return self._loaded(trace, StrideParameter(tensor, axis), f"{tensor}_stride{axis}", "u64")

    def map(self, trace: Trace, spec: MapParameter) -> Value:
        """The generic address of the map."""
        from smalti.lang.values import Value

        if spec not in self._values:
            number = sum(isinstance(p, MapParameter) and p.tensor == spec.tensor for p in self._variables)
            name = f"{spec.tensor}_map{number or ''}"
            variable = Variable(name, "param", "b8", (MAP_BYTES,), MAP_ALIGNMENT)
            self._variables[spec] = variable
            with trace.at_head():
                address, generic = trace.register("b64"), trace.register("u64")
                trace.emit("mov.b64", address, SymbolAddress(variable))
                trace.emit("cvta.param.u64", generic, address)
                self._values[spec] = Value(DTYPES["u64"], generic, trace.region)
        return self._values[spec]

    def _loaded(self, trace: Trace, spec: Parameter, name: str, type_: str) -> Value:
        from smalti.lang.values import fresh

        if spec not in self._values:
            variable = Variable(name, "param", type_)
            self._variables[spec] = variable
            with trace.at_head():
                value = fresh(type_)
                trace.emit(f"ld.param.{type_}", value, Address(variable))
                self._values[spec] = value
        return self._values[spec]

    @property
    def specs(self) -> tuple[Parameter, ...]:
        """In the order of the entry's parameter list."""
        return tuple(sorted(self._variables, key=lambda p: _ORDER.index(type(p))))

    @property
    def variables(self) -> list[Variable]:
        return [self._variables[s] for s in self.specs]
