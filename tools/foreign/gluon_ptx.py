"""Compiles the kernels below with Gluon (Triton's low-level language), without a GPU, and writes their PTX.

    venv/bin/python tools/foreign/gluon_ptx.py tests/data/foreign

One tile each, synchronised by hand: TMA in, one matrix instruction chain, TMA out. The kernels are ours.
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("TRITON_DISABLE_LINE_INFO", "1")

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource
from triton.experimental.gluon.language.nvidia import blackwell, hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma


@gluon.jit
def hopper_tile(a, b, c, M: gl.constexpr, N: gl.constexpr, K: gl.constexpr):
    """C = A B^T for one tile; A is [M,K], B [N,K], both f16 through TMA."""
    sa = gl.allocate_shared_memory(gl.float16, [M, K], a.layout)
    sb = gl.allocate_shared_memory(gl.float16, [N, K], b.layout)
    sc = gl.allocate_shared_memory(gl.float16, [M, N], c.layout)
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    mbarrier.expect(full, 2 * (M + N) * K)
    tma.async_load(a, [0, 0], full, sa)
    tma.async_load(b, [0, 0], full, sb)
    mbarrier.wait(full, 0)
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, N, 16])
    acc = gl.zeros([M, N], gl.float32, layout)
    acc = hopper.warpgroup_mma(sa, sb.permute((1, 0)), acc, is_async=True)
    acc = hopper.warpgroup_mma_wait(0, deps=(acc,))
    sc.store(acc.to(gl.float16))
    hopper.fence_async_shared()
    tma.async_store(c, [0, 0], sc)
    tma.store_wait(0)
    mbarrier.invalidate(full)


@gluon.jit
def blackwell_tile(a, b, c, M: gl.constexpr, N: gl.constexpr, K: gl.constexpr):
    """As hopper_tile, with tcgen05: the accumulator in tensor memory, a commit to a barrier, a load."""
    sa = gl.allocate_shared_memory(gl.float16, [M, K], a.layout)
    sb = gl.allocate_shared_memory(gl.float16, [N, K], b.layout)
    sc = gl.allocate_shared_memory(gl.float16, [M, N], c.layout)
    full = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    done = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(full, count=1)
    mbarrier.init(done, count=1)
    mbarrier.expect(full, 2 * (M + N) * K)
    tma.async_load(a, [0, 0], full, sa)
    tma.async_load(b, [0, 0], full, sb)
    mbarrier.wait(full, 0)
    acc = blackwell.allocate_tensor_memory(gl.float32, [M, N], blackwell.TensorMemoryLayout([M, N], col_stride=1))
    blackwell.tcgen05_mma(sa, sb.permute((1, 0)), acc, use_acc=False)
    blackwell.tcgen05_commit(done)
    mbarrier.wait(done, 0)
    sc.store(acc.load().to(gl.float16))
    blackwell.fence_async_shared()
    tma.async_store(c, [0, 0], sc)
    tma.store_wait(0)
    mbarrier.invalidate(full)
    mbarrier.invalidate(done)


def compile_ptx(kernel: object, arch: int, m: int, n: int, k: int) -> str:
    def descriptor(rows: int, columns: int) -> str:
        layout = gl.NVMMASharedLayout.get_default_for([rows, columns], gl.float16)
        return f"tensordesc<fp16[{rows},{columns}],{layout!r}>"

    signature = {"a": descriptor(m, k), "b": descriptor(n, k), "c": descriptor(m, n)}
    signature |= dict.fromkeys("MNK", "constexpr")
    source = GluonASTSource(kernel, signature, {(3,): m, (4,): n, (5,): k})
    options = {"num_warps": 4, "ptx_version": 90}
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options).asm["ptx"]


def main(folder: str) -> None:
    for kernel, arch, m, n, k in ((hopper_tile, 90, 64, 64, 64), (blackwell_tile, 100, 128, 64, 64)):
        path = Path(folder) / f"gluon_{m}x{n}x{k}.sm_{arch}a.ptx"
        path.write_text(compile_ptx(kernel, arch, m, n, k))
        print(f"{path.name}: {path.stat().st_size} bytes")


if __name__ == "__main__":
    main(sys.argv[1])
