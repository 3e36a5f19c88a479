"""Messages about questions that timed out, and the rule for asking them again."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from lockstep.engine.batch import Batch
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.asking.session import LocalSession
from lockstep.harness.asking.waits import AGAIN
from lockstep.harness.context.beside import asked_beside
from lockstep.harness.context.suite import no_answer, patient
from lockstep.harness.records import EXACT, Answered, Outcome, Request, TimedOut

RUN = Request(batches=(Batch.of([1, 2, 3]), Batch.of([4], start=3)))
SHOWN = Request(batches=RUN.batches, capture=True)
OTHER = Request(batches=(Batch.of([1, 2, 9]), Batch.of([4], start=3)))


class InTurn(LocalSession):
    """An engine that returns these outcomes one after the other."""

    def __init__(self, *outcomes: Outcome) -> None:
        super().__init__(Reference, None, EXACT)
        self.outcomes: Iterator[Outcome] = iter(outcomes)

    def _ask(
        self, question: str, args: tuple[Any, ...], kwargs: dict[str, Any], consume: Any = None
    ) -> Outcome:
        return next(self.outcomes)


LATE = TimedOut(seconds=300.0)


@pytest.mark.parametrize(
    ("question", "args", "words"),
    [
        ("evaluate", (RUN,), "logits of 4 tokens within 300 s (--timeout SECONDS allows"),
        ("evaluate", (RUN,), "allows more time; --tokens N asks for fewer tokens)"),
        ("greedy", ([1, 2], 64), "greedy of 66 tokens within 300 s"),
        ("greedy", ([1, 2], 64), "; --steps N asks for fewer tokens)"),
        ("tokenize", ([b"text"],), "tokenize within 300 s (--timeout SECONDS allows "),
        ("tokenize", ([b"text"],), "SECONDS allows more time)"),
    ],
)
def test_timeout_states_the_number_of_tokens_and_the_option_for_fewer(
    question: str, args: tuple[Any, ...], words: str
) -> None:
    outcome = InTurn(LATE).ask(question, *args)
    assert words in patient(no_answer("mine", question, outcome)).summary


def test_question_states_its_length_once() -> None:
    outcome = InTurn(LATE).ask("evaluate", RUN)
    text = no_answer("mine", "evaluate for 4 tokens in batches of 3, 1", outcome).summary
    assert text == "mine did not answer logits for 4 tokens in batches of 3, 1 within 300 s"


def test_run_that_timed_out_twice_is_not_asked_again_with_tensors() -> None:
    session = InTurn(LATE, LATE)
    for request in (RUN, SHOWN):
        assert AGAIN not in no_answer("mine", "evaluate", session.ask("evaluate", request)).summary
    assert AGAIN in no_answer("mine", "evaluate", session.ask("evaluate", SHOWN)).summary


def test_other_run_or_run_that_timed_out_once_is_asked_again() -> None:
    crash = Answered(value=None, seconds=1.0)
    session = InTurn(LATE, crash, LATE, LATE, LATE)
    session.ask("evaluate", RUN)
    assert not isinstance(session.ask("evaluate", RUN), TimedOut)  # malformed: it has no value
    session.ask("evaluate", RUN)
    later = session.ask("evaluate", OTHER)
    assert isinstance(later, TimedOut)
    assert later.note == ""


def beside(
    seconds: float, monkeypatch: pytest.MonkeyPatch
) -> tuple[tuple[Outcome, Outcome], list[str]]:
    """Ask two engines in parallel: an oracle that takes this number of seconds, and a subject that
    times out once."""
    asked: list[str] = []

    def ask(who: str, *outcomes: Outcome) -> Callable[[], Outcome]:
        left = iter(outcomes)

        def answer() -> Outcome:
            asked.append(who)
            return next(left)

        return answer

    found = Answered(value=1, seconds=seconds)
    monkeypatch.setattr(
        "lockstep.harness.context.beside.time_question",
        lambda ask: (ask(), seconds),
    )
    return asked_beside(ask("oracle", found), ask("subject", LATE, found)), asked


def test_engine_late_during_a_slow_oracle_run_is_asked_again_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (_, subject), asked = beside(200.0, monkeypatch)
    assert isinstance(subject, Answered)
    assert asked.count("subject") == 2


def test_engine_late_while_nearly_alone_is_not_asked_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (_, subject), asked = beside(1.0, monkeypatch)
    assert subject == LATE
    assert asked.count("subject") == 1
