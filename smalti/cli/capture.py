"""`smalti capture`: runs a program that launches Triton or Gluon kernels; keeps each launch as PTX and launch file."""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from smalti.errors import error

if TYPE_CHECKING:
    from smalti.run.capture import Captured, Memories

NAME = "capture"
HELP = "keep the launches of a Triton program as PTX and launch files"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("script", help="Python program that launches kernels")
    parser.add_argument("arguments", nargs=argparse.REMAINDER, help="what the program is given")
    parser.add_argument("-o", "--output", metavar="FOLDER", default=".", help="where the files go (default: here)")
    parser.add_argument(
        "--arch",
        help="compile for this architecture without a GPU, e.g. sm_100a (default: launch on the GPU that is here)",
    )
    parser.add_argument(
        "--run", dest="execute", action="store_true", help="with --arch: run each launch on the virtual GPU at once"
    )
    parser.add_argument("--most", type=int, default=64, metavar="N", help="launches to keep (default 64)")


def run(arguments: argparse.Namespace) -> int:
    """0; 1 where --run found something."""
    from smalti.run.capture_triton import capture
    from smalti.run.files import read_text

    read_text(arguments.script)  # refused before anything else happens
    if arguments.arch is not None:
        from smalti.run.devices import device

        device(f"virtual:{arguments.arch}")
    keeper = _Keeper(Path(arguments.output), arguments.execute and arguments.arch is not None, arguments.most)
    keeper.folder.mkdir(parents=True, exist_ok=True)
    before = sys.argv, list(sys.path)
    sys.argv = [arguments.script, *arguments.arguments]
    sys.path.insert(0, str(Path(arguments.script).resolve().parent))
    try:
        with capture(arguments.arch, keeper.receive):
            runpy.run_path(arguments.script, run_name="__main__")
    finally:
        sys.argv, sys.path[:] = before
    if not keeper.count:
        raise error("SML0182", script=arguments.script)
    if keeper.count > keeper.most:
        print(f"{keeper.count - keeper.most} more launches were not kept (--most)")
    return 1 if keeper.found else 0


class _Keeper:
    """Writes what is captured; runs it, if told to, and gives the program its results."""

    def __init__(self, folder: Path, runs: bool, most: int) -> None:
        self.folder, self.runs, self.most = folder, runs, most
        self.count = self.found = 0

    def receive(self, captured: Captured, memories: Memories) -> None:
        self.count += 1
        launch = captured.launch
        shape = "x".join(map(str, launch.grid))
        if self.count <= self.most:
            path = captured.save(self.folder, self._stem(captured.name))
            print(f"captured {path}: grid {shape}, block {launch.block[0]}, for {captured.arch}")
        if self.runs:
            self._run(captured, memories)

    def _stem(self, name: str) -> str:
        tries = (name if n == 1 else f"{name}-{n}" for n in range(1, self.count + 1))
        taken = {p.stem for p in self.folder.glob(f"{name}*.json")} if self.count > 1 else set()
        return next(t for t in tries if t not in taken)

    def _run(self, captured: Captured, memories: Memories) -> None:
        from smalti.run import run as execute

        device = f"virtual:{captured.arch}"
        result = execute(captured.ptx, captured.launch, device, collect=True, name=f"{captured.name}.ptx")
        self.found += len(result.reports)
        for report in result.reports:
            print(f"found    {report}")
        changed = memories.update(result.outputs)
        wrote = ", ".join(changed) or "nothing"
        print(f"ran      {captured.name} on {result.device.name}: {result.seconds:.3g} s, wrote {wrote}")
