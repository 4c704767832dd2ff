"""The fifth-generation tensor core: what its asynchronous operations do when they are performed.

Matrix products, copies, shifts, loads and stores of tensor memory, and commits. Knows layouts and arithmetic; operands
of instructions are resolved by `execute`, the order of operations is that of `pipeline`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from smalti.errors import Loc, error
from smalti.layout.instruction import InstructionDescriptor
from smalti.layout.tensor import LANES
from smalti.numerics import fused_sum, sparse
from smalti.numerics.formats import FORMATS, unpack4, unpack6
from smalti.vgpu.engines import mbarrier, tensor_cells
from smalti.vgpu.engines.operands import Source, container, fetch, tell
from smalti.vgpu.engines.pipeline import TensorOp, Thread
from smalti.vgpu.engines.tensor_memory import (
    DEFINED,
    Flags,
    Placed,
    TensorMemory,
    known_cells,
)
from smalti.vgpu.warp import WARP, Wait

if TYPE_CHECKING:
    from collections.abc import Callable

    from smalti.vgpu.machine import CTA
    from smalti.vgpu.warp import Warp

Bools = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint32]
Codes = npt.NDArray[Any]
LOW = np.uint32(0xFFFF)
# What is left in the upper half of a cell of which only the lower one is written (f16 D, .unpack::16b): not documented.
UPPER = np.uint32(0xA5A5 << 16)


class OpsWait(Wait):
    """Waiting for operations of one's own (wait::ld, wait::st)."""

    def __init__(self, ops: list[Any], what: str) -> None:
        self.ops, self.what = ops, what

    def ready(self) -> bool:
        return all(op.done for op in self.ops)

    def describe(self) -> str:
        return f"waiting for {self.what}"


@dataclass(frozen=True, slots=True)
class Product:
    """The operands of one tcgen05.mma, resolved. A is an operand in shared memory, or an address in tensor memory."""

    descriptor: InstructionDescriptor
    k: int
    d: int
    a: Source | int
    b: Source
    accumulate: bool
    ws: bool = False
    metadata: int | None = None
    scale_a: int | None = None
    scale_b: int | None = None
    block: int = 0  # K elements that one scale covers
    scale_d: int = 0
    ashift: bool = False
    disabled: tuple[int, ...] = ()  # words of lanes not written

    @property
    def kept(self) -> int:
        """Elements of a row of A as it is stored."""
        return self.k // 2 if self.descriptor.sparse else self.k

    @property
    def padded(self) -> bool:
        """Whether 4- and 6-bit elements lie in 8 bits each."""
        return not self.descriptor.kind.startswith("mxf4")


class Mma(TensorOp):
    kind = "mma"

    def __init__(
        self, cta: CTA, issuer: Warp, loc: Loc | None, what: str, thread: Thread, group: int, product: Product
    ) -> None:
        self.product = product
        i = product.descriptor
        self.accumulator = (product.d, i.m, i.n, product.ws, i.sparse)
        self.sources = (product.a, product.b) if isinstance(product.a, Source) else (product.b,)
        self.told = False
        super().__init__(cta, issuer, loc, what, thread, group)
        self._place()

    def _place(self) -> None:
        """Find the cells of every operand in tensor memory, in each CTA. Errors: SML0861, SML0862."""
        p, i, group = self.product, self.product.descriptor, self.group
        self.d = self.cells(tensor_cells.accumulator(i.m, i.n, group, p.ws, i.sparse), p.d)
        self.a: list[list[Placed]] = []  # by copy and CTA
        if not isinstance(p.a, Source):
            bits = container(i.a_type, p.padded)
            for cells in tensor_cells.a_operand(i.m, p.kept, bits, group, p.ws, i.sparse):
                self.a.append(self.cells(cells, p.a))
        if p.scale_a is not None and p.scale_b is not None:
            self.scale_a = self.cells(tensor_cells.scales("A", i.m // group, False), p.scale_a)
            self.scale_b = self.cells(tensor_cells.scales("B", i.n, group == 2 and i.m == 128), p.scale_b)
        if p.metadata is not None:
            bits = container(i.a_type, p.padded)
            cells, self.shifts = tensor_cells.metadata(i.m, bits, group, p.ws, i.selector)
            # the selector picks one column of an even-aligned pair
            self.metadata = self.cells(cells, p.metadata & ~1 if bits >= 16 else p.metadata)

    def uses_shared(self, cta: CTA) -> bool:
        return not self.done and cta in self.ctas

    def work(self) -> None:
        p, i = self.product, self.product.descriptor
        tell(self, self.queue, self.ctas)
        a, bad_rows = self._a()
        b, bad_columns = _stack([self._shared(c, p.b) for c in self.ctas])
        c, bad_cells = self._accumulator()
        options: dict[str, Any] = {
            "a_format": i.a_type, "b_format": i.b_type, "negate_a": i.negate_a, "negate_b": i.negate_b,
            "saturate": i.saturate, "scale_input_d": p.scale_d,
        }  # fmt: skip
        if p.block:
            scale_a, scale_b, bad_a, bad_b = self._scales()
            bad_rows, bad_columns = _either(bad_rows, bad_a), _either(bad_columns, bad_b)
            options |= {"scale_a": scale_a, "scale_b": scale_b, "scale_format": i.scale_type, "block": p.block}
        name = "tcgen05." + i.kind + (".f16" if i.d_type == "f16" else "")
        if i.sparse:
            codes, bad_codes = self._metadata()
            self._legal(name, a, codes, bad_codes)
            bad_rows = _either(bad_rows, bad_codes)
            d = sparse.mma_sparse(name, a, codes, b, c, **options)
        else:
            d = fused_sum.mma(name, a, b, c, **options)
        words = d.astype(np.uint32) | UPPER if d.dtype == np.uint16 else d
        self._write(words.view(np.uint32), _spread(bad_rows, bad_columns, bad_cells, d.shape))

    def _shared(self, cta: CTA, operand: Source) -> tuple[Codes, Bools | None]:
        """Codes [rows, K] of an operand in a CTA's shared memory."""
        return fetch(cta.shared, operand)

    # -- A ----------------------------------------------------------------------------------------------

    def _a(self) -> tuple[Codes, Bools | None]:
        p = self.product
        if isinstance(p.a, Source):
            operand = p.a
            return _stack([self._shared(c, operand) for c in self.ctas])
        parts = [self._copies(m, [copy[n] for copy in self.a]) for n, m in enumerate(self.memories)]
        if p.ashift:  # in each CTA rows come from one below, the last one is its own
            parts = [(_shifted(codes), None if bad is None else _shifted(bad)) for codes, bad in parts]
        return _stack(parts)

    def _copies(self, memory: TensorMemory, copies: list[Placed]) -> tuple[Codes, Bools | None]:
        """A from tensor memory: its copies (layout B has two) must agree. Errors: SML0864."""
        found = [memory.read(self, where) for where in copies]
        words, known = found[0]
        for other, _ in found[1:]:
            differ = (other != words).any(axis=1)
            if differ.any():
                raise error("SML0864", at=self.loc, what="A", row=int(differ.argmax()), who=self.who())
        bad = None if known is None else (known != DEFINED).any(axis=1)
        fmt = self.product.descriptor.a_type
        return _codes(words.view(np.uint8), fmt, container(fmt, self.product.padded)), bad

    # -- scales and metadata ----------------------------------------------------------------------------

    def _scales(self) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8], Bools | None, Bools | None]:
        """SFA of the rows of each CTA; SFB of all columns, which both CTAs of a pair must hold."""
        i = self.product.descriptor
        both = zip(self.memories, self.scale_a, strict=True)
        scale_a, bad_a = _stack([self._factors(m, where, i.scale_a_id, "SFA") for m, where in both])
        both = zip(self.memories, self.scale_b, strict=True)
        found = [self._factors(m, where, i.scale_b_id, "SFB") for m, where in both]
        scale_b, bad_b = found[0]
        for other, bad in found[1:]:
            bad_b = _either(bad_b, bad)
            self._agree(other, scale_b, bad_b, "SFB of the pair")
        return scale_a, scale_b, bad_a, bad_b

    def _factors(
        self, memory: TensorMemory, where: Placed, first: int, what: str
    ) -> tuple[npt.NDArray[np.uint8], Bools | None]:
        """Bytes first … of each cell. All replicas must agree: which one the hardware reads is not documented."""
        count = self.product.k // self.product.block
        words, known = memory.read(self, where)
        factors = words.view(np.uint8).reshape(*words.shape, 4)[..., first : first + count]
        bad: Bools | None = None
        if known is not None:
            undefined = known.view(np.uint8).reshape(*words.shape, 4)[..., first : first + count] == 0
            bad = undefined.any(axis=(0, 2))
        for replica in factors[1:]:
            self._agree(replica, factors[0], bad, what)
        return np.ascontiguousarray(factors[0]), bad

    def _agree(self, a: Codes, b: Codes, bad: Bools | None, what: str) -> None:
        """Errors: SML0864 rows that are defined and differ."""
        differ = (a != b).any(axis=1)
        if bad is not None:
            differ &= ~bad
        if differ.any():
            raise error("SML0864", at=self.loc, what=what, row=int(differ.argmax()), who=self.who())

    def _metadata(self) -> tuple[npt.NDArray[np.uint8], Bools | None]:
        shifts = self.shifts.astype(np.uint32)
        parts: list[tuple[Codes, Bools | None]] = []
        for memory, where in zip(self.memories, self.metadata, strict=True):
            words, known = memory.read(self, where)
            codes = (words >> shifts & np.uint32(15)).astype(np.uint8)
            bad = None
            if known is not None:
                bad = ((known >> (shifts & np.uint32(24)) & np.uint32(1)) == 0).any(axis=(0, 2))
            for replica in codes[1:]:
                self._agree(replica, codes[0], bad, "sparse metadata")
            parts.append((codes[0], bad))
        return _stack(parts)

    def _legal(self, name: str, a: Codes, codes: Codes, bad: Bools | None) -> None:
        """Codes that PTX leaves undefined, where they select for values that are not zero. Errors: SML0865."""
        wrong = ~np.isin(codes, list(sparse.legal_codes(name))) & a.reshape(*codes.shape, -1).any(axis=2)
        if bad is not None:
            wrong &= ~bad[:, None]
        if wrong.any():
            row, chunk = (int(n) for n in np.argwhere(wrong)[0])
            raise error(
                "SML0865", at=self.loc, code=f"{int(codes[row, chunk]):04b}", row=row, chunk=chunk,
                legal=", ".join(f"{c:04b}" for c in sorted(sparse.legal_codes(name))), who=self.who(),
            )  # fmt: skip

    # -- D ----------------------------------------------------------------------------------------------

    def _accumulator(self) -> tuple[Codes | None, Bools | None]:
        if not self.product.accumulate:
            return None, None
        half = self.product.descriptor.d_type == "f16"
        needed = DEFINED & LOW if half else DEFINED
        parts: list[tuple[Codes, Bools | None]] = []
        for memory, where in zip(self.memories, self.d, strict=True):
            words, known = memory.read(self, where)
            bad = None if known is None else known & needed != needed
            parts.append((words.astype(np.uint16) if half else words, bad))
        return _stack(parts)

    def _write(self, d: Words, undefined: Bools | None) -> None:
        rows = len(d) // len(self.memories)
        for rank, (memory, where) in enumerate(zip(self.memories, self.d, strict=True)):
            mine = slice(rank * rows, (rank + 1) * rows)
            known = None if undefined is None else known_cells(undefined[mine])
            off = self.product.disabled[4 * rank : 4 * rank + 4]
            mask = None
            if any(off):
                mask = np.array([off[n // 32] >> n % 32 & 1 for n in range(LANES)], np.bool_)
            memory.write(self, where, d[mine], known, lanes_off=mask)


class Copy(TensorOp):
    """tcgen05.cp: rows of shared memory to lanes of tensor memory."""

    kind = "cp"

    def __init__(
        self, cta: CTA, issuer: Warp, loc: Loc | None, what: str, thread: Thread, group: int, address: int,
        source: Source, shape: str, multicast: str, fmt: str,
    ) -> None:  # fmt: skip
        self.source, self.shape, self.fmt = source, shape, fmt
        super().__init__(cta, issuer, loc, what, thread, group)
        self.copies = [self.cells(cells, address) for cells in tensor_cells.copied(shape, multicast)]

    def uses_shared(self, cta: CTA) -> bool:
        return not self.done and cta in self.ctas

    def work(self) -> None:
        units = self.source.units
        for n, (cta, memory) in enumerate(zip(self.ctas, self.memories, strict=True)):
            segment = cta.shared
            cta.machine.memory.checks.read_units(self, segment, self.source.flat)
            raw = np.ascontiguousarray(segment.opaque()[units]).view(np.uint8).reshape(len(units), -1)
            words = np.ascontiguousarray(self._expanded(raw)).view(np.uint32)
            known: Flags | None = None
            if segment.range_undefined(self.source.low, self.source.high):
                flags = np.ascontiguousarray(segment.opaque(flags=True)[units]).view(np.uint8).reshape(len(units), -1)
                known = np.ascontiguousarray(self._spread(flags)).view(np.uint32)
            for copy in self.copies:
                memory.write(self, copy[n], words, known)

    def _expanded(self, raw: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """4- and 6-bit elements, 16 in each 16 bytes, put into bytes of their own (PTX 9.7.16.9.1)."""
        groups = raw.reshape(len(raw), -1, 16)
        if self.fmt == "b4x16_p64":
            wide: npt.NDArray[np.uint8] = (unpack4(groups[..., :8]) << np.uint8(2)).reshape(len(raw), -1)
            return wide
        if self.fmt == "b6x16_p32":
            return unpack6(groups[..., :12]).reshape(len(raw), -1)
        return raw

    def _spread(self, flags: npt.NDArray[np.uint8]) -> npt.NDArray[np.uint8]:
        """Flags of source bytes as flags of the bytes that come of them."""
        groups = flags.reshape(len(flags), -1, 16)
        if self.fmt == "b4x16_p64":
            return groups[..., :8].repeat(2, axis=-1).reshape(len(flags), -1)
        if self.fmt == "b6x16_p32":  # element e lies in bits 6e … 6e+5
            first, last = np.arange(16) * 6 // 8, (np.arange(16) * 6 + 5) // 8
            return (groups[..., first] & groups[..., last]).reshape(len(flags), -1)
        return flags


class Shift(TensorOp):
    """tcgen05.shift.down: eight columns move down one lane in the 32-lane group; the last lane keeps its own."""

    kind = "shift"

    def __init__(
        self, cta: CTA, issuer: Warp, loc: Loc | None, what: str, thread: Thread, group: int, address: int
    ) -> None:
        super().__init__(cta, issuer, loc, what, thread, group)
        self.where = self.cells(tensor_cells.SHIFTED, address)

    def work(self) -> None:
        for memory, where in zip(self.memories, self.where, strict=True):
            words, known = memory.read(self, where)
            memory.write(self, where, _shifted(words), None if known is None else _shifted(known))


class Transfer(NamedTuple):
    """The part of one warp in a tcgen05.ld or st."""

    warp: Warp
    where: Placed


class RegisterOp(TensorOp):
    """tcgen05.ld or st of the warps of a gang, each on cells of its own and with its own knowledge."""

    def __init__(self, cta: CTA, loc: Loc | None, what: str, span: tuple[int, int], parts: list[Transfer]) -> None:
        self.span, self.parts = span, parts
        self.clocks = [part.warp.clock.copy() for part in parts]
        super().__init__(cta, [part.warp for part in parts], loc, what, (cta.rank, span), 0)
        self.touched += [(self.memories[0], part.where.blocks) for part in parts]


class Load(RegisterOp):
    """tcgen05.ld: cells [registers, parts, lanes] to registers of whole warps; two parts are 16-bit halves."""

    kind = "ld"
    interlocked = True

    def __init__(
        self, cta: CTA, loc: Loc | None, what: str, span: tuple[int, int], parts: list[Transfer],
        registers: list[int], reduce: Callable[[Words], Words] | None, awaited: bool,
    ) -> None:  # fmt: skip
        super().__init__(cta, loc, what, span, parts)
        self.registers, self.reduce = registers, reduce
        self.awaited = awaited  # whether the registers stay out of bounds until wait::ld
        self.results = frozenset(registers)

    def work(self) -> None:
        memory = self.memories[0]
        rows = self.cta.registers.rows[0]
        for (warp, where), clock in zip(self.parts, self.clocks, strict=True):
            words, known = memory.read(self, where, clock)
            bad = None
            if words.shape[1] == 1:
                words = words[:, 0]
                bad = None if known is None else known[:, 0] != DEFINED
            else:
                words = (words[:, 0] & LOW) | words[:, 1] << np.uint32(16)
                bad = None if known is None else (known & (DEFINED & LOW) != DEFINED & LOW).any(axis=1)
            if self.reduce is not None:
                words = np.concatenate([words, self.reduce(words)[None]])
                bad = None if bad is None else np.concatenate([bad, bad.any(axis=0)[None]])
            lo = warp.index * WARP
            for k, n in enumerate(self.registers):
                rows[n][lo : lo + WARP] = words[k]
                if bad is not None or self.cta.undefined:
                    self.cta.set_undefined(n, lo, lo + WARP, None if bad is None else bad[k])
            if not self.awaited:
                self.release(warp)
        self.cta.refresh()

    def release(self, warp: Warp) -> None:
        """The warp may use the registers again."""
        for n in self.registers:
            if warp.hazards.get(n) is self:
                del warp.hazards[n]


class Store(RegisterOp):
    """tcgen05.st: values [registers, parts, lanes] of whole warps, captured at issue, to cells."""

    kind = "st"

    def __init__(
        self, cta: CTA, loc: Loc | None, what: str, span: tuple[int, int], parts: list[Transfer], values: Words,
        undefined: Bools | None,
    ) -> None:  # fmt: skip
        super().__init__(cta, loc, what, span, parts)
        self.values, self.undefined = values, undefined

    def work(self) -> None:
        memory = self.memories[0]
        for (warp, where), clock in zip(self.parts, self.clocks, strict=True):
            lo = warp.index * WARP - self.span[0]
            mine = slice(lo, lo + WARP)
            known = None if self.undefined is None else known_cells(self.undefined[..., mine])
            memory.write(self, where, self.values[..., mine], known, clock)


class Commit(TensorOp):
    """tcgen05.commit: one arrival on each of some mbarriers once all earlier operations of the thread are complete.

    `bits` are those operations; `published` what fence::before_thread_sync, which a commit implies, orders before.
    """

    kind = "commit"

    def __init__(
        self, cta: CTA, issuer: Warp, loc: Loc | None, what: str, thread: Thread, group: int,
        targets: list[tuple[CTA, int]], bits: int,
    ) -> None:  # fmt: skip
        super().__init__(cta, issuer, loc, what, thread, group)
        self.targets = targets
        self.bits = bits | self.clock.ops
        self.published = bits | self.clock.tensor | self.clock.published

    def uses_shared(self, cta: CTA) -> bool:
        return not self.done and any(t is cta for t, _ in self.targets)

    def work(self) -> None:
        for cta, offset in self.targets:
            mbarrier.arrive_async(self, cta, offset, self.bits, self.published)


def _shifted(rows: Codes) -> Any:
    return np.concatenate([rows[1:], rows[-1:]])


def _stack(parts: list[tuple[Codes, Bools | None]]) -> tuple[Codes, Bools | None]:
    """The CTAs' rows one below the other, with their flags."""
    if len(parts) == 1:
        return parts[0]
    bad: Bools | None = None
    if any(f is not None for _, f in parts):
        like = next(f for _, f in parts if f is not None)
        bad = np.concatenate([np.zeros_like(like) if f is None else f for _, f in parts])
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


def _codes(raw: npt.NDArray[np.uint8], fmt: str, bits: int) -> Codes:
    """Bytes of A in tensor memory as codes: small formats lie in bytes, e2m1 in bits 5..2 (PTX 9.7.16.10.4)."""
    if bits == 4:
        return unpack4(raw)
    form = FORMATS[fmt]
    if bits == 8 and form.bits == 4:
        return raw >> 2 & 15
    if bits == 8 and form.bits == 6:
        return raw & 63
    return raw if bits == 8 else raw.view(form.dtype)
