"""The temporary folder of a command: removed at its end, or by the next command."""

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from lockstep.harness.processes.temporary import one_temporary_folder

COMMAND = """
import os, tempfile, time
from pathlib import Path
from lockstep.harness.processes.temporary import one_temporary_folder
with one_temporary_folder():
    (Path(tempfile.gettempdir()) / "large.gguf").write_bytes(b"x")
    if not os.fork():
        time.sleep(60)
    print("ready", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return tmp_path


def test_folder_of_a_killed_command_is_removed_by_the_next(folder: Path) -> None:
    command = [sys.executable, "-c", COMMAND]
    with subprocess.Popen(command, stdout=subprocess.PIPE, start_new_session=True) as running:
        assert running.stdout is not None
        assert running.stdout.readline() == b"ready\n"
        (left,) = folder.iterdir()
        with one_temporary_folder():
            assert left.is_dir()  # its command is alive
        os.kill(running.pid, signal.SIGKILL)
        running.wait()
        with one_temporary_folder():
            assert left.is_dir()  # a fork of its command is alive
        os.killpg(running.pid, signal.SIGKILL)
    while left.is_dir():  # the kernel may need time to end the fork
        with one_temporary_folder():
            pass
    assert list(folder.iterdir()) == []


def test_folders_without_a_lock_and_links_stay(folder: Path) -> None:
    (folder / "lockstep-without-a-lock").mkdir()
    (folder / "elsewhere").mkdir()
    (folder / "lockstep-link").symlink_to(folder / "elsewhere")
    (folder / "elsewhere" / ".lock").touch()
    with one_temporary_folder():
        pass
    names = {path.name for path in folder.iterdir()}
    assert names == {"lockstep-without-a-lock", "elsewhere", "lockstep-link"}
