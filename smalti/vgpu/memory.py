"""Memory of the virtual GPU: segments, address spaces, and the one way through which every access goes.

An access is made by an agent (a gang of warps, or an asynchronous operation) and is checked here for bounds,
alignment and definedness; races are checked by `checks`, which is told of every access. Knows no instruction.
"""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from smalti.errors import Loc, error

if TYPE_CHECKING:
    from smalti.vgpu.machine import CTA

Bytes = npt.NDArray[np.uint8]
Bools = npt.NDArray[np.bool_]
Offsets = npt.NDArray[np.int64]
Parts: TypeAlias = "list[tuple[Segment, Offsets, npt.NDArray[np.intp] | None]]"

# Generic address windows (private values; programs only see differences).
GLOBAL_BASE = 0x7F00_0000_0000
SHARED_WINDOW = 0x7E00_0000_0000
LOCAL_WINDOW = 0x7D00_0000_0000
PARAM_WINDOW = 0x7C00_0000_0000
CONST_WINDOW = 0x7B00_0000_0000
_WINDOW = 1 << 40

RED_ZONE = 1 << 16  # bytes between two buffers
UNIT = 32  # bytes: the widest access (v8.b32, v4.b64)
UNSIGNED: dict[int, Any] = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}
# 0-d arrays: NumPy takes them faster than Python or NumPy scalars.
_ALL_DEFINED = {w: np.asarray(0x0101010101010101 & (1 << 8 * w) - 1, UNSIGNED[w]) for w in UNSIGNED}
_SHIFT = {1 << k: np.asarray(k, np.int64) for k in range(6)}
_ODD = {1 << k: np.asarray((1 << k) - 1, np.int64) for k in range(6)}


class Agent(Protocol):
    """Who makes an access. `proxy` is "generic" or "async"; `lane_warps` tells which warp each lane is of."""

    proxy: str

    @property
    def loc(self) -> Loc | None: ...

    def who(self) -> str: ...


class Units:
    """A segment seen as units of one width: where they are, what must hold for their offsets, and their flags.

    Numbers are 0-d arrays. `data` and `flags` are unsigned integers, or opaque items above 8 bytes, which NumPy moves
    faster than rows of words.
    """

    __slots__ = ("data", "flags", "full", "last", "low", "odd", "possible", "shift")

    def __init__(self, segment: Segment, storage: Bytes, flags: Bools | None, width: int) -> None:
        dtype = UNSIGNED.get(width, f"V{width}")
        last = segment.size - segment.low - width
        self.possible = last >= 0  # there is room for one
        self.last = np.asarray(max(last, 0), np.uint64)  # largest offset from the first legal byte
        self.low = np.asarray(segment.low, np.int64) if segment.low else None
        self.odd, self.shift = _ODD[width], _SHIFT[width]
        self.data: npt.NDArray[Any] = storage.view(dtype)
        self.flags: npt.NDArray[Any] | None = None if flags is None else flags.view(dtype)
        self.full = _ALL_DEFINED[width] if width <= 8 else np.ones(width, np.uint8).view(dtype)[0]

    def inside(self, offsets: Offsets) -> bool:
        """Whether all accesses lie between the bounds."""
        if self.low is not None:
            offsets = np.subtract(offsets, self.low)
        return self.possible and not np.count_nonzero(offsets.view(np.uint64) > self.last)


class Segment:
    """A contiguous piece of memory with its own bounds: a buffer, the shared memory of a CTA, parameters.

    Offsets count from `address`; those from `low` to `size` - 1 exist. `data` holds the bytes, `defined` one flag a
    byte (None: all defined); both are padded. Storage starts at a multiple of 32 bytes of the address, so that
    aligned accesses are aligned in storage too: units are found by `index`, never by offset // width.
    """

    __slots__ = (
        "_flags", "_lead", "_opaque", "_storage", "_units", "address", "data", "defined", "kind", "low", "name",
        "owner", "shadow", "size", "writable",
    )  # fmt: skip

    def __init__(
        self, kind: str, name: str, storage: Bytes, size: int, *, address: int = 0, flags: Bools | None = None,
        low: int = 0, writable: bool = True, owner: Any = None,
    ) -> None:  # fmt: skip
        self.kind, self.name, self.size, self.low = kind, name, size, low
        self.address, self.writable, self.owner = address, writable, owner
        self._storage, self._flags, self._lead = storage, flags, address % UNIT
        self.data: Bytes = storage[self._lead :]
        self.defined: Bools | None = None if flags is None else flags[self._lead :]
        self.shadow: Any = None  # belongs to checks
        self._units: dict[int, Units] = {}
        self._opaque: dict[bool, npt.NDArray[Any]] = {}

    def units(self, width: int) -> Units:
        """The segment as units of `width` bytes, a power of two up to 32."""
        u = self._units.get(width)
        if u is None:
            u = self._units[width] = Units(self, self._storage, self._flags, width)
        return u

    def view(self, width: int) -> npt.NDArray[Any]:
        """The storage as unsigned integers of `width` bytes; 16 and 32: rows of 64-bit words."""
        data = self.units(width).data
        return data if width <= 8 else data.view(np.uint64).reshape(-1, width // 8)

    def opaque(self, flags: bool = False) -> npt.NDArray[Any]:
        """The bytes from offset 0 on as items of 16 bytes (offset / 16), or their flags: for whole-unit copies."""
        found = self._opaque.get(flags)
        if found is None:
            storage: npt.NDArray[Any] | None = self.defined if flags else self.data
            assert storage is not None
            found = self._opaque[flags] = storage[: len(storage) // 16 * 16].view("V16")
        return found

    def index(self, offsets: Offsets, width: int) -> Offsets:
        """Where in `units(width)` those at these byte offsets are."""
        if self._lead:
            offsets = offsets + self._lead
        return offsets >> _SHIFT[width] if width > 1 else offsets

    # Raw access: bounds are the caller's business (Memory checks them). No hooks.
    def gather(self, offsets: Offsets, width: int, item: int = 0) -> npt.NDArray[Any]:
        """Units of `width` bytes as unsigned integers; as rows of items if `item` (bytes) is given and smaller."""
        return _items(self.units(width).data[self.index(offsets, width)], width, item)

    def undefined_in(self, offsets: Offsets, width: int, item: int = 0) -> Bools | None:
        """Which of the units (or items) have an undefined byte; None if none has."""
        u = self.units(width)
        if u.flags is None:
            return None
        flags = u.flags[self.index(offsets, width)]
        return None if _all(flags, u) else _bad_items(flags, width, item)

    def scatter(self, offsets: Offsets, width: int, values: npt.NDArray[Any], undefined: Bools | None = None) -> None:
        """Write units (one integer each, or a row of items each) and say which units (or items) are undefined."""
        u, index = self.units(width), self.index(offsets, width)
        if width > 8 or values.ndim > 1:
            values = np.ascontiguousarray(values).view(u.data.dtype)[:, 0]
        u.data[index] = values
        if u.flags is None:
            return
        if undefined is None:
            u.flags[index] = u.full
        else:
            items = np.logical_not(undefined).reshape(len(index), -1)
            u.flags[index] = items.repeat(width // items.shape[1], axis=1).view(u.data.dtype)[:, 0]

    def discard(self, start: int, stop: int) -> None:
        """Forget the values from `start` to `stop` - 1."""
        if self._flags is None:
            self._flags = np.ones(len(self._storage), np.bool_)
            self.defined = self._flags[self._lead :]
            self._units.clear()
            self._opaque.clear()
        self._flags[self._lead + start : self._lead + stop] = False

    def range_undefined(self, start: int, stop: int) -> bool:
        return self.defined is not None and not self.defined[start:stop].all()


def _items(units: npt.NDArray[Any], width: int, item: int) -> npt.NDArray[Any]:
    """Gathered units as unsigned integers, or as rows of items (64-bit words where `item` is not given)."""
    if width <= 8 and item in (0, width):
        return units
    rows: npt.NDArray[Any] = units.view(UNSIGNED[min(item or 8, 8)]).reshape(len(units), -1)
    return rows


def _all(flags: npt.NDArray[Any], u: Units) -> bool:
    """Whether gathered flags are all set."""
    if flags.dtype.itemsize > 8:
        flags = flags.view(np.uint64)
        return not np.count_nonzero(flags != _ALL_DEFINED[8])
    return not np.count_nonzero(flags != u.full)


def _bad_items(flags: npt.NDArray[Any], width: int, item: int) -> Bools:
    """Which items have a flag that is not set: one for each unit, or a row."""
    item = item or width
    bad: Bools = np.logical_not(flags.view(np.bool_).reshape(len(flags), -1, item).all(axis=2))
    return bad[:, 0] if item == width else bad


def _hex(address: int) -> str:
    """An address as PTX sees it: 64 bits without a sign."""
    return hex(address & (1 << 64) - 1)


def make_segment(
    kind: str, name: str, size: int, *, data: Bytes | None = None, address: int = 0, defined: bool = True,
    low: int = 0, writable: bool = True, owner: Any = None,
) -> Segment:  # fmt: skip
    """A segment of `size` bytes, copied from `data` or filled with a conspicuous pattern if undefined."""
    lead = address % UNIT
    padded = -(-(max(size, 1) + lead) // UNIT) * UNIT
    storage = np.zeros(padded, np.uint8) if defined else np.full(padded, 0xA5, np.uint8)
    if data is not None:
        storage[lead : lead + size] = data
    flags = None if defined else np.zeros(padded, np.bool_)
    return Segment(kind, name, storage, size, address=address, flags=flags, low=low, writable=writable, owner=owner)


class Memory:
    """The global memory of a device, and the translation of addresses of every space."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._segments: list[Segment] = []
        self._next = GLOBAL_BASE + RED_ZONE
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
        self._next = start + size + RED_ZONE
        return segment

    def segments(self) -> Iterator[Segment]:
        return iter(self._segments)

    def find(self, address: int) -> Segment | None:
        """The global buffer whose start is the last at or below `address` (bounds not checked)."""
        i = bisect.bisect_right(self._starts, address) - 1
        return self._segments[i] if i >= 0 else None

    def _nearest(self, address: int) -> int:
        """The number of the buffer that holds an address, or in whose red zone it lies; -1 if there is none."""
        i = bisect.bisect_right(self._starts, address) - 1
        if i >= 0 and address < self._segments[i].address + self._segments[i].size + RED_ZONE // 2:
            return i
        near = i + 1 < len(self._starts) and self._starts[i + 1] - address <= RED_ZONE // 2
        return i + 1 if near else -1

    # -- translation ------------------------------------------------------------------------------------

    def resolve(self, agent: Agent, cta: CTA, space: str, addresses: npt.NDArray[Any], width: int) -> Parts:
        """Segments and byte offsets of the given addresses, `width` bytes each, checked for bounds and alignment.

        The third item says which of the addresses it is about; None means all (the usual case).
        Errors: SML0803 out of bounds, SML0804 misaligned, SML0805 no such memory, SML0806 peer's address in
        shared::cta.
        """
        a = addresses if addresses.dtype == np.int64 else addresses.astype(np.int64)
        if not len(a):
            return []
        if width > 1:
            odd = a & _ODD[width]
            if np.count_nonzero(odd):
                bad = int(a[np.flatnonzero(odd)[0]])
                raise error(
                    "SML0804", at=agent.loc, address=_hex(bad), space=space, width=width, who=agent.who(),
                    nearest=_hex(bad & -width),
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

    def _one(self, agent: Agent, segment: Segment, offsets: Offsets, width: int) -> Parts:
        if not segment.units(width).inside(offsets):
            outside = (offsets < segment.low) | (offsets + width > segment.size)
            bad = int(offsets[np.flatnonzero(outside)[0]])
            raise error(
                "SML0803", at=agent.loc, what=_describe(agent, segment, bad), offset=bad, width=width,
                size=segment.size, who=agent.who(),
            )  # fmt: skip
        return [(segment, offsets, None)]

    def _shared(self, agent: Agent, cta: CTA, space: str, a: Offsets, width: int) -> Parts:
        cluster = cta.cluster
        if len(cluster.ctas) == 1:
            return self._one(agent, cta.shared, a, width)
        first = a.item(0) >> 24
        segment = self._shared_of(agent, cta, space, first, a.item(0))
        offsets = a - (first << 24)
        if segment.units(width).inside(offsets):
            return [(segment, offsets, None)]
        ranks = a >> 24
        if (ranks == first).all():
            return self._one(agent, segment, offsets, width)
        out: Parts = []
        for rank in np.unique(ranks):
            which = np.flatnonzero(ranks == rank)
            segment = self._shared_of(agent, cta, space, int(rank), int(a[which[0]]))
            self._one(agent, segment, a[which] & 0xFFFFFF, width)
            out.append((segment, a[which] & 0xFFFFFF, which))
        return out

    def _shared_of(self, agent: Agent, cta: CTA, space: str, rank: int, address: int) -> Segment:
        if rank >= len(cta.cluster.ctas) or rank < 0:
            raise error("SML0805", at=agent.loc, address=_hex(address), space=space, who=agent.who())
        if space != "shared::cluster" and rank != cta.rank:
            raise error("SML0806", at=agent.loc, address=_hex(address), rank=rank, own=cta.rank, who=agent.who())
        return cta.cluster.ctas[rank].shared

    def _global(self, agent: Agent, a: Offsets, width: int) -> Parts:
        segment = self.find(a.item(0))
        if segment is not None:
            offsets = a - segment.address
            if segment.units(width).inside(offsets):
                return [(segment, offsets, None)]
        # Several buffers, or an address outside of all: find out which.
        out: Parts = []
        index = np.array([self._nearest(int(x)) for x in a])
        for i in np.unique(index):
            which = np.flatnonzero(index == i)
            if i < 0:
                raise error("SML0805", at=agent.loc, address=_hex(int(a[which[0]])), space="global", who=agent.who())
            segment = self._segments[int(i)]
            self._one(agent, segment, a[which] - segment.address, width)
            out.append((segment, a[which] - segment.address, which))
        return out

    def _generic(self, agent: Agent, cta: CTA, a: Offsets, width: int) -> Parts:
        windows = a >> 40
        first = int(windows[0])
        if (windows == first).all():
            space = _WINDOWS.get(first << 40)
            if space is None:
                raise error("SML0805", at=agent.loc, address=_hex(int(a[0])), space="generic", who=agent.who())
            local = a if space == "global" else a - (first << 40)
            return self.resolve(agent, cta, "shared::cluster" if space == "shared" else space, local, width)
        out: Parts = []
        for w in np.unique(windows):
            which = np.flatnonzero(windows == w)
            for segment, offsets, inner in self._generic(agent, cta, a[which], width):
                out.append((segment, offsets, which if inner is None else which[inner]))
        return out

    def _direct(
        self, cta: CTA, space: str, a: npt.NDArray[Any], width: int
    ) -> tuple[Segment, Offsets, Units, Offsets] | None:
        """The usual case of `resolve`, fast: all addresses in one buffer or in the own shared memory, and legal.

        Segment, byte offsets, units and their numbers; None if it is another case, or wrong.
        """
        if not a.size or a.dtype != np.int64:
            return None
        if space == "global":
            i = bisect.bisect_right(self._starts, a.item(0)) - 1
            if i < 0:
                return None
            segment = self._segments[i]
            offsets = a - segment.address
            if segment.address % UNIT:
                return None
        elif space.startswith("shared") and a.item(0) >> 24 == cta.rank:
            segment = cta.shared
            offsets = a - (cta.rank << 24) if cta.rank else a
        else:
            return None
        u = segment.units(width)
        if not u.inside(offsets) or (width > 1 and np.count_nonzero(offsets & u.odd)):
            return None
        return segment, offsets, u, offsets >> u.shift

    # -- access -----------------------------------------------------------------------------------------

    def load(
        self, agent: Agent, cta: CTA, space: str, addresses: npt.NDArray[Any], width: int,
        lanes: npt.NDArray[np.intp] | None = None, order: str = "weak", item: int = 0,
    ) -> tuple[npt.NDArray[Any], Bools | None]:  # fmt: skip
        """Values (unsigned, `width` bytes each) at the addresses, and which of them are undefined (None: none).

        With `item` (bytes, smaller than `width`) both are rows of items. `lanes` are the thread numbers in the CTA
        that make the accesses (None for an asynchronous operation). `order` is weak, or a strong access: relaxed
        acquire release acq_rel sc volatile (mmio counts as volatile).
        """
        found = self._direct(cta, space, addresses, width)
        if found is not None:
            segment, offsets, u, index = found
            self.checks.read(agent, segment, offsets, width, lanes, order)
            values = _items(u.data[index], width, item)
            if u.flags is None or _all(flags := u.flags[index], u):
                return values, None
            return values, _bad_items(flags, width, item)
        parts = self.resolve(agent, cta, space, addresses, width)
        out, shape = _results(len(addresses), width, item)
        undefined: Bools | None = None
        for segment, offsets, which in parts:
            lane = lanes[which] if lanes is not None and which is not None else lanes
            self.checks.read(agent, segment, offsets, width, lane, order)
            out[which] = segment.gather(offsets, width, item)
            bad = segment.undefined_in(offsets, width, item)
            if bad is not None:
                undefined = np.zeros(shape, np.bool_) if undefined is None else undefined
                undefined[which] = bad
        return out, undefined

    def undefined_bytes(self, agent: Agent, cta: CTA, space: str, addresses: npt.NDArray[Any], width: int) -> Bools:
        """Which of the bytes [n, width] at the addresses are undefined. No access: no check is told."""
        out = np.zeros((len(addresses), width), np.bool_)
        for segment, offsets, which in self.resolve(agent, cta, space, addresses, width):
            bad = segment.undefined_in(offsets, width, 1)
            if bad is not None:
                out[slice(None) if which is None else which] = bad.reshape(-1, width)
        return out

    def store(
        self, agent: Agent, cta: CTA, space: str, addresses: npt.NDArray[Any], width: int,
        values: npt.NDArray[Any], lanes: npt.NDArray[np.intp] | None = None, undefined: Bools | None = None,
        order: str = "weak",
    ) -> None:  # fmt: skip
        """Store unsigned values (or rows of items that make `width` bytes), with their undefinedness.

        An undefined value may go to shared or local memory, not to global memory.
        Errors: as resolve; SML0807 read-only memory; SML0808 an undefined value stored where others see it.
        """
        found = self._direct(cta, space, addresses, width)
        if found is not None:
            segment, offsets, u, index = found
            if undefined is None and segment.writable:
                self.checks.write(agent, segment, offsets, width, lanes, order, values)
                if width > 8 or values.ndim > 1:
                    values = np.ascontiguousarray(values).view(u.data.dtype)[:, 0]
                u.data[index] = values
                if u.flags is not None:
                    u.flags[index] = u.full
                self.version += 1
            else:
                self.store_segment(agent, segment, offsets, width, values, lanes, undefined, order)
            return
        for segment, offsets, which in self.resolve(agent, cta, space, addresses, width):
            lane = lanes[which] if lanes is not None and which is not None else lanes
            value = values if which is None else values[which]
            bad = undefined if undefined is None or which is None else undefined[which]
            self.store_segment(agent, segment, offsets, width, value, lane, bad, order)

    def store_segment(
        self, agent: Agent, segment: Segment, offsets: Offsets, width: int, values: npt.NDArray[Any],
        lanes: npt.NDArray[np.intp] | None = None, undefined: Bools | None = None, order: str = "weak",
    ) -> None:  # fmt: skip
        """As `store`, to resolved offsets of one segment."""
        if not segment.writable:
            raise error("SML0807", at=agent.loc, what=segment.name, who=agent.who())
        if undefined is not None and not undefined.any():
            undefined = None
        if undefined is not None and segment.kind == "global":
            self._refuse_undefined(agent, segment, offsets, undefined)
        self.checks.write(agent, segment, offsets, width, lanes, order, values)
        segment.scatter(offsets, width, values, undefined)
        if segment.kind != "local":  # nobody waits for another thread's registers
            self.version += 1

    def update(
        self, agent: Agent, cta: CTA, space: str, addresses: npt.NDArray[Any], width: int,
        function: Callable[[npt.NDArray[Any], npt.NDArray[np.intp]], npt.NDArray[Any]],
        lanes: npt.NDArray[np.intp] | None = None, order: str = "relaxed", undefined: Bools | None = None,
        item: int = 0, replaces: bool = False,
    ) -> tuple[npt.NDArray[Any], Bools | None]:  # fmt: skip
        """Atomic read-modify-write, lane after lane. Returns the old values and which of them are undefined.

        `function(old, which)` gives the new values of the accesses numbered `which`; it is called with accesses to
        distinct addresses only. `undefined` says which operands are; the new value is undefined if an operand is, or
        the old value (unless it is merely replaced). `version` counts only changes, so that a lock that is still taken
        is no progress. Errors: as store.
        """
        parts = self.resolve(agent, cta, space, addresses, width)
        result, shape = _results(len(addresses), width, item)
        flags: Bools | None = None
        for segment, offsets, which in parts:
            if not segment.writable:
                raise error("SML0807", at=agent.loc, what=segment.name, who=agent.who())
            numbers = np.arange(len(offsets)) if which is None else which
            lane = lanes[numbers] if lanes is not None else None
            self.checks.read(agent, segment, offsets, width, lane, order)
            self.checks.write(agent, segment, offsets, width, lane, order)
            rest = np.arange(len(offsets))
            while len(rest):
                _, first = np.unique(offsets[rest], return_index=True)
                now = rest[np.sort(first)]
                at, who = offsets[now], numbers[now]
                old = segment.gather(at, width, item)
                bad = segment.undefined_in(at, width, item)
                new = function(old, who)
                if bad is not None:
                    flags = np.zeros(shape, np.bool_) if flags is None else flags
                    flags[who] = bad
                    if replaces:
                        bad = None
                if undefined is not None and undefined[who].any():
                    bad = undefined[who] if bad is None else bad | undefined[who]
                if bad is not None and segment.kind == "global":
                    self._refuse_undefined(agent, segment, at, bad)
                result[who] = old
                if not np.array_equal(new, old):
                    segment.scatter(at, width, new, bad)
                    self.version += 1
                rest = np.setdiff1d(rest, now, assume_unique=True)
        return result, flags

    def _refuse_undefined(self, agent: Agent, segment: Segment, offsets: Offsets, undefined: Bools) -> None:
        at = int(offsets[np.flatnonzero(undefined.reshape(len(offsets), -1).any(axis=1))[0]])
        raise error("SML0808", at=agent.loc, what=_describe(agent, segment, at), who=agent.who())


def _results(n: int, width: int, item: int) -> tuple[npt.NDArray[Any], tuple[int, ...]]:
    """Room for `n` units as `gather` gives them, and the shape of their flags."""
    item = item or width
    word = min(item, 8)
    values = np.zeros((n, width // word) if word < width else n, UNSIGNED[word])
    return values, ((n, width // item) if item < width else (n,))


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
    """Race checks switched off; also the list of what checks are told.

    Offsets are bytes; `lanes` thread numbers in the CTA, None for an asynchronous operation; `order` as in Memory.load,
    or "allocated" for the address that tcgen05.alloc writes: compilers let TMA overwrite it without a proxy fence.
    Units are 16-byte pieces (byte offset / 16) that an asynchronous operation touches.
    """

    def read(self, agent: Any, segment: Segment, offsets: Offsets, width: int, lanes: Any, order: str) -> None: ...

    def write(
        self, agent: Any, segment: Segment, offsets: Offsets, width: int, lanes: Any, order: str, values: Any = None
    ) -> None:
        """`values` are those to be stored (not given for atomics)."""

    def read_range(self, agent: Any, segment: Segment, start: int, stop: int) -> None: ...

    def write_range(self, agent: Any, segment: Segment, start: int, stop: int) -> None: ...

    def read_units(self, agent: Any, segment: Segment, units: Offsets) -> None: ...

    def read_spans(self, agent: Any, segment: Segment, spans: Any) -> bool:
        """Runs of units read by several operations at once; false if they must be told of one by one."""
        return True

    def write_units(self, agent: Any, segment: Segment, units: Offsets) -> None: ...

    def tensor(self, agent: Any, clock: Any, memory: Any, blocks: Any, writes: bool) -> None:
        """Rectangles of tensor memory touched by a tcgen05 operation (a part of it, whose issuer knew `clock`)."""

    def tensor_freed(self, agent: Any, memory: Any, start: int, columns: int) -> None:
        """Columns of tensor memory are deallocated by a gang."""
