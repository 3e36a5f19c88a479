"""A summary in Markdown for a GitHub job: the comparisons and the failures."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence

from lockstep.harness.report.formats.markup import as_block, as_cell, as_code
from lockstep.harness.report.formats.results import RunResults, TestResult
from lockstep.harness.report.text import MARKS, cut

# GitHub accepts 1 MiB from a step, and shows nothing of a longer text
SHOWN = 20  # causes with an explanation
LONGEST_TEXT = 2000
MOST_ROWS = 200  # rows of tables
MOST_REASONS = 50
HEADINGS = {0: "conform", 1: "DIVERGENCE", 2: "INTERNAL ERROR", 3: "INCOMPLETE"}


def markdown(run: RunResults) -> str:
    return "\n".join(lines_of(run)) + "\n"


def lines_of(run: RunResults) -> Iterator[str]:
    heading = "DID NOT FINISH" if run.exit_code is None else HEADINGS[run.exit_code]
    yield f"## Lockstep: {heading}"
    yield ""
    counts = Counter(result.status for result in run.results)
    yield ", ".join(f"{counts[status]} {mark.lower()}" for status, mark in marks(counts))
    yield ""
    yield from table(run.results)
    for same in causes(run.red)[:SHOWN]:
        yield from cause(same)
    if len(causes(run.red)) > SHOWN:
        yield f"\n{len(causes(run.red)) - SHOWN} more causes are in the report."
    yield from reasons(run.with_status("excused", "not-applicable"))
    if run.next:
        yield "\n### Next\n"
        yield as_block(cut("\n".join(run.next), LONGEST_TEXT))
    yield ""
    yield as_block(cut(run.command, LONGEST_TEXT))
    yield ""
    yield f"{as_cell(', '.join(run.engines))}, seed {run.seed}, {run.seconds:.1f} s"


def marks(counts: Counter[str]) -> list[tuple[str, str]]:
    """Return the statuses that occur, with their words, in the order that all tables use."""
    return [(status, mark) for status, mark in MARKS.items() if counts[status]]


def table(results: Sequence[TestResult]) -> Iterator[str]:
    """Yield a row for each suite of each model."""
    rows: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for result in results:
        whom = f" ({result.about})" if result.about else ""
        rows[result.model, result.suite + whom][result.status] += 1
    shown = marks(Counter(result.status for result in results))
    yield f"| model | suite | {' | '.join(mark.lower() for _, mark in shown)} |"
    yield "|---|---|" + "---:|" * len(shown)
    for (model, suite), counts in list(rows.items())[:MOST_ROWS]:
        numbers = (str(counts[status] or "") for status, _ in shown)
        yield f"| {as_cell(model)} | {as_cell(suite)} | {' | '.join(numbers)} |"
    if len(rows) > MOST_ROWS:
        yield f"\n{len(rows) - MOST_ROWS} more rows are in the report."


def causes(red: Sequence[TestResult]) -> list[list[TestResult]]:
    """Return the failures in groups. Divergences with the same key form one group, because they
    have the same cause. Differences come before unanswered questions."""
    found: dict[str, list[TestResult]] = {}
    for result in sorted(red, key=lambda each: [*MARKS].index(each.status)):
        key = result.key or f"{result.suite}/{result.summary}"
        found.setdefault(f"{result.status}/{key}", []).append(result)
    return list(found.values())


def cause(same: Sequence[TestResult]) -> Iterator[str]:
    first = same[0]
    yield ""
    yield f"### {MARKS[first.status]}: {as_cell(first.model)}, {as_cell(first.name)}"
    yield ""
    yield as_block(cut(first.explanation, LONGEST_TEXT))
    if len(same) > 1:
        places = ", ".join(as_code(result.name) for result in same[1:9])
        yield f"\nand {len(same) - 1} more like it: {places}{' ...' if len(same) > 9 else ''}"


def reasons(results: Sequence[TestResult]) -> Iterator[str]:
    """Yield the reasons of excused results, and of uncompared results that do not fail the run."""
    lines = dict.fromkeys(
        f"- {MARKS[r.status]}: {as_cell(r.model)}, {as_cell(r.suite)}: "
        f"{as_code(cut(r.summary, LONGEST_TEXT))}"
        for r in results
    )
    if lines:
        yield "\n### Excused and not applicable\n"
        yield from list(lines)[:MOST_REASONS]
    if len(lines) > MOST_REASONS:
        yield f"- {len(lines) - MOST_REASONS} more are in the report"
