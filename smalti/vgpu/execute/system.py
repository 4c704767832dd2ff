"""The system functions that kernels may call: vprintf and __assertfail (CUDA programming guide, system calls in PTX).

Reads their arguments and strings; knows nothing of control flow.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable
from typing import Any

import numpy as np

from smalti.errors import error
from smalti.ptx.module import Operand, Register, Variable
from smalti.vgpu.execute import Context, Operation
from smalti.vgpu.program import Step
from smalti.vgpu.warp import Gang

LONGEST = 4096  # bytes of a string; bounds the work on strangers' input
Arguments = Callable[[Gang], list[Any]]  # of a gang: for each argument one unsigned value an active lane


def arguments(context: Context, step: Step) -> Arguments:
    """The arguments of a call: parameters of the thread's own, registers or constants."""
    lists = [o for o in step.instruction.operands if isinstance(o, tuple)]
    returns = isinstance(step.instruction.operands[0], tuple)
    given: tuple[Operand, ...] = lists[-1] if len(lists) > returns else ()

    def one(operand: Operand, g: Gang) -> Any:
        if isinstance(operand, Variable):
            place = context.machine.place_of(operand)
            base = g.pick(g.cta.local_base(g)) + place
            return g.machine.memory.load(g, g.cta, "local", base, operand.size)[0]
        bits = context.program.widths[context.number(operand)] if isinstance(operand, Register) else 64
        return g.pick(np.broadcast_to(context.source(operand, f"u{bits}")(g), g.width))

    return lambda g: [one(o, g) for o in given]


def text(g: Gang, address: int) -> str:
    """The zero-terminated string at a generic address. Errors: as any access there."""
    segment, offsets, _ = g.machine.memory.resolve(g, g.cta, "generic", np.array([address], np.int64), 1)[0]
    start = int(offsets[0])
    raw = bytes(segment.data[start : min(start + LONGEST, segment.size)])
    return raw.split(b"\0")[0].decode("utf-8", "replace")


def assertion(given: Arguments, step: Step) -> Operation:
    """__assertfail(message, file, line, function, character size)."""

    def run(g: Gang) -> None:
        message, file, line, function = (int(a[0]) for a in given(g)[:4])
        raise error(
            "SML0818", at=step.loc, what=text(g, message), function=text(g, function), file=text(g, file), line=line,
            who=g.who(),
        )  # fmt: skip

    return run


def printing(given: Arguments, step: Step) -> Operation:
    """vprintf(format, arguments): one line of Machine.printed for each lane."""

    def run(g: Gang) -> None:
        formats, places = given(g)[:2]
        for f, p in zip(formats, places, strict=True):
            g.machine.printed.append(_printf(g, text(g, int(f)), int(p)))

    return run


_FIELD = re.compile(r"%([-+ #0]*)(\*|\d+)?(?:\.(\*|\d+))?(hh|h|ll|l|z|j|t)?([diouxXcfFeEgGaAsp%])")


def _printf(g: Gang, format_: str, place: int) -> str:
    """`format_` with the arguments laid out at a generic address, each aligned to its size."""

    def take(size: int) -> bytes:
        nonlocal place
        place = -(-place // size) * size
        raw, _ = g.machine.memory.load(g, g.cta, "generic", np.array([place], np.int64), size)
        place += size
        return raw.tobytes()

    def number(spec: str | None) -> str:
        return str(struct.unpack("<i", take(4))[0]) if spec == "*" else spec or ""

    def field(m: re.Match[str]) -> str:
        flags, width, precision, length, kind = m.groups()
        if kind == "%":
            return "%"
        spec = "%" + flags + number(width)[:4] + (f".{number(precision)[:4]}" if precision is not None else "")
        if kind == "s":
            return (spec + "s") % text(g, int.from_bytes(take(8), "little"))
        if kind == "p":
            return (spec + "s") % hex(int.from_bytes(take(8), "little"))
        if kind in "fFeEgGaA":
            value = struct.unpack("<d", take(8))[0]
            return value.hex() if kind in "aA" else str((spec + kind) % value)
        wide = length in ("l", "ll", "z", "j", "t")
        whole = int.from_bytes(take(8 if wide else 4), "little", signed=kind in "di")
        return (spec + "s") % chr(whole & 0xFF) if kind == "c" else str((spec + kind.replace("u", "d")) % whole)

    return _FIELD.sub(field, format_)


SYSTEM: dict[str, Callable[[Arguments, Step], Operation]] = {"vprintf": printing, "__assertfail": assertion}
