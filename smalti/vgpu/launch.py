"""What the virtual GPU is asked to run: a kernel of a module, its shape, and memory that is already in place."""

from __future__ import annotations

from dataclasses import dataclass

Dim3 = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class LaunchConfig:
    """Grid in CTAs, block in threads, cluster in CTAs; `params` are the resolved parameter bytes."""

    entry: str
    grid: Dim3
    block: Dim3
    params: bytes
    cluster: Dim3 = (1, 1, 1)
    shared_bytes: int = 0  # dynamic shared memory


@dataclass(frozen=True, slots=True)
class VirtualDevice:
    """The properties of the GPU that programs can see. Source: CUDA occupancy tables for the compute capability."""

    arch: str
    sm_count: int
    shared_per_cta: int = 227 * 1024  # opt-in maximum of dynamic + static shared memory
    shared_base: int = 0x400  # first byte a CTA may use (h200: the first KiB is the system's)
    warp_size: int = 32

    @property
    def number(self) -> int:
        return int("".join(c for c in self.arch if c.isdigit()))


DEVICES = {
    "sm_90a": VirtualDevice("sm_90a", 132),
    "sm_100a": VirtualDevice("sm_100a", 148),
    "sm_103a": VirtualDevice("sm_103a", 160),
}
