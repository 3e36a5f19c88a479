"""Faults that show in whole runs of an F32 model, where honest runs differ by less than 1 in
100,000."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.records import EngineInfo
from tests.harness.check.test_check import plan_for, verdicts_of
from tests.models import written

SHARE = np.float32(1 + 3e-5)


class Louder(Mirror):
    def swiglu(self, gate: F32, up: F32) -> F32:
        return super().swiglu(gate, up) * SHARE


class LogitsOfLouder(Reference, name="a feed-forward too large by a share of 3e-5"):
    ops = Louder

    def describe(self) -> EngineInfo:
        return replace(super().describe(), shows=(), fixed=(), shows_nodes=False)


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make a model with rows so long that bounds of sums far exceed the error of any order."""
    folder = tmp_path_factory.mktemp("wide")
    return written(folder, quant="F32", n_layer=2, n_embd=512, n_ff=1024, seed=3)


@pytest.mark.parametrize(
    ("engine", "status"),
    [
        (LogitsOfLouder.name, "diverged"),
        ("honest:sums-one-by-one", "agreed"),
        ("honest:float64", "agreed"),
        ("honest:rope-power", "agreed"),
    ],
)
def test_error_of_one_in_30000_is_found_and_honest_sums_pass(
    engine: str, status: str, wide: Path
) -> None:
    plan = plan_for(wide, engine=engine, suites=("logits",))
    assert {v.status for v in verdicts_of(plan)} == {status}
