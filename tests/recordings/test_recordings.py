"""The virtual GPU against what an H200 answered (the files of `recordings/`): every bit, without a GPU."""

import json
import sys
from fnmatch import fnmatch
from pathlib import Path

import numpy as np
import pytest

from smalti.numerics import kinds

FOLDER = Path(__file__).parents[2] / "recordings"
sys.path.insert(0, str(FOLDER))
import approximate  # noqa: E402
import experiments  # noqa: E402
import random_programs  # noqa: E402
import random_scalar  # noqa: E402
import record  # noqa: E402

VIRTUAL = "virtual:sm_90a"
KNOWN = json.loads((FOLDER / "hopper.json").read_text())["programs"]
RANDOM = json.loads((FOLDER / "random.json").read_text())["programs"]
APPROXIMATE = json.loads((FOLDER / "approximate.json").read_text())["functions"]
SAMPLES = np.load(FOLDER / "approximate.npz")
PROGRAMS = {p.name: p for p in record.programs()}


def test_every_program_is_recorded():
    assert set(PROGRAMS) == set(KNOWN)
    assert {p.group for p in PROGRAMS.values()} == {k["group"] for k in KNOWN.values()}


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_bits(name):
    found = record.answer(PROGRAMS[name], VIRTUAL)
    assert found["sample"] == KNOWN[name]["sample"]
    assert found["sha256"] == KNOWN[name]["sha256"]


# -- random programs -------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", RANDOM)
def test_random_programs_give_the_same_bits(seed):
    """With all checks on, which must stay silent."""
    assert random_programs.answer(int(seed), VIRTUAL) == RANDOM[seed]


def test_the_vocabulary_is_in_the_table():
    for line in random_scalar.VOCABULARY.read_text().splitlines():
        random_scalar.form_of(line.split(" ")[1])
    assert set(random_scalar.VOCABULARY.read_text().splitlines()) <= set(random_scalar.vocabulary_lines())


# -- approximate functions -------------------------------------------------------------------------------


def bounds(name):
    """(region, largest error) of a function's recording."""
    return [(r, APPROXIMATE[name]["worst"][r.name][0]) for r in approximate.FUNCTIONS[name].regions]


def outside(name, got):
    """Samples for which `got` and the H200's result differ by more than its largest error and a rounding."""
    x = approximate.sample_inputs(name).view(np.float32)
    mine, theirs = got.view(np.float32).astype(np.float64), SAMPLES[name].view(np.float32).astype(np.float64)
    with np.errstate(all="ignore"):
        exact = approximate.FUNCTIONS[name].reference(x.astype(np.float64)).astype(np.float32)
        unit = np.spacing(np.abs(exact)).astype(np.float64)
        distance = np.abs(mine - theirs)
    wrong = np.zeros(len(x), np.bool_)
    for region, worst in bounds(name):
        size = np.abs(x)
        here = np.isfinite(mine) & (size >= region.low) & (size <= region.high)
        limit = worst + unit / 2 if region.absolute else (worst + 0.5) * unit
        if not region.absolute:
            here &= np.abs(exact) >= 2.0**-126
        wrong |= here & ~(distance <= limit)
    return wrong


@pytest.mark.parametrize("name", approximate.FUNCTIONS)
def test_approximate_functions_lie_within_the_measured_bound(name):
    got = approximate.at(approximate.spelling(name, False), approximate.sample_inputs(name), VIRTUAL)
    assert not outside(name, got).any()
    region, worst = bounds(name)[-1]
    inside = np.isfinite(got.view(np.float32)) & (np.abs(got.view(np.float32)) >= 2.0**-126)
    if not region.absolute:  # one unit beyond the bound is noticed
        beyond = np.where(inside, got + np.uint32(np.ceil(2 * worst) + 2), got).astype(np.uint32)
        assert outside(name, beyond).sum() > 100


@pytest.mark.parametrize("ftz", [False, True])
@pytest.mark.parametrize("name", approximate.FUNCTIONS)
def test_special_inputs_of_approximate_functions(name, ftz):
    """Zeros, infinities, NaN, subnormals, extremes: what is exact on the H200 is so here, the rest is near."""
    if name == "tanh" and ftz:
        return
    got = approximate.at(approximate.spelling(name, ftz), approximate.SPECIALS, VIRTUAL)
    known = APPROXIMATE[name]["ftz_specials" if ftz else "specials"]
    for given, found in zip(approximate.SPECIALS, got, strict=True):
        want = int(known[f"{int(given):08x}"], 16)
        x, a, b = (np.array([v], np.uint32).view(np.float32)[0] for v in (given, found, want))
        if name in ("sin", "cos") and np.isfinite(x):
            assert abs(float(a) - float(b)) < 1e-4 or abs(x) > 100 * np.pi  # no bound is stated there
        elif not np.isfinite(b) or b == 0 or abs(b) == 1:
            assert int(found) == want, f"{int(given):08x}"
        else:
            assert abs(int(found) - want) <= 140 if name == "tanh" else abs(int(found) - want) <= 4


def test_the_sweep_found_the_rules_that_the_model_has():
    """.ftz forms are flush(f(flush(x))), odd and even ones mirror each other, classes agree: for all 2^32 inputs."""
    for name, f in APPROXIMATE.items():
        assert f["ftz_differs"] == f["symmetry_differs"] == 0
        assert "class differs" not in f["worst"], name


@pytest.mark.parametrize("opcode", approximate.HALVES)
def test_functions_of_half_types(opcode):
    got, known = approximate.halves(opcode, VIRTUAL), SAMPLES[opcode]
    nan = (known & 0x7FFF) > (0x7C00 if opcode.endswith(".f16") else 0x7F80)
    assert (got[nan] == known[nan]).all()
    distance = np.abs(got[~nan].view(np.int16).astype(np.int32) - known[~nan].view(np.int16).astype(np.int32))
    assert distance.max() <= experiments.HALF_UNITS[opcode]


# -- statements ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("experiment", experiments.EXPERIMENTS, ids=lambda e: e.name)
def test_each_experiment_has_recordings(experiment):
    for pattern in experiment.recordings:
        assert any(fnmatch(name, pattern) for name in KNOWN), pattern


@pytest.mark.parametrize("name", [n for n, k in kinds.KINDS.items() if "measured" in (k.grade, k.sparse_grade)])
def test_each_measured_kind_names_its_recordings(name):
    for pattern in experiments.patterns(kinds.KINDS[name].evidence):
        assert any(fnmatch(program, pattern) for program in KNOWN), pattern
