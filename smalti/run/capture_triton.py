"""Catching the launches of a Triton program: a driver in the place of Triton's own, with or without a GPU.

Offline, kernels are compiled for an architecture that need not be here and handed over instead of launched; with a
GPU, the real launcher runs too. Knows Triton's driver interface; what a launch says is `capture`'s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from smalti.errors import error
from smalti.run.capture import Captured, Memories, triton_launch
from smalti.run.launch import MOST_SHARED, Buffer

Receive = Callable[[Captured, Memories], None]


def _triton() -> Any:
    try:
        import triton
    except ImportError as missing:
        raise error("SML0180", reason=str(missing)) from missing
    return triton


@contextmanager
def capture(arch: str | None, receive: Receive) -> Iterator[None]:
    """Within it, every `kernel[grid](...)` of Triton or Gluon calls `receive` with the launch and its memory.

    arch      the architecture to compile for, without any GPU; nothing is launched, and arguments may be
              `capture.Array`s or PyTorch tensors on the CPU. None: the GPU that is here; the kernel runs on it, and
              the launch says what its buffers held afterwards.

    Errors: SML0180 (no Triton), SML0181 (an argument that is no number and no array).
    """
    triton = _triton()
    config, knobs = triton.runtime.driver, triton.knobs
    before, listener = config._active, knobs.compilation.listener
    texts: dict[str, Path] = {}  # where the PTX of each compiled kernel lies, by the compiler's hash

    def compiled(**told: Any) -> None:
        for name, path in told["metadata_group"].items():
            if name.endswith(".ptx"):
                texts[told["metadata"]["hash"]] = Path(path)
        if listener is not None:
            listener(**told)

    driver = _Offline(triton, arch, receive, texts) if arch else _Live(config.active, receive, texts)
    config.set_active(driver)
    knobs.compilation.listener = compiled
    try:
        yield
    finally:
        config._active, knobs.compilation.listener = before, listener


class _Offline:
    """As much of a driver as compiling and launching ask for. Each is a device of its own: Triton caches kernels by
    device, and those of another driver are bound to its launcher."""

    _devices = count(1 << 20)

    def __init__(self, triton: Any, arch: str, receive: Receive, texts: Mapping[str, Path]) -> None:
        from triton.backends.compiler import GPUTarget

        self._target = GPUTarget("cuda", int(arch.removeprefix("sm_").rstrip("af")), 32)
        self._device = next(self._devices)
        self.utils = _Utilities()
        self.launcher_cls = lambda src, metadata: _Launcher(src, metadata, arch, receive, texts, None)

    def get_current_target(self) -> Any:
        return self._target

    def get_current_device(self) -> int:
        return self._device

    def set_current_device(self, device: int) -> None:
        pass

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_device_capability(self, device: int = 0) -> tuple[int, int]:
        major, minor = divmod(self._target.arch, 10)
        return major, minor

    def get_active_torch_device(self) -> Any:
        import torch

        return torch.device("cpu")


class _Utilities:
    def load_binary(self, name: str, code: bytes, shared: int, device: int) -> tuple[object, object, int, int, int]:
        """Module, function, registers, spills, most threads: nothing is loaded."""
        return object(), object(), 0, 0, 1024

    def unload_module(self, module: object) -> None:
        pass

    def get_device_properties(self, device: int) -> dict[str, int]:
        return {"max_shared_mem": MOST_SHARED, "multiprocessor_count": 132, "warpSize": 32, "max_num_regs": 65536}


class _Live:
    """The real driver, with a launcher that looks on."""

    def __init__(self, real: Any, receive: Receive, texts: Mapping[str, Path]) -> None:
        self._real = real
        arch = f"sm_{real.get_current_target().arch}a"

        def launcher(src: Any, metadata: Any) -> _Launcher:
            return _Launcher(src, metadata, arch, receive, texts, real.launcher_cls(src, metadata))

        self.launcher_cls = launcher

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class _Launcher:
    """What Triton calls to launch one compiled kernel."""

    def __init__(
        self, src: Any, metadata: Any, arch: str, receive: Receive, texts: Mapping[str, Path], real: Any
    ) -> None:
        names = list(src.fn.arg_names)
        kinds = {names.index(k) if isinstance(k, str) else k: v for k, v in src.signature.items()}
        self.signature = [(name, kinds.get(n, "constexpr")) for n, name in enumerate(names)]
        self.metadata, self.arch, self.receive, self.texts, self.real = metadata, arch, receive, texts, real

    def __call__(
        self, x: int, y: int, z: int, stream: int, function: Any, packed: Any, data: Any, enter: Any, leave: Any,
        *arguments: Any,
    ) -> None:  # fmt: skip
        if x * y * z == 0:
            return
        launch, memories = triton_launch(self.metadata.name, self.signature, arguments, self.metadata, (x, y, z))
        if self.real is not None:
            self.real(x, y, z, stream, function, packed, data, enter, leave, *arguments)
            after, _ = triton_launch(self.metadata.name, self.signature, arguments, self.metadata, (x, y, z))
            launch = replace(launch, buffers={n: _expecting(b, after.buffers[n]) for n, b in launch.buffers.items()})
        ptx = self.texts[self.metadata.hash].read_text()
        self.receive(Captured(self.metadata.name, ptx, self.arch, launch), memories)


def _expecting(before: Buffer, after: Buffer) -> Buffer:
    """A buffer with what it held after the launch as its expectation; no output if that is what it held before."""
    assert before.data is not None and after.data is not None
    if np.array_equal(before.data, after.data):
        return replace(before, output=False)
    return replace(before, expected=after.bits_in(after.data))
