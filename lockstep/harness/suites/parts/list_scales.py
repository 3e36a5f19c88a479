"""Lists whose values are wrong and become right all at once: probabilities, or other logarithms."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum, auto
from math import log as ln

from lockstep.engine.quants.base import F32
from lockstep.harness.judging.candidates import Listed, Off, factor, off_from

BASES = {"10": 1 / ln(10), "2": 1 / ln(2)}  # what a natural logarithm is multiplied by
NEAR = 1e-3  # the factor of a base
MOST_FACTOR = 20.0  # a list that is nearly flat is right but for some factor whatever it says
LOGARITHMS = "logarithms"  # in the detail: which ones the values are, if all are right as such


class ScaleKind(Enum):
    PROBABILITIES = auto()
    OTHER_BASE = auto()
    TEMPERATURE = auto()


@dataclass(frozen=True, kw_only=True)
class ListScale:
    """by: the factor of all values; base: of other logarithms than natural ones."""

    kind: ScaleKind
    by: float = 1.0
    base: str = ""

    def describe(self) -> str:
        if self.kind is ScaleKind.PROBABILITIES:
            return "these are probabilities, and their logarithms are right"
        what = f"a temperature of {1 / self.by:.4g}"
        if self.kind is ScaleKind.OTHER_BASE:
            what = f"logarithms to base {self.base}"
        return f"all are right but for a factor of {self.by:.4g}, as of {what}"

    def facts(self) -> dict[str, str]:
        """What a verdict keeps: nothing of a temperature, which a matrix can make as well."""
        return {} if self.kind is ScaleKind.TEMPERATURE else {LOGARITHMS: self.describe()}


def first_off(listed: Sequence[Listed], logits: F32, allowed: float) -> tuple[int, Off] | None:
    """The first list that is wrong: what follows it has its causes there."""
    for row, (each, expected) in enumerate(zip(listed, logits, strict=True)):
        if (off := off_from(each, expected, allowed)) is not None:
            return row, off
    return None


def find_scale(listed: Sequence[Listed], logits: F32, allowed: float) -> ListScale | None:
    """Return what makes all values right at once: their logarithms, or one factor."""
    values = [c.value for each in listed for c in each.candidates]
    if min(values, default=0.0) > 0 and max(values) <= 1:
        logs = [changed(each, lambda value: ln(value)) for each in listed]
        right = first_off(logs, logits, allowed) is None
        return ListScale(kind=ScaleKind.PROBABILITIES) if right else None
    by = factor(listed, logits)
    if not 1 / MOST_FACTOR < by < MOST_FACTOR:
        return None
    divided = [changed(each, lambda value: value / by) for each in listed]
    if first_off(divided, logits, allowed) is not None:
        return None
    base = next((base for base, value in BASES.items() if abs(by / value - 1) < NEAR), "")
    kind = ScaleKind.OTHER_BASE if base else ScaleKind.TEMPERATURE
    return ListScale(kind=kind, by=by, base=base)


def changed(listed: Listed, change: Callable[[float], float]) -> Listed:
    found = (replace(each, value=change(each.value)) for each in listed.candidates)
    return replace(listed, candidates=tuple(found))
