"""Where the instruction tests run: on the virtual GPU, or with `--device cuda` on a real one."""

import inspect

from tests.vgpu import harness


def _only_virtual(item):
    """Whether a test provokes a report, or looks into the virtual GPU: hardware would fault, hang or say nothing."""
    source = inspect.getsource(item.function)
    return any(word in source for word in ("raises", "Checks(", "early=", ".machine", "sm_100a", "refused", "prepare("))


def pytest_configure(config):
    config.addinivalue_line("markers", "virtual: about the virtual GPU only; left out with --device cuda")
    harness.DEVICE = config.getoption("--device")


def pytest_collection_modifyitems(config, items):
    if config.getoption("--device") == "cuda":
        out = [i for i in items if i.get_closest_marker("virtual") or _only_virtual(i)]
        config.hook.pytest_deselected(items=out)
        items[:] = [i for i in items if i not in out]
