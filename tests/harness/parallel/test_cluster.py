"""A Dask cluster of two workers, of which one is killed. The cluster's verdicts equal the verdicts
of a single process."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from http.server import HTTPServer, SimpleHTTPRequestHandler
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from lockstep.harness.asking.environments import LIBRARIES
from lockstep.harness.check.check import BadInput
from lockstep.harness.fuzzers.base import FuzzPlan, run_campaign
from lockstep.harness.parallel.children import Event, Said, Work
from lockstep.harness.parallel.cluster import DaskCluster, executor_for, on_cluster
from lockstep.harness.parallel.cluster_worker import Needs, source_digest
from lockstep.harness.parallel.works import Executor, Forks, events_of
from lockstep.harness.runs.run import Listener, run_plans
from tests.harness.check.test_check import plan_for
from tests.models import builtin
from tests.parallel_works import (
    LosesAWork,
    LosesWhatWasSaid,
    SaysVariable,
    Steps,
    Stumbling,
    check_death,
    check_executor,
)
from tests.places import PYTHONPATH, ROOT

ALONE = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
WORKER = ("--no-nanny", "--nthreads", "1", "--memory-limit", "0", "--no-dashboard")


@dataclass
class Nodes:
    """A scheduler and workers, each in its own process."""

    folder: Path
    scheduler: "subprocess.Popen[bytes]"
    workers: list["subprocess.Popen[bytes]"]

    @property
    def address(self) -> str:
        return str(json.loads((self.folder / "scheduler.json").read_text())["address"])

    def add_worker(self) -> None:
        words = ["worker", "--scheduler-file", str(self.folder / "scheduler.json"), *WORKER]
        self.workers.append(node(self.folder, *words, "--local-directory", str(self.folder)))

    def replace_the_dead(self) -> None:
        self.workers = [worker for worker in self.workers if worker.poll() is None]
        while len(self.workers) < 2:
            self.add_worker()


def node(folder: Path, *words: str) -> "subprocess.Popen[bytes]":
    environment = {**os.environ, **ALONE, "PYTHONPATH": PYTHONPATH}
    with (folder / f"{words[0]}.log").open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "dask", *words],
            cwd=ROOT,
            env=environment,
            stdout=log,
            stderr=log,
        )


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    pytest.importorskip("distributed", reason="no Dask: work on a cluster was not tried")
    folder = tmp_path_factory.mktemp("dask")
    file = folder / "scheduler.json"
    words = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file))
    made = Nodes(folder, node(folder, "scheduler", *words), [])
    try:
        deadline = time.monotonic() + 100
        while not file.exists():
            assert made.scheduler.poll() is None, (folder / "scheduler.log").read_text()
            assert time.monotonic() < deadline, "no scheduler"
            time.sleep(0.05)
        yield made
    finally:
        for process in (*made.workers, made.scheduler):
            process.kill()
            process.wait()


@pytest.fixture
def cluster(nodes: Nodes) -> Iterator[DaskCluster]:
    nodes.replace_the_dead()
    with on_cluster(nodes.address) as executor:
        executor.client.wait_for_workers(2, timeout=100)
        yield executor


@contextmanager
def killer_of(note: Path, is_time: Callable[[], bool]) -> Iterator[None]:
    """Provide a function that kills the Dask worker in the note when `is_time` is true."""
    over: list[bool] = []

    def watch() -> None:
        while not over and not (note.exists() and is_time()):
            time.sleep(0.02)
        if not over:
            os.kill(int(note.read_text()), signal.SIGKILL)

    thread = Thread(target=watch)
    thread.start()
    try:
        yield
    finally:
        over.append(True)
        thread.join()


@dataclass(frozen=True)
class Stumbles:
    """A run whose worker is killed during the work."""

    executor: Executor
    note: Path
    number: int = 1
    before: int = 1
    heard: int = 0  # number of messages that must have arrived

    def run(self, works: Sequence[Work], files: Sequence[Path] = ()) -> Iterator[tuple[int, Event]]:
        all_of_them = list(works)
        all_of_them[self.number] = Stumbling(works[self.number], self.note, self.before)
        heard: list[Event] = []
        with killer_of(self.note, lambda: len(heard) >= self.heard):
            for number, event in self.executor.run(all_of_them, files):
                heard += [event] if number == self.number else []
                yield number, event


def test_cluster_passes_the_checks_of_every_executor(cluster: DaskCluster) -> None:
    check_executor(cluster)
    check_death(cluster)  # only the work's own process dies, and Dask keeps its workers
    assert len(cluster.client.scheduler_info()["workers"]) == 2


# --- a worker is killed -------------------------------------------------------------------------

PLAN = FuzzPlan(
    targets=("Q8_0", "I8", "I16"), cases=500, engine="mutant:q8-0-unsigned", oracle="reference"
)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the findings of an uninterrupted run in one process."""
    return found_by(None, tmp_path_factory.mktemp("alone"))


def found_by(executor: Executor | None, folder: Path) -> list[str]:
    verdicts = run_campaign("quants", PLAN, folder, [], executor).verdicts
    assert {"diverged", "excused"} <= {verdict.status for verdict in verdicts}
    return sorted(map(str, verdicts))


def test_killed_worker_costs_time_and_no_verdict(
    cluster: DaskCluster, undisturbed: list[str], tmp_path: Path
) -> None:
    note = tmp_path / "note"
    assert found_by(Stumbles(cluster, note, number=0), tmp_path / "reports") == undisturbed
    with pytest.raises(ProcessLookupError):
        wait_for_the_end_of(int(note.read_text()))


def wait_for_the_end_of(process: int) -> None:
    for _ in range(2000):
        if Path(f"/proc/{process}/stat").exists():
            state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
            if state == "Z":  # the process has ended, but its status was not read
                raise ProcessLookupError
        os.kill(process, 0)
        time.sleep(0.05)


@pytest.mark.parametrize("wrong", [LosesAWork, LosesWhatWasSaid])
def test_executor_that_loses_a_part_is_caught_by_the_same_comparison(
    wrong: Callable[[Executor], Executor], undisturbed: list[str], tmp_path: Path
) -> None:
    with pytest.raises((AssertionError, RuntimeError)):
        assert found_by(wrong(Forks(1)), tmp_path) == undisturbed


def test_other_worker_continues_after_the_last_checkpoint(
    cluster: DaskCluster, tmp_path: Path
) -> None:
    works = [Steps(tmp_path / "log-0"), Steps(tmp_path / "log-1")]
    stumbles = Stumbles(cluster, tmp_path / "note", before=7, heard=5)
    said: list[list[int]] = [[], []]
    for number, event in events_of(stumbles, works):
        if isinstance(event, Said):
            said[number].append(event.value)
    assert said == [list(range(10))] * 2
    first, again = [0, 1, 2, 3, 4, 5, 6, 7], [5, 6, 7, 8, 9]
    assert [int(step) for step in (tmp_path / "log-1").read_text().split()] == first + again


def test_cluster_check_gives_the_verdicts_of_processes(
    cluster: DaskCluster, tmp_path: Path
) -> None:
    path = builtin("q8_0", tmp_path)
    engines = ("reference", "mutant:q8-0-unsigned")
    suites = {"suites": ("metadata", "dequant"), "oracle": "reference"}
    plans = [plan_for(path, engine=engine, case=engine, **suites) for engine in engines]
    killed = Stumbles(cluster, tmp_path / "note", before=3)
    one, two = (
        run_plans(plans, tmp_path / "reports", ["lockstep"], executor, Listener())
        for executor in (Forks(1), killed)
    )
    assert sorted(map(str, one.verdicts)) == sorted(map(str, two.verdicts))
    assert "diverged" in {verdict.status for verdict in two.verdicts}


# --- refusals -----------------------------------------------------------------------------------


def test_worker_without_a_file_says_so(cluster: DaskCluster, tmp_path: Path) -> None:
    path = builtin("f32", tmp_path)
    cluster_on_another_disk = Elsewhere(cluster, path)
    plan = plan_for(path, oracle="reference", suites=("metadata",))
    with pytest.raises(BadInput, match=r"the worker tcp.* sees no file .*; workers must see"):
        run_plans([plan], tmp_path, ["lockstep"], cluster_on_another_disk, Listener())


@dataclass(frozen=True)
class Elsewhere:
    """A run whose file was removed from the workers' disk after the start."""

    cluster: DaskCluster
    path: Path

    def run(self, works: Sequence[Work], files: Sequence[Path] = ()) -> Iterator[tuple[int, Event]]:
        return self.cluster.run(works, [*files, self.path.with_name("gone.gguf")])


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"source": "other"}, "another version of Lockstep"),
        ({"folder": "no/such/folder"}, "sees no folder no/such/folder"),
        ({"files": (("no/such.gguf", 3),)}, "sees no file no/such.gguf"),
        ({"files": (("tmp/lockstep-x/model.gguf", 3),)}, "generated models are in TMPDIR"),
        ({"files": ((__file__, 3),)}, "expected 3"),
    ],
)
def test_missing_requirement_of_a_machine_gives_one_sentence(
    change: dict[str, Any], says: str
) -> None:
    needs = Needs.here([Path(__file__)])
    assert needs.lacking() == ""
    assert says in replace(needs, **change).lacking()


def test_missing_dask_message_says_how_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(BadInput, match=r"pip install 'gguf-lockstep\[cluster\]'"):
        executor_for(1, "tcp://127.0.0.1:1").__enter__()


def test_missing_scheduler_gives_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("distributed", reason="no Dask: no address was tried")
    monkeypatch.setattr("lockstep.harness.parallel.cluster.CONNECT", 0.5)
    with pytest.raises(BadInput, match="no Dask scheduler answers there"):
        executor_for(1, "tcp://127.0.0.1:1").__enter__()


def test_server_with_another_protocol_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler's own web page, on a neighbouring port, is such a server. A client would wait
    for this server for ever."""
    pytest.importorskip("distributed", reason="no Dask: no address was tried")
    monkeypatch.setattr("lockstep.harness.parallel.cluster.CONNECT", 0.5)
    with HTTPServer(("127.0.0.1", 0), SimpleHTTPRequestHandler) as server:
        thread = Thread(target=server.serve_forever)
        thread.start()
        try:
            with pytest.raises(BadInput, match="no Dask scheduler answers there"):
                executor_for(1, f"tcp://127.0.0.1:{server.server_port}").__enter__()
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("scheme", ["tls", "nonsense"])
def test_unusable_scheme_gives_one_sentence(scheme: str) -> None:
    pytest.importorskip("distributed", reason="no Dask: no address was tried")
    with pytest.raises(BadInput, match="no Dask scheduler answers there"):
        executor_for(1, f"{scheme}://127.0.0.1:1").__enter__()


def test_address_of_a_worker_is_refused(cluster: DaskCluster) -> None:
    (worker, *_) = cluster.client.scheduler_info(n_workers=-1)["workers"]
    with pytest.raises(BadInput, match=r"no Dask scheduler answers there \(a Worker does\)"):
        executor_for(1, worker).__enter__()


def test_workers_use_the_llama_cpp_build_of_the_run(
    cluster: DaskCluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run could conform without using the user's own build if workers used another build."""
    monkeypatch.setenv(LIBRARIES, str(tmp_path))
    works = [SaysVariable(LIBRARIES)]
    found = [event.value for _, event in cluster.run(works) if isinstance(event, Said)]
    monkeypatch.delenv(LIBRARIES)
    found += [event.value for _, event in cluster.run(works) if isinstance(event, Said)]
    assert found == [[str(tmp_path)], [None]]


@pytest.mark.parametrize(
    ("name", "is_other"), [("known.toml", True), ("a.py", True), ("__pycache__/a.pyc", False)]
)
def test_other_known_divergences_count_as_another_version(
    name: str, is_other: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Lists of known divergences excuse differences, so they belong to the version. Files that each
    machine compiles do not belong to it."""
    here = str(tmp_path / "harness" / "parallel" / "cluster_worker.py")
    monkeypatch.setattr("lockstep.harness.parallel.cluster_worker.__file__", here)
    found = []
    for text in ("one", "two"):
        path = tmp_path / "harness" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        found.append(source_digest.__wrapped__())
    assert (found[0] != found[1]) == is_other
