"""TileLang: products with wgmma and tcgen05, weight-stationary forms among them, a reduction, a software pipeline.

Needs `pip install tilelang` and nvcc on the PATH. The launch is read from what TileLang says of its own kernel: tensor
maps in the host function's attributes, grid, block and shared memory in the device function's.
"""

import re
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import tilelang
import tilelang.language as T
from case import case, integers
from tvm.ir.transform import PassContext
from tvm.target import Target

from smalti.layout.tensor_map import TensorMap
from smalti.run.capture import Captured
from smalti.run.launch import Buffer, Launch, MapOf, Pointer

HOME = Path(tilelang.__file__).parent
DTYPES = {"f16": "float16", "bf16": "bfloat16", "e4m3": "float8_e4m3fn", "s8": "int8", "f32": "float32", "s32": "int32"}
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


@case(**{t: {"dtype": t} for t in ("f16", "bf16", "e4m3", "s8")})
def matmul(c, dtype):
    m, n, k, bm, bn, bk = 128, 64, 128, 64 if c.arch == "sm_90a" else 128, 64, 64
    of, to = operands(c, m, n, k, dtype)
    if c.arch == "sm_100a":
        launch(c, tensor_memory(m, n, k, bm, bn, bk, of, to))
        return

    @T.prim_func
    def main(A: T.Tensor((m, k), of), B: T.Tensor((n, k), of), C: T.Tensor((m, n), to)):
        with T.Kernel(n // bn, m // bm, threads=128) as (x, y):
            a, b = T.alloc_shared((bm, bk), of), T.alloc_shared((bn, bk), of)
            acc = T.alloc_fragment((bm, bn), to)
            T.clear(acc)
            for at in T.Pipelined(k // bk, num_stages=2):
                T.copy(A[y * bm, at * bk], a)
                T.copy(B[x * bn, at * bk], b)
                T.gemm(a, b, acc, transpose_B=True)
            T.copy(acc, C[y * bm, x * bn])

    launch(c, main)


def tensor_memory(m, n, k, bm, bn, bk, of, to):
    @T.prim_func
    def main(A: T.Tensor((m, k), of), B: T.Tensor((n, k), of), C: T.Tensor((m, n), to)):
        with T.Kernel(n // bn, m // bm, threads=128) as (x, y):
            a, b = T.alloc_shared((bm, bk), of), T.alloc_shared((bn, bk), of)
            acc = T.alloc_tmem([bm, bn], to)
            done = T.alloc_barrier(1)
            out, staged = T.alloc_fragment((bm, bn), to), T.alloc_shared((bm, bn), to)
            for at in T.Pipelined(k // bk, num_stages=1):
                T.copy(A[y * bm, at * bk], a)
                T.copy(B[x * bn, at * bk], b)
                T.gemm(a, b, acc, transpose_B=True, mbar=done, clear_accum=(at == 0))
            T.tcgen05_after_thread_sync()
            T.copy(acc, out)
            T.copy(out, staged)
            T.copy(staged, C[y * bm, x * bn])

    return main


@case("sm_100a", f16_64={"dtype": "f16", "rows": 64}, f16_32={"dtype": "f16", "rows": 32},
      e4m3_32={"dtype": "e4m3", "rows": 32}, s8_64={"dtype": "s8", "rows": 64})  # fmt: skip
def weight_stationary(c, dtype, rows):
    """Tiles of fewer than 128 rows: tcgen05.mma.ws."""
    m, n, k = 64, 64, 128
    of, to = operands(c, m, n, k, dtype)
    launch(c, tensor_memory(m, n, k, rows, 64, 64, of, to))


@case()
def row_sums(c):
    m, n = 64, 256
    x = c.input("A", "f32", (m, n), integers(3, -1000, 1000))
    c.output("C", "f32", np.stack([x.values.sum(1), x.values.max(1)]))

    @T.prim_func
    def main(A: T.Tensor((m, n), "float32"), C: T.Tensor((2, m), "float32")):
        with T.Kernel(m // 16, threads=128) as x:
            tile = T.alloc_fragment((16, n), "float32")
            total, top = T.alloc_fragment((16,), "float32"), T.alloc_fragment((16,), "float32")
            T.copy(A[x * 16, 0], tile)
            T.reduce_sum(tile, total, dim=1)
            T.reduce_max(tile, top, dim=1)
            T.copy(total, C[0, x * 16])
            T.copy(top, C[1, x * 16])

    launch(c, main)
