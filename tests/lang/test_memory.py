"""Shared tiles: where elements lie, parts, swizzles; and round trips of every layout on the virtual GPU."""

import ml_dtypes
import numpy as np
import pytest

import smalti as sm
from smalti.errors import SmaltiError
from smalti.lang.access import units
from smalti.lang.distribution import accumulator, operand_a
from smalti.lang.shared import Geometry, choose_swizzle
from smalti.layout.shared import SharedTile


@pytest.mark.parametrize("swizzle", ["none", "32B", "64B", "128B"])
@pytest.mark.parametrize("name", ["bf16", "tf32", "e4m3"])
def test_geometry_is_the_layout_of_shared_tiles(swizzle, name):
    kind = getattr(sm, name)
    g = Geometry(16, 128 * 8 // kind.bits * 2, kind, swizzle)
    tile = SharedTile(16, g.along, name, swizzle, "K")
    line, along = np.meshgrid(np.arange(16), np.arange(g.along), indexing="ij")
    want = tile.layout(row=line, column=along)
    got = np.vectorize(g.offset)(line, along)
    np.testing.assert_array_equal(got, want)
    assert g.bytes == tile.size and g.span == tile.span


def test_widest_swizzle():
    assert [choose_swizzle(n, 16) for n in (128, 64, 32, 16, 8, 24)] == ["128B", "128B", "64B", "32B", "none", "none"]
    with pytest.raises(SmaltiError, match="SML0331"):
        choose_swizzle(4, 16)


def test_units_are_as_wide_as_the_fragment_allows():
    assert {u.count for u in units(accumulator(64, 64), 32, 1)} == {2}
    assert {u.count for u in units(accumulator(64, 64), 32, 0)} == {1}
    assert {u.count for u in units(operand_a(64, 64, 8), 8, 1)} == {4}
    assert {u.count for u in units(operand_a(64, 64, 16), 16, 1, widest=2)} == {1}


def test_distributions_compare_by_where_elements_lie():
    assert accumulator(64, 64) == operand_a(64, 64, 16)
    assert accumulator(64, 64) != operand_a(64, 64, 8)
    assert accumulator(128, 32) != accumulator(64, 64)


@sm.kernel("a[M,N] -> d[M,N]", arch="sm_90a")
def round_trip(a, d, *, rows, columns, swizzle, axis, first, second):
    """Registers in one layout -> shared memory -> registers in another -> global memory."""
    i, j = sm.block_tile(d.tiles(rows, columns))
    scratch = sm.shared((rows, columns), a.dtype, axis=axis, swizzle=swizzle)
    x = a.tiles(rows, columns)[i, j].load(first)
    d.tiles(rows, columns)[i, j].store(x.through(scratch, second))


LAYOUTS = {
    "d": accumulator,
    "a8": lambda r, c: operand_a(r, c, 8),
    "a16": lambda r, c: operand_a(r, c, 16),
    "a32": lambda r, c: operand_a(r, c, 32),
}
TYPES = {
    "bf16": (ml_dtypes.bfloat16, np.uint16),
    "f32": (np.float32, np.uint32),
    "e4m3": (ml_dtypes.float8_e4m3fn, np.uint8),
}


@pytest.mark.parametrize(
    "name, swizzle, axis, first, second",
    [
        ("bf16", "128B", 1, "d", "a8"),
        ("bf16", "64B", 1, "a32", "d"),
        ("bf16", "32B", 1, "d", "d"),
        ("bf16", "none", 1, "a8", "a16"),
        ("bf16", "128B", 0, "d", "a32"),
        ("f32", "128B", 1, "d", "a32"),
        ("f32", "64B", 0, "a16", "d"),
        ("e4m3", "128B", 1, "d", "a8"),
        ("e4m3", "32B", 1, "a8", "d"),
        ("e4m3", "64B", 0, "d", "a16"),
    ],
)
def test_round_trip(name, swizzle, axis, first, second):
    """Every element has bits of its own, so that any misplaced one shows. Rows and columns reach over the edge."""
    real, bits = TYPES[name]
    rows, columns = 128, 128 if name == "e4m3" else 64
    shape = (131, columns + 6)
    values = (np.arange(shape[0] * shape[1]) * 7 % 251 if bits is np.uint8 else np.arange(shape[0] * shape[1])).astype(
        bits
    )
    a = values.reshape(shape).view(real)
    options = {"first": LAYOUTS[first](rows, columns), "second": LAYOUTS[second](rows, columns)}
    d = round_trip(
        a, rows=rows, columns=columns, swizzle=swizzle, axis=axis, d=name, device="virtual:sm_90a", **options
    )
    np.testing.assert_array_equal(d.view(bits), a.view(bits))


def test_parts(kit):
    def body(a, d):
        tile = a.tiles(128, 64).shared()
        g = sm.warp_index() >> 2
        assert tile.rows(g, 64).shape == (64, 64)
        assert tile.rows(1, 64).columns(1, 32).T.shape == (32, 64)
        assert tile.columns(0, 64) is tile
        for wrong, code in (
            (lambda: tile.rows(0, 48), "SML0332"),
            (lambda: tile.rows(2, 64), "SML0332"),
            (lambda: tile.rows(g, 4), "SML0333"),
            (lambda: tile.columns(g, 16), "SML0333"),
        ):
            with pytest.raises(SmaltiError) as raised:
                wrong()
            assert raised.value.code == code

    kit.trace(body)


def test_scratch_in_a_loop_is_ordered_both_ways(kit):
    """The tile is read before it is written (in program order), but the loop brings it round: both are ordered."""

    def body(a, d):
        layout = sm.wgmma.d_layout(64, 64)
        scratch = a.tiles(64, 64).shared()
        x = a.tiles(64, 64)[0, 0].load(layout)
        for _ in sm.range(4):
            scratch.get(layout)
            scratch.set(x)

    traced = kit.trace(body)
    assert kit.opcodes(traced).count("bar.sync") == 2


def test_a_tma_store_is_waited_for_before_its_tile_is_written_again(kit):
    def body(a, d):
        out = d.tiles(64, 64).shared()
        x = a.tiles(64, 64)[0, 0].load(sm.wgmma.d_layout(64, 64))
        for i in sm.range(4):
            out.set(x)
            d.tiles(64, 64)[i, 0].store(out)

    opcodes = kit.opcodes(kit.trace(body))
    order = [opcodes.index(o) for o in ("cp.async.bulk.wait_group.read", "st.shared::cta.v2.b32")]
    assert order == sorted(order)
    fence = opcodes.index("fence.proxy.async.shared::cta")
    store = opcodes.index("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group")
    assert "bar.sync" in opcodes[fence:store] and "cp.async.bulk.wait_group" in opcodes[store:]


@sm.kernel("a[M,N] -> d[M,N]", arch="sm_90a", threads=128)
def some_tiles(a, d, *, tiles):
    A, D, layout = a.tiles(64, 32), d.tiles(64, 32), sm.wgmma.d_layout(64, 32)
    for j in tiles:
        D[0, j].store(A[0, j].load(layout))


def test_an_output_that_is_not_written_in_full_is_refused_not_returned():
    a = np.arange(60 * 90, dtype=np.float32).reshape(60, 90)
    np.testing.assert_array_equal(some_tiles(a, device="virtual:sm_90a", tiles=(2, 0, 1)), a)
    with pytest.raises(SmaltiError, match=r"some_tiles left d\[0, 32\] undefined \(7680 of that output's 21600") as e:
        some_tiles(a, device="virtual:sm_90a", tiles=(0, 2))
    assert e.value.code == "SML0372" and isinstance(e.value, ValueError)
    given = some_tiles(a, device="virtual:sm_90a", tiles=(0, 2), checks=False)
    np.testing.assert_array_equal(given[:, 64:], a[:, 64:])


@pytest.mark.parametrize(
    "make",
    [lambda: sm.wgmma.d_layout(32, 64), lambda: sm.wgmma.d_layout(64, 12), lambda: sm.wgmma.a_layout(64, 8, "bf16")],
)
def test_layouts_that_no_instruction_has_are_refused(make):
    with pytest.raises(SmaltiError, match=r"SML060[59].*nearest"):
        make()
    assert sm.wgmma.d_layout(64, 64).elements == sm.wgmma.a_layout(64, 64, "bf16").elements == 32


@sm.kernel("a[N] -> d[N]", arch="sm_90a", threads=32)
def line_by_line(a, d, *, n):
    A, D = a.tiles(n), d.tiles(n)
    line, bar = A.shared(), sm.barrier(1)
    with sm.elect():
        for i in range(3):
            bar.arrive(expect=line.bytes)
            line.load(A[i], bar)
            bar.wait(i % 2)
            D[i].store(line)
            sm.emit("cp.async.bulk.wait_group", 0)


@pytest.mark.parametrize(("n", "copies"), [(16, 1), (200, 1), (256, 1), (512, 2)])
@pytest.mark.parametrize("dtype", [np.float16, np.int32])
def test_vectors_move_by_tma_in_whole_lines(n, copies, dtype, kit):
    a = (np.arange(3 * n - 8) % 251).astype(dtype)
    np.testing.assert_array_equal(line_by_line(a, device="virtual:sm_90a", n=n), a)
    opcodes = kit.opcodes(line_by_line.trace(a, n=n))
    assert sum(o.startswith("cp.async.bulk.tensor.1d.global") for o in opcodes) == 3 * copies


def test_options_without_a_default_must_be_given():
    with pytest.raises(SmaltiError, match=r"SML0322.*option n has no default"):
        line_by_line(np.zeros(48, np.float32), device="virtual:sm_90a")


def test_tma_copies_that_would_begin_between_multiples_of_128_bytes_are_refused():
    @sm.kernel("a[M,N] -> d[M,N]", arch="sm_90a", threads=32)
    def rows(a, d, *, m):
        s, bar = a.tiles(m, 8).shared(swizzle="none"), sm.barrier(1)
        with sm.elect():
            s.load(a.tiles(m, 8)[0, 0], bar)

    for m in (1, 8, 16):  # one line is one copy
        rows.trace("f32", m=m)
    for m, nearest in ((2, 8), (12, 16)):
        with pytest.raises(SmaltiError, match=f"SML0346.*{16 * m} bytes apart.*lines is {nearest}"):
            rows.trace("f32", m=m)
    with pytest.raises(SmaltiError, match=r"SML0346.*nearest legal length is 288"):
        line_by_line(np.zeros(1040, np.float32), device="virtual:sm_90a", n=260)
