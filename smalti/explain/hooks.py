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
    if not answer.matches or answer.ambiguous or answer.matches[0].certainty == "similar":
        return ""
    page = answer.matches[0].page
    return f"{page.id}: smalti explain {page.id}"


def load_ipython_extension(shell: Any) -> None:
    """Called by IPython's %load_ext."""

    def show(shell: Any, kind: type[BaseException], value: BaseException, trace: Any, tb_offset: Any = None) -> None:
        shell.showtraceback((kind, value, trace), tb_offset=tb_offset)
        if line := hint(value):
            print(line, file=sys.stderr)

    shell.set_custom_exc((Exception,), show)


def pytest_exception_interact(node: Any, call: Any, report: Any) -> None:
    """Called by pytest for a failure: a section with the line is added to the report."""
    if call.excinfo is not None and (line := hint(call.excinfo.value)):
        report.sections.append(("smalti explain", line))
