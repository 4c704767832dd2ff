"""Options of the whole test run: `--device cuda` adds the tests marked `gpu`, which are left out otherwise."""

import os
from collections.abc import Iterator

import hypothesis
import pytest

# A busy machine must fail no test: time limits belong to the tests that are about time.
hypothesis.settings.register_profile("smalti", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow])
hypothesis.settings.load_profile("smalti")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--device", choices=("virtual", "cuda"), default="virtual", help="cuda: also run the tests marked gpu"
    )


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--device") == "cuda":
        return
    out = [item for item in items if item.get_closest_marker("gpu")]
    if out:
        config.hook.pytest_deselected(items=out)
        items[:] = [item for item in items if not item.get_closest_marker("gpu")]


@pytest.fixture(scope="session", autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Traces and machine code are cached in a folder of this run, never in the user's."""
    before = os.environ.get("SMALTI_CACHE")
    os.environ["SMALTI_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    if before is None:
        del os.environ["SMALTI_CACHE"]
    else:
        os.environ["SMALTI_CACHE"] = before
