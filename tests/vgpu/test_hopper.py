"""A whole Hopper matmul written by hand: ragged sizes, seeds, and that each synchronisation left out is noticed."""

from __future__ import annotations

import numpy as np
import pytest

from smalti.errors import SmaltiError
from tests.vgpu.asm import bf16
from tests.vgpu.hopper import build

RNG = np.random.default_rng(5)


def rounded(exact: np.ndarray) -> np.ndarray:
    """bf16 codes of exact f32 values, to nearest even."""
    bits = exact.astype(np.float32).view(np.uint32)
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16).astype(np.uint16)


def operands(m: int, n: int, k: int) -> tuple[np.ndarray, np.ndarray]:
    return RNG.integers(-3, 4, (m, k)), RNG.integers(-3, 4, (n, k))


@pytest.mark.parametrize("m,n,k", [(128, 256, 64), (256, 512, 320), (136, 264, 72), (8, 8, 8), (300, 520, 1056)])
def test_sizes(m: int, n: int, k: int) -> None:
    """Every tile, every stage of the ring; edges that hang over in each dimension."""
    a, b = operands(m, n, k)
    got = build(bf16(a), bf16(b)).run()["d"]
    np.testing.assert_array_equal(got, rounded(a @ b.T))


@pytest.mark.parametrize("seed", range(10))
def test_seeds(seed: int) -> None:
    a, b = operands(136, 264, 328)
    got = build(bf16(a), bf16(b), stages=2).run(seed=seed)["d"]
    np.testing.assert_array_equal(got, rounded(a @ b.T))


@pytest.mark.parametrize(
    "omit,code", [("empty", "SML0905"), ("wait", "SML093"), ("fence", "SML0931"), ("store", "SML0933")]
)
def test_what_is_left_out_is_reported(omit: str, code: str) -> None:
    a, b = operands(128, 256, 512)
    found = set()
    for seed in (None, 1, 2):
        k = build(bf16(a), bf16(b), omit=frozenset({omit}))
        try:
            k.run(seed=seed)
        except SmaltiError as refusal:
            found.add(str(refusal)[:7])
    assert any(f.startswith(code) for f in found), found
