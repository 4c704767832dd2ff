"""Executes triggers of an indexed package, on request only, each in a child process with limits, and records them.

The one place where code of another package is run. A trigger is data: source, and the raise that it must reach.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
import time
from importlib import resources
from pathlib import Path
from typing import Any

from smalti.errors import error
from smalti.explain.store import Store, locked, update_executed

LARGEST_OUTPUT = 4 << 20
MEMORY = 8 << 30  # bytes of address space of a child
_CHILD = """
import json, sys, traceback
try:
    import resource
    resource.setrlimit(resource.RLIMIT_AS, ({memory}, {memory}))
    resource.setrlimit(resource.RLIMIT_CPU, ({seconds}, {seconds} + 5))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
except (ImportError, ValueError, OSError):
    pass
with open(sys.argv[1], encoding="utf-8") as file:
    work = json.load(file)
space = {{"__name__": "trigger"}}
exec(compile(work["prelude"], "prelude", "exec"), space)
for number, source in work["sources"]:
    answer = ""
    try:
        exec(compile(source, "trigger", "exec"), dict(space))
    except BaseException as raised:
        answer, seen, one = [], set(), raised
        while one is not None and id(one) not in seen and len(answer) < 20:
            seen.add(id(one))
            frames = [[f.filename, f.lineno, f.name] for f in traceback.extract_tb(one.__traceback__)][-400:]
            answer.append([type(one).__name__, str(one)[:4000], frames])
            one = one.__cause__ or one.__context__
    print("\\n@@" + json.dumps([number, answer]), flush=True)
"""


def triggers(path: Path) -> tuple[str, list[dict[str, Any]]]:
    """(prelude, triggers) of a TOML file; a trigger has name, path, function, type, source, and perhaps mended.

    Errors: SML1212.
    """
    data = table(path, "trigger", ("name", "path", "function", "type", "source"))
    return str(data.get("prelude", "")), list(data["trigger"])


def table(path: Path, name: str, keys: tuple[str, ...]) -> dict[str, Any]:
    """A TOML file with an array of tables `name`, each with these texts. Errors: SML1212."""
    import tomllib

    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
        for one in data[name]:
            missing = [key for key in keys if not isinstance(one.get(key), str)]
            if missing:
                raise ValueError(f"a {name} lacks {', '.join(missing)}")
        for label, pattern in data.get("levels", []):
            re.compile(label + pattern)
    except (OSError, ValueError, KeyError, TypeError, re.error) as bad:
        raise error("SML1212", path=str(path), reason=str(bad)) from None
    return data


def shipped(name: str) -> Path:
    """A file of triggers, or about them, that comes with the package."""
    return Path(str(resources.files("smalti.explain") / "triggers" / name))


def shipped_triggers() -> list[Path]:
    """The triggers for JAX's tensor-core layer that come with the package."""
    return [shipped("jax_mosaic.toml"), shipped("jax_pallas.toml")]


def level(data: dict[str, Any], files: list[str]) -> str:
    """How far a call got before it raised: the first named level of the file that a frame (file:function) is of."""
    for label, pattern in data.get("levels", []):
        if any(re.search(pattern, file) for file in files):
            return str(label)
    return "argument"


def run(prelude: str, sources: list[str], python: str, seconds: int) -> list[dict[str, Any]]:
    """What each source raises when `python` runs them in a child: {"raised": chain or ""}, or {"failed": why}.

    A child that dies or runs out of time costs the source that it was at; the rest goes to another child.
    """
    outcomes: dict[int, dict[str, Any]] = {}
    waiting = list(enumerate(sources))
    while waiting:
        done, why = _child(prelude, waiting, python, seconds)
        outcomes.update((number, {"raised": raised}) for number, raised in done)
        waiting = [one for one in waiting if one[0] not in outcomes]
        if waiting:
            outcomes[waiting.pop(0)[0]] = {"failed": why}
            if not done:  # it never got to the first source: neither would another child
                outcomes.update((number, {"failed": why}) for number, _ in waiting)
                break
    return [outcomes[number] for number in range(len(sources))]


def _child(prelude: str, work: list[tuple[int, str]], python: str, seconds: int) -> tuple[list[Any], str]:
    with tempfile.TemporaryDirectory() as folder:
        file, child = Path(folder, "work.json"), Path(folder, "child.py")
        file.write_text(json.dumps({"prelude": prelude, "sources": work}), encoding="utf-8")
        child.write_text(_CHILD.format(memory=MEMORY, seconds=seconds), encoding="utf-8")
        kept = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG", "SYSTEMROOT", "TMPDIR")}
        environment = {**kept, "JAX_PLATFORMS": "cpu", "JAX_TRACEBACK_FILTERING": "off"}
        try:
            done = subprocess.run(
                [python, "-B", str(child), str(file)], cwd=folder, env=environment,
                stdin=subprocess.DEVNULL, capture_output=True, timeout=seconds, check=False,
            )  # fmt: skip
            out, why = done.stdout, f"the child ended with {done.returncode}: {_text(done.stderr)[-300:]}"
        except subprocess.TimeoutExpired as late:
            out, why = late.stdout or b"", f"ran past {seconds} s"
        except OSError as failed:
            return [], str(failed)
    lines = _text(out[-LARGEST_OUTPUT:]).splitlines()
    return [json.loads(line[2:]) for line in lines if line.startswith("@@[") and line.endswith("]")], why


def _text(data: bytes) -> str:
    return data.decode("utf-8", errors="replace")


def prove(
    index: Path, files: list[Path] | None = None, python: str = sys.executable, seconds: int = 120
) -> list[dict[str, Any]]:
    """Run every trigger; one that raises at its site is recorded there. Gives name, proved, detail of each.

    Errors: SML1204, SML1207, SML1208, SML1212.
    """
    store = Store(index)
    results: list[dict[str, Any]] = []
    proofs: dict[str, list[dict[str, Any]]] = {}
    for file in files or shipped_triggers():
        _prove(store, file, python, seconds, results, proofs)
    store.close()
    with locked(index):
        update_executed(index, proofs)
    return results


def _prove(
    store: Store, file: Path, python: str, seconds: int, results: list[dict[str, Any]], proofs: dict[str, Any]
) -> None:
    prelude, work = triggers(file)
    data = table(file, "trigger", ())
    sources = [one["source"] for one in work]
    mended = [one for one in work if one.get("mended")]
    outcomes = run(prelude, [*sources, *[one["mended"] for one in mended]], python, seconds)
    after = {one["name"]: outcome for one, outcome in zip(mended, outcomes[len(sources) :], strict=True)}
    when = today()
    for one, outcome in zip(work, outcomes, strict=False):
        site, detail = _site(store, one, outcome)
        if site is not None and (then := after.get(one["name"])) is not None:
            again, where = _site(store, one, then)
            detail += "; the mended one runs" if then.get("raised") == "" else f"; the mended one: {where}"
            site = None if again == site else site
        if site is not None:
            frames = [f"{f}:{name}" for _, _, found in outcome["raised"] for f, _, name in found]
            told = {
                "trigger": one["name"], "when": when, "source": one["source"], "mended": one.get("mended", ""),
                "level": level(data, frames), "by": "trigger",
            }  # fmt: skip
            proofs.setdefault(site, []).append(told)
        results.append({"name": one["name"], "proved": site is not None, "detail": detail, "site": site})


def today() -> str:
    """The date that a proof carries."""
    return time.strftime("%Y-%m-%d", time.gmtime())


def _site(store: Store, one: dict[str, Any], outcome: dict[str, Any]) -> tuple[str | None, str]:
    if "failed" in outcome:
        return None, outcome["failed"]
    if not outcome["raised"]:
        return None, "it raises nothing"
    for kind, _, frames in outcome["raised"]:
        for file, line, function in reversed(frames):
            place = file.replace("\\", "/")
            if not place.endswith(one["path"]):
                continue
            for record in store.at(one["path"], line=line):
                if record["function"].rsplit(".", 1)[-1] == function and record["type"] in (kind, one["type"]):
                    wanted = record["function"].endswith(one["function"]) and kind == one["type"]
                    return (record["id"] if wanted else None), f"{kind} at {one['path']}:{line} in {function}"
            break
    kind, message, frames = outcome["raised"][0]
    return None, f"{kind}: {message[:200]} at {frames[-1][:2] if frames else '?'}"
