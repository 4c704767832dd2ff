"""What a kernel of the foreign corpus needs: inputs that a launch file can describe in a line, exact expected outputs,
a launch. Knows the launch-file format and `smalti.run.capture`; each module beside it holds kernels of one kind.

Inputs are small integers or powers of two, so that sums are exact in any order; outputs start as poison (0xA5).
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from smalti.numerics.convert import encode
from smalti.numerics.formats import FORMATS, decode
from smalti.run.capture import Array, Captured
from smalti.run.capture_triton import capture
from smalti.run.launch import Buffer
from smalti.run.launch_file import parse
from smalti.run.launch_save import save

POISON = {"byte": 0xA5}
ARCHES = ("sm_90a", "sm_100a")


def integers(seed: int, low: int, high: int) -> dict[str, Any]:
    return {"integers": {"seed": seed, "low": low, "high": high}}


def codes(seed: int) -> dict[str, Any]:
    return {"codes": {"seed": seed}}


def iota(start: int = 0, step: int = 1, modulo: int = 1 << 40) -> dict[str, Any]:
    return {"iota": {"start": start, "step": step, "modulo": modulo}}


class Operand(Array):
    """An argument of a kernel. `values`: its elements as float64 (integers: int64); `rule` says how they are made."""

    def __init__(self, name: str, buffer: Buffer, rule: Any) -> None:
        bits = buffer.bits_in(buffer.data)
        super().__init__(bits, buffer.dtype)
        self.name, self.buffer, self.rule = name, buffer, rule
        form = FORMATS[buffer.dtype]
        decoded = decode(bits, buffer.dtype)
        self.values = decoded if form.is_float else decoded.astype(np.int64)


class Run:
    """One launch being made: what the function of a case is given."""

    def __init__(self, arch: str) -> None:
        self.arch = arch
        self.blackwell = arch == "sm_100a"
        self.operands: dict[str, Operand] = {}
        self.expected: dict[str, tuple[np.ndarray, tuple[float, float] | None]] = {}
        self.captured: Captured | None = None

    def input(self, name: str, dtype: str, shape: tuple[int, ...], rule: Any) -> Operand:
        text = {"format": 1, "entry": "x", "grid": [1], "block": [1]}
        text["buffers"] = {name: {"dtype": dtype, "shape": shape, "data": rule}}
        buffer = parse(json.dumps(text), Path("."), "case").buffers[name]
        self.operands[name] = Operand(name, buffer, rule)
        return self.operands[name]

    def output(
        self, name: str, dtype: str, expected: Any, tolerance: tuple[float, float] | None = None, rule: Any = POISON
    ) -> Operand:
        """A buffer of which every element of `expected` is compared: in every bit, or within (absolute, relative)."""
        expected = np.asarray(expected)
        form = FORMATS[dtype]
        if form.is_float:
            bits = encode(expected.astype(np.float64), dtype)
        else:
            bits = expected.astype(form.dtype)
        if tolerance is None and form.is_float:
            exact = decode(np.asarray(bits), dtype)
            assert np.array_equal(exact, expected, equal_nan=True), f"{name}: an expected value is no {dtype}"
        self.expected[name] = np.asarray(bits).reshape(expected.shape), tolerance
        return self.input(name, dtype, expected.shape, rule)

    def launch(self, kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
        """Compile and catch a launch of a Triton or Gluon kernel. PTX_VERSION: what other versions of Triton take, or 0
        for what they choose."""
        version = int(os.environ.get("PTX_VERSION", "90"))
        options |= {"ptx_version": version} if version else {}
        caught: list[Captured] = []
        with capture(self.arch, lambda c, _: caught.append(c)):
            kernel[grid](*args, **options)
        (self.captured,) = caught

    def save(self, folder: Path, name: str) -> None:
        """Write `<name>.<arch>.ptx` and `.json`; arrays are called by what they hold: many cases expect the same."""
        found = self.captured
        assert found is not None, "the case launched nothing"
        names = {id(o): o.name for o in self.operands.values()}
        assert set(found.launch.buffers) <= set(names.values()), (
            f"arguments must be called like the kernel's parameters: {list(found.launch.buffers)}"
        )
        buffers = {}
        for key, buffer in found.launch.buffers.items():
            if key in self.expected:
                bits, tolerance = self.expected[key]
                buffers[key] = replace(buffer, output=True, expected=bits, tolerance=tolerance)
            else:
                buffers[key] = replace(buffer, output=False)
        assert set(self.expected) <= set(buffers), "an output is no argument"
        rules = {key: self.operands[key].rule for key in buffers}
        stem = f"{name}.{self.arch}"
        (folder / f"{stem}.ptx").write_text(tidy(found.ptx))
        path = folder / f"{stem}.json"
        save(path, replace(found.launch, buffers=buffers), arrays=stem, rules=rules)
        text = path.read_text()
        for array in folder.glob(f"{stem}-*.npy"):
            shared = f"{hashlib.sha256(array.read_bytes()).hexdigest()[:12]}.npy"
            array.rename(folder / shared)
            text = text.replace(array.name, shared)
        path.write_text(text)


def tidy(ptx: str) -> str:
    """Without places in sources, blank lines, and comments other than the compiler's name: a third of the size."""
    mark = re.search(r"(?m)^// Generated by .*$", ptx)
    lines = [mark[0]] if mark else []
    lines += [line.partition("//")[0].rstrip() for line in ptx.splitlines()]
    return "\n".join(line for line in lines if line and not re.match(r"\s*\.(loc|file)\s", line)) + "\n"


@dataclass(frozen=True)
class Case:
    name: str
    arches: tuple[str, ...]
    make: Callable[[Run], None]


CASES: list[Case] = []


def case(*arches: str, **variants: dict[str, Any]) -> Callable[[Any], Any]:
    """Register the decorated function, `(Run) -> None`, for these architectures (none given: both); with variants,
    once each: `name_variant`, called with the variant's keywords."""

    def register(make: Any) -> Any:
        for suffix, given in (variants or {"": {}}).items():
            name = f"{make.__name__}_{suffix}" if suffix else make.__name__
            CASES.append(Case(name, arches or ARCHES, lambda run, given=given: make(run, **given)))
        return make

    return register
