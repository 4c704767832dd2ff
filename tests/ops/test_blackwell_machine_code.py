"""The Blackwell kernels and examples assembled for sm_100a and sm_103a: nothing that ptxas warns of, no spills, the
expected tensor-core instructions in the K loop."""

import importlib.util
from pathlib import Path

import pytest

import smalti as sm
from smalti.ops.matmul_blackwell import mx_matmul
from smalti.ops.matmul_blackwell_dense import matmul_blackwell
from smalti.run.assemble import assemble
from smalti.run.sass import inspect

pytestmark = pytest.mark.ptxas

PAIR = (2, 1, 1)


def example(name):
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parents[2] / "examples" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


scaled, sparse = example("blackwell_block_scaled"), example("blackwell_sparse")


def machine_code(kernel, operands, options, arch):
    if arch != kernel.arch:
        kernel = sm.kernel(kernel.signature.text, arch=arch)(kernel.function)
    traced = kernel.trace(*operands, **options)
    made = assemble(traced.ptx(), arch)
    assert not made.losses, made.losses
    resources, code = made.kernels[traced.entry], inspect(made.cubin)[traced.entry]
    assert resources.spill_stores == resources.spill_loads == 0 and not code.spills_in_loops
    return traced, code


def cases(table, *also):
    """All on sm_100a; on sm_103a, which has no integer products, one of each kind."""
    return [*((name, "sm_100a") for name in table), *((name, "sm_103a") for name in also)]


def plain_d(name):
    """D whose rows are no multiples of 16 bytes."""
    return sm.facts(name, alignment=4)


MX = {
    "mxfp8 256x192": (("mxfp8", "mxfp8_e5m2"), {"tile": (256, 192, 128)}, "UTCQMMA", 2 * 1, 2 + 2),
    "mxfp8 384x128": (("mxfp8", "mxfp8"), {"tile": (384, 128, 128), "outs": 1}, "UTCQMMA", 3 * 1, 3 + 1),
    "mxfp8 128x384": (("mxfp8", "mxfp8"), {"tile": (128, 384, 128), "outs": 1}, "UTCQMMA", 1 * 2, 1 + 3),
    "mxfp8 128x96": (("mxfp8", "mxfp8"), {"tile": (128, 96, 128), "slots": 2}, "UTCQMMA", 1, 1 + 2),
    "mxfp4": (("mxfp4", "mxfp4"), {"tile": (256, 192, 256)}, "UTCOMMA", 2 * 1, 2 * (2 + 2)),
    "nvfp4": (("nvfp4", "nvfp4"), {"tile": (256, 192, 256), "d": "bf16", "global_scale": True}, "UTCOMMA", 2, 4 * 4),
    "pair 512x192": (("mxfp8", "mxfp8"), {"tile": (512, 192, 128), "cluster": PAIR}, "UTCQMMA", 2, 2 + 2),
    "pair 256x384": (("mxfp4", "mxfp4"), {"tile": (256, 384, 256), "cluster": PAIR}, "UTCOMMA", 2, 2 * (1 + 3)),
    "rows of 4 bytes": (("mxfp8", "mxfp8"), {"d": plain_d("f32")}, "UTCQMMA", 2 * 1, 2 + 2),
}


@pytest.mark.parametrize("name, arch", cases(MX, "mxfp8 256x192", "nvfp4", "pair 512x192"))
def test_block_scaled(name, arch):
    operands, options, instruction, products, copies = MX[name]
    options = {"d": "f32", **options}
    traced, code = machine_code(mx_matmul, (*operands, "f32"), options, arch)
    assert code.tensor == {instruction: 4 * products}  # 128 bytes of K are four instructions
    assert code.counts["UTCCP"] == copies and code.counts["LDTM"] > 0
    assert (code.counts["UTMASTG"] > 0) == (name != "rows of 4 bytes")
    assert {i.depth for i in code.instructions if i.head == instruction} == {2}, "the K loop inside the loop over tiles"
    assert traced.plan.tensor_columns <= 512


DENSE = {
    "bf16": (("bf16", "bf16"), {}, "UTCHMMA"),
    "f16": (("f16", "f16"), {"d": "f32", "tile": (128, 128, 64)}, "UTCHMMA"),
    "tf32": (("tf32", "tf32"), {"tile": (128, 256, 32)}, "UTCHMMA"),
    "fp8": (("e4m3", "e5m2"), {"d": "bf16", "tile": (128, 256, 128)}, "UTCQMMA"),
    "fp8 out": (("e4m3", "e4m3"), {"d": "e4m3", "tile": (128, 256, 128)}, "UTCQMMA"),
    "int8": (("s8", "u8"), {"tile": (128, 256, 128)}, "UTCIMMA"),
    "transposed": ((sm.facts("f16", axis=0), sm.facts("f16", axis=0)), {}, "UTCHMMA"),
    "transposed fp8": ((sm.facts("e4m3", axis=0), sm.facts("e4m3", axis=0)), {"tile": (128, 256, 128)}, "UTCQMMA"),
    "pair": (("bf16", "bf16"), {"tile": (256, 256, 64), "cluster": PAIR}, "UTCHMMA"),
    "rows of 2 bytes": (("bf16", "bf16"), {"d": sm.facts("bf16", alignment=2)}, "UTCHMMA"),
}


@pytest.mark.parametrize("name, arch", cases(DENSE, "bf16", "fp8", "pair"))
def test_dense(name, arch):
    operands, options, instruction = DENSE[name]
    _, code = machine_code(matmul_blackwell, operands, options, arch)
    assert code.tensor == {instruction: 4}
    assert (code.counts["UTMASTG"] > 0) == (name != "rows of 2 bytes")
    assert {i.depth for i in code.instructions if i.head == instruction} == {2}


EXAMPLES = {
    "scales in atoms": (scaled.scales_in_atoms, ("e4m3", "e4m3", "u8", "u8"), {}, {"UTCQMMA": 8}, 3),
    "row-major scales": (scaled.scales_row_major, ("e4m3", "e4m3", "u8", "u8"), {}, {"UTCQMMA": 8}, 4),
    "scales in shared memory": (scaled.scales_in_shared_memory, ("e4m3", "e4m3", "u8", "u8"), {}, {"UTCQMMA": 16}, 8),
    "slices": (scaled.sliced, ("mxfp8", "mxfp8", "s32"), {}, {"UTCQMMA": 8 + 16}, 4),
    "sparse by copy": (sparse.sparse_by_copy, ("bf16", "bf16", "u32"), {}, {"UTCHMMA": 4}, 1),
    "sparse by registers": (sparse.sparse_by_registers, ("e4m3", "e4m3", "u32"), {"seen": "u32"}, {"UTCQMMA": 2}, 1),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_examples(name):
    kernel, operands, options, products, copies = EXAMPLES[name]
    _, code = machine_code(kernel, operands, {"d": "f32", **options}, "sm_100a")
    assert code.tensor == products and code.counts["UTCCP"] == copies
    assert ("STTM" in code.counts) == (name == "sparse by registers")
    if name.startswith("sparse"):
        operands = [i.operands for i in code.instructions if i.head in products]
        assert all(o.count("tmem[") == 2 for o in operands), "the accumulator and the metadata"
