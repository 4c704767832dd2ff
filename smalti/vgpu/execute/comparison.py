"""Comparisons of integers, and selection: setp, set, selp, slct (PTX 9.7.6); what floating comparisons share with them.

Knows predicates and which operand is chosen.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from smalti.ptx.module import Immediate, Register, type_bits
from smalti.vgpu.execute import UNSIGNED, Context, Operation, executor
from smalti.vgpu.execute.lanes import destination, direct, tainted, write
from smalti.vgpu.program import Step
from smalti.vgpu.warp import Bools, Gang

Array = Any
BOOLEAN: dict[str, Any] = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}

COMPARE = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip


def set_predicates(context: Context, step: Step, compare: Callable[[Gang], Array]) -> Operation:
    """p|q from the comparison and its complement, each combined with c."""
    o = context.bind(step)
    p = destination(context, o["p"])
    q = destination(context, o["q"]) if "q" in o else None
    combine = BOOLEAN[step.form.get("bool")] if "bool" in step.form.mods else None
    c = context.source(o["c"], "pred") if "c" in o else None

    def run(g: Gang) -> None:
        value = compare(g)
        second = ~value if q is not None else None
        if combine is not None and c is not None:
            other = c(g)
            value = combine(value, other)
            if second is not None:
                second = combine(second, other)
        if p is not None:
            write(g, 0, p, value)
        if q is not None:
            write(g, 0, q, second)

    return run


@executor("setp.int")
def setp(context: Context, step: Step) -> Operation:
    o, t = context.bind(step), step.form.get("type")
    ufunc = COMPARE[step.form.get("cmp")]
    if "q" not in o and "c" not in o and destination(context, o["p"]) is not None:
        return direct(context, o["p"], "pred", ufunc, [o["a"], o["b"]], t)
    a, b = (context.source(o[k], t) for k in "ab")
    return set_predicates(context, step, lambda g: ufunc(a(g), b(g)))


TRUE = {
    "u16": 0xFFFF, "s16": 0xFFFF, "u32": 0xFFFFFFFF, "s32": 0xFFFFFFFF, "f32": 0x3F800000, "f16": 0x3C00,
    "bf16": 0x3F80,
}  # fmt: skip


def set_value(context: Context, step: Step, compare: Callable[[Gang], Array]) -> Operation:
    """d = all ones, or 1.0, where the comparison (combined with c) holds; else zero."""
    o = context.bind(step)
    d, dtype = context.number(o["d"]), step.form.get("dtype")
    combine = BOOLEAN[step.form.get("bool")] if "bool" in step.form.mods else None
    c = context.source(o["c"], "pred") if "c" in o else None
    true = UNSIGNED[type_bits(dtype)](TRUE[dtype])

    def run(g: Gang) -> None:
        value = compare(g)
        if combine is not None and c is not None:
            value = combine(value, c(g))
        write(g, 0, d, np.where(value, true, true.dtype.type(0)))

    return run


@executor("set.int")
def set_int(context: Context, step: Step) -> Operation:
    o, t = context.bind(step), step.form.get("type")
    ufunc = COMPARE[step.form.get("cmp")]
    a, b = (context.source(o[k], t) for k in "ab")
    return set_value(context, step, lambda g: ufunc(a(g), b(g)))


# -- selection ---------------------------------------------------------------------------------------------


@executor("selp", "slct", undefined=True)
def select(context: Context, step: Step) -> Operation:
    """An undefined value that is not chosen does no harm."""
    o, t = context.bind(step), step.form.get("type")
    bits = f"b{type_bits(t)}"
    d = context.number(o["d"])
    a, b = (context.source(o[k], bits) for k in "ab")
    numbers = [context.number(o[k]) if isinstance(o[k], Register) else None for k in "ab"]
    value = context.source(o["c"], step.form.get("ctype", "pred"))
    sign = "ctype" in step.form.mods
    flush = "ftz" in step.form

    def choose(g: Gang) -> Array:
        c = value(g)
        if flush:
            c = np.where(np.abs(c) < np.finfo(np.float32).tiny, np.float32(0), c)
        return np.greater_equal(c, 0) if sign else c

    condition = context.number(getattr(o["c"], "register", o["c"])) if not isinstance(o["c"], Immediate) else None

    def fast(g: Gang) -> None:
        if g.mask is None and d not in numbers[:1] and not sign and not flush:
            row = g.bank.u[d]
            row[...] = b(g)
            np.copyto(row, a(g), where=value(g))
        else:
            write(g, 0, d, np.where(choose(g), a(g), b(g)))

    def flags(g: Gang) -> Bools | None:
        parts = [None if n is None else g.undefined(n) for n in numbers]
        bad = g.undefined(condition) if condition is not None else None
        if parts[0] is None and parts[1] is None and bad is None:
            return None
        none = np.zeros(g.width, np.bool_)
        chosen: Bools = np.where(choose(g), *(none if p is None else p for p in parts))
        return chosen if bad is None else chosen | bad

    return tainted(fast, d, flags)
