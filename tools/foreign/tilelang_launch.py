"""Compiles TileLang kernels without a GPU and reads how they are launched from what TileLang says of its own kernel:
tensor maps in the host function's attributes, grid, block and shared memory in the device function's.

Needs `pip install tilelang` and nvcc on the PATH. Knows TileLang's modules, no kernel.
"""

import re
import subprocess
import tempfile
from pathlib import Path

import tilelang
from case import integers
from tvm.ir.transform import PassContext
from tvm.target import Target

from smalti.layout.tensor_map import TensorMap
from smalti.run.capture import Captured
from smalti.run.launch import Buffer, Launch, MapOf, Pointer

HOME = Path(tilelang.__file__).parent
DTYPES = {"f16": "float16", "bf16": "bfloat16", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2", "s8": "int8",
          "f32": "float32", "s32": "int32"}  # fmt: skip
# The driver's numbers (CUtensorMapDataType, CUtensorMapSwizzle).
TYPES = ("u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16", "f32.ftz", "tf32", "tf32.ftz")
SWIZZLES = ("none", "32B", "64B", "128B")


def launch(c, function):
    """Compile a prim_func whose parameters are called like the case's operands, and note how it is launched.

    On Blackwell without TileLang's own warp roles: with them 0.1.15 frees tensor memory (SML0943) from a warp that has
    not waited for the products.
    """
    target = Target({"kind": "cuda", "arch": c.arch})
    options = {"tl.disable_warp_specialized": True} if c.arch == "sm_100a" else {}
    with target, PassContext(config=options):
        made = tilelang.lower(function, target=target)
    (device,) = made.device_mod.functions.values()
    (host,) = made.host_mod.functions.values()
    extent = {str(k): int(v) for k, v in device.attrs["thread_extent"].items()}
    maps = host.attrs.get("tma_descriptor_args", {})
    maps = {str(k).partition(":")[0]: list(v) for k, v in maps.items()}
    names = re.findall(
        r"(\w+)[,)]", re.search(r"__launch_bounds__\([^)]*\) main_kernel(\(.*?\))", made.kernel_source)[1]
    )
    params = []
    for name in names:
        found = next((v for k, v in maps.items() if k.split("(")[0].strip('"') == name), None)
        params.append(MapOf(*described(found)) if found is not None else Pointer(name))
    used = {p.buffer for p in params}
    buffers = {
        n: Buffer(n, o.format, o.elements, data=o.memory.copy(), output=True)
        for n, o in c.operands.items() if n in used
    }  # fmt: skip
    shared = int(device.attrs["dyn_shared_memory_buf"]) if "dyn_shared_memory_buf" in device.attrs else 0
    grid, block = ([extent.get(f"{kind}.{axis}", 1) for axis in "xyz"] for kind in ("blockIdx", "threadIdx"))
    at = Launch("main_kernel", tuple(grid), tuple(block), tuple(params), buffers, shared=shared)
    c.captured = Captured("main", compiled(made.kernel_source, c.arch), c.arch, at)


def described(given):
    _, _, kind, rank, buffer, *rest = given
    numbers = [int(n) for n in rest]
    rank = int(rank)
    size, stride, box, step = (numbers[i * rank : (i + 1) * rank] for i in range(4))
    _, swizzle, _, fill = numbers[4 * rank : 4 * rank + 4]
    made = TensorMap(
        TYPES[int(kind)], tuple(size), tuple(stride[1:]), box=tuple(box), element_stride=tuple(step),
        swizzle=SWIZZLES[swizzle], fill="nan" if fill else "zero",
    )  # fmt: skip
    return str(getattr(buffer, "name", buffer)), made


def compiled(source, arch):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.cu"
        path.write_text(source)
        include = [f"-I{HOME / 'src'}", f"-I{HOME / '3rdparty' / 'cutlass' / 'include'}"]
        options = ["-ptx", f"-arch={arch}", "-std=c++17", "--expt-relaxed-constexpr", "-w", "-DENABLE_BF16"]
        subprocess.run(["nvcc", *options, *include, "-o", str(path.with_suffix(".ptx")), str(path)], check=True)
        return path.with_suffix(".ptx").read_text()


def operands(c, m, n, k, dtype):
    top = 100 if dtype == "s8" else 3
    a, b = c.input("A", dtype, (m, k), integers(1, -top, top)), c.input("B", dtype, (n, k), integers(2, -top, top))
    out = "s32" if dtype == "s8" else "f32"
    c.output("C", out, a.values @ b.values.T)
    return DTYPES[dtype], DTYPES[out]
