"""`smalti run`: what it prints, writes and returns, for right, wrong and faulty kernels."""

import json

import numpy as np
import pytest

from smalti.cli import main

SCALE = """.version 8.0
.target sm_90a
.address_size 64
.file 1 "/somewhere/scale.py"
.visible .entry scale(.param .u64 x, .param .u64 d, .param .u32 n)
{
    .reg .pred %p<2>; .reg .b32 %r<4>; .reg .f32 %f<4>; .reg .b64 %rd<6>;
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [d];
    ld.param.u32 %r1, [n];
    mov.u32 %r2, %tid.x;
    setp.ge.u32 %p1, %r2, %r1;
    @%p1 bra DONE;
    mul.wide.u32 %rd3, %r2, 4;
    add.u64 %rd4, %rd1, %rd3;
    add.u64 %rd5, %rd2, %rd3;
    .loc 1 7 0
    ld.global.f32 %f1, [%rd4];
    add.rn.f32 %f2, %f1, %f1;
    st.global.f32 [%rd5], %f2;
DONE:
    ret;
}
"""

LAUNCH = {
    "format": 1,
    "entry": "scale",
    "grid": [1],
    "block": [64],
    "buffers": {
        "x": {"dtype": "f32", "shape": [5, 8], "data": {"npy": "x.npy"}},
        "d": {"dtype": "f32", "shape": [5, 8], "output": True, "expected": {"iota": {"step": 2}}},
    },
    "params": [{"pointer": "x"}, {"pointer": "d"}, {"scalar": "u32", "value": 40}],
}


@pytest.fixture
def start(tmp_path, monkeypatch):
    (tmp_path / "scale.ptx").write_text(SCALE)
    np.save(tmp_path / "x.npy", np.arange(40, dtype=np.float32).reshape(5, 8))
    monkeypatch.chdir(tmp_path)

    def run(*arguments, device="virtual:sm_90a", **changes):
        (tmp_path / "launch.json").write_text(json.dumps({**LAUNCH, **changes}))
        return main(["run", "scale.ptx", "--launch", "launch.json", "--device", device, *arguments])

    return run


def buffers(**fields):
    return {"x": LAUNCH["buffers"]["x"], "d": {**LAUNCH["buffers"]["d"], **fields}}


def params(n):
    return [*LAUNCH["params"][:2], {"scalar": "u32", "value": n}]


def test_a_right_kernel(start, capsys, tmp_path):
    assert start("-o", "out.npz") == 0
    said = capsys.readouterr()
    assert said.err == ""
    lines = said.out.splitlines()
    assert lines[0] == "device   virtual GPU sm_90a (virtual:sm_90a)"
    assert lines[1] == "kernel   scale: block 64x1x1, 0 bytes of dynamic shared memory"
    assert lines[2].startswith("figures  ") and "warp instructions" in lines[2]
    assert lines[3:] == [
        "output   d f32[5, 8]: as expected in every bit",
        "checks   nothing found",
        "written  out.npz",
    ]
    with np.load(tmp_path / "out.npz") as archive:
        assert list(archive) == ["d"]
        assert (archive["d"] == 2 * np.arange(40).reshape(5, 8)).all()


def test_a_wrong_result_is_exit_code_1(start, capsys):
    assert start(buffers=buffers(expected={"iota": {"step": 2, "start": 1, "modulo": 39}})) == 1
    said = capsys.readouterr().out
    assert "d f32[5, 8]: 40 of 40 elements differ, the first at [0, 0]: 0.0 instead of 1.0; " in said
    assert "largest difference 77\n" in said
    assert start(buffers=buffers(expected={"iota": {"step": 2, "start": 1}}, tolerance={"absolute": 1})) == 0
    assert "as expected within tolerance" in capsys.readouterr().out


def test_an_output_nobody_expects_anything_of(start, capsys):
    fields = dict(LAUNCH["buffers"]["d"])
    del fields["expected"]
    assert start(buffers={"x": LAUNCH["buffers"]["x"], "d": fields}, params=params(38)) == 0
    assert "output   d f32[5, 8], 8 of 160 bytes never written\n" in capsys.readouterr().out


def test_seeds(start, capsys):
    assert start("--schedules", "3", "--seed", "7") == 0
    assert "seeds    1 to 3: the same bits, nothing found\n" in capsys.readouterr().out


def test_a_race_is_found_where_the_bits_are_right_by_luck(start, capsys, tmp_path):
    """Warps 0 and 1 store different values to d[0] ... d[7]; whoever is last wins."""
    racing = SCALE.replace("add.u64 %rd5, %rd2, %rd3;", "and.b64 %rd3, %rd3, 127; add.u64 %rd5, %rd2, %rd3;")
    (tmp_path / "scale.ptx").write_text(racing)
    lucky = [2 * n + 64 * (n < 8) for n in range(32)] + [0] * 8
    plain = buffers(data=0, expected=lucky)
    assert start("--no-checks", buffers=plain) == 0
    assert "checks" not in capsys.readouterr().out
    assert start(buffers=plain) == 1
    said = capsys.readouterr().out
    assert "as expected in every bit" in said
    assert "found    SML09" in said and "scale.py:7" in said and "checks   1 found" in said


def test_a_fault_is_one_line_and_leaves_no_output(start, capsys, tmp_path):
    assert start("-o", "out.npz", params=params(41)) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("SML08") and "scale.py:7" in said.err
    assert said.err.count("\n") == 1 and not (tmp_path / "out.npz").exists()


@pytest.mark.parametrize(
    ("arguments", "changes", "code"),
    [
        ({"device": "cuda:99"}, {}, "SML0171"),
        ({"device": "virtual:sm_100a"}, {}, "SML0172"),
        ({}, {"entry": "none"}, "SML0152"),
        ({}, {"format": 2}, "SML0161"),
        ({}, {"grid": [0]}, "SML0160"),
    ],
)
def test_refusals(start, capsys, arguments, changes, code):
    assert start(**arguments, **changes) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith(f"{code}: ")


@pytest.mark.parametrize("seed", ["-1", "x", "1" * 10])
def test_bad_seeds(start, capsys, seed):
    assert start(f"--seed={seed}") == 2
    assert capsys.readouterr().err.startswith("SML1101: smalti run: argument --seed")


@pytest.mark.parametrize("path", ["none/out.npz", "."])
def test_outputs_that_cannot_be_written_are_refused_before_the_run(start, capsys, path):
    assert start("-o", path) == 2
    said = capsys.readouterr()
    assert said.out == "" and f"SML0117: cannot write {path}" in said.err
