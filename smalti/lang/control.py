"""Loops and branches of a kernel: `sm.range`, `sm.when`, `sm.while_`. Each opens a region and emits its branches.

Rotated loops (guard, body, test at the end): the form that ptxas pipelines best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import Any

from smalti.errors import error
from smalti.lang.dtypes import DTYPES
from smalti.lang.source import check_branch, check_loop
from smalti.lang.trace import Region, current
from smalti.lang.values import Scalar, Value, Var, as_value, constant
from smalti.ptx.module import Guard

__all__ = ["Branch", "Range", "range_", "when", "while_"]


class Range:
    """A run-time loop over start, start + step, ... below stop. Iterate over it once; it yields the index.

    `step` is a positive Python int. The index is a value of the loop's region.
    """

    def __init__(self, start: Scalar, stop: Scalar, step: Scalar = 1) -> None:
        self.start, self.stop, self.step = start, stop, step

    def __iter__(self) -> Iterator[Value]:
        check_loop()
        return self._run()

    def _run(self) -> Iterator[Value]:
        trace = current()
        kind = next((x.dtype for x in (self.start, self.stop) if isinstance(x, Value)), DTYPES["u32"])
        stop = self.stop if isinstance(self.stop, Value) else constant(self.stop, kind)
        index = Var(kind, trace.register(kind.register), trace.region)
        index.set(self.start)
        more = trace.register("pred")
        done, again = trace.label(), trace.label()
        trace.emit(f"setp.ge.{kind.register}", more, index, stop)
        trace.emit("bra", done, guard=Guard(more))
        trace.place(again)
        with trace.open("loop") as region:
            yield Value(kind, index.register, region)
        step = self.step if isinstance(self.step, Value) else constant(self.step, kind)
        trace.emit(f"add.{kind.register}", index, index, step)
        trace.emit(f"setp.lt.{kind.register}", more, index, stop)
        trace.emit("bra", again, guard=Guard(more))
        trace.place(done)


def range_(start: Scalar, stop: Scalar | None = None, step: int = 1) -> Range:
    """A run-time loop: `for i in sm.range(n)`. Bounds are values or ints, `step` a positive int."""
    if stop is None:
        start, stop = 0, start
    if not isinstance(step, int) or step <= 0:
        raise error("SML0304", what="the step of sm.range", value=str(step), wanted="a positive Python int")
    return Range(start, stop, step)


class Branch(AbstractContextManager["Branch"]):
    """`with sm.when(p):` runs its body for the threads for which p holds; `with branch.otherwise:` the others."""

    def __init__(self, condition: Value | bool, *, negate: bool = False) -> None:
        self.condition, self.negate = condition, negate
        self._open: list[AbstractContextManager[Region]] = []

    def __enter__(self) -> Branch:
        check_branch()
        trace = current()
        condition = self.condition
        if not isinstance(condition, Value):
            condition = as_value(condition, "pred")
        if condition.dtype.kind != "pred":
            condition = condition != 0
        self.condition = condition
        opened = trace.open_if(condition, "when", negate=self.negate)
        opened.__enter__()
        self._open.append(opened)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._open.pop().__exit__(kind, value, traceback)

    @property
    def otherwise(self) -> Branch:
        """The branch of the other threads; use it right after the `with` of this one."""
        return Branch(self.condition, negate=not self.negate)


def when(condition: Value | bool) -> Branch:
    """A run-time branch. A Python bool is allowed and traced as a constant condition."""
    return Branch(condition)


def while_(condition: Callable[[], Value]) -> Iterator[None]:
    """`for _ in sm.while_(lambda: x > 0):` repeats while the condition holds, tested before each turn."""
    check_loop()
    return _while(condition)


def _while(condition: Callable[[], Value]) -> Iterator[None]:
    trace = current()
    done, again = trace.label(), trace.label()
    trace.place(again)
    test: Any = condition()
    if not isinstance(test, Value) or test.dtype.kind != "pred":
        raise error("SML0304", what="the condition of sm.while_", value=str(test), wanted="a traced predicate")
    trace.emit("bra", done, guard=Guard(trace.read(test), True))
    with trace.open("loop"):
        yield
    trace.emit("bra", again)
    trace.place(done)
