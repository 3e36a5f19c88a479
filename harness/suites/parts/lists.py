"""Special cases of lists of candidates: a common scale of all values, empty lists, and equal lists.

Values may be probabilities, or logarithms to another base. A list may be empty at the end of a
text. Elsewhere an empty list would agree with anything, so it is not compared.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from math import inf, isnan
from math import log as ln
from typing import Any

from lockstep.engine.errors import EngineError
from lockstep.engine.quants.base import F32
from lockstep.harness.context.suite import Context
from lockstep.harness.judging.candidates import Listed, Off, factor, off_from

BASES = {"10": 1 / ln(10), "2": 1 / ln(2)}  # factors that convert natural logarithms
NEAR = 1e-3  # relative tolerance of the factor
MOST_FACTOR = 20.0  # limit, because a nearly flat list fits any row with a large enough factor
# key in `detail`: the kind of logarithm of the values, if all values are right as such
LOGARITHMS = "logarithms"


class ScaleKind(Enum):
    PROBABILITIES = auto()
    OTHER_BASE = auto()
    TEMPERATURE = auto()


@dataclass(frozen=True, kw_only=True)
class ListScale:
    """The scale of the values in lists. by: the factor of all values; base: the base of the
    logarithms, if it is not e."""

    kind: ScaleKind
    by: float = 1.0
    base: str = ""

    def describe(self) -> str:
        if self.kind is ScaleKind.PROBABILITIES:
            return "the values are probabilities, and their logarithms are right"
        what = f"a temperature of {1 / self.by:.4g}"
        if self.kind is ScaleKind.OTHER_BASE:
            what = f"logarithms to base {self.base}"
        return f"all values are right except for a factor of {self.by:.4g}, as with {what}"

    def facts(self) -> dict[str, str]:
        """Return the facts that a verdict stores. The result is empty for a temperature, because a
        wrong matrix can have the same effect."""
        return {} if self.kind is ScaleKind.TEMPERATURE else {LOGARITHMS: self.describe()}


def first_off(listed: Sequence[Listed], logits: F32, allowed: float) -> tuple[int, Off] | None:
    """Return the first wrong list and its row, which may be the cause of later wrong lists."""
    for row, (each, expected) in enumerate(zip(listed, logits, strict=True)):
        if (off := off_from(each, expected, allowed)) is not None:
            return row, off
    return None


def find_scale(listed: Sequence[Listed], logits: F32, allowed: float) -> ListScale | None:
    """Return the scale that makes all values right, if the values are probabilities or all have the
    same factor. Return None if no scale makes them right."""
    values = [c.value for each in listed for c in each.candidates]
    if min(values, default=0.0) > 0 and max(values) <= 1:
        logs = [change_list(each, lambda value: ln(value)) for each in listed]
        right = first_off(logs, logits, allowed) is None
        return ListScale(kind=ScaleKind.PROBABILITIES) if right else None
    by = factor(listed, logits)
    if not 1 / MOST_FACTOR < by < MOST_FACTOR:
        return None
    divided = [change_list(each, lambda value: value / by) for each in listed]
    if first_off(divided, logits, allowed) is not None:
        return None
    base = next((base for base, value in BASES.items() if abs(by / value - 1) < NEAR), "")
    kind = ScaleKind.OTHER_BASE if base else ScaleKind.TEMPERATURE
    return ListScale(kind=kind, by=by, base=base)


def change_list(listed: Listed, change: Callable[[float], float]) -> Listed:
    found = (replace(each, value=change(each.value)) for each in listed.candidates)
    return replace(listed, candidates=tuple(found))


def ends(context: Context, listed: Sequence[Listed], logits: F32, allowed: float) -> list[int]:
    """Return the rows of empty lists at which the oracle's text ends too, because its likeliest
    token ends the text or ties with such a token. In a tie the logits differ by no more than twice
    the limit of one logit. Servers that stop at the end of the text list nothing."""
    rows = [row for row, each in enumerate(listed) if is_empty(each)]
    try:
        tokens = sorted(context.tokenizer.vocabulary.eog) if rows else []
    except EngineError:
        return []
    if not tokens:
        return []
    return [row for row in rows if logits[row, tokens].max() >= logits[row].max() - 2 * allowed]


def ending(listed: Sequence[Listed], ended: Sequence[int]) -> str:
    return (
        f"{len(ended)} of {len(listed)} lists are empty where the oracle's text ends too, "
        "and were not compared"
    )


def is_empty(listed: Listed) -> bool:
    return not listed.candidates and not listed.unknown


def left_open(listed: Sequence[Listed], ended: Sequence[int]) -> str:
    """Describe what was not compared: empty lists, and candidates whose text is not a token. Return
    "" if everything was compared. ended: the rows whose lists may be empty."""
    empty = sum(map(is_empty, listed)) - len(ended)
    unknown = sum(each.unknown for each in listed)
    found = [f"{empty} of {len(listed)} lists, which are empty"] if empty else []
    found += [f"{unknown} candidates whose text is not a token"] if unknown else []
    return f"not compared: {' and '.join(found)}" if found else ""


def alike(allowed: float, a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Return True if two answers differ by no more than the noise of two runs, because servers may
    add in any order."""
    pairs = list(zip(a, b, strict=True))
    return all(
        len(one) == len(other) and is_in(other, one, allowed) and is_in(one, other, allowed)
        for one, other in pairs
    )


def is_in(whole: Sequence[Any], row: Sequence[Any], allowed: float) -> bool:
    """Return True if the list `whole` has each value of the list `row`. Several tokens may have the
    same text. The last tokens of one list may be missing in the other."""
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
    """Return the values of each token, the largest first."""
    found: dict[Any, list[float]] = defaultdict(list)
    for token, value in sorted(row, key=lambda each: (isnan(each[1]), -each[1])):
        found[token].append(value)
    return found
