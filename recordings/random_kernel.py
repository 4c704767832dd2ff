"""The frame of a random program: registers, inputs, shared memory, and a trace in which every result has its own words.

A kernel is PTX text under construction. It must not know which instructions are asked; the `random_*` files beside it do.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import Any, TypeVar

import numpy as np
from programs import Bits, Program

from smalti.layout.tensor_map import TensorMap
from smalti.run import Buffer, Launch, MapOf, Pointer

HEADER = ".version 8.8\n.target sm_90a\n.address_size 64\n"
THREADS = 128  # one warpgroup
BASE = 0x400  # where a CTA's shared memory begins on a Hopper GPU
LETTER = {"b16": "h", "b32": "r", "b64": "x", "pred": "p"}
WORDS = {"b16": 1, "b32": 1, "b64": 2, "pred": 1}  # 32-bit words of a trace
KEPT = 20  # newest results of a type that stay operands
T = TypeVar("T")


class Dice:
    """Random numbers that are the same on every machine and for every version of Python and NumPy."""

    def __init__(self, seed: str) -> None:
        self.words = np.random.PCG64(zlib.crc32(seed.encode()))

    def below(self, n: int) -> int:
        return int(self.words.random_raw()) % n

    def between(self, low: int, high: int) -> int:
        return low + self.below(high - low + 1)

    def pick(self, items: Sequence[T]) -> T:
        return items[self.below(len(items))]

    def chance(self, percent: int) -> bool:
        return self.below(100) < percent

    def bits(self, count: int, width: int = 32) -> Bits:
        """`count` random words of `width` bits."""
        raw = np.asarray(self.words.random_raw(-(-count * width // 64)), np.uint64)
        return raw.view(f"u{width // 8}")[:count].copy()


class Kernel:
    """Text of one kernel of `ctas` CTAs with THREADS threads, in clusters of `cluster`.

    `pool` holds registers by type that any instruction may read; `trace` stores one to its own place in the output.
    """

    def __init__(self, name: str, ctas: int, cluster: int = 1) -> None:
        self.name, self.ctas, self.cluster = name, ctas, cluster
        self.total = ctas * THREADS
        self.dice = Dice(name)
        self.lines: list[str] = []
        self.counts = dict.fromkeys(LETTER, 0)
        self.labels = 0
        self.inputs: list[Bits] = []  # each [words, total]
        self.words = 0  # of the inputs, a thread
        self.slots: list[str] = []  # what each word of a thread's trace is
        self.shared = 0
        self.pool: dict[str, list[str]] = {t: [] for t in LETTER}
        self.fixed: dict[str, list[str]] = {t: [] for t in LETTER}
        self.maps: list[tuple[str, TensorMap, Bits, bool]] = []
        self.data: list[Bits] = []  # of the read-write buffer, 32-bit words
        self.emit("mov.u32 %me, %tid.x;", "mov.u32 %cta, %ctaid.x;", "mov.u32 %base, smem;")
        self.emit(f"mad.lo.u32 %gid, %cta, {THREADS}, %me;", "setp.eq.u32 %first, %me, 0;")
        self.emit("ld.param.u64 %in, [a];", "mad.wide.u32 %in, %gid, 4, %in;")
        self.emit("ld.param.u64 %rw, [g];", "ld.param.u64 %out, [d];", "mad.wide.u32 %out8, %gid, 8, %out;")
        self.emit("mad.wide.u32 %out, %gid, 4, %out;")
        zero = self.source(np.zeros((1, self.total), np.uint32))[0]
        self.emit(f"mov.b32 %zero32, {zero};", f"mov.b64 %zero64, {{{zero}, {zero}}};", f"cvt.u16.u32 %zero16, {zero};")
        self.emit("not.b32 %full, %zero32;")

    # -- text -------------------------------------------------------------------------------------------

    def emit(self, *lines: str) -> None:
        self.lines += lines

    def new(self, type_: str) -> str:
        self.counts[type_] += 1
        return f"%{LETTER[type_]}{self.counts[type_] - 1}"

    def news(self, type_: str, count: int) -> list[str]:
        return [self.new(type_) for _ in range(count)]

    def label(self) -> str:
        self.labels += 1
        return f"L{self.labels}"

    def rejoin(self) -> None:
        """Warps are whole again after a branch. The mask is opaque: where it is a constant, ptxas 13.0 to 13.5 sometimes drop
        both this barrier and the loop's own convergence, and .aligned instructions then run on parts of a warp."""
        self.emit("bar.warp.sync %full;")

    def sync(self) -> None:
        """All threads of the CTA meet, warps whole."""
        self.emit("bar.warp.sync 0xffffffff;", "bar.sync 0;")

    # -- values -----------------------------------------------------------------------------------------

    def operand(self, type_: str) -> str:
        return self.dice.pick(self.pool[type_] + self.fixed[type_])

    def keep(self, type_: str, register: str) -> None:
        self.pool[type_] = [*self.pool[type_], register][-KEPT:]

    def source(self, words: Bits) -> list[str]:
        """Registers that hold the 32-bit words [n, total] of each thread."""
        assert words.dtype == np.uint32 and words.shape[1] == self.total, (words.dtype, words.shape)
        made = self.news("b32", len(words))
        for i, register in enumerate(made):
            self.emit(f"ld.global.b32 {register}, [%in+{4 * self.total * (self.words + i)}];")
        self.words += len(words)
        self.inputs.append(words)
        return made

    def random_words(self, count: int) -> Bits:
        return self.dice.bits(count * self.total).reshape(count, self.total)

    def trace(self, type_: str, register: str, what: str) -> None:
        at = 4 * self.total * len(self.slots)
        if type_ == "b64":
            if len(self.slots) % 2:
                at += 4 * self.total
                self.slots.append("unused")
            self.emit(f"st.global.b64 [%out8+{at}], {register};")
        elif type_ == "b32":
            self.emit(f"st.global.b32 [%out+{at}], {register};")
        else:
            word = self.new("b32")
            widen = f"cvt.u32.u16 {word}, {register};" if type_ == "b16" else f"selp.b32 {word}, 1, 0, {register};"
            self.emit(widen, f"st.global.b32 [%out+{at}], {word};")
        self.slots += [what] * WORDS[type_]

    def opaque(self, type_: str, register: str) -> str:
        """The same value in a register of which an assembler knows nothing."""
        if type_ == "pred":
            return register
        made, zero = self.new(type_), f"%zero{type_[1:]}"
        self.emit(f"xor.{type_} {made}, {register}, {zero};")
        return made

    def result(self, type_: str, register: str, what: str) -> None:
        """A new value: traced, and an operand from now on."""
        self.trace(type_, register, what)
        self.keep(type_, register)

    # -- memory -----------------------------------------------------------------------------------------

    def region(self, size: int, align: int = 128) -> int:
        """The offset of new shared memory."""
        start = -(-self.shared // align) * align
        self.shared = start + size
        return start

    def fill(self, start: int, words: Bits) -> None:
        """Shared memory from `start` on gets [n, total] words: 16 bytes a thread and four of n, in lines of 2 KiB."""
        registers = self.source(words)
        address = self.new("b32")
        self.emit(f"mad.lo.u32 {address}, %me, 16, %base;")
        for i in range(0, len(words), 4):
            four = "{" + ", ".join(registers[i : i + 4]) + "}"
            self.emit(f"st.shared.v4.b32 [{address}+{start + 512 * i}], {four};")

    def dump(self, start: int, size: int, what: str) -> None:
        """Trace shared memory; the CTA must have met since it was written."""
        address = self.new("b32")
        self.emit(f"mad.lo.u32 {address}, %me, 16, %base;")
        for i in range(0, size, 2048):
            four = self.news("b32", 4)
            self.emit(f"ld.shared.v4.b32 {{{', '.join(four)}}}, [{address}+{start + i}];")
            for register in four:
                self.trace("b32", register, what)

    def global_words(self, words: Bits) -> int:
        """The byte offset of new read-write global memory with these 32-bit words; it is compared at the end."""
        start = 4 * sum(len(x) for x in self.data)
        self.data.append(words)
        assert len(words) % 4 == 0
        return start

    def tensor_map(self, m: TensorMap, data: Bits, output: bool) -> str:
        """A 64-bit register with the address of a tensor map over a buffer of its own."""
        at = len(self.maps)
        self.maps.append((f"m{at}", m, data, output))
        register = self.new("b64")
        self.emit(f"mov.b64 {register}, map{at};", f"cvta.param.u64 {register}, {register};")
        return register

    def barrier(self, count: int = 1) -> int:
        """The offset of a new mbarrier, initialised; every thread of the CTA (or cluster) may use it."""
        at = self.region(8, 8)
        self.emit(f"@%first mbarrier.init.shared::cta.b64 [%base+{at}], {count};")
        self.emit("fence.mbarrier_init.release.cluster;")
        if self.cluster > 1:
            self.cluster_sync()
        else:
            self.sync()
        return at

    def cluster_sync(self) -> None:
        self.emit("bar.warp.sync 0xffffffff;", "barrier.cluster.arrive.aligned;", "barrier.cluster.wait.aligned;")

    def wait(self, barrier: int, parity: int = 0) -> None:
        again, done = self.label(), self.new("pred")
        self.emit(f"{again}:", f"mbarrier.try_wait.parity.shared::cta.b64 {done}, [%base+{barrier}], {parity};")
        self.emit(f"@!{done} bra {again};")
        self.rejoin()
        self.sync()

    def wait_at_most(self, barrier: int) -> None:
        """As `wait` for phase 0, but gives up: for questions whose number of bytes is one of the answers."""
        again, out, done, left = self.label(), self.label(), self.new("pred"), self.new("b32")
        p = self.new("pred")
        self.emit(f"mov.b32 {left}, 100;", f"{again}:", f"sub.u32 {left}, {left}, 1;")
        self.emit(f"mbarrier.try_wait.parity.shared::cta.b64 {done}, [%base+{barrier}], 0;", f"@{done} bra {out};")
        self.emit(f"setp.ne.u32 {p}, {left}, 0;", f"@{p} bra {again};", f"{out}:")
        self.rejoin()
        self.sync()
        self.trace("pred", done, "all bytes came")

    # -- the whole --------------------------------------------------------------------------------------

    def program(self, group: str) -> Program:
        if len(self.slots) % 2:
            self.slots.append("unused")
        if self.cluster > 1:
            self.cluster_sync()  # no CTA leaves while another may look at its shared memory
        maps = "".join(f", .param .align 64 .b8 map{i}[128]" for i in range(len(self.maps)))
        declare = " ".join(f".reg .{t} %{LETTER[t]}<{n + 1}>;" for t, n in self.counts.items())
        text = "\n".join(
            [
                f"{HEADER}.extern .shared .align 1024 .b8 smem[];",
                f".visible .entry kernel(.param .u64 a, .param .u64 g, .param .u64 d{maps})",
                f".reqntid {THREADS}, 1, 1\n{{",
                f".reg .b32 %me, %cta, %gid, %base; .reg .b64 %in, %rw, %out, %out8, %zero64; .reg .pred %first; .reg .b32 %zero32, %full; .reg .b16 %zero16;\n{declare}",
                *self.lines,
                "ret;\n}\n",
            ]
        )
        inputs = np.concatenate(self.inputs).view(np.uint8).reshape(-1)
        data = np.concatenate(self.data or [np.zeros(4, np.uint32)]).view(np.uint8)
        buffers = {
            "a": Buffer("a", "u8", inputs.shape, data=inputs),
            "g": Buffer("g", "u32", (len(data) // 4,), data=data, output=True),
            # words of gaps in the trace are never written: they are defined from the start
            "d": Buffer("d", "u32", (len(self.slots) * self.total,),
                        data=np.full(4 * len(self.slots) * self.total, 0x5A, np.uint8), output=True),
        }  # fmt: skip
        for name, _, content, output in self.maps:
            raw = content.view(np.uint8).reshape(-1)
            buffers[name] = Buffer(name, "u8", raw.shape, data=raw, output=output)
        params: list[Any] = [Pointer("a"), Pointer("g"), Pointer("d")]
        params += [MapOf(name, m) for name, m, _, _ in self.maps]
        launch = Launch(
            "kernel", (self.ctas, 1, 1), (THREADS, 1, 1), tuple(params), buffers,
            cluster=(self.cluster, 1, 1), shared=max(self.shared, 16),
        )  # fmt: skip
        return Program(self.name, group, text, launch)
