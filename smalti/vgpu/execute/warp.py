"""Exchange inside a warp: shuffles, votes, matches, reductions, elections (PTX 9.7.9.6, 9.7.13.9-14).

The lanes that the member masks name come together first; a gang may hold several warps, each computes alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from smalti.errors import error
from smalti.ptx.module import Immediate, Register
from smalti.vgpu.divergence import ConvergeWait
from smalti.vgpu.execute import Context, Operation, Result, Source, executor, let_go, spread
from smalti.vgpu.execute.barrier import executing
from smalti.vgpu.execute.lanes import destination, nothing, write
from smalti.vgpu.program import Step
from smalti.vgpu.warp import WARP, Bools, Gang, Row

Array = Any
FULL = 0xFFFFFFFF
LANES = np.arange(WARP, dtype=np.uint32)


def together(context: Context, step: Step, operation: Operation) -> Operation:
    """`operation` for the lanes that execute the step, once all that their member masks name are here.

    Errors: SML0840 a lane that its own member mask does not name.
    """
    operand = context.bind(step)["mask"]
    members, lanes = context.source(operand, "u32"), executing(context, step)
    guarded = step.instruction.guard is not None
    everyone = isinstance(operand, Immediate) and operand.value & FULL == FULL

    def run(g: Gang) -> Result:
        if not everyone:
            _named(g, step, members(g), lanes(g))
        if g.mask is None and not guarded:
            return operation(g)
        here = lanes(g)
        if not here.any():
            return None
        if not g.machine.converge(g, members, lanes):
            let_go(g, lanes(g))
            return ConvergeWait()
        here = lanes(g)
        mask, count = g.mask, g.count
        g.mask, g.count = (None if here.all() else here.copy()), int(np.count_nonzero(here))
        try:
            return operation(g)
        finally:
            g.mask, g.count = mask, count

    return run


def _named(g: Gang, step: Step, members: Array, here: Bools) -> None:
    own = np.broadcast_to(members, g.width) >> (np.arange(g.width, dtype=np.uint32) & np.uint32(31))
    absent = here & ((own & np.uint32(1)) == 0)
    if absent.any():
        lane = int(np.flatnonzero(absent)[0])
        mask = int(np.broadcast_to(members, g.width)[lane])
        raise error("SML0840", at=step.loc, opcode=step.opcode, mask=f"{mask:#010x}", thread=g.lo + lane, who=g.who())


def groups(g: Gang, members: Array) -> list[Bools]:
    """The active lanes, apart by member mask; usually all have the same."""
    active = g.active()
    if not np.ndim(members):
        return [active]
    values = np.unique(members[active])
    return [active & (members == v) for v in values]


def ballot(lanes: Bools) -> Row:
    """One 32-bit mask a warp."""
    return np.packbits(lanes, bitorder="little").view(np.uint32)


def by_warp(row: Array, g: Gang) -> Array:
    return np.ascontiguousarray(spread(row, g)).reshape(-1, WARP)


def _undefined(g: Gang, operand: Any, context: Context) -> Bools | None:
    register = getattr(operand, "register", operand)
    return g.undefined(context.number(register)) if isinstance(register, Register) else None


def exchange(
    context: Context,
    step: Step,
    source: Source,
    compute: Callable[[Array, Bools], tuple[Array, ...]],
    outs: list[int | None],
) -> Operation:
    """Results that depend on the values of all lanes of a group: compute(values [warps, 32], lanes [warps, 32]) gives,
    for each register of `outs`, [warps] or [warps, 32]. An undefined value makes those of its warp undefined."""
    bound = context.bind(step)
    members = context.source(bound["mask"], "u32")

    def run(g: Gang) -> None:
        values = by_warp(source(g), g)
        bad = _undefined(g, bound["a"], context) if g.slow else None
        parts = groups(g, members(g))
        results: list[Row | None] = [None] * len(outs)
        flags = np.zeros(g.width, np.bool_)
        for lanes in parts:
            computed = compute(values, lanes.reshape(-1, WARP))
            for i, r in enumerate(computed):
                row = (r.repeat(WARP) if r.ndim == 1 else r.reshape(-1)) if len(values) else r
                before = results[i]
                results[i] = row if before is None else np.where(lanes, row, before)
            if bad is not None:
                flags |= lanes & (bad & lanes).reshape(-1, WARP).any(axis=1).repeat(WARP)
        for n, row in zip(outs, results, strict=True):
            if n is not None and row is not None:
                write(g, 0, n, row)
                if g.slow:
                    g.set_undefined(n, flags if bad is not None else None)

    return together(context, step, run)


# -- votes and matches -------------------------------------------------------------------------------------


@executor("vote", "vote.ballot", undefined=True, own_guard=True)
def vote(context: Context, step: Step) -> Operation:
    bound, mode = context.bind(step), step.form.get("mode")

    def compute(p: Array, lanes: Bools) -> tuple[Array, ...]:
        if mode == "any":
            return ((p & lanes).any(axis=1),)
        if mode == "all":
            return ((p | ~lanes).all(axis=1),)
        if mode == "uni":
            return ((p | ~lanes).all(axis=1) | ~(p & lanes).any(axis=1),)
        return (ballot(p & lanes),)

    return exchange(context, step, context.source(bound["a"], "pred"), compute, [destination(context, bound["d"])])


@executor("match.any", "match.all", undefined=True, own_guard=True)
def match(context: Context, step: Step) -> Operation:
    bound = context.bind(step)
    outs = [destination(context, bound["d"])]
    if "p" in bound:
        outs.append(destination(context, bound["p"]))

    def any_equal(v: Array, lanes: Bools) -> tuple[Array, ...]:
        same = (v[:, :, None] == v[:, None, :]) & lanes[:, None, :]
        return (np.packbits(same, axis=2, bitorder="little").view(np.uint32)[:, :, 0],)

    def all_equal(v: Array, lanes: Bools) -> tuple[Array, ...]:
        first = np.take_along_axis(v, lanes.argmax(axis=1)[:, None], axis=1)
        same = ((v == first) | ~lanes).all(axis=1)
        return np.where(same, ballot(lanes), np.uint32(0)), same

    def one(v: Array, lanes: Bools) -> tuple[Array, ...]:
        return all_equal(v, lanes)[: len(outs)]

    compute = any_equal if step.form.row.name == "match.any" else one
    source = context.source(bound["a"], "u" + step.form.get("type")[1:])
    return exchange(context, step, source, compute, outs)


# -- reductions --------------------------------------------------------------------------------------------

_REDUCE: dict[str, Any] = {
    "add": np.add, "min": np.minimum, "max": np.maximum, "and": np.bitwise_and, "or": np.bitwise_or,
    "xor": np.bitwise_xor,
}  # fmt: skip


def _float_extreme(v: Array, lanes: Bools, largest: bool, spread_nan: bool) -> Array:
    """Bits of the extreme f32 of each warp: -0 < +0; NaN loses unless `spread_nan`; nothing but NaN gives 7FFFFFFF."""
    bits = v.astype(np.int64)
    nan = (bits & 0x7FFFFFFF) > 0x7F800000
    key = np.where(bits & 0x80000000, -(bits & 0x7FFFFFFF) - 1, bits)
    key = np.where(lanes & ~nan, key if largest else -key - 1, -(1 << 40))
    best = key.max(axis=1)
    best = np.where(best == -(1 << 40), 0x7FFFFFFF, best if largest else -best - 1)
    out = np.where(best < 0, 0x80000000 | (-best - 1), best)
    empty = (lanes & ~nan).any(axis=1)
    out = np.where(~empty | (spread_nan & (lanes & nan).any(axis=1)), 0x7FFFFFFF, out)
    return out.astype(np.uint32)


@executor("redux.int", "redux.bits", "redux.float", undefined=True, own_guard=True)
def reduce(context: Context, step: Step) -> Operation:
    bound, form = context.bind(step), step.form
    op, t = form.get("op"), form.get("type")
    floating = form.row.name == "redux.float"
    ufunc = _REDUCE[op]

    def compute(v: Array, lanes: Bools) -> tuple[Array, ...]:
        if floating:
            if "abs" in form:
                v = v & np.uint32(0x7FFFFFFF)
            return (_float_extreme(v, lanes, op == "max", "NaN" in form),)
        if op in ("min", "max"):
            info = np.iinfo(v.dtype)
            neutral = info.max if op == "min" else info.min
        else:
            neutral = 0xFFFFFFFF if op == "and" else 0
        return (ufunc.reduce(np.where(lanes, v, v.dtype.type(neutral)), axis=1, dtype=v.dtype).view(np.uint32),)

    source = context.source(bound["a"], "s32" if t == "s32" else "u32")
    return exchange(context, step, source, compute, [destination(context, bound["d"])])


# -- who is here -------------------------------------------------------------------------------------------


@executor("activemask")
def active_mask(context: Context, step: Step) -> Operation:
    d = context.number(context.bind(step)["d"])
    return lambda g: write(g, 0, d, ballot(g.active()).repeat(WARP))


@executor("elect", undefined=True, own_guard=True)
def elect(context: Context, step: Step) -> Operation:
    """The leader is the lowest lane of the mask (h200-measured E13)."""
    bound = context.bind(step)
    d, p = destination(context, bound["d"]), destination(context, bound["p"])
    members = context.source(bound["mask"], "u32")

    def run(g: Gang) -> None:
        if g.mask is None and not np.ndim(members(g)):  # whole warps and one mask for all: lane 0
            put(g, np.uint32(0), (g.cta.thread_numbers[g.lo : g.hi] & 31) == 0)
            return
        for lanes in groups(g, members(g)):
            leader = lanes.reshape(-1, WARP).argmax(axis=1).astype(np.uint32)
            mask, g.mask = g.mask, None if lanes.all() else lanes
            try:
                put(g, leader.repeat(WARP), (leader[:, None] == LANES).ravel())
            finally:
                g.mask = mask

    def put(g: Gang, leader: Any, elected: Row) -> None:
        for n, row in ((d, leader), (p, elected)):
            if n is not None:
                write(g, 0, n, row)
                if g.slow:
                    g.set_undefined(n, None)

    return together(context, step, run)


# -- shuffles ----------------------------------------------------------------------------------------------


def shuffle_source(mode: str, lane: Array, b: Array, c: Array) -> tuple[Array, Bools]:
    """From which lane each lane reads, and whether that is in range (PTX 9.7.9.6); all int64 arrays."""
    offset, limit, segment = b & 31, c & 31, (c >> 8) & 31
    lowest = lane & segment
    highest = lowest | (limit & ~segment)
    if mode == "up":
        j = lane - offset
        inside = j >= highest
    else:
        j = {"down": lane + offset, "bfly": lane ^ offset, "idx": lowest | (offset & ~segment)}[mode]
        inside = j <= highest
    return np.where(inside, j, lane), inside


@executor("shfl", undefined=True, own_guard=True)
def shuffle(context: Context, step: Step) -> Operation:
    """Reading a lane that does not take part gives an undefined value."""
    bound, mode = context.bind(step), step.form.get("mode")
    d = destination(context, bound["d"])
    p = destination(context, bound["p"]) if "p" in bound else None
    if d is None and p is None:
        return nothing
    a = context.source(bound["a"], "u32")
    b, c = context.source(bound["b"], "u32"), context.source(bound["c"], "u32")
    fixed = isinstance(bound["b"], Immediate) and isinstance(bound["c"], Immediate)
    members = context.source(bound["mask"], "u32")
    table: dict[int, tuple[Array, Bools]] = {}  # by width of the gang

    def places(g: Gang) -> tuple[Array, Bools]:
        if fixed and g.width in table:
            return table[g.width]
        thread = np.arange(g.width)
        lane = thread & 31
        j, inside = shuffle_source(mode, lane, np.asarray(b(g)).astype(np.int64), np.asarray(c(g)).astype(np.int64))
        found = (thread - lane + j, inside)
        if fixed:
            table[g.width] = found
        return found

    def run(g: Gang) -> None:
        source, inside = places(g)
        if d is not None:
            before = spread(a(g), g)
            flags = shuffled_flags(g, source)
            write(g, 0, d, before[source])
            if flags is not None or g.slow:
                g.set_undefined(d, flags)
        if p is not None:
            write(g, 0, p, inside)
            if g.slow:
                g.set_undefined(p, operand_flags(g))

    def operand_flags(g: Gang) -> Bools | None:
        parts = [x for k in "bc" if (x := _undefined(g, bound[k], context)) is not None]
        return np.logical_or.reduce(parts, axis=0) if parts else None

    def shuffled_flags(g: Gang, source: Array) -> Bools | None:
        flags: Bools | None = None
        if g.mask is not None:
            mask = np.broadcast_to(members(g), g.width)
            absent = ~g.mask[source] | (mask[source] != mask)
            flags = absent if (absent & g.mask).any() else None
        if g.slow:
            bad, index = _undefined(g, bound["a"], context), operand_flags(g)
            for extra in (bad[source] if bad is not None else None, index):
                if extra is not None:
                    flags = extra if flags is None else flags | extra
        return flags

    return together(context, step, run)
