"""Floating-point numbers as fractions: decoding of bits, and rounding of an exact value, for expectations only.

Written from IEEE 754 and PTX 9.7.3-9.7.4, independent of the package's own arithmetic.
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

#           exponent bits, fraction bits, canonical NaN
FORMATS = {
    "f16": (5, 10, 0x7FFF), "bf16": (8, 7, 0x7FFF), "f32": (8, 23, 0x7FFFFFFF), "f64": (11, 52, 0xFFF8000000000000),
}  # fmt: skip
WORDS = {"f16": np.uint16, "bf16": np.uint16, "f32": np.uint32, "f64": np.uint64}


def size(fmt: str) -> int:
    e, m, _ = FORMATS[fmt]
    return 1 + e + m


def nan(fmt: str, *operands: int) -> int:
    """The NaN result: for f64 that of the first operand that is one, made quiet."""
    if fmt == "f64":
        for o in operands:
            if is_nan(o, fmt):
                return o | 1 << 51
    return FORMATS[fmt][2]


def fields(bits: int, fmt: str) -> tuple[int, int, int]:
    e, m, _ = FORMATS[fmt]
    return bits >> e + m, bits >> m & (1 << e) - 1, bits & (1 << m) - 1


def is_nan(bits: int, fmt: str) -> bool:
    _, e, m = fields(bits, fmt)
    return e == (1 << FORMATS[fmt][0]) - 1 and m != 0


def is_inf(bits: int, fmt: str) -> bool:
    _, e, m = fields(bits, fmt)
    return e == (1 << FORMATS[fmt][0]) - 1 and m == 0


def negative(bits: int, fmt: str) -> bool:
    return bool(bits >> size(fmt) - 1)


def infinity(fmt: str, minus: bool = False) -> int:
    e, m, _ = FORMATS[fmt]
    return (1 << e) - 1 << m | int(minus) << e + m


def value(bits: int, fmt: str) -> Fraction:
    """The value of finite bits."""
    width, m, _ = FORMATS[fmt]
    sign, e, f = fields(bits, fmt)
    bias = (1 << width - 1) - 1
    magnitude = Fraction(f + (1 << m if e else 0), 1 << m) * Fraction(2) ** (max(e, 1) - bias)
    return -magnitude if sign else magnitude


def zero(fmt: str, minus: bool) -> int:
    return int(minus) << size(fmt) - 1


def flush(bits: int, fmt: str) -> int:
    _, e, m = fields(bits, fmt)
    return zero(fmt, negative(bits, fmt)) if e == 0 and m else bits


FLUSH = False  # whether tiny results are zero; tests of .ftz set it


def rounded(x: Fraction, fmt: str, mode: str = "rn") -> int:
    """Bits nearest to a nonzero exact value, by the direction `mode`; overflow as IEEE 754 says."""
    width, m, _ = FORMATS[fmt]
    bias = (1 << width - 1) - 1
    minus = x < 0
    a = abs(x)
    exponent = a.numerator.bit_length() - a.denominator.bit_length()
    exponent -= a < Fraction(2) ** exponent

    def units(exponent: int) -> int:
        scaled = a / Fraction(2) ** (exponent - m)
        low = math.floor(scaled)
        rest = scaled - low
        half = Fraction(1, 2)
        away = {
            "rn": rest > half or (rest == half and low & 1),
            "rz": False,
            "rm": rest and minus,
            "rp": rest and not minus,
        }
        return low + bool(away[mode])

    if FLUSH and units(exponent) * Fraction(2) ** (exponent - m) < Fraction(2) ** (1 - bias):
        return zero(fmt, minus)
    exponent = max(exponent, 1 - bias)
    n = units(exponent)
    code = n + (exponent + bias - 1 << m) if n >> m else n  # a carry goes into the exponent by itself
    if code >= infinity(fmt):
        inward = mode == "rz" or (mode == "rm" and not minus) or (mode == "rp" and minus)
        code = infinity(fmt) - inward
    return code | zero(fmt, minus)


def add(a: int, b: int, fmt: str, mode: str = "rn", exact_product: tuple[Fraction, bool] | None = None) -> int:
    """a + b of bits; with `exact_product` = (value, sign) that is the first term instead (fma)."""
    if is_nan(b, fmt) or (exact_product is None and is_nan(a, fmt)):
        return nan(fmt, b, a)
    if exact_product is None and is_inf(a, fmt):
        return nan(fmt) if is_inf(b, fmt) and negative(a, fmt) != negative(b, fmt) else a
    if is_inf(b, fmt):
        return b
    x, sign = exact_product if exact_product is not None else (value(a, fmt), negative(a, fmt))
    total = x + value(b, fmt)
    if total == 0:
        same = sign == negative(b, fmt)
        return zero(fmt, sign if same else mode == "rm")
    return rounded(total, fmt, mode)


def multiply(a: int, b: int, fmt: str, mode: str = "rn") -> int:
    minus = negative(a, fmt) != negative(b, fmt)
    special = _product_special(a, b, fmt, minus)
    if special is not None:
        return special
    product = value(a, fmt) * value(b, fmt)
    return rounded(product, fmt, mode) if product else zero(fmt, minus)


def _product_special(a: int, b: int, fmt: str, minus: bool) -> int | None:
    if is_nan(a, fmt) or is_nan(b, fmt):
        return nan(fmt, b, a)
    if is_inf(a, fmt) or is_inf(b, fmt):
        other = b if is_inf(a, fmt) else a
        return nan(fmt) if not is_inf(other, fmt) and value(other, fmt) == 0 else infinity(fmt, minus)
    return None


def fma(a: int, b: int, c: int, fmt: str, mode: str = "rn") -> int:
    minus = negative(a, fmt) != negative(b, fmt)
    special = _product_special(a, b, fmt, minus)
    if special is not None:
        if is_nan(special, fmt) or is_nan(c, fmt) or (is_inf(c, fmt) and c != special):
            return nan(fmt, b, c, a)
        return special
    return add(0, c, fmt, mode, (value(a, fmt) * value(b, fmt), minus))


def divide(a: int, b: int, fmt: str, mode: str = "rn") -> int:
    minus = negative(a, fmt) != negative(b, fmt)
    if is_nan(a, fmt) or is_nan(b, fmt) or (is_inf(a, fmt) and is_inf(b, fmt)):
        return nan(fmt, a, b)
    if is_inf(a, fmt):
        return infinity(fmt, minus)
    if is_inf(b, fmt):
        return zero(fmt, minus)
    if value(b, fmt) == 0:
        return nan(fmt) if value(a, fmt) == 0 else infinity(fmt, minus)
    return rounded(value(a, fmt) / value(b, fmt), fmt, mode) if value(a, fmt) else zero(fmt, minus)


def root(a: int, fmt: str, mode: str = "rn") -> int:
    if is_nan(a, fmt):
        return nan(fmt, a)
    if not is_inf(a, fmt) and value(a, fmt) == 0:
        return a
    if negative(a, fmt):
        return nan(fmt)
    if is_inf(a, fmt):
        return a
    x = value(a, fmt)
    shift = 2 * 600  # far below the last place: the sticky bit says the rest
    n = x * (1 << shift)
    whole = math.isqrt(math.floor(n))
    sticky = Fraction(1, 4) if whole * whole != n else 0
    return rounded((whole + sticky) / Fraction(1 << shift // 2), fmt, mode)


def samples(fmt: str, n: int = 96, seed: int = 0) -> np.ndarray:
    """Bits of every kind: zeros, subnormals, edges, near 1, Inf, NaN, uniform codes, close exponents."""
    e, m, _ = FORMATS[fmt]
    bits = size(fmt)
    one = ((1 << e - 1) - 1) << m
    special = [0, 1, (1 << m) - 1, 1 << m, (1 << m) + 1, one, one + 1, one - 1, one + (1 << m - 1), infinity(fmt) - 1,
               infinity(fmt), infinity(fmt) + 1, nan(fmt), 2 << m, 3 << m - 1]  # fmt: skip
    special += [s | 1 << bits - 1 for s in special]
    rng = np.random.default_rng([seed, bits, m])

    def draw() -> int:
        return int.from_bytes(rng.bytes(8), "little")

    uniform = [draw() & (1 << bits) - 1 for _ in range(n // 3)]
    near = [
        (one + (int(rng.integers(-4, 5)) << m) | draw() & (1 << m) - 1 | int(rng.integers(2)) << bits - 1)
        for _ in range(n)
    ]
    sparse = [x & ~((1 << m - 3) - 1) for x in near[: n // 4]]  # few bits: ties become likely
    rest = uniform + sparse + near
    order = rng.permutation(len(rest))[: n - len(special)]
    pool = special + [rest[i] for i in order]
    return np.array([pool[i] for i in rng.permutation(n)], WORDS[fmt])
