"""Shared parts of the tests against llama.cpp: models, checks, and the skip if it is not
installed."""

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import pytest

from lockstep.harness.check.check import Opened, Plan
from lockstep.harness.context.runner import Session
from lockstep.harness.records import Verdict
from lockstep.harness.shadow.models import open_for_variants
from tests.differential.tokens import Ask, asking
from tests.models import NO_STORIES, SHARED_STORIES, builtin
from tests.plans import open_both, plan_of, verdicts_of
from tests.recorded import Recorded, recorded

HERE = Path(__file__).parent
ABSENT = "llama_cpp is not installed: nothing was compared with llama.cpp"
Checked = Callable[[Plan], list[Verdict]]
OpenPlan = Callable[[Plan], AbstractContextManager[Opened]]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if importlib.util.find_spec("llama_cpp") is None:
        for item in items:
            if HERE in item.path.parents:
                item.add_marker(pytest.mark.skip(reason=ABSENT))


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return a function that writes built-in models by name, each model once."""
    folder = tmp_path_factory.mktemp("models")
    return lambda name: builtin(name, folder)


@pytest.fixture(scope="session")
def ask() -> Iterator[Ask]:
    """Yield llama.cpp's answers about vocabularies."""
    with asking() as question:
        yield question


@pytest.fixture(scope="session")
def stories() -> Path:
    if not SHARED_STORIES.exists():
        pytest.skip(NO_STORIES)
    return SHARED_STORIES


@pytest.fixture(scope="session")
def plan_for() -> Callable[..., Plan]:
    """Return a function that plans a check of our engine against llama.cpp on a file, with few
    steps by default."""

    return partial(plan_of, n_steps=8)


@pytest.fixture(scope="session")
def open_for() -> OpenPlan:
    return open_both


@pytest.fixture(scope="session")
def checked() -> Checked:
    return verdicts_of


@pytest.fixture(scope="session")
def namer() -> Iterator[Session]:
    """Yield the session of llama.cpp that names the tensors of generated models."""
    with open_for_variants() as session:
        yield session


@pytest.fixture(scope="session")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Recorded]:
    with recorded("qwen3", tmp_path_factory.mktemp("models")) as found:
        yield found
