"""An older llama.cpp, in an environment of its own, answers what it can and names the rest."""

from collections.abc import Callable
from pathlib import Path

import pytest

from engine.errors import EngineError
from harness.check import Plan, open_plan
from harness.environments import python_of
from harness.records import Verdict
from tests.differential.conftest import Checked

OLD = "llama.cpp@0.3.8"
ASKED = ("tokens", "dequant", "logits", "decode")
PlanFor = Callable[..., Plan]


@pytest.fixture(autouse=True)
def old() -> None:
    """Building it takes minutes, so the tests use it where somebody did."""
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
def test_an_older_version_agrees_and_its_graph_is_named_as_not_compared(
    name: str,
    oracle: str,
    engine: str,
    models: Callable[[str], Path],
    plan_for: PlanFor,
    checked: Checked,
) -> None:
    suites = (*ASKED, "trace")
    found = checked(plan_for(models(name), oracle=oracle, engine=engine, suites=suites))
    assert [v.summary for v in found if v.suite in ASKED and v.status != "agreed"] == []
    assert {v.suite for v in found} == set(suites)
    (trace,) = (v for v in found if v.suite == "trace")
    assert trace.status == "not-compared"
    assert "no map of the graphs of llama-cpp-python 0.3.8" in trace.summary


def test_the_version_is_in_what_the_report_says_of_the_engines(
    models: Callable[[str], Path], plan_for: PlanFor
) -> None:
    opened = open_plan(plan_for(models("f32"), oracle=OLD), lambda _: None)
    oracle, _ = opened.engines
    opened.close()
    assert (oracle.engine, oracle.version) == (OLD, "llama-cpp-python 0.3.8")
    assert "it repacks weights whatever the settings say" in oracle.build


def test_a_wrong_rotation_is_seen_against_an_older_version_too(
    models: Callable[[str], Path], plan_for: PlanFor, checked: Checked
) -> None:
    engine = "mutant:rope-half-split"
    found = checked(plan_for(models("f32"), oracle=OLD, engine=engine, suites=("logits",)))
    assert statuses(found, "logits") == {"diverged"}
