"""What each matrix instruction computes, as one table: fused length, fraction bits, rounding, exponent floor, grade.
A new architecture is new rows. Holds no arithmetic (see `fused_sum`) and knows no shapes, layouts or PTX.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from smalti.errors import error

FP8 = ("e4m3", "e5m2")
F8F6F4 = ("e4m3", "e5m2", "e2m3", "e3m2", "e2m1")
INT8 = ("s8", "u8")
INT4 = ("s4", "u4")

# How the terms are summed.
FUSED = "fused"  # all products and C aligned to the largest exponent, truncated, summed
GROUPED = "grouped"  # exact sums of 16 products, scaled exactly, then fused (mxf4, mxf4nvf4)
HALVES = (
    "halves"  # two fused sums of 16-bit products from zero, then an ordinary add of C (fp8 mma.sync is emulated so)
)
INTEGER = "integer"  # exact, then C added once: wraps or clamps
BITS_AND = "and.popc"
BITS_XOR = "xor.popc"
CHAIN = "chain"  # one IEEE fma after the other, k ascending

GRADES = ("measured", "published", "assumed")


@dataclass(frozen=True)
class Kind:
    """One kind of matrix instruction.

    formats: of A and B; same: B must have A's format; products: L, products fused in one block; fraction: F, bits kept
    below the largest exponent; output: format of C and D; round_out: "rz", "rz13" (14-bit significand in an f32),
    "rne", "" (exact); floor: least alignment exponent; scales: legal (format, K elements that one scale covers), twice
    as many in sparse forms; grade: of the dense form; sparse_grade: of the sparse one ("" = none).
    """

    name: str
    rule: str
    formats: tuple[str, ...]
    same: bool
    products: int
    fraction: int
    output: str
    round_out: str
    floor: int
    scales: tuple[tuple[str, int], ...]
    grade: str
    sparse_grade: str
    evidence: str

    @property
    def sparse_chunk(self) -> tuple[int, int]:
        """(logical, kept) elements that one 4-bit metadata code selects among (PTX 9.7.15.6, 9.7.16.10.8)."""
        if self.rule == GROUPED or self.formats == INT4:
            return 8, 4
        return (2, 1) if self.formats == ("tf32",) else (4, 2)


_H200 = "H200 recordings, 0 differing bits"
_INTEGERS = "PTX 9.7.15.5 and 9.7.16.10; clamped once as on the H200"
_MODEL = "arXiv 2511.10909 (B200)"
_NONE: tuple[tuple[str, int], ...] = ()
# PTX table of .scale_vectorsize: mxf8f6f4 1X, mxf4 2X, mxf4nvf4 2X or 4X; ue4m3 goes with 4X only
_MX32 = (("ue8m0", 32),)
_NV16 = (("ue8m0", 32), ("ue8m0", 16), ("ue4m3", 16))

# name, rule, formats, same, L, F, output, rounding, floor, scale formats, grade, sparse grade, evidence
_TABLE = (
    # Hopper wgmma
    ("wgmma.f16", FUSED, ("f16",), True, 16, 25, "f32", "rz", -133, _NONE, "measured", "measured", _H200),
    ("wgmma.f16.f16", FUSED, ("f16",), True, 16, 25, "f16", "rne", -21, _NONE, "measured", "measured", _H200),
    ("wgmma.bf16", FUSED, ("bf16",), True, 16, 25, "f32", "rz", -133, _NONE, "measured", "measured", _H200),
    ("wgmma.tf32", FUSED, ("tf32",), True, 8, 25, "f32", "rz", -133, _NONE, "measured", "measured", _H200),
    ("wgmma.fp8", FUSED, FP8, False, 32, 13, "f32", "rz13", -133, _NONE, "measured", "measured", _H200),
    ("wgmma.fp8.f16", FUSED, FP8, False, 32, 13, "f16", "rne", -21, _NONE, "measured", "measured", _H200),
    ("wgmma.int8", INTEGER, INT8, False, 32, 0, "s32", "", 0, _NONE, "measured", "measured", _H200),
    ("wgmma.b1", BITS_AND, ("b1",), True, 256, 0, "s32", "", 0, _NONE, "measured", "", _H200),
    # Blackwell tcgen05
    ("tcgen05.f16", FUSED, ("f16", "bf16"), True, 16, 25, "f32", "rz", -133, _NONE, "published", "assumed", _MODEL),
    ("tcgen05.f16.f16", FUSED, ("f16",), True, 16, 25, "f16", "rne", -21, _NONE, "published", "assumed", _MODEL),
    ("tcgen05.tf32", FUSED, ("tf32",), True, 8, 25, "f32", "rz", -133, _NONE, "published", "assumed", _MODEL),
    ("tcgen05.f8f6f4", FUSED, F8F6F4, False, 32, 25, "f32", "rz", -133, _NONE, "published", "assumed", _MODEL),
    ("tcgen05.f8f6f4.f16", FUSED, F8F6F4, False, 32, 25, "f16", "rne", -21, _NONE, "published", "assumed", _MODEL),
    ("tcgen05.i8", INTEGER, INT8, False, 32, 0, "s32", "", 0, _NONE, "assumed", "assumed", _INTEGERS),
    ("tcgen05.mxf8f6f4", FUSED, F8F6F4, False, 32, 25, "f32", "rz", -133, _MX32, "published", "assumed", _MODEL),
    ("tcgen05.mxf4", GROUPED, ("e2m1",), True, 64, 35, "f32", "rz", -139, _MX32, "published", "assumed", _MODEL),
    ("tcgen05.mxf4nvf4", GROUPED, ("e2m1",), True, 64, 35, "f32", "rz", -139, _NV16, "published", "assumed", _MODEL),
    # mma.sync, on both architectures: measured on the H200; the B200 agrees on public vectors (f16, bf16, tf32, fp8)
    ("mma.f16", FUSED, ("f16",), True, 16, 25, "f32", "rz", -133, _NONE, "measured", "measured", _H200),
    ("mma.f16.f16", FUSED, ("f16",), True, 16, 25, "f16", "rne", -21, _NONE, "measured", "measured", _H200),
    ("mma.bf16", FUSED, ("bf16",), True, 16, 25, "f32", "rz", -133, _NONE, "measured", "measured", _H200),
    ("mma.tf32", FUSED, ("tf32",), True, 8, 25, "f32", "rz", -133, _NONE, "measured", "measured", _H200),
    ("mma.fp8", HALVES, FP8, False, 32, 25, "f32", "rz", -133, _NONE, "measured", "measured", _H200),
    ("mma.fp8.f16", HALVES, FP8, False, 32, 25, "f16", "rne", -21, _NONE, "measured", "measured", _H200),
    ("mma.int8", INTEGER, INT8, False, 32, 0, "s32", "", 0, _NONE, "measured", "measured", _H200),
    ("mma.int4", INTEGER, INT4, False, 64, 0, "s32", "", 0, _NONE, "measured", "measured", _H200),
    ("mma.b1.and", BITS_AND, ("b1",), True, 256, 0, "s32", "", 0, _NONE, "measured", "", _H200),
    ("mma.b1.xor", BITS_XOR, ("b1",), True, 256, 0, "s32", "", 0, _NONE, "measured", "", _H200),
    ("mma.f64", CHAIN, ("f64",), True, 16, 52, "f64", "rne", 0, _NONE, "measured", "", _H200 + " (finite values)"),
)  # fmt: skip

# Programs of recordings/hopper.json (patterns of their names) that show what a measured row says, dense and sparse.
_DENSE, _SPARSE = "wgmma.mma_async.sync.aligned.m64n16", "wgmma.mma_async.sp.sync.aligned.m64n16"
_RECORDED: dict[str, tuple[str, ...]] = {
    "wgmma.f16": (f"{_DENSE}k16.f32.f16.f16*", f"{_SPARSE}k32.f32.f16.f16*"),
    "wgmma.f16.f16": (f"{_DENSE}k16.f16.f16.f16*", f"{_SPARSE}k32.f16.f16.f16*", "*.f16.f16.f16 floor"),
    "wgmma.bf16": (f"{_DENSE}k16.f32.bf16.bf16*", f"{_SPARSE}k32.f32.bf16.bf16*", "*.bf16.bf16 floor"),
    "wgmma.tf32": (f"{_DENSE}k8.f32.tf32.tf32*", f"{_SPARSE}k16.f32.tf32.tf32*", "*.tf32.tf32 floor"),
    "wgmma.fp8": (f"{_DENSE}k32.f32.e?m?.e?m?*", f"{_SPARSE}k64.f32.e?m?.e?m?*"),
    "wgmma.fp8.f16": (f"{_DENSE}k32.f16.e?m?.e?m?*", f"{_SPARSE}k64.f16.e?m?.e?m?*"),
    "wgmma.int8": (f"{_DENSE}k32*.s32.?8.?8*", f"{_SPARSE}k64*.s32.?8.?8*"),
    "wgmma.b1": (f"{_DENSE}k256.s32.b1.b1.and.popc",),
    "mma.f16": ("all mma.f16 f32", "all mma.sp.f16 f32"),
    "mma.f16.f16": ("all mma.f16 f16", "all mma.sp.f16 f16"),
    "mma.bf16": ("all mma.bf16 f32", "all mma.sp.bf16 f32"),
    "mma.tf32": ("all mma.tf32 f32", "all mma.sp.tf32 f32"),
    "mma.fp8": ("all mma.fp8 f32", "all mma.sp.fp8 f32"),
    "mma.fp8.f16": ("all mma.fp8 f16",),
    "mma.int8": ("all mma.int8 s32", "all mma.sp.int8 s32"),
    "mma.int4": ("all mma.int4 s32", "all mma.sp.int4 s32"),
    "mma.b1.and": ("all mma.b1 s32",),
    "mma.b1.xor": ("all mma.b1 s32",),
    "mma.f64": ("all mma.f64 f64",),
}


def _named(kind: Kind) -> Kind:
    """The kind with its recordings in its evidence."""
    names = ", ".join(f'"{p}"' for p in _RECORDED.get(kind.name, ()))
    return replace(kind, evidence=f"{kind.evidence}: {names}") if names else kind


KINDS: dict[str, Kind] = {row[0]: _named(Kind(*row)) for row in _TABLE}


def lookup(name: str) -> Kind:
    """The kind called `name`; SML1004 if there is none."""
    found = KINDS.get(name)
    if found is None:
        raise error("SML1004", kind=name, known=", ".join(KINDS))
    return found


def grade(name: str, arch: str, *, sparse: bool = False, scale_input_d: bool = False) -> str:
    """How well the result of kind `name` is known on `arch` ("sm_90a", "sm_100a", "sm_103a"): one of GRADES.

    On sm_100a and later, mma.sync is "published" where public B200 vectors agree (f16, bf16, tf32 dense and fp8) and
    "assumed" otherwise; scaling D on input is "assumed" everywhere. Raises SML1004.
    """
    kind = lookup(name)
    stated = kind.sparse_grade if sparse else kind.grade
    if scale_input_d:
        return "assumed"
    if name.startswith("mma.") and not arch.startswith("sm_90") and stated == "measured":
        seen = not sparse and kind.rule in (FUSED, HALVES)
        return "published" if seen else "assumed"
    return stated
