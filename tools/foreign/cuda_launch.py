"""Compiles CUDA C++ kernels of ours (folder cuda) with nvcc and notes how they are launched.

Needs nvcc on the PATH, no GPU, no headers beyond nvcc's own. Knows the compiler's options, no kernel.
"""

import subprocess
import tempfile
from pathlib import Path

from smalti.run.capture import Captured
from smalti.run.launch import Buffer, Launch

SOURCES = Path(__file__).parent / "cuda"


def launch(c, source, params, *, grid=1, block=128, cluster=1, shared=0, entry="", **defines):
    """Compile `cuda/<source>.cu` with these macros; a launch with these parameters of its kernel of that name."""
    entry = entry or source
    used = {name for p in params for name in [getattr(p, "buffer", None)] if name}
    buffers = {
        n: Buffer(n, o.format, o.elements, data=o.memory.copy(), output=True)
        for n, o in c.operands.items() if n in used
    }  # fmt: skip
    grid = grid if isinstance(grid, tuple) else (grid, 1, 1)
    at = Launch(entry, grid, (block, 1, 1), tuple(params), buffers, (cluster, 1, 1), shared)
    c.captured = Captured(entry, compiled(source, c.arch, defines), c.arch, at)


def compiled(source, arch, defines):
    options = [f"-D{name}={value}" for name, value in defines.items()]
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "kernel.ptx"
        command = ["nvcc", "-ptx", f"-arch={arch}", "-std=c++17", "-w", *options, "-o", str(target)]
        subprocess.run([*command, str(SOURCES / f"{source}.cu")], check=True)
        return target.read_text()
