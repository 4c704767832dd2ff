"""Traces kept on disk between processes: the key of everything that one depends on, and its form as text and JSON.

The key covers the kernel's code, the functions it calls, closures and globals it reads, the static facts and
options, and the language itself. What cannot be keyed is not kept. No pickle; `run.cache` owns the files.
"""

from __future__ import annotations

import hashlib
import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from functools import cache
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Any

from smalti.errors import Loc
from smalti.lang import parameters
from smalti.lang.distribution import Distribution
from smalti.lang.dtypes import DType
from smalti.lang.plan import Barriers, Buffer, Note, Plan
from smalti.lang.signature import Facts
from smalti.lang.traced import Traced
from smalti.run.cache import Cache, key

if TYPE_CHECKING:
    from smalti.lang.kernel import Kernel

__all__ = ["key_of", "load", "save"]

FORMAT = 1
_PACKAGE = Path(__file__).parent.parent
_LAYERS = ("lang", "ptx", "layout", "numerics")  # whose files decide what a trace gives


class NotKeyable(Exception):
    """Something that a kernel depends on has no stable text."""


def key_of(kernel: Kernel, known: Mapping[str, Facts], options: Mapping[str, Any]) -> str | None:
    """The key of one trace, or None if it depends on something that cannot be keyed."""
    try:
        return key(
            kind="trace",
            format=FORMAT,
            python=list(sys.version_info[:2]),
            language=_language(),
            code=_digest(kernel.function),
            kernel=[kernel.name, kernel.signature.text, kernel.arch, kernel.threads, list(kernel.cluster), kernel.tidy],
            facts={n: [f.dtype.name, f.axis, f.alignment, f.scheme] for n, f in known.items()},
            options={n: _text(v) for n, v in options.items()},
        )
    except NotKeyable:
        return None


@cache
def _language() -> str:
    """A digest of names, sizes and times of this package's files: a change of the language is a change of the key."""
    digest = hashlib.sha256()
    for layer in _LAYERS:
        for path in sorted((_PACKAGE / layer).rglob("*.py")):
            state = path.stat()
            digest.update(f"{path.relative_to(_PACKAGE)} {state.st_size} {state.st_mtime_ns}\n".encode())
    return digest.hexdigest()


def _digest(function: FunctionType) -> str:
    digest = hashlib.sha256()
    for part in _parts(function, set()):
        digest.update(part.encode())
        digest.update(b"\n")
    return digest.hexdigest()


def _parts(function: FunctionType, seen: set[int]) -> Iterable[str]:
    """Texts that together say what a function does: its code, its defaults, and what it reaches by name."""
    if id(function) in seen:
        return
    seen.add(id(function))
    yield from _code(function.__code__)
    yield _text((function.__defaults__ or (), tuple((function.__kwdefaults__ or {}).items())))
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        yield from _value(name, cell.cell_contents, seen)
    for name in sorted(_names(function.__code__)):
        if name in function.__globals__:
            yield from _value(name, function.__globals__[name], seen)


def _code(code: CodeType) -> Iterable[str]:
    yield f"{code.co_filename}:{code.co_firstlineno} {code.co_code.hex()} {code.co_linetable.hex()}"
    yield repr((code.co_names, code.co_varnames, code.co_freevars, code.co_cellvars))
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _code(constant)
        else:
            yield repr(constant)


def _names(code: CodeType) -> set[str]:
    inner = (c for c in code.co_consts if isinstance(c, CodeType))
    return set(code.co_names).union(*map(_names, inner))


def _value(name: str, value: Any, seen: set[int]) -> Iterable[str]:
    yield name
    if isinstance(value, FunctionType):
        if not (value.__module__ or "").startswith("smalti.") or value.__module__.startswith("smalti.ops."):
            yield from _parts(value, seen)
        return
    if isinstance(value, ModuleType):
        if value.__name__.partition(".")[0] != "smalti" and getattr(value, "__file__", None):
            state = Path(str(value.__file__)).stat()
            yield f"{value.__file__} {state.st_size} {state.st_mtime_ns}"
        return
    if isinstance(value, type | BuiltinFunctionType):
        yield f"{value.__module__}.{value.__qualname__}"
        return
    yield _text(value)


def _text(value: Any) -> str:
    """A stable text of a plain value."""
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return f"{type(value).__name__} {value!r}"
    if isinstance(value, tuple | list):
        return "(" + ", ".join(map(_text, value)) + ")"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_text(k)}: {_text(v)}" for k, v in value.items()) + "}"
    if isinstance(value, DType):
        return f"dtype {value.name}"
    if isinstance(value, Distribution):
        return f"distribution {value} {value.digits} {hashlib.sha256(value.positions.tobytes()).hexdigest()}"
    raise NotKeyable(type(value).__name__)


# -- a trace as text and JSON ----------------------------------------------------------------------------


def save(at: str, traced: Traced) -> None:
    """Keep a trace."""
    said = {
        "parameters": [[type(p).__name__, asdict(p)] for p in traced.parameters],
        "grid": traced.grid,
        "block": traced.block,
        "cluster": traced.cluster,
        "shared": traced.shared,
        "plan": asdict(traced.plan) | {"options": {k: str(v) for k, v in traced.plan.options.items()}},
    }
    Cache().put(at, {"ptx": traced.ptx().encode(), "launch": json.dumps(said).encode()})


def load(at: str, kernel: Kernel, known: Mapping[str, Facts]) -> Traced | None:
    """The trace kept under that key, or None."""
    found = Cache().get(at)
    if found is None:
        return None
    said = json.loads(found["launch"])
    x, y, z = said["grid"]
    return Traced(
        None,
        kernel.name,
        kernel.signature,
        dict(known),
        tuple(_parameter(name, fields) for name, fields in said["parameters"]),
        (x, y, z),
        said["block"],
        tuple(said["cluster"]),
        said["shared"],
        _plan(said["plan"]),
        found["ptx"].decode(),
    )


def _parameter(name: str, fields: dict[str, Any]) -> parameters.Parameter:
    made: parameters.Parameter = getattr(parameters, name)(**_tuples(fields))
    return made


def _plan(said: dict[str, Any]) -> Plan:
    plan = Plan(**_tuples(said, ("cluster",)))
    plan.buffers = [Buffer(**_tuples(b)) for b in said["buffers"]]
    plan.barriers = [Barriers(**b) for b in said["barriers"]]
    plan.notes = [Note(**n | {"loc": Loc(*n["loc"]) if n["loc"] else None}) for n in said["notes"]]
    return plan


def _tuples(fields: dict[str, Any], names: tuple[str, ...] = ()) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) and (not names or k in names) else v for k, v in fields.items()}
