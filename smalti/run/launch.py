"""What a kernel is launched with: shape, buffers, and parameters in the order of its signature; and their checks.

Values only: a parameter becomes bytes by `resolve`, once the caller says where each buffer lies. It must not know
what a launch file looks like (see launch_file) or which device runs it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from smalti.errors import error
from smalti.layout.tensor_map import BYTES as MAP_BYTES
from smalti.layout.tensor_map import TensorMap
from smalti.ptx.module import Function, Module, Variable, type_bits
from smalti.run.dtypes import from_bits, from_memory, memory_size, numpy_dtype

Dim3: TypeAlias = tuple[int, int, int]

# CUDA C++ programming guide, technical specifications by compute capability (9.0 to 12.0).
GRID_LIMITS = (2**31 - 1, 65535, 65535)
BLOCK_LIMITS = (1024, 1024, 64)
MOST_THREADS = 1024
MOST_CLUSTER = 16  # above 8 is not portable: the kernel must allow it
MOST_SHARED = 227 * 1024
MOST_PARAMETER_BYTES = 32764


@dataclass(frozen=True, slots=True, eq=False)
class Buffer:
    """Global memory that a kernel is given.

    dtype      a format name of `run.dtypes`; dense: 6-bit elements are packed four to three bytes
    shape      elements; strides: in elements, None for row-major without gaps
    data       its bytes before the launch, None for undefined ones
    output     whether it is handed back
    expected   bits that the output should have, with `tolerance` (absolute, relative) or None for equal bits
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    data: NDArray[np.uint8] | None = None
    output: bool = False
    expected: NDArray[Any] | None = None
    tolerance: tuple[float, float] | None = None
    dense: bool = False

    @property
    def extent(self) -> int:
        """Elements from the first to the last, gaps included."""
        if 0 in self.shape:
            return 0
        if self.strides is None:
            return math.prod(self.shape)
        return 1 + sum((n - 1) * s for n, s in zip(self.shape, self.strides, strict=True))

    @property
    def nbytes(self) -> int:
        return memory_size(self.dtype, self.extent, self.dense)

    def bits_in(self, memory: NDArray[np.uint8]) -> NDArray[Any]:
        """The elements, as bits, of the buffer whose bytes are `memory`."""
        flat = from_memory(memory, self.dtype, self.extent, self.dense)
        if self.strides is None:
            return flat.reshape(self.shape)
        step = flat.itemsize
        return np.lib.stride_tricks.as_strided(flat, self.shape, [s * step for s in self.strides]).copy()

    def array_in(self, memory: NDArray[np.uint8]) -> NDArray[Any]:
        """As `bits_in`, as an array of the format's NumPy type."""
        return from_bits(self.bits_in(memory), self.dtype)


# -- parameters ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Scalar:
    """A number: `type` is a PTX type, u8 to u64, s8 to s64, b8 to b64, f16, bf16, f32, f64."""

    type: str
    value: int | float

    def encode(self) -> bytes:
        if "f" in self.type:
            with np.errstate(over="ignore"):
                return np.array([self.value], numpy_dtype(self.type)).tobytes()
        size = type_bits(self.type) // 8
        low, high = -(1 << 8 * size - 1), (1 << 8 * size) - 1
        low, high = (0, high) if self.type[0] == "u" else (low, high >> (self.type[0] == "s"))
        if not isinstance(self.value, int) or not low <= self.value <= high:
            raise error("SML0158", value=self.value, type=self.type, low=low, high=high)
        return (self.value & (1 << 8 * size) - 1).to_bytes(size, "little")


@dataclass(frozen=True, slots=True)
class Pointer:
    """The address of a buffer plus `offset` bytes."""

    buffer: str
    offset: int = 0


@dataclass(frozen=True, slots=True)
class MapOf:
    """A tensor map over a buffer, starting `offset` bytes into it; `map.address` is filled in at launch."""

    buffer: str
    map: TensorMap
    offset: int = 0


@dataclass(frozen=True, slots=True)
class Scratch:
    """A pointer to `size` undefined bytes that belong to the launch; null if size is 0."""

    size: int = 0


@dataclass(frozen=True, slots=True)
class Struct:
    """Bytes, with other parameters written over them at the given byte offsets."""

    data: bytes
    at: tuple[tuple[int, Scalar | Pointer | MapOf | Scratch], ...] = ()


Param: TypeAlias = Scalar | Pointer | MapOf | Scratch | Struct


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: grid in CTAs, block in threads, cluster in CTAs, dynamic shared memory in bytes."""

    entry: str
    grid: Dim3
    block: Dim3
    params: tuple[Param, ...] = ()
    buffers: Mapping[str, Buffer] = field(default_factory=dict)
    cluster: Dim3 = (1, 1, 1)
    shared: int = 0

    def __post_init__(self) -> None:
        limits = (("grid", self.grid, GRID_LIMITS), ("block", self.block, BLOCK_LIMITS))
        for what, dims, most in (*limits, ("cluster", self.cluster, (MOST_CLUSTER,) * 3)):
            for axis, n, limit in zip("xyz", dims, most, strict=True):
                if not 1 <= n <= limit:
                    raise error("SML0150", what=f"{what}.{axis}", value=n, limit=limit)
        for what, dims, limit in (("threads", self.block, MOST_THREADS), ("cluster", self.cluster, MOST_CLUSTER)):
            if math.prod(dims) > limit:
                raise error("SML0150", what=f"the product of {what}", value=math.prod(dims), limit=limit)
        for axis, g, c in zip("xyz", self.grid, self.cluster, strict=True):
            if g % c:
                raise error("SML0151", axis=axis, grid=g, cluster=c, nearest=-(-g // c) * c)
        if not 0 <= self.shared <= MOST_SHARED:
            raise error("SML0157", shared=self.shared, limit=MOST_SHARED)
        for param in self.flat_params():
            if isinstance(param, Pointer | MapOf):
                self._check_reference(param)

    def flat_params(self) -> list[Scalar | Pointer | MapOf | Scratch]:
        """All parameters, those inside structs included."""
        found: list[Scalar | Pointer | MapOf | Scratch] = []
        for p in self.params:
            found += [inner for _, inner in p.at] if isinstance(p, Struct) else [p]
        return found

    def _check_reference(self, param: Pointer | MapOf) -> None:
        buffer = self.buffers.get(param.buffer)
        if buffer is None:
            raise error("SML0155", name=param.buffer, known=", ".join(self.buffers) or "none")
        reach = param.map.extent if isinstance(param, MapOf) else 0
        what = "a tensor map" if isinstance(param, MapOf) else "a pointer"
        if not 0 <= param.offset <= buffer.nbytes - reach:
            raise error("SML0156", what=what, offset=param.offset, reach=reach, name=buffer.name, size=buffer.nbytes)


# -- against the module --------------------------------------------------------------------------------


def kernel_of(module: Module, launch: Launch) -> Function:
    """The kernel that the launch names. Errors: SML0152, and SML0153 or SML0154 where its parameters are others."""
    kernels = {f.name: f for f in module.functions() if f.entry and f.body is not None}
    kernel = kernels.get(launch.entry)
    if kernel is None:
        raise error("SML0152", entry=launch.entry, known=", ".join(kernels) or "none")
    if len(kernel.params) != len(launch.params):
        raise error("SML0153", entry=kernel.name, wanted=len(kernel.params), given=len(launch.params))
    for variable, param in zip(kernel.params, launch.params, strict=True):
        if variable.size != size_of(param):
            raise error(
                "SML0154",
                entry=kernel.name,
                name=variable.name,
                wanted=variable.size,
                given=size_of(param),
                kind=type(param).__name__,
            )
    return kernel


def size_of(param: Param) -> int:
    if isinstance(param, Scalar):
        return type_bits(param.type) // 8
    if isinstance(param, Struct):
        return len(param.data)
    return MAP_BYTES if isinstance(param, MapOf) else 8


def resolve(
    params: Sequence[Param],
    address_of: Callable[[str], int],
    scratch_of: Callable[[int], int],
    encode_map: Callable[[TensorMap], bytes] = TensorMap.encode,
) -> list[bytes]:
    """The bytes of each parameter. `address_of` gives the address of a buffer, `scratch_of` that of new scratch
    memory of a size above 0; `encode_map` codes a map (on a GPU: the driver). Errors: those of `TensorMap.check`."""

    def one(param: Param) -> bytes:
        if isinstance(param, Scalar):
            return param.encode()
        if isinstance(param, Pointer):
            return (address_of(param.buffer) + param.offset).to_bytes(8, "little")
        if isinstance(param, Scratch):
            return (scratch_of(param.size) if param.size else 0).to_bytes(8, "little")
        if isinstance(param, MapOf):
            placed = param.map.at(address_of(param.buffer) + param.offset)
            placed.check()
            return encode_map(placed)
        raw = bytearray(param.data)
        for offset, inner in param.at:
            piece = one(inner)
            assert offset >= 0 and offset + len(piece) <= len(raw), "checked where the struct is made"
            raw[offset : offset + len(piece)] = piece
        return bytes(raw)

    return [one(p) for p in params]


def parameter_block(variables: Sequence[Variable], pieces: Sequence[bytes]) -> bytes:
    """All parameters in one block, each at its own alignment, as the CUDA ABI lays them out."""
    block = bytearray()
    for variable, piece in zip(variables, pieces, strict=True):
        align = variable.align or type_bits(variable.type) // 8
        block += bytes(-len(block) % align)
        block += piece
    return bytes(block)
