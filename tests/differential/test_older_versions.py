"""An older llama.cpp in a separate environment: its answers, and its splits of batches."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.errors import EngineError
from lockstep.harness.asking.environments import python_of
from lockstep.harness.check.check import Plan
from lockstep.harness.context.runner import Runner
from lockstep.harness.fuzzers.base import FuzzPlan, run_campaign
from lockstep.harness.fuzzers.batch.judge import Judge, ScheduleDifference
from lockstep.harness.fuzzers.batch.sbatch_schedules import SPLITS
from lockstep.harness.fuzzers.batch.schedule import schedule_from
from lockstep.harness.records import EXACT, Answered, Unanswerable, Verdict
from lockstep.harness.synth.small import SMALL
from tests.differential.conftest import Checked
from tests.plans import open_both
from tests.shadow_nodes import node, normal

OLD = "llama.cpp@0.3.8"
ASKED = ("tokens", "dequant", "logits", "decode")
PlanFor = Callable[..., Plan]


@pytest.fixture(autouse=True)
def old() -> None:
    """Skip the test if no older version has been built, because building takes minutes."""
    try:
        python_of(OLD)
    except EngineError as error:
        pytest.skip(f"nothing was compared with an older llama.cpp: {error}")


def statuses(found: list[Verdict], suite: str) -> set[str]:
    return {v.status for v in found if v.suite == suite}


@pytest.mark.parametrize(
    ("oracle", "engine"), [(OLD, "reference"), ("llama.cpp", OLD)], ids=["as oracle", "as subject"]
)
@pytest.mark.parametrize("name", ["q8_0", "moe"])
def test_an_older_version_agrees(
    name: str,
    oracle: str,
    engine: str,
    models: Callable[[str], Path],
    plan_for: PlanFor,
    checked: Checked,
) -> None:
    found = checked(plan_for(models(name), oracle=oracle, engine=engine, suites=ASKED))
    assert [v.summary for v in found if v.status != "agreed"] == []
    assert {v.suite for v in found} == set(ASKED)


def test_report_names_the_version_of_each_engine(
    models: Callable[[str], Path], plan_for: PlanFor
) -> None:
    with open_both(plan_for(models("f32"), oracle=OLD)) as both:
        oracle, _ = both.engines
    assert (oracle.engine, oracle.version) == (OLD, "llama-cpp-python 0.3.8")
    assert "it repacks weights whatever the settings say" in oracle.build


def test_wrong_rotation_is_found_by_comparison_with_an_older_version(
    models: Callable[[str], Path], plan_for: PlanFor, checked: Checked
) -> None:
    engine = "mutant:rope-half-split"
    found = checked(plan_for(models("f32"), oracle=OLD, engine=engine, suites=("logits",)))
    assert statuses(found, "logits") == {"diverged"}


# --- batches as llama_sbatch takes them apart -----------------------------------------------------


def test_our_model_of_llama_sbatch_forms_the_same_ubatches(tmp_path: Path) -> None:
    plan = FuzzPlan(targets=tuple(SPLITS), oracle=OLD, cases=60, seed=2)
    result = run_campaign("batch", plan, tmp_path, [])
    assert [v.status for v in result.verdicts] == ["agreed"] * 3, result.verdicts
    for verdict in result.verdicts:
        assert verdict.detail["schedules"] == 60
        assert verdict.detail["ubatches"] > 200
        assert verdict.case == "pooled" or verdict.detail["order"] > 200


# --- two versions against each other --------------------------------------------------------------

MOVED = [["decode", [[5, 0, [0], False], [6, 1, [0], True], [7, 0, [1], True]]]]
MOVED += [["add", 0, 1, -1, 2], ["decode", [[8, 4, [0], True], [9, 1, [1], True]]]]
GAP = [["decode", [[5, 0, [0], True]]], ["decode", [[6, 3, [0], True]]]]


def between_versions(steps: list[Any], folder: Path) -> tuple[ScheduleDifference | None, Judge]:
    path = folder / "attention.gguf"
    SMALL["attention"](path)
    shape = {"n_ctx": 256, "n_ubatch": 2, "n_seq": 2, "unified": True}
    with ExitStack() as stack:
        sessions = [Runner().open(name, path, EXACT) for name in ("llama.cpp", OLD)]
        judge = Judge(*(stack.enter_context(session) for session in sessions))
        return judge(schedule_from(json.dumps({**shape, "steps": steps}))), judge


def test_two_versions_are_compared_in_their_common_tensors(tmp_path: Path) -> None:
    found, judge = between_versions(MOVED, tmp_path)
    assert found is None
    assert (judge.counts["ubatches"], judge.counts["logits"]) == (3, 4)
    assert judge.counts["pos"] == 6
    assert judge.counts["slots"] == 0  # the older version does not show them


def test_rule_missing_in_the_older_version_is_found(tmp_path: Path) -> None:
    found, _ = between_versions(GAP, tmp_path)
    assert found is not None
    assert (found.symptom, found.step, found.text) == ("code", 1, "code 0, expected -1")


def test_single_op_of_an_older_version_gets_an_answer() -> None:
    """The version has no GLU, the last op name in newer versions. Once, reading beyond its list of
    names crashed."""
    x = normal(1, 2, 8)
    with Runner().open(OLD, None, EXACT) as session:
        found = session.ask("compute", node("ADD", x + x, x, x))
        assert isinstance(found, Answered)
        assert np.array_equal(found.value[0, 0], x + x)
        assert isinstance(session.ask("compute", node("WISH", x, x)), Unanswerable)
        info = session.ask("describe")
        assert isinstance(info, Answered)
        assert not info.value.computes_nodes  # parameters of its ops may have another meaning
