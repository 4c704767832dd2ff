"""Roles, rings, channels, barriers, persistent work: on the virtual GPU under adversarial schedules, and refusals."""

import numpy as np
import pytest

import smalti as sm
from smalti.errors import SmaltiError
from smalti.lang import grid

V = "virtual:sm_90a"
SEEDS = [None, 1, 2, 3]


def matrix(rows, columns, seed=0):
    return np.random.default_rng(seed).integers(-3, 4, (rows, columns)).astype(np.float16)


@sm.kernel("a[M,K], b[N,K] -> d[M,N]", arch="sm_90a")
def pipelined(a, b, d, *, stages=3, behind=1, consumers=1):
    """One output tile a CTA: a loading warp, one or two warpgroups of consumers."""
    tm = 64 * consumers
    A, B, D = a.tiles(tm, 64), b.tiles(64, 64), d.tiles(tm, 64)
    mma, load = sm.roles(mma=sm.warpgroup(consumers), load=sm.warp)
    ring = sm.ring(stages, a=A.shared(), b=B.shared(), readers=mma)
    i, j = sm.block_tile(D)
    with load.elect():
        for k in A.range(1):
            with ring.put() as s:
                s.a.load(A[i, k])
                s.b.load(B[j, k])
    with mma as g:
        acc = sm.wgmma.accumulator(64, 64)
        for k in A.range(1):
            with ring.get(behind=behind) as s:
                acc.mma(s.a.rows(g, 64), s.b.T, add=k > 0)
        D[i, j].rows(g, 64).store(acc.wait().to(d.dtype))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("stages, behind, consumers", [(1, 0, 1), (2, 1, 2), (4, 2, 1)])
def test_pipelines(stages, behind, consumers, seed):
    a, b = matrix(130, 456, 1), matrix(70, 456, 2)
    d = pipelined(a, b, d="f32", stages=stages, behind=behind, consumers=consumers, device=V, seed=seed)
    np.testing.assert_array_equal(d, a.astype(np.float32) @ b.astype(np.float32).T)


@sm.kernel("a[M,N] -> d[M,N]", arch="sm_90a")
def two_hands(a, d, *, rounds=5):
    """One warpgroup writes stages by ordinary stores, the other reads them: fences and arrivals of whole warps."""
    A, D = a.tiles(64, 64), d.tiles(64, 64)
    write, read = sm.roles(write=sm.warpgroup(1), read=sm.warpgroup(1))
    layout = sm.wgmma.d_layout(64, 64)
    ring = sm.ring(2, x=A.shared(), readers=read)
    with write:
        for i in A.range(0):
            with ring.put() as s:
                s.x.set(A[i, 0].load(layout) + 1.0)
    with read:
        for i in A.range(0):
            with ring.get() as s:
                D[i, 0].store(s.x.get(layout))


@pytest.mark.parametrize("seed", SEEDS)
def test_a_ring_written_by_threads(seed):
    a = np.arange(300 * 64, dtype=np.float32).reshape(300, 64)
    np.testing.assert_array_equal(two_hands(a, device=V, seed=seed), a + 1)


@sm.kernel("a[M,K], b[N,K] -> d[M,N]", arch="sm_90a")
def handed_over(a, b, d):
    """A channel hands each finished tile from the computing to the storing role."""
    A, B, D = a.tiles(64, 64), b.tiles(64, 64), d.tiles(64, 64)
    load, mma, epilogue = sm.roles(load=sm.warpgroup(1), mma=sm.warpgroup(1), epilogue=sm.warpgroup(1))
    ring = sm.ring(2, a=A.shared(), b=B.shared(), readers=mma)
    tile = sm.channel(D.shared(name="out"), writer=mma, reader=epilogue, slots=2)
    work = sm.persistent(D, group=2)
    with load.elect():
        for i, j in work:
            for k in A.range(1):
                with ring.put() as s:
                    s.a.load(A[i, k])
                    s.b.load(B[j, k])
    with mma:
        for _ in work:
            acc = sm.wgmma.accumulator(64, 64)
            for k in A.range(1):
                with ring.get() as s:
                    acc.mma(s.a, s.b.T, add=k > 0)
            with tile.put() as t:
                t.set(acc.wait().to(d.dtype))
    with epilogue:
        for i, j in work:
            with tile.get() as t:
                D[i, j].store(t.get(sm.wgmma.d_layout(64, 64)))


@pytest.mark.parametrize("seed", SEEDS)
def test_channel(seed):
    a, b = matrix(200, 128, 3), matrix(136, 128, 4)
    d = handed_over(a, b, d="f16", device=V, seed=seed)
    np.testing.assert_array_equal(d, (a.astype(np.float32) @ b.astype(np.float32).T).astype(np.float16))


def test_grid_expressions():
    e = grid.times(grid.least(grid.SMS, grid.times(grid.cdiv("M", 128), grid.cdiv("N", 256))), 1)
    assert grid.evaluate(e, {"M": 300, "N": 520}, 132) == 9
    assert grid.evaluate(e, {"M": 10**5, "N": 10**5}, 132) == 132
    assert grid.evaluate(e, {"M": 0, "N": 520}, 132) == 0
    assert grid.show(e) == "min(SMs, cdiv(M, 128)*cdiv(N, 256))"


@pytest.mark.parametrize("rows, columns, group", [(1, 1, 8), (5, 3, 2), (8, 7, 8), (9, 2, 8), (3, 11, 1)])
def test_every_tile_is_visited_once(rows, columns, group):
    from smalti.lang.schedule import raster

    seen = [raster(t, rows, columns, group) for t in range(rows * columns)]
    assert sorted(seen) == [(i, j) for i in range(rows) for j in range(columns)]
    band = seen[: min(group, rows) * columns]
    assert {i for i, _ in band} == set(range(min(group, rows)))  # bands of `group` rows are finished first


def test_roles_share_out_warps(kit):
    def body(a, d):
        one, two, three = sm.roles(one=sm.warp, two=sm.warpgroup(1, regs=40), three=sm.warp(2))
        assert [(r.first, r.warps) for r in (one, two, three)] == [(0, 1), (4, 4), (8, 2)]
        with two as g:
            assert g == 0

    traced = kit.trace(body)
    assert traced.block == 12 * 32 and traced.module.function("body").directives["reqntid"] == (384, 1, 1)
    assert kit.opcodes(traced, "setmaxnreg") == ["setmaxnreg.dec.sync.aligned.u32"]


def test_named_barriers_are_counted(kit):
    def body(a, d):
        role = sm.roles(x=sm.warpgroup(2))[0]
        with role:
            sm.sync_warpgroup()  # one for each warpgroup
            sm.sync()  # one for the role
            sm.sync()

    traced = kit.trace(body)
    assert traced.plan.named_barriers == 4
    assert kit.opcodes(traced).count("bar.sync") == 3


def test_barriers_are_initialised_once(kit):
    def body(a, d):
        sm.barrier(3, count=2)
        sm.barrier(1)

    traced = kit.trace(body)
    counts = [i.operands[1].value for i in kit.instructions(traced) if i.opcode.startswith("mbarrier.init")]
    assert counts == [3, 3, 1]
    assert kit.opcodes(traced, "fence.mbarrier_init") and [(b.number, b.arrivals) for b in traced.plan.barriers] == [
        (2, 3),
        (1, 1),
    ]


def test_products_in_a_nested_loop_cannot_be_counted(kit):
    def body(a, b, d):
        ring = sm.ring(3, a=a.tiles(64, 64).shared(), b=b.tiles(64, 64).shared())
        acc = sm.wgmma.accumulator(64, 64)
        with ring.get(behind=1) as s:
            for _ in sm.range(2):
                acc.mma(s.a, s.b.T, add=True)

    with pytest.raises(SmaltiError) as raised:
        kit.trace(body, "bf16", "bf16", signature="a[M,K], b[N,K] -> d[M,N]")
    assert raised.value.code == "SML0352"


@sm.kernel("a[M,N] -> d[M,N]", arch="sm_90a")
def stored_by_the_reader(a, d):
    """The reader of a channel stores its stage by TMA: the stage is given back only once it has been read."""
    A, D = a.tiles(64, 64), d.tiles(64, 64)
    write, read = sm.roles(write=sm.warpgroup(1), read=sm.warpgroup(1))
    tile = sm.channel(D.shared(), writer=write, reader=read, slots=2)
    layout = sm.wgmma.d_layout(64, 64)
    with write:
        for i in A.range(0):
            with tile.put() as t:
                t.set(A[i, 0].load(layout) * 2.0)
    with read:
        for i in A.range(0):
            with tile.get() as t:
                D[i, 0].store(t)


@pytest.mark.parametrize("seed", SEEDS)
def test_stages_stored_by_tma(seed):
    a = np.arange(500 * 64, dtype=np.float32).reshape(500, 64)
    np.testing.assert_array_equal(stored_by_the_reader(a, device=V, seed=seed), a * 2)


@pytest.mark.parametrize(
    "parts, tiles, left", [(1, 1, [0]), (2, 1, [0, 0]), (2, 2, [1, 1]), (4, 2, [1] * 4), (4, 4, [3] * 4)]
)
def test_as_many_tma_stores_stay_in_flight_as_may(kit, parts, tiles, left):
    """A loop that stores `parts` times through `tiles` tiles in turn."""

    def body(a, d):
        outs = [d.tiles(64, 64).shared() for _ in range(tiles)]
        x = a.tiles(64, 64)[0, 0].load(sm.wgmma.d_layout(64, 64))
        for i in sm.range(4):
            for p in range(parts):
                outs[p % tiles].set(x)
                d.tiles(64, 64)[i, p].store(outs[p % tiles])

    waits = [i.operands[0].value for i in kit.instructions(kit.trace(body)) if i.opcode.endswith("wait_group.read")]
    assert waits == left


def test_stores_elsewhere_are_all_waited_for(kit):
    """Under a branch the number of later stores is not known: none stays in flight."""

    def body(a, d):
        out, other = d.tiles(64, 64).shared(), d.tiles(64, 64).shared()
        x = a.tiles(64, 64)[0, 0].load(sm.wgmma.d_layout(64, 64))
        for i in sm.range(4):
            out.set(x)
            with sm.when(i > 1):
                d.tiles(64, 64)[i, 0].store(out)
            other.set(x)
            d.tiles(64, 64)[i, 1].store(other)

    waits = [i.operands[0].value for i in kit.instructions(kit.trace(body)) if i.opcode.endswith("wait_group.read")]
    assert waits == [0, 0]


def test_no_wait_without_a_store_before(kit):
    def body(a, d):
        out = d.tiles(64, 64).shared()
        out.set(a.tiles(64, 64)[0, 0].load(sm.wgmma.d_layout(64, 64)))
        d.tiles(64, 64)[0, 0].store(out)

    assert "cp.async.bulk.wait_group.read" not in kit.opcodes(kit.trace(body))
