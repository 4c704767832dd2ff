"""CUDA C++ with PTX of ours inside: forms of instructions that compilers write and no kernel of the others has."""

import numpy as np
from case import case, integers, iota
from cuda_launch import launch

from smalti.layout.tensor_map import row_major
from smalti.numerics.convert import encode
from smalti.numerics.formats import decode
from smalti.run.launch import MapOf, Pointer, Struct

U32, U64 = np.uint32, np.uint64


def mixed(seed, count):
    """Words whose every byte differs, the same anywhere."""
    n = np.arange(count, dtype=U64) + U64(seed * 1000 + 1)
    return ((n * U64(0x9E3779B97F4A7C15)) >> U64(32)).astype(U32)


def reals(values):
    return np.asarray(values, np.float32).view(U32)


@case()
def scalars(c):
    t = np.arange(32)
    words = mixed(1, 128)
    i, j = t - 16, 3 * t - 40
    words[64:96] = reals(i * 1.5)
    words[32:64] ^= (t % 4 == 0) * (words[32:64] ^ words[:32])  # some equal pairs
    x, y = words[:32], words[32:64]
    a, b = x.astype(U64) << U64(32) | y, y.astype(U64) << U64(32) | x
    f, g = (i * 0.75).astype(np.float32), (j * 0.5).astype(np.float32)
    h, k = x.astype(np.uint16), np.where(t & 1, x, y).astype(np.uint16)
    pair, four, real, small = (0x0123456789ABCDEF, 0xFEDCBA9876543210), (11, 1 << 20, 77, 5), 2.5, (9, 200, 31, 4)
    raw = np.array(pair, U64).tobytes() + np.array(four, U32).tobytes() + np.float32(real).tobytes() + bytes(small)
    rows = []

    def word(v):
        rows.append(np.broadcast_to(np.asarray(v).astype(np.int64) & 0xFFFFFFFF, 32).astype(U32))

    def long(v):
        v = np.broadcast_to(np.asarray(v, U64), 32)
        word(v & U64(0xFFFFFFFF))
        word(v >> U64(32))

    def bf16(v):
        return np.asarray(encode(np.asarray(v, np.float64), "bf16")).astype(np.int64)

    word(bf16(i + j) | bf16(j) << 16)
    long(a & b)
    word(y & ~np.uint32(0x1FF << 5) | (x & 0x1FF) << 5)
    exact = f.astype(np.float64) * np.float64(np.float32(1.1)) + g  # a float64 holds it
    down = exact.astype(np.float32)
    down = np.where(down > exact, np.nextafter(down, np.float32(-np.inf)), down)
    word(reals(down))
    word(reals(np.clip(f * np.float32(0.125), 0, 1)))
    word(j.astype(np.float16).view(np.uint16))
    tf = (f * np.float32(1.1)).view(U32)
    word((tf + U32(0x1000)) & U32(0xFFFFE000))  # ties away from zero
    word(x.astype(np.uint8).view(np.int8).astype(np.int16).view(np.uint16))
    word(words[64:96])
    word(x)
    word(words[64:96])
    long(words[:64].view(U64)[t & 7])
    word(reals(g))
    word(reals(f + g) ^ x)
    long(x.astype(U64) << U64(32) | reals(f))
    word(x)
    word(small[2])
    word(reals(real))
    word(four[0] ^ four[1])
    word(small[0] | small[1] << 16)
    word(four[2] - four[3])
    long(pair[0] ^ pair[1])
    word(four[2] + four[3])
    word(four[1] + four[0])
    numbers = x & U32(0x3FFF3FFF), y & U32(0xBFFFBFFF)
    halves = [np.stack([v & U32(0xFFFF), v >> U32(16)]).astype(np.uint16) for v in numbers]
    low, high = np.where(decode(halves[0], "bf16") > decode(halves[1], "bf16"), *halves)
    word(low.astype(U32) | high.astype(U32) << U32(16))
    word(np.maximum(x, y))
    word(np.minimum(x, y))
    long([int(m) * int(n) >> 64 for m, n in zip(a, b, strict=True)])
    word(x.view(np.int32).max())
    word(np.where(i < 0, x, y))
    word(np.where(i < 0, h, k))
    word(h == k)
    word(h != k)
    word(h != k)
    word(h > y.astype(np.uint16))
    word(a == np.where(t & 1, a, b))
    word(a != np.where(t & 2, a, b))
    word(a <= b)
    word(a < b)
    word((x & 3) == (y & 3))
    word(x >= y)
    word((t & 4) == 0)
    word(h >> 3)
    long(a - b)
    word(reals(abs(f)))
    word(reals(j * 0.5))
    word(x)
    word(x)
    long(x.astype(U64) * y + x + (U64(7) << U64(32)))
    word(j)
    word(a != np.where(t & 2, a, b))
    word(((y.astype(U64) << U64(32) | x) << ((t + 3) & 31).astype(U64)) >> U64(32))
    word(h * k)
    word(h.astype(U32) * k)
    long(x * a + t.astype(U64))
    word(h.astype(U32) | k.astype(U32) << U32(16))
    if c.blackwell:
        wide = np.stack([y, x, x, y] * 2, axis=1)
        rows.extend(wide.reshape(8, 32))
        rows.extend(np.stack([x, y, x, y, y, x, y, x], axis=1).reshape(8, 32))
        for op in (np.add, np.multiply, np.subtract):
            word(reals(op(f, np.float32(0.25))))
            word(reals(op(g, np.float32(1.5))))
    c.input("in", "u32", (128,), words.tolist())
    c.output("out", "u32", np.stack(rows))
    launch(c, "scalars", [Pointer("out"), Pointer("in"), Struct(raw)], block=32)


@case()
def exchange(c):
    x = mixed(2, 256).reshape(2, 128)
    out = np.zeros((2, 128, 4), U32)
    out[..., 0], out[..., 1], out[..., 2] = x[::-1], ~x[::-1], x
    out[:, 64:, 2] = x[:, :64] + U32(1)
    out[..., 3] = (127 - np.arange(128)) * 3
    sums = np.stack([[2.0 * np.arange(r, 128, 4).sum(), 64, 128, -32] for r in range(4)])
    c.input("in", "u32", (256,), x.reshape(-1).tolist())
    c.output("out", "u32", out.reshape(256, 4))
    c.output("sums", "f32", sums, rule=0)
    launch(c, "exchange", [Pointer("out"), Pointer("sums"), Pointer("in")], grid=2, cluster=2)


@case()
def matrices(c):
    x = np.arange(256, dtype=np.uint16).reshape(4, 8, 8) * np.uint16(7)  # four matrices of 8 rows
    t = np.arange(32)
    words = []
    for turned in (x, x.swapaxes(1, 2)):
        for q in range(4):
            pair = turned[q][t // 4][:, :].astype(U32)
            words.append(pair[t, 2 * (t % 4)] | pair[t, 2 * (t % 4) + 1] << U32(16))
    plain = x.reshape(-1).view(U32)
    rows = [*words, *plain.reshape(32, 4).T]
    c.input("in", "u32", (128,), plain.tolist())
    c.output("out", "u32", np.stack(rows))
    launch(c, "matrices", [Pointer("out"), Pointer("in")], block=32)


@case(f16={"of": "f16", "to": "f16", "k": 16}, e4m3={"of": "e4m3", "to": "f32", "k": 32},
      e5m2={"of": "e5m2", "to": "f32", "k": 32}, s8={"of": "s8", "to": "s32", "k": 32, "extra": ".satfinite"},
      tf32={"of": "f32", "to": "f32", "k": 8})  # fmt: skip
def mma(c, of, to, k, extra=""):
    top = 127 if of == "s8" else 3
    a, b = c.input("a", of, (16, k), integers(1, -top, top)), c.input("b", of, (8, k), integers(2, -top, top))
    start = c.input("c", to, (16, 8), integers(3, -50, 50))
    c.output("d", to, a.values @ b.values.T + start.values)
    name = "tf32" if of == "f32" else of
    form = f'"mma.sync.aligned.m16n8k{k}.row.col{extra}.{to}.{name}.{name}.{to}"'
    more = {"HALVES": 1} if to == "f16" else {}
    launch(c, "mma", [Pointer(n) for n in "dabc"], block=32, FORM=form, **more)


TAIL = "mbarrier::complete_tx::bytes"
LOADS = {
    "2d_cta": ("2d.shared::cta.global.tile", "", "sm_90a"),
    "2d_plain": ("2d.shared::cta.global", "", "sm_90a"),
    "3d": ("3d.shared::cluster.global", "", "sm_90a"),
    "3d_multicast": ("3d.shared::cluster.global", ".multicast::cluster", "sm_90a"),
    "4d_cta": ("4d.shared::cta.global.tile", "", "sm_90a"),
    "2d_pair": ("2d.shared::cluster.global.tile", ".multicast::cluster", "sm_100a"),
    "3d_pair": ("3d.cta_group::2.shared::cluster.global", "", "sm_100a"),
    "3d_pair_multicast": ("3d.cta_group::2.shared::cluster.global", ".multicast::cluster", "sm_100a"),
    "4d_pair": ("4d.cta_group::2.shared::cluster.global", "", "sm_100a"),
    "4d_pair_multicast": ("4d.cta_group::2.shared::cluster.global", ".multicast::cluster", "sm_100a"),
}


def copies(c, name):
    where, multicast, _ = LOADS[name]
    rank, pair = int(where[0]), "pair" in name
    shape = {2: (20, 48), 3: (4, 12, 48), 4: (4, 3, 12, 48)}[rank]
    box = {2: (16, 32), 3: (2, 8, 32), 4: (2, 1, 8, 32)}[rank]
    x = c.input("x", "s32", shape, iota(1, 3))
    parts = []
    for cta in range(2):
        y = 0 if multicast else cta
        at = [16, y, y + 1, y][:rank][::-1]
        parts.append(x.values[tuple(slice(a, a + n) for a, n in zip(at, box, strict=True))].reshape(16, 32))
    c.output("d", "s32", np.stack(parts))
    maps = [MapOf("x", row_major("s32", shape, box)), MapOf("x", row_major("s32", shape, box))]
    more = {"BOTH": 1} if pair else {}
    if name == "2d_cta":
        c.output("e", "s32", np.concatenate(parts))
        maps[1] = MapOf("e", row_major("s32", (32, 32), (16, 32)))
        more["STORE"] = '"cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group.L2::cache_hint"'
    last = ".cta_group::2" if name == "2d_pair" else ""
    form = f'"cp.async.bulk.tensor.{where}.{TAIL}{multicast}.L2::cache_hint{last}"'
    launch(c, "copies", [maps[0], Pointer("d"), maps[1]], grid=2, cluster=2, FORM=form, RANK=rank,
           MULTICAST=int(bool(multicast)), **more)  # fmt: skip


for _arch in ("sm_90a", "sm_100a"):
    case(_arch, **{n: {"name": n} for n, load in LOADS.items() if load[2] == _arch})(copies)


@case()
def bulk(c):
    x = c.input("in", "u32", (192,), iota(3, 5))
    c.output("out", "u32", x.values[64:])
    launch(c, "bulk", [Pointer("out"), Pointer("in")], block=32)


@case("sm_100a")
def canceled(c):
    c.output("out", "u32", np.arange(6)[:, None] * 100 + np.arange(32))
    launch(c, "canceled", [Pointer("out")], grid=(1, 6, 1), block=32)


@case("sm_100a")
def tensor_copy(c):
    x = mixed(5, 1024)
    c.input("in", "u32", (1024,), x.tolist())
    c.output("out", "u32", x.reshape(256, 4))
    launch(c, "tensor_copy", [Pointer("out"), Pointer("in")], grid=2, cluster=2)
