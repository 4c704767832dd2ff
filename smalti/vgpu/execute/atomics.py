"""atom, red and the asynchronous st.async and red.async (PTX 9.7.13.5-7, 9.7.9.12): what becomes of the old value.

Knows operations and operands; the order of lanes and the memory are Memory's, barriers are the engines'.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from smalti.ptx.module import type_bits
from smalti.vgpu.engines import AsyncOp
from smalti.vgpu.engines.mbarrier import place, signal
from smalti.vgpu.engines.reduce import reduction, shared_add64
from smalti.vgpu.execute import Context, Operation, Result, executor
from smalti.vgpu.execute.lanes import destination
from smalti.vgpu.execute.memory import Items, active_addresses, items_of, order_of, polled, read_back, space_of
from smalti.vgpu.machine import CTA
from smalti.vgpu.program import Step
from smalti.vgpu.warp import WARP, Bools, Gang, Warp

Array = Any


def combine(op: str, type_: str, space: str) -> Callable[[Array, Array], Array]:
    """The new value of (old, operand), as unsigned integers.

    f32 addition flushes subnormals in global memory and keeps them in shared memory (h200-measured E11).
    """
    if op == "exch":
        return lambda old, new: new
    if type_ == "f64" and space.startswith("shared"):
        return shared_add64
    packed = type_.endswith("x2")
    base = type_[:-2] if packed else type_
    if base == "f32" and not space.startswith("shared"):
        base = "f32.ftz"
    function = reduction(op, base)
    assert function is not None, (op, type_)
    if not packed:
        return function

    def halves(old: Array, new: Array) -> Array:
        a, b = (np.ascontiguousarray(x).view(np.uint16) for x in (old, new))
        return function(a, b).view(np.uint32)

    return halves


@executor("atom", "red", "atom.exch", undefined=True)
def atomic(context: Context, step: Step) -> Operation:
    bound, form = context.bind(step), step.form
    t = form.get("type")
    op = "exch" if form.row.name == "atom.exch" else form.get("op")
    space, address = space_of(context, step)
    items = Items(context, bound["b"], type_bits(t))
    numbers = [destination(context, o) for o in items_of(bound["d"])] if "d" in bound else []
    item = type_bits(t) // 8
    width = item * len(items.sources)
    function = combine(op, t, space)
    order = order_of(step) if form.get("sem") else "relaxed"
    memory = context.machine.memory

    def run(g: Gang) -> Result:
        at = active_addresses(g, address)
        operand, undefined = items.values(g), items.undefined(g)
        old, bad = memory.update(
            g, g.cta, space, at, width, lambda x, who: function(x, operand[who]), g.lanes(), order, undefined, item,
            replaces=op == "exch",
        )  # fmt: skip
        if not numbers:
            return None
        read_back(g, numbers, old, bad, None)
        return polled(g, old)

    return run


@executor("atom.cas", undefined=True)
def compare_and_swap(context: Context, step: Step) -> Operation:
    bound, t = context.bind(step), step.form.get("type")
    bits = type_bits(t)
    space, address = space_of(context, step)
    wanted, new = Items(context, bound["b"], bits), Items(context, bound["c"], bits)
    d = destination(context, bound["d"])
    order = order_of(step) if step.form.get("sem") else "relaxed"
    memory = context.machine.memory

    def run(g: Gang) -> Result:
        at = active_addresses(g, address)
        want, put = np.broadcast_arrays(wanted.values(g), new.values(g))

        def function(old: Array, who: Array) -> Array:
            same = old == want[who]
            return np.where(same.all(axis=1, keepdims=True) if bits == 128 else same, put[who], old)

        flags: list[Bools] = [f for f in (wanted.undefined(g), new.undefined(g)) if f is not None]
        undefined: Bools | None = np.logical_or.reduce(flags, axis=0) if flags else None
        old, bad = memory.update(g, g.cta, space, at, bits // 8, function, g.lanes(), order, undefined)
        read_back(g, [d], old, bad, None)
        return polled(g, old)

    return run


# -- asynchronous stores and reductions --------------------------------------------------------------------


class RemoteUpdate(AsyncOp):
    """One lane's store or reduction, done later; then the bytes are signalled to an mbarrier, if it has one.

    No asynchronous proxy is involved: PTX 9.7.9.12 calls it a weak store (9.7.9.25 names only bulk copies).
    """

    proxy = "generic"
    engine = "st.async"

    def __init__(
        self, cta: CTA, issuer: Warp, step: Step, space: str, address: int, width: int, values: Array,
        function: Callable[[Array, Array], Array] | None, barrier: tuple[CTA, int] | None, undefined: Bools | None,
    ) -> None:  # fmt: skip
        super().__init__(cta, issuer, step.loc, step.opcode)
        self.space, self.address, self.width, self.values = space, address, width, values
        self.function, self.barrier, self.undefined = function, barrier, undefined
        self._written = False

    def perform(self) -> bool:
        memory, at = self.cta.machine.memory, np.array([self.address], np.int64)
        if not self._written:
            if self.function is None:
                memory.store(self, self.cta, self.space, at, self.width, self.values, None, self.undefined)
            else:
                function, values = self.function, self.values
                memory.update(
                    self, self.cta, self.space, at, self.width, lambda old, who: function(old, values),
                    undefined=self.undefined,
                )  # fmt: skip
            self._written = True
            if self.barrier is not None:
                return False
        if self.barrier is not None:
            signal(self, *self.barrier, self.width, self.bit)
        return True


@executor("st.async", "st.async.release", "red.async", "red.async.release", undefined=True)
def remote_update(context: Context, step: Step) -> Operation:
    """The mbarrier lies in the same CTA as the destination (PTX 9.7.9.12), which its address says too."""
    bound, form = context.bind(step), step.form
    t = form.get("type")
    space, address = space_of(context, step)
    items = Items(context, bound["b"], type_bits(t))
    width = type_bits(t) // 8 * len(items.sources)
    op = form.get("op") or ("add" if form.row.name == "red.async.release" else "")
    function = combine(op, t, space) if op else None
    mbarrier = space_of(context, step, "mbar") if "mbar" in bound else None

    def run(g: Gang) -> None:
        at = active_addresses(g, address)
        values, undefined = items.values(g), items.undefined(g)
        barriers = active_addresses(g, mbarrier[1]) if mbarrier is not None else None
        for i, lane in enumerate(g.lanes()):
            g.machine.memory.resolve(g, g.cta, space, at[i : i + 1], width)
            told = None
            if mbarrier is not None and barriers is not None:
                told = place(g, g.cta, mbarrier[0], int(barriers[i]))
            bad = undefined[i : i + 1] if undefined is not None else None
            warp, value = g.cta.warps[int(lane) // WARP], values[i : i + 1]
            g.machine.submit(RemoteUpdate(g.cta, warp, step, space, int(at[i]), width, value, function, told, bad))

    return run
