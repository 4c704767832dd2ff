"""Rows for asynchronous copies: cp.async, bulk and tensor copies, tensor maps (PTX 9.7.9.25-28, 9.7.13.16)."""

from __future__ import annotations

from smalti.ptx.isa.row import Need, Row, only, since

HINT = "L2::cache_hint"
MULTICAST = "multicast::cluster"
BYTES = "mbarrier::complete_tx::bytes"
DIMENSIONS = ("1d", "2d", "3d", "4d", "5d")

SM80 = Need(since("sm_80"), (7, 0))
SM90 = Need(since("sm_90"), (8, 0))
_SM100 = Need(since("sm_100"), (8, 6))
_FAMILY = only("sm_100a", "sm_100f", "sm_103a", "sm_103f", "sm_110a", "sm_110f")
_CTA_GROUP = Need(_FAMILY, (8, 6))
_SHARED_CTA_DST = Need(since("sm_90"), (8, 6))
_REDUCE = ("add", "min", "max", "inc", "dec", "and", "or", "xor")
_HINT = {HINT: Need(since("sm_80"), (7, 4))}

# The bytes of the source that exist, or a predicate that makes it all zeros.
_CP_ASYNC = "; ".join(
    f"[d]:space, [s]:global, #size, {tail}, policy:u64?{HINT}" for tail in ("source:u32?", "ignore:pred!")
)

CP_ASYNC = [
    Row(
        "cp.async.ca",
        f"cp.async.ca.space.global{{.{HINT}}}{{.prefetch}}",
        _CP_ASYNC,
        section="9.7.9.25.3.1",
        slots={"space": ("shared", "shared::cta"), "prefetch": ("L2::64B", "L2::128B", "L2::256B")},
        need=SM80,
        token_needs={**_HINT, "shared::cta": Need(ptx=(7, 8))},
        ranges={"size": (4, 8, 16), "source": range(17)},
        asynchronous="cp.async",
        executor="cp.async",
    ),
    Row(
        "cp.async.cg",
        f"cp.async.cg.space.global{{.{HINT}}}{{.prefetch}}",
        _CP_ASYNC,
        section="9.7.9.25.3.1",
        slots={"space": ("shared", "shared::cta"), "prefetch": ("L2::64B", "L2::128B", "L2::256B")},
        need=SM80,
        token_needs={**_HINT, "shared::cta": Need(ptx=(7, 8))},
        ranges={"size": (16,), "source": range(17)},
        asynchronous="cp.async",
        executor="cp.async",
    ),
    Row("cp.async.commit_group", "cp.async.commit_group", section="9.7.9.25.3.2", need=SM80),
    Row("cp.async.wait_group", "cp.async.wait_group", "#n", section="9.7.9.25.3.3", need=SM80),
    Row("cp.async.wait_all", "cp.async.wait_all", section="9.7.9.25.3.3", need=SM80),
]

_BULK_BYTES = {"size": range(0, 1 << 32, 16)}

BULK = [
    Row(
        "cp.async.bulk.load.cta",
        f"cp.async.bulk.shared::cta.global.{BYTES}{{.{HINT}}}",
        f"[d]:shared::cta, [s]:global, size:u32, [mbar]:shared, policy:u64?{HINT}",
        section="9.7.9.25.4.1",
        need=_SHARED_CTA_DST,
        asynchronous="tma",
        ranges=_BULK_BYTES,
        executor="cp.async.bulk.load",
    ),
    Row(
        "cp.async.bulk.load",
        f"cp.async.bulk.shared::cluster.global.{BYTES}{{.{MULTICAST}}}{{.{HINT}}}",
        f"[d]:shared::cluster, [s]:global, size:u32, [mbar]:shared, mask:u16?{MULTICAST}, policy:u64?{HINT}",
        section="9.7.9.25.4.1",
        need=SM90,
        asynchronous="tma",
        ranges=_BULK_BYTES,
    ),
    Row(
        "cp.async.bulk.shared",
        f"cp.async.bulk.shared::cluster.shared::cta.{BYTES}",
        "[d]:shared::cluster, [s]:shared::cta, size:u32, [mbar]:shared::cluster",
        section="9.7.9.25.4.1",
        need=SM90,
        asynchronous="tma",
        ranges=_BULK_BYTES,
    ),
    Row(
        "cp.async.bulk.store",
        f"cp.async.bulk.global.shared::cta.bulk_group{{.{HINT}}}{{.cp_mask}}",
        f"[d]:global, [s]:shared::cta, size:u32, policy:u64?{HINT}, mask:u16?cp_mask",
        section="9.7.9.25.4.1",
        need=SM90,
        token_needs={"cp_mask": _SM100},
        asynchronous="tma",
        ranges=_BULK_BYTES,
    ),
    Row(
        "cp.async.bulk.prefetch",
        f"cp.async.bulk.prefetch.L2.global{{.{HINT}}}",
        f"[s]:global, size:u32, policy:u64?{HINT}",
        section="9.7.9.25.4.3",
        need=SM90,
        asynchronous="tma",
        ranges=_BULK_BYTES,
    ),
    Row(
        "cp.reduce.async.bulk.shared",
        f"cp.reduce.async.bulk.shared::cluster.shared::cta.{BYTES}.op.type",
        "[d]:shared::cluster, [s]:shared::cta, size:u32, [mbar]:shared::cluster",
        section="9.7.9.25.4.2",
        slots={"op": _REDUCE, "type": ("b32", "u32", "s32", "u64")},
        need=SM90,
        asynchronous="tma",
        ranges=_BULK_BYTES,
        forbid=(
            {"op": ("and", "or", "xor"), "type": ("u32", "s32", "u64")},
            {"type": ("b32",), "op": ("add", "min", "max", "inc", "dec")},
            {"op": ("min", "max", "inc", "dec"), "type": ("u64",)},
            {"op": ("inc", "dec"), "type": ("s32",)},
        ),
    ),
    Row(
        "cp.reduce.async.bulk.store",
        f"cp.reduce.async.bulk.global.shared::cta.bulk_group{{.{HINT}}}.op.type",
        f"[d]:global, [s]:shared::cta, size:u32, policy:u64?{HINT}",
        section="9.7.9.25.4.2",
        need=SM90,
        asynchronous="tma",
        ranges=_BULK_BYTES,
        slots={"op": _REDUCE, "type": ("b32", "b64", "u32", "s32", "u64", "s64", "f16", "bf16", "f32", "f64")},
        forbid=(
            {"op": ("and", "or", "xor"), "type": ("u32", "s32", "u64", "s64", "f16", "bf16", "f32", "f64")},
            {"type": ("b32", "b64"), "op": ("add", "min", "max", "inc", "dec")},
            {"op": ("inc", "dec"), "type": ("s32", "u64", "s64", "f16", "bf16", "f32", "f64")},
            {"op": ("min", "max"), "type": ("f32", "f64")},
            {"op": ("add",), "type": ("f16", "bf16", "s64")},
        ),
    ),
    Row(
        "cp.reduce.async.bulk.store.noftz",
        f"cp.reduce.async.bulk.global.shared::cta.bulk_group{{.{HINT}}}.op.noftz.type",
        f"[d]:global, [s]:shared::cta, size:u32, policy:u64?{HINT}",
        section="9.7.9.25.4.2",
        need=SM90,
        asynchronous="tma",
        ranges=_BULK_BYTES,
        slots={"op": ("add",), "type": ("f16", "bf16")},
        executor="cp.reduce.async.bulk.store",
    ),
    Row("cp.async.bulk.commit_group", "cp.async.bulk.commit_group", section="9.7.9.27.2.1", need=SM90),
    Row("cp.async.bulk.wait_group", "cp.async.bulk.wait_group{.read}", "#n", section="9.7.9.27.2.2", need=SM90),
]

_IM2COL = ("im2col", "im2col::w", "im2col::w::128")
_NEW_MODES = ("tile::gather4", "im2col::w", "im2col::w::128")
_GROUPS = dict.fromkeys(("cta_group::1", "cta_group::2"), _CTA_GROUP)
_TENSOR_NEEDS = {**_GROUPS, **dict.fromkeys((*_NEW_MODES, "tile::scatter4"), _CTA_GROUP)}
_RANKS = (
    {"mode": ("im2col", "im2col_no_offs", *_IM2COL[1:]), "dim": ("1d", "2d")},
    {"mode": ("tile::gather4", "tile::scatter4"), "dim": ("1d", "3d", "4d", "5d")},
)

_LOAD_SLOTS = {"dim": DIMENSIONS, "mode": ("tile", "tile::gather4"), "cta_group": ("cta_group::1", "cta_group::2")}


def _im2col_offsets(mods: object) -> int:
    """im2col takes one offset a spatial dimension (rank - 2), im2col::w a halo and an offset."""
    assert isinstance(mods, dict)
    return 2 if mods["mode"] != "im2col" else int(mods["dim"][0]) - 2


def _tensor_load(name: str, target: str, multicast: bool, im2col: bool, need: Need) -> Row:
    """A load into the own CTA (sm_100 on, any mode), or into the cluster (gather4 and im2col::w by family)."""
    cast = f"{{.{MULTICAST}}}" if multicast else ""
    mask = f"mask:u16?{MULTICAST}, " if multicast else ""
    mode = ".mode" if im2col else "{.mode}"
    offsets = "{offsets*offsets}:u16, " if im2col else ""
    return Row(
        name,
        f"cp.async.bulk.tensor.dim.{target}.global{mode}.{BYTES}{cast}{{.cta_group}}{{.{HINT}}}",
        f"[d]:{target}, [map]:tensormap, [mbar]:shared, {offsets}{mask}policy:u64?{HINT}",
        section="9.7.9.27.1.2",
        slots={**_LOAD_SLOTS, "mode": _IM2COL} if im2col else _LOAD_SLOTS,
        need=need,
        token_needs=_TENSOR_NEEDS
        if multicast
        else _GROUPS | dict.fromkeys(_NEW_MODES, _SM100) | {"im2col::w::128": _CTA_GROUP},
        forbid=_RANKS,
        counts={"offsets": _im2col_offsets},
        asynchronous="tma",
        executor="cp.async.bulk.tensor.load",
    )


TENSOR = [
    _tensor_load("cp.async.bulk.tensor.load", "shared::cluster", True, False, SM90),
    _tensor_load("cp.async.bulk.tensor.load.cta", "shared::cta", False, False, _SHARED_CTA_DST),
    _tensor_load("cp.async.bulk.tensor.load.im2col", "shared::cluster", True, True, SM90),
    _tensor_load("cp.async.bulk.tensor.load.im2col.cta", "shared::cta", False, True, _SHARED_CTA_DST),
    Row(
        "cp.async.bulk.tensor.store",
        f"cp.async.bulk.tensor.dim.global.shared::cta{{.mode}}.bulk_group{{.{HINT}}}",
        f"[map]:tensormap, [s]:shared::cta, policy:u64?{HINT}",
        section="9.7.9.27.1.2",
        slots={"dim": DIMENSIONS, "mode": ("tile", "tile::scatter4", "im2col_no_offs")},
        need=SM90,
        token_needs=_TENSOR_NEEDS,
        forbid=_RANKS,
        asynchronous="tma",
    ),
    Row(
        "cp.reduce.async.bulk.tensor",
        f"cp.reduce.async.bulk.tensor.dim.global.shared::cta.op{{.mode}}.bulk_group{{.{HINT}}}",
        f"[map]:tensormap, [s]:shared::cta, policy:u64?{HINT}",
        section="9.7.9.27.1.3",
        slots={"dim": DIMENSIONS, "op": _REDUCE, "mode": ("tile", "im2col_no_offs")},
        need=SM90,
        forbid=_RANKS,
        asynchronous="tma",
    ),
    Row(
        "cp.async.bulk.prefetch.tensor",
        f"cp.async.bulk.prefetch.tensor.dim.L2.global{{.mode}}{{.{HINT}}}",
        f"[map]:tensormap, policy:u64?{HINT}",
        section="9.7.9.27.1.4",
        slots={"dim": DIMENSIONS, "mode": ("tile", "tile::gather4")},
        need=SM90,
        token_needs=_TENSOR_NEEDS,
        forbid=_RANKS,
        asynchronous="tma",
    ),
    Row(
        "cp.async.bulk.prefetch.tensor.im2col",
        f"cp.async.bulk.prefetch.tensor.dim.L2.global.mode{{.{HINT}}}",
        f"[map]:tensormap, {{offsets*offsets}}:u16, policy:u64?{HINT}",
        section="9.7.9.27.1.4",
        slots={"dim": DIMENSIONS, "mode": _IM2COL},
        counts={"offsets": _im2col_offsets},
        need=SM90,
        token_needs=_TENSOR_NEEDS,
        forbid=_RANKS,
        asynchronous="tma",
        executor="cp.async.bulk.prefetch.tensor",
    ),
]

_REPLACE = Need(only("sm_90a") | frozenset(a for a in since("sm_100") if a[-1] in "af"), (8, 3))
_REPLACE_SPACE = {"space": ("global", "shared::cta")}

TENSORMAP = [
    Row(
        "tensormap.replace.address",
        "tensormap.replace.tile.global_address{.space}.b1024.b64",
        "[map]:space, value:b64",
        section="9.7.9.28",
        slots=_REPLACE_SPACE,
        need=_REPLACE,
        executor="tensormap.replace",
    ),
    Row(
        "tensormap.replace.rank",
        "tensormap.replace.tile.rank{.space}.b1024.b32",
        "[map]:space, value:b32",
        section="9.7.9.28",
        slots=_REPLACE_SPACE,
        need=_REPLACE,
        executor="tensormap.replace",
    ),
    Row(
        "tensormap.replace.dimension",
        "tensormap.replace.tile.field{.space}.b1024.b32",
        "[map]:space, #ord, value:b32",
        section="9.7.9.28",
        slots={**_REPLACE_SPACE, "field": ("box_dim", "global_dim", "element_stride")},
        need=_REPLACE,
        ranges={"ord": range(5)},
        executor="tensormap.replace",
    ),
    Row(
        "tensormap.replace.stride",
        "tensormap.replace.tile.global_stride{.space}.b1024.b64",
        "[map]:space, #ord, value:b64",
        section="9.7.9.28",
        slots=_REPLACE_SPACE,
        need=_REPLACE,
        ranges={"ord": range(5)},
        executor="tensormap.replace",
    ),
    *(
        Row(
            f"tensormap.replace.{field}",
            f"tensormap.replace.tile.{field}{{.space}}.b1024.b32",
            "[map]:space, #value",
            _REPLACE_SPACE,
            _REPLACE,
            ranges={"value": range(values)},
            section="9.7.9.28",
            executor="tensormap.replace",
        )
        for field, values in (("elemtype", 16), ("interleave_layout", 3), ("swizzle_mode", 5), ("fill_mode", 2))
    ),
    Row(
        "tensormap.replace.atomicity",
        "tensormap.replace.tile.swizzle_atomicity{.space}.b1024.b32",
        "[map]:space, #value",
        section="9.7.9.28",
        slots=_REPLACE_SPACE,
        executor="tensormap.replace",
        need=Need(frozenset(a for a in since("sm_100") if a[-1] in "af"), (8, 6)),
    ),
    Row(
        "tensormap.cp_fenceproxy",
        "tensormap.cp_fenceproxy.global.shared::cta.tensormap::generic.release.scope.sync.aligned",
        "[d]:global, [s]:shared::cta, #size",
        section="9.7.13.16",
        slots={"scope": ("cta", "cluster", "gpu", "sys")},
        need=Need(since("sm_90"), (8, 3)),
        collective="warp",
        ranges={"size": (128,)},
    ),
]

ROWS = CP_ASYNC + BULK + TENSOR + TENSORMAP
