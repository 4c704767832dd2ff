"""Rows of the fifth-generation tensor core: tensor memory and its matrix instructions (PTX 9.7.16)."""

from __future__ import annotations

from smalti.ptx.isa.row import TCGEN05, Mods, Need, Row, Slots, only

_NEED = Need(TCGEN05, (8, 6))
_I8 = Need(only("sm_100a", "sm_110a"), (8, 6))  # sm_103 lacks kind::i8
_RED = Need(only("sm_103a", "sm_103f", "sm_110a", "sm_110f"), (8, 8))
_EXACT = Need(only("sm_100a", "sm_103a", "sm_110a"), (8, 6))  # not in the family targets
_BLOCK = Need(TCGEN05, (8, 8))
_SCALE_D = Need(only("sm_100a", "sm_100f", "sm_103a", "sm_103f"), (8, 6))
_GROUP = {"cta_group": ("cta_group::1", "cta_group::2")}
_ONE = {"cta_group": ("cta_group::1",)}
MULTICAST = "multicast::cluster"

ALLOCATION = [
    Row(
        "tcgen05.alloc",
        "tcgen05.alloc.cta_group.sync.aligned{.shared::cta}.b32",
        "[a]:shared::cta, columns:u32",
        _GROUP,
        _NEED,
        ranges={"columns": (32, 64, 128, 256, 512)},
        collective="warp",
        section="9.7.16.7.1",
    ),
    Row(
        "tcgen05.dealloc",
        "tcgen05.dealloc.cta_group.sync.aligned.b32",
        "taddr:u32, columns:u32",
        _GROUP,
        _NEED,
        ranges={"columns": (32, 64, 128, 256, 512)},
        collective="warp",
        section="9.7.16.7.1",
    ),
    Row(
        "tcgen05.relinquish_alloc_permit",
        "tcgen05.relinquish_alloc_permit.cta_group.sync.aligned",
        "",
        _GROUP,
        _NEED,
        collective="warp",
        section="9.7.16.7.1",
    ),
]

# Registers of .x1 by shape (9.7.16.2.3); the largest .xN keeps them at 128.
_UNIT = {"32x32b": 1, "16x64b": 1, "16x128b": 2, "16x256b": 4, "16x32bx2": 1}
_NUM = {"num": ("x1", "x2", "x4", "x8", "x16", "x32", "x64", "x128")}
_TOO_MANY = ({"shape": ("16x128b",), "num": ("x128",)}, {"shape": ("16x256b",), "num": ("x64", "x128")})
_SHAPES = {"shape": ("16x64b", "16x128b", "16x256b", "32x32b"), **_NUM}
_SPLIT = {"shape": ("16x32bx2",), **_NUM}


def registers(mods: Mods) -> int:
    """Registers of each lane in tcgen05.ld and st."""
    return _UNIT[mods["shape"]] * int(mods["num"][1:])


def _moved(name: str, spelling: str, operands: str, slots: Slots, need: Need = _NEED, executor: str = "") -> Row:
    return Row(
        name,
        spelling,
        operands,
        slots,
        need,
        forbid=_TOO_MANY,
        counts={"regs": registers},
        asynchronous="tcgen05",
        collective="warp",
        section="9.7.16.8",
        executor=executor,
    )


_REDUCE = {"op": ("min", "max")}

REGISTERS = [
    _moved("tcgen05.ld", "tcgen05.ld.sync.aligned.shape.num{.pack::16b}.b32", "{=d*regs}:b32, [a]:tensor", _SHAPES),
    _moved(
        "tcgen05.ld.split",
        "tcgen05.ld.sync.aligned.shape.num{.pack::16b}.b32",
        "{=d*regs}:b32, [a]:tensor, #split",
        _SPLIT,
        executor="tcgen05.ld",
    ),
    _moved(
        "tcgen05.ld.red",
        "tcgen05.ld.red.sync.aligned.shape.num.op{.abs}{.NaN}.type",
        "{=d*regs}:type, =value:type, [a]:tensor",
        {**_SHAPES, "shape": ("32x32b",), "num": _NUM["num"][1:], **_REDUCE, "type": ("f32",)},
        _RED,
    ),
    _moved(
        "tcgen05.ld.red.split",
        "tcgen05.ld.red.sync.aligned.shape.num.op{.abs}{.NaN}.type",
        "{=d*regs}:type, =value:type, [a]:tensor, #split",
        {**_SPLIT, "num": _NUM["num"][1:], **_REDUCE, "type": ("f32",)},
        _RED,
        executor="tcgen05.ld.red",
    ),
    _moved(
        "tcgen05.ld.red.int",
        "tcgen05.ld.red.sync.aligned.shape.num.op.type",
        "{=d*regs}:type, =value:type, [a]:tensor",
        {**_SHAPES, "shape": ("32x32b",), "num": _NUM["num"][1:], **_REDUCE, "type": ("u32", "s32")},
        _RED,
        executor="tcgen05.ld.red",
    ),
    _moved(
        "tcgen05.ld.red.int.split",
        "tcgen05.ld.red.sync.aligned.shape.num.op.type",
        "{=d*regs}:type, =value:type, [a]:tensor, #split",
        {**_SPLIT, "num": _NUM["num"][1:], **_REDUCE, "type": ("u32", "s32")},
        _RED,
        executor="tcgen05.ld.red",
    ),
    _moved("tcgen05.st", "tcgen05.st.sync.aligned.shape.num{.unpack::16b}.b32", "[a]:tensor, {b*regs}:b32$", _SHAPES),
    _moved(
        "tcgen05.st.split",
        "tcgen05.st.sync.aligned.shape.num{.unpack::16b}.b32",
        "[a]:tensor, #split, {b*regs}:b32$",
        _SPLIT,
        executor="tcgen05.st",
    ),
    Row("tcgen05.wait::ld", "tcgen05.wait::ld.sync.aligned", "", need=_NEED, collective="warp", section="9.7.16.8.5"),
    Row("tcgen05.wait::st", "tcgen05.wait::st.sync.aligned", "", need=_NEED, collective="warp", section="9.7.16.8.5"),
]

_FORMATS = {"to": ("b8x16",), "source": ("b6x16_p32", "b4x16_p64")}
_BOTH_FORMATS = ({"to": ("",), "source": _FORMATS["source"]}, {"to": ("b8x16",), "source": ("",)})

MOVEMENT = [
    Row(
        "tcgen05.cp",
        "tcgen05.cp.cta_group.shape{.multicast}{.to}{.source}",
        "[a]:tensor, descriptor:u64",
        {
            **_GROUP,
            "shape": ("128x256b", "4x256b", "128x128b", "64x128b", "32x128b"),
            "multicast": ("warpx2::02_13", "warpx2::01_23", "warpx4"),
            **_FORMATS,
        },
        _NEED,
        asynchronous="tcgen05",
        section="9.7.16.9.1",
        forbid=(
            *_BOTH_FORMATS,
            {"shape": ("128x256b", "4x256b", "128x128b"), "multicast": ("warpx2::02_13", "warpx2::01_23", "warpx4")},
            {"shape": ("64x128b",), "multicast": ("", "warpx4")},
            {"shape": ("32x128b",), "multicast": ("", "warpx2::02_13", "warpx2::01_23")},
        ),
    ),
    Row(
        "tcgen05.shift",
        "tcgen05.shift.cta_group.down",
        "[a]:tensor",
        _GROUP,
        _EXACT,
        asynchronous="tcgen05",
        section="9.7.16.9.2",
    ),
]

_KINDS = ("kind::f16", "kind::tf32", "kind::f8f6f4")
_COLLECT_A = tuple(f"collector::a::{op}" for op in ("fill", "use", "lastuse", "discard"))
_COLLECT_B = tuple(f"collector::b{n}::{op}" for n in range(4) for op in ("fill", "use", "lastuse", "discard"))
_NO_REUSE: tuple[Slots, ...] = ({"collector": ("collector::a::fill", "collector::a::use")},)  # with .ashift
_MASK = "{mask*lanes}:b32?"


def _lanes(mods: Mods) -> int:
    """disable-output-lane: one bit a lane, 128 lanes a CTA."""
    return 4 if mods["cta_group"] == "cta_group::1" else 8


def _sources(sparse: bool, tail: str, shift: bool = False) -> str:
    """The operand lists with A in shared memory (a descriptor) and in tensor memory (an address)."""
    meta = ", [meta]:tensor" if sparse else ""
    lists = (["a:u64"] if not shift else []) + ["[a]:tensor"]
    return "; ".join(f"[d]:tensor, {a}, b:u64{meta}, idesc:u32, {tail}" for a in lists)


def _mma(sparse: bool) -> list[Row]:
    sp = ".sp" if sparse else ""
    name = f"tcgen05.mma{sp}"
    section = "9.7.16.10.9.2" if sparse else "9.7.16.10.9.1"
    common = {**_GROUP, "collector": _COLLECT_A}
    plain = f"{_MASK}, enable:pred!"
    scaled = f"{plain}, #scale_d?"
    scaled_tail = "[scale_a]:tensor, [scale_b]:tensor, enable:pred!"
    ranges = {"scale_d": range(16)}

    def row(
        kind: str,
        spelling: str,
        operands: str,
        slots: Slots,
        need: Need,
        forbid: tuple[Slots, ...] = (),
    ) -> Row:
        return Row(
            f"{name}{kind}",
            spelling,
            operands,
            {**common, **slots},
            need,
            exact,
            {"scale_d": _SCALE_D},
            forbid=forbid,
            counts={"lanes": _lanes},
            ranges=ranges,
            asynchronous="tcgen05",
            section=section,
            executor=name,
        )

    # The older names of the scale vectors, and sparse fp4, exist on the exact targets only.
    exact = dict.fromkeys(("scale_vec::1X", "scale_vec::2X"), _EXACT)
    exact |= dict.fromkeys(("scale_vec::4X",), Need(_EXACT.arch, (8, 7)))
    exact |= {"kind::mxf4nvf4": Need(TCGEN05, (8, 7)), "block16": _BLOCK, "block32": _BLOCK}
    if sparse:
        exact |= {"kind::mxf4": _EXACT, "kind::mxf4nvf4": Need(_EXACT.arch, (8, 7))}
    head = f"tcgen05.mma{sp}.cta_group.kind"
    return [
        *(
            line
            for kind, kinds, tail in (("", ("kind::f16", "kind::tf32"), scaled), (".f8f6f4", ("kind::f8f6f4",), plain))
            for line in (
                row(kind, f"{head}{{.collector}}", _sources(sparse, tail), {"kind": kinds}, _NEED),
                row(
                    f"{kind}.ashift",
                    f"{head}.ashift{{.collector}}",
                    _sources(sparse, tail, True),
                    {"kind": kinds},
                    _NEED,
                    _NO_REUSE,
                ),
            )
        ),
        row(".i8", f"{head}{{.collector}}", _sources(sparse, plain), {"kind": ("kind::i8",)}, _I8),
        row(
            ".i8.ashift",
            f"{head}.ashift{{.collector}}",
            _sources(sparse, plain, True),
            {"kind": ("kind::i8",)},
            _I8,
            _NO_REUSE,
        ),
        row(
            ".block_scale",
            f"{head}.block_scale{{.vec}}{{.collector}}",
            _sources(sparse, scaled_tail),
            {
                "kind": ("kind::mxf8f6f4", "kind::mxf4", "kind::mxf4nvf4"),
                "vec": ("scale_vec::1X", "scale_vec::2X", "scale_vec::4X", "block16", "block32"),
            },
            _NEED,
            (
                {"kind": ("kind::mxf8f6f4",), "vec": ("scale_vec::2X", "scale_vec::4X", "block16")},
                {"kind": ("kind::mxf4",), "vec": ("scale_vec::1X", "scale_vec::4X", "block16")},
                {"kind": ("kind::mxf4nvf4",), "vec": ("", "scale_vec::1X")},
            ),
        ),
    ]


def _ws(sparse: bool) -> list[Row]:
    sp = ".sp" if sparse else ""
    section = "9.7.16.10.9.4" if sparse else "9.7.16.10.9.3"
    return [
        Row(
            f"tcgen05.mma.ws{sp}{name}",
            f"tcgen05.mma.ws{sp}.cta_group.kind{{.collector}}",
            _sources(sparse, "enable:pred!, zero_columns:u64?"),
            {**_ONE, "kind": kinds, "collector": _COLLECT_B},
            need,
            asynchronous="tcgen05",
            section=section,
            executor=f"tcgen05.mma.ws{sp}",
        )
        for name, kinds, need in (("", _KINDS, _NEED), (".i8", ("kind::i8",), _I8))
    ]


MATRIX = [*_mma(False), *_mma(True), *_ws(False), *_ws(True)]

SYNCHRONISATION = [
    Row("tcgen05.fence::before_thread_sync", "tcgen05.fence::before_thread_sync", need=_NEED, section="9.7.16.11.1"),
    Row("tcgen05.fence::after_thread_sync", "tcgen05.fence::after_thread_sync", need=_NEED, section="9.7.16.11.1"),
    Row(
        "tcgen05.commit",
        f"tcgen05.commit.cta_group.mbarrier::arrive::one{{.shared::cluster}}{{.{MULTICAST}}}.b64",
        f"[mbar]:shared::cluster, mask:u16?{MULTICAST}",
        _GROUP,
        _NEED,
        section="9.7.16.12.1",
    ),
]

ROWS = ALLOCATION + REGISTERS + MOVEMENT + MATRIX + SYNCHRONISATION
