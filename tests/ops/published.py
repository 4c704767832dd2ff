"""The published arithmetic of Blackwell's tensor core as plain loops: d = a @ b.T, one instruction of K after another,
each one fused sum with C. Written apart from `smalti.numerics`: formats from their definition, sums in integers.
"""

from __future__ import annotations

import math

import numba
import numpy as np

# exponent bits, fraction bits, bias, codes that are NaN, codes that are Inf (both without the sign)
FORMATS = {
    "e4m3": (4, 3, 7, {0x7F}, set()),
    "e5m2": (5, 2, 15, {0x7D, 0x7E, 0x7F}, {0x7C}),
    "e2m1": (2, 1, 1, set(), set()),
    "ue4m3": (4, 3, 7, {0x7F}, set()),
    "f16": (5, 10, 15, set(range(0x7C01, 0x8000)), {0x7C00}),
    "bf16": (8, 7, 127, set(range(0x7F81, 0x8000)), {0x7F80}),
}
NORMAL, NAN, INF = 0, 1, 2


def table(name):
    """For each code: significand (a signed integer), exponent of its last bit, exponent for the alignment, class."""
    if name == "ue8m0":
        exponents = np.arange(256) - 127
        kind = np.where(np.arange(256) == 255, NAN, NORMAL)
        return np.ones(256, np.int64), exponents, exponents, kind
    exponent_bits, fraction, bias, nans, infs = FORMATS[name]
    bits = exponent_bits + fraction
    rows = []
    for code in range(2 << bits):
        field, low = code >> fraction & ((1 << exponent_bits) - 1), code & ((1 << fraction) - 1)
        negative = code >> bits and name != "ue4m3"
        value = low if field == 0 else low + (1 << fraction)
        exponent = max(field, 1) - bias
        magnitude = code & ((1 << bits) - 1)
        kind = NAN if magnitude in nans else INF if magnitude in infs else NORMAL
        rows.append((-value if negative else value, exponent - fraction, exponent, kind))
    return tuple(np.array(column, np.int64) for column in zip(*rows, strict=True))


@numba.njit(cache=True)
def shifted(value, power):
    """value * 2^power, toward zero."""
    if power >= 0:
        return value << power
    if power < -62:
        return 0
    return -(-value >> -power) if value < 0 else value >> -power


@numba.njit(cache=True)
def rounded(total, power):
    """total * 2^power as f32, toward zero; beyond the largest number it is infinite. As (significand, exponent)."""
    size = abs(total)
    length = 0
    while size >> length:
        length += 1
    drop = max(length - 24, -149 - power, 0)
    return shifted(total, -drop), power + drop


@numba.njit(cache=True)
def parts(c):
    """An f32 as significand and exponents: of the last bit, for the alignment."""
    if c == 0:
        return 0, 0, -10000
    exponent = math.frexp(abs(c))[1]
    exponent = max(exponent - 1, -126)
    significand = int(math.ldexp(abs(c), 23 - exponent))
    return (significand if c > 0 else -significand), exponent - 23, exponent


@numba.njit(cache=True)
def finish(total, power, nan, plus, minus):
    if nan or (plus and minus):
        return math.nan
    if plus:
        return math.inf
    if minus:
        return -math.inf
    significand, exponent = rounded(total, power)
    if significand == 0:
        return 0.0
    length = 0
    while abs(significand) >> length:
        length += 1
    if length + exponent > 128:
        return math.inf if significand > 0 else -math.inf
    return math.ldexp(float(significand), exponent)


@numba.njit(cache=True)
def specials(c):
    return math.isnan(c), c == math.inf, c == -math.inf


@numba.njit(cache=True)
def special(kinds, sign):
    """Of one product: whether it is NaN, +Inf, -Inf. `kinds` of a, b and their scales, `sign` of the product."""
    if NAN in kinds:
        return True, False, False
    if INF in (kinds[0], kinds[1]):
        return sign == 0, sign > 0, sign < 0
    return False, False, False


@numba.njit(cache=True)
def fused(a, b, sa, sb, block, deep, fraction):
    """Kinds f16, f8f6f4 (all scales 1) and mxf8f6f4: every product takes part in the alignment by its own exponent.
    Operands and scales are (significands, exponents of the last bit, exponents for the alignment, classes)."""
    m, k = a[0].shape
    n = b[0].shape[0]
    d = np.zeros((m, n))
    product, power = np.zeros(deep, np.int64), np.zeros(deep, np.int64)
    for i in range(m):
        for j in range(n):
            c = 0.0
            for start in range(0, k, deep):
                size = min(deep, k - start)
                nan, plus, minus = specials(c)
                csig, cpow, top = parts(0.0 if nan or plus or minus else c)
                top = max(top, -133)
                for x in range(size):
                    at, block_at = start + x, (start + x) // block
                    product[x] = a[0][i, at] * b[0][j, at]
                    scale = sa[1][i, block_at] + sb[1][j, block_at]
                    power[x] = a[1][i, at] + b[1][j, at] + scale
                    if product[x] != 0:
                        top = max(top, a[2][i, at] + b[2][j, at] + scale)
                    if a[3][i, at] | b[3][j, at] | sa[3][i, block_at] | sb[3][j, block_at]:
                        kinds = (a[3][i, at], b[3][j, at], sa[3][i, block_at], sb[3][j, block_at])
                        found = special(kinds, product[x])
                        nan, plus, minus = nan | found[0], plus | found[1], minus | found[2]
                total = shifted(csig, cpow - (top - fraction))
                if not (nan or plus or minus):
                    for x in range(size):
                        total += shifted(product[x], power[x] - (top - fraction))
                c = finish(total, top - fraction, nan, plus, minus)
            d[i, j] = c
    return d


@numba.njit(cache=True)
def grouped(a, b, sa, sb, block):
    """Kinds mxf4 and mxf4nvf4: exact sums of 16 products, scaled exactly, aligned by the exponents of their scales."""
    m, k = a[0].shape
    n = b[0].shape[0]
    d = np.zeros((m, n))
    whole = np.zeros(4, np.int64)
    for i in range(m):
        for j in range(n):
            c = 0.0
            for start in range(0, k, 64):
                nan, plus, minus = specials(c)
                csig, cpow, top = parts(0.0 if nan or plus or minus else c)
                top = max(top, -139)
                for g in range(4):
                    whole[g], some, s = 0, False, (start + 16 * g) // block
                    if start + 16 * g >= k:
                        continue
                    for x in range(start + 16 * g, min(start + 16 * (g + 1), k)):
                        product = a[0][i, x] * b[0][j, x]
                        some = some or product != 0
                        whole[g] += product << (a[1][i, x] + b[1][j, x] + 2)
                    nan = nan or sa[3][i, s] == NAN or sb[3][j, s] == NAN
                    if some and sa[0][i, s] * sb[0][j, s] != 0:
                        top = max(top, sa[2][i, s] + sb[2][j, s])
                total = shifted(csig, cpow - (top - 35))
                for g in range(4):
                    if start + 16 * g < k:
                        s = (start + 16 * g) // block
                        power = sa[1][i, s] + sb[1][j, s] - 2 - (top - 35)
                        total += shifted(whole[g] * sa[0][i, s] * sb[0][j, s], power)
                c = finish(total, top - 35, nan, plus, minus)
            d[i, j] = c
    return d


def canonical(d):
    """f32 bits; the NaN of the tensor core."""
    bits = d.astype(np.float32).view(np.uint32)
    return np.where(np.isnan(d), np.uint32(0x7FFFFFFF), bits)


def taken_apart(codes, name):
    """Codes as (significands, exponents of the last bit, exponents for the alignment, classes). An Inf counts as 1, so
    that a product with it has a sign."""
    significands, low, top, kind = table(name)
    significands = np.where(kind == INF, np.sign(significands), significands)
    return tuple(np.ascontiguousarray(column[codes]) for column in (significands, low, top, kind))


def block_scaled(a, a_scales, b, b_scales, element_a, element_b, scale, block):
    """f32 bits of a @ b.T: codes a [M, K], b [N, K], scale codes [M, blocks], [N, blocks]."""
    if a.shape[1] == 0:
        return np.zeros((len(a), len(b)), np.uint32)
    operands = taken_apart(a, element_a), taken_apart(b, element_b)
    scales = taken_apart(a_scales, scale), taken_apart(b_scales, scale)
    if element_a == "e2m1":
        return canonical(grouped(*operands, *scales, block))
    return canonical(fused(*operands, *scales, block, 32, 25))


def plain(a, b, element_a, element_b, deep):
    """f32 bits of a @ b.T without scales; `deep` elements of K in one instruction."""
    if a.shape[1] == 0:
        return np.zeros((len(a), len(b)), np.uint32)
    one = taken_apart(np.full((max(len(a), len(b)), 1), 127), "ue8m0")
    operands = taken_apart(a, element_a), taken_apart(b, element_b)
    return canonical(fused(*operands, one, one, a.shape[1], deep, 25))
