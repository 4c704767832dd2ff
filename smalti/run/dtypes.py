"""The one place that knows how frameworks hold number formats: NumPy, ml_dtypes, PyTorch, JAX, DLPack.

Arrays enter here and become bits in the containers of `numerics.formats`; bits leave as arrays or as bytes of
GPU memory. It must not convert values, only reinterpret, pack and copy; it knows nothing of kernels.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from smalti.errors import error
from smalti.numerics.formats import FORMATS, pack4, pack6, unpack4, unpack6

Array = NDArray[Any]
Bytes = NDArray[np.uint8]


class Held(NamedTuple):
    """How a format is held outside: its attribute of numpy or ml_dtypes and of torch, "" where there is none;
    and the bits that an element takes in GPU memory unless asked otherwise."""

    numpy: str
    torch: str
    memory: int


DTYPES: dict[str, Held] = {
    "f64": Held("float64", "float64", 64),
    "f32": Held("float32", "float32", 32),
    "tf32": Held("", "", 32),  # an f32 whose low 13 bits do not count
    "bf16": Held("bfloat16", "bfloat16", 16),
    "f16": Held("float16", "float16", 16),
    "e5m2": Held("float8_e5m2", "float8_e5m2", 8),
    "e4m3": Held("float8_e4m3fn", "float8_e4m3fn", 8),
    "e3m2": Held("float6_e3m2fn", "", 8),
    "e2m3": Held("float6_e2m3fn", "", 8),
    "e2m1": Held("float4_e2m1fn", "float4_e2m1fn_x2", 4),  # ml_dtypes: one a byte; torch: two, low half first
    "ue8m0": Held("float8_e8m0fnu", "float8_e8m0fnu", 8),
    "ue4m3": Held("", "", 8),  # the scale type of NVFP4; NumPy and torch use e4m3 for it
    "s64": Held("int64", "int64", 64),
    "u64": Held("uint64", "uint64", 64),
    "s32": Held("int32", "int32", 32),
    "u32": Held("uint32", "uint32", 32),
    "s16": Held("int16", "int16", 16),
    "u16": Held("uint16", "uint16", 16),
    "s8": Held("int8", "int8", 8),
    "u8": Held("uint8", "uint8", 8),
    "s4": Held("int4", "", 4),
    "u4": Held("uint4", "", 4),
}
SHOWN_AS = {"tf32": "f32", "ue4m3": "e4m3"}  # formats without a NumPy type: one that has the same bits


def numpy_dtype(name: str) -> np.dtype[Any]:
    """The NumPy (or ml_dtypes) type that shows format `name`. Errors: SML0110."""
    held = DTYPES.get(SHOWN_AS.get(name, name))
    if held is None:
        raise error("SML0110", name=name, known=", ".join(DTYPES))
    dtype: np.dtype[Any] = np.dtype(getattr(np, held.numpy, None) or getattr(ml_dtypes, held.numpy))
    return dtype


_NAMES = {numpy_dtype(name): name for name, held in DTYPES.items() if held.numpy}
_TORCH = {held.torch: name for name, held in DTYPES.items() if held.torch}


def name_of(dtype: Any) -> str | None:
    """The format of a NumPy dtype in either byte order, or None where it is none of ours."""
    native = np.dtype(dtype).newbyteorder("=")
    return _NAMES.get(native)


def name_of_torch(dtype: Any) -> str | None:
    """The format of a PyTorch dtype, or None where it is none of ours."""
    return _TORCH.get(str(dtype).removeprefix("torch."))


def as_bits(value: Any, *, what: str, dtype: str | None = None) -> tuple[Array, str]:
    """The elements of `value` as bits, and the name of their format.

    value   a NumPy array (ml_dtypes included), a PyTorch tensor (copied to the CPU if need be), a JAX array,
            or anything with `__dlpack__` or `__array__`; the shape stays, except that torch's packed fp4
            doubles its last axis
    what    the argument's name, for messages
    dtype   the format to read the bits as, of the same width, e.g. "ue8m0" for uint8 scales

    The result may be a view of `value`. Errors: SML0111 (a dtype that is no number format of ours), SML0112
    (DLPack refused), SML0113 (`dtype` of another width).
    """
    bits, name = _torch_bits(value, what) if _is_torch(value) else _numpy_bits(value, what)
    if dtype is None or dtype == name:
        return bits, name
    numpy_dtype(dtype)
    if FORMATS[dtype].dtype != bits.dtype:
        raise error("SML0113", what=what, dtype=name, wanted=dtype)
    return bits, dtype


def _numpy_bits(value: Any, what: str) -> tuple[Array, str]:
    array = value if isinstance(value, np.ndarray) else _imported(value, what)
    name = name_of(array.dtype)
    if name is None:
        raise error("SML0111", what=what, dtype=str(array.dtype), known=", ".join(DTYPES))
    native = array if array.dtype.isnative else array.astype(array.dtype.newbyteorder("="))
    return native.view(FORMATS[name].dtype), name


def _imported(value: Any, what: str) -> Array:
    """Arrays of other libraries. JAX is asked for a NumPy array, since its small formats refuse DLPack."""
    if hasattr(value, "__dlpack__") and not hasattr(value, "__array__"):
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as refused:
            raise error("SML0112", what=what, reason=str(refused)) from refused
    try:
        return np.asarray(value)
    except ValueError as ragged:
        raise error("SML0111", what=what, dtype="object (its rows differ)", known=", ".join(DTYPES)) from ragged


def _is_torch(value: Any) -> bool:
    return type(value).__module__.partition(".")[0] == "torch" and hasattr(value, "untyped_storage")


def _torch_bits(value: Any, what: str) -> tuple[Array, str]:
    import torch

    name = name_of_torch(value.dtype)
    if name is None:
        raise error("SML0111", what=what, dtype=str(value.dtype), known=", ".join(DTYPES))
    carrier = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[value.element_size()]
    plain = value.detach().cpu().view(carrier).numpy()
    if name == "e2m1":
        return unpack4(plain), name
    return plain.view(FORMATS[name].dtype), name


def from_bits(bits: Array, name: str) -> Array:
    """The elements as an array of the format's NumPy type (see `numpy_dtype`)."""
    return bits.view(numpy_dtype(name))


# -- GPU memory ----------------------------------------------------------------------------------------


def memory_bits(name: str, dense: bool = False) -> int:
    """Bits an element of format `name` takes in memory; `dense` packs 6-bit formats too. Errors: SML0110."""
    numpy_dtype(name)
    return 6 if dense and FORMATS[name].bits == 6 else DTYPES[name].memory


def memory_size(name: str, elements: int, dense: bool = False) -> int:
    """Bytes of `elements` consecutive elements; 6-bit ones count in whole groups of four."""
    bits = memory_bits(name, dense)
    return -(-elements // 4) * 3 if bits == 6 else -(-elements * bits // 8)


def to_memory(bits: Array, name: str, dense: bool = False) -> Bytes:
    """The bytes of consecutive elements, little-endian, low half first; zeros fill the last byte."""
    flat = np.ascontiguousarray(bits).reshape(-1)
    width = memory_bits(name, dense)
    if width >= 8:
        return flat.view(np.uint8)
    return pack4(_padded(flat, 2)) if width == 4 else pack6(_padded(flat, 4))


def from_memory(data: Bytes, name: str, elements: int, dense: bool = False) -> Array:
    """Inverse of `to_memory`: the bits of the first `elements` elements."""
    data = np.ascontiguousarray(data[: memory_size(name, elements, dense)])
    width = memory_bits(name, dense)
    if width >= 8:
        return data.view(FORMATS[name].dtype)
    return (unpack4(data) if width == 4 else unpack6(data))[:elements]


def _padded(flat: Array, multiple: int) -> Array:
    rest = -flat.size % multiple
    return np.concatenate([flat, np.zeros(rest, flat.dtype)]) if rest else flat
