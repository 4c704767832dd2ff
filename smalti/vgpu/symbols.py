"""Where symbols lie and what special registers read: the part of the machine that is settled before anything runs.

Static shared memory from its base, dynamic behind it, local frames, constants, parameters. Knows no execution.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from smalti.errors import error
from smalti.ptx.module import Function, Module, Variable, type_bits
from smalti.vgpu.launch import LaunchConfig, VirtualDevice
from smalti.vgpu.memory import CONST_WINDOW, Memory, make_segment
from smalti.vgpu.program import Program
from smalti.vgpu.warp import WARP, Gang

if TYPE_CHECKING:
    from smalti.vgpu.machine import CTA

# Bytes of variables that a program may have: constants (PTX ISA 5.1.3), a thread's local memory (CUDA programming
# guide, technical specifications), and of global memory what strangers' files may take here.
MOST_BYTES = {"const": 64 << 10, "local": 512 << 10, "global": 1 << 30}
CODE_BASE = 0x7A00_0000_0000  # addresses of functions (private values)


class Symbols:
    """The machine's methods that place variables and answer special registers."""

    module: Module
    program: Program
    config: LaunchConfig
    device: VirtualDevice
    memory: Memory
    steps: int

    def _layout(self) -> None:
        """Give every variable its place: static shared from the base, then dynamic; local frames; constants."""
        self._places: dict[Variable, int] = {}
        shared, local, constant = self.device.shared_base, 0, 0
        params = 0
        constants: list[tuple[int, Variable]] = []
        dynamic: list[Variable] = []
        module_variables = [v for v in self.module.items if isinstance(v, Variable)]
        self._bounded([*module_variables, *self.program.variables])
        for v in [*module_variables, *self.program.variables]:
            align = v.align or max(1, min(16, v.size or 1) if v.count else v.size)
            if v.space == "shared":
                if v.linkage == "extern" or v.size == 0:
                    dynamic.append(v)
                else:
                    shared = -(-shared // align) * align
                    self._places[v] = shared
                    shared += v.size
            elif v.space in ("local", "param"):  # `.param` in a body: the arguments of a call
                local = -(-local // align) * align
                self._places[v] = local
                local += v.size
            elif v.space == "const":
                constant = -(-constant // align) * align
                self._places[v] = constant
                constants.append((constant, v))
                constant += v.size
            elif v.space == "global":
                segment = self.memory.allocate(v.name, v.size, align=max(align, 16))
                self._places[v] = segment.address
        dynamic_align = max([16, *[v.align for v in dynamic]])
        self.dynamic_base = -(-shared // dynamic_align) * dynamic_align
        for v in dynamic:
            self._places[v] = self.dynamic_base
        self.shared_static_end = shared
        self.shared_end = self.dynamic_base + self.config.shared_bytes
        if self.shared_end - self.device.shared_base > self.device.shared_per_cta:
            raise error(
                "SML0810",
                requested=self.shared_end - self.device.shared_base,
                limit=self.device.shared_per_cta,
            )
        self.local_frame = -(-local // 16) * 16
        self.params = make_segment("param", "kernel parameters", len(self.config.params), writable=False,
                                   data=np.frombuffer(self.config.params, np.uint8))  # fmt: skip
        self.constants = make_segment("const", "constants", constant, writable=False)
        for p in self.program.function.params:
            align = p.align or type_bits(p.type) // 8  # of the element: an array of bytes may lie anywhere
            params = -(-params // align) * align
            self._places[p] = params
            params += p.size
        if params != len(self.config.params):
            raise error("SML0811", entry=self.config.entry, wanted=params, given=len(self.config.params))
        for v in module_variables:
            self._initialise(v)

    def _bounded(self, variables: list[Variable]) -> None:
        """Refuse variables that are too large before memory is taken for them. Errors: SML0213."""
        for space, limit in MOST_BYTES.items():
            size = sum(v.size for v in variables if v.space == space)
            if size > limit:
                what = f"bytes of .{space} variables"
                raise error("SML0213", name=self.config.entry, what=what, count=size, limit=limit)

    def _initialise(self, v: Variable) -> None:
        if v.space not in ("global", "const") or not v.initial:
            return
        segment = self.constants if v.space == "const" else self.memory.find(self._places[v])
        assert segment is not None
        at = self._places[v] - (0 if v.space == "const" else segment.address)
        size = v.size // max(1, int(np.prod(v.count or (1,)))) // v.vector
        for i, item in enumerate(v.initial):
            if not isinstance(item, int):
                symbol = item.variable
                if isinstance(symbol, Function):
                    item = self.function_address(symbol)
                else:
                    item = self._places[symbol] + item.offset + (CONST_WINDOW if symbol.space == "const" else 0)
            raw = np.frombuffer((item & (1 << 8 * size) - 1).to_bytes(size, "little"), np.uint8)
            segment.data[at + i * size : at + (i + 1) * size] = raw

    def place_of(self, variable: Variable) -> int:
        """The address of a variable in its own space (shared: without the CTA's rank; local: in the frame)."""
        return self._places[variable]

    def function_address(self, function: Function) -> int:
        """A number that stands for a function; calls through it are resolved when the program is prepared."""
        names = [f.name for f in self.module.functions()]
        return CODE_BASE + 16 * names.index(function.name)

    def describe_shared(self, offset: int) -> str:
        """The tile, or the variable, or the plain offset at a byte of shared memory."""
        for t in self.module.tiles:
            if t.place == "shared" and t.offset <= offset - self.dynamic_base < t.offset + t.size:
                return f"{t.name} (byte {offset - self.dynamic_base - t.offset})"
        for v, place in self._places.items():
            if v.space == "shared" and v.size and place <= offset < place + v.size:
                return f"{v.name}+{offset - place}"
        return f"shared memory at {offset:#x}"

    # -- special registers ------------------------------------------------------------------------------

    def special(self, cta: CTA, name: str) -> Any:
        """A special register that never changes: a row over the threads of the CTA or a scalar; None if it may change.

        Errors: SML0809 for one that is not modelled.
        """
        head, _, axis = name.partition(".")
        k = "xyz".find(axis) if axis else -1
        config, t = self.config, cta.thread_numbers
        bx, by, _bz = config.block
        cx, cy, _cz = config.cluster
        if head == "tid":
            return np.uint32([t % bx, t // bx % by, t // (bx * by)][k])
        table: dict[str, Any] = {
            "ntid": config.block, "ctaid": cta.index, "nctaid": config.grid, "cluster_nctaid": config.cluster,
            "cluster_ctaid": (cta.rank % cx, cta.rank // cx % cy, cta.rank // (cx * cy)),
            "clusterid": tuple(i // c for i, c in zip(cta.index, config.cluster, strict=True)),
            "nclusterid": tuple(g // c for g, c in zip(config.grid, config.cluster, strict=True)),
        }  # fmt: skip
        if head in table and k >= 0:
            return np.uint32(table[head][k])
        lane = np.uint32(t % WARP)
        one = np.uint64(1)
        plain: dict[str, Any] = {
            "laneid": lane, "nwarpid": cta.threads_padded // WARP, "cluster_ctarank": cta.rank,
            "warpid": np.uint32(t // WARP), "cluster_nctarank": cta.cluster.size,
            "is_explicit_cluster": cta.cluster.size > 1,
            "smid": cta.index[0] % self.device.sm_count, "nsmid": self.device.sm_count, "gridid": 0,
            "dynamic_smem_size": config.shared_bytes, "total_smem_size": self.shared_end - self.device.shared_base,
            "aggr_smem_size": self.shared_end - self.device.shared_base, "reserved_smem_offset_begin": 0,
            "lanemask_eq": (one << lane.astype(np.uint64)).astype(np.uint32),
            "lanemask_lt": ((one << lane.astype(np.uint64)) - one).astype(np.uint32),
            "lanemask_le": ((one << (lane.astype(np.uint64) + one)) - one).astype(np.uint32),
        }  # fmt: skip
        plain["lanemask_gt"] = ~plain["lanemask_le"]
        plain["lanemask_ge"] = ~plain["lanemask_lt"]
        if name in plain:
            return np.asarray(plain[name])
        if name in ("clock", "clock_hi", "clock64", "globaltimer", "globaltimer_lo", "globaltimer_hi"):
            return None
        raise error("SML0809", at=None, what=f"special register %{name}")

    def volatile_special(self, cta: CTA, name: str, g: Gang) -> int:
        """A clock: counts executed instructions (nanoseconds and cycles are the same here)."""
        now = self.steps
        if name in ("clock64", "globaltimer"):
            return now
        return now >> 32 if name.endswith("_hi") else now & 0xFFFFFFFF
