"""What is asked of a Hopper GPU: small programs with seeded inputs, the same on a real GPU and on the virtual one.

Inputs are raw bits of PCG64 (a stable stream); fragments are random in register order, so no layout can hide an error.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from smalti.run import Buffer, Launch, Pointer

Bits = np.ndarray[Any, np.dtype[Any]]
HEADER = ".version 8.7\n.target sm_90a\n.address_size 64\n"
CTAS = 48
# exponent field: (position, width, bias); mantissa below, sign above
FIELDS = {
    "f16": (10, 5, 15),
    "bf16": (7, 8, 127),
    "tf32": (23, 8, 127),
    "f32": (23, 8, 127),
    "e4m3": (3, 4, 7),
    "e5m2": (2, 5, 15),
}
WIDTH = {
    "f16": 16,
    "bf16": 16,
    "tf32": 32,
    "f32": 32,
    "e4m3": 8,
    "e5m2": 8,
    "s8": 8,
    "u8": 8,
    "s32": 32,
    "b1": 8,
    "s4": 8,
    "u4": 8,
    "f64": 64,
}
FAMILIES = ("bits", "window", "few", "small", "zeros", "special")


@dataclass(frozen=True)
class Program:
    """`group` is the family of instructions; the output buffer is called "d"."""

    name: str
    group: str
    ptx: str
    launch: Launch


def raw(seed: str, count: int, width: int) -> Bits:
    """`count` random words of `width` bits, the same for the same seed on every machine."""
    words = np.random.PCG64(zlib.crc32(seed.encode())).random_raw(-(-count * width // 64))
    return np.asarray(words, np.uint64).view(f"u{width // 8}")[:count].copy()


def operand(seed: str, count: int, fmt: str, family: str) -> Bits:
    """Codes of a family: all bits; exponents in a window; few nonzero; subnormal; signed zeros; Inf, NaN among others."""
    width = WIDTH[fmt]
    bits = raw(seed, count, width)
    if fmt not in FIELDS or family == "bits":
        return bits
    at, size, bias = FIELDS[fmt]
    one = bits.dtype.type
    field = one((1 << size) - 1 << at)
    chance = raw(seed + "chance", count, 8)
    spread = raw(seed + "exponent", count, 8).astype(np.int64)
    low, span = {
        "window": (bias - 4, 9),
        "few": (bias - 2, 5),
        "small": (0, 2),
        "zeros": (0, 1),
        "special": (bias - 3, 7),
    }[family]
    exponent = np.clip(low + spread % span, 0, (1 << size) - 2).astype(bits.dtype)
    bits = (bits & ~field) | (exponent << one(at))
    if family == "few":
        bits[chance > 20] &= one(1 << width - 1)
    if family == "zeros":
        bits[chance > 8] &= one(1 << width - 1)
    if family == "special":
        bits[chance == 0] |= field
        bits[chance == 1] = (bits[chance == 1] | field) & ~one((1 << at) - 1)
    return bits


# -- wgmma -----------------------------------------------------------------------------------------------


def wgmma_program(
    name: str,
    spelling: str,
    a: str,
    b: str,
    d: str,
    n: int,
    sparse: bool,
    registers: bool,
    tail: str,
    families: tuple[str, ...],
    ctas: int = CTAS,
    given: dict[str, Bits] | None = None,
) -> Program:
    """One wgmma a CTA: A and B are images of shared memory without swizzle, C and D fragments; `given`: not random."""
    size_b, size_a = -(-n // 16) * (1024 if sparse else 512), 64 * 32  # N rounded up: the rest is filled, not read
    regs = n // 2 if d in ("f32", "s32") else n // 4
    kind = "f" if d == "f32" else "r"
    each = ctas // len(families)

    def make(what: str, count: int, fmt: str) -> Bits:
        if given is not None and what in given:
            return np.ascontiguousarray(given[what]).view(np.uint8).reshape(-1)
        return np.concatenate([operand(f"{name}{what}{f}", count * each, fmt, f).view(np.uint8) for f in families])

    ctas = each * len(families)
    bytes_a, bytes_b = make("a", size_a * 8 // WIDTH[a], a), make("b", size_b * 8 // WIDTH[b], b)
    c = make("c", regs * 128 * (1 if WIDTH.get(d) == 32 else 2), d)
    meta = raw(name + "meta", 128 * ctas, 32)
    words_a, words_b = size_a // 4, size_b // 4
    lines = [
        HEADER,
        ".visible .entry kernel(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 e, .param .u64 d)\n.reqntid 128, 1, 1\n{",
    ]
    lines += [
        f".reg .b32 %{kind}acc<{regs}>;" if kind == "r" else f".reg .f32 %{kind}acc<{regs}>;",
        ".reg .b32 %t<24>;",
        ".reg .b64 %x<16>;",
        ".reg .pred %p<3>;",
    ]
    lines += [
        f".shared .align 1024 .b8 smem[{size_a + size_b}];",
        "mov.u32 %t0, %tid.x;",
        "mov.u32 %t1, %ctaid.x;",
        "mov.u32 %t2, smem;",
    ]
    for n_, p in enumerate("abced"):
        lines.append(f"ld.param.u64 %x{n_}, [{p}];")
    for source, words, at in ((0, words_a, 0), (1, words_b, size_a)):
        lines += [
            f"mad.lo.u32 %t3, %t1, {words}, %t0;",
            f"mad.wide.u32 %x8, %t3, 4, %x{source};",
            "mad.lo.u32 %t4, %t0, 4, %t2;",
        ]
        lines += [
            f"ld.global.u32 %t5, [%x8+{512 * i}];\nst.shared.u32 [%t4+{at + 512 * i}], %t5;"
            for i in range(words // 128)
        ]
    lines += [
        f"mad.lo.u32 %t3, %t1, {regs * 128}, %t0;",
        "mad.wide.u32 %x9, %t3, 4, %x2;",
        "mad.wide.u32 %x10, %t3, 4, %x4;",
    ]
    ld = "f32" if kind == "f" else "b32"
    lines += [f"ld.global.{ld} %{kind}acc{i}, [%x9+{512 * i}];" for i in range(regs)]
    lines += ["mad.lo.u32 %t3, %t1, 128, %t0;", "mad.wide.u32 %x11, %t3, 4, %x3;", "ld.global.u32 %t6, [%x11];"]
    if registers:
        lines += [
            "mad.lo.u32 %t3, %t1, 512, %t0;",
            "mad.wide.u32 %x8, %t3, 4, %x0;",
            *[f"ld.global.u32 %t{10 + i}, [%x8+{512 * i}];" for i in range(4)],
        ]
    lines += ["fence.proxy.async;", "bar.sync 0;"]
    # no swizzle, K-major: LBO between 16-byte columns of K, SBO between groups of 8 rows
    for reg, at, rows in ((12, 0, 64), (13, size_a, n)):
        constant = (rows * 16 >> 4) << 16 | (128 >> 4) << 32
        lines += [
            f"add.u32 %t7, %t2, {at};",
            "bfe.u32 %t7, %t7, 4, 14;",
            f"cvt.u64.u32 %x{reg}, %t7;",
            f"or.b64 %x{reg}, %x{reg}, {constant};",
        ]
    acc = "{" + ", ".join(f"%{kind}acc{i}" for i in range(regs)) + "}"
    a_text = "{%t10, %t11, %t12, %t13}" if registers else "%x12"
    metadata = ", %t6, 0" if sparse else ""
    lines += ["setp.ne.u32 %p1, 1, 0;", "wgmma.fence.sync.aligned;", f"{spelling} {acc}, {a_text}, %x13{metadata}, {tail};",
              "wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;"]  # fmt: skip
    lines += [f"st.global.{ld} [%x10+{512 * i}], %{kind}acc{i};" for i in range(regs)]
    lines += ["ret;", "}"]
    buffers = {
        "a": Buffer("a", "u8", bytes_a.shape, data=bytes_a), "b": Buffer("b", "u8", bytes_b.shape, data=bytes_b),
        "c": Buffer("c", "u8", c.shape, data=c), "e": Buffer("e", "u8", (len(meta) * 4,), data=meta.view(np.uint8)),
        "d": Buffer("d", "u32", (ctas * regs * 128,), output=True),
    }  # fmt: skip
    params = tuple(Pointer(p) for p in "abced")
    return Program(
        name,
        "wgmma.sp" if sparse else "wgmma",
        "\n".join(lines),
        Launch("kernel", (ctas, 1, 1), (128, 1, 1), params, buffers),
    )


def wgmma() -> Iterator[Program]:
    """Every type pair and accumulator, dense and sparse, A in shared memory and in registers; negation; scale-d."""
    pairs = [("f16", "f16", d) for d in ("f32", "f16")] + [("bf16", "bf16", "f32"), ("tf32", "tf32", "f32")]
    pairs += [(a, b, d) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2") for d in ("f32", "f16")]
    integers = [(a, b, "s32") for a in ("s8", "u8") for b in ("s8", "u8")]
    for a, b, d in [*pairs, *integers]:
        k = 256 // WIDTH[a]
        floats = d != "s32"
        for sparse in (False, True):
            for registers in (False, True):
                for extra in ("", ".satfinite") if not floats else ("",):
                    depth = k * 2 if sparse else k
                    n = 16
                    spelling = (
                        f"wgmma.mma_async{'.sp' if sparse else ''}.sync.aligned.m64n{n}k{depth}{extra}.{d}.{a}.{b}"
                    )
                    turns = ", 0, 0" if WIDTH[a] == 16 and not registers else ", 0" if WIDTH[a] == 16 else ""
                    tail = f"%p1, 1, 1{turns}" if floats else "%p1"
                    name = f"{spelling}{' A in registers' if registers else ''}"
                    yield wgmma_program(
                        name, spelling, a, b, d, n, sparse, registers, tail, FAMILIES if floats else ("bits",)
                    )
        if floats:
            turns = ", 0, 0" if WIDTH[a] == 16 else ""
            spelling = f"wgmma.mma_async.sync.aligned.m64n16k{k}.{d}.{a}.{b}"
            yield wgmma_program(
                spelling + " negated A", spelling, a, b, d, 16, False, False, f"%p1, -1, 1{turns}", FAMILIES
            )
            yield wgmma_program(
                spelling + " scale-d false", spelling, a, b, d, 16, False, False, f"0, 1, 1{turns}", FAMILIES
            )
    spelling = "wgmma.mma_async.sync.aligned.m64n16k256.s32.b1.b1.and.popc"
    yield wgmma_program(spelling, spelling, "b1", "b1", "s32", 16, False, False, "%p1", ("bits",))


# -- mma.sync --------------------------------------------------------------------------------------------

# shape, D, A, B, C types; registers of D, A, B, C
_MMA = [
    ("m16n8k16", "f32", "f16", "f16", "f32", 4, 4, 2, 4), ("m16n8k8", "f32", "f16", "f16", "f32", 4, 2, 1, 4),
    ("m16n8k16", "f16", "f16", "f16", "f16", 2, 4, 2, 2), ("m16n8k8", "f16", "f16", "f16", "f16", 2, 2, 1, 2),
    ("m16n8k16", "f32", "bf16", "bf16", "f32", 4, 4, 2, 4), ("m16n8k8", "f32", "bf16", "bf16", "f32", 4, 2, 1, 4),
    ("m16n8k8", "f32", "tf32", "tf32", "f32", 4, 4, 2, 4), ("m16n8k4", "f32", "tf32", "tf32", "f32", 4, 2, 1, 4),
    *[("m16n8k32", d, a, b, d, 4 if d == "f32" else 2, 4, 2, 4 if d == "f32" else 2) for a in ("e4m3", "e5m2") for b in ("e4m3", "e5m2") for d in ("f32", "f16")],
    *[("m16n8k32", "s32", a, b, "s32", 4, 4, 2, 4) for a in ("s8", "u8") for b in ("s8", "u8")],
    ("m16n8k16", "s32", "s8", "s8", "s32", 4, 2, 1, 4),
    ("m16n8k256", "s32", "b1", "b1", "s32", 4, 4, 2, 4),
    ("m16n8k64", "s32", "s4", "s4", "s32", 4, 4, 2, 4), ("m16n8k32", "s32", "u4", "s4", "s32", 4, 2, 1, 4),
]  # fmt: skip


def mma() -> Iterator[Program]:
    for shape, d, a, b, c, nd, na, nb, nc in _MMA:
        families = FAMILIES if d != "s32" else ("bits",)
        warps = 120
        each = warps // len(families)
        spelling = f"mma.sync.aligned.{shape}.row.col.{d}.{a}.{b}.{c}" + (".xor.popc" if a == "b1" else "")
        parts = {}
        for what, regs, fmt in (("a", na, a), ("b", nb, b), ("c", nc, c)):
            count = regs * 32 * each * 32 // WIDTH[fmt] if fmt in FIELDS else regs * 32 * each * 4
            parts[what] = np.concatenate(
                [
                    operand(f"{spelling}{what}{f}", count, fmt if fmt in FIELDS else "s8", f).view(np.uint8)
                    for f in families
                ]
            )
        lines = [HEADER, ".visible .entry kernel(.param .u64 a, .param .u64 b, .param .u64 c, .param .u64 d)\n{"]
        lines += [
            ".reg .b32 %r<40>;",
            ".reg .f32 %f<8>;",
            ".reg .b64 %x<10>;",
            "mov.u32 %r0, %tid.x;",
            "mov.u32 %r1, %ctaid.x;",
        ]
        acc = "f" if d == "f32" else "r"
        first = {"a": 10, "b": 16, "c": 20, "d": 30}
        for n, (p, regs) in enumerate((("a", na), ("b", nb), ("c", nc), ("d", nd))):
            lines += [
                f"ld.param.u64 %x{n}, [{p}];",
                f"mad.lo.u32 %r2, %r1, {regs * 32}, %r0;",
                f"mad.wide.u32 %x{n + 4}, %r2, 4, %x{n};",
            ]
            if p in "ab":
                lines += [f"ld.global.b32 %r{first[p] + i}, [%x{n + 4}+{128 * i}];" for i in range(regs)]
            elif p == "c":
                lines += [
                    f"ld.global.{'f32' if acc == 'f' else 'b32'} %{acc}{i if acc == 'f' else 20 + i}, [%x{n + 4}+{128 * i}];"
                    for i in range(regs)
                ]

        def group(letter: str, start: int, count: int) -> str:
            return "{" + ", ".join(f"%{letter}{start + i}" for i in range(count)) + "}"

        start_c, start_d = (0, 4) if acc == "f" else (20, 30)
        lines += [
            f"{spelling} {group(acc, start_d, nd)}, {group('r', 10, na)}, {group('r', 16, nb)}, {group(acc, start_c, nc)};"
        ]
        lines += [
            f"st.global.{'f32' if acc == 'f' else 'b32'} [%x7+{128 * i}], %{acc}{start_d + i};" for i in range(nd)
        ]
        lines += ["ret;", "}"]
        ctas = each * len(families)
        buffers = {p: Buffer(p, "u8", v.shape, data=v) for p, v in parts.items()}
        buffers["d"] = Buffer("d", "u32", (ctas * nd * 32,), output=True)
        yield Program(
            spelling,
            "mma.sync",
            "\n".join(lines),
            Launch("kernel", (ctas, 1, 1), (32, 1, 1), tuple(Pointer(p) for p in "abcd"), buffers),
        )


# -- cvt and one-operand functions -----------------------------------------------------------------------

_CVT = [
    *[f"cvt.{r}{x}.f16.f32" for r in ("rn", "rz", "rm", "rp") for x in ("", ".sat")], *[f"cvt.{r}.bf16.f32" for r in ("rn", "rz", "rm", "rp")],
    "cvt.rn.relu.f16.f32", "cvt.rn.satfinite.f16.f32", "cvt.rn.relu.bf16.f32", "cvt.rna.tf32.f32", "cvt.rn.tf32.f32", "cvt.rz.tf32.f32",
    "cvt.rna.satfinite.tf32.f32", *[f"cvt.{r}.{t}.f32" for r in ("rni", "rzi", "rmi", "rpi") for t in ("s32", "u32", "s16", "u16")],
    "cvt.rni.f32.f32", "cvt.rzi.ftz.f32.f32", "cvt.rn.f32.s32", "cvt.rz.f32.u32",
]  # fmt: skip


def cvt() -> Iterator[Program]:
    """All upper halves of an f32 with six lower halves that lie on and beside rounding boundaries."""
    top = np.arange(65536, dtype=np.uint32) << 16
    inputs = np.concatenate([top | low for low in (0, 1, 0x1000, 0x7FFF, 0x8000, 0x8001)])
    for spelling in _CVT:
        to, _ = spelling.split(".")[-2:]
        out = {"f16": "b16", "bf16": "b16", "s16": "b16", "u16": "b16"}.get(to, "b32")
        widen = "cvt.u32.u16 %r4, %h0;" if out == "b16" else "mov.b32 %r4, %r3;"
        target = "%h0" if out == "b16" else "%r3"
        yield _unary(spelling, "cvt", inputs, f"{spelling} {target}, %r2;\n{widen}")
    for spelling in ("cvt.rn.satfinite.e4m3x2.f32", "cvt.rn.satfinite.e5m2x2.f32", "cvt.rn.satfinite.relu.e4m3x2.f32"):
        yield _unary(spelling, "cvt", inputs, f"{spelling} %h0, %f1, %f0;\ncvt.u32.u16 %r4, %h0;")
    halves = np.arange(65536, dtype=np.uint32)
    for spelling in ("cvt.rn.f16x2.e4m3x2", "cvt.rn.f16x2.e5m2x2"):
        yield _unary(spelling, "cvt", halves, f"cvt.u16.u32 %h0, %r2;\n{spelling} %r4, %h0;")
    for spelling in ("cvt.f32.f16", "cvt.f32.bf16"):
        yield _unary(spelling, "cvt", halves, f"cvt.u16.u32 %h0, %r2;\n{spelling} %f2, %h0;\nmov.b32 %r4, %f2;")
    for spelling in (
        "cvt.f32.f32",
        "cvt.ftz.f32.f32",
        "cvt.rm.ftz.f16.f32",
        "cvt.rp.ftz.sat.f16.f32",
        "cvt.rn.ftz.f16.f32",
    ):
        target, widen = ("%h0", "cvt.u32.u16 %r4, %h0;") if ".f16." in spelling else ("%f2", "mov.b32 %r4, %f2;")
        yield _unary(spelling, "cvt", inputs, f"{spelling} {target}, %f0;\n{widen}")
    for spelling in ("cvt.rz.f32.bf16", "cvt.rp.f32.bf16", "cvt.ftz.f32.bf16", "cvt.rm.ftz.f32.bf16"):
        yield _unary(spelling, "cvt", halves, f"cvt.u16.u32 %h0, %r2;\n{spelling} %f2, %h0;\nmov.b32 %r4, %f2;")
    for spelling in ("cvt.rn.f32.f64", "cvt.rn.ftz.f32.f64", "cvt.rm.ftz.f32.f64", "cvt.rz.ftz.sat.f32.f64"):
        body = f"shl.b32 %r5, %r2, 9;\nmov.b64 %x4, {{%r5, %r2}};\n{spelling} %f2, %x4;\nmov.b32 %r4, %f2;"
        yield _unary(spelling, "cvt", inputs, body)
    for spelling in ("cvt.rn.satfinite.e4m3x2.f16x2", "cvt.rn.satfinite.e5m2x2.f16x2"):
        yield _unary(spelling, "cvt", halves | halves[::-1] << 16, f"{spelling} %h0, %r2;\ncvt.u32.u16 %r4, %h0;")


def _unary(name: str, group: str, inputs: Bits, body: str) -> Program:
    count = len(inputs)
    text = f"""{HEADER}.visible .entry kernel(.param .u64 a, .param .u64 d)
{{
.reg .b32 %r<8>; .reg .f32 %f<4>; .reg .b16 %h<4>; .reg .b64 %x<6>;
mov.u32 %r0, %tid.x;
mov.u32 %r1, %ctaid.x;
mad.lo.u32 %r1, %r1, 1024, %r0;
ld.param.u64 %x0, [a];
ld.param.u64 %x1, [d];
mad.wide.u32 %x2, %r1, 4, %x0;
mad.wide.u32 %x3, %r1, 4, %x1;
ld.global.b32 %r2, [%x2];
mov.b32 %f0, %r2;
not.b32 %r5, %r2;
mov.b32 %f1, %r5;
{body}
st.global.b32 [%x3], %r4;
ret;
}}
"""
    buffers = {
        "a": Buffer("a", "u8", (count * 4,), data=inputs.view(np.uint8)),
        "d": Buffer("d", "u32", (count,), output=True),
    }
    return Program(
        name, group, text, Launch("kernel", (count // 1024, 1, 1), (1024, 1, 1), (Pointer("a"), Pointer("d")), buffers)
    )


def programs() -> list[Program]:
    return [*wgmma(), *mma(), *cvt()]
