"""The report as the model writes it: its tests in order, and all lines that it may contain.

The state of each token determines the next token, so only the measurements need memory.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.harness.acid.architectures import architecture_named
from lockstep.harness.acid.measurements.base import Answer, Measurement, answers_of, state_of
from lockstep.harness.acid.measurements.formats import tests_of_format
from lockstep.harness.acid.vocabulary import ENDED

VERSION = 1
END = " end of the acid report\n"


@dataclass(frozen=True)
class Report:
    """The report of a model. `prompted` tests come first and need the acid prompt; `usual` tests
    work without it."""

    arch: str
    quant: str
    prompted: tuple[Measurement, ...]
    usual: tuple[Measurement, ...]

    @property
    def tests(self) -> tuple[Measurement, ...]:
        return self.prompted + self.usual

    @property
    def title(self) -> str:
        return f"acid {VERSION} {self.arch} {self.quant}"

    @property
    def prompt(self) -> str:
        """Return the acid prompt."""
        return architecture_named(self.arch).vocabulary.prompt

    @property
    def full_start(self) -> tuple[str, str]:
        """Return the two tokens after the acid prompt: a short one, and one of usual length."""
        return f" {self.title}:", f" {len(self.tests)} tests\n"

    @property
    def short_start(self) -> tuple[str, str]:
        left = len(self.prompted)
        said = f" {len(self.usual)} tests; {left} more with the acid prompt\n"
        return f" {self.title},", said

    def answers(self, unit: float) -> list[tuple[Measurement, list[Answer]]]:
        return [(test, answers_of(test, unit)) for test in self.tests]

    def lines(self) -> list[str]:
        """Return the texts of the report's tokens, in the order of their ids."""
        found = [*self.full_start, *self.short_start]
        for _, answers in self.answers(1.0):
            found += [answer.text for answer in answers]
        return [*found, END]  # the last id; an engine that loses it does not end the report

    def next_state(self, test: Measurement) -> str:
        """Return the state of this test's answers, which is the state of the next test or of the
        end."""
        after = self.tests[self.tests.index(test) + 1 :]
        return state_of(after[0]) if after else ENDED


def report_for(arch: str, quant: str) -> Report:
    own, blocks = architecture_named(arch), tests_of_format(quant)
    prompted = [test for test in own.prompted if not (blocks and test.of_tokenizer)]
    return Report(arch, quant, instances(prompted), instances(own.usual) + blocks)


def instances(classes: Sequence[type[Measurement]]) -> tuple[Measurement, ...]:
    return tuple(cls() for cls in classes)
