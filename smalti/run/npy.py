"""Reading and writing .npy files with every number format, strictly and without pickle.

np.save loses the name of most ml_dtypes formats and writes one that np.load cannot read; this file knows how.
Files are untrusted: sizes are checked against the file before anything is allocated.
"""

from __future__ import annotations

import ast
import math
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from smalti.errors import error
from smalti.run.dtypes import name_of, numpy_dtype
from smalti.run.files import write_aside

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
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        raise error("SML0115", path=str(path), reason="it is no regular file")  # a pipe would never answer
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
        good = good and math.prod(n or 1 for n in shape) < 1 << 48  # NumPy's own bound counts so
        good = good and (descr[1:] in _LOST or name_of(np.dtype(descr)) is not None)
    except (ValueError, SyntaxError, TypeError, KeyError, MemoryError, RecursionError):
        good = False
    if not good:
        raise error("SML0114", path=path, reason="its header does not describe an array of a known number format")
    return descr, fortran, shape


def save(path: str | Path, array: NDArray[Any]) -> None:
    """Writes a .npy file aside and renames it, so that no partial file is left. Errors: SML0117."""
    write_aside(path, lambda file: np.save(file, array, allow_pickle=False))


def save_all(path: str | Path, arrays: Mapping[str, NDArray[Any]]) -> None:
    """Writes a .npz archive aside and renames it. Errors: SML0117."""

    def write(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w") as archive:
            for name, array in arrays.items():
                with archive.open(f"{name}.npy", "w", force_zip64=True) as one:
                    np.lib.format.write_array(one, np.asarray(array), allow_pickle=False)

    write_aside(path, write)
