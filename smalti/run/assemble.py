"""From PTX text to machine code with the `ptxas` of the PyPI packages, and its report on resources.

Never the system's tools: results must not depend on what else is installed. It must not know where the PTX comes
from; a refusal is told with the user's line by way of the text's own `.loc` directives.
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from pathlib import Path

from smalti.errors import Loc, error

# Tool -> the package that has it; they come with the extras `asm`, `gpu` (ptxas only) and `dev`.
TOOLS = {"ptxas": "nvidia-cuda-nvcc", "nvdisasm": "nvidia-cuda-nvdisasm", "cuobjdump": "nvidia-cuda-cuobjdump"}
TIME_LIMIT = 600  # seconds; a large attention kernel takes about 20


@cache
def package_file(package: str, name: str) -> Path:
    """The file `bin/<name>` of an installed distribution. Errors: SML0280."""
    try:
        files = metadata.distribution(package).files or []
    except metadata.PackageNotFoundError:
        files = []
    for file in files:
        if file.parent.name == "bin" and file.stem == name:
            return Path(str(file.locate()))
    raise error("SML0280", tool=name, package=package)


def tool(name: str) -> Path:
    """Where `ptxas`, `nvdisasm` or `cuobjdump` is. Errors: SML0280 (its package is not installed)."""
    return package_file(TOOLS[name], name)


@cache
def version() -> str:
    """The version of the assembler's package, a part of cache keys. Errors: SML0280."""
    tool("ptxas")
    return metadata.version(TOOLS["ptxas"])


@dataclass(frozen=True, slots=True)
class Resources:
    """What ptxas reports of one kernel: registers a thread, barriers, bytes of static shared memory, stack and
    spills."""

    registers: int = 0
    barriers: int = 0
    shared: int = 0
    stack: int = 0
    spill_stores: int = 0
    spill_loads: int = 0


@dataclass(frozen=True, slots=True)
class Advice:
    """A remark of ptxas with a number, such as C7510 (wgmma serialised) or C7504 (setmaxnreg ignored)."""

    code: str
    text: str


@dataclass(frozen=True, slots=True)
class Assembly:
    """A cubin and the report on it; `kernels` by entry name."""

    cubin: bytes
    arch: str
    kernels: dict[str, Resources]
    advice: tuple[Advice, ...]
    version: str

    @property
    def losses(self) -> tuple[Advice, ...]:
        """The remarks that cost a kernel its speed: C7504 to C7519, setmaxnreg ignored and wgmma serialised."""
        return tuple(a for a in self.advice if "C7504" <= a.code <= "C7519")


def assemble(ptx: str, arch: str | None = None, *, name: str = "<ptx>") -> Assembly:
    """Assemble PTX text for `arch` (None: its own `.target`).

    Errors: SML0280 (no ptxas), SML0281 (refused, at the user's line where `.loc` tells it), SML0282 (the
    `.version` is newer than this ptxas), SML0283 (time limit), SML0284 (ptxas failed without a message).
    """
    arch = arch or target_of(ptx) or "sm_90a"
    with tempfile.TemporaryDirectory(prefix="smalti-") as folder:
        source, result = Path(folder) / "module.ptx", Path(folder) / "module.cubin"
        source.write_text(ptx, encoding="utf-8")
        command = [str(tool("ptxas")), "-v", f"-arch={arch}", str(source), "-o", str(result)]
        status, said = _call(command, arch, name)
        if status != 0 or not result.exists():
            raise _refusal(said, status, ptx, arch, name)
        return Assembly(result.read_bytes(), arch, _resources(said), _advice(said), version())


def target_of(ptx: str) -> str:
    """The architecture of the text's `.target` directive, "" where there is none."""
    found = re.search(r"^\s*\.target\s+(\w+)", ptx, re.MULTILINE)
    return found.group(1) if found else ""


def _call(command: list[str], arch: str, name: str) -> tuple[int, str]:
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=TIME_LIMIT)
    except subprocess.TimeoutExpired:
        raise error("SML0283", name=name, arch=arch, seconds=TIME_LIMIT) from None
    return done.returncode, done.stdout + done.stderr


# -- what ptxas says -----------------------------------------------------------------------------------

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_PROPERTIES = re.compile(r"Function properties for (\S+)")
_STACK = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = {
    "registers": re.compile(r"Used (\d+) registers"),
    "barriers": re.compile(r"used (\d+) barriers"),
    "shared": re.compile(r"(\d+)(?:\+\d+)? bytes smem"),
}
_ADVICE = re.compile(r"\((C\d{4})\)\s*(.*)")
_FAULT = re.compile(r"line (\d+); (?:error|fatal)\s*: (.*)")
_VERSION = re.compile(r"Unsupported \.version (\S+); current version is '([^']+)'")


def _resources(said: str) -> dict[str, Resources]:
    found: dict[str, Resources] = {}
    entry, about = "", ""
    stacks: dict[str, tuple[int, int, int]] = {}
    for line in said.splitlines():
        if m := _ENTRY.search(line):
            entry = m.group(1)
        elif m := _PROPERTIES.search(line):
            about = m.group(1)
        elif m := _STACK.search(line):
            stacks[about] = (int(m.group(1)), int(m.group(2)), int(m.group(3)))
        elif entry and _USED["registers"].search(line):
            used = {key: int(m.group(1)) for key, pattern in _USED.items() if (m := pattern.search(line))}
            stack, stores, loads = stacks.get(entry, (0, 0, 0))
            found[entry] = Resources(**used, stack=stack, spill_stores=stores, spill_loads=loads)
            entry = ""
    return found


def _advice(said: str) -> tuple[Advice, ...]:
    return tuple(Advice(m.group(1), m.group(2).strip()) for m in map(_ADVICE.search, said.splitlines()) if m)


def _refusal(said: str, status: int, ptx: str, arch: str, name: str) -> Exception:
    if m := _VERSION.search(said):
        return error("SML0282", wanted=m.group(1), known=m.group(2), name=name, package=version())
    faults = [(int(m.group(1)), m.group(2).strip()) for m in map(_FAULT.search, said.splitlines()) if m]
    if not faults:
        plain = [line.strip() for line in said.splitlines() if "error" in line or "fatal" in line]
        return error("SML0284", name=name, arch=arch, status=status, said="; ".join(plain)[:300] or "nothing")
    line, text = faults[0]
    source = ptx.splitlines()[line - 1].strip() if line <= ptx.count("\n") + 1 else ""
    more = f" ({len(faults) - 1} more)" if len(faults) > 1 else ""
    return error(
        "SML0281",
        at=python_line(ptx, line),
        name=name,
        arch=arch,
        line=line,
        text=text,
        source=source[:120],
        more=more,
    )


_FILE = re.compile(r'^\s*\.file\s+(\d+)\s+"([^"]*)"')
_LOC = re.compile(r"^\s*\.loc\s+(\d+)\s+(\d+)")


def python_line(ptx: str, line: int) -> Loc | None:
    """The source line that the nearest `.loc` at or above a 1-based line of PTX text names, if any."""
    files: dict[str, str] = {}
    last: tuple[str, int] | None = None
    for number, text in enumerate(ptx.splitlines(), 1):
        if m := _FILE.match(text):  # usually first, but some compilers put the table at the end
            files[m.group(1)] = m.group(2)
        elif number <= line and (m := _LOC.match(text)):
            last = (m.group(1), int(m.group(2)))
    return Loc(files[last[0]], last[1]) if last and last[0] in files else None
