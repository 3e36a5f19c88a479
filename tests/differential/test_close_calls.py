"""An engine with an error of about 1e-4 of the largest logit is found, even if it shows only tokens
or only text."""

from pathlib import Path

import pytest

from tests.harness.check.test_check import plan_for, verdicts_of
from tests.harness.suites.test_close_calls import LEVELS, quiet
from tests.models import builtin


@pytest.mark.parametrize("suite", LEVELS)
@pytest.mark.parametrize("mistake", ["silu-in-half", "norm-in-half"])
def test_small_error_is_found_from_only_tokens(suite: str, mistake: str, tmp_path: Path) -> None:
    plan = plan_for(
        builtin("f32", tmp_path),
        oracle="llama.cpp",
        engine=quiet(LEVELS[suite], mistake),
        suites=(suite,),
        n_steps=32,
    )
    *before, last = verdicts_of(plan)
    assert {v.status for v in before} <= {"agreed", "not-applicable"}
    assert last.status == "diverged"
    assert last.key == f"{suite}/token"
    assert last.detail["expected"] != last.detail["actual"]
