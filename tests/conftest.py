"""Settings that all tests share."""

import gc
import os
from collections.abc import Generator, Iterator

# set before numpy is loaded, because with a test process for each processor, threads only wait
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import pytest
from hypothesis import settings

from lockstep.harness.asking.template import keep_template
from tests.campaigns import CAMPAIGNS, campaign_of
from tests.kept_floors import floors_kept_in

settings.register_profile("ci", derandomize=True, deadline=None, database=None)
settings.register_profile("dev", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Freeze the objects of 14,000 collected tests for the garbage collector.

    Scanning the objects again and again takes a third of the time. Later garbage collections, also
    in forks, do not scan them either.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if campaign_of(item.nodeid):
            item.add_marker("campaign")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the skipped parts, so that nobody mistakes them for passed tests."""
    if terminalreporter.config.option.markexpr == "not campaign":
        terminalreporter.section("only in make test-all")
        for path, what in CAMPAIGNS.items():
            terminalreporter.line(f"tests/{path}: {what}")


@pytest.fixture(scope="session", autouse=True)
def template() -> Iterator[None]:
    """Start workers as forks of a template, because tests start some thousand workers, and each
    would load llama.cpp."""
    with keep_template(ahead=False):
        yield


@pytest.fixture(scope="session", autouse=True)
def floors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Provide one folder of noise floors for all of pytest's workers."""
    base = tmp_path_factory.getbasetemp()
    with floors_kept_in((base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "floors"):
        yield
