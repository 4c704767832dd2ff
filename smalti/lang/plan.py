"""The plan of a kernel: what a trace decided and what its conveniences implied, as data that prints.

Filled while tracing; knows no object of the language.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field

from smalti.errors import Loc

__all__ = ["Barriers", "Buffer", "Note", "Plan"]


@dataclass(frozen=True, slots=True)
class Buffer:
    """A piece of shared memory: `stages` copies of `shape`."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    layout: str
    stages: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Barriers:
    """`number` mbarriers that complete after `arrivals` arrivals (and the bytes they expect)."""

    name: str
    number: int
    arrivals: int


@dataclass(slots=True)
class Note:
    """Something that a convenience implied: fence, wait, barrier, copy, conversion, store."""

    kind: str
    text: str
    threads: str
    loc: Loc | None
    times: int = 1


@dataclass(slots=True)
class Plan:
    """What a kernel is made of. `str()` gives a page; the fields are for programs."""

    kernel: str
    arch: str
    facts: dict[str, str] = field(default_factory=dict)
    options: dict[str, object] = field(default_factory=dict)
    block: int = 0
    cluster: tuple[int, int, int] = (1, 1, 1)
    grid: str = ""
    parameters: list[str] = field(default_factory=list)
    roles: list[str] = field(default_factory=list)
    buffers: list[Buffer] = field(default_factory=list)
    barriers: list[Barriers] = field(default_factory=list)
    named_barriers: int = 0
    shared_bytes: int = 0
    tensor_columns: int = 0
    registers: list[str] = field(default_factory=list)
    notes: list[Note] = field(default_factory=list)
    copies: list[str] = field(default_factory=list)  # of arguments, by the caller of the kernel
    instructions: int = 0

    def note(self, kind: str, text: str, threads: str, loc: Loc | None) -> None:
        for n in self.notes:
            if (n.kind, n.text, n.threads, n.loc) == (kind, text, threads, loc):
                n.times += 1
                return
        self.notes.append(Note(kind, text, threads, loc))

    def __str__(self) -> str:
        lines = [
            f"{self.kernel} for {self.arch}: {self.block} threads, cluster {_dims(self.cluster)}, grid {self.grid}"
        ]
        lines += [f"  {name}: {fact}" for name, fact in self.facts.items()]
        if self.options:
            lines.append("  options: " + ", ".join(f"{k}={v}" for k, v in self.options.items()))
        lines.append("  parameters: " + ", ".join(self.parameters))
        lines += [f"  copied before the launch: {text}" for text in self.copies]
        lines += [f"  role {text}" for text in self.roles]
        lines.append(f"  shared memory: {self.shared_bytes} of {227 * 1024} bytes")
        for b in self.buffers:
            shape = "x".join(map(str, b.shape))
            stages = f"{b.stages} x " if b.stages > 1 else ""
            lines.append(f"    {b.name}: {stages}{shape} {b.dtype}, {b.layout}, {b.bytes} bytes")
        for m in self.barriers:
            lines.append(f"    {m.name}: {m.number} mbarrier{'s' * (m.number > 1)}, {m.arrivals} arrivals")
        if self.tensor_columns:
            lines.append(f"  tensor memory: {self.tensor_columns} of 512 columns")
        lines.append(f"  named barriers: {self.named_barriers} of 16")
        lines += [f"  registers: {text}" for text in self.registers]
        lines.append("  implied:")
        for n in self.notes:
            where = f"{os.path.basename(n.loc.file)}:{n.loc.line}" if n.loc else ""
            times = f" ({n.times} times)" if n.times > 1 else ""
            lines.append(f"    {where:<24} {n.kind}: {n.text}{times} [{n.threads}]")
        lines.append(f"  {self.instructions} PTX instructions")
        return "\n".join(lines)


def _dims(dims: tuple[int, ...]) -> str:
    return "x".join(map(str, dims))
