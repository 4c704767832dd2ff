"""Reading and writing .npy files with every number format, strictly and without pickle.

np.save loses the name of most ml_dtypes formats and writes one that np.load cannot read; this file knows how.
Files are untrusted: sizes are checked against the file before anything is allocated.
"""

from __future__ import annotations

import ast
import math
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from smalti.errors import error
from smalti.run.dtypes import name_of, numpy_dtype

_MAGIC = b"\x93NUMPY"
_LONGEST_HEADER = 10_000  # as np.load
_LARGEST = 1 << 34  # bytes of data

# What np.save (NumPy 2.4, ml_dtypes 0.6) writes for formats whose name it loses, and which format it must be.
_LOST = {"V1": None, "V2": "bf16", "f1": "e5m2"}
_ONE_BYTE = ("e4m3", "e3m2", "e2m3", "e2m1", "ue8m0", "s4", "u4", "ue4m3")  # what V1 may be


def load(path: str | Path, dtype: str | None = None) -> NDArray[Any]:
    """The array in a .npy file.

    `dtype` names the format where the file lost it, or where the bits are to be read as another format of the
    same width. Errors: SML0114 (no such array), SML0115 (cannot be read), SML0116 (the format was lost and none
    is declared), SML0113 (`dtype` of another width).
    """
    try:
        with open(path, "rb") as file:
            return _read(file, str(path), dtype)
    except OSError as failed:
        raise error("SML0115", path=str(path), reason=failed.strerror or str(failed)) from failed


def _read(file: BinaryIO, path: str, dtype: str | None) -> NDArray[Any]:
    descr, fortran, shape = _header(file, path)
    if descr[1:] in _LOST:
        name = dtype or _LOST[descr[1:]]
        if name is None:
            raise error("SML0116", path=path, candidates=", ".join(_ONE_BYTE))
        stored = numpy_dtype(name)
        if stored.itemsize != int(descr[2:]):
            raise error("SML0113", what=path, dtype=descr, wanted=name)
    else:
        stored = np.dtype(descr)
    size = math.prod(shape) * stored.itemsize
    left = os.fstat(file.fileno()).st_size - file.tell()
    if size > min(left, _LARGEST):
        raise error("SML0114", path=path, reason=f"shape {shape} needs {size} bytes of data, it holds {left}")
    array = np.frombuffer(bytearray(file.read(size)), stored).reshape(shape, order="F" if fortran else "C")
    array = array.astype(stored.newbyteorder("="), copy=False)
    wanted = array.dtype if dtype is None else numpy_dtype(dtype)
    if wanted.itemsize != array.dtype.itemsize:
        raise error("SML0113", what=path, dtype=str(array.dtype), wanted=str(dtype))
    return array.view(wanted)


def _header(file: BinaryIO, path: str) -> tuple[str, bool, tuple[int, ...]]:
    start = file.read(10)
    if len(start) < 10 or start[:6] != _MAGIC or start[6] not in (1, 2, 3):
        raise error("SML0114", path=path, reason="it does not start as a .npy file does")
    length = int.from_bytes(start[8:] + (b"" if start[6] == 1 else file.read(2)), "little")
    raw = file.read(min(length, _LONGEST_HEADER + 1))
    if length > _LONGEST_HEADER or len(raw) < length:
        raise error("SML0114", path=path, reason="its header is cut off or too long")
    try:
        fields = ast.literal_eval(raw.decode("latin-1").strip())
        descr, fortran, shape = fields["descr"], fields["fortran_order"], fields["shape"]
        good = isinstance(descr, str) and isinstance(fortran, bool) and isinstance(shape, tuple)
        good = good and all(type(n) is int and 0 <= n < 1 << 48 for n in shape) and len(shape) <= 32
        good = good and (descr[1:] in _LOST or name_of(np.dtype(descr)) is not None)
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        good = False
    if not good:
        raise error("SML0114", path=path, reason="its header does not describe an array of a known number format")
    return descr, fortran, shape


def save(path: str | Path, array: NDArray[Any]) -> None:
    """Writes a .npy file aside and renames it, so that no partial file is left. Errors: SML0117."""
    write_aside(path, lambda file: np.save(file, array, allow_pickle=False))


def write_aside(path: str | Path, write: Callable[[Any], None]) -> None:
    """Calls `write` with a binary file beside `path` and renames it to `path` when it is complete; nothing is
    left if it fails. Errors: SML0117 (the folder or file cannot be written)."""
    path = Path(path)
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
