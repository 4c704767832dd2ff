"""Tests marked `triton` need Triton (`pip install smalti[triton]`); they are left out where it is not installed."""

import importlib.util

import pytest


def pytest_collection_modifyitems(config, items):
    if importlib.util.find_spec("triton") is not None:
        return
    out = [item for item in items if item.get_closest_marker("triton")]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if not item.get_closest_marker("triton")]


@pytest.fixture
def no_gpu(monkeypatch):
    monkeypatch.setenv("TRITON_DISABLE_LINE_INFO", "1")
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
