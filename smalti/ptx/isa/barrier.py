"""Rows for barriers, mbarriers and fences (PTX 9.7.13.1-4, 9.7.13.15)."""

from __future__ import annotations

from smalti.ptx.isa.row import Need, Row, since

_SM90 = Need(since("sm_90"), (8, 0))
_CLUSTER = Need(since("sm_90"), (7, 8))
_SHARED = ("shared", "shared::cta")
_ANY_SHARED = ("shared", "shared::cta", "shared::cluster")
_MBAR = Need(since("sm_80"), (7, 0))
_MBAR_NEEDS = {
    "shared::cta": Need(ptx=(7, 8)),
    "shared::cluster": _SM90,
    "cluster": _SM90,
    "expect_tx": _SM90,
    "relaxed": Need(since("sm_90"), (8, 6)),
    "release": Need(ptx=(8, 0)),
    "acquire": Need(ptx=(8, 0)),
}
_SEM_SCOPE = ({"sem": ("relaxed", "release", "acquire"), "scope": ("",)}, {"sem": ("",), "scope": ("cta", "cluster")})
_ARRIVE = {"sem": ("release", "relaxed"), "scope": ("cta", "cluster"), "space": _ANY_SHARED}

_CTA = Need(ptx=(7, 8))


def _named(head: str, aligned: str, need: Need) -> list[Row]:
    """The forms of `barrier` (any thread of a warp, unless .aligned) and of `bar` (always aligned)."""
    return [
        Row(
            f"{head}.{name}",
            f"{head}{{.cta}}.{spelling.replace('@', aligned)}",
            operands,
            {"op": ("and", "or")},
            need,
            {"cta": _CTA},
            ranges={"a": range(16), "b": range(0 if name == "sync" else 32, 1 << 17, 32)},
            collective="cta",
            section="9.7.13.1",
            executor=f"barrier.{name}",
        )
        for name, spelling, operands in (
            ("sync", "sync@", "a:u32, b:u32?"),
            ("arrive", "arrive@", "a:u32, b:u32"),
            ("red.popc", "red.popc@.u32", "=d:u32, a:u32, b:u32?, c:pred!"),
            ("red", "red.op@.pred", "=p:pred, a:u32, b:u32?, c:pred!"),
        )
    ]


NAMED = [
    *_named("barrier", "{.aligned}", Need(ptx=(6, 0))),
    *_named("bar", "", Need()),
    Row("bar.warp.sync", "bar.warp.sync", "mask:u32", section="9.7.13.2", need=Need(ptx=(6, 0)), collective="warp"),
    Row(
        "barrier.cluster.arrive",
        "barrier.cluster.arrive{.sem}{.aligned}",
        section="9.7.13.3",
        slots={"sem": ("release", "relaxed")},
        need=_CLUSTER,
        collective="cluster",
    ),
    Row(
        "barrier.cluster.wait",
        "barrier.cluster.wait{.acquire}{.aligned}",
        section="9.7.13.3",
        need=_CLUSTER,
        collective="cluster",
    ),
]

MBARRIER = [
    Row(
        "mbarrier.init",
        "mbarrier.init{.space}.b64",
        "[a]:space, count:u32",
        section="9.7.13.15.9",
        slots={"space": _SHARED},
        need=_MBAR,
        token_needs=_MBAR_NEEDS,
        ranges={"count": range(1, 1 << 20)},
    ),
    Row(
        "mbarrier.inval",
        "mbarrier.inval{.space}.b64",
        "[a]:space",
        section="9.7.13.15.10",
        slots={"space": _SHARED},
        need=_MBAR,
        token_needs=_MBAR_NEEDS,
    ),
    Row(
        "mbarrier.expect_tx",
        "mbarrier.expect_tx{.sem}{.scope}{.space}.b64",
        "[a]:space, tx:u32",
        section="9.7.13.15.11",
        slots={**_ARRIVE, "sem": ("relaxed",)},
        need=_SM90,
        token_needs={**_MBAR_NEEDS, "relaxed": _SM90},
        forbid=_SEM_SCOPE,
    ),
    Row(
        "mbarrier.complete_tx",
        "mbarrier.complete_tx{.sem}{.scope}{.space}.b64",
        "[a]:space, tx:u32",
        section="9.7.13.15.12",
        slots={**_ARRIVE, "sem": ("relaxed",)},
        need=_SM90,
        token_needs={**_MBAR_NEEDS, "relaxed": _SM90},
        forbid=_SEM_SCOPE,
    ),
    *(
        Row(
            f"mbarrier.{verb}{tx}{remote}",
            f"mbarrier.{verb}{tx}{{.sem}}{{.scope}}{'.space' if remote else '{.space}'}.b64",
            f"{state}, [a]:space, {'tx:u32' if tx else 'count:u32?'}",
            {"sem": ("release", "relaxed"), "scope": ("cta", "cluster"), "space": spaces},
            _SM90 if tx or remote else _MBAR,
            _MBAR_NEEDS,
            {} if tx else {"count": _CLUSTER},
            forbid=_SEM_SCOPE,
            section=section,
            ranges={"count": range(1, 1 << 20)},
            executor=f"mbarrier.{verb}{tx}",
        )
        for verb, section in (("arrive", "9.7.13.15.13"), ("arrive_drop", "9.7.13.15.14"))
        for tx in ("", ".expect_tx")
        for remote, spaces, state in (("", _SHARED, "=state:u64~"), (".remote", ("shared::cluster",), "=state:sink"))
    ),
    *(
        Row(
            f"mbarrier.{verb}.noComplete",
            f"mbarrier.{verb}.noComplete{{.sem}}{{.scope}}{{.space}}.b64",
            "=state:u64~, [a]:space, count:u32",
            section=section,
            slots={"sem": ("release",), "scope": ("cta",), "space": _SHARED},
            need=_MBAR,
            token_needs=_MBAR_NEEDS,
            ranges={"count": range(1, 1 << 20)},
            forbid=_SEM_SCOPE,
        )
        for verb, section in (("arrive", "9.7.13.15.13"), ("arrive_drop", "9.7.13.15.14"))
    ),
    *(
        Row(
            f"mbarrier.{wait}",
            f"mbarrier.{wait}{{.sem}}{{.scope}}{{.space}}.b64",
            "=p:pred, [a]:space, state:u64" + hint,
            section="9.7.13.15.16",
            slots={"sem": ("acquire", "relaxed"), "scope": ("cta", "cluster"), "space": _SHARED},
            need=need,
            token_needs=_MBAR_NEEDS,
            forbid=_SEM_SCOPE,
        )
        for wait, hint, need in (("test_wait", "", _MBAR), ("try_wait", ", hint:u32?", _CLUSTER))
    ),
    *(
        Row(
            f"mbarrier.{wait}.parity",
            f"mbarrier.{wait}.parity{{.sem}}{{.scope}}{{.space}}.b64",
            "=p:pred, [a]:space, parity:u32" + hint,
            ranges={"parity": range(2)},
            section="9.7.13.15.16",
            slots={"sem": ("acquire", "relaxed"), "scope": ("cta", "cluster"), "space": _SHARED},
            need=need,
            token_needs=_MBAR_NEEDS,
            forbid=_SEM_SCOPE,
        )
        for wait, hint, need in (("test_wait", "", Need(since("sm_80"), (7, 1))), ("try_wait", ", hint:u32?", _CLUSTER))
    ),
    Row(
        "mbarrier.pending_count", "mbarrier.pending_count.b64", "=d:u32, state:u64", section="9.7.13.15.17", need=_MBAR
    ),
    Row(
        "cp.async.mbarrier.arrive",
        "cp.async.mbarrier.arrive{.noinc}{.space}.b64",
        "[a]:space",
        section="9.7.13.15.15",
        slots={"space": _SHARED},
        need=_MBAR,
        token_needs=_MBAR_NEEDS,
        asynchronous="cp.async",
    ),
]

_SCOPES = ("cta", "cluster", "gpu", "sys")

FENCES = [
    Row(
        "fence",
        "fence{.sem}.scope",
        section="9.7.13.4",
        need=Need(since("sm_70"), (6, 0)),
        slots={"sem": ("sc", "acq_rel", "acquire", "release"), "scope": _SCOPES},
        token_needs={
            "cluster": _CLUSTER,
            "acquire": Need(since("sm_90"), (8, 6)),
            "release": Need(since("sm_90"), (8, 6)),
        },
    ),
    Row(
        "fence.acquire.cluster",
        "fence.acquire.sync_restrict::shared::cluster.cluster",
        section="9.7.13.4",
        need=Need(since("sm_90"), (8, 6)),
        executor="fence",
    ),
    Row(
        "fence.release.cluster",
        "fence.release.sync_restrict::shared::cta.cluster",
        section="9.7.13.4",
        need=Need(since("sm_90"), (8, 6)),
        executor="fence",
    ),
    Row("fence.mbarrier_init", "fence.mbarrier_init.release.cluster", section="9.7.13.4", need=_SM90),
    Row("fence.proxy.alias", "fence.proxy.alias", section="9.7.13.4", need=Need(since("sm_70"), (7, 5))),
    Row(
        "fence.proxy.async",
        "fence.proxy.async{.space}",
        section="9.7.13.4",
        need=_SM90,
        slots={"space": ("global", "shared::cta", "shared::cluster")},
    ),
    Row(
        "fence.proxy.tensormap.release",
        "fence.proxy.tensormap::generic.release.scope",
        section="9.7.13.4",
        slots={"scope": _SCOPES},
        need=Need(since("sm_90"), (8, 3)),
    ),
    Row(
        "fence.proxy.tensormap.acquire",
        "fence.proxy.tensormap::generic.acquire.scope",
        "[a], #size",
        section="9.7.13.4",
        slots={"scope": _SCOPES},
        need=Need(since("sm_90"), (8, 3)),
        ranges={"size": (128,)},
    ),
    Row(
        "fence.proxy.async.acquire",
        "fence.proxy.async::generic.acquire.sync_restrict::shared::cluster.cluster",
        section="9.7.13.4",
        need=Need(since("sm_90"), (8, 6)),
        executor="fence.proxy.async",
    ),
    Row(
        "fence.proxy.async.release",
        "fence.proxy.async::generic.release.sync_restrict::shared::cta.cluster",
        section="9.7.13.4",
        need=Need(since("sm_90"), (8, 6)),
        executor="fence.proxy.async",
    ),
    Row("membar", "membar.level", section="9.7.13.4", slots={"level": ("cta", "gl", "sys")}, executor="fence"),
    Row(
        "membar.proxy.alias",
        "membar.proxy.alias",
        section="9.7.13.4",
        need=Need(since("sm_70"), (7, 5)),
        executor="fence.proxy.alias",
    ),
    Row("membar.proxy.async", "membar.proxy.async", section="9.7.13.4", need=_SM90, executor="fence.proxy.async"),
]

ROWS = NAMED + MBARRIER + FENCES
