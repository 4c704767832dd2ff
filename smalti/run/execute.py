"""One way to run a kernel: a module or PTX text, a launch, a device; and what came of it.

Chooses the device's file (virtual or cuda) and hands it resolved values; knows no launch file and no language.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from smalti.errors import SmaltiError, error, public
from smalti.ptx.module import Module
from smalti.run.cache import Cache, key
from smalti.run.devices import Device
from smalti.run.devices import device as find
from smalti.run.launch import Buffer, Launch, kernel_of


@dataclass(frozen=True, slots=True, eq=False)
class Result:
    """What a run gave.

    outputs    the output buffers as NumPy arrays of their formats' types, by name
    device     where it ran; seconds: wall time of the run, without parsing and assembling
    reports    what the checks found, when they were told to collect
    figures    counts to print, by name: instructions, asynchronous operations, milliseconds on a GPU ...
    undefined  of each output that the kernel left undefined in part: a flag for each of its bytes (virtual GPU)
    """

    outputs: Mapping[str, NDArray[Any]]
    device: Device
    seconds: float
    reports: tuple[SmaltiError, ...] = ()
    figures: Mapping[str, float | int | str] = field(default_factory=dict)
    undefined: Mapping[str, NDArray[np.bool_]] = field(default_factory=dict)


@public
def run(
    module: Module | str,
    launch: Launch,
    device: str | Device | None = None,
    *,
    seed: int | None = None,
    checks: bool = True,
    collect: bool = False,
    strict: bool = False,
    work: float = 0,
    repeat: int = 0,
    max_steps: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    name: str = "<ptx>",
) -> Result:
    """Run one kernel and wait for it.

    module    a finished module, or PTX text of any origin (called `name` in messages)
    device    see `smalti.run.devices.device`; `work`, in products, is for its time estimate
    seed      of an adversarial schedule of the virtual GPU; None: the default, deterministic one
    checks    whether the virtual GPU looks for races and the like; `collect` them instead of raising the first;
              `strict`: also orders that no document promises, in what compilers made that rely on them
    repeat    more launches on the same buffers, for timing on a GPU
    max_steps warp instructions after which the virtual GPU stops with SML0816
    progress  called with clusters done and their number

    Errors: SML0159 (an option's value), SML0150 to SML0158 (the launch does not fit the kernel), SML013x and SML014x
    (tensor maps), SML0170 to SML0174 (devices), SML02xx (the PTX), SML08xx and SML09xx (what the kernel does wrong).
    """
    for option, value, least in (("seed", seed, 0), ("repeat", repeat, 0), ("max_steps", max_steps, 1)):
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | np.integer) or value < least):
            raise error("SML0159", option=option, value=repr(value), least=least)
    target = module.target if isinstance(module, Module) else _target(module, name)
    chosen = find(device, arch=target, work=work)
    if chosen.kind == "virtual":
        return _virtual(module, launch, chosen, seed, checks, collect, strict, max_steps, progress, name)
    return _cuda(module, launch, chosen, repeat, name)


def _target(text: str, name: str) -> str:
    from smalti.run.assemble import target_of

    return target_of(text) or _parsed(text, name).target  # which says what else the text is


def _virtual(
    module: Module | str,
    launch: Launch,
    chosen: Device,
    seed: int | None,
    checks: bool,
    collect: bool,
    strict: bool,
    max_steps: int | None,
    progress: Callable[[int, int], None] | None,
    name: str,
) -> Result:
    from smalti.ptx.producer import producer
    from smalti.run import virtual
    from smalti.vgpu.checks import Checks

    parsed = _parsed(module, name) if isinstance(module, str) else module
    compiler = producer(module) if isinstance(module, str) else ""
    watch = Checks(collect=collect, strict=strict, compiler=compiler) if checks else None
    start = time.perf_counter()
    ran = virtual.launch(parsed, launch, chosen.arch, seed=seed, checks=watch, progress=progress, max_steps=max_steps)
    seconds = time.perf_counter() - start
    engines = {f"{engine} operations": n for engine, n in sorted(ran.asynchronous.items())}
    if watch is not None and watch.relied_on:
        engines["hand-overs without tcgen05.fence (see --strict)"] = watch.relied_on
    return Result(
        _arrays(launch, ran.memory),
        chosen,
        seconds,
        tuple(watch.reports) if watch else (),
        {"warp instructions": ran.steps} | engines | ({"printed": "".join(ran.printed)} if ran.printed else {}),
        ran.undefined,
    )


def _parsed(text: str, name: str) -> Module:
    from smalti.ptx.parse import parse
    from smalti.ptx.validate import validate

    module = parse(text, name)
    validate(module)
    return module


def _cuda(module: Module | str, launch: Launch, chosen: Device, repeat: int, name: str) -> Result:
    from smalti.run import cuda

    if isinstance(module, Module):
        from smalti.ptx.print import print_module

        kernel_of(module, launch)
        text = print_module(module)
    else:
        text = module
    code = machine_code(text, chosen.arch, name)
    start = time.perf_counter()
    memory, times = cuda.launch(code, launch, chosen.ordinal, repeat=repeat)
    seconds = time.perf_counter() - start
    middle = statistics.median(times[1:] or times)
    return Result(_arrays(launch, memory), chosen, seconds, figures={"milliseconds": middle})


def machine_code(text: str, arch: str, name: str = "<ptx>") -> bytes:
    """The cubin of PTX text, from the disk cache or made by ptxas; the text itself for the driver's JIT where ptxas
    is not installed. Errors: SML0281 to SML0284."""
    from smalti.run import assemble

    try:
        version = assemble.version()
    except SmaltiError:
        return text.encode()
    cache, entry = Cache(), key(kind="cubin", ptx=text, arch=arch, assembler=version)
    if (found := cache.get(entry)) is not None:
        return found["cubin"]
    made = assemble.assemble(text, arch, name=name)
    cache.put(entry, {"cubin": made.cubin})
    return made.cubin


def _arrays(launch: Launch, memory: Mapping[str, NDArray[np.uint8]]) -> dict[str, NDArray[Any]]:
    return {name: launch.buffers[name].array_in(raw) for name, raw in memory.items()}


# -- comparing -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Comparison:
    """How an output agrees with what was expected: elements that differ (by the buffer's tolerance, or in any bit),
    of how many, the first of them, and the largest absolute difference of finite values."""

    differing: int
    total: int
    first: tuple[int, ...] | None
    worst: float


def compare(buffer: Buffer, got: NDArray[Any]) -> Comparison:
    """Compare the output `got` with `buffer.expected`, which must be there."""
    assert buffer.expected is not None
    from smalti.numerics.formats import decode

    bits = got.view(buffer.expected.dtype)
    a, b = decode(bits, buffer.dtype), decode(buffer.expected, buffer.dtype)
    with np.errstate(invalid="ignore"):
        distance = np.abs(a - b)
    if buffer.tolerance is None:
        wrong = bits != buffer.expected
    else:
        absolute, relative = buffer.tolerance
        both_nan = np.isnan(a) & np.isnan(b)
        with np.errstate(invalid="ignore"):
            near = np.isfinite(b) & (distance <= absolute + relative * np.abs(b))
        wrong = ~(both_nan | (a == b) | near)
    places = np.argwhere(wrong)
    finite = distance[np.isfinite(distance)]
    return Comparison(
        len(places),
        wrong.size,
        tuple(int(i) for i in places[0]) if len(places) else None,
        float(finite.max(initial=0.0)),
    )
