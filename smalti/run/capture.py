"""Launches of other people's kernels as launch files: what a compiler's launcher was given becomes a `Launch`.

Knows the calling convention of Triton and Gluon kernels (one compiler's signature and metadata) and how host arrays
are held; the driver that catches launches is in `capture_triton`. It must not compile or run anything.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.errors import error
from smalti.layout.tensor_map import TYPES, TensorMap
from smalti.run.dtypes import as_bits, from_memory, memory_bits, name_of_torch, numpy_dtype, to_memory
from smalti.run.launch import Buffer, Launch, MapOf, Param, Pointer, Scalar, Scratch

Bytes = NDArray[np.uint8]

# Triton's names of scalar types, as PTX types of the same width. i1 travels as a byte.
SCALARS = {
    **{f"i{n}": f"s{n}" for n in (8, 16, 32, 64)}, **{f"u{n}": f"u{n}" for n in (8, 16, 32, 64)},
    "i1": "u8", "u1": "u8", "fp16": "f16", "bf16": "bf16", "fp32": "f32", "f32": "f32", "fp64": "f64",
}  # fmt: skip
_MAP_TYPES = {t.number: name for name, t in TYPES.items()}
_SWIZZLES = ("none", "32B", "64B", "128B")  # by their number in the driver's API


@dataclass(frozen=True, slots=True)
class Captured:
    """One launch of a kernel: its name, PTX text, architecture, and everything that it was launched with."""

    name: str
    ptx: str
    arch: str
    launch: Launch

    def save(self, folder: str | Path, stem: str = "") -> Path:
        """Write `<stem>.ptx`, `<stem>.json` and its array files; gives the path of the launch file. Errors: SML0117."""
        from smalti.run.files import write_aside
        from smalti.run.launch_save import save

        stem = stem or self.name
        write_aside(Path(folder) / f"{stem}.ptx", lambda file: file.write(self.ptx.encode()))
        path = Path(folder) / f"{stem}.json"
        save(path, self.launch, f"a launch of {self.name} for {self.arch}")
        return path


class Array:
    """A NumPy array as Triton wants its arguments, for programs that do without PyTorch.

    values   any array that `run.dtypes.as_bits` takes; dtype: the format to read its bits as

    Kernels that run write into it; `numpy()` shows what it holds now.
    """

    _next = 1 << 32

    def __init__(self, values: Any, dtype: str | None = None) -> None:
        bits, self.format = as_bits(values, what="values", dtype=dtype)
        self.shape = tuple(bits.shape)
        if memory_bits(self.format) == 4:  # two elements a byte, as kernels see them
            self.shape = (*self.shape[:-1], self.shape[-1] // 2)
        self.memory: Bytes = to_memory(bits, self.format).copy()
        self.elements = bits.shape
        self.dtype = _Dtype(self.format)
        self._address = Array._next
        Array._next += -(-self.memory.size // 256) * 256 + 4096

    def data_ptr(self) -> int:
        return self._address

    def element_size(self) -> int:
        return self.dtype.itemsize

    def stride(self, dimension: int | None = None) -> Any:
        steps = tuple(int(np.prod(self.shape[d + 1 :], dtype=np.int64)) for d in range(len(self.shape)))
        return steps if dimension is None else steps[dimension]

    def numel(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64))

    def numpy(self) -> NDArray[Any]:
        """What it holds now, in its own shape and type (a view unless its elements are packed)."""
        bits = from_memory(self.memory, self.format, int(np.prod(self.elements, dtype=np.int64)))
        return bits.reshape(self.elements).view(numpy_dtype(self.format))


class _Dtype:
    """A dtype with the attributes that Triton asks for. Formats that it has no name for travel as bytes."""

    def __init__(self, name: str) -> None:
        bits = memory_bits(name)
        self.itemsize = max(1, bits // 8)
        self.is_floating_point = name[0] in "fbe" or name == "tf32"
        known = name not in ("ue8m0", "ue4m3", "e2m3", "e3m2") and bits >= 8
        self._name = numpy_dtype(name).name if known else f"uint{8 * self.itemsize}"

    def __str__(self) -> str:
        return self._name

    def __hash__(self) -> int:
        return hash(self._name)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Dtype) and self._name == other._name


# -- host memory ---------------------------------------------------------------------------------------


@dataclass(slots=True)
class Memory:
    """One piece of host or device memory that arguments point into: `data`, a copy or view of its bytes."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    address: int
    data: Bytes
    source: Any

    def write(self, data: Bytes) -> None:
        """Put bytes back where they came from."""
        if isinstance(self.source, Array):
            self.source.memory[...] = data
            return
        import torch

        whole = torch.empty(0, dtype=torch.uint8, device=self.source.device)
        whole.set_(self.source.untyped_storage())
        whole.copy_(torch.from_numpy(data.copy()))


def _memory(name: str, value: Any) -> Memory:
    """The whole memory that an array argument points into. Errors: SML0181."""
    if isinstance(value, Array):
        return Memory(name, value.format, value.elements, value.data_ptr(), value.memory, value)
    if not hasattr(value, "untyped_storage"):
        raise error("SML0181", name=name, kind=type(value).__name__)
    import torch

    storage = value.untyped_storage()
    whole = torch.empty(0, dtype=torch.uint8, device=value.device)
    whole.set_(storage)
    dtype = name_of_torch(value.dtype)
    if dtype is None or memory_bits(dtype) < 8:  # packed formats count as bytes
        dtype = f"u{8 * value.element_size()}"
    data = whole.cpu().numpy()
    covers = value.is_contiguous() and value.numel() * value.element_size() == data.size
    size = numpy_dtype(dtype).itemsize
    shape = tuple(value.shape) if covers and memory_bits(dtype) >= 8 else (data.size // size,)
    return Memory(name, dtype, shape, storage.data_ptr(), data, value)


@dataclass(slots=True)
class Memories:
    """The memories of one launch, by their start."""

    by_address: dict[int, Memory] = field(default_factory=dict)

    def pointer(self, name: str, value: Any) -> tuple[str, int]:
        """The buffer that an argument points into, and the byte offset; 0-d and raw addresses are refused (SML0181)."""
        if not hasattr(value, "data_ptr"):
            raise error("SML0181", name=name, kind=type(value).__name__)
        found = _memory(self._free(name), value)
        kept = self.by_address.setdefault(found.address, found)
        return kept.name, value.data_ptr() - kept.address

    def _free(self, name: str) -> str:
        taken = {m.name for m in self.by_address.values()}
        tries = [name, *(f"{name}_{n}" for n in range(2, 1000))]
        return next(t for t in tries if t not in taken)

    def __iter__(self) -> Iterator[Memory]:
        return iter(self.by_address.values())

    def update(self, outputs: Mapping[str, NDArray[Any]]) -> list[str]:
        """Give the program what a kernel wrote, by buffer; the names of those that changed."""
        changed = []
        for m in self:
            if m.name in outputs:
                bits, _ = as_bits(outputs[m.name], what=m.name)
                data = to_memory(bits, m.dtype)
                if not np.array_equal(data, m.data):
                    m.write(data)
                    changed.append(m.name)
        return changed

    def buffers(self) -> dict[str, Buffer]:
        return {m.name: Buffer(m.name, m.dtype, m.shape, data=m.data.copy(), output=True) for m in self if m.data.size}


# -- the convention of Triton kernels ------------------------------------------------------------------


def triton_launch(
    entry: str,
    signature: Sequence[tuple[str, Any]],
    arguments: Sequence[Any],
    metadata: Any,
    grid: tuple[int, int, int],
) -> tuple[Launch, Memories]:
    """The launch of a kernel that Triton or Gluon compiled.

    signature   (name, type) of each parameter of the Python function: Triton's type strings, "constexpr" for those
                that are compiled in, tuples for tuples; arguments: their values
    metadata    the compiled kernel's: num_warps, num_ctas, shared, tensordesc_meta, scratch sizes
    grid        programs, as in `kernel[grid]`; clusters multiply the first

    Errors: SML0181 (an argument that is no number and no array of ours).
    """
    memories, params = Memories(), []
    maps = iter(getattr(metadata, "tensordesc_meta", None) or ())
    mapped = bool(getattr(metadata, "tensordesc_meta", None))
    for (name, kind), value in zip(signature, arguments, strict=True):
        params += list(_params(name, kind, value, maps, mapped, memories))
    x, y, z = grid
    ctas = getattr(metadata, "num_ctas", 1)
    programs = x * y * z * ctas
    for size in (metadata.global_scratch_size, metadata.profile_scratch_size):
        params.append(Scratch(size * programs))
    launch = Launch(
        entry,
        (x * ctas, y, z),
        (32 * metadata.num_warps, 1, 1),
        tuple(params),
        memories.buffers(),
        (ctas, 1, 1),
        metadata.shared,
    )
    return launch, memories


def _params(
    name: str, kind: Any, value: Any, maps: Iterator[Mapping[str, Any]], mapped: bool, memories: Memories
) -> Iterator[Param]:
    if isinstance(kind, tuple):
        for n, (inner, item) in enumerate(zip(kind, value, strict=True)):
            yield from _params(f"{name}_{n}", inner, item, maps, mapped, memories)
    elif kind == "constexpr":
        return
    elif kind.startswith("tensordesc"):
        yield from _descriptor(name, value, next(maps) if mapped else None, memories)
    elif kind.startswith("*"):
        yield _pointer(name, value, memories)
    elif kind in SCALARS:
        yield Scalar(SCALARS[kind], float(value) if "f" in kind else int(value))
    else:
        raise error("SML0181", name=name, kind=kind)


def _pointer(name: str, value: Any, memories: Memories) -> Param:
    if value is None:
        return Scratch(0)
    return Pointer(*memories.pointer(name, value))


def _descriptor(name: str, value: Any, meta: Mapping[str, Any] | None, memories: Memories) -> Iterator[Param]:
    """A tensor descriptor: a tensor map, or its parts where the compiler kept none; then shape and strides."""
    shape, strides = [int(n) for n in value.shape], [int(n) for n in value.strides]
    if meta is None:
        yield _pointer(name, value.base, memories)
        yield from (Scalar("s64", n) for n in (*shape, *strides))
        yield Scalar("u8", int(value.padding == "nan"))
        if hasattr(value, "round_f32_to_tf32"):  # newer versions of Triton
            yield Scalar("u8", int(value.round_f32_to_tf32))
    else:
        yield MapOf(*_with_map(name, value, meta, shape, strides, memories))
    yield from (Scalar("s32", n) for n in shape)
    yield from (Scalar("s64", n) for n in strides)


def _with_map(
    name: str, value: Any, meta: Mapping[str, Any], shape: list[int], strides: list[int], memories: Memories
) -> tuple[str, TensorMap, int]:
    buffer, offset = memories.pointer(name, value.base)
    sizes = [*shape[:-1], shape[-1] * 2] if meta["fp4_padded"] else shape
    plain = TensorMap(
        "tf32" if getattr(value, "round_f32_to_tf32", False) else _MAP_TYPES[meta["elem_type"]],
        tuple(reversed(sizes)),
        tuple(meta["elem_size"] * s for s in reversed(strides[:-1])),
        box=tuple(reversed(meta["block_size"])),
        swizzle=_SWIZZLES[meta["swizzle"]],
        l2_promotion="128B",
        fill="nan" if value.padding == "nan" else "zero",
    )
    if not meta.get("is_im2col"):
        return buffer, plain, offset
    pixels, channels = meta["block_size"]
    steps = value.element_strides or [1] * len(shape)
    column = replace(
        plain,
        box=(),
        mode="im2col",
        element_stride=tuple(reversed(steps)),
        lower=tuple(reversed(value.pixel_box_lower_corner)),
        upper=tuple(reversed(value.pixel_box_upper_corner)),
        channels=channels,
        pixels=pixels,
    )
    return buffer, column, offset
