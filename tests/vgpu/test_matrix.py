"""ldmatrix, stmatrix and movmatrix: which element goes where, alignment, undefined bytes."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from smalti.errors import SmaltiError
from tests.vgpu.asm import BASE, Kernel

SEEDS = [None, 1, 2, 3]


def fill(k: Kernel, size: int) -> None:
    """Shared byte i = f(i), different in neighbouring bytes, rows and matrices."""
    for i in range(0, size, 4 * k.threads):
        at = k.value("mad.lo.u32", k.tid, 4, i)
        v = k.value("mul.lo.u32", at, 0x9E3779B1 - (1 << 32))
        k.emit("st.shared.b32", k.at(0, k.value("add.u32", at, k.base)), v)
    k.sync()


def memory(size: int) -> np.ndarray:
    at = np.arange(0, size, 4, dtype=np.uint32)
    return (at * np.uint32(0x9E3779B1)).view(np.uint8)


def row_address(k: Kernel, pitch: int = 48) -> Any:
    """Rows at a pitch of 48 bytes, of each warp 32 · 48 further."""
    return k.value("mad.lo.u32", k.tid, pitch, k.base)


def loaded(opcode: str, count: int, warps: int = 1, arch: str = "sm_90a", seed: int | None = None) -> np.ndarray:
    k = Kernel(32 * warps, arch=arch)
    out = k.buffer("out", np.zeros((count, 32 * warps), np.uint32))
    fill(k, 32 * 48 * warps)
    d = k.regs("b32", count)
    k.emit(opcode, d, k.at(0, row_address(k)))
    for i, r in enumerate(d):
        k.put(out, r, i)
    return k.run(seed=seed)["out"].reshape(count, warps, 32)


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_ldmatrix(count: int, trans: str, seed: int | None) -> None:
    """Lane l of matrix j: row l / 4, elements 2(l % 4), +1; transposed: rows 2(l % 4), +1 of column l / 4."""
    got = loaded(f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16", count, 2, seed=seed)
    m = memory(2 * 32 * 48).view(np.uint16).reshape(2, 32, 24)
    for w in range(2):
        for j in range(count):
            for lane in range(32):
                for i in range(2):
                    row, column = lane // 4, 2 * (lane % 4) + i
                    if trans:
                        row, column = column, row
                    assert got[j, w, lane] >> 16 * i & 0xFFFF == m[w, 8 * j + row, column]


def test_ldmatrix_of_bytes() -> None:
    """m16n16 .trans .b8: 16 rows of 16 bytes; register r of lane l holds rows 4(l % 4) … +3 of column l / 4 + 8r."""
    for count in (1, 2):
        got = loaded(f"ldmatrix.sync.aligned.m16n16.x{count}.trans.shared.b8", 2 * count, arch="sm_100a")
        m = memory(32 * 48).reshape(32, 48)
        for j in range(count):
            for r in range(2):
                for lane in range(32):
                    for i in range(4):
                        want = m[16 * j + 4 * (lane % 4) + i, lane // 4 + 8 * r]
                        assert got[2 * j + r, 0, lane] >> 8 * i & 0xFF == want


@pytest.mark.parametrize("source,bits", [("b6x16_p32", 6), ("b4x16_p64", 4)])
def test_ldmatrix_unpacks(source: str, bits: int) -> None:
    """m8n16: rows of 16 packed elements and a gap; register of lane l holds elements 4(l % 4) … +3 of row l / 4."""
    got = loaded(f"ldmatrix.sync.aligned.m8n16.x2.shared.b8x16.{source}", 2, arch="sm_100a")
    m = memory(32 * 48).reshape(32, 48)
    for j in range(2):
        for lane in range(32):
            row = int.from_bytes(m[8 * j + lane // 4, :16].tobytes(), "little")
            for i in range(4):
                want = row >> bits * (4 * (lane % 4) + i) & (1 << bits) - 1
                assert got[j, 0, lane] >> 8 * i & 0xFF == want


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("trans", ["", ".trans"])
@pytest.mark.parametrize("count", [1, 2, 4])
def test_stmatrix(count: int, trans: str, seed: int | None) -> None:
    """The inverse of ldmatrix, and nothing else is written."""
    k = Kernel(64)
    out = k.buffer("out", np.zeros((24, 64), np.uint16))
    poison = k.value("mov.b32", 0x55AA55AA)
    for i in range(12):
        k.emit("st.shared.b32", k.at(256 * i, k.value("mad.lo.u32", k.tid, 4, k.base)), poison)
    k.sync()
    values = [k.value("mad.lo.u32", k.tid, 0x10001, 0x01000000 * j + 0x8000) for j in range(count)]
    k.emit(f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16", k.at(0, row_address(k)), values)
    k.sync()
    for i in range(12):
        k.put(out, k.value("ld.shared.b32", k.at(256 * i, k.value("mad.lo.u32", k.tid, 4, k.base))), i)
    got = k.run(seed=seed)["out"].view(np.uint16).reshape(2, 32, 24)
    want = np.full((2, 32, 24), 0, np.uint16)
    want[..., 0::2], want[..., 1::2] = 0x55AA, 0x55AA
    for w in range(2):
        for j in range(count):
            for lane in range(32):
                word = ((32 * w + lane) * 0x10001 + 0x01000000 * j + 0x8000) & 0xFFFFFFFF
                for i in range(2):
                    row, column = lane // 4, 2 * (lane % 4) + i
                    if trans:
                        row, column = column, row
                    want[w, 8 * j + row, column] = word >> 16 * i & 0xFFFF
    np.testing.assert_array_equal(got, want)


def test_stmatrix_of_bytes_round_trips() -> None:
    """m16n8 .trans .b8: rows of 16 bytes; byte i of lane l is row 2(l % 4) + i % 2, column l / 4 + 8 (i / 2)."""
    k = Kernel(32, arch="sm_100a")
    out = k.buffer("out", np.zeros((2, 32), np.uint32))
    words = [k.value("mul.lo.u32", k.value("add.u32", k.tid, 100 * j + 1), 0x01030507) for j in range(2)]
    k.emit("stmatrix.sync.aligned.m16n8.x2.trans.shared.b8", k.at(0, k.value("mad.lo.u32", k.tid, 16, k.base)), words)
    k.sync()
    for i in range(2):
        k.put(out, k.value("ld.shared.b32", k.at(128 * i, k.value("mad.lo.u32", k.tid, 4, k.base))), i)
    got = k.run()["out"].view(np.uint8).reshape(16, 16)
    for j in range(2):
        for lane in range(32):
            word = (lane + 100 * j + 1) * 0x01030507 & 0xFFFFFFFF
            for i in range(4):
                assert got[8 * j + 2 * (lane % 4) + i % 2, lane // 4 + 8 * (i // 2)] == word >> 8 * i & 0xFF


def test_movmatrix_transposes() -> None:
    k = Kernel(64)
    out = k.buffer("out", np.zeros((64,), np.uint32))
    v = k.value("mad.lo.u32", k.tid, 0x20002, 0x10000)
    k.put(out, k.value("movmatrix.sync.aligned.m8n8.trans.b16", v, type_="b32"))
    got = k.run()["out"].reshape(2, 32)
    for w in range(2):
        words = [((32 * w + lane) * 0x20002 + 0x10000) & 0xFFFFFFFF for lane in range(32)]
        matrix = np.array([[words[4 * r + c // 2] >> 16 * (c % 2) & 0xFFFF for c in range(8)] for r in range(8)])
        for lane in range(32):
            for i in range(2):
                assert got[w, lane] >> 16 * i & 0xFFFF == matrix[2 * (lane % 4) + i, lane // 4]


def test_only_the_lanes_that_supply_rows_need_an_address() -> None:
    k = Kernel(32)
    fill(k, 1024)
    p = k.reg("pred")
    k.emit("setp.lt.u32", p, k.tid, 8)
    address = k.value("selp.u32", k.value("mad.lo.u32", k.tid, 16, k.base), 0x7FFFFFF1, p)
    k.emit("ldmatrix.sync.aligned.m8n8.x1.shared.b16", [k.reg("b32")], k.at(0, address))
    k.run()


def test_misaligned_and_outside() -> None:
    for offset, code in ((8, "SML0804"), (65536, "SML0803"), (16, "")):
        k = Kernel(32)
        k.emit(
            "stmatrix.sync.aligned.m8n8.x1.shared.b16",
            k.at(offset, k.value("mad.lo.u32", k.tid, 16, k.base)),
            [k.value("mov.b32", 0)],
        )
        try:
            k.run()
            got = ""
        except SmaltiError as refusal:
            got = str(refusal)[:7]
        assert got == code


def test_undefined_bytes_stay_undefined() -> None:
    """One row of one matrix was never written: exactly the lanes that hold it may not be stored."""
    for skipped, allowed in ((3, False), (99, True)):
        k = Kernel(32)
        out = k.buffer("out", np.zeros(32, np.uint32))
        row, p = k.value("mad.lo.u32", k.tid, 16, k.base), k.reg("pred")
        k.emit("setp.ne.u32", p, k.tid, skipped)
        k.emit("st.shared.v4.b32", k.at(0, row), [k.value("mov.b32", 7)] * 4, guard=p)
        k.emit("bar.sync", 0)
        d = k.reg("b32")
        k.emit("ldmatrix.sync.aligned.m8n8.x1.shared.b16", [d], k.at(0, row))
        fine = k.reg("pred")
        k.emit("setp.ne.u32", fine, k.value("shr.u32", k.tid, 2), 3)
        k.emit("st.global.b32", k.element(out, k.tid, 4), d, guard=fine)
        k.put(out, k.value("mov.b32", 1))
        k.run()
        k = Kernel(32)
        out = k.buffer("out", np.zeros(32, np.uint32))
        row, p = k.value("mad.lo.u32", k.tid, 16, k.base), k.reg("pred")
        k.emit("setp.ne.u32", p, k.tid, skipped)
        k.emit("st.shared.v4.b32", k.at(0, row), [k.value("mov.b32", 7)] * 4, guard=p)
        k.emit("bar.sync", 0)
        d = k.reg("b32")
        k.emit("ldmatrix.sync.aligned.m8n8.x1.shared.b16", [d], k.at(0, row))
        k.put(out, d)
        if allowed:
            k.run()
        else:
            with pytest.raises(SmaltiError, match="SML0808"):
                k.run()


def test_base_is_where_the_device_says() -> None:
    assert BASE == 0x400
