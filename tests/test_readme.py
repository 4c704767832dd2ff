"""The README is true: its kernel runs, and its two commands are the ones that exist."""

import re
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import numpy as np

README = (Path(__file__).parents[1] / "README.md").read_text(encoding="utf-8")


def test_kernel(tmp_path, monkeypatch, capsys):
    (code,) = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    path = tmp_path / "kernel.py"
    path.write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(str(tmp_path))
    import kernel

    printed = capsys.readouterr().out
    assert ".visible .entry matmul(" in printed and "wgmma: fence, 4 x m64n64k16, commit" in printed
    a = np.arange(7 * 8).reshape(7, 8).astype(np.float16)
    b = np.arange(3 * 8).reshape(3, 8).astype(np.float16)
    assert np.array_equal(kernel.matmul(a, b, d="f32", device="virtual:sm_90a"), a.astype(int) @ b.T.astype(int))


def test_links():
    for target in re.findall(r"\]\((?!https?:)([^)#]+)\)", README):
        assert (Path(__file__).parents[1] / target).exists(), target


def test_truth_page_is_what_its_script_makes():
    root = Path(__file__).parents[1]
    spec = spec_from_file_location("truth", root / "tools" / "truth.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    assert (root / "docs" / "truth.md").read_text(encoding="utf-8") == module.page()
