"""Stands for Triton where it is not installed: its driver slot, compile listener and launcher protocol, no compiler."""

import sys
from types import ModuleType, SimpleNamespace


class Driver:
    """triton.runtime.driver"""

    def __init__(self):
        self._active = None

    @property
    def active(self):
        return self._active

    def set_active(self, driver):
        self._active = driver


def install(monkeypatch):
    """Put the stub in the place of Triton; gives the module."""
    made = {name: ModuleType(name) for name in ("triton", "triton.backends", "triton.backends.compiler")}
    for name, module in made.items():
        monkeypatch.setitem(sys.modules, name, module)
    triton = made["triton"]
    made["triton.backends.compiler"].GPUTarget = lambda backend, arch, warp: SimpleNamespace(arch=arch)
    triton.runtime = SimpleNamespace(driver=Driver())
    triton.knobs = SimpleNamespace(compilation=SimpleNamespace(listener=None))
    return triton


def metadata(**fields):
    return SimpleNamespace(
        **{"name": "kernel", "hash": "h", "num_warps": 4, "num_ctas": 1, "shared": 0, "global_scratch_size": 0,
           "profile_scratch_size": 0} | fields
    )  # fmt: skip


def launch(triton, ptx, signature, grid, *arguments, **fields):
    """What `kernel[grid](...)` comes to: the compiler tells its listener, the driver's launcher is called."""
    told = metadata(**fields)
    triton.knobs.compilation.listener(
        metadata={"hash": told.hash}, metadata_group={"kernel.ptx": str(ptx), "kernel.json": ""}, src=None
    )
    source = SimpleNamespace(fn=SimpleNamespace(arg_names=list(signature)), signature=signature)
    launcher = triton.runtime.driver.active.launcher_cls(source, told)
    launcher(*grid, 0, None, None, None, None, None, *arguments)
