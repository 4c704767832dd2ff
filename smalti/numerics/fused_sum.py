"""Multiplies two matrices exactly as one matrix instruction (or a chain of them along K) does, bit for bit.
`mma` is the dense entry, `sparse.mma_sparse` the other; both end here. Knows kinds and formats,
no shapes, layouts or PTX.
"""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smalti.errors import error
from smalti.numerics import formats
from smalti.numerics import kinds as kind_table
from smalti.numerics.formats import FORMATS, Format
from smalti.numerics.kinds import Kind

if TYPE_CHECKING:
    from types import ModuleType

Array = NDArray[Any]

GROUP = 16  # products summed exactly before scaling in mxf4 and mxf4nvf4 (arXiv 2511.10909)
_ROUNDINGS = {"rz": 0, "rz13": 1, "rne": 2}  # as in kernels
_NO_C = np.empty((0, 0), np.float32)


@cache
def _kernels() -> ModuleType:
    from smalti.numerics import kernels

    return kernels


def mma(
    kind: str,
    a: Array,
    b: Array,
    c: Array | None = None,
    *,
    a_format: str,
    b_format: str,
    negate_a: bool = False,
    negate_b: bool = False,
    saturate: bool = False,
    scale_a: Array | None = None,
    scale_b: Array | None = None,
    scale_format: str | None = None,
    block: int | None = None,
    scale_input_d: int = 0,
    out: Array | None = None,
) -> Array:
    """D = A B^T + C as the hardware computes it.

    kind: a name of `kinds.KINDS`. a [M, K], b [N, K]: unpacked codes in the formats' containers. c [M, N]: words of the
    kind's output format (uint32 for f32 and s32, uint16 for f16, uint64 for f64); None is +0 (scale-d = false).
    Block-scaled kinds take scale_a [M, K // block], scale_b [N, K // block] (uint8 of scale_format). K longer than one
    instruction's is a chain of instructions, k ascending. negate_* flip the operands' signs; saturate clamps integer
    results; scale_input_d multiplies C by 2^-n inside the sum (grade "assumed"). Returns d [M, N], in `out` if given,
    which may be c itself. Raises SML1001-SML1007.
    """
    row = kind_table.lookup(kind)
    check_operands(row, a, b, c, a_format, b_format)
    options = Options(row, a_format, b_format, negate_a, negate_b, saturate, scale_input_d)
    if scale_a is not None or scale_b is not None or row.scales:
        options.scales = check_scales(row, a, b, scale_a, scale_b, scale_format, block)
    return multiply(options, a, b, c, None, out)


class Options:
    """The static facts of one multiplication, passed whole to the rule that executes it."""

    __slots__ = ("a_format", "b_format", "kind", "negate_a", "negate_b", "saturate", "scale_input_d", "scales")

    def __init__(
        self,
        kind: Kind,
        a_format: str,
        b_format: str,
        negate_a: bool = False,
        negate_b: bool = False,
        saturate: bool = False,
        scale_input_d: int = 0,
    ) -> None:
        self.kind = kind
        self.a_format = a_format
        self.b_format = b_format
        self.negate_a = negate_a
        self.negate_b = negate_b
        self.saturate = saturate
        self.scale_input_d = scale_input_d
        self.scales: Scales | None = None


class Scales:
    """Scale codes [M, blocks] and [N, blocks], their format, and how many kept K elements one covers."""

    __slots__ = ("a", "b", "block", "fmt")

    def __init__(self, a: Array, b: Array, fmt: str, block: int) -> None:
        self.a = a
        self.b = b
        self.fmt = fmt
        self.block = block


def check_operands(
    kind: Kind, a: Array, b: Array, c: Array | None, a_format: str, b_format: str, sparse: bool = False
) -> None:
    """Formats, containers and shapes: SML1001, SML1002, SML1005, SML1006. A sparse A holds half of K."""
    for fmt, operand in ((a_format, a), (b_format, b)):
        form = formats.lookup(fmt)
        if fmt not in kind.formats or (kind.same and a_format != b_format):
            raise error("SML1005", kind=kind.name, a=a_format, b=b_format, legal=", ".join(kind.formats))
        if operand.dtype != form.dtype:
            raise error("SML1002", fmt=fmt, expected=form.storage, got=str(operand.dtype))
    kept = a.shape[1] if a.ndim == b.ndim == 2 else 0
    depth = 2 * kept if sparse else kept
    if kept == 0 or b.shape[1] != depth or kept % min(kept, kind.products):
        shape_c = None if c is None else list(c.shape)
        raise error("SML1006", a=list(a.shape), b=list(b.shape), c=shape_c, block=kind.products)
    check_c(kind, a, b, c)


def check_c(kind: Kind, a: Array, b: Array, c: Array | None) -> None:
    """C's container and shape: SML1002, SML1006."""
    if c is None:
        return
    if c.dtype != FORMATS[kind.output].dtype:
        raise error("SML1002", fmt=kind.output, expected=FORMATS[kind.output].storage, got=str(c.dtype))
    if c.shape != (a.shape[0], b.shape[0]):
        raise error("SML1006", a=list(a.shape), b=list(b.shape), c=list(c.shape), block=kind.products)


def check_scales(
    kind: Kind, a: Array, b: Array, sa: Array | None, sb: Array | None, fmt: str | None, block: int | None
) -> Scales:
    """Both scales present, of a legal format and shape, on a block-scaled kind: else SML1007. `block` and the shapes
    count b's (logical) K elements; a may be sparse, with half as many."""
    depth = b.shape[1]
    kept = a.shape[1]
    blocks = 0 if not block or depth % block else depth // block
    legal = (fmt, (block or 0) * kept // depth) in kind.scales and blocks > 0
    for scale, rows in ((sa, a.shape[0]), (sb, b.shape[0])):
        legal = legal and scale is not None and scale.dtype == np.uint8 and scale.shape == (rows, blocks)
    if not legal or sa is None or sb is None or fmt is None or block is None:
        raise error(
            "SML1007",
            kind=kind.name,
            legal=", ".join(f"{name} on {size}" for name, size in kind.scales) or "no scales",
            fmt=fmt,
            block=block,
            shapes=[None if s is None else [str(s.dtype), *s.shape] for s in (sa, sb)],
            expected=[[a.shape[0], blocks], [b.shape[0], blocks]],
        )
    return Scales(sa, sb, fmt, block * kept // depth)


def multiply(options: Options, a: Array, b: Array, c: Array | None, index: Array | None, out: Array | None) -> Array:
    """The rule of the kind on checked operands. index [M, kept K] picks B's element for each of A's; None is dense."""
    kind = options.kind
    container = FORMATS[kind.output].dtype
    if kind.rule == kind_table.CHAIN:
        result = _chain(a, b, c)
    elif kind.rule == kind_table.HALVES:
        result = _halves(options, a, b, c, index)
    elif kind.rule in (kind_table.FUSED, kind_table.GROUPED):
        run = _fused if kind.rule == kind_table.FUSED else _grouped
        if out is not None and out.dtype == np.uint32 and out.flags.c_contiguous:
            return run(options, a, b, c, index, out)
        result = run(options, a, b, c, index, np.empty((a.shape[0], b.shape[0]), np.uint32))
    else:
        result = _integer(options, a, b, c, index)
    if out is None:
        return result.astype(container, copy=False)
    out[...] = result
    return out


@cache
def _dense_index(depth: int) -> Array:
    return np.arange(depth, dtype=np.int64).reshape(1, depth)


@cache
def decode_parameters(form: Format, negate: bool) -> tuple[int, ...]:
    """What `kernels.decode` needs: masks, mantissa bits, bias, least special code, Inf's code, sign flip."""
    never = 1 << 40
    special = {"ieee": form.inf_bits, "nan": form.nan_bits}.get(form.special)
    return (
        form.magnitude_mask,
        form.sign_mask,
        form.mantissa_bits + form.low_bits,
        form.bias,
        never if special is None else special,
        -1 if form.inf_bits is None else form.inf_bits,
        int(negate),
    )


def _decoded(bits: Array, fmt: str, negate: bool, transpose: bool) -> tuple[Array, Array]:
    words = (bits.T if transpose else bits).astype(np.uint32, order="C")
    values = np.empty(words.shape, np.float64)
    exponents = np.empty(words.shape, np.int16)
    form = decode_parameters(FORMATS[fmt], negate)
    _kernels().decode(words.reshape(-1), form, values.reshape(-1), exponents.reshape(-1))
    return values, exponents


def _c_values(c: Array | None, fmt: str) -> Array:
    """C as float32, which holds every f16 and f32."""
    if c is None:
        return _NO_C
    if fmt == "f32":
        return np.ascontiguousarray(c).view(np.float32)
    with np.errstate(invalid="ignore"):
        return c.astype(np.uint16).view(np.float16).astype(np.float32)


def _fused(options: Options, a: Array, b: Array, c: Array | None, index: Array | None, out: Array) -> Array:
    kernels = _kernels()
    av, ae = _decoded(a, options.a_format, options.negate_a, False)
    bv, be = _decoded(b, options.b_format, options.negate_b, True)
    if options.scales is not None:
        scales = options.scales
        logical_block = scales.block * b.shape[1] // a.shape[1]
        kernels.scale_columns(av, ae, *_scale_values(scales.a, scales.fmt), scales.block)
        kernels.scale_rows(bv, be, *_scale_values(scales.b, scales.fmt), logical_block)
    return fuse_decoded(options, (av, ae), (bv, be), c, index, out)


def fuse_decoded(
    options: Options, a: tuple[Array, Array], b: tuple[Array, Array], c: Array | None, index: Array | None, out: Array
) -> Array:
    """The fused sum of decoded operands: (values, exponents) of a [M, K] and of transposed b [K', N]."""
    kind, kernels = options.kind, _kernels()
    index = _dense_index(a[0].shape[1]) if index is None else index
    emin = FORMATS[kind.output].emin
    values = _c_values(c, kind.output)
    depth = a[0].shape[1]
    for k in range(0, depth, kind.products):
        kernels.fused(
            *a, *b, index, k, min(k + kind.products, depth), values,
            options.scale_input_d if k == 0 else 0, emin, kind.fraction, kind.floor, _ROUNDINGS[kind.round_out], out,
        )  # fmt: skip
        if k + kind.products < depth:
            values = _c_values(out, kind.output)
    return out


def _grouped(options: Options, a: Array, b: Array, c: Array | None, index: Array | None, out: Array) -> Array:
    kind, kernels, scales = options.kind, _kernels(), options.scales
    assert scales is not None
    index = _dense_index(a.shape[1]) if index is None else index
    doubled = _doubled(options.a_format)
    av = np.ascontiguousarray((-doubled if options.negate_a else doubled)[a & 15])
    bv = np.ascontiguousarray((-doubled if options.negate_b else doubled)[b.T & 15])
    depth = a.shape[1]
    of_group = np.arange(0, depth, GROUP) // scales.block
    fa, xa = (np.ascontiguousarray(x[:, of_group]) for x in _scale_values(scales.a, scales.fmt))
    fb, xb = (np.ascontiguousarray(x.T[of_group]) for x in _scale_values(scales.b, scales.fmt))
    emin = FORMATS[kind.output].emin
    values = _c_values(c, kind.output)
    for k in range(0, depth, kind.products):
        kernels.grouped(
            av, bv, index, fa, xa, fb, xb, k, min(k + kind.products, depth), values, emin,
            GROUP, kind.fraction, kind.floor, _ROUNDINGS[kind.round_out], out,
        )  # fmt: skip
        if k + kind.products < depth:
            values = _c_values(out, kind.output)
    return out


@cache
def _doubled(fmt: str) -> Array:
    """Twice the value of each code, as int16: every e2m1 value is a multiple of 1/2."""
    return (formats.table(fmt) * 2).astype(np.int16)


def _scale_values(codes: Array, fmt: str) -> tuple[Array, Array]:
    """Scales as float64 and their exponents as int16. A zero is absent; of a NaN only the value matters."""
    exponents = _scale_exponents(fmt)[codes]
    return formats.table(fmt)[codes], exponents


@cache
def _scale_exponents(fmt: str) -> Array:
    form = FORMATS[fmt]
    codes = np.arange(256) & form.magnitude_mask
    if form.special == "scale":
        return (codes - form.bias).astype(np.int16)
    exponents: Array = np.maximum(codes >> form.mantissa_bits, 1) - form.bias
    exponents[codes == 0] = _kernels().ABSENT
    return exponents.astype(np.int16)


def _integer(options: Options, a: Array, b: Array, c: Array | None, index: Array | None) -> Array:
    kind, kernels = options.kind, _kernels()
    left = formats.decode(a, options.a_format).astype(np.int32)
    right = formats.decode(b.T, options.b_format).astype(np.int32, order="C")
    if kind.rule == kind_table.BITS_XOR:  # a xor b = a + b - 2ab, the sums of a and of b as two more products
        ones = np.ones((1, right.shape[1]), np.int32), np.ones((left.shape[0], 1), np.int32)
        right = np.concatenate([right, ones[0], right.sum(0, np.int32, keepdims=True)])
        left = np.concatenate([-2 * left, left.sum(1, np.int32, keepdims=True), ones[1]], axis=1)
    depth = left.shape[1]
    step = kind.products if options.saturate else depth  # without clamping a chain is one sum modulo 2^32
    index = _dense_index(depth) if index is None else index
    words = _NO_C.view(np.uint32) if c is None else np.ascontiguousarray(c)
    out = np.empty((a.shape[0], b.shape[0]), np.uint32)
    for k in range(0, depth, step):
        stop = min(k + step, depth)
        kernels.integer(left, right, index, k, stop, words.view(np.int32), options.saturate, out)
        words = out
    return out


def _chain(a: Array, b: Array, c: Array | None) -> Array:
    """f64: IEEE fused multiply-adds; NaN results are the canonical 7FFFFFFFFFFFFFFF (assumed: NaN was not recorded)."""
    start = np.zeros((a.shape[0], b.shape[0]), np.uint64) if c is None else np.ascontiguousarray(c)
    out = np.empty(start.shape, np.float64)
    views = (np.ascontiguousarray(x).view(np.float64) for x in (a, b.T, start))
    _kernels().chain(*views, out)
    return canonical(out, "f64")


def _halves(options: Options, a: Array, b: Array, c: Array | None, index: Array | None) -> Array:
    """fp8 mma.sync as ptxas emits it (measured, E8): widened to f16, k mod 4 in {0, 1} summed from zero, {2, 3} on top,
    then an ordinary addition of C. Of a sparse A the kept elements are counted."""
    kind = options.kind
    half = Options(kind_table.KINDS["mma.f16.f16" if kind.output == "f16" else "mma.f16"], "f16", "f16")
    aw, bw = (_to_f16(fmt)[x] for x, fmt in ((a, options.a_format), (b, options.b_format)))
    operands = _decoded(aw, "f16", options.negate_a, False), _decoded(bw, "f16", options.negate_b, True)
    index = _dense_index(a.shape[1]) if index is None else index
    total = c
    for k in range(0, a.shape[1], kind.products):
        within = np.arange(k, min(k + kind.products, a.shape[1]))
        partial: Array | None = None
        for pair in (within % 4 < 2, within % 4 >= 2):
            kept = within[pair]
            part = tuple(np.ascontiguousarray(x[:, kept]) for x in operands[0])
            selected = np.ascontiguousarray(index[:, kept])
            words = np.empty((a.shape[0], b.shape[0]), np.uint32)
            partial = fuse_decoded(half, (part[0], part[1]), operands[1], partial, selected, words)
        assert partial is not None
        total = partial if total is None else _add(total, partial, kind.output)
    assert total is not None
    return total


@cache
def _to_f16(fmt: str) -> Array:
    with np.errstate(invalid="ignore"):
        return formats.table(fmt).astype(np.float16).view(np.uint16)


def _add(x: Array, y: Array, fmt: str) -> Array:
    """Element-wise IEEE addition to nearest even of two arrays of f32 or f16 words, with the canonical NaN."""
    floating = {"f32": np.float32, "f16": np.float16}[fmt]
    container = FORMATS[fmt].dtype
    with np.errstate(all="ignore"):
        return canonical(x.astype(container).view(floating) + y.astype(container).view(floating), fmt)


def canonical(values: Array, fmt: str) -> Array:
    """The words of floating-point `values`, every NaN replaced by the one that the hardware writes."""
    form = FORMATS[fmt]
    words: Array = values.view(form.dtype).copy()
    words[np.isnan(values)] = form.nan_bits
    return words
