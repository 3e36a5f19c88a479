"""All descendants of an engine end with it, in any session, and however Lockstep ends."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from lockstep.harness.context.runner import Runner
from lockstep.harness.parallel.children import Done, Said, Say, side_by_side
from lockstep.harness.processes.engine_process import EngineProcess
from lockstep.harness.processes.kept_process import KeptProcess
from lockstep.harness.processes.spare import SPARE
from lockstep.harness.records import EXACT
from tests.harness.http.test_served import runs
from tests.models import builtin
from tests.places import EXAMPLES

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")

# each process writes its id into the folder, in the way that its name says
STARTS = """
import os, signal, subprocess, sys, time
from pathlib import Path

FOLDER = Path({folder!r})


def stay(name):
    part = FOLDER / f"{{os.getpid()}}.part"
    part.write_text(name)
    part.rename(FOLDER / str(os.getpid()))
    time.sleep(600)


def start(name, sessions=0, forks=1, ignored=(), variables=None):
    if os.fork():
        return
    for fork in range(forks):
        if sessions:
            os.setsid()
        if fork + 1 < forks and os.fork():
            os._exit(0)
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    if variables is not None:
        os.environ.clear()
    os.closerange(0, 100)
    stay(name)


def start_all():
    start("a child")
    start("in a session of its own", sessions=1)
    start("a daemon", sessions=1, forks=2)
    start("forked four times", sessions=1, forks=4)
    start("deaf", sessions=1, ignored=(signal.SIGTERM, signal.SIGHUP, signal.SIGINT))
    start("without variables", sessions=1, forks=2, variables={{}})
    while len([p for p in FOLDER.iterdir() if p.name.isdecimal()]) < 6:
        time.sleep(0.01)
"""
N_STARTED = 6


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    found = tmp_path / "pids"
    found.mkdir()
    yield found
    for path in found.iterdir():  # only after a failed test
        if runs(int(path.name)):
            os.kill(int(path.name), signal.SIGKILL)


def left_in(folder: Path) -> list[str]:
    """Return the names of processes that still run, after a short wait for processes that are about
    to end."""
    deadline = time.monotonic() + 10
    while True:
        left = [path.read_text() for path in folder.iterdir() if runs(int(path.name))]
        if not left or time.monotonic() > deadline:
            return left
        time.sleep(0.01)


def script(folder: Path, ending: str) -> list[str]:
    path = folder.parent / "engine.py"
    path.write_text(STARTS.format(folder=str(folder)) + f"start_all()\n{ending}\n")
    return [sys.executable, str(path)]


def started(command: list[str]) -> EngineProcess:
    process = KeptProcess(command, None, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdin is not None
    return EngineProcess(process, process.stdout, process.stdin)


def wait_for(folder: Path) -> None:
    deadline = time.monotonic() + 60
    while sum(path.name.isdecimal() for path in folder.iterdir()) < N_STARTED:
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.parametrize("to_keeper", ["signal.SIGCONT", "signal.SIGSTOP", "signal.SIGKILL"])
def test_kill_ends_all_descendants(folder: Path, to_keeper: str) -> None:
    process = started(script(folder, f"os.kill(os.getppid(), {to_keeper})\ntime.sleep(600)"))
    wait_for(folder)
    process.kill()
    assert [p.read_text() for p in folder.iterdir() if runs(int(p.name))] == []


def test_dismissed_engine_ends_with_all_descendants(folder: Path) -> None:
    process = started(script(folder, "sys.stdin.read()"))
    wait_for(folder)
    process.dismiss()
    assert left_in(folder) == []


@pytest.mark.parametrize(
    ("ending", "how"),
    [
        ("sys.exit(7)", "exited with status 7"),
        ("os.abort()", "was killed by SIGABRT"),
        ("os.kill(os.getpid(), 9)", "was killed by SIGKILL"),
        ("os.kill(os.getpid(), 15)", "was killed by SIGTERM"),
        ("os.kill(os.getpid(), 40)", "was killed by signal 40"),
        ("os.kill(0, 9)", "was killed by SIGKILL"),
    ],
)
def test_ending_engine_takes_its_descendants_along(ending: str, how: str, folder: Path) -> None:
    process = started(script(folder, ending))
    assert process.death() == how
    assert left_in(folder) == []


PARENT = """
import subprocess, sys, time
from lockstep.harness.processes.kept_process import KeptProcess
KeptProcess(sys.argv[1:], None, stdin=subprocess.DEVNULL)
time.sleep(600)
"""


def test_killed_parent_leaves_no_descendant(folder: Path) -> None:
    command = [sys.executable, "-c", PARENT, *script(folder, "time.sleep(600)")]
    with subprocess.Popen(command) as parent:
        wait_for(folder)
        parent.kill()
    assert left_in(folder) == []


ADAPTER = """
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.records import EngineInfo

start_all()


class Mine(Adapter):
    def describe(self):
        return EngineInfo(engine="mine", version="1", settings=self.settings)
"""
PROGRAM = """
import runpy
sys.argv = [{example!r}]
start_all()
runpy.run_path(sys.argv[0], run_name="__main__")
"""
EXAMPLE = EXAMPLES / "engine.py"


def open_twice(adapter: str, model: Path, *, close: bool, say: Say) -> None:
    """Open an engine twice. For the second session, the next process is started in advance."""
    sessions = []
    for _ in range(2):
        sessions.append(Runner(time_limit=60).open(adapter, model, EXACT))
        say(type(sessions[-1].ask("describe")).__name__)
        if close:
            sessions[-1].close()
    say(SPARE.waiting is not None)


@pytest.mark.parametrize("close", [True, False])
@pytest.mark.parametrize("kind", ["class", "program"])
def test_fork_ends_its_engines_before_it_ends(
    kind: str, folder: Path, tmp_path: Path, *, close: bool
) -> None:
    """Engines that a check's process had started in advance continued to run in an earlier
    version."""
    body = ADAPTER if kind == "class" else PROGRAM.format(example=str(EXAMPLE))
    path = tmp_path / "mine.py"
    path.write_text(STARTS.format(folder=str(folder)) + body)
    adapter = f"adapter:{path}" if kind == "class" else shlex.join([sys.executable, str(path)])
    work = partial(open_twice, adapter, builtin("f32", tmp_path), close=close)
    with SPARE.keep():
        events = [event for _, event in side_by_side([lambda say: work(say=say)], 1)]
    assert events == [Said("Answered"), Said("Answered"), Said(True), Done()]
    assert [p.read_text() for p in folder.iterdir() if runs(int(p.name))] == []


@pytest.mark.parametrize("to_keeper", ["signal.SIGCONT", "signal.SIGSTOP"])
def test_killed_fork_leaves_no_engine(to_keeper: str, folder: Path, tmp_path: Path) -> None:
    code = STARTS.format(folder=str(folder)) + ADAPTER
    (tmp_path / "mine.py").write_text(f"{code}\nos.kill(os.getppid(), {to_keeper})\n")
    adapter, model = f"adapter:{tmp_path / 'mine.py'}", builtin("f32", tmp_path)

    def work(say: Say) -> None:
        open_twice(adapter, model, close=False, say=say)
        time.sleep(600)

    with SPARE.keep():
        for _, event in side_by_side([work], 1):
            if event == Said(True):
                break
    assert left_in(folder) == []
