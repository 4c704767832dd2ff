"""The virtual GPU against what an H200 answered (recordings/hopper.json): every bit, without a GPU."""

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from smalti.numerics import kinds

FOLDER = Path(__file__).parents[2] / "recordings"
sys.path.insert(0, str(FOLDER))
import record  # noqa: E402

KNOWN = json.loads((FOLDER / "hopper.json").read_text())["programs"]
PROGRAMS = {p.name: p for p in record.programs()}


def test_every_program_is_recorded():
    assert set(PROGRAMS) == set(KNOWN)


@pytest.mark.parametrize("name", PROGRAMS)
def test_same_bits(name):
    found = record.answer(PROGRAMS[name], "virtual:sm_90a")
    assert found["sample"] == KNOWN[name]["sample"]
    assert found["sha256"] == KNOWN[name]["sha256"]


# One parameter of the model off by one: the recording must notice. (kind, change, program)
WRONG = [
    ("wgmma.f16", {"fraction": 24}, "wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16"),
    ("wgmma.bf16", {"fraction": 26}, "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16"),
    ("wgmma.tf32", {"fraction": 24}, "wgmma.mma_async.sync.aligned.m64n16k8.f32.tf32.tf32"),
    ("wgmma.fp8", {"fraction": 14}, "wgmma.mma_async.sync.aligned.m64n16k32.f32.e4m3.e5m2"),
    ("wgmma.fp8", {"round_out": "rz"}, "wgmma.mma_async.sync.aligned.m64n16k32.f32.e5m2.e4m3"),
    ("wgmma.fp8.f16", {"fraction": 12}, "wgmma.mma_async.sync.aligned.m64n16k32.f16.e4m3.e4m3"),
    ("wgmma.f16.f16", {"fraction": 24}, "wgmma.mma_async.sync.aligned.m64n16k16.f16.f16.f16"),
    ("mma.bf16", {"fraction": 24}, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"),
    ("mma.tf32", {"fraction": 26}, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"),
]


@pytest.mark.parametrize("kind,change,name", WRONG)
def test_a_wrong_parameter_is_noticed(kind, change, name, monkeypatch):
    monkeypatch.setitem(kinds.KINDS, kind, dataclasses.replace(kinds.KINDS[kind], **change))
    assert record.answer(PROGRAMS[name], "virtual:sm_90a")["sha256"] != KNOWN[name]["sha256"]
