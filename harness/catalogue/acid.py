"""Acid reports of wrong and honest engines of the catalogue.

A test covers a wrong engine if its `catches` names the engine. The report is right if a covering
test says NO. Each test that does not depend on a covering test should stay ok.
"""

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path

from lockstep.harness.acid.architectures import architecture_named
from lockstep.harness.acid.measurements.base import Measurement
from lockstep.harness.acid.read import AcidReading, read_report
from lockstep.harness.acid.report import Report
from lockstep.harness.acid.tokens import PROMPT
from lockstep.harness.adapters.base import Adapter
from lockstep.harness.asking.session import LocalSession
from lockstep.harness.catalogue.run import wrong_engines
from lockstep.harness.records import EXACT, Answered, Settings

TOKENS = 48  # the longest report has 38
SHORT = "Hello"
# tests on which all others depend: the size of a layer relative to the embedding, and the divisor
# of norms
FOUNDATIONS = {"layers", "norm-of-each-token"}


@dataclass(frozen=True)
class SeenReport:
    """Report of one engine."""

    engine: str
    covering: tuple[str, ...]  # tests that cover the mistake
    said_no: tuple[str, ...]
    kept: tuple[str, ...]  # tests that do not depend on the covering tests, and said ok
    lost: tuple[str, ...]  # tests that do not depend on them, and did not say ok
    complete: bool
    readings: tuple[AcidReading, ...]  # after the acid prompt, and after a short prompt

    @property
    def names_cause(self) -> bool:
        return any(name in self.said_no for name in self.covering)


def try_engine(name: str, path: Path, report: Report, settings: Settings = EXACT) -> SeenReport:
    """Ask an engine for its report after the acid prompt and after a short prompt. Both reports may
    name a mistake.

    If a test for any prompt covers the mistake, side effects are counted only in the report of the
    short prompt. After the long prompt most mistakes change every test.
    """
    covering = tuple(t.name for t in report.tests if name.partition(":")[2] in t.catches)
    read = {p: read_report(text_of(name, path, settings, p)) for p in (report.prompt, SHORT)}
    short = any(t.name in covering for t in report.usual)
    said = {answer.test: answer.ok for answer in read[SHORT if short else report.prompt].answers}
    asked = report.usual if short else report.tests
    if (FOUNDATIONS | architecture_named(report.arch).foundations) & set(covering):
        asked = ()
    apart = [t.name for t in asked if not needs(report, t) & set(covering)]
    every = [answer for reading in read.values() for answer in reading.answers]
    return SeenReport(
        engine=name,
        covering=covering,
        said_no=tuple(dict.fromkeys(answer.test for answer in every if not answer.ok)),
        kept=tuple(test for test in apart if said.get(test)),
        lost=tuple(test for test in apart if not said.get(test)),
        complete=all(reading.complete for reading in read.values()),
        readings=tuple(read.values()),
    )


def covered_by(tests: Sequence[Measurement]) -> list[str]:
    """Return the wrong engines in the tests' `catches`, in the order of the catalogue."""
    caught = {name for test in tests for name in test.catches}
    return [cls.name for cls in wrong_engines() if cls.name.partition(":")[2] in caught]


def needs(report: Report, test: Measurement) -> Set[str]:
    """Return the test and all tests that it depends on."""
    by_name = {each.name: each for each in report.tests}
    found: set[str] = set()
    left = [test.name]
    while left:
        name = left.pop()
        if name not in found and name in by_name:
            found.add(name)
            left += by_name[name].rests_on
    return found


def text_of(name: str, path: Path, settings: Settings, prompt: str = PROMPT) -> str:
    """Return the greedy text after the prompt; empty if the engine does not answer."""
    with LocalSession(Adapter.member(name), path, settings) as session:
        ids = session.ask("tokenize", [prompt.encode()])
        if not isinstance(ids, Answered):
            return ""
        new = session.ask("greedy", ids.value[0], TOKENS)
        if not isinstance(new, Answered):
            return ""
        flags = {"remove_special": True, "unparse_special": False}
        said = session.ask("detokenize", [new.value], **flags)
        return said.value[0].decode("utf-8", "replace") if isinstance(said, Answered) else ""


def table(seen: Sequence[SeenReport]) -> Iterator[str]:
    covered = [s for s in seen if s.covering]
    for s in seen:
        mark = "named" if s.names_cause else ("MISSED" if s.covering else "-")
        said = "all ok" if s.complete else "no complete report"
        said = f"{len(s.said_no)} NO: {', '.join(s.said_no[:4])}" if s.said_no else said
        lost = f"  (lost {len(s.lost)}: {', '.join(s.lost[:6])})" if s.covering and s.lost else ""
        yield f"{s.engine:44} {mark:7} {said}{lost}"
    yield f"covered {len(covered)}, correctly named {sum(s.names_cause for s in covered)}"
    kept, lost_ = (sum(len(getattr(s, what)) for s in covered) for what in ("kept", "lost"))
    yield f"tests that do not depend on the fault: {kept} of {kept + lost_} ok"
