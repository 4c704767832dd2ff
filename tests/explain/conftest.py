"""A small package written for these tests: every kind of raise that an index must understand."""

from pathlib import Path

import pytest

SOURCE = {
    "pkg/__init__.py": "from pkg._impl import run as run, Box as Box\n__all__ = ['run', 'Box']\n",
    "pkg/_impl.py": '''\
import functools
from pkg import _rules
from pkg.errors import Refused


def run(x, mode="fast", *, size=8):
    """The public way in."""
    if not isinstance(x, list):
        raise TypeError(f"x must be a list, got {type(x).__name__}")
    group = size
    groups = size // group
    if groups != 1:
        raise NotImplementedError("several groups of one list")
    if mode == "fast":
        limit = size * 2
        return _work(x, limit, flag=None)
    elif mode == "slow":
        return _rules.task_p.bind(x, wide=size > 4)
    raise ValueError("unknown mode %r, choose %s" % (mode, "fast or slow"))


def _work(items, limit, flag):
    if flag is not None:
        raise ValueError("no flag with fast work")
    for index, item in enumerate(items):
        if item > limit:
            raise OverflowError("item {} is {}, above {limit}".format(index, item, limit=limit))
    n = len(items)
    n = n - 1
    assert n >= 0, "empty input"
    msg = "odd"
    if n % 2:
        msg += f" number {n}"
        raise Refused(msg)
    try:
        return items[0]
    except IndexError as failed:
        raise
    except KeyError as failed:
        raise Refused("lost") from failed


class Box:
    def __init__(self, width):
        if width < 0:
            raise ValueError
        self.width = width

    def fold(self, times):
        match times:
            case 0 | 1:
                return self
            case _:
                raise self._cannot(times)

    def _cannot(self, times):
        return Refused(f"cannot fold {times} times")
''',
    "pkg/_rules.py": """\
from pkg.core import Primitive
task_p = Primitive("task")


@task_p.def_impl
def _task(x, *, wide):
    if wide:
        raise NotImplementedError("wide tasks")
    return x


def _alone(x):
    raise RuntimeError("nobody comes here")
""",
    "pkg/core.py": """\
class Primitive:
    def __init__(self, name):
        self.name = name

    def def_impl(self, function):
        self.impl = function
        return function

    def bind(self, *args, **kwargs):
        return self.impl(*args, **kwargs)
""",
    "pkg/errors.py": """\
class Refused(Exception):
    def __init__(self, what):
        super().__init__(f"refused: {what}")
""",
    "pkg/newer.py": """\
type Pair[T] = tuple[T, T]


def pick[T](pair: Pair[T], which: int) -> T:
    if which not in (0, 1):
        raise IndexError(f"which is {f"{which}"}, not 0 or 1")
    return pair[which]
""",
    "pkg/broken.py": "def half(:\n    raise ValueError('never')\n",
}
TESTS = {
    "tests/test_run.py": """\
import pytest
from pkg import run


def test_list():
    with pytest.raises(TypeError, match="x must be a list, got .*"):
        run(3)
""",
}


def lay(root: Path, files: dict[str, str]) -> Path:
    """Write files below `root`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return root


@pytest.fixture(autouse=True)
def no_installed_indexes(tmp_path_factory, monkeypatch):
    """What the user of this machine has indexed must not answer."""
    monkeypatch.setenv("SMALTI_INDEX_DIR", str(tmp_path_factory.getbasetemp() / "none"))


@pytest.fixture(scope="session")
def package(tmp_path_factory):
    return lay(tmp_path_factory.mktemp("package"), {**SOURCE, **TESTS})


@pytest.fixture(scope="session")
def index_file(package, tmp_path_factory):
    pytest.importorskip("libcst")
    from smalti.explain.index.build import Subject, index

    path = tmp_path_factory.mktemp("index") / "pkg-1.sqlite"
    outcome = index(Subject("pkg", package, "1.0", tests=package / "tests"), path)
    assert [name for name, _ in outcome.skipped] == ["pkg/broken.py"]
    return path


@pytest.fixture
def store(index_file):
    from smalti.explain.store import Store

    opened = Store(index_file)
    yield opened
    opened.close()


@pytest.fixture
def site(store):
    """The one site whose message begins so."""

    def get(message):
        found = [r for r in store.all() if r["message"].startswith(message) and r["kind"] == "raise"]
        assert len(found) == 1, [r["message"] for r in store.all()]
        return found[0]

    return get
