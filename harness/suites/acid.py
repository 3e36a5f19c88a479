"""Acid reports of engines that run a model with constructed weights. Each test of the report gets a
verdict.

The file defines the right answers. The oracle writes a report too. A test is not judged if the
oracle does not write ok for it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lockstep.engine.errors import EngineError
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.gguf.split_files import open_model
from lockstep.harness.acid.explain import GIVEN_IDS, below, causes
from lockstep.harness.acid.measurements.base import Measurement
from lockstep.harness.acid.read import AcidReading, Read, read_report, report_named
from lockstep.harness.acid.report import Report
from lockstep.harness.asking.facts import ModelFacts
from lockstep.harness.asking.session import Session
from lockstep.harness.context.suite import Context, NoAnswer, Suite
from lockstep.harness.records import Verdict
from lockstep.harness.suites.parts.acid_text import WrittenText, text_behind

SUITE = "acid"
ANOTHER = "Hello"  # any prompt gives a report; used where the acid prompt's report is not all ok
SPARE = 8  # tokens in addition to those of the tests: a title and an end
NO_ACID = (
    "this is not an acid model. Omit MODEL, and Lockstep makes a model of each type; a "
    "server with one model must serve a file of lockstep acid write"
)
NO_REPORT = (
    "the fault is in the token embedding, detokenization, the output matrix or sampling, "
    "or attention and the norms give NaN"
)


class Acid(Suite, name=SUITE):
    order = 56
    expected = False  # False: most models are not acid models

    def inapplicable(self, facts: ModelFacts) -> str:
        return facts.no_run

    def run(self, context: Context) -> Iterator[Verdict]:
        written = report_in(context.file)
        same = context.subject_model == context.model
        report = written if same else report_at(context.subject_model)
        if report is None or written is None:
            if context.named:
                yield context.verdict(SUITE, "not-applicable", NO_ACID)
            return
        try:
            truth = ask_report(context, context.oracle, report)
        except NoAnswer as error:  # then the subject was not asked
            text = f"acid {report.arch} {report.quant}: the oracle: {error.summary}"
            yield context.verdict(SUITE, "not-compared", text, error.detail)
            return
        try:
            found = ask_report(context, context.subject, report)
        except NoAnswer as error:
            if not says_that_it_cannot(error):
                raise
            text = f"acid {report.arch} {report.quant}: {error.summary}"
            yield context.verdict(
                SUITE, error.status, text, {**error.detail, "refused": True}, (SUITE, "refused")
            )
            return
        yield from of_oracle(context, report, truth)
        yield from of_subject(context, report, found, {no.test for no in truth.noes(report)})


def says_that_it_cannot(error: NoAnswer) -> bool:
    """Return True if the engine refused the model or raised an exception. An engine that died or
    hung has not refused it."""
    return error.status in ("not-compared", "diverged") or bool(error.detail.get("said"))


def report_in(file: GgufFile) -> Report | None:
    """Return the report of an acid model; None for any other model."""
    name = file.metadata.get("general.name")
    return report_named(str(name.data)) if name else None


def report_at(path: Path) -> Report | None:
    try:
        with open_model(path) as file:
            return report_in(file)
    except EngineError:
        return None


@dataclass(frozen=True, kw_only=True)
class Found:
    """An engine's texts after the acid prompt, and after a second prompt if the first text is not
    all ok."""

    readings: tuple[AcidReading, ...]
    texts: tuple[WrittenText, ...]
    failed: tuple[NoAnswer, ...]  # after one prompt, although another prompt was answered

    def given_ids(self, test: Measurement) -> bool:
        """Return True if a tokenizer test used another tokenizer's ids."""
        return test.of_tokenizer and all(each.given_ids for each in self.texts)

    def answers(self, test: Measurement) -> list[Read]:
        return [a for reading in self.readings for a in reading.answers if a.test == test.name]

    def is_unanswered(self, test: Measurement) -> bool:
        """Return True if no report answers the test, or if a complete report lacks the answer,
        because an engine may lose a NO."""
        whole = (each for each in self.readings if each.ended)
        return not self.answers(test) or any(test.name in each.missing for each in whole)

    def noes(self, report: Report) -> list[Read]:
        """Return one NO for each test that has any. A NO after the short prompt is preferred,
        because it is the clearest."""
        every = [[a for a in self.answers(test) if not a.ok] for test in report.tests]
        return [answers[-1] for answers in every if answers]


def ask_report(context: Context, session: Session, report: Report) -> Found:
    """Ask an engine for a model's report. Raises NoAnswer if no prompt gives a text."""
    n = len(report.tests) + SPARE
    texts: list[WrittenText] = []
    failed: list[NoAnswer] = []
    for prompt in (report.prompt, ANOTHER):
        context.progress(f"the report of {session.name} after a prompt of {len(prompt)} letters")
        try:
            texts.append(text_behind(context, session, prompt, n))
        except NoAnswer as error:
            failed.append(error)
            continue
        if read_report(texts[-1].text).code == 0:
            break
    if not texts:
        raise failed[0]
    readings = tuple(of_this_file(read_report(each.text), report) for each in texts)
    return Found(readings=readings, texts=tuple(texts), failed=tuple(failed))


def of_this_file(reading: AcidReading, report: Report) -> AcidReading:
    """Return the reading. If the report belongs to another model, return a problem instead."""
    if not reading.problem and (reading.arch, reading.quant) != (report.arch, report.quant):
        said = f"acid {reading.arch} {reading.quant}"
        return AcidReading(problem=f"the report belongs to another model, {said}")
    return reading


def of_oracle(context: Context, report: Report, truth: Found) -> Iterator[Verdict]:
    """Yield verdicts on the oracle for its wrong or missing answers. A right oracle gets no
    verdict."""
    name = context.oracle.name
    for no in truth.noes(report):
        text = f"the oracle itself writes {line_of(no)}; at fault: the oracle"
        detail = {"test": no.test, "says": no.says, "at_fault": "oracle"}
        yield context.verdict(SUITE, "diverged", text, detail, (SUITE, "oracle", no.test))
    missing = [test.name for test in report.tests if not truth.answers(test)]
    if missing:
        text = f"the oracle {name} does not report {', '.join(missing)}"
        yield context.verdict(SUITE, "not-compared", text, {"tests": missing})


def of_subject(
    context: Context, report: Report, found: Found, wrong_in_oracle: set[str]
) -> Iterator[Verdict]:
    for error in found.failed:
        key = (SUITE, error.status)
        yield context.verdict(SUITE, error.status, error.summary, error.detail, key)
    if all(reading.problem for reading in found.readings):
        yield no_report(context, report, found)
        return
    noes = {no.test: no for no in found.noes(report)}
    for test in report.tests:
        if test.name in wrong_in_oracle and test.name in noes:
            text = f"{line_of(noes[test.name])}, and the oracle does not write ok either"
            yield context.verdict(SUITE, "not-compared", text, {"test": test.name})
        elif test.name in noes:
            no = said_no_of_given_ids if found.given_ids(test) else said_no
            yield no(context, report, noes, test)
        elif not found.is_unanswered(test):
            detail = {"test": test.name, "file": report.quant}
            of = " (with given ids; the tokenizer was not tested)" if found.given_ids(test) else ""
            yield context.verdict(SUITE, "agreed", f"{test.name} ok{of}", detail)
    yield from left_out(context, report, found)


def said_no(
    context: Context, report: Report, noes: Mapping[str, Read], test: Measurement
) -> Verdict:
    tests = {each.name: each for each in report.tests}
    own = noes[test.name]
    detail = {"test": test.name, "says": own.says, "file": report.quant, "at_fault": "subject"}
    groups = [[no.test for no in group] for group in causes(tests, list(noes.values()))]
    group = next((names for names in groups if test.name in names), None)
    if group is not None:
        root = group[0]
        text = f"{line_of(own)}; tested: {test.sees}; measured in: {test.where}"
        if others := [name for name in group if name != test.name]:
            text += f"; or the cause is one of {', '.join(others)}, whose tests depend on this one"
    else:
        under = below(tests, test.name, noes)
        root = next((names[0] for names in groups if under & {*names}), groups[0][0])
        text = f"{line_of(own)}; this test depends on {root}, which is wrong as well"
    text = f"acid {report.arch} {report.quant}: {text}; at fault: the engine under test"
    return context.verdict(SUITE, "diverged", text, detail, (SUITE, root))


def said_no_of_given_ids(
    context: Context, report: Report, noes: Mapping[str, Read], test: Measurement
) -> Verdict:
    """Return the verdict on a tokenizer test whose ids came from the oracle, so that the tokenizer
    is not at fault."""
    text = (
        f"acid {report.arch} {report.quant}: {test.name} NO. The ids were the oracle's, "
        f"so the tokenizer is not at fault: {GIVEN_IDS}; at fault: the engine under test"
    )
    detail = {"test": test.name, "file": report.quant, "given_ids": True, "at_fault": "subject"}
    return context.verdict(SUITE, "diverged", text, detail, (SUITE, "given ids"))


def line_of(answer: Read) -> str:
    return f"{answer.test} NO{f' ({answer.says})' if answer.says else ''}"


def no_report(context: Context, report: Report, found: Found) -> Verdict:
    """Return the verdict on a text without a report. An engine that writes such a text is wrong
    from the first token. An engine that writes nothing is not compared."""
    n, text = len(report.tests), next(filter(str.strip, (each.text for each in found.texts)), "")
    if not text:
        said = f"{context.subject.name} writes nothing: {n} tests were not compared"
        return context.verdict(SUITE, "not-compared", said)
    why = next(reading.problem for reading in found.readings)
    said = (
        f"acid {report.arch} {report.quant}: {why}: {text[:60]!r}; {NO_REPORT}; {n} tests "
        "were not compared; at fault: the engine under test"
    )
    detail = {"text": text[:200], "at_fault": "subject"}
    return context.verdict(SUITE, "diverged", said, detail, (SUITE, "no report"))


def left_out(context: Context, report: Report, found: Found) -> Iterator[Verdict]:
    noes = {no.test for no in found.noes(report)}
    left = (test.name for test in report.tests if found.is_unanswered(test))
    missing = [name for name in left if name not in noes]
    if not missing:
        return
    why = reason_of(report, found, missing)
    text = f"acid {report.arch} {report.quant}: {len(missing)} tests are not in the report"
    text = f"{text} ({', '.join(missing)}): {why}"
    yield context.verdict(SUITE, "not-compared", text, {"tests": missing}, (SUITE, "not whole"))


def reason_of(report: Report, found: Found, missing: Sequence[str]) -> str:
    if any(not reading.problem and not reading.ended for reading in found.readings):
        return f"the report does not end within {len(report.tests) + SPARE} tokens"
    if set(missing) <= {test.name for test in report.prompted}:
        return "the engine writes no full report after the acid prompt"
    return "the report ends without them; an engine that drops long tokens may lose a NO"
