"""Floating-point rows: single, double, half, packed and mixed precision (PTX 9.7.3-9.7.7)."""

from __future__ import annotations

from smalti.ptx.isa.row import Need, Row, Slots, only, since

RND = ("rn", "rz", "rm", "rp")
HALVES = ("f16", "f16x2", "bf16", "bf16x2")
BF16 = ("bf16", "bf16x2")
COMPARE = ("eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan")
BOOLEAN = ("and", "or", "xor")

_F16 = Need(since("sm_53"), (4, 2))
_SM80 = Need(since("sm_80"), (7, 0))
_SM100 = Need(since("sm_100"), (8, 6))
_BF16_SM90 = dict.fromkeys(BF16, Need(since("sm_90"), (7, 8)))
_BF16_SM80 = dict.fromkeys(BF16, _SM80)
_FAMILY = only(
    "sm_100a", "sm_100f", "sm_103a", "sm_103f", "sm_110a", "sm_110f", "sm_120a", "sm_120f", "sm_121a", "sm_121f"
)

D_A = "=d:type, a:type"
D_AB = "=d:type, a:type, b:type"
D_ABC = "=d:type, a:type, b:type, c:type"

# Modifiers that the bf16 types, or the double type, lack.
_NO_BF16 = ({"ftz": ("ftz",), "type": BF16}, {"sat": ("sat",), "type": BF16})

_R: Slots = {"rnd": RND}
_F32: Slots = {"type": ("f32",)}
_F64: Slots = {"type": ("f64",)}
_X2: Slots = {"type": ("f32x2",)}
_HALF: Slots = {"rnd": ("rn",), "type": HALVES}
_MIXED: Slots = {"type": ("f32",), "atype": ("f16", "bf16")}


def _binary(head: str, section: str, half: str, mixed: str = "") -> list[Row]:
    """The rows of add, sub or mul, with the sections that describe them."""
    run = f"{head}.float"
    rows = [
        Row(f"{head}.f32", f"{head}{{.rnd}}{{.ftz}}{{.sat}}.type", D_AB, _R | _F32, section=section, executor=run),
        Row(f"{head}.f32x2", f"{head}{{.rnd}}{{.ftz}}.type", D_AB, _R | _X2, _SM100, section=section, executor=run),
        Row(f"{head}.f64", f"{head}{{.rnd}}.type", D_AB, _R | _F64, section=section, executor=run),
        Row(
            f"{head}.half",
            f"{head}{{.rnd}}{{.ftz}}{{.sat}}.type",
            D_AB,
            _HALF,
            _F16,
            _BF16_SM90,
            forbid=_NO_BF16,
            section=half,
            executor=run,
        ),
    ]
    if mixed:
        slots = _R | _MIXED
        operands = "=d:type, a:atype, b:type"
        rows.append(
            Row(
                f"{head}.mixed",
                f"{head}{{.rnd}}{{.sat}}.type.atype",
                operands,
                slots,
                _SM100,
                section=mixed,
                executor=run,
            )
        )
    return rows


def _min_max(head: str, section: str, half: str) -> list[Row]:
    run = f"{head}.float"
    need = {"NaN": _SM80, "xorsign": Need(since("sm_86"), (7, 2))}
    return [
        Row(
            f"{head}.f32",
            f"{head}{{.ftz}}{{.NaN}}{{.xorsign}}{{.abs}}.type",
            D_AB,
            _F32,
            Need(),
            need,
            section=section,
            forbid=({"xorsign": ("",), "abs": ("abs",)}, {"xorsign": ("xorsign",), "abs": ("",)}),
            executor=run,
        ),
        Row(
            f"{head}.f32.three",
            f"{head}{{.ftz}}{{.NaN}}{{.abs}}.type",
            D_ABC,
            _F32,
            Need(since("sm_100"), (8, 8)),
            section=section,
            executor=run,
        ),
        Row(f"{head}.f64", f"{head}.type", D_AB, _F64, section=section, executor=run),
        Row(
            f"{head}.half",
            f"{head}{{.ftz}}{{.NaN}}{{.xorsign}}{{.abs}}.type",
            D_AB,
            {"type": HALVES},
            _SM80,
            need,
            forbid=(
                {"xorsign": ("",), "abs": ("abs",)},
                {"xorsign": ("xorsign",), "abs": ("",)},
                {"ftz": ("ftz",), "type": BF16},
            ),
            section=half,
            executor=run,
        ),
    ]


ARITHMETIC = [
    *_binary("add", "9.7.3.3", "9.7.4.1", "9.7.5.1"),
    *_binary("sub", "9.7.3.4", "9.7.4.2", "9.7.5.2"),
    *_binary("mul", "9.7.3.5", "9.7.4.3"),
    *(
        row
        for head, section in (("fma", "9.7.3.6"), ("mad", "9.7.3.7"))
        for row in (
            Row(
                f"{head}.f32",
                f"{head}.rnd{{.ftz}}{{.sat}}.type",
                D_ABC,
                _R | _F32,
                section=section,
                executor="fma.float",
            ),
            Row(f"{head}.f64", f"{head}.rnd.type", D_ABC, _R | _F64, section=section, executor="fma.float"),
        )
    ),
    Row("fma.f32x2", "fma.rnd{.ftz}.type", D_ABC, _R | _X2, _SM100, section="9.7.3.6", executor="fma.float"),
    Row(
        "fma.half",
        "fma.rnd{.ftz}{.sat}.type",
        D_ABC,
        _HALF,
        _F16,
        _BF16_SM80,
        forbid=_NO_BF16,
        section="9.7.4.4",
        executor="fma.float",
    ),
    Row(
        "fma.half.relu",
        "fma.rnd{.ftz}.relu.type",
        D_ABC,
        _HALF,
        _SM80,
        forbid=_NO_BF16,
        section="9.7.4.4",
        executor="fma.float",
    ),
    Row(
        "fma.half.oob",
        "fma.rnd.oob{.relu}.type",
        D_ABC,
        _HALF,
        Need(since("sm_90"), (8, 1)),
        section="9.7.4.4",
        executor="fma.float",
    ),
    Row(
        "fma.mixed",
        "fma.rnd{.sat}.type.atype",
        "=d:type, a:atype, b:atype, c:type",
        _R | _MIXED,
        _SM100,
        section="9.7.5.3",
        executor="fma.float",
    ),
    Row(
        "div.f32",
        "div.rnd{.ftz}.type",
        D_AB,
        {"rnd": ("approx", "full", *RND), **_F32},
        section="9.7.3.8",
        executor="div.float",
    ),
    Row("div.f64", "div.rnd.type", D_AB, _R | _F64, section="9.7.3.8", executor="div.float"),
    *(
        row
        for head, section, half in (("abs", "9.7.3.9", "9.7.4.6"), ("neg", "9.7.3.10", "9.7.4.5"))
        for row in (
            Row(f"{head}.f32", f"{head}{{.ftz}}.type", D_A, _F32, section=section, executor=f"{head}.float"),
            Row(f"{head}.f64", f"{head}.type", D_A, _F64, section=section, executor=f"{head}.float"),
            Row(
                f"{head}.half",
                f"{head}{{.ftz}}.type",
                D_A,
                {"type": HALVES},
                Need(since("sm_53"), (6, 5)),
                _BF16_SM80,
                forbid=({"ftz": ("ftz",), "type": BF16},),
                section=half,
                executor=f"{head}.float",
            ),
        )
    ),
    *_min_max("min", "9.7.3.11", "9.7.4.7"),
    *_min_max("max", "9.7.3.12", "9.7.4.8"),
    Row("copysign", "copysign.type", D_AB, {"type": ("f32", "f64")}, section="9.7.3.2"),
    Row(
        "testp",
        "testp.op.type",
        "=p:pred, a:type",
        section="9.7.3.1",
        slots={"op": ("finite", "infinite", "number", "notanumber", "normal", "subnormal"), "type": ("f32", "f64")},
    ),
]

_APPROX = {"rnd": ("approx",)}

FUNCTIONS = [
    *(
        row
        for head, section in (("rcp", "9.7.3.13"), ("sqrt", "9.7.3.15"))
        for row in (
            Row(
                f"{head}.f32",
                f"{head}.rnd{{.ftz}}.type",
                D_A,
                {"rnd": ("approx", *RND), **_F32},
                section=section,
                executor=head,
            ),
            Row(f"{head}.f64", f"{head}.rnd.type", D_A, _R | _F64, section=section, executor=head),
        )
    ),
    Row("rcp.f64.approx", "rcp.approx.ftz.type", D_A, _F64, section="9.7.3.14", executor="rcp"),
    Row("rsqrt.f32", "rsqrt.approx{.ftz}.type", D_A, _F32, section="9.7.3.16", executor="rsqrt"),
    Row(
        "rsqrt.f64",
        "rsqrt.approx{.ftz}.type",
        D_A,
        _F64,
        section="9.7.3.16",
        executor="rsqrt",
        token_needs={"ftz": Need(ptx=(4, 0))},
    ),
    *(
        Row(head, f"{head}.approx{{.ftz}}.type", D_A, _F32, section=section)
        for head, section in (("sin", "9.7.3.18"), ("cos", "9.7.3.19"), ("lg2", "9.7.3.20"))
    ),
    Row("ex2.f32", "ex2.approx{.ftz}.type", D_A, _F32, section="9.7.3.21", executor="ex2"),
    Row(
        "ex2.f16",
        "ex2.approx.type",
        D_A,
        {"type": ("f16", "f16x2")},
        Need(since("sm_75"), (7, 0)),
        section="9.7.4.10",
        executor="ex2",
    ),
    Row(
        "ex2.bf16",
        "ex2.approx.ftz.type",
        D_A,
        {"type": BF16},
        Need(since("sm_90"), (7, 8)),
        section="9.7.4.10",
        executor="ex2",
    ),
    Row(
        "tanh",
        "tanh.approx.type",
        D_A,
        {"type": ("f32", *HALVES)},
        Need(since("sm_75"), (7, 0)),
        _BF16_SM90,
        section="9.7.3.22",
    ),
]

_SETP: Slots = {"cmp": COMPARE, "bool": BOOLEAN}
_PAIRS: Slots = {"type": ("f32", "f64", "f16x2", "bf16x2")}
_SINGLE: Slots = {"type": ("f16", "bf16")}  # no second predicate (9.7.7.2)
_SETP_TYPES = ("f32", "f64", "f16", "f16x2", *BF16)
_SETP_NEEDS = {**dict.fromkeys(("f16", "f16x2"), _F16), **_BF16_SM90}
_NO_FTZ = ({"ftz": ("ftz",), "type": ("f64", *BF16)},)
_SET_TYPES = ("u32", "s32", "f32", "u16", "s16", "f16", "bf16", "f16x2", "bf16x2")
# The result types of `set` by the type compared (9.7.6.1, 9.7.7.1).
_SET_RESULTS = {
    "f32": ("u32", "s32", "f32", "f16", "bf16"),
    "f64": ("u32", "s32", "f32", "f16", "bf16"),
    "f16": ("u32", "s32", "u16", "s16", "f16", "bf16"),
    "bf16": ("u32", "s32", "u16", "s16", "bf16"),
    "f16x2": ("u32", "s32", "f16x2"),
    "bf16x2": ("u32", "s32", "bf16x2"),
}
_SET_FORBID = tuple(
    {"type": (type_,), "dtype": tuple(t for t in _SET_TYPES if t not in results)}
    for type_, results in _SET_RESULTS.items()
) + ({"ftz": ("ftz",), "dtype": BF16},)

COMPARISON = [
    *(
        row
        for name, result, types, section in (
            ("setp.float", "=p:pred~|=q:pred~?", _PAIRS, "9.7.6.2"),
            ("setp.half", "=p:pred", _SINGLE, "9.7.7.2"),
        )
        for row in (
            Row(
                name,
                "setp.cmp{.ftz}.type",
                f"{result}, a:type, b:type",
                _SETP | types,
                token_needs=_SETP_NEEDS,
                forbid=_NO_FTZ,
                section=section,
                executor="setp.float",
            ),
            Row(
                f"{name}.bool",
                "setp.cmp.bool{.ftz}.type",
                f"{result}, a:type, b:type, c:pred!",
                _SETP | types,
                token_needs=_SETP_NEEDS,
                forbid=_NO_FTZ,
                section=section,
                executor="setp.float",
            ),
        )
    ),
    Row(
        "set.float",
        "set.cmp{.ftz}.dtype.type",
        "=d:dtype, a:type, b:type",
        _SETP | {"dtype": _SET_TYPES, "type": _SETP_TYPES},
        token_needs=_SETP_NEEDS,
        forbid=_NO_FTZ + _SET_FORBID,
        section="9.7.6.1",
    ),
    Row(
        "set.float.bool",
        "set.cmp.bool{.ftz}.dtype.type",
        "=d:dtype, a:type, b:type, c:pred!",
        _SETP | {"dtype": _SET_TYPES, "type": _SETP_TYPES},
        token_needs=_SETP_NEEDS,
        forbid=_NO_FTZ + _SET_FORBID,
        section="9.7.6.1",
        executor="set.float",
    ),
]

ROWS = ARITHMETIC + FUNCTIONS + COMPARISON
