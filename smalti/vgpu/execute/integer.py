"""Integer arithmetic, bit fields, logic and integer comparisons (PTX 9.7.1, 9.7.2, 9.7.6, 9.7.8, 9.7.9.7)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from smalti.ptx.module import Immediate, Register, type_bits
from smalti.vgpu.execute import SIGNED, UNSIGNED, Context, Operation, executor
from smalti.vgpu.execute.bits import (
    bit_length,
    bit_reverse,
    byte_runs,
    multiply_high,
    permute,
    popcount,
    put_together,
    shift_left,
    shift_right,
)
from smalti.vgpu.execute.lanes import (
    destination,
    direct,
    general,
    multiply_add,
    rows,
    taint,
    tainted,
    write,
)
from smalti.vgpu.program import Step
from smalti.vgpu.warp import Bools, Gang, Row

Array = Any


def _three(context: Context, step: Step, function: Callable[..., Array]) -> Operation:
    """d = function(a, b, c), all of the instruction's type."""
    o, t = context.bind(step), step.form.get("type")
    return general(context, o["d"], t, function, [o["a"], o["b"], o["c"]], [t, t, t])


# -- packed types ------------------------------------------------------------------------------------------


def packed_dtype(type_: str) -> Any:
    """The element dtype of u16x2, s16x2; None for a type that is not packed."""
    if "x" not in type_:
        return None
    head = type_.split("x")[0]
    return (SIGNED if head[0] == "s" else UNSIGNED)[int(head[1:])]


def _packed(function: Callable[..., Array], type_: str) -> Callable[..., Array]:
    """The function applied to the elements of packed registers."""
    dtype = packed_dtype(type_)

    def apply(*operands: Array) -> Array:
        parts = [np.atleast_1d(np.ascontiguousarray(x)).view(dtype) for x in operands]
        return function(*parts).view(np.uint32)

    return apply


# -- add, sub, carries -------------------------------------------------------------------------------------


def _saturating(function: Callable[..., Array]) -> Callable[..., Array]:
    def apply(a: Array, b: Array) -> Array:
        exact = function(a.astype(np.int64), b.astype(np.int64))
        return np.clip(exact, -(1 << 31), (1 << 31) - 1).astype(np.int32)

    return apply


@executor("add.int", "sub.int")
def add(context: Context, step: Step) -> Operation:
    o, t = context.bind(step), step.form.get("type")
    function = np.add if step.opcode.startswith("add") else np.subtract
    operands = [o["a"], o["b"]]
    if packed_dtype(t) is not None:
        return general(context, o["d"], "b32", _packed(function, t), operands, ["b32"] * 2)
    if "sat" in step.form:
        return general(context, o["d"], t, _saturating(function), operands, [t, t])
    unsigned = "u" + t[1:]
    return direct(context, o["d"], unsigned, function, operands, unsigned)


def _carry(context: Context, step: Step) -> int:
    """The number of the carry flag, which the instruction reads or writes although it does not say so."""
    n = context.scratch("carry", 1)
    if step.opcode.startswith(("addc", "subc", "madc")):
        step.reads |= {n}
    if "cc" in step.opcode.split("."):
        step.writes |= {n}
    return n


def _carrying(context: Context, step: Step, add_it: bool, left: Callable[[Gang], tuple[Row, Row]]) -> Operation:
    """d = x ± y ± carry, where `left` gives x and y as unsigned rows; the flag after a subtraction is the borrow."""
    flag, d = _carry(context, step), destination(context, context.bind(step)["d"])
    takes, gives = flag in step.reads, flag in step.writes

    def run(g: Gang) -> None:
        x, y = left(g)
        carry = g.bank.u[flag] if takes else np.False_
        if add_it:
            first = x + y
            total = first + carry
            out = (first < x) | (total < first)
        else:
            first = x - y
            total = first - carry
            out = (x < y) | (first < carry)
        if d is not None:
            write(g, 0, d, total)
        if gives:
            write(g, 0, flag, out)

    return run


@executor("add.carry", "addc", "sub.carry", "subc")
def add_with_carry(context: Context, step: Step) -> Operation:
    o, bits = context.bind(step), type_bits(step.form.get("type"))
    sources = [context.source(o[k], f"u{bits}") for k in "ab"]

    def left(g: Gang) -> tuple[Row, Row]:
        x, y = rows(g, sources)
        return x, y

    return _carrying(context, step, step.opcode.startswith("add"), left)


@executor("mad.carry", "madc")
def mad_with_carry(context: Context, step: Step) -> Operation:
    o, t = context.bind(step), step.form.get("type")
    unsigned = "u" + t[1:]
    a, b = (context.source(o[k], t) for k in "ab")
    c = context.source(o["c"], unsigned)
    high = step.form.get("half") == "hi"

    def left(g: Gang) -> tuple[Row, Row]:
        x, y, z = rows(g, [a, b, c])
        product = multiply_high(x, y) if high else x * y
        return product.view(z.dtype), z

    return _carrying(context, step, True, left)


# -- multiplication ----------------------------------------------------------------------------------------


@executor("mul.int")
def mul(context: Context, step: Step) -> Operation:
    o, t = context.bind(step), step.form.get("type")
    if step.form.get("half") == "lo":
        unsigned = "u" + t[1:]
        return direct(context, o["d"], unsigned, np.multiply, [o["a"], o["b"]], unsigned)
    return general(context, o["d"], t, multiply_high, [o["a"], o["b"]], [t, t])


@executor("mul.wide", "mad.wide")
def multiply_wide(context: Context, step: Step) -> Operation:
    o, t = context.bind(step), step.form.get("type")
    return multiply_add(context, o["d"], [o[k] for k in "abc" if k in o], t, f"{t[0]}{2 * int(t[1:])}")


@executor("mad.int")
def mad(context: Context, step: Step) -> Operation:
    o, t = context.bind(step), step.form.get("type")
    if step.form.get("half") == "lo":
        return multiply_add(context, o["d"], [o["a"], o["b"], o["c"]], "u" + t[1:])
    return _three(context, step, lambda a, b, c: multiply_high(a, b) + c)


@executor("mad.sat")
def mad_sat(context: Context, step: Step) -> Operation:
    def function(a: Array, b: Array, c: Array) -> Array:
        return _saturating(np.add)(multiply_high(a, b), c)

    o = context.bind(step)
    return general(context, o["d"], "s32", function, [o["a"], o["b"], o["c"]], ["s32"] * 3)


def _multiply24(a: Array, b: Array, high: bool, dtype: Any) -> Array:
    """A half of the 48-bit product of 24-bit values: bits 0-31, or 16-47."""

    def cut(x: Array) -> Array:
        y = x.astype(np.int64) & 0xFFFFFF
        return np.where(y >> 23, y - (1 << 24), y) if np.dtype(dtype).kind == "i" else y

    product = cut(a) * cut(b)
    return ((product >> 16 if high else product) & 0xFFFFFFFF).astype(np.uint32).view(dtype)


@executor("mul24", "mad24", "mad24.sat")
def mul24(context: Context, step: Step) -> Operation:
    o, t = context.bind(step), step.form.get("type") or "s32"
    high, saturate = ".hi" in step.opcode, "sat" in step.opcode
    dtype = SIGNED[32] if t == "s32" else UNSIGNED[32]

    def function(a: Array, b: Array, *c: Array) -> Array:
        product = _multiply24(a, b, high, dtype)
        if not c:
            return product
        return _saturating(np.add)(product, c[0]) if saturate else product + c[0]

    operands = [o[k] for k in "abc" if k in o]
    return general(context, o["d"], t, function, operands, [t] * len(operands))


@executor("sad")
def sad(context: Context, step: Step) -> Operation:
    return _three(context, step, lambda a, b, c: c + (np.maximum(a, b) - np.minimum(a, b)))


@executor("dp4a", "dp2a")
def dot_product(context: Context, step: Step) -> Operation:
    o, form = context.bind(step), step.form
    types = [np.int8 if form.get(k) == "s32" else np.uint8 for k in ("atype", "btype")]
    a_dtype = types[0] if step.opcode.startswith("dp4a") else SIGNED[16] if types[0] is np.int8 else UNSIGNED[16]
    first = {"": slice(None), "lo": slice(0, 2), "hi": slice(2, 4)}[form.get("half")]
    sources = [context.source(o[k], "u32") for k in "abc"]
    d = context.number(o["d"])

    def run(g: Gang) -> None:
        a, b, c = rows(g, sources)
        left = a.view(a_dtype).reshape(g.width, -1).astype(np.int64)
        right = b.view(types[1]).reshape(g.width, 4)[:, first].astype(np.int64)
        write(g, 0, d, ((left * right).sum(axis=1) + c.astype(np.int64)).astype(np.uint32))

    return run


# -- division ----------------------------------------------------------------------------------------------


def divide(a: Array, b: Array) -> Array:
    """Quotient toward zero; all ones where b is 0."""
    if a.dtype.kind == "u":
        quotient = np.floor_divide(a, b)
    else:  # the most negative value by -1 wraps
        quotient = np.floor_divide(a - np.fmod(a, b), b)
    return np.where(b == 0, np.asarray(-1, np.int64).astype(a.dtype), quotient)


def remainder(a: Array, b: Array) -> Array:
    return np.where(b == 0, np.asarray(-1, np.int64).astype(a.dtype), np.fmod(a, b))


@executor("div.int", "rem", undefined=True)
def div(context: Context, step: Step) -> Operation:
    """PTX leaves the result of a division by zero open: it is undefined (its bits are all ones, as on an H200)."""
    o, t = context.bind(step), step.form.get("type")
    function = divide if step.opcode.startswith("div") else remainder
    fast = general(context, o["d"], t, function, [o["a"], o["b"]], [t, t])
    d, divisor = context.number(o["d"]), context.source(o["b"], t)

    def run(g: Gang) -> None:
        zero = np.equal(divisor(g), 0)
        flags = taint(g, step) if g.slow else None
        if np.count_nonzero(zero):
            zero = np.broadcast_to(zero, g.width)
            flags = zero if flags is None else flags | zero
        fast(g)
        if g.slow or flags is not None:
            g.set_undefined(d, flags)

    return run


# -- sign, minimum, maximum --------------------------------------------------------------------------------


@executor("abs.int", "neg.int")
def absolute(context: Context, step: Step) -> Operation:
    o, t = context.bind(step), step.form.get("type")
    return direct(context, o["d"], t, np.abs if step.opcode.startswith("abs") else np.negative, [o["a"]], t)


@executor("min.int", "max.int")
def extreme(context: Context, step: Step) -> Operation:
    o, t = context.bind(step), step.form.get("type")
    ufunc = np.minimum if step.opcode.startswith("min") else np.maximum
    operands = [o["a"], o["b"]]
    function: Callable[..., Array] = ufunc
    if "relu" in step.form:

        def function(a: Array, b: Array) -> Array:
            return np.maximum(ufunc(a, b), a.dtype.type(0))

    if packed_dtype(t) is not None:
        return general(context, o["d"], "b32", _packed(function, t), operands, ["b32"] * 2)
    if "relu" in step.form:
        return general(context, o["d"], t, function, operands, [t, t])
    return direct(context, o["d"], t, ufunc, operands, t)


# -- counting and finding bits -----------------------------------------------------------------------------


@executor("popc", "clz", "bfind", "brev")
def count(context: Context, step: Step) -> Operation:
    o, t = context.bind(step), step.form.get("type")
    bits = type_bits(t)
    name = step.form.row.name

    def find(a: Array) -> Array:
        magnitude = np.where(a < 0, ~a, a) if a.dtype.kind == "i" else a
        length = bit_length(magnitude.view(UNSIGNED[bits]))
        at = bits - length if "shiftamt" in step.form else length - 1
        return np.where(length == 0, -1, at).astype(np.int32).view(np.uint32)

    functions: dict[str, Callable[[Array], Array]] = {
        "popc": popcount, "clz": lambda a: bits - bit_length(a), "bfind": find, "brev": bit_reverse,
    }  # fmt: skip
    return general(context, o["d"], t if name == "brev" else "u32", functions[name], [o["a"]], [t])


@executor("fns")
def find_nth_set(context: Context, step: Step) -> Operation:
    def one(mask: int, base: int, offset: int) -> int:
        if offset == 0:
            return base if base < 32 and mask >> base & 1 else 0xFFFFFFFF
        places = range(base, 32) if offset > 0 else range(min(base, 31), -1, -1)
        found = [p for p in places if mask >> p & 1]
        return found[abs(offset) - 1] if abs(offset) <= len(found) else 0xFFFFFFFF

    def function(mask: Array, base: Array, offset: Array) -> Array:
        return np.array([one(*map(int, x)) for x in np.broadcast(mask, base, offset)], np.uint32)

    o = context.bind(step)
    operands = [o["mask"], o["base"], o["offset"]]
    return general(context, o["d"], "b32", function, operands, ["u32", "u32", "s32"])


# -- bit fields --------------------------------------------------------------------------------------------


def _low_ones(count: Array, dtype: Any) -> Array:
    """Words with the low `count` bits set."""
    return ~shift_left(np.asarray(-1, np.int64).astype(dtype), count)


@executor("bfe")
def extract(context: Context, step: Step) -> Operation:
    t = step.form.get("type")
    bits, signed = type_bits(t), t[0] == "s"

    def function(a: Array, b: Array, c: Array) -> Array:
        if bits == 32:
            start, length = np.bitwise_and(b, 0xFF), np.bitwise_and(c, 0xFF)
        else:  # an H200 takes the whole of both, not the low bytes that PTX 9.7.1.19 names
            start, length = np.minimum(b, 0xFF), np.minimum(c, 0xFF)
        field = shift_right(a, start) & _low_ones(np.minimum(length, np.uint32(bits)), a.dtype)
        if not signed:
            return field
        at = np.minimum(start + length - (length != 0), bits - 1)
        sign = (shift_right(a, at) & a.dtype.type(1)).astype(np.bool_) & (length != 0)
        inside = np.minimum(length, np.where(start < bits, bits - start, 0))
        return np.where(sign, field | ~_low_ones(inside, a.dtype), field)

    o = context.bind(step)
    return general(context, o["d"], f"u{bits}", function, [o["a"], o["b"], o["c"]], [f"u{bits}", "u32", "u32"])


@executor("bfi")
def insert(context: Context, step: Step) -> Operation:
    t = step.form.get("type")

    def function(a: Array, b: Array, c: Array, d: Array) -> Array:
        start, length = np.bitwise_and(c, 0xFF), np.bitwise_and(d, 0xFF)
        field = shift_left(_low_ones(length, a.dtype), start)
        return (b & ~field) | (shift_left(a, start) & field)

    o = context.bind(step)
    return general(context, o["f"], t, function, [o["a"], o["b"], o["c"], o["d"]], [t, t, "u32", "u32"])


@executor("szext")
def extend(context: Context, step: Step) -> Operation:
    clamp, t = step.form.get("mode") == "clamp", step.form.get("type")

    def function(a: Array, n: Array) -> Array:
        size = np.where(np.bool_(clamp) & (n >= 32), 32, n & np.uint32(31))
        mask = _low_ones(size, np.uint32)
        sign = shift_right(a, np.maximum(size, 1) - 1).astype(np.uint32) & np.uint32(1)
        negative = sign.astype(np.bool_) & (size > 0) & (size < 32) & np.bool_(t == "s32")
        return np.where(negative, a | ~mask, a & mask)

    o = context.bind(step)
    return general(context, o["d"], "u32", function, [o["a"], o["b"]], ["u32", "u32"])


@executor("bmsk")
def bit_mask(context: Context, step: Step) -> Operation:
    clamp = step.form.get("mode") == "clamp"

    def function(start: Array, width: Array) -> Array:
        first = start if clamp else start & np.uint32(31)
        length = width if clamp else width & np.uint32(31)
        ones = _low_ones(np.minimum(length, np.uint32(32)), np.uint32)
        return shift_left(ones, first)

    o = context.bind(step)
    return general(context, o["d"], "u32", function, [o["a"], o["b"]], ["u32", "u32"])


# -- logic -------------------------------------------------------------------------------------------------

_LOGIC = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}


@executor("and", "or", "xor", undefined=True)
def logic(context: Context, step: Step) -> Operation:
    """A defined zero makes `and` defined, defined ones make `or` defined, whatever the other operand is."""
    o, t = context.bind(step), step.form.get("type")
    name = step.form.row.name
    fast = direct(context, o["d"], t, _LOGIC[name], [o["a"], o["b"]], t)
    sources = [context.source(o[k], t) for k in "ab"]
    registers = [context.number(o[k]) if isinstance(o[k], Register) else None for k in "ab"]

    def flags(g: Gang) -> Bools | None:
        parts = [g.undefined(n) if n is not None else None for n in registers]
        if parts[0] is None and parts[1] is None:
            return None
        none = np.zeros(g.width, np.bool_)
        bad = [none if p is None else p for p in parts]
        result: Bools = bad[0] | bad[1]
        if name != "xor":
            for k in (0, 1):
                value = sources[k](g)
                result = result & ~(~bad[k] & ((value if name == "and" else ~value) == 0))
        return result

    return tainted(fast, context.number(o["d"]), flags)


@executor("not", "cnot")
def invert(context: Context, step: Step) -> Operation:
    o, t = context.bind(step), step.form.get("type")
    if step.form.row.name == "not":
        return direct(context, o["d"], t, np.invert, [o["a"]], t)
    return general(context, o["d"], t, lambda a: np.equal(a, 0), [o["a"]], [t])


Bitwise = Callable[[Array, Array, Array], Array]


def of_two(table: int) -> Callable[[Array, Array], Array]:
    """The bitwise function of two words whose value for bits a, b is bit 2a + b of `table` (not a constant one)."""
    simple: dict[int, Callable[[Array, Array], Array]] = {
        0xC: lambda a, b: a, 0xA: lambda a, b: b, 0x3: lambda a, b: ~a, 0x5: lambda a, b: ~b,
        0x8: np.bitwise_and, 0xE: np.bitwise_or, 0x6: np.bitwise_xor, 0x9: lambda a, b: ~(a ^ b),
        0x7: lambda a, b: ~(a & b), 0x1: lambda a, b: ~(a | b), 0x4: lambda a, b: a & ~b, 0x2: lambda a, b: b & ~a,
        0xD: lambda a, b: a | ~b, 0xB: lambda a, b: b | ~a,
    }  # fmt: skip
    return simple[table]


def lookup(table: int) -> Bitwise:
    """The bitwise function of three words whose value for bits a, b, c is bit 4a + 2b + c of `table`: what b and c make
    of a one bit of a, and of a zero bit, put together."""
    one, zero = table >> 4, table & 15

    def inner(half: int) -> Callable[[Array, Array], Array]:
        if half in (0, 15):
            return lambda b, c: np.zeros_like(b) if half == 0 else ~np.zeros_like(b)
        return of_two(half)

    if one == zero:
        f = inner(one)
        return lambda a, b, c: f(b, c) + np.zeros_like(a)
    if one == 15 - zero:
        f = inner(zero)
        return lambda a, b, c: a ^ f(b, c)
    if zero == 0 or one == 15:
        f, put = (inner(one), np.bitwise_and) if zero == 0 else (inner(zero), np.bitwise_or)
        return lambda a, b, c: put(a, f(b, c))
    if zero == 15 or one == 0:
        f, put = (inner(one), np.bitwise_or) if zero == 15 else (inner(zero), np.bitwise_and)
        return lambda a, b, c: put(~a, f(b, c))
    f, h = inner(one), inner(zero)
    return lambda a, b, c: (a & f(b, c)) | (~a & h(b, c))


@executor("lop3", "lop3.pred")
def logic3(context: Context, step: Step) -> Operation:
    o = context.bind(step)
    assert isinstance(o["lut"], Immediate)
    function = lookup(o["lut"].value & 0xFF)
    sources = [context.source(o[k], "u32") for k in "abc"]
    d = destination(context, o["d"])
    p = destination(context, o["p"]) if "p" in o else None
    combine = _LOGIC[step.form.get("bool") or "or"]
    q = context.source(o["q"], "pred") if "q" in o else None

    def run(g: Gang) -> None:
        value = function(*(s(g) for s in sources))
        predicate = combine(value != 0, q(g)) if q is not None else None
        if d is not None:
            write(g, 0, d, value)
        if p is not None:
            write(g, 0, p, predicate)

    return run


# -- shifts and permutation --------------------------------------------------------------------------------


@executor("shl", "shr")
def shift(context: Context, step: Step) -> Operation:
    o, t = context.bind(step), step.form.get("type")
    bits, left = type_bits(t), step.opcode.startswith("shl")
    kind = f"s{bits}" if t[0] == "s" else f"u{bits}"
    amount = o["b"]
    if isinstance(amount, Immediate):  # NumPy shifts by the width or more as PTX does
        amount = Immediate(min(amount.value & 0xFFFFFFFF, bits))
    elif bits != 32:
        function = shift_left if left else shift_right
        return general(context, o["d"], kind, function, [o["a"], amount], [kind, "u32"])
    if kind[0] == "s" and not isinstance(amount, Immediate):
        return general(context, o["d"], kind, shift_right, [o["a"], amount], [kind, "u32"])
    return direct(context, o["d"], kind, np.left_shift if left else np.right_shift, [o["a"], amount], kind)


@executor("shf")
def funnel(context: Context, step: Step) -> Operation:
    clamp, left = step.form.get("mode") == "clamp", step.form.get("direction") == "l"

    def function(a: Array, b: Array, c: Array) -> Array:
        n = np.minimum(c, np.uint32(32)) if clamp else c & np.uint32(31)
        both = b.astype(np.uint64) << np.uint64(32) | a.astype(np.uint64)
        n = n.astype(np.uint64)
        return ((both << n) >> np.uint64(32) if left else both >> n).astype(np.uint32)

    o = context.bind(step)
    return general(context, o["d"], "u32", function, [o["a"], o["b"], o["c"]], ["u32"] * 3)


@executor("prmt")
def prmt(context: Context, step: Step) -> Operation:
    o, mode = context.bind(step), step.form.get("mode")
    sources = [context.source(o[k], "u32") for k in "abc"]
    d = context.number(o["d"])
    if isinstance(o["c"], Immediate) and not mode and not o["c"].value & 0x8888:
        pieces = byte_runs(o["c"].value)
        return general(context, o["d"], "u32", lambda a, b: put_together(a, b, pieces), [o["a"], o["b"]], ["u32"] * 2)

    def run(g: Gang) -> None:
        a, b, c = rows(g, sources)
        write(g, 0, d, permute(a, b, c, mode))

    return run
