"""A server that Lockstep starts for each model."""

import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lockstep.engine.errors import Unsupported
from lockstep.harness.blackbox.offers import why_not_asked
from lockstep.harness.cli.acid_checks import check_opens_files
from lockstep.harness.context.runner import Runner, is_outside
from lockstep.harness.http import served
from lockstep.harness.http.served import HOST, ServedSession, free_port, listens, words_of
from lockstep.harness.http.session import preset_for
from lockstep.harness.processes.engine_process import has_ended
from lockstep.harness.records import EXACT, Answered, Crashed, TimedOut
from tests.harness.check.test_check import plan_for, verdicts_of
from tests.models import builtin
from tests.places import PYTHONPATH

SERVER = """
import sys, time
from pathlib import Path
from tests.fake_server import serving
model, port, how = sys.argv[1:4]
print("a log", flush=True)
if how == "dies":
    sys.exit("no such head")
if how == "sleeps":
    time.sleep(60)
with serving(Path(model), port=int(port)):
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    found = tmp_path_factory.mktemp("served")
    (found / "server.py").write_text(SERVER)
    return found


@pytest.fixture(autouse=True)
def _our_modules(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)


def engine(folder: Path, how: str = "") -> str:
    return f"serve:{sys.executable} {folder / 'server.py'} {{model}} {{port}} '{how}'"


def test_server_is_compared_on_each_given_model(folder: Path) -> None:
    for name in ("f32", "q8_0"):
        model = builtin(name, folder)
        found = verdicts_of(plan_for(model, engine=engine(folder), suites=("logprobs",)))
        assert [v.status for v in found] == ["agreed"], found


def test_dead_server_is_restarted_and_ends_with_the_session(folder: Path) -> None:
    model = builtin("f32", folder)
    with Runner(time_limit=120).open(engine(folder), model, EXACT) as session:
        assert isinstance(session, ServedSession)
        first = session.ask("tokenize", [b"Once"])
        assert isinstance(first, Answered)
        pid, process = session.pid, session.process
        assert pid is not None
        assert process is not None
        os.kill(pid, 9)
        while not has_ended(process.process):
            time.sleep(0.01)
        again = session.ask("tokenize", [b"Once"])
        assert isinstance(again, Answered)
        assert (again.value, session.pid != pid) == (first.value, True)
        last = session.process
    assert last is not None
    assert has_ended(last.process)


@pytest.mark.parametrize("how", ["dies", "sleeps"])
def test_failed_start_of_a_server_is_reported_with_its_log(how: str, folder: Path) -> None:
    start = 120.0 if how == "dies" else 5.0
    with ServedSession(
        engine(folder, how),
        builtin("f32", folder),
        EXACT,
        time_limit=120,
        start_limit=start,
        memory_limit=None,
    ) as session:
        outcome = session.ask("tokenize", [b"Once"])
        assert session.process is None
    assert isinstance(outcome, Crashed if how == "dies" else TimedOut)
    if isinstance(outcome, Crashed):
        assert "exited with status 1 before it listened" in outcome.message
        assert "no such head" in outcome.log[-1]


def test_command_without_a_place_for_the_model_is_refused() -> None:
    for command, words in (
        ("serve:cat {model}", "no {port}, where it listens"),
        ("serve:cat {port}", "no {model}, the file"),
        ("serve:./nowhere {model} {port}", "no such file"),
        ("serve:cat '{model} {port}", "is not a command"),
    ):
        with pytest.raises(Unsupported, match=re.escape(words)):
            words_of(command)


def test_server_opens_other_models_with_its_start_preset() -> None:
    served = "serve:cat {model} {port}"
    assert (preset_for(served), is_outside(served)) == ("default", True)
    assert not why_not_asked(served, ("logprobs",))
    assert "serve:COMMAND" in why_not_asked("http://localhost:1", ("logprobs",))
    check_opens_files(served, None)


ABORTS = """
import os, socket, sys
with socket.create_server(("127.0.0.1", int(sys.argv[2]))) as server:
    while True:
        connection, _ = server.accept()
        if connection.recv(1000):
            held = bytearray(b"a" * (1 << 28))  # the kernel takes that back after the connection
            print("no such tensor in", sys.argv[1], flush=True)
            os.abort()
"""


def test_death_in_the_first_question_is_a_crash(
    tmp_path: Path,
) -> None:
    """The connection closes before the process has ended."""
    (tmp_path / "aborts.py").write_text(ABORTS)
    command = (
        f"serve:{shlex.join([sys.executable, str(tmp_path / 'aborts.py')])} {{model}} {{port}}"
    )
    model = tmp_path / "{port}.gguf"
    with Runner(time_limit=120).open(command, model, EXACT) as session:
        for _ in range(3):
            outcome = session.ask("tokenize", [b"Once"])
            assert isinstance(outcome, Crashed)
            assert outcome.message.endswith("was killed by SIGABRT during tokenize")
            assert outcome.log[-1] == f"no such tensor in {model}"


def test_connection_to_itself_counts_as_no_listener() -> None:
    real = socket.socket()
    with real, pytest.MonkeyPatch.context() as patch:
        real.bind((HOST, 0))
        port = real.getsockname()[1]
        real.connect((HOST, port))  # the kernel may choose this port by chance
        patch.setattr(socket, "create_connection", lambda *_, **__: real)
        assert not listens(port)


def test_port_that_is_taken_does_not_count_as_a_death_of_the_server(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A port may be in use without a listener, for example by the other end of a connection."""
    with socket.socket() as other:
        other.bind((HOST, 0))
        taken = other.getsockname()[1]
        ports = iter([taken, free_port()])
        monkeypatch.setattr(served, "free_port", lambda: next(ports))
        with Runner(time_limit=120).open(engine(folder), builtin("f32", folder), EXACT) as session:
            assert isinstance(session, ServedSession)
            outcome = session.ask("tokenize", [b"Once"])
            assert isinstance(outcome, Answered)
            assert session.port != taken


def test_death_of_a_server_without_a_free_port_has_a_reason(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as other:
        other.bind((HOST, 0))
        port = other.getsockname()[1]
        monkeypatch.setattr(served, "free_port", lambda: port)
        with Runner(time_limit=120).open(engine(folder), builtin("f32", folder), EXACT) as session:
            outcome = session.ask("tokenize", [b"Once"])
    assert isinstance(outcome, Crashed)
    assert f"before it listened; another process has its port, {port}" in outcome.message


WRAPPER = """
import os, subprocess, sys
child = subprocess.Popen([sys.executable, *sys.argv[1:]])
with open(sys.argv[-1], "w") as file:
    file.write(f"{os.getpid()} {child.pid}")
child.wait()
"""
ASKS = """
import sys, time
from pathlib import Path
from lockstep.harness.context.runner import Runner
from lockstep.harness.records import EXACT
session = Runner(time_limit=120).open(sys.argv[1], Path(sys.argv[2]), EXACT)
print(type(session.ask("tokenize", [b"Once"])).__name__, flush=True)
time.sleep(600)
"""


def runs(pid: int) -> bool:
    """Return True if the process runs. A zombie counts as ended, because a container may never reap
    it."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except (FileNotFoundError, ProcessLookupError):  # the process may end while its file is read
        return False


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_server_children_end_with_lockstep(
    how: signal.Signals, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "wrapper.py").write_text(WRAPPER)
    said = tmp_path / "pids"
    words = [sys.executable, str(tmp_path / "wrapper.py"), str(folder / "server.py")]
    command = f"serve:{shlex.join(words)} {{model}} {{port}} '' {said}"
    asks = [sys.executable, "-c", ASKS, command, str(builtin("f32", folder))]
    with subprocess.Popen(asks, stdout=subprocess.PIPE, text=True) as lockstep:
        assert lockstep.stdout is not None
        assert lockstep.stdout.readline() == "Answered\n"
        pids = [int(word) for word in said.read_text().split()]
        assert all(map(runs, pids))
        lockstep.send_signal(how)
    while any(map(runs, pids)):
        time.sleep(0.01)
