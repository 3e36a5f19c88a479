"""Honest engines of other designs against llama.cpp, far enough into a text that angles differ."""

from pathlib import Path

import pytest

from harness.check import Plan, open_plan, run_suites
from harness.exit_codes import exit_code
from harness.records import EXACT
from tests.models import written

SUITES = ("logits", "trace", "products")


@pytest.mark.parametrize("design", ["rope-inverse-frequency", "experts-by-id", "float64"])
def test_check_agrees_with_another_design(design: str, tmp_path: Path) -> None:
    model = written(tmp_path, seed=6, n_layer=1, n_expert=6, n_expert_used=4, rope_freqs=True)
    plan = Plan(
        case=design,
        model=model,
        subject_model=model,
        engine=f"honest:{design}",
        settings=EXACT,
        n_tokens=300,
    )
    opened = open_plan(plan, lambda _: None)
    try:
        verdicts = list(run_suites(opened.context, SUITES))
    finally:
        opened.close()
    assert [v.summary for v in verdicts if v.status != "agreed"] == []
    assert {v.suite for v in verdicts} == set(SUITES)
    assert exit_code(verdicts) == 0
