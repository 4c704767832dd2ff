"""Rules at the exit of a CTA: no asynchronous operation still uses its shared memory (SML0933), and its tensor memory
is deallocated (SML0867). Sources: PTX 9.7.9.25, 9.7.16.7.1."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from smalti.vgpu.engines.tensor_memory import ENGINE

if TYPE_CHECKING:
    from smalti.vgpu.machine import CTA, Machine


def check(machine: Machine, cta: CTA, report: Callable[..., None]) -> None:
    for op in machine.pending:
        if op.uses_shared(cta):
            report("SML0933", op.loc, cta=cta.name, other=op.who())
    memory = cta.engines.get(ENGINE)
    if memory is not None and memory.allocations:
        start, columns = next(iter(memory.allocations.items()))
        report("SML0867", None, cta=cta.name, start=start, columns=columns)
