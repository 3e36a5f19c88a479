"""The verdicts of a report as test results, from which all CI formats are written.

In each format, results that change the exit code are failures, and uncompared results never look
like a success.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from lockstep.harness.records import BOTH, PART, Site, Verdict
from lockstep.harness.report.jsonl import check_order, read_unfinished
from lockstep.harness.report.text import explain, printable, site_name

PASSED = ("agreed",)
FAILED = ("diverged",)
SKIPPED = ("excused", "not-applicable")  # neither a pass nor a reason for another exit code
# characters of one text; a token may have a million, and report.jsonl has all of them
LONGEST = 8000
LONGEST_NAME = 200
RUN = "run"  # name of the suite for the end of the run, which no verdict describes


@dataclass(frozen=True, kw_only=True, slots=True)
class TestResult:
    """One verdict. All texts are printable: except for line feeds, they have no control characters
    and no bidi marks."""

    __test__ = False  # tells pytest that this is no test class

    model: str
    suite: str
    name: str  # name of the test, unique within a suite of a model
    status: str  # a Status of harness.records
    summary: str  # one line
    # lines: the summary, the reason of the limit, the last words of the engine, the command
    explanation: str
    about: str = ""  # name of the engine if the verdict is about only one
    key: str = ""  # results with the same key have the same cause
    repro: str = ""  # the command that reproduces the result

    @property
    def is_red(self) -> bool:
        return self.status not in PASSED + SKIPPED


@dataclass(frozen=True, kw_only=True, slots=True)
class RunResults:
    """A report. `results` are in the report's order, followed by the end of the run if it
    failed."""

    command: str
    started: datetime
    seconds: float
    exit_code: int | None  # None: the run did not finish
    seed: int
    engines: tuple[str, ...]  # name and version
    versions: Mapping[str, str]
    results: tuple[TestResult, ...]
    next: tuple[str, ...] = ()  # commands that find the place, or that compare more closely

    def with_status(self, *statuses: str) -> list[TestResult]:
        return [result for result in self.results if result.status in statuses]

    @property
    def red(self) -> list[TestResult]:
        return [result for result in self.results if result.is_red]


def read_results(folder: Path) -> RunResults:
    """Read the results in a run's folder. Raises BrokenReport if the report is damaged. A missing
    footer is not an error."""
    path = folder / "report.jsonl"
    rows = read_unfinished(path)
    finished = rows[-1]["kind"] == "footer"
    if finished:
        check_order(path, rows)
    head: Mapping[str, Any] = rows[0]
    foot: Mapping[str, Any] = rows[-1] if finished else {"seconds": 0.0, "exit_code": None}
    results = list(results_of([verdict_of(r) for r in rows if r["kind"] == "verdict"]))
    results += ending(foot["exit_code"], results)
    engines = (f"{e['engine']} {e['version']}" for e in head["engines"])
    return RunResults(
        command=clip_text(head["command"]),
        started=datetime.fromisoformat(head["started"]),
        seconds=foot["seconds"],
        exit_code=foot["exit_code"],
        seed=head["seed"],
        engines=tuple(clip_text(engine, LONGEST_NAME) for engine in engines),
        versions={clip_text(k): clip_text(v) for k, v in head["versions"].items()},
        results=tuple(results),
        next=tuple(clip_text(line) for line in foot.get("next", ())),
    )


def verdict_of(row: Mapping[str, Any]) -> Verdict:
    """Return the verdict of a line. JSON has no infinity, so the words of `plain` become numbers
    again."""
    detail = {
        name: float(value) if value in ("inf", "-inf", "nan") else value
        for name, value in row["detail"].items()
    }
    return Verdict(**{k: v for k, v in row.items() if k != "kind"} | {"detail": detail})


def results_of(verdicts: Sequence[Verdict]) -> Iterator[TestResult]:
    named: Counter[tuple[str, str, str]] = Counter()
    for verdict in verdicts:
        model = clip_text(verdict.case, LONGEST_NAME) or "-"
        suite = clip_text(verdict.suite, LONGEST_NAME) or "-"
        name = clip_text(name_of(verdict), LONGEST_NAME)
        named[model, suite, name] += 1
        number = named[model, suite, name]
        yield TestResult(
            model=model,
            suite=suite,
            name=name if number == 1 else f"{name} ({number})",
            status=verdict.status,
            summary=clip_text(verdict.summary),
            explanation=clip_text(explain(verdict), keep="\n"),
            about="" if verdict.about == BOTH else clip_text(verdict.about, LONGEST_NAME),
            key=clip_text(verdict.key),
            repro=clip_text(verdict.repro),
        )


def name_of(verdict: Verdict) -> str:
    """Return a name that is the same in the next run. It contains the place or the part, never a
    measured number."""
    detail = verdict.detail
    if all(part in detail for part in ("site", "step", "layer")):
        site = Site(step=detail["step"], layer=detail["layer"], name=detail["site"])
        name = site_name(site)
    else:
        name = str(detail.get(PART) or detail.get("tensor") or detail.get("op") or verdict.suite)
    return name if verdict.about == BOTH else f"{name} of {verdict.about}"


def ending(exit_code: int | None, results: Sequence[TestResult]) -> list[TestResult]:
    """Return one result for an exit code that no verdict explains; an empty list if a verdict
    explains it."""
    if exit_code is None:
        return [of_run("finished", "the run did not finish: its findings are incomplete")]
    if exit_code and not any(result.is_red for result in results):
        text = "nothing was compared for a model or for the engine under test"
        return [of_run("compared", f"{text} (exit code {exit_code})")]
    return []


def of_run(name: str, text: str) -> TestResult:
    return TestResult(
        model=RUN, suite=RUN, name=name, status="not-compared", summary=text, explanation=text
    )


def clip_text(text: str, most: int = LONGEST, keep: str = "") -> str:
    """Return the text in printable form, cut to at most this length."""
    shown = printable(text[: most + 1], keep)
    if len(shown) <= most:
        return shown
    return f"{shown[:most]}... (cut here: report.jsonl has all of it)"
