"""A model, and a run of it as written by `lockstep trace`."""

from pathlib import Path

import pytest

from lockstep.harness.runs.run import builtin_model
from tests.harness.dumps.test_dumps import trace_of


@pytest.fixture(scope="package")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return builtin_model("f32", tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="package")
def written(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trace_of(model, tmp_path_factory.mktemp("dump"))
