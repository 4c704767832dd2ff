"""Rows for branches, calls and whole-thread control (PTX 9.7.12, 9.7.13.13, 9.7.13.17-18, 9.7.19)."""

from __future__ import annotations

from smalti.ptx.isa.row import ARCHITECTURES, Need, Row, only, since

_BARE90 = frozenset({"sm_90"})
_SETMAXNREG = Need(frozenset(a for a in ARCHITECTURES if a[-1] in "af" and a >= "sm_100") | {"sm_90a"}, (8, 0))
_BLACKWELL = Need(since("sm_100"), (8, 6))
_FAMILY = only(
    "sm_100a", "sm_100f", "sm_103a", "sm_103f", "sm_110a", "sm_110f", "sm_120a", "sm_120f", "sm_121a", "sm_121f"
)

ROWS = [
    Row("bra", "bra{.uni}", "label", section="9.7.12.3"),
    Row("brx.idx", "brx.idx{.uni}", "index:u32$, label", section="9.7.12.4", need=Need(ptx=(6, 0))),
    Row(
        "call",
        "call{.uni}",
        "(=returns), symbol, (arguments), label?; symbol, (arguments)?, label?; (=returns), symbol",
        section="9.7.12.5",
    ),
    Row("ret", "ret{.uni}", section="9.7.12.6"),
    Row("exit", "exit", section="9.7.12.7"),
    Row("brkpt", "brkpt", section="9.7.19.1"),
    Row("nanosleep", "nanosleep.u32", "t:u32", section="9.7.19.2", need=Need(since("sm_70"), (6, 3))),
    Row("pmevent", "pmevent", "#a", section="9.7.19.3", ranges={"a": range(16)}),
    Row("pmevent.mask", "pmevent.mask", "#a", section="9.7.19.3", ranges={"a": range(1 << 16)}, executor="pmevent"),
    Row("trap", "trap", section="9.7.19.4"),
    Row(
        "setmaxnreg",
        "setmaxnreg.action.sync.aligned.u32",
        "#count",
        section="9.7.19.5",
        slots={"action": ("inc", "dec")},
        need=_SETMAXNREG,
        collective="warpgroup",
        ranges={"count": range(24, 257, 8)},
    ),
    Row(
        "griddepcontrol",
        "griddepcontrol.action",
        section="9.7.13.13",
        slots={"action": ("launch_dependents", "wait")},
        need=Need(since("sm_90"), (7, 8)),
    ),
    Row(
        "clusterlaunchcontrol.try_cancel",
        "clusterlaunchcontrol.try_cancel.async{.shared::cta}.mbarrier::complete_tx::bytes{.multicast::cluster::all}.b128",
        "[a]:shared::cta, [mbar]:shared::cta",
        section="9.7.13.17",
        asynchronous="tma",
        need=_BLACKWELL,
        token_needs={"multicast::cluster::all": Need(_FAMILY, (8, 6))},
    ),
    Row(
        "clusterlaunchcontrol.is_canceled",
        "clusterlaunchcontrol.query_cancel.is_canceled.pred.b128",
        "=p:pred, response:b128",
        section="9.7.13.18",
        need=_BLACKWELL,
    ),
    Row(
        "clusterlaunchcontrol.first_ctaid",
        "clusterlaunchcontrol.query_cancel.get_first_ctaid.v4.b32.b128",
        "{=d*4}:b32~, response:b128",
        section="9.7.13.18",
        need=_BLACKWELL,
    ),
    Row(
        "clusterlaunchcontrol.first_ctaid.dimension",
        "clusterlaunchcontrol.query_cancel.dimension.b32.b128",
        "=d:b32, response:b128",
        section="9.7.13.18",
        need=_BLACKWELL,
        slots={"dimension": ("get_first_ctaid::x", "get_first_ctaid::y", "get_first_ctaid::z")},
    ),
]
