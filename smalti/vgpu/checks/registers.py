"""Rules: registers of a wgmma in flight are left alone until wait_group (SML0932; PTX 9.7.15.7), results of tcgen05.ld
until wait::ld (SML0944; PTX 9.7.16.8).

The accumulator may be neither read nor written; registers that hold A may be read but not written. wgmma itself is
exempt: its executor knows which accumulators may be chained.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from smalti.errors import error
from smalti.vgpu.checks.races import Report, line

if TYPE_CHECKING:
    from smalti.vgpu.program import Step
    from smalti.vgpu.warp import Gang


def check(gang: Gang, step: Step, report: Report) -> None:
    if step.form.row.name.startswith("wgmma"):
        return
    touched = step.reads | step.writes
    for warp in gang.warps():
        if not warp.hazards or touched.isdisjoint(warp.hazards):
            continue
        for number in touched:
            op = warp.hazards.get(number)
            if op is None or (op.interlocked and not op.awaited):
                continue
            reads_result = number in op.results
            if reads_result or number in step.writes:
                program = gang.machine.program
                register = next(r for r, i in program.registers.items() if i == number).name
                other, there, who = op.who(), line(op.loc), gang.who()
                if op.interlocked:
                    report(
                        error(
                            "SML0944", at=step.loc, register=register, opcode=step.opcode, other=other,
                            other_line=there, who=who,
                        )
                    )  # fmt: skip
                else:
                    part = "accumulator" if reads_result else "A operand"
                    report(
                        error(
                            "SML0932", at=step.loc, register=register, opcode=step.opcode, part=part, other=other,
                            other_line=there, who=who,
                        )
                    )  # fmt: skip
                return
