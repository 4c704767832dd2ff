"""The element types of the language: names, widths, and the PTX register type that holds a value of each.

Names are those of the number formats; arrays of users are mapped to them by `run`. Knows no arithmetic.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["DTYPES", "DType", "dtype"]


@dataclass(frozen=True, slots=True)
class DType:
    """An element type. `bits` is one element in memory, `register` the PTX type of one value in a register.

    `kind`: "float", "signed", "unsigned", "pred"; `map_type`: the type of a TMA tensor map that moves it.
    """

    name: str
    bits: int
    kind: str
    register: str
    map_type: str = ""

    def __repr__(self) -> str:
        return f"sm.{self.name}"

    @property
    def bytes(self) -> int:
        """Whole bytes of one element (1 for packed elements of less than 8 bits)."""
        return max(self.bits // 8, 1)

    @property
    def per_register(self) -> int:
        """Elements that one 32-bit register holds."""
        return max(32 // self.bits, 1)

    @property
    def native(self) -> bool:
        """Whether PTX has scalar arithmetic on it in a register of its own."""
        return self.name in ("f32", "f64", "u32", "s32", "u64", "s64", "pred")


DTYPES: dict[str, DType] = {
    d.name: d
    for d in (
        DType("pred", 1, "pred", "pred"),
        DType("u32", 32, "unsigned", "u32", "u32"),
        DType("s32", 32, "signed", "s32", "s32"),
        DType("u64", 64, "unsigned", "u64", "u64"),
        DType("s64", 64, "signed", "s64", "s64"),
        DType("u16", 16, "unsigned", "u16", "u16"),
        DType("s16", 16, "signed", "s16", "u16"),
        DType("u8", 8, "unsigned", "u16", "u8"),
        DType("s8", 8, "signed", "s16", "u8"),
        DType("f64", 64, "float", "f64", "f64"),
        DType("f32", 32, "float", "f32", "f32"),
        DType("tf32", 32, "float", "b32", "tf32"),
        DType("f16", 16, "float", "b16", "f16"),
        DType("bf16", 16, "float", "b16", "bf16"),
        DType("e4m3", 8, "float", "b16", "u8"),
        DType("e5m2", 8, "float", "b16", "u8"),
        DType("e2m3", 6, "float", "b16", "b6x16_p32"),
        DType("e3m2", 6, "float", "b16", "b6x16_p32"),
        DType("e2m1", 4, "float", "b16", "b4x16"),
        DType("ue8m0", 8, "float", "b16", "u8"),
        DType("ue4m3", 8, "float", "b16", "u8"),
    )
}


def dtype(of: DType | str) -> DType:
    """The element type of that name (KeyError, which the caller explains, if there is none)."""
    return of if isinstance(of, DType) else DTYPES[of]
