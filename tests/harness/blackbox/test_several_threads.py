"""Programs that are right with one thread and wrong with several threads, on models of any size."""

import sys
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.blackbox import several_threads
from lockstep.harness.records import Verdict
from lockstep.harness.runs.run import bisect_one
from tests.black_boxes import with_made_models
from tests.harness.check.test_check import plan_for
from tests.models import builtin, written
from tests.places import EXAMPLES

EXAMPLE = EXAMPLES / "engine.py"
START = 'if question["ask"] == "start":\n        can'


def program(folder: Path, changes: dict[str, str]) -> str:
    """Return the command of the example engine with these changes."""
    text = EXAMPLE.read_text()
    for old, new in changes.items():
        assert text.count(old) == 1
        text = text.replace(old, new)
    path = folder / "engine.py"
    path.write_text(text)
    return f"{sys.executable} {path}"


def logits_of(engine: str, model: Path) -> list[Verdict]:
    plan = plan_for(model, engine=engine, oracle="llama.cpp", suites=("logits",), n_tokens=8)
    return with_made_models(plan)


HEAD = 'x @ self.w[f"{head}.weight"].T'
# rows of the head that remain after an equal division among threads
LOST = f"rows_of_threads({HEAD})"
DEFINITION = """threads = 1


def rows_of_threads(x):
    x[:, x.shape[1] // threads * threads :] = 0
    return x


class File:"""
FOLLOWED = """if question["ask"] == "start":
        global threads
        threads = question["settings"]["n_threads"]
        can"""


def test_rows_that_threads_skip_are_missed_on_a_small_model(tmp_path: Path) -> None:
    changes = {HEAD: LOST, "class File:": DEFINITION, START: FOLLOWED}
    *fine, wrong = logits_of(program(tmp_path, changes), written(tmp_path, n_vocab=320))
    assert [verdict.status for verdict in fine] == ["agreed"]
    assert (wrong.status, wrong.detail["n_threads"]) == ("diverged", 3)
    assert wrong.detail["at_fault"] == "subject"
    assert wrong.summary.startswith("started with n_threads 3: ")


def test_right_engine_agrees_with_several_threads(tmp_path: Path) -> None:
    (found,) = logits_of(program(tmp_path, {}), builtin("f32", tmp_path))
    assert found.status == "agreed"
    assert "started with n_threads 3" in found.detail["same"]


@pytest.mark.parametrize("settings", ['{"n_threads": 1}', '{"n_threads": 2}'])
def test_report_does_not_claim_more_threads_than_the_engine_states(
    settings: str, tmp_path: Path
) -> None:
    old = '"can": can, "shows": SHOWS}'
    said = program(tmp_path, {old: f'{old[:-1]}, "settings": {settings}}}'})
    (found,) = logits_of(said, builtin("f32", tmp_path))
    assert found.status == "agreed"
    assert "started with n_threads 3" not in found.detail["same"]


@pytest.mark.parametrize("ends", ["sys.exit(3)", 'raise ValueError("no threads here")'])
def test_engine_that_does_not_start_with_several_threads_is_reported(
    ends: str, tmp_path: Path
) -> None:
    """Another process of the engine is already running, and may hold an exclusive resource."""
    with_three = f'if question["settings"]["n_threads"] == 3:\n            {ends}'
    dies = f'if question["ask"] == "start":\n        {with_three}\n        can'
    (found,) = logits_of(program(tmp_path, {START: dies}), builtin("f32", tmp_path))
    assert found.status == "agreed"
    (said,) = found.detail["not_answered"]
    assert said.startswith("started with n_threads 3: the engine does not start: ")
    assert said in found.summary


NOW_AND_THEN = """threads = calls = 0


def now_and_then(x):
    global calls
    calls += threads == 3
    x[:, -1] *= 1 + (calls % 9 == 8)
    return x


class File:"""


def test_rare_race_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(several_threads, "SECONDS", 60.0)
    late = HEAD.join(("now_and_then(", ")"))
    changes = {HEAD: late, "class File:": NOW_AND_THEN, START: FOLLOWED}
    *fine, wrong = logits_of(program(tmp_path, changes), builtin("f32", tmp_path))
    assert [verdict.status for verdict in fine] == ["agreed"]
    assert (wrong.status, wrong.detail["n_threads"]) == ("diverged", 3)


def test_bisect_finds_the_op_in_runs_with_several_threads(tmp_path: Path) -> None:
    changes = {HEAD: LOST, "class File:": DEFINITION, START: FOLLOWED}
    model = written(tmp_path, n_vocab=320)
    engine = program(tmp_path, changes)
    plan = plan_for(model, engine=engine, oracle="llama.cpp", suites=("logits",), n_tokens=8)
    found: list[Any] = []
    bisect_one(plan, found.append)
    assert (found[-1].asked, found[-1].exit_code) == ("started with n_threads 3", 1)
    assert found[-1].first.site.name == "result_output"
