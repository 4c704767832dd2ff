"""Runs the assembler of the dev extra on generated modules and reads its messages back, line by line."""

import re
import subprocess
import sysconfig
import tempfile
from pathlib import Path

BIN = Path(sysconfig.get_paths()["purelib"]) / "nvidia" / "cu13" / "bin"


def tool(name: str) -> str:
    path = BIN / name
    assert path.exists(), f"{name} is missing: install the dev extra"
    return str(path)


def assemble(text: str, arch: str, *, generate: bool = True, options: tuple[str, ...] = ()) -> tuple[int, str, bytes]:
    """Exit status, messages and cubin. `generate=False` only parses (a virtual architecture), which is fast."""
    target = arch if generate else arch.replace("sm_", "compute_")
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "x.ptx"), Path(folder, "x.cubin")
        source.write_text(text)
        run = subprocess.run(
            [tool("ptxas"), f"-arch={target}", *options, str(source), "-o", str(out)],
            capture_output=True,
            text=True,
            timeout=600,
        )
        return run.returncode, run.stdout + run.stderr, out.read_bytes() if out.exists() else b""


def line_errors(messages: str) -> dict[int, list[str]]:
    """Errors by line number."""
    found: dict[int, list[str]] = {}
    for m in re.finditer(r"line (\d+); (?:error|fatal)\s*: (.*)", messages):
        found.setdefault(int(m[1]), []).append(m[2])
    return found


def sass(cubin: bytes) -> list[str]:
    """The instructions of a cubin, without addresses, encodings kept."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "x.cubin")
        file.write_bytes(cubin)
        run = subprocess.run([tool("nvdisasm"), "-c", "-hex", str(file)], capture_output=True, text=True, timeout=600)
        assert run.returncode == 0, run.stderr
        return [line.strip() for line in run.stdout.splitlines() if line.strip()]
