"""What one entry of the instruction table is, and how a spelling is matched against it.

A row declares an instruction as data; builder, printer, parser, validator, reference page and the virtual
GPU's coverage test all read it. Nothing here executes or prints.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Literal

from smalti.ptx.isa.targets import LOWEST_VERSION
from smalti.ptx.module import Address, Label, Not, Operand, Pair, Register, Vector

ARCHITECTURES = tuple(LOWEST_VERSION)


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
    defined), "label", "symbol", "immediate". `type` is a PTX type, the name of a slot that holds it, one of
    `_DERIVED` applied to a slot, or "*"; of an address it is the state space.
    """

    name: str
    role: Literal["out", "in", "inout", "address", "label", "symbol", "immediate"]
    type: str = "*"
    optional: bool = False
    when: str = ""  # present exactly when this modifier is chosen
    vector: bool = False  # written {…}
    count: str = ""  # registers in the braces: a number, a slot such as "vec" (absent: a scalar), a key of `counts`
    pair: bool = False  # second half of `d|p`, joined to the operand before it
    sink: bool = False  # `_` may stand for it
    negatable: bool = False  # `!p` may stand for it
    register_only: bool = False  # no immediate
    wider: bool = False  # the register may be larger than the type (9.4.1)
    symbol: bool = False  # the address of a variable or function may stand for it
    list: bool = False  # a parenthesised list (call)


Scope = Literal["thread", "warp", "warpgroup", "cta", "cluster"]
Mods = Mapping[str, str]
Slots = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Row:
    """One instruction of the table.

    spelling    modifiers in order, optional ones in braces: "ld{.sem}{.scope}{.space}{.vec}.type".
                A name that is a key of `slots` stands for one of its tokens; any other name stands for itself.
    operands    comma-separated: "=d:type" written, "+d:type" read and written, "a:type" read, "[a]:space" address,
                "{=d*vec}:type" vector with its count, "=d|=p:pred" pair, "label", "#n" immediate. Behind the type:
                "~" may be the sink `_`, "!" may be negated, "$" must be a register, ">" may be larger than the type,
                "&" may be a variable's address; then "?" optional, "?name" there exactly when that modifier is
                chosen. ";" separates alternative lists.
    forbid      combinations of modifiers that do not exist: {"slot": ("token", ...)}; "" means absent.
    *_needs     what single modifiers, optional operands, and modifiers together need beyond the row's own need.
    counts      sizes of vectors that follow from the modifiers.
    ranges      legal values of an immediate operand, by its name (also for role "in" when an immediate is given).
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
    operand_needs: Mapping[str, Need] = field(default_factory=dict)
    together_needs: tuple[tuple[Mapping[str, tuple[str, ...]], Need], ...] = ()
    forbid: tuple[Mapping[str, tuple[str, ...]], ...] = ()
    counts: Mapping[str, Callable[[Mods], int]] = field(default_factory=dict)
    ranges: Mapping[str, Sequence[int]] = field(default_factory=dict)
    asynchronous: str = ""
    collective: Scope = "thread"
    section: str = ""
    executor: str = ""

    def __hash__(self) -> int:
        return hash((self.name, self.spelling))

    @cached_property
    def parts(self) -> tuple[tuple[str, bool], ...]:
        """(token or slot name, optional) in order."""
        found = re.finditer(r"\{\.([^{}]+)\}|\.?([^.{}]+)", self.spelling)
        return tuple((m[1] or m[2], m[1] is not None) for m in found)

    @cached_property
    def lists(self) -> tuple[tuple[OperandSpec, ...], ...]:
        """The alternative operand lists, each parsed."""
        return tuple(tuple(_parse_operands(one)) for one in self.operands.split(";"))

    @property
    def specs(self) -> tuple[OperandSpec, ...]:
        """The first operand list."""
        return self.lists[0]

    def tokens(self, part: str) -> tuple[str, ...]:
        return self.slots.get(part, (part,))

    def allows(self, mods: Mods) -> bool:
        return not any(holds(rule, mods) for rule in self.forbid)

    def match(self, tokens: tuple[str, ...]) -> dict[str, str] | None:
        """The modifiers of a spelling split at its dots, in the order of the row, or None."""

        def go(i: int, p: int, mods: dict[str, str]) -> dict[str, str] | None:
            if p == len(self.parts):
                return mods if i == len(tokens) and self.allows(mods) else None
            name, optional = self.parts[p]
            if i < len(tokens) and tokens[i] in self.tokens(name):
                found = go(i + 1, p + 1, {**mods, name: tokens[i]})
                if found is not None:
                    return found
            return go(i, p + 1, mods) if optional else None

        return go(0, 0, {})

    def match_any_order(self, tokens: tuple[str, ...]) -> dict[str, str] | None:
        """As `match`, for assemblers accept modifiers in any order. Types, spaces keep theirs: it has a meaning."""
        parts = self.parts

        def go(i: int, last: int, used: dict[int, str]) -> dict[str, str] | None:
            if i == len(tokens):
                if any(not optional and p not in used for p, (_, optional) in enumerate(parts)):
                    return None
                mods = {parts[p][0]: used[p] for p in sorted(used)}
                return mods if self.allows(mods) else None
            ordered = bool(_ORDERED.fullmatch(tokens[i]))
            for p, (name, _) in enumerate(parts):
                if p in used or (ordered and p < last) or tokens[i] not in self.tokens(name):
                    continue
                found = go(i + 1, p if ordered else last, {**used, p: tokens[i]})
                if found is not None:
                    return found
            return None

        return go(1, 0, {0: tokens[0]}) if len(tokens) <= _LONGEST else None


def holds(rule: Mapping[str, tuple[str, ...]], mods: Mods) -> bool:
    """Whether each slot of the rule has one of its tokens; "" means that the slot is absent."""
    return all(mods.get(slot, "") in tokens for slot, tokens in rule.items())


_LONGEST = 24  # modifiers in one opcode; bounds the search on strangers' input
_ORDERED = re.compile(
    r"pred|[bsufe]\d+(x\d+)?|bf16(x2)?|tf32|e\dm\d(x\d)?|ue8m0x2|ue4m3x2|global|local|const|param(::\w+)?|shared(::\w+)?"
)

_OPERAND = re.compile(
    r"(?P<open>[{\[(]?)(?P<role>[=+#]?)(?P<name>[A-Za-z_]\w*)(?:\*(?P<count>\w+))?[}\])]?"
    r"(?::(?P<type>[\w*.:]+(?:\(\w+\))?))?(?P<flags>[~!$>&]*)(?:(?P<optional>\?)(?P<when>[\w:]*))?"
)


def _parse_operands(text: str) -> list[OperandSpec]:
    specs: list[OperandSpec] = []
    for item in filter(None, (t.strip() for t in text.split(","))):
        for n, half in enumerate(item.split("|")):
            m = _OPERAND.fullmatch(half.strip())
            assert m, f"operand {half!r} in {text!r}"
            role = {"=": "out", "+": "inout", "#": "immediate", "": "in"}[m["role"]]
            if m["open"] == "[":
                role = "address"
            if m["name"] in ("label", "symbol"):
                role = m["name"]
            specs.append(
                OperandSpec(
                    name=m["name"],
                    role=role,  # type: ignore[arg-type]
                    type=m["type"] or "*",
                    optional=bool(m["optional"]) and not m["when"],
                    when=m["when"] or "",
                    vector=m["open"] == "{",
                    count=m["count"] or "",
                    pair=n > 0,
                    sink="~" in m["flags"],
                    negatable="!" in m["flags"],
                    register_only="$" in m["flags"],
                    wider=">" in m["flags"],
                    symbol="&" in m["flags"],
                    list=m["open"] == "(",
                )
            )
    return specs


# Types that follow from a modifier's: twice the width; f16 results packed two a register.
_DERIVED: Mapping[str, Callable[[str], str]] = {
    "wide": lambda t: f"{t[0]}{int(t[1:]) * 2}",
    "packed": lambda t: "b32" if t == "f16" else t,
}


@dataclass(frozen=True)
class Form:
    """A row with its modifiers chosen: the meaning of one spelling."""

    row: Row
    mods: Mods

    def __contains__(self, modifier: str) -> bool:
        return modifier in self.mods

    def get(self, slot: str, default: str = "") -> str:
        return self.mods.get(slot, default)

    @property
    def executor(self) -> str:
        return self.row.executor or self.row.name

    def type_of(self, spec: OperandSpec) -> str:
        """The PTX type of an operand, of an address its state space; "*" where any will do."""
        return self._facts[id(spec)][0]

    def count_of(self, spec: OperandSpec) -> int | None:
        """Registers in an operand's braces: 0 for a scalar, None for any number."""
        return self._facts[id(spec)][1]

    @cached_property
    def _facts(self) -> dict[int, tuple[str, int | None]]:
        return {id(s): (self._type(s), self._count(s)) for one in self.row.lists for s in one}

    def _type(self, spec: OperandSpec) -> str:
        t = spec.type
        if t.endswith(")"):
            rule, slot = t[:-1].split("(")
            return _DERIVED[rule](self.mods[slot])
        if t in self.row.slots:
            return self.mods.get(t, "")
        return t

    def _count(self, spec: OperandSpec) -> int | None:
        if not spec.vector:
            return 0
        if spec.count in self.row.counts:
            return self.row.counts[spec.count](self.mods) if not spec.when or spec.when in self.mods else 0
        if spec.count in self.row.slots:
            token = self.mods.get(spec.count, "")
            return int("".join(c for c in token if c.isdigit()) or 0)
        return int(spec.count) if spec.count else None

    @cached_property
    def _lists(self) -> tuple[tuple[OperandSpec, ...], ...]:
        return tuple(tuple(s for s in one if not s.when or s.when in self.mods) for one in self.row.lists)

    def lists(self) -> tuple[tuple[OperandSpec, ...], ...]:
        """The operand lists, without operands whose modifier was not chosen."""
        return self._lists

    def pairs(self, operands: Sequence[Operand]) -> list[tuple[OperandSpec, Operand]] | None:
        """Each operand with its specification, or None if the number or kinds do not fit.

        A `d|p` gives two; braces around a scalar are taken off.
        """
        last = None
        for specs in self._lists:
            found = self._pairs(specs, 0, operands, 0)
            if found is not None:
                if len(self._lists) == 1 or all(self._predicates_agree(spec, operand) for spec, operand in found):
                    return found
                last = found
        return last

    def _predicates_agree(self, spec: OperandSpec, operand: Operand) -> bool:
        if isinstance(operand, Not):
            return self.type_of(spec) == "pred"
        return not isinstance(operand, Register) or (operand.type == "pred") == (self.type_of(spec) == "pred")

    def bind(self, operands: Sequence[Operand]) -> dict[str, Operand] | None:
        """The operands by the names in the row; optional ones that are not there are absent."""
        pairs = self.pairs(operands)
        return None if pairs is None else {spec.name: operand for spec, operand in pairs}

    def _pairs(
        self, specs: tuple[OperandSpec, ...], s: int, operands: Sequence[Operand], o: int
    ) -> list[tuple[OperandSpec, Operand]] | None:
        """From spec `s` and operand `o` on; goes back only where something optional was there or not."""
        made: list[tuple[OperandSpec, Operand]] = []
        while s < len(specs):
            spec = specs[s]
            has_pair = s + 1 < len(specs) and specs[s + 1].pair
            after = s + 2 if has_pair else s + 1
            head = self._one(spec, specs[s + 1] if has_pair else None, operands[o]) if o < len(operands) else None
            if spec.optional:
                if head is not None:
                    rest = self._pairs(specs, after, operands, o + 1)
                    if rest is not None:
                        return made + head + rest
            elif head is None:
                return None
            else:
                made += head
                o += 1
            s = after
        return made if o == len(operands) else None

    def _one(
        self, spec: OperandSpec, second: OperandSpec | None, operand: Operand
    ) -> list[tuple[OperandSpec, Operand]] | None:
        if isinstance(operand, Pair):
            return [(spec, operand.first), (second, operand.second)] if second is not None else None
        if (second is not None and not second.optional) or not self._kind_fits(spec, operand):
            return None
        if spec.vector and isinstance(operand, Vector) and self.count_of(spec) == 0:
            operand = operand.items[0]
        return [(spec, operand)]

    def _kind_fits(self, spec: OperandSpec, operand: Operand) -> bool:
        if spec.list:
            return isinstance(operand, tuple)
        if spec.role == "address":
            return isinstance(operand, Address)
        if isinstance(operand, Vector):
            count = self.count_of(spec)
            if count == 0:
                return spec.vector and len(operand.items) == 1  # `ld.b32 {r}, [a]`: braces around a scalar
            return count is None or count == len(operand.items)
        if spec.role == "label":
            return isinstance(operand, Label)
        return not isinstance(operand, Address | Label | tuple) and self.count_of(spec) == 0


class Table:
    """All rows, found by spelling."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        names = [r.name for r in rows]
        assert len(set(names)) == len(names), sorted(n for n in set(names) if names.count(n) > 1)
        self._by_head: dict[str, list[Row]] = {}
        for r in rows:
            self._by_head.setdefault(r.parts[0][0], []).append(r)
        self.forms = lru_cache(maxsize=None)(self._forms)

    def _forms(self, opcode: str) -> tuple[Form, ...]:
        tokens = tuple(opcode.split("."))
        rows = self._by_head.get(tokens[0], ())
        for match in (Row.match, Row.match_any_order):
            found = [Form(r, mods) for r in rows if (mods := match(r, tokens)) is not None]
            if found:
                return tuple(found)
        return ()

    def form(self, opcode: str) -> Form | None:
        """The form that `opcode` spells, or None if no row knows it; the first where several rows share it."""
        found = self.forms(opcode)
        return found[0] if found else None

    def find(self, opcode: str, operands: Sequence[Operand]) -> Form | None:
        """The form of an instruction: where several rows share the spelling, the one that its operands fit."""
        found = self.forms(opcode)
        for form in found[:-1]:
            if form.pairs(operands) is not None:
                return form
        return found[-1] if found else None

    def row(self, name: str) -> Row:
        """The row of that name (KeyError if there is none)."""
        for r in self.rows:
            if r.name == name:
                return r
        raise KeyError(name)

    def heads(self) -> list[str]:
        return sorted(self._by_head)
