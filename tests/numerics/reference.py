"""The tensor core's sum in plain Python integers, straight from the published formula, one output element at a time.
Written apart from `smalti.numerics`: it shares no code, no table and no float with it.
"""

from __future__ import annotations

from dataclasses import dataclass

# name: (exponent bits, fraction bits, bias, has Inf, has NaN)
LAYOUT = {
    "f32": (8, 23, 127, True, True),
    "bf16": (8, 7, 127, True, True),
    "f16": (5, 10, 15, True, True),
    "e5m2": (5, 2, 15, True, True),
    "e4m3": (4, 3, 7, False, True),
    "ue4m3": (4, 3, 7, False, True),
    "e3m2": (3, 2, 3, False, False),
    "e2m3": (2, 3, 1, False, False),
    "e2m1": (2, 1, 1, False, False),
}


@dataclass(frozen=True)
class Term:
    """(-1)^negative * significand * 2^(exponent - fraction), or a special."""

    negative: bool
    significand: int
    exponent: int
    fraction: int
    special: str = ""  # "inf" or "nan"


def take_apart(code: int, fmt: str) -> Term:
    if fmt == "tf32":
        return take_apart(code & ~0x1FFF, "f32")
    if fmt == "ue8m0":
        return Term(False, 1, code - 127, 0, "nan" if code == 255 else "")
    exponent_bits, fraction, bias, has_inf, has_nan = LAYOUT[fmt]
    negative = bool(code >> (exponent_bits + fraction) & 1) and fmt != "ue4m3"
    field = code >> fraction & ((1 << exponent_bits) - 1)
    low = code & ((1 << fraction) - 1)
    top = (1 << exponent_bits) - 1
    if field == top and has_inf:
        return Term(negative, 0, 0, 0, "nan" if low else "inf")
    if field == top and has_nan and low == (1 << fraction) - 1:
        return Term(negative, 0, 0, 0, "nan")
    if field == 0:
        return Term(negative, low, 1 - bias, fraction)
    return Term(negative, low | 1 << fraction, field - bias, fraction)


def special_product(x: Term, y: Term) -> str:
    """ "", "nan", "+inf" or "-inf"."""
    if "nan" in (x.special, y.special):
        return "nan"
    if "inf" in (x.special, y.special):
        other = y if x.special else x
        if not other.special and other.significand == 0:
            return "nan"
        return "-inf" if x.negative != y.negative else "+inf"
    return ""


def special_sum(kinds: list[str]) -> str:
    if "nan" in kinds or ("+inf" in kinds and "-inf" in kinds):
        return "nan"
    return "+inf" if "+inf" in kinds else "-inf" if "-inf" in kinds else ""


def truncated(negative: bool, significand: int, power: int) -> int:
    """significand * 2^power toward zero."""
    magnitude = significand << power if power >= 0 else significand >> -power
    return -magnitude if negative else magnitude


def nearest_even(significand: int, power: int) -> int:
    if power >= 0:
        return significand << power
    kept, rest, half = significand >> -power, significand & ((1 << -power) - 1), 1 << (-power - 1)
    return kept + (rest > half or (rest == half and kept & 1))


def write(total: int, power: int, output: str, rounding: str) -> int:
    """total * 2^power in the output format; zero is +0 whatever its sign."""
    exponent_bits, fraction, bias, _, _ = LAYOUT[output]
    magnitude = abs(total)
    if magnitude == 0:
        return 0
    exponent = max(magnitude.bit_length() - 1 + power, 1 - bias)
    kept = 13 if rounding == "rz13" else fraction
    shift = power - exponent + kept
    significand = nearest_even(magnitude, shift) if rounding == "rne" else truncated(False, magnitude, shift)
    significand <<= fraction - kept
    code = significand + ((exponent + bias - 1) << fraction)  # a carry runs into the exponent
    if significand == 0:
        return 0
    code = min(code, ((1 << exponent_bits) - 1) << fraction)
    return code | (1 << (exponent_bits + fraction) if total < 0 else 0)


def write_special(special: str, output: str) -> int:
    exponent_bits, fraction, *_ = LAYOUT[output]
    if special == "nan":
        return (1 << (exponent_bits + fraction)) - 1
    inf = ((1 << exponent_bits) - 1) << fraction
    return inf | (1 << (exponent_bits + fraction) if special == "-inf" else 0)


def fused(a, b, c, a_format, b_format, fraction, floor, output, rounding, scale_a=None, scale_b=None):
    """One block: a, b sequences of codes, c a code of the output; scale_*: one ue8m0 code each for all products."""
    parts = [(take_apart(int(x), a_format), take_apart(int(y), b_format)) for x, y in zip(a, b, strict=True)]
    term_c = take_apart(int(c), output)
    scale = 0
    specials = [special_product(x, y) for x, y in parts]
    if scale_a is not None:
        scales = take_apart(int(scale_a), "ue8m0"), take_apart(int(scale_b), "ue8m0")
        scale = scales[0].exponent + scales[1].exponent
        specials += [s.special for s in scales]
    if term_c.special:
        specials.append("nan" if term_c.special == "nan" else "-inf" if term_c.negative else "+inf")
    special = special_sum(specials)
    if special:
        return write_special(special, output)
    terms = [
        (
            x.negative != y.negative,
            x.significand * y.significand,
            x.exponent + y.exponent + scale,
            x.fraction + y.fraction,
        )
        for x, y in parts
    ]
    terms.append((term_c.negative, term_c.significand, term_c.exponent, term_c.fraction))
    top = max([exponent for _, significand, exponent, _ in terms if significand] + [floor])
    unit = top - fraction
    total = sum(truncated(n, s, e - f - unit) for n, s, e, f in terms)
    return write(total, unit, output, rounding)


def grouped(a, b, c, scale_a, scale_b, scale_format, group=16, fraction=35, floor=-139):
    """e2m1 codes a, b; one scale code a group in scale_a and scale_b."""
    term_c = take_apart(int(c), "f32")
    specials = (
        [] if not term_c.special else ["nan" if term_c.special == "nan" else "-inf" if term_c.negative else "+inf"]
    )
    terms = [(term_c.negative, term_c.significand, term_c.exponent, term_c.fraction, term_c.significand != 0)]
    for g in range(0, len(a), group):
        x, y = take_apart(int(scale_a[g // group]), scale_format), take_apart(int(scale_b[g // group]), scale_format)
        specials += [x.special, y.special]
        quarters, any_product = 0, False
        for p, q in zip(a[g : g + group], b[g : g + group], strict=True):
            p, q = take_apart(int(p), "e2m1"), take_apart(int(q), "e2m1")
            power = p.exponent + q.exponent - p.fraction - q.fraction + 2
            quarters += truncated(p.negative != q.negative, p.significand * q.significand, power)
            any_product |= p.significand * q.significand != 0
        significand = abs(quarters) * x.significand * y.significand
        takes_part = any_product and x.significand * y.significand != 0
        terms.append((quarters < 0, significand, x.exponent + y.exponent, 2 + x.fraction + y.fraction, takes_part))
    special = special_sum(specials)
    if special:
        return write_special(special, "f32")
    top = max([exponent for _, _, exponent, _, takes_part in terms if takes_part] + [floor])
    unit = top - fraction
    return write(sum(truncated(n, s, e - f - unit) for n, s, e, f, _ in terms), unit, "f32", "rz")
