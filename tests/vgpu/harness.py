"""Running small kernels on the virtual GPU, or with `--device cuda` on a real one, for the tests of instructions.

`execute` runs one instruction on arrays, one lane an element; `run_ptx` a kernel given as text, `run` one given as
a module. Expectations are the tests' business.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from smalti.ptx.build import Builder
from smalti.ptx.finish import finish
from smalti.ptx.module import Address, Function, Guard, Module, Pair, Register, Variable, type_bits
from smalti.ptx.print import print_module
from smalti.vgpu.checks import Checks
from smalti.vgpu.launch import LaunchConfig
from smalti.vgpu.machine import Machine
from smalti.vgpu.memory import Memory
from smalti.vgpu.schedule import schedule

DEVICE = "virtual"  # set by conftest from --device
POISON = 0xC3  # every byte of a destination before the instruction
WORDS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def dim3(n: Any) -> tuple[int, int, int]:
    return (n, 1, 1) if isinstance(n, int) else (*n, 1, 1)[:3]


def run(
    module: Module, *params: Any, entry: str = "kernel", grid: Any = 1, block: Any = 32, cluster: Any = 1,
    shared: int = 0, seed: int | None = None, checks: bool = True, undefined: tuple[int, ...] = (), **options: Any,
) -> list[np.ndarray]:  # fmt: skip
    """Launch `entry`. An array parameter becomes a buffer and its address, a NumPy scalar its bytes.

    Returns the arrays after the launch, in order. All `checks` are on: they must stay silent. `undefined`: numbers of
    parameters whose buffer has no values yet.
    """
    grid, block, cluster = dim3(grid), dim3(block), dim3(cluster)
    if DEVICE == "cuda":
        return _cuda(module, params, entry, grid, block, cluster, shared)
    shape = {"entry": entry, "grid": grid, "block": block, "cluster": cluster, "shared": shared}
    machine = machine_for(module, *params, **shape, seed=seed, checks=checks, undefined=undefined, **options)
    machine.run()
    return results(machine)


def machine_for(
    module: Module, *params: Any, entry: str = "kernel", grid: Any = 1, block: Any = 32, cluster: Any = 1,
    shared: int = 0, seed: int | None = None, checks: bool = True, undefined: tuple[int, ...] = (), **options: Any,
) -> Machine:  # fmt: skip
    """The virtual GPU ready to run; `results` gives its buffers."""
    memory = Memory()
    raw = bytearray()
    buffers = []
    for i, p in enumerate(params):
        if isinstance(p, np.ndarray):
            data = np.ascontiguousarray(p)
            segment = memory.allocate(
                f"p{i}", data.nbytes, data=data.view(np.uint8).ravel(), defined=i not in undefined
            )
            buffers.append((segment, data))
            p = np.uint64(segment.address)
        raw += bytes(-len(raw) % (p.nbytes if p.dtype.kind != "V" else 4)) + p.tobytes()  # structs of words
    config = LaunchConfig(entry, dim3(grid), dim3(block), bytes(raw), dim3(cluster), shared)
    machine = Machine(module, config, memory, schedule=schedule(seed), checks=Checks() if checks else None, **options)
    machine.test_buffers = buffers  # type: ignore[attr-defined]
    return machine


def results(machine: Machine) -> list[np.ndarray]:
    return [s.data[: d.nbytes].copy().view(d.dtype).reshape(d.shape) for s, d in machine.test_buffers]  # type: ignore[attr-defined]


def _cuda(
    module: Module, params: Any, entry: str, grid: Any, block: Any, cluster: Any, shared: int
) -> list[np.ndarray]:
    from smalti.run import cuda
    from smalti.run.launch import Buffer, Launch, Pointer, Scalar

    given: list[Any] = []
    buffers = {}
    for i, p in enumerate(params):
        if isinstance(p, np.ndarray):
            data = np.ascontiguousarray(p).view(np.uint8).ravel()
            buffers[f"p{i}"] = Buffer(f"p{i}", "u8", data.shape, data=data, output=True)
            given.append(Pointer(f"p{i}"))
        else:
            given.append(Scalar(f"u{8 * p.nbytes}", int.from_bytes(p.tobytes(), "little")))
    out, _ = cuda.launch(
        print_module(module).encode(), Launch(entry, grid, block, tuple(given), buffers, cluster, shared)
    )
    arrays = [(i, p) for i, p in enumerate(params) if isinstance(p, np.ndarray)]
    return [out[f"p{i}"].view(p.dtype).reshape(p.shape) for i, p in arrays]


def run_ptx(text: str, *params: Any, **options: Any) -> list[np.ndarray]:
    """As `run`, for PTX text; a body without header gets one (`.version`, `.target`)."""
    return run(parse_ptx(text, options.pop("arch", "sm_90a"), options.pop("version", "8.8")), *params, **options)


def parse_ptx(text: str, arch: str = "sm_90a", version: str = "8.8") -> Module:
    from smalti.ptx.parse import parse

    if ".version" not in text:
        text = f".version {version}\n.target {arch}\n.address_size 64\n" + text
    return parse(text, "test.ptx")


# -- one instruction ---------------------------------------------------------------------------------------


class _Maker:
    def __init__(self, arch: str) -> None:
        self.module = Module(version=(8, 8), target=arch)
        self.function = Function("kernel")
        self.module.items.append(self.function)
        self.b = Builder(self.module, self.function)
        self.arrays: list[np.ndarray] = []
        self.tid = self.b.register("u32")
        from smalti.ptx.module import Special

        self.b.emit("mov.u32", self.tid, Special("tid.x"))

    def pointer(self, data: np.ndarray, size: int) -> Address:
        """The address of this lane's `size` bytes of a new buffer."""
        p = Variable(f"p{len(self.arrays)}", "param", "u64")
        self.function.params.append(p)
        self.arrays.append(data)
        base, at = self.b.register("b64"), self.b.register("b64")
        self.b.emit("ld.param.u64", base, self.b.address(p))
        self.b.emit("mad.wide.u32", at, self.tid, size, base)
        return Address(at)

    def operand(self, value: Any) -> Any:
        if isinstance(value, list):
            return [self.operand(v) for v in value]
        if not isinstance(value, np.ndarray):
            return value
        if value.dtype == np.bool_:
            byte, p = self.b.register("u16"), self.b.register("pred")
            self.b.emit("ld.global.u8", byte, self.pointer(value.astype(np.uint8), 1))
            self.b.emit("setp.ne.u16", p, byte, 0)
            return p
        if value.ndim == 2:
            at, halves, whole = self.pointer(value, 16), self.b.registers("b64", 2), self.b.register("b128")
            self.b.emit("ld.global.v2.b64", halves, at)
            self.b.emit("mov.b128", whole, halves)
            return whole
        bits = 8 * value.itemsize
        r = self.b.register(f"b{bits}")
        self.b.emit(f"ld.global.b{bits}", r, self.pointer(value, bits // 8))
        return r

    def destination(self, type_: Any) -> Any:
        if isinstance(type_, list):
            return [self.destination(t) for t in type_]
        if isinstance(type_, tuple):
            return Pair(self.destination(type_[0]), self.destination(type_[1]))
        if not isinstance(type_, str):
            return type_
        r = self.b.register(type_)
        poison = int.from_bytes(bytes([POISON]) * (type_bits(type_) // 8), "little")
        if type_ == "pred":
            self.b.emit("setp.ne.u32", r, self.tid, self.tid)
        elif type_ == "b128":
            half = self.b.register("b64")
            self.b.emit("mov.b64", half, poison & (1 << 64) - 1)
            self.b.emit("mov.b128", r, [half, half])
        elif type_ == "b8":
            wide = self.b.register("b32")
            self.b.emit("mov.b32", wide, poison | poison << 8 | poison << 16 | poison << 24)
            self.b.emit("mov.b32", [r, self.b.register("b8"), self.b.register("b8"), self.b.register("b8")], wide)
        else:
            self.b.emit(f"mov.b{type_bits(type_)}", r, poison)
        return r

    def store(self, out: Any, n: int) -> None:
        if isinstance(out, list):
            for o in out:
                self.store(o, n)
        elif isinstance(out, Pair):
            self.store(out.first, n)
            self.store(out.second, n)
        elif isinstance(out, Register):
            bits = type_bits(out.type)
            if out.type == "pred":
                word = self.b.register("b32")
                self.b.emit("selp.b32", word, 1, 0, out)
                self.b.emit("st.global.u8", self.pointer(np.full(n, 77, np.uint8), 1), word)
            elif bits == 128:
                halves = self.b.registers("b64", 2)
                self.b.emit("mov.b128", halves, out)
                self.b.emit("st.global.v2.b64", self.pointer(np.zeros((n, 2), np.uint64), 16), halves)
            else:
                self.b.emit(f"st.global.b{bits}", self.pointer(np.full(n, 77, WORDS[bits]), bits // 8), out)


def execute(
    opcode: str,
    outs: Any,
    *operands: Any,
    guard: np.ndarray | None = None,
    arch: str = "sm_90a",
    block: int = 0,
    **options: Any,
) -> Any:
    """Run one instruction: `outs` the destination's register type ((t, u) for `d|p`, a list for a vector), operands
    arrays (registers), lists (vectors) or constants. Returns the destination as unsigned words, predicates as bools;
    several as a list. Lanes whose guard is false keep POISON (predicates False)."""
    maker = _Maker(arch)
    given = [maker.operand(o) for o in operands]
    condition = Guard(maker.operand(guard)) if guard is not None else None
    kinds = outs if isinstance(outs, str | tuple) else list(outs)
    made = maker.destination(kinds)
    maker.b.emit(opcode, made, *given, guard=condition)
    n = block or len(maker.arrays[0])
    first = len(maker.arrays)
    maker.store(made, n)
    maker.b.emit("ret")
    finish(maker.module)
    out = run(maker.module, *maker.arrays, block=n, **options)[first:]
    flat = [made] if isinstance(made, Register) else [made.first, made.second] if isinstance(made, Pair) else made
    flat = [r for r in flat if isinstance(r, Register)]
    out = [x.astype(np.bool_) if r.type == "pred" else x for r, x in zip(flat, out, strict=True)]
    return out[0] if isinstance(kinds, str) else out


# -- values ------------------------------------------------------------------------------------------------


def words(bits: int, n: int = 64, seed: int = 1) -> np.ndarray:
    """Interesting unsigned words: edges of the signed and unsigned range, powers of two, random ones."""
    top = (1 << bits) - 1
    edges = [
        0,
        1,
        2,
        3,
        top,
        top - 1,
        top >> 1,
        (top >> 1) + 1,
        (top >> 1) - 1,
        5,
        7,
        0x55 * (top // 255),
        0xAA * (top // 255),
    ]
    edges += [1 << k for k in range(0, bits, max(1, bits // 8))]
    rng = np.random.default_rng(seed)
    values = (
        edges
        + [int(x) & top for x in rng.integers(0, 1 << 62, n)]
        + [int(x) & 0xFF for x in rng.integers(0, 1 << 62, 4)]
    )
    values = (
        [v ^ (int(s) << 62 & top) for v, s in zip(values, rng.integers(0, 4, len(values)), strict=True)]
        if bits == 64
        else values
    )
    order = rng.permutation(len(values))[:n]
    return np.array([values[i] for i in order], WORDS[bits])


def signed(x: Any, bits: int) -> int:
    x = int(x) & (1 << bits) - 1
    return x - (1 << bits) if x >> bits - 1 else x
