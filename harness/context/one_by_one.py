"""Questions asked one by one, so that a missing answer affects only one item or run.

A tokenizer that fails on one very long text is still compared on all other texts. A timeout costs
the whole time limit, so a run that would very probably time out too is not asked.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from lockstep.engine.batch import Batch
from lockstep.harness.context.suite import Context, NoAnswer, patient
from lockstep.harness.records import Outcome, TimedOut, Verdict

Item = TypeVar("Item", bytes, Sequence[int], list[int] | bytes)
MAX_FAILURES = 8  # items that the verdict names; each may cost a restart of the engine
MAX_WAITS = 2  # questions that time out; each costs the whole time limit
UNASKED = "unasked"  # key in `detail`: items that were not asked
MOST_WAITS = 2  # waits of one suite, so that an engine that always hangs costs no more


@dataclass(kw_only=True)
class AnswersApart(Generic[Item]):
    """The answers by item number, and the reasons for missing answers."""

    answers: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, NoAnswer] = field(default_factory=dict)


def ask_apart(
    ask: Callable[[list[Item]], Sequence[Any]], items: Sequence[Item]
) -> AnswersApart[Item]:
    """Ask about all items. If that fails, ask about smaller groups until each failing item is
    alone.

    `ask` returns one answer for each item, or raises NoAnswer. If the question fails for the
    shortest item too, the items are not the cause, and the error is raised.
    """
    every: list[int] = sorted(range(len(items)), key=lambda i: len(items[i]))
    try:
        return AnswersApart(answers=dict(zip(every, ask([items[i] for i in every]), strict=True)))
    except NoAnswer:
        if len(items) < 2 or not has_answer(ask, items[every[0]]):
            raise
    found = AnswersApart[Item]()
    groups, waits = [*split_by_size(every, items)], 0
    while groups:
        group = groups.pop()
        if len(found.failures) >= MAX_FAILURES or waits >= MAX_WAITS:
            text = f"not asked, because {len(found.failures)} other questions had no answer"
            error = NoAnswer("not-compared", text, {UNASKED: True})
            found.failures |= dict.fromkeys(group, error)
            continue
        try:
            found.answers |= zip(group, ask([items[i] for i in group]), strict=True)
        except NoAnswer as error:
            waits += error.status == "timed-out"
            if len(group) == 1:
                found.failures[group[0]] = error
            else:
                groups += split_by_size(group, items)
    return found


def has_answer(ask: Callable[[list[Item]], Sequence[Any]], item: Item) -> bool:
    try:
        ask([item])
    except NoAnswer:
        return False
    return True


def split_by_size(group: Sequence[int], items: Sequence[Item]) -> tuple[list[int], list[int]]:
    """Split a group, sorted by length, into two groups of about equal total length: the longer
    items, then the shorter items. The caller asks the second group first."""
    ends = list(itertools.accumulate(len(items[i]) for i in group))
    at = next(n for n, end in enumerate(ends) if 2 * end >= ends[-1])
    at = min(max(at, 1), len(group) - 1)
    return list(group[at:]), list(group[:at])


@dataclass(kw_only=True)
class Waits:
    """The runs of one suite that timed out."""

    tokens: list[int] = field(default_factory=list)  # lengths of the runs that timed out

    def why_none(self, words: str, batches: Sequence[Batch]) -> str:
        """Return why a run is not asked; "" if it is asked. An engine that timed out on a number of
        tokens is too slow for more tokens."""
        if len(self.tokens) >= MOST_WAITS:
            return f"{words}: not asked, because {MOST_WAITS} earlier runs timed out"
        shortest = min(self.tokens, default=0)
        if self.tokens and n_tokens(batches) >= shortest:
            return f"{words}: not asked, because a run of {shortest} tokens timed out"
        return ""

    def verdict(
        self, context: Context, suite: str, words: str, batches: Sequence[Batch], outcome: Outcome
    ) -> Verdict | None:
        """Return the verdict on a run that the subject did not answer; None if it answered. `words`
        names the run."""
        try:
            context.answer(context.subject, f"evaluate {words}", outcome)
        except NoAnswer as failed:
            if isinstance(outcome, TimedOut):
                self.tokens.append(n_tokens(batches))
            error = patient(failed)
            detail = {**error.detail, "asked": words}
            return context.verdict(
                suite, error.status, error.summary, detail, (suite, error.status)
            )
        return None


def n_tokens(batches: Sequence[Batch]) -> int:
    return sum(map(len, batches))
