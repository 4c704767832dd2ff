"""Devices by name, and which one is taken when none is named. Knows how no device works."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import cache
from typing import Literal

from smalti.errors import error
from smalti.vgpu.launch import DEVICES

# Products a second of the virtual GPU with all checks, for estimates only: 512^3 in half a second.
VIRTUAL_RATE = 2.5e8
LONGEST_UNASKED = 60.0  # seconds; a longer run on the virtual GPU must be asked for

_SAID: set[str] = set()  # architectures for which the user was told that there is no CUDA device


@dataclass(frozen=True, slots=True)
class Device:
    """A place where kernels run: `arch` as sm_90a, `sm_count` its multiprocessors, `ordinal` of a CUDA device."""

    kind: Literal["virtual", "cuda"]
    arch: str
    sm_count: int
    name: str
    ordinal: int = 0

    @property
    def spec(self) -> str:
        """What `device` takes to get this one."""
        return f"virtual:{self.arch}" if self.kind == "virtual" else f"cuda:{self.ordinal}"


def device(spec: str | Device | None = None, *, arch: str | None = None, work: float = 0) -> Device:
    """The device that `spec` names.

    spec    "virtual:sm_100a", "virtual" (of `arch`), "cuda", "cuda:1", a Device, or None: a CUDA device that runs
            code for `arch` if there is one, else the virtual GPU, which is said once on standard error
    arch    the target of the code to run, or None
    work    products that will be computed, for the time estimate

    Errors: SML0170 (no such name), SML0171 (no CUDA), SML0172 (another architecture), SML0173 (the virtual GPU
    would take over a minute and was not asked for).
    """
    if isinstance(spec, Device):
        return _matching(spec, arch)
    if spec is None:
        return _default(arch, work)
    if not isinstance(spec, str):
        raise error("SML0170", spec=spec, known=_known())
    if m := re.fullmatch(r"virtual(?::(\w+))?", spec):
        name = m.group(1) or arch or "sm_90a"
        if m.group(1) or name in DEVICES:
            if name not in DEVICES:
                raise error("SML0170", spec=spec, known=_known())
            return _matching(_virtual(name), arch)
        return _matching(_virtual(_host_of(name)), arch)
    if m := re.fullmatch(r"cuda(?::(\d{1,3}))?", spec):
        found = {d.ordinal: d for d in cuda_devices()}
        wanted = int(m.group(1) or 0)
        if wanted not in found:
            raise error("SML0171", spec=spec, reason=no_cuda_because() or f"there are {len(found)} CUDA devices")
        return _matching(found[wanted], arch)
    raise error("SML0170", spec=spec, known=_known())


def runs(target: str, arch: str) -> bool:
    """Whether code of PTX target `target` runs on a device of architecture `arch`.

    `a` targets run on their own architecture only, `f` targets on the same family, plain ones on that and all
    later ones (PTX ISA, .target).
    """
    if target == arch:
        return True
    want, have = (re.fullmatch(r"sm_(\d+)([af]?)", t) for t in (target, arch))
    if want is None or have is None or want.group(2) == "a":
        return False
    wanted, given = int(want.group(1)), int(have.group(1))
    return given >= wanted and (want.group(2) == "" or given // 10 == wanted // 10)


def _matching(found: Device, arch: str | None) -> Device:
    if arch is not None and not runs(arch, found.arch):
        raise error("SML0172", device=found.spec, have=found.arch, target=arch)
    return found


def _default(arch: str | None, work: float) -> Device:
    for found in cuda_devices():
        if arch is None or runs(arch, found.arch):
            return found
    chosen = _virtual(_host_of(arch or "sm_90a"))
    seconds = work / VIRTUAL_RATE
    if seconds > LONGEST_UNASKED:
        raise error("SML0173", target=chosen.arch, seconds=round(seconds), spec=chosen.spec)
    about = f", about {max(seconds, 0.1):.1f} s" if work else ""
    if chosen.arch not in _SAID:
        _SAID.add(chosen.arch)
        head = f"smalti: no CUDA device for {chosen.arch}; running on the virtual GPU ({chosen.spec}){about}"
        print(head, file=sys.stderr)
    return chosen


def _virtual(arch: str) -> Device:
    return Device("virtual", arch, DEVICES[arch].sm_count, f"virtual GPU {arch}")


def _host_of(target: str) -> str:
    """The first virtual GPU that runs code for `target`. Errors: SML0170."""
    for arch in DEVICES:
        if runs(target, arch):
            return arch
    raise error("SML0170", spec=f"virtual:{target}", known=_known())


def _known() -> str:
    return ", ".join([f"virtual:{a}" for a in DEVICES] + ["cuda", "cuda:N"])


@cache
def no_cuda_because() -> str:
    """Why no CUDA device can be used, "" if one can."""
    import ctypes

    try:
        ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
    except OSError:
        return "there is no CUDA driver"
    try:
        from smalti.run import cuda  # noqa: F401
    except ImportError as missing:
        return f"{missing.name or 'cuda'} is not installed: pip install 'smalti[gpu]'"
    return ""


@cache
def cuda_devices() -> tuple[Device, ...]:
    """All CUDA devices, in the driver's order; none where the driver or the extra `gpu` is missing."""
    if no_cuda_because():
        return ()
    from smalti.run import cuda

    return tuple(Device("cuda", p.arch, p.sm_count, p.name, ordinal) for ordinal, p in enumerate(cuda.properties()))
