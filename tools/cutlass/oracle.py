"""Asks CUTLASS's public headers for matrix and instruction descriptors; tests/layout/test_cutlass.py compares ours.
Needs the extra `oracle` and g++ (its messages are read); no GPU, no nvcc. Nothing of smalti is used here.

    python tools/cutlass/oracle.py write           # writes tests/data/oracle/cutlass.npz (some minutes)
    python tools/cutlass/oracle.py compare         # makes it all again and compares
    python tools/cutlass/oracle.py compare 16      # every sixteenth case only (about a minute)
"""

import importlib.metadata
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from itertools import product
from pathlib import Path
from typing import NamedTuple

import numpy as np

HERE = Path(__file__).parent
FILE = HERE.parents[1] / "tests" / "data" / "oracle" / "cutlass.npz"
PACKAGES = ("nvidia-cutlass", "nvidia-cuda-runtime", "nvidia-cuda-cccl")

# C++ type of each format. Containers: elements of 4 and 6 bits take a byte each, but e2m1x2, the packed one.
TYPES = {
    "f16": "half_t",
    "bf16": "bfloat16_t",
    "tf32": "tfloat32_t",
    "s8": "int8_t",
    "u8": "uint8_t",
    "e4m3": "float_e4m3_t",
    "e5m2": "float_e5m2_t",
    "e2m3": "packed::float_e2m3_unpacksmem_t",
    "e3m2": "packed::float_e3m2_unpacksmem_t",
    "e2m1": "packed::float_e2m1_unpacksmem_t",
    "e2m1x2": "float_e2m1_t",
    "f32": "float",
    "s32": "int32_t",
    "ue8m0": "float_ue8m0_t",
    "ue4m3": "float_ue4m3_t",
}
BITS = {"f16": 16, "bf16": 16, "tf32": 32, "e2m1x2": 4}  # the rest 8
SPAN = {"none": 16, "32B": 32, "64B": 64, "128B": 128, "128B_atom32B": 128}
MODES = {"none": "none", "32B": "b32", "64B": "b64", "128B": "b128", "128B_atom32B": "b128_atom32"}
SMALL = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")


class Tile(NamedTuple):
    """A tile in shared memory, cut into parts of `part` elements, each an operand of one instruction. `across`: atoms
    follow each other along columns first. `sparse`: half of the columns are stored. `start`: shared address.
    """

    arch: int
    dtype: str
    major: str
    swizzle: str
    across: bool
    sparse: bool
    rows: int
    columns: int
    part_rows: int
    part_columns: int
    start: int = 0

    def source(self) -> str:
        parts = [self.arch, TYPES[self.dtype], str(self.major == "MN").lower(), MODES[self.swizzle]]
        parts += [str(self.across).lower(), str(self.sparse).lower(), *self[6:10]]
        return f"tile<{', '.join(map(str, parts))}>({self.start});"


class Instruction(NamedTuple):
    """A tcgen05.mma by its fields; `max_shift` 0-3 as encoded."""

    kind: str
    a_type: str
    b_type: str
    d_type: str
    scale_type: str
    m: int
    n: int
    transpose_a: int
    transpose_b: int
    negate_a: int
    negate_b: int
    saturate: int
    sparse: int
    selector: int
    max_shift: int
    scale_a_id: int
    scale_b_id: int
    k96: int

    def source(self) -> str:
        flags = [self.transpose_a, self.transpose_b, self.negate_a, self.negate_b]
        a, b = ("e2m1x2", "e2m1x2") if self.kind.startswith("mxf4") else (self.a_type, self.b_type)
        if self.scale_type:
            fixed = [TYPES[a], TYPES[b], TYPES[self.scale_type], self.m, self.n, *flags, self.sparse]
            call = f"scaled<{', '.join(map(str, fixed))}>({self.scale_a_id}, {self.scale_b_id}, {self.k96});"
        else:
            fixed = [TYPES[a], TYPES[b], TYPES[self.d_type], self.m, self.n, *flags, self.saturate, self.sparse]
            call = f"plain<{', '.join(map(str, [*fixed, self.max_shift]))}>({self.selector});"
        return call


def tiles() -> list[Tile]:
    found = []

    def add(arch: int, dtype: str, major: str, mode: str, spans: int, rows: int, part: int, k_bytes: int, **how: bool):
        """K-major: `spans` swizzle spans of K (at least one part), `rows` rows. MN-major: `rows` spans of rows, a part
        having `part` spans, and `spans` parts of K.
        """
        bits, span = BITS.get(dtype, 8), SPAN[mode]
        across, sparse = how.get("across", False), how.get("sparse", False)
        deep = k_bytes * 8 // bits << sparse
        if major == "K":
            columns = -(-spans * span // k_bytes) * k_bytes * 8 // bits << sparse
            found.append(Tile(arch, dtype, major, mode, across, sparse, rows, columns, part, deep))
        else:
            wide = span * 8 // bits
            found.append(Tile(arch, dtype, major, mode, across, sparse, rows * wide, spans * deep, part * wide, deep))

    for arch, sizes in ((90, ("e4m3", "f16", "tf32")), (100, ("e2m1x2", "e4m3", "f16", "tf32"))):
        for dtype, mode in product(sizes, ("none", "32B", "64B", "128B")):
            add(arch, dtype, "K", mode, 4, 128, 64, 32)
            add(arch, dtype, "K", mode, 3, 200, 200, 32, across=True)
            add(arch, dtype, "K", mode, 2, 8, 8, 64)  # B of a sparse instruction
            add(arch, dtype, "K", mode, 4, 48, 24, 64, across=True)
            if dtype != "e2m1x2":
                add(arch, dtype, "K", mode, 2, 128, 64, 32, sparse=True)
    transposed = [(90, "f16", mode) for mode in ("none", "32B", "64B", "128B")]
    transposed += [(100, dtype, mode) for dtype in ("e4m3", "f16") for mode in ("none", "32B", "64B", "128B")]
    for arch, dtype, mode in [*transposed, (100, "tf32", "128B_atom32B")]:
        add(arch, dtype, "MN", mode, 3, 4, 2, 32, across=True)
        add(arch, dtype, "MN", mode, 2, 3, 3, 32)
        add(arch, dtype, "MN", mode, 2, 1, 1, 64, across=True)  # B of a sparse instruction
        add(arch, dtype, "MN", mode, 2, 2, 2, 32, across=True, sparse=True)
    # (4- and 6-bit elements that take a byte each lie in tiles of u8 there)
    for arch, dtypes in product((90, 100), [("bf16", "s8", "u8", "e5m2")]):
        for dtype in dtypes:
            add(arch, dtype, "K", "128B", 1, 64, 64, 32)
            if dtype == "bf16" or arch == 100:
                add(arch, dtype, "MN", "128B", 1, 1, 1, 32, across=True)
    for at, rows in enumerate(range(8, 257, 8)):  # every N; architectures, types and modes taking turns
        mode = ("none", "32B", "64B", "128B")[at // 2 % 4]
        add((90, 100)[at % 2], ("e4m3", "f16", "tf32")[at % 3], "K", mode, 2, rows, rows, 32)
        if at % 4 < 2:
            add((100, 90)[at % 2], "f16", "MN", "none", 2, at + 1, at + 1, 32, across=bool(at // 4 % 2))
    # multiples of 1024 in the whole window, some with the rank of a CTA above it
    return [t._replace(start=at % 4 << 24 | at * 37 % 255 << 10) for at, t in enumerate(dict.fromkeys(found))]


def instructions() -> list[Instruction]:
    eights, sixteens = range(8, 257, 8), range(16, 257, 16)
    ws = [(m, n) for m in (32, 64, 128) for n in (64, 128, 256)]
    plain = [*product((64, 128), eights), *product((256,), sixteens), *ws]
    bytes8 = [*product((64, 128), (8, 16, 24, 32, *sixteens[2:])), *product((256,), range(32, 257, 32)), *ws]
    scaled = [*product((128,), eights), *product((256,), sixteens)]
    found = []
    sparsity = [(0, 0), *((1, selector) for selector in range(4))]

    def turn(flags: list[tuple[int, ...]], at: int) -> tuple[int, ...]:
        """All of them in turn, neighbours far apart."""
        return flags[at * 7 % len(flags)] if len(flags) % 7 else flags[at * 11 % len(flags)]

    types = [("f16", a, b, d) for a, b in product(("f16", "bf16"), repeat=2) for d in ("f16", "f32")]
    types += [("tf32", "tf32", "tf32", "f32")]
    types += [("f8f6f4", a, b, d) for a, b in product(SMALL, repeat=2) for d in ("f16", "f32")]
    types += [("i8", a, b, "s32") for a, b in product(("u8", "s8"), repeat=2)]
    for kind, a, b, d in types:
        shapes = bytes8 if kind == "i8" else plain
        signs = [(0, 0, s) for s in (0, 1)] if kind == "i8" else [(*s, 0) for s in product((0, 1), repeat=2)]
        flags = [(*t, *s, *p) for t, s, p in product(product((0, 1), repeat=2), signs, sparsity)]
        for at, (m, n) in enumerate(shapes):
            shift = at % 4 if at >= len(shapes) - len(ws) else 0
            found.append(Instruction(kind, a, b, d, "", m, n, *turn(flags, at), shift, 0, 0, 0))
    mx = [("mxf8f6f4", a, b, "ue8m0") for a, b in product(SMALL, repeat=2)]
    mx += [
        ("mxf4", "e2m1", "e2m1", "ue8m0"),
        ("mxf4nvf4", "e2m1", "e2m1", "ue8m0"),
        ("mxf4nvf4", "e2m1", "e2m1", "ue4m3"),
    ]
    count = 0
    for kind, a, b, scale in mx:
        four = kind != "mxf8f6f4"
        bits, ids = (0, 1), (0, 2) if four else range(4)
        flags = list(
            product((0,) if four else bits, (0,) if four else bits, bits, bits, bits, ids, ids, bits if four else (0,))
        )
        for m, n in scaled:
            *signs, sparse, a_id, b_id, k96 = turn(flags, count)
            found.append(Instruction(kind, a, b, "f32", scale, m, n, *signs, 0, sparse, 0, 0, a_id, b_id, k96))
            count += 1
    return found


# Every tcgen05.mma that CUTLASS has: name with the pair's mark at {}, kind, sparse, its types (and vector size).
F8, FP4 = "float_e4m3_t, float_e4m3_t, float", "float_e2m1_t, float_e2m1_t, float, float_ue8m0_t"
OPERATIONS = [
    *(
        (f"SM100_MMA_{name}{{}}_{form}", kind, form == "SS_SPARSE", types, "")
        for form in ("SS", "TS", "SS_SPARSE")
        for name, kind, types in (
            ("TF32", "tf32", "tfloat32_t, tfloat32_t, float"),
            ("F16BF16", "f16", "half_t, half_t, float"),
            ("S8", "i8", "int8_t, int8_t, int32_t"),
            ("F8F6F4", "f8f6f4", F8),
        )
        if (name, form) != ("F8F6F4", "SS")  # see below
    ),
    ("SM100_MMA_MXF8F6F4{}_SS", "mxf8f6f4", False, F8 + ", float_ue8m0_t", ""),
    ("SM100_MMA_MXF8F6F4{}_SS_SPARSE", "mxf8f6f4", True, F8 + ", float_ue8m0_t", ""),
    ("SM100_MMA_MXF4{}_SS", "mxf4", False, FP4, "32,"),
    ("SM100_MMA_MXF4NVF4{}_SS_SPARSE", "mxf4nvf4", True, FP4, "32,"),
    ("SM103::SM103_MXF4_ULTRA{}_SS_VS", "mxf4", False, FP4, "32,"),
]


def shapes() -> list[list[str]]:
    """Rows of operation, kind, CTAs, sparse, B transposed, M, N, and whether its assertions pass: all are instantiated
    in one file, and the compiler names the lines that fail.
    """
    rows, lines = [], ['#include "smem.hpp"', "using namespace cute;", "constexpr auto K = UMMA::Major::K;"]
    one = "cute::integral_constant<UMMA::ScaleIn, UMMA::ScaleIn::One>"
    for (name, kind, sparse, types, size), group, m, n in product(
        OPERATIONS, (1, 2), (32, 64, 128, 256), range(8, 257, 8)
    ):
        name = name.format("_2x1SM" if group == 2 else "")
        rows.append([name, kind, group, int(sparse), 0, m, n])
        lines.append(f"template struct cute::{name}<{types}, {m}, {n}, {size} K, K>;")
    for group, major, m, n in product((1, 2), ("K", "MN"), (32, 64, 128, 256), range(8, 257, 8)):
        name = "SM100_MMA_F8F6F4{}_SS".format("_2x1SM" if group == 2 else "")  # its assertions are in its traits
        rows.append([name, "f8f6f4", group, 0, int(major == "MN"), m, n])
        majors = [f"cute::integral_constant<UMMA::Major, UMMA::Major::{major}>" for major in ("K", major)]
        fixed = [f"cute::{name}", F8, f"cute::C<{m}>", f"cute::C<{n}>", *majors, one, one]
        lines.append(f"template struct cute::MMA_Traits<{', '.join(fixed)}>;")
    with tempfile.TemporaryDirectory() as top:
        source = Path(top) / "shapes.cpp"
        source.write_text("\n".join(lines) + "\n", encoding="utf-8")
        command = [compiler(), "-std=c++20", "-w", "-fsyntax-only", "-fmax-errors=0", *includes(), str(source)]
        said = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "LC_ALL": "C"})
    failed = {int(line) for line in re.findall(r"shapes\.cpp:(\d+):\d+: +required from here", said.stderr)}
    if not failed or re.search(r"shapes\.cpp:\d+:\d+: error", said.stderr):
        raise RuntimeError(said.stderr[:4000])
    return [[str(v) for v in row] + [str(int(at not in failed))] for at, row in enumerate(rows, 4)]


def compiler() -> str:
    found = os.environ.get("CXX") or shutil.which("g++")
    if found is None:
        raise FileNotFoundError("g++")
    return found


def versions() -> str:
    return ", ".join(f"{name} {importlib.metadata.version(name)}" for name in PACKAGES)


def includes() -> list[str]:
    """Compiler options that find the headers of the installed packages. ImportError where they are not installed."""
    found = importlib.util.find_spec("cutlass_library")
    nvidia = importlib.util.find_spec("nvidia")
    if found is None or nvidia is None:
        raise ImportError("install the extra: pip install 'smalti[oracle]'")
    places = [Path(p) / "source" / "include" for p in found.submodule_search_locations or ()]
    for root in nvidia.submodule_search_locations or ():
        places += [p for p in (Path(root) / "cu13" / "include", Path(root) / "cu13" / "include" / "cccl") if p.is_dir()]
    return [f"-I{place}" for place in (HERE, *places)]


def ask(header: str, calls: list[str], folder: Path) -> list[str]:
    """Lines that a program of `calls` prints. Compiled without optimisation: the work is all in the templates."""
    source, program = folder / "ask.cpp", folder / "ask"
    source.write_text(
        f'#include "{header}"\nusing namespace oracle;\nint main() {{\n' + "\n".join(calls) + "\n}\n", encoding="utf-8"
    )
    command = [compiler(), "-std=c++20", "-O0", "-w", *includes(), str(source), "-o", str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError("\n".join(line for line in done.stderr.splitlines() if "error" in line)[:4000])
    return subprocess.run([str(program)], capture_output=True, text=True, check=True).stdout.split("\n")[:-1]


def ask_all(header: str, calls: list[str], chunk: int) -> list[str]:
    with tempfile.TemporaryDirectory() as top, ThreadPoolExecutor(os.cpu_count()) as pool:
        folders = [Path(top) / str(at) for at in range(0, len(calls), chunk)]
        for folder in folders:
            folder.mkdir()
        jobs = [pool.submit(ask, header, calls[i * chunk : (i + 1) * chunk], f) for i, f in enumerate(folders)]
        return [line for job in jobs for line in job.result()]


def make(every: int = 1) -> dict[str, np.ndarray]:
    """The answers: `tiles` and `instructions` as rows of text, `sums` by tile, `parts` (tile, row, column), `matrix`
    and `instruction` the descriptors, `shapes` as `shapes` gives them.
    """
    asked = tiles()[::every]
    sums, parts, words = [], [], []
    for line in ask_all("smem.hpp", [tile.source() for tile in asked], 24):
        what, *rest = line.split()
        if what == "tile":
            sums.append(int(rest[-1]))
        else:
            parts.append([len(sums) - 1, int(rest[0]), int(rest[1])])
            words.append(int(rest[2]))
    assert len(sums) == len(asked)
    called = instructions()[::every]
    answered = ask_all("instruction.hpp", [i.source() for i in called], 2500)
    assert len(answered) == len(called)
    return {
        "tiles": np.array([[str(v if not isinstance(v, bool) else int(v)) for v in t] for t in asked]),
        "sums": np.array(sums, np.uint64),
        "parts": np.array(parts, np.int64),
        "matrix": np.array(words, np.uint64),
        "instructions": np.array([[str(v) for v in i] for i in called]),
        "instruction": np.array(list(map(int, answered)), np.uint32),
        "shapes": np.array(shapes()),
    }


def differences(made: dict[str, np.ndarray], kept: dict[str, np.ndarray], every: int) -> list[str]:
    """What the file says otherwise about the cases made."""
    found = []
    index = {tuple(row): at for at, row in enumerate(kept["tiles"].tolist())}
    for at, row in enumerate(made["tiles"].tolist()):
        mine, its = made["parts"][:, 0] == at, kept["parts"][:, 0] == index.get(tuple(row), -1)
        same = made["sums"][at] == kept["sums"][index[tuple(row)]] if tuple(row) in index else False
        if not same or made["matrix"][mine].tolist() != kept["matrix"][its].tolist():
            found.append("tile " + " ".join(row))
    if made["instructions"].tolist() != kept["instructions"][::every].tolist():
        found.append("the list of instructions")
    elif made["instruction"].tolist() != kept["instruction"][::every].tolist():
        found.append("instruction descriptors")
    if made["shapes"].tolist() != kept["shapes"].tolist():
        found.append("legal shapes")
    return found


def main() -> int:
    if sys.argv[1:] == ["write"]:
        made = make()
        source = f"{versions()}; {date.today().isoformat()}"
        np.savez_compressed(FILE, source=np.array(source), **made)
        print(f"{len(made['matrix'])} matrix descriptors, {len(made['instruction'])} instruction descriptors; {source}")
        return 0
    if sys.argv[1:2] == ["compare"]:
        every = int(sys.argv[2]) if len(sys.argv) > 2 else 1
        with np.load(FILE) as kept:
            found = differences(make(every), dict(kept), every)
        print("\n".join(found) or "no difference")
        return 1 if found else 0
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
