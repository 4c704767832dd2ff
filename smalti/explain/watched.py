"""Runs tests of upstream in child processes, on request only, and records which raises they reach.

What is kept of a test is its name. The child is `triggers/watch.py`, under the Python that has the package.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from smalti.explain.prove import MEMORY, shipped, table, today
from smalti.explain.store import Store, locked, update_executed

MOST_VARIANTS = 16  # of a parameterised test; only tests that expect an exception are run at all
MOST_DEATHS = 20  # of children of one file
SECONDS = 60  # a test


def plan(file: Path | None = None) -> dict[str, Any]:
    """What is known of a package's tests: files, settings, names of tests that reach a raise. Errors: SML1212."""
    return table(file or shipped("jax_tests.toml"), "file", ("path", "setting"))


def watch(
    index: Path,
    tests: Path,
    python: str = sys.executable,
    *,
    every: bool = False,
    work: dict[str, Any] | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> list[dict[str, Any]]:
    """Run the known tests under the folder `tests` (or `every` one that expects an exception); record what they reach.

    Gives one entry a site: name of the test, site, level, and whether the package itself catches what it raises.
    Errors: SML1204, SML1207, SML1208, SML1212.
    """
    known = work or plan()
    events: list[dict[str, Any]] = []
    for one in known["file"]:
        if (tests / one["path"]).is_file() and (every or one.get("tests")):
            raised = _file(known, tests, one, python, every, say)
            say(f"{one['path']} ({one['setting']}): {len(raised)} raises")
            events += [{**event, "file": f"{tests.name}/{one['path']}"} for event in raised]
    store = Store(index)
    proofs, results = _proofs(store, events)
    store.close()
    with locked(index):
        update_executed(index, proofs)
    return results


def _proofs(store: Store, events: list[dict[str, Any]]) -> tuple[dict[str, list[dict[str, Any]]], list[Any]]:
    """Each event on its site; of several events of one site the first that a test sees."""
    best: dict[str, dict[str, Any]] = {}
    for event in sorted(events, key=lambda e: not e["escaped"]):
        for record in store.at(event["path"], line=event["line"]):
            same = record["function"] == event["function"].replace(".<locals>", "")
            kind = record["type"] in ("", event["type"]) or record["status"] == "re-raised"
            if same and kind and record["path"] == event["path"]:
                best.setdefault(record["id"], event)
    proofs, results = {}, []
    for site, event in best.items():
        name = f"{event['file']}: {event['test'].partition('.')[2].partition(' ')[0]}"
        told = {
            "trigger": name, "when": today(), "source": "", "mended": "", "level": event["level"],
            "by": "upstream test", "caught": not event["escaped"],
        }  # fmt: skip
        proofs[site] = [told]
        results.append({"name": name, "site": site, "level": event["level"], "caught": not event["escaped"]})
    return proofs, results


def _file(
    known: dict[str, Any], tests: Path, one: dict[str, Any], python: str, every: bool, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Raises that the tests of one file reach. A child that dies costs the test that it was at."""
    prelude = known.get("prelude", "")
    work = {
        "memory": MEMORY, "file": str((tests / one["path"]).resolve()), "checkout": str(tests.resolve().parent),
        "package": known["package"], "prefixes": known["prefixes"], "levels": known["levels"],
        "prelude": str(shipped(prelude)) if prelude else "", "setting": one["setting"], "most": MOST_VARIANTS,
        "seconds": SECONDS, "tests": [] if every else one["tests"], "done": [],
    }  # fmt: skip
    raised: dict[tuple[str, int, str], dict[str, Any]] = {}
    for _ in range(MOST_DEATHS):
        at, code, last = _child(work, python, raised)
        if code == 0:
            break
        say(f"{one['path']}: the child ended with {code}{f' at {at}' if at else ''}: {last}")
        if not at:
            break
    return list(raised.values())


def _child(work: dict[str, Any], python: str, raised: dict[Any, Any]) -> tuple[str, int, str]:
    """One child; fills `raised` and work["done"]. Gives the test it was at, its exit code, its last words."""
    at = ""
    with tempfile.TemporaryDirectory() as folder:
        file, said = Path(folder, "work.json"), Path(folder, "stderr")
        file.write_text(json.dumps(work), encoding="utf-8")
        kept = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG", "TMPDIR")}
        with said.open("wb") as errors:
            child = subprocess.Popen(
                [python, "-B", str(shipped("watch.py")), str(file)], cwd=folder, env={**kept, "JAX_PLATFORMS": "cpu"},
                stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, errors="replace",
            )  # fmt: skip
            assert child.stdout is not None
            clock = _clock(child)
            for line in child.stdout:
                if line.startswith("@@["):
                    clock.cancel()
                    kind, value = json.loads(line[2:])
                    if kind == "test":
                        at = value
                        work["done"].append(value)
                    elif kind == "ended":
                        at = ""
                    elif kind == "raise":
                        raised[value["path"], value["line"], value["type"]] = value
                    clock = _clock(child)
            clock.cancel()
            child.stdout.close()
            code = child.wait()
        return at, code, said.read_bytes()[-300:].decode("utf-8", errors="replace").strip()


def _clock(child: subprocess.Popen[str]) -> threading.Timer:
    """Ends a child that says nothing for too long: a test stuck in compiled code does not see its own alarm."""
    timer = threading.Timer(3 * SECONDS, child.send_signal, [signal.SIGKILL])
    timer.daemon = True
    timer.start()
    return timer
