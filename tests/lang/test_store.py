"""Traces kept on disk: what comes back, and that every dependency is part of the key."""

import dataclasses
import importlib.util
import json
import linecache
import os
import sys
import time

import numpy as np
import pytest

import smalti as sm
from smalti.lang import store
from smalti.ops.matmul_hopper import matmul_hopper

SOURCE = """
import smalti as sm
import {other}
SCALE = {scale}

def helper(x):
    return x * {factor}

def outer():
    width = {width}

    @sm.kernel("a[M,N] -> d[M,N]", arch="sm_90a")
    def k(a, d, *, tile=64, what=None):
        t = d.tiles(width, tile)[helper(sm.block_index()) * SCALE, {other}.ONE]
        t.store(a.tiles(width, tile)[0, 0].load(sm.wgmma.d_layout(width, tile)))

    return k

k = outer()
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    """Writes the two files, each with a time that its text decides, and gives the kernel."""
    monkeypatch.syspath_prepend(str(tmp_path))

    def make(other="ONE = 1", **changes):
        path, imported = tmp_path / "kernel_file.py", tmp_path / "other_file.py"
        path.write_text(SOURCE.format(**{"scale": 3, "factor": 2, "width": 64, "other": "other_file"} | changes))
        imported.write_text(other)
        os.utime(imported, (len(other), len(other)))
        linecache.clearcache()
        sys.modules.pop("other_file", None)
        spec = importlib.util.spec_from_file_location("kernel_file", path)
        made = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(made)
        return made.k

    return make


def key(kernel, *facts, **options):
    known = kernel._facts(facts or ("f32",), {})
    return store.key_of(kernel, known, {**kernel.options, **options})


def test_a_trace_comes_back_whole():
    fresh = dataclasses.replace(matmul_hopper, _traced={})
    made = fresh.trace("e5m2", "e4m3", tile=(64, 64, 128), parts=1)
    again = dataclasses.replace(matmul_hopper, _traced={}).trace("e5m2", "e4m3", tile=(64, 64, 128), parts=1)
    assert made.made is not None or made.text  # traced, or kept by an earlier test
    assert again.made is None and again.text == made.ptx()
    for name in ("parameters", "grid", "block", "cluster", "shared", "entry"):
        assert getattr(again, name) == getattr(made, name), name
    assert str(again.plan) == str(made.plan)
    assert again.module.tiles == made.module.tiles
    assert again.ptx() == made.ptx()


def test_a_kept_trace_runs():
    a = np.arange(70 * 40, dtype=np.float16).reshape(70, 40) % 5
    want = a.astype(np.float32) @ a.astype(np.float32).T
    for _ in range(2):
        kernel = dataclasses.replace(matmul_hopper, _traced={})
        d = kernel(a, a, d="f32", tile=(64, 64, 64), stages=2, parts=1, device="virtual:sm_90a")
        np.testing.assert_array_equal(d, want)


def test_the_key_covers_what_a_kernel_depends_on(module):
    base = key(module())
    assert base is not None and key(module()) == base
    differing = {
        "a global": key(module(scale=4)),
        "a helper": key(module(factor=5)),
        "a closure": key(module(width=128)),
        "another file": key(module(other="ONE = 2 + 0")),
        "an option": key(module(), tile=32),
        "facts": key(module(), sm.facts("f32", alignment=4)),
        "a dtype": key(module(), "s32"),
        "the architecture": key(dataclasses.replace(module(), arch="sm_100a")),
        "tidy": key(dataclasses.replace(module(), tidy=False)),
    }
    assert len({base, *differing.values()}) == len(differing) + 1, differing


def test_what_cannot_be_keyed_is_not_kept(module):
    assert key(module(), what=object()) is None
    assert key(module(), what=np.zeros(3)) is None
    assert key(module(), what=sm.bf16) != key(module(), what=sm.f16)


def test_from_the_disk_within_ten_milliseconds():
    dataclasses.replace(matmul_hopper, _traced={}).trace("f16", "f16")
    took = []
    for _ in range(5):
        kernel = dataclasses.replace(matmul_hopper, _traced={})
        start = time.process_time()
        assert kernel.trace("f16", "f16").made is None
        took.append(time.process_time() - start)
    assert min(took) < 0.010, took


def test_a_damaged_entry_is_traced_again():
    kernel = dataclasses.replace(matmul_hopper, _traced={})
    traced = kernel.trace("bf16", "bf16", stages=2)
    at = store.key_of(kernel, traced.facts, {**kernel.options, "stages": 2})
    path = store.Cache()._path(at)
    raw = path.read_bytes()
    assert json.loads(store.Cache().get(at)["launch"])["block"] == 384
    path.write_bytes(raw[: len(raw) // 2])
    again = dataclasses.replace(matmul_hopper, _traced={}).trace("bf16", "bf16", stages=2)
    assert again.made is not None and again.ptx() == traced.ptx()
