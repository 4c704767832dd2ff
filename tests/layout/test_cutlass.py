"""Descriptors against those that CUTLASS's headers compute (tools/cutlass/oracle.py asks, a file keeps the answers):
every tile, every element's place in it, every operand in it, every instruction descriptor.
"""

import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest

from smalti.errors import SmaltiError
from smalti.layout import instruction
from smalti.layout.descriptors import decode_idesc, decode_smem, describe, encode_idesc, operand_units
from smalti.layout.linear import Layout
from smalti.layout.shared import SWIZZLES, SharedTile, swizzle_address

ROOT = Path(__file__).parents[2]
FILE = ROOT / "tests" / "data" / "oracle" / "cutlass.npz"
LBO, SBO = 0x3FFF << 16, 0x3FFF << 32
ARCH = {"90": "sm_90a", "100": "sm_100a"}


@dataclass(frozen=True)
class Tile:
    """One tile of the file, sizes in stored elements: of a sparse A half the columns of the file's row."""

    arch: str
    dtype: str
    major: str
    swizzle: str
    across: bool
    rows: int
    columns: int
    part_rows: int
    part_columns: int
    start: int
    sparse: bool

    @classmethod
    def read(cls, row):
        arch, dtype, major, swizzle, *numbers = row
        across, sparse, rows, columns, part_rows, part_columns, start = map(int, numbers)
        return cls(
            ARCH[arch], dtype, major, swizzle, bool(across), rows, columns >> sparse, part_rows,
            part_columns >> sparse, start, bool(sparse),
        )  # fmt: skip

    @property
    def bits(self):
        return {"f16": 16, "bf16": 16, "tf32": 32, "e2m1x2": 4}.get(self.dtype, 8)

    @property
    def shared(self):
        name = self.dtype.removesuffix("x2")
        return SharedTile(self.rows, self.columns, name, self.swizzle, self.major, padded=name == self.dtype)

    @property
    def usual(self):
        """Atoms follow each other as in SharedTile: along rows first if K-major, along columns first if MN-major."""
        return self.across == (self.major == "MN")

    @property
    def layout(self):
        """Bytes before the swizzle, columns in bytes for elements below one; the order that SharedTile has not."""
        if self.usual:
            return self.shared.layout
        span, step = SWIZZLES[self.swizzle].span, max(self.bits // 8, 1)
        tall = 4 if self.swizzle == "128B_atom32B" else 8
        along = (self.columns if self.major == "K" else self.rows) * self.bits // 8
        lines = self.rows if self.major == "K" else self.columns
        inside = [(span // step, {"offset": step}), (along // span, {"offset": tall * span})]
        outside = [(tall, {"offset": span}), (lines // tall, {"offset": tall * along})]
        row, column = (outside, inside) if self.major == "K" else (inside, outside)
        return Layout({"row": row, "column": column}, ["offset"])

    @property
    def k_bytes(self):
        return self.part_columns * self.bits // 8

    def ours(self, row, column):
        if self.usual:
            return self.shared.descriptor(
                self.arch, self.start, row=row, column=column, rows=self.part_rows, columns=self.part_columns
            )
        return describe(
            self.layout, arch=self.arch, start=self.start, swizzle=self.swizzle, major=self.major,
            element_bits=self.bits, rows=self.part_rows, k_bytes=self.k_bytes, row=row,
            column=column // max(8 // self.bits, 1),
        )  # fmt: skip

    @property
    def unread(self):
        """Fields that say nothing about an operand of this size (PTX ISA 9.7.15.5.1.2.1.3), as a mask."""
        span = SWIZZLES[self.swizzle].span
        if self.major == "K":
            lbo = self.swizzle == "none" or (self.swizzle == "32B" and self.k_bytes > 32)
            sbo = self.part_rows > 8
        else:
            far = self.part_rows * self.bits // 8 > span
            deep = self.part_columns > (4 if self.swizzle == "128B_atom32B" else 8)
            lbo, sbo = (deep, far) if self.swizzle == "none" else (far, deep)
        return (0 if lbo else LBO) | (0 if sbo else SBO)

    def units(self, word):
        how = {"major": self.major, "rows": self.part_rows, "k_bytes": self.k_bytes, "element_bits": self.bits}
        return operand_units(decode_smem(self.arch, word), **how)


@pytest.fixture(scope="module")
def answers():
    with np.load(FILE) as kept:
        return dict(kept)


def read(answers):
    """(tile, row, column, their descriptor)."""
    tiles = [Tile.read(row) for row in answers["tiles"].tolist()]
    found = []
    for (at, row, column), word in zip(answers["parts"].tolist(), answers["matrix"].tolist(), strict=True):
        tile = tiles[at]
        found.append((tile, row, column >> tile.sparse, word))
    return found


def beyond(word):
    """CuTe adds to the low word without a mask: an address past the window of 2**18 bytes spills into bits 14-15."""
    return word >> 14 & 3


@pytest.fixture(scope="module")
def parts(answers):
    """Those in the window."""
    return [part for part in read(answers) if not beyond(part[-1])]


def narrow(tile):
    """The one place where CuTe's descriptor reads the wrong bytes: K beyond a 32-byte span, of the B of a sparse
    instruction. CuTe takes the leading offset as unused and leaves 16 bytes there, but an H200 goes on at the leading
    offset (recordings, group descriptors). CUTLASS never gets there: it takes the widest swizzle that fits.
    """
    return tile.major == "K" and tile.swizzle == "32B" and tile.k_bytes > 32


def test_matrix_descriptors(parts):
    """All bits of all fields that say anything about the operand."""
    for tile, row, column, word in parts:
        ours = tile.ours(row, column).encode()
        if narrow(tile):
            stripe = (tile.columns * tile.bits // 8 // 32 > 1) and (8 if tile.across else tile.rows) * 32
            assert (ours ^ word) & ~(LBO | tile.unread) == 0, tile
            assert (word >> 16 & 0x3FFF, ours >> 16 & 0x3FFF) == (1, stripe >> 4), tile
        else:
            assert (ours ^ word) & ~tile.unread == 0, (tile, row, column, f"{ours:016x} {word:016x}")


def test_past_the_window(answers):
    """What ends up there cannot be said by a descriptor; ours is refused."""
    out = [part for part in read(answers) if beyond(part[-1])]
    assert len(out) > 20
    for tile, row, column, _ in out:
        with pytest.raises(SmaltiError) as caught:
            tile.ours(row, column)
        assert caught.value.code == "SML0405"


def test_fields_that_are_not_read(parts):
    """Where the fields that we call unread differ, both descriptors read the same bytes; a change of any other field
    would have been seen.
    """
    for tile, row, column, word in {part[0]: part for part in parts}.values():
        ours = tile.ours(row, column).encode()
        if not narrow(tile):
            assert np.array_equal(tile.units(ours), tile.units(word)), tile
        for field, low in ((LBO, 16), (SBO, 32)):
            changed = (ours & ~field) | ((ours & field) + (8 << low) & field)
            same = np.array_equal(tile.units(ours), tile.units(changed))
            assert same == bool(tile.unread & field), (tile, hex(field))


def wrong_by_one(tile, descriptor, field):
    """One field moved by the smallest step that it has."""
    if field == "swizzle":
        modes = [mode for mode in SWIZZLES if SWIZZLES[mode].operand and SWIZZLES[mode].arch <= int(tile.arch[3:-1])]
        return descriptor._replace(swizzle=modes[(modes.index(tile.swizzle) + 1) % len(modes)])
    if field == "arch":
        return descriptor._replace(arch="sm_100a" if tile.arch == "sm_90a" else "sm_90a")
    step = 1 if field == "base_offset" else 16
    moved = getattr(descriptor, field) + step
    return descriptor._replace(**{field: moved if moved < 1 << 18 else 0})


@pytest.mark.parametrize(
    ("field", "least"),
    [("start", 1), ("lbo", 0.15), ("sbo", 0.9), ("base_offset", 0.6), ("swizzle", 1), ("arch", 0.9)],
)
def test_one_field_off_by_one_is_seen(parts, field, least):
    """The comparison above fails for a descriptor with one field wrong, in `least` of all parts: those that use it."""
    seen = tried = 0
    for tile, row, column, word in parts[::3]:
        if narrow(tile) or (field == "arch" and tile.swizzle == "128B_atom32B"):
            continue
        tried += 1
        if field == "base_offset" and tile.swizzle == "none":
            continue
        wrong = wrong_by_one(tile, tile.ours(row, column), field).encode()
        seen += bool((wrong ^ word) & ~tile.unread)
    assert seen >= least * tried and tried > 300


def test_every_element_lies_there(answers):
    """CuTe's tile, element by element through its swizzle, is ours: sums of offset times (2 index + 1)."""
    for row, total in zip(answers["tiles"].tolist(), answers["sums"].tolist(), strict=True):
        tile = Tile.read(row)
        if tile.sparse:
            continue
        places = swizzle_address(tile.layout.offsets(), tile.swizzle) * 8
        if tile.bits == 4:
            places = (places[:, :, None] + np.array([0, 4])).reshape(tile.rows, tile.columns)
        weights = 2 * np.arange(places.size, dtype=np.uint64) + np.uint64(1)
        assert int((places.ravel().astype(np.uint64) * weights).sum()) == total, tile
        assert tile.layout.offsets().size * max(8 // tile.bits, 1) == tile.rows * tile.columns


def test_the_space(answers, parts):
    """What the file covers."""
    tiles = {tile for tile, *_ in parts}
    assert {(t.arch, t.bits, t.major, t.swizzle) for t in tiles} == {
        *(("sm_90a", b, "K", s) for b in (8, 16, 32) for s in ("none", "32B", "64B", "128B")),
        *(("sm_90a", 16, "MN", s) for s in ("none", "32B", "64B", "128B")),
        *(("sm_100a", b, "K", s) for b in (4, 8, 16, 32) for s in ("none", "32B", "64B", "128B")),
        *(("sm_100a", b, "MN", s) for b in (8, 16) for s in ("none", "32B", "64B", "128B")),
        ("sm_100a", 32, "MN", "128B_atom32B"),
    }
    assert {t.part_rows for t in tiles} >= set(range(8, 257, 8))
    assert len({t.start % (1 << 18) >> 10 for t in tiles}) > 200
    assert max(t.start for t in tiles) > 3 << 24
    seen = Counter(row[0] for row in answers["instructions"].tolist())
    assert seen.keys() == instruction.KINDS.keys()


def fields_of(row):
    kind, a_type, b_type, d_type, scale_type, *numbers = row
    flags = ["transpose_a", "transpose_b", "negate_a", "negate_b", "saturate", "sparse"]
    names = ["m", "n", *flags, "selector", "max_shift", "scale_a_id", "scale_b_id", "k96"]
    fields = dict(zip(names, map(int, numbers), strict=True))
    for name in (*flags, "k96"):
        fields[name] = bool(fields[name])
    fields["max_shift"] = (0, 8, 16, 32)[fields["max_shift"]]
    if scale_type:
        fields["scale_type"] = scale_type
    return kind, {"a_type": a_type, "b_type": b_type, "d_type": d_type, **fields}


def test_instruction_descriptors(answers):
    for row, word in zip(answers["instructions"].tolist(), answers["instruction"].tolist(), strict=True):
        kind, fields = fields_of(row)
        assert encode_idesc(kind, **fields) == word, (row, hex(word))
        found = decode_idesc(kind, word)
        assert {name: getattr(found, name) for name in fields} == fields, row


def test_every_instruction_field_off_by_one_is_seen(answers):
    """Each field of each kind, given its next code in turn, makes a descriptor that differs from theirs."""
    for kind, table in instruction.KINDS.items():
        rows = answers["instructions"][:, 0] == kind
        row = answers["instructions"][rows][0].tolist()
        word = int(answers["instruction"][rows][0])
        _, fields = fields_of(row)
        for name, field in table.items():
            codes = field.codes
            if len(codes) > 1:
                values = list(codes)
                other = values[(values.index(fields[name]) + 1) % len(values)]
                assert encode_idesc(kind, **{**fields, name: other}) != word, (kind, name)
            used = {fields_of(r)[1][name] for r in answers["instructions"][rows].tolist()}
            if name not in ("m", "n"):  # no instruction has M 96 or, with bytes, N 40, though they can be encoded
                assert used == set(codes), f"{kind}: not every {name} is in the file"


# Where CUTLASS's assertions and PTX's table 39 part, by CTAs: what CUTLASS refuses of what PTX allows, and why.
def stricter(operation, group, m, n):
    if operation == "i8":
        return group == 1 and n == 24  # N 24 is in table 39
    if operation.endswith("_TS"):
        return n % 16 != 0 and m == 128 if group == 1 else n % 32 != 0
    if operation == "SM100_MMA_F8F6F4_SS_SPARSE":
        return m == 128 and n % 16 != 0
    if operation == "SM100_MMA_F8F6F4_2x1SM_SS_SPARSE":
        return n % 32 != 0
    return operation == "SM100_MMA_MXF8F6F4_2x1SM_SS" and m == 128  # dense M 128 on a pair is in table 39


def test_legal_shapes(answers):
    """Every M and N of every tcgen05.mma of CUTLASS: legal there as here, but for the differences listed."""
    ours_only, theirs_only = Counter(), Counter()
    for operation, kind, *numbers in answers["shapes"].tolist():
        group, sparse, transposed, m, n, theirs = map(int, numbers)
        types = {name: next(iter(instruction.KINDS[kind][name].codes)) for name in ("a_type", "b_type")}
        k96 = "ULTRA" in operation
        given = instruction.InstructionDescriptor(kind, m, n, **types, sparse=bool(sparse), k96=k96)
        try:
            ours = bool(instruction.mma_k(given._replace(transpose_b=bool(transposed)), group))
        except SmaltiError as refusal:
            assert refusal.code == "SML0423"
            ours = False
        if ours and not theirs:
            assert stricter("i8" if kind == "i8" else operation, group, m, n), (operation, group, m, n)
            ours_only[operation] += 1
        elif theirs and not ours:
            theirs_only[operation, m] += 1
        else:
            assert not (ours and stricter("i8" if kind == "i8" else operation, group, m, n)), (operation, m, n)
    assert set(ours_only) >= {"SM100_MMA_S8_SS", "SM100_MMA_F16BF16_TS", "SM100_MMA_MXF8F6F4_2x1SM_SS"}
    # this operation has no assertion about M; block-scaled sparse pairs have M 256 only (table 39)
    lax = "SM100_MMA_MXF4NVF4_2x1SM_SS_SPARSE"
    assert theirs_only == {(lax, m): 16 for m in (32, 64, 128)}


def test_what_neither_has():
    """CuTe asserts that 32-byte atoms are for MN-major only, and wgmma transposes 16 bits only; so do we."""
    for arch, dtype, swizzle, major in (
        ("sm_90a", "e4m3", "128B", "MN"),
        ("sm_90a", "tf32", "128B", "MN"),
        ("sm_90a", "f16", "128B_atom32B", "K"),
        ("sm_100a", "tf32", "128B", "MN"),
        ("sm_100a", "f16", "128B_atom32B", "MN"),
    ):
        with pytest.raises(SmaltiError) as caught:
            SharedTile(128, 128, dtype, swizzle, major).descriptor(arch, 0, rows=64, columns=16)
        assert caught.value.code == "SML0414"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("cutlass_library") is None, reason="needs the extra oracle")
@pytest.mark.skipif(not shutil.which("g++"), reason="needs g++")
def test_made_again():
    """The file is what the installed headers say (a sample; the whole: `python tools/cutlass/oracle.py compare`)."""
    script = ROOT / "tools" / "cutlass" / "oracle.py"
    done = subprocess.run([sys.executable, str(script), "compare", "60"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.strip()) == (0, "no difference"), done.stdout + done.stderr[-2000:]
