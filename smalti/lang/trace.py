"""The state of one trace: where instructions go, which threads execute there, and what the plan will list.

The current trace is the language's only ambient state, a context variable. Knows no object of the language.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

from smalti.errors import Loc, error
from smalti.lang.plan import Plan
from smalti.ptx.build import Builder
from smalti.ptx.module import Block, Function, Guard, Label, Module, Register, Variable

if TYPE_CHECKING:
    from smalti.lang.parameters import Parameters
    from smalti.lang.values import Value

_HERE = str(Path(__file__).resolve().parent.parent)
_MACHINERY = tuple(f"{_HERE}/{layer}/" for layer in ("lang", "ptx", "layout", "errors", "numerics"))
_CONTEXTLIB = contextmanager.__code__.co_filename  # its frames stand between a `with` and the kernel

_CURRENT: ContextVar[Trace] = ContextVar("smalti_trace")

REGISTERS = 65536  # of an SM, 32 bits each (CUDA C++ programming guide, compute capability 9.0 and 10.0)
NAMED_BARRIERS = 16  # PTX ISA 9.7.13.1: barriers 0 to 15 of a CTA


@dataclass(frozen=True, slots=True)
class Threads:
    """The threads that execute a region: `warps` warps from warp `first` of the CTA on, or one thread of them.

    `group` is the index of the warpgroup inside the role (a value that is the same for the whole warpgroup).
    """

    role: str
    first: int
    warps: int
    single: bool = False
    group: Value | int = 0

    def describe(self) -> str:
        if self.single:
            return f"one thread of {self.role}"
        return f"{self.role} ({self.warps} warp{'s' if self.warps > 1 else ''})"


@dataclass(eq=False, slots=True)
class Region:
    """A nested piece of the program. Values made in it are visible in it and in the regions inside it."""

    block: Block
    parent: Region | None
    kind: str  # body, loop, when, role, one, setup
    threads: Threads
    at_exit: list[Callable[[], None]] = field(default_factory=list)

    def loops(self) -> set[int]:
        region: Region | None = self
        found = set()
        while region is not None:
            if region.kind == "loop":
                found.add(id(region))
            region = region.parent
        return found

    def shares_loop(self, other: Region) -> bool:
        return bool(self.loops() & other.loops())

    def inside(self, outer: Region) -> bool:
        region: Region | None = self
        while region is not None:
            if region is outer:
                return True
            region = region.parent
        return False


@dataclass(eq=False, slots=True)
class Later:
    """A place in the program that is filled after more of the kernel has been traced."""

    block: Block
    region: Region


@dataclass(eq=False)
class Trace:
    """One run of a kernel's function. `finishers` run when it has ended, in the order they were added."""

    name: str
    arch: str
    parameters: Parameters
    plan: Plan
    warps: int = 4
    cluster: tuple[int, int, int] = (1, 1, 1)
    grid: Any = None  # host expression, see `schedule`
    finishers: list[Callable[[], None]] = field(default_factory=list)
    cached: dict[object, Any] = field(default_factory=dict)
    named: int = 1  # next free named barrier; 0 is the whole CTA's
    barriers: list[Any] = field(default_factory=list)  # mbarriers, to be initialised
    names: set[str] = field(default_factory=set)
    wgmma_groups: int = 0  # committed so far, in program order
    groups_in: dict[int, int] = field(default_factory=dict)  # of these, directly in a region
    after_wgmma: dict[str, list[Callable[[], None]]] = field(default_factory=dict)  # by role: at wait_group 0
    at_setup: list[Callable[[], None]] = field(default_factory=list)  # before the kernel's first barrier
    located: set[int] = field(default_factory=set)  # instructions put in at the end that have a line of their own
    roles_made: bool = False

    def __post_init__(self) -> None:
        self.module = Module(target=self.arch)  # finish raises the version to what is used
        self.function = Function(self.name)
        self.module.items.append(self.function)
        self.builder = Builder(self.module, self.function)
        assert self.function.body is not None
        self.region = Region(self.function.body, None, "body", Threads("the CTA", 0, self.warps))
        self.root = self.region
        self.head = self.later()  # parameters and thread indices
        self.setup = self.later()  # barrier initialisation, by one thread
        self.ready = self.later()  # behind the barrier that follows

    # -- instructions --

    def emit(self, opcode: str, *operands: Any, guard: Value | Guard | None = None) -> Any:
        """Emit one instruction at the current place; values and Python numbers become operands."""
        if guard is not None and not isinstance(guard, Guard):
            guard = Guard(self.read(guard))
        return self.builder.emit(opcode, *map(self.operand, operands), guard=guard)

    def operand(self, x: Any) -> Any:
        read = getattr(x, "as_operand", None)
        if read is not None:
            return read(self)
        return [self.operand(item) for item in x] if isinstance(x, list) else x

    def read(self, value: Value) -> Register:
        """The register of `value`, which must be visible here."""
        if not self.region.inside(value.region):
            raise error("SML0306", where=value.region.kind, role=value.region.threads.describe())
        return value.register

    def register(self, type_: str) -> Register:
        return self.builder.register(type_)

    def label(self) -> Label:
        return self.builder.label()

    def place(self, label: Label) -> None:
        self.builder.place(label)

    # -- regions --

    @contextmanager
    def open(self, kind: str, threads: Threads | None = None) -> Iterator[Region]:
        """A nested region at the current place."""
        outer = self.region
        with self.builder.block() as block:
            self.region = Region(block, outer, kind, threads or outer.threads)
            try:
                yield self.region
                for act in self.region.at_exit:
                    act()
            finally:
                self.region = outer

    @contextmanager
    def open_if(
        self, condition: Value, kind: str, threads: Threads | None = None, *, negate: bool = False
    ) -> Iterator[Region]:
        """A nested region that the threads enter for which `condition` holds (does not, with `negate`)."""
        skip = self.label()
        self.emit("bra", skip, guard=Guard(self.read(condition), not negate))
        with self.open(kind, threads) as region:
            yield region
        self.place(skip)

    def later(self) -> Later:
        """Keep a place here that `at` can fill afterwards."""
        with self.builder.block() as block:
            pass
        return Later(block, self.region)

    @contextmanager
    def at(self, place: Later) -> Iterator[None]:
        """Emit at a place kept before."""
        outer, self.region = self.region, place.region
        try:
            with self.builder.at(place.block):
                yield
        finally:
            self.region = outer

    @contextmanager
    def at_head(self) -> Iterator[None]:
        """Emit at the start of the kernel, in code that every thread executes once."""
        with self.at(self.head):
            yield

    def once(self, key: object, make: Callable[[], Any]) -> Any:
        """What `make` emits and gives at the start of the kernel, made once for each key."""
        if key not in self.cached:
            with self.at_head():
                self.cached[key] = make()
        return self.cached[key]

    def role_region(self) -> Region:
        """The outermost region of the role that is being traced, or the kernel's body."""
        region = self.region
        while region.parent is not None and region.kind not in ("role", "one"):
            region = region.parent
        return region

    # -- resources and the plan --

    def shared_variable(self, name: str, type_: str, count: tuple[int, ...], align: int) -> Variable:
        """Memory of the CTA; `finish` decides where."""
        with self.at_head():
            return self.builder.variable(name, "shared", type_, count, align)

    def unique(self, name: str) -> str:
        """`name`, with a number if it is taken."""
        made, n = name, 1
        while made in self.names:
            n += 1
            made = f"{name}{n}"
        self.names.add(made)
        return made

    def set_warps(self, warps: int) -> None:
        """The CTA's size, once the roles are known; before that it is the kernel's `threads`."""
        self.warps = warps
        self.root.threads = replace(self.root.threads, warps=warps)
        self.roles_made = True

    def register_share(self) -> int:
        """Registers that each thread has at the start, where roles have budgets: an equal share of the SM's."""
        return min(REGISTERS // (self.warps * 32) // 8 * 8, 255)

    def name_barriers(self, count: int, what: str) -> int:
        """Ids of `count` consecutive named barriers; the first."""
        if self.named + count > NAMED_BARRIERS:
            raise error("SML0305", what=what, wanted=count, used=self.named, limit=NAMED_BARRIERS)
        first, self.named = self.named, self.named + count
        return first

    def note(self, kind: str, text: str) -> None:
        """A line of the plan: something that a convenience implied, at the user's line."""
        self.plan.note(kind, text, self.region.threads.describe(), user_line())

    def count_wgmma_group(self) -> None:
        self.wgmma_groups += 1
        self.groups_in[id(self.region)] = self.groups_in.get(id(self.region), 0) + 1

    def with_threads(self, **changes: Any) -> Threads:
        return replace(self.region.threads, **changes)


def current() -> Trace:
    """The trace that is running. Errors: SML0300 outside a kernel."""
    trace = _CURRENT.get(None)
    if trace is None:
        raise error("SML0300")
    return trace


def tracing() -> bool:
    return _CURRENT.get(None) is not None


@contextmanager
def running(trace: Trace) -> Iterator[Trace]:
    token = _CURRENT.set(trace)
    try:
        yield trace
    finally:
        _CURRENT.reset(token)


def user_frame() -> FrameType | None:
    """The innermost frame of the kernel's own source (which may be a kernel of `ops`)."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename.startswith((*_MACHINERY, _CONTEXTLIB, "<frozen")):
        frame = frame.f_back
    return frame


def user_line() -> Loc | None:
    frame = user_frame()
    return Loc(frame.f_code.co_filename, frame.f_lineno) if frame is not None else None
