"""2:4 sparse products: every type, A from shared memory and from registers, exact integers on the virtual GPU."""

import importlib.util
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import smalti as sm
from smalti.errors import SmaltiError

spec = importlib.util.spec_from_file_location(
    "wgmma_sparse", Path(__file__).parents[2] / "examples" / "wgmma_sparse.py"
)
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)

NUMPY = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "s8": np.int8,
}


@pytest.mark.parametrize("from_registers", [False, True], ids=["shared", "registers"])
@pytest.mark.parametrize("name", NUMPY)
def test_sparse(name, from_registers):
    """Ragged sizes, two row tiles, two K steps; each element's value tells its place in the chunk."""
    rng = np.random.default_rng(1)
    kind = NUMPY[name]
    m, n, k = 100, 40, 256
    dense = example.prune(rng.integers(1, 8, (m, k)).astype(kind), rng)
    b = rng.integers(-7, 8, (n, k)).astype(kind)
    packed, codes = example.compress(dense)
    d = example.sparse_matmul(
        packed,
        codes,
        b,
        m=128,
        k=64 if name == "tf32" else 128,
        d="s32" if name == "s8" else "f32",
        from_registers=from_registers,
        device="virtual:sm_90a",
        read_as={"a": name, "b": name},
    )
    np.testing.assert_array_equal(d, dense.astype(np.float64) @ b.astype(np.float64).T)


@pytest.mark.ptxas
@pytest.mark.parametrize("name", NUMPY)
def test_sparse_machine_code(name):
    from smalti.run.assemble import assemble
    from smalti.run.sass import inspect

    traced = example.sparse_matmul.trace(name, "u8", name, k=64 if name == "tf32" else 128)
    made = assemble(traced.ptx(), "sm_90a")
    counts = inspect(made.cubin)[traced.entry].instructions
    assert not made.losses
    products = [i.opcode for i in counts if i.head.endswith("GMMA")]
    assert products and all(".SP" in p for p in products)


def test_shapes_are_checked(kit):
    def body(a, e, b, d):
        codes = sm.sparse_metadata(e.tiles(64, 8)[0, 0], a.dtype)
        sa, sb = a.tiles(64, 32).shared(), b.tiles(64, 32).shared()
        sm.wgmma.accumulator(64, 64).mma(sa, sb.T, add=False, metadata=codes)

    with pytest.raises(SmaltiError) as raised:
        kit.trace(body, "bf16", "u8", "bf16", signature="a[M,P], e[M,C], b[N,K] -> d[M,N]")
    assert raised.value.code == "SML0600"
