"""tcgen05 instruction descriptors (PTX ISA 9.7.16.4.2, tables 42-44) and the shapes each kind allows (table 39).
Tables and their reading; no memory layouts.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

from smalti.errors import error
from smalti.layout.boundary import checked

__all__ = ["KINDS", "InstructionDescriptor", "decode_idesc", "encode_idesc", "mma_k"]


class InstructionDescriptor(NamedTuple):
    """What the 32-bit descriptor of a `tcgen05.mma` says. Fields that a kind lacks keep their default.

    `m`, `n`: shape; types by format name; `selector`: sparsity selector; `max_shift`: of `.ws`, 0, 8, 16 or 32;
    `scale_a_id`, `scale_b_id`: first byte of the scale factors in their 32-bit cell; `k96`: K is 96.
    """

    kind: str
    m: int
    n: int
    a_type: str
    b_type: str
    d_type: str = "f32"
    sparse: bool = False
    selector: int = 0
    saturate: bool = False
    negate_a: bool = False
    negate_b: bool = False
    transpose_a: bool = False
    transpose_b: bool = False
    max_shift: int = 0
    scale_type: str = ""
    scale_a_id: int = 0
    scale_b_id: int = 0
    k96: bool = False

    def encode(self) -> int:
        """The 32 bits. Errors: as `encode_idesc`."""
        return _encode(self)


class Field(NamedTuple):
    """`width` bits from `low`; `codes`: value -> code."""

    low: int
    width: int
    codes: dict[object, int]


def _flag(low: int) -> Field:
    return Field(low, 1, {False: 0, True: 1})


def _numbers(low: int, width: int, values: range, shift: int) -> Field:
    return Field(low, width, {value: value >> shift for value in values})


_SMALL_FLOATS: dict[object, int] = {"e4m3": 0, "e5m2": 1, "e2m3": 3, "e3m2": 4, "e2m1": 5}
_NEGATE = {"negate_a": _flag(13), "negate_b": _flag(14)}
_TRANSPOSE = {"transpose_a": _flag(15), "transpose_b": _flag(16)}
_N = {"n": _numbers(17, 6, range(8, 257, 8), 3)}


def _plain(d: dict[object, int], ab: dict[object, int], *more: dict[str, Field]) -> dict[str, Field]:
    fields = {
        "selector": _numbers(0, 2, range(4), 0),
        "sparse": _flag(2),
        "d_type": Field(4, 2, d),
        "a_type": Field(7, 3, ab),
        "b_type": Field(10, 3, ab),
        **_TRANSPOSE,
        **_N,
        "m": _numbers(24, 5, range(32, 257, 32), 4),
        "max_shift": Field(30, 2, {0: 0, 8: 1, 16: 2, 32: 3}),
    }
    for extra in more:
        fields |= extra
    return fields


def _scaled(ab: dict[object, int], b_width: int, scales: dict[object, int], ids: range) -> dict[str, Field]:
    return {
        "sparse": _flag(2),
        "scale_b_id": _numbers(4, 2, ids, 0),
        "a_type": Field(7, 3, ab),
        "b_type": Field(10, b_width, ab),
        **_NEGATE,
        **_N,
        "scale_type": Field(23, 1, scales),
        "m": _numbers(27, 2, range(128, 257, 128), 7),
        "scale_a_id": _numbers(29, 2, ids, 0),
    }


# Everything not named is reserved and 0.
KINDS: dict[str, dict[str, Field]] = {
    "tf32": _plain({"f32": 1}, {"tf32": 2}, _NEGATE),
    "f16": _plain({"f16": 0, "f32": 1}, {"f16": 0, "bf16": 1}, _NEGATE),
    "f8f6f4": _plain({"f16": 0, "f32": 1}, _SMALL_FLOATS, _NEGATE),
    "i8": _plain({"s32": 2}, {"u8": 0, "s8": 1}, {"saturate": _flag(3)}),
    "mxf8f6f4": _scaled(_SMALL_FLOATS, 3, {"ue8m0": 1}, range(4)) | _TRANSPOSE,
    "mxf4": _scaled({"e2m1": 1}, 2, {"ue8m0": 1}, range(0, 3, 2)) | {"k96": _flag(31)},
    "mxf4nvf4": _scaled({"e2m1": 1}, 2, {"ue8m0": 1, "ue4m3": 0}, range(0, 3, 2)) | {"k96": _flag(31)},
}
_DENSE_K = {"tf32": 8, "f16": 16, "f8f6f4": 32, "i8": 32, "mxf8f6f4": 32, "mxf4": 64, "mxf4nvf4": 64}


def _fields(kind: str) -> dict[str, Field]:
    if not isinstance(kind, str) or kind not in KINDS:
        raise error("SML0420", kind=kind, known=list(KINDS))
    return KINDS[kind]


@checked
def encode_idesc(kind: str, *, m: int, n: int, a_type: str, b_type: str, **fields: Any) -> int:
    """The 32-bit instruction descriptor of `tcgen05.mma.kind::<kind>`; further fields as in
    `InstructionDescriptor` (`d_type`, `scale_type` default to the kind's only choice, to f32, or to ue8m0).

    Errors: SML0420 kind, SML0421 a field that the kind lacks or a value that it does not have.
    Whether M and N go together is the business of `mma_k`.
    """
    table = _fields(kind)
    for name, preferred in (("d_type", "f32"), ("scale_type", "ue8m0")):
        if name in table:
            codes = table[name].codes
            fields.setdefault(name, preferred if preferred in codes else next(iter(codes)))
    unknown = fields.keys() - set(InstructionDescriptor._fields)
    if unknown:
        raise error("SML0421", kind=kind, field=min(unknown), value=fields[min(unknown)], allowed=list(table))
    given = InstructionDescriptor(kind, m, n, a_type, b_type)._replace(**fields)
    return _encode(given)


def _encode(given: InstructionDescriptor) -> int:
    table = _fields(given.kind)
    bits = 0
    for name, default in {**dict.fromkeys(("m", "n", "a_type", "b_type"), None), **_DEFAULTS}.items():
        value = getattr(given, name)
        if name in table:
            field = table[name]
            if value.__hash__ is None or value not in field.codes:
                raise error("SML0421", kind=given.kind, field=name, value=value, allowed=list(field.codes))
            bits |= field.codes[value] << field.low
        elif value != default and name not in ("d_type", "scale_type"):
            raise error("SML0421", kind=given.kind, field=name, value=value, allowed=[default])
    return bits


_DEFAULTS: dict[str, object] = dict(InstructionDescriptor._field_defaults)


@checked
@lru_cache(1024)
def decode_idesc(kind: str, bits: int) -> InstructionDescriptor:
    """Inverse of `encode_idesc`. Errors: SML0420 kind, SML0422 a code that is reserved or undefined."""
    table = _fields(kind)
    found: dict[str, Any] = {"d_type": "f32" if "d_type" not in table else ""}
    rest = bits
    for name, field in table.items():
        code = bits >> field.low & ((1 << field.width) - 1)
        rest &= ~(((1 << field.width) - 1) << field.low)
        values = [value for value, known in field.codes.items() if known == code]
        if not values:
            raise error("SML0422", kind=kind, bits=f"0x{bits:08x}", what=f"code {code} of field {name}")
        found[name] = values[0]
    if rest:
        raise error("SML0422", kind=kind, bits=f"0x{bits:08x}", what=f"reserved bits 0x{rest:x}")
    return InstructionDescriptor(kind, **found)


@checked
def mma_k(descriptor: InstructionDescriptor, cta_group: int = 1, ws: bool = False) -> int:
    """K of one instruction in elements (of B, so twice the packed K of a sparse A), after checking that the shape
    is one of table 39 and, for a transposed 8-bit B, of table 52. Errors: SML0423, SML0420 kind, SML0421 a value that
    no field has.
    """
    flags = (descriptor.sparse, descriptor.transpose_b, descriptor.k96)
    if any(value.__hash__ is None for value in descriptor) or any(flag not in (False, True) for flag in flags):
        descriptor.encode()  # says which
    return _mma_k(descriptor, cta_group, ws)


@lru_cache(1024)
def _mma_k(descriptor: InstructionDescriptor, cta_group: int, ws: bool) -> int:
    kind, m, n, sparse = descriptor.kind, descriptor.m, descriptor.n, descriptor.sparse
    scaled = "scale_type" in _fields(kind)
    if ws:
        legal = cta_group == 1 and not scaled and m in (32, 64, 128) and n in (64, 128, 256)[: 2 if sparse else 3]
        shapes = "M 32, 64, 128; N 64, 128" + ("" if sparse else ", 256")
    elif cta_group not in (1, 2):
        legal, shapes = False, "cta_group::1 and cta_group::2"
    else:
        rows = (128,) if scaled else (64, 128)
        if cta_group == 2:
            rows = (256,) if scaled and sparse else (128, 256)
        step = 8 * cta_group
        columns: tuple[int, ...] = tuple(range(step, 257, step))
        if kind == "i8":
            columns = (8, 16, 24, 32, *range(48, 257, 16)) if cta_group == 1 else tuple(range(32, 257, 32))
        elif descriptor.transpose_b and kind in ("f8f6f4", "mxf8f6f4"):
            columns = tuple(range(2 * step, 257, 2 * step))
        if kind == "i8" and descriptor.transpose_b:
            columns = tuple(n for n in columns if n % (16 * cta_group) == 0)
        legal = m in rows and n in columns
        shapes = f"M {', '.join(map(str, rows))}; N {', '.join(map(str, columns))}"
    if descriptor.k96:  # table 39 has it for pairs only, but CUTLASS ships 1-CTA kernels with it
        legal = legal and not sparse and n % 16 == 0
        shapes += ", of these multiples of 16, for dense A only"
    if not legal:
        form = f"kind::{kind}{'.sp' if sparse else ''}{'.ws' if ws else ''}.cta_group::{cta_group}"
        raise error("SML0423", form=form, m=m, n=n, shapes=shapes)
    return 96 if descriptor.k96 else _DENSE_K[kind] << sparse
