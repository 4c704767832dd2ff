"""Hooks that add one line with `smalti explain …` under a traceback: for IPython and for pytest.

IPython: `%load_ext smalti.explain.hooks`. pytest: `-p smalti.explain.hooks`.
"""

from __future__ import annotations

import sys
from typing import Any


def hint(raised: BaseException) -> str:
    """One line that leads to the page of an exception; empty where nothing certain is known."""
    from smalti.errors import SmaltiError

    if isinstance(raised, SmaltiError):
        return f"{raised.code}: smalti explain {raised.code}"
    from smalti.explain import find

    try:
        answer = find(raised)
    except Exception:  # a hint must never hide the error it is about
        return ""
    first = answer.matches[0] if answer.matches else None
    if first is None or first.certainty == "similar" or (answer.ambiguous and not first.places):
        return ""
    places = f" (one of {len(first.places)} places of this text)" if first.places else ""
    return f"{first.page.id}: smalti explain {first.page.id}{places}"


def load_ipython_extension(shell: Any) -> None:
    """Called by IPython's %load_ext."""

    def show(shell: Any, kind: type[BaseException], value: BaseException, trace: Any, tb_offset: Any = None) -> None:
        shell.showtraceback((kind, value, trace), tb_offset=tb_offset)
        if line := hint(value):
            print(line, file=sys.stderr)

    shell.set_custom_exc((Exception,), show)


def unload_ipython_extension(shell: Any) -> None:
    """Called by IPython's %unload_ext."""
    shell.set_custom_exc((), None)


def pytest_exception_interact(node: Any, call: Any, report: Any) -> None:
    """Called by pytest for a failure: a section with the line is added to the report."""
    if call.excinfo is not None and (line := hint(call.excinfo.value)):
        report.sections.append(("smalti explain", line))
