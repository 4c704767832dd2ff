"""Calling a kernel: arrays become buffers and a launch, `run` executes it, results become arrays.

Knows the parameter list of a trace, and `run`; nothing of how a kernel is traced or executed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from smalti.errors import error
from smalti.lang import grid as grids
from smalti.lang.dtypes import DTYPES, DType
from smalti.lang.parameters import MapParameter, Parameter, PointerParameter, SizeParameter, StrideParameter
from smalti.lang.scales import scales_name
from smalti.lang.signature import BULK, Facts, Operand, Signature, facts
from smalti.layout.tensor_map import BYTES as MAP_BYTES
from smalti.layout.tensor_map import TensorMap
from smalti.run.devices import Device
from smalti.run.devices import device as find
from smalti.run.dtypes import as_bits, numpy_dtype, to_memory
from smalti.run.execute import Result, run
from smalti.run.launch import Buffer, Launch, MapOf, Pointer, Scalar, Struct
from smalti.run.scaled import BlockScaled

if TYPE_CHECKING:
    from smalti.lang.kernel import Kernel
    from smalti.lang.traced import Traced

__all__ = [
    "build_launch",
    "call",
    "dense_strides",
    "execute",
    "facts_of_array",
    "facts_of_call",
    "given",
    "launch_of",
    "prepare",
    "sizes_of",
    "tensor_map",
]


@dataclass(frozen=True, eq=False)
class Given:
    """One operand of a call: its bytes from the first element to the last, how they lie, and what is static of it."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]  # in bytes
    data: NDArray[np.uint8]
    facts: Facts
    copied: str = ""  # why it was copied first
    scales: NDArray[np.uint8] | None = None  # of a block-scaled operand: atoms [row groups, factor groups, 512]


def given(operand: Operand, value: Any, dtype: str | None = None) -> Given:
    """An array as an operand. One that has no contiguous dimension among its last two, or goes backwards, is copied.

    `dtype` reads the bits as another format of the same width. Errors: SML0111 to SML0113, SML0371.
    """
    if operand.scaled or isinstance(value, BlockScaled):
        return _scaled(operand, value)
    bits, name = as_bits(value, what=operand.name, dtype=dtype)
    if bits.ndim != len(operand.dims):
        raise error("SML0371", operand=operand.name, have=bits.ndim, wanted=len(operand.dims))
    kind, copied = DTYPES[name], ""
    axis = _contiguous_axis(bits)
    if axis is None or kind.bits < 8:
        if not bits.flags.c_contiguous:
            bits, copied = np.ascontiguousarray(bits), "its strides fit no kernel"
        axis = bits.ndim - 1
    strides = _strides(bits, axis, kind)
    others = [s for n, s in enumerate(strides) if n != axis and bits.size]
    known = Facts(kind, -1 if axis == bits.ndim - 1 else axis, math.gcd(BULK, *others))
    return Given(bits.shape, strides, _memory(bits, name), known, copied)


def _scaled(operand: Operand, value: Any) -> Given:
    """A block-scaled operand, packed with rows at multiples of 16 bytes. Errors: SML0726."""
    if not operand.scaled or not isinstance(value, BlockScaled):
        wanted = "a block-scaled value (sm.quantize)" if operand.scaled else "a plain array"
        raise error("SML0726", operand=operand.name, wanted=wanted, given=type(value).__name__)
    data, pitch = value.data_bytes()
    known = Facts(DTYPES[value.scheme.element], scheme=value.scheme.name)
    copied = "K is not its last axis" if value.transposed else ""
    return Given(value.along_rows[0].shape, (pitch, 1), data.reshape(-1), known, copied, value.scale_atoms())


def _contiguous_axis(bits: NDArray[Any]) -> int | None:
    """The dimension whose elements are adjacent, among the last two; the last one if both would do."""
    if bits.size == 0:
        return bits.ndim - 1
    for axis in range(bits.ndim - 1, max(bits.ndim - 3, -1), -1):
        step = [bits.itemsize if n == axis else s for n, s in enumerate(bits.strides)]
        line = bits.shape[axis] * bits.itemsize
        fits = all(n == 1 or s >= line for a, (n, s) in enumerate(zip(bits.shape, step, strict=True)) if a != axis)
        if fits and (bits.shape[axis] == 1 or bits.strides[axis] == bits.itemsize):
            return axis
    return None


def _strides(bits: NDArray[Any], axis: int, kind: DType) -> tuple[int, ...]:
    """In bytes. Where a dimension has one index its stride means nothing: one that TMA takes is said."""
    dense = dense_strides(bits.shape, axis, kind)
    if kind.bits < 8 or bits.size == 0:
        return dense
    return tuple(
        s if n > 1 else d if a == axis else -(-d // BULK) * BULK
        for a, (d, n, s) in enumerate(zip(dense, bits.shape, bits.strides, strict=True))
    )


def _memory(bits: NDArray[Any], name: str) -> NDArray[np.uint8]:
    if bits.size == 0:
        return np.zeros(0, np.uint8)
    if DTYPES[name].bits < 8 or bits.flags.c_contiguous:
        return to_memory(bits, name)
    extent = 1 + sum((n - 1) * s for n, s in zip(bits.shape, bits.strides, strict=True)) // bits.itemsize
    flat = np.lib.stride_tricks.as_strided(bits, (extent,), (bits.itemsize,), writeable=False)
    return to_memory(flat, name)


def dense_strides(shape: tuple[int, ...], axis: int, kind: DType) -> tuple[int, ...]:
    """Bytes from one index to the next in each dimension of a tensor without gaps, contiguous along `axis`."""
    order = [n for n in range(len(shape)) if n != axis % len(shape)] + [axis % len(shape)]
    strides, step = [0] * len(shape), kind.bits
    for n in reversed(order):
        strides[n] = -(-step // 8)
        step *= max(shape[n], 1)
    return tuple(strides)


def written_alignment(line: int, kind: DType) -> int:
    """Alignment of a dense result whose lines have so many elements."""
    return math.gcd(line * kind.bits // 8, BULK) if line else BULK


def facts_of_array(operand: Operand, value: Any) -> Facts:
    """Static facts of an array. Errors: SML0111, SML0371."""
    if operand.written:
        bits, name = as_bits(value, what=operand.name)
        return Facts(DTYPES[name], -1, written_alignment(bits.shape[-1], DTYPES[name]))
    return given(operand, value).facts


def sizes_of(signature: Signature, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
    """The sizes by name. Errors: SML0370 if operands disagree."""
    sizes: dict[str, int] = {}
    source: dict[str, str] = {}
    for operand in signature.operands:
        for dim, n in zip(operand.dims, shapes.get(operand.name, ()), strict=False):
            known = dim if isinstance(dim, int) else sizes.setdefault(dim, n)
            if known != n:
                raise error(
                    "SML0370",
                    dim=str(dim),
                    first=known,
                    where=source.get(str(dim), "the signature"),
                    second=n,
                    operand=operand.name,
                )
            source.setdefault(str(dim), operand.name)
    return sizes


def build_launch(
    traced: Traced,
    buffers: Mapping[str, Buffer],
    strides: Mapping[str, tuple[int, ...]],
    sizes: Mapping[str, int],
    sms: int,
    shapes: Mapping[str, tuple[int, ...]] | None = None,
) -> Launch:
    """The launch of a trace over these buffers (`strides` in bytes), on a device with so many multiprocessors."""
    x, y, z = (grids.evaluate(g, sizes, sms) for g in traced.grid)

    def parameter(spec: Parameter) -> Any:
        if isinstance(spec, SizeParameter):
            return Scalar("u32", sizes[spec.dim])
        if isinstance(spec, PointerParameter):
            return Pointer(spec.tensor)
        if isinstance(spec, StrideParameter):
            return Scalar("u64", strides[spec.tensor][spec.axis])
        shape = (shapes or {}).get(spec.tensor, buffers[spec.tensor].shape)
        return tensor_map(spec, shape, strides[spec.tensor])

    return Launch(
        entry=traced.entry,
        grid=(x, y, z),
        block=(traced.block, 1, 1),
        cluster=traced.cluster,
        shared=traced.shared,
        params=tuple(parameter(p) for p in traced.parameters),
        buffers=dict(buffers),
    )


def tensor_map(spec: MapParameter, shape: tuple[int, ...], strides: tuple[int, ...]) -> MapOf | Struct:
    """The tensor map of a tensor; zero bytes for one without elements, which no map can name and nobody copies."""
    if 0 in shape:
        return Struct(bytes(MAP_BYTES))
    inner, *outer = (shape[a] for a in spec.order)
    made = TensorMap(
        spec.type,
        size=(-(-inner // spec.pack), *outer),
        stride=tuple(strides[a] for a in spec.order[1:]),
        box=spec.box,
        swizzle=spec.swizzle,
        l2_promotion=spec.l2_promotion,
    )
    return MapOf(spec.tensor, made)


@dataclass(frozen=True, eq=False)
class Call:
    """A kernel's operands for one call, and what follows from them."""

    operands: Mapping[str, Given]
    sizes: Mapping[str, int]
    outputs: Mapping[str, tuple[int, ...]]  # shapes
    facts: dict[str, Facts]


def prepare(kernel: Kernel, arrays: tuple[Any, ...], read_as: Mapping[str, str], results: Mapping[str, Any]) -> Call:
    """Operands of a call from its arrays; `results` are dtypes of outputs. Errors: SML0322, SML0370, SML0371."""
    signature = kernel.signature
    inputs = signature.inputs
    if len(arrays) != len(inputs):
        raise error("SML0322", kernel=kernel.name, reason=f"{len(arrays)} arrays for {len(inputs)} inputs")
    operands = {o.name: given(o, value, read_as.get(o.name)) for o, value in zip(inputs, arrays, strict=True)}
    sizes = sizes_of(signature, {name: g.shape for name, g in operands.items()})
    known = {name: g.facts for name, g in operands.items()}
    shapes = {o.name: tuple(sizes[d] if isinstance(d, str) else d for d in o.dims) for o in signature.outputs}
    for name, shape in shapes.items():
        kind = facts(results[name]).dtype if name in results else kernel.default_result(known)
        known[name] = Facts(kind, -1, written_alignment(shape[-1], kind))
    return Call(operands, sizes, shapes, known)


def facts_of_call(
    kernel: Kernel, arrays: tuple[Any, ...], read_as: Mapping[str, str], results: Mapping[str, Any]
) -> dict[str, Facts]:
    """The static facts that a call with these arrays specialises on."""
    return prepare(kernel, arrays, read_as, results).facts


def call(
    kernel: Kernel, arrays: tuple[Any, ...], device: Any, read_as: Mapping[str, str], named: dict[str, Any], **how: Any
) -> Any:
    """See `Kernel.__call__`; `how` goes to `smalti.run.execute.run`."""
    outputs = execute(kernel, arrays, device, read_as, named, **how).outputs
    return next(iter(outputs.values())) if len(outputs) == 1 else tuple(outputs.values())


def execute(
    kernel: Kernel, arrays: tuple[Any, ...], device: Any, read_as: Mapping[str, str], named: dict[str, Any], **how: Any
) -> Result:
    """As `call`, with all that `smalti.run.execute.Result` tells; an empty grid gives zeros without a launch.

    Errors: SML0372, unless without checks or collecting, and those of `launch_of` and `run`.
    """
    found = launch_of(kernel, arrays, device, read_as, named)
    if isinstance(found, Result):
        return found
    traced, launch, chosen = found
    program = traced.module if chosen.kind == "virtual" else traced.ptx()
    result = run(program, launch, chosen, **how)
    if how.get("checks", True) and not how.get("collect"):
        for name, missing in result.undefined.items():
            _refuse(kernel.name, launch.buffers[name], missing)
    return result


def _refuse(kernel: str, output: Buffer, missing: NDArray[np.bool_]) -> None:
    """Errors: SML0372."""
    element = int(np.argmax(missing)) * 8 // DTYPES[output.dtype].bits
    first = ", ".join(str(n) for n in np.unravel_index(element, output.shape))
    count, size = int(np.count_nonzero(missing)), output.nbytes
    raise error("SML0372", kernel=kernel, output=f"{output.name}[{first}]", count=count, size=size)


def launch_of(
    kernel: Kernel, arrays: tuple[Any, ...], device: Any, read_as: Mapping[str, str], named: dict[str, Any]
) -> tuple[Traced, Launch, Device] | Result:
    """The trace that a call runs, its launch and its device: what `smalti.run` needs to run the printed PTX instead.

    For an empty grid there is no launch: the result itself.
    """
    written = [o.name for o in kernel.signature.outputs]
    made = prepare(kernel, arrays, read_as, {n: named.pop(n) for n in written if n in named})
    traced = kernel.traced(made.facts, named)
    chosen = find(device, arch=kernel.arch, work=float(math.prod(made.sizes.values())))
    kinds = {name: made.facts[name].dtype for name in written}
    if any(grids.evaluate(g, made.sizes, chosen.sm_count) == 0 for g in traced.grid):
        empty = {n: np.zeros(shape, numpy_dtype(kinds[n].name)) for n, shape in made.outputs.items()}
        return Result(empty, chosen, 0.0)
    strides = {name: g.strides for name, g in made.operands.items()}
    strides |= {name: dense_strides(shape, -1, kinds[name]) for name, shape in made.outputs.items()}
    buffers = {name: _input(name, g) for name, g in made.operands.items()}
    for name, g in made.operands.items():
        if g.scales is not None:
            groups, atoms, _ = g.scales.shape
            hidden = scales_name(name)
            buffers[hidden] = Buffer(hidden, "u32", (groups, atoms, 128), data=g.scales.reshape(-1))
            strides[hidden] = (atoms * 512, 512, 4)
    buffers |= {name: Buffer(name, kinds[name].name, shape, output=True) for name, shape in made.outputs.items()}
    shapes = {name: g.shape for name, g in made.operands.items()}
    return traced, build_launch(traced, buffers, strides, made.sizes, chosen.sm_count, shapes), chosen


def _input(name: str, g: Given) -> Buffer:
    """Strides of a buffer are in elements; packed elements are dense."""
    if g.scales is not None:  # rows of packed bytes
        return Buffer(name, "u8", (g.data.size,), data=g.data)
    kind = g.facts.dtype
    steps = None if kind.bits < 8 else tuple(s // kind.bytes for s in g.strides)
    return Buffer(name, kind.name, g.shape, strides=steps, data=g.data)
