"""What strangers and hurried hands give: each is refused with one coded line, or means what it says."""

import json
import math
import os
import stat

import numpy as np
import pytest

import smalti as sm
from smalti.cli import main
from smalti.errors import SmaltiError
from smalti.ptx.parse import parse
from smalti.run import launch_file, npy, run
from smalti.run.devices import device

HEAD = ".version 8.0\n.target sm_90a\n.address_size 64\n"
BUFFER = {"dtype": "u32", "shape": [4]}


def code(call, *args, **more):
    with pytest.raises(SmaltiError) as caught:
        call(*args, **more)
    assert "\n" not in str(caught.value)
    return caught.value.code


def launch(folder=None, params=(), **fields):
    """A launch of k with one buffer d, and other fields of that buffer."""
    text = {"format": 1, "entry": "k", "grid": [1], "block": [32], "params": list(params)}
    return launch_file.parse(json.dumps(text | {"buffers": {"d": BUFFER | fields}}), folder)


# -- files ---------------------------------------------------------------------------------------------


def test_a_pipe_is_neither_read_nor_replaced(tmp_path):
    path = tmp_path / "pipe.npy"
    os.mkfifo(path)
    with pytest.raises(SmaltiError, match=r"^SML0115: cannot read [^:]*: it is no regular file$"):
        npy.load(path)
    assert code(npy.save, path, np.zeros(3)) == "SML0117"
    assert stat.S_ISFIFO(path.stat().st_mode) and os.listdir(tmp_path) == ["pipe.npy"]
    npy.save(tmp_path / "file.npy", np.arange(3))
    npy.save(tmp_path / "file.npy", np.arange(4))  # a file is replaced
    assert npy.load(tmp_path / "file.npy").tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("output", ["", "/dev/null"])
def test_an_output_that_cannot_be_is_refused_before_the_work(tmp_path, capsys, output):
    np.save(tmp_path / "a.npy", np.ones((4, 4), np.float16))
    a = str(tmp_path / "a.npy")
    assert main(["matmul", a, a, "-o", output]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("SML0117") and not said.out
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)


def test_shapes_beside_a_zero(tmp_path):
    def header(shape):
        text = repr({"descr": "<f2", "fortran_order": False, "shape": shape}).encode()
        (tmp_path / "x.npy").write_bytes(b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text)
        return npy.load(tmp_path / "x.npy")

    assert code(header, (0, 1 << 47, 1 << 47)) == "SML0114"
    assert header((0, 1 << 40)).shape == (0, 1 << 40)
    assert code(launch, shape=[0, 1 << 40, 1 << 40], data=1) == "SML0160"
    assert launch(shape=[0, 1 << 40], data=1).buffers["d"].shape == (0, 1 << 40)


@pytest.mark.parametrize("path", ["a\0.npy", "\ud800.npy"])
def test_texts_that_are_no_path(tmp_path, path):
    assert code(launch, tmp_path, data={"npy": path}) == "SML0160"


@pytest.mark.parametrize("bad", [-1, math.nan, math.inf, -0.5])
def test_tolerances(bad):
    assert code(launch, tolerance={"absolute": bad}, expected=1) == "SML0160"
    assert launch(tolerance={"relative": 0.5}, expected=1).buffers["d"].tolerance == (0.0, 0.5)


def test_a_scalar_too_large_for_its_format_is_infinite():
    (scalar,) = launch(params=[{"scalar": "f16", "value": 10**18}]).params
    assert scalar.encode() == b"\x00\x7c"


# -- values --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", [3, b"virtual:sm_90a", ["virtual"]])
def test_devices_that_are_no_text(spec):
    assert code(device, spec) == "SML0170"


def test_rows_that_differ():
    rows = [[1.0, 2.0], [3.0]]
    assert code(sm.matmul, rows, rows) == "SML0111"
    assert code(sm.quantize, rows, "mxfp8", axis=1) == "SML1011"
    assert code(sm.matmul, rows, rows, format="mxfp8") == "SML1011"


@pytest.mark.parametrize("dtype", [np.float16, np.float32])
def test_a_precision_that_there_is_not(dtype):
    a = np.ones((4, 4), dtype)
    assert code(sm.matmul, a, a, precision="tf23", device="virtual:sm_90a") == "SML0611"


def test_options_of_quantize():
    x = np.arange(-32, 32, dtype=np.float32).reshape(2, 32)
    for axis in ("x", None, 1.0):
        assert code(sm.quantize, x, "mxfp8", axis=axis) == "SML1013"
    assert code(sm.quantize, x, ["mxfp8"]) == "SML1012"
    assert code(sm.matmul, x[0], x.T, format="mxfp8") == "SML0119"
    np.testing.assert_array_equal(
        sm.quantize(x.astype(">f4"), "mxfp8").dequantize(), sm.quantize(x, "mxfp8").dequantize()
    )


@pytest.mark.parametrize("dtype", [np.zeros((2, 2)), ["f32"], None])
def test_a_result_that_is_no_dtype(dtype):
    assert code(sm.facts, dtype) == "SML0321"
    assert sm.facts("f32").dtype.name == "f32"


# -- programs ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("space", "fits", "over"), [("const", 1 << 16, 65537), ("local", 1 << 12, 10**11), ("global", 1 << 12, 10**11)]
)
def test_variables_larger_than_the_machine(space, fits, over):
    def ran(size):
        return run(f"{HEAD}.{space} .b8 v[{size}];\n.visible .entry k() {{ ret; }}", launch(), "virtual:sm_90a")

    assert ran(fits).figures["warp instructions"] == 1
    assert code(ran, over) == "SML0213"


@pytest.mark.parametrize("values", ["{1,2,3}", "{{1},{2},{3}}", "{{1,2,3}}"])
def test_more_initial_values_than_elements(values):
    shape = "[2]" if "{{" not in values else "[2][2]"
    assert code(parse, f"{HEAD}.global .u32 v{shape} = {values};") == "SML0210"


def test_initial_values_that_fit():
    for text, wanted in (("[2] = {1,2}", [1, 2]), ("[2][2] = {{1},{2,3}}", [1, 0, 2, 3]), ("[] = {4,5,6}", [4, 5, 6])):
        (variable,) = parse(f"{HEAD}.global .u32 v{text};").items
        assert list(variable.initial)[: len(wanted)] == wanted


def test_addresses_are_shown_without_a_sign():
    text = f"{HEAD}.visible .entry k() {{ .reg .b64 %r; mov.b64 %r, -1; st.global.u64 [%r], %r; ret; }}"
    with pytest.raises(SmaltiError, match=r"0xffffffffffffffff .*below: 0xfffffffffffffff8"):
        run(text, launch(), "virtual:sm_90a")
