"""Gives the refusals of lower layers the line of the instruction that asked."""

from __future__ import annotations

from types import TracebackType

from smalti.errors import Loc, SmaltiError


class blame:
    """`with blame(step.loc): …`: a coded error that leaves the block points at that line."""

    __slots__ = ("loc",)

    def __init__(self, loc: Loc | None) -> None:
        self.loc = loc

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, refusal: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(refusal, SmaltiError) and self.loc is not None:
            refusal.location, refusal.pointed = self.loc, True
