"""Descriptions of reports and tests for users."""

from collections.abc import Collection, Iterator, Mapping, Sequence

from lockstep.harness.acid.measurements.base import Measurement, honest_lead, room
from lockstep.harness.acid.read import AcidReading, Read, known_report
from lockstep.harness.acid.report import Report

LOST = (
    "each of these is probably a lost NO: some programs drop long tokens "
    "(llama-cpp-python drops tokens of more than 32 bytes)"
)
# the cause if a test of the tokenizer says NO although the ids are right
GIVEN_IDS = (
    "attention does not find these distant tokens of the prompt: look at positions and masks"
)


def explain(reading: AcidReading) -> Iterator[str]:
    """Yield an explanation of a report, beginning with the wrong tests that depend on no other
    wrong test."""
    report = known_report(reading.arch, reading.quant)
    assert report is not None, "a reading without a problem is of a known report"
    tests = {test.name: test for test in report.tests}
    wrong = [answer for answer in reading.answers if not answer.ok]
    n = len(reading.answers)
    yield f"acid {reading.arch} {reading.quant}: {n - len(wrong)} of {n} tests ok"
    groups = causes(tests, wrong)
    for group in groups:
        if len(group) > 1:
            yield f"One of these {len(group)} is the cause; each test depends on the others:"
        for answer in group:
            yield from explain_no(answer, tests[answer.test])
    shown = {answer.test for group in groups for answer in group}
    rest = [answer for answer in wrong if answer.test not in shown]
    if rest:
        yield "These tests depend on the faults above; look at them when the faults are fixed:"
        yield from (f"  {answer.test}: {answer.says or 'NO'}" for answer in rest)
    yield from what_is_missing(reading, len(report.prompted))


def explain_no(answer: Read, test: Measurement) -> Iterator[str]:
    yield f"{test.name} NO{f': {answer.says}' if answer.says else ''}"
    yield f"  tested: {test.sees}"
    yield f"  measured in: {test.where}"
    if test.of_tokenizer:
        yield f"  if the engine was given the right ids: {GIVEN_IDS}"


def what_is_missing(reading: AcidReading, n_prompted: int) -> Iterator[str]:
    if reading.missing:
        yield f"not in the report: {', '.join(reading.missing)}"
        if reading.ended:
            yield f"  {LOST}"
    if not reading.ended:
        yield "the report does not end: let the engine write 64 tokens or more"
    if not reading.prompted:
        yield (f"{n_prompted} tests need the acid prompt: lockstep acid list --prompt prints it")


def causes(tests: Mapping[str, Measurement], answers: Sequence[Read]) -> list[tuple[Read, ...]]:
    """Return the NOs that may be causes, because they depend on no other NO. NOs that depend on
    each other form a group, and any of the group may be the cause."""
    wrong = {answer.test for answer in answers}
    groups = []
    for answer in answers:
        under = below(tests, answer.test, wrong)
        if all(answer.test in below(tests, other, wrong) for other in under):
            group = tuple(each for each in answers if each.test in {answer.test, *under})
            if group[0] is answer:
                groups.append(group)
    return groups


def below(tests: Mapping[str, Measurement], name: str, wrong: Collection[str]) -> frozenset[str]:
    """Return the wrong tests that this test depends on, directly or through other wrong tests."""
    found: set[str] = set()
    left = [name]
    while left:
        new = {*tests[left.pop()].rests_on} & {*wrong} - found
        found |= new
        left += new
    return frozenset(found - {name})


def list_tests(report: Report) -> Iterator[str]:
    """Yield lines about the tests: what each test checks, how far its right answer leads, and which
    mistakes it distinguishes."""
    for title, tests in (
        ("for any prompt:", report.usual),
        ("only with the acid prompt:", report.prompted),
    ):
        yield title
        for test in tests:
            yield from describe(test)


def describe(test: Measurement) -> Sequence[str]:
    says = "; ".join(each for each, _ in test.wrong if each) or "NO alone"
    return (
        f"{test.name}: {test.sees}",
        f"  in: {test.where}",
        f"  margin: the answer of an honest engine leads by {honest_lead(test):.0f} "
        f"logits or more, and its values have {room(test):.0f} times the room that they "
        f"need ({test.reason})",
        f"  distinguishes: {says}",
        f"  catches: {', '.join(test.catches) or '-'}",
    )
