"""Operands of the tensor cores in shared memory: what a matrix descriptor makes them read, as element codes.

Serves wgmma and tcgen05. Knows descriptors and formats; no shapes of instructions, no arithmetic.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from smalti.errors import error
from smalti.layout.descriptors import SmemDescriptor, check_operand, decode_smem, operand_units
from smalti.numerics.formats import FORMATS, unpack4, unpack6

if TYPE_CHECKING:
    from smalti.vgpu.machine import CTA
    from smalti.vgpu.memory import Agent, Segment

Codes = npt.NDArray[Any]
Bools = npt.NDArray[np.bool_]
UNIT = 16
# Bytes of each 16 that hold data where small elements are padded to 8 bits (PTX 9.7.16.10.4.4).
_DATA = {4: 8, 6: 12}


@lru_cache
def container(fmt: str, padded: bool = False) -> int:
    """Bits that an element takes in shared memory; `padded`: 4- and 6-bit elements take 8 (f8f6f4, mxf8f6f4)."""
    bits = {"tf32": 32, "b1": 1}.get(fmt) or FORMATS[fmt].bits
    return max(bits, 8) if padded else bits


class Source(NamedTuple):
    """An operand in shared memory: the 16-byte units that the descriptor makes the tensor core read."""

    descriptor: SmemDescriptor
    units: npt.NDArray[np.int64]  # K-major [rows, K units], MN-major [K, row units]
    flat: npt.NDArray[np.int64]
    low: int  # first byte, and last byte + 1
    high: int
    transposed: bool
    format: str
    bits: int  # of the container


@lru_cache(4096)
def source(
    instruction: str, arch: str, bits: int, rows: int, k_bytes: int, fmt: str, transposed: bool, padded: bool = False
) -> Source:
    """The operand that the descriptor `bits` names; `instruction` is "wgmma" or "tcgen05".

    Errors: SML0416 bits that are no descriptor, SML0414 a swizzle that does not go with transposition, SML0415,
    SML0417.
    """
    d = decode_smem(arch, bits)
    width = container(fmt, padded)
    major = "MN" if transposed else "K"
    if transposed:
        check_operand(instruction, d.swizzle, major, container(fmt))
    units = operand_units(d, major=major, rows=rows, k_bytes=k_bytes, element_bits=max(width, 8))
    low, high = int(units.min()) * UNIT, (int(units.max()) + 1) * UNIT
    return Source(d, units, units.ravel(), low, high, transposed, fmt, width)


def check_window(agent: Agent, cta: CTA, operand: str, s: Source) -> None:
    """Errors: SML0830 an operand that lies outside of the CTA's shared memory (E10: faults, or reads zeros)."""
    segment = cta.shared
    if s.low < segment.low or s.high > segment.size:
        raise error(
            "SML0830", at=agent.loc, operand=operand, low=hex(s.low), high=hex(s.high), first=hex(segment.low),
            end=hex(segment.size), descriptor=str(tuple(s.descriptor)[1:6]), who=agent.who(),
        )  # fmt: skip


class Reader(Protocol):
    """An operation that reads operands from shared memory. `told`: the checks know what it reads."""

    spokesman: Any
    sources: tuple[Source, ...]
    told: bool


def tell(op: Any, queue: Iterable[Any], ctas: Iterable[CTA]) -> None:
    """Tell the checks what an operation reads from shared memory; and those behind it in its queue that are waited for
    together with it, all at once: their operands usually make up whole tiles."""
    if op.told:
        return
    first = op.spokesman or op
    batch: list[Reader] = []
    for other in queue:
        if (other.spokesman or other) is not first or not getattr(other, "sources", ()) or len(batch) == _MOST:
            break
        batch.append(other)
    for cta in ctas:
        segment, checks = cta.shared, cta.machine.memory.checks
        if not checks.read_spans(op, segment, _spans(tuple(s for other in batch for s in other.sources))):
            for cta in ctas:
                for s in op.sources:
                    checks.read_units(op, cta.shared, s.flat)
            return
    for other in batch:
        other.told = True


def _spans(sources: tuple[Source, ...]) -> tuple[slice, ...]:
    """The 16-byte units of some operands, as runs; made once for each combination."""
    key = tuple(map(id, sources))
    found = _REGIONS.get(key)
    if found is None:
        units = np.unique(np.concatenate([s.flat for s in sources]))
        edges = [0, *(np.flatnonzero(np.diff(units) != 1) + 1).tolist(), len(units)]
        runs = tuple(slice(int(units[a]), int(units[b - 1]) + 1) for a, b in pairwise(edges))
        if len(_REGIONS) >= 4096:
            _REGIONS.clear()
        found = _REGIONS[key] = (sources, runs if len(runs) <= _MOST else ())  # keeps the ids alive
    return found[1]


_MOST = 16  # operations told of at once, and runs that make up their operands
_REGIONS: dict[tuple[int, ...], tuple[tuple[Source, ...], tuple[slice, ...]]] = {}


def fetch(segment: Segment, s: Source) -> tuple[Codes, Bools | None]:
    """The operand [rows, K] in its format's container, and which of its rows have an undefined byte (None: none)."""
    codes = _elements(segment.opaque()[s.units], s)
    undefined: Bools | None = None
    if segment.range_undefined(s.low, s.high):
        known = segment.opaque(flags=True)[s.units].view(np.bool_).reshape(*s.units.shape, UNIT)
        known = known[..., : _DATA.get(FORMATS[s.format].bits, UNIT) if s.bits == 8 else UNIT]
        if not known.all():
            bad = np.logical_not(known).reshape(len(known), -1)
            if s.transposed:
                undefined = np.bitwise_or.reduce(bad.reshape(len(bad), -1, s.bits // 8), axis=2)
                undefined = np.bitwise_or.reduce(undefined, axis=0)
            else:
                undefined = np.bitwise_or.reduce(bad, axis=1)
    return (codes.T if s.transposed else codes), undefined


def _elements(raw: npt.NDArray[Any], s: Source) -> Codes:
    """Units [lines, n] as codes: padding and packing undone."""
    if s.bits == 1:
        return np.unpackbits(raw.view(np.uint8).reshape(len(raw), -1), axis=1, bitorder="little")
    width = FORMATS[s.format].bits if s.bits < 16 else s.bits
    if width >= 8:
        return raw.view(f"uint{width}").reshape(len(raw), -1)
    data = raw.view(np.uint8).reshape(len(raw), -1, UNIT)
    if s.bits == 8:
        data = data[..., : _DATA[width]]
    return (unpack4 if width == 4 else unpack6)(data).reshape(len(raw), -1)
