"""How well and how fast errors are found, measured on indexes of two releases of one package.

    python benchmarks/errors_finding.py NEW.sqlite OLD.sqlite [--sample 800] [--also NUMPY.sqlite TRITON.sqlite]

A raise is asked for as Python would print it, every hole of its text filled with 7: with its frame, and as type and
message alone. Places that raise one text with one type cannot be told apart by it; they are one answer, which is right
if the place asked for is among those it names. `--also` are further packages for the time of an answer.
"""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from smalti.explain.record import Answer, Match
from smalti.explain.search import find
from smalti.explain.store import Store
from smalti.explain.template import skeleton


def traceback_of(record: dict[str, Any], store: Store | None) -> str:
    """A traceback as Python would print it for this raise of the store, every hole filled with 7; None: no frames."""
    wording = record["wordings"][0] if record["wordings"] else "7"
    message = "".join(skeleton(part).replace("{}", "7") + "\n" for part in wording.split("\n")).rstrip("\n")
    name = record["type"] if record["type"].rsplit(".", 1)[-1][:1].isupper() else "ValueError"  # made by a helper
    shown = repr(message) if name.endswith("KeyError") else message
    last = f"{name}: {shown}" if message else name
    if store is None:
        return last
    source = store.source(record["path"])
    text = source[record["line"] - 1].strip()
    place = f'  File "/v/lib/python3.13/site-packages/{record["path"]}", line {record["line"]}, in '
    function = record["function"].rsplit(".", 1)[-1]
    head = 'Traceback (most recent call last):\n  File "k.py", line 3, in <module>\n    run()\n'
    return f"{head}{place}{function}\n    {text}\n{last}\n"


def share(name: str, found: int, of: int, bar: str) -> None:
    print(f"{name:<66} {found:>6} of {of:<6} {100 * found / max(1, of):6.1f} %   bar {bar}")


def named(match: Match) -> set[str]:
    """Ids of the places that an answer names."""
    return {match.page.id, *(place.id for place in match.places)}


def first(answer: Answer, record: dict[str, Any]) -> bool:
    """Whether the right page is the first; where several fit equally well, the right one must still be the first."""
    return bool(answer.matches) and answer.matches[0].page.id == record["id"]


def finding(new: Store, old: Store, sample: list[dict[str, Any]], show: bool) -> None:
    right = sum(first(find(traceback_of(r, new), [new]), r) for r in sample)
    share("same-version traceback: right entry first", right, len(sample), "100 %")
    there = {r["id"] for r in old.all()}
    both = [r for r in sample if r["id"] in there]
    answers = [(r, find(traceback_of(r, new), [old])) for r in both]
    share("traceback of the other release: right entry first", sum(first(a, r) for r, a in answers), len(both), "97 %")
    named_there = sum(any(r["id"] in named(m) for m in a.matches[:1]) for r, a in answers)
    share("  first or among the places that the first answer names", named_there, len(both), "")
    certain = [(r, a) for r, a in answers if a.matches and a.matches[0].certainty == "sure"]
    wrong = sum(r["id"] not in named(a.matches[0]) for r, a in certain)
    share("  a certain answer, and wrong", wrong, len(certain), "")

    texts = [r for r in sample if r["message"]]
    third = alone = wrong = worded = 0
    for record in texts:
        answer = find(traceback_of(record, None), [new])
        found = any(record["id"] in named(match) for match in answer.matches[:3])
        third += found
        worded += any(c.isalpha() for c in skeleton(record["message"]))
        alone += record["id"] in [m.page.id for m in answer.matches[:3]]
        if show and not found:
            print("  not found:", record["id"], traceback_of(record, None)[:160].replace("\n", " | "))
        single = [m for m in answer.matches if m.certainty == "sure"]
        wrong += len(single) == 1 and record["id"] not in named(single[0])
    share("message and type only: among the places of the first 3 answers", third, len(texts), "95 %")
    share("  raises whose text has a word of its own at all", worded, len(texts), "")
    share("  itself one of the 3 (of equal places only the first counts)", alone, len(texts), "")
    share("  one certain answer, and wrong", wrong, len(texts), "0")


def speed(stores: list[Store], sample: list[dict[str, Any]]) -> None:
    """The time of an answer: of the search alone, and of the whole command in a process of its own."""
    named_ = ", ".join(f"{s.package} {s.version} ({s.count()} sites)" for s in stores)
    questions = [traceback_of(r, store) for r in sample[:40] for store in (stores[0], None)]
    times = []
    for question in questions:
        start = time.perf_counter()
        find(question, stores)
        times.append(time.perf_counter() - start)
    line("search alone", sorted(times))
    indexes = [f"--index={store.path}" for store in stores]
    whole, user = [], []
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "question.txt"
        for question in questions[:20]:
            file.write_text(question)
            before, start = os.times(), time.perf_counter()
            command = [sys.executable, "-m", "smalti", "explain", str(file), *indexes]
            subprocess.run(command, check=False, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            whole.append(time.perf_counter() - start)
            after = os.times()
            user.append(after.children_user + after.children_system - before.children_user - before.children_system)
    line("`smalti explain`, start of the interpreter included", sorted(whole))
    line("  processor time of it", sorted(user))
    print(f"  with {named_}")


def line(name: str, times: list[float]) -> None:
    print(f"{name:<66} median {times[len(times) // 2]:.3f} s, slowest {times[-1]:.3f} s   bar 0.3 s")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("new", type=Path)
    arguments.add_argument("old", type=Path)
    arguments.add_argument("--sample", type=int, default=800)
    arguments.add_argument("--also", type=Path, nargs="*", default=[], help="further indexes for the time of an answer")
    arguments.add_argument("--show", action="store_true", help="print what was not found")
    args = arguments.parse_args()
    new, old = Store(args.new), Store(args.old)
    made = [r for r in new.all() if r["kind"] == "raise" and r["status"] != "re-raised"]
    sample = random.Random(0).sample(made, min(args.sample, len(made)))
    print(f"{new.package} {new.version} against {old.version}: {len(sample)} of {len(made)} raises drawn")
    finding(new, old, sample, args.show)
    speed([new, *map(Store, args.also)], sample)


if __name__ == "__main__":
    main()
