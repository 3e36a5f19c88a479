"""Shrinks a case that shows a finding, for every fuzzer, by asking about smaller cases."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import cycle
from typing import Any, TypeVar

T = TypeVar("T")
Smaller = Callable[[T], Iterable[T]]  # yields smaller cases, the smallest first


def shrink(
    case: T,
    makers: Sequence[Smaller[T]],
    shows: Callable[[list[T]], Iterable[Any]],
    size: Callable[[T], Any],
    *,
    budget: float = float("inf"),
    cost: Callable[[list[T]], int] = len,
    at_once: float = float("inf"),
    identity: Callable[[T], Any] = lambda case: case,
) -> T:
    """Return the smallest case found that shows the same as `case`. One maker runs until it finds
    nothing smaller, and then the next maker runs. The search ends when no maker finds anything
    smaller.

    makers: functions that each yield smaller cases; shows: a function that returns for each case of
    a list whether it still shows the finding; size: the measure to minimise; budget: the maximum
    cost of all questions; cost: the cost of a list of cases; at_once: the approximate maximum cost
    of one question; identity: a key that equal cases share, so that each is asked about once.
    """
    useless = 0
    for make in cycle(makers):
        if useless == len(makers):
            break
        useless += 1
        again = True
        while again and budget > 0:
            again = False
            for some in handfuls(distinct(make(case), size, size(case), identity), cost, at_once):
                budget -= cost(some)
                found = [one for one, yes in zip(some, shows(some), strict=True) if yes]
                if found:
                    case, again, useless = min(found, key=size), True, 0
                if found or budget <= 0:
                    break
    return case


def distinct(
    cases: Iterable[T], size: Callable[[T], Any], below: Any, identity: Callable[[T], Any]
) -> Iterator[T]:
    """Yield the cases that are smaller than `below`, each once."""
    seen = set()
    for case in cases:
        if size(case) < below and (name := identity(case)) not in seen:
            seen.add(name)
            yield case


def handfuls(
    cases: Iterable[T], cost: Callable[[list[T]], int], at_once: float
) -> Iterator[list[T]]:
    """Yield the cases in lists. A list ends as soon as it costs `at_once`."""
    some: list[T] = []
    for case in cases:
        some.append(case)
        if cost(some) >= at_once:
            yield some
            some = []
    if some:
        yield some
