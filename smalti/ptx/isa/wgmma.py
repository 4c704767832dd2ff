"""Rows of the warpgroup matrix instructions of sm_90a (PTX 9.7.15)."""

from __future__ import annotations

from smalti.ptx.isa.row import Mods, Need, Row, only

_NEED = Need(only("sm_90a"), (8, 0))
_SPARSE = Need(only("sm_90a"), (8, 2))

_MIXED = Need(only("sm_90a"), (8, 4))  # s8 times u8

_N_FLOAT = tuple(range(8, 257, 8))
_N_INTEGER = (8, 16, 24, *range(32, 257, 16))  # 9.7.15.2, Table 35


def _shapes(ns: tuple[int, ...], k: int) -> tuple[str, ...]:
    return tuple(f"m64n{n}k{k}" for n in ns)


def n_of(mods: Mods) -> int:
    """N of a shape such as m64n128k16."""
    return int(mods["shape"].split("n")[1].split("k")[0])


def accumulator_registers(mods: Mods) -> int:
    """32-bit registers of D in each thread: N/2 for 32-bit results, N/4 for packed f16 (9.7.15.5.1.1)."""
    return n_of(mods) // (4 if mods["dtype"] == "f16" else 2)


# name, dtypes, K of a dense instruction, N, operands behind scale-d (A in shared memory; A in registers), type slots
_SIGNS = "#scale_a, #scale_b"
_KINDS: tuple[tuple[str, tuple[str, ...], int, tuple[int, ...], str, str, tuple[str, ...], tuple[str, ...]], ...] = (
    (
        "f16",
        ("f16", "f32"),
        16,
        _N_FLOAT,
        f", {_SIGNS}, #trans_a, #trans_b",
        f", {_SIGNS}, #trans_b",
        ("f16",),
        ("f16",),
    ),
    ("bf16", ("f32",), 16, _N_FLOAT, f", {_SIGNS}, #trans_a, #trans_b", f", {_SIGNS}, #trans_b", ("bf16",), ("bf16",)),
    ("tf32", ("f32",), 8, _N_FLOAT, f", {_SIGNS}", f", {_SIGNS}", ("tf32",), ("tf32",)),
    ("fp8", ("f16", "f32"), 32, _N_FLOAT, f", {_SIGNS}", f", {_SIGNS}", ("e4m3", "e5m2"), ("e4m3", "e5m2")),
    ("int8", ("s32",), 32, _N_INTEGER, "", "", ("s8", "u8"), ("s8", "u8")),
)
_RANGES = {"scale_a": (-1, 1), "scale_b": (-1, 1), "trans_a": (0, 1), "trans_b": (0, 1), "selector": (0, 1)}


def _mma(name: str, sparse: bool) -> Row:
    _, dtypes, k, ns, smem, registers, atypes, btypes = next(x for x in _KINDS if x[0] == name)
    saturate = "{.satfinite}" if name == "int8" else ""
    meta = ", meta:b32, #selector" if sparse else ""
    sp = ".sp" if sparse else ""
    d = "{+d*accumulator}:packed(dtype)"
    tail = f"b:u64{meta}, scale_d:pred!"
    ranges = {**_RANGES, "selector": (0,)} if name in ("fp8", "int8") else _RANGES
    return Row(
        f"wgmma{sp}.{name}",
        f"wgmma.mma_async{sp}.sync.aligned.shape{saturate}.dtype.atype.btype",
        f"{d}, a:u64, {tail}{smem}; {d}, {{a*4}}:b32, {tail}{registers}",
        slots={"shape": _shapes(ns, 2 * k if sparse else k), "dtype": dtypes, "atype": atypes, "btype": btypes},
        together_needs=tuple(({"atype": (a,), "btype": (b,)}, _MIXED) for a, b in (("s8", "u8"), ("u8", "s8"))),
        counts={"accumulator": accumulator_registers},
        ranges=ranges,
        need=_SPARSE if sparse else _NEED,
        section="9.7.15.6" if sparse else "9.7.15.5",
        asynchronous="wgmma",
        collective="warpgroup",
        executor=f"wgmma{sp}",
    )


ROWS = [
    *(_mma(name, sparse) for sparse in (False, True) for name in ("f16", "bf16", "tf32", "fp8", "int8")),
    Row(
        "wgmma.b1",
        "wgmma.mma_async.sync.aligned.shape.dtype.b1.b1.and.popc",
        "{+d*accumulator}:s32, a:u64, b:u64, scale_d:pred!; {+d*accumulator}:s32, {a*4}:b32, b:u64, scale_d:pred!",
        slots={"shape": _shapes(_N_INTEGER, 256), "dtype": ("s32",)},
        counts={"accumulator": accumulator_registers},
        need=_NEED,
        section="9.7.15.5",
        asynchronous="wgmma",
        collective="warpgroup",
        executor="wgmma",
    ),
    Row("wgmma.fence", "wgmma.fence.sync.aligned", section="9.7.15.7.1", need=_NEED, collective="warpgroup"),
    Row(
        "wgmma.commit_group",
        "wgmma.commit_group.sync.aligned",
        section="9.7.15.7.2",
        need=_NEED,
        collective="warpgroup",
    ),
    Row(
        "wgmma.wait_group",
        "wgmma.wait_group.sync.aligned",
        "#n",
        section="9.7.15.7.3",
        need=_NEED,
        collective="warpgroup",
        ranges={"n": range(1 << 31)},
    ),
]
