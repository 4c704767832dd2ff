"""Pruning, compression and metadata words on the host, against plain loops."""

import ml_dtypes
import numpy as np
import pytest

import smalti as sm
from smalti.errors import SmaltiError

NUMPY = {
    "f16": np.float16,
    "bf16": ml_dtypes.bfloat16,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "s8": np.int8,
    "u8": np.uint8,
    "tf32": np.float32,
    "e2m1": ml_dtypes.float4_e2m1fn,
}
CHUNK = {"tf32": (2, 1, 1), "e2m1": (4, 2, 2)}  # units, kept, elements of a unit


def matrix(name, rows, k, seed=0):
    rng = np.random.default_rng(seed)
    low = 0 if name == "u8" else -4
    return rng.integers(low, 5, (rows, k)).astype(np.float32).astype(NUMPY[name])


@pytest.mark.parametrize("name", NUMPY)
def test_prune_and_compress(name):
    units, kept, unit = CHUNK.get(name, (4, 2, 1))
    x = matrix(name, 9, 16 * units * unit)
    dtype = "tf32" if name == "tf32" else None
    pruned = sm.prune(x, dtype)
    found = sm.compress(pruned, dtype)
    assert found.shape == x.shape and found.dtype == name
    np.testing.assert_array_equal(found.dense().astype(np.float32), pruned.astype(np.float32))
    for row in range(9):
        for c in range(16):
            chunk = x[row, c * units * unit : (c + 1) * units * unit].astype(np.float64).reshape(units, unit)
            size = np.abs(chunk).sum(axis=1)
            best = sorted(sorted(range(units), key=lambda u: (-size[u], u))[:kept])
            want = np.zeros_like(chunk)
            want[best] = chunk[best]
            got = pruned[row, c * units * unit : (c + 1) * units * unit].astype(np.float64)
            np.testing.assert_array_equal(got, want.ravel())
            code = int(found.codes[row, c])
            indices = [code & 3, code >> 2] if kept == 2 else [{0b0100: 0, 0b1110: 1}[code]]
            assert indices == sorted(set(indices))
            values = found.kept[row, c * kept * unit : (c + 1) * kept * unit].astype(np.float64).reshape(kept, unit)
            np.testing.assert_array_equal(values, got.reshape(units, unit)[indices])


@pytest.mark.parametrize("name", NUMPY)
def test_words(name):
    """Every code found again where PTX's figures put it (M 128: 9.7.16.10.8, as CUTLASS has them)."""
    units, _, unit = CHUNK.get(name, (4, 2, 1))
    deep = 512 // {"tf32": 32, "f16": 16, "bf16": 16, "e2m1": 4}.get(name, 8)
    k = 5 * deep
    dtype = "tf32" if name == "tf32" else None
    found = sm.compress(sm.prune(matrix(name, 131, k), dtype), dtype)
    words = found.words()
    wide = name in ("tf32", "f16", "bf16")
    assert words.shape == (256, 8 if wide else 12) and words.dtype == np.uint32
    for row in range(131):
        for chunk in range(k // units // unit):
            step, c = divmod(chunk, 8 if wide else 16)
            m = row % 128
            if wide:
                lane, column, bit = m % 8 + 16 * (m // 16) + 8 * (c >= 4), step, 16 * (m // 8 % 2) + 4 * (c % 4)
            else:
                lane, column, bit = m, 2 * step + c // 8, 4 * (c % 8)
            assert words[row // 128 * 128 + lane, column] >> bit & 15 == found.codes[row, chunk]
    assert {int(w) >> 4 * n & 15 for w in words[-1] for n in range(8)} == {0b0100}  # what does not exist is legal
    larger = found.words((384, 3 * k))
    assert larger.shape == (384, 60)  # lcm of 15 instructions and 4 columns
    np.testing.assert_array_equal(larger[:256, : words.shape[1]], words)


def test_packed():
    found = sm.compress(sm.prune(matrix("f16", 3, 12)))
    rows = found.packed()
    assert rows.shape == (3, 2)
    assert [[int(b) & 15, int(b) >> 4] for b in rows[1]] == [found.codes[1, :2].tolist(), [found.codes[1, 2], 0b0100]]


@pytest.mark.parametrize(
    "x, dtype, code",
    [
        (np.ones((4, 6), np.float16), None, "SML0120"),
        (np.ones(8, np.float16), None, "SML0120"),
        (np.ones((4, 8), np.float32), None, "SML0120"),
        (np.ones((4, 8), np.float16), None, "SML0121"),
        (np.array([["x"]], object), None, "SML0111"),
        (np.ones((4, 8), np.float16), "tf32", "SML0113"),
    ],
)
def test_refused(x, dtype, code):
    with pytest.raises(SmaltiError) as refused:
        sm.compress(x, dtype)
    assert refused.value.code == code


def test_where_a_matrix_is_not_sparse():
    x = sm.prune(matrix("f16", 4, 32))
    x[2, 20:24] = [1, 0, 1, 1]
    with pytest.raises(SmaltiError) as refused:
        sm.compress(x)
    assert (refused.value.params["row"], refused.value.params["column"]) == (2, 20)
    x[2, 21:23] = 0
    sm.compress(x)
