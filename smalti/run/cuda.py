"""Running a kernel on a real GPU through NVIDIA's own Python bindings. Nothing else imports them.

Takes resolved values only (see launch) and machine code or PTX; the driver assembles PTX and codes tensor maps.
cuda.core finds devices; what it cannot express (parameters that are structs, every kind of tensor map) goes
through cuda.bindings.driver.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from cuda.bindings import driver
from cuda.core import Device
from numpy.typing import NDArray

from smalti.errors import error
from smalti.layout.tensor_map import SWIZZLES, TYPES, TensorMap
from smalti.run.launch import Launch, Scratch, resolve

UNDEFINED = 0xA5  # what undefined buffers hold before a launch, on every device
_PORTABLE_CLUSTER = 8


class Properties(NamedTuple):
    arch: str
    sm_count: int
    name: str


def properties() -> list[Properties]:
    """Of every device that the driver lists; none if it cannot be started."""
    if driver.cuInit(0)[0] != driver.CUresult.CUDA_SUCCESS:
        return []
    found = []
    for ordinal in range(driver.cuDeviceGetCount()[1]):
        one = Device(ordinal)
        major, minor = one.compute_capability
        suffix = "a" if major >= 9 else ""
        found.append(Properties(f"sm_{major}{minor}{suffix}", one.properties.multiprocessor_count, one.name))
    return found


def _do(what: str, result: tuple[Any, ...]) -> Any:
    """The value of a driver call, or SML0174 with the driver's words."""
    status, *values = result
    if status != driver.CUresult.CUDA_SUCCESS:
        words = [driver.cuGetErrorName(status)[1], driver.cuGetErrorString(status)[1]]
        raise error("SML0174", what=what, reason=": ".join(w.decode() for w in words if w))
    return values[0] if len(values) == 1 else tuple(values)


@contextmanager
def _memory(sizes: dict[str, int]) -> Iterator[dict[str, int]]:
    """Device memory of each size by name, freed at the end."""
    places: dict[str, int] = {}
    try:
        for name, size in sizes.items():
            places[name] = int(_do(f"allocating {size} bytes", driver.cuMemAlloc(max(size, 1))))
        yield places
    finally:
        for place in places.values():
            driver.cuMemFree(place)


def launch(
    code: bytes, launch: Launch, ordinal: int = 0, *, repeat: int = 0
) -> tuple[dict[str, NDArray[np.uint8]], list[float]]:
    """Run a kernel and give back the bytes of every output buffer, and the milliseconds of each launch.

    `code` is a cubin or PTX text; `repeat` more launches follow the first on the same buffers, for timing.
    Errors: SML0174 with the driver's words; after a fault inside the kernel, this process's CUDA is unusable.
    """
    Device(ordinal).set_current()
    library = _do(f"loading {launch.entry}", driver.cuLibraryLoadData(code + b"\0", [], [], 0, [], [], 0))
    try:
        kernel = _do(f"finding {launch.entry}", driver.cuLibraryGetKernel(library, launch.entry.encode()))
        return _run(kernel, launch, ordinal, repeat)
    finally:
        driver.cuLibraryUnload(library)


def _run(kernel: Any, launch: Launch, ordinal: int, repeat: int) -> tuple[dict[str, NDArray[np.uint8]], list[float]]:
    sizes = {name: b.nbytes for name, b in launch.buffers.items()}
    scratch = {f"scratch {n}": p.size for n, p in enumerate(launch.flat_params()) if isinstance(p, Scratch)}
    with _memory(sizes | scratch) as places:
        for name, b in launch.buffers.items():
            data = np.full(b.nbytes, UNDEFINED, np.uint8) if b.data is None else np.ascontiguousarray(b.data)
            if b.nbytes:
                _do(f"copying {name}", driver.cuMemcpyHtoD(places[name], data.ctypes.data, b.nbytes))
        free = iter(n for n, size in scratch.items() if size)
        pieces = resolve(launch.params, places.__getitem__, lambda _: places[next(free)], encode_map)
        times = [_once(kernel, launch, pieces, ordinal) for _ in range(1 + repeat)]
        out = {}
        for name, b in launch.buffers.items():
            if b.output:
                out[name] = np.empty(b.nbytes, np.uint8)
                if b.nbytes:
                    _do(
                        f"copying {name}",
                        driver.cuMemcpyDtoH(out[name].ctypes.data, places[name], b.nbytes),
                    )
    return out, times


def _once(kernel: Any, launch: Launch, pieces: list[bytes], ordinal: int) -> float:
    """One launch on the default stream, waited for; its milliseconds by events around it."""
    attribute = driver.CUfunction_attribute
    if launch.shared:  # above 48 KiB, static variables included, it has to be asked for
        most = attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
        _do("shared memory", driver.cuKernelSetAttribute(most, launch.shared, kernel, ordinal))
    if math.prod(launch.cluster) > _PORTABLE_CLUSTER:
        large = attribute.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
        _do("a cluster above 8", driver.cuKernelSetAttribute(large, 1, kernel, ordinal))
    config = driver.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid  # in CTAs, unlike cuda.core's
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
    config.sharedMemBytes = launch.shared
    if math.prod(launch.cluster) > 1:
        cluster = driver.CUlaunchAttribute()
        cluster.id = driver.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        cluster.value.clusterDim.x, cluster.value.clusterDim.y, cluster.value.clusterDim.z = launch.cluster
        config.attrs, config.numAttrs = [cluster], 1
    held = [ctypes.create_string_buffer(piece, len(piece)) for piece in pieces]
    pointers = (ctypes.c_void_p * max(len(held), 1))(*[ctypes.addressof(h) for h in held])
    events = [_do("an event", driver.cuEventCreate(0)) for _ in range(2)]
    try:
        _do("timing", driver.cuEventRecord(events[0], 0))
        function = driver.CUfunction(int(kernel))  # a CUkernel is taken where a CUfunction is
        _do(
            f"launching {launch.entry}",
            driver.cuLaunchKernelEx(config, function, ctypes.addressof(pointers), 0),
        )
        _do("timing", driver.cuEventRecord(events[1], 0))
        _do(f"running {launch.entry}", driver.cuEventSynchronize(events[1]))
        return float(_do("timing", driver.cuEventElapsedTime(*events)))
    finally:
        for e in events:
            driver.cuEventDestroy(e)


def encode_map(m: TensorMap) -> bytes:
    """The driver's coding of a tensor map; `m.address` is a device address. Errors: SML0174."""
    wide, half = driver.cuuint64_t, driver.cuuint32_t
    swizzle = getattr(driver.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{SWIZZLES[m.swizzle].driver}", None)
    if swizzle is None:
        raise error("SML0174", what=f"coding a tensor map with swizzle {m.swizzle}", reason="the driver has none")
    head = (
        getattr(driver.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{TYPES[m.type].driver}"),
        m.rank,
        m.address,
        [wide(n) for n in m.size],
        [wide(s) for s in m.stride] or [wide(0)],  # the driver wants the array at rank 1, too
    )
    steps = [half(s) for s in m.element_stride]
    interleave = getattr(driver.CUtensorMapInterleave, f"CU_TENSOR_MAP_INTERLEAVE_{m.interleave.upper()}")
    l2 = "NONE" if m.l2_promotion == "none" else f"L2_{m.l2_promotion}"
    fill = "NONE" if m.fill == "zero" else "NAN_REQUEST_ZERO_FMA"
    tail = (
        swizzle,
        getattr(driver.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_{l2}"),
        getattr(driver.CUtensorMapFloatOOBfill, f"CU_TENSOR_MAP_FLOAT_OOB_FILL_{fill}"),
    )
    if m.tiled:
        coded = driver.cuTensorMapEncodeTiled(*head, [half(b) for b in m.box], steps, interleave, *tail)
    elif m.mode == "im2col":  # corners: width first, as the driver takes them in practice
        box = (list(m.lower), list(m.upper), m.channels, m.pixels)
        coded = driver.cuTensorMapEncodeIm2col(*head, *box, steps, interleave, *tail)
    else:
        mode = "W" if m.mode == "im2col_w" else "W128"
        wide_mode = getattr(driver.CUtensorMapIm2ColWideMode, f"CU_TENSOR_MAP_IM2COL_WIDE_MODE_{mode}")
        widths = (m.lower[0], m.upper[0], m.channels, m.pixels)
        coded = driver.cuTensorMapEncodeIm2colWide(*head, *widths, steps, interleave, wide_mode, *tail)
    made = _do("coding a tensor map", coded)
    return b"".join(int(word).to_bytes(8, "little") for word in made.opaque)
