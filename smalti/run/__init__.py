"""Devices, the dtype registry, launches, caches, assembling. Knows nothing of the language that made a module."""

from smalti.layout.tensor_map import TensorMap
from smalti.run.devices import Device, device
from smalti.run.execute import Comparison, Result, compare, run
from smalti.run.launch import Buffer, Launch, MapOf, Pointer, Scalar, Scratch, Struct

__all__ = [
    "Buffer",
    "Comparison",
    "Device",
    "Launch",
    "MapOf",
    "Pointer",
    "Result",
    "Scalar",
    "Scratch",
    "Struct",
    "TensorMap",
    "compare",
    "device",
    "run",
]
