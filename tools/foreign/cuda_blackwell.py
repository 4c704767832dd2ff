"""CUDA C++ with PTX of ours inside: tcgen05.mma of every kind, by one CTA and by pairs, and block-scaled."""

import numpy as np
from case import case, integers
from cuda_launch import launch

from smalti.layout.tensor_map import row_major
from smalti.run.launch import MapOf, Pointer, Scalar

# By type: type of the map, elements of 128 bytes, kind, codes of the type and of the result in the descriptor, result.
KINDS = {
    "f16": ("f16", 64, "f16", 0, 1, "f32"), "bf16": ("bf16", 64, "f16", 1, 1, "f32"),
    "f32": ("f32", 32, "tf32", 2, 1, "f32"),
    "e4m3": ("u8", 128, "f8f6f4", 0, 1, "f32"), "e5m2": ("u8", 128, "f8f6f4", 1, 1, "f32"),
    "s8": ("u8", 128, "i8", 1, 2, "s32"), "u8": ("u8", 128, "i8", 0, 2, "s32"),
}  # fmt: skip


@case("sm_100a", **{t: {"dtype": t} for t in KINDS}, discard={"dtype": "f16", "usage": ".collector::a::discard"},
      pair_f16={"dtype": "f16", "pair": True}, pair_e4m3={"dtype": "e4m3", "pair": True},
      pair_s8={"dtype": "s8", "pair": True}, pair_f32={"dtype": "f32", "pair": True},
      pair_discard={"dtype": "bf16", "pair": True, "usage": ".collector::a::discard"})  # fmt: skip
def tcgen05(c, dtype, pair=False, usage=""):
    of, step, kind, code, result, out = KINDS[dtype]
    group = 2 if pair else 1
    m, n, k = 128 * group, 64, 3 * step
    low, top = (0, 100) if dtype == "u8" else (-100, 100) if dtype == "s8" else (-3, 3)
    a, b = c.input("a", dtype, (m, k), integers(1, low, top)), c.input("b", dtype, (n, k), integers(2, low, top))
    c.output("d", out, a.values @ b.values.T)
    descriptor = result << 4 | code << 7 | code << 10 | n >> 3 << 17 | m >> 4 << 24
    maps = [MapOf("a", row_major(of, (m, k), (128, step), swizzle="128B")),
            MapOf("b", row_major(of, (n, k), (n // group, step), swizzle="128B"))]  # fmt: skip
    launch(c, "tcgen05", [*maps, Pointer("d"), Scalar("s32", 3)], grid=group, cluster=group, shared=50176,
           GROUP=group, FORM=f'".kind::{kind}{usage}"', IDESC=descriptor, STEP=step)  # fmt: skip


@case("sm_100a",
      mxfp8={"form": "e4m3", "after": ".kind::mxf8f6f4.block_scale"},
      mxfp8_block32={"form": "e5m2", "after": ".kind::mxf8f6f4.block_scale.block32"},
      mxfp8_ids={"form": "e4m3", "after": ".kind::mxf8f6f4.block_scale", "ids": True},
      mxfp8_1x={"form": "e4m3", "after": ".kind::mxf8f6f4.block_scale.scale_vec::1X"},
      mxfp4={"form": "e2m1", "after": ".kind::mxf4.block_scale.scale_vec::2X"},
      mxfp4_block32={"form": "e2m1", "after": ".kind::mxf4.block_scale.block32"},
      nvfp4={"form": "e2m1", "after": ".kind::mxf4nvf4.block_scale.scale_vec::4X", "vec": 16},
      nvfp4_block16={"form": "e2m1", "after": ".kind::mxf4nvf4.block_scale.block16", "vec": 16})  # fmt: skip
def scaled(c, form, after, vec=32, ids=False):
    m = n = 128
    four = form == "e2m1"
    k = 256 if four else 128
    a, b = c.input("a", form, (m, k), integers(7, -2, 2)), c.input("b", form, (n, k), integers(8, -2, 2))
    per = k // 4 // vec  # scale factors of a row for one instruction
    tiles = 4 if four else 1  # with one or two factors each, mxf8 keeps four instructions in a tile
    factors, words = [], []
    for seed in (9, 10):
        e = np.random.default_rng(seed).integers(0, 3, (128, k // vec))
        factors.append(np.exp2(e - 1.0) if vec == 32 else e + 1.0)
        codes = e + 126 if vec == 32 else np.array([0x38, 0x40, 0x44])[e]  # 1, 2, 3 as e4m3
        for tile in range(tiles):
            mine = codes if tiles == 1 else codes[:, tile * per : (tile + 1) * per]
            mine = np.pad(mine, ((0, 0), (0, 4 - mine.shape[1])), constant_values=127)
            word = (mine << np.array([0, 8, 16, 24])).sum(axis=1)
            words.append(word.reshape(4, 32).T)  # row r: lane r % 32, word r / 32
    table = np.stack(words)
    c.input("scales", "u32", table.shape, table.tolist())
    c.output("d", "f32", (a.values * factors[0].repeat(vec, 1)) @ (b.values * factors[1].repeat(vec, 1)).T)
    code = {"e4m3": 0, "e5m2": 1, "e2m1": 1}[form]
    descriptor = code << 7 | code << 10 | n >> 3 << 17 | (vec == 32) << 23 | m >> 7 << 27
    chosen = f"({descriptor}u|(k)<<4|(k)<<29)" if tiles == 1 else f"{descriptor}u"
    shape = (128, k // 2 if four else k)
    maps = [MapOf(x, row_major("u8", shape, (128, 128), swizzle="128B")) for x in "ab"]
    launch(c, "tcgen05_scaled", [*maps, Pointer("scales"), Pointer("d")], shared=32768 + 8192, FORM=f'"{after}"',
           TILES=tiles, **{"IDESC(k)": chosen}, **({"IDS": 1} if ids else {}))  # fmt: skip
