"""Launch files: JSON that describes a launch of any PTX kernel and what its buffers hold. See docs/launch-file.md.

A launch file may come from a stranger: every field is checked, sizes are bounded before memory is taken, and data
files must lie below the launch file's own folder. It must not know what the kernel does.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

from smalti.errors import error
from smalti.layout.tensor_map import TensorMap
from smalti.run import fill
from smalti.run.dtypes import DTYPES
from smalti.run.fields import Reader
from smalti.run.files import read
from smalti.run.launch import (
    MOST_PARAMETER_BYTES,
    Buffer,
    Launch,
    MapOf,
    Param,
    Pointer,
    Scalar,
    Scratch,
    Struct,
    size_of,
)

FORMAT = 1
LARGEST_FILE = 16 << 20  # bytes of JSON
LARGEST_BUFFERS = 1 << 30  # bytes of buffers, expectations and scratch together
MOST_BUFFERS = 256
MOST_PARAMETERS = 1024
DEEPEST_RANK = 8
SCALARS = [f"{kind}{bits}" for kind in "usb" for bits in (8, 16, 32, 64)] + ["f16", "bf16", "f32", "f64"]


def load(path: str | Path) -> Launch:
    """The launch that a file describes, its buffers filled.

    Errors: SML0115 (cannot be read), SML0160 (a field is wrong; the message names it), SML0161 (another format
    number), SML0162 (a data file outside the folder), SML0163 (data of another shape), SML0164 (too large), and
    those of the values made: SML011x, SML013x to SML015x.
    """
    path = Path(path)
    raw = read(path, LARGEST_FILE)
    return parse(raw, path.parent, str(path))


def parse(text: str | bytes, folder: Path, name: str = "<launch>") -> Launch:
    """As `load`, of a text; data files are looked up below `folder`."""
    reader = _LaunchReader(name, folder)
    try:
        data = json.loads(text)
    except (ValueError, RecursionError) as broken:
        reader.refuse(f"it is no JSON text: {broken}")
    return reader.launch(data)


class _LaunchReader(Reader):
    def __init__(self, file: str, folder: Path) -> None:
        super().__init__(file, folder)
        self.bytes = 0

    def take(self, size: int) -> None:
        """Count memory before it is taken."""
        self.bytes += size
        if self.bytes > LARGEST_BUFFERS:
            raise error("SML0164", what=f"{self.where} in {self.file}", size=self.bytes, limit=LARGEST_BUFFERS)

    def launch(self, data: Any) -> Launch:
        if isinstance(data, dict) and data.get("format") != FORMAT:
            raise error("SML0161", file=self.file, given=str(data.get("format"))[:40], known=FORMAT)
        f = self.fields(data, "format entry grid block", "cluster shared buffers params about")

        def dims(value: Any) -> tuple[int, int, int]:
            x, *rest = self.each(value, 1, 3, self.within(1, 2**31 - 1))
            y, z = (*rest, 1, 1)[:2]
            return x, y, z

        return Launch(
            entry=self.get(f, "entry", self.string, ""),
            grid=self.get(f, "grid", dims, (1, 1, 1)),
            block=self.get(f, "block", dims, (1, 1, 1)),
            cluster=self.get(f, "cluster", dims, (1, 1, 1)),
            shared=self.get(f, "shared", self.within(0, 1 << 30), 0),
            buffers=self.get(f, "buffers", self.buffers, {}),
            params=self.get(f, "params", lambda v: self.each(v, 0, MOST_PARAMETERS, self.param), ()),
        )

    # -- buffers ----------------------------------------------------------------------------------------

    def buffers(self, value: Any) -> dict[str, Buffer]:
        if not isinstance(value, dict) or len(value) > MOST_BUFFERS:
            self.refuse(f"must be an object of at most {MOST_BUFFERS} buffers")
        found = {}
        for name, one in value.items():
            with self.at(f".{name[:60]}"):
                if not name.isidentifier():
                    self.refuse("a buffer's name must be an identifier")
                found[name] = self.buffer(name, one)
        return found

    def buffer(self, name: str, value: Any) -> Buffer:
        f = self.fields(value, "dtype shape", "strides data output expected tolerance dense")
        shape = self.get(f, "shape", lambda v: self.each(v, 0, DEEPEST_RANK, self.within(0, 1 << 40)), ())
        plain = Buffer(
            name,
            self.get(f, "dtype", self.among(list(DTYPES)), ""),
            shape,
            self.get(f, "strides", lambda v: self.strides(v, shape), None),
            output=self.get(f, "output", self.truth, False),
            dense=self.get(f, "dense", self.truth, False),
        )
        self.take(plain.nbytes * (2 if "expected" in f else 1))
        if math.prod(n or 1 for n in shape) >= 1 << 48:
            self.refuse(f"shape {list(shape)} is too large")  # beside a 0, where it takes no memory
        return Buffer(
            plain.name,
            plain.dtype,
            plain.shape,
            plain.strides,
            data=self.get(f, "data", lambda v: fill.memory(fill.bits(self, v, plain), plain), None),
            output=plain.output,
            expected=self.get(f, "expected", lambda v: fill.bits(self, v, plain), None),
            tolerance=self.get(f, "tolerance", self.tolerance, None),
            dense=plain.dense,
        )

    def strides(self, value: Any, shape: tuple[int, ...]) -> tuple[int, ...]:
        """In elements; no two elements may lie at one place."""
        found = self.each(value, len(shape), len(shape), self.within(1, 1 << 40))
        reach = 0
        for step, n in sorted(zip(found, shape, strict=True)):
            if n > 1:
                if step <= reach:
                    self.refuse(f"elements of shape {list(shape)} overlap with strides {list(found)}")
                reach += (n - 1) * step
        return found

    def tolerance(self, value: Any) -> tuple[float, float]:
        f = self.fields(value, "", "absolute relative")

        def read(value: Any) -> float:
            if not 0 <= self.number(value) < math.inf:
                self.refuse(f"must be a finite number from 0 on, is {value}")
            return float(value)

        return float(self.get(f, "absolute", read, 0)), float(self.get(f, "relative", read, 0))

    # -- parameters -------------------------------------------------------------------------------------

    def param(self, value: Any) -> Param:
        kinds = [k for k in _PARAMS if isinstance(value, dict) and k in value]
        if len(kinds) != 1:
            self.refuse(f"must be an object with one of {', '.join(_PARAMS)}")
        return _PARAMS[kinds[0]](self, value)

    def scalar(self, value: Any) -> Scalar:
        f = self.fields(value, "scalar value")
        made = Scalar(
            self.get(f, "scalar", self.among(SCALARS), ""),
            self.get(f, "value", self.number, 0),
        )
        made.encode()
        return made

    def pointer(self, value: Any) -> Pointer:
        f = self.fields(value, "pointer", "offset")
        return Pointer(self.get(f, "pointer", self.string, ""), self.offset(f))

    def offset(self, fields: dict[str, Any]) -> int:
        return self.get(fields, "offset", self.within(0, LARGEST_BUFFERS), 0)

    def scratch(self, value: Any) -> Scratch:
        f = self.fields(value, "scratch")
        size = self.get(f, "scratch", self.within(0, LARGEST_BUFFERS), 0)
        self.take(size)
        return Scratch(size)

    def tensor_map(self, value: Any) -> MapOf:
        f = self.fields(value, "tensor_map", "offset")
        with self.at(".tensor_map"):
            m = self.fields(f["tensor_map"], "buffer type size", " ".join((*_MAP_LISTS, *_MAP_NAMES, *_MAP_COUNTS)))
            given: dict[str, Any] = {}
            for key in ("size", *_MAP_LISTS):
                if key in m:
                    given[key] = self.get(m, key, lambda v: self.each(v, 0, 5, self.within(-(1 << 62), 1 << 62)), ())
            for key in ("type", *_MAP_NAMES):
                if key in m:
                    given[key] = self.get(m, key, self.string, "")
            for key in _MAP_COUNTS:
                given[key] = self.get(m, key, self.within(0, 1 << 20), 0)
            made = TensorMap(**given)
            made.check()
            return MapOf(self.get(m, "buffer", self.string, ""), made, self.offset(f))

    def struct(self, value: Any) -> Struct:
        f = self.fields(value, "struct")
        with self.at(".struct"):
            s = self.fields(f["struct"], "size", "bytes at")
            size = self.get(s, "size", self.within(1, MOST_PARAMETER_BYTES), 0)
            start = self.get(s, "bytes", self.hexadecimal, b"")
            if len(start) > size:
                self.refuse(f"bytes has {len(start)} bytes, size is {size}")
            inner = self.get(s, "at", lambda v: self.each(v, 0, MOST_PARAMETERS, self.placed), ())
            for offset, param in inner:
                if offset + size_of(param) > size:
                    self.refuse(f"a parameter of {size_of(param)} bytes at {offset} reaches past its size {size}")
            return Struct(start + bytes(size - len(start)), inner)

    def placed(self, value: Any) -> tuple[int, Scalar | Pointer | MapOf | Scratch]:
        """A parameter at a byte offset of a struct: {"byte": 64, ...}."""
        if not isinstance(value, dict) or "byte" not in value:
            self.refuse("must be a parameter with a field 'byte'")
        offset = self.get(value, "byte", self.within(0, MOST_PARAMETER_BYTES), 0)
        param = self.param({k: v for k, v in value.items() if k != "byte"})
        if isinstance(param, Struct):
            self.refuse("a struct inside a struct; give its parts at their own offsets")
        return offset, param

    def hexadecimal(self, value: Any) -> bytes:
        if not isinstance(value, str) or len(value) > 4 * MOST_PARAMETER_BYTES:
            self.refuse("must be a string of hexadecimal digits")
        try:
            return bytes.fromhex(value)
        except ValueError:
            self.refuse("must be a string of hexadecimal digits")


_MAP_LISTS = ("stride", "box", "element_stride", "lower", "upper")
_MAP_NAMES = ("interleave", "swizzle", "l2_promotion", "fill", "mode")
_MAP_COUNTS = ("channels", "pixels")

_PARAMS: dict[str, Callable[[_LaunchReader, Any], Param]] = {
    "scalar": _LaunchReader.scalar,
    "pointer": _LaunchReader.pointer,
    "tensor_map": _LaunchReader.tensor_map,
    "scratch": _LaunchReader.scratch,
    "struct": _LaunchReader.struct,
}
