"""The fifth-generation tensor core: matrix products, copies, shifts, loads and stores of tensor memory, as operations.

Each performs at once and some time after its issue. Operations of one thread keep their order; those of different
threads have none but what the program makes. Knows layouts and arithmetic; operands of instructions are resolved by
`execute`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from smalti.errors import Loc, error
from smalti.layout.descriptors import SmemDescriptor, operand_units
from smalti.layout.instruction import InstructionDescriptor
from smalti.numerics import fused_sum, sparse
from smalti.numerics.formats import FORMATS, unpack4, unpack6
from smalti.vgpu.engines import AsyncOp, mbarrier, tensor_cells
from smalti.vgpu.engines.operands import matrix
from smalti.vgpu.engines.tensor_memory import COLUMNS, LANES, TensorMemory, group_ctas, tensor_memory
from smalti.vgpu.warp import Wait

if TYPE_CHECKING:
    from smalti.vgpu.clocks import Clock
    from smalti.vgpu.machine import CTA
    from smalti.vgpu.warp import Warp

Bools = npt.NDArray[np.bool_]
Cells = npt.NDArray[np.int64]
QUADRANTS = 4


class OpsWait(Wait):
    """Waiting for operations of one's own (wait::ld, wait::st, or a register that a load still writes)."""

    def __init__(self, ops: list[Any], what: str) -> None:
        self.ops, self.what = ops, what

    def ready(self) -> bool:
        return all(op.done for op in self.ops)

    def describe(self) -> str:
        return f"waiting for {self.what}"


def split_address(address: int) -> tuple[int, int]:
    """(lane, column) of a tensor-memory address."""
    return address >> 16 & 0xFFFF, address & 0xFFFF


class TensorOp(AsyncOp):
    """`thread` identifies the issuer, `kind` and `group` how the pipeline orders it, `accumulator` what an mma adds to."""

    engine = "tcgen05"
    kind = ""
    accumulator: Any = None

    def __init__(self, cta: CTA, issuer: Warp, loc: Loc | None, what: str, thread: Any, group: int) -> None:
        super().__init__(cta, issuer, loc, what)
        self.thread, self.group = thread, group
        self.queue: list[TensorOp] = cta.cluster.engines.setdefault("tcgen05.queues", {}).setdefault(
            (thread, self.kind in ("ld", "st")), []
        )
        self.queue.append(self)
        for each in group_ctas(cta, group):
            tensor_memory(each).use_group(self, group) if group and self.kind not in ("ld", "st") else None

    def ready(self) -> bool:
        return self.queue[0] is self

    def perform(self) -> bool:
        self.work()
        self.queue.pop(0)
        return True

    def work(self) -> None:
        raise AssertionError


@dataclass(frozen=True, slots=True)
class Product:
    """The operands of one tcgen05.mma, resolved. A is a descriptor, or an address in tensor memory."""

    descriptor: InstructionDescriptor
    k: int
    d: int
    a: SmemDescriptor | int
    b: SmemDescriptor
    accumulate: bool
    ws: bool = False
    metadata: int | None = None
    scale_a: int | None = None
    scale_b: int | None = None
    block: int = 0  # K elements that one scale covers
    scale_d: int = 0
    ashift: bool = False
    disabled: tuple[int, ...] = ()  # words of lanes not written


class Mma(TensorOp):
    kind = "mma"

    def __init__(
        self, cta: CTA, issuer: Warp, loc: Loc | None, what: str, thread: Any, group: int, product: Product
    ) -> None:
        super().__init__(cta, issuer, loc, what, thread, group)
        self.product = product
        i = product.descriptor
        self.accumulator = (product.d, i.m, i.n)

    def uses_shared(self, cta: CTA) -> bool:
        return not self.done and cta in group_ctas(self.cta, self.group)

    def work(self) -> None:
        p, i = self.product, self.product.descriptor
        ctas = group_ctas(self.cta, self.group)
        memories = [tensor_memory(c) for c in ctas]
        packed4 = i.kind.startswith("mxf4")
        kept = p.k // 2 if i.sparse else p.k
        a, bad_a = self._a(ctas, memories, kept, packed4)
        major = "MN" if i.transpose_b else "K"
        parts = [
            matrix(self, c.shared, p.b, instruction="tcgen05", major=major, rows=i.n // len(ctas), k=p.k, fmt=i.b_type,
                   packed4=packed4)
            for c in ctas
        ]  # fmt: skip
        b, bad_b = _stack(parts)
        cells = self._d_cells(memories)
        c, bad_c = self._accumulator(memories, cells)
        options: dict[str, Any] = {
            "a_format": i.a_type, "b_format": i.b_type, "negate_a": i.negate_a, "negate_b": i.negate_b,
            "saturate": i.saturate, "scale_input_d": p.scale_d,
        }  # fmt: skip
        bad_rows, bad_cols = bad_a, bad_b
        if p.block:
            scale_a, scale_b, bad_rows, bad_cols = self._scales(memories, bad_a, bad_b)
            options |= {"scale_a": scale_a, "scale_b": scale_b, "scale_format": i.scale_type, "block": p.block}
        name = "tcgen05." + i.kind + (".f16" if i.d_type == "f16" else "")
        if i.sparse:
            codes, bad_codes = self._metadata(memories, kept)
            bad_rows = _either(bad_rows, bad_codes)
            d = sparse.mma_sparse(name, a, codes, b, c, **options)
        else:
            d = fused_sum.mma(name, a, b, c, **options)
        undefined = _spread(bad_rows, bad_cols, bad_c, d.shape)
        self._write(memories, cells, d.astype(np.uint32, copy=False), undefined)

    # -- A ----------------------------------------------------------------------------------------------

    def _a(
        self, ctas: list[CTA], memories: list[TensorMemory], kept: int, packed4: bool
    ) -> tuple[npt.NDArray[Any], Bools | None]:
        p, i = self.product, self.product.descriptor
        rows = i.m // len(ctas)
        if isinstance(p.a, SmemDescriptor):
            major = "MN" if i.transpose_a else "K"
            return _stack([
                matrix(self, c.shared, p.a, instruction="tcgen05", major=major, rows=rows, k=kept, fmt=i.a_type,
                       packed4=packed4)
                for c in ctas
            ])  # fmt: skip
        lane, column = split_address(p.a)
        bits = 4 if packed4 else 32 if i.a_type == "tf32" else max(8, FORMATS[i.a_type].bits)
        lanes, columns = tensor_cells.a_operand(i.m, kept, bits, self.group, p.ws, i.sparse)
        parts = []
        for memory in memories:
            copies, flags = memory.read(self, memory.check(self, lanes + lane, columns + column))
            differ = (copies != copies[0]).any(axis=(0, 2))
            if differ.any():  # layout B: rows are duplicated 64 lanes further down
                raise error("SML0864", at=self.loc, what="A", row=int(np.flatnonzero(differ)[0]), who=self.who())
            raw = np.ascontiguousarray(copies[0]).view(np.uint8)
            parts.append((_container(raw, i.a_type, packed4), None if flags is None else flags.any(axis=(0, 2))))
        a, bad = _stack(parts)
        if p.ashift:  # rows move down by one, the last row of each CTA keeps its own
            a = np.concatenate([a[1:], a[-1:]]) if len(memories) == 1 else np.concatenate(
                [np.concatenate([h[1:], h[-1:]]) for h in np.split(a, 2)]
            )  # fmt: skip
        return a, bad

    # -- scales and metadata ----------------------------------------------------------------------------

    def _scales(
        self, memories: list[TensorMemory], bad_a: Bools | None, bad_b: Bools | None
    ) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8], Bools | None, Bools | None]:
        p, i = self.product, self.product.descriptor
        assert p.scale_a is not None and p.scale_b is not None
        blocks = p.k // p.block
        rows = i.m // len(memories)
        split = self.group == 2 and i.m == 128
        parts = []
        where = tensor_cells.scales("A", rows, False)
        for memory in memories:
            parts.append(self._factors(memory, p.scale_a, where, i.scale_a_id, blocks, "SFA"))
        scale_a, bad = _stack(parts)
        bad_a = _either(bad_a, bad)
        where = tensor_cells.scales("B", i.n, split)
        found = [self._factors(m, p.scale_b, where, i.scale_b_id, blocks, "SFB") for m in memories]
        if len(found) == 2 and (found[0][0] != found[1][0]).any():
            row = int(np.flatnonzero((found[0][0] != found[1][0]).any(axis=1))[0])
            raise error("SML0864", at=self.loc, what="SFB of the pair", row=row, who=self.who())
        return scale_a, found[0][0], bad_a, _either(bad_b, found[0][1])

    def _factors(
        self, memory: TensorMemory, address: int, where: Cells, first: int, blocks: int, what: str
    ) -> tuple[npt.NDArray[np.uint8], Bools | None]:
        """Bytes first … first+blocks−1 of each cell, all replicas agreeing (which one the hardware reads is not
        documented, so a program that makes them differ is refused)."""
        lane, column = split_address(address)
        words, undefined = memory.read(self, memory.check(self, where[0] + lane, where[1] + column))
        factors = np.ascontiguousarray(words).view(np.uint8).reshape(*words.shape, 4)[..., first : first + blocks]
        bad = None if undefined is None else undefined.any(axis=0)
        differ = (factors != factors[0]).any(axis=(0, 2))
        if bad is not None:
            differ &= ~bad
        if differ.any():
            raise error("SML0864", at=self.loc, what=what, row=int(np.flatnonzero(differ)[0]), who=self.who())
        return np.ascontiguousarray(factors[0]), bad

    def _metadata(self, memories: list[TensorMemory], kept: int) -> tuple[npt.NDArray[np.uint8], Bools | None]:
        p, i = self.product, self.product.descriptor
        assert p.metadata is not None
        lane, column = split_address(p.metadata)
        bits = {"f16": 16, "tf32": 32}.get(i.kind, 4 if i.kind.startswith("mxf4") else 8)
        lanes, columns, shifts = tensor_cells.metadata(i.m, bits, self.group, p.ws, i.selector)
        if bits >= 16:
            column &= ~1  # the selector picks one column of an even-aligned pair
        parts = []
        for memory in memories:
            words, bad = memory.read(self, memory.check(self, lanes + lane, columns + column))
            codes = (words >> shifts.astype(np.uint32) & np.uint32(15)).astype(np.uint8)
            parts.append((codes, None if bad is None else bad.any(axis=1)))
        return _stack(parts)

    # -- D ----------------------------------------------------------------------------------------------

    def _d_cells(self, memories: list[TensorMemory]) -> Cells:
        p, i = self.product, self.product.descriptor
        cta, lanes, columns = tensor_cells.accumulator(i.m, i.n, self.group, p.ws, i.sparse)
        lane, column = split_address(p.d)
        for rank, memory in enumerate(memories):
            mine = cta == rank if len(memories) > 1 else slice(None)
            memory.check(self, lanes[mine] + lane, columns[mine] + column)
        return (lanes + lane) * COLUMNS + columns + column

    def _accumulator(self, memories: list[TensorMemory], cells: Cells) -> tuple[npt.NDArray[Any] | None, Bools | None]:
        if not self.product.accumulate:
            return None, None
        owner = self._owner(memories)
        c = np.empty(cells.shape, np.uint32)
        bad: Bools | None = None
        for memory, mine in zip(memories, owner, strict=True):
            c[mine], undefined = memory.read(self, cells[mine])
            if undefined is not None:
                bad = np.zeros(cells.shape, np.bool_) if bad is None else bad
                bad[mine] = undefined
        return (c.astype(np.uint16) if self.product.descriptor.d_type == "f16" else c), bad

    def _owner(self, memories: list[TensorMemory]) -> list[Any]:
        i = self.product.descriptor
        if len(memories) == 1:
            return [slice(None)]
        cta = tensor_cells.accumulator(i.m, i.n, self.group, self.product.ws, i.sparse)[0]
        return [cta == 0, cta == 1]

    def _write(self, memories: list[TensorMemory], cells: Cells, d: Any, undefined: Bools | None) -> None:
        words = self.product.disabled
        for rank, (memory, mine) in enumerate(zip(memories, self._owner(memories), strict=True)):
            where, values = cells[mine].reshape(-1), d[mine].reshape(-1)
            bad = None if undefined is None else undefined[mine].reshape(-1)
            if any(words):
                own = words[4 * rank : 4 * rank + 4]
                off = np.array([own[n // 32] >> n % 32 & 1 for n in range(LANES)], np.bool_)
                keep = ~off[where // COLUMNS]
                where, values, bad = where[keep], values[keep], None if bad is None else bad[keep]
            memory.write(self, where, values, bad)


class Copy(TensorOp):
    """tcgen05.cp: rows of shared memory to lanes of tensor memory."""

    kind = "cp"

    def __init__(
        self, cta: CTA, issuer: Warp, loc: Loc | None, what: str, thread: Any, group: int, address: int,
        source: SmemDescriptor, shape: str, multicast: str, fmt: str,
    ) -> None:  # fmt: skip
        super().__init__(cta, issuer, loc, what, thread, group)
        self.address, self.source, self.shape, self.multicast, self.fmt = address, source, shape, multicast, fmt

    def uses_shared(self, cta: CTA) -> bool:
        return not self.done and cta in group_ctas(self.cta, self.group)

    def work(self) -> None:
        lanes, cells_of = tensor_cells.copied(self.shape, self.multicast)
        _, rows, columns = lanes.shape
        lane, column = split_address(self.address)
        units = operand_units(self.source, major="K", rows=rows, k_bytes=columns * 4, element_bits=8)
        low, high = int(units.min()) * 16, int(units.max()) * 16 + 16
        for cta in group_ctas(self.cta, self.group):
            segment, memory = cta.shared, tensor_memory(cta)
            if low < segment.low or high > segment.size:
                raise error(
                    "SML0863", at=self.loc, start=hex(self.source.start), low=hex(low), high=hex(high),
                    first=hex(segment.low), size=hex(segment.size), who=self.who(),
                )  # fmt: skip
            cta.machine.memory.checks.read_units(self, segment, units)
            raw = np.ascontiguousarray(segment.opaque()[units]).view(np.uint8).reshape(rows, -1)
            undefined: Bools | None = None
            if segment.range_undefined(low, high):
                flags = np.ascontiguousarray(segment.opaque(flags=True)[units]).view(np.bool_)
                undefined = ~flags.reshape(rows, columns, 4).all(axis=2)
            words = np.ascontiguousarray(self._expanded(raw)).view(np.uint32)
            cells = memory.check(self, lanes + lane, cells_of + column)
            for copy in cells:
                memory.write(self, copy, words, undefined)

    def _expanded(self, raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """4- and 6-bit elements, 16 in each 16 bytes, put into bytes of their own (PTX 9.7.16.9.1)."""
        groups = raw.reshape(len(raw), -1, 16)
        if self.fmt == "b4x16_p64":
            return (unpack4(groups[..., :8]) << 2).reshape(len(raw), -1)
        if self.fmt == "b6x16_p32":
            return unpack6(groups[..., :12]).reshape(len(raw), -1)
        return raw


class Shift(TensorOp):
    """tcgen05.shift.down: eight columns move down one lane in the 32-lane group; the last lane keeps its own."""

    kind = "shift"

    def __init__(
        self, cta: CTA, issuer: Warp, loc: Loc | None, what: str, thread: Any, group: int, address: int
    ) -> None:
        super().__init__(cta, issuer, loc, what, thread, group)
        self.address = address

    def work(self) -> None:
        lane, column = split_address(self.address)
        if lane % 32:
            raise error("SML0861", at=self.loc, lane=lane, column=column, who=self.who())
        for cta in group_ctas(self.cta, self.group):
            memory = tensor_memory(cta)
            cells = memory.check(self, *_grid(lane + np.arange(32), column + np.arange(8)))
            words, bad = memory.read(self, cells)
            memory.write(self, cells[:-1], words[1:], None if bad is None else bad[1:])


class Load(TensorOp):
    """tcgen05.ld: cells [registers, parts, lanes] to registers of whole warps; two parts are 16-bit halves."""

    kind = "ld"
    interlocked = True

    def __init__(
        self, cta: CTA, issuer: Warp, loc: Loc | None, what: str, clock: Clock, span: tuple[int, int], cells: Cells,
        registers: list[int], reduce: Any = None,
    ) -> None:  # fmt: skip
        super().__init__(cta, issuer, loc, what, (cta.rank, span), 0)
        self.clock, self.span, self.cells, self.registers = clock, span, cells, registers
        self.reduce = reduce
        self.results = frozenset(registers)

    def work(self) -> None:
        memory = tensor_memory(self.cta)
        words, bad = memory.read(self, self.cells)
        words, bad = (words[:, 0], bad) if words.shape[1] == 1 else (_halves(words), bad)
        bad = None if bad is None else bad.any(axis=1)
        if self.reduce is not None:
            words, bad = self.reduce(words, bad)
        lo, hi = self.span
        rows = self.cta.registers.rows[0]
        for k, n in enumerate(self.registers):
            rows[n][lo:hi] = words[k]
        if bad is not None or self.cta.undefined:
            self._mark(bad)
        for w in self.cta.warps[lo // 32 : hi // 32]:
            for n in self.registers:
                if w.hazards.get(n) is self:
                    del w.hazards[n]
        self.cta.refresh()

    def _mark(self, bad: Bools | None) -> None:
        lo, hi = self.span
        for k, n in enumerate(self.registers):
            self.cta.set_undefined(n, lo, hi, None if bad is None else bad[k])


class Store(TensorOp):
    """tcgen05.st: values [registers, parts, lanes] of whole warps, captured at issue, to cells."""

    kind = "st"

    def __init__(
        self, cta: CTA, issuer: Warp, loc: Loc | None, what: str, clock: Clock, span: tuple[int, int], cells: Cells,
        values: npt.NDArray[np.uint32], undefined: Bools | None,
    ) -> None:  # fmt: skip
        super().__init__(cta, issuer, loc, what, (cta.rank, span), 0)
        self.clock, self.cells, self.values, self.undefined = clock, cells, values, undefined

    def work(self) -> None:
        tensor_memory(self.cta).write(self, self.cells, self.values, self.undefined)


class Commit(TensorOp):
    """tcgen05.commit: one arrival on an mbarrier once all earlier operations of the thread are complete."""

    kind = "commit"

    def __init__(
        self, cta: CTA, issuer: Warp, loc: Loc | None, what: str, thread: Any, group: int,
        targets: list[tuple[CTA, int]], bits: int,
    ) -> None:  # fmt: skip
        super().__init__(cta, issuer, loc, what, thread, group)
        self.targets, self.bits = targets, bits

    def uses_shared(self, cta: CTA) -> bool:
        return not self.done and any(t is cta for t, _ in self.targets)

    def work(self) -> None:
        for cta, offset in self.targets:
            found = mbarrier.live(cta).get(offset)
            if found is None:
                raise error(
                    "SML0902", at=self.loc, operation="tcgen05.commit", what=cta.describe(offset), who=self.who()
                )
            found.arriving.ops |= self.bits
            found.arrive(self, 1)


def _halves(words: npt.NDArray[np.uint32]) -> npt.NDArray[np.uint32]:
    """[registers, 2, lanes] low halves of cells as one register each."""
    return (words[:, 0] & np.uint32(0xFFFF)) | words[:, 1] << np.uint32(16)


def _grid(lanes: Cells, columns: Cells) -> tuple[Cells, Cells]:
    return (
        np.broadcast_to(lanes[:, None], (len(lanes), len(columns))),
        np.broadcast_to(columns[None, :], (len(lanes), len(columns))),
    )


def _stack(parts: list[tuple[npt.NDArray[Any], Bools | None]]) -> tuple[npt.NDArray[Any], Bools | None]:
    """The CTAs' rows one below the other, with their flags."""
    if len(parts) == 1:
        return parts[0]
    bad: Bools | None = None
    if any(f is not None for _, f in parts):
        bad = np.concatenate([np.zeros(len(v), np.bool_) if f is None else f for v, f in parts])
    return np.concatenate([v for v, _ in parts]), bad


def _either(a: Bools | None, b: Bools | None) -> Bools | None:
    return b if a is None else a if b is None else a | b


def _spread(rows: Bools | None, columns: Bools | None, cells: Bools | None, shape: tuple[int, ...]) -> Bools | None:
    """Undefined rows of A, columns of B and cells of C as undefined cells of D."""
    if rows is None and columns is None and cells is None:
        return None
    out = np.zeros(shape, np.bool_)
    if rows is not None:
        out |= rows[:, None]
    if columns is not None:
        out |= columns[None, :]
    return out if cells is None else out | cells


def _container(raw: npt.NDArray[np.uint8], fmt: str, packed4: bool) -> npt.NDArray[Any]:
    """Bytes of A in tensor memory as codes: small formats lie in bytes, e2m1 in bits 5..2 (PTX 9.7.16.10.4)."""
    if packed4:
        return unpack4(raw)
    form = FORMATS[fmt]
    if form.bits == 4:
        return raw >> 2 & 15
    if form.bits == 6:
        return raw & 63
    return raw if form.bits == 8 else raw.view(form.dtype)
