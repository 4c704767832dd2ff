"""The figures of an index of a package: what is found in its source, how much is known of each site, how fast.

    python benchmarks/errors_index.py NEW.sqlite OLD.sqlite [--source DIR] [--cold] [--judged errors_judged.json]

Make the indexes first with `smalti errors index` and prove the new one. `--source` (the folder that holds the package)
adds kind and line of every site by two other parsers; `--cold` builds the index anew, twice, and times it. The judged
sample holds guards that were read against the source by hand: a guard that changed must be judged again.
"""

from __future__ import annotations

import argparse
import ast
import json
import os
import platform
import resource
import tempfile
import time
from collections import Counter
from pathlib import Path

from smalti.explain.store import Store
from smalti.explain.template import skeleton

MOSAIC = ("jax/experimental/mosaic/gpu/", "jax/_src/pallas/mosaic_gpu/")


def share(name: str, found: int, of: int, bar: str = "") -> None:
    print(f"{name:<62} {found:>6} of {of:<6} {100 * found / max(1, of):6.1f} %{bar and f'   bar {bar}'}")


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


def times(source: Path, package: str) -> None:
    """A cold index, and one of unchanged source: by the clock, and in processor time of all its processes."""
    from smalti.explain.index.build import index
    from smalti.explain.index.subject import subject

    one = subject(package, source)
    with tempfile.TemporaryDirectory() as folder:
        for name, bar in (("cold", 60), ("unchanged", 5)):
            used, start = processor(), time.perf_counter()
            index(one, Path(folder, "a.sqlite"))
            clock, used = time.perf_counter() - start, processor() - used
            load = os.getloadavg()[0]
            print(
                f"index, {name}: {clock:.1f} s by the clock, {used:.1f} s of processor, load {load:.1f}   bar {bar} s"
            )


def processor() -> float:
    """Seconds of processor time of this process and its children."""
    found = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in found)


def judged(file: Path, store: Store) -> None:
    """Guards that were read by hand: how many were right, and which are stated otherwise now."""
    sample = json.loads(file.read_text(encoding="utf-8"))["sites"]
    for part in ("1", "2", "3", "entry", "type"):
        stated = [one for one in sample if one["right"][part] is not None]
        name = f"guards of tier {part}" if part.isdigit() else {"entry": "first entry points", "type": "types"}[part]
        share(f"{name} right, judged by hand", sum(one["right"][part] for one in stated), len(stated))
    for one in sample:
        record = store.row(one["id"])
        now = record and {tier: record["guard"].get(tier) for tier in ("1", "2", "3")}  # None: no such id now
        if now != one["guard"]:
            print(f"  judge again: {one['id']} {one['place']}: {now}")


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("new", type=Path)
    arguments.add_argument("old", type=Path)
    arguments.add_argument("--source", type=Path)
    arguments.add_argument("--cold", action="store_true")
    arguments.add_argument("--judged", type=Path)
    args = arguments.parse_args()
    new, old = Store(args.new), Store(args.old)
    every = list(new.all())
    raises = [r for r in every if r["kind"] == "raise"]
    part = [r for r in raises if r["path"].startswith(MOSAIC)]
    versions = f"{new.package} {new.version} against {old.version}, Python {platform.python_version()}"
    print(f"{time.strftime('%Y-%m-%d')}: {versions}, {len(raises)} raises, {len(every) - len(raises)} asserts")
    if args.source is not None:
        other_parsers(args.source, new)
    share("raises with a message template", sum(bool(r["wordings"]) for r in raises), len(raises), "95 %")
    for tier, bar in (("1", "95 %"), ("2", "80 %"), ("3", "50 %")):
        known = sum(bool(r["guard"].get(tier)) or (tier == "2" and r["guard"]["kind"] == "always") for r in raises)
        share(f"raises with a guard of tier {tier}", known, len(raises), bar)
    if args.judged is not None:
        judged(args.judged, new)
    if part:
        known = sum(bool(r["entries"]) for r in part)
        share("Mosaic GPU raises with an entry point or a refutation", known, len(part), "90 %")
        runs = [[run for run in r.get("executed", []) if not run.get("caught")] for r in part]
        share("Mosaic GPU raises executed", sum(map(bool, runs)), len(part), "25 %")
        levels = Counter(f"{run[0].get('by', 'trigger')}, {run[0].get('level', '?')}" for run in runs if run)
        for level, count in levels.most_common():
            share(f"  by {level}", count, len(part))
    there = {r["id"] for r in old.all()}
    old_keys = {(r["type"], skeleton(r["message"])) for r in old.all() if r["kind"] == "raise" and r["message"]}
    made = [r for r in raises if r["status"] != "re-raised" and r["message"]]
    unchanged = [r for r in made if (r["type"], skeleton(r["message"])) in old_keys]
    kept = sum(r["id"] in there or old.row(r["id"]) is not None for r in unchanged)
    share("ids kept between the releases for unchanged templates", kept, len(unchanged), "98 %")
    if args.cold and args.source is not None:
        times(args.source, new.package)


if __name__ == "__main__":
    main()
