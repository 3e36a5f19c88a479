"""The last lines of a run name the engines that were compared, and the engines that were not
compared."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.cli.terminal import Terminal
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.records import EngineInfo, Verdict
from lockstep.harness.runs.result import RunResult

NAMES = ("llama.cpp", "mine")


def verdict(suite: str, **changes: Any) -> Verdict:
    known = {"suite": suite, "case": "m.gguf", "status": "agreed", "summary": "x"}
    return Verdict(**(known | changes))


SHADOW = verdict("shadow", about="llama.cpp")


def said(
    capfd: pytest.CaptureFixture[str], *verdicts: Verdict, as_json: bool = False, code: int = 0
) -> str:
    engines = tuple(EngineInfo(engine=name, version="1") for name in NAMES)
    result = RunResult(code=code, folder=Path("r"), verdicts=list(verdicts), engines=engines)
    Terminal(quiet=True, as_json=as_json).summary(result)
    return capfd.readouterr().out


def test_table_row_about_one_engine_names_this_engine(capfd: pytest.CaptureFixture[str]) -> None:
    text = said(capfd, SHADOW, verdict("logits"))
    assert [line.split()[1:-1] for line in text.splitlines()[1:3]] == [
        ["shadow", "(llama.cpp)"],
        ["logits"],
    ]
    assert "conform: everything compared agrees in" in text


def test_run_without_comparisons_of_the_subject_says_so(
    capfd: pytest.CaptureFixture[str],
) -> None:
    text = said(capfd, SHADOW, verdict("logits", status="excused"))
    assert "agrees, but for 1 known or explained; only llama.cpp was compared" in text
    assert "and nothing about mine" in text
    assert "about mine" not in said(capfd, SHADOW, verdict("logits"))
    assert "about mine" not in said(capfd, SHADOW, verdict("shadow", about="mine"))


def test_run_without_a_verdict_on_the_subject_is_incomplete(
    capfd: pytest.CaptureFixture[str],
) -> None:
    lacking = [verdict(suite, status="not-applicable") for suite in ("logits", "trace")]
    assert exit_code([*lacking, SHADOW]) == 3
    assert exit_code([*lacking, SHADOW, verdict("metadata")]) == 0
    assert exit_code([SHADOW]) == 0  # --suite shadow: the user asked for nothing else
    assert exit_code([*lacking, replace(SHADOW, status="diverged")]) == 1
    text = said(capfd, *lacking, SHADOW, code=3)
    assert "INCOMPLETE" in text
    assert "; nothing was compared about mine; in" in text


def test_json_names_the_engine_of_each_verdict(capfd: pytest.CaptureFixture[str]) -> None:
    wrong = verdict("shadow", status="diverged", about="llama.cpp", key="k")
    value = json.loads(said(capfd, wrong, SHADOW, as_json=True, code=1))
    assert value["about"] == {"llama.cpp": {"diverged": 1, "agreed": 1}}
    assert value["nothing_about"] == ["mine"]
    assert value["divergences"][0]["about"] == "llama.cpp"


def test_engine_name_of_a_verdict_cannot_control_a_terminal(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert "\x1b" not in said(capfd, verdict("shadow", about="\x1b[2J"))
