"""Executors of wgmma (PTX 9.7.15): gathering a warpgroup, the rules at issue, and the operation for the tensor core."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from smalti.errors import error
from smalti.ptx.module import Immediate, Not, Operand, Register, Vector
from smalti.vgpu.divergence import ConvergeWait
from smalti.vgpu.engines.blame import blame
from smalti.vgpu.engines.fragments import Block
from smalti.vgpu.engines.operands import Source, check_window, container, source
from smalti.vgpu.engines.tensor_core import GROUP, GroupWait, Product, Wgmma, pipeline
from smalti.vgpu.execute import Context, Operation, executor, let_go
from smalti.vgpu.execute.barrier import assemble, executing
from smalti.vgpu.program import Step
from smalti.vgpu.warp import WARP, Gang, Wait

Bools = npt.NDArray[np.bool_]
ARCH = "sm_90a"  # the only one with wgmma


# -- all four warps ------------------------------------------------------------------------------------


class MusterWait(ConvergeWait):
    """Some warps of a warpgroup waiting for the others at a wgmma."""

    def __init__(self, g: Gang) -> None:
        super().__init__()
        self.g = g

    def describe(self) -> str:
        base = self.g.lo // GROUP * (GROUP // WARP)
        here = {w.index for w in self.g.warps()}
        others = ", ".join(str(i) for i in range(base, base + GROUP // WARP) if i not in here)
        return f"waiting for warps {others or 'with all their lanes'} of its warpgroup at wgmma"


def muster(g: Gang, step: Step) -> Wait | None:
    """Make the gang whole warpgroups: those that are not wait here for their other warps, which join them.

    Errors: SML0920 warps or lanes that cannot come; SML0914 lanes that are here but do not execute the instruction.
    """
    if g.mask is None and g.lo % GROUP == 0 and g.hi % GROUP == 0:
        return None
    base = g.lo // GROUP * GROUP
    active = g.active()
    for lo in range(base + GROUP, g.hi, GROUP):  # each warpgroup by itself
        mine = np.zeros(g.width, np.bool_)
        mine[lo - g.lo : lo - g.lo + GROUP] = active[lo - g.lo : lo - g.lo + GROUP]
        if mine.any():
            g.cta.gangs.append(Gang(g.cta, g.lo, g.hi, mine, g.pc, g.joins))
            active = active & ~mine
    if g.hi > base + GROUP:
        g.place(g.lo, g.hi, active)
    gone = g.cta.exited[base : base + GROUP]
    if base + GROUP > g.cta.threads_padded or gone.any():
        raise error("SML0920", at=step.loc, opcode=step.opcode, missing=_missing(g, base), who=g.who())
    while g.count < GROUP:
        other = next(
            (
                o
                for o in g.cta.gangs
                if o is not g and o.pc == g.pc and isinstance(o.wait, MusterWait) and o.lo // GROUP * GROUP == base
            ),
            None,
        )
        if other is None:
            return MusterWait(g)
        g.machine.absorb(g, other)
    return None


def _missing(g: Gang, base: int) -> str:
    here = np.zeros(GROUP, np.bool_)
    here[g.lo - base : g.hi - base] = g.active()
    lanes = [
        f"warp {base // WARP + i} ({int(np.count_nonzero(~part))} lanes)"
        for i, part in enumerate(here.reshape(-1, WARP))
        if not part.all()
    ]
    return ", ".join(lanes)


# -- mma_async -----------------------------------------------------------------------------------------

_KINDS = {"e4m3": "fp8", "e5m2": "fp8", "s8": "int8", "u8": "int8"}


def _product(step: Step, bound: dict[str, Operand]) -> Product:
    form = step.form
    shape = form.get("shape")
    n, k = (int(x) for x in shape[shape.index("n") + 1 :].split("k"))
    a_format, b_format = form.get("atype", "b1"), form.get("btype", "b1")
    d = form.get("dtype")
    kind = f"wgmma.{_KINDS.get(a_format, a_format)}" + (".f16" if d == "f16" else "")

    def immediate(name: str, default: int) -> int:
        operand = bound.get(name)
        return operand.value if isinstance(operand, Immediate) else default

    return Product(
        kind, n, k, a_format, b_format, 16 if d == "f16" else 32, ".sp" in step.opcode,
        immediate("scale_a", 1) == -1, immediate("scale_b", 1) == -1,
        immediate("trans_a", 0) == 1, immediate("trans_b", 0) == 1,
        "satfinite" in form, immediate("selector", 0),
    )  # fmt: skip


@executor("wgmma", "wgmma.sp", undefined=True, own_guard=True)
def _mma(context: Context, step: Step) -> Operation:
    bound = context.bind(step)
    product = _product(step, bound)
    program = context.program
    d, a, b = bound["d"], bound["a"], bound["b"]
    assert isinstance(d, Vector) and isinstance(b, Register)
    target = Block(program, [context.number(r) for r in d.items])
    a_block = Block(program, [context.number(r) for r in a.items]) if isinstance(a, Vector) else None
    a_number = context.number(a) if isinstance(a, Register) else -1
    b_number = context.number(b)
    accumulate = context.source(bound["scale_d"], "pred")
    scale = bound["scale_d"]
    flag = scale.register if isinstance(scale, Not) else scale
    metadata = Block(program, [context.number(bound["meta"])]) if product.sparse else None
    lanes = executing(context, step)
    guarded = step.instruction.guard is not None
    must = [a_number, b_number, context.number(flag) if isinstance(flag, Register) else -1]
    a_bytes = product.k * container(product.a_format) // 8 // (2 if product.sparse else 1)
    inputs = frozenset([*(a_block.numbers if a_block else ()), *(metadata.numbers if metadata else ())])

    def op(g: Gang) -> Any:
        if guarded:
            here = lanes(g)
            if not here.any():
                return None
            whole = here.reshape(-1, WARP).any(axis=1).repeat(WARP)
            skipping = g.active() & whole & ~here
            if skipping.any():
                thread = g.lo + int(np.flatnonzero(skipping)[0])
                raise error("SML0914", at=step.loc, opcode=step.opcode, thread=thread, who=g.who())
            let_go(g, here)
        wait = muster(g, step)
        if wait is not None:
            return wait
        if g.cta.undefined:
            for n in (n for n in must if n >= 0):
                g.machine._must_be_defined(g, step, n, g.active())
        for lo in range(0, g.width, GROUP):
            issue(g, lo)
        g.slow = True  # registers are in flight
        return None

    def issue(g: Gang, lo: int) -> None:
        cta = g.cta
        rows = g.bank.u
        warps = cta.warps[(g.lo + lo) // WARP : (g.lo + lo) // WARP + 4]
        in_flight(g, warps[0].hazards)
        with blame(step.loc):
            b_bits = _same(g, step, rows[b_number][lo : lo + GROUP], "b-desc")
            second = source("wgmma", ARCH, b_bits, product.n, product.k_bytes, product.b_format, product.transpose_b)
            first: Source | Block
            if a_block is None:
                a_bits = _same(g, step, rows[a_number][lo : lo + GROUP], "a-desc")
                first = source("wgmma", ARCH, a_bits, 64, a_bytes, product.a_format, product.transpose_a)
                check_window(g, cta, "A", first)
            else:
                first = a_block
        check_window(g, cta, "B", second)
        given = np.asarray(accumulate(g))
        adds = bool(given) if not given.ndim else bool(_same(g, step, given[lo : lo + GROUP], "scale-d"))
        work = Wgmma(cta, warps, step.loc, step.opcode, product, first, second, target, adds, metadata)
        held = dict.fromkeys((*inputs, *target.numbers), work)
        for w in warps:
            w.hazards.update(held)
            pipeline(w).open.append(work)
        g.machine.submit(work)

    def in_flight(g: Gang, hazards: dict[int, Any]) -> None:
        """Accumulators in flight may only be chained: the same registers and shape (9.7.15.7.1)."""
        if not hazards:
            return
        before = hazards.get(target.first)
        if (
            before is not None
            and before.d.numbers == target.numbers
            and _chains(before.product, product)
            and inputs.isdisjoint(before.results)
        ):
            return
        for n in (*target.numbers, *inputs):
            earlier = hazards.get(n)
            if earlier is None or (n in inputs and n not in earlier.results):
                continue
            chained = n in target.members and earlier.d.numbers == target.numbers and _chains(earlier.product, product)
            if not chained:
                register = next(r for r, i in program.registers.items() if i == n)
                raise error(
                    "SML0922", at=step.loc, register=register.name, opcode=step.opcode, other=earlier.who(),
                    other_line=str(earlier.loc), who=g.who(),
                )  # fmt: skip

    return op


def _chains(a: Product, b: Product) -> bool:
    """Whether two wgmmas of these kinds on one accumulator need no wait in between: the same shape and type of D."""
    return (a.n, a.d_bits) == (b.n, b.d_bits)


def _same(g: Gang, step: Step, row: npt.NDArray[Any], what: str) -> int:
    """The value that all threads of a warpgroup hold. Errors: SML0921."""
    first = row[0]
    if np.count_nonzero(row != first):
        other = int(np.flatnonzero(row != first)[0])
        raise error(
            "SML0921", at=step.loc, opcode=step.opcode, what=what, first=hex(int(first)), other=hex(int(row[other])),
            warp=other // WARP, who=g.who(),
        )  # fmt: skip
    return int(first)


@executor("wgmma.fence", own_guard=True)
def _fence(context: Context, step: Step) -> Operation:
    return _each_warp(context, step, lambda g: None)


@executor("wgmma.commit_group", own_guard=True)
def _commit(context: Context, step: Step) -> Operation:
    def commit(g: Gang) -> None:
        for w in g.warps():
            p = pipeline(w)
            p.groups.append(p.open)
            p.open = []

    return _each_warp(context, step, commit)


@executor("wgmma.wait_group", own_guard=True)
def _wait_group(context: Context, step: Step) -> Operation:
    newest = context.bind(step)["n"]
    assert isinstance(newest, Immediate)

    def wait(g: Gang) -> Any:
        found = GroupWait(g, newest.value)
        return None if found.ready() else found

    return _each_warp(context, step, wait)


def _each_warp(context: Context, step: Step, action: Any) -> Operation:
    """An .aligned instruction that concerns each warp by itself."""
    lanes = executing(context, step)

    def op(g: Gang) -> Any:
        if g.mask is not None or step.instruction.guard is not None:
            here = assemble(g, step, lanes, True)
            if here is None or isinstance(here, Wait):
                return here
        return action(g)

    return op
