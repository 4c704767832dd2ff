"""The tensor core of Blackwell: matrix products into tensor memory, commits and fences (PTX ISA 9.7.16).

One `mma` call spans any number of row tiles, column tiles and steps of K of one accumulator; the instruction
descriptors, scale ids and addresses of each instruction follow from the layouts. Issued by one thread.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

from smalti.errors import error
from smalti.lang.barriers import MBarrier
from smalti.lang.dtypes import DTYPES
from smalti.lang.scales import Scaled, ScalesInTensorMemory
from smalti.lang.shared import Shared
from smalti.lang.tensor_memory import TensorMemory, allocation
from smalti.lang.threads import elected
from smalti.lang.trace import Trace, current
from smalti.lang.values import Scalar, Value, as_value
from smalti.lang.wgmma import MatrixOperand
from smalti.layout.descriptors import check_operand
from smalti.layout.instruction import encode_idesc
from smalti.ptx.module import Address, Register

__all__ = ["commit", "fence_after", "fence_before", "instruction_n", "mma"]

K_BYTES = 32  # of K in one dense instruction, for every kind (PTX ISA 9.7.16.2.1, table 39)
MOST_N = 256

_FLOAT8 = ("e4m3", "e5m2")
# (a, b) dtypes -> kind without and with scales, D types
_KINDS: dict[str, tuple[tuple[str, ...], str, tuple[str, ...]]] = {
    "f16": (("f16",), "f16", ("f32",)),
    "bf16": (("bf16",), "f16", ("f32",)),
    "tf32": (("tf32",), "tf32", ("f32",)),
    "e4m3": (_FLOAT8, "f8f6f4", ("f32",)),
    "e5m2": (_FLOAT8, "f8f6f4", ("f32",)),
    "s8": (("s8", "u8"), "i8", ("s32",)),
    "u8": (("s8", "u8"), "i8", ("s32",)),
}
# element, scale format, block -> kind, modifier, factors of one instruction
_SCALED: dict[tuple[str, str, int], tuple[str, str, int]] = {
    ("e4m3", "ue8m0", 32): ("mxf8f6f4", "", 1),
    ("e5m2", "ue8m0", 32): ("mxf8f6f4", "", 1),
    ("e2m1", "ue8m0", 32): ("mxf4", "", 2),
    ("e2m1", "ue4m3", 16): ("mxf4nvf4", ".scale_vec::4X", 4),
}


@dataclass(frozen=True, slots=True)
class _Plan:
    """How one call falls into instructions: rows and columns of one, K elements of one, their numbers."""

    kind: str
    m: int
    n: int
    deep: int
    rows: int
    columns: int
    steps: int


def instruction_n(columns: int, *, pair: bool = False, scaled: bool = False) -> int:
    """The N of the instructions that cover `columns` columns: the largest up to 256 that divides it.

    Several scaled column tiles begin at multiples of 32 columns, where scale factors do. Errors: SML0708.
    """
    step = 16 if pair else 8
    for n in range(MOST_N, 0, -step):
        if columns % n == 0 and n % step == 0 and (not scaled or n == columns or n % 32 == 0):
            return n
    raise error("SML0708", columns=columns, step=step, nearest=-(-columns // step) * step)


def mma(
    d: TensorMemory,
    a: Shared | Scaled | TensorMemory,
    b: Shared | Scaled,
    *,
    add: Scalar,
    scales: ScalesInTensorMemory | None = None,
    metadata: Any = None,
    barrier: MBarrier | None = None,
    negate_a: bool = False,
    negate_b: bool = False,
    a_transpose: bool = False,
    b_transpose: bool = False,
) -> None:
    """Issue d = a @ b (+ d where `add` holds).

    a        [M, K] in shared memory, or in tensor memory (packed operand A); b [K, N] in shared memory
    scales   of both operands, from `slot.scales.to_tensor_memory()`; block-scaled operands need it, others refuse it
    metadata of a 2:4 sparse a of half the K: `sm.metadata_memory(...)`
    barrier  an mbarrier that is told (one arrival) when these and all earlier products of the thread are complete.
             Inside `ring.get()` and `channel.put()` stages and channels are told by themselves; otherwise `commit` it.

    Errors: SML0710 operands of which only one is block-scaled, SML0711 scales missing or not wanted, SML0712 scales of
    other operands, SML0713 shapes, SML0714 dtypes, SML0715 operands and accumulator that are not all of the pair,
    SML0716 a barrier that is no mbarrier, SML0717 where it may be issued, SML0708 N.
    """
    trace = current()
    if not isinstance(d, TensorMemory):
        raise error("SML0334", what="mma", wanted="an accumulator in tensor memory", given=type(d).__name__)
    if barrier is not None and not isinstance(barrier, MBarrier):
        raise error("SML0716", given=type(barrier).__name__)
    a = _turned(a, a_transpose)
    b = _turned(b, b_transpose)
    _check_scaled(a, b, scales)
    data_a = a.data if isinstance(a, Scaled) else a
    data_b = b.data if isinstance(b, Scaled) else b
    _check_kinds(data_a, data_b)
    _check_pair(d, data_a, data_b)
    sparse = metadata is not None
    plan = _plan(d, data_a, data_b, a if isinstance(a, Scaled) else None, sparse)
    for operand in (data_a, data_b):
        if isinstance(operand, Shared):
            operand.publish(tensor=True)
            if operand.slot is not None:
                operand.slot.completion = commit
    if d.slot is not None:
        d.slot.completion = commit
    with issuing(trace):
        _issue(trace, plan, d, a, b, data_a, data_b, add, scales, metadata, negate_a, negate_b)
    if barrier is not None:
        commit(barrier)
    scaled = f", {plan.kind} block-scaled" if scales is not None else ""
    count = plan.rows * plan.columns * plan.steps
    trace.note("tcgen05.mma", f"{count} x m{plan.m}n{plan.n}k{plan.deep}{scaled}")


def _issue(
    trace: Trace, plan: _Plan, d: TensorMemory, a: Any, b: Any, data_a: Any, data_b: Shared, add: Scalar,
    scales: ScalesInTensorMemory | None, metadata: Any, negate_a: bool, negate_b: bool,
) -> None:  # fmt: skip
    group = d.group
    sparse = metadata is not None
    kept = plan.deep // 2 if sparse else plan.deep
    rows_each, columns_each = d.tile // group, plan.n // group
    in_shared = isinstance(data_a, Shared)
    fields: dict[str, Any] = {"m": d.tile, "n": plan.n, "a_type": data_a.dtype.name, "b_type": data_b.dtype.name}
    if negate_a or negate_b:
        fields |= {"negate_a": negate_a, "negate_b": negate_b}
    if in_shared and data_a.axis == 0:
        fields["transpose_a"] = True
    if data_b.axis == 1:
        fields["transpose_b"] = True
    if sparse:
        fields["sparse"] = True
    modifier, factors = "", 0
    if scales is not None:
        _, modifier, factors = _SCALED[a.key]
        fields["scale_type"] = a.scale_format
    left = MatrixOperand(data_a, data_a.axis == 1, rows_each, kept) if in_shared else None
    right = MatrixOperand(data_b, data_b.axis == 0, columns_each, plan.deep)
    opcode = f"tcgen05.mma{'.sp' if sparse else ''}.cta_group::{group}.kind::{plan.kind}"
    if scales is not None:
        opcode += f".block_scale{modifier}"
    first = as_value(add, "pred") if not isinstance(add, Value) or add.dtype.kind == "pred" else add != 0
    always = as_value(True, "pred")
    for step in range(plan.steps):
        ids: dict[str, Any] = {}
        if scales is not None and factors:
            inside = step * factors % 4
            ids = {"scale_a_id": inside, "scale_b_id": inside} if factors < 4 else {}
        if sparse:
            ids["selector"] = metadata.selector(step)
        idesc = encode_idesc(plan.kind, **fields, **ids)
        for row in range(plan.rows):
            for column in range(plan.columns):
                target = Address(trace.read(d.address(row, column * plan.n)))
                if left is not None:
                    a_part: Any = left.at(row * rows_each, step * kept)
                else:
                    a_part = Address(trace.read(data_a.address(row, step * kept)))
                extra: list[Any] = []
                if sparse:
                    extra.append(Address(trace.read(metadata.address(row, step))))
                tail: list[Any] = []
                if scales is not None:
                    sfa = scales.address(a, step * factors // 4, row)
                    sfb = scales.address(b, step * factors // 4, 0, column * plan.n)
                    tail = [Address(trace.read(sfa)), Address(trace.read(sfb))]
                b_part = right.at(column * columns_each, step * plan.deep)
                trace.emit(opcode, target, a_part, b_part, *extra, idesc, *tail, first if step == 0 else always)


def commit(barrier: MBarrier) -> None:
    """One arrival on `barrier` once all tcgen05 operations that this thread has issued are complete.

    On a pair, on that barrier of both CTAs. It counts as one of the barrier's arrivals. Errors: SML0716.
    """
    if not isinstance(barrier, MBarrier):
        raise error("SML0716", given=type(barrier).__name__)
    trace = current()
    group = allocation().group
    opcode = f"tcgen05.commit.cta_group::{group}.mbarrier::arrive::one.shared::cluster"
    with issuing(trace):
        if group == 2:
            mask: Register = trace.register("u16")
            trace.emit("mov.u16", mask, 3)
            trace.emit(f"{opcode}.multicast::cluster.b64", barrier.raw, mask)
        else:
            trace.emit(f"{opcode}.b64", barrier.raw)
    trace.note("commit", f"tcgen05.commit to {barrier.name}")


def fence_after() -> None:
    """`tcgen05.fence::after_thread_sync`: what follows is ordered behind what other threads have told."""
    current().emit("tcgen05.fence::after_thread_sync")


def fence_before() -> None:
    """`tcgen05.fence::before_thread_sync`: what this thread waited for is told by its next arrival or barrier."""
    current().emit("tcgen05.fence::before_thread_sync")


def issuing(trace: Trace) -> AbstractContextManager[Any]:
    """The region of the one thread that issues. Errors: SML0717 where several warps would issue."""
    threads = trace.region.threads
    if threads.single:
        return nullcontext()
    if threads.warps != 1:
        raise error("SML0717", threads=threads.describe())
    return trace.open_if(elected(), "one", trace.with_threads(single=True))


def _turned(operand: Any, transpose: bool) -> Any:
    if not transpose:
        return operand
    if isinstance(operand, TensorMemory):
        raise error("SML0713", a=operand.shape, b="?", d="?", wanted="operand A in tensor memory is always K-major")
    return operand.T


def _check_scaled(a: Any, b: Any, scales: ScalesInTensorMemory | None) -> None:
    both = [isinstance(x, Scaled) for x in (a, b)]
    if any(both) and not all(both):
        raise error("SML0710", scaled="a" if both[0] else "b", plain="b" if both[0] else "a")
    if all(both) and not isinstance(scales, ScalesInTensorMemory):
        raise error("SML0711", what="needs", given=type(scales).__name__)
    if scales is not None and not any(both):
        raise error("SML0711", what="takes no", given=type(scales).__name__)
    if scales is not None:
        for name, operand in (("a", a), ("b", b)):
            if not scales.holds(operand):
                raise error("SML0712", operand=name, tile=operand.data.storage.name, known=", ".join(scales.names))


def _check_kinds(a: Any, b: Any) -> None:
    if not isinstance(a, Shared | TensorMemory) or not isinstance(b, Shared):
        raise error(
            "SML0334", what="mma", wanted="a in shared or tensor memory, b in shared memory",
            given=f"{type(a).__name__} and {type(b).__name__}",
        )  # fmt: skip


def _check_pair(d: TensorMemory, a: Any, b: Shared) -> None:
    """On a pair each CTA holds half of every row tile of A and of every column tile of B."""
    pair = d.group == 2
    for name, operand in (("a", a), ("b", b)):
        if isinstance(operand, Shared) and bool(operand.halves) != pair:
            have, wanted = ("whole", "halves of it in each CTA") if pair else ("halved", "whole")
            raise error("SML0715", operand=name, tile=operand.storage.name, have=have, wanted=wanted)


def _plan(d: TensorMemory, a: Any, b: Shared, scaled: Scaled | None, sparse: bool) -> _Plan:
    group = d.group
    m, n = d.shape
    rows = a.shape[0] * (group if isinstance(a, Shared) else 1)
    k, columns = a.shape[1] * (2 if sparse else 1), b.shape[1] * group
    if rows != m or columns != n or b.shape[0] != k:
        raise error("SML0713", a=(rows, k), b=(b.shape[0], columns), d=(m, n), wanted="a[M,K] @ b[K,N] -> d[M,N]")
    if scaled is not None:
        kind = _SCALED[scaled.key][0] if scaled.key in _SCALED else ""
        mates: tuple[str, ...] = _FLOAT8 if kind == "mxf8f6f4" else (a.dtype.name,)
        results: tuple[str, ...] = ("f32",)
        if d.tile // group != 128:
            raise error(
                "SML0713", a=(rows, k), b=(b.shape[0], columns), d=(m, n), wanted="row tiles of 128 in each CTA"
            )
    else:
        mates, kind, results = _KINDS.get(a.dtype.name, ((), "", ()))
    if not kind or b.dtype.name not in mates or d.dtype.name not in results:
        legal = f"b {' or '.join(mates)}, accumulator {' or '.join(results)}" if mates else f"a {', '.join(_KINDS)}"
        raise error("SML0714", a=a.dtype.name, b=b.dtype.name, d=d.dtype.name, legal=legal)
    deep = K_BYTES * 8 // DTYPES[a.dtype.name].bits * (2 if sparse else 1)
    if k % deep or k == 0:
        raise error("SML0713", a=(rows, k), b=(b.shape[0], columns), d=(m, n), wanted=f"K a multiple of {deep}")
    for operand, major in ((a, "K"), (b.T, "K")):
        if isinstance(operand, Shared):
            check_operand("tcgen05", operand.swizzle, major if operand.axis == 1 else "MN", operand.dtype.bits)
    wide = instruction_n(n, pair=group == 2, scaled=scaled is not None)
    if b.halves and b.halves != wide:
        raise error(
            "SML0715",
            operand="b",
            tile=b.storage.name,
            have=f"halves of {b.halves} columns",
            wanted=f"halves of {wide}",
        )
    if isinstance(a, Shared) and a.halves and a.halves != d.tile:
        raise error(
            "SML0715", operand="a", tile=a.storage.name, have=f"halves of {a.halves} rows", wanted=f"halves of {d.tile}"
        )
    return _Plan(kind, d.tile, wide, deep, m // d.tile, n // wide, k // deep)
