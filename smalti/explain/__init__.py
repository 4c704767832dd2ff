"""The error reference: from a code, a message or a traceback to a page. `find` is the entry; all else is lazy.

Own errors and tracebacks need the base install; building an index and serving need the extra `explain`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from smalti.explain.record import Answer

__all__ = ["find"]


def find(exc_or_text: Any) -> Answer:
    """Pages for an exception, a code, an id, a message or a traceback, from all installed indexes.

    Gives an `Answer`: matches best first, each with certainty, reasons and the values taken from the message.
    Errors: SML0001 for a code that never existed, SML1204 for a damaged index.
    """
    from smalti.explain import store
    from smalti.explain.search import find as search

    stores = store.opened()
    try:
        return search(exc_or_text, stores)
    finally:
        for one in stores:
            one.close()
