"""Random instructions that warps and CTAs execute together: exchange between lanes, shared memory, matrix fragments,
mma.sync, atomics. Everything is ordered by barriers, so that every result is determined.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from programs import Bits
from programs import operand as codes
from random_kernel import THREADS, Kernel
from random_scalar import form_of, vocabulary

FULL = "0xffffffff"
# member masks of a part of a warp, the lanes in them by (lane & low) == value
_PARTS = ((1, 0, 0x55555555), (1, 1, 0xAAAAAAAA), (2, 2, 0xCCCCCCCC), (16, 0, 0x0000FFFF), (31, 7, 0x00000080))
FLOATS = ("window", "few", "special", "bits")


# -- between lanes ---------------------------------------------------------------------------------------


def exchange(k: Kernel) -> None:
    """shfl, vote, match, redux, elect: of whole warps, and of the lanes in a mask."""
    d = k.dice
    for _ in range(4):
        whole = d.chance(65)
        low, value, mask = (0, 0, 0xFFFFFFFF) if whole else d.pick(_PARTS)
        guard = ""
        if not whole:
            lane, p = k.new("b32"), k.new("pred")
            k.emit(f"and.b32 {lane}, %me, {low};", f"setp.eq.u32 {p}, {lane}, {value};")
            guard = f"@{p} "
        _one_exchange(k, guard, f"{mask:#010x}", whole, low)
        k.rejoin()


def _one_exchange(k: Kernel, guard: str, mask: str, whole: bool, low: int) -> None:
    d = k.dice
    what = d.pick(["shfl", "shfl", "vote", "ballot", "match.any", "match.all", "redux", "redux", "elect"])
    out, p, x = k.new("b32"), k.new("pred"), k.operand("b32")
    k.emit(f"mov.b32 {out}, {k.operand('b32')};", f"setp.ne.u32 {p}, 0, 0;")
    if what == "shfl":
        mode = d.pick(["up", "down", "bfly", "idx"]) if whole else "bfly"  # a lane outside of the mask is undefined
        clamp = (
            (d.pick([0, 0x1800, 0x1C00, 5]) if mode == "up" else d.pick([31, 0x181F, 0x0807, 0x1C03])) if whole else 31
        )
        by = str(d.below(32)) if whole else str(d.below(32) & ~low & 31)
        if whole and d.chance(50):
            k.emit(f"and.b32 {(lane := k.new('b32'))}, {k.operand('b32')}, 31;")
            by = lane
        spelling = f"shfl.sync.{mode}.b32"
        k.emit(f"{guard}{spelling} {out}|{p}, {x}, {by}, {clamp}, {mask};")
    elif what == "vote":
        spelling = f"vote.sync.{d.pick(['all', 'any', 'uni'])}.pred"
        k.emit(f"{guard}{spelling} {p}, {d.pick(['', '!'])}{k.operand('pred')}, {mask};")
    elif what == "ballot":
        spelling = "vote.sync.ballot.b32"
        k.emit(f"{guard}{spelling} {out}, {k.operand('pred')}, {mask};")
    elif what in ("match.any", "match.all"):
        few = k.new("b32")
        k.emit(f"and.b32 {few}, {x}, {d.pick([0, 1, 3, 0x80000000])};")
        spelling = f"{what}.sync.{d.pick(['b32', 'b64'])}"
        if spelling.endswith("b64"):
            k.emit(f"mov.b64 {(wide := k.new('b64'))}, {{{k.fixed['b32'][1]}, {few}}};")
            if d.chance(60):
                k.emit(f"mov.b64 {wide}, {{{few}, {few}}};")
            few = wide
        k.emit(f"{guard}{spelling} {out}{'|' + p if what == 'match.all' else ''}, {few}, {mask};")
    elif what == "redux":
        spelling = "redux.sync." + d.pick(
            ["add.u32", "min.u32", "max.u32", "add.s32", "min.s32", "max.s32", "and.b32", "or.b32", "xor.b32"]
        )
        k.emit(f"{guard}{spelling} {out}, {x}, {mask};")
    else:
        spelling = "elect.sync"
        k.emit(f"{guard}{spelling} {out}|{p}, {mask};")
    k.result("b32", out, spelling)
    k.result("pred", p, spelling)


# -- shared memory ---------------------------------------------------------------------------------------


def exchange_memory(k: Kernel) -> None:
    """Every thread stores 16 bytes, the CTA meets, every thread loads another's, in pieces of any size."""
    d = k.dice
    start = k.region(THREADS * 16)
    mine, other = k.new("b32"), k.new("b32")
    k.emit(f"mad.lo.u32 {mine}, %me, 16, %base;")
    split = d.pick(["v4.b32", "v2.b64", "b32", "b16", "v2.b32"])
    if split == "v2.b64":
        k.emit(f"st.shared.v2.b64 [{mine}+{start}], {{{k.operand('b64')}, {k.operand('b64')}}};")
    elif split == "b16":
        for i in range(8):
            k.emit(f"st.shared.{d.pick(['b16', 'u16'])} [{mine}+{start + 2 * i}], {k.operand('b16')};")
    else:
        count = {"v4.b32": 4, "b32": 1, "v2.b32": 2}[split]
        for i in range(0, 4, count):
            values = ", ".join(k.operand("b32") for _ in range(count))
            k.emit(
                f"st.shared.{split} [{mine}+{start + 4 * i}], {{{values}}};"
                if count > 1
                else f"st.shared.b32 [{mine}+{start + 4 * i}], {values};"
            )
    k.sync()
    k.emit(f"xor.b32 {other}, %me, {d.below(THREADS)};", f"mad.lo.u32 {other}, {other}, 16, %base;")
    for type_ in (d.pick(["u8", "s8", "u16", "s16", "b8"]) for _ in range(3)):
        out, size = k.new("b32"), int(type_[1:]) // 8
        k.emit(f"ld.shared.{type_} {out}, [{other}+{start + d.below(16 // size) * size}];")
        k.result("b32", out, f"ld.shared.{type_}")
    if d.chance(50):
        four = k.news("b32", 4)
        k.emit(f"ld.shared.v4.b32 {{{', '.join(four)}}}, [{other}+{start}];")
        for register in four:
            k.result("b32", register, "ld.shared.v4.b32")
    else:
        two = k.news("b64", 2)
        k.emit(f"ld.shared.v2.b64 {{{', '.join(two)}}}, [{other}+{start}];")
        for register in two:
            k.result("b64", register, "ld.shared.v2.b64")


def atomics(k: Kernel) -> None:
    """Atomics on words of each thread's own; reductions of integers on words that eight threads share."""
    d = k.dice
    for family, _ in ((d.pick(["atom", "red"]), 0) for _ in range(3)):
        opcode = d.pick(vocabulary(family))
        form = form_of(opcode)
        if "b128" in opcode:
            continue
        count = int(form.get("vec", "v1")[1:])
        type_ = form.get("type")
        bits = int({"f16x2": "32", "bf16x2": "32", "bf16": "16"}.get(type_, type_[1:]))
        inside = "shared" in form.get("space")
        size = max(count * bits // 8, 4)
        words = np.ascontiguousarray(_values(k, type_, size * k.total * 8 // bits).view(np.uint32))
        address = _place(k, words, size, inside, "shared::cluster" in opcode)
        outs: list[str] = []
        b = f"b{bits}"
        if family == "atom":
            outs = k.news(b, count)
        values = [k.operand(b) for _ in range(count * (2 if ".cas" in opcode else 1))]
        group = "{" + ", ".join(values) + "}" if count > 1 else ", ".join(values)
        head = ("{" + ", ".join(outs) + "}, " if count > 1 else f"{outs[0]}, ") if outs else ""
        k.emit(f"{opcode} {head}[{address}], {group};")
        for register in outs:
            k.result(b, register, opcode)
        if inside:
            k.sync()
            after = k.new("b32")
            k.emit(
                f"ld.shared::cluster.b32 {after}, [{address}];"
                if "::cluster" in opcode
                else f"ld.shared.b32 {after}, [{address}];"
            )
            k.result("b32", after, f"after {opcode}")
    op = d.pick(["add.u32", "min.s32", "max.u32", "and.b32", "or.b32", "xor.b32", "inc.u32"])
    start, slot, old = k.region(THREADS * 4), k.new("b32"), k.new("b32")
    k.emit(f"mad.lo.u32 {slot}, %me, 4, %base;", f"st.shared.b32 [{slot}+{start}], {k.operand('b32')};")
    k.sync()
    k.emit(f"shr.u32 {slot}, %me, 3;", f"mad.lo.u32 {slot}, {slot}, 32, %base;")
    limit = "1000" if op == "inc.u32" else k.operand("b32")
    k.emit(f"red.shared.{op} [{slot}+{start}], {limit};")
    k.sync()
    k.emit(f"ld.shared.b32 {old}, [{slot}+{start}];")
    k.result("b32", old, f"red.shared.{op} of eight threads")


def _values(k: Kernel, type_: str, count: int) -> Bits:
    """`count` codes of a type, floating-point ones of a random family."""
    base = type_.removesuffix("x2")
    if base in ("f16", "bf16", "f32"):
        count *= 2 if type_.endswith("x2") else 1
        return codes(f"{k.name}{len(k.lines)}", count, base, k.dice.pick(FLOATS))
    bits = k.dice.bits(count, int(type_[1:]))
    if type_ == "f64":
        bits = bits & np.uint64(0x800FFFFFFFFFFFFF) | (np.uint64(1019) + bits >> np.uint64(60)) << np.uint64(52)
    return bits


def _place(k: Kernel, words: Bits, size: int, inside: bool, remote: bool) -> str:
    """A register with the address of this thread's `size` bytes, which hold its part of `words`."""
    per = size // 4
    if inside:
        start = k.region(THREADS * size, 16)
        address = k.new("b32")
        k.emit(f"mad.lo.u32 {address}, %me, {size}, %base;", f"add.u32 {address}, {address}, {start};")
        for i, register in enumerate(k.source(np.ascontiguousarray(words.reshape(per, k.total)))):
            k.emit(f"st.shared.b32 [{address}+{4 * i}], {register};")
        k.sync()
        return address
    address = k.new("b64")
    start = k.global_words(np.ascontiguousarray(words.reshape(-1)))
    k.emit(f"mad.wide.u32 {address}, %gid, {size}, %rw;", f"add.s64 {address}, {address}, {start};")
    return address


# -- matrices of 16-bit elements -------------------------------------------------------------------------


def matrices(k: Kernel) -> None:
    """ldmatrix, stmatrix and movmatrix, with the rows of a matrix at random places."""
    d = k.dice
    start = k.region(4 * 512)
    k.fill(start, k.random_words(4))
    k.sync()
    warp, row = k.new("b32"), k.new("b32")
    k.emit(f"and.b32 {warp}, %me, 96;", f"mad.lo.u32 {warp}, {warp}, 16, %base;")
    k.emit(f"mad.lo.u32 {row}, %me, {2 * d.below(16) + 1}, {d.below(32)};", f"and.b32 {row}, {row}, 31;")
    k.emit(f"mad.lo.u32 {row}, {row}, 16, {warp};")
    for _ in range(2):
        count, trans = d.pick([1, 2, 4]), d.pick(["", ".trans"])
        registers = k.news("b32", count)
        spelling = f"ldmatrix.sync.aligned.m8n8.x{count}{trans}{d.pick(['.shared', '.shared::cta'])}.b16"
        k.emit(f"{spelling} {{{', '.join(registers)}}}, [{row}+{start}];")
        for register in registers:
            k.result("b32", register, spelling)
    moved = k.new("b32")
    k.emit(f"movmatrix.sync.aligned.m8n8.trans.b16 {moved}, {k.operand('b32')};")
    k.result("b32", moved, "movmatrix")
    k.sync()
    count, trans = d.pick([1, 2, 4]), d.pick(["", ".trans"])
    spelling = f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16"
    k.emit(f"{spelling} [{row}+{start}], {{{', '.join(k.operand('b32') for _ in range(count))}}};")
    k.sync()
    k.dump(start, 2048, spelling)


# -- mma.sync --------------------------------------------------------------------------------------------

_BITS = {"f16": 16, "bf16": 16, "tf32": 32, "f32": 32, "e4m3": 8, "e5m2": 8}
_ORDERED = (0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110)


def fragment(k: Kernel, fmt: str, registers: int, family: str) -> list[str]:
    """Registers with codes of a format."""
    if fmt == "f64":
        bits = k.dice.bits(registers * k.total, 64)
        bits = bits & np.uint64(0x800FFFFFFFFFFFFF) | (np.uint64(1019) + bits >> np.uint64(60)) << np.uint64(52)
        words = k.source(np.ascontiguousarray(bits.view(np.uint32).reshape(-1, 2).T).reshape(2 * registers, k.total))
        made = k.news("b64", registers)
        for i, register in enumerate(made):
            k.emit(f"mov.b64 {register}, {{{words[i]}, {words[registers + i]}}};")
        return made
    if fmt in _BITS:
        bits = codes(f"{k.name} {len(k.lines)}", registers * k.total * 32 // _BITS[fmt], fmt, family)
        return k.source(bits.view(np.uint32).reshape(registers, k.total))
    return k.source(k.random_words(registers))


def metadata(k: Kernel, fmt: str, ordered: bool) -> str:
    """A register of random selection codes; sp::ordered_metadata promises that they ascend."""
    d = k.dice
    legal = (0b0100, 0b1110) if fmt == "tf32" else _ORDERED
    if ordered or d.chance(50):
        nibbles = np.array(legal, np.uint32)[d.bits(8 * k.total, 8).reshape(8, -1) % len(legal)]
        words = np.bitwise_or.reduce(nibbles << (4 * np.arange(8, dtype=np.uint32)[:, None]), axis=0)
        return k.source(words.reshape(1, -1).astype(np.uint32))[0]
    return k.source(k.random_words(1))[0]


def group(registers: list[str]) -> str:
    return "{" + ", ".join(registers) + "}"


def mma_operands(k: Kernel, opcode: str, family: str, c: list[str] | None = None) -> tuple[list[str], str]:
    """Registers for D, and the text of an mma.sync whose operands have codes of a family (C: given ones, if any)."""
    d, form = k.dice, form_of(opcode)
    specs = {s.name: s for s in form.lists()[0]}
    default = "f16" if "m8n8k4" in form.row.name else "f64"
    a, b, c_type = form.get("atype", default), form.get("btype", default), form.get("ctype")

    def count(name: str) -> int:
        return int(form.count_of(specs[name]) or 1)

    c = c or fragment(k, c_type, count("c"), family)
    out = k.news("b64" if a == "f64" else "b32", count("d"))
    operands = [group(fragment(k, x, count(n), family)) for x, n in ((a, "a"), (b, "b"))]
    more = ""
    if "selector" in specs:
        legal: Any = form.row.ranges["selector"]
        more = f", {metadata(k, a, 'ordered' in opcode)}, {_selector(d.pick(list(legal)), form.get('shape'), a)}"
    return out, f"{opcode} {group(out)}, {', '.join(operands)}, {group(c)}{more};"


def products(k: Kernel) -> None:
    """A chain of mma.sync of one spelling: the second adds to the first's result."""
    opcode = k.dice.pick(vocabulary("mma"))
    form = form_of(opcode)
    family = k.dice.pick(("window", "few", "special", "bits", "small", "zeros"))
    c: list[str] | None = None
    for _ in range(2 if form.get("dtype") == form.get("ctype") else 1):
        out, text = mma_operands(k, opcode, family, c)
        k.emit(f"bar.warp.sync {FULL};", text)
        for register in out:
            k.result("b64" if "f64" in opcode else "b32", register, opcode)
        c = out


# selectors of mma.sp by K and bits of an element (PTX 9.7.14.6)
_SELECTORS = {(16, 16): 4, (8, 32): 4, (32, 16): 2, (16, 32): 2, (32, 8): 2, (64, 4): 2, (64, 8): 1, (128, 4): 1}


def _selector(n: int, shape: str, fmt: str) -> int:
    depth = int(shape.split("k")[1])
    return n % _SELECTORS[depth, {"s4": 4, "u4": 4}.get(fmt) or _BITS.get(fmt, 8)]


PIECES = (exchange, exchange_memory, atomics, matrices, products, products)
