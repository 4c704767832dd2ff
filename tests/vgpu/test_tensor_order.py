"""The order of tcgen05 operations: kernels that keep it are silent under every schedule; a piece left out is reported
under every schedule."""

from __future__ import annotations

import pytest

from tests.vgpu.text import Text

HEAD = """
.version 8.8
.target sm_100a
.address_size 64
.visible .entry k() .reqntid 128
{
  .reg .pred leader, second, first, p, yes, no;
  .reg .b32 tid, base, taddr, lanes, zero, w, d<8>;
  .reg .b64 a, b, s;
  .shared .align 1024 .b8 tile[4096];
  .shared .align 8 .b8 done[8];
  .shared .align 8 .b8 empty[8];
  .shared .align 8 .b8 one[8];
  .shared .align 4 .b8 slot[4];
  mov.u32 tid, %tid.x;
  mov.b32 zero, 0;
  setp.eq.u32 leader, tid, 0;
  setp.eq.u32 second, tid, 32;
  setp.lt.u32 first, tid, 32;
  setp.eq.u32 yes, zero, 0;
  setp.ne.u32 no, zero, 0;
  mov.u32 base, tile;
  mad.lo.u32 w, tid, 32, base;
  st.shared.v4.b32 [w], {zero, zero, zero, zero};
  st.shared.v4.b32 [w+16], {zero, zero, zero, zero};
  fence.proxy.async;
  @leader mbarrier.init.shared::cta.b64 [done], 1;
  @leader mbarrier.init.shared::cta.b64 [empty], 128;
  @leader mbarrier.init.shared::cta.b64 [one], 1;
  @first tcgen05.alloc.cta_group::1.sync.aligned.shared::cta.b32 [slot], 64;
  bar.sync 0;
  ld.shared.b32 taddr, [slot];
  shr.u32 lanes, tid, 5;
  shl.b32 lanes, lanes, 21;
  add.u32 lanes, lanes, taddr;
  shr.u32 base, base, 4;
  cvt.u64.u32 a, base;
  or.b64 b, a, 0x0000400800080000;
  or.b64 s, a, 0x0000400800010000;
  or.b64 a, a, 0x0000400800400000;
"""
TAIL = """
  bar.sync 0;
  @first tcgen05.dealloc.cta_group::1.sync.aligned.b32 taddr, 64;
  ret;
}
"""
MMA = "tcgen05.mma.cta_group::1.kind::f16 [taddr], a, b, 0x04020010, "  # M 64, N 8
WIDE = "tcgen05.mma.cta_group::1.kind::f16 [taddr], a, b, 0x04040010, "  # M 64, N 16
COMMIT = "tcgen05.commit.cta_group::1.mbarrier::arrive::one.shared::cluster.b64"
CP = "tcgen05.cp.cta_group::1.32x128b.warpx4"
LOAD = "tcgen05.ld.sync.aligned.32x32b.x4.b32 {d0, d1, d2, d3}, [lanes];"
STORE = "tcgen05.st.sync.aligned.32x32b.x4.b32 [lanes], {zero, zero, zero, zero};"
CLEAR = """
  tcgen05.st.sync.aligned.32x32b.x8.b32 [lanes], {zero, zero, zero, zero, zero, zero, zero, zero};
  tcgen05.wait::st.sync.aligned;
  tcgen05.fence::before_thread_sync;
  bar.sync 0;
  tcgen05.fence::after_thread_sync;
"""


def wait(label: str, barrier: str, parity: int = 0, tag: str = "wait", sem: str = "") -> str:
    tag = f" // {tag}" if tag else ""
    return f"""
{label}:{tag}
  mbarrier.try_wait.parity{sem}.shared::cta.b64 p, [{barrier}], {parity};{tag}
  @!p bra {label};{tag}
"""


def kernel(body: str) -> Text:
    return Text(HEAD + body + TAIL, 128)


# Each: the kernel, and what leaving out the tagged lines may give, depending on the schedule.
SCENARIOS: dict[str, tuple[Text, dict[str, set[str]]]] = {
    "mma, then ld by all warps": (
        kernel(CLEAR + f"""
  @leader {MMA} no;
  @leader {COMMIT} [done]; // commit
{wait("W", "done")}
  tcgen05.fence::after_thread_sync; // after
  {LOAD}
  tcgen05.wait::ld.sync.aligned; // wait::ld
"""),
        {"commit": {"SML0901"}, "wait": {"SML0940", "SML0943"}, "after": {"SML0941"}, "wait::ld": {"SML0943"}},
    ),
    "loads, used one after the other": (
        kernel(CLEAR + f"""
  @leader {MMA} no;
  @leader {COMMIT} [done];
{wait("W", "done", tag="")}
  tcgen05.fence::after_thread_sync;
  {LOAD}
  tcgen05.wait::ld.sync.aligned; // first
  add.u32 w, d0, d1;
  {LOAD}
  tcgen05.wait::ld.sync.aligned; // second
  mov.b32 d2, w;
"""),
        {"first": {"SML0944"}, "second": {"SML0943", "SML0944"}},
    ),
    "st by all warps, then mma": (
        kernel(f"""
  tcgen05.st.sync.aligned.32x32b.x8.b32 [lanes], {{zero, zero, zero, zero, zero, zero, zero, zero}};
  tcgen05.wait::st.sync.aligned; // wait::st
  tcgen05.fence::before_thread_sync; // before
  bar.sync 0; // barrier
  tcgen05.fence::after_thread_sync; // after
  @leader {MMA} yes;
  @leader {COMMIT} [done];
{wait("W", "done", tag="")}
"""),
        {"wait::st": {"SML0940", "SML0943"}, "before": {"SML0942"}, "barrier": {"SML0940"}, "after": {"SML0941"}},
    ),
    "an accumulator given back through an mbarrier": (
        kernel(CLEAR + f"""
  @leader {MMA} no;
  @leader {COMMIT} [done];
{wait("W", "done", tag="")}
  tcgen05.fence::after_thread_sync;
  {LOAD}
  tcgen05.wait::ld.sync.aligned; // wait::ld
  tcgen05.fence::before_thread_sync; // before
  mbarrier.arrive.shared::cta.b64 _, [empty]; // arrive
  @!leader bra OUT;
{wait("E", "empty", tag="empty")}
  tcgen05.fence::after_thread_sync; // after
  {MMA} no;
  {COMMIT} [done];
OUT:
{wait("X", "done", 1, tag="")}
"""),
        {
            "wait::ld": {"SML0940", "SML0943"}, "before": {"SML0942"}, "arrive": {"SML0901"}, "empty": {"SML0940"},
            "after": {"SML0941"},
        },
    ),
    "cp, then mma of the same thread": (
        kernel(CLEAR + f"""
  @leader {CP} [taddr+8], s;
  @leader tcgen05.mma.cta_group::1.kind::f16 [taddr], [taddr+8], b, 0x04020010, no;
  @leader {COMMIT} [done]; // commit
{wait("W", "done")}
"""),
        {"commit": {"SML0901"}, "wait": {"SML0943"}},
    ),
    "cp, then mma of another thread": (
        kernel(CLEAR + f"""
  @leader {CP} [taddr+8], s;
  @leader {CP} [taddr+12], s;
  @leader tcgen05.fence::before_thread_sync; // before
  @leader mbarrier.arrive.relaxed.cluster.shared::cta.b64 _, [one]; // arrive
  @!second bra OUT;
{wait("O", "one", tag="one", sem=".relaxed.cluster")}
  tcgen05.fence::after_thread_sync; // after
  tcgen05.mma.cta_group::1.kind::f16 [taddr], [taddr+8], b, 0x04020010, no;
  {COMMIT} [done];
OUT:
{wait("W", "done", tag="")}
  bar.sync 0;
  @leader {COMMIT} [done];
{wait("V", "done", 1, tag="")}
"""),
        {"before": {"SML0940"}, "arrive": {"SML0901"}, "one": {"SML0940"}, "after": {"SML0940", "SML0941"}},
    ),
    "mma of another shape": (
        kernel(CLEAR + f"""
  @leader {MMA} no;
  @!leader bra OUT;
  {COMMIT} [done]; // commit
{wait("W", "done", tag="between")}
  tcgen05.fence::after_thread_sync; // after
  {WIDE} no;
  {COMMIT} [done];
OUT:
{wait("X", "done", 1, tag="")}
"""),
        {"between": {"SML0940", "SML0943"}, "after": {"SML0941"}},
    ),
    "the same accumulator and shape": (
        kernel(CLEAR + f"""
  @leader {MMA} no;
  @leader {MMA} yes;
  @leader {MMA} yes;
  @leader {COMMIT} [done]; // commit
{wait("W", "done")}
  tcgen05.fence::after_thread_sync;
  {LOAD}
  tcgen05.wait::ld.sync.aligned;
"""),
        {"commit": {"SML0901"}, "wait": {"SML0940"}},
    ),
    "a completion handed on": (
        kernel(CLEAR + f"""
  @leader {MMA} no;
  @!leader bra OUT;
  {COMMIT} [done];
{wait("W", "done")}
  mbarrier.arrive.shared::cta.b64 _, [one]; // arrive
OUT:
{wait("O", "one", tag="one")}
  tcgen05.fence::after_thread_sync; // after
  {LOAD}
  tcgen05.wait::ld.sync.aligned;
"""),
        {"wait": {"SML0940", "SML0943"}, "arrive": {"SML0901"}, "one": {"SML0940"}, "after": {"SML0941"}},
    ),
    "st, ld and st of one warp": (
        kernel(f"""
  {STORE}
  tcgen05.wait::st.sync.aligned; // wait::st
  {LOAD}
  tcgen05.wait::ld.sync.aligned; // wait::ld
  {STORE}
  tcgen05.wait::st.sync.aligned; // last
"""),
        {"wait::st": {"SML0940"}, "wait::ld": {"SML0940"}, "last": {"SML0943"}},
    ),
    "a read by all before it is freed": (
        kernel(f"""
  {STORE}
  tcgen05.wait::st.sync.aligned; // wait::st
""").replace("\n  bar.sync 0;\n  @first tcgen05.dealloc", "\n  bar.sync 0; // barrier\n  @first tcgen05.dealloc"),
        {"wait::st": {"SML0943"}, "barrier": {"SML0943", "SML0862"}},
    ),
    "A in tensor memory, overwritten when it has been read": (
        kernel(CLEAR + f"""
  add.u32 lanes, lanes, 8;
  tcgen05.st.sync.aligned.32x32b.x8.b32 [lanes], {{zero, zero, zero, zero, zero, zero, zero, zero}};
  tcgen05.wait::st.sync.aligned; // wait::st
  tcgen05.fence::before_thread_sync; // before
  bar.sync 0;
  tcgen05.fence::after_thread_sync; // after
  @leader tcgen05.mma.cta_group::1.kind::f16 [taddr], [taddr+8], b, 0x04020010, no;
  @leader {COMMIT} [done];
{wait("W", "done")}
  tcgen05.fence::after_thread_sync; // again
  {STORE}
  tcgen05.wait::st.sync.aligned;
"""),
        {
            "wait::st": {"SML0940"}, "before": {"SML0942"}, "after": {"SML0941"}, "wait": {"SML0940"},
            "again": {"SML0941"},
        },
    ),
    "a shift between a copy and a product": (
        kernel(CLEAR + f"""
  @leader tcgen05.mma.cta_group::1.kind::f16 [taddr], [taddr+8], b, 0x04020010, no;
  @leader tcgen05.shift.cta_group::1.down [taddr+8];
  @leader tcgen05.mma.cta_group::1.kind::f16 [taddr], [taddr+8], b, 0x04020010, no;
  @leader {COMMIT} [done]; // commit
{wait("W", "done")}
"""),
        {"commit": {"SML0901"}, "wait": {"SML0943"}},
    ),
}  # fmt: skip
MUTANTS = [(name, tag) for name, (_, tags) in SCENARIOS.items() for tag in tags]


@pytest.mark.parametrize("name", SCENARIOS)
def test_order_kept_is_silent(name: str) -> None:
    assert SCENARIOS[name][0].codes(50) == {""}


@pytest.mark.parametrize("name,tag", MUTANTS)
def test_a_missing_piece_is_reported(name: str, tag: str) -> None:
    text, tags = SCENARIOS[name]
    assert text.without(tag).codes(10) <= tags[tag]


PAIR = (
    HEAD.replace("cta_group::1", "cta_group::2")
    .replace("tile[4096]", "tile[4096];\n  .reg .b16 both;\n  .reg .b32 rank;\n  .reg .pred even")
    .replace(
        "  bar.sync 0;\n",
        """  fence.mbarrier_init.release.cluster;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
  mov.u32 rank, %cluster_ctarank;
  setp.eq.and.u32 even, rank, 0, leader;
""",
    )
    + f"""
  @even tcgen05.mma.cta_group::2.kind::f16 [taddr], a, b, 0x10040010, no;
  mov.u16 both, 3;
  @even tcgen05.commit.cta_group::2.mbarrier::arrive::one.shared::cluster.multicast::cluster.b64 [done], both; // commit
{wait("W", "done")}
  tcgen05.fence::after_thread_sync; // after
  {LOAD}
  tcgen05.wait::ld.sync.aligned; // wait::ld
  tcgen05.fence::before_thread_sync;
  barrier.cluster.arrive.aligned;
  barrier.cluster.wait.aligned;
"""
    + TAIL.replace("cta_group::1", "cta_group::2")
)


def test_pairs() -> None:
    """M 256, N 16 issued by one CTA; both wait for its multicast commit and read their half."""
    text = Text(PAIR, 128, grid=2, cluster=2)
    assert text.codes(20) == {""}
    for tag, codes in (("commit", {"SML0901"}), ("wait", {"SML0940", "SML0943"}), ("after", {"SML0941"}),
                       ("wait::ld", {"SML0943"})):  # fmt: skip
        assert text.without(tag).codes(10) <= codes


RELIED_ON = kernel(
    CLEAR
    + f"""
  @leader {CP} [taddr+8], s;
  @leader {CP} [taddr+12], s;
  @leader tcgen05.mma.cta_group::1.kind::f16 [taddr], [taddr+8], b, 0x04020010, no;
  @leader {CP} [taddr+8], s; // again
  @leader {COMMIT} [done];
{wait("W", "done")}
"""
)


def test_orders_that_no_document_promises() -> None:
    """mma, then cp over what it read: executed in order; a report under strict checks only."""
    assert RELIED_ON.codes(10) == {""}
    assert RELIED_ON.codes(10, strict=True) == {"SML0940"}
    assert RELIED_ON.without("again").codes(10, strict=True) == {""}


def test_what_a_report_says() -> None:
    text = SCENARIOS["mma, then ld by all warps"][0].without("after")
    (found,) = text.run(3)
    line = next(i for i, x in enumerate(text.text.splitlines(), 1) if "tcgen05.ld" in x)
    issued = next(i for i, x in enumerate(text.text.splitlines(), 1) if "tcgen05.mma" in x)
    assert found.location is not None and (found.location.file, found.location.line) == ("kernel.ptx", line)
    assert found.params["other_line"] == f"kernel.ptx:{issued}"
    assert found.params["what"].startswith("tensor memory lane") and found.params["now"] == "reads"


def test_every_report_can_be_collected() -> None:
    """Both loads of a kernel without a wait are reported, once each."""
    text = SCENARIOS["mma, then ld by all warps"][0].without("wait")
    twice = text.replace(LOAD, LOAD + "\n  " + LOAD.replace("d0, d1, d2, d3", "d4, d5, d6, d7"))
    found = twice.run(1, collect=True)
    assert [f.code for f in found if f.code == "SML0940"] == ["SML0940"] * 2
    assert len({f.location for f in found if f.code == "SML0940"}) == 2


@pytest.mark.parametrize("seed", range(3))
def test_results_of_ld_wait_where_compilers_rely_on_the_hardware(seed):
    """What LLVM and nvcc may move in front of wait::ld is reported under strict alone; the values are right."""
    early = SCENARIOS["loads, used one after the other"][0].without("first")
    assert {e.code for e in early.run(seed, collect=True)} == {"SML0944"}
    for compiler in ("llvm", "nvvm", "cutlass"):
        assert early.run(seed, compiler=compiler) == []
        assert [e.code for e in early.run(seed, compiler=compiler, strict=True)] == ["SML0944"]
