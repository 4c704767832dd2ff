"""The tensor core of Blackwell: matrix products into tensor memory, commits and fences (PTX ISA 9.7.16).

One `mma` call spans any number of row tiles, column tiles and steps of K of one accumulator; the instruction
descriptors, scale ids and addresses of each instruction follow from the layouts. Issued by one thread.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from smalti.errors import SmaltiError, error
from smalti.lang.barriers import MBarrier
from smalti.lang.dtypes import DType, dtype
from smalti.lang.metadata import MetadataMemory
from smalti.lang.scaled import Scaled, ScalesInTensorMemory
from smalti.lang.scales import ScaleMemory, scale_layout
from smalti.lang.shared import Shared
from smalti.lang.tensor_memory import LANES, TensorMemory, allocation, cell
from smalti.lang.threads import elected
from smalti.lang.trace import Trace, current
from smalti.lang.values import Scalar, Value, as_value
from smalti.lang.wgmma import MatrixOperand
from smalti.layout.descriptors import check_operand
from smalti.layout.instruction import InstructionDescriptor, mma_k
from smalti.ptx.module import Register

__all__ = ["commit", "fence_after", "fence_before", "instruction_n", "mma", "scale_layout"]

MOST_N = 256
SCALE_COLUMNS = 32  # columns of B whose scale factors lie in one column of tensor memory


class Kind(NamedTuple):
    """A kind of tcgen05.mma: what B may be beside this A, what accumulates, and for block scales the modifier."""

    name: str
    mates: tuple[str, ...]
    result: str
    modifier: str = ""


_FLOAT8 = ("e4m3", "e5m2")
_INT8 = ("s8", "u8")
# dtype of A -> kind without scales
_KINDS = {
    "f16": Kind("f16", ("f16",), "f32"),
    "bf16": Kind("f16", ("bf16",), "f32"),
    "tf32": Kind("tf32", ("tf32",), "f32"),
    "e4m3": Kind("f8f6f4", _FLOAT8, "f32"),
    "e5m2": Kind("f8f6f4", _FLOAT8, "f32"),
    "s8": Kind("i8", _INT8, "s32"),
    "u8": Kind("i8", _INT8, "s32"),
}
_MXFP8 = Kind("mxf8f6f4", _FLOAT8, "f32", ".block_scale")
# dtype of A, scale format, K elements that one scale covers in a dense A -> kind (PTX ISA 9.7.16.10.7.1)
_SCALED = {
    ("e4m3", "ue8m0", 32): _MXFP8,
    ("e5m2", "ue8m0", 32): _MXFP8,
    ("e2m1", "ue8m0", 32): Kind("mxf4", ("e2m1",), "f32", ".block_scale"),
    ("e2m1", "ue8m0", 16): Kind("mxf4nvf4", ("e2m1",), "f32", ".block_scale.scale_vec::4X"),
    ("e2m1", "ue4m3", 16): Kind("mxf4nvf4", ("e2m1",), "f32", ".block_scale.scale_vec::4X"),
}


class Scales(NamedTuple):
    """The scale factors of both operands, and the K elements that one covers."""

    a: ScaleMemory
    b: ScaleMemory
    block: int


@dataclass(frozen=True, slots=True)
class _Call:
    """One call of mma, checked: operands, and how it falls into instructions of `deep` K elements."""

    kind: Kind
    descriptor: InstructionDescriptor
    d: TensorMemory
    a: Shared | TensorMemory
    b: Shared
    deep: int
    rows: int
    columns: int
    steps: int
    scales: Scales | None
    metadata: MetadataMemory | None

    @property
    def opcode(self) -> str:
        sparse = ".sp" if self.metadata is not None else ""
        return f"tcgen05.mma{sparse}.cta_group::{self.d.group}.kind::{self.kind.name}{self.kind.modifier}"


def mma(
    d: TensorMemory,
    a: Shared | Scaled | TensorMemory,
    b: Shared | Scaled,
    *,
    add: Scalar,
    scales: ScalesInTensorMemory | tuple[ScaleMemory, ScaleMemory] | None = None,
    metadata: MetadataMemory | None = None,
    barrier: MBarrier | None = None,
    negate_a: bool = False,
    negate_b: bool = False,
    a_transpose: bool = False,
    b_transpose: bool = False,
) -> None:
    """Issue d = a @ b (+ d where `add` holds); also a method of `d`.

    a        [M, K] in shared memory, or in tensor memory (packed operand A); b [K, N] in shared memory
    scales   of both operands: `slot.scales.to_tensor_memory()` for block-scaled operands, or (of a, of b) in tensor
             memory for plain ones, one factor for each block of K in a row
    metadata of a 2:4 sparse a of half the K: `sm.metadata_memory(...)`
    barrier  an mbarrier that is told (one arrival) when these and all earlier products of the thread are complete.
             Inside `ring.get()` and `channel.put()` stages and channels are told by themselves; otherwise `commit` it.

    Errors: SML0710 scales of one operand only, SML0711 scales missing, not wanted or elsewhere, SML0712 scales of
    other operands, SML0713 shapes, SML0714 dtypes, SML0715 operands and accumulator that are not all of the pair,
    SML0716 a barrier that is no mbarrier, SML0717 where it may be issued, SML0718 A in tensor memory, SML0719 integers
    on sm_103a, SML0743 shape of scales, SML0742 metadata, SML0708 N, SML0414 transposed operands.
    """
    trace = current()
    if not isinstance(d, TensorMemory):
        raise error("SML0334", what="mma", wanted="an accumulator in tensor memory", given=type(d).__name__)
    if barrier is not None and not isinstance(barrier, MBarrier):
        raise error("SML0716", given=type(barrier).__name__)
    a, b = _turned(a) if a_transpose else a, _turned(b) if b_transpose else b
    signs = {"negate_a": negate_a, "negate_b": negate_b}
    call = _checked(trace, d, a, b, scales, metadata, {k: v for k, v in signs.items() if v})
    for operand in (call.a, call.b):
        if isinstance(operand, Shared):
            operand.publish(tensor=True)
    for held in (call.a, call.b, d, metadata):
        if held is not None and held.slot is not None:
            held.slot.completion = commit
    with issuing(trace):
        _issue(trace, call, add)
    if barrier is not None:
        commit(barrier)
    count, i = call.rows * call.columns * call.steps, call.descriptor
    what = "".join((", block-scaled" if call.scales else "", ", sparse" if metadata is not None else ""))
    trace.note("tcgen05.mma", f"{count} x m{i.m}n{i.n}k{call.deep} kind::{call.kind.name}{what}")


def _issue(trace: Trace, call: _Call, add: Scalar) -> None:
    d, a, b, i = call.d, call.a, call.b, call.descriptor
    kept = call.deep // 2 if i.sparse else call.deep
    rows_each, columns_each = i.m // d.group, i.n // d.group
    left = MatrixOperand(a, a.axis == 1, rows_each, kept) if isinstance(a, Shared) else None
    right = MatrixOperand(b, b.axis == 0, columns_each, call.deep)
    first = add != 0 if isinstance(add, Value) and add.dtype.kind != "pred" else as_value(add, "pred")
    always = as_value(True, "pred")
    for step in range(call.steps):
        idesc = _at(call, step).encode()
        for row in range(call.rows):
            for column in range(call.columns):
                if left is not None:
                    a_part: Any = left.at(row * rows_each, step * kept)
                else:
                    assert isinstance(a, TensorMemory)
                    a_part = cell(a.address(row, step * kept))
                b_part = right.at(column * columns_each, step * call.deep)
                extra = [] if call.metadata is None else [cell(call.metadata.address(row, step))]
                target = cell(d.address(row, column * i.n))
                factors = _factors(call, step, row, column)
                keep = first if step == 0 else always
                trace.emit(call.opcode, target, a_part, b_part, *extra, idesc, *factors, keep)


def _at(call: _Call, step: int) -> InstructionDescriptor:
    """The descriptor at a step of K: which bytes of the scale columns, which metadata column."""
    found = call.descriptor
    if call.scales is not None:
        inside = step * (call.deep // call.scales.block) % 4
        found = found._replace(scale_a_id=inside, scale_b_id=inside)
    if call.metadata is not None:
        found = found._replace(selector=call.metadata.selector(step))
    return found


def _factors(call: _Call, step: int, row: int, column: int) -> list[Any]:
    if call.scales is None:
        return []
    atom = step * (call.deep // call.scales.block) // 4
    addresses = call.scales.a.address(atom, row * LANES), call.scales.b.address(atom, column * call.descriptor.n)
    return [cell(x) for x in addresses]


# -- commits and fences ----------------------------------------------------------------------------------


def commit(barrier: MBarrier) -> None:
    """One arrival on `barrier` once all tcgen05 operations that this thread has issued are complete.

    On a pair, on that barrier of both CTAs. It counts as one of the barrier's arrivals. Errors: SML0716, SML0717.
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


# -- shapes of instructions ------------------------------------------------------------------------------


def instruction_n(
    columns: int, kind: DType | str = "bf16", *, pair: bool = False, scaled: bool = False, transposed: bool = False
) -> int:
    """The N of the instructions that cover `columns` columns: the largest up to 256 that divides it.

    kind: dtype of the operands; transposed: B is contiguous along N. Several block-scaled column tiles begin at
    multiples of 32 columns, where scale factors do. Errors: SML0708, SML0714.
    """
    name = dtype(kind).name
    row = {a: row for (a, _, _), row in _SCALED.items()}.get(name) if scaled else _KINDS.get(name)
    if row is None:
        raise error("SML0714", a=name, b=name, d="f32", legal=f"a {', '.join(_KINDS)}, or e2m1 with scales")
    i = InstructionDescriptor(row.name, 256 if pair else 128, 0, name, name, row.result, transpose_b=transposed)
    return _widest(columns, i, 2 if pair else 1, SCALE_COLUMNS if scaled else 1)


def _widest(columns: int, i: InstructionDescriptor, group: int, unit: int) -> int:
    """The largest legal N that divides `columns`; more than one tile must begin at multiples of `unit`."""
    legal = _legal_n(i._replace(n=0), group)

    def fitting(size: int) -> int:
        return max((n for n in legal if size % n == 0 and (n == size or n % unit == 0)), default=0)

    found = fitting(columns) if columns > 0 else 0
    if not found:
        nearest = next(c for c in range(max(columns, 1), columns + 2 * MOST_N) if fitting(c))
        raise error("SML0708", columns=columns, step=max(legal[1] - legal[0], unit if columns > MOST_N else 1),
                    nearest=nearest)  # fmt: skip
    return found


@lru_cache(256)
def _legal_n(i: InstructionDescriptor, group: int) -> tuple[int, ...]:
    def fits(n: int) -> bool:
        try:
            mma_k(i._replace(n=n), group)
        except SmaltiError:
            return False
        return True

    return tuple(n for n in range(8, MOST_N + 1, 8) if fits(n))


# -- checks ----------------------------------------------------------------------------------------------


def _turned(operand: Any) -> Any:
    if isinstance(operand, TensorMemory):
        raise error("SML0718", name=operand.name, reason="it is read along K only and cannot be transposed")
    return operand.T


def _checked(
    trace: Trace, d: TensorMemory, a: Any, b: Any, scales: Any, metadata: Any, signs: dict[str, bool]
) -> _Call:
    memories = _scales(a, b, scales)
    a, b = (x.data if isinstance(x, Scaled) else x for x in (a, b))
    if not isinstance(a, Shared | TensorMemory) or not isinstance(b, Shared):
        raise error(
            "SML0334", what="mma", wanted="a in shared or tensor memory, b in shared memory",
            given=f"{type(a).__name__} and {type(b).__name__}",
        )  # fmt: skip
    if metadata is not None and not isinstance(metadata, MetadataMemory):
        raise error("SML0742", reason=f"it is given as {type(metadata).__name__}; wanted sm.metadata_memory(...)")
    sparse = metadata is not None
    _check_pair(d, a, b)
    m, k, n = _sizes(d, a, b, sparse)
    memories = _sized(memories, m // d.group, k, n)
    kind = _kind(trace, d, a, b, memories, sparse)
    _check_rows(d, a, (m, k, n), halves=bool(memories) or sparse)
    if metadata is not None:
        _check_metadata(metadata, a, (m, k))
    majors = _majors(a, b)
    i = InstructionDescriptor(
        kind.name, d.tile, 0, a.dtype.name, b.dtype.name, kind.result, sparse=sparse,
        scale_type=memories.a.dtype.name if memories else "", **signs, **majors,
    )  # fmt: skip
    wide = _n(i, d, b, n, scaled=memories is not None)
    i = i._replace(n=wide)
    deep = mma_k(i, d.group)
    if k % deep or k == 0:
        raise error("SML0713", a=(m, k), b=(k, n), d=d.shape, wanted=f"K a multiple of {deep}")
    return _Call(kind, i, d, a, b, deep, m // d.tile, n // wide, k // deep, memories, metadata)


def _scales(a: Any, b: Any, scales: Any) -> Scales | None:
    """The scale factors of both operands, or None if neither has any."""
    both = [isinstance(x, Scaled) for x in (a, b)]
    if any(both) and not all(both):
        raise error("SML0710", scaled="a" if both[0] else "b", plain="b" if both[0] else "a")
    if all(both):
        if not isinstance(scales, ScalesInTensorMemory):
            raise error("SML0711", what="needs", given=type(scales).__name__)
        return Scales(scales.of(a, "a"), scales.of(b, "b"), a.scheme.block)
    if scales is None:
        return None
    if not isinstance(scales, tuple) or len(scales) != 2:
        raise error("SML0711", what="takes (of a, of b) or no", given=type(scales).__name__)
    missing = [x is None for x in scales]
    if any(missing) and not all(missing):
        raise error("SML0710", scaled="b" if missing[0] else "a", plain="a" if missing[0] else "b")
    for x in scales:
        if not isinstance(x, ScaleMemory):
            raise error("SML0711", what="takes (of a, of b) or no", given=type(x).__name__)
    return Scales(*scales, block=0)


def _check_pair(d: TensorMemory, a: Any, b: Shared) -> None:
    """On a pair each CTA holds half of every row tile of A and of every column tile of B."""
    pair = d.group == 2
    for name, operand in (("a", a), ("b", b)):
        if isinstance(operand, Shared) and bool(operand.halves) != pair:
            have, wanted = ("whole", "halves of it in each CTA") if pair else ("halved", "whole")
            raise error("SML0715", operand=name, tile=operand.storage.name, have=have, wanted=wanted)
    if isinstance(a, Shared) and a.halves and a.halves != d.tile:
        have = f"halves of {a.halves} rows"
        raise error("SML0715", operand="a", tile=a.storage.name, have=have, wanted=f"halves of {d.tile}")


def _sizes(d: TensorMemory, a: Any, b: Shared, sparse: bool) -> tuple[int, int, int]:
    """M, K before compression, N."""
    rows = a.shape[0] * (d.group if isinstance(a, Shared) else 1)
    k, columns = a.shape[1] * (2 if sparse else 1), b.shape[1] * d.group
    if (rows, columns) != d.shape or b.shape[0] != k:
        raise error("SML0713", a=(rows, k), b=(b.shape[0], columns), d=d.shape, wanted="a[M,K] @ b[K,N] -> d[M,N]")
    return rows, k, columns


def _sized(scales: Scales | None, m: int, k: int, n: int) -> Scales | None:
    """With the block that follows from the number of factors. Those of block-scaled operands know theirs."""
    if scales is None or scales.block:
        return scales
    factors = scales.a.shape[1]
    if k % factors or scales.a.shape != (m, factors) or scales.b.shape != (n, factors):
        have = f"{_times(scales.a.shape)} of a, {_times(scales.b.shape)} of b"
        raise error("SML0743", have=have, wanted=f"{m} rows of a and {n} of b, in each the same number of factors")
    return scales._replace(block=k // factors)


def _times(shape: tuple[int, int]) -> str:
    return "x".join(map(str, shape))


def _kind(trace: Trace, d: TensorMemory, a: Any, b: Shared, scales: Scales | None, sparse: bool) -> Kind:
    name = a.dtype.name
    if scales is None:
        kind = _KINDS.get(name)
        legal = f"a {', '.join(_KINDS)}"
    else:
        if scales.a.dtype is not scales.b.dtype:
            raise error("SML0303", op="scales", left=scales.a.dtype.name, right=scales.b.dtype.name)
        kind = _SCALED.get((name, scales.a.dtype.name, scales.block >> sparse))
        forms = ", ".join(f"{e} with {s} scales of {n << sparse}" for e, s, n in _SCALED)
        legal = f"{forms}; these scales: {scales.a.dtype.name} of {scales.block}"
    if kind is None or b.dtype.name not in kind.mates or d.dtype.name != kind.result:
        if kind is not None:
            legal = f"b {' or '.join(kind.mates)}, accumulator {kind.result}"
        raise error("SML0714", a=name, b=b.dtype.name, d=d.dtype.name, legal=legal)
    if kind.name == "i8" and trace.arch.startswith("sm_103"):
        raise error("SML0719", arch=trace.arch, a=name)
    return kind


def _check_rows(d: TensorMemory, a: Any, sizes: tuple[int, int, int], *, halves: bool) -> None:
    m, k, n = sizes
    if halves and d.tile // d.group != LANES:
        raise error("SML0713", a=(m, k), b=(k, n), d=d.shape, wanted="row tiles of 128 in each CTA")
    if isinstance(a, TensorMemory):
        if a.split_lanes:
            reason = "of a pair with M 128 its rows would have to lie twice; use row tiles of 256"
            raise error("SML0718", name=a.name, reason=reason)
        if (a.tile, a.group) != (d.tile, d.group):
            raise error("SML0718", name=a.name, reason=f"its row tiles have {a.tile} rows, the accumulator's {d.tile}")
    elif a.axis == 0 and a.shape[0] > d.tile // d.group and d.tile // d.group % a.geometry.stripe:
        wanted = f"row tiles of whole stripes of {a.geometry.stripe}"
        raise error("SML0713", a=(m, k), b=(k, n), d=d.shape, wanted=wanted)


def _check_metadata(metadata: MetadataMemory, a: Any, shape: tuple[int, int]) -> None:
    if metadata.shape != shape or metadata.dtype.bits != a.dtype.bits:
        have = f"{metadata.shape[0]}x{metadata.shape[1]} {metadata.dtype.bits}-bit elements"
        raise error("SML0742", reason=f"it is for {have}; A is {shape[0]}x{shape[1]} {a.dtype.name}")


def _majors(a: Any, b: Shared) -> dict[str, bool]:
    """Which operands are contiguous along M or N."""
    turned = {"transpose_a": isinstance(a, Shared) and a.axis == 0, "transpose_b": b.axis == 1}
    for operand, mn in ((a, turned["transpose_a"]), (b, turned["transpose_b"])):
        if isinstance(operand, Shared):
            check_operand("tcgen05", operand.swizzle, "MN" if mn else "K", operand.dtype.bits)
    return {name: True for name, yes in turned.items() if yes}


def _n(i: InstructionDescriptor, d: TensorMemory, b: Shared, n: int, *, scaled: bool) -> int:
    unit = max(SCALE_COLUMNS if scaled else 1, b.geometry.stripe * d.group if i.transpose_b else 1)
    if d.split_lanes:  # its halves of the columns are those of one instruction
        unit = n
    wide = b.halves
    if not wide:
        return _widest(n, i, d.group, unit)
    if n % wide or wide not in _legal_n(i, d.group) or (n != wide and wide % unit):
        wanted = f"halves of {_widest(n, i, d.group, unit)}"
        raise error("SML0715", operand="b", tile=b.storage.name, have=f"halves of {wide} columns", wanted=wanted)
    return wide
