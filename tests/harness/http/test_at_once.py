"""Concurrent requests: an engine with one buffer for all requests is right only if requests come
one by one."""

import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.http.session import HttpSession
from lockstep.harness.records import EXACT, Answered, TimedOut, Verdict
from lockstep.harness.suites.parts.at_once import AT_ONCE
from tests.fake_server import Busy, serving
from tests.harness.check.test_check import plan_for, verdicts_of
from tests.places import PYTHONPATH

SERVED = """
import os, sys, time
from pathlib import Path
from tests.fake_server import serving
from tests.harness.http.test_at_once import Together, with_more
model, port, how = sys.argv[1:4]
changes = {"dies": lambda said: os._exit(3), "mixes": with_more, "honest": lambda said: said}
with serving(Path(model), Together(changes[how]), port=int(port)):
    time.sleep(600)
"""


def at_once(model: Path, engine: str) -> list[Verdict]:
    found = verdicts_of(plan_for(model, engine=engine, suites=("text",), n_steps=6))
    return [verdict for verdict in found if verdict.summary.startswith(AT_ONCE)]


class Together:
    """A server that mixes concurrent requests. Two requests wait for each other."""

    def __init__(self, change: Any) -> None:
        self.change, self.lock, self.inside = change, threading.Lock(), 0
        self.several = threading.Event()

    def __call__(self, path: str, said: Any) -> Any:
        if path != "/completion":
            return said
        with self.lock:
            self.inside += 1
            if self.inside > 1:
                self.several.set()
        met = self.several.wait(0.05)
        with self.lock:
            self.inside -= 1
            if not self.inside:
                self.several.clear()
        return self.change(said) if met and isinstance(said, dict) else said


def cut_short(said: dict[str, Any]) -> dict[str, Any]:
    return {**said, "content": said["content"][:3]}


def nothing(said: dict[str, Any]) -> dict[str, Any]:
    return {**said, "content": ""}


def with_more(said: dict[str, Any]) -> dict[str, Any]:
    return {**said, "content": "~~~" + said["content"]}


def test_honest_server_gives_the_same_texts_in_parallel(model: Path) -> None:
    with serving(model) as address:
        (found,) = at_once(model, address)
    assert found.status == "agreed"


def test_server_that_mixes_requests_diverges(model: Path) -> None:
    with serving(model, Together(with_more)) as address:
        (found,) = at_once(model, address)
    assert (found.status, found.key) == ("diverged", "text/at once")
    assert "state that concurrent requests share" in found.summary


@pytest.mark.parametrize("change", [cut_short, nothing])
def test_server_that_ends_parallel_texts_early_diverges(change: Any, model: Path) -> None:
    """An early end of a single text accuses no engine, but here the complete text is known."""
    with serving(model, Together(change)) as address:
        (found,) = at_once(model, address)
    assert (found.status, found.key) == ("diverged", "text/at once")


def test_server_with_one_token_limit_for_all_diverges(model: Path) -> None:
    numbers: list[int] = []
    together = Together(lambda said: said)

    def last_of_all(body: dict[str, Any]) -> str:
        if "n_predict" in body:
            numbers.append(body["n_predict"])
            together("/completion", None)  # waits for another request
            body["n_predict"] = numbers[-1]
        return ""

    with serving(model, refuses=last_of_all) as address:
        (found,) = at_once(model, address)
    assert (found.status, found.key) == ("diverged", "text/at once")


class BeginningsKeptOnce:
    """A server that mixes two concurrent prompts with the same beginning: each prompt is answered
    with the end of the other prompt. A request waits for a second request, but only shortly if no
    other request is being answered."""

    def __init__(self, begin: str) -> None:
        self.begin, self.inside = begin, threading.Condition()
        self.prompts: list[str] = []
        self.met: dict[str, str] = {}

    def __call__(self, body: dict[str, Any]) -> str:
        prompt = body.get("prompt")
        if not isinstance(prompt, str):
            return ""
        with self.inside:
            like = [one for one in self.prompts if one != prompt and one.startswith(self.begin)]
            if prompt.startswith(self.begin) and like:
                self.met |= {prompt: like[0], like[0]: prompt}
                self.inside.notify_all()
            self.prompts.append(prompt)
            if prompt.startswith(self.begin):
                self.inside.wait_for(lambda: prompt in self.met, 0.3)
            if prompt.startswith(self.begin) and len(self.prompts) > 1:
                self.inside.wait_for(lambda: prompt in self.met, 10)
            self.prompts.remove(prompt)
            body["prompt"] = prompt + self.met.pop(prompt, "")[:16]
        return ""


def test_server_that_mixes_shared_prefixes_diverges(model: Path) -> None:
    with serving(model, refuses=BeginningsKeptOnce("Once there was")) as address:
        (found,) = at_once(model, address)
    assert (found.status, found.key) == ("diverged", "text/at once")
    assert "Once there was" in found.summary


def test_answers_are_compared_though_other_requests_are_refused(model: Path) -> None:
    busy = Busy({"error": {"message": "two at a time"}}, status=400)
    answers = iter([*[with_more] * 2, *[lambda said: busy] * 100])
    with serving(model, Together(lambda said: next(answers)(said))) as address:
        (found,) = at_once(model, address)
    assert (found.status, found.key) == ("diverged", "text/at once")


def test_broken_json_in_parallel_answers_is_malformed(model: Path) -> None:
    with serving(model, Together(lambda said: b'{"content": "{"content": "')) as address:
        found = verdicts_of(plan_for(model, engine=address, suites=("text",), n_steps=6))
    assert found[-1].status == "malformed", found[-1]
    assert "several times at once" in found[-1].summary


def test_server_that_is_busy_with_a_success_status_is_not_accused(
    model: Path,
) -> None:
    with serving(model, Together(lambda said: {"error": "one at a time"})) as address:
        found = at_once(model, address)
    assert [verdict.status for verdict in found] == ["not-applicable"]


def test_queueing_server_gets_the_time_of_all_earlier_requests(model: Path) -> None:
    lock = threading.Lock()

    def one_by_one(path: str, said: Any) -> Any:
        with lock:
            time.sleep(0.5 if path == "/completion" else 0)
        return said

    every = [(b"The cat", 1)] * 6
    with serving(model, one_by_one) as address:
        session = HttpSession(address, model, EXACT, time_limit=2.0)
        session.ask("describe")
        queued = session.ask_at_once("generate", every, more_seconds=60.0)
        at_most = session.ask_at_once("generate", every, more_seconds=0.0)
    assert all(isinstance(outcome, Answered) for outcome in queued), queued
    assert any(isinstance(outcome, TimedOut) for outcome in at_most)


def test_serial_server_is_not_accused(model: Path) -> None:
    busy = Busy({"error": {"message": "one at a time"}}, status=400)
    with serving(model, Together(lambda said: busy)) as address:
        found = at_once(model, address)
    assert [verdict.status for verdict in found] == ["not-applicable"]
    assert found[0].summary.endswith("HTTP 400: one at a time")


def test_program_gets_one_question_at_a_time(model: Path) -> None:
    assert at_once(model, "reference") == []


@pytest.mark.parametrize(
    ("how", "status", "words"),
    [
        ("honest", "agreed", "are the same"),
        ("mixes", "diverged", "state that concurrent requests share"),
        ("dies", "crashed", "exited with status 3 while it was asked to generate several times"),
    ],
)
def test_server_that_lockstep_starts_is_asked_in_parallel_too(
    how: str, status: str, words: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", PYTHONPATH)
    (tmp_path / "server.py").write_text(SERVED)
    engine = f"serve:{sys.executable} {tmp_path / 'server.py'} {{model}} {{port}} {how}"
    last = verdicts_of(plan_for(model, engine=engine, suites=("text",), n_steps=6))[-1]
    assert last.status == status, last
    assert words in last.summary


def test_hanging_server_is_a_timeout(model: Path) -> None:
    ended = threading.Event()

    def hang(said: Any) -> Any:
        ended.wait(60)
        return said

    with serving(model, Together(hang)) as address:
        plan = plan_for(model, engine=address, suites=("text",), n_steps=6, time_limit=5.0)
        found = verdicts_of(plan)
        ended.set()
    assert found[-1].status == "timed-out", found[-1]


def test_server_that_vanished_is_not_called_busy(model: Path) -> None:
    """The check sees that the server no longer answers, but cannot see that it died."""
    gone = threading.Event()

    def closed(said: Any) -> Any:
        gone.set()
        return Busy({"error": {"message": "down"}}, status=500)

    together = Together(closed)

    def change(path: str, said: Any) -> Any:
        return closed(said) if gone.is_set() else together(path, said)

    with serving(model, change) as address:
        found = verdicts_of(plan_for(model, engine=address, suites=("text",), n_steps=6))
    assert found[-1].status == "crashed", found[-1]
