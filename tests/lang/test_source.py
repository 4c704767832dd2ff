"""The check of a kernel's source: what is refused at decoration, what when tracing gets there, and clean neighbours."""

import pytest

import smalti as sm
from smalti.errors import SmaltiError


def decorate(function):
    return sm.kernel("a[M,N] -> d[M,N]", arch="sm_90a")(function)


def refused(function, code, *, at_decoration=True):
    with pytest.raises(SmaltiError) as raised:
        kernel = decorate(function)
        assert not at_decoration, "decoration should have refused it"
        kernel.trace("f32")
    assert raised.value.code == code, raised.value
    return raised.value


def test_rebound_in_a_loop():
    def body(a, d):
        phase = 0
        for _ in sm.range(4):
            phase ^= 1

    error = refused(body, "SML0310")
    assert error.params["name"] == "phase"
    assert error.location.line == body.__code__.co_firstlineno + 3


def test_rebound_and_read_after():
    def body(a, d):
        last = 0
        for i in sm.range(4):
            last = i
        sm.block_index() + last

    assert refused(body, "SML0310").params["name"] == "last"


def test_rebound_in_tiles_range_and_persistent():
    def over_tiles(a, d):
        n = 0
        for _ in a.tiles(64, 64).range(1):
            n = n + 1

    def over_work(a, d):
        work = sm.persistent(d.tiles(64, 64))
        n = 0
        for _ in work:
            n += 1  # noqa: SIM113

    refused(over_tiles, "SML0310")
    refused(over_work, "SML0310")


def test_rebound_under_when():
    def body(a, d):
        flag = 0
        with sm.when(sm.block_index() == 0):
            flag = 1
        sm.block_index() + flag

    refused(body, "SML0310")


@pytest.mark.parametrize("jump", ["break", "continue", "return"])
def test_jumps(jump, tmp_path):
    import importlib.util

    path = tmp_path / "jumps.py"
    path.write_text(f"import smalti as sm\ndef body(a, d):\n    for i in sm.range(4):\n        {jump}\n")
    spec = importlib.util.spec_from_file_location("jumps", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert refused(module.body, "SML0311").params["jump"] == jump


def test_found_when_tracing_gets_there():
    """The syntax does not show that `loop` is a run-time loop, or that `role` is a branch; tracing does."""

    def hidden_loop(a, d):
        loop = [sm.range(4)][0]
        n = 0
        for _ in loop:
            n += 1  # noqa: SIM113

    def hidden_branch(a, d):
        x, y = sm.roles(x=sm.warpgroup(1), y=sm.warpgroup(1))
        n = 0
        with x:
            n = 1
        with y:
            sm.block_index() + n

    refused(hidden_loop, "SML0310", at_decoration=False)
    refused(hidden_branch, "SML0310", at_decoration=False)


def test_helpers_are_checked_too():
    def helper():
        n = 0
        for _ in sm.range(4):
            n += 1  # noqa: SIM113

    def body(a, d):
        helper()

    refused(body, "SML0310", at_decoration=False)


def test_values_that_escape():
    def body(a, d):
        made = []
        for i in sm.range(4):
            made.append(i + 1)  # noqa: PERF401
        made[0] + 1

    refused(body, "SML0306", at_decoration=False)


def test_clean_neighbours():
    def body(a, d):
        work = sm.persistent(d.tiles(64, 64))
        total, other = sm.var(0), sm.var(1)
        for i, j in work:
            other += 1
            column = j * 2
            for k in sm.range(4):
                step = k + 1  # bound before it is read, every turn
                total += step
            for k in sm.range(2):
                step = k + 2
                total += step
            with sm.when(column == i) as branch:
                total.set(0)
            with branch.otherwise:
                total.set(1)
        count = 0
        for _ in range(3):  # an ordinary Python loop: unrolled
            count += 1
            if count == 2:
                break
        assert count == 2
        for _ in sm.while_(lambda: total > 0):  # noqa: B023
            total -= 1

    decorate(body).trace("f32")
