"""Every family of recordings notices a model with one parameter off by one."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from smalti.layout import descriptors, fragments
from smalti.layout.tensor_map import TensorMap
from smalti.numerics import convert, formats, fused_sum, kinds, sparse
from smalti.vgpu.engines import mbarrier, operands, reduce, tensor_core, tma
from smalti.vgpu.execute import EXECUTORS, mma_quads, warp
from smalti.vgpu.execute import tma as copies

FOLDER = Path(__file__).parents[2] / "recordings"
sys.path.insert(0, str(FOLDER))
import random_programs  # noqa: E402
import record  # noqa: E402

KNOWN = json.loads((FOLDER / "hopper.json").read_text())["programs"]
RANDOM = json.loads((FOLDER / "random.json").read_text())["programs"]
PROGRAMS = {p.name: p for p in record.programs()}
CACHED = (descriptors, fragments, convert, formats, fused_sum, operands, tensor_core, copies, mma_quads)
WGMMA = "wgmma.mma_async.sync.aligned.m64n16"
SPARSE = "wgmma.mma_async.sp.sync.aligned.m64n16"


@pytest.fixture(autouse=True)
def forget():
    """What was remembered with the right parameters, and with the wrong ones."""

    def clear():
        for module in CACHED:
            for value in vars(module).values():
                while value is not None and not hasattr(value, "cache_clear"):
                    value = getattr(value, "__wrapped__", None)
                if value is not None:
                    value.cache_clear()

    clear()
    yield
    clear()


def notices(name: str) -> bool:
    """Whether a program's answer is not the recorded one any more (or is none at all)."""
    try:
        found = record.answer(PROGRAMS[name], "virtual:sm_90a")
    except Exception:
        return True
    return found["sha256"] != KNOWN[name]["sha256"]


# (kind, its change, a program): arithmetic of the tensor cores
KINDS = [
    ("wgmma.f16", {"fraction": 24}, f"{WGMMA}k16.f32.f16.f16"),
    ("wgmma.f16", {"fraction": 26}, f"{WGMMA}k16.f32.f16.f16"),
    ("wgmma.f16", {"products": 8}, f"{WGMMA}k16.f32.f16.f16"),
    ("wgmma.f16", {"round_out": "rne"}, f"{WGMMA}k16.f32.f16.f16"),
    ("wgmma.bf16", {"fraction": 26}, f"{WGMMA}k16.f32.bf16.bf16"),
    ("wgmma.bf16", {"floor": -132}, f"{WGMMA}k16.f32.bf16.bf16 floor"),
    ("wgmma.bf16", {"floor": -134}, f"{WGMMA}k16.f32.bf16.bf16 floor"),
    ("wgmma.tf32", {"fraction": 24}, f"{WGMMA}k8.f32.tf32.tf32"),
    ("wgmma.tf32", {"floor": -132}, f"{WGMMA}k8.f32.tf32.tf32 floor"),
    ("wgmma.tf32", {"products": 4}, f"{WGMMA}k8.f32.tf32.tf32"),
    ("wgmma.fp8", {"fraction": 14}, f"{WGMMA}k32.f32.e4m3.e5m2"),
    ("wgmma.fp8", {"round_out": "rz"}, f"{WGMMA}k32.f32.e5m2.e4m3"),
    ("wgmma.fp8.f16", {"fraction": 12}, f"{WGMMA}k32.f16.e4m3.e4m3"),
    ("wgmma.f16.f16", {"fraction": 24}, f"{WGMMA}k16.f16.f16.f16 floor"),
    ("wgmma.f16.f16", {"floor": -22}, f"{WGMMA}k16.f16.f16.f16 floor"),
    ("wgmma.f16.f16", {"floor": -20}, f"{WGMMA}k16.f16.f16.f16 floor"),
    ("wgmma.bf16", {"fraction": 24}, f"{SPARSE}k32.f32.bf16.bf16"),
    ("wgmma.fp8", {"fraction": 12}, f"{SPARSE}k64.f32.e4m3.e4m3"),
    ("wgmma.f16", {"fraction": 24}, "wgmma chain m64n16k16.f32.f16.f16"),
    ("wgmma.fp8.f16", {"fraction": 14}, "wgmma chain m64n16k32.f16.e5m2.e4m3"),
    ("mma.bf16", {"fraction": 24}, "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32"),
    ("mma.tf32", {"fraction": 26}, "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32"),
    ("mma.fp8", {"products": 16}, "all mma.fp8 f32"),
    ("mma.f16", {"fraction": 24}, "all mma.fp8 f32"),
    ("mma.b1.and", {"rule": kinds.BITS_XOR}, "all mma.b1 s32"),
    ("mma.tf32", {"fraction": 24}, "all mma.sp.tf32 f32"),
]


@pytest.mark.parametrize("kind,change,name", KINDS)
def test_arithmetic(kind, change, name, monkeypatch):
    monkeypatch.setitem(kinds.KINDS, kind, dataclasses.replace(kinds.KINDS[kind], **change))
    assert notices(name)


def _metadata(patch: pytest.MonkeyPatch) -> None:
    selector = fragments._MMA_METADATA[32, 8][2]
    patch.setitem(
        fragments._MMA_METADATA,
        (32, 8),
        ([(8, {"lane": 4}), (2, {"bit": 16})], [(4, {"bit": 4}), (2, {"lane": 1})], selector),
    )


def _second_index(patch: pytest.MonkeyPatch) -> None:
    right = sparse.expand_select
    patch.setattr(sparse, "expand_select", lambda kind, meta: right(kind, meta ^ 4))


def _half_pairs(patch: pytest.MonkeyPatch) -> None:
    right = mma_quads.product
    patch.setattr(mma_quads, "product", lambda a, b, c, half: right(a, b, c, not half))


def _row(patch: pytest.MonkeyPatch) -> None:
    right = mma_quads.places

    def wrong(fragment, layout, count):
        pair, row, column = right(fragment, layout, count)
        return (pair, row ^ 1, column) if fragment == "d" else (pair, row, column)

    patch.setattr(mma_quads, "places", wrong)


def _phase(patch: pytest.MonkeyPatch) -> None:
    right = descriptors.swizzle_address
    patch.setattr(descriptors, "swizzle_address", lambda address, mode, base=0: right(address, mode, (base + 1) % 8))


def _no_base(patch: pytest.MonkeyPatch) -> None:
    right = descriptors.swizzle_address
    patch.setattr(descriptors, "swizzle_address", lambda address, mode, base=0: right(address, mode))


def _fill(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tma, "_FILL_NAN", np.array([0xF8, 0x7F], np.uint8))


def _pitch(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TensorMap, "row_pitch", property(lambda m: m.row_bytes))


def _clip(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(copies, "BULK_UNIT", 8)


def _image_offset(patch: pytest.MonkeyPatch) -> None:
    right = tma.Form.pixels
    patch.setattr(tma.Form, "pixels", lambda f, m, a, at, offsets: right(f, m, a, at, (offsets[0] + 1, *offsets[1:])))


def _channels(patch: pytest.MonkeyPatch) -> None:
    right = tma._uninterleaved
    patch.setattr(tma, "_uninterleaved", lambda m: dataclasses.replace(right(m), element_stride=(1,) * (m.rank + 1)))


def _mask(patch: pytest.MonkeyPatch) -> None:
    right = copies._destinations

    def wrong(t, target, barrier, mask, pair):
        return right(t, target, barrier, mask if mask is None else mask & ~1 or 1, pair)

    patch.setattr(copies, "_destinations", wrong)


def _count_field(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(mbarrier, "LIMIT", (1 << 20) - 1)


def _phase_bit(patch: pytest.MonkeyPatch) -> None:
    """A wait that compares two phase bits knows that a token two phases old is complete."""
    patch.setattr(mbarrier.Mbarrier, "passed", lambda b, parity: b.phase > 1 or b.phase & 1 != parity & 1)


def _lane(patch: pytest.MonkeyPatch) -> None:
    right = warp.shuffle_source
    patch.setattr(warp, "shuffle_source", lambda mode, lane, b, c: right(mode, lane, b + 1, c))


def _rank(patch: pytest.MonkeyPatch) -> None:
    right = EXECUTORS["mapa"]

    def wrong(context, step):
        done, n = right(context, step), context.number(context.bind(step)["d"])

        def run(g):
            done(g)
            g.put(n, g.bank.u[n] ^ g.bank.u[n].dtype.type(1 << 24))

        return run

    patch.setitem(EXECUTORS, "mapa", wrong)


def _quiet(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(reduce, "_QUIET", np.uint64(0))


def _tie(patch: pytest.MonkeyPatch) -> None:
    right = convert._bf16_nearest
    patch.setattr(convert, "_bf16_nearest", lambda words: right(words + np.uint32(1)))


def _away(patch: pytest.MonkeyPatch) -> None:
    right = convert._tf32_away
    patch.setattr(convert, "_tf32_away", lambda words, satfinite: right(words - np.uint32(1), satfinite))


MODELS: list[tuple[Callable[[pytest.MonkeyPatch], None], str]] = [
    (_metadata, "all mma.sp.int8 s32"),
    (_second_index, f"{SPARSE}k32.f32.f16.f16"),
    (_second_index, "all mma.sp.f16 f32"),
    (_row, "all mma.m8n8k4 f16"),
    (_half_pairs, "all mma.m8n8k4 f32"),
    (_phase, "descriptor K-major 128B"),
    (_no_base, "descriptor MN-major 64B"),
    (_phase, "wgmma descriptors sp.m64n16k64.f32.e5m2.e4m3"),
    (_fill, "load f16 128B 64x16 nan"),
    (_pitch, "load u16 128B 24x8 zero"),
    (_clip, "store u32 plain at 16,1"),
    (_image_offset, "tma im2col 0"),
    (_channels, "tma interleave 16B none 4d"),
    (_mask, "tma multicast 2"),
    (_count_field, "mbarrier after 3 operations"),
    (_phase_bit, "mbarrier tokens"),
    (_lane, "shfl down 31"),
    (_rank, "cluster addresses 4"),
    (_quiet, "additions of f64 in memory"),
    (_tie, "cvt.rn.bf16.f32"),
    (_away, "cvt.rna.tf32.f32"),
]


@pytest.mark.parametrize("change,name", MODELS, ids=lambda x: getattr(x, "__name__", x))
def test_model(change, name, monkeypatch):
    change(monkeypatch)
    assert notices(name)


def test_every_family_is_tried():
    tried = {PROGRAMS[name].group for _, _, name in KINDS} | {PROGRAMS[name].group for _, name in MODELS}
    assert tried == {p.group for p in PROGRAMS.values()}


def _bf16(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(kinds.KINDS, "wgmma.bf16", dataclasses.replace(kinds.KINDS["wgmma.bf16"], fraction=24))


@pytest.mark.parametrize("change,text", [(_lane, "shfl.sync"), (_bf16, "f32.bf16.bf16 ")])
def test_random_programs(change, text, monkeypatch):
    """Some program of those that have the instruction notices."""
    seeds = [s for s in RANDOM if text in random_programs.build(int(s))[0].ptx]
    change(monkeypatch)
    assert any(random_programs.answer(int(s), "virtual:sm_90a") != RANDOM[s] for s in seeds)
