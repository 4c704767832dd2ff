"""What the reductions of bulk and tensor copies compute, element by element, as measured on an H200 (E11)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
Reduction = Callable[[Array, Array], Array]

_FLOATING = {"f16": np.float16, "f32": np.float32, "f64": np.float64}
_NAN = {"f16": 0x7FFF, "bf16": 0x7FFF, "f32": 0x7FFFFFFF, "f64": 0xFFF8000000000000}
_QUIET = np.uint64(1 << 51)


def reduction(op: str, type_: str) -> Reduction | None:
    """The function of (old bits, new bits) for an operation on a PTX or tensor-map type; None if there is none.

    f32.ftz flushes subnormals of both operands and of the sum to zero of their sign, f32 keeps them.
    """
    base = {"b32": "u32", "b64": "u64", "f32.ftz": "f32", "tf32": "f32", "tf32.ftz": "f32"}.get(type_, type_)
    floating = base in _NAN
    if op in ("and", "or", "xor"):
        bitwise: Reduction = {"and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor}[op]
        return None if floating else bitwise
    if op in ("inc", "dec"):
        return (_inc if op == "inc" else _dec) if base == "u32" else None
    if op == "add":
        if floating:
            return _float_add(base, type_.endswith(".ftz"))
        return np.add
    if base in ("f16", "bf16"):
        return _half_extreme(base, op == "max")
    if floating:
        return None
    pick = np.maximum if op == "max" else np.minimum
    if base[0] == "s":
        signed = {"s32": np.int32, "s64": np.int64}[base]
        return lambda old, new: pick(old.view(signed), new.view(signed)).view(old.dtype)
    return pick


def _inc(old: Array, new: Array) -> Array:
    return np.where(old >= new, 0, old + np.uint32(1)).astype(np.uint32)


def _dec(old: Array, new: Array) -> Array:
    return np.where((old == 0) | (old > new), new, old - np.uint32(1)).astype(np.uint32)


def _flush(x: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    tiny = (x.view(np.uint32) & np.uint32(0x7F800000)) == 0
    return np.where(tiny, x.view(np.uint32) & np.uint32(0x80000000), x.view(np.uint32)).view(np.float32)


def _float_add(type_: str, flush: bool) -> Reduction:
    nan = _NAN[type_]

    def add(old: Array, new: Array) -> Array:
        with np.errstate(all="ignore"):
            if type_ == "bf16":
                total = _widen(old) + _widen(new)
                bits = total.view(np.uint32)
                rounded = (bits + np.uint32(0x7FFF) + (bits >> np.uint32(16) & np.uint32(1))) >> np.uint32(16)
                return np.where(np.isnan(total), np.uint16(nan), rounded.astype(np.uint16))
            floating = _FLOATING[type_]
            a, b = old.view(floating), new.view(floating)
            if flush:
                total = _flush(_flush(a) + _flush(b))
            else:
                total = a + b
            if type_ == "f64":
                return np.where(np.isnan(total), _nan64(new, old), total.view(old.dtype))
            return np.where(np.isnan(total), old.dtype.type(nan), total.view(old.dtype))

    return add


def _nan64(first: Array, second: Array) -> Array:
    """The NaN of an f64 addition in memory: an operand's, unchanged (recording "additions of f64 in memory")."""
    own = np.where(np.isnan(second.view(np.float64)), second, np.uint64(_NAN["f64"]))
    return np.where(np.isnan(first.view(np.float64)), first, own)


def shared_add64(old: Array, new: Array) -> Array:
    """Additions of f64 in shared memory are a loop of DADD and compare-and-swap: the NaN is the old value's first, made
    quiet (same recording)."""
    with np.errstate(all="ignore"):
        total = old.view(np.float64) + new.view(np.float64)
        return np.where(np.isnan(total), _nan64(old, new) | _QUIET, total.view(np.uint64))


def _widen(bf16: Array) -> npt.NDArray[np.float32]:
    return (bf16.astype(np.uint32) << np.uint32(16)).view(np.float32)


def _half_extreme(type_: str, largest: bool) -> Reduction:
    """A number beats NaN, -0 < +0, two NaNs give 7FFF (E11)."""
    limit = 0x7C00 if type_ == "f16" else 0x7F80

    def extreme(old: Array, new: Array) -> Array:
        def key(x: Array) -> Array:  # monotonic in the order -Inf ... -0 < +0 ... Inf
            signed = x.astype(np.int32)
            return np.where(signed & 0x8000, -1 - (signed & 0x7FFF), signed)

        a_nan, b_nan = (old & 0x7FFF) > limit, (new & 0x7FFF) > limit
        take = key(new) > key(old) if largest else key(new) < key(old)
        picked = np.where((take | a_nan) & ~b_nan, new, old)
        return np.where(a_nan & b_nan, np.uint16(_NAN[type_]), picked).astype(np.uint16)

    return extreme
