"""ld, st, mov and address arithmetic (PTX 9.7.9): which bytes each lane touches, in which space.

Every access goes through Memory; caches and eviction hints have no effect.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from smalti.ptx.module import Address, Immediate, Operand, Register, Sink, Variable, Vector, type_bits
from smalti.vgpu import definedness
from smalti.vgpu.execute import SIGNED, UNSIGNED, Context, Operation, Result, Source, executor, spread
from smalti.vgpu.execute.lanes import destination, direct, general, nothing, register_of, write
from smalti.vgpu.machine import PollWait
from smalti.vgpu.memory import CONST_WINDOW, GLOBAL_BASE, LOCAL_WINDOW, PARAM_WINDOW, SHARED_WINDOW
from smalti.vgpu.program import Step
from smalti.vgpu.warp import Bools, Gang, Row

Array = Any
WINDOWS = {"shared": SHARED_WINDOW, "local": LOCAL_WINDOW, "param": PARAM_WINDOW, "const": CONST_WINDOW, "global": 0}


# -- what all accesses share -------------------------------------------------------------------------------


def space_of(context: Context, step: Step, name: str = "a") -> tuple[str, Source]:
    """The state space of an address operand ("" is generic) and a function that gives its addresses."""
    pairs = step.form.pairs(step.instruction.operands)
    assert pairs is not None
    spec, operand = next((s, o) for s, o in pairs if s.name == name)
    space = step.form.type_of(spec)
    assert isinstance(operand, Address)
    base = operand.base
    if isinstance(base, Variable) and context.is_argument(base):
        space = "local"
    source = context.address(operand, space)
    return space, source


def active_addresses(g: Gang, address: Source) -> Row:
    """The addresses of the active lanes, one each."""
    at: Row = address(g)
    if not at.ndim:
        return np.full(g.count, at, np.int64)
    return at if g.mask is None else at[g.mask]


def order_of(step: Step) -> str:
    """The memory order of an access, as Memory.load takes it."""
    if ".mmio" in step.opcode:
        return "volatile"
    return step.form.get("sem") or "weak"


def polled(g: Gang, values: Array) -> PollWait | None:
    """A wait, if the gang looked here before, saw the same, and nothing in memory has changed since."""
    version, seen = g.machine.memory.version, values.tobytes()
    before = g.poll.get(g.pc)
    g.poll[g.pc] = (version, seen)
    return PollWait(g.machine.memory, "memory") if before == (version, seen) else None


def items_of(operand: Operand) -> list[Operand]:
    return list(operand.items) if isinstance(operand, Vector) else [operand]


def lay(g: Gang, number: int, values: Array, signed: Any) -> None:
    """Write one unsigned item for each active lane to a register, extended to its width."""
    if signed is not None:
        values = values.view(signed).astype(SIGNED[64]).view(np.uint64)
    if g.mask is None:
        g.bank.u[number][...] = values
    else:
        g.bank.u[number][g.mask] = values


def flag(g: Gang, number: int, bad: Bools | None) -> None:
    """Say which of the active lanes' values just written are undefined."""
    if bad is None:
        if g.slow:
            g.set_undefined(number, None)
        return
    row = bad
    if g.mask is not None:
        row = np.zeros(g.width, np.bool_)
        row[g.mask] = bad
    g.set_undefined(number, row)


def read_back(g: Gang, numbers: list[int | None], values: Array, bad: Bools | None, signed: Any) -> None:
    """Loaded items (and their flags) into the registers of a scalar or vector operand."""
    if len(numbers) == 1:
        if numbers[0] is not None:
            lay(g, numbers[0], values, signed)
            flag(g, numbers[0], bad)
        return
    for i, n in enumerate(numbers):
        if n is not None:
            lay(g, n, values[:, i], signed)
            flag(g, n, bad[:, i] if bad is not None else None)


class Items:
    """The values that an access takes from registers: one item, or the items of a vector, for each active lane."""

    def __init__(self, context: Context, operand: Operand, bits: int) -> None:
        operands = items_of(operand)
        self.bits = bits
        self.sources = [context.source(o, f"u{bits}" if bits < 128 else "b128") for o in operands]
        self.numbers = [context.number(o) if isinstance(o, Register) else None for o in operands]

    def values(self, g: Gang) -> Array:
        """[n] or [n, items]; 128-bit items are rows of two words."""
        if len(self.sources) == 1:
            row = self.sources[0](g)
            if self.bits < 128:
                row = spread(row, g)
            return row if g.mask is None else row[g.mask]
        out = np.empty((g.width, len(self.sources)), UNSIGNED[self.bits])
        for i, s in enumerate(self.sources):
            out[:, i] = s(g)
        return out if g.mask is None else out[g.mask]

    def undefined(self, g: Gang) -> Bools | None:
        """Which items are undefined, in the same shape; None if none is."""
        if not g.slow:
            return None
        flags = [g.undefined(n) if n is not None else None for n in self.numbers]
        if all(f is None for f in flags):
            return None
        none = np.zeros(g.width, np.bool_)
        out: Bools = np.stack([none if f is None else f for f in flags], axis=1)
        if len(flags) == 1:
            out = out[:, 0]
        return out if g.mask is None else out[g.mask]

    def bytes(self, g: Gang, values: Array) -> tuple[Array, Bools]:
        """The values as bytes [n, width], and which of them are undefined."""
        dtype = UNSIGNED[self.bits]
        known = [definedness.bits(g, n) if n is not None else None for n in self.numbers]
        none = np.zeros(g.width, dtype)
        words = np.stack([none if k is None else k.astype(dtype) for k in known], axis=1)
        if g.mask is not None:
            words = words[g.mask]
        raw = np.ascontiguousarray(values).reshape(len(words), -1).view(np.uint8)
        return raw, words.view(np.uint8) != 0


# -- ld, st ------------------------------------------------------------------------------------------------


@executor("ld", undefined=True)
def load(context: Context, step: Step) -> Operation:
    bound, t = context.bind(step), step.form.get("type")
    space, address = space_of(context, step)
    numbers = [destination(context, o) for o in items_of(bound["d"])]
    bits = type_bits(t)
    item = bits // 8
    width = item * len(numbers)
    signed = SIGNED[bits] if t[0] == "s" else None
    order = order_of(step)
    if space.startswith("param"):
        constant = _parameter(context, bound["a"], width)
        if constant is not None and bits <= 64:
            return _constant(numbers, constant.view(UNSIGNED[bits]), signed)
    strong = order != "weak"
    memory = context.machine.memory

    def run(g: Gang) -> Result:
        at = active_addresses(g, address)
        values, bad = memory.load(g, g.cta, space, at, width, g.lanes(), order, item)
        read_back(g, numbers, values, bad, signed)
        if bad is not None and 1 < item <= 8:
            _in_part(g, numbers, memory.undefined_bytes(g, g.cta, space, at, width), item, signed)
        return polled(g, values) if strong else None

    return run


def _in_part(g: Gang, numbers: list[int | None], bad: Bools, item: int, signed: Any) -> None:
    """Which bits of loaded items are undefined, by the bytes [n, width] that are."""
    words = np.where(bad, 0xFF, 0).astype(np.uint8).view(UNSIGNED[8 * item])
    for i, n in enumerate(numbers):
        if n is not None:
            column = words[:, i]
            if signed is not None:
                column = column.view(signed).astype(SIGNED[64]).view(np.uint64)
            row = np.zeros(g.width, g.bank.u[n].dtype)
            row[slice(None) if g.mask is None else g.mask] = column.astype(row.dtype)
            definedness.put(g, n, row)


def _parameter(context: Context, operand: Operand, width: int) -> Array | None:
    """The bytes of a kernel parameter at a place that is known now; None if it is not, or not wholly inside."""
    assert isinstance(operand, Address)
    if not isinstance(operand.base, Variable):
        return None
    at = context.machine.place_of(operand.base) + operand.offset
    segment = context.machine.params
    if operand.base not in context.program.function.params or at < 0 or at + width > segment.size or at % width:
        return None
    return segment.data[at : at + width].copy()


def _constant(numbers: list[int | None], values: Array, signed: Any) -> Operation:
    rows = [
        (n, np.asarray(v if signed is None else v.view(signed).astype(np.int64).view(np.uint64)))
        for n, v in zip(numbers, values, strict=True)
        if n is not None
    ]

    def run(g: Gang) -> None:
        for n, v in rows:
            write(g, 0, n, v)
            flag(g, n, None)

    return run


@executor("st", undefined=True)
def store(context: Context, step: Step) -> Operation:
    bound, t = context.bind(step), step.form.get("type")
    space, address = space_of(context, step)
    items = Items(context, bound["b"], type_bits(t))
    width = type_bits(t) // 8 * len(items.sources)
    order = order_of(step)
    memory = context.machine.memory

    def run(g: Gang) -> None:
        at = active_addresses(g, address)
        values, bad = items.values(g), items.undefined(g)
        if bad is not None and g.cta.unknown and items.bits < 128:
            values, bad = items.bytes(g, values)
        memory.store(g, g.cta, space, at, width, values, g.lanes(), bad, order)

    return run


@executor("st.bulk", undefined=True)
def store_bulk(context: Context, step: Step) -> Operation:
    """Zeros, `size` bytes (a multiple of 8) from each lane's address on."""
    bound = context.bind(step)
    _, address = space_of(context, step)
    size = context.source(bound["size"], "u64")

    def run(g: Gang) -> None:
        at = active_addresses(g, address)
        sizes = g.pick(spread(size(g), g))
        for one, length, lane in zip(at, sizes, g.lanes(), strict=True):
            places = one + np.arange(0, int(length), 8)
            lanes = np.full(len(places), lane)
            g.machine.memory.store(g, g.cta, "shared::cta", places, 8, np.zeros(len(places), np.uint64), lanes)

    return run


# -- mov ---------------------------------------------------------------------------------------------------


@executor("mov")
def move(context: Context, step: Step) -> Operation:
    first, second = step.instruction.operands
    t = step.form.get("type")
    if isinstance(second, Vector):
        return _pack(context, first, second, type_bits(t))
    if isinstance(first, Vector):
        return _unpack(context, first, second, t)
    d = context.number(first)
    if t == "b128":
        a = context.source(second, t)
        return lambda g: _copy(g, d, a(g))
    if t == "pred":
        return direct(context, first, t, np.logical_or, [second, second], t)
    bits = f"u{type_bits(t)}"
    if isinstance(second, Immediate):
        value = np.asarray(context.constant(second, t)).reshape(1).view(UNSIGNED[type_bits(t)])[0]
        constant = np.asarray(value)
        return lambda g: write(g, 0, d, constant)
    n = register_of(context, second, bits)
    if n is not None:
        return lambda g: write(g, 0, d, g.bank.u[n])
    source = context.source(second, bits)
    return lambda g: write(g, 0, d, source(g))


def _copy(g: Gang, number: int, values: Array) -> None:
    if g.mask is None:
        g.bank.u[number][...] = values
    else:
        g.bank.u[number][g.mask] = values[g.mask]


def _pack(context: Context, first: Operand, second: Vector, bits: int) -> Operation:
    d, part = context.number(first), bits // len(second.items)
    if len(second.items) == 2 and part == 32:
        low, high = (context.source(o, "u32") for o in second.items)

        def two(g: Gang) -> None:
            if g.mask is None:
                halves = g.bank.u[d].view(np.uint32)
                lower, upper = low(g), high(g)
                if upper is not lower:
                    upper = upper.copy() if upper.ndim else upper
                halves[::2], halves[1::2] = lower, upper
            else:
                _packed(g, d, [low, high], part, bits)

        return two
    sources = [context.source(o, f"u{part}") for o in second.items]
    return lambda g: _packed(g, d, sources, part, bits)


def _packed(g: Gang, d: int, sources: list[Source], part: int, bits: int) -> None:
    out = np.empty((g.width, len(sources)), UNSIGNED[part])
    for i, s in enumerate(sources):
        out[:, i] = s(g)
    if bits == 128:
        _copy(g, d, out.view(np.uint64))
    else:
        write(g, 0, d, out.view(UNSIGNED[bits])[:, 0])


def _unpack(context: Context, first: Vector, second: Operand, t: str) -> Operation:
    bits = type_bits(t)
    part = bits // len(first.items)
    numbers = [None if isinstance(o, Sink) else context.number(o) for o in first.items]
    source = context.source(second, f"u{bits}" if bits < 128 else t)
    count = len(numbers)

    def run(g: Gang) -> None:
        parts = np.ascontiguousarray(source(g)).view(UNSIGNED[part]).reshape(-1, count)
        if any(n is not None and np.shares_memory(parts, g.bank.u[n]) for n in numbers):
            parts = parts.copy()
        for i, n in enumerate(numbers):
            if n is not None:
                write(g, 0, n, parts[:, i])

    return run


# -- addresses ---------------------------------------------------------------------------------------------


def _window(step: Step) -> int:
    return WINDOWS[step.form.get("space").split("::")[0]]


@executor("cvta")
def convert_address(context: Context, step: Step) -> Operation:
    bound, size = context.bind(step), step.form.get("size")
    window = np.asarray(_window(step) & (1 << type_bits(size)) - 1, UNSIGNED[type_bits(size)])
    function = np.subtract if "to" in step.form else np.add
    return general(context, bound["d"], size, lambda a: function(a, window), [bound["a"]], [size])


@executor("isspacep")
def is_space(context: Context, step: Step) -> Operation:
    """Own and peers' shared memory are apart, as measured (h200-measured E16)."""
    bound, space = context.bind(step), step.form.get("space")
    p, a = destination(context, bound["p"]), context.source(bound["a"], "u64")
    if p is None:
        return nothing
    window = np.uint64(_window(step) or GLOBAL_BASE)

    def run(g: Gang) -> None:
        at = a(g)
        inside = (at ^ window) >> np.uint64(40) == 0
        if space.startswith("shared"):
            rank = (at & np.uint64(0xFFFFFFFFFF)) >> np.uint64(24)
            own = rank < len(g.cta.cluster.ctas) if space == "shared::cluster" else rank == g.cta.rank
            inside = inside & own
        write(g, 0, p, inside)

    return run


@executor("mapa")
def map_address(context: Context, step: Step) -> Operation:
    bound, t = context.bind(step), step.form.get("type")
    dtype = UNSIGNED[type_bits(t)]
    rank_bits, shift = dtype(0xFF000000), dtype(24)

    def function(a: Array, b: Array) -> Array:
        return (a & ~rank_bits) | (b.astype(dtype) << shift)

    return general(context, bound["d"], t, function, [bound["a"], bound["b"]], [t, "u32"])


@executor("getctarank")
def cta_rank(context: Context, step: Step) -> Operation:
    bound, t = context.bind(step), step.form.get("type")
    dtype = UNSIGNED[type_bits(t)]
    return general(context, bound["d"], "u32", lambda a: (a >> dtype(24)) & dtype(0xFF), [bound["a"]], [t])


# -- caches ------------------------------------------------------------------------------------------------


@executor("prefetch")
def prefetch(context: Context, step: Step) -> Operation:
    return nothing


@executor("discard", undefined=True)
def discard(context: Context, step: Step) -> Operation:
    """The 128 bytes at each address lose their values."""
    _, address = space_of(context, step)
    bound = context.bind(step)
    assert isinstance(bound["size"], Immediate)
    size = bound["size"].value

    def run(g: Gang) -> None:
        at = active_addresses(g, address)
        for segment, offsets, _ in g.machine.memory.resolve(g, g.cta, "global", at, 1):
            for offset in offsets:
                segment.discard(int(offset), min(int(offset) + size, segment.size))

    return run


# The bits of a cache policy have no documented meaning; these are the ones that hardware gives for a fraction of 1
# and programs write as constants.
_POLICY = {
    "L2::evict_normal": 0x16F0000000000000, "L2::evict_first": 0x12F0000000000000,
    "L2::evict_last": 0x14F0000000000000, "L2::evict_unchanged": 0x10F0000000000000,
}  # fmt: skip


@executor("createpolicy.range", "createpolicy.fractional", "createpolicy.cvt")
def create_policy(context: Context, step: Step) -> Operation:
    d = context.number(context.bind(step)["d"])
    value = np.asarray(_POLICY[step.form.get("first", "L2::evict_normal")], np.uint64)
    return lambda g: write(g, 0, d, value)
