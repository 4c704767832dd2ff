"""docs/language.md is executed: all its blocks, in order, as one program."""

import re
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "language.md"


def test_language_page(tmp_path):
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 4
    path = tmp_path / "language_page.py"
    path.write_text("\n".join(blocks), encoding="utf-8")
    exec(compile(path.read_text(encoding="utf-8"), str(path), "exec"), {"__name__": "page"})
