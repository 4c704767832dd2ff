"""Integer instructions against Python's integers: every type, edge values, registers and constants, partial guards."""

import numpy as np
import pytest

from tests.vgpu.harness import POISON, WORDS, execute, signed, words

INTS = ["u16", "s16", "u32", "s32", "u64", "s64"]


def value(x, t):
    return signed(x, int(t[1:])) if t[0] == "s" else int(x)


def check(opcode, t, function, count=2, out=None, guard=None, others=()):
    """The instruction on random words of type t, then with a constant as last operand, then under a guard."""
    bits = int(t[1:])
    out_bits = out or bits
    operands = [words(bits, 64, seed) for seed in range(1, count + 1)]
    mask = (1 << out_bits) - 1

    def want(*rows):
        n = max(np.size(r) for r in rows)
        rows = [np.broadcast_to(r, n) for r in rows]
        return [function(*(value(x, t) for x in xs)) & mask for xs in zip(*rows, strict=True)]

    got = execute(opcode, f"b{out_bits}", *operands)
    assert got.tolist() == want(*operands)
    if count > 1:
        for constant in (5, (1 << bits - 1) - 1):
            given = [*operands[:-1], constant]
            assert execute(opcode, f"b{out_bits}", *given).tolist() == want(*given)
    guard = np.arange(64) % 3 == 1
    got = execute(opcode, f"b{out_bits}", *operands, guard=guard)
    poison = int.from_bytes(bytes([POISON]) * (out_bits // 8), "little")
    full = want(*operands)
    assert got.tolist() == [w if g else poison for w, g in zip(full, guard, strict=True)]


def clamp(x, bits=32):
    return max(-(1 << bits - 1), min((1 << bits - 1) - 1, x))


@pytest.mark.parametrize("t", INTS)
@pytest.mark.parametrize("op", ["add", "sub", "min", "max"])
def test_binary(op, t):
    function = {"add": lambda a, b: a + b, "sub": lambda a, b: a - b, "min": min, "max": max}[op]
    check(f"{op}.{t}", t, function)


def test_saturating():
    check("add.sat.s32", "s32", lambda a, b: clamp(a + b))
    check("sub.sat.s32", "s32", lambda a, b: clamp(a - b))


def test_minimum_with_relu():
    check("min.relu.s32", "s32", lambda a, b: max(min(a, b), 0))
    check("max.relu.s32", "s32", lambda a, b: max(a, b, 0))


@pytest.mark.parametrize("t", INTS)
def test_multiplication(t):
    bits = int(t[1:])
    check(f"mul.lo.{t}", t, lambda a, b: a * b)
    check(f"mul.hi.{t}", t, lambda a, b: a * b >> bits)
    check(f"mad.lo.{t}", t, lambda a, b, c: a * b + c, 3)
    check(f"mad.hi.{t}", t, lambda a, b, c: (a * b >> bits) + c, 3)
    check(f"sad.{t}", t, lambda a, b, c: c + abs(a - b), 3)


@pytest.mark.parametrize("t", ["u16", "s16", "u32", "s32"])
def test_wide(t):
    bits = int(t[1:])
    check(f"mul.wide.{t}", t, lambda a, b: a * b, out=2 * bits)
    a, b = words(bits, 64, 1), words(bits, 64, 2)
    c = words(2 * bits, 64, 3)
    got = execute(f"mad.wide.{t}", f"b{2 * bits}", a, b, c)
    want = [(value(x, t) * value(y, t) + int(z)) & (1 << 2 * bits) - 1 for x, y, z in zip(a, b, c, strict=True)]
    assert got.tolist() == want


def test_mad_hi_sat():
    check("mad.hi.sat.s32", "s32", lambda a, b, c: clamp((a * b >> 32) + c), 3)


@pytest.mark.parametrize("t", ["u32", "s32"])
def test_24_bits(t):
    def cut(x):
        return signed(x, 24) if t == "s32" else x & 0xFFFFFF

    check(f"mul24.lo.{t}", t, lambda a, b: cut(a) * cut(b))
    check(f"mul24.hi.{t}", t, lambda a, b: cut(a) * cut(b) >> 16)
    check(f"mad24.lo.{t}", t, lambda a, b, c: cut(a) * cut(b) + c, 3)
    check(f"mad24.hi.{t}", t, lambda a, b, c: (cut(a) * cut(b) >> 16) + c, 3)


def test_mad24_sat():
    def high(a, b):
        return signed(signed(a, 24) * signed(b, 24) >> 16, 32)

    check("mad24.hi.sat.s32", "s32", lambda a, b, c: clamp(high(a, b) + c), 3)


@pytest.mark.parametrize("t", INTS)
def test_division(t):
    bits = int(t[1:])
    a, b = words(bits, 64, 1), words(bits, 64, 2)
    b[b == 0] = 3

    def quotient(x, y):
        q = abs(x) // abs(y)
        return -q if (x < 0) != (y < 0) else q

    mask = (1 << bits) - 1
    pairs = [(value(x, t), value(y, t)) for x, y in zip(a, b, strict=True)]
    assert execute(f"div.{t}", f"b{bits}", a, b).tolist() == [quotient(x, y) & mask for x, y in pairs]
    assert execute(f"rem.{t}", f"b{bits}", a, b).tolist() == [(x - y * quotient(x, y)) & mask for x, y in pairs]
    assert execute(f"div.{t}", f"b{bits}", a, 7).tolist() == [quotient(x, 7) & mask for x, _ in pairs]


@pytest.mark.parametrize("t", ["s16", "s32", "s64"])
def test_sign(t):
    check(f"abs.{t}", t, abs, 1)
    check(f"neg.{t}", t, lambda a: -a, 1)


@pytest.mark.parametrize("t", ["u16x2", "s16x2"])
@pytest.mark.parametrize("op", ["add", "min", "max"])
def test_packed(op, t):
    a, b = words(32, 64, 1), words(32, 64, 2)
    function = {"add": lambda x, y: x + y, "min": min, "max": max}[op]

    def want(x, y, relu=False):
        out = 0
        for shift in (0, 16):
            r = function(value(int(x) >> shift & 0xFFFF, t[:3]), value(int(y) >> shift & 0xFFFF, t[:3]))
            out |= ((max(r, 0) if relu else r) & 0xFFFF) << shift
        return out

    rows = list(zip(a, b, strict=True))
    assert execute(f"{op}.{t}", "b32", a, b).tolist() == [want(*r) for r in rows]
    guard = np.arange(64) < 9
    got = execute(f"{op}.{t}", "b32", a, b, guard=guard).tolist()
    assert got == [want(*r) if g else 0xC3C3C3C3 for r, g in zip(rows, guard, strict=True)]
    if t == "s16x2" and op != "add":
        assert execute(f"{op}.relu.{t}", "b32", a, b).tolist() == [want(*r, relu=True) for r in rows]


# -- carries -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("t", ["u32", "s32", "u64", "s64"])
def test_carry_chain(t):
    """Two-word sums and differences: the second word must take the first one's carry."""
    from tests.vgpu.harness import _Maker, finish, run

    bits = int(t[1:])
    parts = [words(bits, 64, s) for s in range(4)]
    parts[0][:8], parts[1][:8] = (1 << bits) - 1, np.arange(8)
    for first, second in (("add", "addc"), ("sub", "subc")):
        m = _Maker("sm_90a")
        a0, b0, a1, b1 = (m.operand(p) for p in parts)
        outs = [m.destination(f"b{bits}") for _ in range(3)]
        m.b.emit(f"{first}.cc.{t}", outs[0], a0, b0)
        m.b.emit(f"{second}.cc.{t}", outs[1], a1, b1)
        m.b.emit(f"{second}.{t}", outs[2], a1, a1)  # the flag out of the second
        for o in outs:
            m.store(o, 64)
        m.b.emit("ret")
        finish(m.module)
        low, high, last = run(m.module, *m.arrays, block=64)[4:]
        for i in range(64):
            x0, y0, x1, y1 = (int(p[i]) for p in parts)
            whole = (x1 << bits | x0) + (y1 << bits | y0) if first == "add" else (x1 << bits | x0) - (y1 << bits | y0)
            carry = whole >> 2 * bits & 1
            assert (int(high[i]) << bits | int(low[i])) == whole & (1 << 2 * bits) - 1
            assert int(last[i]) == (2 * x1 + carry if first == "add" else -carry) & (1 << bits) - 1


@pytest.mark.parametrize("t", ["u32", "u64", "s32", "s64"])
def test_mad_carry(t):
    """The product of two double words, as compilers write it: mad.lo.cc and madc.hi."""
    from tests.vgpu.harness import _Maker, finish, run

    bits = int(t[1:])
    a, b, c, d = (words(bits, 64, s) for s in range(4))
    m = _Maker("sm_90a")
    ra, rb, rc, rd = (m.operand(x) for x in (a, b, c, d))
    low, high, top = (m.destination(f"b{bits}") for _ in range(3))
    m.b.emit(f"mad.lo.cc.{t}", low, ra, rb, rc)
    m.b.emit(f"madc.hi.cc.{t}", high, ra, rb, rd)
    m.b.emit(f"addc.{t}", top, 0, 0)
    for o in (low, high, top):
        m.store(o, 64)
    m.b.emit("ret")
    finish(m.module)
    got = run(m.module, *m.arrays, block=64)[4:]
    mask = (1 << bits) - 1
    for i in range(64):
        product = value(a[i], t) * value(b[i], t)
        first = (product & mask) + int(c[i])
        second = (product >> bits & mask) + int(d[i]) + (first >> bits)
        assert [int(x[i]) for x in got] == [first & mask, second & mask, second >> bits]


# -- bits --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [32, 64])
def test_counting(bits):
    t = f"b{bits}"
    a = words(bits)
    assert execute(f"popc.{t}", "b32", a).tolist() == [int(x).bit_count() for x in a]
    assert execute(f"clz.{t}", "b32", a).tolist() == [bits - int(x).bit_length() for x in a]
    assert execute(f"brev.{t}", t, a).tolist() == [int(f"{int(x):0{bits}b}"[::-1], 2) for x in a]


@pytest.mark.parametrize("t", ["u32", "s32", "u64", "s64"])
def test_find(t):
    bits = int(t[1:])
    a = words(bits)

    def position(x):
        x = value(x, t)
        return (~x if x < 0 else x).bit_length() - 1

    assert execute(f"bfind.{t}", "b32", a).tolist() == [position(x) & 0xFFFFFFFF for x in a]
    want = [bits - 1 - p if (p := position(x)) >= 0 else 0xFFFFFFFF for x in a]
    assert execute(f"bfind.shiftamt.{t}", "b32", a).tolist() == want


def test_find_nth():
    masks, base = words(32), (np.arange(64) % 32).astype(np.uint32)
    offset = (np.arange(64) % 7 - 3).astype(np.int32)

    def want(mask, b, n):
        if n == 0:
            return b if mask >> b & 1 else 0xFFFFFFFF
        step = 1 if n > 0 else -1
        left = abs(n) - 1
        while 0 <= b < 32:
            if mask >> b & 1:
                if left == 0:
                    return b
                left -= 1
            b += step
        return 0xFFFFFFFF

    got = execute("fns.b32", "b32", masks, base, offset.view(np.uint32))
    assert got.tolist() == [want(*map(int, r)) for r in zip(masks, base, offset, strict=True)]


@pytest.mark.parametrize("t", ["u32", "s32", "u64", "s64"])
def test_extract(t):
    bits = int(t[1:])
    a = words(bits)
    start, length = words(32, 64, 5) % (bits + 9), words(32, 64, 6) % (bits + 9)
    start[:4], length[:4] = [0, 255, 3, 256 + 3], [0, 255, 0, 512 + 4]

    def want(x, pos, size):
        if bits == 32:  # an H200 takes low bytes only here
            pos, size = pos & 255, size & 255
        sign = x >> min(pos + size - 1, bits - 1) & 1 if t[0] == "s" and size else 0
        return sum((x >> pos + i & 1 if i < size and pos + i < bits else sign) << i for i in range(bits))

    rows = [tuple(map(int, r)) for r in zip(a, start, length, strict=True)]
    assert execute(f"bfe.{t}", f"b{bits}", a, start, length).tolist() == [want(*r) for r in rows]
    assert execute(f"bfe.{t}", f"b{bits}", a, 7, 9).tolist() == [want(x, 7, 9) for x, _, _ in rows]


@pytest.mark.parametrize("bits", [32, 64])
def test_insert(bits):
    a, b = words(bits, 64, 1), words(bits, 64, 2)
    start, length = words(32, 64, 5) % (bits + 9), words(32, 64, 6) % (bits + 9)

    def want(x, y, pos, size):
        for i in range(size & 255):
            if (pos & 255) + i < bits:
                y = y & ~(1 << (pos & 255) + i) | (x >> i & 1) << (pos & 255) + i
        return y

    got = execute(f"bfi.b{bits}", f"b{bits}", a, b, start, length)
    assert got.tolist() == [want(*map(int, r)) for r in zip(a, b, start, length, strict=True)]


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_masks(mode):
    a, n = words(32, 64, 1), words(32, 64, 5) % 40
    clamp_ = mode == "clamp"

    def ones(k):
        return (1 << k) - 1

    def extended(x, k, t):
        size = min(k, 32) if clamp_ else k & 31
        low = x & ones(size)
        return (low | (0xFFFFFFFF & ~ones(size))) if t == "s32" and size and low >> size - 1 & 1 else low

    for t in ("u32", "s32"):
        got = execute(f"szext.{mode}.{t}", "b32", a, n)
        assert got.tolist() == [extended(int(x), int(k), t) & 0xFFFFFFFF for x, k in zip(a, n, strict=True)]
    start = words(32, 64, 9) % 40

    def mask(first, width):
        if not clamp_:
            first, width = first & 31, width & 31
        return ones(min(width, 64)) << first & 0xFFFFFFFF if first < 32 else 0

    got = execute(f"bmsk.{mode}.b32", "b32", start, n)
    assert got.tolist() == [mask(int(s), int(k)) for s, k in zip(start, n, strict=True)]


@pytest.mark.parametrize("a_type", ["u32", "s32"])
@pytest.mark.parametrize("b_type", ["u32", "s32"])
def test_dot_products(a_type, b_type):
    a, b, c = (words(32, 64, s) for s in (1, 2, 3))

    def part(x, i, bits, t):
        return value(int(x) >> i * bits & (1 << bits) - 1, f"{t[0]}{bits}")

    for i, name in enumerate((f"dp2a.lo.{a_type}.{b_type}", f"dp2a.hi.{a_type}.{b_type}")):
        want = [
            (int(z) + sum(part(x, k, 16, a_type) * part(y, 2 * i + k, 8, b_type) for k in range(2))) & 0xFFFFFFFF
            for x, y, z in zip(a, b, c, strict=True)
        ]
        assert execute(name, "b32", a, b, c).tolist() == want
    want = [
        (int(z) + sum(part(x, k, 8, a_type) * part(y, k, 8, b_type) for k in range(4))) & 0xFFFFFFFF
        for x, y, z in zip(a, b, c, strict=True)
    ]
    assert execute(f"dp4a.{a_type}.{b_type}", "b32", a, b, c).tolist() == want


# -- logic, shifts -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_logic(bits):
    t = f"u{bits}"
    check(f"and.b{bits}", t, lambda a, b: a & b)
    check(f"or.b{bits}", t, lambda a, b: a | b)
    check(f"xor.b{bits}", t, lambda a, b: a ^ b)
    check(f"not.b{bits}", t, lambda a: ~a, 1)
    check(f"cnot.b{bits}", t, lambda a: int(a == 0), 1)


def test_predicates():
    a, b = np.arange(64) % 2 == 1, np.arange(64) % 4 > 1
    for op, want in (("and", a & b), ("or", a | b), ("xor", a ^ b)):
        assert execute(f"{op}.pred", "pred", a, b).tolist() == want.tolist()
    assert execute("not.pred", "pred", a).tolist() == (~a).tolist()
    guard = np.arange(64) < 40
    assert execute("or.pred", "pred", a, b, guard=guard).tolist() == ((a | b) & guard).tolist()


@pytest.mark.parametrize("table", [0x00, 0xFF, 0x80, 0xFE, 0x96, 0xCA, 0x3C, 0xE8, 0x01, 0x58])
def test_lop3(table):
    a, b, c = (words(32, 64, s) for s in (1, 2, 3))

    def want(x, y, z):
        return sum((table >> (x >> i & 1) * 4 + (y >> i & 1) * 2 + (z >> i & 1) & 1) << i for i in range(32))

    rows = [want(*map(int, r)) for r in zip(a, b, c, strict=True)]
    assert execute("lop3.b32", "b32", a, b, c, table).tolist() == rows
    q = np.arange(64) % 2 == 0
    for op, combine in (("or", np.logical_or), ("and", np.logical_and)):
        d, p = execute(f"lop3.{op}.b32", ("b32", "pred"), a, b, c, table, q)
        assert d.tolist() == rows
        assert p.tolist() == combine(np.array(rows) != 0, q).tolist()


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_shifts(bits):
    a = words(bits)
    amounts = words(32, 64, 5) % (bits + 5)
    amounts[:3] = [0xFFFFFFFF, 65536, 1 << 31]
    for t, function in ((f"b{bits}", "shl"), (f"u{bits}", "shr"), (f"s{bits}", "shr"), (f"b{bits}", "shr")):

        def want(x, n, function=function, t=t):
            n = min(int(n), bits)
            x = value(x, t)
            return (x << n if function == "shl" else x >> n) & (1 << bits) - 1

        out = f"b{bits}"
        assert execute(f"{function}.{t}", out, a, amounts).tolist() == [want(*r) for r in zip(a, amounts, strict=True)]
        for n in (0, 1, bits - 1, bits, bits + 3, 255):
            assert execute(f"{function}.{t}", out, a, n).tolist() == [want(x, n) for x in a]


@pytest.mark.parametrize("mode", ["clamp", "wrap"])
def test_funnel(mode):
    a, b, n = words(32, 64, 1), words(32, 64, 2), words(32, 64, 5) % 70

    def amount(c):
        return min(int(c), 32) if mode == "clamp" else int(c) & 31

    rows = [(int(y) << 32 | int(x), amount(c)) for x, y, c in zip(a, b, n, strict=True)]
    assert execute(f"shf.l.{mode}.b32", "b32", a, b, n).tolist() == [(x << k) >> 32 & 0xFFFFFFFF for x, k in rows]
    assert execute(f"shf.r.{mode}.b32", "b32", a, b, n).tolist() == [x >> k & 0xFFFFFFFF for x, k in rows]


def test_permute():
    a, b, c = (words(32, 64, s) for s in (1, 2, 3))

    def want(x, y, selector):
        pool = (int(y) << 32 | int(x)).to_bytes(8, "little")
        out = []
        for i in range(4):
            s = int(selector) >> 4 * i & 15
            byte = pool[s & 7]
            out.append((0xFF if byte & 0x80 else 0) if s & 8 else byte)
        return int.from_bytes(bytes(out), "little")

    rows = list(zip(a, b, strict=True))
    assert execute("prmt.b32", "b32", a, b, c).tolist() == [want(x, y, s) for (x, y), s in zip(rows, c, strict=True)]
    for selector in (0x5410, 0x7632, 0x3210, 0x0123, 0xFEDC, 0x8009):
        assert execute("prmt.b32", "b32", a, b, selector).tolist() == [want(x, y, selector) for x, y in rows]


# The four selections of each mode, most significant byte first, as printed in PTX 9.7.9.7.
PRMT = {
    "f4e": ["3210", "4321", "5432", "6543"], "b4e": ["5670", "6701", "7012", "0123"],
    "rc8": ["0000", "1111", "2222", "3333"], "ecl": ["3210", "3211", "3222", "3333"],
    "ecr": ["0000", "1110", "2210", "3210"], "rc16": ["1010", "3232", "1010", "3232"],
}  # fmt: skip


@pytest.mark.parametrize("mode", PRMT)
def test_permute_modes(mode):
    a, b = words(32, 64, 1), words(32, 64, 2)
    for k, selection in enumerate(PRMT[mode]):
        want = []
        for x, y in zip(a, b, strict=True):
            pool = (int(y) << 32 | int(x)).to_bytes(8, "little")
            want.append(int.from_bytes(bytes(pool[int(s)] for s in reversed(selection)), "little"))
        assert execute(f"prmt.b32.{mode}", "b32", a, b, k).tolist() == want
        assert execute(f"prmt.b32.{mode}", "b32", a, b, np.full(64, k + 4, np.uint32)).tolist() == want


# -- comparison and selection ------------------------------------------------------------------------------

COMPARE = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b, "lo": lambda a, b: a < b, "ls": lambda a, b: a <= b,
    "hi": lambda a, b: a > b, "hs": lambda a, b: a >= b,
}  # fmt: skip


@pytest.mark.parametrize("t", [*INTS, "b16", "b32", "b64"])
def test_setp(t):
    bits = int(t[1:])
    a, b = words(bits, 64, 1), words(bits, 64, 2)
    b[::3] = a[::3]
    names = ["eq", "ne"] if t[0] == "b" else list(COMPARE) if t[0] == "u" else list(COMPARE)[:6]
    for name in names:
        want = [COMPARE[name](value(x, t), value(y, t)) for x, y in zip(a, b, strict=True)]
        assert execute(f"setp.{name}.{t}", "pred", a, b).tolist() == want
        assert execute(f"setp.{name}.{t}", "pred", a, 5).tolist() == [COMPARE[name](value(x, t), 5) for x in a]


def test_setp_with_another_predicate():
    a, b, c = words(32, 64, 1), words(32, 64, 2), np.arange(64) % 2 == 0
    less = a < b
    for op, combine in (("and", np.logical_and), ("or", np.logical_or), ("xor", np.logical_xor)):
        p, q = execute(f"setp.lt.{op}.u32", ("pred", "pred"), a, b, c)
        assert p.tolist() == combine(less, c).tolist()
        assert q.tolist() == combine(~less, c).tolist()
    p, q = execute("setp.lt.u32", ("pred", "pred"), a, b)
    assert (p == less).all() and (q == ~less).all()


def test_set():
    a, b, c = words(32, 64, 1), words(32, 64, 2), np.arange(64) % 2 == 0
    less = a.view(np.int32) < b.view(np.int32)
    assert execute("set.lt.u32.s32", "b32", a, b).tolist() == np.where(less, 0xFFFFFFFF, 0).tolist()
    assert execute("set.lt.and.f32.s32", "b32", a, b, c).tolist() == np.where(less & c, 0x3F800000, 0).tolist()


@pytest.mark.parametrize("bits", [16, 32, 64])
def test_selection(bits):
    a, b, c = words(bits, 64, 1), words(bits, 64, 2), np.arange(64) % 3 == 0
    want = np.where(c, a, b).tolist()
    assert execute(f"selp.b{bits}", f"b{bits}", a, b, c).tolist() == want
    assert execute(f"selp.u{bits}", f"b{bits}", a, 9, c).tolist() == np.where(c, a, 9).tolist()
    d = words(32, 64, 4)
    assert execute(f"slct.b{bits}.s32", f"b{bits}", a, b, d).tolist() == np.where(d >> 31, b, a).tolist()
    f = np.where(np.arange(64) % 5 == 0, 0x7FC00000, d).astype(np.uint32)
    f[:4] = [0x80000000, 0, 0x80000001, 1]
    nan = (f & 0x7FFFFFFF) > 0x7F800000
    positive = ((f >> 31 == 0) | (f == 0x80000000)) & ~nan
    assert execute(f"slct.b{bits}.f32", f"b{bits}", a, b, f).tolist() == np.where(positive, a, b).tolist()
    flushed = positive | ((f & 0x7F800000) == 0)
    assert execute(f"slct.ftz.b{bits}.f32", f"b{bits}", a, b, f).tolist() == np.where(flushed, a, b).tolist()


def test_words_cover_both_ends():
    for bits, dtype in WORDS.items():
        given = words(bits, 64).tolist()
        assert np.dtype(dtype).itemsize * 8 == bits and len(set(given)) > 20
