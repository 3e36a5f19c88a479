"""What the tests against llama.cpp share: one reason to skip them all, models, and checks."""

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.check.check import Opened, Plan, open_plan, run_suites
from lockstep.harness.records import EXACT, Verdict
from tests.differential.forked import Ask, asking
from tests.models import NO_STORIES, SHARED_STORIES, builtin

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
    """Built-in models by name, each written once."""
    folder = tmp_path_factory.mktemp("models")
    return lambda name: builtin(name, folder)


@pytest.fixture(scope="session")
def ask() -> Iterator[Ask]:
    """What llama.cpp answers about a vocabulary."""
    with asking() as question:
        yield question


@pytest.fixture(scope="session")
def stories() -> Path:
    if not SHARED_STORIES.exists():
        pytest.skip(NO_STORIES)
    return SHARED_STORIES


@pytest.fixture(scope="session")
def plan_for() -> Callable[..., Plan]:
    """Our engine against llama.cpp on one file, with few steps unless said otherwise."""

    def plan(path: Path, **changes: Any) -> Plan:
        known = Plan(
            case=path.name,
            model=path,
            subject_model=path,
            settings=EXACT,
            n_steps=8,
            command=str(path),
        )
        return replace(known, **changes)

    return plan


@pytest.fixture(scope="session")
def open_for() -> OpenPlan:
    @contextmanager
    def manage(plan: Plan) -> Iterator[Opened]:
        opened = open_plan(plan, lambda _: None)
        try:
            yield opened
        finally:
            opened.close()

    return manage


@pytest.fixture(scope="session")
def checked(open_for: OpenPlan) -> Checked:
    def check(plan: Plan) -> list[Verdict]:
        with open_for(plan) as opened:
            return list(run_suites(opened.context, plan.suites))

    return check
