"""Runs without an answer do not affect later runs, with one exception. After a timeout, Lockstep
requests no run with more tokens."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from lockstep.harness.adapters import adapter_class
from lockstep.harness.asking.session import LocalSession
from lockstep.harness.check.check import open_plan, run_suites
from lockstep.harness.exit_codes import exit_code
from lockstep.harness.records import EXACT, Crashed, Outcome, TimedOut, Verdict
from tests.harness.check.test_check import plan_for
from tests.harness.context.test_further_runs import ALONE, FIRST, JOINED, LAST, LONG, MIDDLE, N
from tests.models import written

OTHERS = (FIRST, MIDDLE, LAST, ALONE)
USUAL = 34  # tokens: a prompt of 32, and two more


NOTHING = TimedOut(seconds=300.0)
DEAD = Crashed(message="aborted (SIGABRT)")


class Late(LocalSession):
    """An engine that does not answer a run if `late` is True for its number of tokens."""

    late: Callable[[int], bool]
    instead: Outcome = NOTHING

    def _ask(
        self, question: str, args: tuple[Any, ...], kwargs: dict[str, Any], consume: Any = None
    ) -> Outcome:
        if question == "evaluate":
            n = sum(map(len, args[0].batches))
            self.__dict__.setdefault("asked", []).append(n)
            if self.late(n):
                return self.instead
        return super()._ask(question, args, kwargs, consume)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("model"), n_layer=1, n_vocab=312, n_ctx_train=N)


def logits_of(
    model: Path, engine: str, late: Callable[[int], bool], instead: Outcome = NOTHING
) -> tuple[list[Verdict], list[int]]:
    """Return the verdicts of `logits`, and the number of tokens of each run."""
    opened = open_plan(plan_for(model, engine=engine, n_tokens=32), lambda _: None)
    subject = Late(adapter_class(engine), model, EXACT)
    subject.late, subject.instead = late, instead
    opened.context.subject = subject
    try:
        found = list(run_suites(opened.context, ("logits",)))
    finally:
        opened.close()
    return found, subject.__dict__["asked"]


def test_slow_honest_engine_is_still_asked_for_the_shorter_runs(
    model: Path,
) -> None:
    found, asked = logits_of(model, "reference", lambda n: n >= N)
    first, late = found
    assert (first.status, late.status) == ("agreed", "timed-out")
    assert {JOINED, FIRST, ALONE} <= set(first.detail["same"])
    assert late.detail["asked"].startswith(LONG)
    assert exit_code(found) == 3
    assert asked.count(N) == 1


def test_slow_engines_fault_in_a_shorter_run_is_found(model: Path) -> None:
    found, _ = logits_of(model, "further: later_sequences_leak", lambda n: n >= N)
    assert [v.status for v in found] == ["agreed", "timed-out", "diverged"]
    assert found[-1].detail["asked"] == JOINED
    assert exit_code(found) == 1


def test_silent_engine_gets_two_runs_and_skipped_runs_are_named(
    model: Path,
) -> None:
    usual = iter(range(4))  # the run, the same again, with tensors, with some outputs

    def late(n: int) -> bool:
        return n != 2 * USUAL and not (n == USUAL and next(usual, None) is not None)

    found, asked = logits_of(model, "reference", late)
    assert [v.status for v in found] == ["agreed", "timed-out", "timed-out"]
    assert [v.detail["asked"].partition(" in batches")[0] for v in found[1:]] == [
        *(f"for {N} tokens", JOINED)
    ]
    left = found[0].detail["not_answered"]
    assert all(any(said.startswith(f"{words}: not asked") for said in left) for words in OTHERS)
    assert len(asked) == 5 + 2  # four ways, another sequence, and two questions without an answer


def test_run_longer_than_a_timed_out_run_is_not_requested(model: Path) -> None:
    """The run with two sequences has 29 tokens, and the runs with another token have 34 tokens."""
    usual = iter(range(4))
    found, asked = logits_of(
        model, "reference", lambda n: n == 29 or (n == USUAL and next(usual, None) is None)
    )
    assert [v.status for v in found] == ["agreed", "timed-out"]
    left = found[0].detail["not_answered"]
    text = "not asked, because a run of 29 tokens timed out"
    assert {f"{words}: {text}" for words in OTHERS[:3]} <= set(left)
    assert asked[-1] == 1


def test_engine_that_dies_on_a_second_sequence_gets_all_other_runs(
    model: Path,
) -> None:
    """A second sequence doubles the usual number of tokens. The run with two sequences that join
    later has 29 tokens."""
    found, _ = logits_of(model, "reference", lambda n: n in (2 * USUAL, 29), DEAD)
    assert [v.status for v in found] == ["agreed", "crashed", "crashed"]
    assert [v.detail["asked"] for v in found[1:]] == ["beside another sequence", JOINED]
    assert {FIRST, LAST, ALONE} <= set(found[0].detail["same"])
    assert exit_code(found) == 3


def test_death_does_not_limit_longer_runs(model: Path) -> None:
    found, asked = logits_of(model, "further: later_sequences_leak", lambda n: n == 1, DEAD)
    assert [v.status for v in found] == ["agreed", "diverged", "crashed"]
    assert N in asked


def test_engine_that_dies_in_a_repeated_run_gets_no_more_runs(model: Path) -> None:
    usual = iter(range(1))
    late = lambda n: n == USUAL and next(usual, None) is None  # noqa: E731
    found, _ = logits_of(model, "reference", late, DEAD)
    assert [v.status for v in found] == ["agreed", "crashed"]
    assert found[0].detail["not_answered"] == [
        "other batches and longer runs: not asked after that failure"
    ]
