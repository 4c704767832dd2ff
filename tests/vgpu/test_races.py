"""Races, proxies, flags, registers in flight and exits: for every rule kernels that break it, their clean neighbours,
and a check of the check."""

from __future__ import annotations

import pytest

from smalti.vgpu.checks import Checks, fences, flags, races, registers, tensor
from smalti.vgpu.clocks import Clock
from tests.vgpu.text import Text

HEAD = """
.version 8.8
.target sm_90a
.address_size 64
.visible .entry k({params}) .reqntid {threads}
{{
  .reg .pred first, w0, w1, p, even, yes;
  .reg .b16 h;
  .reg .b32 tid, warp, at, mine, other, zero, rank, x, y, d<4>, e<4>, r<4>;
  .reg .b64 a, b, to, flag, out;
  .shared .align 1024 .b8 tile[4096];
  .shared .align 8 .b8 full[8];
  .shared .align 8 .b8 empty[8];
  mov.u32 tid, %tid.x;
  shr.u32 warp, tid, 5;
  mov.u32 at, tile;
  mov.b32 zero, 0;
  setp.eq.u32 first, tid, 0;
  setp.eq.u32 w0, warp, 0;
  setp.eq.u32 w1, warp, 1;
  setp.eq.u32 yes, zero, 0;
  mad.lo.u32 mine, tid, 4, at;
  xor.b32 other, mine, 128;
"""
POINTERS = """
  ld.param.u64 to, [b0];
  ld.param.u64 flag, [b1];
  mov.u32 rank, %ctaid.x;
  setp.eq.u32 even, rank, 0;
"""
BARRIERS = """
  @first mbarrier.init.shared::cta.b64 [full], 1;
  @first mbarrier.init.shared::cta.b64 [empty], 64;
  fence.mbarrier_init.release.cluster;
  bar.sync 0;
"""


def kernel(body: str, threads: int = 64, *, buffers: tuple[int, ...] = (), grid: int = 1, cluster: int = 1) -> Text:
    params = ", ".join(f".param .u64 b{i}" for i in range(len(buffers)))
    text = HEAD.format(params=params, threads=threads) + (POINTERS if buffers else "") + body + "\n  ret;\n}\n"
    return Text(text, threads, grid=grid, cluster=cluster, buffers=buffers)


def wait(label: str, barrier: str, parity: int = 0, tag: str = "wait") -> str:
    tag = f" // {tag}" if tag else ""
    return f"""
{label}:{tag}
  mbarrier.try_wait.parity.shared::cta.b64 p, [{barrier}], {parity};{tag}
  @!p bra {label};{tag}
"""


LOAD = """
  @first mbarrier.arrive.expect_tx.shared::cta.b64 _, [full], 256;
  @first cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [tile], [to], 256, [full];
"""
OPERANDS = """
  shr.u32 x, at, 4;
  cvt.u64.u32 a, x;
  or.b64 a, a, 0x0000000800400000;
  cvt.u64.u32 b, x;
  add.u64 b, b, 128;
  or.b64 b, b, 0x0000000800080000;
  mov.b32 d0, 0;
  mov.b32 d1, 0;
  mov.b32 d2, 0;
  mov.b32 d3, 0;
"""
ZEROS = """
  mad.lo.u32 y, tid, 32, at;
  st.shared.v4.b32 [y], {zero, zero, zero, zero};
  st.shared.v4.b32 [y+16], {zero, zero, zero, zero};
  fence.proxy.async; // proxy
  bar.sync 0;
"""
WGMMA = "wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {d0, d1, d2, d3}, a, b, yes, 1, 1, 0, 0;"
FENCE = "wgmma.fence.sync.aligned;"
COMMIT = "wgmma.commit_group.sync.aligned;"
ALL = "wgmma.wait_group.sync.aligned 0;"

# Each: the kernel, and the codes that leaving out the tagged lines may give.
SCENARIOS: dict[str, tuple[Text, dict[str, set[str]]]] = {
    "write, then read by another warp": (
        kernel("""
  st.shared.b32 [mine], tid;
  bar.sync 0; // barrier
  ld.shared.b32 x, [other];
"""),
        {"barrier": {"SML0930"}},
    ),
    "read, then write by another warp": (
        kernel("""
  st.shared.b32 [mine], tid;
  bar.sync 0;
  ld.shared.b32 x, [other];
  bar.sync 0; // barrier
  st.shared.b32 [mine], x;
"""),
        {"barrier": {"SML0930"}},
    ),
    "two warps write different values": (
        kernel("""
  and.b32 y, mine, 0xffffff7f;
  @w0 st.shared.b32 [y], tid;
  bar.sync 0; // barrier
  @w1 st.shared.b32 [y], tid;
"""),
        {"barrier": {"SML0930", "SML0934"}},
    ),
    "readers of three warps, a barrier of all": (
        kernel("""
  @first st.shared.b32 [at], tid;
  bar.sync 0;
  ld.shared.b32 x, [at];
  bar.sync 1, 96; // all
  @first st.shared.b32 [at], zero;
  @!first st.shared.b32 [mine], x;
""", 96).replace("bar.sync 1, 96; // all", "barrier.sync 1, 96; // all"),
        {"all": {"SML0930"}},
    ),
    "bytes of one word by different warps": (
        kernel("""
  cvt.u16.u32 h, warp;
  mad.lo.u32 y, tid, 4, at;
  and.b32 y, y, 0xffffff7f;
  add.u32 y, y, warp;
  st.shared.b8 [y], h;
  bar.sync 0; // barrier
  @w0 ld.shared.b32 x, [mine];
"""),
        {"barrier": {"SML0930"}},
    ),
    "narrow and wide stores and loads of the same bytes": (
        kernel("""
  setp.gt.u32 p, tid, 39;
  setp.gt.u32 even, tid, 31;
  xor.pred even, even, p;
  mad.lo.u32 y, tid, 16, at;
  @w0 st.shared.b32 [mine], tid;
  @even st.shared.v4.b32 [y+-384], {tid, tid, tid, tid};
  fence.proxy.async; // proxy
  bar.sync 0; // barrier
  @first cp.async.bulk.global.shared::cta.bulk_group [to], [tile], 256;
  @first cp.async.bulk.commit_group;
  @first cp.async.bulk.wait_group.read 0; // read
  bar.sync 0;
  @even st.shared.v4.b32 [y+-512], {tid, tid, tid, tid};
  bar.sync 0; // between
  @w0 ld.shared.b32 x, [mine];
  @w0 ld.shared.b8 x, [at+77];
  bar.sync 0; // again
  @even st.shared.b16 [y+-510], h;
""", buffers=(256, 8)).replace("setp.gt.u32 p, tid, 39", "mov.u16 h, 1;\n  setp.gt.u32 p, tid, 39"),
        {
            "proxy": {"SML0931"}, "barrier": {"SML0930", "SML0808"}, "read": {"SML0930", "SML0933"},
            "between": {"SML0930"}, "again": {"SML0930"},
        },
    ),
    "stores, then a bulk store": (
        kernel("""
  st.shared.b32 [mine], tid;
  fence.proxy.async; // proxy
  bar.sync 0; // barrier
  @first cp.async.bulk.global.shared::cta.bulk_group [to], [tile], 256;
  @first cp.async.bulk.commit_group;
  @first cp.async.bulk.wait_group.read 0; // read
  bar.sync 0;
  st.shared.b32 [mine], zero;
""", buffers=(256, 8)),
        {"proxy": {"SML0931"}, "barrier": {"SML0808", "SML0930"}, "read": {"SML0930", "SML0933"}},
    ),
    "the proxy fence in the thread that issues": (
        kernel("""
  st.shared.b32 [mine], tid;
  bar.sync 0;
  fence.proxy.async; // proxy
  @first cp.async.bulk.global.shared::cta.bulk_group [to], [tile], 256;
  @first cp.async.bulk.commit_group;
  @first cp.async.bulk.wait_group.read 0;
""", buffers=(256, 8)),
        {"proxy": {"SML0931"}},
    ),
    "a bulk load, then reads, then the next load": (
        kernel(BARRIERS + LOAD + wait("W", "full") + """
  ld.shared.b32 x, [mine];
  mbarrier.arrive.shared::cta.b64 _, [empty]; // arrive
  @!first bra OUT;
""" + wait("E", "empty", tag="empty") + LOAD + "\nOUT:\n" + wait("X", "full", 1, tag=""), buffers=(256, 8)),
        {"wait": {"SML0905", "SML0930"}, "arrive": {"SML0901"}, "empty": {"SML0930"}},
    ),
    "a bulk store, then the global memory read": (
        kernel("""
  st.shared.b32 [mine], tid;
  fence.proxy.async;
  bar.sync 0;
  @first cp.async.bulk.global.shared::cta.bulk_group [to], [tile], 256;
  @first cp.async.bulk.commit_group;
  @first cp.async.bulk.wait_group.read 0;
  @first cp.async.bulk.wait_group 0; // whole
  @first ld.global.b32 x, [to];
""", buffers=(256, 8)),
        {"whole": {"SML0930"}},
    ),
    "cp.async, then reads": (
        kernel("""
  mul.wide.u32 out, tid, 4;
  add.u64 out, out, to;
  cp.async.ca.shared.global [mine], [out], 4;
  cp.async.wait_all; // wait
  bar.sync 0; // barrier
  ld.shared.b32 x, [other];
""", buffers=(256, 8)),
        {"wait": {"SML0930", "SML0933"}, "barrier": {"SML0930"}},
    ),
    "cp.async, then a bulk store": (
        kernel("""
  mul.wide.u32 out, tid, 4;
  add.u64 out, out, to;
  cp.async.ca.shared.global [mine], [out], 4;
  cp.async.wait_all;
  fence.proxy.async; // proxy
  bar.sync 0;
  @first cp.async.bulk.global.shared::cta.bulk_group [to], [tile], 256;
  @first cp.async.bulk.commit_group;
  @first cp.async.bulk.wait_group 0;
""", buffers=(256, 8)),
        {"proxy": {"SML0931"}},
    ),
    "wgmma of stored operands": (
        kernel(ZEROS + OPERANDS + f"""
  {FENCE} // fence
  {WGMMA}
  {WGMMA}
  {COMMIT}
  {ALL} // all
  add.rn.f32 d0, d0, d1;
  bar.sync 0;
  st.shared.b32 [mine], tid;
""", 128),
        {"proxy": {"SML0931"}, "fence": {"SML0935"}, "all": {"SML0932"}},
    ),
    "a buffer refilled when wgmma has read it": (
        kernel(BARRIERS.replace("[empty], 64", "[empty], 128") + LOAD + """
  setp.lt.u32 p, warp, 4;
  @p bra CONSUME;
  setp.eq.u32 p, tid, 128;
  @!p bra OUT;
""" + wait("E", "empty", tag="empty") + LOAD.replace("@first", "") + "\n  bra OUT;\nCONSUME:\n"
        + wait("W", "full", tag="") + OPERANDS.replace("0x0000000800400000", "0x0000000100010000").replace(
            "add.u64 b, b, 128", "add.u64 b, b, 0") + f"""
  {FENCE}
  {WGMMA}
  {COMMIT}
  {ALL} // all
  mbarrier.arrive.shared::cta.b64 _, [empty]; // arrive
OUT:
""" + wait("X", "full", 1, tag=""), 160, buffers=(256, 8)),
        {"all": {"SML0930", "SML0933"}, "arrive": {"SML0901"}, "empty": {"SML0905", "SML0930"}},
    ),
    "two wgmmas of one group with a load each": (
        kernel(BARRIERS.replace("[empty], 64", "[empty], 1") + LOAD + LOAD.replace("[tile]", "[tile+1024]").replace(
            "[full]", "[empty]") + wait("W", "full", tag="one") + OPERANDS.replace(
            "0x0000000800400000", "0x0000000100010000").replace("add.u64 b, b, 128", "add.u64 b, b, 0") + f"""
  {FENCE}
  {WGMMA}
""" + wait("X", "empty", tag="two") + f"""
  add.u64 a, a, 64;
  add.u64 b, b, 64;
  {WGMMA}
  {COMMIT}
  {ALL}
""", 128, buffers=(256, 8)),
        {"one": {"SML0930", "SML0933"}, "two": {"SML0930", "SML0933"}},
    ),
    "accumulators scaled between two wgmmas": (
        kernel(ZEROS + OPERANDS + f"""
  {FENCE}
  {WGMMA}
  {COMMIT}
  {ALL}
  mul.rn.f32 d1, d1, d1;
  {FENCE} // fence
  {WGMMA}
  {COMMIT}
  {ALL}
""", 128),
        {"fence": {"SML0935"}},
    ),
    "wgmma in a loop, one fence a turn": (
        kernel(ZEROS + OPERANDS + f"""
  mov.u32 x, 0;
LOOP:
  {FENCE} // fence
  {WGMMA}
  {WGMMA}
  {COMMIT}
  {ALL}
  add.u32 x, x, 1;
  setp.lt.u32 p, x, 3;
  @p bra LOOP;
  add.rn.f32 d0, d0, d1;
""", 128),
        {"fence": {"SML0935"}},
    ),
    "A of a wgmma in registers": (
        kernel(ZEROS + OPERANDS + f"""
  mov.b32 r0, 0;
  mov.b32 r1, 0;
  mov.b32 r2, 0;
  mov.b32 r3, 0;
  {FENCE}
  wgmma.mma_async.sync.aligned.m64n8k16.f32.f16.f16 {{d0, d1, d2, d3}}, {{r0, r1, r2, r3}}, b, yes, 1, 1, 0;
  {COMMIT}
  add.u32 x, r1, r2;
  {ALL} // all
  mov.b32 r2, 1;
""", 128),
        {"all": {"SML0932", "SML0933"}},
    ),
    "a bulk store waited for before the end": (
        kernel("""
  st.shared.b32 [mine], tid;
  fence.proxy.async;
  bar.sync 0;
  @first cp.async.bulk.global.shared::cta.bulk_group [to], [tile], 256;
  @first cp.async.bulk.commit_group;
  @first cp.async.bulk.wait_group.read 0; // read
""", buffers=(256, 8)),
        {"read": {"SML0933"}},
    ),
    "a flag released and acquired between CTAs": (
        kernel("""
  @!first bra OUT;
  @!even bra POLL;
  st.global.b32 [to], 7;
  st.release.gpu.global.b32 [flag], 1;
  bra OUT;
POLL:
  ld.acquire.gpu.global.b32 x, [flag];
  setp.ne.u32 p, x, 1;
  @p bra POLL;
  ld.global.b32 y, [to];
OUT:
""", buffers=(8, 8), grid=2),
        {},
    ),
    "relaxed flags and fences": (
        kernel("""
  @!first bra OUT;
  @!even bra POLL;
  st.global.b32 [to], 7;
  fence.acq_rel.gpu; // release
  st.relaxed.gpu.global.b32 [flag], 1;
  bra OUT;
POLL:
  ld.relaxed.gpu.global.b32 x, [flag];
  setp.ne.u32 p, x, 1;
  @p bra POLL;
  fence.acq_rel.gpu; // acquire
  ld.global.b32 y, [to];
OUT:
""", buffers=(8, 8), grid=2),
        {"release": {"SML0930"}, "acquire": {"SML0930"}},
    ),
    "the last CTA adds up": (
        kernel("""
  mul.wide.u32 out, rank, 4;
  add.u64 out, out, to;
  @first st.global.b32 [out], rank;
  bar.sync 0;
  @!first bra OUT;
  fence.acq_rel.gpu; // fence
  atom.global.add.u32 x, [flag], 1;
  fence.acq_rel.gpu; // fence
  setp.ne.u32 p, x, 3;
  @p bra OUT;
  ld.global.b32 x, [to];
  ld.global.b32 x, [to+4];
  ld.global.b32 x, [to+8];
  ld.global.b32 x, [to+12];
OUT:
""", buffers=(16, 8), grid=4),
        {"fence": {"SML0930"}},
    ),
    "a lock": (
        kernel("""
  @!first bra OUT;
LOCK:
  atom.acquire.gpu.global.cas.b32 x, [flag], 0, 1;
  setp.ne.u32 p, x, 0;
  @p bra LOCK;
  ld.global.b32 y, [to];
  add.u32 y, y, 1;
  st.global.b32 [to], y;
  atom.release.gpu.global.exch.b32 x, [flag], 0;
OUT:
""", buffers=(8, 8), grid=3),
        {},
    ),
    "distributed shared memory and a cluster barrier": (
        kernel("""
  mapa.shared::cluster.u32 x, mine, 1;
  @even st.shared::cluster.b32 [x], tid;
  barrier.cluster.arrive.aligned; // cluster
  barrier.cluster.wait.aligned; // cluster
  @!even ld.shared.b32 y, [mine];
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
""", buffers=(8, 8), grid=2, cluster=2),
        {"cluster": {"SML0930"}},
    ),
    "a relaxed arrival at the cluster barrier": (
        kernel("""
  mapa.shared::cluster.u32 x, mine, 1;
  @even st.shared::cluster.b32 [x], tid;
  fence.acq_rel.cluster; // release
  barrier.cluster.arrive.relaxed.aligned;
  barrier.cluster.wait.aligned;
  @!even ld.shared.b32 y, [mine];
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
""", buffers=(8, 8), grid=2, cluster=2),
        {"release": {"SML0930"}},
    ),
    "a remote arrival": (
        kernel(BARRIERS.replace("[empty], 64", "[empty], 32") + """
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  mapa.shared::cluster.u32 x, mine, 1;
  mov.u32 y, empty;
  mapa.shared::cluster.u32 y, y, 1;
  and.pred p, even, w0;
  @p st.shared::cluster.b32 [x], tid;
  @p mbarrier.arrive.release.cluster.shared::cluster.b64 _, [y];
  @even bra OUT;
""" + wait("W", "empty") + """
  ld.shared.b32 y, [mine];
OUT:
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
""", 32, buffers=(8, 8), grid=2, cluster=2),
        {"wait": {"SML0930"}},
    ),
    "a cluster barrier before a CTA with guests leaves": (
        kernel("""
  st.shared.b32 [mine], tid;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  mapa.shared::cluster.u32 x, mine, 0;
  ld.shared::cluster.b32 y, [x];
  barrier.cluster.arrive.aligned; // end
  barrier.cluster.wait.aligned; // end
""", buffers=(8, 8), grid=2, cluster=2),
        {"end": {"SML0936"}},
    ),
}  # fmt: skip
MUTANTS = [(name, tag) for name, (_, tags) in SCENARIOS.items() for tag in tags]


@pytest.mark.parametrize("name", SCENARIOS)
def test_clean_kernels_are_silent(name: str) -> None:
    assert SCENARIOS[name][0].codes(20) == {""}


@pytest.mark.parametrize("name,tag", MUTANTS)
def test_broken_kernels_are_reported(name: str, tag: str) -> None:
    text, tags = SCENARIOS[name]
    assert text.without(tag).codes(10) <= tags[tag]


PLAIN_FLAG = SCENARIOS["a flag released and acquired between CTAs"][0]


@pytest.mark.parametrize("old,new,strict,allowed", [
    ("st.release.gpu.global.b32 [flag]", "st.relaxed.gpu.global.b32 [flag]", False, {"SML0930"}),
    ("ld.acquire.gpu", "ld.relaxed.gpu", False, {"SML0930"}),
    ("st.release.gpu.global.b32 [flag]", "st.global.b32 [flag]", False, {"SML0930"}),
    ("ld.acquire.gpu", "ld.volatile", False, {"SML0930"}),
    ("setp.ne.u32 p, x, 1", "setp.ne.u32 p, x, 1", True, {""}),
])  # fmt: skip
def test_flags(old: str, new: str, strict: bool, allowed: set[str]) -> None:
    assert PLAIN_FLAG.replace(old, new).codes(10, strict=strict) == allowed


@pytest.mark.parametrize("old,new", [
    ("atom.acquire.gpu", "atom.relaxed.gpu"), ("atom.release.gpu", "atom.relaxed.gpu"),
    ("LOCK:\n  atom.acquire.gpu.global.cas.b32 x, [flag], 0, 1;\n  setp.ne.u32 p, x, 0;\n  @p bra LOCK;", ""),
])  # fmt: skip
def test_a_lock_that_does_not_order(old: str, new: str) -> None:
    assert SCENARIOS["a lock"][0].replace(old, new).codes(10) == {"SML0930"}


@pytest.mark.parametrize(
    "value,strict,found", [("tid", False, "SML0934"), ("warp", False, "SML0934"), ("zero", False, "")]
)
def test_lanes_of_one_store(value: str, strict: bool, found: str) -> None:
    """Lanes, also of different warps of one gang, may store one value to one address, not different ones."""
    text = kernel(f"  st.shared.b32 [at], {value};")
    assert text.code(strict=strict) == found


@pytest.mark.parametrize("second,strict,found", [("7", False, ""), ("7", True, "SML0930"), ("8", False, "SML0930")])
def test_equal_values_by_two_warps(second: str, strict: bool, found: str) -> None:
    """Replicated writes are no harm; strict checks report them all the same."""
    text = kernel(f"  @w0 st.shared.b32 [at], 7;\n  @w1 st.shared.b32 [at], {second};")
    assert text.codes(10, strict=strict) == {found}


@pytest.mark.parametrize("access,found", [("read", ""), ("write", "SML0932"), ("none", "")])
def test_operand_registers_in_flight(access: str, found: str) -> None:
    """A in registers may be read, not written, while the wgmma runs."""
    text = SCENARIOS["A of a wgmma in registers"][0]
    changed = {"read": "add.u32 y, r3, r2;", "write": "mov.b32 r3, 1;", "none": ""}[access]
    assert text.replace("  add.u32 x, r1, r2;", f"  {changed}").codes(10) == {found}


def test_the_first_wgmma_needs_a_fence() -> None:
    text = SCENARIOS["wgmma of stored operands"][0].without("fence")
    (found,) = text.run()
    assert found.params["what"] == "it is the first wgmma of its warpgroup"
    touched = SCENARIOS["accumulators scaled between two wgmmas"][0].without("fence")
    line = next(i for i, x in enumerate(touched.text.splitlines(), 1) if "mul.rn" in x)
    assert f"register d1 was touched at kernel.ptx:{line}" == touched.run()[0].params["what"]


def test_a_guarded_fence_may_be_missing() -> None:
    """A fence on one path only: reported when the other path is taken."""
    text = SCENARIOS["accumulators scaled between two wgmmas"][0]
    guarded = "setp.{} p, warp, 99;\n  @p bra SKIP;\n  wgmma.fence.sync.aligned;\nSKIP:"
    for comparison, code in (("eq.u32", ""), ("lt.u32", "SML0935")):
        changed = text.replace(f"{FENCE} // fence", guarded.format(comparison))
        assert changed.codes(5) == {code}


def test_a_report_names_the_place_and_both_lines() -> None:
    text = SCENARIOS["write, then read by another warp"][0].without("barrier")
    (found,) = text.run()
    lines = text.text.splitlines()
    store, load = (next(i for i, x in enumerate(lines, 1) if op in x) for op in ("st.shared", "ld.shared"))
    assert found.location == ("kernel.ptx", load) and found.params["other_line"] == f"kernel.ptx:{store}"
    assert found.params["what"] == "tile+128 of CTA 0" and found.params["other"] == "warp 1 of CTA 0"


def test_reports_can_be_collected() -> None:
    text = kernel("  st.shared.b32 [mine], tid;\n  ld.shared.b32 x, [other];\n  ld.shared.b32 y, [other];")
    found = text.run(collect=True)
    assert {f.code for f in found} == {"SML0930"} and len({f.location for f in found}) == 2


# -- can the checks fail? --------------------------------------------------------------------------------

BROKEN = [
    ("SML0930", "write, then read by another warp", "barrier", (races, "ordered"), lambda *a: True),
    ("SML0930", "a lock", None, (flags, "observed"), lambda *a: None),
    ("SML0931", "cp.async, then a bulk store", "proxy", (races, "fenced"), lambda *a: True),
    ("SML0932", "accumulators scaled between two wgmmas", None, (registers, "check"), lambda *a: None),
    ("SML0933", "a bulk store waited for before the end", "read", (Checks, "leaving"), lambda *a: None),
    ("SML0936", "a cluster barrier before a CTA with guests leaves", "end", (races.Races, "at_end"), lambda *a: None),
    ("SML0935", "wgmma in a loop, one fence a turn", "fence", (fences, "_unfenced"), lambda *a: {}),
    ("SML0930", "relaxed flags and fences", None, (Clock, "learn"), lambda *a: None),
]


@pytest.mark.parametrize("i", range(len(BROKEN)))
def test_the_checks_can_fail(i: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With its heart taken out a check finds nothing, or finds fault with a clean kernel."""
    code, name, tag, place, instead = BROKEN[i]
    text = SCENARIOS[name][0]
    seeds = (None, *range(6))
    if code == "SML0932":
        text = text.replace(f"{ALL}\n  mul", "mul")
        assert code in {text.code(s) for s in seeds}
    elif tag is not None:
        text = text.without(tag)
        assert code in {text.code(s) for s in seeds}
    monkeypatch.setattr(*place, instead)
    if code == "SML0936":
        monkeypatch.setattr(races.Races, "_alive", instead)
    assert (code in {text.code(s) for s in seeds}) == (tag is None and code != "SML0932")


def test_the_order_of_tensor_memory_can_fail(monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.vgpu.test_tensor_order import SCENARIOS as ORDERED

    text = ORDERED["mma, then ld by all warps"][0].without("after")
    assert text.code(1) == "SML0941"
    monkeypatch.setattr(tensor.TensorOrder, "_over", lambda *a: True)
    assert text.code(1) == ""


def test_units_are_split_only_where_small_accesses_are() -> None:
    """Neither the barriers nor a word here and there make the cells of a whole segment fine."""
    import numpy as np

    shadow = races.Shadow(1024)
    shadow.whole[:] = 7 << 32
    cells = shadow.cells(4)
    shadow.split(np.array([3, 3, 5]))
    assert cells[12:16].tolist() == [7 << 32] * 4 and not cells[16:20].any()
    assert np.flatnonzero(shadow.whole == races.SPLIT).tolist() == [3, 5]
    cells[13] = 8 << 32
    shadow.split(np.array([3]))
    finer = shadow.cells(1)
    assert (finer[52:56] == 8 << 32).all() and (finer[56:64] == 7 << 32).all()
    assert sorted(shadow.contents()) == [7 << 32, 8 << 32]
