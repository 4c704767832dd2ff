"""A user who gives anything: layouts, tiles, descriptors and maps answer with a value or a coded refusal, in bounded
time and memory, and what a refusal proposes is accepted.
"""

import random
import time

import numpy as np
import pytest

from smalti.errors import SmaltiError
from smalti.layout import descriptors, draw, fragments, instruction, tensor, tensor_map
from smalti.layout.descriptors import SmemDescriptor, decode_idesc, decode_smem, describe, encode_idesc, encode_smem
from smalti.layout.instruction import InstructionDescriptor, mma_k
from smalti.layout.linear import Layout
from smalti.layout.shared import SharedTile
from smalti.layout.swizzle import SWIZZLES, swizzle, swizzle_address, swizzle_layout
from smalti.layout.tensor_map import TYPES, TensorMap

GOOD = (8, 16, 32, 64, 128, 256)
SIZES = (0, 1, -1, 2, 3, 7, 15, 17, 96, 255, 257, 1000, 1 << 18, 1 << 31, 1 << 40, 1 << 63, 1 << 70, -16, -1024)
OTHER = (None, True, 1.5, 16.0, float("nan"), "16", b"x", [], (8,), {}, np.int64(64), np.float32(3), object(), 2j)
FORMATS = ("f16", "bf16", "tf32", "s8", "u8", "e4m3", "e2m1", "e2m3", "b1", "f64", "nope")


class Hostile:
    """Draws arguments: mostly good ones, so that calls get past the first check."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def number(self, good=GOOD):
        dice = self.random.random()
        return self.random.choice(good if dice < 0.75 else SIZES if dice < 0.92 else OTHER)

    def one(self, *known):
        return self.random.choice(known if self.random.random() < 0.9 else (None, "", 0, "nope", 128, [], ("K",)))

    def flag(self):
        return self.random.random() < 0.3

    def arch(self):
        return self.one("sm_90a", "sm_100a", "sm_103a", "sm_120a", "sm_90aa")

    def swizzle(self):
        return self.one(*SWIZZLES)

    def major(self):
        return self.one("K", "MN")

    def descriptor(self):
        offsets = (16, 128, 1024, 2048, 4096)
        numbers = [self.number(offsets) for _ in range(3)]
        return SmemDescriptor(self.arch(), *numbers, self.number((0, 0, 1, 7)), self.swizzle(), self.flag())

    def tile(self):
        return SharedTile(self.number(), self.number(), self.one(*FORMATS), self.swizzle(), self.major(), self.flag())

    def layout(self):
        names = self.random.sample(["row", "column", "c"], self.random.randint(0, 3))
        outputs = self.random.choice((["offset"], ["o", "offset"], ["offset"], [], ["o", "o"], [3]))

        def digit():
            return self.number(), {self.random.choice(("o", "offset")): self.number()}

        digits = {name: [digit() for _ in range(self.random.randint(0, 3))] for name in names}
        return Layout(digits if self.random.random() < 0.95 else {"row": self.number()}, outputs)

    def fields(self):
        kind = self.one(*instruction.KINDS)
        table = instruction.KINDS.get(kind) if isinstance(kind, str) else None
        given = {name: self.one(*field.codes) for name, field in (table or {}).items()}
        if self.flag():
            given[self.random.choice(InstructionDescriptor._fields[1:])] = self.number()
        return kind, {name: given.get(name, 64) for name in ("m", "n", "a_type", "b_type")} | given

    def map(self):
        rank = self.random.randint(0, 6)
        strides = tuple(self.number() for _ in range(max(rank - 1, 0)))
        kind, box = self.one(*TYPES), tuple(self.number() for _ in range(rank))
        made = TensorMap(
            kind, tuple(self.number() for _ in range(rank)), strides, box, self.number(), swizzle=self.swizzle()
        )
        made.check(self.one("", "sm_90a", "sm_100a"))
        return tensor_map.decode(made.encode())


def shaped(h):
    return {
        "major": h.major(),
        "rows": h.number(),
        "k_bytes": h.number((32, 64)),
        "element_bits": h.number((8, 16, 32)),
    }


CALLS = {
    "encode_smem": lambda h: h.descriptor().encode(),
    "decode_smem": lambda h: decode_smem(h.arch(), h.number((1 << 46, 1 << 62, 1 << 46 | 1 << 61 | 77))),
    "check_operand": lambda h: descriptors.check_operand(h.one("wgmma", "tcgen05"), h.swizzle(), h.major(), h.number()),
    "operand_layout": lambda h: descriptors.operand_layout(h.swizzle(), *shaped(h).values(), h.number(), h.number()),
    "operand_units": lambda h: descriptors.operand_units(h.descriptor(), **shaped(h)),
    "operand_addresses": lambda h: descriptors.operand_addresses(h.descriptor(), **shaped(h)),
    "describe": lambda h: describe(
        h.random.choice((h.layout, lambda: h.tile().layout, *2 * [lambda: SharedTile(256, 64, "bf16").layout]))(),
        arch=h.arch(),
        start=h.number((0, 1024)),
        swizzle=h.one("128B", "128B", *SWIZZLES),
        row=h.number((0,)),
        **{**shaped(h), "element_bits": h.number((16,))},
    ),
    "encode_idesc": lambda h: (lambda kind, given: encode_idesc(kind, **given))(*h.fields()),
    "mma_k": lambda h: (lambda kind, given: mma_k(InstructionDescriptor(kind, **given), h.number((1, 2)), h.flag()))(
        *h.fields()
    ),
    "decode_idesc": lambda h: decode_idesc(h.one(*instruction.KINDS), h.number((0x8200010, 0x8200490))),
    "layout": lambda h: h.layout(),
    "layout call": lambda h: h.layout()(row=h.number(), column=h.number()),
    "layout algebra": lambda h: h.random.choice(
        (
            lambda a: a.extents,
            lambda a: a.offsets(),
            lambda a: a.invert(),
            str,
            hash,
            lambda a: a.then(h.layout()),
            lambda a: a.locate(offset=h.number()),
            lambda a: a == h.layout(),
            lambda a: a.is_linear,
        )
    )(h.layout()),
    "linear": lambda h: Layout.linear({"a": [{"o": h.number()}, {"o": h.number()}]}, ["o"]).offsets(),
    "tile": lambda h: (lambda t: (t.size, t.layout, t.boxes(), t.alignment))(h.tile()),
    "swizzled": lambda h: h.tile().swizzled,
    "descriptor": lambda h: h.tile().descriptor(
        h.arch(), h.number((0, 1024)), row=h.number((0,)), column=h.number((0,)), rows=h.number(), columns=h.number()
    ),
    "swizzle": lambda h: swizzle(h.swizzle()),
    "swizzle_address": lambda h: swizzle_address(np.arange(4), h.swizzle(), h.number((0, 7))),
    "swizzle_layout": lambda h: swizzle_layout(h.swizzle(), h.number((1024, 2048))),
    "accumulator": lambda h: tensor.accumulator(h.number(), h.number(), h.number((1, 2)), h.flag(), h.flag()),
    "a_operand": lambda h: tensor.a_operand(h.number(), h.number(), h.number((8, 16)), h.number((1, 2)), h.flag()),
    "scale_cells": lambda h: tensor.scale_cells(h.one("A", "B"), h.number(), h.number((1, 2, 4)), h.flag()),
    "scale_atom": lambda h: tensor.scale_atom(h.number(), h.number((4, 8))),
    "metadata": lambda h: tensor.metadata(h.number(), h.number(), h.number((1, 2)), h.flag()),
    "load_store": lambda h: tensor.load_store(h.one("32x32b", "16x32bx2"), h.number(), h.flag(), h.number((0,))),
    "copy": lambda h: tensor.copy(h.one("128x256b", "64x128b"), h.one("", "warpx2::02_13")),
    "wgmma": lambda h: (fragments.wgmma_d(h.number(), h.number()), fragments.wgmma_a(h.number())),
    "wgmma_metadata": lambda h: fragments.wgmma_metadata(h.number()),
    "mma": lambda h: h.random.choice((fragments.mma_a, fragments.mma_b))(h.number(), h.number(), h.number((8, 16))),
    "mma_d": lambda h: fragments.mma_d(h.number(), h.number((8, 16))),
    "mma_metadata": lambda h: fragments.mma_metadata(h.number(), h.number()),
    "ldmatrix": lambda h: fragments.ldmatrix(h.number((1, 2, 4)), h.flag(), h.one("m8n8", "m16n16")),
    "stmatrix": lambda h: fragments.stmatrix(h.number((1, 2, 4)), h.flag(), h.one("m8n8", "m16n8")),
    "map": lambda h: h.map(),
    "draw": lambda h: draw.text(h.tile().layout if h.flag() else h.layout(), h.one("", "row"), h.one("", "column")),
}


@pytest.mark.parametrize("name", CALLS)
def test_anything_is_answered(name):
    """A value or a coded refusal; a Python error of another kind fails here with its arguments' seed."""
    answered, codes, call = 0, set(), CALLS[name]
    begin = time.process_time()
    for seed in range(400):
        if time.process_time() - begin > 1.5 and answered and codes:
            break
        hostile = Hostile(seed)
        try:
            call(hostile)
            answered += 1
        except SmaltiError as refusal:
            codes.add(refusal.code)
        except Exception as fault:
            raise AssertionError(f"{name}, seed {seed}") from fault
    assert answered and codes, f"{answered} answers, {codes}"


def proposal(call):
    with pytest.raises(SmaltiError) as caught:
        call()
    return caught.value


@pytest.mark.parametrize("start", [-1, -1024, 7, 17, 1032, (1 << 32) - 1])
def test_the_address_proposed_is_accepted(start):
    refusal = proposal(lambda: encode_smem("sm_90a", start, 16, 128))
    assert refusal.code == "SML0410"
    encode_smem("sm_90a", refusal.params["nearest"], 16, 128)


@pytest.mark.parametrize("stride", [-1, 0, 1, 8, 255, 257, (1 << 40) - 1, 1 << 40, 1 << 62])
@pytest.mark.parametrize("kind", ["u8", "b6x16_p32"])
def test_the_stride_proposed_is_accepted(kind, stride):
    def made(step):
        return TensorMap(kind, (256, 8), (step,), (128, 8))

    if stride:
        refusal = proposal(made(stride).check)
        assert refusal.code == "SML0134"
        made(refusal.params["nearest"]).check()
    else:
        made(stride).check()


@pytest.mark.parametrize("kind", TYPES)
def test_the_box_proposed_is_accepted(kind):
    def made(inner):
        return TensorMap(kind, (1 << 20,), (), (inner,))

    for box in range(1, 257):
        try:
            made(box).check()
        except SmaltiError as refusal:
            if refusal.code == "SML0140":  # a padded type: the message names its only inner extent
                assert kind in tensor_map.PADDED and "not 128" in refusal.message
            else:
                assert refusal.code == "SML0136"
                made(refusal.params["nearest"]).check()


@pytest.mark.parametrize("kind", ["u8", "f16", "f32", "f64", "b4x16"])
@pytest.mark.parametrize("mode", ["32B", "64B", "128B", "128B_atom64B", "96B"])
def test_the_largest_row_proposed_is_accepted(kind, mode):
    def made(inner):
        return TensorMap(kind, (1 << 20,), (), (inner,), swizzle=mode)

    if kind == "b4x16" and mode.startswith("128B"):
        made(256).check()  # the largest box fills the span
    else:
        refusal = proposal(made(256).check)
        assert refusal.code == "SML0137"
        made(refusal.params["largest"]).check()


def test_each_allowed_value_is_accepted():
    """What SML0421, SML0412 and SML0418 list as allowed."""
    good = {"m": 128, "n": 64}
    for kind, table in instruction.KINDS.items():
        types = {name: next(iter(table[name].codes)) for name in ("a_type", "b_type")}
        for name in table:
            given = {**good, **types}
            wrong = -1 if name in good else "?"
            refusal = proposal(lambda kind=kind, fields=given | {name: wrong}: encode_idesc(kind, **fields))
            assert refusal.code == "SML0421"
            for value in refusal.params["allowed"]:
                encode_idesc(kind, **given | {name: value})
    for arch in ("sm_90a", "sm_100a"):
        for mode in proposal(lambda arch=arch: encode_smem(arch, 0, 16, 128, 0, "?")).params["known"]:
            encode_smem(arch, 0, 16, 128, 0, mode)
    for arch in proposal(lambda: encode_smem("sm_80", 0, 16, 128)).params["known"]:
        encode_smem(arch, 0, 16, 128)
    for mode in proposal(lambda: swizzle("?")).params["known"]:
        swizzle(mode)


@pytest.mark.parametrize("wrong", [64.0, "64", None, True, {64}, np.float32(64)])
def test_sizes_are_whole_numbers(wrong):
    for call in (
        lambda size: SharedTile(size, 64, "bf16"),
        lambda size: SharedTile(64, 64, "bf16").descriptor("sm_90a", 0, rows=size, columns=16),
        lambda size: fragments.wgmma_d(size),
        lambda size: tensor.accumulator(128, size),
        lambda size: encode_smem("sm_90a", 0, size, 128),
        lambda size: Layout({"i": [(size, {"o": 1})]}, ["o"]),
        lambda size: Layout({"i": [(2, {"o": size})]}, ["o"]),
        lambda size: TensorMap("u8", (size,), (), (64,)),
        lambda size: Layout({"i": [(128, {"o": 1})]}, ["o"])(i=size),
    ):
        assert proposal(lambda call=call: call(wrong)).code == "SML0406"
        call(64)
        call(np.int32(64))


def test_numpy_numbers_become_exact():
    """A numpy integer must not wrap in a field of 64 or more bits."""
    made = TensorMap(
        "u8", (np.int32(256), np.int64(8)), (np.int32(1 << 20),), (np.uint8(64), 8), address=np.uint64(1 << 63)
    )
    assert made == TensorMap("u8", (256, 8), (1 << 20,), (64, 8), address=1 << 63)
    assert all(type(v) is int for v in (*made.size, *made.stride, *made.box, made.address))
    assert made.encode() == TensorMap("u8", (256, 8), (1 << 20,), (64, 8), address=1 << 63).encode()
    assert encode_smem("sm_90a", np.int32(0x8000), np.int16(16), np.uint8(128)) == encode_smem(
        "sm_90a", 0x8000, 16, 128
    )


def test_bounds():
    """Nothing is computed for what cannot exist."""
    for call, code in (
        (lambda: SharedTile(1 << 30, 64, "bf16"), "SML0405"),
        (lambda: tensor.scale_cells("A", 1 << 40, 4), "SML0450"),
        (lambda: tensor.scale_cells("C", 128, 4), "SML0450"),
        (lambda: Layout({"i": [(1 << 62, {"o": 4})]}, ["o"]), "SML0405"),
        (lambda: Layout({"i": [(2, {"o": 1})]}, []), "SML0404"),
        (lambda: Layout({"i": [(2, {"o": 1})]}, ["o", "o"]), "SML0404"),
        (lambda: swizzle_layout("128B", 1 << 70), "SML0405"),
        (lambda: swizzle_address(np.zeros(2), "128B"), "SML0406"),
        (lambda: decode_smem("sm_90a", 1 << 64), "SML0416"),
        (lambda: decode_smem("sm_90a", -1), "SML0416"),
        (lambda: encode_smem("sm_90aa", 0, 16, 128), "SML0418"),
        (lambda: encode_smem("sm_90a", 1 << 32, 16, 128), "SML0405"),
        (lambda: descriptors.operand_layout("128B", "X", 64, 32, 16, 16, 1024), "SML0414"),
        (lambda: descriptors.operand_layout("128B_atom64B", "K", 64, 32, 16, 16, 1024), "SML0414"),
        (lambda: descriptors.operand_layout("128B", "K", 64, 32, 24, 16, 1024), "SML0414"),
        (lambda: descriptors.operand_layout("none", "K", 64, 32, 16, 24, 1024), "SML0411"),
        (lambda: descriptors.check_operand("mma", "128B", "K", 16), "SML0414"),
        (lambda: mma_k(InstructionDescriptor("f16", 128, 64, "f16", "f16"), 0), "SML0423"),
        (lambda: TensorMap("u8", (256,), (), (64,)).check("nope"), "SML0143"),
        (lambda: TensorMap("u8", (256,), (), (64,)).check(90), "SML0406"),
    ):
        assert proposal(call).code == code


def test_an_operand_stays_in_the_window():
    """A tile that begins below 2**18 and goes on above: its descriptors would wrap to other memory."""
    tile = SharedTile(128, 128, "bf16")
    start = (1 << 18) - tile.size
    assert tile.descriptor("sm_90a", start, column=64, rows=64, columns=16).start == start + tile.size // 2
    refusal = proposal(lambda: tile.descriptor("sm_90a", start + tile.size // 2, column=64, rows=64, columns=16))
    assert refusal.code == "SML0405"
