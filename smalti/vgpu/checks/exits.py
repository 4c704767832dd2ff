"""Rules at the exit of a CTA: no asynchronous operation still uses its shared memory (SML0933), and its tensor memory
is deallocated (SML0867). Sources: PTX 9.7.9.25, 9.7.16.7.1."""

from __future__ import annotations

from typing import TYPE_CHECKING

from smalti.errors import error
from smalti.vgpu.checks.races import Report
from smalti.vgpu.engines.tensor_memory import ENGINE

if TYPE_CHECKING:
    from smalti.vgpu.machine import CTA, Machine


def check(machine: Machine, cta: CTA, report: Report) -> None:
    for op in machine.pending:
        if op.uses_shared(cta):
            report(error("SML0933", at=op.loc, cta=cta.name, other=op.who()))
    memory = cta.engines.get(ENGINE)
    if memory is not None and memory.allocations:
        start, columns = next(iter(memory.allocations.items()))
        report(error("SML0867", at=None, cta=cta.name, start=start, columns=columns))
