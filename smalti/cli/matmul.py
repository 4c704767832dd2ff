"""`smalti matmul`: multiply two .npy matrices on a tensor core, and say what was run, checked and lost."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from smalti.ops.prepared import Prepared
    from smalti.run.execute import Result
    from smalti.run.scaled import BlockScaled

NAME = "matmul"
HELP = "multiply two .npy matrices on a (virtual) tensor core"

CHECKED = "bounds, alignment, undefined values, races, proxy fences, barriers, tensor-memory order"
PATIENCE = 1.0  # seconds before a progress bar is shown
WIDTH = 40


def configure(parser: argparse.ArgumentParser) -> None:
    from smalti.cli.run import count

    parser.add_argument("a", metavar="A.npy", help="matrix [M, K]")
    parser.add_argument("b", metavar="B.npy", help="matrix [K, N]")
    parser.add_argument("--format", help="quantise both first: mxfp8, mxfp8_e5m2, mxfp4, nvfp4")
    for name in "ab":
        has = f"{name.upper()} holds elements of the format already"
        parser.add_argument(f"--{name}-scales", metavar="S.npy", help=f"{has}: the scale of each block along K")
        parser.add_argument(f"--{name}-global", metavar="X", type=float, help=f"{has}: the global scale of nvfp4")
    parser.add_argument("--precision", help="tf32: how float32 operands may be multiplied")
    parser.add_argument("--dtype", help="of the result: f32, bf16, f16, ...")
    parser.add_argument("--device", help="virtual:sm_90a, virtual:sm_100a, cuda, ... (default: what can run it)")
    parser.add_argument("--seed", type=count, help="run under the adversarial schedule of this seed")
    parser.add_argument("--no-checks", action="store_true", help="do not look for races and the like")
    parser.add_argument("--plan", action="store_true", help="print the whole plan of the kernel")
    parser.add_argument("-o", "--output", metavar="D.npy", help="write the result here")


def run(arguments: argparse.Namespace) -> int:
    from smalti.run import npy
    from smalti.run.files import check_writable

    if arguments.output is not None:
        check_writable(arguments.output)  # before the work, not after
    a: Any = npy.load(arguments.a)
    b: Any = npy.load(arguments.b)
    scheme = arguments.format
    if arguments.a_scales or arguments.b_scales:
        a = _scaled(a, arguments.a_scales, arguments.a_global, scheme, 1)
        b = _scaled(b, arguments.b_scales, arguments.b_global, scheme, 0)
        scheme = None
    result = multiply(
        a, b, format=scheme, precision=arguments.precision, dtype=arguments.dtype, device=arguments.device,
        seed=arguments.seed, checks=not arguments.no_checks, whole_plan=arguments.plan,
    )  # fmt: skip
    if arguments.output:
        npy.save(arguments.output, result.outputs["d"])
        print(f"written  {arguments.output}")
    return 0


def _scaled(x: NDArray[Any], scales: str | None, level: float | None, scheme: str | None, axis: int) -> BlockScaled:
    """The block-scaled matrix of elements and a file of their scales; without one the matrix is quantised.

    Errors: SML1101, and those of `block_scaled` and `quantize`.
    """
    from smalti.errors import error
    from smalti.run import npy
    from smalti.run.scaled import block_scaled, quantize

    if scheme is None:
        raise error("SML1101", command="smalti matmul", problem="scales need --format, which says what they scale")
    if scales is None:
        return quantize(x, scheme, axis=axis)
    return block_scaled(x, npy.load(scales), scheme, axis=axis, global_scale=level)


def multiply(
    a: Any, b: Any, *, format: str | None, precision: str | None, dtype: str | None, device: str | None,
    seed: int | None, checks: bool, whole_plan: bool,
) -> Result:  # fmt: skip
    """Multiply and tell about it on standard output."""
    from smalti.ops.matmul import prepare

    start = time.perf_counter()
    prepared = prepare(a, b, dtype=dtype, precision=precision, format=format, device=device)
    _kernel(prepared, whole_plan)
    bar = _Bar() if sys.stderr.isatty() else None
    result = prepared.execute(device, seed=seed, checks=checks, progress=bar)
    seconds = time.perf_counter() - start
    print(f"device   {result.device.name} ({result.device.spec})")
    if result.figures:
        print("ran      " + ", ".join(f"{n} {what}" for what, n in result.figures.items() if what != "printed"))
    if result.device.kind == "virtual":
        print(f"checked  {CHECKED}: nothing found" if checks else "checked  bounds, alignment, undefined values only")
    _errors(a, b, prepared, result.outputs["d"])
    print(f"time     {seconds:.3g} s, of which {result.seconds:.3g} s on the device")
    return result


def _kernel(prepared: Prepared, whole_plan: bool) -> None:
    if prepared.empty:
        print("kernel   none: an empty matrix, or sums of nothing")
        return
    plan = prepared.plan()
    first, *lines = str(plan).splitlines()
    print(f"kernel   {first}")
    if whole_plan:
        for line in lines:
            print(f"         {line}")
        return
    for text in prepared.copies:
        print(f"copied   {text}")
    options = ", ".join(f"{k}={v}" for k, v in prepared.options.items())
    columns = f"{plan.tensor_columns} columns of tensor memory; " if plan.tensor_columns else ""
    print(f"plan     {options}; {plan.shared_bytes} bytes of shared memory; {columns}{plan.instructions} instructions")


def _errors(a: Any, b: Any, prepared: Prepared, d: NDArray[Any]) -> None:
    """The largest difference from float64 products of the given and of the quantised operands."""
    import numpy as np

    from smalti.run.scaled import BlockScaled

    if d.size == 0:
        return
    given = [x for x in (a, b) if not isinstance(x, BlockScaled)]
    with np.errstate(all="ignore"):
        if len(given) == 2:
            product = np.asarray(a).astype(np.float64) @ np.asarray(b).astype(np.float64)
            print(f"error    {_worst(d, product)} against float64 of the given operands")
        left, right = prepared.operands
        if isinstance(left, BlockScaled):
            quantised = left.dequantize(np.float64) @ right.dequantize(np.float64)
            print(f"error    {_worst(d, quantised)} against float64 of the quantised operands")


def _worst(d: Any, wanted: Any) -> str:
    import numpy as np

    got = d.astype(np.float64)
    finite = np.isfinite(wanted) & np.isfinite(got)
    if not finite.any():
        return "no finite element to compare"
    largest = np.abs(got - wanted)[finite].max()
    scale = np.abs(wanted)[finite].max()
    relative = largest / scale if scale else largest
    return f"{largest:.3g} at most ({relative:.2g} of the largest element)"


class _Bar:
    """A progress bar on standard error, shown once a run has taken a while."""

    def __init__(self) -> None:
        self._start, self._shown = time.perf_counter(), False

    def __call__(self, done: int, total: int) -> None:
        if time.perf_counter() - self._start < PATIENCE and not self._shown:
            return
        self._shown = True
        filled = WIDTH * done // max(total, 1)
        end = "\n" if done == total else ""
        print(f"\r[{'#' * filled}{'.' * (WIDTH - filled)}] {done}/{total}", end=end, file=sys.stderr, flush=True)
