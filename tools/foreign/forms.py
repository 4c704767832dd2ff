"""Says which instruction forms the kernels of the corpus really execute, and keeps tests/foreign/forms.txt, where each
form that other people's kernels use stands with one kernel of ours that executes it.

    python tools/foreign/forms.py           # runs all kernels, chooses few that execute all, names what none executes
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

from smalti.run import run
from smalti.run.launch_file import load
from smalti.vgpu import execute

ROOT = Path(__file__).parents[2]
KERNELS = ROOT / "tests" / "foreign" / "kernels"
LIST = ROOT / "tests" / "foreign" / "forms.txt"
# Calls are replaced by the bodies of what they call before anything runs.
REPLACED = ("call",)


@contextmanager
def recording(seen: set[str]) -> Iterator[None]:
    """Within it, the virtual GPU adds the opcode of each instruction that at least one thread executes."""
    execute.load_all()

    def recorder(build: Any) -> Any:
        def built(context: Any, step: Any) -> Any:
            operation, opcode = build(context, step), step.opcode

            def counted(gang: Any) -> Any:
                seen.add(opcode)
                return operation(gang)

            return counted

        return built

    with patch.dict(execute.EXECUTORS, {name: recorder(build) for name, build in execute.EXECUTORS.items()}):
        yield


def executed(path: Path) -> set[str]:
    """The forms that the kernel of a launch file executes, with checks on and exact results required of nobody."""
    text, seen = path.with_suffix(".ptx").read_text(), set[str]()
    with recording(seen):
        run(text, load(path), f"virtual:{path.stem.rpartition('.')[2]}", collect=True)
    words = {word.rstrip(";") for line in text.splitlines() for word in line.split()[:3]}
    return seen | {word for word in words if word.split(".")[0] in REPLACED}


def listed() -> dict[str, str]:
    """The list: form -> name of a kernel, as folder/stem."""
    lines = (line.split() for line in LIST.read_text().splitlines() if line and line[0] != "#")
    return {form: kernel for form, *rest in lines for kernel in [rest[0] if rest else ""]}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.parse_args()
    wanted = listed()
    found = {f"{p.parent.name}/{p.stem}": executed(p) & wanted.keys() for p in sorted(KERNELS.glob("*/*.json"))}
    left, chosen = set(wanted), dict[str, str]()
    while left:  # few kernels for all
        best = max(found, key=lambda kernel: (len(found[kernel] & left), kernel))
        if not found[best] & left:
            break
        chosen |= dict.fromkeys(found[best] & left, best)
        left -= found[best]
    head = [line for line in LIST.read_text().splitlines() if line.startswith("#")]
    body = [f"{form} {chosen.get(form, '')}".rstrip() for form in sorted(wanted)]
    LIST.write_text("\n".join([*head, *body]) + "\n")
    print(f"{len(wanted) - len(left)} of {len(wanted)} forms are executed, by {len(set(chosen.values()))} kernels")
    for form in sorted(left):
        print(f"executed by none: {form}")
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
