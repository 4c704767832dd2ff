"""What a launch file says that a buffer holds: numbers, an array file, or a rule; the bits that follow from it.

Rules depend on the index and a seed alone, so that a launch file gives the same bits everywhere and for ever.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from smalti.errors import error
from smalti.numerics.convert import encode
from smalti.numerics.formats import FORMATS
from smalti.run import npy
from smalti.run.dtypes import as_bits, to_memory
from smalti.run.fields import Reader, kind
from smalti.run.launch import Buffer

Bits = NDArray[Any]

LONGEST_LIST = 1 << 16  # numbers written in the file itself
_DEEPEST = 8
_MOST = 1 << 40


def bits(reader: Reader, value: Any, buffer: Buffer) -> Bits:
    """The bits, of the buffer's shape, that a data description stands for."""
    if isinstance(value, list | int | float) and not isinstance(value, bool):
        return _values(reader, value, buffer)
    if not isinstance(value, dict) or len(value) != 1 or next(iter(value)) not in RULES:
        reader.refuse(f"must be numbers or an object with one of {', '.join(RULES)}, is {kind(value)}")
    ((rule, inner),) = value.items()
    with reader.at(f".{rule}"):
        return RULES[rule](reader, inner, buffer).reshape(buffer.shape)


def _values(reader: Reader, value: Any, buffer: Buffer) -> Bits:
    """Nested lists of the buffer's shape, one flat list, or one number for all elements."""
    if not isinstance(value, list):
        return np.full(buffer.shape, _encoded(reader, [reader.number(value)], buffer)[0])
    flat: list[int | float] = []

    def walk(item: Any, depth: int) -> None:
        if isinstance(item, list) and depth < _DEEPEST:
            for inner in item:
                walk(inner, depth + 1)
        else:
            flat.append(reader.number(item))
        if len(flat) > LONGEST_LIST:
            reader.refuse(f"more than {LONGEST_LIST} numbers; put them into a .npy file")

    walk(value, 0)
    if len(flat) != math.prod(buffer.shape):
        _misfit(reader, f"{len(flat)} numbers", buffer)
    return _encoded(reader, flat, buffer).reshape(buffer.shape)


def _encoded(reader: Reader, numbers: list[int | float], buffer: Buffer) -> Bits:
    form = FORMATS[buffer.dtype]
    if form.is_float:
        return np.asarray(encode(np.array(numbers, np.float64), form.name)).astype(form.dtype)
    low, high = _range(buffer)
    mask = (1 << form.bits) - 1
    return np.array([reader.integer(n, low, high) & mask for n in numbers], form.dtype)


def _range(buffer: Buffer) -> tuple[int, int]:
    """The integers that an integer format holds."""
    form = FORMATS[buffer.dtype]
    return (-(1 << form.bits - 1) if form.signed else 0), (1 << form.bits - form.signed) - 1


def _from_integers(reader: Reader, numbers: NDArray[np.int64], buffer: Buffer) -> Bits:
    form = FORMATS[buffer.dtype]
    if form.is_float:
        return np.asarray(encode(numbers.astype(np.float64), form.name)).astype(form.dtype)
    low, high = _range(buffer)
    if numbers.size and (int(numbers.min()) < low or int(numbers.max()) > high):
        reader.refuse(f"gives integers outside {low} to {high}, the range of {form.name}")
    return (numbers & ((1 << form.bits) - 1 if form.bits < 64 else -1)).astype(form.dtype)


def _npy(reader: Reader, value: Any, buffer: Buffer) -> Bits:
    """An array file below the folder, of the buffer's dtype or of raw bits of its width."""
    relative = Path(reader.string(value))
    try:
        path = (reader.folder / relative).resolve()
    except (ValueError, OSError, RuntimeError):  # a NUL, half a surrogate pair, links in a circle
        reader.refuse(f"{str(relative)!r} is no path")
    if relative.is_absolute() or not path.is_relative_to(reader.folder.resolve()):
        raise error("SML0162", file=reader.file, path=str(relative))
    found, _ = as_bits(npy.load(path, buffer.dtype), what=str(relative), dtype=buffer.dtype)
    if found.shape != buffer.shape:
        _misfit(reader, f"{relative} has shape {list(found.shape)}", buffer)
    return found


def _byte(reader: Reader, value: Any, buffer: Buffer) -> Bits:
    """The same byte everywhere."""
    form = FORMATS[buffer.dtype]
    word = int.from_bytes(bytes([reader.integer(value, 0, 255)]) * form.dtype.itemsize, "little")
    return np.full(buffer.shape, word & _container_mask(buffer), form.dtype)


def _container_mask(buffer: Buffer) -> int:
    form = FORMATS[buffer.dtype]
    return (1 << (form.bits if form.bits < 8 else 8 * form.dtype.itemsize)) - 1


def _iota(reader: Reader, value: Any, buffer: Buffer) -> Bits:
    """start + step * (index modulo `modulo`), the index in row-major order."""
    f = reader.fields(value, "", "start step modulo")
    start = reader.get(f, "start", reader.within(-_MOST, _MOST), 0)
    step = reader.get(f, "step", reader.within(-(1 << 20), 1 << 20), 1)
    modulo = reader.get(f, "modulo", reader.within(1, _MOST), _MOST)
    return _by_index(buffer, lambda index: _from_integers(reader, start + step * (index % modulo), buffer))


def _integers(reader: Reader, value: Any, buffer: Buffer) -> Bits:
    """Integers from low to high, all alike."""
    f = reader.fields(value, "seed low high")
    low = reader.get(f, "low", reader.within(-(1 << 31), 1 << 31), 0)
    high = reader.get(f, "high", reader.within(low, 1 << 31), 0)
    seed = reader.get(f, "seed", reader.within(0, _SEEDS), 0)

    def some(index: NDArray[np.int64]) -> Bits:
        words = _words(seed, index) >> np.uint64(32)
        return _from_integers(reader, low + (words % np.uint64(high - low + 1)).astype(np.int64), buffer)

    return _by_index(buffer, some)


def _codes(reader: Reader, value: Any, buffer: Buffer) -> Bits:
    """Every code of the format alike, NaN and infinities included."""
    seed = reader.get(reader.fields(value, "seed"), "seed", reader.within(0, _SEEDS), 0)
    shift = np.uint64(64 - _container_mask(buffer).bit_length())
    return _by_index(buffer, lambda index: _words(seed, index) >> shift)


_SEEDS = (1 << 31) - 1
_AT_A_TIME = 1 << 20  # elements: their 64-bit indices must not take more memory than a large buffer of bytes


def _by_index(buffer: Buffer, some: Callable[[NDArray[np.int64]], Bits]) -> Bits:
    """The elements in row-major order, made from their indices a piece at a time."""
    total = math.prod(buffer.shape)
    out = np.empty(total, FORMATS[buffer.dtype].dtype)
    for start in range(0, total, _AT_A_TIME):
        index = np.arange(start, min(start + _AT_A_TIME, total), dtype=np.int64)
        out[start : start + index.size] = some(index)
    return out


def _words(seed: int, index: NDArray[np.int64]) -> NDArray[np.uint64]:
    """One 64-bit word an element: SplitMix64 at position seed * 2^32 + index + 1."""
    with np.errstate(over="ignore"):
        z = index.astype(np.uint64) + np.uint64((seed << 32) + 1)
        z *= np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
        return z ^ z >> np.uint64(31)


def _misfit(reader: Reader, what: str, buffer: Buffer) -> NoReturn:
    raise error("SML0163", file=reader.file, where=reader.where, what=what, shape=list(buffer.shape))


RULES: dict[str, Callable[[Reader, Any, Buffer], Bits]] = {
    "npy": _npy,
    "byte": _byte,
    "iota": _iota,
    "integers": _integers,
    "codes": _codes,
}

_GAP = 0xCC  # what the gaps between strided rows hold


def memory(values: Bits, buffer: Buffer) -> NDArray[np.uint8]:
    """The bytes of the buffer whose elements are `values`."""
    if buffer.strides is None:
        return to_memory(values, buffer.dtype, buffer.dense)
    item = values.dtype.itemsize
    flat = np.full(buffer.extent * item, _GAP, np.uint8).view(values.dtype) & values.dtype.type(_container_mask(buffer))
    if values.size:
        steps = [s * item for s in buffer.strides]
        np.lib.stride_tricks.as_strided(flat, buffer.shape, steps)[...] = values
    return to_memory(flat, buffer.dtype, buffer.dense)
