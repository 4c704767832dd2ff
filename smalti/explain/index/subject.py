"""Which source is indexed: the installed package's, or a given folder's; found without importing it."""

from __future__ import annotations

import importlib.util
import re
from importlib import metadata
from pathlib import Path

from smalti.errors import error
from smalti.explain.index.build import Subject

_NAME = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*\Z")


def subject(
    package: str,
    source: Path | None,
    version: str = "",
    commit: str = "",
    *,
    only: tuple[str, ...] = (),
    reads: tuple[str, ...] = (),
    tests: Path | None = None,
) -> Subject:
    """The subject of an index. Errors: SML1203 for no such source, SML1209 for a package that is not installed."""
    if not _NAME.match(package):
        raise error("SML1209", package=package)
    root = _installed(package) if source is None else source
    if not root.is_dir():
        raise error("SML1203", package=package, place=str(root))
    found = version or _version(package, root, source is None)
    return Subject(package, root, found, commit or _commit(root), only, reads, tests)


def _installed(package: str) -> Path:
    top = package.split(".")[0]
    spec = importlib.util.find_spec(top)  # a top-level name: nothing is imported
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    if places:
        return Path(places[0]).parent
    if spec is not None and spec.origin and spec.origin.endswith(".py"):
        return Path(spec.origin).parent
    raise error("SML1209", package=package)


def _version(package: str, root: Path, installed: bool) -> str:
    top = package.split(".")[0]
    for info in sorted(root.glob(f"{top}-*.dist-info/METADATA")):
        match = re.search(r"^Version: (\S{1,60})$", info.read_text(encoding="utf-8", errors="replace"), re.MULTILINE)
        if match:
            return match[1]
    if installed:
        try:
            return metadata.version(top)
        except metadata.PackageNotFoundError:
            pass
    for name in ("version.py", "_version.py", "__init__.py"):
        file = root / top / name
        if file.is_file():
            text = file.read_text(encoding="utf-8", errors="replace")[:200_000]
            match = re.search(r"^_?_?version_?_?\s*=\s*['\"]([\w.+-]{1,60})['\"]", text, re.MULTILINE | re.IGNORECASE)
            if match:
                return match[1]
    return "unknown"


def _commit(root: Path) -> str:
    """The commit of a git checkout, read from its files: no program of the source is run."""
    for folder in (root, *list(root.resolve().parents)[:3]):
        head = folder / ".git" / "HEAD"
        if head.is_file():
            text = head.read_text(encoding="utf-8", errors="replace").strip()
            if text.startswith("ref: "):
                ref = folder / ".git" / text[5:]
                if ".." in text or not ref.is_file():
                    return ""
                text = ref.read_text(encoding="utf-8", errors="replace").strip()
            return text if re.fullmatch(r"[0-9a-f]{40}", text) else ""
    return ""
