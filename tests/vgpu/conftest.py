"""Where the instruction tests run: on the virtual GPU, or with `--device cuda` on a real one."""

import pytest
from tests.vgpu import harness


def pytest_configure(config):
    config.addinivalue_line("markers", "virtual: about the virtual GPU only; left out with --device cuda")
    harness.DEVICE = config.getoption("--device")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--device") == "cuda":
        out = [i for i in items if i.get_closest_marker("virtual")]
        config.hook.pytest_deselected(items=out)
        items[:] = [i for i in items if i not in out]
