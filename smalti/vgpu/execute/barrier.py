"""Executors of barriers, mbarriers and fences (PTX 9.7.13.1-4, 9.7.13.15): which lanes, which object, which result.

The objects are in `engines`; nothing here knows memory or schedules.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from smalti.errors import error
from smalti.ptx.module import SINK, Immediate
from smalti.vgpu.divergence import ConvergeWait
from smalti.vgpu.engines import order
from smalti.vgpu.engines.barriers import BarrierWait, Round, cluster_barrier, cluster_wait, enter, leave
from smalti.vgpu.engines.mbarrier import LIMIT, Mbarrier, MbarrierWait, find, live, place
from smalti.vgpu.execute import Context, Operation, Result, executor, let_go
from smalti.vgpu.machine import PollWait
from smalti.vgpu.program import Step
from smalti.vgpu.warp import WARP, Gang, Wait, Warp

Bools = npt.NDArray[np.bool_]
FULL = 0xFFFFFFFF


# -- which lanes take part -----------------------------------------------------------------------------


def executing(context: Context, step: Step) -> Callable[[Gang], Bools]:
    """A function of a gang that gives the lanes (of lo … hi−1) that execute the step, its guard considered."""
    guard = step.instruction.guard
    if guard is None:
        return Gang.active
    n, negated = context.number(guard.register), guard.negated
    return lambda g: g.active() & (~g.bank.u[n] if negated else g.bank.u[n])


def assemble(g: Gang, step: Step, lanes: Callable[[Gang], Bools], aligned: bool) -> Bools | Wait | None:
    """Bring together the lanes that must execute a barrier at once: the lanes, a Wait, or None if no lane executes it.

    Errors: SML0914 a lane that is here but does not execute an .aligned instruction.
    """
    here = lanes(g)
    if not here.any():
        return None
    if aligned and not g.machine.converge(g, FULL, lanes):
        here = lanes(g)
        whole = here.reshape(-1, WARP).any(axis=1).repeat(WARP)
        skipping = g.active() & whole & ~here
        if skipping.any():
            raise error(
                "SML0914", at=step.loc, opcode=step.opcode, thread=g.lo + int(np.flatnonzero(skipping)[0]), who=g.who()
            )
        return ConvergeWait()
    here = lanes(g)
    let_go(g, here)
    return lanes(g)


def uniform(g: Gang, step: Step, values: Any, here: Bools) -> int:
    """The one value that the lanes `here` hold; lanes with another one are split off and execute the step later."""
    row = np.asarray(values)
    if not row.ndim:
        return int(row)
    first = row[here][0]
    same = row == first
    if not same[here].all():
        rest = g.active() & ~same
        g.cta.gangs.append(Gang(g.cta, g.lo, g.hi, rest, g.pc, g.joins))
        g.place(g.lo, g.hi, g.active() & same)
    return int(first)


# -- named barriers ------------------------------------------------------------------------------------


def _named(context: Context, step: Step, waits: bool, collect: Any = None, finish: Any = None) -> Operation:
    bound = context.bind(step)
    number = context.source(bound["a"], "u32")
    threads = context.source(bound["b"], "u32") if "b" in bound else None
    aligned = step.opcode.startswith("bar.") or "aligned" in step.form
    lanes = executing(context, step)

    def op(g: Gang) -> Result:
        here = assemble(g, step, lanes, aligned)
        if here is None or isinstance(here, Wait):
            return here
        which = uniform(g, step, number(g), here)
        count = uniform(g, step, threads(g), lanes(g)) if threads is not None else None
        here = lanes(g)
        current = enter(g, g.cta, which, count, np.flatnonzero(here) + g.lo)
        if collect is not None:
            collect(g, current, here)
        warps = g.warps()
        for w in warps:
            order.release(w, current.clock)
        done = current.complete()
        if not waits:
            return None
        ending = None if finish is None else lambda gang, ended: finish(gang, ended, here)
        if not done:
            return BarrierWait(g, current, ending)
        leave(warps, current)
        if ending is not None:
            ending(g, current)
        return None

    return op


@executor("barrier.sync", own_guard=True)
def _sync(context: Context, step: Step) -> Operation:
    return _named(context, step, waits=True)


@executor("barrier.arrive", own_guard=True)
def _arrive(context: Context, step: Step) -> Operation:
    return _named(context, step, waits=False)


@executor("barrier.red", "barrier.red.popc", own_guard=True)
def _red(context: Context, step: Step) -> Operation:
    bound = context.bind(step)
    predicate = context.source(bound["c"], "pred")
    popc = step.form.row.name.endswith("popc")
    target = context.number(bound["d" if popc else "p"])
    both = step.form.get("op") == "and"

    def collect(g: Gang, current: Round, here: Bools) -> None:
        given = np.broadcast_to(predicate(g), g.width)[here]
        current.popc += int(np.count_nonzero(given))
        mine = bool(given.all() if both else given.any())
        if current.value is None:
            current.value = mine
        else:
            current.value = current.value and mine if both else current.value or mine

    def finish(g: Gang, ended: Round, here: Bools) -> None:
        np.copyto(g.bank.u[target], ended.popc if popc else bool(ended.value), where=here, casting="unsafe")
        g.set_undefined(target, None)

    return _named(context, step, True, collect, finish)


@executor("bar.warp.sync", own_guard=True)
def _warp_sync(context: Context, step: Step) -> Operation:
    members = context.source(context.bind(step)["mask"], "u32")
    lanes = executing(context, step)

    def op(g: Gang) -> Result:
        here = lanes(g)
        if not here.any() or g.machine.warp_barrier(g, members, lanes):
            return None
        let_go(g, lanes(g))
        return ConvergeWait(members)

    return op


@executor("barrier.cluster.arrive", own_guard=True)
def _cluster_arrive(context: Context, step: Step) -> Operation:
    relaxed, aligned = step.form.get("sem") == "relaxed", "aligned" in step.form
    lanes = executing(context, step)

    def op(g: Gang) -> Result:
        here = assemble(g, step, lanes, aligned)
        if here is None or isinstance(here, Wait):
            return here
        cluster_barrier(g.cta.cluster).arrive(g, np.flatnonzero(here) + g.lo, relaxed)
        return None

    return op


@executor("barrier.cluster.wait", own_guard=True)
def _cluster_wait(context: Context, step: Step) -> Operation:
    aligned = "aligned" in step.form
    lanes = executing(context, step)

    def op(g: Gang) -> Result:
        here = assemble(g, step, lanes, aligned)
        if here is None or isinstance(here, Wait):
            return here
        return cluster_wait(g, np.flatnonzero(here) + g.lo)

    return op


# -- mbarriers -----------------------------------------------------------------------------------------


def each(g: Gang, *rows: Any) -> list[tuple[Any, ...]]:
    """(number of lanes, lane positions, values ...) for each different combination of values among active lanes.

    Positions count active lanes; None stands for all of them.
    """
    columns: list[Any] = []
    uniform = True
    for r in rows:
        row = np.asarray(r)
        if row.ndim and g.mask is not None:
            row = row[g.mask]
        if row.ndim and (len(row) == 1 or not np.count_nonzero(row != row[0])):
            row = row[0]
        uniform = uniform and not row.ndim
        columns.append(row)
    if uniform:
        return [(g.count, None, *map(int, columns))]
    groups: dict[tuple[int, ...], list[int]] = {}
    for i, key in enumerate(zip(*(np.broadcast_to(c, g.count).tolist() for c in columns), strict=True)):
        groups.setdefault(key, []).append(i)
    return [(len(lanes), lanes, *key) for key, lanes in groups.items()]


def _warps(g: Gang, lanes: list[int] | None) -> list[Warp]:
    """The warps of some of the active lanes (None: all of them)."""
    if lanes is None:
        return g.warps()
    numbers = g.lanes()[lanes] // WARP
    return [g.cta.warps[i] for i in dict.fromkeys(numbers.tolist())]


@executor("mbarrier.init")
def _init(context: Context, step: Step) -> Operation:
    bound = context.bind(step)
    space = step.form.get("space")
    address, count = context.address(bound["a"], space), context.source(bound["count"], "u32")

    def op(g: Gang) -> Result:
        for _, lanes, a, n in each(g, address(g), count(g)):
            cta, offset = place(g, g.cta, space, a)
            if not 0 < n < LIMIT:
                raise error("SML0903", at=step.loc, count=n, what=cta.describe(offset), limit=LIMIT - 1, who=g.who())
            table = live(cta)
            if offset in table:
                raise error("SML0904", at=step.loc, what=table[offset].name, who=g.who())
            warp = _warps(g, lanes)[0]
            table[offset] = barrier = Mbarrier(cta, offset, n, (warp, int(warp.clock.warps[warp.agent])))
            warp.state.setdefault("mbarrier.born", []).append(barrier)
            g.machine.memory.checks.write(g, cta.shared, np.array([offset], np.int64), 8, g.lanes()[:1], "weak")
        g.machine.memory.version += 1
        return None

    return op


@executor("mbarrier.inval")
def _inval(context: Context, step: Step) -> Operation:
    space = step.form.get("space")
    address = context.address(context.bind(step)["a"], space)

    def op(g: Gang) -> Result:
        for _, _, a in each(g, address(g)):
            barrier = find(g, g.cta, space, a, "mbarrier.inval")
            del live(barrier.cta)[barrier.offset]
            word = np.array([barrier.word()], np.uint64)
            g.machine.memory.store_segment(
                g, barrier.cta.shared, np.array([barrier.offset], np.int64), 8, word, g.lanes()[:1]
            )
        return None

    return op


@executor("mbarrier.expect_tx", "mbarrier.complete_tx")
def _tx(context: Context, step: Step) -> Operation:
    bound = context.bind(step)
    space = step.form.get("space")
    address, size = context.address(bound["a"], space), context.source(bound["tx"], "u32")
    name = step.form.row.name
    method = Mbarrier.expect if name.endswith("expect_tx") else Mbarrier.complete

    def op(g: Gang) -> Result:
        for times, _, a, n in each(g, address(g), size(g)):
            barrier = find(g, g.cta, space, a, name)
            for _ in range(times):
                method(barrier, g, n)
        g.machine.memory.version += 1
        return None

    return op


@executor(
    "mbarrier.arrive", "mbarrier.arrive_drop", "mbarrier.arrive.expect_tx", "mbarrier.arrive_drop.expect_tx",
    "mbarrier.arrive.noComplete", "mbarrier.arrive_drop.noComplete",
)  # fmt: skip
def _arrival(context: Context, step: Step) -> Operation:
    bound = context.bind(step)
    space = step.form.get("space")
    address = context.address(bound["a"], space)
    name = step.form.row.name
    expects, drops, incomplete = "expect_tx" in name, "arrive_drop" in name, "noComplete" in name
    operand: Any = context.source(bound["tx" if expects else "count"], "u32") if expects or "count" in bound else None
    one = np.uint32(1)
    relaxed = step.form.get("sem") == "relaxed"
    target = None if bound.get("state", SINK) is SINK else context.number(bound["state"])

    def op(g: Gang) -> Result:
        for times, lanes, a, n in each(g, address(g), one if operand is None else operand(g)):
            barrier = find(g, g.cta, space, a, name)
            for w in _warps(g, lanes):
                order.release(w, barrier.arriving, relaxed)
            if target is None and times > 1 and not (expects or drops or incomplete) and n * times <= barrier.pending:
                barrier.arrive(g, n * times)
                continue
            for i in range(times):
                before, low = barrier.word(), 0 if operand is None else n
                count = 1 if expects else n
                if incomplete and count == barrier.pending and barrier.tx == 0:
                    raise error("SML0908", at=step.loc, what=barrier.name, phase=barrier.phase, who=g.who())
                if expects:
                    barrier.expect(g, n)
                (barrier.drop if drops else barrier.arrive)(g, count)
                if target is not None:
                    lane = int(g.lanes()[lanes[i] if lanes is not None else i]) - g.lo
                    g.bank.u[target][lane] = before & 0xFFFFFFFF00000000 | low  # no state: the operand (E12, H200)
        g.machine.memory.version += 1
        return None

    return op


def _wait(context: Context, step: Step, parity: bool) -> Callable[[Gang], tuple[list[Any], Bools | None]]:
    """A function of a gang: the barriers that it asks for, [(barrier, parity, lanes)], all passed or not."""
    bound = context.bind(step)
    space = step.form.get("space")
    address = context.address(bound["a"], space)
    token = context.source(bound["parity" if parity else "state"], "u32" if parity else "u64")
    name = step.form.row.name
    shift = np.uint64(63)

    def ask(g: Gang) -> tuple[list[Any], Bools | None]:
        t = token(g)
        if not parity:
            t = t >> shift
        asked = [(find(g, g.cta, space, a, name), p & 1, lanes) for _, lanes, a, p in each(g, address(g), t)]
        return asked, None

    return ask


def _answer(g: Gang, asked: list[Any], target: int, relaxed: bool) -> bool:
    """Write who has passed, let them acquire; whether all have."""
    everyone = True
    for barrier, parity, lanes in asked:
        passed = barrier.passed(parity)
        everyone = everyone and passed
        if lanes is None:
            g.put(target, passed)
        else:
            g.bank.u[target][g.lanes()[lanes] - g.lo] = passed
        if passed:
            for w in _warps(g, lanes):
                order.acquire(w, barrier.completed, relaxed)
    return everyone


@executor("mbarrier.try_wait", "mbarrier.try_wait.parity")
def _try_wait(context: Context, step: Step) -> Operation:
    ask = _wait(context, step, step.form.row.name.endswith("parity"))
    target = context.number(context.bind(step)["p"])
    relaxed = step.form.get("sem") == "relaxed"

    def op(g: Gang) -> Result:
        asked, _ = ask(g)
        if all(b.passed(p) for b, p, _ in asked):
            _answer(g, asked, target, relaxed)
            return None
        mask, count = g.mask, g.count
        return TryWait(g, mask, count, asked, target, relaxed)

    return op


class TryWait(MbarrierWait):
    """A try_wait that suspends: executed again when the phase completes, false when nothing else can happen."""

    def __init__(self, g: Gang, mask: Bools | None, count: int, asked: list[Any], target: int, relaxed: bool) -> None:
        super().__init__([(b, p) for b, p, _ in asked])
        self.g, self.mask, self.count, self.asked, self.target, self.relaxed = g, mask, count, asked, target, relaxed

    def timeout(self) -> bool:
        g = self.g
        mask, count = g.mask, g.count
        if self.mask is not None and len(self.mask) == g.width:
            g.mask, g.count = self.mask, self.count
        try:
            _answer(g, self.asked, self.target, self.relaxed)
        finally:
            g.mask, g.count = mask, count
        self.advance = True
        return True


@executor("mbarrier.test_wait", "mbarrier.test_wait.parity")
def _test_wait(context: Context, step: Step) -> Operation:
    ask = _wait(context, step, step.form.row.name.endswith("parity"))
    target = context.number(context.bind(step)["p"])
    relaxed = step.form.get("sem") == "relaxed"

    def op(g: Gang) -> Result:
        asked, _ = ask(g)
        if _answer(g, asked, target, relaxed):
            g.poll.pop(step.pc, None)
            return None
        now = (g.machine.memory.version, b"")
        if g.poll.get(step.pc) == now:
            return PollWait(g.machine.memory, f"mbarrier {asked[0][0].name}, which lacks {asked[0][0].missing()}")
        g.poll[step.pc] = now
        return None

    return op


@executor("mbarrier.pending_count")
def _pending_count(context: Context, step: Step) -> Operation:
    bound = context.bind(step)
    state, target = context.source(bound["state"], "u64"), context.number(bound["d"])
    shift, field = np.uint64(43), np.uint64(LIMIT - 1)

    def op(g: Gang) -> Result:
        g.put(target, (np.uint64(LIMIT) - (state(g) >> shift & field)).astype(np.uint32))
        return None

    return op


# -- fences --------------------------------------------------------------------------------------------


@executor("fence")
def _fence(context: Context, step: Step) -> Operation:
    sem = step.form.get("sem")
    name = step.form.row.name
    acquires = sem != "release" and "release" not in name
    releases = sem != "acquire" and "acquire" not in name

    def op(g: Gang) -> Result:
        order.fence(g.warps(), acquires, releases)
        return None

    return op


@executor("fence.mbarrier_init")
def _fence_init(context: Context, step: Step) -> Operation:
    def op(g: Gang) -> Result:
        for w in g.warps():
            for barrier in w.state.pop("mbarrier.born", ()):
                barrier.published = cluster_barrier(g.cta.cluster).phase
        return None

    return op


@executor("fence.proxy.async")
def _fence_async(context: Context, step: Step) -> Operation:
    """What is known becomes visible to the async proxy; the async::generic forms also acquire or release."""
    name = step.form.row.name
    acquires, releases = name.endswith("acquire"), name.endswith("release")

    def op(g: Gang) -> Result:
        if acquires or releases:
            order.fence(g.warps(), acquires, releases)
        for w in g.warps():
            w.clock.fence_async()
            w.clock.warps[w.agent] += 1  # what follows is not covered
        return None

    return op


@executor("fence.proxy.alias")
def _fence_alias(context: Context, step: Step) -> Operation:
    """Memory has one address here: nothing to do."""
    return lambda g: None


@executor("fence.proxy.tensormap.release")
def _tensormap_release(context: Context, step: Step) -> Operation:
    def op(g: Gang) -> Result:
        order.fence(g.warps(), acquires=False)
        return None

    return op


@executor("fence.proxy.tensormap.acquire")
def _tensormap_acquire(context: Context, step: Step) -> Operation:
    bound = context.bind(step)
    address = context.address(bound["a"], "generic")
    size = bound["size"]
    assert isinstance(size, Immediate)

    def op(g: Gang) -> Result:
        for _, _, a in each(g, address(g)):
            g.machine.memory.resolve(g, g.cta, "generic", np.arange(a, a + size.value, 8), 8)
        order.fence(g.warps(), releases=False)
        return None

    return op
