"""The check of a kernel's source: what running a function once cannot express is refused, nothing is rewritten.

In a traced loop or branch: a name that is read and rebound (it would be computed once, at trace time), and
`break`, `continue`, `return` (Python would follow them, the GPU never sees them). Loops and branches that the
syntax shows are checked at decoration, the others when tracing enters them.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from types import CodeType, FrameType, FunctionType

from smalti.errors import Loc, error
from smalti.lang.trace import user_frame

__all__ = ["check_branch", "check_loop", "check_source"]

# Attribute names whose call makes a run-time loop or branch: sm.range(...), A.range(1), sm.persistent(...), ...
_LOOPS = frozenset({"range", "persistent", "while_"})
_BRANCHES = frozenset({"when", "otherwise", "elect"})
_PLACES = frozenset({"var"})

_Scope = ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda | ast.ClassDef


@dataclass
class Finding:
    """Something refused inside one `for` or `with`: rebound names, or a jump out of it."""

    line: int
    name: str = ""  # "" for a jump
    jump: str = ""
    augmented: bool = False  # only `x += ...`, which a Var takes in place


@dataclass
class Analysis:
    """Findings by the line of the `for` or `with` statement, and which of those are traced for certain."""

    findings: dict[int, list[Finding]] = field(default_factory=dict)
    certain: dict[int, str] = field(default_factory=dict)  # line -> "loop" or "branch"


def check_source(function: FunctionType) -> None:
    """At decoration: refuse what is wrong in loops and branches that are traced for certain. Errors: SML0310-0312."""
    analysis = _analyse(function.__code__)
    for line, kind in analysis.certain.items():
        _refuse(analysis.findings.get(line, ()), kind, function.__code__.co_filename, {})


def check_loop() -> None:
    """At the start of a traced loop: check the `for` statement that the kernel is at."""
    _check_here("loop")


def check_branch() -> None:
    """At the start of a traced branch: check the `with` statement that the kernel is at."""
    _check_here("branch")


def _check_here(kind: str) -> None:
    frame = user_frame()
    if frame is None:
        return
    analysis = _analyse(frame.f_code)
    found = analysis.findings.get(_statement_line(frame, analysis), ())
    if found:
        _refuse(found, kind, frame.f_code.co_filename, frame.f_locals)


def _statement_line(frame: FrameType, analysis: Analysis) -> int:
    """The line of the statement that runs (its header may span lines: the nearest known line above)."""
    known = [line for line in analysis.findings if line <= frame.f_lineno]
    return max(known, default=0) if frame.f_lineno not in analysis.findings else frame.f_lineno


def _refuse(findings: object, kind: str, file: str, names: dict[str, object]) -> None:
    from smalti.lang.values import Var

    assert isinstance(findings, list | tuple)
    for f in findings:
        if f.jump:
            raise error("SML0311", at=Loc(file, f.line), jump=f.jump, kind=kind)
        if f.augmented and isinstance(names.get(f.name), Var):
            continue
        raise error("SML0310", at=Loc(file, f.line), name=f.name, kind=kind)


@lru_cache(maxsize=256)
def _analyse(code: CodeType) -> Analysis:
    try:
        lines, first = inspect.getsourcelines(code)
    except (OSError, TypeError) as no_source:
        raise error("SML0312", function=code.co_name, file=code.co_filename) from no_source
    tree = ast.parse(textwrap.dedent("".join(lines)))
    ast.increment_lineno(tree, first - 1)
    analysis = Analysis()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.Lambda):
            _analyse_function(node, analysis)
            break
    return analysis


def _analyse_function(function: ast.FunctionDef | ast.Lambda, analysis: Analysis) -> None:
    body = function.body if isinstance(function.body, list) else []
    loops, places = _known_names(function)
    stored = _stores_in_order(function)
    for node in _own_nodes(body):
        if isinstance(node, ast.For):
            findings = _jumps(node.body, loop=True) + _rebound(node, node.body, function, stored, loop=True)
            if _makes(node.iter, _LOOPS, loops):
                analysis.certain[node.lineno] = "loop"
        elif isinstance(node, ast.With):
            findings = _jumps(node.body, loop=False) + _rebound(node, node.body, function, stored, loop=False)
            if any(_makes(item.context_expr, _BRANCHES, frozenset()) for item in node.items):
                analysis.certain[node.lineno] = "branch"
        else:
            continue
        analysis.findings[node.lineno] = [f for f in findings if not (f.augmented and f.name in places)]


def _known_names(function: ast.AST) -> tuple[frozenset[str], frozenset[str]]:
    """Names assigned from a call that makes a loop (`work = sm.persistent(D)`), and from `sm.var`."""
    loops, places = set(), set()
    for node in ast.walk(function):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                for name, value in _bindings(target, node.value):
                    loops |= {name} if _makes(value, _LOOPS, frozenset()) else set()
                    places |= {name} if _makes(value, _PLACES, frozenset()) else set()
    return frozenset(loops), frozenset(places)


def _bindings(target: ast.expr, value: ast.expr) -> Iterator[tuple[str, ast.expr]]:
    """Name and value of an assignment, also of `x, y = 1, 2`."""
    if isinstance(target, ast.Name):
        yield target.id, value
    elif isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple) and len(target.elts) == len(value.elts):
        for inner, part in zip(target.elts, value.elts, strict=True):
            yield from _bindings(inner, part)


def _makes(expression: ast.expr, attributes: frozenset[str], names: frozenset[str]) -> bool:
    """Whether it is a call (or use) of an attribute of these, or one of these names."""
    if isinstance(expression, ast.Name):
        return expression.id in names
    called = expression.func if isinstance(expression, ast.Call) else expression
    return isinstance(called, ast.Attribute) and called.attr in attributes


def _own_nodes(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """All nodes below, without entering functions defined inside."""
    stack: list[ast.AST] = list(body)
    while stack:
        node = stack.pop()
        yield node
        if not isinstance(node, _Scope):
            stack.extend(ast.iter_child_nodes(node))


def _jumps(body: list[ast.stmt], *, loop: bool) -> list[Finding]:
    """break and continue that act on this loop (or leave this branch), and any return."""
    found: list[Finding] = []

    def visit(node: ast.AST, inner_loop: bool) -> None:
        if isinstance(node, _Scope):
            return
        if isinstance(node, ast.Return):
            found.append(Finding(node.lineno, jump="return"))
        if isinstance(node, ast.Break | ast.Continue) and not inner_loop:
            found.append(Finding(node.lineno, jump="break" if isinstance(node, ast.Break) else "continue"))
        for child in ast.iter_child_nodes(node):
            visit(child, inner_loop or isinstance(node, ast.For | ast.While))

    for statement in body:
        visit(statement, False)
    return found


def _stores_in_order(function: ast.AST) -> list[tuple[int, str]]:
    """(line, name) of every binding in the function, parameters first."""
    stores = []
    if isinstance(function, ast.FunctionDef | ast.Lambda):
        a = function.args
        stores += [(0, x.arg) for x in [*a.posonlyargs, *a.args, *a.kwonlyargs]]
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            stores.append((node.lineno, node.id))
    return stores


def _rebound(
    statement: ast.For | ast.With,
    body: list[ast.stmt],
    function: ast.AST,
    stored: list[tuple[int, str]],
    *,
    loop: bool,
) -> list[Finding]:
    """Names whose value would have to flow around the loop, or out of the branch."""
    start, end = statement.lineno, statement.end_lineno or statement.lineno
    before = {name for line, name in stored if line < start or line > end}
    bound: dict[str, list[tuple[int, bool]]] = {}
    for node in _own_nodes(body):
        if isinstance(node, ast.AugAssign) and isinstance(node.target, ast.Name):
            bound.setdefault(node.target.id, []).append((node.lineno, True))
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            bound.setdefault(node.id, [])
            if not any(line == node.lineno and augmented for line, augmented in bound[node.id]):
                bound[node.id].append((node.lineno, False))
    first_use = _first_uses(body)
    read_after = {
        n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load) and n.lineno > end
    }
    rebound_after = _rebound_before_read(function, end)
    found = []
    for name, places in bound.items():
        if name not in before:
            continue
        carried = loop and first_use.get(name) == "read"
        escapes = name in read_after and name not in rebound_after
        if carried or escapes:
            line = min(line for line, _ in places)
            found.append(Finding(line, name=name, augmented=all(a for _, a in places)))
    return found


def _first_uses(body: list[ast.stmt]) -> dict[str, str]:
    """For each name, whether the body first reads or first stores it, in order of evaluation."""
    first: dict[str, str] = {}

    def visit(node: ast.AST) -> None:
        if isinstance(node, _Scope):
            for inner in ast.walk(node):
                if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load):
                    first.setdefault(inner.id, "read")
            return
        if isinstance(node, ast.Assign):
            visit(node.value)
            for target in node.targets:
                visit(target)
        elif isinstance(node, ast.AugAssign):
            if isinstance(node.target, ast.Name):
                first.setdefault(node.target.id, "read")
            visit(node.value)
            visit(node.target)
        elif isinstance(node, ast.For):
            for child in (node.iter, node.target, *node.body, *node.orelse):
                visit(child)
        elif isinstance(node, ast.Name):
            first.setdefault(node.id, "read" if isinstance(node.ctx, ast.Load) else "store")
        else:
            for child in ast.iter_child_nodes(node):
                visit(child)

    for statement in body:
        visit(statement)
    return first


def _rebound_before_read(function: ast.AST, end: int) -> set[str]:
    """Names that the code after line `end` stores before it reads them (by line, so conservatively)."""
    loads: dict[str, int] = {}
    stores: dict[str, int] = {}
    for n in ast.walk(function):
        if isinstance(n, ast.Name) and n.lineno > end:
            table = loads if isinstance(n.ctx, ast.Load) else stores
            table[n.id] = min(table.get(n.id, n.lineno), n.lineno)
    return {name for name, line in stores.items() if line < loads.get(name, line + 1)}
