"""What the hardware limits, counted on a module before any assembler runs. Knows nothing of instructions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from smalti.errors import SmaltiError, error
from smalti.ptx.isa.targets import shared_limit
from smalti.ptx.module import Declare, Function, Module, Variable, type_bits

THREADS = 1024  # of a CTA (CUDA programming guide, compute capabilities)
PARAMETER_BYTES = 32764  # of a kernel, sm_70 on (PTX 5.1.6.1)
CLUSTER = 16  # CTAs of a cluster, with the non-portable size allowed


def alignment(v: Variable) -> int:
    """The alignment of a variable in bytes: the one given, or that of its type."""
    return max(v.align, type_bits(v.type) // 8 * v.vector)


def limit_problems(module: Module, function: Function) -> Iterator[SmaltiError]:
    """SML0501 shared memory, SML0503 threads, SML0504 cluster, SML0505 parameters."""
    d, name = function.directives, function.name
    threads = math.prod(d.get("reqntid", d.get("maxntid", (1,))))
    if threads > THREADS:
        yield error("SML0503", kernel=name, threads=threads, limit=THREADS)
    cluster = math.prod(d.get("reqnctapercluster", (1,)))
    if cluster > CLUSTER:
        yield error("SML0504", kernel=name, ctas=cluster, limit=CLUSTER)
    if function.entry:
        size = _laid_out(function.params)
        if size > PARAMETER_BYTES:
            yield error("SML0505", kernel=name, bytes=size, limit=PARAMETER_BYTES)
    statics = [v for v in module.items if isinstance(v, Variable) and v.space == "shared" and not v.linkage]
    if function.body is not None:
        declared = (s.variable for s in function.body.walk() if isinstance(s, Declare) and s.variable is not None)
        statics += [v for v in declared if v.space == "shared" and not v.linkage]
    total = _laid_out(statics)
    if total > shared_limit(module.target):
        yield too_much_shared(module, function, total, statics)


def too_much_shared(module: Module, function: Function, total: int, variables: Sequence[Variable]) -> SmaltiError:
    which = ", ".join(f"{v.name} {v.size}" for v in sorted(variables, key=lambda v: -v.size)[:4])
    limit = shared_limit(module.target)
    name, target, over = function.name, module.target, total - limit
    return error("SML0501", kernel=name, bytes=total, limit=limit, target=target, which=which, over=over)


def _laid_out(variables: Sequence[Variable]) -> int:
    """Bytes of variables one after the other, each aligned."""
    end = 0
    for v in variables:
        end = -(-end // alignment(v)) * alignment(v) + v.size
    return end
