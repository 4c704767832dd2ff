"""Running a kernel on the virtual GPU: puts a launch's buffers into its memory and takes the outputs out again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from smalti.ptx.module import Module
from smalti.run.launch import Launch, kernel_of, parameter_block, resolve
from smalti.vgpu.launch import DEVICES, LaunchConfig
from smalti.vgpu.machine import Machine
from smalti.vgpu.memory import Memory, Segment
from smalti.vgpu.schedule import schedule


class Ran(NamedTuple):
    """Bytes of each output buffer, a flag for each byte left undefined (of those buffers that have any), warp
    instructions executed, asynchronous operations by engine, and what the kernel printed."""

    memory: dict[str, NDArray[np.uint8]]
    undefined: dict[str, NDArray[np.bool_]]
    steps: int
    asynchronous: dict[str, int]
    printed: list[str]


def launch(
    module: Module,
    launch: Launch,
    arch: str,
    *,
    seed: int | None = None,
    checks: Any = None,
    progress: Callable[[int, int], None] | None = None,
    max_steps: int | None = None,
) -> Ran:
    """Run a kernel. `seed`: an adversarial schedule; `checks`: an object of vgpu.checks, None for none.

    Errors: SML0152 to SML0154, those of tensor maps, and every SML08xx and SML09xx of the kernel.
    """
    kernel = kernel_of(module, launch)
    memory = Memory()
    segments = {
        name: memory.allocate(name, b.nbytes, data=b.data, defined=b.data is not None)
        for name, b in launch.buffers.items()
    }
    pieces = resolve(
        launch.params,
        lambda name: segments[name].address,
        lambda size: memory.allocate("scratch", size, defined=False).address,
    )
    block = parameter_block(kernel.params, pieces)
    config = LaunchConfig(launch.entry, launch.grid, launch.block, block, launch.cluster, launch.shared)
    machine = Machine(
        module,
        config,
        memory,
        device=DEVICES[arch],
        schedule=schedule(seed),
        checks=checks,
        progress=progress,
        max_steps=max_steps,
    )
    machine.run()
    outputs = {name: segments[name] for name, b in launch.buffers.items() if b.output}
    return Ran(
        {name: s.data[: s.size].copy() for name, s in outputs.items()},
        {name: flags for name, s in outputs.items() if (flags := _undefined(s)).any()},
        machine.steps,
        machine.performed,
        machine.printed,
    )


def _undefined(segment: Segment) -> NDArray[np.bool_]:
    return np.zeros(0, np.bool_) if segment.defined is None else ~segment.defined[: segment.size].view(np.bool_)
