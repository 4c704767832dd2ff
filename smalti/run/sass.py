"""Machine code as data: the instructions of a cubin, which of them lie in loops, and how many there are of each.

For tests and reports: that a kernel has the tensor-core instructions it should, and spills nothing in its loops.
Knows the form of nvdisasm's text and nothing of PTX.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from smalti.errors import error
from smalti.run.assemble import TIME_LIMIT, tool


@dataclass(frozen=True, slots=True)
class Instruction:
    """One machine instruction; `depth` is the number of loops around it."""

    address: int
    guard: str
    opcode: str
    operands: str
    depth: int = 0

    @property
    def head(self) -> str:
        """The opcode without its modifiers: HGMMA of HGMMA.64x256x16.F32.BF16."""
        return self.opcode.partition(".")[0]


@dataclass(frozen=True, slots=True)
class Inspection:
    """The instructions of one kernel."""

    instructions: tuple[Instruction, ...]

    @property
    def counts(self) -> Counter[str]:
        """How many there are of each opcode, modifiers dropped."""
        return Counter(i.head for i in self.instructions)

    @property
    def tensor(self) -> Counter[str]:
        """Tensor-core instructions: HGMMA, QGMMA, IGMMA, BGMMA, UTCHMMA, UTCQMMA, UTCOMMA, UTCIMMA, HMMA ..."""
        return Counter({head: n for head, n in self.counts.items() if head.endswith("MMA")})

    @property
    def spills_in_loops(self) -> list[Instruction]:
        """Accesses of local memory inside loops."""
        return [i for i in self.instructions if i.depth and i.head in ("LDL", "STL")]


def inspect(cubin: bytes) -> dict[str, Inspection]:
    """Every kernel of a cubin. Errors: SML0280 (no nvdisasm), SML0285 (not a cubin that it can read)."""
    with tempfile.TemporaryDirectory(prefix="smalti-") as folder:
        file = Path(folder) / "module.cubin"
        file.write_bytes(cubin)
        command = [str(tool("nvdisasm")), "-c", str(file)]
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIME_LIMIT)
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).replace(str(file), "the cubin").split("\n")
        raise error("SML0285", reason=next((t.strip() for t in lines if t.strip()), "no message")[:300])
    return {name: Inspection(tuple(_with_depth(*body))) for name, body in _functions(done.stdout).items()}


_SECTION = re.compile(r"^\.text\.(\S+):")
_LABEL = re.compile(r"^(\.L_[\w.]+):")
_CODE = re.compile(r"^\s*/\*([0-9a-f]{4,})\*/\s+(?:\{\s*)?(@!?\w+)?\s*([A-Z][\w.]*)\s*([^;]*?)\s*;")
_TARGET = re.compile(r"`\((\.L_[\w.]+)\)")

Body = tuple[list[Instruction], dict[str, int]]


def _functions(text: str) -> dict[str, Body]:
    """Instructions of each function, and the index of the instruction at each label."""
    found: dict[str, Body] = {}
    code: list[Instruction] = []
    labels: dict[str, int] = {}
    for line in text.splitlines():
        if m := _SECTION.match(line):
            code, labels = found.setdefault(m.group(1), ([], {}))
        elif m := _LABEL.match(line):
            labels[m.group(1)] = len(code)
        elif m := _CODE.match(line):
            code.append(Instruction(int(m.group(1), 16), m.group(2) or "", m.group(3), m.group(4)))
    return found


def _successors(code: Sequence[Instruction], labels: dict[str, int]) -> list[list[int]]:
    out = []
    for n, i in enumerate(code):
        target = _TARGET.search(i.operands)
        to = labels.get(target.group(1)) if target else None
        branch = i.head in ("BRA", "JMP", "BRX", "JMX")
        # `BRA.U UP0, ...` and `BRA.DIV ...` carry their condition as an operand
        always = not i.guard and (i.head in ("EXIT", "RET") or (branch and i.operands.startswith(("`", "R"))))
        next_ = [] if always or n + 1 == len(code) else [n + 1]
        if branch and to is not None and to < len(code):
            next_.append(to)
        out.append(next_)
    return out


def _with_depth(code: list[Instruction], labels: dict[str, int]) -> list[Instruction]:
    edges = _successors(code, labels)
    depth = [0] * len(code)
    todo: list[set[int]] = [set(range(len(code)))]
    while todo:  # a loop is a strongly connected part; without the edges into its entries, its inner loops remain
        part = todo.pop()
        for loop in _components(part, edges):
            if len(loop) == 1:  # no loop, or the trap `BRA .` that ends every function
                continue
            for n in loop:
                depth[n] += 1
            entries = {t for n, to in enumerate(edges) if n not in loop for t in to if t in loop} or {min(loop)}
            edges = [[t for t in to if not (n in loop and t in entries)] for n, to in enumerate(edges)]
            todo.append(loop)
    return [Instruction(i.address, i.guard, i.opcode, i.operands, d) for i, d in zip(code, depth, strict=True)]


def _components(nodes: Iterable[int], edges: list[list[int]]) -> list[set[int]]:
    """Strongly connected components of the part of the graph (Tarjan, without recursion)."""
    inside = set(nodes)
    order: dict[int, int] = {}
    low: dict[int, int] = {}
    stack: list[int] = []
    on_stack: set[int] = set()
    found: list[set[int]] = []
    for root in sorted(inside):
        if root in order:
            continue
        work = [(root, iter(edges[root]))]
        order[root] = low[root] = len(order)
        stack.append(root)
        on_stack.add(root)
        while work:
            node, rest = work[-1]
            for to in rest:
                if to not in inside:
                    continue
                if to not in order:
                    order[to] = low[to] = len(order)
                    stack.append(to)
                    on_stack.add(to)
                    work.append((to, iter(edges[to])))
                    break
                if to in on_stack:
                    low[node] = min(low[node], order[to])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    part = set()
                    while node not in part:
                        part.add(stack[-1])
                        on_stack.discard(stack.pop())
                    found.append(part)
    return found
