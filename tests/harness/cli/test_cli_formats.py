"""`--format` of the commands that write reports, and `lockstep report convert`."""

import json
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.command_line import Ending, Lockstep
from tests.models import builtin

QUICK = ("--oracle", "reference", "--suite", "metadata", "--quiet")  # llama.cpp is not needed
FUZZ = ("fuzz", "quants", "--type", "Q4_0", "--block", "003c" + "08" * 16, "--quiet")


@pytest.fixture(autouse=True)
def outside_of_github(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the tests run as if outside of GitHub."""
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)


def checked(lockstep: Lockstep, tmp_path: Path, *options: object) -> Ending:
    model = builtin("f32", tmp_path)
    return lockstep("check", model, *QUICK, "--report", tmp_path / "reports", *options)


def run_in(tmp_path: Path) -> Path:
    (folder,) = (tmp_path / "reports").iterdir()
    return folder


def test_check_writes_every_format_next_to_its_report(lockstep: Lockstep, tmp_path: Path) -> None:
    names = [f"--format={name}" for name in ("junit", "ctrf", "markdown", "badge")]
    assert checked(lockstep, tmp_path, *names).code == 0
    files = {path.name for path in run_in(tmp_path).iterdir()}
    page = {"report.jsonl", "report.html"}
    assert files == page | {"junit.xml", "ctrf.json", "summary.md", "badge.json"}
    badge = json.loads((run_in(tmp_path) / "badge.json").read_text())
    assert badge["color"] == "brightgreen"


def test_format_is_written_to_the_given_place(lockstep: Lockstep, tmp_path: Path) -> None:
    file = tmp_path / "out" / "a=b" / "junit.xml"
    assert checked(lockstep, tmp_path, "--format", f"junit={file}").code == 0
    assert ElementTree.parse(file).getroot().tag == "testsuites"
    assert not (run_in(tmp_path) / "junit.xml").exists()


def test_exit_code_stays_that_of_the_run(lockstep: Lockstep, tmp_path: Path) -> None:
    engine = ("--engine", "mutant:q4-0-nibbles-in-order", "--report", tmp_path / "reports")
    oracle = ("--oracle", "reference", "--format", "junit")
    wrong = lockstep("fuzz", "quants", "--type", "Q4_0", "--cases", 100, *engine, *oracle)
    assert wrong.code == 1
    root = ElementTree.parse(run_in(tmp_path) / "junit.xml").getroot()
    assert int(root.get("failures", "0")) > 0


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (["html"], "no format 'html' (known: junit, ctrf, markdown, badge)"),
        (["junt"], "junit"),
        (["junit="], "name a file"),
        (["junit=."], "is a folder"),
        (["junit=same", "ctrf=./same"], "the same file"),
    ],
)
def test_unwritable_format_is_refused_before_anything_runs(
    lockstep: Lockstep,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    given: list[str],
    says: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    ending = checked(lockstep, tmp_path, *(f"--format={text}" for text in given))
    assert ending.code == 2
    assert says in ending.err
    assert ending.err.count("\n") == 1
    assert not (tmp_path / "reports").exists()


def test_a_model_is_not_overwritten(lockstep: Lockstep, tmp_path: Path) -> None:
    mine = tmp_path / "mine.gguf"
    mine.write_bytes(builtin("f32", tmp_path).read_bytes())
    ending = checked(lockstep, tmp_path, "--format", f"junit={mine}")
    assert (ending.code, "is a model" in ending.err) == (2, True)
    assert mine.read_bytes() == builtin("f32", tmp_path).read_bytes()


def test_file_of_an_earlier_run_is_not_reported_for_this_run(
    lockstep: Lockstep, tmp_path: Path
) -> None:
    file = tmp_path / "junit.xml"
    assert checked(lockstep, tmp_path, "--format", f"junit={file}").code == 0
    assert file.exists()
    missing = lockstep("check", tmp_path / "none.gguf", *QUICK, "--format", f"junit={file}")
    assert missing.code == 2
    assert not file.exists()


def test_github_run_writes_the_job_summary_and_annotations(
    lockstep: Lockstep, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary = tmp_path / "step.md"
    summary.write_text("of an earlier step\n")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    wrong = ("--engine", "mutant:q4-0-nibbles-in-order", "--oracle", "reference", "--json")
    where = ("--report", tmp_path / "reports", "--format", "markdown")
    ending = lockstep(*FUZZ, *wrong, *where)
    assert ending.code == 1
    assert json.loads(ending.out)["exit_code"] == 1  # annotations are on standard error
    assert ending.err.startswith("::error title=Lockstep%3A Q4_0 fuzz-quants ")
    assert summary.read_text().startswith("of an earlier step\n## Lockstep: DIVERGENCE\n")


def test_run_without_github_writes_no_annotations(lockstep: Lockstep, tmp_path: Path) -> None:
    wrong = ("--engine", "mutant:q4-0-nibbles-in-order", "--oracle", "reference")
    ending = lockstep(*FUZZ, *wrong, "--report", tmp_path / "reports", "--format", "markdown")
    assert ending.code == 1
    assert "::" not in ending.err


def test_existing_report_is_converted(lockstep: Lockstep, tmp_path: Path) -> None:
    checked(lockstep, tmp_path)
    folder = run_in(tmp_path)
    assert lockstep("report", "convert", folder).code == 0
    assert lockstep("report", "convert", folder, f"--format=ctrf={tmp_path}/c.json").code == 0
    root = ElementTree.parse(folder / "junit.xml").getroot()
    tests = json.loads((tmp_path / "c.json").read_text())["results"]["tests"]
    assert int(root.get("tests", "0")) == len(tests) > 0


@pytest.mark.parametrize("text", [None, "", "no JSON\n", '{"kind": "footer"}\n'])
def test_file_other_than_a_report_is_refused_in_one_line(
    lockstep: Lockstep, tmp_path: Path, text: str | None
) -> None:
    if text is not None:
        (tmp_path / "report.jsonl").write_text(text)
    ending = lockstep("report", "convert", tmp_path)
    assert (ending.code, ending.err.count("\n")) == (2, 1)
    assert "report.jsonl" in ending.err


def test_readme_workflow_follows_the_schema_of_github(tmp_path: Path) -> None:
    page = Path(__file__).resolve().parents[3] / "README.md"
    if not page.exists():
        pytest.skip("no checkout: the README's workflow was not held against the schema")
    (workflow,) = re.findall(r"(?s)```yaml\n(.*?)```", page.read_text())
    held = [is_workflow(tmp_path / "w.yml", text) for text in (workflow, "on: push\njobs: 7\n")]
    assert held == [True, False]


def is_workflow(path: Path, text: str) -> bool:
    path.write_text(text)
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
    done = subprocess.run(
        [*command, "vendor.github-workflows", str(path)], capture_output=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr.decode()
    return done.returncode == 0
