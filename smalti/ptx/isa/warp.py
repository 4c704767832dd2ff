"""Rows for communication inside a warp: shuffles, votes, matches, reductions, elections (PTX 9.7.9.6, 9.7.13.9-14)."""

from __future__ import annotations

from smalti.ptx.isa.row import Need, Row, only, since

_SYNC = Need(ptx=(6, 0))
_VOLTA = Need(since("sm_70"), (6, 0))
_FLOAT_REDUX = Need(only("sm_100a", "sm_100f", "sm_103a", "sm_103f"), (8, 6))

ROWS = [
    Row(
        "shfl",
        "shfl.sync.mode.b32",
        "=d:b32~|=p:pred?, a:b32, b:b32, c:b32, mask:u32",
        section="9.7.9.6",
        slots={"mode": ("up", "down", "bfly", "idx")},
        need=_SYNC,
        collective="warp",
    ),
    Row(
        "vote",
        "vote.sync.mode.pred",
        "=d:pred, a:pred!, mask:u32",
        section="9.7.13.9",
        slots={"mode": ("all", "any", "uni")},
        need=_SYNC,
        collective="warp",
    ),
    Row(
        "vote.ballot",
        "vote.sync.ballot.b32",
        "=d:b32, a:pred!, mask:u32",
        section="9.7.13.9",
        need=_SYNC,
        collective="warp",
    ),
    Row(
        "match.any",
        "match.any.sync.type",
        "=d:b32, a:type, mask:u32",
        section="9.7.13.10",
        slots={"type": ("b32", "b64")},
        need=_VOLTA,
        collective="warp",
    ),
    Row(
        "match.all",
        "match.all.sync.type",
        "=d:b32~|=p:pred?, a:type, mask:u32",
        section="9.7.13.10",
        slots={"type": ("b32", "b64")},
        need=_VOLTA,
        collective="warp",
    ),
    Row("activemask", "activemask.b32", "=d:b32", section="9.7.13.11", need=Need(since("sm_50"), (6, 2))),
    Row(
        "redux.int",
        "redux.sync.op.type",
        "=d:type, a:type, mask:u32",
        section="9.7.13.12",
        slots={"op": ("add", "min", "max"), "type": ("u32", "s32")},
        need=Need(since("sm_80"), (7, 0)),
        collective="warp",
    ),
    Row(
        "redux.bits",
        "redux.sync.op.b32",
        "=d:u32, a:u32, mask:u32",
        section="9.7.13.12",
        slots={"op": ("and", "or", "xor")},
        need=Need(since("sm_80"), (7, 0)),
        collective="warp",
    ),
    Row(
        "redux.float",
        "redux.sync.op{.abs}{.NaN}.f32",
        "=d:f32, a:f32, mask:u32",
        section="9.7.13.12",
        slots={"op": ("min", "max")},
        need=_FLOAT_REDUX,
        collective="warp",
    ),
    Row(
        "elect",
        "elect.sync",
        "=d:b32~|=p:pred, mask:u32",
        section="9.7.13.14",
        need=Need(since("sm_90"), (8, 0)),
        collective="warp",
    ),
]
