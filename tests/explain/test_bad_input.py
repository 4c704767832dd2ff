"""Input that is huge, binary, wrongly encoded, empty, hostile, or comes at once: clear codes, bounded cost."""

import io
import os
import subprocess
import sys
import threading
import time
import urllib.parse

import pytest

from smalti.cli import explain as command
from smalti.cli import main
from smalti.explain import show
from smalti.explain.reading import decode
from smalti.explain.search import find
from tests.explain.test_reading import PLAIN
from tests.explain.test_serve import HOSTILE, address, ask  # noqa: F401

QUESTION = "ValueError: a_scale must be a TMEM Ref\n"


def run(*arguments, **options):
    """`smalti explain` in a process of its own: (status, output, errors, largest memory in MiB)."""
    resource = pytest.importorskip("resource")
    code = (
        "import os, resource, sys\nfrom smalti.cli import main\nstatus = main(['explain', *sys.argv[1:]])\n"
        "peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        # on Linux that counts what the process was before exec: a copy of the test's own
        "if os.path.exists('/proc/self/status'):\n"
        "    with open('/proc/self/status') as status_file:\n"
        "        peak = int(status_file.read().partition('VmHWM:')[2].split()[0])\n"
        "print('PEAK', peak, file=sys.stderr)\nsys.exit(status)"
    )
    assert resource
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, check=False, timeout=120, **options
    )
    errors = done.stderr.decode()
    peak = int(errors.rpartition("PEAK ")[2] or 0) / (1 << 10 if sys.platform != "darwin" else 1 << 20)
    return done.returncode, done.stdout.decode(), errors, peak


@pytest.fixture(autouse=True)
def no_indexes(tmp_path, monkeypatch):
    monkeypatch.setenv("SMALTI_INDEX_DIR", str(tmp_path / "none"))


@pytest.mark.parametrize("by", ["file", "standard input"])
def test_a_hundred_megabytes(tmp_path, by):
    frame = '  File "/v/site-packages/jax/_src/core.py", line 12, in f\n    g(x)\n'
    path = tmp_path / "big.log"
    with path.open("w") as file:
        file.write("Traceback (most recent call last):\n")
        for _ in range(100):
            file.write(frame * ((1 << 20) // len(frame)))
        file.write(QUESTION)
    start = time.process_time()
    if by == "file":
        status, out, _, peak = run(str(path))
    else:
        with path.open("rb") as file:
            status, out, _, peak = run(stdin=file)
    assert status == 0 and "6586b591b816d18e" in out and peak < 300
    assert time.process_time() - start < 5


def test_binary_noise(tmp_path):
    path = tmp_path / "noise"
    path.write_bytes(os.urandom(1 << 20) * 9 + b"\n" + QUESTION.encode())
    start = time.perf_counter()
    status, out, errors, peak = run(str(path))
    assert status in (0, 1) and "Traceback" not in errors and peak < 400 and time.perf_counter() - start < 60
    assert not set(out) & {"\x00", "\x1b", "\x07"}


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-32", "latin-1", "cp1252"])
def test_encodings(encoding):
    text = PLAIN.replace("must be a list", "must be a list")
    assert decode(("é " + QUESTION).encode(encoding)).count("TMEM") in (0, 1)
    assert find(decode(QUESTION.encode(encoding))).matches[0].page.id == "6586b591b816d18e"
    assert find(decode(text.encode(encoding))).question == "traceback"


@pytest.mark.parametrize("given", [b"", b" \n\t\r\n", b"\xef\xbb\xbf", b"\x00\x00"])
def test_empty_input(monkeypatch, capsys, given):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(given)))
    status = main(["explain"])
    told = capsys.readouterr()
    if given in (b"\xef\xbb\xbf", b"\x00\x00"):  # not nothing, but no text either
        assert (status, told.out.startswith("Nothing found.")) == (1, True) or told.err.startswith("SML1206")
    else:
        assert (status, told.out) == (2, "") and told.err.startswith("SML1206")


def test_a_stream_without_end(monkeypatch, capsys):
    monkeypatch.setattr(command, "MOST_READ", 9 << 20)

    class Endless(io.RawIOBase):
        def readable(self):
            return True

        def readinto(self, room):
            room[:] = b"y\n" * (len(room) // 2) + b"y" * (len(room) % 2)
            return len(room)

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BufferedReader(Endless())))
    assert main(["explain"]) == 1 and "Nothing found" in capsys.readouterr().out


def test_files_that_cannot_be_read(tmp_path, capsys):
    for path, reason in ((tmp_path, "a folder"), (tmp_path / "none.log", "no such file")):
        assert main(["explain", str(path)]) == 2
        told = capsys.readouterr().err
        assert told.startswith("SML1205") and reason in told
    assert main(["explain", "x" * 300 + "\x00"]) in (1, 2)
    assert main(["explain", "../" * 200 + "etc/passwd"]) in (1, 2)
    assert "root:" not in capsys.readouterr().out


@pytest.mark.parametrize(
    "text", ["a" * 500_000, "{" * 50_000, "Error: " * 50_000, "ValueError: " + "x is 3, " * 20_000]
)
def test_long_messages(text):
    start = time.process_time()
    show.answer(find(text))
    assert time.process_time() - start < 5


PATHS = [
    "errors/..%2f..%2fetc%2fpasswd", "errors/....//....//etc/passwd", "errors/%2e%2e/%2e%2e/etc/passwd.html",
    "errors/C:%5cwindows%5cwin.ini", "assets/..%2fserve.py", "assets/%2e%2e/knowledge/tcgen05.toml", "api/errors/..%00",
    "api/errors/%F0%9F%92%A5", "errors/" + "a" * 5000, "errors/SML0001%0d%0aSet-Cookie:x=y",
    "api/errors/SML0001/../../x",
]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_paths_in_addresses(address, path):  # noqa: F811
    status, headers, text = ask(f"{address}/{path}")
    assert status == 404 and "set-cookie" not in {k.lower() for k in headers} and "root:" not in text


@pytest.mark.parametrize("place", ["message", "frame", "value", "type"])
def test_hostile_markup(address, place):  # noqa: F811
    text = {
        "message": f"ValueError: {HOSTILE}",
        "frame": PLAIN.replace("/home/u/k.py", f"/home/{HOSTILE}/k.py"),
        "value": PLAIN.replace("got int", f"got {HOSTILE}"),
        "type": f"pkg.<img src=x onerror=alert(1)>Error: {HOSTILE}",
    }[place]
    form = b"text=" + urllib.parse.quote(text).encode()
    status, _, page = ask(f"{address}/match.html", form, {"Content-Type": "application/x-www-form-urlencoded"})
    assert status == 200 and "<script>alert" not in page and "<img" not in page
    if place == "value":
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page


def test_many_readers_while_the_index_is_replaced(address, index_file):  # noqa: F811
    data, wrong = index_file.read_bytes(), []

    def read():
        for _ in range(12):
            status, _, text = ask(f"{address}/api/match", PLAIN.encode())
            if status != 200 or '"function": "run"' not in text:
                wrong.append((status, text[:200]))
            status, _, _ = ask(f"{address}/api/errors?q=list")
            if status != 200:
                wrong.append(status)

    readers = [threading.Thread(target=read) for _ in range(6)]
    for reader in readers:
        reader.start()
    for _ in range(10):
        aside = index_file.with_suffix(".new")
        aside.write_bytes(data)
        os.replace(aside, index_file)
        assert main(["explain", "--index", str(index_file), "OverflowError: item 3 is 99, above 16"]) == 0
    for reader in readers:
        reader.join(60)
    assert not wrong
