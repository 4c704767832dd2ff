"""`smalti explain`: from a code, an id, a message or a traceback (argument, file, standard input) to its page."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import BinaryIO

NAME = "explain"
HELP = "explain an error: a code, an id, a message, or a traceback from a file or standard input"

MOST_READ = 1 << 30  # bytes of a file or of standard input


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "what", nargs="*", help="code, id, message, or a file with a traceback; '-' or nothing: standard input"
    )
    parser.add_argument(
        "--index", action="append", type=Path, help="search this index file (repeatable) instead of the installed ones"
    )
    parser.add_argument("--json", action="store_true", help="print the record as JSON")
    parser.add_argument("--width", type=int, default=100, help="columns of the text")


def run(args: argparse.Namespace) -> int:
    from smalti.explain import show, store
    from smalti.explain.search import find

    stores = store.opened(args.index)
    if args.index is None and len(stores) < len(store.installed()):
        print(f"Some indexes in {store.folder()} are not readable by this version; build them again.", file=sys.stderr)
    answer = find(_question(args.what), stores)
    if args.json:
        print(json.dumps(answer.as_json(), indent=1, ensure_ascii=True))
    else:
        print(show.answer(answer, max(40, min(args.width, 200))), end="")
        if not stores and answer.question != "code":
            print("\nNo package is indexed. Make an index with: smalti errors index jax-mosaic", file=sys.stderr)
    return 0 if answer.matches else 1


def _question(what: list[str]) -> str:
    """The text asked about. Errors: SML1205 for an unreadable file, SML1206 for nothing at all."""
    from smalti.errors import error
    from smalti.explain.reading import LARGEST, decode

    text = " ".join(what)
    if what in ([], ["-"]):
        if sys.stdin is None or (not what and sys.stdin.isatty()):
            raise error("SML1206")
        text = decode(_bounded(sys.stdin.buffer, LARGEST))
    elif len(what) == 1 and len(text) < 1000 and "\n" not in text:
        path = Path(text)
        try:
            if path.is_file():
                with path.open("rb") as file:
                    text = decode(_bounded(file, LARGEST))
            elif path.is_dir():
                raise error("SML1205", path=text, reason="it is a folder")
            elif path.suffix in (".txt", ".log") or (path.parts[1:] and path.suffix and " " not in text):
                raise error("SML1205", path=text, reason="there is no such file")
        except OSError as failed:
            if getattr(failed, "code", "") == "SML1205":
                raise
            raise error("SML1205", path=text, reason=str(failed)) from None
        except ValueError:  # not a path at all
            pass
    if not text.strip():
        raise error("SML1206")
    return text


def _bounded(file: BinaryIO, most: int) -> bytes:
    """Head and tail of a stream, never more than twice `most` bytes in memory; a stream without end is cut off."""
    head = file.read(most)
    tail, left = b"", MOST_READ
    while left > 0 and (chunk := file.read(most)):
        tail, left = (tail + chunk)[-most:], left - len(chunk)
    return head + tail if not tail else head[: most // 4] + b"\n" + tail
