"""What one entry of the instruction table is, and how a spelling is matched against it.

A row declares an instruction as data; builder, printer, parser, validator, reference page and the virtual
GPU's coverage test all read it. Nothing here executes or prints.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal

ARCHITECTURES = (
    "sm_50 sm_52 sm_53 sm_60 sm_61 sm_62 sm_70 sm_72 sm_75 sm_80 sm_86 sm_87 sm_88 sm_89 sm_90 sm_90a "
    "sm_100 sm_100f sm_100a sm_103 sm_103f sm_103a sm_110 sm_110f sm_110a sm_120 sm_120f sm_120a sm_121 sm_121f sm_121a"
).split()


def since(arch: str) -> frozenset[str]:
    """Every architecture from `arch` on (a base feature, kept by later ones)."""
    number = int(re.sub(r"\D", "", arch))
    return frozenset(a for a in ARCHITECTURES if int(re.sub(r"\D", "", a)) >= number)


def only(*archs: str) -> frozenset[str]:
    """Exactly these architectures (`a` and `f` variants are listed one by one)."""
    assert set(archs) <= set(ARCHITECTURES), archs
    return frozenset(archs)


# Blackwell data-centre family features: present on sm_100a/103a/110a and the family (f) targets.
TCGEN05 = only("sm_100a", "sm_100f", "sm_103a", "sm_103f", "sm_110a", "sm_110f")


@dataclass(frozen=True, slots=True)
class Need:
    """What a row or one of its modifiers needs of the target."""

    arch: frozenset[str] = frozenset(ARCHITECTURES)
    ptx: tuple[int, int] = (1, 0)


@dataclass(frozen=True, slots=True)
class OperandSpec:
    """One operand of a row.

    `role`: "out" written, "in" read, "inout" both, "address" a memory operand (its registers are read and must be
    defined), "label", "symbol", "immediate". `type` is a PTX type, the name of a slot that holds it, or "*".
    """

    name: str
    role: Literal["out", "in", "inout", "address", "label", "symbol", "immediate"]
    type: str = "*"
    optional: bool = False
    vector: bool = False  # written {…}: any number of registers, all of `role`
    pair: bool = False  # second half of `d|p`, joined to the operand before it


Scope = Literal["thread", "warp", "warpgroup", "cta", "cluster"]


@dataclass(frozen=True)
class Row:
    """One instruction of the table.

    spelling    modifiers in order, optional ones in braces: "ld{.sem}{.scope}{.space}{.vec}.type".
                A name that is a key of `slots` stands for one of its tokens; any other name stands for itself.
    operands    comma-separated: "=d:type" written, "+d:type" read and written, "a:type" read, "[a]:space" address,
                "{=d}:type" vector, "=d|=p:pred" pair, "label", "#n" immediate; a trailing "?" means optional.
    collective  which threads must execute it together: thread (any), warp (.sync.aligned), warpgroup, cta, cluster.
    asynchronous  the engine that performs it ("tma", "wgmma", "tcgen05", "cp.async"), or "" for synchronous.
    executor    the name under which the virtual GPU executes it; the name of the row unless given.
    """

    name: str
    spelling: str
    operands: str = ""
    slots: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    need: Need = Need()
    token_needs: Mapping[str, Need] = field(default_factory=dict)
    asynchronous: str = ""
    collective: Scope = "thread"
    section: str = ""
    executor: str = ""

    def __hash__(self) -> int:
        return hash((self.name, self.spelling))

    @cached_property
    def parts(self) -> tuple[tuple[str, bool], ...]:
        """(token or slot name, optional) in order."""
        out = []
        for m in re.finditer(r"\{\.([^{}]+)\}|\.?([^.{}]+)", self.spelling):
            out.append((m.group(1) or m.group(2), m.group(1) is not None))
        return tuple(out)

    @cached_property
    def specs(self) -> tuple[OperandSpec, ...]:
        return tuple(_parse_operands(self.operands))

    def match(self, tokens: tuple[str, ...]) -> dict[str, str] | None:
        """The modifiers of a spelling split at its dots, or None if it is not of this row."""

        def go(i: int, p: int, mods: dict[str, str]) -> dict[str, str] | None:
            if p == len(self.parts):
                return mods if i == len(tokens) else None
            name, optional = self.parts[p]
            for width in (3, 2, 1):  # a token may itself contain dots, e.g. "b4x16_p64" families or "shared::cta"
                if i + width > len(tokens):
                    continue
                text = ".".join(tokens[i : i + width])
                if text in self.slots.get(name, (name,)):
                    found = go(i + width, p + 1, {**mods, name: text})
                    if found is not None:
                        return found
            return go(i, p + 1, mods) if optional else None

        return go(0, 0, {})


def _parse_operands(text: str) -> list[OperandSpec]:
    specs: list[OperandSpec] = []
    for item in filter(None, (t.strip() for t in text.split(","))):
        for n, half in enumerate(item.split("|")):
            m = re.fullmatch(r"(\{?)([=+#\[]?)([A-Za-z_][\w-]*)\]?(\}?)(?::([\w*.]+))?(\??)", half.strip())
            assert m, f"operand {half!r} in {text!r}"
            role = {"=": "out", "+": "inout", "#": "immediate", "[": "address", "": "in"}[m.group(2)]
            if m.group(3) in ("label", "symbol"):
                role = m.group(3)
            specs.append(
                OperandSpec(
                    name=m.group(3),
                    role=role,  # type: ignore[arg-type]
                    type=m.group(5) or "*",
                    optional=bool(m.group(6)),
                    vector=bool(m.group(1)),
                    pair=n > 0,
                )
            )
    return specs


@dataclass(frozen=True, slots=True)
class Form:
    """A row with its modifiers chosen: the meaning of one spelling."""

    row: Row
    mods: Mapping[str, str]

    def __contains__(self, modifier: str) -> bool:
        return modifier in self.mods

    def get(self, slot: str, default: str = "") -> str:
        return self.mods.get(slot, default)

    @property
    def executor(self) -> str:
        return self.row.executor or self.row.name


class Table:
    """All rows, found by spelling."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self._by_head: dict[str, list[Row]] = {}
        for r in rows:
            self._by_head.setdefault(r.parts[0][0], []).append(r)
        self.form = lru_cache(maxsize=None)(self._form)

    def _form(self, opcode: str) -> Form | None:
        """The form that `opcode` spells, or None if no row knows it."""
        tokens = tuple(opcode.split("."))
        for r in self._by_head.get(tokens[0], ()):
            mods = r.match(tokens)
            if mods is not None:
                return Form(r, mods)
        return None

    def heads(self) -> list[str]:
        return sorted(self._by_head)
