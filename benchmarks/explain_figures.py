"""The figures of the error reference, measured on indexes of two releases of one package.

    python benchmarks/explain_figures.py NEW.sqlite OLD.sqlite [--source DIR] [--sample 800] [--part jax/…/mosaic_gpu]

Make the indexes first with `smalti errors index`, which prints the time of a cold and of an unchanged run.
`--source` (the folder that holds the package) adds kind and line of every site by two other parsers.
"""

from __future__ import annotations

import argparse
import ast
import platform
import random
import time
from pathlib import Path
from typing import Any

from smalti.explain.search import find
from smalti.explain.store import Store
from smalti.explain.template import skeleton

MOSAIC = ("jax/experimental/mosaic/gpu/", "jax/_src/pallas/mosaic_gpu/")


def traceback_of(record: dict[str, Any], frames: bool = True) -> str:
    """A traceback as Python would print it for this raise, every hole filled with 7."""
    wording = record["wordings"][0] if record["wordings"] else "7"
    message = "".join(skeleton(part).replace("{}", "7") + "\n" for part in wording.split("\n")).rstrip("\n")
    last = f"{record['type']}: {message}" if message else record["type"]
    if not frames:
        return last
    place = f'  File "/v/lib/python3.13/site-packages/{record["path"]}", line {record["line"]}, in '
    function = record["function"].rsplit(".", 1)[-1]
    head = 'Traceback (most recent call last):\n  File "k.py", line 3, in <module>\n    run()\n'
    return f"{head}{place}{function}\n    raise\n{last}\n"


def share(name: str, found: int, of: int, bar: str) -> None:
    print(f"{name:<62} {found:>6} of {of:<6} {100 * found / max(1, of):6.1f} %   bar {bar}")


def by_tree_sitter(data: bytes) -> list[tuple[str, int]]:
    """(kind, line) of every raise and assert, by tree-sitter."""
    import tree_sitter
    import tree_sitter_python

    kinds = {"raise_statement": "raise", "assert_statement": "assert"}
    parser = tree_sitter.Parser(tree_sitter.Language(tree_sitter_python.language()))
    stack, found = [parser.parse(data).root_node], []
    while stack:
        node = stack.pop()
        if node.type in kinds:
            found.append((kinds[node.type], node.start_point[0] + 1))
        stack.extend(node.children)
    return sorted(found)


def by_ast(data: bytes) -> list[tuple[str, int]] | None:
    """The same by this Python's own parser; None for a file newer than it."""
    kinds = {ast.Raise: "raise", ast.Assert: "assert"}
    try:
        tree = ast.parse(data)
    except SyntaxError:
        return None
    return sorted((kinds[type(node)], node.lineno) for node in ast.walk(tree) if type(node) in kinds)


def other_parsers(source: Path, store: Store) -> None:
    """Kind and line of every raise and assert, file by file: the index against two other parsers."""
    indexed: dict[str, list[tuple[str, int]]] = {}
    for record in store.all():
        indexed.setdefault(record["path"], []).append((record["kind"], record["line"]))
    sites = {"tree-sitter": 0, "ast": 0}
    equal, files, newer = {"tree-sitter": 0, "ast": 0}, 0, 0
    for path in sorted((source / store.package).rglob("*.py")):
        name, data = path.relative_to(source).as_posix(), path.read_bytes()
        files += 1
        for parser, found in (("tree-sitter", by_tree_sitter(data)), ("ast", by_ast(data))):
            if found is None:
                newer += 1
                continue
            sites[parser] += len(found)
            equal[parser] += found == sorted(indexed.get(name, []))
            for kind, line in sorted(set(found) ^ set(indexed.get(name, []))):
                print(f"  differs from {parser}: {kind} at {name}:{line}")
    here = f"Python {platform.python_version()}"
    total = sum(map(len, indexed.values()))
    share(f"sites: tree-sitter against the index ({here})", sites["tree-sitter"], total, "100 %")
    share("files in which kinds and lines are equal", equal["tree-sitter"], files, "100 %")
    share(f"the same by this Python's ast ({newer} files are newer than it)", equal["ast"], files - newer, "100 %")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("new", type=Path)
    arguments.add_argument("old", type=Path)
    arguments.add_argument("--source", type=Path)
    arguments.add_argument("--sample", type=int, default=800)
    arguments.add_argument("--also", type=Path, nargs="*", default=[], help="further indexes for the time of an answer")
    args = arguments.parse_args()
    new, old = Store(args.new), Store(args.old)
    every = list(new.all())
    raises = [r for r in every if r["kind"] == "raise"]
    made = [r for r in raises if r["status"] != "re-raised"]
    part = [r for r in raises if r["path"].startswith(MOSAIC)]
    print(
        f"{new.package} {new.version} against {old.version}: {len(raises)} raises, {len(every) - len(raises)} asserts"
    )
    if args.source is not None:
        other_parsers(args.source, new)
    share("raises with a message template", sum(bool(r["wordings"]) for r in raises), len(raises), "95 %")
    for tier, bar in (("1", "95 %"), ("2", "80 %"), ("3", "50 %")):
        known = sum(bool(r["guard"].get(tier)) or (tier == "2" and r["guard"]["kind"] == "always") for r in raises)
        share(f"raises with a guard of tier {tier}", known, len(raises), bar)
    share(
        "Mosaic GPU raises with an entry point or a refutation",
        sum(bool(r["entries"]) for r in part),
        len(part),
        "90 %",
    )
    proved = sum(bool(r.get("executed") or r.get("tests")) for r in part)
    share("Mosaic GPU raises executed, or expected by an upstream test", proved, len(part), "25 %")
    share("  of these executed by a trigger", sum(bool(r.get("executed")) for r in part), len(part), "")

    draw = random.Random(0)
    sample = draw.sample(made, min(args.sample, len(made)))
    right = sum(_top(find(traceback_of(r), [new]), 1, r) for r in sample)
    share("same-version traceback -> right entry", right, len(sample), "100 %")
    shown = sum(_top(find(traceback_of(r), [new]), 8, r) for r in sample)
    share("  right entry shown, alone or among equals", shown, len(sample), "")
    there = {r["id"] for r in old.all()}
    both = [r for r in sample if r["id"] in there]
    right = sum(_top(find(traceback_of(r), [old]), 1, r) for r in both)
    share("traceback of the other release -> right entry, top 1", right, len(both), "97 %")
    texts = [r for r in sample if r["message"]]
    third = wrong = worded = 0
    for record in texts:
        answer = find(traceback_of(record, frames=False), [new])
        third += _top(answer, 3, record)
        worded += record["message"] in [m.page.message for m in answer.matches[:3]]
        single = [m for m in answer.matches if m.certainty == "sure"]
        wrong += len(single) == 1 and single[0].page.kind == "raise" and single[0].page.id != record["id"]
    share("message and type only -> right one in the top 3", third, len(texts), "95 %")
    share("  right wording in the top 3 (one text, several places)", worded, len(texts), "")
    share("message and type only -> one certain answer, and wrong", wrong, len(texts), "0")

    old_keys = {(r["type"], skeleton(r["message"])) for r in old.all() if r["kind"] == "raise" and r["message"]}
    unchanged = [r for r in made if r["message"] and (r["type"], skeleton(r["message"])) in old_keys]
    kept = sum(r["id"] in there or old.row(r["id"]) is not None for r in unchanged)
    share("ids kept between the releases for unchanged templates", kept, len(unchanged), "98 %")

    stores = [new, old, *map(Store, args.also)]
    find(traceback_of(sample[0]), stores)
    times = []
    for record in sample[:60]:
        start = time.perf_counter()
        find(traceback_of(record), stores)
        times.append(time.perf_counter() - start)
    times.sort()
    median, slowest = times[len(times) // 2], times[-1]
    print(f"answer with {len(stores)} indexes: median {median:.3f} s, slowest {slowest:.3f} s   bar 0.3 s")


def _top(answer: Any, most: int, record: dict[str, Any]) -> bool:
    """Whether the right entry is among the first `most`; a tie of equal text and function counts for neither."""
    ids = [m.page.id for m in answer.matches[:most]]
    return record["id"] in ids and (most > 1 or not answer.ambiguous or ids[0] == record["id"])


if __name__ == "__main__":
    main()
