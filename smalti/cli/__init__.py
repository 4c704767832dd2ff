"""The `smalti` command. Every module of this package that has NAME is a subcommand: NAME, HELP,
`configure(parser)` and `run(arguments) -> int`; their heavy imports belong inside `run`.

Knows how a command ends (exit codes, one line for a coded error) and nothing of what any subcommand does.
"""

from __future__ import annotations

import argparse
import importlib
import os
import pkgutil
import sys
from typing import NoReturn, Protocol, cast

from smalti.errors import SmaltiError, error

OK, FAILED, REFUSED, INTERRUPTED, NOBODY_READS = 0, 1, 2, 130, 141


class Command(Protocol):
    """What a subcommand's module has."""

    NAME: str
    HELP: str

    def configure(self, parser: argparse.ArgumentParser) -> None: ...

    def run(self, arguments: argparse.Namespace) -> int: ...


class _Parser(argparse.ArgumentParser):
    """Refuses bad arguments with a coded error, so that they look like every other refusal."""

    def error(self, message: str) -> NoReturn:
        raise error("SML1101", command=self.prog, problem=message)


def commands() -> list[Command]:
    """The subcommands, by name."""
    modules = (importlib.import_module(f"{__name__}.{m.name}") for m in pkgutil.iter_modules(__path__))
    found = [cast(Command, m) for m in modules if hasattr(m, "NAME")]
    return sorted(found, key=lambda c: c.NAME)


def parser() -> argparse.ArgumentParser:
    top = _Parser(prog="smalti", description="Tensor-core kernels on a GPU or on a virtual one.")
    top.add_argument("--version", action="store_true", help="print the version and exit")
    below = top.add_subparsers(title="commands", metavar="COMMAND", dest="command", parser_class=_Parser)
    for c in commands():
        one = below.add_parser(c.NAME, help=c.HELP, description=c.HELP)
        c.configure(one)
        one.set_defaults(run=c.run)
    return top


def main(argv: list[str] | None = None) -> int:
    """Run one command line and give its exit code: 0 done, 1 the answer is no, 2 refused with a coded error (one
    line on standard error), 130 interrupted, 141 nobody reads the output."""
    try:
        code = _main(argv)
        sys.stdout.flush()
        return code
    except SmaltiError as refusal:
        print(refusal, file=sys.stderr)
        return REFUSED
    except KeyboardInterrupt:
        return INTERRUPTED
    except BrokenPipeError:
        # what is still buffered must not fail again when Python ends
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return NOBODY_READS


def _main(argv: list[str] | None) -> int:
    top = parser()
    try:
        arguments = top.parse_args(argv)
    except SystemExit as ended:  # --help
        return int(ended.code or 0)
    if arguments.version:
        from importlib import metadata

        print(f"smalti {metadata.version('smalti')}")
        return OK
    if arguments.command is None:
        top.print_help()
        return OK
    return int(arguments.run(arguments))
