"""Every fence, wait, arrival and commit of both matmul kernels matters: deleted, it is reported or changes the result.

Those that may be deleted without notice are listed with the reason why the mutant is equivalent.
"""

from dataclasses import replace

import mutants
import numpy as np
import pytest

from smalti.run.execute import run

# opcode: (how many of its deletions survive at most, why)
SURVIVORS = {
    "hopper": {
        "fence.mbarrier_init.release.cluster": (1, "orders it before other CTAs; alone in its cluster, bar.sync does"),
    },
    "blackwell": {
        "fence.mbarrier_init.release.cluster": (1, "orders it before other CTAs; alone in its cluster, bar.sync does"),
        "tcgen05.relinquish_alloc_permit": (1, "lets other CTAs allocate; here each has columns of its own"),
        "tcgen05.fence::after_thread_sync": (2, "at the start and before dealloc: barriers order what precedes"),
        "tcgen05.fence::before_thread_sync": (1, "the CTA's last one: the storing role has published its loads before"),
        "bar.warp.sync": (2, "lanes of a converged warp execute together here; on hardware they may not"),
    },
}  # fmt: skip


@pytest.mark.parametrize("kernel", list(SURVIVORS))
def test_deletions_are_noticed(kernel):
    traced, launch, arch = mutants.KERNELS[kernel]()
    (wanted,) = run(traced.module, launch, f"virtual:{arch}").outputs.values()
    survivors: dict[str, list[str]] = {}
    count = 0
    for m in mutants.deletions(traced.ptx()):
        count += 1
        if mutants.outcome(m.module, launch, wanted, arch, (None, 1)) == "survived":
            survivors.setdefault(m.what.removeprefix("without "), []).append(m.line)
    assert count >= 25
    listed = SURVIVORS[kernel]
    for opcode, lines in survivors.items():
        known = [n for prefix, (n, _) in listed.items() if opcode.startswith(prefix)]
        assert known, f"deleting {opcode} at {lines} is not noticed"
        assert len(lines) <= known[0], f"{opcode}: {lines}"


@pytest.mark.parametrize("kernel", list(SURVIVORS))
def test_unmutated_kernels_are_silent(kernel):
    """Under fifty schedules the same bits and no report (a few here, all of them with -m slow)."""
    traced, launch, arch = mutants.KERNELS[kernel]()
    first = run(traced.module, launch, f"virtual:{arch}")
    for seed in range(4):
        again = run(traced.module, launch, f"virtual:{arch}", seed=seed)
        assert [a.tobytes() for a in again.outputs.values()] == [a.tobytes() for a in first.outputs.values()]


@pytest.mark.slow
@pytest.mark.parametrize("kernel", list(SURVIVORS))
def test_silent_under_fifty_seeds(kernel):
    traced, launch, arch = mutants.KERNELS[kernel]()
    first = run(traced.module, launch, f"virtual:{arch}")
    for seed in range(50):
        again = run(traced.module, launch, f"virtual:{arch}", seed=seed)
        assert [a.tobytes() for a in again.outputs.values()] == [a.tobytes() for a in first.outputs.values()]


def test_permuted_scales_change_the_result():
    """Scale bytes exchanged within an atom: every exchange of different bytes that the product reads shows."""
    traced, launch, arch = mutants.blackwell()
    (wanted,) = run(traced.module, launch, f"virtual:{arch}").outputs.values()
    scales = launch.buffers["a_scales"]
    for distance in (
        1,
        4,
        16,
    ):  # the next block, row + 32, row + 1: all of them inside the first atom, which is read whole
        first = int(np.flatnonzero(scales.data[: 512 - distance] != scales.data[distance:512])[0])
        data = scales.data.copy()
        data[[first, first + distance]] = data[[first + distance, first]]
        changed = replace(launch, buffers={**launch.buffers, "a_scales": replace(scales, data=data)})
        (got,) = run(traced.module, changed, f"virtual:{arch}").outputs.values()
        assert not np.array_equal(got, wanted), distance
