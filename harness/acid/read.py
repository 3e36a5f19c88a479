"""The reader of acid reports, from an engine's text to findings about the engine. It trusts nothing
in the text."""

import re
from dataclasses import dataclass

from lockstep.harness.acid.measurements.base import Measurement, answers_of
from lockstep.harness.acid.report import END, VERSION, Report, report_for
from lockstep.harness.acid.tokens import SPACE

LONGEST = 1 << 22  # characters that are read
COLOURS = re.compile(r"\x1b\[[0-9;]{0,16}m")
TITLE = re.compile(r"acid (\d{1,4}) ([a-z0-9-]{1,32}) ([A-Z0-9_]{1,16})([:,])")

NAME = re.compile(r"lockstep acid (\d{1,4}) ([a-z0-9-]{1,32}) ([A-Z0-9_]{1,16})")


@dataclass(frozen=True, kw_only=True)
class Read:
    """One line of a report."""

    test: str
    ok: bool
    says: str = ""  # the known mistake, printed after NO


@dataclass(frozen=True, kw_only=True)
class AcidReading:
    """The result of reading a text. problem: why the text contains no report; "" if it contains
    one."""

    arch: str = ""
    quant: str = ""
    prompted: bool = False  # True: the acid prompt asked for all tests
    answers: tuple[Read, ...] = ()
    missing: tuple[str, ...] = ()
    ended: bool = False
    problem: str = ""

    @property
    def complete(self) -> bool:
        return not self.problem and not self.missing and self.ended

    @property
    def code(self) -> int:
        """Return 0 if all tests are ok, 1 for a NO, 2 for no report, 3 for an incomplete report. A
        NO takes precedence over a missing line."""
        if self.problem:
            return 2
        if any(not answer.ok for answer in self.answers):
            return 1
        return 0 if self.complete else 3


def read_report(text: str) -> AcidReading:
    """Return the first report in the text. Text around it is ignored."""
    text = COLOURS.sub("", text[:LONGEST])
    found = TITLE.search(text)
    if not found:
        return AcidReading(problem=no_title(text))
    version, arch, quant, sign = found.groups()
    report = known_report(arch, quant)
    if int(version) != VERSION or report is None:
        said = f"acid {int(version)} {arch} {quant}"
        return AcidReading(problem=f"no known report for {said!r} (version {VERSION} is known)")
    prompted = sign == ":"
    tests = report.tests if prompted else report.usual
    rest = text[found.end() :]
    again = TITLE.search(rest)
    rest = rest[: again.start()] if again else rest
    answers = []
    for test in tests:
        if answer := answer_in(rest, test):
            answers.append(answer)
    seen = {answer.test for answer in answers}
    return AcidReading(
        arch=arch,
        quant=quant,
        prompted=prompted,
        answers=tuple(answers),
        missing=tuple(test.name for test in tests if test.name not in seen),
        ended=END.strip() in rest,
    )


def report_named(name: str) -> Report | None:
    """Return the report of the model with this `general.name`; None if the model is not an acid
    model, or has another version."""
    found = NAME.fullmatch(name)
    if found is None or int(found[1]) != VERSION:
        return None
    return known_report(found[2], found[3])


def known_report(arch: str, quant: str) -> Report | None:
    from lockstep.harness.acid.architectures import ARCHITECTURES
    from lockstep.harness.acid.write import TYPES

    return report_for(arch, quant) if arch in ARCHITECTURES and quant in TYPES else None


def answer_in(text: str, test: Measurement) -> Read | None:
    """Return the first answer of this test in the text, wherever the lines end."""
    said = re.search(rf"(?<![\w-]){re.escape(test.name)} (ok|NO(?: \([^()\n]*\))?)(?!\w)", text)
    if said is None:
        return None
    known = {answer.text.strip() for answer in answers_of(test, 1.0)}
    what = said.group().strip() if said.group().strip() in known else f"{test.name} NO"
    ok = said.group(1) == "ok"
    return Read(test=test.name, ok=ok, says="" if ok else what.partition("NO")[2].strip(" ()"))


def no_title(text: str) -> str:
    if not text.strip():
        return "the text is empty"
    if TITLE.search(text.replace(SPACE, " ")):
        return f"the report has {SPACE!a} for spaces: the engine does not detokenize them"
    return f"no report in this text: no line begins with 'acid {VERSION} ARCH TYPE'"
