"""What was asked of an H200, what it answered, and which recordings show it; the page `docs/truth.md` tells it."""

from __future__ import annotations

import re
from typing import NamedTuple


class Experiment(NamedTuple):
    """`recordings` are patterns of program names in hopper.json."""

    name: str
    question: str
    answer: str
    recordings: tuple[str, ...]


EXPERIMENTS = (
    Experiment(
        "E1", "wgmma f16, bf16, tf32 with C",
        "16 (tf32: 8) products and C aligned to the largest exponent, 25 bits kept, cut to f32 (f16: to nearest even); least exponent -133 (f16 results: -21)",
        ("wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16", "wgmma.mma_async.sync.aligned.m64n16k16.f16.f16.f16", "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16", "wgmma.mma_async.sync.aligned.m64n16k8.f32.tf32.tf32", "* floor"),
    ),
    Experiment("E2", "wgmma fp8 to f32", "13 bits kept, results of 14 significant bits", ("wgmma.mma_async.sync.aligned.m64n16k32.f32.e?m?.e?m?",)),
    Experiment("E3", "wgmma fp8 to f16", "13 bits kept, rounded once to f16", ("wgmma.mma_async.sync.aligned.m64n16k32.f16.e?m?.e?m?",)),
    Experiment("E4", "chains, scale-d, negation", "each instruction rounds; scale-d false is C = +0; negation flips the operand's sign", ("wgmma chain *", "* scale-d false", "* negated A")),
    Experiment("E5", "special values", "NaN 7FFFFFFF or 7FFF; no zero result is negative", ("wgmma.mma_async.sync.aligned.m64n16k16.f32.f16.f16", "all mma.f16 f32")),
    Experiment("E6", "sparse forms, metadata", "every code is a plain gather; of tf32 in 16-bit halves", ("wgmma.mma_async.sp.*", "all mma.sp.*", "wgmma descriptors sp.*")),
    Experiment("E7", "int8 saturation", "one clamp at the end", ("wgmma.mma_async.sync.aligned.m64n16k32.satfinite.s32.*", "all mma.int8 s32", "all mma.sp.int8 s32")),
    Experiment("E8", "mma.sync fp8", "emulated: f16 products of k mod 4 in {0, 1}, then {2, 3}, then C added", ("all mma.fp8 *", "all mma.sp.fp8 f32")),
    Experiment("E9", "tf32 low bits", "ignored", ("wgmma.mma_async.sync.aligned.m64n16k8.f32.tf32.tf32*", "all mma.tf32 f32", "all mma.sp.tf32 f32")),
    Experiment("E10", "descriptors", "swizzle is an XOR of the absolute address; base offset is subtracted; LBO counts in 32-byte swizzle of a sparse B", ("descriptor *", "wgmma descriptors *")),
    Experiment(
        "E11", "TMA",
        "full boxes are signalled; rows have the pitch of the swizzle span; stores clip to 16 bytes; fill 7FF7",
        ("load *", "store *", "tma strides *", "tma im2col *", "tma stores *"),
    ),
    Experiment("E12", "mbarrier", "the word's layout; waits compare one phase bit", ("mbarrier after *", "mbarrier tokens")),
    Experiment("E13", "elect.sync", "the lowest lane of the mask", ("elect", "elect of masks")),
    Experiment("E14", "short shapes, f64", "L = K of the instruction; f64 a chain of fma, k ascending", ("all mma.f16 *", "all mma.bf16 f32", "all mma.tf32 f32", "all mma.f64 f64")),
    Experiment("E15", "widths of wgmma", "the accumulator's map holds for every N", ("wgmma.mma_async.sync.aligned.m64n256k*", "wgmma.mma_async.sync.aligned.m64n8k16.*", "wgmma.mma_async.sync.aligned.m64n248k16.*")),
    Experiment("E16", "addresses in clusters", "rank << 24 | offset, one's own too", ("cluster addresses *",)),
    Experiment("E17", "cvt", "rounded once; specials as listed", ("cvt.*",)),
    Experiment(
        "interleaved maps", "NC/8HWC8, NC/16HWC16",
        "dimension 0 counts slices of 16 or 32 bytes, box and coordinate (though the driver wants the box's elements to fill 16 bytes); the last dimension but one moves one slice whatever its box; rows are packed, swizzled by address; element strides hold in dimension 0, too",
        ("tma interleave *",),
    ),
    Experiment(
        "multicast", "clusters of 2 and 4, partial boxes",
        "every CTA of the mask gets the whole box, fill included, at its own offset and barrier, whoever issues; a mask with an absent CTA ends the launch (not recorded: a fault)",
        ("tma multicast *",),
    ),
    Experiment("old tokens", "mbarrier tokens two phases old", "only the phase bit is compared: a token two phases old is not complete again", ("mbarrier tokens",)),
    Experiment("int4, m8n8k4, m8n8k16", "the rest of mma.sync", "int4 exact, clamped once; m8n8k4 f16 is f32 arithmetic: products chained by fma, C added last (f16 results: in two pairs); metadata of 8-bit k32 and 4-bit k64 as of 8-bit k64, with a selector", ("all mma.int4 s32", "all mma.m8n8k4 *", "all mma.int8 s32", "all mma.sp.int4 s32", "all mma.b1 s32")),
    Experiment("f64 in memory", "additions of f64", "global: the operand's NaN, or else the old one's, unchanged; shared: the old one's first, made quiet", ("additions of f64 in memory",)),
)  # fmt: skip

# Where an answer of ours is not, or not only, what had been measured elsewhere before.
DIFFERENCES = (
    ("E6", "metadata of mma.sp for 8-bit m16n8k32 and 4-bit m16n8k64 was not known"),
    ("E11", "element strides hold in dimension 0 of interleaved maps; box[rank - 2] has no effect in any rank"),
    ("E11", "a coordinate 0 off 16 bytes, a negative store coordinate and shared addresses off 128 bytes fault here, too (not recorded: faults)"),
    ("E12", "the token's low word is not state: only high words are compared"),
    ("E14", "the NaN of an f64 operation with two NaN operands depends on the assembler's order: not compared"),
    ("E17", "cvt.rm.ftz.f16.f32 and its like flush nothing; cvt.f32.f32 and cvt.rz.f32.bf16 keep NaN payloads, cvt.ftz.f32.bf16 does not; cvt.ftz.f32.f64 keeps them"),
)  # fmt: skip

# Largest distance from the correctly rounded result, in units of the last place, over all 2^16 inputs.
HALF_UNITS = {"ex2.approx.f16": 1, "ex2.approx.ftz.bf16": 1, "tanh.approx.f16": 1, "tanh.approx.bf16": 1}


def patterns(evidence: str) -> list[str]:
    """The recordings that an entry of `numerics.kinds` names, in quotes."""
    return re.findall(r'"([^"]+)"', evidence)
