"""Small kernels for the tests of barriers, copies and matrix instructions, written instruction by instruction.

Shared memory starts at `BASE`; buffers and tensor maps become kernel parameters in the order of their creation.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from smalti.layout.tensor_map import TensorMap
from smalti.ptx.build import Builder
from smalti.ptx.module import SINK, Address, Function, Guard, Instruction, Module, Register, Special, Variable
from smalti.vgpu.checks import Checks
from smalti.vgpu.launch import LaunchConfig
from smalti.vgpu.machine import Machine
from smalti.vgpu.memory import Memory
from smalti.vgpu.schedule import Schedule, schedule

BASE = 0x400


class Early(Schedule):
    """Asynchronous work at once, as early as it may be done."""

    def pick(self, gangs: list[Any], ops: list[Any]) -> Any:
        return ops[0] if ops else super().pick(gangs, ops)

    def budget(self) -> int:
        return 1


class Kernel:
    """`run` gives the buffers after the launch, as arrays like those given."""

    def __init__(
        self, threads: int = 32, *, arch: str = "sm_90a", cluster: int = 1, grid: int | None = None, shared: int = 65536
    ) -> None:
        self.threads, self.cluster, self.grid, self.shared = threads, cluster, grid or cluster, shared
        self.module = Module(version=(8, 7), target=arch)
        self.function = Function("kernel", directives={"reqntid": (threads, 1, 1)})
        self.module.items.append(self.function)
        self.b = Builder(self.module, self.function)
        self.smem = self.b.variable("smem", "shared", "b8", count=(0,), align=1024, linkage="extern")
        self.buffers: list[tuple[str, np.ndarray, bool, bool]] = []
        self.params: list[tuple[str, Any]] = []
        self.base, self.tid, self.first = self.reg("b32"), self.reg("u32"), self.reg("pred")
        self.emit("mov.b32", self.base, self.smem)
        self.emit("mov.u32", self.tid, Special("tid.x"))
        self.emit("setp.eq.u32", self.first, self.tid, 0)

    # -- instructions -----------------------------------------------------------------------------------

    def reg(self, type_: str) -> Register:
        return self.b.register(type_)

    def regs(self, type_: str, count: int) -> list[Register]:
        return self.b.registers(type_, count)

    def emit(self, opcode: str, *operands: Any, guard: Any = None) -> Instruction:
        return self.b.emit(opcode, *operands, guard=guard)

    def value(self, opcode: str, *operands: Any, type_: str | None = None) -> Register:
        """Emit an instruction whose first operand is a new register of the opcode's type, and give that."""
        out = self.reg(type_ or opcode.split(".")[-1])
        self.emit(opcode, out, *operands)
        return out

    def at(self, offset: int = 0, base: Register | None = None) -> Address:
        """An address in shared memory, relative to BASE (or to another register)."""
        return self.b.address(base or self.base, offset)

    def sync(self) -> None:
        self.emit("bar.sync", 0)

    def wait(self, barrier: Address, parity: Any, guard: Any = None) -> None:
        """Spin until the phase with that parity is complete."""
        again, passed = self.b.label(), self.reg("pred")
        out = self.b.label()
        if guard is not None:
            self.emit("bra", out, guard=Guard(guard, True))
        self.b.place(again)
        self.emit("mbarrier.try_wait.parity.shared::cta.b64", passed, barrier, parity)
        self.emit("bra", again, guard=Guard(passed, True))
        self.b.place(out)

    def init(self, offset: int, count: int) -> None:
        """Thread 0 initialises an mbarrier; the CTA waits for it."""
        self.emit("mbarrier.init.shared::cta.b64", self.at(offset), count, guard=self.first)
        self.emit("fence.mbarrier_init.release.cluster", guard=self.first)
        self.sync()

    def expect(self, offset: int, size: int, guard: Any = None) -> None:
        self.emit("mbarrier.arrive.expect_tx.shared::cta.b64", SINK, self.at(offset), size, guard=guard or self.first)

    def element(self, pointer: Register, index: Register, size: int) -> Address:
        """The address of element `index` of a global array."""
        out = self.reg("b64")
        self.emit("mad.wide.u32", out, index, size, pointer)
        return Address(out)

    def put(self, pointer: Register, value: Register, slot: int = 0) -> None:
        """value of every thread to pointer[slot * threads + tid] (32 or 64 bits)."""
        size = 8 if value.type.endswith("64") else 4
        address = self.element(pointer, self.tid, size)
        self.emit(f"st.global.b{8 * size}", self.b.address(address.base, slot * size * self.threads), value)

    # -- parameters -------------------------------------------------------------------------------------

    def buffer(self, name: str, data: np.ndarray, *, defined: bool = True, writable: bool = True) -> Register:
        """A global array; the register holds its address. Every buffer comes back from `run`."""
        self.buffers.append((name, np.ascontiguousarray(data), defined, writable))
        p = Variable(name, "param", "u64")
        self.function.params.append(p)
        self.params.append((name, None))
        return self.value("ld.param.u64", self.b.address(p), type_="b64")

    def map(self, buffer: str, m: TensorMap, offset: int = 0) -> Register:
        """The generic address of a tensor map over a buffer."""
        p = Variable(f"map{len(self.params)}", "param", "b8", (128,), 64)
        self.function.params.append(p)
        self.params.append((buffer, (m, offset)))
        return self.value("cvta.param.u64", self.value("mov.b64", p), type_="b64")

    def box(self, m: Register, *coordinates: Any) -> Address:
        return self.b.tensor_address(m, list(coordinates))

    # -- running ----------------------------------------------------------------------------------------

    def run(
        self, *, seed: int | None = None, early: bool = False, checks: bool = True, end: bool = True
    ) -> dict[str, np.ndarray]:
        if end:
            self.emit("ret")
        self.machine = machine = self.prepare(seed, early, checks)
        machine.run()
        out = {}
        for (name, data, _, _), segment in zip(self.buffers, self.segments, strict=True):
            out[name] = segment.data[: data.nbytes].copy().view(data.dtype).reshape(data.shape)
        return out

    def prepare(self, seed: int | None, early: bool, checks: bool | Checks) -> Machine:
        memory = Memory()
        self.segments = [
            memory.allocate(
                name,
                data.nbytes,
                data=data.view(np.uint8).ravel() if defined else None,
                defined=defined,
                writable=writable,
            )
            for name, data, defined, writable in self.buffers
        ]
        places = {b[0]: s.address for b, s in zip(self.buffers, self.segments, strict=True)}
        raw = bytearray()
        for name, m in self.params:
            if m is None:
                raw += bytes(-len(raw) % 8) + int(places[name]).to_bytes(8, "little")
            else:
                raw += bytes(-len(raw) % 64) + m[0].at(places[name] + m[1]).encode()
        config = LaunchConfig(
            "kernel", (self.grid, 1, 1), (self.threads, 1, 1), bytes(raw), (self.cluster, 1, 1), self.shared
        )
        plan = Early() if early else schedule(seed)
        return Machine(
            self.module, config, memory, schedule=plan, checks=Checks() if checks is True else checks or None
        )


def bf16(values: np.ndarray) -> np.ndarray:
    """Small integers as bf16 codes."""
    return (np.asarray(values, np.float32).view(np.uint32) >> 16).astype(np.uint16)
