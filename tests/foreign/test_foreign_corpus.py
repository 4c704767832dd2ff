"""Kernels of ours that other compilers made into PTX (tools/foreign) run on the virtual GPU with all checks on: results
are exact, whatever the schedule, and nothing is found.

SMALTI_SEEDS=20 runs each under that many adversarial schedules instead of one. SMALTI_FOREIGN names a folder of more
kernels, which tools/foreign/generate.py filled (those of CuTe DSL are not here).
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from smalti.errors import SmaltiError
from smalti.run import compare, run
from smalti.run.launch_file import load

HERE = Path(__file__).parent / "kernels"  # a folder called triton must not lie where Python looks for modules
OWN = sorted(HERE.glob("*/*.json"))
MORE = sorted(Path(os.environ["SMALTI_FOREIGN"]).glob("*/*.json")) if "SMALTI_FOREIGN" in os.environ else []
SEEDS = int(os.environ.get("SMALTI_SEEDS", "1"))

KNOWN = json.loads((Path(__file__).parent / "known.json").read_text())


def name(path):
    return f"{path.parent.name}/{path.stem}"


def ran(path, seed, text=None, **options):
    text = path.with_suffix(".ptx").read_text() if text is None else text
    arch = path.stem.rpartition(".")[2]
    launch = load(path)
    return launch, run(text, launch, f"virtual:{arch}", seed=seed, name=path.with_suffix(".ptx").name, **options)


def seeds_of(path):
    """The default schedule, and others; with one, each file has its own."""
    first = 1 + sum(path.stem.encode()) % 1000 if SEEDS == 1 else 1
    return [None, *range(first, first + SEEDS)]


@pytest.mark.parametrize("path", OWN + MORE, ids=name)
def test_runs_as_expected(path):
    if name(path) in KNOWN["every"]:
        _, result = ran(path, None, collect=True)
        assert {r.code for r in result.reports} == {KNOWN["every"][name(path)]}
        return
    for seed in [None] if name(path) in KNOWN["some"] else seeds_of(path):
        launch, result = ran(path, seed)
        for output, got in result.outputs.items():
            found = compare(launch.buffers[output], got)
            assert not found.differing, f"seed {seed}: {output} differs at {found.first}"
            assert output not in result.undefined, f"seed {seed}: {output} is undefined in part"


def test_a_warp_that_falls_behind_waits_for_ever():
    """Under a schedule that lets one producer warp rest."""
    path = HERE / "tilelang" / "matmul_wide_e5m2.sm_90a.json"
    with pytest.raises(SmaltiError, match=KNOWN["some"][name(path)]):
        for seed in range(1, 31):
            ran(path, seed)


@pytest.mark.gpu
def test_on_a_gpu():
    """The kernels for the GPU that is here, in processes of their own."""
    check = Path(__file__).parents[2] / "tools" / "foreign" / "check.py"
    done = subprocess.run([sys.executable, str(check), "--device", "cuda", str(HERE)], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:]


def test_every_output_has_an_expectation():
    for path in OWN:
        outputs = [b for b in load(path).buffers.values() if b.output]
        assert outputs and all(b.expected is not None for b in outputs), path.name


def test_what_the_corpus_holds():
    """Kernels by the instructions that occur in them; an architecture each counts for itself where it is the point."""
    texts = {name(p): p.with_suffix(".ptx").read_text() for p in OWN}
    kernels = {n.rpartition(".")[0] for n in texts}

    def having(pattern):
        return sum(1 for t in texts.values() if re.search(pattern, t))

    assert len(kernels) >= 80
    assert {n.split("/")[0] for n in kernels} == {"triton", "gluon", "jax", "tilelang", "cuda"}
    assert having(r"tcgen05\.mma\.") >= 25 and having(r"wgmma\.mma_async") >= 25
    assert having(r"\.block_scale") >= 12 and having(r"tcgen05\.mma\.cta_group::2") >= 8
    assert having(r"tcgen05\.mma\.sp") >= 4 and having(r"wgmma\.mma_async\.sp") >= 4
    assert having(r"tcgen05\.mma\.ws") >= 4
    for needed in (
        r"multicast::cluster", r"clusterlaunchcontrol", r"tile::gather4", r"tile::scatter4", r"im2col",
        r"tensormap\.replace", r"cp\.reduce\.async\.bulk\.tensor", r"setmaxnreg", r"kind::mxf4nvf4",
        r"kind::mxf4\.", r"kind::i8", r"red|atom", r"mma\.sync", r"cp\.async\.cg", r"stmatrix",
        r"st\.shared::cluster|mapa", r"tcgen05\.cp", r"st\.async", r"ldmatrix",
        r"cp\.async\.bulk\.global", r"cp\.async\.bulk\.shared::cta", r"redux", r"call\.uni",
    ):  # fmt: skip
        assert having(needed), needed


MATMUL = HERE / "triton" / "matmul_tma_f16.sm_100a.json"


@pytest.mark.parametrize(
    "instead,code",
    [
        ((r"@%p\d+ tcgen05\.commit[^;]*;", ""), "SML0901"),
        ((r"fence\.proxy\.async\.shared::cta;", ""), "SML0931"),
        ((r"(mbarrier\.arrive\.expect_tx\S* _, \[%r\d+\], )\d+", r"\g<1>64"), "SML09"),
        ((r"tcgen05\.wait::ld\.sync\.aligned;", ""), "SML0[89]"),
    ],
)
def test_a_broken_kernel_is_noticed(instead, code):
    """The controls: the same PTX with a line left out or changed."""
    text = MATMUL.with_suffix(".ptx").read_text()
    assert len(re.findall(instead[0], text)) >= 1
    with pytest.raises(SmaltiError, match=code):
        ran(MATMUL, None, re.sub(*instead, text))


def test_a_wrong_result_is_noticed():
    """An instruction descriptor that negates A."""
    text = MATMUL.with_suffix(".ptx").read_text()
    constants = {int(m) for m in re.findall(r"mov\.b32 \t%r\d+, (\d{8,9});", text)}
    (idesc,) = [c for c in constants if c >> 17 & 0x3F == 32 // 8 and c >> 24 & 0x1F == 8]
    launch, result = ran(MATMUL, None, text.replace(f", {idesc};", f", {idesc | 1 << 13};"))
    got, want = result.outputs["d"], launch.buffers["d"].expected.view(np.float32)
    assert np.array_equal(got, -want) and compare(launch.buffers["d"], got).differing


def test_strict_checks_tell_of_fences_left_out():
    """Triton has no tcgen05.fence at all: relied on by default and counted, reported under strict."""
    _, result = ran(MATMUL, None)
    (count,) = [n for what, n in result.figures.items() if "tcgen05.fence" in what]
    assert count > 0
    _, result = ran(MATMUL, None, strict=True, collect=True)
    assert {"SML0941", "SML0942"} <= {r.code for r in result.reports}
