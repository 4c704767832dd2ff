"""Floating-point instructions against exact fractions, rounded by hand: every rounding, NaN, infinities, subnormals."""

import math
from fractions import Fraction

import numpy as np
import pytest

from tests.vgpu import rational as r
from tests.vgpu.harness import execute

N = 96
ROUNDINGS = ["rn", "rz", "rm", "rp"]


def each(function, *rows):
    return [function(*map(int, xs)) for xs in zip(*rows, strict=True)]


def compare(got, want, *rows, fmt="f32"):
    wrong = [i for i, (g, w) in enumerate(zip(got.tolist(), want, strict=True)) if g != w]
    digits = r.size(fmt) // 4
    assert not wrong, [[f"{int(x[i]):0{digits}x}" for x in (*rows, got, want)] for i in wrong[:5]]


def samples(fmt, count):
    rows = [r.samples(fmt, N, seed) for seed in range(count)]
    if count > 1:  # cancellation, exact and nearly
        rows[1][::7] = rows[0][::7] ^ (1 << r.size(fmt) - 1)
        rows[1][3::14] = (rows[0][3::14] ^ (1 << r.size(fmt) - 1)) + 1
    return rows


def subtract(a, b, fmt, mode="rn"):
    return r.add(a, b if r.is_nan(b, fmt) else b ^ (1 << r.size(fmt) - 1), fmt, mode)


SCALAR = {"add": r.add, "sub": subtract, "mul": r.multiply}


@pytest.mark.parametrize("fmt", ["f32", "f64"])
@pytest.mark.parametrize("op", list(SCALAR))
def test_arithmetic(op, fmt):
    a, b = samples(fmt, 2)
    bits = f"b{r.size(fmt)}"
    compare(execute(f"{op}.{fmt}", bits, a, b), each(lambda x, y: SCALAR[op](x, y, fmt), a, b), a, b, fmt=fmt)
    for mode in ROUNDINGS:
        got = execute(f"{op}.{mode}.{fmt}", bits, a, b)
        compare(got, each(lambda x, y, mode=mode: SCALAR[op](x, y, fmt, mode), a, b), a, b, fmt=fmt)


def saturated(bits, fmt):
    if r.is_nan(bits, fmt) or r.negative(bits, fmt):
        return 0
    e, m, _ = r.FORMATS[fmt]
    return min(bits, ((1 << e - 1) - 1) << m)


def flushed(function, fmt):
    """The operation with subnormal operands and tiny results replaced by zeros."""

    def apply(*xs):
        r.FLUSH = True
        try:
            return r.flush(function(*(r.flush(x, fmt) for x in xs)), fmt)
        finally:
            r.FLUSH = False

    return apply


@pytest.mark.parametrize("op", list(SCALAR))
def test_flush_and_saturation(op):
    a, b = samples("f32", 2)
    a[:20] &= 0x81FFFFFF  # small numbers, whose sums and products are subnormal
    b[:20] &= 0xC1FFFFFF
    a[20:25] = [0x00800000, 0x00800001, 0x00FFFFFF, 0x01000000, 0x80800000]  # and just so, or rounded up out of it
    b[20:25] = [0x3F7FFFFF, 0x3F7FFFFE, 0x3F000000, 0x3EFFFFFF, 0x3F7FFFFF]

    def plain(x, y):
        return SCALAR[op](x, y, "f32")

    compare(execute(f"{op}.ftz.f32", "b32", a, b), each(flushed(plain, "f32"), a, b), a, b)
    compare(execute(f"{op}.sat.f32", "b32", a, b), each(lambda x, y: saturated(plain(x, y), "f32"), a, b), a, b)
    want = each(lambda x, y: saturated(flushed(plain, "f32")(x, y), "f32"), a, b)
    compare(execute(f"{op}.rn.ftz.sat.f32", "b32", a, b), want, a, b)


@pytest.mark.parametrize("fmt", ["f16", "bf16"])
@pytest.mark.parametrize("op", list(SCALAR))
def test_half(op, fmt):
    a, b = samples(fmt, 2)
    want = each(lambda x, y: SCALAR[op](x, y, fmt), a, b)
    compare(execute(f"{op}.{fmt}", "b16", a, b), want, a, b, fmt=fmt)
    packed = execute(f"{op}.{fmt}x2", "b32", a.view(np.uint32), b.view(np.uint32))
    compare(packed.view(np.uint16), want, a, b, fmt=fmt)
    if fmt == "f16":
        want = each(flushed(lambda x, y: SCALAR[op](x, y, fmt), fmt), a, b)
        compare(execute(f"{op}.ftz.f16", "b16", a, b), want, a, b, fmt=fmt)
        want = each(lambda x, y: saturated(SCALAR[op](x, y, fmt), fmt), a, b)
        compare(execute(f"{op}.sat.f16", "b16", a, b), want, a, b, fmt=fmt)


@pytest.mark.virtual  # sm_100
@pytest.mark.parametrize("op", list(SCALAR))
def test_pairs(op):
    a, b = samples("f32", 2)
    got = execute(f"{op}.rn.f32x2", "b64", a.view(np.uint64), b.view(np.uint64), arch="sm_100a").view(np.uint32)
    compare(got, each(lambda x, y: SCALAR[op](x, y, "f32"), a, b), a, b)
    got = execute(f"{op}.rm.ftz.f32x2", "b64", a.view(np.uint64), b.view(np.uint64), arch="sm_100a").view(np.uint32)
    compare(got, each(flushed(lambda x, y: SCALAR[op](x, y, "f32", "rm"), "f32"), a, b), a, b)


def widened(bits, fmt):
    """f16 or bf16 as f32 bits."""
    if r.is_nan(bits, fmt):
        return r.nan("f32")
    if r.is_inf(bits, fmt):
        return r.infinity("f32", r.negative(bits, fmt))
    x = r.value(bits, fmt)
    return r.rounded(x, "f32") if x else r.zero("f32", r.negative(bits, fmt))


@pytest.mark.virtual  # sm_100
@pytest.mark.parametrize("fmt", ["f16", "bf16"])
def test_mixed(fmt):
    a, b, c = r.samples(fmt, N, 1), r.samples("f32", N, 2), r.samples(fmt, N, 3)
    for op in ("add", "sub"):
        got = execute(f"{op}.rz.f32.{fmt}", "b32", a, b, arch="sm_100a")
        compare(got, each(lambda x, y, op=op: SCALAR[op](widened(x, fmt), y, "f32", "rz"), a, b), a, b)
    got = execute(f"fma.rn.f32.{fmt}", "b32", a, c, b, arch="sm_100a")
    compare(got, each(lambda x, y, z: r.fma(widened(x, fmt), widened(y, fmt), z, "f32"), a, c, b), a, c, b)


def triples(fmt):
    """Operands of fma, with products that nearly cancel c and ties between neighbours."""
    a, b, c = samples(fmt, 3)
    e, m, _ = r.FORMATS[fmt]
    one = ((1 << e - 1) - 1) << m
    a[:24], b[:24] = one + (1 << m // 2), one + np.arange(24) * 3
    for i in range(24):
        product = r.multiply(int(a[i]), int(b[i]), fmt)
        c[i] = (product ^ (1 << r.size(fmt) - 1)) + (i % 3) - 1
    c[24:40] = (a[24:40] & ~np.array((1 << m) - 1, a.dtype)) >> 1  # far apart: only the sticky part decides
    return a, b, c


@pytest.mark.parametrize("fmt", ["f32", "f64", "f16", "bf16"])
def test_fma(fmt):
    a, b, c = triples(fmt)
    bits = f"b{r.size(fmt)}"
    for mode in ROUNDINGS if fmt in ("f32", "f64") else ["rn"]:
        got = execute(f"fma.{mode}.{fmt}", bits, a, b, c)
        compare(got, each(lambda x, y, z, mode=mode: r.fma(x, y, z, fmt, mode), a, b, c), a, b, c, fmt=fmt)


def test_fma_ties():
    """Products that lie within a float64 rounding error of a tie of f32: rounding twice would go wrong."""
    one = 0x3F800000
    a = np.full(64, one + (1 << 12), np.uint32)  # 1 + 2^-11
    b = np.full(64, one + (1 << 12), np.uint32)
    k = np.arange(64)
    c = np.where(k % 2, 0x80000000, 0).astype(np.uint32) | ((127 - 60 - k % 8) << 23).astype(np.uint32)
    a[32:], b[32:] = one + 0x800001, one + 1
    c[32:] = (127 - 50 - k[32:] % 20) << 23
    compare(execute("fma.rn.f32", "b32", a, b, c), each(lambda x, y, z: r.fma(x, y, z, "f32"), a, b, c), a, b, c)


def test_fma_modifiers():
    a, b, c = triples("f32")
    a[:12] &= 0x81FFFFFF
    want = each(flushed(lambda x, y, z: r.fma(x, y, z, "f32"), "f32"), a, b, c)
    compare(execute("fma.rn.ftz.f32", "b32", a, b, c), want, a, b, c)
    want = each(lambda x, y, z: saturated(r.fma(x, y, z, "f32"), "f32"), a, b, c)
    compare(execute("fma.rn.sat.f32", "b32", a, b, c), want, a, b, c)

    def relu(bits, fmt):
        return bits if r.is_nan(bits, fmt) or not r.negative(bits, fmt) else 0

    for fmt in ("f16", "bf16"):
        a, b, c = triples(fmt)
        want = each(lambda x, y, z, fmt=fmt: relu(r.fma(x, y, z, fmt), fmt), a, b, c)
        compare(execute(f"fma.rn.relu.{fmt}", "b16", a, b, c), want, a, b, c, fmt=fmt)
        packed = execute(f"fma.rn.relu.{fmt}x2", "b32", *(x.view(np.uint32) for x in (a, b, c)))
        compare(packed.view(np.uint16), want, a, b, c, fmt=fmt)
        a[::5], b[1::5] = 0x7FF7, 0xFFF7  # what an out-of-bounds load leaves
        missing = (a == 0x7FF7) | (b == 0xFFF7) | (a == 0xFFF7) | (b == 0x7FF7)
        plain = each(lambda x, y, z, fmt=fmt: r.fma(x, y, z, fmt), a, b, c)
        want = [0 if m else w for m, w in zip(missing, plain, strict=True)]
        packed = execute(f"fma.rn.oob.{fmt}x2", "b32", *(x.view(np.uint32) for x in (a, b, c)))
        compare(packed.view(np.uint16), want, a, b, c, fmt=fmt)


def test_constants_and_guards():
    a = r.samples("f32", N, 1)
    half = 0x3F000000
    guard = np.arange(N) % 4 == 2
    for op in ("add", "mul"):
        want = each(lambda x, op=op: SCALAR[op](x, half, "f32"), a)
        compare(execute(f"{op}.f32", "b32", a, 0.5), want, a)
        got = execute(f"{op}.f32", "b32", a, 0.5, guard=guard)
        compare(got, [w if g else 0xC3C3C3C3 for w, g in zip(want, guard, strict=True)], a)


# -- division, roots ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", ["f32", "f64"])
@pytest.mark.parametrize("mode", ROUNDINGS)
def test_division_and_roots(fmt, mode):
    a, b = samples(fmt, 2)
    bits = f"b{r.size(fmt)}"
    one = 0x3F800000 if fmt == "f32" else 0x3FF0000000000000
    compare(execute(f"div.{mode}.{fmt}", bits, a, b), each(lambda x, y: r.divide(x, y, fmt, mode), a, b), a, b, fmt=fmt)
    compare(execute(f"rcp.{mode}.{fmt}", bits, a), each(lambda x: r.divide(one, x, fmt, mode), a), a, fmt=fmt)
    compare(execute(f"sqrt.{mode}.{fmt}", bits, a), each(lambda x: r.root(x, fmt, mode), a), a, fmt=fmt)
    if fmt == "f32":
        want = each(flushed(lambda x, y: r.divide(x, y, fmt, mode), fmt), a, b)
        compare(execute(f"div.{mode}.ftz.f32", bits, a, b), want, a, b)


def close(got, want, fmt, ulps):
    """Within `ulps` units in the last place, or the same special value."""
    for g, w in zip(got.tolist(), want, strict=True):
        if r.is_nan(w, fmt) or r.is_inf(w, fmt) or r.is_inf(g, fmt) or r.is_nan(g, fmt):
            assert g == w, (hex(g), hex(w))
        else:
            mask = (1 << r.size(fmt) - 1) - 1
            assert abs((g & mask) - (w & mask)) <= ulps and (r.negative(g, fmt) == r.negative(w, fmt) or w & mask == 0)


def of_float(function, fmt="f32"):
    """A function of a Python float as one of bits; domain errors are NaN."""

    def apply(bits):
        if r.is_nan(bits, fmt):
            return r.nan(fmt)
        x = math.copysign(math.inf, -r.negative(bits, fmt) or 1) if r.is_inf(bits, fmt) else float(r.value(bits, fmt))
        x = -0.0 if x == 0 and r.negative(bits, fmt) else x
        y = function(x)
        if math.isnan(y):
            return r.nan(fmt)
        if math.isinf(y):
            return r.infinity(fmt, y < 0)
        return r.rounded(Fraction(y), fmt) if y else r.zero(fmt, math.copysign(1, y) < 0)

    return apply


def safe(function, *limits):
    def apply(x):
        try:
            return function(x)
        except (ValueError, OverflowError, ZeroDivisionError):
            return limits[0](x) if limits else math.nan

    return apply


FUNCTIONS = {
    "sin": safe(math.sin), "cos": safe(math.cos),
    "lg2": safe(lambda x: -math.inf if x == 0 else math.log2(x)),
    "ex2": safe(lambda x: 2.0**x if x > -1100 else 0.0, lambda x: math.inf),
    "tanh": math.tanh, "rsqrt": safe(lambda x: math.copysign(math.inf, x) if x == 0 else 1 / math.sqrt(x)),
    "rcp": safe(lambda x: 1 / x, lambda x: math.copysign(math.inf, x)),
    "sqrt": safe(lambda x: x if x == 0 else math.sqrt(x)),
}  # fmt: skip


@pytest.mark.virtual  # the hardware's are approximate
@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_functions(name):
    a = r.samples("f32", N, 5)
    want = each(of_float(FUNCTIONS[name]), a)
    close(execute(f"{name}.approx.f32", "b32", a), want, "f32", 1)
    if name != "tanh":
        want = each(flushed(of_float(FUNCTIONS[name]), "f32"), a)
        close(execute(f"{name}.approx.ftz.f32", "b32", a), want, "f32", 1)


@pytest.mark.virtual
def test_half_functions():
    for name, fmt, modifier in (("ex2", "f16", ""), ("ex2", "bf16", ".ftz"), ("tanh", "f16", ""), ("tanh", "bf16", "")):
        a = r.samples(fmt, N, 5)
        function = of_float(FUNCTIONS[name], fmt)
        want = each(flushed(function, fmt) if modifier else function, a)
        close(execute(f"{name}.approx{modifier}.{fmt}", "b16", a), want, fmt, 1)
        close(execute(f"{name}.approx{modifier}.{fmt}x2", "b32", a.view(np.uint32)).view(np.uint16), want, fmt, 1)


@pytest.mark.virtual
def test_approximate_division():
    a, b = samples("f32", 2)
    want = each(lambda x, y: r.divide(x, y, "f32"), a, b)
    close(execute("div.full.f32", "b32", a, b), want, "f32", 2)
    big = np.array([0x7F000000, 0x7F7FFFFF, 0x7E800000, 0xFF000000], np.uint32)
    x = np.array([0x3F800000, 0x7F800000, 0x7F000000, 0x3F800000], np.uint32)
    got = execute("div.approx.f32", "b32", x, big)
    assert got.tolist() == [0, 0x7FFFFFFF, 0x40000000, 0x80000000]


@pytest.mark.virtual
def test_upper_halves_of_doubles():
    a = r.samples("f64", N, 5)
    one = 0x3FF0000000000000
    got = execute("rcp.approx.ftz.f64", "b64", a)
    want = each(flushed(lambda x: r.divide(one, x, "f64"), "f64"), a)
    assert (got & 0xFFFFFFFF).tolist() == [0] * N
    assert (got >> 32).tolist() == [w >> 32 for w in want]


# -- sign, extremes ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", ["f32", "f64", "f16", "bf16"])
def test_sign(fmt):
    a = r.samples(fmt, N, 1)
    top = 1 << r.size(fmt) - 1
    bits = f"b{r.size(fmt)}"

    def want(change):
        return [r.nan(fmt, x) if r.is_nan(x, fmt) else change(x) for x in map(int, a)]

    assert execute(f"neg.{fmt}", bits, a).tolist() == want(lambda x: x ^ top)
    assert execute(f"abs.{fmt}", bits, a).tolist() == want(lambda x: x & ~top)
    if fmt == "f32":
        assert execute("neg.ftz.f32", bits, a).tolist() == want(lambda x: r.flush(x, fmt) ^ top)
        assert execute("abs.ftz.f32", bits, a).tolist() == want(lambda x: r.flush(x, fmt) & ~top)
    if fmt in ("f32", "f64"):
        b = r.samples(fmt, len(a), 2)
        want = [int(x) & top | int(y) & ~top for x, y in zip(a, b, strict=True)]
        assert execute(f"copysign.{fmt}", bits, a, b).tolist() == want


def extreme(a, b, fmt, largest, propagate=False):
    if r.is_nan(a, fmt) or r.is_nan(b, fmt):
        if propagate or (r.is_nan(a, fmt) and r.is_nan(b, fmt)):
            return r.nan(fmt, b, a)
        return b if r.is_nan(a, fmt) else a

    def key(x):
        magnitude = math.inf if r.is_inf(x, fmt) else abs(r.value(x, fmt))
        return (-magnitude, 0) if r.negative(x, fmt) else (magnitude, 1)

    return (max if largest else min)((a, b), key=key)


@pytest.mark.parametrize("fmt", ["f32", "f64", "f16", "bf16"])
@pytest.mark.parametrize("op", ["min", "max"])
def test_extremes(op, fmt):
    a, b = samples(fmt, 2)
    bits = f"b{r.size(fmt)}"
    top = 1 << r.size(fmt) - 1
    want = each(lambda x, y: extreme(x, y, fmt, op == "max"), a, b)
    compare(execute(f"{op}.{fmt}", bits, a, b), want, a, b, fmt=fmt)
    if fmt == "f64":
        return
    propagated = each(lambda x, y: extreme(x, y, fmt, op == "max", True), a, b)
    compare(execute(f"{op}.NaN.{fmt}", bits, a, b), propagated, a, b, fmt=fmt)
    numbers = [not (r.is_nan(int(x), fmt) or r.is_nan(int(y), fmt)) for x, y in zip(a, b, strict=True)]
    a, b = a[numbers], b[numbers]
    want = each(lambda x, y: extreme(x & ~top, y & ~top, fmt, op == "max") | ((x ^ y) & top), a, b)
    compare(execute(f"{op}.xorsign.abs.{fmt}", bits, a, b), want, a, b, fmt=fmt)
    if fmt == "f32":
        want = each(lambda x, y: extreme(r.flush(x, fmt), r.flush(y, fmt), fmt, op == "max"), a, b)
        compare(execute(f"{op}.ftz.f32", bits, a, b), want, a, b)


@pytest.mark.virtual  # sm_100
def test_extremes_of_three():
    a, b, c = samples("f32", 3)
    want = each(lambda x, y, z: extreme(extreme(x, y, "f32", True), z, "f32", True), a, b, c)
    compare(execute("max.f32", "b32", a, b, c, arch="sm_100a"), want, a, b, c)
    low = 0x7FFFFFFF
    want = each(
        lambda x, y, z: extreme(extreme(x & low, y & low, "f32", False, True), z & low, "f32", False, True), a, b, c
    )
    compare(execute("min.NaN.abs.f32", "b32", a, b, c, arch="sm_100a"), want, a, b, c)


# -- comparisons -------------------------------------------------------------------------------------------


def holds(name, a, b, fmt):
    unordered = r.is_nan(a, fmt) or r.is_nan(b, fmt)
    if name in ("num", "nan"):
        return unordered == (name == "nan")
    base = name[:2]
    if unordered:
        return name.endswith("u") and len(name) == 3

    def number(x):
        return math.copysign(math.inf, -1 if r.negative(x, fmt) else 1) if r.is_inf(x, fmt) else r.value(x, fmt)

    x, y = number(a), number(b)
    return {"eq": x == y, "ne": x != y, "lt": x < y, "le": x <= y, "gt": x > y, "ge": x >= y}[base]


COMPARE = ["eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"]


@pytest.mark.parametrize("fmt", ["f32", "f64", "f16", "bf16"])
def test_comparisons(fmt):
    a, b = samples(fmt, 2)
    b[::3] = a[::3]
    c = np.arange(N) % 2 == 0
    for name in COMPARE:
        want = each(lambda x, y, name=name: holds(name, x, y, fmt), a, b)
        assert execute(f"setp.{name}.{fmt}", "pred", a, b).tolist() == want, name
    less = np.array(each(lambda x, y: holds("ltu", x, y, fmt), a, b))
    if fmt in ("f32", "f64"):
        p, q = execute(f"setp.ltu.xor.{fmt}", ("pred", "pred"), a, b, c)
        assert (p == (less ^ c)).all() and (q == (~less ^ c)).all()
    got = execute(f"set.ltu.and.u32.{fmt}", "b32", a, b, c)
    assert got.tolist() == np.where(less & c, 0xFFFFFFFF, 0).tolist()


def test_packed_comparisons():
    for fmt in ("f16", "bf16"):
        a, b = samples(fmt, 2)
        b[::3] = a[::3]
        c = np.arange(N // 2) % 2 == 0
        want = np.array(each(lambda x, y, fmt=fmt: holds("le", x, y, fmt), a, b)).reshape(-1, 2)
        p, q = execute(f"setp.le.{fmt}x2", ("pred", "pred"), a.view(np.uint32), b.view(np.uint32))
        assert (p == want[:, 0]).all() and (q == want[:, 1]).all()
        p, q = execute(f"setp.le.or.{fmt}x2", ("pred", "pred"), a.view(np.uint32), b.view(np.uint32), c)
        assert (p == want[:, 0] | c).all() and (q == want[:, 1] | c).all()
        one = 0x3C00 if fmt == "f16" else 0x3F80
        got = execute(f"set.le.{fmt}x2.{fmt}x2", "b32", a.view(np.uint32), b.view(np.uint32)).view(np.uint16)
        assert got.tolist() == np.where(want, one, 0).ravel().tolist()
        got = execute(f"set.le.u32.{fmt}x2", "b32", a.view(np.uint32), b.view(np.uint32)).view(np.uint16)
        assert got.tolist() == np.where(want, 0xFFFF, 0).ravel().tolist()


def test_comparison_with_flush():
    a = np.array([1, 0x80000001, 0x7FFFFF, 0x800000], np.uint32)
    b = np.zeros(4, np.uint32)
    assert execute("setp.gt.f32", "pred", a, b).tolist() == [True, False, True, True]
    assert execute("setp.gt.ftz.f32", "pred", a, b).tolist() == [False, False, False, True]
    assert execute("setp.eq.ftz.f32", "pred", a, b).tolist() == [True, True, True, False]


@pytest.mark.parametrize("fmt", ["f32", "f64"])
def test_properties(fmt):
    a = r.samples(fmt, N, 1)
    e = r.FORMATS[fmt][0]

    def kind(x):
        _, exponent, fraction = r.fields(x, fmt)
        if exponent == (1 << e) - 1:
            return "notanumber" if fraction else "infinite"
        return "normal" if exponent else "subnormal" if fraction else "zero"

    kinds = each(kind, a)
    tests = {
        "finite": ("normal", "subnormal", "zero"), "infinite": ("infinite",),
        "number": ("normal", "subnormal", "zero", "infinite"),
        "notanumber": ("notanumber",), "normal": ("normal", "zero"), "subnormal": ("subnormal",),
    }  # fmt: skip
    for name, members in tests.items():
        assert execute(f"testp.{name}.{fmt}", "pred", a).tolist() == [k in members for k in kinds], name
    assert set(kinds) == {"notanumber", "infinite", "normal", "subnormal", "zero"}
