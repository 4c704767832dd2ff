"""Triton: block-scaled products (`tl.dot_scaled`): scales in tensor memory on Blackwell, multiplied in on Hopper."""

import numpy as np
import triton
import triton.language as tl
from case import case, integers
from triton.tools.tensor_descriptor import TensorDescriptor

# name of the format for Triton -> (dtype of the buffer, elements a byte, largest integer of the inputs)
FORMATS = {"e4m3": ("e4m3", 1), "e5m2": ("e5m2", 1), "e2m1": ("e2m1", 2), "bf16": ("bf16", 1), "fp16": ("f16", 1)}


@triton.jit
def scaled(
    a,
    sa,
    b,
    sb,
    d,
    k,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    FA: tl.constexpr,
    FB: tl.constexpr,
    PA: tl.constexpr,
    PB: tl.constexpr,
    VEC: tl.constexpr,
):
    """D[BM,BN] = (A[BM,K] * SA) (B[BN,K] * SB)^T, scales of VEC elements along K, row-major."""
    rows, columns = tl.arange(0, BM), tl.arange(0, BN)
    depth_a, depth_b, blocks = tl.arange(0, BK // PA), tl.arange(0, BK // PB), tl.arange(0, BK // VEC)
    acc = tl.zeros((BM, BN), tl.float32)
    for at in range(0, k, BK):
        x = tl.load(a + rows[:, None] * (k // PA) + at // PA + depth_a[None, :])
        y = tl.load(b + columns[:, None] * (k // PB) + at // PB + depth_b[None, :])
        sx = tl.load(sa + rows[:, None] * (k // VEC) + at // VEC + blocks[None, :])
        sy = tl.load(sb + columns[:, None] * (k // VEC) + at // VEC + blocks[None, :])
        acc = tl.dot_scaled(x, sx, FA, y.T, sy, FB, acc)
    tl.store(d + rows[:, None] * BN + columns[None, :], acc)


def operand(c, name, form, rows, k, seed):
    """Elements: the integers -2 ... 2, which every format has; fp4 and its scales come as bytes."""
    dtype, per = FORMATS[form]
    x = c.input(name, dtype, (rows, k), integers(seed, -2, 2))
    return x, x.values, per


def scales(c, name, rows, k, vec, seed):
    """Powers of two, 1/2 to 2 (ue8m0); 1, 2, 3 (e4m3, blocks of 16)."""
    if vec == 16:
        s = c.input(name, "e4m3", (rows, k // vec), integers(seed, 1, 3))
        return s, s.values.repeat(vec, axis=1)
    s = c.input(name, "u8", (rows, k // vec), integers(seed, 126, 128))
    return s, np.exp2(s.values - 127.0).repeat(vec, axis=1)


KINDS = {
    "mxfp8": {"fa": "e4m3", "fb": "e4m3"},
    "mxfp8_e5m2": {"fa": "e5m2", "fb": "e4m3"},
    "mxfp4": {"fa": "e2m1", "fb": "e2m1"},
    "nvfp4": {"fa": "e2m1", "fb": "e2m1", "vec": 16},
    "mxfp8_mxfp4": {"fa": "e4m3", "fb": "e2m1"},
    "mxfp4_mxfp8": {"fa": "e2m1", "fb": "e5m2"},
}


def scaled_case(c, fa, fb, vec=32, m=128, n=64, k=256, bk=128, **options):
    a, av, pa = operand(c, "a", fa, m, k, 1)
    b, bv, pb = operand(c, "b", fb, n, k, 2)
    sa, sav = scales(c, "sa", m, k, vec, 3)
    sb, sbv = scales(c, "sb", n, k, vec, 4)
    d = c.output("d", "f32", (av * sav) @ (bv * sbv).T)
    c.launch(scaled, (1,), a, sa, b, sb, d, k, BM=m, BN=n, BK=bk, FA=fa, FB=fb, PA=pa, PB=pb, VEC=vec,
             **{"num_warps": 4, "num_stages": 2} | options)  # fmt: skip


@case("sm_100a", **KINDS)
def scaled_pointers(c, **kind):
    scaled_case(c, **kind)


@case("sm_90a", mxfp8=KINDS["mxfp8"], mxfp4=KINDS["mxfp4"])
def scaled_emulated(c, **kind):
    """Hopper has no block scales: the compiler multiplies them into bf16."""
    scaled_case(c, **kind, k=128, bk=64)


@case(
    "sm_100a",
    wide={"fa": "e4m3", "fb": "e4m3", "n": 128, "num_warps": 8},
    deep={"fa": "e2m1", "fb": "e2m1", "n": 32, "k": 512, "bk": 256},
)
def scaled_shapes(c, **kind):
    scaled_case(c, **kind)


@triton.jit
def half_scaled(a, b, sb, d, k, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, FA: tl.constexpr):
    """Only B has scales: MXFP4 weights, A in sixteen bits."""
    rows, columns = tl.arange(0, BM), tl.arange(0, BN)
    acc = tl.zeros((BM, BN), tl.float32)
    for at in range(0, k, BK):
        x = tl.load(a + rows[:, None] * k + at + tl.arange(0, BK)[None, :])
        y = tl.load(b + columns[:, None] * (k // 2) + at // 2 + tl.arange(0, BK // 2)[None, :])
        sy = tl.load(sb + columns[:, None] * (k // 32) + at // 32 + tl.arange(0, BK // 32)[None, :])
        acc = tl.dot_scaled(x, None, FA, y.T, sy, "e2m1", acc)
    tl.store(d + rows[:, None] * BN + columns[None, :], acc)


@case(bf16={"form": "bf16"}, fp16={"form": "fp16"})
def scaled_weights(c, form):
    a, av, _ = operand(c, "a", form, 64, 128, 5)
    b, bv, _ = operand(c, "b", "e2m1", 64, 128, 6)
    sb, sbv = scales(c, "sb", 64, 128, 32, 7)
    d = c.output("d", "f32", av @ (bv * sbv).T)
    c.launch(half_scaled, (1,), a, b, sb, d, 128, BM=64, BN=64, BK=64, FA=form, num_warps=4, num_stages=2)


@triton.jit
def tma_scaled(
    a,
    sa,
    b,
    sb,
    d,
    k,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    FA: tl.constexpr,
    FB: tl.constexpr,
    PA: tl.constexpr,
    PB: tl.constexpr,
    VEC: tl.constexpr,
):
    """Scales come in the 128x4 order of the hardware, by TMA, and go to tensor memory by tcgen05.cp."""
    acc = tl.zeros((BM, BN), tl.float32)
    for step in range(k // BK):
        x, y = a.load([0, step * (BK // PA)]), b.load([0, step * (BK // PB)])
        sx = sa.load([0, 0, step * (BK // VEC // 4), 0, 0])
        sy = sb.load([0, 0, step * (BK // VEC // 4), 0, 0])
        sx = sx.reshape(BM // 128, BK // VEC // 4, 32, 4, 4).trans(0, 3, 2, 1, 4).reshape(BM, BK // VEC)
        sy = sy.reshape(BN // 128, BK // VEC // 4, 32, 4, 4).trans(0, 3, 2, 1, 4).reshape(BN, BK // VEC)
        acc = tl.dot_scaled(x, sx, FA, y.T, sy, FB, acc)
    d.store([0, 0], acc)


def packed_scales(c, name, rows, k, vec, seed):
    """[1, rows/128, K/vec/4, 2, 256]: each 128 x 4 tile as 32 x 4 x 4 (row % 32, row / 32, block)."""
    shape = (1, rows // 128, k // vec // 4, 2, 256)
    s = c.input(
        name, *(("e4m3", shape, integers(seed, 1, 3)) if vec == 16 else ("u8", shape, integers(seed, 126, 128)))
    )
    order = s.values.reshape(rows // 128, k // vec // 4, 32, 4, 4).transpose(0, 3, 2, 1, 4).reshape(rows, k // vec)
    values = order if vec == 16 else np.exp2(order - 127.0)
    return s, values.repeat(vec, axis=1)


@case("sm_100a", **KINDS)
def scaled_tma(c, fa, fb, vec=32, m=128, n=128, k=512, bk=256):
    a, av, pa = operand(c, "a", fa, m, k, 1)
    b, bv, pb = operand(c, "b", fb, n, k, 2)
    sa, sav = packed_scales(c, "sa", m, k, vec, 3)
    sb, sbv = packed_scales(c, "sb", n, k, vec, 4)
    d = c.output("d", "f32", (av * sav) @ (bv * sbv).T)

    def described(x, *block):
        return TensorDescriptor(x, list(x.shape), list(x.stride()), list(block))

    c.launch(
        tma_scaled, (1,), described(a, m, bk // pa), described(sa, 1, m // 128, bk // vec // 4, 2, 256),
        described(b, n, bk // pb), described(sb, 1, n // 128, bk // vec // 4, 2, 256), described(d, m, n), k,
        BM=m, BN=n, BK=bk, FA=fa, FB=fb, PA=pa, PB=pb, VEC=vec, num_warps=4, num_stages=2,
    )  # fmt: skip
