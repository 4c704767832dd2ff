"""Rows of the warp-level matrix instructions: mma, mma.sp, ldmatrix, stmatrix (PTX 9.7.14)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from smalti.ptx.isa.row import Mods, Need, Row, Slots, only, since

_SM75 = Need(since("sm_75"), (6, 5))
_SM80 = Need(since("sm_80"), (7, 0))
_SM89 = Need(since("sm_89"), (8, 4))
_SM90 = Need(since("sm_90"), (7, 8))
_SM120 = Need(only("sm_120a", "sm_120f", "sm_121a", "sm_121f"), (8, 7))
_FAMILY = only(
    "sm_100a", "sm_100f", "sm_103a", "sm_103f", "sm_110a", "sm_110f", "sm_120a", "sm_120f", "sm_121a", "sm_121f"
)
_SPARSE_FP4 = Need(only("sm_120a", "sm_121a"), (8, 7))
_SM100F = Need(_FAMILY, (8, 6))
_F16_ACC = Need(_FAMILY, (8, 7))
_SMALL = dict.fromkeys(("e3m2", "e2m3", "e2m1"), _SM120)

_BITS = {
    "f16": 16,
    "bf16": 16,
    "tf32": 32,
    "f64": 64,
    "s8": 8,
    "u8": 8,
    "s4": 4,
    "u4": 4,
    "b1": 1,
    "f32": 32,
    "s32": 32,
    "e4m3": 8,
    "e5m2": 8,
    "e3m2": 8,
    "e2m3": 8,
    "e2m1": 8,
}


def _mnk(mods: Mods) -> tuple[int, int, int]:
    m, rest = mods["shape"][1:].split("n")
    n, k = rest.split("k")
    return int(m), int(n), int(k)


def _held(elements: int, bits: int) -> int:
    """Registers (32 bits, or one f64 each) for a warp's share of a fragment."""
    return max(elements * bits // 32 // max(bits, 32), 1) if bits <= 32 else elements // 32


def _counts(sparse: bool, packed4: bool = False) -> Mapping[str, Callable[[Mods], int]]:
    def bits(mods: Mods, slot: str) -> int:
        return 4 if packed4 else _BITS[mods[slot]]

    def a(mods: Mods) -> int:
        m, _, k = _mnk(mods)
        return _held(m * k // (2 if sparse else 1), bits(mods, "atype"))

    def b(mods: Mods) -> int:
        _, n, k = _mnk(mods)
        return _held(n * k, bits(mods, "btype"))

    def d(mods: Mods) -> int:
        m, n, _ = _mnk(mods)
        return _held(m * n, _BITS[mods["dtype"]])

    def c(mods: Mods) -> int:
        m, n, _ = _mnk(mods)
        return _held(m * n, _BITS[mods["ctype"]])

    return {"a": a, "b": b, "c": c, "d": d}


_D = "{=d*d}:packed(dtype), {a*a}:b32, {b*b}:b32, {c*c}:packed(ctype)$"
_SP = f"{_D}, meta:b32, #selector"
_LAYOUT = "mma.sync.aligned.shape.row.col"
_F16_C = {"dtype": ("f16", "f32"), "ctype": ("f16", "f32")}
_F32_C = {"dtype": ("f32",), "ctype": ("f32",)}
_SAME = ({"dtype": ("f16",), "ctype": ("f32",)}, {"dtype": ("f32",), "ctype": ("f16",)})
_S32_C = {"dtype": ("s32",), "ctype": ("s32",)}
_F8, _F8F6F4 = ("e4m3", "e5m2"), ("e4m3", "e5m2", "e3m2", "e2m3", "e2m1")
_I8, _I4 = ("s8", "u8"), ("s4", "u4")


def _ab(*types: str) -> Slots:
    return {"atype": types, "btype": types}


def _dense(name: str, shapes: tuple[str, ...], slots: Mapping[str, tuple[str, ...]], need: Need, **more: object) -> Row:
    return Row(
        f"mma.{name}",
        f"{_LAYOUT}{{.satfinite}}.dtype.atype.btype.ctype"
        if "s32" in slots["dtype"]
        else f"{_LAYOUT}.dtype.atype.btype.ctype",
        _D,
        {"shape": shapes, **slots},
        need,
        counts=_counts(False),
        forbid=_SAME,
        collective="warp",
        section="9.7.14.5",
        executor="mma",
        **more,  # type: ignore[arg-type]
    )


DENSE = [
    _dense("f16", ("m16n8k8", "m16n8k16"), {**_F16_C, **_ab("f16")}, _SM75, token_needs={"m16n8k16": _SM80}),
    _dense("bf16", ("m16n8k8", "m16n8k16"), {**_F32_C, **_ab("bf16")}, _SM80),
    _dense("tf32", ("m16n8k4", "m16n8k8"), {**_F32_C, **_ab("tf32")}, _SM80),
    _dense(
        "fp8",
        ("m16n8k16", "m16n8k32"),
        {**_F16_C, **_ab(*_F8)},
        _SM89,
        token_needs=dict.fromkeys(("m16n8k16", "f16"), Need(since("sm_89"), (8, 7))),
    ),
    _dense(
        "int8",
        ("m8n8k16", "m16n8k16", "m16n8k32"),
        {**_S32_C, **_ab(*_I8)},
        _SM75,
        token_needs={"m16n8k16": _SM80, "m16n8k32": _SM80},
    ),
    _dense(
        "int4",
        ("m8n8k32", "m16n8k32", "m16n8k64"),
        {**_S32_C, **_ab(*_I4)},
        _SM75,
        token_needs={"m16n8k32": _SM80, "m16n8k64": _SM80},
    ),
    Row(
        "mma.f64",
        f"{_LAYOUT}.dtype.f64.f64.ctype",
        "{=d*d}:f64, {a*a64}:f64, {b*b64}:f64, {c*c}:f64$",
        {"shape": ("m8n8k4", "m16n8k4", "m16n8k8", "m16n8k16"), "dtype": ("f64",), "ctype": ("f64",)},
        _SM80,
        dict.fromkeys(("m16n8k4", "m16n8k8", "m16n8k16"), _SM90),
        counts={
            **_counts(False),
            "a64": lambda m: _mnk(m)[0] * _mnk(m)[2] // 32,
            "b64": lambda m: _mnk(m)[1] * _mnk(m)[2] // 32,
        },
        collective="warp",
        section="9.7.14.5",
        executor="mma",
    ),
    Row(
        "mma.b1",
        f"{_LAYOUT}.dtype.atype.btype.ctype.op.popc",
        _D,
        {"shape": ("m8n8k128", "m16n8k128", "m16n8k256"), **_S32_C, **_ab("b1"), "op": ("xor", "and")},
        Need(since("sm_75"), (7, 0)),
        {"and": Need(since("sm_80"), (7, 1)), "m16n8k128": _SM80, "m16n8k256": _SM80},
        counts=_counts(False),
        collective="warp",
        section="9.7.14.5",
        executor="mma",
    ),
    Row(
        "mma.m8n8k4",
        "mma.sync.aligned.m8n8k4.alayout.blayout.dtype.f16.f16.ctype",
        "{=d*d4}:packed(dtype), {a*2}:b32, {b*2}:b32, {c*c4}:packed(ctype)$",
        {"alayout": ("row", "col"), "blayout": ("row", "col"), **_F16_C},
        Need(since("sm_70"), (6, 4)),
        counts={"d4": lambda m: 8 if m["dtype"] == "f32" else 4, "c4": lambda m: 8 if m["ctype"] == "f32" else 4},
        forbid=({"dtype": ("f16",), "ctype": ("f32",)},),
        collective="warp",
        section="9.7.14.5",
    ),
    Row(
        "mma.f8f6f4",
        f"{_LAYOUT}.kind::f8f6f4.dtype.atype.btype.ctype",
        _D,
        {"shape": ("m16n8k32",), **_F16_C, **_ab(*_F8F6F4)},
        _SM100F,
        {**_SMALL, "f16": _F16_ACC},
        counts=_counts(False),
        forbid=_SAME,
        collective="warp",
        section="9.7.14.5",
        executor="mma",
    ),
]

_SCALES = ", scale_a:b32, {where_a*2}:u16, scale_b:b32, {where_b*2}:u16"
_BLOCKS: tuple[tuple[str, str, str, tuple[str, ...], tuple[str, ...], bool], ...] = (
    # name, K dense, K sparse, scale vectors, scale types, two elements a byte
    ("mxf4", "m16n8k64", "m16n8k128", ("scale_vec::2X",), ("ue8m0",), True),
    ("mxf4nvf4", "m16n8k64", "m16n8k128", ("scale_vec::2X", "scale_vec::4X"), ("ue8m0", "ue4m3"), True),
    ("mxf8f6f4", "m16n8k32", "m16n8k64", ("scale_vec::1X",), ("ue8m0",), False),
)


def _block_scaled(sparse: bool) -> list[Row]:
    sp = ".sp::ordered_metadata" if sparse else ""
    return [
        Row(
            f"mma{'.sp' * sparse}.{kind}",
            f"mma{sp}.sync.aligned.shape.row.col.kind::{kind}.block_scale{'.vec' if kind == 'mxf4nvf4' else '{.vec}'}"
            ".dtype.atype.btype.ctype.stype",
            (_SP if sparse else _D) + _SCALES,
            {
                "shape": (wide if sparse else narrow,),
                "vec": vecs,
                **_F32_C,
                **_ab(*(("e2m1",) if four else _F8F6F4)),
                "stype": stypes,
            },
            _SPARSE_FP4 if sparse and four else _SM120,
            counts=_counts(sparse, packed4=four),
            together_needs=(({"vec": ("scale_vec::4X",), "stype": ("ue8m0",)}, Need(_SM120.arch, (9, 1))),),
            forbid=({"vec": ("scale_vec::2X",), "stype": ("ue4m3",)},),
            ranges={"selector": range(4)},
            collective="warp",
            section="9.7.14.6" if sparse else "9.7.14.5",
            executor="mma.sp" if sparse else "mma",
        )
        for kind, narrow, wide, vecs, stypes, four in _BLOCKS
    ]


def _sparse(
    name: str, shapes: tuple[str, ...], slots: Mapping[str, tuple[str, ...]], need: Need, selector: range
) -> Row:
    satfinite = "{.satfinite}" if "s32" in slots["dtype"] else ""
    return Row(
        f"mma.sp.{name}",
        f"mma.variant.sync.aligned.shape.row.col{satfinite}.dtype.atype.btype.ctype",
        _SP,
        {"variant": ("sp", "sp::ordered_metadata"), "shape": shapes, **slots},
        need,
        {"sp::ordered_metadata": Need(since("sm_80"), (8, 5))},
        counts=_counts(True),
        forbid=_SAME,
        ranges={"selector": selector},
        collective="warp",
        section="9.7.14.6",
        executor="mma.sp",
    )


_SP_SM80 = Need(since("sm_80"), (7, 1))

SPARSE = [
    _sparse("f16", ("m16n8k16", "m16n8k32"), {**_F16_C, **_ab("f16")}, _SP_SM80, range(4)),
    _sparse("bf16", ("m16n8k16", "m16n8k32"), {**_F32_C, **_ab("bf16")}, _SP_SM80, range(4)),
    _sparse("tf32", ("m16n8k8", "m16n8k16"), {**_F32_C, **_ab("tf32")}, _SP_SM80, range(4)),
    _sparse("fp8", ("m16n8k64",), {**_F32_C, **_ab(*_F8)}, _SM89, range(1)),
    _sparse("int8", ("m16n8k32", "m16n8k64"), {**_S32_C, **_ab(*_I8)}, _SP_SM80, range(2)),
    _sparse("int4", ("m16n8k64", "m16n8k128"), {**_S32_C, **_ab(*_I4)}, _SP_SM80, range(2)),
    Row(
        "mma.sp.f8f6f4",
        "mma.sp::ordered_metadata.sync.aligned.shape.row.col.kind::f8f6f4.dtype.atype.btype.ctype",
        _SP,
        {"shape": ("m16n8k64",), **_F16_C, **_ab(*_F8F6F4)},
        _SM100F,
        {**_SMALL, "f16": _SM120},
        counts=_counts(True),
        forbid=_SAME,
        ranges={"selector": range(1)},
        collective="warp",
        section="9.7.14.6",
        executor="mma.sp",
    ),
]

_SHARED = {"space": ("shared", "shared::cta")}
_LD = {"num": ("x1", "x2", "x4"), **_SHARED}
_SHARED_CTA = {"shared::cta": Need(ptx=(7, 8))}


def _ldmatrix(mods: Mods) -> int:
    """Registers a lane gets: one a matrix of 8x8; 16-row 8-bit matrices give two (9.7.14.5.15)."""
    return int(mods["num"][1:]) * (2 if "m16n16" in mods.values() else 1)


MATRICES = [
    Row(
        "ldmatrix",
        "ldmatrix.sync.aligned.m8n8.num{.trans}{.space}.b16",
        "{=d*regs}:b32, [a]:space",
        _LD,
        _SM75,
        _SHARED_CTA,
        counts={"regs": _ldmatrix},
        collective="warp",
        section="9.7.14.5.15",
    ),
    Row(
        "ldmatrix.b8",
        "ldmatrix.sync.aligned.m16n16.num.trans{.space}.b8",
        "{=d*regs}:b32, [a]:space",
        {**_LD, "num": ("x1", "x2")},
        Need(_FAMILY, (8, 6)),
        counts={"regs": _ldmatrix},
        collective="warp",
        section="9.7.14.5.15",
    ),
    Row(
        "ldmatrix.unpack",
        "ldmatrix.sync.aligned.m8n16.num{.space}.b8x16.source",
        "{=d*regs}:b32, [a]:space",
        {**_LD, "source": ("b6x16_p32", "b4x16_p64")},
        Need(_FAMILY, (8, 6)),
        counts={"regs": _ldmatrix},
        collective="warp",
        section="9.7.14.5.15",
    ),
    Row(
        "ldmatrix.unpack.trans",
        "ldmatrix.sync.aligned.m16n16.num.trans{.space}.b8x16.source",
        "{=d*regs}:b32, [a]:space",
        {**_LD, "num": ("x1", "x2"), "source": ("b6x16_p32", "b4x16_p64")},
        Need(_FAMILY, (8, 6)),
        counts={"regs": _ldmatrix},
        collective="warp",
        section="9.7.14.5.15",
    ),
    Row(
        "stmatrix",
        "stmatrix.sync.aligned.m8n8.num{.trans}{.space}.b16",
        "[a]:space, {b*regs}:b32",
        _LD,
        _SM90,
        counts={"regs": _ldmatrix},
        collective="warp",
        section="9.7.14.5.16",
    ),
    Row(
        "stmatrix.b8",
        "stmatrix.sync.aligned.m16n8.num.trans{.space}.b8",
        "[a]:space, {b*regs}:b32",
        _LD,
        Need(_FAMILY, (8, 6)),
        counts={"regs": _ldmatrix},
        collective="warp",
        section="9.7.14.5.16",
    ),
]

ROWS = DENSE + _block_scaled(False) + SPARSE + _block_scaled(True) + MATRICES
