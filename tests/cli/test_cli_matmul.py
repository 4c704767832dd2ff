"""`smalti matmul` and `smalti demo`: results, what they print, bad input refused with a code and without output."""

import os
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

import smalti as sm
from smalti.cli import main
from smalti.cli.matmul import _Bar

V = ["--device", "virtual:sm_100a"]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(1)
    np.save("a.npy", rng.standard_normal((40, 100)).astype(np.float32))
    np.save("b.npy", rng.standard_normal((100, 24)).astype(np.float32))
    return tmp_path


@pytest.mark.parametrize("scheme", ["mxfp8", "mxfp4", "nvfp4"])
def test_block_scaled(folder, capsys, scheme):
    assert main(["matmul", "a.npy", "b.npy", "--format", scheme, *V, "-o", "d.npy"]) == 0
    told = capsys.readouterr().out
    want = sm.matmul(np.load("a.npy"), np.load("b.npy"), format=scheme, device="virtual:sm_100a")
    np.testing.assert_array_equal(np.load("d.npy"), want)
    for line in ("kernel   mx_matmul", "copied   b: transposed", "plan     tile=", "device   virtual GPU sm_100a",
                 "checked  bounds", "nothing found", "time     ", "written  d.npy"):  # fmt: skip
        assert line in told
    errors = [line for line in told.splitlines() if line.startswith("error")]
    assert len(errors) == 2 and "given operands" in errors[0] and "quantised operands" in errors[1]
    assert float(errors[0].split()[1]) > 100 * float(errors[1].split()[1])


@pytest.mark.parametrize(
    "device, kernel", [("virtual:sm_90a", "matmul_hopper"), ("virtual:sm_100a", "matmul_blackwell")]
)
def test_plain(folder, capsys, device, kernel):
    a, b = np.load("a.npy").astype(np.float16), np.load("b.npy").astype(np.float16)
    np.save("a.npy", a)
    np.save("b.npy", b)
    arguments = ["matmul", "a.npy", "b.npy", "--dtype", "f32", "--device", device, "-o", "d.npy", "--seed", "3"]
    assert main(arguments) == 0
    told = capsys.readouterr().out
    assert f"kernel   {kernel} for " in told and told.count("\nerror ") == 1
    np.testing.assert_allclose(np.load("d.npy"), a.astype(np.float32) @ b.astype(np.float32), rtol=1e-3, atol=1e-3)


def test_whole_plan_and_no_checks(folder, capsys):
    assert main(["matmul", "a.npy", "b.npy", "--format", "mxfp8", *V, "--plan", "--no-checks"]) == 0
    told = capsys.readouterr().out
    assert "tensor memory:" in told and "tcgen05.mma:" in told and "races" not in told
    assert not (folder / "d.npy").exists()


@pytest.mark.parametrize("shapes", [((0, 5), (5, 3)), ((4, 0), (0, 3)), ((4, 5), (5, 0))])
def test_nothing(folder, capsys, shapes):
    np.save("a.npy", np.zeros(shapes[0], np.float32))
    np.save("b.npy", np.zeros(shapes[1], np.float32))
    assert main(["matmul", "a.npy", "b.npy", "--format", "mxfp8", *V, "-o", "d.npy"]) == 0
    assert "kernel   none" in capsys.readouterr().out
    d = np.load("d.npy")
    assert d.shape == (shapes[0][0], shapes[1][1]) and not d.any()


def test_scales_that_are_given(folder, capsys):
    """Elements and scales of one's own, as codes and as numbers, beside a matrix that is quantised."""
    a, b = np.load("a.npy"), np.load("b.npy")
    qa, qb = sm.quantize(a, "mxfp8", axis=1), sm.quantize(b, "mxfp8", axis=0)
    np.save("ea.npy", qa.elements)
    np.save("eb.npy", qb.elements)
    np.save("sa.npy", qa.scales)
    np.save("sb.npy", 2.0 ** (qb.scales.astype(np.float64) - 127))
    both = ["matmul", "ea.npy", "eb.npy", "--a-scales", "sa.npy", "--b-scales", "sb.npy", "--format", "mxfp8", *V]
    assert main([*both, "-o", "d.npy"]) == 0
    one = ["matmul", "ea.npy", "b.npy", "--a-scales", "sa.npy", "--format", "mxfp8", *V, "-o", "e.npy"]
    assert main(one) == 0
    want = sm.matmul(qa, qb, device="virtual:sm_100a")
    np.testing.assert_array_equal(np.load("d.npy"), want)
    np.testing.assert_array_equal(np.load("e.npy"), want)
    assert capsys.readouterr().out.count("against float64 of the quantised operands") == 2


def test_global_scales_that_are_given(folder):
    q = sm.quantize(np.load("a.npy"), "nvfp4", axis=1)
    np.save("ea.npy", q.elements)
    np.save("sa.npy", q.scales)
    arguments = ["matmul", "ea.npy", "b.npy", "--a-scales", "sa.npy", "--a-global", str(float(q.global_scale))]
    assert main([*arguments, "--format", "nvfp4", *V, "-o", "d.npy"]) == 0
    want = sm.matmul(q, sm.quantize(np.load("b.npy"), "nvfp4", axis=0), device="virtual:sm_100a")
    np.testing.assert_array_equal(np.load("d.npy"), want)


FORMAT = ["--format", "mxfp8"]
BAD = {
    "missing file": (lambda: None, ["matmul", "none.npy", "b.npy", *FORMAT], "SML0115"),
    "corrupt file": (lambda: os.truncate("a.npy", 200), None, "SML0114"),
    "no npy": (lambda: Path("a.npy").write_text("no array"), None, "SML0114"),
    "objects": (lambda: np.save("a.npy", np.array([[1, None]], object), allow_pickle=True), None, "SML0114"),
    "text": (lambda: np.save("a.npy", np.array([["x", "y"]])), None, "SML0114"),
    "1-D": (lambda: np.save("a.npy", np.zeros(100, np.float32)), None, "SML0119"),
    "3-D": (lambda: np.save("a.npy", np.zeros((2, 40, 100), np.float32)), None, "SML0119"),
    "integers": (lambda: np.save("a.npy", np.zeros((40, 100), np.int32)), None, "SML1011"),
    "other K": (lambda: np.save("a.npy", np.zeros((40, 101), np.float32)), None, "SML0612"),
    "plain f32": (lambda: None, ["matmul", "a.npy", "b.npy"], "SML0611"),
    "plain 1-D": (lambda: np.save("a.npy", np.zeros(100, np.float16)), ["matmul", "a.npy", "a.npy"], "SML0612"),
    "format": (lambda: None, ["matmul", "a.npy", "b.npy", "--format", "mxfp9"], "SML1012"),
    "dtype": (lambda: None, ["matmul", "a.npy", "b.npy", *FORMAT, "--dtype", "s8"], "SML0613"),
    "device": (lambda: None, ["matmul", "a.npy", "b.npy", *FORMAT, "--device", "virtual:sm_90a"], "SML0733"),
    "no such device": (lambda: None, ["matmul", "a.npy", "b.npy", *FORMAT, "--device", "tpu"], "SML0170"),
    "no folder": (lambda: None, ["matmul", "a.npy", "b.npy", *FORMAT, "-o", "nowhere/d.npy"], "SML0117"),
    "a folder": (lambda: None, ["matmul", "a.npy", "b.npy", *FORMAT, "-o", "."], "SML0117"),
    "seed": (lambda: None, ["matmul", "a.npy", "b.npy", *FORMAT, "--seed", "-1"], "SML1101"),
    "no matrices": (lambda: None, ["matmul", "a.npy"], "SML1101"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_input(folder, capsys, name):
    spoil, arguments, code = BAD[name]
    spoil()
    arguments = arguments or ["matmul", "a.npy", "b.npy", *FORMAT]
    for extra in ([], V, ["-o", "d.npy"]):
        if not any(e in arguments for e in extra):
            arguments = [*arguments, *extra]
    assert main(arguments) == 2
    told = capsys.readouterr()
    assert told.err.startswith(f"{code}: ") and told.err.count("\n") == 1, told.err
    assert not list(folder.glob("d.npy")) and not list(folder.glob("*.part"))


@pytest.mark.parametrize(
    "scales, code",
    [
        (np.full((40, 4), 3.0), "SML0122"),  # no power of two
        (np.full((40, 4), -1.0), "SML0122"),
        (np.full((40, 4), np.nan), "SML0122"),
        (np.full((40, 4), 0xFF, np.uint8), "SML0122"),  # the NaN of ue8m0
        (np.zeros((40, 3), np.uint8), "SML1014"),  # a block is missing
        (np.zeros((40, 4), np.int32), "SML1014"),  # no codes
        (np.zeros(160, np.uint8), "SML1014"),
    ],
)
def test_bad_scales(folder, capsys, scales, code):
    np.save("e.npy", np.full((40, 100), 0x38, np.uint8))
    np.save("s.npy", scales)
    arguments = ["matmul", "e.npy", "b.npy", "--a-scales", "s.npy", *FORMAT, *V, "-o", "d.npy"]
    assert main(arguments) == 2
    assert capsys.readouterr().err.startswith(f"{code}: ") and not (folder / "d.npy").exists()
    np.save("s.npy", np.full((40, 4), 2.0))
    assert main(arguments) == 0
    np.testing.assert_array_equal(sm.block_scaled(np.load("e.npy"), np.load("s.npy"), "mxfp8").dequantize(), 2.0)


def test_scales_without_a_format(folder, capsys):
    np.save("s.npy", np.zeros((40, 4), np.uint8))
    assert main(["matmul", "a.npy", "b.npy", "--a-scales", "s.npy", *V]) == 2
    assert capsys.readouterr().err.startswith("SML1101: ")


def test_an_unwritable_output_is_refused_before_the_work(folder, capsys, monkeypatch):
    monkeypatch.setattr("smalti.cli.matmul.multiply", lambda *a, **k: pytest.fail("worked"))
    assert main(["matmul", "a.npy", "b.npy", *FORMAT, *V, "-o", "nowhere/d.npy"]) == 2


def test_progress_bar(capsys, monkeypatch):
    monkeypatch.setattr("smalti.cli.matmul.PATIENCE", 0.0)
    bar = _Bar()
    bar(1, 4)
    bar(4, 4)
    told = capsys.readouterr().err
    assert told == f"\r[{'#' * 10}{'.' * 30}] 1/4\r[{'#' * 40}] 4/4\n"
    monkeypatch.setattr("smalti.cli.matmul.PATIENCE", 1e9)
    _Bar()(1, 4)
    assert capsys.readouterr().err == ""


def test_e5m2_operands_of_their_own_type(folder):
    """A file of ml_dtypes elements, whose name NumPy loses."""
    np.save("e.npy", np.load("a.npy").astype(ml_dtypes.float8_e5m2))
    np.save("s.npy", np.full((40, 4), 127, np.uint8))
    arguments = ["matmul", "e.npy", "b.npy", "--a-scales", "s.npy", "--format", "mxfp8_e5m2", *V, "-o", "d.npy"]
    assert main(arguments) == 0 and np.load("d.npy").shape == (40, 24)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["mxfp8", "nvfp4"])
def test_demo(capsys, scheme):
    assert main(["demo", "--format", scheme]) == 0
    told = capsys.readouterr().out
    assert told.startswith("demo     activations ") and told.count("\nerror ") == 2 and "nothing found" in told
