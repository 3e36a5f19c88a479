"""Beside other suites, in a fork with an oracle of its own, the graph is judged as it is alone."""

from pathlib import Path

import pytest

from lockstep.harness.check.check import open_plan, run_suites
from lockstep.harness.processes.ahead import Ahead, may_fork
from lockstep.harness.records import Verdict
from lockstep.harness.suites import shadow
from tests.harness.check.test_check import plan_for
from tests.models import builtin


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return builtin("q8_0", tmp_path_factory.mktemp("m"))


def verdicts(model: Path) -> list[Verdict]:
    opened = open_plan(plan_for(model, oracle="llama.cpp"), lambda _: None)
    try:
        return list(run_suites(opened.context, ["shadow"]))
    finally:
        opened.close()


@pytest.mark.skipif(not may_fork(), reason="nothing is done ahead here")
def test_of_a_large_model_the_same_is_said(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    alone, made = verdicts(model), []

    class Seen(Ahead):
        def result(self) -> object:
            made.append(self.pid)
            self.work = lambda: pytest.fail("the fork gave nothing")
            return super().result()

    monkeypatch.setattr(shadow, "is_small", lambda _: False)
    monkeypatch.setattr(shadow, "Ahead", Seen)
    assert verdicts(model) == alone
    assert len(made) == 1
    assert len(alone) > 5
    assert {verdict.status for verdict in alone} == {"agreed"}


def test_what_is_not_waited_for_ends(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shadow, "is_small", lambda _: False)
    opened = open_plan(plan_for(model, oracle="llama.cpp"), lambda _: None)
    shadow.Shadow().begin(opened.context)
    opened.close()
