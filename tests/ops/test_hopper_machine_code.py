"""The Hopper kernels assembled: no serialised wgmma, no ignored setmaxnreg, no spills, the expected instructions."""

import importlib.util
from pathlib import Path

import pytest

import smalti as sm
from smalti.ops.matmul_hopper import matmul_hopper
from smalti.run.assemble import assemble
from smalti.run.sass import inspect

pytestmark = pytest.mark.ptxas

spec = importlib.util.spec_from_file_location(
    "wgmma_register_a", Path(__file__).parents[2] / "examples" / "wgmma_register_a.py"
)
examples = importlib.util.module_from_spec(spec)
spec.loader.exec_module(examples)


def machine_code(traced):
    made = assemble(traced.ptx(), "sm_90a")
    assert not made.losses, made.losses
    resources = made.kernels[traced.entry]
    assert resources.spill_stores == resources.spill_loads == 0
    return resources, inspect(made.cubin)[traced.entry]


def facts(name, **how):
    return sm.facts(name, **how)


CASES = {
    "bf16": (("bf16", "bf16"), {}, "HGMMA"),
    "f16": (("f16", "f16"), {"d": "f32", "parts": 8}, "HGMMA"),
    "fp8": (("e4m3", "e5m2"), {"d": "bf16", "tile": (128, 256, 128)}, "QGMMA"),
    "fp8 out": (("e4m3", "e4m3"), {"d": "e4m3", "tile": (128, 256, 128), "parts": 1}, "QGMMA"),
    "tf32": (("tf32", "tf32"), {"tile": (128, 256, 32), "parts": 8}, "HGMMA"),
    "int8": (("s8", "u8"), {"tile": (128, 256, 128), "parts": 8}, "IGMMA"),
    "plain 2 bytes": (("bf16", "bf16"), {"d": facts("bf16", alignment=2)}, "HGMMA"),
    "plain 8 bytes": (("bf16", "bf16"), {"d": facts("bf16", alignment=8), "parts": 1}, "HGMMA"),
    "transposed": ((facts("f16", axis=0), facts("f16", axis=0)), {}, "HGMMA"),
    "256x128": (("bf16", "bf16"), {"tile": (256, 128, 64)}, "HGMMA"),
    "cluster": (("bf16", "bf16"), {"cluster": (2, 1, 1)}, "HGMMA"),
}


@pytest.mark.parametrize("name", CASES)
def test_matmul(name):
    operands, options, instruction = CASES[name]
    traced = matmul_hopper.trace(*operands, **options)
    resources, code = machine_code(traced)
    assert resources.registers == 168  # 65536 registers over 384 threads
    tile = options.get("tile", (128, 256, 64))
    assert code.tensor == {instruction: 4 * (tile[0] // 128)}  # 128 bytes of K, one 64-row tile each 64 rows
    assert code.counts["USETMAXREG"] == 2 and not code.spills_in_loops
    bulk = "plain" not in name
    assert (code.counts["UTMASTG"] > 0) == bulk
    assert code.counts["UTMALDG"] == (6 if name == "transposed" else 2)  # one a stripe of 128 bytes
    loop = max(i.depth for i in code.instructions if i.head == instruction)
    assert loop == 2, "the K loop inside the loop over tiles"


@pytest.mark.parametrize("tile", [(64, 256, 64), (64, 128, 64), (64, 64, 64), (64, 32, 64)])
def test_matmul_with_one_consumer(tile):
    resources, code = machine_code(matmul_hopper.trace("bf16", "bf16", tile=tile, stages=4, parts=1))
    assert code.tensor == {"HGMMA": 4} and "USETMAXREG" not in code.counts and resources.registers <= 255


@pytest.mark.parametrize("name", ["bf16", "f16", "e4m3", "e5m2", "s8", "u8", "tf32"])
def test_a_in_registers(name):
    k = 64 if name == "tf32" else 128
    _, code = machine_code(examples.register_a.trace(name, name, k=k))
    steps = k * {"tf32": 32, "bf16": 16, "f16": 16}.get(name, 8) // 256
    assert code.tensor.total() == 2 * steps


def test_widened_and_chained():
    machine_code(examples.widened_a.trace("s8", "bf16"))
    machine_code(examples.chained.trace("bf16", "bf16", "bf16"))
    machine_code(examples.chained.trace("bf16", "bf16", "e4m3", d="f32"))


def test_the_inspection_can_fail():
    """Zeroing an accumulator between products makes ptxas serialise them: the report says so."""

    @sm.kernel("a[M,K], b[N,K] -> d[M,N]", arch="sm_90a")
    def serialised(a, b, d):
        ring = sm.ring(2, a=a.tiles(64, 64).shared(), b=b.tiles(64, 64).shared())
        acc = sm.wgmma.accumulator(64, 64)
        for k in a.tiles(64, 64).range(1):
            with ring.get(behind=1) as s:
                acc.mma(s.a, s.b.T, add=True)
            with sm.when(k == 3):
                acc.zero()
        d.tiles(64, 64)[0, 0].store(acc.wait().to(d.dtype))

    assert assemble(serialised.ptx("bf16", "bf16"), "sm_90a").losses
