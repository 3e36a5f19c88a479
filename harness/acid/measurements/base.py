"""Declarations of a test, and the lead of the right answer."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from lockstep.harness.acid.shape import F64
from lockstep.harness.acid.vocabulary import AcidVocabulary
from lockstep.harness.acid.weights import AcidWeights

LEAD = 60.0  # logits between the right answer and the nearest wrong one: e^-60 at temperature 1
Values = tuple[float, ...]
Wrong = tuple[tuple[str, Values], ...]
Names = tuple[str, ...]


class Measurement(ABC):
    """A test of an acid report. Its values lie in coordinates of their own, as shares of `SMALL`.
    The next token is the answer whose values are nearest: `right`, or one of `wrong`, by what it
    says.

    `radius` is how far an honest engine's values may lie from the right ones. `catches` names wrong
    engines of the catalogue that make it say NO, `rests_on` the tests whose subject it needs.
    """

    name: str
    sees: str
    right: Values
    wrong: tuple[tuple[str, Values], ...]
    radius: float
    reason: str  # why the radius is as it is
    where: str  # layer and kind of weights, in words
    catches: tuple[str, ...] = ()
    rests_on: tuple[str, ...] = ()
    needs_prompt: bool = False
    # of which ids a prompt has; left out where a matrix has blocks, whose tests need the room
    of_tokenizer: bool = False

    @abstractmethod
    def build(self, w: AcidWeights, at: "AcidPlace") -> None:
        """Write the weights that measure."""


@dataclass(frozen=True)
class AcidPlace:
    """The place of a test: its state and values, and the states of the others."""

    test: Measurement
    order: tuple[Measurement, ...]  # of the report, those that need the acid prompt first
    vocabulary: AcidVocabulary

    @property
    def state(self) -> str:
        return state_of(self.test)

    def value(self, i: int = 0) -> str:
        return value_of(self.test, i)

    @property
    def behind_prompt(self) -> int:
        """Return the number of positions from the acid prompt's last token to the test."""
        return 2 + self.order.index(self.test)

    def behind(self, letter: str) -> int:
        """Return the number of positions from a letter at the acid prompt's end to the test."""
        return self.vocabulary.back(letter) + self.behind_prompt

    @property
    def behind_start(self) -> int:
        """Return the number of positions from the start, before the acid prompt, to the test."""
        return self.vocabulary.n_prompt + self.behind_prompt

    def before(self, steps: int) -> str:
        """Return the state of the test that is this many steps before this one."""
        return state_of(self.order[self.order.index(self.test) - steps])


def state_of(test: Measurement) -> str:
    return f"state:{test.name}"


def value_of(test: Measurement, i: int = 0) -> str:
    return f"value:{test.name}:{i}"


@dataclass(frozen=True)
class Answer:
    """Answer of a test: its text, and how its logit grows with the measured values.

    logit = gain * sum(away * (values - middle)). Halfway, it passes the right answer's, which is
    zero.
    """

    text: str
    away: F64
    middle: F64
    gain: float

    def lead(self, values: F64) -> float:
        """Return the lead of the right answer over this one, in units of the normalised
        constant."""
        return -float(self.gain * (self.away * (values - self.middle)).sum())


def answers_of(test: Measurement, unit: float) -> list[Answer]:
    """Return the answers, the right one first. unit: how large a measured value of 1 is after the
    last norm."""
    right = np.array(test.right)
    aways = [(says, np.array(values) - right) for says, values in test.wrong]
    nearest = min(float((away * away).sum()) for _, away in aways)
    gain = LEAD / (nearest / 2 * unit)
    zero = np.zeros_like(right)
    found = [Answer(f" {test.name} ok\n", zero, zero, 0.0)]
    for says, away in aways:
        no = f"NO ({says})" if says else "NO"
        text = f" {test.name} {says if says.startswith('ok ') else no}\n"
        found.append(Answer(text, away, right + away / 2, gain))
    return found


def honest_lead(test: Measurement) -> float:
    """Return the least lead, in logits, of an engine within the radius."""
    leads = []
    for answer in answers_of(test, 1.0)[1:]:
        worst = answer.gain * test.radius * np.abs(answer.away).sum()
        leads.append(answer.lead(np.array(test.right)) - float(worst))
    return min(leads)


def room(test: Measurement) -> float:
    """Return the distance from the right values to the nearest wrong ones, in radii."""
    found = []
    for _, values in test.wrong:
        away = np.abs(np.array(values) - np.array(test.right))
        found.append(float((away * away).sum() / 2 / away.sum()))
    return min(found) / test.radius
