"""Models whose numbers are zero, NaN, infinite or huge get a true verdict; no engine is blamed."""

from pathlib import Path

import pytest

from lockstep.harness.check.check import Plan
from lockstep.harness.parallel.works import Forks
from lockstep.harness.records import PRESETS
from lockstep.harness.runs.run import Listener, run_plans
from tests.degenerate import cases

SOME = (
    *("token_embd.weight-huge", "output.weight-zero", "blk.0.attn_norm.weight-huge"),
    *("blk.1.attn_k.weight-huge", "blk.0.attn_v.weight-nan", "one-row-infinite"),
)


@pytest.mark.parametrize("preset", PRESETS)
@pytest.mark.parametrize("name", SOME)
def test_overflowing_numbers_accuse_neither_engine(name: str, preset: str, tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    cases()[name](path)
    plan = Plan(
        case=name,
        model=path,
        subject_model=path,
        settings=PRESETS[preset],
        n_tokens=8,
        n_steps=4,
        command=str(path),
    )
    result = run_plans([plan], tmp_path / "reports", ["lockstep", "check"], Forks(1), Listener())
    accused_of_nothing = {"agreed", "excused", "not-compared", "not-applicable"}
    assert {v.status for v in result.verdicts} <= accused_of_nothing
    assert result.code == 3
