"""Records in each entry the message that its failing example gives: python tests/errors/record.py [SML12 …]

A message that differs between two runs, or names a folder of the run, is not recorded.
"""

import json
import re
import sys
import tempfile
from pathlib import Path

from test_gates import ENTRIES, NAMES, wellformed

import examples


def message(entry) -> str | None:
    """The message of one run of the failing example."""
    with tempfile.TemporaryDirectory() as folder:
        raised = examples.refusal(entry.failing, Path(folder), f"{entry.code}_failing.py")
        return raised.message if raised.code == entry.code and folder not in raised.message else None


def main(starts: list[str]) -> None:
    for name in NAMES:
        entry = wellformed(name)
        if entry is None or entry.removed or entry.needs or not name.startswith(tuple(starts) or "SML"):
            continue
        first, second = message(entry), message(entry)
        if first is None or first != second:
            print(f"{name}: not recorded")
            continue
        path = ENTRIES / f"{name}.toml"
        text = re.sub(r"(?m)^prints = .*\n", "", path.read_text(encoding="utf-8"))
        line = f"prints = {json.dumps(first, ensure_ascii=False)}\n"
        path.write_text(text.rstrip("\n") + "\n" + line, encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
