"""`fuzz batch` without llama.cpp: our engine is compared with itself and with wrong memories."""

import json
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.harness.adapters.base import Adapter
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.check.check import BadInput
from lockstep.harness.cli import app
from lockstep.harness.context.runner import Runner
from lockstep.harness.fuzzers.base import FuzzPlan, fuzzer_named, run_campaign
from lockstep.harness.fuzzers.batch.judge import (
    ALLOWED_NMSE,
    Judge,
    ScheduleDifference,
    component,
    worst,
)
from lockstep.harness.fuzzers.batch.known import entry_for, known_schedules
from lockstep.harness.fuzzers.batch.machines import KINDS, machine_of
from lockstep.harness.fuzzers.batch.schedule import ScheduleCase, schedule_from
from lockstep.harness.fuzzers.batch.schedules import schedule
from lockstep.harness.records import EXACT, Verdict
from lockstep.harness.report.jsonl import read_report
from lockstep.harness.synth.small import SMALL
from tests.wrong_memories import REFUSED, WRONG, Wrong, engine, mixes_sequences, reorders_outputs

CASES = 120
FULL = 144  # number of a case of seed 3 that fills its cache
FIRST = {"shares-states-blind": 41}  # number of the first case that shows this


class Dies(Reference):
    """An engine that dies on three sequences."""

    name = "dies"

    def schedule(self, plan: Any) -> list[dict[str, Any]]:
        if plan["n_seq"] == 3:
            raise RuntimeError("three of them")
        return super().schedule(plan)


class Mute(Reference):
    name = "mute"

    def schedule(self, plan: Any) -> list[dict[str, Any]]:
        return Adapter.schedule(self, plan)


@pytest.fixture(autouse=True)
def engines(monkeypatch: pytest.MonkeyPatch) -> None:
    """Register wrong engines while a test runs."""
    for cls in (Dies, Mute, REFUSED, *(row.engine for row in WRONG.values())):
        monkeypatch.setitem(Adapter.family, cls.name, cls)


def fuzzed(kind: str, **changes: Any) -> Iterator[Verdict]:
    """Yield findings one by one, so that nothing runs after the first finding."""
    plan = FuzzPlan(
        **{
            "targets": (kind,),
            "oracle": "reference",
            "cases": CASES,
            "seed": 3,
            "start": 1,
            **changes,
        }
    )
    return fuzzer_named("batch").run(plan, lambda target, text: None)


def tokens_of(case: ScheduleCase) -> int:
    return sum(len(step[1]) for step in case.steps if step[0] == "decode")


@pytest.mark.parametrize("name", WRONG)
def test_wrong_engine_is_caught_and_its_schedule_shortened(name: str) -> None:
    row: Wrong = WRONG[name]
    campaign = fuzzed(row.kind, engine=name, start=FIRST.get(name, 1))
    first = next(v for v in campaign if v.status == "diverged")
    assert first.detail["symptom"] in row.symptoms, first.summary
    case = schedule_from(json.dumps(first.detail["schedule"]))
    assert len(case.steps) <= row.steps, case
    assert tokens_of(case) <= row.tokens, case
    machine = machine_of(row.kind, case)
    ubatches = [u for step in case.steps for u in machine.step(step)["ubatches"]]
    assert len(ubatches) <= row.ubatches, case
    found = ScheduleDifference(
        symptom=first.detail["symptom"], step=len(case.steps), name="", text=""
    )
    assert entry_for(known_schedules(), ("llama.cpp",), row.kind, found, case) is None, case


def test_refused_batch_that_changes_memory_is_found(tmp_path: Path) -> None:
    steps = [["decode", [[1, 0, [0], False, 60]]], ["decode", [[1, 60, [0], False, 197]]]]
    shape = {"n_ctx": 256, "n_ubatch": 60, "n_seq": 2, "unified": True}
    path, runner = tmp_path / "small.gguf", Runner()
    SMALL["attention"](path)
    with (
        runner.open("reference", path, EXACT) as oracle,
        runner.open(REFUSED.name, path, EXACT) as subject,
    ):
        found = Judge(oracle, subject)(schedule_from(json.dumps({**shape, "steps": steps})))
    assert found is not None
    assert (found.symptom, found.step) == ("pos", 1)


def test_command_of_a_finding_reproduces_it() -> None:
    first = next(v for v in fuzzed("attention", engine="forgets-to-shift") if v.detail["schedule"])
    words = shlex.split(first.repro)
    given = words[words.index("--schedule") + 1].encode()
    again, _ = fuzzed("attention", engine="forgets-to-shift", given=(given,))
    assert (again.status, again.key) == ("diverged", first.key)


@pytest.mark.parametrize("kind", KINDS)
def test_our_engine_agrees_with_itself(kind: str) -> None:
    (only,) = fuzzed(kind, engine="reference", cases=16)
    assert only.status == "agreed"
    assert only.detail["steps"] > 100
    assert only.detail["logits"] > 100


def test_case_depends_only_on_seed_and_number() -> None:
    for kind in KINDS:
        cases = [schedule(7, number, kind) for number in range(6)]
        assert cases == [schedule(7, number, kind) for number in range(6)]
        assert len({case.text() for case in cases}) == 6
        assert schedule(8, 1, kind) != cases[1]


def test_schedules_use_every_operation() -> None:
    names = {step[0] for n in range(400) for step in schedule(1, n, "attention").steps}
    assert names == {"decode", "rm", "cp", "keep", "add", "div", "clear", "save", "load"}
    codes = {
        machine.step(step)["code"]
        for n in (*range(20), FULL)
        for case in [schedule(3, n, "attention")]
        for machine in [machine_of("attention", case)]
        for step in case.steps
        if step[0] == "decode"
    }
    assert codes == {0, 1, -1}


def test_a_schedule_survives_its_json() -> None:
    for number in range(20):
        case = schedule(0, number, "attention")
        assert schedule_from(case.text()) == case


# --- relations --------------------------------------------------------------------------------


def alone(change: Any, symptom: str, tmp_path: Path) -> bool:
    """Return True if an engine that is compared with itself contradicts itself with this
    symptom."""
    path = tmp_path / "small.gguf"
    SMALL["attention"](path)
    cls = engine(change)
    Adapter.family[cls.name] = cls
    runner = Runner()
    try:
        with runner.open(cls.name, path, EXACT) as a, runner.open(cls.name, path, EXACT) as b:
            judge = Judge(a, b)
            found = (judge(schedule(0, number, "attention")) for number in range(1, 40))
            return any(one is not None and one.symptom == symptom for one in found)
    finally:
        del Adapter.family[cls.name]


def test_engine_that_mixes_sequences_contradicts_itself(tmp_path: Path) -> None:
    assert alone(mixes_sequences, "neighbours", tmp_path)


def test_engine_that_depends_on_batch_splits_contradicts_itself(
    tmp_path: Path,
) -> None:
    assert alone(reorders_outputs, "splitting", tmp_path)


def test_sequences_that_shared_or_copied_cells_belong_together() -> None:
    row = [[1, 0, [0], True], [1, 0, [1], True], [1, 0, [3], False]]
    steps: list[Any] = [["decode", row], ["cp", 0, 2, -1, -1], ["save", 3], ["load", 2, 0]]
    shape = {"n_ctx": 256, "n_ubatch": 4, "n_seq": 4, "unified": True}
    assert component(schedule_from(json.dumps({**shape, "steps": steps}))) == {0, 2, 3}
    assert component(schedule_from(json.dumps({**shape, "steps": steps[:1]}))) == {0}


def test_nan_row_equals_only_itself() -> None:
    nan, one = np.full((1, 3), np.nan), np.ones((1, 3))
    assert worst(nan, nan) == 0.0
    assert worst(one, nan) == worst(nan, one) == float("inf")
    assert worst(one, one * (1 + 1e-6)) < ALLOWED_NMSE < worst(one, one * 1.001)


# --- cases without a comparison -----------------------------------------------------------------


def test_dying_engine_is_a_separate_finding(tmp_path: Path) -> None:
    plan = FuzzPlan(targets=("recurrent",), engine="dies", oracle="reference", cases=20, seed=3)
    result = run_campaign("batch", plan, tmp_path, [])
    crashed = [v for v in result.verdicts if v.status == "crashed"]
    assert len(crashed) == 1
    assert "three of them" in crashed[0].summary
    assert crashed[0].detail["schedule"]["n_seq"] == 3
    assert result.code == 3


def test_an_engine_that_runs_no_schedules_is_not_compared(tmp_path: Path) -> None:
    plan = FuzzPlan(targets=("recurrent",), engine="mute", oracle="reference", cases=3)
    result = run_campaign("batch", plan, tmp_path, [])
    assert [v.status for v in result.verdicts] == ["not-compared"]
    assert result.code == 3


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("[]", "TypeError"),
        ("{", "JSONDecodeError"),
        ('{"n_ctx":256,"n_ubatch":1,"n_seq":1,"steps":[]}', "unified"),
        ('{"n_ctx":256,"n_ubatch":1,"n_seq":99,"unified":true,"steps":[]}', "n_seq is 99"),
        ('{"n_ctx":256,"n_ubatch":1,"n_seq":1,"unified":1,"steps":[]}', "true or false"),
        ('{"n_ctx":256,"n_ubatch":1,"n_seq":1,"unified":true,"steps":[["hop"]]}', "hop"),
        ('{"n_ctx":256,"n_ubatch":1,"n_seq":1,"unified":true,"steps":[["rm",0]]}', "rm takes 3"),
        ('{"n_ctx":256,"n_ubatch":1,"n_seq":1,"unified":true,"steps":[["load",0,0]]}', "not saved"),
        ('{"n_ctx":256,"n_ubatch":1,"n_seq":1,"unified":true,"steps":[["keep",0.5]]}', "0.5"),
        (
            '{"n_ctx":256,"n_ubatch":1,"n_seq":1,"unified":true,"steps":[["save",-1],["load",0,0]]}',
            "loads one sequence from a state of all",
        ),
    ],
)
def test_malformed_schedule_is_refused(text: str, says: str) -> None:
    with pytest.raises(BadInput, match="not a schedule") as refused:
        schedule_from(text)
    assert says in str(refused.value)


def test_users_schedule_needs_the_option_type() -> None:
    plan = FuzzPlan(given=(schedule(0, 0, "attention").text().encode(),))
    with pytest.raises(BadInput, match="--type"):
        fuzzer_named("batch").check(plan)


# --- the command ------------------------------------------------------------------------------


def command(*args: str) -> int:
    with pytest.raises(SystemExit) as end:
        app(["fuzz", "batch", "--oracle", "reference", *args])
    return int(end.value.code or 0)


def test_command_writes_a_report_and_states_the_comparison(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ("--type", "recurrent", "--cases", "5", "--report", str(tmp_path), "--quiet")
    assert command(*options) == 0
    assert "recurrent" in capsys.readouterr().out
    (report,) = tmp_path.glob("*/report.jsonl")
    _, verdict, _ = read_report(report)
    assert verdict["detail"]["schedules"] == 5


def test_command_refuses_a_malformed_schedule(capsys: pytest.CaptureFixture[str]) -> None:
    assert command("--type", "window", "--schedule", "{}") == 2
    assert command("--type", "sliding") == 2
    assert "attention, window, recurrent, hybrid" in capsys.readouterr().err
