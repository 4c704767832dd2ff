"""Says which extra is missing instead of failing inside an import."""

from __future__ import annotations

import importlib.util

from smalti.errors import error


def need(module: str, command: str) -> None:
    """Errors: SML1202 where `module` of the extra `explain` is not installed."""
    if importlib.util.find_spec(module) is None:
        raise error("SML1202", command=command, module=module)
