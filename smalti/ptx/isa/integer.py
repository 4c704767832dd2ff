"""Integer arithmetic, bit and comparison rows (PTX 9.7.1, 9.7.2, 9.7.6, 9.7.8)."""

from __future__ import annotations

from smalti.ptx.isa.row import Need, Row, since

INT16_64 = ("u16", "u32", "u64", "s16", "s32", "s64")
INT32_64 = ("u32", "u64", "s32", "s64")
PACKED16 = ("u16x2", "s16x2")
BITS = ("b16", "b32", "b64")
COMPARE_INT = ("eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs")
BOOLEAN = ("and", "or", "xor")

_PACKED16 = Need(since("sm_90"), (8, 0))

# Comparisons that exist only for unsigned (lo ls hi hs) or only for equality (bits).
_BAD_COMPARE = (
    {"cmp": ("lo", "ls", "hi", "hs"), "type": ("s16", "s32", "s64", "b16", "b32", "b64")},
    {"cmp": ("lt", "le", "gt", "ge"), "type": BITS},
)


_T = {"type": INT16_64}
_MIN_MAX = {"type": INT16_64 + PACKED16}
_MIN_MAX_NEEDS = dict.fromkeys((*PACKED16, "relu"), _PACKED16)
_MIN_MAX_FORBID = ({"relu": ("relu",), "type": ("u16", "u32", "u64", "s16", "s64", "u16x2")},)
_CARRY = {"type": INT32_64, "cc": ("cc",)}

INTEGER = [
    Row(
        "add.int",
        "add{.sat}.type",
        "=d:type, a:type, b:type",
        {"type": INT16_64 + PACKED16},
        token_needs=dict.fromkeys(PACKED16, _PACKED16),
        forbid=({"sat": ("sat",), "type": tuple(t for t in INT16_64 + PACKED16 if t != "s32")},),
        section="9.7.1.1",
    ),
    Row(
        "sub.int",
        "sub{.sat}.type",
        "=d:type, a:type, b:type",
        {"type": INT16_64},
        forbid=({"sat": ("sat",), "type": tuple(t for t in INT16_64 if t != "s32")},),
        section="9.7.1.2",
    ),
    Row("add.carry", "add.cc.type", "=d:type, a:type, b:type", section="9.7.2.1", slots={"type": INT32_64}),
    Row("addc", "addc{.cc}.type", "=d:type, a:type, b:type", section="9.7.2.2", slots=_CARRY),
    Row("sub.carry", "sub.cc.type", "=d:type, a:type, b:type", section="9.7.2.3", slots={"type": INT32_64}),
    Row("subc", "subc{.cc}.type", "=d:type, a:type, b:type", section="9.7.2.4", slots=_CARRY),
    Row("mul.int", "mul.half.type", "=d:type, a:type, b:type", section="9.7.1.3", slots={**_T, "half": ("lo", "hi")}),
    Row(
        "mul.wide",
        "mul.wide.type",
        "=d:wide(type), a:type, b:type",
        section="9.7.1.3",
        slots={"type": ("u16", "u32", "s16", "s32")},
    ),
    Row(
        "mad.int",
        "mad.half.type",
        "=d:type, a:type, b:type, c:type",
        section="9.7.1.4",
        slots={**_T, "half": ("lo", "hi")},
    ),
    Row("mad.sat", "mad.hi.sat.s32", "=d:s32, a:s32, b:s32, c:s32", section="9.7.1.4"),
    Row(
        "mad.wide",
        "mad.wide.type",
        "=d:wide(type), a:type, b:type, c:wide(type)",
        section="9.7.1.4",
        slots={"type": ("u16", "u32", "s16", "s32")},
    ),
    Row(
        "mad.carry",
        "mad.half.cc.type",
        "=d:type, a:type, b:type, c:type",
        section="9.7.2.5",
        slots={"half": ("lo", "hi"), "type": INT32_64},
    ),
    Row(
        "madc",
        "madc.half{.cc}.type",
        "=d:type, a:type, b:type, c:type",
        section="9.7.2.6",
        slots={"half": ("lo", "hi"), **_CARRY},
    ),
    Row(
        "mul24",
        "mul24.half.type",
        "=d:type, a:type, b:type",
        section="9.7.1.5",
        slots={"half": ("lo", "hi"), "type": ("u32", "s32")},
    ),
    Row(
        "mad24",
        "mad24.half.type",
        "=d:type, a:type, b:type, c:type",
        section="9.7.1.6",
        slots={"half": ("lo", "hi"), "type": ("u32", "s32")},
    ),
    Row("mad24.sat", "mad24.hi.sat.s32", "=d:s32, a:s32, b:s32, c:s32", section="9.7.1.6"),
    Row("sad", "sad.type", "=d:type, a:type, b:type, c:type", section="9.7.1.7", slots=_T),
    Row("div.int", "div.type", "=d:type, a:type, b:type", section="9.7.1.8", slots=_T),
    Row("rem", "rem.type", "=d:type, a:type, b:type", section="9.7.1.9", slots=_T),
    Row("abs.int", "abs.type", "=d:type, a:type", section="9.7.1.10", slots={"type": ("s16", "s32", "s64")}),
    Row("neg.int", "neg.type", "=d:type, a:type", section="9.7.1.11", slots={"type": ("s16", "s32", "s64")}),
    Row(
        "min.int",
        "min{.relu}.type",
        "=d:type, a:type, b:type",
        section="9.7.1.12",
        slots=_MIN_MAX,
        token_needs=_MIN_MAX_NEEDS,
        forbid=_MIN_MAX_FORBID,
    ),
    Row(
        "max.int",
        "max{.relu}.type",
        "=d:type, a:type, b:type",
        section="9.7.1.13",
        slots=_MIN_MAX,
        token_needs=_MIN_MAX_NEEDS,
        forbid=_MIN_MAX_FORBID,
    ),
    Row("popc", "popc.type", "=d:u32, a:type", section="9.7.1.14", slots={"type": ("b32", "b64")}),
    Row("clz", "clz.type", "=d:u32, a:type", section="9.7.1.15", slots={"type": ("b32", "b64")}),
    Row("bfind", "bfind{.shiftamt}.type", "=d:u32, a:type", section="9.7.1.16", slots={"type": INT32_64}),
    Row("fns", "fns.b32", "=d:b32, mask:b32, base:b32, offset:b32", section="9.7.1.17", need=Need(ptx=(6, 0))),
    Row("brev", "brev.type", "=d:type, a:type", section="9.7.1.18", slots={"type": ("b32", "b64")}),
    Row(
        "bfe",
        "bfe.type",
        "=d:type, a:type, b:u32, c:u32",
        ranges={"b": range(256), "c": range(256)},
        section="9.7.1.19",
        slots={"type": INT32_64},
    ),
    Row(
        "bfi",
        "bfi.type",
        "=f:type, a:type, b:type, c:u32, d:u32",
        ranges={"c": range(256), "d": range(256)},
        section="9.7.1.20",
        slots={"type": ("b32", "b64")},
    ),
    Row(
        "szext",
        "szext.mode.type",
        "=d:type, a:type, b:u32",
        section="9.7.1.21",
        slots={"mode": ("clamp", "wrap"), "type": ("u32", "s32")},
        need=Need(since("sm_70"), (7, 6)),
    ),
    Row(
        "bmsk",
        "bmsk.mode.b32",
        "=d:u32, a:u32, b:u32",
        section="9.7.1.22",
        slots={"mode": ("clamp", "wrap")},
        need=Need(since("sm_70"), (7, 6)),
    ),
    Row(
        "dp4a",
        "dp4a.atype.btype",
        "=d:u32, a:u32, b:u32, c:u32",
        section="9.7.1.23",
        slots={"atype": ("u32", "s32"), "btype": ("u32", "s32")},
        need=Need(since("sm_61"), (5, 0)),
    ),
    Row(
        "dp2a",
        "dp2a.half.atype.btype",
        "=d:u32, a:u32, b:u32, c:u32",
        section="9.7.1.24",
        slots={"half": ("lo", "hi"), "atype": ("u32", "s32"), "btype": ("u32", "s32")},
        need=Need(since("sm_61"), (5, 0)),
    ),
]

LOGIC = [
    *(
        Row(name, f"{name}.type", "=d:type, a:type!, b:type!", section=section, slots={"type": ("pred", *BITS)})
        for name, section in (("and", "9.7.8.1"), ("or", "9.7.8.2"), ("xor", "9.7.8.3"))
    ),
    Row("not", "not.type", "=d:type, a:type!", section="9.7.8.4", slots={"type": ("pred", *BITS)}),
    Row("cnot", "cnot.type", "=d:type, a:type", section="9.7.8.5", slots={"type": BITS}),
    Row(
        "lop3",
        "lop3.b32",
        "=d:b32, a:b32, b:b32, c:b32, #lut",
        section="9.7.8.6",
        need=Need(ptx=(4, 3)),
        ranges={"lut": range(256)},
    ),
    Row(
        "lop3.pred",
        "lop3.bool.b32",
        "=d:b32~|=p:pred, a:b32, b:b32, c:b32, #lut, q:pred!",
        section="9.7.8.6",
        slots={"bool": ("or", "and")},
        need=Need(since("sm_70"), (8, 2)),
        ranges={"lut": range(256)},
    ),
    Row(
        "shf",
        "shf.direction.mode.b32",
        "=d:b32, a:b32, b:b32, c:u32",
        section="9.7.8.7",
        slots={"direction": ("l", "r"), "mode": ("clamp", "wrap")},
    ),
    Row("shl", "shl.type", "=d:type, a:type, b:u32", section="9.7.8.8", slots={"type": BITS}),
    Row("shr", "shr.type", "=d:type, a:type, b:u32", section="9.7.8.9", slots={"type": BITS + INT16_64}),
    Row(
        "prmt",
        "prmt.b32{.mode}",
        "=d:b32, a:b32, b:b32, c:b32",
        section="9.7.9.7",
        slots={"mode": ("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")},
    ),
]

COMPARE = [
    Row(
        "setp.int",
        "setp.cmp.type",
        "=p:pred~|=q:pred~?, a:type, b:type",
        section="9.7.6.2",
        slots={"cmp": COMPARE_INT, "type": BITS + INT16_64},
        forbid=_BAD_COMPARE,
    ),
    Row(
        "setp.int.bool",
        "setp.cmp.bool.type",
        "=p:pred~|=q:pred~?, a:type, b:type, c:pred!",
        section="9.7.6.2",
        slots={"cmp": COMPARE_INT, "bool": BOOLEAN, "type": BITS + INT16_64},
        forbid=_BAD_COMPARE,
        executor="setp.int",
    ),
    Row(
        "set.int",
        "set.cmp.dtype.type",
        "=d:dtype, a:type, b:type",
        section="9.7.6.1",
        slots={"cmp": COMPARE_INT, "dtype": ("u32", "s32", "f32"), "type": BITS + INT16_64},
        forbid=_BAD_COMPARE,
    ),
    Row(
        "set.int.bool",
        "set.cmp.bool.dtype.type",
        "=d:dtype, a:type, b:type, c:pred!",
        section="9.7.6.1",
        slots={"cmp": COMPARE_INT, "bool": BOOLEAN, "dtype": ("u32", "s32", "f32"), "type": BITS + INT16_64},
        forbid=_BAD_COMPARE,
        executor="set.int",
    ),
    Row(
        "selp",
        "selp.type",
        "=d:type, a:type, b:type, c:pred!",
        section="9.7.6.3",
        slots={"type": (*BITS, *INT16_64, "f32", "f64")},
    ),
    Row(
        "slct",
        "slct{.ftz}.type.ctype",
        "=d:type, a:type, b:type, c:ctype",
        section="9.7.6.4",
        slots={"ftz": ("ftz",), "type": (*BITS, *INT16_64, "f32", "f64"), "ctype": ("s32", "f32")},
        forbid=({"ftz": ("ftz",), "ctype": ("s32",)},),
    ),
]

ROWS = INTEGER + LOGIC + COMPARE
