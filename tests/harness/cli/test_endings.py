"""A command that a signal ends removes its temporary files."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.places import PYTHONPATH

LOCKSTEP = [sys.executable, "-m", "lockstep.harness.cli"]
PATIENCE = 120.0  # seconds, enough for a busy machine


def ended_by(number: int, args: Sequence[str], folder: Path, pattern: str) -> tuple[int, str]:
    """Send the signal when a temporary file matches the pattern. Return the exit code and the
    output."""
    temporary = folder / "tmp"
    temporary.mkdir()
    variables = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": PYTHONPATH}
    process = subprocess.Popen(
        [*LOCKSTEP, *args], cwd=folder, env=variables, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + PATIENCE
    while not any(temporary.glob(pattern)):
        assert process.poll() is None, "it ended before it was asked to"
        assert time.monotonic() < deadline, "it makes no temporary file"
        time.sleep(0.01)
    process.send_signal(number)
    words = process.communicate(timeout=PATIENCE)[1]
    assert list(temporary.iterdir()) == []
    return process.returncode, words


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_check_leaves_no_model_behind(number: signal.Signals, tmp_path: Path) -> None:
    args = ["check", "--oracle", "reference"]
    code, words = ended_by(number, args, tmp_path, "lockstep-*/lockstep-*/*.gguf")
    assert code == 128 + number
    assert "interrupted" in words
    assert "Traceback" not in words


def test_campaign_processes_leave_nothing_behind(tmp_path: Path) -> None:
    args = ["fuzz", "tokens", "--oracle", "reference", "-j", "2", "--cases", "1000000"]
    code, words = ended_by(signal.SIGTERM, args, tmp_path, "*/*/lockstep-*/*.gguf")
    assert code == 128 + signal.SIGTERM
    assert "Traceback" not in words


ASKED_WHILE_A_CLASS_IS_MADE = """
import lockstep.harness.cli

def app(**_):
    exec("import os, signal; os.kill(os.getpid(), signal.SIGTERM); [0 for _ in range(9)]")

lockstep.harness.cli.app = app
lockstep.harness.cli.main()
"""


def test_process_ended_during_an_import_exits_with_that_code(tmp_path: Path) -> None:
    """Dataclasses are created by exec(). When an interrupt arrived during exec(), Python once ended
    by SIGINT."""
    (tmp_path / "asked.py").write_text(ASKED_WHILE_A_CLASS_IS_MADE)
    variables = {**os.environ, "PYTHONPATH": os.pathsep.join((PYTHONPATH, str(tmp_path)))}
    command = [sys.executable, "-m", "asked"]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (128 + signal.SIGTERM, "lockstep: interrupted\n")


GONE = """
import os, pathlib, sys

os.rmdir(pathlib.Path.cwd())
os.execv(sys.executable, [sys.executable, "-P", "-m", "lockstep.harness.cli", *sys.argv[1:]])
"""


def test_deleted_working_folder_is_not_reported_as_a_divergence(tmp_path: Path) -> None:
    """A traceback with exit code 1 would read as a divergence in a CI."""
    folder = tmp_path / "gone"
    folder.mkdir()
    command = [sys.executable, "-c", GONE, "check", "builtin:f32", "--report", str(tmp_path)]
    variables = {**os.environ, "PYTHONPATH": PYTHONPATH}
    done = subprocess.run(
        command, cwd=folder, env=variables, capture_output=True, text=True, check=False
    )
    words = "lockstep: the current folder has been deleted\n"
    assert (done.returncode, done.stderr) == (2, words)


NO_TEMPLATE = """
import lockstep.harness.asking.template as template
import lockstep.harness.cli

class Template:
    def __init__(self):
        raise BlockingIOError(11, "Resource temporarily unavailable")

template.Template = Template
lockstep.harness.cli.main()
"""


def test_workers_start_without_a_template_if_none_can_be_started(tmp_path: Path) -> None:
    variables = {**os.environ, "PYTHONPATH": PYTHONPATH}
    command = [sys.executable, "-c", NO_TEMPLATE, "check", "builtin:f32", "--suite", "dequant"]
    done = subprocess.run(
        command, cwd=tmp_path, env=variables, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("most", [6, 7, 8, 9, 10, 14])
def test_command_with_a_low_file_limit_leaves_nothing_behind(most: int, tmp_path: Path) -> None:
    """The limit leaves fewer open files than the usual removal of a temporary folder needs."""
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    variables = {**os.environ, "TMPDIR": str(temporary), "PYTHONPATH": PYTHONPATH}
    command = shlex.join([*LOCKSTEP, "check", "builtin:f32", "--suite", "metadata"])
    done = subprocess.run(
        ["bash", "-c", f"ulimit -n {most}; {command}"],
        cwd=tmp_path,
        env=variables,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "Too many open files" in done.stderr
    assert "Traceback" not in done.stderr
    assert list(temporary.iterdir()) == []
