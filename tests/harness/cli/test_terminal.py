"""A terminal shows names exactly as they are in the file, although rich reads markup."""

import os
import pty
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import typer

from lockstep.harness.cli.terminal import Terminal
from lockstep.harness.records import Verdict
from lockstep.harness.report.text import explain

NAMES = ["[red]blk.0[/red]", "[/x]", "[link=http://x]a", ":smile:", "[bold", "\x1b[31m", "é" * 300]
SHOW = """
import sys, time
from lockstep.harness.cli.terminal import Terminal
from lockstep.harness.records import Verdict, StageText
name = sys.argv[1]
with Terminal(quiet=False) as out:
    out.progress(name, StageText.of_suite("logits"))
    time.sleep(0.2)
    out.progress(name, name)
    time.sleep(0.2)
    same = {"suite": "logits", "case": name, "summary": name, "key": "", "repro": ""}
    out.verdict(Verdict(status="diverged", **same))
    out.line(name)
"""


def on_a_terminal(code: str, args: Sequence[str]) -> tuple[int, str]:
    """Run a program on a pseudo-terminal of 80 columns. Return its output and its exit code."""
    ours, theirs = pty.openpty()
    variables = {**os.environ, "TERM": "xterm", "COLUMNS": "80"}
    process = subprocess.Popen(
        [sys.executable, "-c", code, *args], stdout=theirs, stderr=theirs, env=variables
    )
    os.close(theirs)
    said = b""
    with suppress(OSError):  # Linux reports a closed other side with this error
        while piece := os.read(ours, 1 << 16):
            said += piece
    os.close(ours)
    return process.wait(), said.decode()


@pytest.mark.parametrize("name", NAMES)
def test_name_from_a_file_is_shown_unchanged(name: str) -> None:
    code, said = on_a_terminal(SHOW, [name])
    assert code == 0, said
    shown = name.encode("unicode_escape").decode() if "\x1b" in name else name
    whole = said.replace("\r\n", "")
    assert whole.count(shown) >= 2  # in the verdict, and in the result
    if len(name) < 40:  # a longer name is cut to the width of the terminal
        assert f"{shown}: suite logits" in said
        assert f"{shown}: {shown}" in said
    else:
        assert 0 < said.partition("\r")[0].count("é") < 80


def test_table_shows_a_name_unchanged(capsys: pytest.CaptureFixture[str]) -> None:
    from lockstep.harness.cli.tables import suite_table
    from lockstep.harness.records import Verdict

    verdicts = [
        Verdict(suite="logits", case=name, status="agreed", summary="", key="", repro="")
        for name in NAMES[:5]
    ]
    out = Terminal(quiet=True)
    out.out.print(suite_table(verdicts))
    said = capsys.readouterr().out
    assert all(name in said for name in NAMES[:5])


PRINT = """
import lockstep.harness.cli
from lockstep.harness.cli.terminal import Terminal

def app(**_):
    with Terminal(quiet=True) as out:
        out.out.print("a table")

lockstep.harness.cli.app = app
lockstep.harness.cli.main()
"""


def test_closed_pipe_is_not_reported_as_a_divergence() -> None:
    """rich would end the process with exit code 1."""
    ours, theirs = os.pipe()
    os.close(ours)
    process = subprocess.run([sys.executable, "-c", PRINT], stdout=theirs)
    os.close(theirs)
    assert process.returncode == 141


@pytest.mark.parametrize("word", ["##[error]no", "##vso[task.setvariable variable=PATH]no"])
def test_ci_output_has_commands_only_on_request(
    word: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Output in lines is for people, and may contain engines' names. Output as data is for
    programs."""
    with Terminal(quiet=True) as out:
        out.line(word)
        assert word not in capsys.readouterr().out
        out.data(word)
        assert capsys.readouterr().out == f"{word}\n"


def test_engine_log_cannot_start_a_workflow_command() -> None:
    words = "first\n::error file=x.py::no"
    same = {"suite": "logits", "case": "m", "summary": words, "key": "", "repro": ""}
    lines = explain(Verdict(status="crashed", **same)).splitlines()
    assert lines == ["m logits: first", "  | ::error file=x.py::no"]


def test_interrupted_run_names_the_place_of_its_findings(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    folder = tmp_path / "a run"
    out = Terminal(quiet=False)
    out.open_report(folder)
    with pytest.raises(typer.Exit) as ended, out:
        raise KeyboardInterrupt
    assert ended.value.exit_code == 130
    words = capsys.readouterr().err
    assert f"{folder}/report.jsonl has the findings so far" in words
    assert f"lockstep report '{folder}'" in words
