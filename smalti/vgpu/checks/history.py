"""Who touched what last: numbers for epochs and for sets of reads, kept in arrays over memory.

FastTrack's idea (Flanagan and Freund, PLDI 2009) over arrays: every cell has the number of its last write and the
number of the set of reads since, so that a whole tile is looked up and compared at once. What orders two epochs is
the rule's business.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

Ids = npt.NDArray[Any]  # integers
E = TypeVar("E")
_FEW = 256


class History(Generic[E]):
    """Epochs and sets of epochs by number; number 0 is none, and the empty set."""

    def __init__(self) -> None:
        self._epochs: list[E | None] = [None]
        self._numbers: dict[Hashable, int] = {}
        self._sets: list[tuple[int, ...]] = [()]
        self._set_numbers: dict[tuple[int, ...], int] = {(): 0}
        self._grown: dict[tuple[int, int], int] = {}

    def epoch(self, number: int) -> E:
        found = self._epochs[number]
        assert found is not None
        return found

    def number(self, key: Hashable, make: Callable[[], E]) -> int:
        """The number of the epoch with this key, made when it is new."""
        n = self._numbers.get(key)
        if n is None:
            n = self._numbers[key] = len(self._epochs)
            self._epochs.append(make())
        return n

    def members(self, set_number: int) -> tuple[int, ...]:
        return self._sets[set_number]

    def grow(self, old: int, me: int, over: Callable[[int], bool]) -> int:
        """The number of a set of reads with `me` added; members that are `over` (ordered before it) are dropped."""
        key = (old, me)
        new = self._grown.get(key)
        if new is None:
            members = (*(n for n in self._sets[old] if n != me and not over(n)), me)
            new = self._set_numbers.get(members)
            if new is None:
                new = self._set_numbers[members] = len(self._sets)
                self._sets.append(members)
            self._grown[key] = new
        return new

    def grow_all(self, seen: Ids, me: int, over: Callable[[int], bool]) -> Any:
        """`grow` for an array of set numbers: a number, or an array like `seen`."""
        sets = distinct(seen)
        if len(sets) == 1:
            return self.grow(sets[0], me, over)
        table = np.zeros(max(sets, default=0) + 1, np.int32)
        for s in sets:
            table[s] = self.grow(s, me, over)
        return table[seen]


def distinct(numbers: Ids) -> list[int]:
    """The distinct values, fast when there is one or few runs of them."""
    if not numbers.size:
        return []
    first = numbers.item(0)
    other = numbers != first
    if not np.count_nonzero(other):
        return [first]
    flat = numbers.reshape(-1)
    if flat.size <= _FEW:
        return list(set(flat.tolist()))
    changes = np.flatnonzero(flat[1:] != flat[:-1])
    if len(changes) > _FEW:
        return np.unique(flat).tolist()  # type: ignore[no-any-return]
    return list({first, *flat[changes + 1].tolist()})
