"""Schedules: repeatable, fair, and different; what the machine counts; grids and clusters in order."""

import numpy as np
import pytest

from smalti.errors import SmaltiError
from smalti.vgpu.execute import EXECUTORS, load_all
from smalti.vgpu.launch import LaunchConfig
from smalti.vgpu.machine import Machine
from smalti.vgpu.memory import Memory
from smalti.vgpu.schedule import schedule
from tests.vgpu.harness import machine_for, parse_ptx, results, run_ptx

pytestmark = pytest.mark.virtual

# Every warp of every CTA takes a ticket in turn: the order of tickets is the schedule.
TICKETS = """
.visible .entry kernel(.param .u64 out)
{
  .reg .pred %p<2>;
  .reg .b32 %r<8>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd0, [out];
  mov.u32 %r0, %tid.x;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ntid.x;
  mad.lo.u32 %r3, %r1, %r2, %r0;
  mov.u32 %r4, 0;
LOOP:
  atom.global.add.u32 %r5, [%rd0], 1;
  add.u32 %r4, %r4, 1;
  setp.lt.u32 %p0, %r4, 3;
  @%p0 bra LOOP;
  mad.wide.u32 %rd1, %r3, 4, %rd0;
  st.global.u32 [%rd1+4], %r5;
  ret;
}
"""


def tickets(seed):
    out = run_ptx(TICKETS, np.zeros(257, np.uint32), block=128, grid=2, seed=seed)[0]
    assert out[0] == 768 and len(set(out[1:].tolist())) == 256
    return out.tolist()


def test_schedules_are_repeatable_and_differ():
    assert tickets(None) == tickets(None)
    orders = [tickets(seed) for seed in range(8)]
    assert [tickets(seed) for seed in range(3)] == orders[:3]
    assert len({tuple(o) for o in orders}) > 4


def test_seed_is_kept():
    assert schedule(None).seed is None and schedule(7).seed == 7


FLAG = """
.visible .entry kernel(.param .u64 out)
{
  .reg .pred %p<4>;
  .reg .b32 %r<8>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd0, [out];
  mov.u32 %r0, %ctaid.x;
  setp.eq.u32 %p0, %r0, WRITER;
  @%p0 bra WRITE;
WAIT:
  ld.LOAD.u32 %r1, [%rd0];
  setp.eq.u32 %p1, %r1, 0;
  @%p1 bra WAIT;
  atom.global.add.u32 %r2, [%rd0+4], %r1;
  ret;
WRITE:
  st.STORE.u32 [%rd0], 5;
  ret;
}
"""


@pytest.mark.parametrize("seed", [None, 0, 1, 2, 3])
@pytest.mark.parametrize(
    "load,store",
    [("volatile.global", "volatile.global"), ("acquire.gpu.global", "release.gpu.global"), ("global", "global")],
)
def test_polling_waits_for_later_clusters(load, store, seed):
    """The writer may be the last CTA of the grid: polling ones must not keep it from starting, whatever the load is."""
    text = FLAG.replace("LOAD", load).replace("STORE", store).replace("WRITER", "5")
    checked = load != "global"  # plain loads race with the store, which the checks would say
    out = run_ptx(text, np.zeros(2, np.uint32), block=1, grid=6, seed=seed, checks=checked)[0]
    assert out.tolist() == [5, 25]


@pytest.mark.parametrize("seed", [None, 1, 2])
def test_nobody_writes(seed):
    """Polling that nobody answers is a deadlock; the report says where."""
    for load in ("volatile.global", "global"):
        text = FLAG.replace("LOAD", load).replace("STORE", "volatile.global").replace("WRITER", "77")
        with pytest.raises(SmaltiError, match=r"SML0901.*poll"):
            run_ptx(text, np.zeros(2, np.uint32), block=1, grid=2, seed=seed)


def test_more_clusters_than_fit():
    """A grid of spinning CTAs larger than the device starts no more than fit: then it is a deadlock, as on hardware."""
    text = FLAG.replace("LOAD", "volatile.global").replace("STORE", "volatile.global").replace("WRITER", "140")
    with pytest.raises(SmaltiError, match="SML0901"):
        run_ptx(text, np.zeros(2, np.uint32), block=1, grid=141)
    fits = FLAG.replace("LOAD", "volatile.global").replace("STORE", "volatile.global").replace("WRITER", "131")
    assert run_ptx(fits, np.zeros(2, np.uint32), block=1, grid=132)[0].tolist() == [5, 131 * 5]


SPECIAL = """
.visible .entry kernel(.param .u64 out)
{
  .reg .b32 %r<16>;
  .reg .b64 %rd<4>;
  ld.param.u64 %rd0, [out];
  mov.u32 %r0, %REGISTER;
  mov.u32 %r1, %ctaid.x;
  mov.u32 %r2, %ctaid.y;
  mov.u32 %r3, %ctaid.z;
  mov.u32 %r4, %nctaid.x;
  mov.u32 %r5, %nctaid.y;
  mad.lo.u32 %r3, %r3, %r5, %r2;
  mad.lo.u32 %r3, %r3, %r4, %r1;
  mov.u32 %r6, %tid.x;
  mov.u32 %r7, %tid.y;
  mov.u32 %r8, %tid.z;
  mov.u32 %r9, %ntid.x;
  mov.u32 %r10, %ntid.y;
  mad.lo.u32 %r8, %r8, %r10, %r7;
  mad.lo.u32 %r8, %r8, %r9, %r6;
  mad.lo.u32 %r3, %r3, 30, %r8;
  mad.wide.u32 %rd1, %r3, 4, %rd0;
  st.global.u32 [%rd1], %r0;
  ret;
}
"""
GRID, BLOCK, CLUSTER = (4, 2, 2), (5, 3, 2), (2, 1, 2)


@pytest.mark.parametrize(
    "register,want",
    [
        ("tid.x", lambda c, t: t % 5), ("tid.y", lambda c, t: t // 5 % 3), ("tid.z", lambda c, t: t // 15),
        ("ntid.x", lambda c, t: 5), ("ntid.y", lambda c, t: 3), ("ntid.z", lambda c, t: 2),
        ("ctaid.x", lambda c, t: c % 4), ("ctaid.y", lambda c, t: c // 4 % 2), ("ctaid.z", lambda c, t: c // 8),
        ("nctaid.x", lambda c, t: 4), ("nctaid.z", lambda c, t: 2), ("laneid", lambda c, t: t % 32),
        ("clusterid.x", lambda c, t: c % 4 // 2), ("clusterid.z", lambda c, t: 0), ("nclusterid.x", lambda c, t: 2),
        ("cluster_ctaid.x", lambda c, t: c % 2), ("cluster_ctaid.z", lambda c, t: c // 8),
        ("cluster_nctaid.x", lambda c, t: 2), ("cluster_ctarank", lambda c, t: c % 2 + 2 * (c // 8)),
        ("cluster_nctarank", lambda c, t: 4), ("lanemask_eq", lambda c, t: 1 << t),
        ("lanemask_lt", lambda c, t: (1 << t) - 1),
        ("lanemask_le", lambda c, t: (2 << t) - 1), ("lanemask_gt", lambda c, t: ~((2 << t) - 1) & 0xFFFFFFFF),
        ("lanemask_ge", lambda c, t: ~((1 << t) - 1) & 0xFFFFFFFF), ("dynamic_smem_size", lambda c, t: 256),
    ],
)  # fmt: skip
def test_special_registers(register, want):
    text = SPECIAL.replace("REGISTER", register)
    out = run_ptx(text, np.full(480, 7, np.uint32), grid=GRID, block=BLOCK, cluster=CLUSTER, shared=256)[0]
    assert out.reshape(16, 30).tolist() == [[want(c, t) for t in range(30)] for c in range(16)]


def test_clocks_go_on():
    text = """
.visible .entry kernel(.param .u64 out)
{
  .reg .pred %p;
  .reg .b64 %rd<8>;
  ld.param.u64 %rd0, [out];
  mov.u64 %rd1, %clock64;
LOOP:
  mov.u64 %rd2, %clock64;
  sub.u64 %rd3, %rd2, %rd1;
  setp.lt.u64 %p, %rd3, 200;
  @%p bra LOOP;
  st.global.u64 [%rd0], %rd3;
  ret;
}
"""
    for seed in (None, 1):
        assert run_ptx(text, np.zeros(1, np.uint64), block=1, seed=seed)[0][0] >= 200


def test_counts_and_progress():
    seen = []
    machine = machine_for(
        parse_ptx(TICKETS), np.zeros(257, np.uint32), block=128, grid=2, progress=lambda *x: seen.append(x)
    )
    machine.run()
    assert results(machine)[0][0] == 768
    assert machine.steps == 2 * 4 * (6 + 3 * 4 + 3)
    assert seen == [(1, 2), (2, 2)]


def test_a_grid_needs_whole_clusters_and_all_parameters():
    module = parse_ptx(TICKETS)
    with pytest.raises(SmaltiError, match="SML0812"):
        Machine(module, LaunchConfig("kernel", (3, 1, 1), (1, 1, 1), bytes(8), (2, 1, 1)), Memory()).run()
    with pytest.raises(SmaltiError, match="SML0811"):
        Machine(module, LaunchConfig("kernel", (2, 1, 1), (1, 1, 1), bytes(4)), Memory())
    with pytest.raises(SmaltiError, match=r"SML0801.*kernel"):
        Machine(module, LaunchConfig("other", (2, 1, 1), (1, 1, 1), bytes(8)), Memory())


def test_unknown_instructions_are_all_named():
    lines = ["vadd.u32.u32.u32", "vmin.u32.u32.u32", "vmin.u32.u32.u32"]
    body = "".join(f"  {x} %r0, %r1, %r2;\n" for x in lines)
    text = ".visible .entry kernel()\n{\n  .reg .b32 %r<4>;\n" + body + "  ret;\n}\n"
    with pytest.raises(SmaltiError, match=r"SML0802: 2 kinds .*vadd.u32.u32.u32 \(1\), vmin.u32.u32.u32 \(2\)"):
        run_ptx(text)


# -- the table and the executors ---------------------------------------------------------------------------

# Rows that are known but not executed, with the reason. `smalti run` refuses their instructions by name.
NOT_EXECUTED: dict[str, str] = {}


def test_table_and_executors_cover_each_other():
    from smalti.ptx.isa import TABLE

    load_all()
    wanted = {row.executor or row.name for row in TABLE.rows if row.name not in NOT_EXECUTED}
    assert wanted - set(EXECUTORS) == set(), "rows without an executor"
    assert set(EXECUTORS) - wanted == set(), "executors without a row"
    assert set(NOT_EXECUTED) <= {row.name for row in TABLE.rows}
