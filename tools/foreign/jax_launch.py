"""Compiles Pallas Mosaic GPU kernels with JAX, without a GPU, and finds out how their host code launches them.

The host code that Mosaic leaves is LLVM IR; it is run here with functions in the place of the runtime's that note
tensor maps and the launch. Knows JAX's dump files and runtime interface, no kernel.
"""

from __future__ import annotations

import ctypes
import os
import re
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

os.environ.setdefault("JAX_SKIP_CUDA_CONSTRAINTS_CHECK", "1")

import jax
import jax.numpy as jnp
from case import integers
from jax.experimental import topologies
from jax.experimental.pallas import mosaic_gpu as plgpu

from smalti.layout.tensor_map import TensorMap
from smalti.run.capture import Captured
from smalti.run.launch import Buffer, Launch, MapOf, Pointer, Struct

DTYPES = {"f16": "float16", "bf16": "bfloat16", "f32": "float32", "e4m3": "float8_e4m3fn", "e5m2": "float8_e5m2",
          "s8": "int8", "s32": "int32", "u32": "uint32", "u8": "uint8", "e2m1": "float4_e2m1fn",
          "ue8m0": "float8_e8m0fnu"}  # fmt: skip
CHIPS = {"sm_90a": (9, "NVIDIA H100", 132), "sm_100a": (10, "NVIDIA B200", 148)}

# What mosaic_gpu_init_tma_desc calls element types: type of the map, bits of an element.
ELEMENTS = {0: ("u8", 4), 1: ("u8", 8), 2: ("u16", 16), 3: ("u32", 32), 4: ("u64", 64), 5: ("f16", 16), 6: ("f32", 32),
            7: ("bf16", 16), 8: ("u8", 2), 9: ("s32", 32), 10: ("s64", 64)}  # fmt: skip


def device(arch: str) -> str:
    """As much of a GpuTargetConfig as the compiler asks for (hardware limits of the compute capability)."""
    major, name, cores = CHIPS[arch]
    return f"""
gpu_device_info {{
  threads_per_block_limit: 1024 threads_per_warp: 32 shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: {cores} fpus_per_core: 128 shared_memory_per_block_optin: 232448
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  thread_dim_limit_x: 1024 thread_dim_limit_y: 1024 thread_dim_limit_z: 64
  registers_per_core_limit: 65536 registers_per_block_limit: 65536 device_address_bits: 64
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98 device_memory_size: 84942979072
  cuda_compute_capability {{ major: {major} minor: 0 feature_extension: ACCELERATED_FEATURES }}
  device_vendor: "NVIDIA Corporation" platform_version: "Compute Capability {major}.0a" name: "{name}"
  driver_version: "13.0.0" runtime_version: "13.0.0" compile_time_toolkit_version: "13.0.0" dnn_version: "9.10.0"
}}
platform_name: "CUDA"
dnn_version_info {{ major: 9 minor: 10 }}
device_description_str: "{name}"
"""


def launch(c: Any, body: Callable[..., None], outputs: Sequence[Any], inputs: Sequence[Any], **options: Any) -> None:
    """Compile a kernel of `plgpu.kernel` for the case's architecture and note its launch.

    Inputs and outputs are operands of the case; a shape given in an operand's `seen` is what the kernel is told, with a
    dtype name, where JAX sees the bytes otherwise (packed metadata).
    """
    topology = topologies.get_topology_desc(platform="cuda", target_config=device(c.arch), topology="1x1x1")
    sharding = jax.sharding.SingleDeviceSharding(topology.devices[0])
    given = [jax.ShapeDtypeStruct(*seen(x), sharding=sharding) for x in inputs]
    made = [jax.ShapeDtypeStruct(*seen(x)) for x in outputs]
    kernel = plgpu.kernel(body, out_type=made[0] if len(made) == 1 else made, **options)
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"MOSAIC_GPU_DUMP_TO": folder, "MOSAIC_GPU_DUMP_PTX": "1", "MOSAIC_GPU_DUMP_HOST_LLVM": "1"}
        jax.jit(kernel).lower(*given).compile()
        (ptx,) = Path(folder).glob("*.ptx")
        (host,) = Path(folder).glob("*.ll")
        text, code = ptx.read_text(), host.read_text()
    text = re.sub(r"(?m)^\.version 9\.\d+", ".version 9.0", text)  # from LLVM's newest to what these kernels need
    c.captured = captured(c.arch, text, code, [*inputs, *outputs])


def tiled(shape, dtype, swizzle=128, **options):
    """Shared memory in the order that tensor cores read: tiles of 8 rows, swizzled."""
    bits = 4 if dtype == "float4_e2m1fn" else jnp.dtype(dtype).itemsize * 8
    transforms = (plgpu.TilingTransform((8, swizzle * 8 // bits)), plgpu.SwizzleTransform(swizzle))
    return plgpu.SMEM(shape, getattr(jnp, dtype), transforms=transforms, **options)


def leave(value, staged, out):
    """A tile of registers to global memory, by way of shared memory."""
    staged[...] = value
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(staged, out)
    plgpu.wait_smem_to_gmem(0)


def product(c, dtype, m, n, k, *, transposed=False):
    """Operands a [m, k], b [n, k] (transposed: [k, n]) and the exact product d."""
    top = 100 if dtype == "s8" else 3
    a = c.input("a", dtype, (m, k), integers(1, -top, top))
    b = c.input("b", dtype, (k, n) if transposed else (n, k), integers(2, -top, top))
    kind = "s32" if dtype == "s8" else "f32"
    return a, b, c.output("d", kind, a.values @ (b.values if transposed else b.values.T)), kind


def finish(acc, sd, d):
    """The accumulator to global memory, by way of registers and shared memory."""
    sd[...] = plgpu.async_load_tmem(acc)
    plgpu.wait_load_tmem()  # before the kernel's end frees the accumulator
    plgpu.commit_smem()
    plgpu.copy_smem_to_gmem(sd, d)
    plgpu.wait_smem_to_gmem(0)


def seen(operand: Any) -> tuple[tuple[int, ...], Any]:
    shape, name = getattr(operand, "seen", (operand.elements, DTYPES[operand.format]))
    return shape, getattr(jnp, name)


class Host:
    """The runtime's functions, as the host code calls them: they note what they are given."""

    def __init__(self) -> None:
        self.maps: list[tuple[int, TensorMap]] = []
        self.call: dict[str, Any] = {}
        pointer, number, small = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
        self.kinds = {
            "mosaic_gpu_init_tma_desc": ctypes.CFUNCTYPE(
                None, pointer, pointer, number, number, pointer, pointer, number, pointer
            ),
            "mosaic_gpu_launch_kernel": ctypes.CFUNCTYPE(None, pointer, *[small] * 10, pointer, pointer),
            "mosaic_gpu_module_load": ctypes.CFUNCTYPE(pointer, pointer),
            "mosaic_gpu_get_function": ctypes.CFUNCTYPE(pointer, pointer, pointer, small, small),
        }  # fmt: skip
        self.functions = {name: kind(getattr(self, name)) for name, kind in self.kinds.items()}

    def mosaic_gpu_module_load(self, image: int) -> int:
        return 1

    def mosaic_gpu_get_function(self, module: int, name: int, shared: int, cluster: int) -> int:
        return 1

    def mosaic_gpu_init_tma_desc(self, target: int, base: int, kind: int, rank: int, sizes: int, strides: int, swizzle: int, window: int) -> None:  # fmt: skip  # noqa: E501
        """Writes the map's number where the map would go."""
        size, step, box = (list((ctypes.c_int64 * rank).from_address(a)) for a in (sizes, strides, window))
        type_, bits = ELEMENTS[kind]
        per = max(1, 8 // bits)  # elements of a byte, which count as one
        whole = TensorMap(
            type_,
            (size[-1] // per, *reversed(size[:-1])),
            tuple(s * bits // 8 for s in reversed(step[:-1])),
            box=(box[-1] // per, *reversed(box[:-1])),
            swizzle={16: "none", 32: "32B", 64: "64B", 128: "128B"}[swizzle],
        )
        ctypes.memmove(target, f"map {len(self.maps):4}".encode() + bytes(120), 128)
        self.maps.append((base, whole))

    def mosaic_gpu_launch_kernel(self, function: int, *rest: int) -> None:
        *numbers, _, params = rest
        self.call = {"grid": numbers[:3], "cluster": numbers[3:6], "block": numbers[6:9], "shared": numbers[9]}
        self.read(params)

    def read(self, params: int) -> None:
        table = (ctypes.c_void_p * len(self.sizes)).from_address(params)
        self.call["params"] = [ctypes.string_at(a, n) for a, n in zip(table, self.sizes, strict=True)]


def captured(arch: str, ptx: str, code: str, operands: Sequence[Any]) -> Captured:
    import llvmlite.binding as llvm

    entry = re.search(r"\.entry (\w+)\(", ptx)[1]
    head = ptx[ptx.index(".entry") : ptx.index(")", ptx.index(".entry"))]
    found = re.findall(r"\.param (?:\.align \d+ )?\.(\w+) [^,\n]*?(?:\[(\d+)\])?,?\n", head + "\n")
    host = Host()
    host.sizes = [int(count) if count else int(re.sub(r"\D", "", kind)) // 8 for kind, count in found]
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    for name, function in host.functions.items():
        llvm.add_symbol(name, ctypes.cast(function, ctypes.c_void_p).value)
    llvm.add_symbol("global_scratch", ctypes.addressof(ctypes.create_string_buffer(64)))
    name = re.search(r"define void @(\w+_mosaic_gpu)\(ptr %0, ptr %1, ptr %2\)", code)[1]
    module = llvm.parse_assembly(code)
    engine = llvm.create_mcjit_compiler(module, llvm.Target.from_default_triple().create_target_machine())
    engine.finalize_object()
    buffers = (ctypes.c_void_p * len(operands))(*[o.data_ptr() for o in operands])
    ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)(engine.get_function_address(name))(
        None, None, ctypes.cast(buffers, ctypes.c_void_p)
    )

    def place(address: int) -> tuple[str, int]:
        for o in operands:
            if o.data_ptr() <= address < o.data_ptr() + max(1, o.memory.size):
                return o.name, address - o.data_ptr()
        raise AssertionError(f"{address:#x} lies in no buffer")

    params: list[Any] = []
    for raw in host.call["params"]:
        if raw[:4] == b"map ":
            maps = []
            for at in range(0, len(raw), 128):
                base, described = host.maps[int(raw[at + 4 : at + 8])]
                buffer, offset = place(base)
                maps.append((at, MapOf(buffer, described, offset)))
            params.append(maps[0][1] if len(maps) == 1 else Struct(bytes(len(raw)), tuple(maps)))
        else:
            assert len(raw) == 8, f"a parameter of {len(raw)} bytes"
            params.append(Pointer(*place(int.from_bytes(raw, "little"))))
    launch = Launch(
        entry, tuple(host.call["grid"]), tuple(host.call["block"]), tuple(params),
        {o.name: Buffer(o.name, o.format, o.elements, data=o.memory.copy(), output=True) for o in operands},
        tuple(max(1, n) for n in host.call["cluster"]), host.call["shared"],
    )  # fmt: skip
    return Captured(name, ptx, arch, launch)
