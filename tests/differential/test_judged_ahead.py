"""Suites judged in a fork, parallel to other suites, give the same verdicts as suites that run
alone."""

from dataclasses import replace
from pathlib import Path

import pytest

from lockstep.harness.adapters.reference import Reference
from lockstep.harness.asking.facts import ModelFacts
from lockstep.harness.context.suite import Suite
from lockstep.harness.processes.ahead import Ahead, may_fork
from lockstep.harness.records import Evaluation, Request, Verdict
from lockstep.harness.suites import shadow
from lockstep.harness.suites.embeddings import Embeddings
from lockstep.harness.suites.parts import tensor_suite
from lockstep.harness.suites.products import Products
from lockstep.harness.suites.shadow import Shadow
from lockstep.harness.suites.trace import TraceSuite
from tests.harness.check.test_check import plan_for
from tests.models import builtin
from tests.plans import open_both, verdicts_of

pytestmark = pytest.mark.skipif(not may_fork(), reason="nothing is done ahead here")
SUITES = (("reference", Shadow), ("reference", TraceSuite), ("reference", Products))
BEGINNERS = (shadow, tensor_suite)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return builtin("q8_0", tmp_path_factory.mktemp("m"))


def verdicts(model: Path, engine: str, suite: type[Suite], *others: type[Suite]) -> list[Verdict]:
    plan = plan_for(model, oracle="llama.cpp", engine=engine)
    found = verdicts_of(plan, *(each.name for each in (suite, *others)))
    return [verdict for verdict in found if verdict.suite == suite.name]


def without_errors(verdict: Verdict) -> Verdict:
    if verdict.suite != TraceSuite.name or "by_node" not in verdict.detail:
        return verdict
    columns = verdict.detail["by_node"]
    assert {"err_in", "err_out"} <= columns.keys()
    kept = {name: column for name, column in columns.items() if not name.startswith("err_")}
    return replace(verdict, detail={**verdict.detail, "by_node": kept})


@pytest.fixture
def large(monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Treat every model as large, and count what forks return."""
    given: list[object] = []

    class Seen(Ahead):
        def result(self) -> object:
            self.work = lambda: pytest.fail("the fork gave nothing")
            given.append(super().result())
            return given[-1]

    monkeypatch.setattr(ModelFacts, "is_small", False)
    for module in BEGINNERS:
        monkeypatch.setattr(module, "Ahead", Seen)
    return given


@pytest.mark.parametrize(("engine", "suite"), SUITES)
def test_fork_gives_the_same_verdicts_on_a_large_model(
    model: Path, engine: str, suite: type[Suite], request: pytest.FixtureRequest
) -> None:
    """The fork's verdicts differ only in one point: without a fault, they lack the growth of
    errors."""
    alone = verdicts(model, engine, suite)
    given = request.getfixturevalue("large")
    assert verdicts(model, engine, suite) == [without_errors(verdict) for verdict in alone]
    assert len(given) == 1
    assert given[0] is not None
    assert {verdict.status for verdict in alone} <= {"agreed", "not-applicable"}
    assert any(verdict.status == "agreed" for verdict in alone)


@pytest.mark.parametrize("suite", [TraceSuite, Products])
def test_fault_is_found_without_the_fork(
    model: Path, suite: type[Suite], request: pytest.FixtureRequest
) -> None:
    alone = verdicts(model, "mutant:q8-0-unsigned", suite)
    given = request.getfixturevalue("large")
    assert verdicts(model, "mutant:q8-0-unsigned", suite) == alone
    assert given == [None]
    assert "diverged" in {verdict.status for verdict in alone}


class ShowsNothing(Reference, name="test:fails-where-tensors-are-asked-for"):
    asked = 0

    def evaluate(self, request: Request) -> Evaluation:
        if not request.capture:
            return super().evaluate(request)
        ShowsNothing.asked += 1
        raise RuntimeError("no such buffer")


@pytest.mark.parametrize("suite", [TraceSuite, Products])
def test_failing_engine_is_asked_once_with_the_same_verdicts(
    model: Path, suite: type[Suite], request: pytest.FixtureRequest
) -> None:
    engine, said = "test:fails-where-tensors-are-asked-for", []
    for fixture in (None, "large"):
        if fixture:
            request.getfixturevalue(fixture)
        before = ShowsNothing.asked
        said.append(verdicts(model, engine, suite))
        assert ShowsNothing.asked == before + 1
    assert said[0] == said[1]
    assert not {verdict.status for verdict in said[0]} & {"agreed", "not-applicable"}


@pytest.mark.parametrize(("engine", "suite"), SUITES)
def test_embeddings_suite_leaves_the_fork_of_another_suite(
    model: Path, engine: str, suite: type[Suite], large: list[object]
) -> None:
    assert verdicts(model, engine, suite, Embeddings)
    assert len(large) == 1


@pytest.mark.parametrize(("engine", "suite"), SUITES)
def test_unawaited_fork_ends(
    model: Path, engine: str, suite: type[Suite], large: list[object]
) -> None:
    with open_both(plan_for(model, oracle="llama.cpp", engine=engine)) as both:
        suite().begin(both.context)
        assert suite.name in both.context.begun
    assert large == []
