"""An index file: SQLite with full text, one file a package version. Reading needs the standard library only.

Written aside and renamed, so a reader never sees half an index. Knows nothing of how sites are found.
"""

from __future__ import annotations

import json
import os
import sqlite3
import zlib
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any

from smalti.errors import SmaltiError, error
from smalti.explain.template import words

FORMAT = 1
SCHEMA = """
create table meta(key text primary key, value text not null);
create table file(path text primary key, digest text not null, source blob not null);
create table summary(digest text primary key, data blob not null);
create table site(
    id text primary key, kind text not null, type text not null, family text not null, module text not null,
    function text not null, path text not null, line integer not null, message text not null,
    status text not null, facts blob not null);
create index site_place on site(path, line);
create index site_function on site(function);
create table wording(site text not null, template text not null, bare text not null);
create index wording_site on wording(site);
create table alias(old text primary key, id text not null, reason text not null);
create virtual table words using fts5(message, function, type, site unindexed, tokenize="unicode61 tokenchars '_'");
"""


def folder() -> Path:
    """Where indexes live: $SMALTI_INDEX_DIR, else the user's data folder."""
    if own := os.environ.get("SMALTI_INDEX_DIR"):
        return Path(own)
    base = os.environ.get("XDG_DATA_HOME") or os.environ.get("LOCALAPPDATA") or Path.home() / ".local" / "share"
    return Path(base) / "smalti" / "errors"


def installed() -> list[Path]:
    """Index files in the folder, newest first."""
    place = folder()
    if not place.is_dir():
        return []
    return sorted(place.glob("*.sqlite"), key=lambda p: (-p.stat().st_mtime, p.name))


class Store:
    """Read side of one index. Errors: SML1204 for a file that is no index of this version."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            uri = path.resolve().as_uri() + "?mode=ro"
            self.db = sqlite3.connect(uri, uri=True, check_same_thread=False)
            self.db.execute("pragma query_only=1")
            self.meta = dict(self.db.execute("select key, value from meta"))
        except sqlite3.Error as broken:
            if hasattr(self, "db"):
                self.db.close()
            raise error("SML1204", path=str(path), reason=str(broken)) from None
        if self.meta.get("format") != str(FORMAT):
            self.db.close()
            raise error("SML1204", path=str(path), reason=f"it has format {self.meta.get('format')}, not {FORMAT}")

    @property
    def package(self) -> str:
        return str(self.meta["package"])

    @property
    def version(self) -> str:
        return str(self.meta["version"])

    def close(self) -> None:
        self.db.close()

    def count(self) -> int:
        return int(self.db.execute("select count(*) from site").fetchone()[0])

    def row(self, identifier: str) -> dict[str, Any] | None:
        """Everything about one site, by its id or an older or foreign id."""
        known = self.db.execute("select id, reason from alias where old = ?", (identifier,)).fetchone()
        found = self._rows("select * from site where id = ?", (known[0] if known else identifier,))
        if not found:
            return None
        if known:
            found[0]["asked_as"] = f"{identifier}: {known[1]}"
        return found[0]

    def _rows(self, sql: str, values: Iterable[Any]) -> list[dict[str, Any]]:
        names = ["id", "kind", "type", "family", "module", "function", "path", "line", "message", "status", "facts"]
        rows = []
        for row in self.db.execute(sql, tuple(values)):
            record = dict(zip(names, row, strict=True))
            record.update(json.loads(zlib.decompress(record.pop("facts"))))
            rows.append(record)
        return rows

    def wordings(self, message_words: list[str], limit: int = 400) -> list[tuple[str, str]]:
        """(site, template) of wordings that share words with a message, those with the rarest first."""
        chosen = sorted({w for w in message_words if len(w) > 1}, key=lambda w: (-len(w), w))[:24]
        if not chosen:
            return []
        query = " OR ".join(f'message:"{w}"' for w in chosen)
        sql = (
            "select best.site, template from (select site, rank as place from words where words match ? "
            "order by rank limit ?) as best join wording on wording.site = best.site order by place, wording.rowid"
        )
        return [(str(site), str(template)) for site, template in self.db.execute(sql, (query, limit))]

    def at(self, path_end: str, line: int | None = None, function: str | None = None) -> list[dict[str, Any]]:
        """Sites in the files whose path ends so, in a function (its last name) or on a line."""
        sql = "select * from site where (path = ? or path like ? escape '\\')"
        end = path_end.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_")
        values: list[Any] = [path_end, f"%/{end}"]
        if line is not None:
            sql += " and line = ?"
            values.append(line)
        if function is not None:
            sql += " and (function = ? or function like ? escape '\\')"
            last = function.rsplit(".", 1)[-1]
            values += [last, "%." + last.replace("_", "\\_").replace("%", "\\%")]
        return self._rows(sql + " order by line limit 400", values)

    def search(
        self,
        text: str = "",
        *,
        type: str = "",
        family: str = "",
        function: str = "",
        limit: int = 50,
        offset: int = 0,
    ) -> list[dict[str, Any]]:
        """Full-text search with filters; every word must occur (the last may be a beginning)."""
        found = words(text)[:16]
        clauses, values = [], []
        if found:
            match = " ".join([f'"{w}"' for w in found[:-1]] + [f'"{found[-1]}"*'])
            clauses.append("id in (select site from words where words match ? order by rank limit 2000)")
            values.append(match)
        for column, value in (("type", type), ("family", family)):
            if value:
                clauses.append(f"{column} = ?")
                values.append(value)
        if function:
            clauses.append("(function = ? or function like ? or module || '.' || function = ?)")
            values += [function, f"%.{function}", function]
        where = f" where {' and '.join(clauses)}" if clauses else ""
        sql = f"select * from site{where} order by path, line limit {int(limit)} offset {int(offset)}"
        return self._rows(sql, values)

    def all(self) -> Iterator[dict[str, Any]]:
        """Every site, by place."""
        yield from self._rows("select * from site order by path, line", ())

    def families(self) -> dict[str, int]:
        """Number of sites in each family."""
        return dict(self.db.execute("select family, count(*) from site group by family order by 2 desc"))

    def neighbours(self, record: dict[str, Any], most: int = 6) -> list[tuple[str, str]]:
        """(id, message) of the nearest other raises of the same function, then of the same file and family."""
        sql = (
            "select id, message from site where path = ? and id != ? and kind = 'raise' and message != '' "
            "order by function != ?, family != ?, abs(line - ?) limit ?"
        )
        values = (record["path"], record["id"], record["function"], record["family"], record["line"], most)
        return list(self.db.execute(sql, values))

    def source(self, path: str) -> list[str]:
        """Lines of an indexed file; empty where it is not stored."""
        row = self.db.execute("select source from file where path = ?", (path,)).fetchone()
        return zlib.decompress(row[0]).decode("utf-8").split("\n") if row else []

    def aliases(self, identifier: str) -> list[tuple[str, str]]:
        """(other id, reason) that lead to a site."""
        return list(self.db.execute("select old, reason from alias where id = ? order by old", (identifier,)))


def opened(paths: Iterable[Path] | None = None) -> list[Store]:
    """Stores of the given files (SML1204 for one that cannot be read), or of all readable ones in the folder."""
    if paths is not None:
        return [Store(path) for path in paths]
    found = []
    for path in installed():
        with suppress(SmaltiError):  # one that is damaged or of another version must not hide the others
            found.append(Store(path))
    return found


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Only one process writes an index. Errors: SML1207 while another does, SML1208 where nothing can be written."""
    lock = path.with_suffix(".lock")
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        handle = open(lock, "a+b")  # noqa: SIM115
    except OSError as failed:
        raise error("SML1208", path=str(path), reason=str(failed)) from None
    with closing(handle):
        try:
            import fcntl

            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # no such locks on this system: the rename still keeps readers safe
            pass
        except OSError:
            raise error("SML1207", path=str(path)) from None
        yield


def write(path: Path, meta: dict[str, str], tables: dict[str, Iterable[tuple[Any, ...]]]) -> None:
    """Write a whole index aside and put it in place. Errors: SML1208 (disk full, no permission)."""
    aside = path.with_suffix(f".{os.getpid()}.part")
    try:
        with suppress(FileNotFoundError):
            aside.unlink()
        with closing(sqlite3.connect(aside)) as db:
            db.execute("pragma journal_mode=off")
            db.execute("pragma synchronous=normal")
            db.executescript(SCHEMA)
            db.executemany("insert into meta values (?, ?)", {**meta, "format": str(FORMAT)}.items())
            for table, rows in tables.items():
                rows = list(rows)
                if rows:
                    marks = ", ".join("?" * len(rows[0]))
                    db.executemany(f"insert or replace into {table} values ({marks})", rows)
            db.commit()
        os.replace(aside, path)
    except (OSError, sqlite3.Error) as failed:
        with suppress(OSError):
            aside.unlink()
        raise error("SML1208", path=str(path), reason=str(failed)) from None


def update_executed(path: Path, proofs: dict[str, list[dict[str, Any]]]) -> None:
    """Record executed triggers on their sites, replacing earlier ones of the same name. Errors: SML1208."""
    try:
        with closing(sqlite3.connect(path)) as db:
            for site, runs in proofs.items():
                row = db.execute("select facts from site where id = ?", (site,)).fetchone()
                if row is None:
                    continue
                facts = json.loads(zlib.decompress(row[0]))
                names = {run["trigger"] for run in runs}
                kept = [run for run in facts.get("executed", []) if run["trigger"] not in names]
                facts["executed"] = kept + runs
                data = zlib.compress(json.dumps(facts, separators=(",", ":")).encode(), 6)
                db.execute("update site set facts = ? where id = ?", (data, site))
            db.commit()
    except sqlite3.Error as failed:
        raise error("SML1208", path=str(path), reason=str(failed)) from None


def clear_parts(path: Path) -> None:
    """Remove what an interrupted run left beside `path`."""
    for part in path.parent.glob(f"{path.stem}.*.part*"):
        with suppress(OSError):
            part.unlink()
