"""A run survives defects, deaths and changed files."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.adapters.reference import Reference
from lockstep.harness.check.check import BadInput, Plan
from lockstep.harness.context.suite import Context
from lockstep.harness.parallel.children import Said, Say, side_by_side
from lockstep.harness.parallel.works import Forks
from lockstep.harness.records import EngineInfo, FileSummary, Verdict
from lockstep.harness.report.jsonl import read_report
from lockstep.harness.runs.file_state import FileState
from lockstep.harness.runs.result import RunResult
from lockstep.harness.runs.run import Listener, run_plans
from lockstep.harness.suites.dequant import Dequant
from tests.harness.check.test_check import plan_for
from tests.models import builtin


class Deadly(Reference, name="test:deadly"):
    """An engine that kills the process that asks it."""

    def metadata(self) -> FileSummary:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


class Vandal(Reference, name="test:vandal"):
    """An engine that changes the model's file during a check."""

    def describe(self) -> EngineInfo:
        return replace(super().describe(), version=os.environ.get("VANDAL", ""))

    def tokenize(self, *texts: Any, **flags: Any) -> list[list[int]]:
        assert self.model is not None
        match os.environ["VANDAL"]:
            case "truncated":
                os.truncate(self.model, 4096)
            case "deleted":
                self.model.unlink(missing_ok=True)
            case "replaced":
                other = self.model.with_suffix(".new")
                other.write_bytes(self.model.read_bytes()[::-1])
                other.replace(self.model)
            case "edited":
                with self.model.open("r+b") as file:
                    file.seek(-4096, os.SEEK_END)
                    file.write(bytes(4096))
            case "touched":
                os.utime(self.model)
        return super().tokenize(*texts, **flags)


def run_of(plans: list[Plan], folder: Path, jobs: int = 1) -> tuple[RunResult, list[Any]]:
    result = run_plans(plans, folder / "reports", ["lockstep", "check"], Forks(jobs), Listener())
    rows = read_report(result.folder / "report.jsonl")
    assert rows[-1]["exit_code"] == result.code
    return result, rows


@pytest.mark.parametrize("jobs", [1, 2])
def test_death_of_a_check_is_a_verdict_and_other_models_are_checked(
    jobs: int, tmp_path: Path
) -> None:
    path = builtin("f32", tmp_path)
    suites = {"suites": ("metadata", "tokens")}
    plans = [plan_for(path, engine=e, case=e, **suites) for e in (Deadly.name, "reference")]
    result, _ = run_of(plans, tmp_path, jobs)
    (dead,) = (v for v in result.verdicts if v.case == Deadly.name)
    assert (dead.status, dead.suite) == ("crashed", "metadata")
    assert "was killed by SIGKILL during metadata" in dead.summary
    assert {v.status for v in result.verdicts if v.case == "reference"} == {"agreed"}
    assert result.code == 3


class WithoutAName(Reference, name="test:without-a-name"):
    def metadata(self) -> FileSummary:
        os.kill(os.getpid(), signal.SIGRTMIN + 3)  # signal.Signals has no name for it
        raise AssertionError


def test_unnamed_signal_is_a_death_like_any_other(tmp_path: Path) -> None:
    path = builtin("f32", tmp_path)
    result, _ = run_of([plan_for(path, engine=WithoutAName.name, suites=("metadata",))], tmp_path)
    assert [v.status for v in result.verdicts] == ["crashed"]
    assert f"was killed by signal {signal.SIGRTMIN + 3}" in result.verdicts[0].summary


def test_defect_in_one_suite_is_a_verdict_and_other_suites_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(self: Dequant, context: Context) -> Iterator[Verdict]:
        yield context.verdict("dequant", "agreed", f"so far {1 // 0}")

    monkeypatch.setattr(Dequant, "run", broken)
    plan = plan_for(builtin("f32", tmp_path), suites=("dequant", "logits"))
    result, rows = run_of([plan], tmp_path)
    assert [(v.suite, v.status) for v in result.verdicts] == [
        ("dequant", "internal"),
        ("logits", "agreed"),
    ]
    assert "please report" in result.verdicts[0].summary
    assert "ZeroDivisionError" in rows[1]["detail"]["traceback"]
    assert result.code == 2


def test_bad_input_is_refused_before_there_is_a_report(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no such file"):
        run_of([plan_for(tmp_path / "gone.gguf")], tmp_path)
    assert not (tmp_path / "reports").exists()


@pytest.mark.parametrize("what", ["truncated", "deleted", "replaced", "edited"])
def test_changed_file_is_reported_and_not_a_divergence(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VANDAL", what)
    path = builtin("f32", tmp_path)
    result, _ = run_of([plan_for(path, engine=Vandal.name)], tmp_path)
    assert result.code == 3
    assert "diverged" not in {v.status for v in result.verdicts}
    (said,) = (v for v in result.verdicts if v.suite == "file")
    assert "was deleted" in said.summary if what == "deleted" else "changed during" in said.summary


def test_file_with_only_a_new_time_counts_as_unchanged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VANDAL", "touched")
    plan = plan_for(builtin("f32", tmp_path), engine=Vandal.name, suites=("tokens", "dequant"))
    result, _ = run_of([plan], tmp_path)
    assert result.code == 0


def test_hash_of_a_changed_file_differs(
    tmp_path: Path,
) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"one")
    state = FileState.of(path)
    path.write_bytes(b"three")
    assert state.with_hash(path).sha256 == ""
    assert "it had 3 bytes" in state.change(path)
    assert "now 5 bytes" in state.change(path)


def test_parallel_works_report_in_order() -> None:
    works = [lambda say, n=n: [say(10 * n + i) for i in range(3)] for n in range(4)]
    found: dict[int, list[Any]] = {}
    for number, event in side_by_side(works, 2):  # type: ignore[arg-type]
        found.setdefault(number, []).append(event.value if isinstance(event, Said) else "end")
    assert found == {n: [10 * n, 10 * n + 1, 10 * n + 2, "end"] for n in range(4)}


def test_ended_process_leaves_nothing_in_the_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interrupted bisection would otherwise leave a model of a gigabyte there."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)

    def work(say: Say) -> None:
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "twin.gguf").write_bytes(b"GGUF")
            say(folder)
            signal.pause()

    events = side_by_side([work], 1)
    _, event = next(events)
    assert isinstance(event, Said)
    assert Path(event.value, "twin.gguf").exists()
    events.close()  # type: ignore[attr-defined]
    assert not list(tmp_path.iterdir())


# --- the command line ------------------------------------------------------------------------


def command(*words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    code = "from lockstep.harness.entry import main; main()"
    return subprocess.run(
        [sys.executable, "-c", code, *words],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), **variables},
    )


def test_interrupt_during_imports_prints_no_traceback() -> None:
    code = "import os, signal, lockstep.harness.entry; os.kill(os.getpid(), signal.SIGINT)"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (done.returncode, done.stderr) == (130, b"")


def test_unencodable_text_on_standard_output_is_escaped(tmp_path: Path) -> None:
    path = builtin("f32", tmp_path)
    ids = json.loads(command("tokenize", str(path), "--text", "é").stdout)
    words = ("tokenize", str(path), "--decode", "--text", json.dumps(ids))
    done = command(*words, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stdout) == (0, " \\xe9\n")


def test_forbidden_kernel_compilation_is_a_configuration_error(tmp_path: Path) -> None:
    done = command("check", str(builtin("f32", tmp_path)), NUMBA_DISABLE_JIT="1")
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "lockstep: NUMBA_DISABLE_JIT is set, and without numba's compiler there are no kernels: "
        "unset it"
    ]


def test_death_in_bisect_gives_one_line_and_is_incomplete(tmp_path: Path) -> None:
    path = builtin("f32", tmp_path)
    code = f"import {__name__}; from lockstep.harness.entry import main; main()"
    engines = ("--oracle", "reference", "--engine", DeadlyInRuns.name)
    done = subprocess.run(
        [sys.executable, "-c", code, "bisect", str(path), "--quiet", *engines],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([os.getcwd(), *sys.path])},
    )
    assert done.returncode == 3
    assert "was killed by SIGKILL" in done.stderr
    assert "Traceback" not in done.stderr


class DeadlyInRuns(Reference, name="test:deadly-in-runs"):
    def evaluate(self, request: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)
