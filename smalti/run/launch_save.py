"""Writing a launch as a launch file with its array files beside it; what launch_file reads back is the same launch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.layout.tensor_map import TensorMap
from smalti.run import npy
from smalti.run.files import write_aside
from smalti.run.launch import Buffer, Launch, MapOf, Param, Pointer, Scalar, Scratch, Struct
from smalti.run.launch_file import FORMAT

_MAP_DEFAULTS = TensorMap("u8", (1,), box=(1,))


def save(
    path: str | Path, launch: Launch, about: str = "", *, arrays: str = "", rules: Mapping[str, Any] | None = None
) -> None:
    """Write `path` and, for every buffer whose bytes are not all alike, `<stem>-<buffer>.npy` beside it (raw bits;
    gaps between strided rows are not kept).

    arrays   what array files are called instead of the stem; rules: data descriptions, by buffer name, that give
             what the buffer holds, written in the place of its data

    Errors: SML0117.
    """
    path, rules = Path(path), rules or {}
    beside = path.with_name(arrays or path.stem)
    fields: dict[str, Any] = {"format": FORMAT}
    if about:
        fields["about"] = about
    fields |= {"entry": launch.entry, "grid": launch.grid, "block": launch.block}
    if launch.cluster != (1, 1, 1):
        fields["cluster"] = launch.cluster
    if launch.shared:
        fields["shared"] = launch.shared
    fields["buffers"] = {name: _buffer(b, beside, rules.get(name)) for name, b in launch.buffers.items()}
    fields["params"] = [_param(p) for p in launch.params]
    write_aside(path, lambda file: file.write((json.dumps(fields, indent=1) + "\n").encode()))


def _buffer(b: Buffer, beside: Path, rule: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {"dtype": b.dtype, "shape": b.shape}
    if b.strides is not None:
        fields["strides"] = b.strides
    if b.dense:
        fields["dense"] = True
    if rule is not None:
        fields["data"] = rule
    elif b.data is not None:
        fields["data"] = _bits(b.bits_in(b.data), beside.with_name(f"{beside.name}-{b.name}.npy"))
    if b.output:
        fields["output"] = True
    if b.expected is not None:
        fields["expected"] = _bits(b.expected, beside.with_name(f"{beside.name}-{b.name}-expected.npy"))
    if b.tolerance is not None:
        fields["tolerance"] = {"absolute": b.tolerance[0], "relative": b.tolerance[1]}
    return fields


def _bits(bits: NDArray[Any], path: Path) -> dict[str, Any]:
    if not bits.any():
        return {"byte": 0}
    npy.save(path, np.ascontiguousarray(bits))
    return {"npy": path.name}


def _param(param: Param) -> dict[str, Any]:
    if isinstance(param, Scalar):
        return {"scalar": param.type, "value": param.value}
    if isinstance(param, Pointer):
        return {"pointer": param.buffer, "offset": param.offset}
    if isinstance(param, Scratch):
        return {"scratch": param.size}
    if isinstance(param, MapOf):
        return {"tensor_map": {"buffer": param.buffer, **_map(param.map)}, "offset": param.offset}
    assert isinstance(param, Struct)
    inner = [{"byte": offset, **_param(p)} for offset, p in param.at]
    return {"struct": {"size": len(param.data), "bytes": param.data.rstrip(b"\0").hex(), "at": inner}}


def _map(m: TensorMap) -> dict[str, Any]:
    """All fields but the address, which a launch fills in, and those that have their default."""
    fields = {name: getattr(m, name) for name in TensorMap.__dataclass_fields__ if name != "address"}
    needed = ("type", "size")
    return {n: v for n, v in fields.items() if n in needed or v != getattr(_MAP_DEFAULTS, n)}
