"""Reads source files into summaries, several at a time; a file that kills or hangs its reader costs that file only.

The parser is native code: text nested deeply enough overflows its stack. Such text is read in a process of its own.
"""

from __future__ import annotations

import faulthandler
import gc
import json
import multiprocessing
import os
import re
import sys
import threading
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.connection import Connection

from smalti.explain.index import module as reading

Job = tuple[str, str, bool]  # source, module name, whether it is a package's own file
Made = tuple[str, str | None, str]  # module name, summary as JSON or None, why not

COUNT = min(os.cpu_count() or 1, 8)
SMALL_ENOUGH_TO_STAY = 40  # files that are not worth worker processes
PATIENCE = 60  # seconds for one file read alone
DEEPEST = 100  # brackets in brackets; Python itself takes 200
LONGEST = 200_000  # characters in one bracket or line
_BRACKET = re.compile(r"[()\[\]{}]")
_STEPS = re.compile(r"\\\n|\belif\b|[-+~] *(?=[-+~])|\bnot +(?=not\b)")  # each can be a level of the tree
MOST_STEPS = 2000


def summary(job: Job) -> Made:
    """One file read in this process. Never raises for what a file holds."""
    source, name, package = job
    gc.disable()  # syntax trees are many small objects without cycles
    try:
        sys.setrecursionlimit(max(sys.getrecursionlimit(), 5000))
        made = reading.summarise(source, name)
        made["package"] = package
        return name, json.dumps(made, separators=(",", ":")), ""
    except Exception as failed:
        return name, None, f"{type(failed).__name__}: {str(failed)[:200]}"
    finally:
        gc.enable()


def summaries(jobs: list[Job]) -> Iterator[Made]:
    """All of them, in any order."""
    tame = [job for job in jobs if not wild(job[0])]
    left = {job[1]: job for job in jobs}
    for made in _together(sorted(tame, key=lambda job: -len(job[0]))):  # long ones first: the workers end together
        del left[made[0]]
        yield made
    for job in left.values():  # wild ones, and those that were waiting when a worker died
        yield alone(job)


def follow() -> None:
    """In a worker: end with the parent. A killed run must leave no workers behind, nor its lock in their hands."""
    parent = multiprocessing.parent_process()

    def wait() -> None:
        if parent is not None:
            parent.join()
            os._exit(1)

    threading.Thread(target=wait, daemon=True).start()


def _together(jobs: list[Job]) -> Iterable[Made]:
    if len(jobs) <= SMALL_ENOUGH_TO_STAY or COUNT < 2:
        yield from map(summary, jobs)
        return
    try:
        with ProcessPoolExecutor(COUNT, initializer=follow) as pool:
            yield from pool.map(summary, jobs, chunksize=2)
    except BrokenProcessPool:
        return


def wild(source: str) -> bool:
    """Whether a tree of this text may be too deep for the parser's stack."""
    depth = opened = 0
    for match in _BRACKET.finditer(source):
        if match[0] in "([{":
            depth += 1
            if depth == 1:
                opened = match.start()
            elif depth > DEEPEST:
                return True
        else:
            depth = max(0, depth - 1)
            if depth == 0 and match.start() - opened > LONGEST:
                return True
    long_line = len(source) > LONGEST and any(len(line) > LONGEST for line in source.split("\n"))
    return long_line or sum(1 for _ in _STEPS.finditer(source)) > MOST_STEPS


def alone(job: Job) -> Made:
    """One file read in a process of its own, for a limited time."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    child = multiprocessing.Process(target=_answer, args=(theirs, job), daemon=True)
    child.start()
    theirs.close()
    try:
        if ours.poll(PATIENCE):
            made: Made = ours.recv()
            return made
        why = f"reading it took more than {PATIENCE} s"
    except EOFError:  # it died
        why = "nested too deeply for the parser"
    finally:
        ours.close()
        child.kill()
        child.join()
    return job[1], None, why


def _answer(connection: Connection, job: Job) -> None:
    faulthandler.disable()  # its death is expected, and told in a line
    connection.send(summary(job))
