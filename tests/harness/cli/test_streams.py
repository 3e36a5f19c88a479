"""A failing stream does not end a command with exit code 1, which means a divergence."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.places import PYTHONPATH

CHECK = "check builtin:f32 --oracle reference --suite metadata --engine fast"
BROKEN = """
import lockstep.harness.cli

def app(**_):
    raise RecursionError("a defect")

lockstep.harness.cli.app = app
lockstep.harness.cli.main()
"""
NOT_LOADED = """
import sys

sys.modules["lockstep.harness.cli.acid"] = None
from lockstep.harness.entry import main

main()
"""


def run_in_shell(command: str, folder: Path, *, code: str = "") -> tuple[int, str]:
    """Run a command in a shell. Return its exit code and its text on standard error."""
    start = f"{sys.executable} -c '{code}'" if code else f"{sys.executable} -m lockstep"
    variables = {**os.environ, "PYTHONPATH": PYTHONPATH, "LOCKSTEP_TRACEBACK": "1"}
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {start} {command}"],
        cwd=folder,
        env=variables,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("command", "code"),
    [
        (f"{CHECK} >&-", 0),
        (f"{CHECK} 2>&-", 0),
        (f"{CHECK} >/dev/full", 2),
        (f"{CHECK} 2>/dev/full", 0),
        (f"{CHECK} >/dev/full 2>/dev/full", 2),
        (f"{CHECK} --json >&-", 0),
        ("doctor --nonsense 2>/dev/full", 2),
        ("doctor --nonsense 2>&-", 2),
        ("--help >/dev/full", 2),
        ("--help >&-", 0),
        ("protocol | true", 141),
        ("check nonsense.gguf 2> >(true)", 2),
    ],
)
def test_command_ends_with_its_code_or_2_if_a_stream_fails(
    command: str, code: int, tmp_path: Path
) -> None:
    found, words = run_in_shell(command, tmp_path)
    assert found == code, words
    assert "Traceback" not in words
    assert "Exception ignored" not in words


def test_check_writes_no_report_into_a_closed_stream(tmp_path: Path) -> None:
    """An earlier version gave the descriptor of standard output to the first file that it opened,
    so printed text went into this file."""
    assert run_in_shell(f"{CHECK} <&- >&- 2>&-", tmp_path) == (0, "")
    (report,) = tmp_path.rglob("report.jsonl")
    assert all(line.startswith('{"kind":') for line in report.read_text().splitlines())


@pytest.mark.parametrize(
    ("code", "ending"), [(BROKEN, ""), (NOT_LOADED, "2>/dev/full"), (BROKEN, "2>&-")]
)
def test_defect_of_lockstep_ends_with_exit_code_2(code: str, ending: str, tmp_path: Path) -> None:
    found, words = run_in_shell(ending, tmp_path, code=code)
    assert found == 2
    assert ending or "Traceback" in words
