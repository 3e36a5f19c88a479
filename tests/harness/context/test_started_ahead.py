"""A user's engine that is opened for several models in sequence is started in advance, without an
effect on its answers."""

import os
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lockstep.harness.context.runner import IsolatedSession, Runner, Session
from lockstep.harness.processes.spare import SPARE
from lockstep.harness.protocol.session import ProgramSession
from lockstep.harness.records import EXACT, Answered, Unanswerable
from tests.models import builtin
from tests.places import EXAMPLES

EXAMPLE = EXAMPLES / "engine.py"
ENGINE = """
import os
from pathlib import Path
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.records import EngineInfo
{at_import}
class Mine(Adapter):
    def describe(self):
        version = os.environ.get("PLACE", "1")
        return EngineInfo(engine="mine", version=version, settings=self.settings)
    def tokenize(self, text, **how):
        return [len(text)]
    def close(self):
        {at_close}
"""


@pytest.fixture(autouse=True)
def started_ahead() -> Iterator[None]:
    with SPARE.keep():
        yield


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return builtin("f32", tmp_path_factory.mktemp("models"))


def engine(folder: Path, at_import: str = "", at_close: str = "pass") -> str:
    path = folder / "mine.py"
    path.write_text(ENGINE.format(at_import=at_import, at_close=at_close))
    return f"adapter:{path}"


def program() -> str:
    return shlex.join([sys.executable, str(EXAMPLE)])


def opened(adapter: str, model: Path | None = None) -> Session:
    """Return a session with an engine that has answered, so that its process runs."""
    session = Runner(time_limit=60).open(adapter, model, EXACT)
    outcome = session.ask("describe")
    assert isinstance(outcome, Answered), outcome
    return session


def pid_of(session: Session) -> int | None:
    assert isinstance(session, IsolatedSession | ProgramSession)
    return session.pid


def pids(adapter: str, times: int, model: Path | None = None) -> list[int | None]:
    """Return the process ids of sessions that are opened one after the other."""
    found = []
    for _ in range(times):
        with opened(adapter, model) as session:
            found.append(pid_of(session))
    return found


def waiting() -> int:
    assert SPARE.waiting is not None
    return SPARE.waiting.process.pid


def test_first_engine_has_no_spare_worker(tmp_path: Path) -> None:
    with opened(engine(tmp_path)):
        assert SPARE.waiting is None


@pytest.mark.parametrize("kind", ["class", "program"])
def test_third_engine_starts_while_the_second_runs(tmp_path: Path, model: Path, kind: str) -> None:
    adapter = engine(tmp_path) if kind == "class" else program()
    first, second = pids(adapter, 2, model)
    third = waiting()
    assert pids(adapter, 1, model) == [third]
    assert len({first, second, third, waiting()}) == 4


def test_runner_replaces_a_worker_that_died_early(tmp_path: Path) -> None:
    adapter = engine(tmp_path)
    pids(adapter, 2)
    os.kill(dead := waiting(), signal.SIGKILL)
    os.waitid(os.P_PID, dead, os.WEXITED | os.WNOWAIT)  # the process is not reaped
    assert pids(adapter, 1) != [dead]


def test_worker_that_failed_to_load_in_advance_is_started_again(tmp_path: Path) -> None:
    """The user's module would seem impossible to import if Lockstep did not start the worker
    again."""
    lock = tmp_path / "lock"
    adapter = engine(tmp_path, f"open({str(lock)!r}, 'x')", f"os.remove({str(lock)!r})")
    assert len(set(pids(adapter, 4))) == 4


def test_worker_that_can_never_load_says_so_each_time(tmp_path: Path) -> None:
    adapter = engine(tmp_path, "raise OSError('no such device')")
    for _ in range(3):
        with Runner(time_limit=60).open(adapter, None, EXACT) as session:
            outcome = session.ask("describe")
        assert isinstance(outcome, Unanswerable)
        assert "no such device" in outcome.message


def test_worker_started_in_another_environment_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    adapter = engine(tmp_path)
    pids(adapter, 2)
    before = waiting()
    monkeypatch.setenv("PLACE", "elsewhere")
    with opened(adapter) as session:
        assert pid_of(session) != before
        outcome = session.ask("describe")
    assert isinstance(outcome, Answered)
    assert outcome.value.version == "elsewhere"


def test_worker_with_another_memory_limit_is_not_used(tmp_path: Path) -> None:
    adapter = engine(tmp_path)
    pids(adapter, 2)
    before = waiting()
    with Runner(time_limit=60, memory_limit=1 << 30).open(adapter, None, EXACT) as session:
        assert isinstance(session.ask("describe"), Answered)
        assert pid_of(session) != before


def test_last_spare_worker_ends_with_the_run(tmp_path: Path) -> None:
    with SPARE.keep():
        pids(engine(tmp_path), 2)
        last = waiting()
        os.kill(last, 0)
    with pytest.raises(ProcessLookupError):
        os.kill(last, 0)


def test_fork_leaves_its_parents_workers_alone(tmp_path: Path) -> None:
    adapter = engine(tmp_path)
    pids(adapter, 2)
    before = waiting()
    child = os.fork()
    if not child:
        try:
            with opened(adapter) as session:
                os._exit(int(pid_of(session) == before))
        finally:
            os._exit(2)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    assert pids(adapter, 1) == [before]
