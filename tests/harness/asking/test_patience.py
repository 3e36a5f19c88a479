"""Engines that time out, or do not start: verdicts, and advice."""

import json
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from lockstep.harness.cli import app
from lockstep.harness.parallel.works import Forks
from lockstep.harness.records import Verdict
from lockstep.harness.runs.run import Listener, run_plans
from tests.harness.check.test_check import plan_for
from tests.harness.protocol.test_protocol import FAKE
from tests.models import builtin


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return builtin("f32", tmp_path_factory.mktemp("models"))


def engine(way: str) -> str:
    return shlex.join([*FAKE, way])


def run(model: Path, way: str, folder: Path, models: int = 1) -> tuple[int, list[Verdict]]:
    plan = plan_for(model, engine=engine(way), suites=("tokens",), time_limit=1.0)
    result = run_plans([plan] * models, folder, ["lockstep"], Forks(1), Listener())
    assert (result.folder / "report.jsonl").is_file()
    return result.code, result.verdicts


def test_timeout_names_the_option(model: Path, tmp_path: Path) -> None:
    code, (found,) = run(model, "hangs", tmp_path)
    assert (code, found.status) == (3, "timed-out")
    assert "did not answer tokenize within 1 s (--timeout SECONDS" in found.summary


@pytest.mark.parametrize(
    ("way", "status", "words"),
    [
        ("is silent", "timed-out", "did not answer start within 1 s (--timeout SECONDS"),
        ("cannot load", "crashed", "a kind of tensor that is not implemented: Q4_K"),
        ("nameless", "malformed", '"engine": expected a text'),
        ("wants another model", "not-compared", "does not load the model: no model of this kind"),
    ],
)
def test_failed_start_is_a_verdict_for_each_model(
    way: str, status: str, words: str, model: Path, tmp_path: Path
) -> None:
    code, found = run(model, way, tmp_path, models=2)
    assert (code, [v.status for v in found]) == (3, [status] * 2)
    assert all(words in v.summary for v in found)
    assert all(v.repro for v in found)


def test_endless_import_times_out(model: Path, tmp_path: Path) -> None:
    path = tmp_path / "slow.py"
    path.write_text("import time\ntime.sleep(1000)\n")
    plan = plan_for(model, engine=f"adapter:{path}", suites=("tokens",), time_limit=1.0)
    result = run_plans([plan], tmp_path, ["lockstep"], Forks(1), Listener())
    assert (result.code, [v.status for v in result.verdicts]) == (3, ["timed-out"])
    assert "did not answer start within 1 s" in result.verdicts[0].summary


def test_repeat_command_has_the_option(model: Path, tmp_path: Path) -> None:
    options = ["--engine", engine("hangs"), "--suite", "tokens", "--timeout", "0.5", "--json"]
    said = CliRunner().invoke(app, ["check", str(model), *options, "--report", str(tmp_path)])
    assert said.exit_code == 3
    (report,) = tmp_path.glob("*/report.jsonl")
    rows = [json.loads(line) for line in report.read_text().splitlines()]
    (found,) = (row for row in rows if row.get("status") == "timed-out")
    assert "--timeout 0.5" in found["repro"]


def test_bisect_ends_with_the_same_message(model: Path, tmp_path: Path) -> None:
    options = ["--engine", engine("is silent"), "--timeout", "0.5"]
    said = CliRunner().invoke(app, ["bisect", str(model), *options])
    assert said.exit_code == 3
    assert "did not answer start within" in said.stderr
    assert "--timeout SECONDS" in said.stderr
