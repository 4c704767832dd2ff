"""Compiles CuTe DSL kernels without a GPU (`pip install nvidia-cutlass-dsl`; one architecture a run). What comes out is
under NVIDIA's licence and not for the repository.

A kernel is launched once by its host function, with pointers as its parameters: what it is called with is known from
the PTX and the case alone. Knows the compiler's environment, no kernel.
"""

import os
import re
import sys
import tempfile
from pathlib import Path

ARCH = next((a for a in sys.argv if a.startswith("sm_")), "sm_90a")
FOLDER = tempfile.mkdtemp()
os.environ |= {"CUTE_DSL_ARCH": ARCH, "CUTE_DSL_KEEP": "ptx", "CUTE_DSL_DUMP_DIR": FOLDER, "CUTE_DSL_NO_CACHE": "1"}

import cutlass  # noqa: E402
import cutlass.cute as cute  # noqa: E402
from cutlass.cute.runtime import make_fake_compact_tensor  # noqa: E402

from smalti.run.capture import Captured  # noqa: E402
from smalti.run.launch import Buffer, Launch, Pointer, Struct  # noqa: E402

DTYPES = {
    "f16": cutlass.Float16, "bf16": cutlass.BFloat16, "f32": cutlass.Float32, "e4m3": cutlass.Float8E4M3FN,
    "e5m2": cutlass.Float8E5M2, "s8": cutlass.Int8, "s32": cutlass.Int32, "e2m1": cutlass.Float4E2M1FN,
    "ue8m0": cutlass.Float8E8M0FNU,
}  # fmt: skip


def launch(c, host, names, *static, shared, ctas=1):
    """Compile `host(tensors..., static...)`, whose kernel takes the tensors' pointers in the order of `names`."""
    assert c.arch == ARCH, f"the environment is for {ARCH}"
    operands = [c.operands[n] for n in names]
    fake = [make_fake_compact_tensor(DTYPES[o.format], o.elements, stride_order=order(o), assumed_align=16) for o in operands]  # fmt: skip  # noqa: E501
    made = cute.compile(host, *fake, *static)
    text = made.__ptx__
    for path in Path(FOLDER).glob("*.ptx"):
        text = path.read_text()
        path.unlink()
    entry = re.search(r"\.entry (\w+)\(", text)[1]
    head = text[text.index(".entry") : text.index(")\n", text.index(".entry"))]
    sizes = [int(n) for n in re.findall(r"\.b8 \w+\[(\d+)\]", head)]
    pointers = iter(names)
    params = [Pointer(next(pointers)) if n == 8 else Struct(bytes(n)) for n in sizes]
    assert next(pointers, None) is None, f"the parameters are of {sizes} bytes"
    text = text.replace(entry, f"kernel_cutlass_{host.__name__}")  # without the types of its arguments
    buffers = {o.name: Buffer(o.name, o.format, o.elements, data=o.memory.copy(), output=True) for o in operands}
    at = Launch(
        "kernel_cutlass_" + host.__name__, (ctas, 1, 1), (128, 1, 1), tuple(params), buffers, (ctas, 1, 1), shared
    )
    c.captured = Captured(host.__name__, text, c.arch, at)


def order(operand):
    return tuple(reversed(range(len(operand.elements))))
