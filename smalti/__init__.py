"""Smalti: NVIDIA tensor-core kernels in Python, on a GPU or on a virtual one."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smalti.errors import SmaltiError as SmaltiError
    from smalti.lang import tcgen05 as tcgen05
    from smalti.lang import wgmma as wgmma
    from smalti.lang.arrays import full as full
    from smalti.lang.barriers import barrier as barrier
    from smalti.lang.barriers import cluster_sync as cluster_sync
    from smalti.lang.barriers import named_barrier as named_barrier
    from smalti.lang.barriers import proxy_fence as proxy_fence
    from smalti.lang.barriers import sync as sync
    from smalti.lang.barriers import sync_warpgroup as sync_warpgroup
    from smalti.lang.control import range_ as range  # noqa: F401
    from smalti.lang.control import when as when
    from smalti.lang.control import while_ as while_
    from smalti.lang.dtypes import DType
    from smalti.lang.dtypes import dtype as dtype
    from smalti.lang.kernel import Kernel as Kernel
    from smalti.lang.kernel import kernel as kernel
    from smalti.lang.metadata import metadata_memory as metadata_memory
    from smalti.lang.raw import address as address
    from smalti.lang.raw import emit as emit
    from smalti.lang.ring import channel as channel
    from smalti.lang.ring import ring as ring
    from smalti.lang.roles import roles as roles
    from smalti.lang.roles import warp as warp
    from smalti.lang.roles import warpgroup as warpgroup
    from smalti.lang.scales import scale_tile as scale_tile
    from smalti.lang.schedule import block_tile as block_tile
    from smalti.lang.schedule import launch_grid as launch_grid
    from smalti.lang.schedule import persistent as persistent
    from smalti.lang.shared import shared as shared
    from smalti.lang.signature import facts as facts
    from smalti.lang.sparse import sparse_metadata as sparse_metadata
    from smalti.lang.tensor_memory import tensor_memory as tensor_memory
    from smalti.lang.threads import block_index as block_index
    from smalti.lang.threads import cluster_rank as cluster_rank
    from smalti.lang.threads import elect as elect
    from smalti.lang.threads import grid_size as grid_size
    from smalti.lang.threads import lane_index as lane_index
    from smalti.lang.threads import thread_index as thread_index
    from smalti.lang.threads import warp_index as warp_index
    from smalti.lang.values import cdiv as cdiv
    from smalti.lang.values import maximum as max  # noqa: F401
    from smalti.lang.values import minimum as min  # noqa: F401
    from smalti.lang.values import select as select
    from smalti.lang.values import var as var
    from smalti.run.devices import device as device
    from smalti.run.dtypes import numpy_dtype as numpy_dtype
    from smalti.run.scaled import BlockScaled as BlockScaled
    from smalti.run.scaled import block_scaled as block_scaled
    from smalti.run.scaled import quantize as quantize
    from smalti.run.sparse import compress as compress
    from smalti.run.sparse import prune as prune

    u8: DType
    s8: DType
    u16: DType
    s16: DType
    u32: DType
    s32: DType
    u64: DType
    s64: DType
    f16: DType
    bf16: DType
    tf32: DType
    f32: DType
    f64: DType
    e4m3: DType
    e5m2: DType
    e2m3: DType
    e3m2: DType
    e2m1: DType
    ue8m0: DType
    ue4m3: DType

__version__ = "0.1.0"

# Public name -> the module it comes from (its own attribute name after a colon, if that differs). Loaded on first use.
_NAMES = {
    # kernels and their facts
    "kernel": "smalti.lang.kernel",
    "Kernel": "smalti.lang.kernel",
    "facts": "smalti.lang.signature",
    "dtype": "smalti.lang.dtypes",
    # control flow and values
    "range": "smalti.lang.control:range_",
    "when": "smalti.lang.control",
    "while_": "smalti.lang.control",
    "var": "smalti.lang.values",
    "select": "smalti.lang.values",
    "cdiv": "smalti.lang.values",
    "min": "smalti.lang.values:minimum",
    "max": "smalti.lang.values:maximum",
    # threads and roles
    "roles": "smalti.lang.roles",
    "warp": "smalti.lang.roles",
    "warpgroup": "smalti.lang.roles",
    "elect": "smalti.lang.threads",
    "thread_index": "smalti.lang.threads",
    "warp_index": "smalti.lang.threads",
    "lane_index": "smalti.lang.threads",
    "block_index": "smalti.lang.threads",
    "grid_size": "smalti.lang.threads",
    "cluster_rank": "smalti.lang.threads",
    # memory, barriers, pipelines
    "shared": "smalti.lang.shared",
    "full": "smalti.lang.arrays",
    "barrier": "smalti.lang.barriers",
    "named_barrier": "smalti.lang.barriers",
    "sync": "smalti.lang.barriers",
    "sync_warpgroup": "smalti.lang.barriers",
    "cluster_sync": "smalti.lang.barriers",
    "proxy_fence": "smalti.lang.barriers",
    "ring": "smalti.lang.ring",
    "channel": "smalti.lang.ring",
    # work
    "persistent": "smalti.lang.schedule",
    "block_tile": "smalti.lang.schedule",
    "launch_grid": "smalti.lang.schedule",
    # tensor cores, PTX
    "wgmma": "smalti.lang.wgmma:",
    "tcgen05": "smalti.lang.tcgen05:",
    "tensor_memory": "smalti.lang.tensor_memory",
    "metadata_memory": "smalti.lang.metadata",
    "scale_tile": "smalti.lang.scales",
    "quantize": "smalti.run.scaled",
    "BlockScaled": "smalti.run.scaled",
    "block_scaled": "smalti.run.scaled",
    "prune": "smalti.run.sparse",
    "compress": "smalti.run.sparse",
    "sparse_metadata": "smalti.lang.sparse",
    "emit": "smalti.lang.raw",
    "address": "smalti.lang.raw",
    # ready operations and devices
    "matmul": "smalti.ops.matmul",
    "device": "smalti.run.devices",
    "numpy_dtype": "smalti.run.dtypes",
    # errors
    "SmaltiError": "smalti.errors",
}
_DTYPES = (
    *("u8", "s8", "u16", "s16", "u32", "s32", "u64", "s64", "f16", "bf16", "tf32", "f32", "f64"),
    *("e4m3", "e5m2", "e2m3", "e3m2", "e2m1", "ue8m0", "ue4m3"),
)

__all__ = ["__version__", *_NAMES, *_DTYPES]


def __getattr__(name: str) -> Any:
    if name in _DTYPES:
        value: Any = import_module("smalti.lang.dtypes").DTYPES[name]
    elif name in _NAMES:
        module, colon, attribute = _NAMES[name].partition(":")
        loaded = import_module(module)
        value = loaded if colon and not attribute else getattr(loaded, attribute or name)
    else:
        raise AttributeError(f"module 'smalti' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
