"""`sm.matmul`: the front of all matrix products. Chooses the kernel by operands and device; knows no kernel inside."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from smalti.errors import error, public
from smalti.ops.prepared import Prepared
from smalti.run.devices import Device, cuda_devices
from smalti.run.devices import device as find
from smalti.run.scaled import BlockScaled, quantize

__all__ = ["matmul", "prepare"]


@public
def matmul(
    a: Any,
    b: Any,
    *,
    dtype: str | None = None,
    precision: str | None = None,
    format: str | None = None,
    device: str | Device | None = None,
    **how: Any,
) -> NDArray[Any]:
    """a @ b on tensor cores: a [M, K], b [K, N] of any sizes from 0 on; a NumPy array.

    Plain arrays run on Hopper and Blackwell: bf16, f16; e4m3 and e5m2 in any mix; s8 and u8 in any mix; f32 only with
    precision="tf32". Block-scaled values (`sm.quantize`, a along axis 1, b along axis 0) run on Blackwell: mxfp8 in any
    mix of its two element types, mxfp4, nvfp4. `format` quantises float32 or float64 operands first.

    dtype    of the result: that of a 16-bit input, s32 for integers, else f32, unless given
    device   "cuda", "cuda:1", "virtual:sm_90a", "virtual:sm_100a"; by default a GPU that can run it, else a virtual one
    how      seed= of an adversarial schedule and checks= of the virtual GPU, progress=

    Errors: SML0610 to SML0613 plain operands, SML0730 to SML0734 block-scaled ones, SML0111 to SML0119 arrays,
    SML0170 to SML0174 devices.
    """
    prepared = prepare(a, b, dtype=dtype, precision=precision, format=format, device=device)
    return prepared.run(device, **how)


def prepare(
    a: Any,
    b: Any,
    *,
    dtype: str | None = None,
    precision: str | None = None,
    format: str | None = None,
    device: str | Device | None = None,
    options: Any = None,
) -> Prepared:
    """What `matmul` will run. Errors: as `matmul`."""
    from smalti.ops import matmul_blackwell_dense_host, matmul_blackwell_host, matmul_hopper_host

    if format is not None:
        a, b = _quantised(a, format, 1, "a"), _quantised(b, format, 0, "b")
    scaled = [isinstance(x, BlockScaled) for x in (a, b)]
    if any(scaled) and not all(scaled):
        raise error("SML0732", scaled="a" if scaled[0] else "b", plain="b" if scaled[0] else "a")
    if all(scaled):
        _runs_on(device, "block-scaled operands", ("sm_100",))
        return matmul_blackwell_host.prepare(a, b, dtype=dtype, device=device, options=options)
    if _runs_on(device, "plain arrays", ("sm_90", "sm_100")) == "sm_90":
        return matmul_hopper_host.prepare(a, b, dtype=dtype, precision=precision, device=device, options=options)
    host = matmul_blackwell_dense_host
    return host.prepare(a, b, dtype=dtype, precision=precision, device=device, options=options)


def _quantised(x: Any, format: str, axis: int, name: str) -> BlockScaled:
    if isinstance(x, BlockScaled):
        raise error("SML0734", operand=name, scheme=x.scheme.name, format=format)
    return quantize(x, format, axis=axis)


def _runs_on(device: str | Device | None, operands: str, known: tuple[str, ...]) -> str:
    """The family of architectures, of those that have a kernel, that the product runs on. Errors: SML0733."""
    if device is None:  # a GPU that is there, or the virtual one of the first
        given = next((d.arch for d in cuda_devices() if d.arch.startswith(known)), known[0])
    elif device == "virtual":
        given = known[0]
    else:
        given = device.arch if isinstance(device, Device) else find(device).arch
    found = next((family for family in known if given.startswith(family)), None)
    if found is None:
        raise error("SML0733", arch=given, operands=operands, nearest=f"virtual:{known[-1]}a")
    return found
