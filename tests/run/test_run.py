"""Running PTX: outputs, comparisons, seeds, refusals; the same kernels run on a GPU in test_cuda."""

import dataclasses

import kernels
import numpy as np
import pytest

from smalti.errors import SmaltiError
from smalti.ptx.parse import parse
from smalti.run import Buffer, Launch, compare, run

DEVICE = "virtual:sm_90a"


@pytest.mark.parametrize("name", kernels.ALL)
@pytest.mark.parametrize("seed", [None, 1, 2, 3])
def test_known_results(name, seed):
    text, launch = kernels.ALL[name]()
    result = run(text, launch, DEVICE, seed=seed)
    for output, got in result.outputs.items():
        buffer = launch.buffers[output]
        assert got.shape == buffer.shape
        assert compare(buffer, got).first is None
    assert result.device.spec == DEVICE and result.reports == () and result.seconds > 0
    assert result.figures["warp instructions"] > 10


def test_text_and_module_are_the_same():
    text, launch = kernels.add()
    once, again = run(text, launch, DEVICE), run(parse(text, "add.ptx"), launch, DEVICE)
    assert once.outputs["d"].tolist() == again.outputs["d"].tolist()
    assert once.figures == again.figures


def test_outputs_have_the_formats_type_and_are_counted_where_never_written():
    text, launch = kernels.add(given=247)
    result = run(text, launch, DEVICE)
    assert result.outputs["d"].dtype == np.float32
    assert result.undefined["d"].sum() == 12
    found = compare(launch.buffers["d"], result.outputs["d"])
    assert (found.differing, found.total, found.first) == (3, 250, (247,))
    assert run(*kernels.add(), DEVICE).undefined == {}


def test_inputs_are_not_touched():
    text, launch = kernels.parameters()
    before = launch.buffers["d"].data.copy()
    run(text, launch, DEVICE)
    assert (launch.buffers["d"].data == before).all()


def test_a_fault_is_raised_at_the_users_line():
    text, launch = kernels.add(given=251)
    with pytest.raises(SmaltiError, match=r"SML08.*x.*kernel\.py:12"):
        run(text, launch, DEVICE)


def test_wrong_launches_are_refused_before_anything_runs():
    text, launch = kernels.add()
    for change, code in (
        ({"entry": "sub"}, "SML0152"),
        ({"params": launch.params[:3]}, "SML0153"),
        ({"params": launch.params[::-1]}, "SML0154"),
    ):
        with pytest.raises(SmaltiError, match=code):
            run(text, dataclasses.replace(launch, **change), DEVICE)
    with pytest.raises(SmaltiError, match="SML0172"):
        run(text, launch, "virtual:sm_100a")
    with pytest.raises(SmaltiError, match="SML0132"):
        text, launch = kernels.tma()
        wrong = dataclasses.replace(launch.params[0], offset=2)
        buffers = {**launch.buffers, "a": dataclasses.replace(launch.buffers["a"], shape=(33, 64), data=None)}
        run(text, dataclasses.replace(launch, params=(wrong, *launch.params[1:]), buffers=buffers), DEVICE)


def test_comparing():
    want = np.array([1.0, 2.0, np.nan, np.inf, 0.0], np.float32)
    exact = Buffer("d", "f32", (5,), expected=want.view(np.uint32))
    loose = dataclasses.replace(exact, tolerance=(0.0, 0.1))
    assert compare(exact, want).differing == compare(loose, want).differing == 0
    got = np.array([1.05, 2.5, np.nan, np.inf, -0.0], np.float32)
    assert (compare(exact, got).differing, compare(exact, got).first) == (3, (0,))
    found = compare(loose, got)
    assert (found.differing, found.first, found.worst) == (1, (1,), 0.5)
    other = np.array([1.0, 2.0, 3.0, -np.inf, 0.0], np.float32)
    assert compare(loose, other).differing == 2


ENDLESS = """
.version 8.8
.target sm_90a
.address_size 64
.visible .entry add()
{
LOOP:
  bra LOOP;
}
"""


def test_an_endless_kernel_is_stopped_where_a_limit_is_given():
    with pytest.raises(SmaltiError, match=r"SML0816.* 5000 "):
        run(ENDLESS, Launch("add", (1, 1, 1), (32, 1, 1)), DEVICE, max_steps=5000)
    assert run(*kernels.add(), DEVICE, max_steps=5000).undefined == {}


@pytest.mark.parametrize(
    ("option", "value"), [("seed", "1"), ("seed", -1), ("seed", True), ("repeat", 1.5), ("max_steps", 0)]
)
def test_options_are_whole_numbers(option, value):
    with pytest.raises(SmaltiError, match=f"SML0159: {option} is"):
        run(*kernels.add(), DEVICE, **{option: value})
    run(*kernels.add(), DEVICE, **{option: np.int64(3000)})


def test_text_that_is_no_ptx_is_called_so_and_not_code_for_another_device():
    for text in ("", "// nothing but a comment", "int main() {}"):
        with pytest.raises(SmaltiError, match="SML0210"):
            run(text, Launch("add", (1, 1, 1), (32, 1, 1)), "virtual:sm_100a")
