"""mma.m8n8k4: four products of 8x8x4 in a warp, one for each pair of quads (PTX 9.7.14.5.1).

A Hopper GPU has no unit for it: the assembler emits f32 arithmetic, whose order is modelled here (recordings
"mma.sync m8n8k4"). Knows the fragments of this one shape.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from smalti.ptx.module import Vector
from smalti.vgpu.engines.fragments import Block
from smalti.vgpu.execute import Context, Operation, executor
from smalti.vgpu.execute import exact as ex
from smalti.vgpu.execute.floating import fma32
from smalti.vgpu.execute.mma import whole_warps
from smalti.vgpu.program import Step
from smalti.vgpu.warp import WARP, Gang

Array = npt.NDArray[Any]
Places = npt.NDArray[np.intp]


@cache
def places(fragment: str, layout: str, count: int) -> tuple[Places, Places, Places]:
    """Quad pair, row and column of element `count` of each lane [count, 32]; B as [k, column]."""
    i, lane = np.indices((count, WARP))
    pair, inside, upper = lane // 4 % 4, lane % 4, lane // 16 * 4
    if fragment in ("a", "b"):
        across, along = (
            (inside + upper, i) if (fragment, layout) in (("a", "row"), ("b", "col")) else (i + upper, inside)
        )
        return (pair, across, along) if fragment == "a" else (pair, along, across)
    if layout == "f16":
        return pair, inside + upper, i
    return pair, (lane & 1) + (i & 2) + upper, (i & 4) + (lane & 2) + (i & 1)


def product(a: Array, b: Array, c: Array, half: bool) -> Array:
    """a [4, 8, 4] times b [4, 4, 8] plus c, all f32; `half`: as the form whose D is f16 adds, before that rounding.

    f32 D: products chained from 0 by fma, k ascending, then C added. f16 D: C + (a1 b1 + a0 b0), + (a3 b3 + a2 b2).
    """
    shape = (4, 8, 8)

    def term(k: int, start: Array) -> Array:
        left, right = (np.broadcast_to(x, shape).ravel() for x in (a[:, :, k, None], b[:, k, None, :]))
        out: Array = fma32(left, right, start)
        return out

    def add(x: Array, y: Array) -> Array:
        words = ex.rounded(x.astype(np.float64) + y.astype(np.float64), "f32", "rn")
        out: Array = words.view(np.float32)
        return out

    zero = np.zeros(c.size, np.float32)
    flat = c.ravel()
    if not half:
        total = zero
        for k in range(4):
            total = term(k, total)
        whole: Array = add(flat, total).reshape(shape)
        return whole
    low, high = (term(k + 1, term(k, -zero)) for k in (0, 2))  # a product plus -0 is the product
    out: Array = add(add(flat, low), high).reshape(shape)
    return out


@executor("mma.m8n8k4", undefined=True, own_guard=True)
def _mma(context: Context, step: Step) -> Operation:
    bound, form = context.bind(step), step.form
    blocks = {}
    for name in "abcd":
        operand = bound[name]
        assert isinstance(operand, Vector)
        blocks[name] = Block(context.program, [context.number(r) for r in operand.items])
    d_type, c_type = form.get("dtype"), form.get("ctype")
    where = {
        "a": places("a", form.get("alayout"), 4),
        "b": places("b", form.get("blayout"), 4),
        "c": places("c", c_type, 8),
        "d": places("d", d_type, 8),
    }

    def read(g: Gang, lo: int, name: str, type_: str, shape: tuple[int, ...]) -> Array:
        words = blocks[name].read(g.cta, lo, WARP)
        out = np.empty(shape, np.float32)
        out[where[name]] = ex.value(_elements(words, type_), type_).astype(np.float32)
        return out

    def work(g: Gang) -> None:
        for w in g.warps():
            lo = w.index * WARP
            d = product(
                read(g, lo, "a", "f16", (4, 8, 4)), read(g, lo, "b", "f16", (4, 4, 8)),
                read(g, lo, "c", c_type, (4, 8, 8)), d_type == "f16",
            )  # fmt: skip
            held = ex.rounded(d[where["d"]].astype(np.float64), d_type, "rn")
            blocks["d"].write(g.cta, lo, _registers(held))
            if g.cta.undefined:
                blocks["d"].set_undefined(g.cta, lo, WARP, _undefined(g, lo))

    def _undefined(g: Gang, lo: int) -> Any:
        """Every result of a quad pair with an undefined operand is undefined."""
        bad = np.zeros(WARP, np.bool_)
        for name in "abc":
            flags = blocks[name].undefined(g.cta, lo, WARP)
            if flags is not None:
                bad |= np.bitwise_or.reduce(flags, axis=0)
        pairs: npt.NDArray[np.bool_] = np.bitwise_or.reduce(bad.reshape(2, 4, 4), axis=(0, 2))
        if not pairs.any():
            return None
        return np.broadcast_to(pairs[np.arange(WARP) // 4 % 4], (len(blocks["d"].numbers), WARP))

    return whole_warps(context, step, work)


def _elements(words: Array, type_: str) -> Array:
    """Elements [count, lane] of registers [registers, lane]."""
    if type_ == "f32":
        return np.ascontiguousarray(words)
    pairs = np.ascontiguousarray(words.T).view(np.uint16)  # [lane, count]
    return np.ascontiguousarray(pairs.T)


def _registers(held: Array) -> Array:
    """The inverse of `_elements`."""
    if held.dtype == np.uint32:
        return held
    return np.ascontiguousarray(np.ascontiguousarray(held.T).view(np.uint32).T)
