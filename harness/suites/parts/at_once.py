"""Concurrent prompts. A server with one cache or buffer for all requests is right only if prompts
arrive one after the other.

Servers may put concurrent prompts into one batch, whose sums may round differently. So a text that
differs from the text of the same prompt asked alone is compared with the oracle like any other
text, and ties are excused.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from lockstep.harness.context.further_runs import n_cells
from lockstep.harness.context.suite import Context, NoAnswer
from lockstep.harness.records import (
    Answered,
    Busy,
    Crashed,
    Malformed,
    Outcome,
    Rejected,
    TimedOut,
    Unanswerable,
    Verdict,
)
from lockstep.harness.suites.parts.prompts import ALIKE, BEFORE, N_OTHERS, OTHERS

Judge = Callable[[Context, bytes, int, bytes], Iterator[Verdict]]
AT_ONCE = "while others are being answered"
ROUNDS = 3  # repeated, because it depends on microseconds which questions meet


@dataclass(frozen=True, kw_only=True)
class TextByItself:
    """The text of n tokens after a prompt that was asked alone."""

    prompt: bytes
    n: int
    text: bytes
    seconds: float


def asked_at_once(judge: Judge, context: Context) -> Iterator[Verdict]:
    """Ask a server several questions concurrently, and yield the verdicts. Other engines are not
    asked. This test comes last, because it may end the server. judge: a function that yields
    verdicts on a text of n tokens after a prompt."""
    every = list(asked_alone(context)) if context.subject.takes_several else []
    if len(every) < 2:  # another verdict gives the reason why the others were not answered
        return
    worst: Sequence[Outcome] = ()
    questions = [(one.prompt, one.n) for one in every]
    # time until the last question is answered if the server answers one after the other
    queue = sum(one.seconds for one in every)
    for _ in range(ROUNDS):
        outcomes = context.subject.ask_at_once("generate", questions, more_seconds=queue)
        still_there(context, outcomes, every[0])
        for one, outcome in zip(every, outcomes, strict=False):
            if (verdict := held_against(judge, context, one, outcome)) is not None:
                yield verdict
                return
        worst = max(worst, outcomes, key=lambda each: len(refusals(each)))
        if len(refusals(worst)) > len(every) - 2:  # the server would refuse as many the next time
            break
    yield as_alone(context, len(every), refusals(worst))


def asked_alone(context: Context) -> Iterator[TextByItself]:
    """Ask each prompt alone. Many servers process four prompts at a time. This test has more
    prompts, so that some wait and reuse a slot. Two prompts have the same beginning, because a
    server may share a prefix. The prompts' lengths differ, because a server may confuse the lengths
    of requests."""
    room = n_cells(context) - N_OTHERS - 2
    for number, prompt in enumerate((*OTHERS, BEFORE, ALIKE)):
        n = max(1, min(N_OTHERS, context.n_steps) - 2 * (number % 2))
        outcome = context.subject.ask("generate", prompt, n) if len(prompt) < room else None
        if isinstance(outcome, Answered):
            yield TextByItself(prompt=prompt, n=n, text=outcome.value, seconds=outcome.seconds)


def still_there(context: Context, outcomes: Sequence[Outcome], one: TextByItself) -> None:
    """Check that the server still answers. A server may refuse concurrent requests with a message
    or a status, and serve one at a time. Raises NoAnswer."""
    for outcome in outcomes:
        if isinstance(outcome, Crashed | TimedOut | Malformed):
            context.answer(context.subject, "generate several times at once", outcome)
    if not all(isinstance(outcome, Answered) for outcome in outcomes):
        context.ask(context.subject, "generate", one.prompt, one.n)


def held_against(
    judge: Judge, context: Context, one: TextByItself, outcome: Outcome
) -> Verdict | None:
    """Return a verdict if a concurrent answer is wrong or cannot be compared; None if it is right
    or missing."""
    if not isinstance(outcome, Answered) or outcome.value == one.text:
        return None
    said = outcome.value
    try:
        found = {verdict.status for verdict in judge(context, one.prompt, one.n, said)}
    except NoAnswer:  # the oracle has no text after this prompt
        found = {"not-compared"}
    if "diverged" in found:
        return another(context, one, said)
    if "not-compared" in found and "excused" not in found:
        return context.verdict("text", "not-compared", another(context, one, said).summary)
    return None


def another(context: Context, one: TextByItself, said: bytes) -> Verdict:
    text = (
        f"{AT_ONCE} the text after {one.prompt.decode()!r} is {said[:40]!r}, and "
        f"{one.text[:40]!r} if it is asked alone: look at state that concurrent requests "
        "share, such as a cache, a buffer or a token count"
    )
    detail = {"at_fault": "subject", "prompt": repr(one.prompt), "margin": None}
    return context.verdict("text", "diverged", text, detail, key=("text", "at once"))


def refusals(outcomes: Sequence[Outcome]) -> list[str]:
    """Return the messages that the engine sent instead of answers."""
    return [each.message for each in outcomes if isinstance(each, Busy | Rejected | Unanswerable)]


def as_alone(context: Context, n_asked: int, sentences: Sequence[str]) -> Verdict:
    if sentences:
        n = n_asked - len(sentences)
        text = f"{AT_ONCE} the engine answers {n} of {n_asked} prompts"
        text += ", as if asked alone" * bool(n)
        return context.verdict("text", "not-applicable", f"{text}: {sentences[0]}")
    text = f"{AT_ONCE} the texts after {n_asked} prompts are the same, except for ties"
    return context.verdict("text", "agreed", text)
