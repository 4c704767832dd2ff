"""Rows of cvt: every pair of types, packed and scaled ones too (PTX 9.7.9.21-22)."""

from __future__ import annotations

from smalti.ptx.isa.row import Need, Row, only, since

INTEGERS = ("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64")
RND = ("rn", "rz", "rm", "rp")
INTEGRAL = ("rni", "rzi", "rmi", "rpi")
SCALED = "scaled::n2::ue8m0"

_SM80 = Need(since("sm_80"), (7, 0))
_SM90 = Need(since("sm_90"), (7, 8))
_F8 = Need(since("sm_89"), (7, 8))
_FAMILY = only(
    "sm_100a", "sm_100f", "sm_103a", "sm_103f", "sm_110a", "sm_110f", "sm_120a", "sm_120f", "sm_121a", "sm_121f"
)
_SMALL = Need(_FAMILY, (8, 6))  # fp6, fp4, ue8m0
_S2F6 = Need(only("sm_100a", "sm_103a", "sm_110a", "sm_120a", "sm_121a"), (9, 1))
_STOCHASTIC = Need(only("sm_100a", "sm_103a"), (8, 7))
_F16 = {"f16": Need(since("sm_53"), (4, 2))}
_BF16_OTHER = {**_F16, "bf16": _SM90}

_SAT = {"sat": ("sat",)}
_D_A = "=d:dtype>, a:atype>"


def _holds(wide: str, narrow: str) -> bool:
    """Whether an integer type has every value of another, so that saturating would be meaningless."""
    bits, want = int(wide[1:]), int(narrow[1:])
    if wide[0] == narrow[0]:
        return bits >= want
    return wide[0] == "s" and bits > want


_NO_SAT = tuple({**_SAT, "dtype": (d,), "atype": tuple(a for a in INTEGERS if _holds(d, a))} for d in INTEGERS)
_BF16_RULES = (
    {"dtype": ("bf16",), "atype": ("u8", "s8")},
    {"atype": ("bf16",), "dtype": ("u8", "s8")},
    {**_SAT, "dtype": ("bf16",)},
    {**_SAT, "atype": ("bf16",)},
)
_FTZ_F32 = ({"ftz": ("ftz",), "dtype": ("f16", "bf16", "f64"), "atype": (*INTEGERS, "f16", "bf16", "f64")},)
_FTZ_TO_INT = ({"ftz": ("ftz",), "atype": ("f16", "bf16", "f64")},)

SCALAR = [
    Row(
        "cvt.int",
        "cvt{.sat}.dtype.atype",
        _D_A,
        {"dtype": INTEGERS, "atype": INTEGERS},
        forbid=_NO_SAT,
        section="9.7.9.21",
    ),
    Row(
        "cvt.from_int",
        "cvt.rnd{.ftz}{.sat}.dtype.atype",
        _D_A,
        {"rnd": RND, "dtype": ("f16", "bf16", "f32", "f64"), "atype": INTEGERS},
        token_needs=_BF16_OTHER,
        forbid=_BF16_RULES + _FTZ_F32,
        section="9.7.9.21",
    ),
    Row(
        "cvt.to_int",
        "cvt.rnd{.ftz}{.sat}.dtype.atype",
        _D_A,
        {"rnd": INTEGRAL, "dtype": INTEGERS, "atype": ("f16", "bf16", "f32", "f64")},
        token_needs=_BF16_OTHER,
        forbid=_BF16_RULES + _FTZ_TO_INT,
        section="9.7.9.21",
    ),
    Row(
        "cvt.narrow",
        "cvt.rnd{.ftz}{.sat}.dtype.atype",
        _D_A,
        {"rnd": RND, "dtype": ("f16", "bf16", "f32"), "atype": ("f32", "f64")},
        token_needs={**_F16, "bf16": _SM80},
        forbid=(
            {"dtype": ("f32",), "atype": ("f32",)},
            {"dtype": ("bf16",), "atype": ("f64",)},
            {**_SAT, "dtype": ("bf16",)},
            *_FTZ_F32,
        ),
        section="9.7.9.21",
        executor="cvt.float",
    ),
    Row(
        "cvt.narrow.relu",
        "cvt.rnd{.relu}{.satfinite}.dtype.atype",
        _D_A,
        {"rnd": ("rn", "rz"), "dtype": ("f16", "bf16"), "atype": ("f32",)},
        Need(),
        {"satfinite": Need(ptx=(8, 1)), "relu": _SM80, "bf16": _SM80},
        forbid=({"relu": ("",), "satfinite": ("",)},),
        section="9.7.9.21",
        executor="cvt.float",
    ),
    Row(
        "cvt.widen",
        "cvt{.ftz}{.sat}.dtype.atype",
        _D_A,
        {"dtype": ("f32", "f64"), "atype": ("f16", "f32")},
        token_needs=_F16,
        forbid=({"dtype": ("f32",), "atype": ("f32",)}, {"ftz": ("ftz",), "dtype": ("f64",), "atype": ("f16",)}),
        section="9.7.9.21",
        executor="cvt.float",
    ),
    Row(
        "cvt.bf16",
        "cvt{.rnd}.dtype.atype",
        _D_A,
        {"rnd": RND, "dtype": ("f16", "bf16", "f64"), "atype": ("f16", "bf16", "f64")},
        _SM90,
        forbid=(
            {"dtype": ("f16", "f64"), "atype": ("f16", "f64")},
            {"dtype": ("bf16",), "atype": ("bf16",)},
            {"dtype": ("bf16",), "atype": ("f64",), "rnd": ("",)},
        ),
        section="9.7.9.21",
        executor="cvt.float",
    ),
    Row(
        "cvt.from_bf16",
        "cvt{.rnd}{.ftz}.dtype.atype",
        _D_A,
        {"rnd": RND, "dtype": ("f32",), "atype": ("bf16",)},
        _SM80,
        {"ftz": _SM90},
        section="9.7.9.21",
        executor="cvt.float",
    ),
    Row(
        "cvt.integral",
        "cvt{.rnd}{.ftz}{.sat}.dtype.atype",
        _D_A,
        {"rnd": INTEGRAL, "dtype": ("f16", "bf16", "f32", "f64"), "atype": ("f16", "bf16", "f32", "f64")},
        token_needs=_BF16_OTHER,
        forbid=(
            *(
                {"dtype": (d,), "atype": tuple(a for a in ("f16", "bf16", "f32", "f64") if a != d)}
                for d in ("f16", "bf16", "f32", "f64")
            ),
            *_FTZ_F32,
            {**_SAT, "dtype": ("bf16",)},
        ),
        section="9.7.9.21",
    ),
    Row(
        "cvt.tf32",
        "cvt.rnd{.satfinite}{.relu}.dtype.atype",
        _D_A,
        {"rnd": ("rna", "rn", "rz"), "dtype": ("tf32",), "atype": ("f32",)},
        _SM80,
        {
            "rn": Need(since("sm_90"), (7, 8)),
            "rz": Need(since("sm_90"), (7, 8)),
            "relu": Need(since("sm_90"), (7, 8)),
            "satfinite": Need(since("sm_80"), (8, 1)),
        },
        forbid=({"rnd": ("rna",), "relu": ("relu",)}, {"rnd": ("rn", "rz"), "satfinite": ("satfinite",)}),
        section="9.7.9.21",
        executor="cvt.float",
    ),
    Row(
        "cvt.tf32.satfinite",
        "cvt.rnd.satfinite{.relu}.dtype.atype",
        _D_A,
        {"rnd": ("rn", "rz"), "dtype": ("tf32",), "atype": ("f32",)},
        Need(since("sm_100"), (8, 6)),
        section="9.7.9.21",
        executor="cvt.float",
    ),
]

_F8X2, _F6X2, _F4X2 = ("e4m3x2", "e5m2x2"), ("e2m3x2", "e3m2x2"), ("e2m1x2",)
_F8X4, _F6X4, _F4X4 = ("e4m3x4", "e5m2x4"), ("e2m3x4", "e3m2x4"), ("e2m1x4",)
_X2_NEEDS = {**dict.fromkeys(_F8X2, _F8), **dict.fromkeys((*_F6X2, *_F4X2), _SMALL)}

PACKED = [
    Row(
        "cvt.pack16",
        "cvt.rnd{.relu}{.satfinite}.dtype.atype",
        "=d:dtype, a:atype, b:atype",
        {"rnd": ("rn", "rz"), "dtype": ("f16x2", "bf16x2"), "atype": ("f32",)},
        _SM80,
        {"satfinite": Need(since("sm_80"), (8, 1))},
        section="9.7.9.21",
    ),
    Row(
        "cvt.pack16.stochastic",
        "cvt.rs{.relu}{.satfinite}.dtype.atype",
        "=d:dtype, a:atype, b:atype, random:b32",
        {"dtype": ("f16x2", "bf16x2"), "atype": ("f32",)},
        _STOCHASTIC,
        section="9.7.9.21",
    ),
    Row(
        "cvt.pack8",
        "cvt.rn.satfinite{.relu}.dtype.atype",
        "=d:dtype, a:atype, b:atype",
        {"dtype": (*_F8X2, *_F6X2, *_F4X2), "atype": ("f32",)},
        token_needs=_X2_NEEDS,
        section="9.7.9.21",
    ),
    Row(
        "cvt.pack8.half",
        "cvt.rn.satfinite{.relu}.dtype.atype",
        "=d:dtype, a:atype",
        {"dtype": (*_F8X2, *_F6X2, *_F4X2), "atype": ("f16x2", "bf16x2")},
        token_needs={**_X2_NEEDS, **dict.fromkeys(("bf16x2", *_F6X2, *_F4X2), Need(_FAMILY, (9, 1)))},
        section="9.7.9.21",
    ),
    Row(
        "cvt.unpack8",
        "cvt.rn{.relu}.dtype.atype",
        "=d:dtype, a:atype",
        {"dtype": ("f16x2",), "atype": (*_F8X2, *_F6X2, *_F4X2)},
        token_needs=_X2_NEEDS,
        section="9.7.9.21",
    ),
    Row(
        "cvt.unpack8.bf16",
        f"cvt.rn{{.satfinite}}{{.relu}}{{.{SCALED}}}.dtype.atype",
        f"=d:dtype, a:atype, scale:b16?{SCALED}",
        {"dtype": ("bf16x2",), "atype": (*_F8X2, *_F6X2, *_F4X2, "s2f6x2")},
        Need(_FAMILY, (9, 1)),
        {"s2f6x2": _S2F6, **dict.fromkeys((*_F8X2, *_F6X2, *_F4X2), Need(_FAMILY, (9, 2)))},
        section="9.7.9.21",
        executor="cvt.unpack8",
    ),
    Row(
        "cvt.pack8.stochastic",
        "cvt.rs{.relu}.satfinite.dtype.atype",
        "=d:dtype, {a*4}:atype, random:b32",
        {"dtype": (*_F8X4, *_F6X4, *_F4X4), "atype": ("f32",)},
        _STOCHASTIC,
        section="9.7.9.21",
    ),
    Row(
        "cvt.pack_scale",
        "cvt.rnd{.satfinite}.dtype.atype",
        "=d:dtype, a:atype, b:atype",
        {"rnd": ("rz", "rp"), "dtype": ("ue8m0x2",), "atype": ("f32",)},
        _SMALL,
        section="9.7.9.21",
    ),
    Row(
        "cvt.pack_scale.half",
        "cvt.rnd{.satfinite}.dtype.atype",
        "=d:dtype, a:atype",
        {"rnd": ("rz", "rp"), "dtype": ("ue8m0x2",), "atype": ("bf16x2",)},
        _SMALL,
        section="9.7.9.21",
    ),
    Row(
        "cvt.unpack_scale",
        "cvt.rn.dtype.atype",
        "=d:dtype, a:atype",
        {"dtype": ("bf16x2",), "atype": ("ue8m0x2",)},
        _SMALL,
        section="9.7.9.21",
    ),
    Row(
        "cvt.s2f6",
        f"cvt.rn.satfinite{{.relu}}{{.{SCALED}}}.dtype.atype",
        f"=d:dtype, a:atype, b:atype, scale:b16?{SCALED}",
        {"dtype": ("s2f6x2",), "atype": ("f32",)},
        _S2F6,
        section="9.7.9.21",
    ),
    Row(
        "cvt.s2f6.half",
        f"cvt.rn.satfinite{{.relu}}{{.{SCALED}}}.dtype.atype",
        f"=d:dtype, a:atype, scale:b16?{SCALED}",
        {"dtype": ("s2f6x2",), "atype": ("bf16x2",)},
        _S2F6,
        section="9.7.9.21",
    ),
    Row(
        "cvt.pack",
        "cvt.pack.sat.dtype.s32",
        "=d:u32, a:s32, b:s32",
        {"dtype": ("u16", "s16")},
        Need(since("sm_72"), (6, 5)),
        section="9.7.9.22",
    ),
    Row(
        "cvt.pack.small",
        "cvt.pack.sat.dtype.s32.b32",
        "=d:u32, a:s32, b:s32, c:u32",
        {"dtype": ("u2", "s2", "u4", "s4", "u8", "s8")},
        Need(since("sm_72"), (6, 5)),
        dict.fromkeys(("u2", "s2", "u4", "s4"), Need(since("sm_75"), (6, 5))),
        section="9.7.9.22",
        executor="cvt.pack",
    ),
]

ROWS = SCALAR + PACKED
