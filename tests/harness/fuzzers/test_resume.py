"""A campaign that is stopped loses no finding, and another campaign continues it."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from lockstep.harness.check.check import BadInput
from lockstep.harness.fuzzers.base import Checkpoint, Fuzzer, FuzzPlan, Progress, run_campaign
from lockstep.harness.fuzzers.resume import resume_campaign
from lockstep.harness.parallel.works import Processes
from lockstep.harness.records import Verdict
from lockstep.harness.report.jsonl import read_report, read_unfinished
from tests.places import ROOT

WORK_PROCESS = b"lockstep.harness.parallel.work_process"
PLAN = FuzzPlan(targets=("odd", "even"), cases=10, seed=4, oracle="reference")


class Counting(Fuzzer, name="counting"):
    """A fuzzer with a finding for each case, and a checkpoint after every second case."""

    asked: ClassVar[list[tuple[str, int]]] = []
    stop_after = 10**9

    def targets(self) -> list[str]:
        return ["odd", "even"]

    def run(self, plan: FuzzPlan, progress: Progress) -> Iterator[Verdict | Checkpoint]:
        (target,) = plan.targets
        for case in range(plan.start, plan.start + plan.cases):
            if len(self.asked) >= self.stop_after:
                raise KeyboardInterrupt
            self.asked.append((target, case))
            key = f"found/{case % 4}"
            if key not in plan.found:
                yield finding(target, case, key)
            if case % 2:
                yield Checkpoint(target=target, done=case + 1)


def finding(target: str, case: int, key: str) -> Verdict:
    return Verdict(suite="fuzz-counting", case=target, status="diverged", summary=f"case {case}",
                   detail={"values": (case, float("nan"))}, key=key, repro="again")  # fmt: skip


@pytest.fixture(autouse=True)
def forgotten() -> Iterator[None]:
    Counting.asked, Counting.stop_after = [], 10**9
    yield
    Counting.asked, Counting.stop_after = [], 10**9


def stopped(folder: Path, after: int) -> Path:
    Counting.stop_after = after
    with pytest.raises(KeyboardInterrupt):
        run_campaign("counting", PLAN, folder, ["lockstep"])
    Counting.stop_after = 10**9
    (run,) = folder.iterdir()
    return run


@pytest.mark.parametrize("after", [0, 1, 2, 3, 10, 13, 19])
def test_interrupted_run_keeps_its_findings_and_continues(tmp_path: Path, after: int) -> None:
    run = stopped(tmp_path, after)
    told = [row for row in read_unfinished(run / "report.jsonl") if row["kind"] == "verdict"]
    assert len(told) == after
    Counting.asked = []
    result = resume_campaign("counting", run)
    assert result.folder == run
    target, case = divmod(after // 2 * 2, 10)
    assert Counting.asked[0] == (PLAN.targets[target], case)
    assert Counting.asked[-1] == ("even", 9)
    rows = read_report(run / "report.jsonl")
    assert rows[-1]["kind"] == "footer"
    for target in ("odd", "even"):
        keys = {row["key"] for row in rows[1:-1] if row["case"] == target}
        assert keys == {f"found/{n}" for n in range(4)}
    assert len({json.dumps(row) for row in rows}) == len(rows)


def head(run: Path, edit: Callable[[Any], object]) -> None:
    first, *rest = (run / "report.jsonl").read_text().splitlines(keepends=True)
    row = json.loads(first)
    edit(row)
    (run / "report.jsonl").write_text("".join([json.dumps(row) + "\n", *rest]))


def test_truncated_line_is_dropped(tmp_path: Path) -> None:
    run = stopped(tmp_path, 3)
    report = run / "report.jsonl"
    with report.open("ab") as file:
        file.write(b'{"kind": "verd')
    resume_campaign("counting", run)
    assert read_report(report)[-1]["kind"] == "footer"


@pytest.mark.parametrize(
    ("name", "spoil", "says"),
    [
        ("tokens", lambda run: None, "a report of counting, expected tokens"),
        ("counting", lambda run: (run / "report.jsonl").unlink(), "no run to continue"),
        ("counting", lambda run: (run / "report.jsonl").write_text(""), "must be the header"),
        ("counting", lambda run: resume_campaign("counting", run), "has finished"),
        (
            "counting",
            lambda run: head(run, lambda row: row["engines"].pop()),
            "not from a campaign",
        ),
        (
            "counting",
            lambda run: head(run, lambda row: row["campaign"].update(given=["zz"])),
            "the report is not from a campaign: non-hexadecimal",
        ),
        (
            "counting",
            lambda run: head(run, lambda row: row["engines"][1]["settings"].update(name="mine")),
            "the report is not from a campaign: no 'mine'",
        ),
        (
            "counting",
            lambda run: head(run, lambda row: row["engines"][1].update(version="0.0.9")),
            "the run had reference 0.0.9, and this machine has",
        ),
    ],
)
def test_run_that_cannot_be_resumed_is_refused_with_the_reason(
    tmp_path: Path, name: str, spoil: Any, says: str
) -> None:
    run = stopped(tmp_path, 3)
    spoil(run)
    with pytest.raises(BadInput, match=says):
        resume_campaign(name, run)


def test_fuzzer_without_checkpoints_resumes_at_the_next_target(tmp_path: Path) -> None:
    plan = FuzzPlan(targets=("I8", "I16"), cases=200, oracle="ieee754")
    whole = run_campaign("quants", plan, tmp_path / "whole", [])
    report = whole.folder / "report.jsonl"
    lines = report.read_text().splitlines(keepends=True)
    first = next(i for i, line in enumerate(lines) if '"checkpoint"' in line)
    report.write_text("".join(lines[: first + 1]))
    result = resume_campaign("quants", whole.folder)
    assert [str(v) for v in result.verdicts] == [str(v) for v in whole.verdicts]
    assert report.read_text().splitlines()[:-1] == [line.strip() for line in lines[:-1]]


# --- targets side by side ---------------------------------------------------------------------

SIDE_BY_SIDE = FuzzPlan(
    targets=("Q8_0", "I8", "I16"), cases=3000, engine="mutant:q8-0-unsigned", oracle="reference"
)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    """Return the findings of an uninterrupted run."""
    folder = tmp_path_factory.mktemp("whole")
    return {str(verdict) for verdict in run_campaign("quants", SIDE_BY_SIDE, folder, []).verdicts}


def started(folder: Path) -> "subprocess.Popen[str]":
    plan = SIDE_BY_SIDE
    command = [*(sys.executable, "-m", "lockstep.harness.cli", "fuzz", "quants", "-q", "-j", "2")]
    command += [word for name in plan.targets for word in ("--type", name)]
    command += ["--cases", str(plan.cases), "--engine", plan.engine, "--oracle", plan.oracle]
    return subprocess.Popen(
        [*command, "--report", str(folder)], cwd=ROOT, stderr=subprocess.PIPE, text=True
    )


def interrupt(process: "subprocess.Popen[str]") -> None:
    process.send_signal(signal.SIGINT)


def kill(process: "subprocess.Popen[str]") -> None:
    process.kill()


def kill_one_of_its_processes(process: "subprocess.Popen[str]") -> None:
    """Kill the youngest process, which is a process that fuzzes."""
    os.kill(max(children_of(process.pid)), signal.SIGKILL)


def children_of(pid: int) -> list[int]:
    if not Path(f"/proc/{pid}/task").is_dir():
        pytest.skip("no /proc: no process of a run was killed")
    lists = (path.read_text().split() for path in Path(f"/proc/{pid}/task").glob("*/children"))
    found = [int(word) for words in lists for word in words]
    commands = {child: Path(f"/proc/{child}/cmdline").read_bytes() for child in found}
    return [child for child, command in commands.items() if WORK_PROCESS in command]


@pytest.mark.parametrize(
    ("stop", "code", "says"),
    [
        (interrupt, 130, "interrupted"),
        (kill, -signal.SIGKILL, ""),
        (kill_one_of_its_processes, 2, "a process of the run was killed"),
    ],
)
def test_interrupted_parallel_run_finds_the_same_findings(
    tmp_path: Path, undisturbed: set[str], stop: Any, code: int, says: str
) -> None:
    with started(tmp_path) as process:
        deadline = time.monotonic() + 100
        while len(children_of(process.pid)) < 2:
            assert time.monotonic() < deadline, "it did not start"
            assert process.poll() is None
            time.sleep(0.01)
        stop(process)
        _, words = process.communicate(timeout=60)
    assert process.returncode == code, words
    assert says in words
    # a killed process leaves children that cannot reach it
    assert "Traceback" not in words or code < 0
    (run,) = tmp_path.iterdir()
    assert read_unfinished(run / "report.jsonl")[-1]["kind"] != "footer"
    result = resume_campaign("quants", run, Processes(2))
    assert {str(verdict) for verdict in result.verdicts} == undisturbed
    assert len(result.verdicts) == len(undisturbed)
    assert any(verdict.status == "diverged" for verdict in result.verdicts)
