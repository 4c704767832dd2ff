"""The frame of the command line: help, versions, exit codes, one line for a refusal, a reader that goes away."""

import os
import subprocess
import sys
from importlib import metadata

import pytest

from smalti import cli


def test_every_subcommand_is_listed_with_its_help(capsys):
    assert cli.main(["--help"]) == 0
    said = capsys.readouterr().out
    names = [c.NAME for c in cli.commands()]
    assert {"run", "assemble"} <= set(names) and names == sorted(set(names))
    for command in cli.commands():
        assert command.NAME in said and command.HELP in " ".join(said.split())
        assert cli.main([command.NAME, "--help"]) == 0
    assert cli.main([]) == 0


def test_version(capsys):
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"smalti {metadata.version('smalti')}\n"


@pytest.mark.parametrize(
    "arguments", [["walk"], ["run"], ["run", "x.ptx", "--launch"], ["assemble", "x.ptx", "--fast"], ["--fast"]]
)
def test_bad_arguments_are_one_line(arguments, capsys):
    assert cli.main(arguments) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("SML1101: smalti") and said.err.count("\n") == 1


def test_a_coded_error_is_one_line(capsys, tmp_path):
    assert cli.main(["assemble", str(tmp_path / "none.ptx")]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.startswith("SML0115: cannot read") and said.err.count("\n") == 1


def test_interruption(monkeypatch):
    def interrupt(argv):
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "_main", interrupt)
    assert cli.main([]) == 130


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_reader_that_goes_away(unbuffered):
    code = "import sys; from smalti.cli import main; sys.exit(main(['--version']))"
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run([sys.executable, "-c", code], stdout=writer, stderr=subprocess.PIPE, env=environment)
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_help_is_quick_and_imports_nothing_heavy():
    code = (
        "import sys, time; from smalti.cli import main; main(['--help']);"
        "heavy = {'numpy', 'numba', 'ml_dtypes'} & set(sys.modules);"
        "print(time.process_time(), len(heavy), file=sys.stderr)"
    )
    runs = [subprocess.run([sys.executable, "-c", code], capture_output=True, check=True) for _ in range(3)]
    seconds, heavy = zip(*(r.stderr.split() for r in runs), strict=True)
    assert set(heavy) == {b"0"}
    assert min(map(float, seconds)) < 0.3  # of the processor, so that a busy machine changes nothing
