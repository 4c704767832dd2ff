"""CUDA C++ with PTX of ours inside: wgmma of every type, sparse too."""

import numpy as np
from case import case, integers
from cuda_launch import launch

from smalti.layout.tensor_map import row_major
from smalti.run.launch import MapOf, Pointer, Scalar

# By type of the operands: type of the map, bits, elements of one instruction's K, type of the result.
KINDS = {
    "f16": ("f16", 16, 16, "f32"), "bf16": ("bf16", 16, 16, "f32"), "f32": ("f32", 32, 8, "f32"),
    "e4m3": ("u8", 8, 32, "f32"), "e5m2": ("u8", 8, 32, "f32"), "s8": ("u8", 8, 32, "s32"), "u8": ("u8", 8, 32, "s32"),
}  # fmt: skip


def written(a, b):
    _, bits, _, out = KINDS[a]
    name = {"f32": "tf32"}
    types = f"{out}.{name.get(a, a)}.{name.get(b, b)}"
    scale = ", 1, 1" if out == "f32" else ""
    major = ", 0, 0" if bits == 16 else ""
    return types, f'"{scale}{major}"', out


@case("sm_90a", **{t: {"a": t} for t in KINDS}, e4m3_e5m2={"a": "e4m3", "b": "e5m2"}, s8_u8={"a": "s8", "b": "u8"})
def wgmma(c, a, b=None):
    b = b or a
    types, flags, out = written(a, b)
    of, _, step, _ = KINDS[a]
    k = 3 * 4 * step
    top, low = (100, 0) if a == "u8" else (100, -100) if a == "s8" else (3, -3)
    x, y = (
        c.input("a", a, (64, k), integers(1, low, top)),
        c.input("b", b, (32, k), integers(2, 0 if b == "u8" else low, top)),
    )
    c.output("d", out, x.values @ y.values.T)
    maps = [MapOf(n, row_major(of, (r, k), (r, 4 * step), swizzle="128B")) for n, r in (("a", 64), ("b", 32))]
    integer = {"INTEGER": 1} if out == "s32" else {}
    width = 4 * step
    launch(c, "wgmma", [*maps, Pointer("d"), Pointer("d"), Scalar("s32", 3)], shared=2 * 12288, TYPES=types,
           FLAGS=flags, SHAPE=f"m64n32k{step}", A_BYTES=8192, B_BYTES=4096, A_STEP=width, B_STEP=width,
           **integer)  # fmt: skip


@case("sm_90a", f16={"a": "f16"}, bf16={"a": "bf16"}, f32={"a": "f32"}, e4m3={"a": "e4m3"}, s8={"a": "s8"})
def wgmma_sparse(c, a):
    """Two of four (tf32: one of two) elements of A are there, at places that differ from group to group."""
    types, flags, out = written(a, a)
    of, bits, step, _ = KINDS[a]
    steps, low = 2, -3
    kept = steps * 4 * step  # of a row
    k = 2 * kept
    x, y = c.input("a", a, (64, kept), integers(1, low, 3)), c.input("b", a, (32, k), integers(2, low, 3))
    pairs = np.array([(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)])
    group = 2 if a == "f32" else 4
    row, g = np.arange(64)[:, None], np.arange(k // group)
    if a == "f32":  # codes 0b0100 and 0b1110 stand for the first and the second of two
        which = (row * 3 + g) % 2
        wide = np.zeros((64, k // 2, 2))
        np.put_along_axis(wide, which[..., None], x.values[..., None], 2)
        codes = np.where(which, 0b1110, 0b0100)
    else:
        chosen = pairs[(row * 5 + g * 7) % 6]
        wide = np.zeros((64, k // 4, 4))
        np.put_along_axis(wide, chosen, x.values.reshape(64, k // 4, 2), 2)
        codes = chosen[..., 0] | chosen[..., 1] << 2
    c.output("d", out, wide.reshape(64, k) @ y.values.T)
    words = metadata(codes.reshape(64, steps * 4, -1), bits)
    c.input("meta", "u32", words.shape, words.tolist())
    maps = [MapOf("a", row_major(of, (64, kept), (64, 4 * step), swizzle="128B")),
            MapOf("b", row_major(of, (32, k), (32, 4 * step), swizzle="128B"))]  # fmt: skip
    integer = {"INTEGER": 1} if out == "s32" else {}
    launch(c, "wgmma", [*maps, Pointer("meta"), Pointer("d"), Scalar("s32", steps)], shared=2 * 16384, TYPES=types,
           FLAGS=flags, SHAPE=f"m64n32k{2 * step}", A_BYTES=8192, B_BYTES=8192, A_STEP=4 * step, B_STEP=8 * step,
           SPARSE=1, **integer)  # fmt: skip


def metadata(codes, bits):
    """[instruction, thread] words of wgmma's metadata from [64 rows, instruction, group] codes of four bits, selector 0
    (PTX ISA, figures of wgmma.mma_async.sp). Of every four threads two have words of 16- and 32-bit types, each of
    two rows and half of the groups; all four have words of 8-bit types, each of one row."""
    words = np.zeros((codes.shape[1], 128), np.int64)
    for thread in range(128):
        warp, lane = divmod(thread, 32)
        at, quarter = warp * 16 + lane // 4, lane % 4
        if bits == 8:
            r, first = at + 8 * (quarter & 1), 8 * (quarter >> 1)
            nibbles = codes[r, :, first : first + 8]
        else:
            if quarter > 1:
                continue
            half = codes[:, :, 4 * quarter : 4 * quarter + 4]
            nibbles = np.concatenate([half[at], half[at + 8]], axis=1)
        words[:, thread] = (nibbles << 4 * np.arange(nibbles.shape[1])).sum(axis=1)
    return words
