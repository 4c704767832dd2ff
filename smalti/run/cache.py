"""A disk cache of byte strings: what a trace or the assembler made, found again by a key of all that it depends on.

Entries are written aside and renamed, checked by a digest, and bounded in total size; whatever is wrong with a
file counts as a miss. It must not know what the bytes mean. No pickle.
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

FORMAT = 1
_MAGIC = b"smalti\x00" + bytes([FORMAT])
_DIGEST = 32
_LONGEST_INDEX = 1 << 16
SIZE_LIMIT = 1 << 30  # bytes; $SMALTI_CACHE_SIZE overrides it


def folder() -> Path:
    """$SMALTI_CACHE, else `smalti` below $XDG_CACHE_HOME or ~/.cache."""
    if named := os.environ.get("SMALTI_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "smalti"


def key(**facts: Any) -> str:
    """The key of everything that a result depends on: plain JSON values by name, in any order.

    What belongs in it: a hash of the source (closures and helpers too), static facts, architecture, the version of
    the instruction table, the version of the assembler.
    """
    text = json.dumps(facts, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


class Cache:
    """Entries of named byte strings below one folder. `root` None: the user's (see `folder`)."""

    def __init__(self, root: Path | None = None, limit: int | None = None) -> None:
        self.root = (root or folder()) / f"v{FORMAT}"
        self.limit = limit if limit is not None else int(os.environ.get("SMALTI_CACHE_SIZE") or SIZE_LIMIT)

    def get(self, key: str) -> dict[str, bytes] | None:
        """The entry, or None if it is not there, was cut off or changed. A hit counts as a use."""
        path = self._path(key)
        try:
            raw = path.read_bytes()
            found = _unpack(raw, key)
            if found is not None:
                os.utime(path)
        except OSError:
            return None
        return found

    def put(self, key: str, parts: Mapping[str, bytes]) -> None:
        """Store an entry. A cache that cannot be written is no error: the next run makes the result again."""
        path = self._path(key)
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            descriptor, aside = tempfile.mkstemp(prefix=".", suffix=".part", dir=path.parent)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    file.write(_pack(key, parts))
                os.replace(aside, path)
            except BaseException:
                Path(aside).unlink(missing_ok=True)
                raise
            self._shrink()
        except OSError:
            return

    def _path(self, key: str) -> Path:
        assert len(key) == 64 and set(key) <= set("0123456789abcdef"), "made by key()"
        return self.root / key[:2] / key

    def _shrink(self) -> None:
        """Remove the entries used longest ago until the rest fits the limit."""
        files = []
        for path in self.root.glob("??/*"):
            try:
                state = path.stat()
            except OSError:
                continue  # another process removed it
            files.append((state.st_mtime_ns, state.st_size, path))
        total = sum(size for _, size, _ in files)
        for _, size, path in sorted(files, key=lambda f: f[0]):
            if total <= self.limit:
                return
            path.unlink(missing_ok=True)
            total -= size


def _pack(key: str, parts: Mapping[str, bytes]) -> bytes:
    index = json.dumps({"key": key, "parts": [[name, len(part)] for name, part in parts.items()]}).encode()
    assert len(index) <= _LONGEST_INDEX
    body = len(index).to_bytes(4, "little") + index + b"".join(parts.values())
    return _MAGIC + hashlib.sha256(body).digest() + body


def _unpack(raw: bytes, key: str) -> dict[str, bytes] | None:
    start = len(_MAGIC) + _DIGEST
    body = memoryview(raw)[start:]
    if raw[: len(_MAGIC)] != _MAGIC or hashlib.sha256(body).digest() != raw[len(_MAGIC) : start]:
        return None
    length = int.from_bytes(body[:4], "little")
    index = json.loads(bytes(body[4 : 4 + length]))
    if index["key"] != key:  # a file moved by hand
        return None
    found, at = {}, 4 + length
    for name, size in index["parts"]:
        found[name] = bytes(body[at : at + size])
        at += size
    return found
