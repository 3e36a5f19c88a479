"""Whether two lists of candidates say the same, but for the noise of two runs."""

from collections import defaultdict
from collections.abc import Sequence
from math import inf, isnan
from typing import Any


def alike(allowed: float, a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Two answers, within the noise of two runs: servers add in any order."""
    pairs = list(zip(a, b, strict=True))
    return all(
        len(one) == len(other) and is_in(other, one, allowed) and is_in(one, other, allowed)
        for one, other in pairs
    )


def is_in(whole: Sequence[Any], row: Sequence[Any], allowed: float) -> bool:
    """Whether each token of a row has its value in the whole one, which several with one text may
    have; who stands at the end of one list may have dropped out of the other."""
    theirs = by_token(whole)
    least = min((value for _, value in whole if not isnan(value)), default=inf)
    for token, values in by_token(row).items():
        same = theirs.get(token, [])
        if any(
            repr(value) != repr(again) and not abs(value - again) <= allowed
            for value, again in zip(values, same, strict=False)
        ):
            return False
        if not all(value <= least + allowed for value in values[len(same) :]):
            return False
    return True


def by_token(row: Sequence[Any]) -> dict[Any, list[float]]:
    """The values of each, from the largest on."""
    found: dict[Any, list[float]] = defaultdict(list)
    for token, value in sorted(row, key=lambda each: (isnan(each[1]), -each[1])):
        found[token].append(value)
    return found
