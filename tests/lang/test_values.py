"""Scalars: operators, folding, conversions, loop state."""

import numpy as np
import pytest

import smalti as sm
from smalti.errors import SmaltiError
from smalti.ptx.module import Address


def test_python_numbers_stay_python_numbers():
    assert sm.cdiv(7, 2) == 4 and sm.min(3, 2) == 2 and sm.max(3, 2) == 3 and sm.select(True, 5, 6) == 5


def test_folding(kit):
    def body(a, d):
        i = sm.block_index()
        assert (i * 0) == 0 and i + 0 is i and i * 1 is i and i // 1 is i
        kept = [i * 8, i // 16, i % 4]
        assert all(k.dtype is sm.u32 for k in kept)
        d.tiles(64, 64)[kept[0] + kept[1], kept[2]].store(sm.wgmma.accumulator(64, 64).wait())

    opcodes = kit.opcodes(kit.trace(body))
    assert "div.u32" not in opcodes and "rem.u32" not in opcodes and "shl.b32" in opcodes


@pytest.mark.parametrize("tidy", [True, False])
def test_every_operator_on_the_virtual_gpu(tidy):
    """One thread computes each operator of two run-time values and stores it; compared with Python."""
    import dataclasses

    @sm.kernel("a[T] -> d[T]", arch="sm_90a", threads=32)
    def operators(a, d):
        x, y = a.shape[0] * 3, sm.thread_index() + 5
        values = [x + y, x - y, x * y, x // y, x % y, x & y, x | y, x ^ y, x << 3, x >> y, sm.min(x, y), sm.max(x, y)]
        values += [2 + x, 100 - x, 3 * x, 1000 // x, 1000 % x, -x, ~x, sm.cdiv(x, y), sm.select(x < y, x, y)]
        values += [sm.select((x < y) & ~(x == y) | (y >= 9), 1, 0), (x.to("f32") * 1.5 + 0.25).to("u32")]
        values += [(x.to("f32") / 7.0).to("u32"), sm.max(2, x, y), sm.select(x != y, y, x)]
        for n, value in enumerate(values):
            address = d.pointer + (sm.thread_index().to("u64") * 4 + n * 128)
            sm.emit("st.global.u32", Address(address.raw), value)

    t = np.arange(32, dtype=np.uint64) + 5
    size = 32 * 26
    x = np.full(32, size * 3, np.uint64)
    mask = np.uint64(0xFFFFFFFF)
    f = x.astype(np.float32)
    expected = [x + t, x - t, x * t, x // t, x % t, x & t, x | t, x ^ t, x << np.uint64(3), x >> t]
    expected += [np.minimum(x, t), np.maximum(x, t), 2 + x, 100 - x, 3 * x, 1000 // x, 1000 % x, 0 - x, ~x]
    expected += [-(-x.astype(np.int64) // t.astype(np.int64)), np.minimum(x, t)]
    expected += [np.where((x < t) | (t >= 9), 1, 0), (f * np.float32(1.5) + np.float32(0.25)).astype(np.uint64)]
    expected += [(f / np.float32(7)).astype(np.uint64), np.maximum(x, t), t]
    kernel = dataclasses.replace(operators, tidy=tidy, _traced={})
    got = kernel(np.zeros(size, np.uint32), device="virtual:sm_90a")
    for n, want in enumerate(expected):
        np.testing.assert_array_equal(got.reshape(26, 32)[n], want.astype(np.uint64) & mask, err_msg=f"value {n}")


def test_var_is_a_place(kit):
    def body(a, d):
        x = sm.var(1)
        alias, copy = x, x.get()
        for _ in sm.range(4):
            x += 2
            x ^= 1
        assert alias is x and copy is not x and (x + 0) is not x

    opcodes = kit.opcodes(kit.trace(body))
    assert "bra" in opcodes


@pytest.mark.parametrize(
    "use, code",
    [
        (lambda x: bool(x), "SML0301"),
        (lambda x: int(x), "SML0301"),
        (lambda x: list(x), "SML0301"),
        (lambda x: range(x), "SML0301"),
        (lambda x: [1][x], "SML0301"),
        (lambda x: x + 0.5, "SML0302"),
        (lambda x: x + (1 << 33), "SML0302"),
        (lambda x: x + x.to("f32"), "SML0303"),
        (lambda x: x / 2, "SML0303"),
        (lambda x: x < "a", "SML0303"),
    ],
)
def test_refusals(kit, use, code):
    def body(a, d):
        use(sm.block_index())

    with pytest.raises(SmaltiError) as raised:
        kit.trace(body)
    assert raised.value.code == code


def test_outside_a_kernel():
    with pytest.raises(SmaltiError) as raised:
        sm.var(0)
    assert raised.value.code == "SML0300"


def test_emit_makes_results(kit):
    def body(a, d):
        x = sm.emit("popc.b32", sm.block_index())
        y = sm.emit("bfe.u32", x, 1, 3)
        lane = sm.emit("shfl.sync.idx.b32", y, 0, 31, 0xFFFFFFFF)
        assert x.dtype is sm.u32 and y.dtype is sm.u32 and lane.dtype is sm.u32
        d.tiles(64, 64)[lane, 0].store(sm.wgmma.accumulator(64, 64).wait())

    assert {"popc.b32", "bfe.u32", "shfl.sync.idx.b32"} <= set(kit.opcodes(kit.trace(body)))
