"""`smalti run`: any PTX kernel, described by a launch file, on any device; how its outputs compare."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from smalti.run import Launch, Result

NAME = "run"
HELP = "run a PTX kernel that a launch file describes"
MOST_STEPS = 100_000_000  # some twenty minutes: a stranger's kernel may never end


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("ptx", help="PTX text of any compiler")
    parser.add_argument("--launch", required=True, metavar="FILE", help="launch file (docs/launch-file.md)")
    parser.add_argument("--device", help="virtual:ARCH, cuda, cuda:N (default: a GPU that runs it, else virtual)")
    parser.add_argument("--seed", type=count, help="run under the adversarial schedule of this seed")
    parser.add_argument(
        "--schedules", type=count, default=0, metavar="N", help="also run under N adversarial schedules"
    )
    parser.add_argument("--no-checks", action="store_true", help="do not look for races and the like")
    parser.add_argument("--strict", action="store_true", help="also report orders that no document promises")
    parser.add_argument(
        "--max-steps",
        type=count,
        default=MOST_STEPS,
        metavar="N",
        help="warp instructions after which the virtual GPU gives up (default %(default)s)",
    )
    parser.add_argument("-o", "--output", metavar="FILE", help="write the outputs to this .npz")


def count(text: str) -> int:
    """An argument from 0 to 999999999."""
    if not text.isdecimal() or len(text) > 9:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 0 to 999999999")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """0 where all is as expected, 1 where an output differs or the checks found something."""
    from smalti.run import launch_file, npy
    from smalti.run import run as execute
    from smalti.run.files import check_writable, read_text

    if arguments.output is not None:
        check_writable(arguments.output)
    text = read_text(arguments.ptx)
    launch = launch_file.load(arguments.launch)

    def once(seed: int | None) -> Result:
        return execute(
            text,
            launch,
            arguments.device,
            seed=seed,
            checks=not arguments.no_checks,
            collect=True,
            strict=arguments.strict,
            max_steps=arguments.max_steps,
            progress=_progress if sys.stderr.isatty() else None,
            name=arguments.ptx,
        )

    result = once(arguments.seed)
    good = _told(launch, result, not arguments.no_checks)
    if arguments.schedules and result.device.kind == "virtual":
        good &= _same_under(arguments.schedules, once, result)
    if arguments.output:
        npy.save_all(arguments.output, result.outputs)
        print(f"written  {arguments.output}")
    return 0 if good else 1


def _told(launch: Launch, result: Result, checked: bool) -> bool:
    """Print what came of a run; whether it is as expected."""
    dims = {"grid": launch.grid, "cluster": launch.cluster, "block": launch.block}
    shape = ", ".join(f"{name} {'x'.join(map(str, n))}" for name, n in dims.items() if n != (1, 1, 1))
    figures = ", ".join(f"{n} {what}" for what, n in result.figures.items() if what != "printed")
    print(f"device   {result.device.name} ({result.device.spec})")
    print(f"kernel   {launch.entry}: {shape or 'one thread'}, {launch.shared} bytes of dynamic shared memory")
    print(f"figures  {figures}, {result.seconds:.3g} s")
    if "printed" in result.figures:
        print(f"printed  {result.figures['printed']}")
    good = [_output(launch, result, name) for name in result.outputs]
    if result.device.kind == "virtual" and checked:
        for found in result.reports:
            print(f"found    {found}")
        print(f"checks   {len(result.reports) or 'nothing'} found")
    return all(good) and not result.reports


def _output(launch: Launch, result: Result, name: str) -> bool:
    from smalti.run import compare

    buffer, got = launch.buffers[name], result.outputs[name]
    head = f"output   {name} {buffer.dtype}{list(buffer.shape)}"
    if name in result.undefined:
        head += f", {result.undefined[name].sum()} of {buffer.nbytes} bytes never written"
    if buffer.expected is None:
        print(head)
        return True
    found = compare(buffer, got)
    wanted = "in every bit" if buffer.tolerance is None else "within tolerance"
    if found.first is None:
        print(f"{head}: as expected {wanted}")
        return True
    from smalti.run.dtypes import from_bits

    expected = from_bits(buffer.expected, buffer.dtype)[found.first]
    print(
        f"{head}: {found.differing} of {found.total} elements differ, the first at {list(found.first)}: "
        f"{got[found.first]} instead of {expected}; largest difference {found.worst:.6g}"
    )
    return False


def _same_under(schedules: int, once: Callable[[int | None], Result], first: Result) -> bool:
    """Run under other schedules: the bits must be the same, and nothing may be found."""
    good = True
    for seed in range(1, schedules + 1):
        again = once(seed)
        for found in again.reports:
            print(f"found    under seed {seed}: {found}")
        different = [n for n, a in again.outputs.items() if a.tobytes() != first.outputs[n].tobytes()]
        for name in different:
            print(f"output   {name} has other bits under seed {seed}")
        good &= not again.reports and not different
    print(f"seeds    1 to {schedules}: {'the same bits, nothing found' if good else 'not the same'}")
    return good


def _progress(done: int, total: int) -> None:
    end = "\n" if done == total else ""
    print(f"\r{done}/{total} clusters", end=end, file=sys.stderr, flush=True)
