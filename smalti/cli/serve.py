"""`smalti serve`: the error reference and its API over HTTP, on this machine only unless asked otherwise."""

from __future__ import annotations

import argparse
from pathlib import Path

NAME = "serve"
HELP = "serve the error reference and its API on this machine"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on (default: this machine only)")
    parser.add_argument("--port", type=int, default=8642)
    parser.add_argument(
        "--index", action="append", type=Path, help="index file (repeatable; default: the installed ones)"
    )
    parser.add_argument("--allow-origin", default="", help="value of Access-Control-Allow-Origin (default: none)")


def run(args: argparse.Namespace) -> int:
    from smalti.explain import extra

    for module in ("starlette", "uvicorn"):
        extra.need(module, "smalti serve")
    import socket

    import uvicorn

    from smalti.errors import error
    from smalti.explain import store
    from smalti.explain.serve import any_host, application

    app = application(store.opened(args.index), args.allow_origin, args.host)
    try:
        listening = socket.create_server((args.host, args.port))
    except (OSError, OverflowError) as failed:
        raise error("SML1210", host=args.host, port=args.port, reason=str(failed)) from None
    with listening:
        note = "  (every address: any Host header is accepted)" if any_host(args.host) else ""
        print(f"http://{args.host}:{listening.getsockname()[1]}/{note}", flush=True)
        uvicorn.Server(uvicorn.Config(app, log_level="warning")).run(sockets=[listening])
    return 0
