"""The remaining time, estimated from the work done so far."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from lockstep.harness.diagnosis.questions import (
    Continued,
    Embedded,
    Greedy,
    InTurn,
    Likeliest,
    MistakeQuestion,
    RunQuestion,
)

SETTLED_SECONDS = 2.0  # seconds of work before its pace is known well enough
MINUTE_SECONDS = 60


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """The estimated time of the subject's remaining answers."""

    seconds: float


@dataclass(kw_only=True)
class Pace:
    """The speed of the work. `left` is the remaining work in any unit, such as tokens. `done` is
    the work finished in `seconds`."""

    left: int
    done: int = 0
    seconds: float = 0.0

    def add(self, work: int, seconds: float) -> None:
        self.left -= work
        self.done += work
        self.seconds += seconds

    @property
    def seconds_left(self) -> float:
        """Return the remaining seconds; 0 while they are unknown."""
        return self.seconds / self.done * self.left if self.seconds >= SETTLED_SECONDS else 0.0

    def __str__(self) -> str:
        left = self.seconds_left
        return f", about {describe_time(left)} left" if left else ""


def describe_time(seconds: float) -> str:
    if seconds < 2 * MINUTE_SECONDS:
        return f"{seconds:.0f} s"
    return f"{seconds / MINUTE_SECONDS:.0f} minutes"


def tokens_of(question: MistakeQuestion) -> int:
    """Return how many tokens an engine computes for an answer; 1 for a question without a run."""
    count = TOKENS.get(type(question))
    return max(1, count(question)) if count else 1


def tokens_in_batches(question: RunQuestion) -> int:
    return sum(map(len, question.batches))


TOKENS: Mapping[type[Any], Callable[[Any], int]] = {
    RunQuestion: tokens_in_batches,
    Embedded: tokens_in_batches,
    Likeliest: lambda question: len(question.prefix),
    Greedy: lambda question: len(question.ids) + question.n,
    InTurn: lambda question: sum(map(len, question.prompts)),
    Continued: lambda question: len(question.prompt) + question.n,
}
