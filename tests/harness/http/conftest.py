"""The model of most servers in these tests, and the findings on a server."""

from pathlib import Path

import pytest

from lockstep.harness.records import Verdict
from tests.harness.check.test_check import plan_for, verdicts_of
from tests.models import builtin


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return builtin("f32", tmp_path_factory.mktemp("models"))


def checked(model: Path, engine: str, *suites: str) -> list[Verdict]:
    return verdicts_of(plan_for(model, engine=engine, suites=suites, n_steps=5))
