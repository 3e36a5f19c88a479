"""Installation for others: the GitHub Action, the Dockerfile, the build of llama.cpp."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from lockstep.harness.adapters.llama_cpp.identity import VERSION
from tests.places import ROOT

ACTION = ROOT / "action.yml"
SAYS = {"page": "report.html", "divergences": [{"summary": "one row\nis off"}, {"summary": "two"}]}

pytestmark = pytest.mark.skipif(not ACTION.exists(), reason="no checkout: it has no action.yml")


def is_valid(path: Path, kind: str = "actions") -> bool:
    """Return True if a file follows GitHub's schema of actions or workflows."""
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema"]
    command += [f"vendor.github-{kind}", str(path)]
    done = subprocess.run(command, capture_output=True, check=False)
    assert done.returncode in (0, 1), done.stderr.decode()
    return done.returncode == 0


def test_action_follows_the_schema_of_github(tmp_path: Path) -> None:
    wrong = tmp_path / "action.yml"
    wrong.write_text(ACTION.read_text().replace("using: composite", "using: whatever"))
    assert [is_valid(ACTION), is_valid(wrong)] == [True, False]


def test_nightly_workflow_follows_the_schema_of_github() -> None:
    assert is_valid(ROOT / ".github" / "workflows" / "matrix.yml", "workflows")


def step_of(name: str) -> dict[str, Any]:
    steps = yaml.safe_load(ACTION.read_text())["runs"]["steps"]
    (step,) = (each for each in steps if each.get("id") == name)
    return dict(step)


def run_step(step: dict[str, Any], variables: dict[str, str]) -> tuple[int, list[str]]:
    """Run a step as GitHub does; return its exit code and its outputs."""
    outputs = Path(variables["RUNNER_TEMP"]) / "outputs"
    done = subprocess.run(
        ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]],
        env=os.environ | variables | {"GITHUB_OUTPUT": str(outputs)},
        check=False,
    )
    return done.returncode, outputs.read_text().splitlines()


def test_action_keeps_the_build_of_the_pinned_version(tmp_path: Path) -> None:
    variables = {"RUNNER_TEMP": str(tmp_path), "GITHUB_ACTION_PATH": str(ROOT)}
    assert run_step(step_of("pin"), variables) == (0, [f"of=llama-cpp-python=={VERSION}"])


def run_check(folder: Path, code: int, summary: dict[str, Any] | None) -> tuple[int, list[str]]:
    """Run the action's last step with a fake `lockstep` that has this exit code; return the step's
    exit code and outputs."""
    program = folder / "lockstep" / "bin" / "lockstep"
    program.parent.mkdir(parents=True)
    (folder / "summary").write_text(json.dumps(summary) if summary else "")
    lines = ('printf "%s\\n" "$@" > "$RUNNER_TEMP/given"', 'cat "$RUNNER_TEMP/summary"')
    program.write_text("\n".join(("#!/bin/sh", *lines, f"exit {code}\n")))
    program.chmod(0o755)
    step = step_of("check")
    given = {"ENGINE": "./my engine", "MODEL": "my model.gguf", "SUITES": "logits trace"}
    assert set(given) == set(step["env"])
    return run_step(step, given | {"RUNNER_TEMP": str(folder)})


@pytest.mark.parametrize(
    ("code", "summary", "outputs"),
    [
        (
            0,
            {**SAYS, "divergences": []},
            ["passed=true", "first-divergence=", "report=report.html"],
        ),
        (1, SAYS, ["passed=false", "first-divergence=one row is off", "report=report.html"]),
        (2, None, ["passed=false"]),
    ],
)
def test_action_exits_like_check_and_names_the_difference(
    code: int, summary: dict[str, Any] | None, outputs: list[str], tmp_path: Path
) -> None:
    assert run_check(tmp_path, code, summary) == (code, outputs)
    given = (tmp_path / "given").read_text().splitlines()
    assert given[:3] == ["check", "--engine", "./my engine"]
    assert given[-5:] == ["--suite", "logits", "--suite", "trace", "my model.gguf"]
