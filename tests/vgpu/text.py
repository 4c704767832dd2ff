"""Kernels as PTX text whose lines may end in a tag, `// wait`: mutants are made by leaving the tagged lines out."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from smalti.errors import SmaltiError
from smalti.ptx.module import Module
from smalti.ptx.parse import parse
from smalti.vgpu.checks import Checks
from smalti.vgpu.launch import LaunchConfig
from smalti.vgpu.machine import Machine
from smalti.vgpu.memory import Memory
from smalti.vgpu.schedule import schedule


@lru_cache(256)
def _module(text: str) -> Module:
    return parse(text, "kernel.ptx")


class Text:
    """A kernel called `k`. `buffers` are sizes in bytes of zeroed global buffers, its parameters."""

    def __init__(
        self, text: str, threads: int, *, grid: int = 1, cluster: int = 1, buffers: tuple[int, ...] = (),
        shared: int = 0,
    ) -> None:  # fmt: skip
        self.text, self.threads, self.grid, self.cluster = text, threads, grid, cluster
        self.buffers, self.shared = buffers, shared

    def without(self, tag: str) -> Text:
        """The kernel without the lines of a tag; there must be some."""
        lines = self.text.splitlines()
        left = [x for x in lines if not x.rstrip().endswith(f"// {tag}")]
        assert len(left) < len(lines), tag
        return self.changed("\n".join(left))

    def changed(self, text: str) -> Text:
        return Text(text, self.threads, grid=self.grid, cluster=self.cluster, buffers=self.buffers, shared=self.shared)

    def replace(self, old: str, new: str) -> Text:
        assert old in self.text, old
        return self.changed(self.text.replace(old, new))

    def run(
        self, seed: int | None = None, *, collect: bool = False, strict: bool = False, compiler: str = ""
    ) -> list[SmaltiError]:
        """What the checks report: all of it with `collect`, else the first. Other refusals pass."""
        memory = Memory()
        self.segments = [memory.allocate(f"b{i}", n, data=np.zeros(n, np.uint8)) for i, n in enumerate(self.buffers)]
        params = np.array([s.address for s in self.segments], np.uint64).tobytes()
        config = LaunchConfig("k", (self.grid, 1, 1), (self.threads, 1, 1), params, (self.cluster, 1, 1), self.shared)
        checks = Checks(collect=collect, strict=strict, compiler=compiler)
        try:
            Machine(_module(self.text), config, memory, schedule=schedule(seed), checks=checks).run()
        except SmaltiError as found:
            checks.reports.append(found)
        return checks.reports

    def code(self, seed: int | None = None, *, strict: bool = False) -> str:
        """The code of the first report, "" if there is none."""
        found = self.run(seed, strict=strict)
        return found[0].code if found else ""

    def codes(self, seeds: int, *, strict: bool = False) -> set[str]:
        """Those of the default schedule and of so many seeds."""
        return {self.code(s, strict=strict) for s in (None, *range(seeds))}
