"""Matrix arithmetic against an independent published model on more than 10^5 adversarial vectors a kind.

The model's answers are committed (make_oracle.py); inputs are made again from seeds. Its parameters were fitted to real
GPUs by its authors, so an equal answer here is the evidence behind the grade "published".
"""

from __future__ import annotations

import dataclasses

import numpy as np
import oracle
import pytest

from smalti.numerics import formats, fused_sum, kinds

CASES = oracle.cases()


@pytest.fixture(scope="module")
def answers():
    with np.load(oracle.FILE) as file:
        return dict(file)


def ours(case, made, kind=None):
    options = fused_sum.Options(kind or kinds.KINDS[case.kind], case.a, case.b)
    if case.scale:
        options.scales = fused_sum.Scales(made["scale_a"], made["scale_b"], case.scale, case.block)
    return fused_sum.multiply(options, made["a"], made["b"], made["c"], None, None)


def chunks(case):
    return [(family, chunk) for family in oracle.families(case) for chunk in range(case.chunks)]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_no_bit_differs_from_the_model(case, answers):
    digests, samples = answers[f"digest {case.name}"], answers[f"sample {case.name}"]
    assert len(digests) == len(chunks(case))
    for (family, chunk), digest, sample in zip(chunks(case), digests, samples, strict=True):
        made = oracle.inputs(case, family, chunk)
        d = ours(case, made)
        np.testing.assert_array_equal(oracle.sample(d), sample, err_msg=f"{family} {chunk}")
        assert (oracle.digest(d) == digest).all(), f"{family} {chunk}: outputs outside the sample differ"


def test_there_are_enough_vectors_of_every_kind():
    counted: dict[str, int] = {}
    for case in CASES:
        counted[case.kind] = counted.get(case.kind, 0) + len(chunks(case)) * oracle.ROWS * oracle.COLUMNS
    modelled = {n for n, k in kinds.KINDS.items() if k.rule in (kinds.FUSED, kinds.GROUPED, kinds.CHAIN)}
    assert set(counted) == modelled and min(counted.values()) >= 100_000


def floor_shows(kind):
    """Only where products can be small beside the floor and the output's least step: bf16, tf32 and ue8m0-scaled
    operands for f32, f16 for f16."""
    if kind.output == "f16":
        return kind.formats == ("f16",)
    return bool(kind.scales) or bool({"bf16", "tf32"} & set(kind.formats))


def mutations():
    for name in sorted({case.kind for case in CASES}):
        kind = kinds.KINDS[name]
        if kind.rule == kinds.CHAIN:
            continue
        changes = {
            "one bit less": {"fraction": kind.fraction - 1},
            "one bit more": {"fraction": kind.fraction + 1},
            "two blocks": {"products": kind.products // 2},
            "other rounding": {"round_out": {"rz": "rz13", "rz13": "rz", "rne": "rz"}[kind.round_out]},
        }
        if floor_shows(kind):
            changes |= {"floor lower": {"floor": kind.floor - 1}, "floor higher": {"floor": kind.floor + 1}}
        for label, change in changes.items():
            yield pytest.param(name, change, id=f"{name} {label}")


@pytest.mark.parametrize(("name", "change"), list(mutations()))
def test_wrong_parameters_are_noticed(name, change, answers):
    kind = kinds.KINDS[name]
    wrong = dataclasses.replace(kind, **change)
    for case in (c for c in CASES if c.kind == name):
        for (family, chunk), digest in zip(chunks(case), answers[f"digest {case.name}"], strict=True):
            d = ours(case, oracle.inputs(case, family, chunk), wrong)
            if (oracle.digest(d.astype(formats.FORMATS[kind.output].dtype)) != digest).any():
                return
    pytest.fail(f"{name} gives the same answers with {change}")
