"""What tracing a kernel once gives: a value that is run, printed and kept on disk. Knows no function and no device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from smalti.lang.grid import Expression
from smalti.lang.parameters import Parameter
from smalti.lang.plan import Plan
from smalti.lang.signature import Facts, Signature
from smalti.ptx.module import Module
from smalti.ptx.print import print_module

__all__ = ["Traced"]


@dataclass(frozen=True, eq=False)
class Traced:
    """A kernel for one set of static facts: its PTX module, and what a launch must know.

    `parameters` in the entry's order; `grid` three host expressions (`lang.grid`); `shared` bytes of dynamic
    shared memory; `plan` says what it is made of. A trace from the disk has its text, and a module once asked.
    """

    made: Module | None
    entry: str
    signature: Signature
    facts: Mapping[str, Facts]
    parameters: tuple[Parameter, ...]
    grid: tuple[Expression, Expression, Expression]
    block: int
    cluster: tuple[int, int, int]
    shared: int
    plan: Plan
    text: str = ""

    @cached_property
    def module(self) -> Module:
        """The finished PTX module."""
        if self.made is not None:
            return self.made
        from smalti.ptx.parse import parse

        return parse(self.text, self.entry)

    def ptx(self) -> str:
        """The PTX text."""
        return self.text or print_module(self.module)
