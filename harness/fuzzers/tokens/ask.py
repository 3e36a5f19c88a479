"""Asks an engine about many texts in one question, and finds the text that makes it fail."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lockstep.harness.context.runner import Session
from lockstep.harness.context.suite import no_answer
from lockstep.harness.records import Answered, Crashed, Malformed, Outcome, Rejected, TimedOut

MOST_DEATHS = 150  # deaths of one engine before it is given up
TELLING = ("what():", "GGML_ASSERT", "GGML_ABORT", "terminate called", "error:")


class GivenUp(Exception):
    """Raised if an engine died so often that more questions would be useless. The message is one
    sentence."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The reason why an input has no answer."""

    status: str  # "diverged" for a refusal, "malformed", "crashed", "timed-out"
    text: str

    @property
    def deadly(self) -> bool:
        return self.status in ("crashed", "timed-out")


@dataclass(kw_only=True)
class TextAsker:
    """The tokenizer of one engine with one vocabulary."""

    session: Session
    deaths: int = 0

    def __call__(self, question: str, items: Sequence[Any], **flags: bool) -> list[Any]:
        """Return an answer or a Failure for each item. Raises NoAnswer, GivenUp."""
        if not items:
            return []
        outcome = self.session.ask(question, list(items), **flags)
        if isinstance(outcome, Answered):
            return list(outcome.value)
        failure = self.failure(question, outcome)
        if len(items) == 1:
            return [failure]
        middle = len(items) // 2
        return [
            *self(question, items[:middle], **flags),
            *self(question, items[middle:], **flags),
        ]

    def failure(self, question: str, outcome: Outcome) -> Failure:
        if isinstance(outcome, Rejected):
            return Failure("diverged", f"refused: {outcome.message}")
        if isinstance(outcome, Malformed):
            return Failure("malformed", f"malformed answer: {outcome.message}")
        if not isinstance(outcome, Crashed | TimedOut):
            raise no_answer(self.session.name, question, outcome)
        self.deaths += 1
        error = no_answer(self.session.name, question, outcome)
        words = [line.strip() for line in outcome.log if any(t in line for t in TELLING)]
        first, *rest = error.summary.splitlines()
        text = "; ".join([first, *rest[-1:], *words[:2]])
        if self.deaths > MOST_DEATHS:
            raise GivenUp(f"{text}; its process ended {self.deaths} times")
        return Failure(str(error.status), text)
