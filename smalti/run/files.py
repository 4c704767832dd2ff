"""Reading and writing files with coded errors: bounded reads, writes that leave no partial file. Knows no format."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from smalti.errors import error

LARGEST_TEXT = 64 << 20  # bytes; the largest PTX of a compiler that we saw has 6 MiB


def read(path: str | Path, limit: int) -> bytes:
    """All bytes of a file. Errors: SML0115 (cannot be read), SML0164 (larger than `limit`)."""
    try:
        with open(path, "rb") as file:
            raw = file.read(limit + 1)
    except OSError as failed:
        raise error("SML0115", path=str(path), reason=failed.strerror or str(failed)) from failed
    if len(raw) > limit:
        raise error("SML0164", what=str(path), size=os.path.getsize(path), limit=limit)
    return raw


def read_text(path: str | Path, limit: int = LARGEST_TEXT) -> str:
    """A text file in UTF-8, with or without a byte order mark, its lines ended in any way. Errors: SML0115, SML0164."""
    try:
        return read(path, limit).decode("utf-8-sig").replace("\r\n", "\n").replace("\r", "\n")
    except UnicodeDecodeError as broken:
        raise error("SML0115", path=str(path), reason=f"it is no UTF-8 text (byte {broken.start})") from None


def check_writable(path: str | Path) -> None:
    """Refuse a path that cannot be written before the work is done that it is for. Errors: SML0117."""
    folder = Path(path).parent
    if not folder.is_dir():
        raise error("SML0117", path=str(path), reason=f"there is no folder {folder}")
    if Path(path).is_dir() or not os.access(folder, os.W_OK):
        raise error("SML0117", path=str(path), reason="it is a folder or lies in one that is read-only")
    _replaceable(Path(path))


def _replaceable(path: Path) -> None:
    """Refuse to put a file in the place of a device, a pipe or a socket, /dev/null among them."""
    if path.exists() and not path.is_file():
        raise error("SML0117", path=str(path), reason="it is there and no regular file")


def write_aside(path: str | Path, write: Callable[[BinaryIO], object]) -> None:
    """Calls `write` with a binary file beside `path` and renames it to `path` when it is complete; nothing is
    left if it fails. Errors: SML0117 (the folder or file cannot be written)."""
    path = Path(path)
    _replaceable(path)
    try:
        descriptor, aside = tempfile.mkstemp(prefix=f".{path.name[:40]}.", suffix=".part", dir=path.parent)
    except OSError as failed:
        raise error("SML0117", path=str(path), reason=failed.strerror or str(failed)) from failed
    try:
        with os.fdopen(descriptor, "wb") as file:
            write(file)
        os.chmod(aside, 0o666 & ~_umask())
        os.replace(aside, path)
    except BaseException as failed:
        Path(aside).unlink(missing_ok=True)
        if isinstance(failed, OSError):
            raise error("SML0117", path=str(path), reason=failed.strerror or str(failed)) from failed
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
