"""`smalti assemble`: the report, the files it writes, and its exit codes."""

import pytest

from smalti.cli import main

pytestmark = pytest.mark.ptxas

CLEAN = """.version 8.0
.target sm_90a
.address_size 64
.visible .entry copy(.param .u64 p)
{
    .reg .b64 %rd<2>; .reg .b32 %r<2>;
    ld.param.u64 %rd1, [p];
    ld.global.u32 %r1, [%rd1];
    st.global.u32 [%rd1+4], %r1;
    ret;
}
"""


@pytest.fixture
def ptx(tmp_path):
    file = tmp_path / "copy.ptx"
    file.write_text(CLEAN)
    return file


def test_report(ptx, tmp_path, capsys):
    assert main(["assemble", str(ptx), "--sass", "-o", str(tmp_path / "copy.cubin")]) == 0
    said = capsys.readouterr().out
    assert "for sm_90a\n" in said and "kernel     copy:" in said and "0 bytes spilled" in said
    assert " LDG.E " in said and " STG.E " in said
    assert (tmp_path / "copy.cubin").read_bytes()[:4] == b"\x7fELF"


def test_another_architecture(ptx, capsys):
    ptx.write_text(CLEAN.replace("sm_90a", "sm_90"))
    assert main(["assemble", str(ptx), "--arch", "sm_100a"]) == 0
    assert "for sm_100a\n" in capsys.readouterr().out


def test_lost_speed_is_exit_code_1(ptx, capsys):
    ptx.write_text(CLEAN.replace("    ret;", "    setmaxnreg.dec.sync.aligned.u32 40;\n    ret;"))
    assert main(["assemble", str(ptx)]) == 1
    assert "remark     C7508: " in capsys.readouterr().out


def test_refusals_write_nothing(ptx, tmp_path, capsys):
    ptx.write_text(CLEAN.replace("ld.global.u32", "ld.globe.u32"))
    assert main(["assemble", str(ptx), "-o", str(tmp_path / "copy.cubin")]) == 2
    assert capsys.readouterr().err.startswith("SML0281: ptxas refuses line 8 of ")
    ptx.write_bytes(b"\xff\xfe")
    assert main(["assemble", str(ptx)]) == 2
    assert "no UTF-8 text" in capsys.readouterr().err
    ptx.write_text(CLEAN)
    assert main(["assemble", str(ptx), "-o", str(tmp_path / "none" / "x.cubin")]) == 2
    assert [f.name for f in tmp_path.iterdir()] == ["copy.ptx"]
