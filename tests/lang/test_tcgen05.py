"""Products of Blackwell in the language: every element type, transposed operands, M 64, pairs, A in tensor memory,
parts of operands and accumulators, loads, stores and copies of tensor memory. Exact integers on the virtual GPU."""

import ml_dtypes
import numpy as np
import pytest

import smalti as sm
from smalti.errors import SmaltiError

V = "virtual:sm_100a"
NUMPY = {
    "bf16": ml_dtypes.bfloat16,
    "f16": np.float16,
    "tf32": np.float32,
    "e4m3": ml_dtypes.float8_e4m3fn,
    "e5m2": ml_dtypes.float8_e5m2,
    "s8": np.int8,
    "u8": np.uint8,
}
ONE, PAIR = (1, 1, 1), (2, 1, 1)


def integers(rng, shape, name):
    """Small integers that every type holds, different in each row."""
    return rng.integers(0 if name == "u8" else -3, 4, shape).astype(NUMPY[name])


def exact(a, b):
    return a.astype(np.float64) @ b.astype(np.float64).T


def pipeline(roles, D, *, kind, pair, tile, slots=1):
    """An accumulator in tensor memory between the role that multiplies and the one that stores."""
    memory = sm.tensor_memory(D, kind, pair=pair, tile=tile)
    return memory, sm.channel(memory, writer=roles[1], reader=roles[2], slots=slots)


@sm.kernel("a[M,K], b[N,K] -> d[M,N]", arch="sm_100a")
def product(
    a, b, d, *, tile=(128, 64, 64), m=0, cluster=ONE, kind="f32", swizzle="", b_swizzle="", signs=(False, False)
):
    """d = +-a @ +-b.T: one tile a CTA or pair, a ring of two stages."""
    tm, tn, tk = tile
    pair = cluster != ONE
    A, B, D = a.tiles(tm, tk), b.tiles(tn, tk), d.tiles(tm, tn)
    i, j = sm.block_tile(D, pair=pair)
    roles = load, mma, epilogue = sm.roles(load=sm.warp, mma=sm.warp, epilogue=sm.warpgroup(1))
    memory, accumulator = pipeline(roles, D, kind=kind, pair=pair, tile=m)
    n = sm.tcgen05.instruction_n(tn, b.dtype, pair=pair, transposed=b.axis == 0)
    left = A.shared(swizzle=swizzle, halves=memory.tile if pair else 0)
    right = B.shared(swizzle=b_swizzle, halves=n if pair else 0)
    ring = sm.ring(2, a=left, b=right, readers=mma)
    with load.elect():
        for k in A.range(1):
            with ring.put() as s:
                s.a.load(A[i, k])
                s.b.load(B[j, k])
    with mma.elect(), sm.when(sm.cluster_rank() == 0), accumulator.put() as c:
        for k in A.range(1):
            with ring.get() as s:
                c.mma(s.a, s.b.T, add=k > 0, negate_a=signs[0], negate_b=signs[1])
    with epilogue, accumulator.get() as c:
        for p in c.split():
            D[i, j].like(p).store(p.load().to(d.dtype))


def run(left, right, shape, *, a_turned=False, b_turned=False, seed=None, **options):
    m, n, k = shape
    rng = np.random.default_rng(m + n + k)
    a, b = integers(rng, (m, k), left), integers(rng, (n, k), right)
    x, y = (np.asfortranarray(v) if turned else v for v, turned in ((a, a_turned), (b, b_turned)))
    kind = "s32" if left in ("s8", "u8") else "f32"
    read_as = {"a": left, "b": right}
    d = product(padded(x), padded(y), device=V, d=kind, kind=kind, read_as=read_as, seed=seed, **options)
    sign = -1 if options.get("signs", (0, 0)) in ((True, False), (False, True)) else 1
    return d, sign * exact(a, b)


def padded(x):
    """With lines at multiples of 16 bytes, which TMA wants."""
    lines = x.T if x.flags.f_contiguous and not x.flags.c_contiguous else x
    unit = 16 // x.itemsize
    wide = np.full((len(lines), -(-lines.shape[1] // unit) * unit), 1, x.dtype)
    wide[:, : lines.shape[1]] = lines
    view = wide[:, : lines.shape[1]]
    return view.T if lines is not x else view


DEEP = {"tf32": 32, "bf16": 64, "f16": 64}


OTHERS = [
    *(("f16", "f16"), ("tf32", "tf32"), ("tf32", "tf32"), ("f16", "f16"), ("e4m3", "e5m2"), ("e5m2", "e4m3")),
    *(("s8", "u8"), ("u8", "s8"), ("s8", "s8"), ("e4m3", "e4m3"), ("e4m3", "e4m3"), ("s8", "u8")),
]


ROWS = [(64, ONE), (128, ONE), (128, PAIR), (256, PAIR)]


@pytest.mark.parametrize(
    "left, right, m, cluster",
    [*(("bf16", "bf16", *rows) for rows in ROWS), *((*types, *ROWS[n % 4]) for n, types in enumerate(OTHERS))],
)
def test_element_types(left, right, m, cluster):
    """Two row tiles; two column tiles; M, N and K end inside."""
    deep = DEEP.get(left, 128)
    wide = 224 if (m, cluster) == (128, PAIR) else 288  # M 128 on a pair: one column tile
    for shape, tile in (((2 * m - 9, 60, deep + 5), (2 * m, 64, deep)), ((m - 9, wide - 18, deep), (m, wide, deep))):
        d, want = run(left, right, shape, tile=tile, m=m, cluster=cluster)
        np.testing.assert_array_equal(d, want)


@pytest.mark.parametrize("left, right", [("bf16", "bf16"), ("e4m3", "e5m2"), ("s8", "u8")])
@pytest.mark.parametrize("m, cluster", [(64, ONE), (128, ONE), (256, PAIR)])
@pytest.mark.parametrize("a_turned, b_turned", [(True, False), (True, True)])
def test_transposed_operands(left, right, m, cluster, a_turned, b_turned):
    """Operands contiguous along M or N, several stripes of a swizzle span in one instruction."""
    deep = DEEP.get(left, 128)
    shape, tile = (m + 20, 150, deep + 5), (2 * m, 192, deep)
    swizzle = "64B" if a_turned and m == 64 and deep == 128 else ""  # a stripe of 128B has 128 rows of 8 bits
    d, want = run(
        left, right, shape, tile=tile, m=m, cluster=cluster, a_turned=a_turned, b_turned=b_turned, swizzle=swizzle
    )  # fmt: skip
    np.testing.assert_array_equal(d, want)


def test_column_tiles_begin_at_stripes():
    """B contiguous along N in stripes of 64: 320 columns are not 2 x 160 but 5 x 64."""
    d, want = run("bf16", "bf16", (60, 300, 64), tile=(64, 320, 64), m=64, b_turned=True)
    np.testing.assert_array_equal(d, want)


@pytest.mark.parametrize("swizzle, b_swizzle", [("none", "32B"), ("32B", "64B"), ("64B", "128B"), ("128B", "none")])
@pytest.mark.parametrize("turned", [False, True])
def test_swizzles(swizzle, b_swizzle, turned):
    """Every swizzle, different ones for A and B, both ways round."""
    d, want = run(
        "bf16", "bf16", (100, 60, 70), tile=(128, 64, 64), a_turned=turned, b_turned=turned, swizzle=swizzle,
        b_swizzle=b_swizzle,
    )  # fmt: skip
    np.testing.assert_array_equal(d, want)


@pytest.mark.parametrize("signs", [(True, False), (False, True), (True, True)])
def test_negated_operands(signs):
    d, want = run("f16", "f16", (100, 60, 70), signs=signs)
    np.testing.assert_array_equal(d, want)


@pytest.mark.parametrize("cluster", [ONE, PAIR])
@pytest.mark.parametrize("seed", range(5))
def test_schedules(seed, cluster):
    d, want = run("e4m3", "e4m3", (200, 30, 400), tile=(256, 32, 128), cluster=cluster, seed=seed)
    np.testing.assert_array_equal(d, want)


@sm.kernel("a[M,K], b[N,K], c[M,N] -> d[M,N]", arch="sm_100a")
def chained(a, b, c, d, *, m=128, tile=0, n=64, k=64, by="store", cluster=ONE):
    """d = a @ b.T + c for one tile: A goes to tensor memory by copy or by store, C by store, the product adds to it."""
    pair = cluster != ONE
    A, B, C, D = a.tiles(m, k), b.tiles(n, k), c.tiles(m, n), d.tiles(m, n)
    sm.block_tile(D, pair=pair)
    load, mma, work = sm.roles(load=sm.warp, mma=sm.warp, work=sm.warpgroup(1))
    memory = sm.tensor_memory((m, n), c.dtype, pair=pair, tile=tile, name="sum")
    left = sm.tensor_memory((m, k), a.dtype, pair=pair, tile=tile, name="left")
    halves = (memory.tile, n) if pair else (0, 0)
    ring = sm.ring(1, b=B.shared(halves=halves[1]), readers=mma)
    parts = sm.ring(1, a=A.shared(halves=halves[0]), readers=mma) if by == "copy" else None
    operands = sm.channel(left, writer=work, reader=mma) if by == "store" else None
    initial, result = sm.channel(memory, writer=work, reader=mma), sm.barrier(1)
    with load.elect():
        with ring.put() as s:
            s.b.load(B[0, 0])
        if by == "copy":
            with parts.put() as s:
                s.a.load(A[0, 0])
    with work, initial.put() as t:
        for p in t.split():
            p.store(C[0, 0].like(p).load(p.distribution))
        if by == "store":
            with operands.put() as t:
                for p in t.split():
                    p.store(A[0, 0].like(p).load(p.distribution))
    with mma.elect(), sm.when(sm.cluster_rank() == 0), initial.get() as t, ring.get() as s:
        if by == "store":
            with operands.get() as x:
                t.mma(x, s.b.T, add=True)
        else:
            with parts.get() as x:
                left.copy(x.a)
                t.mma(left, s.b.T, add=True)
        sm.tcgen05.commit(result)
    with work:
        result.wait(0)
        sm.tcgen05.fence_after()
        for p in memory.split():
            D[0, 0].like(p).store(p.load().to(d.dtype))


@pytest.mark.parametrize("left, right", [("bf16", "bf16"), ("tf32", "tf32"), ("e4m3", "e5m2"), ("s8", "u8")])
@pytest.mark.parametrize("m, tile, by, cluster", [
    (128, 128, "copy", ONE), (256, 128, "store", ONE), (128, 64, "store", ONE), (512, 256, "copy", PAIR),
    (256, 256, "store", PAIR),
])  # fmt: skip
def test_a_in_tensor_memory(left, right, m, tile, by, cluster):
    rng = np.random.default_rng(m)
    n, k = 64, DEEP.get(left, 128)
    a, b = integers(rng, (m, k), left), integers(rng, (n, k), right)
    kind = "s32" if left == "s8" else "f32"
    c = rng.integers(-100, 100, (m, n)).astype(np.int32 if left == "s8" else np.float32)
    read_as = {"a": left, "b": right}
    d = chained(a, b, c, m=m, tile=tile, n=n, k=k, by=by, cluster=cluster, d=kind, device=V, read_as=read_as)
    np.testing.assert_array_equal(d, exact(a, b) + c)


@sm.kernel("a[M,K], b[N,K], flag[1] -> d[M,N]", arch="sm_100a")
def in_parts(a, b, flag, d, *, columns=64, scaled=False):
    """A 256x128 accumulator filled part by part, row tiles by a run-time loop; then once more, `flag` saying whether
    that is added."""
    A, B, D = a.tiles(256, 64), b.tiles(128, 64), d.tiles(256, 128)
    roles = load, mma, epilogue = sm.roles(load=sm.warp, mma=sm.warp, epilogue=sm.warpgroup(1))
    _, accumulator = pipeline(roles, D, kind=sm.f32, pair=False, tile=0)
    ring = sm.ring(1, a=A.shared(), b=B.shared(), readers=mma)
    with load.elect(), ring.put() as s:
        s.a.load(A[0, 0])
        s.b.load(B[0, 0])
    with mma.elect(), accumulator.put() as c, ring.get() as s:
        for again in (False, True):
            for g in sm.range(2):
                for h in range(128 // columns):
                    part = c.rows(g, 128).columns(h, columns)
                    part.mma(s.a.rows(g, 128), s.b.rows(h, columns).T, add=flag.scalar() if again else False)
    with epilogue, accumulator.get() as c:
        for p in c.split(64):
            D[0, 0].like(p).store(p.load().to(d.dtype))


@pytest.mark.parametrize("flag", [0, 1])
@pytest.mark.parametrize("columns", [64, 128])
def test_parts_and_a_flag_of_run_time(flag, columns):
    rng = np.random.default_rng(1)
    a, b = integers(rng, (256, 64), "bf16"), integers(rng, (128, 64), "bf16")
    d = in_parts(a, b, np.array([flag], np.int32), d="f32", columns=columns, device=V)
    np.testing.assert_array_equal(d, (1 + flag) * exact(a, b))


@sm.kernel("x[M,N] -> d[M,N]", arch="sm_100a")
def round_trip(x, d, *, m=128, tile=0, n=64, by="store", part=32, swizzle=""):
    """Global memory to tensor memory (by registers, or by shared memory and copy), to registers, to global memory."""
    X, D = x.tiles(m, n), d.tiles(m, n)
    memory = sm.tensor_memory((m, n), x.dtype, tile=tile)
    if by == "store":
        for p in memory.split(part):
            p.store(X[0, 0].like(p).load(p.distribution))
    else:
        loaded, copied, home = sm.barrier(1), sm.barrier(1), X.shared(swizzle=swizzle)
        with sm.elect():
            loaded.arrive(expect=home.bytes)
            home.load(X[0, 0], loaded)
            loaded.wait(0)
            memory.copy(home)
            sm.tcgen05.commit(copied)
        copied.wait(0)
        sm.tcgen05.fence_after()
    for p in memory.split(part):
        D[0, 0].like(p).store(p.load())


TILES = [(128, 128, 64, 32), (256, 128, 96, 96), (64, 64, 64, 64), (192, 64, 96, 32)]


@pytest.mark.parametrize(
    "dtype, m, tile, n, part",
    [
        *((dtype, *tile) for dtype in (np.float32, ml_dtypes.bfloat16, np.uint8) for tile in TILES),
        *((dtype, *TILES[0]) for dtype in (np.int32, np.uint32, np.float16, np.int8)),
    ],
)
def test_round_trip_by_registers(dtype, m, tile, n, part):
    """Every element comes back to its place, packed or not, in the lanes of every row-tile height."""
    x = (np.arange(m * n) % 251).reshape(m, n).astype(np.uint8).astype(dtype)
    x[:, 0] = (np.arange(m) % 127).astype(dtype)
    d = round_trip(x, m=m, tile=tile, n=n, part=part, d=NAMES[x.dtype], device=V)
    np.testing.assert_array_equal(d, x)


NAMES = {np.dtype(k): v for k, v in {
    np.float32: "f32", np.int32: "s32", np.uint32: "u32", np.float16: "f16", ml_dtypes.bfloat16: "bf16",
    np.int8: "s8", np.uint8: "u8"}.items()}  # fmt: skip


@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B"])
@pytest.mark.parametrize("dtype", [np.float32, np.float16, np.uint8])
def test_round_trip_by_copy(dtype, swizzle):
    """tcgen05.cp undoes the swizzle; what lies next to each other in no swizzle is 16 bytes."""
    span = {"none": 16, "32B": 32, "64B": 64, "128B": 128}[swizzle] // np.dtype(dtype).itemsize
    m, n = 256, (4 if swizzle == "none" else 3) * span
    x = (np.arange(m * n) % 251).reshape(m, n).astype(np.uint8).astype(dtype)
    d = round_trip(x, m=m, n=n, by="copy", part=32, swizzle=swizzle, d=NAMES[x.dtype], device=V)
    np.testing.assert_array_equal(d, x)


@pytest.mark.parametrize(
    "m, tile, n, error",
    [(128, 64, 4, "SML0706"), (100, 0, 64, "SML0706"), (64, 128, 64, "SML0706"), (128, 0, 1024, "SML0700")],
)
def test_shapes_that_tensor_memory_refuses(m, tile, n, error):
    with pytest.raises(SmaltiError) as refused:
        round_trip.trace("f32", m=m, tile=tile, n=n)
    assert refused.value.code == error
    round_trip.trace("f32", m=128, tile=128, n=64)


MACHINE_CODE = {
    "M 64": (product, ("bf16", "bf16"), {"m": 64}, {"UTCHMMA": 8}),
    "pair of M 128": (product, ("f16", "f16"), {"m": 128, "tile": (128, 64, 64), "cluster": PAIR}, {"UTCHMMA": 4}),
    "negated": (product, ("f16", "f16"), {"signs": (True, True)}, {"UTCHMMA": 4}),
    "integers": (product, ("s8", "u8"), {"tile": (128, 64, 128), "kind": "s32", "d": "s32"}, {"UTCIMMA": 4}),
    "swizzles": (product, ("bf16", "bf16"), {"swizzle": "none", "b_swizzle": "32B"}, {"UTCHMMA": 4}),
    "A stored": (chained, ("bf16", "bf16", "f32"), {}, {"UTCHMMA": 4}),
    "A copied": (chained, ("e4m3", "e5m2", "f32"), {"by": "copy", "k": 128}, {"UTCQMMA": 4}),
    "A of a pair": (chained, ("bf16", "bf16", "f32"), {"m": 256, "cluster": PAIR}, {"UTCHMMA": 4}),
    "parts": (in_parts, ("bf16", "bf16", "s32"), {}, {"UTCHMMA": 32}),
    "registers, M 64": (round_trip, ("f16",), {"m": 64, "d": "f16"}, {}),
    "registers": (round_trip, ("u8",), {"d": "u8"}, {}),
}


@pytest.mark.ptxas
@pytest.mark.parametrize("name", MACHINE_CODE)
def test_machine_code(name):
    from smalti.run.assemble import assemble
    from smalti.run.sass import inspect

    kernel, operands, options, products = MACHINE_CODE[name]
    traced = kernel.trace(*operands, **{"d": "f32", **options})
    made = assemble(traced.ptx(), "sm_100a")
    code = inspect(made.cubin)[traced.entry]
    assert not made.losses and not code.spills_in_loops
    assert code.tensor == products


def one_product(
    *, tile=(128, 64), pair=False, halves=(False, False), barrier=lambda: sm.barrier(1), threads="one",
    given=("bf16", "bf16"), kind="f32", left=None, arch="sm_100a", k=64,
):  # fmt: skip
    """Trace one product with something changed."""
    m, n = tile

    @sm.kernel("a[M,K], b[N,K] -> d[M,N]", arch=arch, cluster=PAIR if pair or any(halves) else ONE)
    def kernel(a, b, d):
        mma, store = sm.roles(mma=sm.warp, store=sm.warpgroup(1))
        memory, done = sm.tensor_memory((m, n), kind, pair=pair), barrier()
        x = left() if left else a.tiles(m, k).shared(halves=m if halves[0] else 0)
        y = b.tiles(n, k).shared(halves=n if halves[1] else 0)
        with {"one": mma.elect(), "warp": mma, "warpgroup": store}[threads]:
            memory.mma(x, y.T, add=False, barrier=done)

    return kernel.trace(*given, d=kind)


REFUSED = {
    "named barrier": ({"barrier": lambda: sm.named_barrier(128)}, "SML0716"),
    "no barrier at all": ({"barrier": lambda: 7}, "SML0716"),
    "whole operands of a pair": ({"tile": (256, 64), "pair": True}, "SML0715"),
    "A halved, B whole": ({"tile": (256, 64), "pair": True, "halves": (True, False)}, "SML0715"),
    "halves without a pair": ({"halves": (True, True)}, "SML0715"),
    "a warpgroup issues": ({"threads": "warpgroup"}, "SML0717"),
    "f16 with bf16": ({"given": ("f16", "bf16")}, "SML0714"),
    "s8 into f32": ({"given": ("s8", "s8"), "k": 128}, "SML0714"),
    "4-bit without scales": ({"given": ("e2m1", "e2m1")}, "SML0714"),
    "K of half an instruction": ({"k": 8}, "SML0713"),
    "A of 64-row tiles": ({"left": lambda: sm.tensor_memory((128, 64), sm.bf16, tile=64)}, "SML0718"),
    "integers on sm_103a": ({"given": ("s8", "s8"), "kind": "s32", "arch": "sm_103a", "k": 128}, "SML0719"),
    "Hopper": ({"arch": "sm_90a"}, "SML0701"),
}
ALLOWED = [
    {},
    {"threads": "warp"},
    {"tile": (256, 64), "pair": True, "halves": (True, True)},
    {"given": ("s8", "s8"), "kind": "s32", "k": 128},
    {"left": lambda: sm.tensor_memory((128, 64), sm.bf16)},
    {"k": 16},
]


@pytest.mark.parametrize("name", REFUSED)
def test_refusals(name):
    change, code = REFUSED[name]
    with pytest.raises(SmaltiError) as refused:
        one_product(**change)
    assert refused.value.code == code


@pytest.mark.parametrize("change", ALLOWED)
def test_what_is_beside_the_refusals(change):
    traced = one_product(**change)
    opcodes = [i.opcode for i in traced.module.function(traced.entry).body.instructions()]
    assert any(o.startswith("tcgen05.mma") for o in opcodes) and any(o.startswith("tcgen05.commit") for o in opcodes)


@pytest.mark.parametrize(
    "columns, options, n",
    [
        (384, {}, 192),
        (512, {}, 256),
        (40, {"kind": "s8"}, 8),
        (320, {"kind": "s8"}, 160),
        (384, {"pair": True}, 192),
        (96, {"kind": "e4m3", "transposed": True}, 96),
        (288, {"kind": "e4m3", "scaled": True}, 96),
    ],
)
def test_n_of_instructions(columns, options, n):
    assert sm.tcgen05.instruction_n(columns, **options) == n


@pytest.mark.parametrize(
    "columns, options", [(100, {}), (24, {"pair": True}), (300, {"kind": "e4m3", "scaled": True}), (0, {})]
)
def test_columns_that_no_instructions_cover(columns, options):
    with pytest.raises(SmaltiError) as refused:
        sm.tcgen05.instruction_n(columns, **options)
    assert refused.value.code == "SML0708"
    assert sm.tcgen05.instruction_n(refused.value.params["nearest"], **options) > 0
