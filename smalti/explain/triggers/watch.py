"""Runs in a child process under the subject's own Python: tests of upstream, watched for the raises that they reach.

Needs the standard library only. Knows nothing of any package: a prelude file given to it may prepare the process.
Prints one line of JSON, after "@@", for each test and each new raise.
"""

from __future__ import annotations

import contextlib
import dis
import importlib.abc
import importlib.util
import inspect
import io
import json
import re
import signal
import sys
import unittest
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType, TracebackType
from typing import Any

TOOL = 4  # of sys.monitoring: neither a debugger, a profiler nor a coverage tool
RAISE = frozenset(number for number, name in enumerate(dis.opname) if name == "RAISE_VARARGS")
MOST_FRAMES = 400


class Watch:
    """Notes each raise statement that is executed in files under `root`, once a place and type."""

    def __init__(self, root: str, prefixes: list[str], levels: list[list[str]]) -> None:
        self.root = root
        self.prefixes = tuple(root + prefix for prefix in prefixes)
        self.levels = [(name, re.compile(pattern)) for name, pattern in levels]
        self.now = ""
        self.seen: dict[tuple[str, int, str], dict[str, Any]] = {}
        self.flying: dict[int, tuple[BaseException, dict[str, Any]]] = {}
        self.raises: dict[tuple[CodeType, int], bool] = {}

    def start(self) -> None:
        """Begin; a second tool of the same number is an error of the caller."""
        monitoring: Any = getattr(sys, "monitoring", None)
        if monitoring is None:  # Python 3.11
            sys.settrace(self._traced)
            return
        monitoring.use_tool_id(TOOL, "smalti")
        monitoring.register_callback(TOOL, monitoring.events.RAISE, self._raised)
        monitoring.set_events(TOOL, monitoring.events.RAISE)

    def _traced(self, frame: FrameType, event: str, arg: Any) -> Any:
        frame.f_trace_lines = False
        if event == "exception" and isinstance(arg[1], BaseException):
            self._raised(frame.f_code, frame.f_lasti, arg[1], arg[2])
        return self._traced

    def _raised(self, code: CodeType, offset: int, raised: BaseException, trace: TracebackType | None = None) -> None:
        file = code.co_filename
        if not file.startswith(self.prefixes):
            if self.flying and not file.startswith(self.root):
                self._escaped(raised)
            return
        trace = trace or raised.__traceback__
        if trace is None or trace.tb_next is not None or not self._statement(code, offset):
            return
        line = trace.tb_lineno
        place = (file[len(self.root) :], line, type(raised).__name__)
        known = self.seen.get(place)
        if known is None or not known["escaped"]:
            found = known or {
                "path": place[0], "line": line, "type": place[2], "function": code.co_qualname,
                "message": _text(raised), "test": self.now, "escaped": False, "level": self._level(trace.tb_frame),
            }  # fmt: skip
            if known is None:
                self.seen[place] = found
                _tell("raise", found)
            self.flying[id(raised)] = (raised, found)

    def _statement(self, code: CodeType, offset: int) -> bool:
        """Whether the instruction is that of a raise statement, not a call that lets an exception through."""
        known = self.raises.get((code, offset))
        if known is None:
            known = self.raises[code, offset] = code.co_code[offset] in RAISE
        return known

    def _escaped(self, raised: BaseException) -> None:
        """An exception reached code outside of the package: so did those that it was made from."""
        one: BaseException | None = raised
        for _ in range(20):
            if one is None:
                return
            held = self.flying.pop(id(one), None)
            if held is not None and held[0] is one and not held[1]["escaped"]:
                held[1].update(escaped=True, test=self.now, message=_text(one))
                _tell("raise", held[1])
            one = one.__cause__ or one.__context__

    def _level(self, frame: FrameType | None) -> str:
        """The first named level that a frame around belongs to, from the outermost named one's point of view."""
        files: list[str] = []
        while frame is not None and len(files) < MOST_FRAMES:
            files.append(f"{frame.f_code.co_filename}:{frame.f_code.co_name}")
            frame = frame.f_back
        for name, pattern in self.levels:
            if any(map(pattern.search, files)):
                return name
        return "argument"


def _text(raised: BaseException) -> str:
    try:
        return str(raised)[:1000]
    except Exception:  # the exception's own code failed
        return ""


def _tell(kind: str, value: Any) -> None:
    sys.__stdout__.write(f"\n@@{json.dumps([kind, value])}\n")  # type: ignore[union-attr]
    sys.__stdout__.flush()  # type: ignore[union-attr]


def tests_of(module: Any, most: int) -> list[unittest.TestCase]:
    """Tests of a module that expect an exception: of each parameterised one at most so many, spread out."""
    groups: dict[str, list[unittest.TestCase]] = {}
    for one in _flat(unittest.defaultTestLoader.loadTestsFromModule(module)):
        groups.setdefault(_plain(one.id()), []).append(one)
    chosen = []
    for group in groups.values():
        if _raising(group[0]):
            chosen += group[:: max(1, len(group) // most)][:most]
    return chosen


def _plain(name: str) -> str:
    """Class and method of a test, without its module and what a parameterisation adds."""
    return re.sub(r"\d+\Z", "", name.partition(" ")[0].partition(".")[2])


def _flat(suite: Any) -> Iterator[unittest.TestCase]:
    for one in suite:
        if isinstance(one, unittest.TestSuite):
            yield from _flat(one)
        else:
            yield one


def _raising(test: unittest.TestCase) -> bool:
    method = getattr(type(test), test._testMethodName, None)
    try:
        source = inspect.getsource(inspect.unwrap(method)) if method is not None else ""
    except (OSError, TypeError):
        return False
    if "assertRaises" in source or "pytest.raises" in source:
        return True
    names = (getattr(method, "__code__", None), *(c.cell_contents for c in getattr(method, "__closure__", None) or ()))
    for one in names:  # a parameterised method keeps the test that it calls in its closure
        with contextlib.suppress(OSError, TypeError):
            if callable(one) and "Raises" in inspect.getsource(inspect.unwrap(one)):
                return True
    return False


class Result(unittest.TestResult):
    """Tells the parent how each test went, and bounds its time."""

    def __init__(self, watch: Watch, seconds: int, after: Any) -> None:
        super().__init__()
        self.watch, self.seconds, self.after = watch, seconds, after
        self.state, self.why = "", ""

    def startTest(self, test: unittest.TestCase) -> None:
        super().startTest(test)
        self.watch.now, self.state, self.why = test.id(), "ok", ""
        self.watch.flying.clear()
        _tell("test", test.id())
        signal.alarm(self.seconds)

    def stopTest(self, test: unittest.TestCase) -> None:
        signal.alarm(0)
        super().stopTest(test)
        if self.after is not None:
            self.after()
        _tell("ended", [test.id(), self.state, self.why])

    def _bad(self, state: str, raised: Any) -> None:
        if self.state == "ok":
            self.state, self.why = state, f"{raised[0].__name__}: {_text(raised[1])[:300]}"

    def addError(self, test: Any, err: Any) -> None:
        self._bad("failed", err)

    def addFailure(self, test: Any, err: Any) -> None:
        self._bad("failed", err)

    def addSubTest(self, test: Any, subtest: Any, err: Any) -> None:
        if err is not None:
            self._bad("failed", err)

    def addSkip(self, test: unittest.TestCase, reason: str) -> None:
        self.state, self.why = "skipped", reason[:300]


class Missing(importlib.abc.MetaPathFinder):
    """Modules that a release does not carry (helpers of its tests) come from the checkout that holds the tests."""

    def __init__(self, checkout: Path, package: str) -> None:
        self.checkout, self.package = checkout, package

    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        """Asked last, so only for what is nowhere else."""
        file = self.checkout / Path(*name.split(".")).with_suffix(".py")
        if name.startswith(self.package + ".") and file.is_file():
            return importlib.util.spec_from_file_location(name, file)
        return None


def _late(*_: Any) -> None:
    raise TimeoutError("the test ran past its time")


def main() -> None:
    """Read the work from the file named by the first argument; run, watch, tell."""
    work = json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))
    with contextlib.suppress(ImportError, ValueError, OSError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (work["memory"], work["memory"]))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    file = Path(work["file"])
    sys.path.insert(0, str(file.parent))
    sys.meta_path.append(Missing(Path(work["checkout"]), work["package"]))
    space: dict[str, Any] = {"__name__": "prelude", "setting": work["setting"]}
    if work["prelude"]:
        exec(compile(Path(work["prelude"]).read_text(encoding="utf-8"), work["prelude"], "exec"), space)
    sys.argv = [str(file)]
    spec = importlib.util.spec_from_file_location(file.stem, file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[file.stem] = module
    spec.loader.exec_module(module)
    found = importlib.util.find_spec(work["package"])
    assert found is not None and found.origin is not None
    watch = Watch(str(Path(found.origin).parent.parent) + "/", work["prefixes"], work["levels"])
    signal.signal(signal.SIGALRM, _late)
    done, wanted = set(work["done"]), set(work["tests"])
    chosen = tests_of(module, work["most"])
    chosen = [t for t in chosen if t.id() not in done and (not wanted or _plain(t.id()) in wanted)]
    _tell("chosen", len(chosen))
    watch.start()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        unittest.TestSuite(chosen).run(Result(watch, work["seconds"], space.get("after")))


if __name__ == "__main__":
    main()
