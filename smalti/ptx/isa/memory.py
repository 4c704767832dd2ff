"""Rows for moving and addressing data: ld, st, atomics, mov, address conversion, caches (PTX 9.7.9, 9.7.13.5-7)."""

from __future__ import annotations

from collections.abc import Mapping

from smalti.ptx.isa.row import Need, Row, since

TYPES = ("b8", "b16", "b32", "b64", "b128", "u8", "u16", "u32", "u64", "s8", "s16", "s32", "s64", "f32", "f64")
SHARED = ("shared", "shared::cta", "shared::cluster")
SCOPES = ("cta", "cluster", "gpu", "sys")
L1 = ("L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last", "L1::no_allocate")
L2 = ("L2::evict_normal", "L2::evict_first", "L2::evict_last")
PREFETCH = ("L2::64B", "L2::128B", "L2::256B")
HINT = "L2::cache_hint"

SM90 = Need(since("sm_90"), (7, 8))
_HINT = Need(since("sm_80"), (7, 4))
_V8 = Need(since("sm_100"), (8, 8))
_B128 = Need(since("sm_70"), (8, 3))
_B128_SYS = ({"type": ("b128",), "scope": ("sys",)}, Need(since("sm_70"), (8, 4)))
_VOLATILE_LOCAL = ({"sem": ("volatile",), "space": ("local",)}, Need(ptx=(9, 1)))

_ACCESS_NEEDS = {
    **dict.fromkeys(("relaxed", "acquire", "release", "weak"), Need(since("sm_70"), (6, 0))),
    **dict.fromkeys(("shared::cluster", "cluster"), SM90),
    **dict.fromkeys(("shared::cta",), Need(ptx=(7, 8))),
    **dict.fromkeys(("param::entry", "param::func"), Need(ptx=(8, 3))),
    **dict.fromkeys(L1, Need(since("sm_70"), (7, 4))),
    **dict.fromkeys(L2, Need(since("sm_100"), (8, 8))),
    **dict.fromkeys(PREFETCH, Need(since("sm_75"), (7, 4))),
    "L2::256B": Need(since("sm_80"), (7, 4)),
    HINT: _HINT,
    "b128": _B128,
}
_NO_GLOBAL = ("const", "local", "param", "param::entry", "param::func", *SHARED)
_WIDE64 = ("b64", "u64", "s64", "f64")

# Sixteen bytes at most; `_WIDE` rows have the 32-byte accesses.
_VECTOR = (
    {"type": ("b128",), "vec": ("v2", "v4", "v8")},
    {"vec": ("v4", "v8"), "type": _WIDE64},
    {"vec": ("v8",), "type": ("b32", "u32", "s32", "f32")},
)
_WIDE_TYPES = {"vec": ("v8", "v4"), "type": ("b32", "u32", "s32", "f32", *_WIDE64)}
_WIDE = (
    {"vec": ("v8",), "type": _WIDE64},
    {"vec": ("v4",), "type": ("b32", "u32", "s32", "f32")},
)
_STRONG = (
    {"sem": ("relaxed", "acquire", "release"), "scope": ("",)},
    {"sem": ("", "weak", "volatile"), "scope": SCOPES},
    {"sem": ("relaxed", "acquire", "release", "volatile"), "cop": ("ca", "cg", "cs", "lu", "cv", "wb", "wt")},
    {"sem": ("volatile",), "space": ("const", "param", "param::entry", "param::func")},
    {"sem": ("volatile",), "l1": L1},
    {"sem": ("volatile",), "l2": L2},
    {"sem": ("volatile",), HINT: (HINT,)},
    {"cop": ("ca", "cg", "cs", "lu", "cv", "wb", "wt"), "l1": L1},
    {"cop": ("ca", "cg", "cs", "lu", "cv", "wb", "wt"), "l2": L2},
    {"space": _NO_GLOBAL, "l1": L1},
    {"space": _NO_GLOBAL, "l2": L2},
    {"space": _NO_GLOBAL, HINT: (HINT,)},
    {"space": _NO_GLOBAL, "prefetch": PREFETCH},
    {"sem": ("relaxed", "acquire", "release"), "space": ("const", "local", "param", "param::entry", "param::func")},
)

_LD = {
    "sem": ("weak", "volatile", "relaxed", "acquire"),
    "scope": SCOPES,
    "cop": ("ca", "cg", "cs", "lu", "cv"),
    "l1": L1,
    "prefetch": PREFETCH,
}
_ST = {
    "sem": ("weak", "volatile", "relaxed", "release"),
    "scope": SCOPES,
    "cop": ("wb", "cg", "cs", "wt"),
    "l1": L1,
}
_NARROW = {"vec": ("v2", "v4", "v8"), "type": TYPES}
_LD_SPACES = {"space": ("const", "global", "local", "param", "param::entry", "param::func", *SHARED)}
_ST_SPACES = {"space": ("global", "local", "param", "param::func", *SHARED)}
_WIDE_SPACES = {"space": ("global",)}


def _load(name: str, head: str, space: str, slots: Mapping[str, tuple[str, ...]], wide: bool, section: str) -> Row:
    return Row(
        name,
        f"{head}{{.l1}}{'{.l2}' * wide}{{.{HINT}}}{{.prefetch}}{'.vec' if wide else '{.vec}'}.type",
        f"{{=d*vec}}:type~>, [a]:{space}, policy:u64?{HINT}",
        {**_LD, **({"l2": L2} if wide else {}), **slots},
        _V8 if wide else Need(),
        _ACCESS_NEEDS,
        together_needs=(_B128_SYS, _VOLATILE_LOCAL),
        forbid=(*(_WIDE if wide else _VECTOR), *_STRONG),
        section=section,
        executor="ld",
    )


def _store(name: str, slots: Mapping[str, tuple[str, ...]], wide: bool) -> Row:
    return Row(
        name,
        f"st{{.sem}}{{.scope}}{{.space}}{{.cop}}{{.l1}}{'{.l2}' * wide}{{.{HINT}}}{'.vec' if wide else '{.vec}'}.type",
        f"[a]:space, {{b*vec}}:type>, policy:u64?{HINT}",
        {**_ST, **({"l2": L2} if wide else {}), **slots},
        _V8 if wide else Need(),
        _ACCESS_NEEDS,
        together_needs=(_B128_SYS, _VOLATILE_LOCAL),
        forbid=(*(_WIDE if wide else _VECTOR), *_STRONG),
        section="9.7.9.11",
        executor="st",
    )


_LD_HEAD = "ld{.sem}{.scope}{.space}{.cop}"
_NC_HEAD = "ld.global{.cop}.nc"
_NC = {"cop": ("ca", "cg", "cs")}

LOADS = [
    _load("ld", _LD_HEAD, "space", {**_LD_SPACES, **_NARROW}, False, "9.7.9.8"),
    _load("ld.wide", _LD_HEAD, "space", {**_WIDE_SPACES, **_WIDE_TYPES}, True, "9.7.9.8"),
    _load("ld.nc", _NC_HEAD, "global", {**_NC, **_NARROW}, False, "9.7.9.9"),
    _load("ld.nc.wide", _NC_HEAD, "global", {**_NC, **_WIDE_TYPES}, True, "9.7.9.9"),
    Row(
        "ld.mmio",
        "ld.mmio.relaxed.sys{.global}.type",
        "=d:type>, [a]:global",
        {"type": TYPES},
        Need(since("sm_70"), (8, 2)),
        {"b128": Need(since("sm_70"), (8, 4))},
        section="9.7.9.8",
        executor="ld",
    ),
    Row(
        "ldu",
        "ldu{.space}{.vec}.type",
        "{=d*vec}:type~>, [a]:space",
        {"space": ("global",), "vec": ("v2", "v4"), "type": TYPES},
        token_needs={"b128": _B128},
        forbid=_VECTOR,
        section="9.7.9.10",
        executor="ld",
    ),
]

_MMIO = ({"mmio": ("mmio",), "scope": ("gpu",)},)

STORES = [
    _store("st", {**_ST_SPACES, **_NARROW}, False),
    _store("st.wide", {**_WIDE_SPACES, **_WIDE_TYPES}, True),
    Row(
        "st.mmio",
        "st.mmio.relaxed.sys{.global}.type",
        "[a]:global, b:type>",
        section="9.7.9.11",
        executor="st",
        slots={"type": TYPES},
        need=Need(since("sm_70"), (8, 2)),
        token_needs={"b128": Need(since("sm_70"), (8, 4))},
    ),
    Row(
        "st.async",
        "st.async{.weak}{.scope}{.space}.mbarrier::complete_tx::bytes{.vec}.type",
        "[a]:shared::cluster, {b*vec}:type, [mbar]:shared::cluster",
        section="9.7.9.12",
        asynchronous="tma",
        slots={
            "scope": ("cluster",),  # the assembler takes it, and a compiler writes it; the manual has it for red.async
            "space": ("shared::cluster",),
            "vec": ("v2", "v4"),
            "type": ("b32", "b64", "u32", "u64", "s32", "s64", "f32", "f64"),
        },
        need=Need(since("sm_90"), (8, 1)),
        forbid=({"vec": ("v4",), "type": _WIDE64}, {"weak": ("weak",), "scope": ("cluster",)}),
    ),
    Row(
        "st.async.release",
        "st.async{.mmio}.release.scope{.global}.type",
        "[a]:global, b:type",
        {"scope": ("gpu", "sys"), "type": tuple(t for t in TYPES if t != "b128")},
        Need(since("sm_100"), (8, 7)),
        forbid=_MMIO,
        section="9.7.9.12",
        asynchronous="tma",
    ),
    Row(
        "st.bulk",
        "st.bulk{.weak}{.shared::cta}",
        "[a]:shared::cta, size:u64, #value",
        section="9.7.9.13",
        need=Need(since("sm_100"), (8, 6)),
        ranges={"value": (0,)},
    ),
]

_ATOM = "{.sem}{.scope}{.space}"
_ATOM_SLOTS = {"sem": ("relaxed", "acquire", "release", "acq_rel"), "scope": SCOPES, "space": ("global", *SHARED)}
_RED_SLOTS = {"sem": ("relaxed", "release"), "scope": SCOPES, "space": ("global", *SHARED)}
_ATOM_NEEDS = {
    **dict.fromkeys(("relaxed", "acquire", "release", "acq_rel"), Need(since("sm_70"), (6, 0))),
    **dict.fromkeys(("shared::cluster", "cluster"), SM90),
    **dict.fromkeys(("cta", "gpu", "sys"), Need(since("sm_60"), (5, 0))),
    "shared::cta": Need(ptx=(7, 8)),
    HINT: _HINT,
}
_BF16 = Need(since("sm_90"), (7, 8))
_VECTOR_ATOM = Need(since("sm_90"), (8, 1))
_HINT_GLOBAL = ({HINT: (HINT,), "space": SHARED},)

# name, operations with an optional `.noftz`, types, need, extra token needs
_SCALAR_ATOMICS: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...], Need, dict[str, Need]], ...] = (
    ("logic", ".op", ("and", "or", "xor"), ("b32", "b64"), Need(), {}),
    ("add", ".op", ("add",), ("u32", "u64", "s32", "f32", "f64"), Need(), {"f64": Need(since("sm_60"), (5, 0))}),
    ("inc", ".op", ("inc", "dec"), ("u32",), Need(), {}),
    ("minmax", ".op", ("min", "max"), ("u32", "u64", "s32", "s64"), Need(), {}),
    (
        "add.half",
        ".op.noftz",
        ("add",),
        ("f16", "f16x2", "bf16", "bf16x2"),
        Need(since("sm_70"), (6, 3)),
        {"bf16": _BF16, "bf16x2": _BF16},
    ),
)
_VECTOR_ATOMICS: tuple[tuple[str, str, tuple[str, ...], tuple[str, ...], tuple[str, ...]], ...] = (
    ("add.f32.vector", ".op", ("add",), ("v2", "v4"), ("f32",)),
    ("half.vector", ".op.noftz", ("add", "min", "max"), ("v2", "v4", "v8"), ("f16", "bf16")),
    ("half2.vector", ".op.noftz", ("add", "min", "max"), ("v2", "v4"), ("f16x2", "bf16x2")),
)

ATOMICS = [
    *(
        Row(
            f"{head}.{name}",
            f"{head}{_ATOM}{op}{{.{HINT}}}.type",
            f"{result}[a]:space, b:type, policy:u64?{HINT}",
            slots={**slots, "op": ops, "type": types},
            need=need,
            token_needs={**_ATOM_NEEDS, **extra},
            forbid=_HINT_GLOBAL,
            section=section,
            executor=head,
        )
        for head, slots, result, section in (
            ("atom", _ATOM_SLOTS, "=d:type~, ", "9.7.13.5"),
            ("red", _RED_SLOTS, "", "9.7.13.6"),
        )
        for name, op, ops, types, need, extra in _SCALAR_ATOMICS
    ),
    *(
        Row(
            f"{head}.{name}",
            f"{head}{{.sem}}{{.scope}}{{.global}}{op}{{.{HINT}}}.vec.type",
            f"{result}[a]:global, {{b*vec}}:type, policy:u64?{HINT}",
            slots={"sem": slots["sem"], "scope": SCOPES, "op": ops, "vec": vecs, "type": types},
            need=_VECTOR_ATOM,
            token_needs=_ATOM_NEEDS,
            section=section,
            executor=head,
        )
        for head, slots, result, section in (
            ("atom", _ATOM_SLOTS, "{=d*vec}:type~, ", "9.7.13.5"),
            ("red", _RED_SLOTS, "", "9.7.13.6"),
        )
        for name, op, ops, vecs, types in _VECTOR_ATOMICS
    ),
    Row(
        "atom.exch",
        f"atom{_ATOM}.exch{{.{HINT}}}.type",
        f"=d:type~, [a]:space, b:type, policy:u64?{HINT}",
        slots={**_ATOM_SLOTS, "type": ("b32", "b64", "b128")},
        token_needs={**_ATOM_NEEDS, "b128": Need(since("sm_90"), (8, 3))},
        together_needs=(_B128_SYS,),
        forbid=_HINT_GLOBAL,
        section="9.7.13.5",
    ),
    Row(
        "atom.cas",
        f"atom{_ATOM}.cas.type",
        "=d:type~, [a]:space, b:type, c:type",
        slots={**_ATOM_SLOTS, "type": ("b16", "b32", "b64", "b128")},
        token_needs={**_ATOM_NEEDS, "b16": Need(since("sm_70"), (6, 3)), "b128": Need(since("sm_90"), (8, 3))},
        together_needs=(_B128_SYS,),
        section="9.7.13.5",
    ),
    *(
        Row(
            f"red.async.{name}",
            "red.async.relaxed.cluster{.shared::cluster}.mbarrier::complete_tx::bytes.op.type",
            "[a]:shared::cluster, b:type, [mbar]:shared::cluster",
            slots={"op": ops, "type": types},
            need=Need(since("sm_90"), (8, 1)),
            section="9.7.13.7",
            asynchronous="tma",
            executor="red.async",
        )
        for name, ops, types in (
            ("inc", ("inc", "dec"), ("u32",)),
            ("minmax", ("min", "max"), ("u32", "s32")),
            ("logic", ("and", "or", "xor"), ("b32",)),
            ("add", ("add",), ("u32", "s32", "u64")),
        )
    ),
    Row(
        "red.async.release",
        "red.async{.mmio}.release.scope{.global}.add.type",
        "[a]:global, b:type",
        {"scope": ("gpu", "sys"), "type": ("u32", "s32", "u64", "s64")},
        Need(since("sm_100"), (8, 7)),
        forbid=_MMIO,
        section="9.7.13.7",
        asynchronous="tma",
    ),
]

_WINDOWS = {
    "param": Need(since("sm_70"), (7, 7)),
    "param::entry": Need(since("sm_70"), (8, 3)),
    "shared::cta": Need(ptx=(7, 8)),
    "shared::cluster": SM90,
}

MOVES = [
    Row(
        "mov",
        "mov.type",
        "=d:type, a:type&; =d:type, {a}; {=d}~, a:type",
        section="9.7.9.3",
        slots={
            "type": ("pred", "b16", "b32", "b64", "b128", "u16", "u32", "u64", "s16", "s32", "s64", "f32", "f64"),
        },
        token_needs={"b128": _B128},
    ),
    *(
        Row(
            name,
            spelling,
            operands,
            {"space": ("const", "global", "local", "param", "param::entry", *SHARED), "size": ("u64",)},
            token_needs=_WINDOWS,
            section="9.7.9.20",
            executor="cvta",
        )
        for name, spelling, operands in (
            ("cvta", "cvta.space.size", "=d:size, a:size&"),
            ("cvta.to", "cvta.to.space.size", "=d:size, a:size$"),
        )
    ),
    Row(
        "isspacep",
        "isspacep.space",
        "=p:pred, a:u64",
        section="9.7.9.19",
        slots={"space": ("const", "global", "local", "param", "param::entry", *SHARED)},
        token_needs=_WINDOWS,
    ),
    Row(
        "mapa",
        "mapa{.shared::cluster}.type",
        "=d:type, a:type&, b:u32",
        section="9.7.9.23",
        slots={"type": ("u32", "u64")},
        need=SM90,
    ),
    Row(
        "getctarank",
        "getctarank{.shared::cluster}.type",
        "=d:u32, a:type&",
        section="9.7.9.24",
        slots={"type": ("u32", "u64")},
        need=SM90,
    ),
    Row(
        "movmatrix",
        "movmatrix.sync.aligned.m8n8.trans.b16",
        "=d:b32, a:b32$",
        section="9.7.14.5.17",
        need=Need(since("sm_75"), (7, 8)),
        collective="warp",
    ),
]

CACHE = [
    Row(
        "prefetch",
        "prefetch{.space}.level",
        "[a]:space",
        section="9.7.9.15",
        slots={"space": ("global", "local"), "level": ("L1", "L2")},
    ),
    Row(
        "prefetch.evict",
        "prefetch.global.level",
        "[a]:global",
        section="9.7.9.15",
        executor="prefetch",
        slots={"level": ("L2::evict_last", "L2::evict_normal")},
        need=Need(since("sm_80"), (7, 4)),
    ),
    Row("prefetchu", "prefetchu.L1", "[a]", section="9.7.9.15", executor="prefetch"),
    Row(
        "prefetch.tensormap",
        "prefetch{.space}.tensormap",
        "[a]:space",
        section="9.7.9.15",
        executor="prefetch",
        slots={"space": ("const", "param")},
        need=Need(since("sm_90"), (8, 0)),
    ),
    Row(
        "applypriority",
        "applypriority{.global}.L2::evict_normal",
        "[a]:global, #size",
        section="9.7.9.16",
        need=Need(since("sm_80"), (7, 4)),
        ranges={"size": (128,)},
        executor="prefetch",
    ),
    Row(
        "discard",
        "discard{.global}.L2",
        "[a]:global, #size",
        section="9.7.9.17",
        need=Need(since("sm_80"), (7, 4)),
        ranges={"size": (128,)},
    ),
    Row(
        "createpolicy.range",
        "createpolicy.range{.global}.first{.second}.b64",
        "=d:u64, [a]:global, primary:u32, total:u32",
        section="9.7.9.18",
        need=_HINT,
        slots={
            "first": ("L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::evict_unchanged"),
            "second": ("L2::evict_first", "L2::evict_unchanged"),
        },
    ),
    Row(
        "createpolicy.fractional",
        "createpolicy.fractional.first{.second}.b64",
        "=d:u64, fraction:f32?",
        section="9.7.9.18",
        need=_HINT,
        slots={
            "first": ("L2::evict_last", "L2::evict_normal", "L2::evict_first", "L2::evict_unchanged"),
            "second": ("L2::evict_first", "L2::evict_unchanged"),
        },
    ),
    Row("createpolicy.cvt", "createpolicy.cvt.L2.b64", "=d:u64, a:u64", section="9.7.9.18", need=_HINT),
]

ROWS = LOADS + STORES + ATOMICS + MOVES + CACHE
