"""What the virtual GPU checks beyond what hardware reports: one rule a file, all fed through this object.

`Checks` is told of every access and every fence; it asks the rules, and raises or collects what they find.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from smalti.errors import SmaltiError
from smalti.vgpu.checks import exits, fences, flags, races, registers, tensor

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from smalti.vgpu.clocks import Clock
    from smalti.vgpu.engines.tensor_cells import Block
    from smalti.vgpu.engines.tensor_memory import TensorMemory
    from smalti.vgpu.machine import CTA, Cluster, Machine
    from smalti.vgpu.memory import Segment
    from smalti.vgpu.program import Step
    from smalti.vgpu.warp import Gang

    Offsets = npt.NDArray[np.int64]
    Lanes = npt.NDArray[np.intp] | None
    Blocks = tuple[Block, ...]


@dataclass
class Checks:
    """All checks on.

    collect   gather reports (each place once) instead of raising the first
    strict    also report orders that every known chip keeps but no document promises
    compiler  who made the module (`smalti.ptx.producer`); "" for people and for ourselves. What compilers rely on
              counts as kept in what they made, unless strict. Triton and CUTLASS have no tcgen05.fence of a kind at
              all, but waits and barriers alone to order tensor memory: where a module of theirs lacks a kind, the
              places are counted in `relied_on`. Not so with nvcc, which translates what people wrote. JAX leaves the
              constant of matrix descriptors out; JAX and TileLang give tcgen05.ld and st lanes 0-31 in every warp,
              which means the warp's own.
    """

    collect: bool = False
    strict: bool = False
    compiler: str = ""
    reports: list[SmaltiError] = field(default_factory=list)

    def attach(self, machine: Machine) -> None:
        self.machine = machine
        self.races = races.Races(self.report, self.strict)
        habit = self.lenient and self.compiler != "nvvm"
        relied = tensor.fences_left_out(machine.program) if habit else frozenset()
        self.order = tensor.TensorOrder(self.report, self.strict, relied)
        self._seen: set[Any] = set()
        self._installed = False

    @property
    def lenient(self) -> bool:
        """Whether what every tried chip does, and compilers rely on, counts as kept."""
        return bool(self.compiler) and not self.strict

    @property
    def relied_on(self) -> int:
        """How often tensor memory was handed over without a fence that the whole module leaves out."""
        return self.order.relied_on

    def report(self, found: SmaltiError) -> None:
        """Raise the error, or note it once for each code and pair of lines."""
        if not self.collect:
            raise found
        key = (found.code, found.location, found.params.get("other_line"))
        if key not in self._seen:
            self._seen.add(key)
            self.reports.append(found)

    def start(self, cluster: Cluster) -> None:
        """A cluster begins."""
        if not self._installed:
            self._installed = True
            fences.install(self.machine, self.report)

    def end(self, cluster: Cluster) -> None:
        self.races.forget(cluster)

    def leaving(self, cta: CTA) -> None:
        """The last thread of a CTA has left: nothing may still use its memory."""
        exits.check(self.machine, cta, self.report)
        self.races.at_end(cta)

    def finish(self) -> None:
        """The grid is done."""

    # -- accesses: see memory.NoChecks ------------------------------------------------------------------

    def read(self, agent: Any, segment: Segment, offsets: Offsets, width: int, lanes: Lanes, order: str) -> None:
        if not races.tracked(segment):
            return
        strong = order != "weak"
        if strong and lanes is not None:
            flags.observed(agent, races.shadow_of(segment), offsets, lanes, order)
        self.races.access(agent, segment, offsets, width, lanes, writes=False, strong=strong)

    def write(
        self, agent: Any, segment: Segment, offsets: Offsets, width: int, lanes: Lanes, order: str, values: Any = None
    ) -> None:
        if not races.tracked(segment):
            return
        if order == "allocated":
            self.races.access(agent, segment, offsets, width, lanes, writes=True, strong=False, settled=not self.strict)
            return
        strong = order != "weak"
        self.races.access(agent, segment, offsets, width, lanes, writes=True, strong=strong, values=values)
        if strong and lanes is not None:
            flags.published(agent, races.shadow_of(segment), offsets, lanes, order)

    def read_range(self, agent: Any, segment: Segment, start: int, stop: int) -> None:
        if races.tracked(segment):
            self.races.span(agent, segment, start, stop, writes=False)

    def write_range(self, agent: Any, segment: Segment, start: int, stop: int) -> None:
        if races.tracked(segment):
            self.races.span(agent, segment, start, stop, writes=True, strong=agent.order != "weak")

    def read_units(self, agent: Any, segment: Segment, units: Offsets) -> None:
        if races.tracked(segment):
            self.races.units(agent, segment, units, writes=False)

    def read_spans(self, agent: Any, segment: Segment, spans: tuple[slice, ...]) -> bool:
        return not races.tracked(segment) or self.races.spans(agent, segment, spans)

    def write_units(self, agent: Any, segment: Segment, units: Offsets) -> None:
        if races.tracked(segment):
            self.races.units(agent, segment, units, writes=True, strong=agent.order != "weak")

    def tensor(self, agent: Any, clock: Clock, memory: TensorMemory, blocks: Blocks, writes: bool) -> None:
        self.order.touch(agent, clock, memory, blocks, writes)

    def tensor_freed(self, agent: Any, memory: TensorMemory, start: int, columns: int) -> None:
        self.order.freed(agent, memory, start, columns)

    def registers(self, gang: Gang, step: Step) -> None:
        registers.check(gang, step, self.report)
