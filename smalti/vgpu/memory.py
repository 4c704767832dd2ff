"""Memory of the virtual GPU: segments, address spaces, and the one way through which every access goes.

An access is made by an agent (a gang of warps, or an asynchronous operation) and is checked here for bounds,
alignment and definedness; races are checked by `checks`, which is told of every access. Knows no instruction.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt

from smalti.errors import Loc, error

if TYPE_CHECKING:
    from smalti.vgpu.machine import CTA

Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
Offsets = npt.NDArray[np.int64]

# Generic address windows (private values; programs only see differences).
GLOBAL_BASE = 0x7F00_0000_0000
SHARED_WINDOW = 0x7E00_0000_0000
LOCAL_WINDOW = 0x7D00_0000_0000
PARAM_WINDOW = 0x7C00_0000_0000
CONST_WINDOW = 0x7B00_0000_0000
_WINDOW = 1 << 40

UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
_ALL_DEFINED = {1: 1, 2: 0x0101, 4: 0x01010101, 8: 0x0101010101010101}


class Agent(Protocol):
    """Who makes an access. `proxy` is "generic" or "async"; `lane_warps` tells which warp each lane is of."""

    proxy: str

    @property
    def loc(self) -> Loc | None: ...

    def who(self) -> str: ...


class Segment:
    """A contiguous piece of memory with its own bounds: a buffer, the shared memory of a CTA, parameters.

    `defined` has one flag a byte (None: all defined). Storage is padded to 16 bytes; `size` is the true bound.
    """

    __slots__ = (
        "_views",
        "address",
        "data",
        "defined",
        "kind",
        "name",
        "owner",
        "shadow",
        "size",
        "writable",
    )

    def __init__(
        self,
        kind: str,
        name: str,
        data: Bytes,
        size: int,
        *,
        address: int = 0,
        defined: Bools | None = None,
        writable: bool = True,
        owner: Any = None,
    ) -> None:
        self.kind, self.name, self.data, self.size = kind, name, data, size
        self.address, self.defined, self.writable, self.owner = address, defined, writable, owner
        self.shadow: Any = None  # belongs to checks
        self._views: dict[int, npt.NDArray[Any]] = {1: data}

    def view(self, width: int) -> npt.NDArray[Any]:
        """The storage as unsigned integers of `width` bytes (16: opaque items, for whole-unit gathers)."""
        v = self._views.get(width)
        if v is None:
            v = self._views[width] = self.data.view(UNSIGNED.get(width, f"V{width}"))
        return v

    # Raw access: bounds are the caller's business (Memory checks them). No hooks, no definedness.
    def gather(self, offsets: Offsets, width: int) -> npt.NDArray[Any]:
        return self.view(width)[offsets // width]  # type: ignore[no-any-return]

    def undefined_in(self, offsets: Offsets, width: int) -> Bools | None:
        """Which of the accesses touch an undefined byte; None if none does."""
        if self.defined is None:
            return None
        if width in _ALL_DEFINED:
            bad = self.defined.view(UNSIGNED[width])[offsets // width] != _ALL_DEFINED[width]
        else:
            bad = ~self.defined.reshape(-1, width)[offsets // width].all(axis=1)
        return bad if bad.any() else None

    def range_undefined(self, start: int, stop: int) -> bool:
        return self.defined is not None and not self.defined[start:stop].all()


def make_segment(
    kind: str,
    name: str,
    size: int,
    *,
    data: Bytes | None = None,
    address: int = 0,
    defined: bool = True,
    writable: bool = True,
    owner: Any = None,
) -> Segment:
    """A segment of `size` bytes, copied from `data` or filled with a conspicuous pattern if undefined."""
    padded = -(-max(size, 1) // 16) * 16
    storage = np.empty(padded, np.uint8)
    storage[:] = 0 if defined else 0xA5
    if data is not None:
        storage[:size] = data
    flags = None if defined else np.zeros(padded, np.bool_)
    return Segment(kind, name, storage, size, address=address, defined=flags, writable=writable, owner=owner)


class Memory:
    """The global memory of a device, and the translation of addresses of every space."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._segments: list[Segment] = []
        self._next = GLOBAL_BASE
        self.checks: Any = NoChecks()
        self.version = 0  # counts every change of memory or barriers: how a spin loop is told from progress

    # -- allocation -------------------------------------------------------------------------------------

    def allocate(
        self, name: str, size: int, *, data: Bytes | None = None, defined: bool = True, align: int = 256,
        misalign: int = 0, writable: bool = True,
    ) -> Segment:  # fmt: skip
        """A global buffer at an address that is a multiple of `align`, plus `misalign`; red zones around it."""
        start = -(-self._next // align) * align + misalign
        segment = make_segment("global", name, size, data=data, defined=defined, address=start, writable=writable)
        self._starts.append(start)
        self._segments.append(segment)
        self._next = start + size + 65536
        return segment

    def segments(self) -> Iterator[Segment]:
        return iter(self._segments)

    def find(self, address: int) -> Segment | None:
        """The global buffer whose start is the last at or below `address` (bounds not checked)."""
        i = bisect.bisect_right(self._starts, address) - 1
        return self._segments[i] if i >= 0 else None

    # -- translation ------------------------------------------------------------------------------------

    def resolve(
        self, agent: Agent, cta: CTA, space: str, addresses: npt.NDArray[Any], width: int
    ) -> list[tuple[Segment, Offsets, npt.NDArray[np.intp] | None]]:
        """Segments and byte offsets of the given addresses, `width` bytes each, checked for bounds and alignment.

        The third item says which of the addresses it is about; None means all (the usual case).
        Errors: SML0803 out of bounds, SML0804 misaligned, SML0805 no such memory, SML0806 peer's address in
        shared::cta.
        """
        a = addresses.astype(np.int64)
        if not len(a):
            return []
        if width > 1:
            odd = a & (width - 1)
            if np.count_nonzero(odd):
                bad = int(a[np.flatnonzero(odd)[0]])
                raise error(
                    "SML0804", at=agent.loc, address=hex(bad), space=space, width=width, who=agent.who(),
                    nearest=hex(bad & -width),
                )  # fmt: skip
        if space in ("shared", "shared::cta", "shared::cluster"):
            return self._shared(agent, cta, space, a, width)
        if space == "global":
            return self._global(agent, a, width)
        if space in ("param", "param::entry", "param::func"):
            return self._one(agent, cta.machine.params, a, width)
        if space == "local":
            return self._one(agent, cta.local, a, width)
        if space == "const":
            return self._one(agent, cta.machine.constants, a, width)
        return self._generic(agent, cta, a, width)

    def _one(
        self, agent: Agent, segment: Segment, offsets: Offsets, width: int
    ) -> list[tuple[Segment, Offsets, npt.NDArray[np.intp] | None]]:
        low, high = int(offsets.min()), int(offsets.max())
        if low < 0 or high + width > segment.size:
            bad = low if low < 0 else high
            raise error(
                "SML0803", at=agent.loc, what=_describe(agent, segment, bad), offset=bad, width=width,
                size=segment.size, who=agent.who(),
            )  # fmt: skip
        return [(segment, offsets, None)]

    def _shared(
        self, agent: Agent, cta: CTA, space: str, a: Offsets, width: int
    ) -> list[tuple[Segment, Offsets, npt.NDArray[np.intp] | None]]:
        cluster = cta.cluster
        if len(cluster.ctas) == 1:
            return self._one(agent, cta.shared, a, width)
        ranks = a >> 24
        first = int(ranks[0])
        if (ranks == first).all():
            return self._one(agent, self._shared_of(agent, cta, space, first, int(a[0])), a & 0xFFFFFF, width)
        out = []
        for rank in np.unique(ranks):
            which = np.flatnonzero(ranks == rank)
            segment = self._shared_of(agent, cta, space, int(rank), int(a[which[0]]))
            self._one(agent, segment, a[which] & 0xFFFFFF, width)
            out.append((segment, a[which] & 0xFFFFFF, which))
        return out

    def _shared_of(self, agent: Agent, cta: CTA, space: str, rank: int, address: int) -> Segment:
        if rank >= len(cta.cluster.ctas) or rank < 0:
            raise error("SML0805", at=agent.loc, address=hex(address), space=space, who=agent.who())
        if space != "shared::cluster" and rank != cta.rank:
            raise error("SML0806", at=agent.loc, address=hex(address), rank=rank, own=cta.rank, who=agent.who())
        return cta.cluster.ctas[rank].shared

    def _global(
        self, agent: Agent, a: Offsets, width: int
    ) -> list[tuple[Segment, Offsets, npt.NDArray[np.intp] | None]]:
        low, high = int(a.min()), int(a.max())
        segment = self.find(low)
        if segment is not None and high + width <= segment.address + segment.size:
            return [(segment, a - segment.address, None)]
        # Several buffers, or an address outside of all: find out which.
        index = np.searchsorted(np.array(self._starts, np.int64), a, side="right") - 1
        out: list[tuple[Segment, Offsets, npt.NDArray[np.intp] | None]] = []
        for i in np.unique(index):
            which = np.flatnonzero(index == i)
            if i < 0:
                raise error("SML0805", at=agent.loc, address=hex(int(a[which[0]])), space="global", who=agent.who())
            segment = self._segments[int(i)]
            self._one(agent, segment, a[which] - segment.address, width)
            out.append((segment, a[which] - segment.address, which))
        return out

    def _generic(
        self, agent: Agent, cta: CTA, a: Offsets, width: int
    ) -> list[tuple[Segment, Offsets, npt.NDArray[np.intp] | None]]:
        windows = a >> 40
        first = int(windows[0])
        if (windows == first).all():
            space = _WINDOWS.get(first << 40)
            if space is None:
                raise error("SML0805", at=agent.loc, address=hex(int(a[0])), space="generic", who=agent.who())
            local = a if space == "global" else a - (first << 40)
            return self.resolve(agent, cta, "shared::cluster" if space == "shared" else space, local, width)
        out = []
        for w in np.unique(windows):
            which = np.flatnonzero(windows == w)
            for segment, offsets, inner in self._generic(agent, cta, a[which], width):
                out.append((segment, offsets, which if inner is None else which[inner]))
        return out

    # -- access -----------------------------------------------------------------------------------------

    def load(
        self, agent: Agent, cta: CTA, space: str, addresses: npt.NDArray[Any], width: int,
        lanes: npt.NDArray[np.intp] | None = None,
    ) -> tuple[npt.NDArray[Any], Bools | None]:  # fmt: skip
        """Values (unsigned, `width` bytes each) at the addresses, and which of them are undefined (None: none).

        `lanes` are the thread numbers in the CTA that make the accesses (None for an asynchronous operation).
        """
        parts = self.resolve(agent, cta, space, addresses, width)
        if len(parts) == 1:
            segment, offsets, _ = parts[0]
            self.checks.read(agent, segment, offsets, width, lanes)
            return segment.gather(offsets, width), segment.undefined_in(offsets, width)
        out = np.zeros(len(addresses), UNSIGNED[width])
        undefined: Bools | None = None
        for segment, offsets, which in parts:
            self.checks.read(
                agent,
                segment,
                offsets,
                width,
                lanes[which] if lanes is not None and which is not None else lanes,
            )
            out[which] = segment.gather(offsets, width)
            bad = segment.undefined_in(offsets, width)
            if bad is not None:
                undefined = np.zeros(len(addresses), np.bool_) if undefined is None else undefined
                undefined[which] = bad
        return out, undefined

    def store(
        self, agent: Agent, cta: CTA, space: str, addresses: npt.NDArray[Any], width: int,
        values: npt.NDArray[Any], lanes: npt.NDArray[np.intp] | None = None, undefined: Bools | None = None,
    ) -> None:  # fmt: skip
        """Store unsigned values. An undefined value may go to shared or local memory, not to global memory.

        Errors: as resolve; SML0807 read-only memory; SML0808 an undefined value stored where others see it.
        """
        for segment, offsets, which in self.resolve(agent, cta, space, addresses, width):
            lane = lanes[which] if lanes is not None and which is not None else lanes
            value = values if which is None else values[which]
            bad = undefined if undefined is None or which is None else undefined[which]
            self.store_segment(agent, segment, offsets, width, value, lane, bad)

    def store_segment(
        self, agent: Agent, segment: Segment, offsets: Offsets, width: int, values: npt.NDArray[Any],
        lanes: npt.NDArray[np.intp] | None = None, undefined: Bools | None = None,
    ) -> None:  # fmt: skip
        """As `store`, to resolved offsets of one segment."""
        if not segment.writable:
            raise error("SML0807", at=agent.loc, what=segment.name, who=agent.who())
        if undefined is not None and not undefined.any():
            undefined = None
        if undefined is not None and segment.kind == "global":
            at = int(offsets[np.flatnonzero(undefined)[0]])
            raise error("SML0808", at=agent.loc, what=_describe(agent, segment, at), who=agent.who())
        self.checks.write(agent, segment, offsets, width, lanes)
        index = offsets // width
        segment.view(width)[index] = values
        self.version += 1
        if segment.defined is not None:
            if width in _ALL_DEFINED:
                flags = segment.defined.view(UNSIGNED[width])
                flags[index] = _ALL_DEFINED[width]
                if undefined is not None:
                    flags[index[undefined]] = 0
            else:
                flags = segment.defined.reshape(-1, width)
                flags[index] = True
                if undefined is not None:
                    flags[index[undefined]] = False


def _describe(agent: Agent, segment: Segment, offset: int) -> str:
    namer = getattr(segment.owner, "describe", None)
    return namer(offset) if namer is not None else f"{segment.kind} memory {segment.name}"


_WINDOWS = {
    SHARED_WINDOW: "shared",
    LOCAL_WINDOW: "local",
    PARAM_WINDOW: "param",
    CONST_WINDOW: "const",
    GLOBAL_BASE: "global",
}


class NoChecks:
    """Race checks switched off."""

    def read(self, agent: Agent, segment: Segment, offsets: Offsets, width: int, lanes: Any) -> None: ...

    def write(self, agent: Agent, segment: Segment, offsets: Offsets, width: int, lanes: Any) -> None: ...
