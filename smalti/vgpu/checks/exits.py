"""Rule: a CTA does not exit while an asynchronous operation still reads or writes its shared memory (SML0933)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smalti.vgpu.machine import CTA, Machine


def check(machine: Machine, cta: CTA, report: Callable[..., None]) -> None:
    for op in machine.pending:
        if op.uses_shared(cta):
            report("SML0933", op.loc, cta=cta.name, other=op.who())
