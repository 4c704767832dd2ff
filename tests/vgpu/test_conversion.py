"""cvt: every pair of scalar types against Python's integers and fractions; packing order of the packed forms."""

import math
from fractions import Fraction

import numpy as np
import pytest

from tests.vgpu import rational as r
from tests.vgpu.harness import execute, signed, words

INTS = ["u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64"]
FLOATS = ["f16", "bf16", "f32", "f64"]


def bits_of(t):
    return int("".join(c for c in t if c.isdigit()))


def register(t):
    return f"b{max(bits_of(t), 16)}"


def number(x, t):
    return signed(x, bits_of(t)) if t[0] == "s" else int(x) & (1 << bits_of(t)) - 1


def limits(t):
    bits = bits_of(t)
    return (-(1 << bits - 1), (1 << bits - 1) - 1) if t[0] == "s" else (0, (1 << bits) - 1)


def container(x, t):
    """The result in a register that may be wider: extended by the sign of the type."""
    width = max(bits_of(t), 16)
    return number(x, t) & (1 << width) - 1


@pytest.mark.parametrize("dtype", INTS)
@pytest.mark.parametrize("atype", INTS)
def test_integers(dtype, atype):
    a = words(max(bits_of(atype), 16))
    want = [container(number(x, atype), dtype) for x in a]
    assert execute(f"cvt.{dtype}.{atype}", register(dtype), a).tolist() == want
    guard = np.arange(64) % 5 == 0
    got = execute(f"cvt.{dtype}.{atype}", register(dtype), a, guard=guard)
    poison = int("c3" * (max(bits_of(dtype), 16) // 8), 16)
    assert got.tolist() == [w if g else poison for w, g in zip(want, guard, strict=True)]
    (low, high), (own_low, own_high) = limits(dtype), limits(atype)
    if own_low < low or own_high > high:
        want = [container(min(max(number(x, atype), low), high), dtype) for x in a]
        assert execute(f"cvt.sat.{dtype}.{atype}", register(dtype), a).tolist() == want


def test_wider_registers():
    """Source registers are cut to the type, results extended to the destination."""
    a = words(32)
    assert execute("cvt.s32.s16", "b32", a).tolist() == [signed(x, 16) & 0xFFFFFFFF for x in a]
    assert execute("cvt.s8.s32", "b64", a).tolist() == [signed(x, 8) & (1 << 64) - 1 for x in a]
    assert execute("cvt.u8.u32", "b64", a).tolist() == [int(x) & 0xFF for x in a]


def nearest_even(x):
    low = math.floor(x)
    rest = x - low
    return low + (rest > Fraction(1, 2) or (rest == Fraction(1, 2) and low % 2))


ROUND = {"rni": nearest_even, "rzi": math.trunc, "rmi": math.floor, "rpi": math.ceil}


def whole(x, atype, dtype, mode):
    low, high = limits(dtype)
    if r.is_nan(x, atype):
        return 1 << bits_of(dtype) - 1 if atype == "f64" or bits_of(dtype) == 64 else 0
    if r.is_inf(x, atype):
        return low if r.negative(x, atype) else high
    return min(max(ROUND[mode](r.value(x, atype)), low), high)


def near_integers(fmt, n=64):
    """Values with halves, around the limits of integer types."""
    special = [0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5, 127.5, 128, -128.5, 255.5, 256, 32767.5, 65535.5, -32769, 3.75]
    special += [-3.25, 2.0**31, 2.0**31 - 128, -(2.0**31), 2.0**32, 2.0**63, -(2.0**63), 2.0**64, 2.0**63 - 1024, 1e30]
    fits = [x for x in [*special, -1e30, 0.0] if abs(x) < 65504 or fmt != "f16"]
    rows = [r.rounded(Fraction(x), fmt) if x else 0 for x in fits]
    rows += [r.infinity(fmt), r.infinity(fmt, True), r.nan(fmt), 1]
    return np.array((rows * 3)[:n], r.WORDS[fmt])


@pytest.mark.parametrize("atype", FLOATS)
@pytest.mark.parametrize("dtype", INTS)
def test_float_to_integer(dtype, atype):
    if atype == "bf16" and bits_of(dtype) == 8:
        pytest.skip("no such form")
    a = near_integers(atype)
    for mode in ROUND:
        want = [container(whole(int(x), atype, dtype, mode), dtype) for x in a]
        assert execute(f"cvt.{mode}.{dtype}.{atype}", register(dtype), a).tolist() == want, mode
    if atype == "f32":
        tiny = np.array([1, 0x80000001, 0x7FFFFF, 0x800000], np.uint32)
        up, down = limits(dtype)[1] and 1, limits(dtype)[0] and -1
        assert execute(f"cvt.rpi.ftz.{dtype}.f32", register(dtype), tiny).tolist() == [0, 0, 0, up]
        assert execute(f"cvt.rmi.{dtype}.f32", register(dtype), tiny).tolist() == [0, container(down, dtype), 0, 0]


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("atype", INTS)
def test_integer_to_float(dtype, atype):
    if dtype == "bf16" and bits_of(atype) == 8:
        pytest.skip("no such form")
    a = words(max(bits_of(atype), 16))
    if bits_of(atype) == 64:  # ties of f32 and f64, decided by the last bit
        big = 1 << 62
        a[:4] = [big + (1 << 38), big + (1 << 38) + 1, (1 << 54) + 2, (1 << 54) + 3]
        a[4:8] = [(1 << 63) + (1 << 10), 1 << 63, (1 << 53) + 1, big + (3 << 38)]
    for mode in ("rn", "rz", "rm", "rp"):
        want = [r.rounded(Fraction(n), dtype, mode) if (n := number(x, atype)) else 0 for x in a]
        assert execute(f"cvt.{mode}.{dtype}.{atype}", register(dtype), a).tolist() == want, mode


def kept_nan(x, of, to):
    """To and from f64 (an H200): sign and leading payload bits are kept, the NaN is made quiet."""
    _, m, _ = r.FORMATS[of]
    _, n, _ = r.FORMATS[to]
    payload = (x & (1 << m) - 1) << 52 - m >> 52 - n
    return r.infinity(to, r.negative(x, of)) | payload | 1 << n - 1


def convert(x, of, to, mode="rn"):
    if r.is_nan(x, of):
        return kept_nan(x, of, to) if "f64" in (of, to) else r.nan(to)
    if r.is_inf(x, of):
        return r.infinity(to, r.negative(x, of))
    value = r.value(x, of)
    return r.rounded(value, to, mode) if value else r.zero(to, r.negative(x, of))


NARROW = [("f16", "f32"), ("bf16", "f32"), ("f32", "f64"), ("f16", "f64"), ("bf16", "f16"), ("f16", "bf16")]


@pytest.mark.parametrize("to,of", NARROW)
def test_narrowing(to, of):
    a = np.concatenate([r.samples(of, 96, 1), near_ties(of, to)])
    for mode in ("rn", "rz", "rm", "rp"):
        want = [convert(int(x), of, to, mode) for x in a]
        assert execute(f"cvt.{mode}.{to}.{of}", f"b{r.size(to)}", a).tolist() == want, mode


def near_ties(of, to):
    """Numbers halfway between two of the narrower format, and their neighbours."""
    rows = []
    for code in (0x3C00, 0x3C01, 0x0001, 0x0003, 0x7BFF, 0x0400) if to == "f16" else (0x3F80, 0x3F81, 0x0001, 0x7F7F):
        if to in ("f32",):
            code <<= 16
        if r.is_inf(code, to) or r.is_inf(code + 1, to):
            step = r.value(code, to) - r.value(code - 1, to)
        else:
            step = r.value(code + 1, to) - r.value(code, to)
        tie = r.rounded(r.value(code, to) + step / 2, of, "rz")
        rows += [tie, tie + 1, max(tie - 1, 0), tie | 1 << r.size(of) - 1]
    return np.array(rows, r.WORDS[of])


@pytest.mark.parametrize("to,of", [("f32", "f16"), ("f64", "f32"), ("f64", "f16")])
def test_widening(to, of):
    a = r.samples(of, 96, 1)
    assert execute(f"cvt.{to}.{of}", f"b{r.size(to)}", a).tolist() == [convert(int(x), of, to) for x in a]


def test_bf16_to_f32_is_a_shift():
    a = r.samples("bf16", 96, 1)
    assert execute("cvt.f32.bf16", "b32", a).tolist() == [int(x) << 16 for x in a]


def test_modifiers():
    a = r.samples("f32", 96, 1)

    def clamped(x):
        bits = convert(x, "f32", "f32")
        return 0 if r.is_nan(x, "f32") or r.negative(x, "f32") else min(bits, 0x3F800000)

    assert execute("cvt.sat.f32.f32", "b32", a).tolist() == [clamped(int(x)) for x in a]
    relu = [c if r.is_nan(c, "f16") or not c >> 15 else 0 for x in a for c in [convert(int(x), "f32", "f16")]]
    assert execute("cvt.rn.relu.f16.f32", "b16", a).tolist() == relu
    finite = [c - 1 if r.is_inf(c, "bf16") else c for x in a for c in [convert(int(x), "f32", "bf16", "rz")]]
    assert execute("cvt.rz.satfinite.bf16.f32", "b16", a).tolist() == finite
    canonical = [0x7FFFFFFF if r.is_nan(int(x), "f32") else r.flush(int(x), "f32") for x in a]
    assert execute("cvt.ftz.f64.f32", "b64", a).tolist() == [convert(x, "f32", "f64") for x in canonical]


@pytest.mark.parametrize("fmt", FLOATS)
def test_to_integral_values(fmt):
    a = near_integers(fmt)
    for mode in ROUND:

        def want(x, mode=mode):
            if r.is_nan(x, fmt) or r.is_inf(x, fmt):
                return r.nan(fmt) if r.is_nan(x, fmt) else x
            n = ROUND[mode](r.value(x, fmt))
            return r.rounded(Fraction(n), fmt) if n else r.zero(fmt, r.negative(x, fmt))

        got = execute(f"cvt.{mode}.{fmt}.{fmt}", f"b{r.size(fmt)}", a)
        assert got.tolist() == [want(int(x)) for x in a], mode


def test_tf32():
    a = r.samples("f32", 96, 1)
    a[:4] = [0x3F801000, 0x3F803000, 0x3F800FFF, 0xBF801000]

    def nearest(x, away=False):
        if (x & 0x7FFFFFFF) >= 0x7F800000:
            return x & 0xFFFFE000 if away or not r.is_nan(x, "f32") else 0x7FFFE000
        up = 0x1000 if away or (x & 0x1FFF) > 0x1000 or (x & 0x3FFF) == 0x3000 else 0
        return (x + up) & 0xFFFFE000

    assert execute("cvt.rna.tf32.f32", "b32", a).tolist() == [nearest(int(x), True) for x in a]
    assert execute("cvt.rn.tf32.f32", "b32", a).tolist() == [nearest(int(x)) for x in a]
    got = execute("cvt.rz.tf32.f32", "b32", a).tolist()
    assert got == [0x7FFFE000 if r.is_nan(int(x), "f32") else int(x) & 0xFFFFE000 for x in a]


# -- packed ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("fmt", ["f16", "bf16"])
def test_two_halves(fmt):
    a, b = r.samples("f32", 96, 1), r.samples("f32", 96, 2)
    for mode in ("rn", "rz"):
        got = execute(f"cvt.{mode}.{fmt}x2.f32", "b32", a, b)
        upper, lower = ([convert(int(x), "f32", fmt, mode) for x in row] for row in (a, b))
        want = [x << 16 | y for x, y in zip(upper, lower, strict=True)]
        assert got.tolist() == want, mode
    got = execute(f"cvt.rn.relu.{fmt}x2.f32", "b32", a, 2.0)
    two = convert(0x40000000, "f32", fmt)
    relu = [c if r.is_nan(c, fmt) or not c >> 15 else 0 for x in a for c in [convert(int(x), "f32", fmt)]]
    assert got.tolist() == [c << 16 | two for c in relu]


# Small formats: exponent bits, fraction bits, bias, and the largest code (PTX 5.2.3).
SMALL = {
    "e4m3": (4, 3, 7, 0x7E), "e5m2": (5, 2, 15, 0x7B), "e2m3": (2, 3, 1, 0x1F), "e3m2": (3, 2, 3, 0x1F),
    "e2m1": (2, 1, 1, 7),
}  # fmt: skip


def small_value(code, fmt):
    e, m, bias, _ = SMALL[fmt]
    sign, exponent, fraction = code >> e + m, code >> m & (1 << e) - 1, code & (1 << m) - 1
    x = Fraction(fraction + (1 << m if exponent else 0), 1 << m) * Fraction(2) ** (max(exponent, 1) - bias)
    return -x if sign else x


def small(x, fmt):
    """f32 bits to the nearest code (ties to the even one), saturating; NaN is 7F, or the largest number."""
    e, m, _, top = SMALL[fmt]
    if r.is_nan(x, "f32"):
        return 0x7F if fmt in ("e4m3", "e5m2") else top
    minus = int(r.negative(x, "f32")) << e + m
    if r.is_inf(x, "f32"):
        return top | minus
    a = abs(r.value(x, "f32"))
    return min(range(top + 1), key=lambda c: (abs(small_value(c, fmt) - a), c & 1)) | minus


def small_inputs(n=64):
    rows = [0, 0x80000000, 0x7F800000, 0xFF800000, 0x7FC00000, 0x43E80000, 0x47600000, 0x477FFFFF, 0x3A000000]
    rng = np.random.default_rng(3)
    values = (rng.normal(size=n) * 2.0 ** rng.integers(-8, 9, n)).astype(np.float32)
    values = np.round(values * 32) / 32  # ties among them
    out = values.astype(np.float32).view(np.uint32)
    out[: len(rows)] = rows
    return out


def fits_arch(fmt):
    return "sm_90a" if fmt in ("e4m3", "e5m2") else "sm_100a"


@pytest.mark.parametrize(
    "fmt", [pytest.param(f, marks=[] if fits_arch(f) == "sm_90a" else pytest.mark.virtual) for f in SMALL]
)
def test_small_formats(fmt):
    arch = fits_arch(fmt)
    a, b = small_inputs(), np.roll(small_inputs(), 5)
    bits = 4 if fmt == "e2m1" else 8
    out = "b8" if fmt == "e2m1" else "b16"
    want = [small(int(x), fmt) << bits | small(int(y), fmt) for x, y in zip(a, b, strict=True)]
    assert execute(f"cvt.rn.satfinite.{fmt}x2.f32", out, a, b, arch=arch).tolist() == want
    halves = np.array([convert(int(x), "f32", "f16") for x in a], np.uint16)
    back = [small(convert(int(x), "f16", "f32"), fmt) for x in halves]
    got = execute(f"cvt.rn.satfinite.{fmt}x2.f16x2", out, halves.view(np.uint32), arch=arch)
    assert got.tolist() == [y << bits | x for x, y in zip(back[::2], back[1::2], strict=True)]
    codes = np.array(want, np.uint8 if fmt == "e2m1" else np.uint16)

    def half(code):
        if code in (0x7F, 0xFF) and fmt in ("e4m3", "e5m2"):
            return 0x7FFF
        x = small_value(code, fmt)
        return r.rounded(x, "f16") if x else r.zero("f16", code != 0)

    mask = (1 << bits) - 1
    got = execute(f"cvt.rn.f16x2.{fmt}x2", "b32", codes, arch=arch)
    assert got.tolist() == [half(int(c) >> bits) << 16 | half(int(c) & mask) for c in codes]


@pytest.mark.virtual  # sm_100
def test_scales():
    a = np.array([0x3F800000, 0x3FC00000, 0x40000000, 0x00400000, 0, 0x7F800000, 0x7FC00000, 0xC0400000], np.uint32)
    up = [127, 128, 128, 0, 0, 254, 255, 129]
    down = [127, 127, 128, 0, 0, 254, 255, 128]
    b = np.full(8, 0x41000000, np.uint32)
    got = execute("cvt.rp.satfinite.ue8m0x2.f32", "b16", a, b, arch="sm_100a")
    assert got.tolist() == [c << 8 | 130 for c in up]
    assert execute("cvt.rz.satfinite.ue8m0x2.f32", "b16", b, a, arch="sm_100a").tolist() == [130 << 8 | c for c in down]
    codes = np.array([127 << 8 | 130, 0x0001, 0xFF80], np.uint16)
    got = execute("cvt.rn.bf16x2.ue8m0x2", "b32", codes, arch="sm_100a")
    assert got.tolist() == [0x3F804100, 0x00400080, 0x7FFF4000]


@pytest.mark.virtual  # sm_100
def test_fixed_point():
    a = [0x3F800000, 0xBF800000, 0x3C800000, 0x3C000000, 0x3CC00000, 0x41000000, 0xC1000000, 0x7FC00000]
    a = np.array(a, np.uint32)
    want = [64, -64 & 255, 1, 0, 2, 127, 128, 127]  # 64ths, ties to even
    got = execute("cvt.rn.satfinite.s2f6x2.f32", "b16", a, np.roll(a, 1), arch="sm_100a")
    assert got.tolist() == [x << 8 | y for x, y in zip(want, np.roll(want, 1), strict=True)]
    scale = np.full(8, 128 << 8 | 126, np.uint16)  # 2 for the upper, 1/2 for the lower
    codes = np.array([64 << 8 | 64, 1 << 8 | 255, 0x80 << 8, 0] * 2, np.uint16)
    got = execute("cvt.rn.scaled::n2::ue8m0.bf16x2.s2f6x2", "b32", codes, scale, arch="sm_100a")
    one = {1: 0x3F80, 2: 0x4000, 0.5: 0x3F00, 1 / 32: 0x3D00, -1 / 128: 0xBC00, -4: 0xC080, 0: 0}
    assert got.tolist() == [one[2] << 16 | one[0.5], one[1 / 32] << 16 | one[-1 / 128], one[-4] << 16, 0] * 2


@pytest.mark.virtual  # sm_100
def test_stochastic():
    """With no random bits it truncates; with all of them every inexact value goes away from zero."""
    a = np.array([0x3F800001, 0x3F801FFF, 0x3F800000, 0xBF801000, 0x40490FDB], np.uint32)
    zero, all_ones = np.zeros(5, np.uint32), np.full(5, 0xFFFFFFFF, np.uint32)
    down = [convert(int(x), "f32", "f16", "rz") for x in a]
    b = np.full(5, 0x3F800000, np.uint32)
    got = execute("cvt.rs.f16x2.f32", "b32", a, b, zero, arch="sm_100a")
    assert got.tolist() == [x << 16 | 0x3C00 for x in down]
    got = execute("cvt.rs.f16x2.f32", "b32", a, b, all_ones, arch="sm_100a")
    assert got.tolist() == [x + (int(y) & 0x1FFF != 0) << 16 | 0x3C00 for x, y in zip(down, a, strict=True)]
    got = execute("cvt.rs.satfinite.e4m3x4.f32", "b32", [a, b, 2.0, 0.5], zero, arch="sm_100a")
    assert got.tolist() == [0x00384030 | c << 24 for c in (0x38, 0x38, 0x38, 0xB8, 0x44)]


def test_pack_integers():
    a, b, c = (words(32, 64, s) for s in (1, 2, 3))
    for t in ("u16", "s16", "u8", "s8", "u4", "s4", "u2", "s2"):
        low, high = limits(t)
        n = bits_of(t)

        def part(x, low=low, high=high, n=n):
            return min(max(signed(x, 32), low), high) & (1 << n) - 1

        want = [part(x) << n | part(y) for x, y in zip(a, b, strict=True)]
        if n == 16:
            assert execute(f"cvt.pack.sat.{t}.s32", "b32", a, b).tolist() == want
        else:
            want = [(int(z) << 2 * n | w) & 0xFFFFFFFF for z, w in zip(c, want, strict=True)]
            assert execute(f"cvt.pack.sat.{t}.s32.b32", "b32", a, b, c).tolist() == want
