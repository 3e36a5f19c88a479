"""The public names of the package: they are complete, their import is fast, and `check` works in
scripts."""

import subprocess
import sys
from pathlib import Path

import pytest

import lockstep
from lockstep import api
from lockstep.harness.adapters.base import Adapter
from tests.models import builtin

MINE = """
import numpy as np
from lockstep import Adapter, EngineInfo, Evaluation, Request, Site, TensorRecord, Trace
from lockstep.harness.adapters.reference import Reference

class Mine(Adapter):
    def __init__(self, model, settings):
        super().__init__(model, settings)
        self.inner = Reference(model, settings)

    def evaluate(self, request):
        run = self.inner.evaluate(request)
        return Evaluation(logits=tuple(rows * {scale} for rows in run.logits), trace=None)
"""


def test_import_of_lockstep_loads_no_numpy() -> None:
    code = "import sys, lockstep; print(sorted({'numpy', 'numba', 'llama_cpp'} & {*sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_public_names_are_exactly_those_of_the_api() -> None:
    assert {*api.__all__} <= {*dir(lockstep)}
    assert lockstep.Adapter is Adapter  # the import of version 0.2.0 gives the same class
    assert all(getattr(lockstep, name) is getattr(api, name) for name in api.__all__)


@pytest.mark.parametrize("name", ["Session", "no_such_package"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(AttributeError, match=f"'lockstep' has no attribute '{name}'"):
        getattr(lockstep, name)


@pytest.mark.parametrize(("scale", "code"), [("1", 0), ("np.float32(1.01)", 1)])
def test_check_returns_a_code_verdicts_and_a_folder(scale: str, code: int, tmp_path: Path) -> None:
    engine = tmp_path / "mine.py"
    engine.write_text(MINE.replace("{scale}", scale))
    result = lockstep.check(
        builtin("f32", tmp_path),
        f"adapter:{engine}",
        suites=["logits"],
        oracle="reference",
        tokens=8,
        report=tmp_path / "reports",
    )
    assert result.code == code
    assert {verdict.suite for verdict in result.verdicts} == {"logits"}
    assert (result.folder / "report.jsonl").is_file()


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"settings": "fancy"}, "'fancy'"),
        ({"suites": ["speed"]}, "speed"),
        ({"engine": "rust"}, "'rust'"),
        ({"model": "gone.gguf"}, "gone.gguf"),
    ],
)
def test_check_refuses_invalid_arguments(
    options: dict[str, object], says: str, tmp_path: Path
) -> None:
    usual = {"model": builtin("f32", tmp_path), "engine": "reference"}
    with pytest.raises(lockstep.BadInput, match=says):
        lockstep.check(**{**usual, **options}, report=tmp_path / "reports")  # type: ignore[arg-type]
