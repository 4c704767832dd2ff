"""Who goes next: a policy that can be seeded. Knows gangs and asynchronous operations only as candidates."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smalti.vgpu.engines import AsyncOp
    from smalti.vgpu.warp import Gang


class Schedule:
    """The default: deterministic. Gangs run until they wait; asynchronous work is done as late as possible.

    Only a gang that uses up its budget (it may spin on plain loads) passes the turn on: to an operation, to the next
    gang, to another cluster.
    """

    seed: int | None = None
    chooses = False  # among operations; else it needs to be told of the first that is ready alone

    def __init__(self) -> None:
        self._turn = 0
        self._hungry = self._crowded = False

    def pick(self, gangs: list[Gang], ops: list[AsyncOp]) -> Gang | AsyncOp:
        """One of the runnable gangs or of the operations that may be performed now (not both empty)."""
        if ops and (self._hungry or not gangs):
            self._hungry = False
            return ops[0]
        return gangs[self._turn % len(gangs)]

    def exhausted(self) -> None:
        """The gang picked last used up its budget, or yielded."""
        self._turn += 1
        self._hungry = self._crowded = True

    def budget(self) -> int:
        """How many instructions the picked gang may execute before the next choice."""
        return 10_000

    def split(self) -> bool:
        """Whether the warps of a gang that starts, or meets again, go their own ways."""
        return False

    def admit(self) -> bool:
        """Whether to start another cluster although those running could go on."""
        now, self._crowded = self._crowded, False
        return now


class Adversary(Schedule):
    """Seeded and fair: every candidate has a chance at every choice, but the odds are skewed by the seed.

    Each seed has its own temper: how early asynchronous work is done, how long a gang runs, whether warps stay
    together, and which candidates are disliked for a while.
    """

    chooses = True

    def __init__(self, seed: int) -> None:
        super().__init__()
        self.seed = seed
        self._random = r = random.Random(seed)
        self._eagerness = r.choice((0.02, 0.2, 0.5, 0.9))
        self._order = r.choice(("oldest", "newest", "any"))
        self._longest = r.choice((1, 4, 30, 1000))
        self._split = r.choice((0.0, 0.3, 1.0))
        self._admit = r.choice((0.0, 0.01, 0.2))
        self._disliked = 0
        self._patience = 0

    def pick(self, gangs: list[Gang], ops: list[AsyncOp]) -> Gang | AsyncOp:
        r = self._random
        if ops and (not gangs or r.random() < self._eagerness):
            if self._order == "oldest" and r.random() < 0.9:
                return ops[0]
            if self._order == "newest" and r.random() < 0.9:
                return ops[-1]
            return r.choice(ops)
        if self._patience == 0:
            self._disliked, self._patience = r.randrange(16), r.randrange(1, 200)
        self._patience -= 1
        liked = [g for g in gangs if (g.lo // 32) % 16 != self._disliked]
        return r.choice(liked or gangs)

    def budget(self) -> int:
        return self._random.randint(1, self._longest)

    def split(self) -> bool:
        return self._random.random() < self._split

    def admit(self) -> bool:
        return self._random.random() < self._admit


def schedule(seed: int | None) -> Schedule:
    return Schedule() if seed is None else Adversary(int(seed))
