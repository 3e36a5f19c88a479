"""Ask about many items in one question, and about fewer where one of them breaks the engine.

A tokenizer that fails on one very long text is still compared on all others.
"""

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from lockstep.harness.context.suite import NoAnswer

Item = TypeVar("Item", bytes, Sequence[int], list[int] | bytes)
MAX_FAILURES = 8  # items that are named: each may cost a start of the engine
MAX_WAITS = 2  # questions that time out: each costs the whole time limit
UNASKED = "unasked"  # in the detail of items that were given up


@dataclass(kw_only=True)
class AnswersApart(Generic[Item]):
    """The answers by the item's number, and why the other items have none."""

    answers: dict[int, Any] = field(default_factory=dict)
    failures: dict[int, NoAnswer] = field(default_factory=dict)


def ask_apart(
    ask: Callable[[list[Item]], Sequence[Any]], items: Sequence[Item]
) -> AnswersApart[Item]:
    """Ask about all items, then about ever smaller groups until each failing item stands alone.

    ask: returns one answer for each item, or raises NoAnswer. A question that fails for the
    shortest item as well is not about the items: then its error is raised.
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
            text = f"not asked, after {len(found.failures)} others had no answer"
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
    """Split a group, sorted by length, into two that are about equally long: the longest item is
    the likeliest to fail, and is soon alone. The second is asked first."""
    ends = list(itertools.accumulate(len(items[i]) for i in group))
    at = next(n for n, end in enumerate(ends) if 2 * end >= ends[-1])
    at = min(max(at, 1), len(group) - 1)
    return list(group[at:]), list(group[:at])
