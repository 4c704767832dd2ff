"""The first of the two steps that see the whole module: names, declarations, shared memory, versions.

Gives every register and label its name, places shared variables in one aligned buffer, and counts what the
hardware limits. It changes no instruction but the addresses of shared variables.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace

from smalti.errors import error
from smalti.ptx.check import needs
from smalti.ptx.isa import TABLE
from smalti.ptx.isa.targets import LOWEST_VERSION, shared_limit
from smalti.ptx.limits import alignment, limit_problems, too_much_shared
from smalti.ptx.module import (
    Address,
    Block,
    BranchTargets,
    Declare,
    Function,
    Instruction,
    Label,
    Mark,
    Module,
    Operand,
    Register,
    Statement,
    SymbolAddress,
    Tile,
    Variable,
    Vector,
    registers_of,
)

BUFFER = "shared_memory"
ALIGNMENT = 1024  # the period of the largest swizzle (PTX 9.7.15.5.1.2.2): descriptors need the buffer on it

_PREFIX = {"pred": "%p", "f32": "%f", "f64": "%fd", "b32": "%r", "b64": "%rd", "b16": "%h", "b128": "%q"}


def finish(module: Module) -> None:
    """Complete `module` in place, so that it can be printed. A finished module is left as it is.

    Every shared variable declared in a kernel becomes a part of one `.extern .shared` buffer, aligned to 1024
    bytes, largest alignment first; `shared_bytes` tells its size and `module.tiles` who lies where. The version
    is raised to the lowest that has everything used.

    Errors: SML0501 too much shared memory, SML0502 setmaxnreg without effect, SML0503 too many threads,
    SML0504 too large a cluster, SML0505 too many bytes of parameters.
    """
    for function in module.functions():
        if function.body is not None:
            _place_shared(module, function, function.body)
            _name(function, function.body)
            for problem in limit_problems(module, function):
                raise problem
            _check_registers(function, function.body)
    module.version = max(module.version, lowest_version(module))
    known = set(module.files.values())
    for loc in dict.fromkeys(i.loc.file for i in _instructions(module) if i.loc is not None):
        if loc not in known:
            module.files[max(module.files, default=0) + 1] = loc


def shared_bytes(module: Module) -> int:
    """Bytes of dynamic shared memory that the kernels of a finished module need at launch."""
    return max((t.offset + t.size for t in module.tiles if t.place == "shared"), default=0)


def lowest_version(module: Module) -> tuple[int, int]:
    """The lowest PTX version that knows the target and every instruction of `module`."""
    version = LOWEST_VERSION[module.target]
    for i in _instructions(module):
        form = TABLE.find(i.opcode, i.operands)
        if form is not None:
            version = max(version, *(need.ptx for _, need in needs(i, form)))
    return version


def _instructions(module: Module) -> Iterator[Instruction]:
    for function in module.functions():
        if function.body is not None:
            yield from function.body.instructions()


# -- shared memory -------------------------------------------------------------------------------------


def _place_shared(module: Module, function: Function, body: Block) -> None:
    variables = _take_shared(body)
    if not variables:
        return
    used = shared_bytes(module) if len(module.functions()) > 1 else 0
    offsets: dict[Variable, int] = {}
    end = 0
    for v in sorted(variables, key=lambda v: -alignment(v)):
        offsets[v] = -(-end // alignment(v)) * alignment(v)
        end = offsets[v] + v.size
    if end > shared_limit(module.target):
        raise too_much_shared(module, function, end, variables)
    assert used == 0, "one kernel with shared memory a module"
    buffer = next((v for v in module.items if isinstance(v, Variable) and v.name == BUFFER), None)
    if buffer is None:
        buffer = Variable(BUFFER, "shared", "b8", (0,), ALIGNMENT, linkage="extern")
        module.items.insert(0, buffer)
    rewrite_addresses(body, offsets, buffer)
    for v in variables:
        _record(module, v, offsets[v])


def _take_shared(block: Block) -> list[Variable]:
    """Removes the declarations of shared variables from a block and those inside it; gives them in order."""
    found: list[Variable] = []
    kept: list[Statement] = []
    for s in block.statements:
        if (
            isinstance(s, Declare)
            and s.variable is not None
            and s.variable.space == "shared"
            and not s.variable.linkage
        ):
            found.append(s.variable)
            continue
        if isinstance(s, Block):
            found += _take_shared(s)
        kept.append(s)
    block.statements[:] = kept
    return found


def _record(module: Module, v: Variable, offset: int) -> None:
    """Tells in the table of tiles where a variable lies; what the author said of it stays."""
    for n, tile in enumerate(module.tiles):
        if tile.place == "shared" and tile.name == v.name:
            module.tiles[n] = replace(tile, offset=offset, size=v.size)
            return
    module.tiles.append(Tile(v.name, "shared", offset, v.size, v.count, v.type))


def rewrite_addresses(body: Block, offsets: dict[Variable, int], buffer: Variable) -> None:
    """Replaces each variable of `offsets` by its place in `buffer`, in all operands."""

    def change(o: Operand) -> Operand:
        if isinstance(o, Address):
            if isinstance(o.base, Variable) and o.base in offsets:
                return Address(buffer, o.offset + offsets[o.base], o.coordinates)
        elif isinstance(o, SymbolAddress):
            if isinstance(o.symbol, Variable) and o.symbol in offsets:
                return SymbolAddress(buffer, o.offset + offsets[o.symbol])
        elif isinstance(o, Vector):
            return Vector(tuple(map(change, o.items)))
        return o

    for i in body.instructions():
        i.operands = tuple(map(change, i.operands))


# -- names ---------------------------------------------------------------------------------------------


def _name(function: Function, body: Block) -> None:
    declared = {r for s in body.walk() if isinstance(s, Declare) for r in s.registers}
    used: dict[Register, None] = {}
    labels: dict[Label, None] = {}
    for s in body.walk():
        if isinstance(s, Instruction):
            for o in s.operands:
                used.update(dict.fromkeys(registers_of(o)))
                if isinstance(o, Label):
                    labels[o] = None
            if s.guard is not None:
                used[s.guard.register] = None
        elif isinstance(s, Mark):
            labels[s.label] = None
        elif isinstance(s, BranchTargets):
            labels.update(dict.fromkeys((s.label, *s.targets)))
    fresh = [r for r in used if r not in declared]
    taken = {r.name for r in (*declared, *used) if r.name} | {label.name for label in labels if label.name}
    by_type: dict[str, list[Register]] = {}
    for r in fresh:
        by_type.setdefault(r.type, []).append(r)
    made = []
    for type_, group in by_type.items():
        prefix = _free_prefix(_PREFIX.get(type_, f"%{type_}_"), taken)
        unnamed = [r for r in group if not r.name]
        for n, r in enumerate(unnamed):
            r.name = f"{prefix}{n}"
        made += [*unnamed, *(r for r in group if r not in unnamed)]
    if made:
        body.statements.insert(0, Declare(tuple(made)))
    prefix = _free_prefix(f"${function.name}_", taken)
    for n, label in enumerate(x for x in labels if not x.name):
        label.name = f"{prefix}{n}"


def _free_prefix(prefix: str, taken: set[str]) -> str:
    while any(re.fullmatch(re.escape(prefix) + r"\d+", name) for name in taken):
        prefix += "_"
    return prefix


def _check_registers(function: Function, body: Block) -> None:
    """setmaxnreg has an effect only where the assembler knows how many registers a thread starts with."""
    d = function.directives
    if not function.entry or "maxnreg" in d or ("minnctapersm" in d and ("reqntid" in d or "maxntid" in d)):
        return
    for i in body.instructions():
        if i.opcode.startswith("setmaxnreg"):
            raise error("SML0502", at=i.loc, kernel=function.name, opcode=i.opcode)
