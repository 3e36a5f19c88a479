"""The declaration of a test, and the lead of its right answer."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np

from lockstep.harness.acid.shape import F64
from lockstep.harness.acid.vocabulary import AcidVocabulary
from lockstep.harness.acid.weights import AcidWeights

LEAD = 60.0  # logits between the right answer and the nearest wrong answer: e^-60 at temperature 1
Values = tuple[float, ...]
Wrong = tuple[tuple[str, Values], ...]
Names = tuple[str, ...]


class Measurement(ABC):
    """A test of an acid report. Its values have separate coordinates, and are shares of `SMALL`.

    The next token is the answer whose values are nearest: `right`, or one of `wrong`, each with its
    text. `radius`: how far an honest engine's values may be from the right ones; `catches`: wrong
    engines of the catalogue for which the test says NO; `rests_on`: the tests whose subjects this
    test needs.
    """

    name: str
    sees: str
    right: Values
    wrong: tuple[tuple[str, Values], ...]
    radius: float
    reason: str  # the reason for this radius
    where: str  # description of the layer and the kind of weights
    catches: tuple[str, ...] = ()
    rests_on: tuple[str, ...] = ()
    needs_prompt: bool = False
    # True: the test is about the ids of a prompt; left out of models with block types, whose tests
    # need the room
    of_tokenizer: bool = False

    @abstractmethod
    def build(self, w: AcidWeights, at: "AcidPlace") -> None:
        """Write the weights that measure the test's values."""


@dataclass(frozen=True)
class AcidPlace:
    """The place of a test in a report: its own state and values, and the states of the other
    tests."""

    test: Measurement
    # tests in the order of the report; those that need the acid prompt come first
    order: tuple[Measurement, ...]
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
        """Return the state of the test that comes this many steps before this one."""
        return state_of(self.order[self.order.index(self.test) - steps])


def state_of(test: Measurement) -> str:
    return f"state:{test.name}"


def value_of(test: Measurement, i: int = 0) -> str:
    return f"value:{test.name}:{i}"


@dataclass(frozen=True)
class Answer:
    """An answer of a test: its text, and how its logit depends on the measured values.

    logit = gain * sum(away * (values - middle)). Halfway to its own values, this logit exceeds the
    right answer's logit, which is zero.
    """

    text: str
    away: F64
    middle: F64
    gain: float

    def lead(self, values: F64) -> float:
        """Return how far the right answer leads over this answer, in units of the normalised
        constant."""
        return -float(self.gain * (self.away * (values - self.middle)).sum())


def answers_of(test: Measurement, unit: float) -> list[Answer]:
    """Return the answers, the right one first. unit: the size of a measured value of 1 after the
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
    """Return the smallest lead of the right answer, in logits, for an engine whose values are
    within the radius."""
    leads = []
    for answer in answers_of(test, 1.0)[1:]:
        worst = answer.gain * test.radius * np.abs(answer.away).sum()
        leads.append(answer.lead(np.array(test.right)) - float(worst))
    return min(leads)


def room(test: Measurement) -> float:
    """Return the distance from the right values to the nearest point where a wrong answer would
    win, as a multiple of the radius."""
    found = []
    for _, values in test.wrong:
        away = np.abs(np.array(values) - np.array(test.right))
        found.append(float((away * away).sum() / 2 / away.sum()))
    return min(found) / test.radius
