"""Executes triggers of an indexed package, on request only, each in a child process with limits, and records them.

The one place where code of another package is run. A trigger is data: source, and the raise that it must reach.
"""

from __future__ import annotations

import json
import os
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
source = open(sys.argv[1], encoding="utf-8").read()
answer = {{"raised": ""}}
try:
    exec(compile(source, sys.argv[1], "exec"), {{"__name__": "trigger"}})
except BaseException as raised:
    chain, seen, one = [], set(), raised
    while one is not None and id(one) not in seen and len(chain) < 20:
        seen.add(id(one))
        frames = [[f.filename, f.lineno, f.name] for f in traceback.extract_tb(one.__traceback__)][-40:]
        chain.append([type(one).__name__, str(one)[:4000], frames])
        one = one.__cause__ or one.__context__
    answer = {{"raised": chain}}
print("\\n@@" + json.dumps(answer))
"""


def triggers(path: Path) -> list[dict[str, Any]]:
    """Triggers of a TOML file: name, path, function, type, source, and optionally mended. Errors: SML1212."""
    import tomllib

    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))["trigger"]
        for one in found:
            missing = [
                key for key in ("name", "path", "function", "type", "source") if not isinstance(one.get(key), str)
            ]
            if missing:
                raise ValueError(f"a trigger lacks {', '.join(missing)}")
    except (OSError, ValueError, KeyError, TypeError) as bad:
        raise error("SML1212", path=str(path), reason=str(bad)) from None
    return list(found)


def shipped_triggers() -> Path:
    """The triggers for JAX's tensor-core layer that come with the package."""
    return Path(str(resources.files("smalti.explain") / "triggers" / "jax_mosaic.toml"))


def run(source: str, python: str, seconds: int) -> dict[str, Any]:
    """What a source raises when `python` runs it in a child: {"raised": chain or ""}, or {"failed": why}."""
    with tempfile.TemporaryDirectory() as folder:
        file, child = Path(folder, "trigger.py"), Path(folder, "child.py")
        file.write_text(source, encoding="utf-8")
        child.write_text(_CHILD.format(memory=MEMORY, seconds=seconds), encoding="utf-8")
        kept = {k: v for k, v in os.environ.items() if k in ("PATH", "HOME", "LANG", "SYSTEMROOT", "TMPDIR")}
        environment = {**kept, "JAX_PLATFORMS": "cpu", "JAX_TRACEBACK_FILTERING": "off", "PYTHONDONTWRITEBYTECODE": "1"}
        try:
            done = subprocess.run(
                [python, "-I", str(child), str(file)], cwd=folder, env=environment, stdin=subprocess.DEVNULL,
                capture_output=True, timeout=seconds, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return {"failed": f"ran past {seconds} s"}
        except OSError as failed:
            return {"failed": str(failed)}
    text = done.stdout[-LARGEST_OUTPUT:].decode("utf-8", errors="replace")
    line = next((li for li in reversed(text.splitlines()) if li.startswith("@@")), "")
    if not line:
        return {"failed": f"the child ended with {done.returncode}: {done.stderr[-300:].decode(errors='replace')}"}
    found: dict[str, Any] = json.loads(line[2:])
    return found


def prove(index: Path, file: Path | None, python: str = sys.executable, seconds: int = 60) -> list[dict[str, Any]]:
    """Run every trigger; one that raises at its site is recorded there. Gives name, proved, detail of each."""
    store = Store(index)
    results = []
    proofs: dict[str, list[dict[str, Any]]] = {}
    for one in triggers(file or shipped_triggers()):
        outcome = run(one["source"], python, seconds)
        site, detail = _site(store, one, outcome)
        if site is not None and one.get("mended"):
            after = run(one["mended"], python, seconds)
            if after.get("raised") != "":
                again, _ = _site(store, one, after)
                detail += "; the mended one still ends there" if again else "; the mended one gets past it"
                site = None if again else site
            else:
                detail += "; the mended one runs"
        if site is not None:
            when = time.strftime("%Y-%m-%d", time.gmtime())
            run_with = {"trigger": one["name"], "when": when, "source": one["source"], "mended": one.get("mended", "")}
            proofs.setdefault(site, []).append(run_with)
        results.append({"name": one["name"], "proved": site is not None, "detail": detail, "site": site})
    store.close()
    with locked(index):
        update_executed(index, proofs)
    return results


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
