"""Executors of the warp-level matrix instructions: mma, mma.sp, ldmatrix, stmatrix, movmatrix (PTX 9.7.14).

Each warp of a gang by itself, all its lanes together. Layouts come from `layout.fragments`, arithmetic from `numerics`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from smalti.errors import SmaltiError, error
from smalti.layout import fragments as layouts
from smalti.layout.linear import Layout
from smalti.numerics import fused_sum, sparse
from smalti.numerics.formats import FORMATS
from smalti.ptx.module import Immediate, Operand, Vector
from smalti.vgpu.engines.fragments import Block, flags_from_matrix, flags_to_matrix, from_matrix, to_matrix
from smalti.vgpu.execute import Context, Operation, executor, spread
from smalti.vgpu.execute.barrier import assemble, executing
from smalti.vgpu.program import Step
from smalti.vgpu.warp import WARP, Gang, Wait

Array = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
_KINDS = {"e4m3": "fp8", "e5m2": "fp8", "s8": "int8", "u8": "int8", "s4": "int4", "u4": "int4"}
_NOT_MODELLED = ("f8f6f4", "mxf4", "mxf4nvf4", "mxf8f6f4")  # row names, behind "mma." or "mma.sp."


def whole_warps(context: Context, step: Step, work: Callable[[Gang], None]) -> Operation:
    """An .aligned instruction: bring each warp together, then do the work for the gang."""
    lanes = executing(context, step)
    guarded = step.instruction.guard is not None

    def op(g: Gang) -> Any:
        if g.mask is None and not guarded:
            work(g)
            return None
        here = assemble(g, step, lanes, True)
        if here is None or isinstance(here, Wait):
            return here
        mask, count = g.mask, g.count
        g.mask, g.count = (None if here.all() else here), int(np.count_nonzero(here))
        try:
            work(g)
        finally:
            g.mask, g.count = mask, count
        return None

    return op


def _block(context: Context, operand: Operand) -> Block:
    items = operand.items if isinstance(operand, Vector) else (operand,)
    return Block(context.program, [context.number(r) for r in items])


# -- mma -----------------------------------------------------------------------------------------------


def _bits(format_: str) -> int:
    return 32 if format_ == "tf32" else FORMATS[format_].bits


@executor("mma", "mma.sp", undefined=True, own_guard=True)
def _mma(context: Context, step: Step) -> Operation:
    form = step.form
    name = form.row.name.removeprefix("mma.")
    if name.removeprefix("sp.") in _NOT_MODELLED:
        raise error("SML0823", at=step.loc, feature=f"mma of kind {name}", opcode=step.opcode)
    bound = context.bind(step)
    m, rest = form.get("shape")[1:].split("n")
    k = int(rest.split("k")[1])
    rows = int(m)
    a_format, b_format = form.get("atype", "f64"), form.get("btype", "f64")
    d_format = form.get("dtype")
    kind = f"mma.{_KINDS.get(a_format, a_format)}" + (".f16" if d_format == "f16" else "")
    if a_format == "b1":
        kind += f".{form.get('op')}"
    bits, d_bits = _bits(a_format), FORMATS[d_format].bits
    sparse_form = name.startswith("sp.")
    a_layout = layouts.mma_a(k // 2 if sparse_form else k, bits, rows)
    b_layout = layouts.mma_b(k, bits, rows)
    d_layout = layouts.mma_d(d_bits, rows)
    a, b, c, d = (_block(context, bound[x]) for x in "abcd")
    codes = _metadata(context, step, bound, k, bits) if sparse_form else None
    word = max(d_bits, 32)
    options: dict[str, Any] = {"a_format": a_format, "b_format": b_format, "saturate": "satfinite" in form}

    def one(g: Gang, lo: int) -> None:
        cta = g.cta
        left = to_matrix(a.read(cta, lo, WARP), a_layout, bits)
        right = to_matrix(b.read(cta, lo, WARP), b_layout, bits)
        start = to_matrix(c.read(cta, lo, WARP), d_layout, d_bits)
        if codes is None:
            result = fused_sum.mma(kind, left, right, start, **options)
        else:
            result = sparse.mma_sparse(kind, left, codes[0](g, lo), right, start, **options)
        bad = _taint(g, lo) if cta.undefined else None
        d.write(cta, lo, from_matrix(np.ascontiguousarray(result), d_layout, len(d.numbers), word))
        if cta.undefined or bad is not None:
            flags = None if bad is None else flags_from_matrix(bad, d_layout, len(d.numbers), word // d_bits)
            d.set_undefined(cta, lo, WARP, flags)

    def _taint(g: Gang, lo: int) -> Bools | None:
        """Which elements of D depend on an undefined register: rows of A, columns of B, elements of C."""
        bad: Bools | None = None
        for block, layout, axis in ((a, a_layout, 1), (b, b_layout, 0), (c, d_layout, None)):
            flags = block.undefined(g.cta, lo, WARP)
            if flags is None:
                continue
            spread_out = flags_to_matrix(flags, layout, max(32 // (bits if axis is not None else d_bits), 1))
            if axis is not None:
                lines = np.bitwise_or.reduce(spread_out, axis=1)
                spread_out = lines[:, None] if axis == 1 else lines[None, :]
            bad = np.zeros((rows, 8), np.bool_) if bad is None else bad
            bad |= spread_out
        if codes is not None:
            lines = codes[1](g, lo)
            if lines is not None:
                bad = np.zeros((rows, 8), np.bool_) if bad is None else bad
                bad |= lines[:, None]
        return bad

    return whole_warps(context, step, lambda g: _each(g, one))


def _each(g: Gang, one: Callable[[Gang, int], None]) -> None:
    for w in g.warps():
        one(g, w.index * WARP)


def _metadata(context: Context, step: Step, bound: dict[str, Operand], k: int, bits: int) -> Any:
    """Functions of a gang and a warp's first thread: the codes [16, chunks]; which rows' codes are undefined."""
    try:
        thread, bit = layouts.mma_metadata(k, bits).offsets()
    except SmaltiError:
        raise error("SML0823", at=step.loc, feature=f"metadata of m16n8k{k}", opcode=step.opcode) from None
    selector = bound["selector"]
    assert isinstance(selector, Immediate)
    thread, bit = thread[:, :, selector.value], bit[:, :, selector.value].astype(np.uint32)
    block = _block(context, bound["meta"])

    def codes(g: Gang, lo: int) -> Array:
        words = block.read(g.cta, lo, WARP)[0]
        return (words[thread] >> bit & np.uint32(15)).astype(np.uint8)  # type: ignore[no-any-return]

    def undefined(g: Gang, lo: int) -> Bools | None:
        flags = block.undefined(g.cta, lo, WARP)
        return None if flags is None else np.bitwise_or.reduce(flags[0][thread], axis=1)

    return codes, undefined


# -- ldmatrix, stmatrix --------------------------------------------------------------------------------


def _transfer(form: Any, name: str) -> tuple[Layout, int, int]:
    """The layout, the number of lanes that supply rows, the bits of an element in registers."""
    shape = next(s for s in ("m16n16", "m8n16", "m16n8", "m8n8") if s in form.row.spelling.split("."))
    count = int(form.get("num")[1:])
    trans = "trans" in form or form.row.name.endswith(("b8", "unpack.trans"))
    layout = (layouts.ldmatrix if name == "ldmatrix" else layouts.stmatrix)(count, trans, shape)
    return layout, count * (16 if shape == "m16n16" else 8), 16 if shape == "m8n8" else 8


def _rows(g: Gang, address: Any, lines: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.intp], int]:
    """Row addresses of all whole warps of the gang, the threads that give them, and the number of warps."""
    warps = [w.index for w in g.warps()]
    lanes = (np.array(warps)[:, None] * WARP + np.arange(lines)).ravel()
    return np.asarray(spread(address, g), np.int64)[lanes - g.lo], lanes, len(warps)


_UNPACK = {"b6x16_p32": 6, "b4x16_p64": 4}


def _unpacked(rows: Array, flags: Bools | None, bits: int) -> tuple[Array, Bools | None]:
    """16-byte rows of 16 packed 4- or 6-bit elements and a gap, as bytes with the element in the low bits.

    The place in the byte is assumed (PTX has it as a figure; CUTLASS shifts 4-bit elements up afterwards).
    """
    words = np.unpackbits(rows, axis=1, bitorder="little")[:, : 16 * bits].reshape(len(rows), 16, bits)
    out = np.packbits(words, axis=2, bitorder="little")[:, :, 0]
    if flags is None:
        return out, None
    first = np.arange(16) * bits // 8
    last = (np.arange(16) * bits + bits - 1) // 8
    bad = flags[:, first] | flags[:, last]
    return out, (bad if bad.any() else None)


@executor("ldmatrix", "ldmatrix.b8", "ldmatrix.unpack", "ldmatrix.unpack.trans", undefined=True, own_guard=True)
def _ldmatrix(context: Context, step: Step) -> Operation:
    bound = context.bind(step)
    space = step.form.get("space")
    address = context.address(bound["a"], space)
    layout, lines, bits = _transfer(step.form, "ldmatrix")
    line, element = layout.offsets()  # [lane, register, part]
    target = _block(context, bound["d"])
    packed = _UNPACK.get(step.form.get("source"))

    def work(g: Gang) -> None:
        where, lanes, warps = _rows(g, address(g), lines)
        item = 1 if packed else bits // 8
        rows, flags = g.machine.memory.load(g, g.cta, space or "generic", where, 16, lanes, item=item)
        if packed:
            rows, flags = _unpacked(np.ascontiguousarray(rows), flags, packed)
        held = rows.reshape(warps, lines, -1)[:, line, element]
        values = np.ascontiguousarray(held).view(np.uint32)[..., 0]  # [warp, lane, register]
        bad = None if flags is None else np.bitwise_or.reduce(flags.reshape(warps, lines, -1)[:, line, element], axis=3)
        for i, w in enumerate(g.warps()):
            target.write(g.cta, w.index * WARP, values[i].T)
            if g.cta.undefined or bad is not None:
                target.set_undefined(g.cta, w.index * WARP, WARP, None if bad is None else bad[i].T)

    return whole_warps(context, step, work)


@executor("stmatrix", "stmatrix.b8", undefined=True, own_guard=True)
def _stmatrix(context: Context, step: Step) -> Operation:
    bound = context.bind(step)
    space = step.form.get("space")
    address = context.address(bound["a"], space)
    layout, lines, bits = _transfer(step.form, "stmatrix")
    line, element = layout.offsets()
    source = _block(context, bound["b"])

    def work(g: Gang) -> None:
        where, lanes, warps = _rows(g, address(g), lines)
        rows = np.empty((warps, lines, 128 // bits), f"uint{bits}")
        bad: Bools | None = None
        for i, w in enumerate(g.warps()):
            words = np.ascontiguousarray(source.read(g.cta, w.index * WARP, WARP).T)  # [lane, register]
            rows[i, line, element] = words.view(rows.dtype).reshape(line.shape)
            flags = source.undefined(g.cta, w.index * WARP, WARP)
            if flags is not None:
                bad = np.zeros(rows.shape, np.bool_) if bad is None else bad
                bad[i, line, element] = flags.T[:, :, None]
        flat = None if bad is None else bad.reshape(-1, 128 // bits)
        g.machine.memory.store(
            g, g.cta, space or "generic", where, 16, rows.reshape(-1, 128 // bits), lanes, flat
        )  # fmt: skip

    return whole_warps(context, step, work)


@executor("movmatrix", undefined=True, own_guard=True)
def _movmatrix(context: Context, step: Step) -> Operation:
    """An 8x8 matrix across a warp, transposed."""
    bound = context.bind(step)
    source, target = _block(context, bound["a"]), _block(context, bound["d"])
    line, element = layouts.ldmatrix(1).offsets()

    def one(g: Gang, lo: int) -> None:
        matrix = np.empty((8, 8), np.uint16)
        words = np.ascontiguousarray(source.read(g.cta, lo, WARP).T)
        matrix[line, element] = words.view(np.uint16).reshape(line.shape)
        flags = source.undefined(g.cta, lo, WARP)
        target.write(g.cta, lo, np.ascontiguousarray(matrix[element, line]).view(np.uint32)[..., 0].T)
        if g.cta.undefined:
            bad: Bools | None = None
            if flags is not None:
                spots = np.zeros((8, 8), np.bool_)
                spots[line, element] = flags.T[:, :, None]
                bad = spots[element, line].any(axis=2).T
            target.set_undefined(g.cta, lo, WARP, bad)

    return whole_warps(context, step, lambda g: _each(g, one))
