"""cvt and cvt.pack (PTX 9.7.9.21-22): which bits are converted, and where the results go.

What a conversion does to one element is smalti.numerics.convert's. Knows registers and packing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import ml_dtypes
import numpy as np

from smalti.numerics.convert import cvt, encode
from smalti.numerics.formats import FORMATS, decode
from smalti.ptx.isa.types import width
from smalti.ptx.module import Operand, Vector
from smalti.vgpu.execute import SIGNED, UNSIGNED, Context, Operation, Source, executor, spread
from smalti.vgpu.execute.exact import NAN, converted_nan, is_nan
from smalti.vgpu.execute.lanes import register_of, write
from smalti.vgpu.program import Step
from smalti.vgpu.warp import Gang

Array = Any
# Elements wider than their format have zero bits above (fp6); fp4 pairs share a byte.
_ELEMENT_BITS = {"e2m1": 4}


def _source(context: Context, operand: Operand, bits: int) -> Source:
    return context.source(operand, f"u{bits}")


def _store(context: Context, operand: Operand, dtype: str) -> Callable[[Gang, Array], None]:
    """Writes unsigned words of `dtype`, sign-extended if it is signed, to a register of at least its width."""
    d, bits = context.number(operand), width(dtype)
    signed = SIGNED.get(bits) if dtype[0] == "s" and dtype[1:].isdigit() else None
    if signed is None or context.program.widths[d] == bits:
        return lambda g, words: write(g, 0, d, words)
    return lambda g, words: write(g, 0, d, words.view(signed).astype(SIGNED[64]).view(UNSIGNED[64]))


# -- scalar ------------------------------------------------------------------------------------------------


@executor("cvt.int")
def between_integers(context: Context, step: Step) -> Operation:
    """Without saturation NumPy's own assignment extends and cuts as cvt does."""
    o, form = context.bind(step), step.form
    dtype, atype = form.get("dtype"), form.get("atype")
    d, n = context.number(o["d"]), register_of(context, o["a"], atype)
    exact = context.program.widths[d] == width(dtype)
    if "sat" not in form and n is not None and exact:
        view = 1 if atype[0] == "s" else 0
        return lambda g: write(g, 0, d, g.bank.views[view][n])
    return _scalar(context, step)


def _scalar(context: Context, step: Step) -> Operation:
    """One element in, one out, by numerics.cvt."""
    o, form = context.bind(step), step.form
    dtype, atype = form.get("dtype"), form.get("atype")
    a, put = _source(context, o["a"], width(atype)), _store(context, o["d"], dtype)
    rounding = form.get("rnd") or None
    flags: dict[str, Any] = {k: k in form for k in ("sat", "satfinite", "relu", "ftz")}
    own_nan = "f64" in (dtype, atype) and dtype != atype and {dtype, atype} <= set(NAN) and "sat" not in form

    def run(g: Gang) -> None:
        words = np.asarray(a(g))
        out = cvt(dtype, atype, words, rounding, **flags)
        if own_nan and np.count_nonzero(bad := is_nan(words, atype)):
            # of f32, .ftz makes the NaN canonical first; f64 sources keep theirs (recording "cvt.rn.ftz.f32.f64")
            canonical = flags["ftz"] and atype == "f32"
            given = np.where(bad, words.dtype.type(NAN[atype]), words) if canonical else words
            out = np.where(bad, converted_nan(given, atype, dtype), out)
        put(g, out)

    return run


@executor("cvt.float", "cvt.from_int", "cvt.to_int", "cvt.integral")
def scalar(context: Context, step: Step) -> Operation:
    form, o = step.form, context.bind(step)
    plain = not any(k in form for k in ("sat", "satfinite", "relu", "ftz")) and form.get("rnd") in ("", "rn")
    kinds = (form.get("dtype"), form.get("atype"))
    if plain and kinds in (("f16", "f32"), ("f32", "f16")):
        n = register_of(context, o["a"], kinds[1])
        if n is not None and context.program.widths[context.number(o["d"])] == width(kinds[0]):
            return _between_halves(context.number(o["d"]), n, kinds[0])
    return _scalar(context, step)


def _between_halves(d: int, n: int, dtype: str) -> Operation:
    """f16 <-> f32 to nearest: NumPy's cast, with the canonical NaN."""
    to = np.float16 if dtype == "f16" else np.float32
    word = UNSIGNED[width(dtype)]
    nan = word(NAN[dtype])

    def run(g: Gang) -> None:
        values = g.bank.f[n].astype(to)
        words = values.view(word)
        bad = np.isnan(values)
        if np.count_nonzero(bad):
            words = np.where(bad, nan, words)
        write(g, 0, d, words)

    return run


# -- packed ------------------------------------------------------------------------------------------------


def _element(packed: str) -> str:
    return packed.rsplit("x", 1)[0]


def _join(parts: Sequence[Array], bits: int, total: int) -> Array:
    """Elements, the uppermost first, packed into words of `total` bits."""
    out = np.zeros(np.broadcast(*parts).shape if len(parts) > 1 else parts[0].shape, np.uint64)
    for p in parts:
        out = out << np.uint64(bits) | p.astype(np.uint64)
    return out.astype(UNSIGNED[total])


def _split(words: Array, bits: int, count: int) -> list[Array]:
    """The elements of packed words, the uppermost first."""
    whole = words.astype(np.uint64)
    parts = [whole >> np.uint64(bits * i) & np.uint64((1 << bits) - 1) for i in reversed(range(count))]
    return [p.astype(UNSIGNED[max(bits, 8)]) for p in parts]


def _bits_of(element: str) -> int:
    return 8 if element == "s2f6" else _ELEMENT_BITS.get(element, -(-FORMATS[element].bits // 8) * 8)


def _packing(context: Context, step: Step, convert: Callable[[Array, int], Array]) -> Operation:
    """d = the converted elements of a and b (or of the packed a), the uppermost first; `convert` is told which."""
    o, form = context.bind(step), step.form
    dtype, atype = form.get("dtype"), form.get("atype")
    bits, total = _bits_of(_element(dtype)), width(dtype)
    put = _store(context, o["d"], f"b{total}")
    if "x" in atype:
        count = int(atype.rsplit("x", 1)[1])
        packed, size = _source(context, o["a"], width(atype)), _bits_of(_element(atype))

        def given(g: Gang) -> list[Array]:
            return _split(np.asarray(packed(g)), size, count)
    else:
        operands = o["a"].items if isinstance(o["a"], Vector) else [o["a"], o["b"]]
        sources = [_source(context, x, width(atype)) for x in operands]

        def given(g: Gang) -> list[Array]:
            return [np.ascontiguousarray(spread(s(g), g)) for s in sources]

    def run(g: Gang) -> None:
        parts = [convert(x, i) for i, x in enumerate(given(g))]
        put(g, _join(parts, bits, total))

    return run


def _flags(step: Step) -> dict[str, Any]:
    return {k: k in step.form for k in ("satfinite", "relu")}


@executor("cvt.pack16", "cvt.pack8", "cvt.pack8.half", "cvt.pack_scale", "cvt.pack_scale.half", "cvt.unpack_scale")
def pack(context: Context, step: Step) -> Operation:
    form = step.form
    to, of = _element(form.get("dtype")), _element(form.get("atype"))
    rounding, flags = form.get("rnd") or "rn", _flags(step)
    if to in ("f16", "bf16") and of == "f32" and rounding == "rn" and not any(flags.values()):
        return _two_halves(context, step, np.dtype(np.float16 if to == "f16" else ml_dtypes.bfloat16))
    return _packing(context, step, lambda words, i: cvt(to, of, words, rounding, **flags))


def _two_halves(context: Context, step: Step, half: Any) -> Operation:
    """Two f32 to nearest by NumPy's cast, a in the upper half; NaN results are made canonical."""
    o = context.bind(step)
    d = context.number(o["d"])
    sources = [context.source(o[k], "f32") for k in "ba"]

    def run(g: Gang) -> None:
        both = np.empty((g.width, 2), np.uint16)
        for i, s in enumerate(sources):
            row = spread(s(g), g)
            both[:, i] = row.astype(half).view(np.uint16)
            if not row.dot(row) >= 0:
                np.copyto(both[:, i], NAN["f16"], where=np.isnan(row))
        write(g, 0, d, both.view(np.uint32)[:, 0])

    return run


@executor("cvt.unpack8")
def unpack(context: Context, step: Step) -> Operation:
    form = step.form
    to, of = _element(form.get("dtype")), _element(form.get("atype"))
    if to == "bf16":
        return _scaled(context, step, lambda words: _value(words, of), "bf16")
    flags = _flags(step)
    return _packing(context, step, lambda words, i: cvt(to, of, words, "rn", **flags))


def _value(words: Array, element: str) -> Array:
    """float64 of element words; s2f6 is a signed byte in 64ths (PTX 5.2.3)."""
    return words.view(np.int8) / 64.0 if element == "s2f6" else decode(words, element)


@executor("cvt.s2f6", "cvt.s2f6.half")
def to_fixed(context: Context, step: Step) -> Operation:
    of = _element(step.form.get("atype"))
    return _scaled(context, step, lambda words: _value(words, of), "s2f6")


def _scaled(context: Context, step: Step, value: Callable[[Array], Array], to: str) -> Operation:
    """Conversions with an optional pair of ue8m0 scales: results are multiplied by them, or s2f6 inputs divided."""
    bound = context.bind(step)
    relu = "relu" in step.form
    satfinite = "satfinite" in step.form
    scale = _source(context, bound["scale"], 16) if "scale" in bound else None
    current: list[Array] = [1.0, 1.0]

    def convert(words: Array, i: int) -> Array:
        x = value(words)
        if to == "s2f6":
            fixed = np.clip(np.rint(x / current[i] * 64.0), 0 if relu else -128, 127)
            return np.where(np.isnan(fixed), 127, fixed).astype(np.int8).view(np.uint8)
        return encode(x * current[i], to, "rn", relu=relu, satfinite=satfinite)

    packed = _packing(context, step, convert)
    if scale is None:
        return packed

    def run(g: Gang) -> Any:
        words = np.asarray(scale(g))
        current[:] = [decode(p, "ue8m0") for p in _split(words, 8, 2)]
        return packed(g)

    return run


@executor("cvt.pack16.stochastic", "cvt.pack8.stochastic")
def pack_stochastic(context: Context, step: Step) -> Operation:
    """Random bits: two elements share the 16 bits of a half of `random`; f16x2, bf16x2 and e2m1x4 use one part each.

    The layout for e2m1x4 (upper bytes of both halves for a and b, lower ones for e and f) is read from the text of
    9.7.9.21, whose figure was not at hand.
    """
    form = step.form
    to, of = _element(form.get("dtype")), _element(form.get("atype"))
    flags = _flags(step)
    random = _source(context, context.bind(step)["random"], 32)
    count = int(form.get("dtype").rsplit("x", 1)[1])
    shifts = {2: (16, 0), 4: (24, 8, 16, 0) if to == "e2m1" else (16, 16, 0, 0)}[count]
    current: list[Array] = [None]

    def convert(words: Array, i: int) -> Array:
        bits = np.broadcast_to(current[0] >> np.uint32(shifts[i]), words.shape)
        return cvt(to, of, words, "rs", random=bits, **flags)

    packed = _packing(context, step, convert)

    def run(g: Gang) -> Any:
        current[0] = np.asarray(random(g))
        return packed(g)

    return run


@executor("cvt.pack")
def pack_integers(context: Context, step: Step) -> Operation:
    """a above b, each clamped; the rest of d is taken from the low bits of c."""
    o, t = context.bind(step), step.form.get("dtype")
    bits, signed = int(t[1:]), t[0] == "s"
    low, high = (-(1 << bits - 1), (1 << bits - 1) - 1) if signed else (0, (1 << bits) - 1)
    sources = [context.source(o[k], "s32") for k in "ab"]
    c = context.source(o["c"], "u32") if "c" in o else None
    d = context.number(o["d"])

    def run(g: Gang) -> None:
        a, b = (np.clip(np.asarray(s(g)).astype(np.int64), low, high) & ((1 << bits) - 1) for s in sources)
        word = a << bits | b
        if c is not None:
            word = word | np.asarray(c(g)).astype(np.int64) << 2 * bits
        write(g, 0, d, (word & 0xFFFFFFFF).astype(np.uint32))

    return run
