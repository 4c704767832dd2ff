"""Waits for TMA stores: a tile may be written again once the stores from it have read it.

Stores of a thread complete reading in the order they were issued, so a wait may leave as many in flight as were issued
after the tile's last one. That number is known when the whole kernel has been traced; the waits are put in then.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from smalti.lang.trace import Later, Region, Trace, current, user_line

if TYPE_CHECKING:
    from smalti.errors import Loc

__all__ = ["stored", "written"]


@dataclass(frozen=True, slots=True, eq=False)
class Event:
    """A tile's memory is written by threads (`place`: where a wait can go), or stored from by TMA."""

    storage: Any
    region: Region
    role: str
    single: bool
    loc: Loc | None
    place: Later | None = None


def written(storage: Any) -> None:
    """Threads are about to write the tile here."""
    trace = current()
    _events(trace).append(_event(storage, trace, trace.later()))


def stored(storage: Any) -> None:
    """A TMA store from the tile is issued here."""
    trace = current()
    _events(trace).append(_event(storage, trace, None))


def _event(storage: Any, trace: Trace, place: Later | None) -> Event:
    threads = trace.region.threads
    return Event(storage, trace.region, threads.role, threads.single, user_line(), place)


def _events(trace: Trace) -> list[Event]:
    if "bulk" not in trace.cached:
        trace.cached["bulk"] = []
        trace.finishers.append(lambda: _place_waits(trace))
    events: list[Event] = trace.cached["bulk"]
    return events


def _place_waits(trace: Trace) -> None:
    events = _events(trace)
    for n, event in enumerate(events):
        if event.place is None:
            continue
        left = in_flight(events, n)
        if left is None:
            continue
        with trace.at(event.place):
            wait = trace.emit("cp.async.bulk.wait_group.read", left)
        wait.loc = event.loc
        trace.located.add(id(wait))
        rest = f", {left} later left in flight" if left else ""
        text = f"until TMA stores have read {event.storage.name}{rest}"
        trace.plan.note("wait", text, event.region.threads.describe(), event.loc)


def in_flight(events: list[Event], n: int) -> int | None:
    """How many stores may be in flight when the tile of event `n` is written; None if none can be from that tile."""
    event = events[n]
    own = [
        (i, e)
        for i, e in enumerate(events)
        if e.place is None and e.storage is event.storage and (i < n or event.region.shares_loop(e.region))
    ]
    if not own:
        return None
    if any(e.region is not event.region or e.single or event.single or e.role != event.role for _, e in own):
        return 0  # not one straight line of code that one thread issues from
    here = [(i, e) for i, e in enumerate(events) if e.region is event.region and e.place is None and not e.single]
    before = [i for i, _ in own if i < n]
    if before:
        return sum(max(before) < i < n for i, _ in here)
    last = max(i for i, _ in own)  # of the loop's previous turn
    return sum(i > last or i < n for i, _ in here)
