"""Processes that run in parallel do not compete for processors."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.harness.parallel.works import Processes, as_done
from lockstep.harness.processes.side_by_side import BLAS, interrupts_later


def blas_threads(_: int) -> str | None:
    return os.environ.get(BLAS)


@pytest.mark.parametrize(("given", "found"), [(None, "1"), ("3", "3")])
def test_process_has_one_blas_thread_by_default(
    given: str | None, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(BLAS, raising=False)
    if given:
        monkeypatch.setenv(BLAS, given)
    assert list(as_done(blas_threads, range(2), Processes(2))) == [found, found]
    assert os.environ.get(BLAS) == given


def pid(_: int) -> int:
    return os.getpid()


POOL = """
import os, time
from lockstep.harness.parallel.works import Processes, as_done
from tests.harness.processes.test_processes import pid
for found in as_done(pid, range(2), Processes(1)):
    print(found, flush=True)
    time.sleep(600)
"""


def is_there(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.skipif(sys.platform == "win32", reason="no kill -9 here: orphans were not looked for")
def test_killed_parent_leaves_no_process_behind(tmp_path: Path) -> None:
    script = tmp_path / "pool.py"
    script.write_text(POOL)
    root = Path(__file__).resolve().parents[3]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        assert is_there(child)
        parent.send_signal(signal.SIGKILL)
    until = time.monotonic() + 60
    while is_there(child) and time.monotonic() < until:
        time.sleep(0.05)
    assert not is_there(child)


@pytest.fixture
def interrupted() -> Iterator[None]:
    """Handle interrupts as a process in a terminal does. Background processes of a shell would
    ignore them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupted")
def test_interrupt_during_a_start_waits_and_never_reaches_the_process() -> None:
    ask = "import signal; print(signal.pthread_sigmask(signal.SIG_BLOCK, []))"
    said: list[str] = []

    def start() -> None:
        with interrupts_later():
            os.kill(os.getpid(), signal.SIGINT)
            found = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True)
            said.append(found.stdout)

    with pytest.raises(KeyboardInterrupt):
        start()
    assert "SIGINT" in said[0]
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with pytest.raises(KeyboardInterrupt):  # afterwards, signals have their usual effect
        os.kill(os.getpid(), signal.SIGINT)
