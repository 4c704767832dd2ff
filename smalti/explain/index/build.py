"""Builds the index of a package from its source, never importing or running it; unchanged files are not read again.

Order: find files, summarise each (in parallel), join them in a graph, make records, write the store.
"""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import sqlite3
import time
import zlib
from collections.abc import Callable, Iterable
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from smalti.errors import error
from smalti.explain import store
from smalti.explain.index import module as reading
from smalti.explain.index import upstream, workers
from smalti.explain.index.graph import Graph
from smalti.explain.index.sites import kept, records
from smalti.explain.template import skeleton, words

LARGEST_FILE = 4 << 20
MOST_FILES = 20_000
ANALYSIS = 5  # a change here rebuilds records from cached summaries


@dataclass
class Subject:
    """What is indexed: package name, root folder that holds it, version, commit, module prefixes to keep."""

    package: str
    root: Path
    version: str
    commit: str = ""
    only: tuple[str, ...] = ()
    reads: tuple[str, ...] = ()  # module prefixes to read for paths; all where empty
    tests: Path | None = None


@dataclass
class Outcome:
    """What a run did."""

    path: Path
    sites: int
    files: int
    read: int
    seconds: float
    unchanged: bool = False
    skipped: list[tuple[str, str]] = field(default_factory=list)  # (file, why)


def python_files(subject: Subject) -> list[Path]:
    """Source files of the package, sorted. Errors: SML1203 where there is none."""
    top = subject.root / Path(*subject.package.split("."))
    if top.with_suffix(".py").is_file() and not top.is_dir():
        return [top.with_suffix(".py")]
    every = sorted(top.rglob("*.py")) if top.is_dir() else []
    found = [path for path in every if not path.is_symlink() and path.is_file()]
    if not found:
        raise error("SML1203", package=subject.package, place=str(subject.root))
    if len(found) > MOST_FILES:
        raise error("SML1211", package=subject.package, files=len(found), most=MOST_FILES)
    return found


def module_name(root: Path, path: Path) -> tuple[str, bool]:
    """Dotted name of a file, and whether it is a package's own file."""
    parts = path.relative_to(root).with_suffix("").parts
    if parts[-1] == "__init__":
        return ".".join(parts[:-1]), True
    return ".".join(parts), False


def index(subject: Subject, path: Path, say: Callable[[str], None] = lambda text: None) -> Outcome:
    """Build or refresh the index file at `path`. Errors: SML1203, SML1207, SML1208, SML1211."""
    start = time.perf_counter()
    with store.locked(path), ExitStack() as stack:
        store.clear_parts(path)
        files, unread = _read(subject)
        digest = hashlib.sha256(
            json.dumps(
                [ANALYSIS, reading.FORMAT, subject.package, subject.version, subject.commit, subject.only]
                + sorted((f.path, f.digest) for f in files.values())
                + upstream.fingerprint(subject.tests)
            ).encode()
        ).hexdigest()
        old = _old(path)
        if old is not None:
            stack.callback(old.close)
        if old is not None and old.meta.get("digest") == digest:
            return Outcome(path, old.count(), len(files), 0, time.perf_counter() - start, unchanged=True)
        summaries, read, skipped = _summaries(files, old, say)
        skipped += unread
        say(f"joining {len(summaries)} files")
        graph = Graph({name: json.loads(text) for name, text in summaries.items()})
        paths = {name: f.path for name, f in files.items()}
        made = _records(graph, subject, paths)
        upstream.attach(made, subject.tests, subject.package)
        counts = {
            "raise": sum(r["kind"] == "raise" for r in made),
            "assert": sum(r["kind"] == "assert" for r in made),
        }
        meta = {
            "package": subject.package, "version": subject.version, "commit": subject.commit,
            "digest": digest, "made": time.strftime("%Y-%m-%d", time.gmtime()), "counts": json.dumps(counts),
            "only": json.dumps(subject.only), "skipped": json.dumps(skipped[:200]),
        }  # fmt: skip
        used = {r["path"] for r in made}
        tables: dict[str, Iterable[tuple[Any, ...]]] = {
            "file": [(f.path, f.digest, zlib.compress(f.source.encode(), 6)) for f in files.values() if f.path in used],
            "summary": [
                (f.digest, zlib.compress(summaries[n].encode(), 1)) for n, f in files.items() if n in summaries
            ],
            "site": map(_site_row, made),
            "wording": _wording_rows(made),
            "alias": _aliases(made, old),
            "words": [
                (" ".join(r["wordings"])[:4000], r["function"] + " " + r["module"], r["type"], r["id"]) for r in made
            ],
        }
        store.write(path, meta, tables)
    return Outcome(path, len(made), len(files), read, time.perf_counter() - start, skipped=skipped)


@dataclass
class _File:
    path: str  # within the root, with forward slashes
    source: str
    digest: str
    package: bool


def _read(subject: Subject) -> tuple[dict[str, _File], list[tuple[str, str]]]:
    """Files by module name, and those that cannot be read, with the reason."""
    root = subject.root.resolve()
    found: dict[str, _File] = {}
    unread: list[tuple[str, str]] = []
    for path in python_files(subject):
        name, package = module_name(subject.root, path)
        reads = subject.reads
        if reads and not any(name == p or name.startswith(p + ".") for p in reads):
            continue
        place = path.relative_to(subject.root).as_posix()
        try:
            if not path.resolve().is_relative_to(root):
                continue
            if path.stat().st_size > LARGEST_FILE:
                unread.append((place, f"larger than {LARGEST_FILE >> 20} MiB"))
                continue
            data = path.read_bytes()
        except OSError as failed:
            unread.append((place, f"cannot be read: {failed.strerror or failed}"))
            continue
        digest = hashlib.sha256(name.encode() + b"\0" + data).hexdigest()
        found[name] = _File(place, _text(data), digest, package)
    return found, unread


def _text(data: bytes) -> str:
    """Source as text: its declared coding where there is one, else UTF-8, faults replaced."""
    import io
    import tokenize

    try:
        coding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        text = data.decode(coding, errors="replace")
    except (SyntaxError, LookupError):
        text = data.decode("utf-8", errors="replace")
    return text.replace("\r\n", "\n").replace("\r", "\n").lstrip("\ufeff")


_SHARED: list[tuple[Graph, str, dict[str, str]]] = []  # what forked workers find in memory


def _records(graph: Graph, subject: Subject, paths: dict[str, str]) -> list[dict[str, Any]]:
    """Records of all modules, in the order of their names; shared out over processes where that is cheap."""
    names = sorted(name for name in graph.modules if kept(name, subject.only))
    count = workers.COUNT
    if len(names) <= workers.SMALL_ENOUGH_TO_STAY or count < 2 or "fork" not in multiprocessing.get_all_start_methods():
        return records(graph, subject.package, paths, names)
    sizes = {n: sum(len(f["sites"]) * len(f["conditions"]) for f in graph.modules[n]["functions"]) for n in names}
    _SHARED.append((graph, subject.package, paths))
    try:
        context = multiprocessing.get_context("fork")
        with ProcessPoolExecutor(count, context, workers.follow) as pool:
            by_size = sorted(names, key=lambda n: -sizes[n])
            made = dict(zip(by_size, pool.map(_one_module, by_size), strict=True))
    finally:
        _SHARED.clear()
    return [record for name in names for record in json.loads(made[name])]


def _one_module(name: str) -> str:
    graph, package, paths = _SHARED[-1]
    return json.dumps(records(graph, package, paths, [name]))


def _old(path: Path) -> store.Store | None:
    from smalti.errors import SmaltiError

    try:
        return store.Store(path) if path.exists() else None
    except SmaltiError:  # damaged or of another format: built anew
        return None


def _summaries(
    files: dict[str, _File], old: store.Store | None, say: Callable[[str], None]
) -> tuple[dict[str, str], int, list[tuple[str, str]]]:
    known: dict[str, str] = {}
    if old is not None:
        with suppress(sqlite3.Error, zlib.error):
            for digest, data in old.db.execute("select digest, data from summary"):
                known[digest] = zlib.decompress(data).decode()
    found = {name: known[f.digest] for name, f in files.items() if f.digest in known}
    jobs = [(f.source, name, f.package) for name, f in files.items() if name not in found]
    skipped: list[tuple[str, str]] = []
    for done, (name, made, why) in enumerate(workers.summaries(jobs), 1):
        if made is None:
            skipped.append((files[name].path, why))
        else:
            found[name] = made
        if done % 100 == 0:
            say(f"read {done} of {len(jobs)} files")
    return found, len(jobs), skipped


def _site_row(record: dict[str, Any]) -> tuple[Any, ...]:
    names = ["id", "kind", "type", "family", "module", "function", "path", "line", "message", "status"]
    facts = {key: value for key, value in record.items() if key not in names}
    data = zlib.compress(json.dumps(facts, separators=(",", ":")).encode(), 6)
    return (*[record[name] for name in names], data)


def _wording_rows(made: list[dict[str, Any]]) -> list[tuple[str, str, str]]:
    return [
        (r["id"], template, " ".join(words(skeleton(template).replace("{}", " ")))[:200])
        for r in made
        if r["kind"] == "raise" or r["message"]
        for template in r["wordings"]
    ]


def _aliases(made: list[dict[str, Any]], old: store.Store | None) -> list[tuple[str, str, str]]:
    """Old ids that no longer exist, led to the site that took their place; earlier aliases are kept."""
    if old is None:
        return []
    now = {r["id"] for r in made}
    rows = {a: (a, b, c) for a, b, c in old.db.execute("select old, id, reason from alias")}
    by_place: dict[tuple[str, str, str], list[dict[str, Any]]] = {}
    by_wording: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in made:
        by_place.setdefault((record["module"], record["function"], record["type"]), []).append(record)
        by_wording.setdefault((skeleton(record["message"]), record["type"]), []).append(record)
    gone: dict[str, str] = {}
    for before in old.all():
        if before["id"] in now:
            continue
        same = by_wording.get((skeleton(before["message"]), before["type"]), []) if before["message"] else []
        near = by_place.get((before["module"], before["function"], before["type"]), [])
        from smalti.explain.template import likeness

        close = [r for r in near if likeness(r["message"], before["message"]) > 0.6]
        if len(same) == 1:
            gone[before["id"]] = same[0]["id"]
            why = f"same message, moved from {before['module']}.{before['function']}"
        elif len(close) == 1:
            gone[before["id"]] = close[0]["id"]
            why = f"reworded in {before['module']}.{before['function']}"
        else:
            continue
        rows[before["id"]] = (before["id"], gone[before["id"]], f"{why} ({old.version})")
    for older, (_, target, reason) in list(rows.items()):
        if target in gone:
            rows[older] = (older, gone[target], reason)
    return [row for row in rows.values() if row[1] in now]
