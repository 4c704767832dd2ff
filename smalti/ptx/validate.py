"""Whether a module keeps the rules of PTX, architecture and version included, before any assembler sees it.

Knows the table and the grammar's leftovers (labels, declarations, directives), nothing of execution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from smalti.errors import SmaltiError, error
from smalti.ptx import check
from smalti.ptx.isa import TABLE
from smalti.ptx.isa.targets import LOWEST_VERSION
from smalti.ptx.limits import limit_problems
from smalti.ptx.module import (
    Block,
    BranchTargets,
    CallPrototype,
    Declare,
    Function,
    Instruction,
    Label,
    Mark,
    Module,
)

VERSIONS = frozenset(
    (major, minor)
    for major, last in ((1, 5), (2, 3), (3, 2), (4, 3), (5, 0), (6, 5), (7, 8), (8, 8), (9, 5))
    for minor in range(last + 1)
)
_B128 = (8, 3)  # registers of 128 bits (5.2.1)
# Performance directives, with the numbers that each may take (11.4, 11.7, 11.8).
DIRECTIVES: dict[str, range] = {
    "maxnreg": range(1, 2),
    "maxntid": range(1, 4),
    "reqntid": range(1, 4),
    "minnctapersm": range(1, 2),
    "reqnctapercluster": range(1, 4),
    "explicitcluster": range(1),
    "maxclusterrank": range(1, 2),
    "blocksareclusters": range(1),
    "abi_preserve": range(1, 2),
    "abi_preserve_control": range(1, 2),
}
_CLUSTER = ("reqnctapercluster", "explicitcluster", "maxclusterrank")
_CONTRADICT = (("maxntid", "reqntid"), ("maxclusterrank", "reqnctapercluster"))
_SHOWN = 5  # problems spelled out in one message


def validate(module: Module) -> None:
    """Raise if `module` breaks a rule of PTX; return None if it keeps them all.

    Errors: the rule's own code if one is broken (SML0202-SML0206 an instruction, SML0207 instructions that are not
    known, SML0215 and SML0216 addresses, SML0217 target, SML0218 version, SML0219 label, SML0220 directive, SML0221
    CTA groups mixed, SML0222 no PTX version, SML0501-SML0505 limits), SML0208 if several are.
    """
    found = list(problems(module))
    if len(found) == 1:
        raise found[0]
    if found:
        counts = Counter((e.code, e.message) for e in found)
        firsts = {(e.code, e.message): e for e in reversed(found)}
        texts = [f"{firsts[m]} ({n} times)" if n > 1 else str(firsts[m]) for m, n in counts.items()]
        shown = "; ".join(texts[:_SHOWN])
        more = f"; and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
        raise error("SML0208", at=found[0].location, count=len(found), problems=shown + more)


def problems(module: Module) -> Iterator[SmaltiError]:
    """Every broken rule, in the order of the module."""
    lowest = LOWEST_VERSION.get(module.target)
    if lowest is None:
        yield error("SML0217", target=module.target, names=", ".join(LOWEST_VERSION))
        return
    version = "{}.{}".format(*module.version)
    if module.version not in VERSIONS:
        nearest = max(v for v in VERSIONS if v <= max(module.version, lowest))
        yield error("SML0222", version=version, nearest="{}.{}".format(*nearest))
    elif module.version < lowest:
        yield error("SML0218", version=version, target=module.target, needed="{}.{}".format(*lowest))
    yield from _unknown(module)
    for function in module.functions():
        yield from _directives(module, function)
        yield from limit_problems(module, function)
        if function.body is not None:
            yield from _body(module, function.body)


def _unknown(module: Module) -> Iterator[SmaltiError]:
    """All instructions that the table lacks, in one error."""
    counts = Counter(
        i.opcode for f in module.functions() if f.body for i in f.body.instructions() if TABLE.form(i.opcode) is None
    )
    if counts:
        listed = ", ".join(
            f"{n} x {opcode} (look at {check.nearest(opcode)})" for opcode, n in counts.most_common(_SHOWN)
        )
        more = f", and {len(counts) - _SHOWN} other forms" if len(counts) > _SHOWN else ""
        yield error("SML0207", count=sum(counts.values()), forms=len(counts), listed=listed + more)


def _body(module: Module, body: Block) -> Iterator[SmaltiError]:
    groups: dict[str, Instruction] = {}
    places = Counter(s.label for s in body.walk() if isinstance(s, Mark | BranchTargets | CallPrototype))
    for s in body.walk():
        if isinstance(s, Instruction):
            form = TABLE.find(s.opcode, s.operands)
            if form is not None:
                yield from check.need_problems(s, form, module.target, module.version)
                yield from check.operand_problems(s, form)
                if form.row.name.startswith("tcgen05.") and "cta_group" in form:
                    groups.setdefault(form.mods["cta_group"], s)
            if s.guard is not None and s.guard.register.type != "pred":
                given = f".{s.guard.register.type}"
                yield error(
                    "SML0203", at=s.loc, opcode=s.opcode, operand="guard", given=given, expected="a .pred register"
                )
            for label in (o for o in s.operands if isinstance(o, Label)):
                if places[label] != 1:
                    yield error(
                        "SML0219", at=s.loc, opcode=s.opcode, label=label.name or "a label", places=places[label]
                    )
        elif isinstance(s, Declare) and any(r.type == "b128" for r in s.registers) and module.version < _B128:
            yield error(
                "SML0206", opcode=".reg .b128", what="the type", needed="8.3", version="{}.{}".format(*module.version)
            )
    if len(groups) > 1:
        one, other = groups.values()
        yield error("SML0221", at=other.loc, opcode=other.opcode, first=one.opcode)


def _directives(module: Module, function: Function) -> Iterator[SmaltiError]:
    d = function.directives
    for name, values in d.items():
        if name not in DIRECTIVES:
            reason = f"there is none of that name; known are {', '.join(DIRECTIVES)}"
            yield error("SML0220", kernel=function.name, directive=name, reason=reason)
        elif len(values) not in DIRECTIVES[name] or any(v < 1 for v in values):
            count = check.describe_range(DIRECTIVES[name])
            yield error("SML0220", kernel=function.name, directive=name, reason=f"it takes {count} positive numbers")
    for one, other in _CONTRADICT:
        if one in d and other in d:
            yield error("SML0220", kernel=function.name, directive=one, reason=f"it contradicts .{other}")
    number = int("".join(c for c in module.target if c.isdigit()))
    for name in _CLUSTER:
        if name in d and (number < 90 or module.version < (7, 8)):
            yield error("SML0220", kernel=function.name, directive=name, reason="clusters need sm_90 and PTX 7.8")
