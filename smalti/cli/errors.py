"""`smalti errors`: index a package's raises, list, export as a static site, prove triggers, rule metadata."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

NAME = "errors"
HELP = "the error reference: index a package, list, export a static site, prove triggers, rule metadata"

PRESETS: dict[str, dict[str, Any]] = {
    "jax-mosaic": {
        "package": "jax",
        "only": ("jax.experimental.mosaic.gpu", "jax._src.pallas", "jax.experimental.pallas"),
        "reads": ("jax.experimental.mosaic", "jax._src.pallas", "jax.experimental.pallas"),
    },
}


def configure(parser: argparse.ArgumentParser) -> None:
    below = parser.add_subparsers(metavar="ACTION", dest="action", required=True)
    index = below.add_parser("index", help="build or refresh the index of a package, from its source only")
    index.add_argument("package", help=f"package name, or a preset: {', '.join(PRESETS)}")
    index.add_argument("--source", type=Path, help="folder that holds the package (default: the installed one)")
    index.add_argument("--commit", default="", help="commit that the source is at")
    index.add_argument("--release", default="", help="version of the source (default: read from its metadata)")
    index.add_argument("--only", action="append", default=[], help="keep the sites of this module prefix (repeatable)")
    index.add_argument("--tests", type=Path, help="folder of upstream tests to read as evidence")
    index.add_argument("-o", "--output", type=Path, help="index file (default: in the data folder)")
    listing = below.add_parser("list", help="list Smalti's own codes and the installed indexes")
    listing.add_argument("--json", action="store_true")
    export = below.add_parser("export", help="write the reference as a static site")
    export.add_argument("directory", type=Path)
    export.add_argument("--index", action="append", type=Path)
    prove = below.add_parser("prove", help="execute triggers in a child process with limits, and record them")
    prove.add_argument("index_file", type=Path, metavar="INDEX")
    prove.add_argument(
        "--triggers",
        action="append",
        type=Path,
        help="TOML file with triggers (repeatable; default: those for JAX's tensor-core layer)",
    )
    prove.add_argument("--python", default=sys.executable, help="interpreter that has the package")
    prove.add_argument("--seconds", type=int, default=600, help="time limit of a child process")
    prove.add_argument("--tests", type=Path, help="JAX's folder of tests: run those known to reach a raise, instead")
    prove.add_argument("--every-test", action="store_true", help="with --tests: run all tests of those files")
    sarif = below.add_parser("sarif", help="rule metadata (SARIF) of Smalti's own codes, or of an index")
    sarif.add_argument("--index", type=Path)
    sarif.add_argument("-o", "--output", type=Path)


def run(args: argparse.Namespace) -> int:
    actions = {"index": _index, "list": _list, "export": _export, "prove": _prove, "sarif": _sarif}
    return actions[args.action](args)


def _index(args: argparse.Namespace) -> int:
    from smalti.explain import extra

    extra.need("libcst", "smalti errors index")
    from smalti.explain.index.build import index
    from smalti.explain.index.subject import subject

    preset = PRESETS.get(args.package, {"package": args.package, "only": (), "reads": ()})
    one = subject(
        preset["package"], args.source, args.release, args.commit,
        only=(*preset["only"], *args.only), reads=preset["reads"], tests=args.tests,
    )  # fmt: skip
    from smalti.explain.store import folder

    path = args.output or folder() / f"{args.package}-{one.version}.sqlite"
    done = index(one, path, lambda text: print(text, file=sys.stderr))
    state = "unchanged" if done.unchanged else f"{done.read} of {done.files} files read"
    print(f"{done.path}: {done.sites} sites of {one.package} {one.version}, {state}, {done.seconds:.1f} s")
    for file, why in done.skipped[:20]:
        print(f"skipped {file}: {why}", file=sys.stderr)
    return 0


def _list(args: argparse.Namespace) -> int:
    from smalti.explain import shipped, store

    pages = shipped.own_pages()
    stores = store.opened()
    if args.json:
        print(json.dumps({"own": [p.as_json() for p in pages], "indexes": [s.meta for s in stores]}, indent=1))
        return 0
    for page in pages:
        print(f"{page.id}  {page.type:<20} {page.message}")
    for one in stores:
        print(f"{one.package} {one.version}: {one.count()} sites  ({one.path})")
    return 0


def _export(args: argparse.Namespace) -> int:
    from smalti.explain import store
    from smalti.explain.site import export

    count = export(args.directory, store.opened(args.index))
    print(f"{args.directory}: {count} pages")
    return 0


def _prove(args: argparse.Namespace) -> int:
    if args.tests is not None:
        from smalti.explain.watched import watch

        reached = watch(
            args.index_file,
            args.tests,
            args.python,
            every=args.every_test,
            say=lambda text: print(text, file=sys.stderr),
        )
        for one in reached:
            print(f"proved  {one['site']} ({one['level']}{', caught inside' if one['caught'] else ''}): {one['name']}")
        return 0 if reached else 1
    from smalti.explain.prove import prove

    results = prove(args.index_file, args.triggers, args.python, args.seconds)
    for one in results:
        print(f"{'proved ' if one['proved'] else 'NOT    '} {one['name']}: {one['detail']}")
    return 0 if all(one["proved"] for one in results) else 1


def _sarif(args: argparse.Namespace) -> int:
    from smalti.explain import store
    from smalti.explain.sarif import rules
    from smalti.explain.search import page_of

    if args.index is None:
        found = rules()
    else:
        one = store.Store(args.index)
        found = rules((page_of(row, one) for row in one.all()), one.package, one.version)
    text = json.dumps(found, indent=1)
    if args.output is None:
        print(text)
    else:
        from smalti.explain.site import put

        put(args.output, text)
    return 0
