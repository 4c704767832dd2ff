"""`@sm.kernel`: a decorated function is traced once for each set of static facts; the trace is the compilation.

Turns facts into a finished PTX module with its plan and parameter list. Running it is in `call`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any

from smalti.errors import Loc, error, public
from smalti.lang import grid as grids
from smalti.lang.barriers import initialise
from smalti.lang.dtypes import DTYPES, DType
from smalti.lang.parameters import Parameters
from smalti.lang.plan import Plan
from smalti.lang.resources import check_shared
from smalti.lang.signature import Facts, Operand, Signature, facts, parse_signature
from smalti.lang.source import check_source
from smalti.lang.tensors import Tensor
from smalti.lang.trace import Trace, running, tracing
from smalti.lang.traced import Traced
from smalti.numerics.quantize import lookup
from smalti.ptx.finish import finish, shared_bytes
from smalti.ptx.tidy import tidy

__all__ = ["Kernel", "kernel"]

ARCHITECTURES = ("sm_90a", "sm_100a", "sm_103a")


@dataclass(eq=False)
class Kernel:
    """A kernel of the language. Made by `sm.kernel`.

    `kernel(a, b)` runs it and returns what it writes; `trace`, `ptx` and `plan` take arrays or facts instead:
    `matmul.ptx("bf16", "bf16", d="f32", tile=(128, 128, 64))`.
    """

    function: FunctionType
    signature: Signature
    arch: str
    threads: int = 128
    cluster: tuple[int, int, int] = (1, 1, 1)
    tidy: bool = True
    _traced: dict[Any, Traced] = field(default_factory=dict)

    def __post_init__(self) -> None:
        functools.update_wrapper(self, self.function)

    def __repr__(self) -> str:
        return f"<kernel {self.name}({self.signature.text}) for {self.arch}>"

    @property
    def name(self) -> str:
        return self.function.__name__

    @property
    def options(self) -> dict[str, Any]:
        """The keyword-only parameters of the function with their defaults: static choices such as tile shapes."""
        parameters = inspect.signature(self.function).parameters.values()
        return {p.name: p.default for p in parameters if p.kind is p.KEYWORD_ONLY}

    @public
    def trace(self, *operands: Any, **named: Any) -> Traced:
        """Trace it for these operands: arrays, facts (`sm.facts(...)`) or dtype names, in the signature's order
        or by name; what is written may be left out and then has the dtype of the first input (f32 for 8-bit and
        tf32 inputs, s32 for integers). Options of the kernel by name. Traces are kept.

        Errors: SML0322 operands, SML0323 options, and whatever the kernel's body raises.
        """
        known = {k: named.pop(k) for k in list(named) if k in self._operand_names()}
        return self.traced(self._facts(operands, known), named)

    @public
    def ptx(self, *operands: Any, **named: Any) -> str:
        """The PTX text of `trace(...)`."""
        return self.trace(*operands, **named).ptx()

    @public
    def plan(self, *operands: Any, **named: Any) -> Plan:
        """What `trace(...)` decided: memory, barriers, registers, and every fence, wait and copy that was implied."""
        return self.trace(*operands, **named).plan

    @public
    def __call__(
        self,
        *arrays: Any,
        device: Any = None,
        read_as: Mapping[str, str] | None = None,
        seed: int | None = None,
        checks: bool = True,
        **named: Any,
    ) -> Any:
        """Run it on arrays and return what it writes: one NumPy array, or a tuple of them.

        arrays   the inputs in the signature's order; an output is given by name as a dtype: d="f32"
        device   as in `sm.device`; the default device if None
        read_as  inputs whose bits are another format of the same width: {"a": "tf32"}
        seed, checks  of the virtual GPU, see `smalti.run.execute.run`
        named    outputs' dtypes, and options of the kernel

        Errors: those of `trace`, SML0370 and SML0371 for sizes that disagree, and those of `smalti.run`.
        """
        from smalti.lang.call import call

        return call(self, arrays, device, read_as or {}, named, seed=seed, checks=checks)

    def default_result(self, known: Mapping[str, Facts]) -> DType:
        """The dtype of an output that nobody named: that of the first input, f32 if it is narrow, s32 for integers."""
        inputs = self.signature.inputs
        first = known[inputs[0].name].dtype if inputs else DTYPES["f32"]
        if first.name in ("s8", "u8"):
            return DTYPES["s32"]
        return DTYPES["f32"] if first.bits <= 8 or first.name == "tf32" else first

    def traced(self, known: dict[str, Facts], options: dict[str, Any]) -> Traced:
        """`trace` for facts of every operand."""
        unknown = [k for k in options if k not in self.options]
        if unknown:
            raise error("SML0323", kernel=self.name, option=unknown[0], known=", ".join(self.options) or "none")
        chosen = {**self.options, **options}
        for name, value in chosen.items():
            if value is inspect.Parameter.empty:
                raise error("SML0322", kernel=self.name, reason=f"option {name} has no default and was not given")
        key = (tuple(known.items()), _key(chosen))
        if key not in self._traced:
            self._traced[key] = self._kept(known, chosen)
        return self._traced[key]

    def _kept(self, known: dict[str, Facts], options: dict[str, Any]) -> Traced:
        """A trace from the disk, or a new one, which is kept there."""
        from smalti.lang import store

        at = store.key_of(self, known, options)
        found = store.load(at, self, known) if at is not None else None
        if found is None:
            found = self._trace(known, options)
            if at is not None:
                store.save(at, found)
        return found

    def _operand_names(self) -> list[str]:
        return [o.name for o in self.signature.operands]

    def _facts(self, given: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Facts]:
        operands = self.signature.operands
        if len(given) > len(operands):
            raise error("SML0322", kernel=self.name, reason=f"{len(given)} operands for {len(operands)}")
        found = dict(zip((o.name for o in operands), given, strict=False))
        twice = sorted(set(found) & set(named))
        if twice:
            raise error("SML0322", kernel=self.name, reason=f"{twice[0]!r} is given twice")
        found.update(named)
        known: dict[str, Facts] = {}
        for operand in operands:
            if operand.name in found:
                known[operand.name] = facts_of(operand, found[operand.name])
            elif operand.written:
                known[operand.name] = Facts(self.default_result(known))
            else:
                raise error("SML0322", kernel=self.name, reason=f"{operand.name!r} is missing")
        return known

    def _trace(self, known: dict[str, Facts], options: dict[str, Any]) -> Traced:
        if tracing():
            raise error("SML0324", kernel=self.name)
        plan = Plan(self.name, self.arch, {n: f.describe() for n, f in known.items()}, options)
        parameters = Parameters()
        trace = Trace(self.name, self.arch, parameters, plan, self.threads // 32, options.get("cluster", self.cluster))
        with running(trace):
            tensors = [Tensor(o, known[o.name]) for o in self.signature.operands]
            self.function(*tensors, **options)
            return self._finish(trace, known)

    def _finish(self, trace: Trace, known: dict[str, Facts]) -> Traced:
        function, plan = trace.function, trace.plan
        assert function.body is not None
        written = set(map(id, function.body.instructions()))
        for act in trace.root.at_exit:
            act()
        initialise(trace)
        for act in trace.finishers:
            act()
        check_shared(plan)
        trace.emit("ret")
        code = self.function.__code__
        for i in function.body.instructions():
            if id(i) not in written and id(i) not in trace.located:  # of no line in particular
                i.loc = Loc(code.co_filename, code.co_firstlineno)
        function.params = trace.parameters.variables
        function.directives["reqntid"] = (trace.warps * 32, 1, 1)
        function.directives["minnctapersm"] = (1,)
        if trace.cluster != (1, 1, 1):
            function.directives["reqnctapercluster"] = trace.cluster
        grid = trace.grid or (1, 1, 1)
        if self.tidy:
            tidy(trace.module)
        finish(trace.module)
        plan.block, plan.cluster = trace.warps * 32, trace.cluster
        plan.grid = " x ".join(grids.show(g) for g in grid if g != 1) or "1"
        plan.parameters = [p.describe() for p in trace.parameters.specs]
        plan.named_barriers = trace.named
        plan.shared_bytes = shared_bytes(trace.module)
        plan.instructions = sum(1 for _ in function.body.instructions())
        return Traced(
            trace.module,
            self.name,
            self.signature,
            known,
            trace.parameters.specs,
            grid,
            plan.block,
            trace.cluster,
            plan.shared_bytes,
            plan,
        )


def facts_of(operand: Operand, given: Any) -> Facts:
    """Facts from what a user gave for an operand: facts, a dtype, its name, or an array. Errors: SML0321."""
    if isinstance(given, Facts):
        return given
    if isinstance(given, str) and operand.scaled:
        scheme = lookup(given)
        return Facts(DTYPES[scheme.element], scheme=scheme.name)
    if isinstance(given, str | DType):
        return facts(given)
    from smalti.lang.call import facts_of_array

    return facts_of_array(operand, given)


def _key(options: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple((k, v if not isinstance(v, list) else tuple(v)) for k, v in options.items())


def kernel(
    signature: str, *, arch: str, threads: int = 128, cluster: tuple[int, int, int] = (1, 1, 1)
) -> Callable[[Callable[..., None]], Kernel]:
    """Decorate a function as a kernel: `@sm.kernel("a[M,K], b[N,K] -> d[M,N]", arch="sm_90a")`.

    signature  operands in the order of the function's parameters; equal dimension names mean equal sizes
    arch       the architecture it is compiled for: sm_90a, sm_100a or sm_103a
    threads    of a CTA, unless `sm.roles` says it; a multiple of 32
    cluster    CTAs of a cluster along x, y, z; an option of that name in the function overrides it

    Errors: SML0320 signature, SML0325 architecture, SML0326 parameters that do not match, SML0310 to SML0312 from
    the check of the source.
    """
    parsed = parse_signature(signature)
    if arch not in ARCHITECTURES:
        raise error("SML0325", arch=arch, known=", ".join(ARCHITECTURES))
    if threads % 32 or not 32 <= threads <= 1024:
        raise error("SML0304", what="threads of a kernel", value=threads, wanted="a multiple of 32 up to 1024")

    def decorate(function: Callable[..., None]) -> Kernel:
        assert isinstance(function, FunctionType), "a kernel is a plain function"
        names = [p.name for p in inspect.signature(function).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
        wanted = [o.name for o in parsed.operands]
        if names != wanted:
            raise error("SML0326", kernel=function.__name__, have=", ".join(names), wanted=", ".join(wanted))
        check_source(function)
        return Kernel(function, parsed, arch, threads, cluster)

    return decorate
