"""Which registers may hold an operand of which type. Knows the type rules of PTX 5.2 and nothing of opcodes."""

from __future__ import annotations

# Operand types held in untyped bits: alternate floating point (5.2.3) and packed types (5.2.5).
_BITS_ONLY = {
    "bf16": 16,
    "tf32": 32,
    "bf16x2": 32,
    "e4m3x2": 16,
    "e5m2x2": 16,
    "e2m3x2": 16,
    "e3m2x2": 16,
    "ue8m0x2": 16,
    "ue4m3x2": 16,
    "s2f6x2": 16,
    "e2m1x2": 8,
    "e4m3x4": 32,
    "e5m2x4": 32,
    "e2m3x4": 32,
    "e3m2x4": 32,
    "e2m1x4": 16,
    "u16x2": 32,
    "s16x2": 32,
    "u8x4": 32,
    "s8x4": 32,
    "f32x2": 64,
}

REGISTER_TYPES = (
    "pred",
    "b8",
    "b16",
    "b32",
    "b64",
    "b128",
    "u8",
    "u16",
    "u32",
    "u64",
    "s8",
    "s16",
    "s32",
    "s64",
    "f16",
    "f16x2",
    "f32",
    "f64",
)


def width(type_: str) -> int:
    """Bits of a register or operand type; `pred` counts as 1."""
    if type_ == "pred":
        return 1
    if type_ == "f16x2":
        return 32
    if type_ in _BITS_ONLY:
        return _BITS_ONLY[type_]
    return int(type_[1:])


def kind(type_: str) -> str:
    """pred, bits, int or float: the classes that must agree (bits agree with all but pred)."""
    if type_ == "pred":
        return "pred"
    if type_ in _BITS_ONLY or type_[0] == "b":
        return "bits"
    return "float" if type_[0] == "f" else "int"


def fits(register: str, operand: str, wider: bool = False) -> bool:
    """Whether a register may hold an operand of a type; `wider`: it may be larger (ld, st, cvt)."""
    if operand == "*":
        return True
    if operand == "sink" or (register == "pred") != (operand == "pred"):
        return False
    size, want = width(register), width(operand)
    if operand in _BITS_ONLY and register[0] != "b":
        return False
    if size != want and not (wider and size > want and operand not in ("bf16", "tf32")):
        return False
    a, b = kind(register), kind(operand)
    if "float" in (a, b) and size != want:
        return a == "bits" or b == "bits"
    return "bits" in (a, b) or (a == b and (a != "float" or register == operand))
