"""Executors of tcgen05.alloc, dealloc and relinquish_alloc_permit (PTX 9.7.16.7): whole warps, and the two CTAs of a
pair together. Which columns are free is the engine's business."""

from __future__ import annotations

from typing import Any

import numpy as np

from smalti.errors import error
from smalti.layout.tensor import COLUMNS
from smalti.vgpu.engines.tensor_memory import TensorMemory, group_ctas, split_address, tensor_memory
from smalti.vgpu.execute import Context, Operation, Result, executor
from smalti.vgpu.execute.tcgen05 import cta_group, same_value, warp_wide
from smalti.vgpu.program import Step
from smalti.vgpu.warp import Gang, Wait


class PairWait(Wait):
    """The other CTA of the pair has not executed its half of a collective allocation yet."""

    advance = True

    def __init__(self, peer: TensorMemory, calls: int, what: str) -> None:
        self.peer, self.calls, self.what = peer, calls, what

    def ready(self) -> bool:
        return len(self.peer.collective) >= self.calls

    def describe(self) -> str:
        return f"waiting for CTA {self.peer.cta.name}, the other of the pair, to execute {self.what}"


class ColumnsWait(Wait):
    """Waiting for tensor memory to be freed."""

    def __init__(self, memory: TensorMemory, columns: int) -> None:
        self.memory, self.columns = memory, columns

    def ready(self) -> bool:
        return self.memory.find(self.columns) is not None

    def describe(self) -> str:
        free = COLUMNS - int(np.count_nonzero(self.memory.owned))
        return f"waiting for {self.columns} free columns of tensor memory ({free} are free)"


def _meet(g: Gang, memory: TensorMemory, group: int, what: str, columns: int) -> Result:
    """The two CTAs of a pair allocate together, in the same order and with the same sizes. Errors: SML0868."""
    if group == 1:
        return None
    memory.collective.append((what, columns))
    n = len(memory.collective)
    g.machine.memory.version += 1
    (peer,) = (tensor_memory(c) for c in group_ctas(g.cta, 2) if c is not g.cta)
    if len(peer.collective) >= n:
        if peer.collective[n - 1] != (what, columns):
            raise error("SML0868", at=g.loc, mine=f"{what} of {columns} columns",
                        other="{} of {} columns".format(*peer.collective[n - 1]), who=g.who())  # fmt: skip
        return None
    return PairWait(peer, n, what)


def _columns(g: Gang, step: Step, source: Any) -> int:
    n = same_value(source(g), g)
    if n not in (32, 64, 128, 256, 512):
        nearest = next((c for c in (32, 64, 128, 256) if c >= n), 512)
        raise error("SML0869", at=step.loc, columns=n, nearest=nearest, who=g.who())
    return n


@executor("tcgen05.alloc", own_guard=True)
def _alloc(context: Context, step: Step) -> Operation:
    bound = context.bind(step)
    space = "shared"
    target = context.address(bound["a"], step.form.get("shared::cta"))
    columns = context.source(bound["columns"], "u32")
    group = cta_group(step)

    def body(g: Gang) -> Result:
        memory = tensor_memory(g.cta)
        memory.use_group(g, group)
        n = _columns(g, step, columns)
        if not memory.permit:
            raise error("SML0870", at=step.loc, who=g.who())
        start = memory.find(n)
        if start is None:
            return ColumnsWait(memory, n)
        memory.take(start, n)
        address = np.array([same_value(target(g), g)], np.int64)
        lanes = g.lanes()[:1]
        where = space if "shared::cta" in step.form else "generic"
        g.machine.memory.store(g, g.cta, where, address, 4, np.array([start], np.uint32), lanes, order="allocated")
        return _meet(g, memory, group, "tcgen05.alloc", n)

    return warp_wide(context, step, body, one_warp=True)


@executor("tcgen05.dealloc", own_guard=True)
def _dealloc(context: Context, step: Step) -> Operation:
    bound = context.bind(step)
    taddr = context.source(bound["taddr"], "b32")
    columns = context.source(bound["columns"], "u32")
    group = cta_group(step)

    def body(g: Gang) -> Result:
        memory = tensor_memory(g.cta)
        memory.use_group(g, group)
        n, address = _columns(g, step, columns), same_value(taddr(g), g)
        lane, start = split_address(address)
        if lane or memory.allocations.get(start) != n:
            have = ", ".join(f"{c} columns at {s:#x}" for s, c in memory.allocations.items()) or "none"
            raise error("SML0871", at=step.loc, columns=n, address=hex(address), have=have, who=g.who())
        g.machine.memory.checks.tensor_freed(g, memory, start, n)
        memory.free(start)
        g.machine.memory.version += 1
        return _meet(g, memory, group, "tcgen05.dealloc", n)

    return warp_wide(context, step, body, one_warp=True)


@executor("tcgen05.relinquish_alloc_permit", own_guard=True)
def _relinquish(context: Context, step: Step) -> Operation:
    group = cta_group(step)

    def body(g: Gang) -> Result:
        memory = tensor_memory(g.cta)
        memory.use_group(g, group)
        memory.permit = False
        return None

    return warp_wide(context, step, body)
