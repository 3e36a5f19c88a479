"""A matrix of engines. It shows which suites each engine answers, and its results on the same
cases."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lockstep.harness.check.check import BadInput, Plan, suites_named
from lockstep.harness.exit_codes import exit_code_of_run
from lockstep.harness.parallel.works import Forks
from lockstep.harness.records import EngineInfo, Status, Verdict
from lockstep.harness.report.header import header
from lockstep.harness.report.jsonl import plain
from lockstep.harness.report.page.matrix import page_of_matrix
from lockstep.harness.report.page.verdicts import count_words
from lockstep.harness.report.page.write import write_text
from lockstep.harness.report.text import MARKS, cut, printable
from lockstep.harness.runs.run import Listener, run_folder, run_plans

SCHEMA = Path(__file__).parents[1] / "schemas" / "matrix.json"
FORMAT = 1
WORST_FIRST: tuple[Status, ...] = (
    *("diverged", "internal", "malformed", "crashed", "timed-out", "not-compared"),
    *("excused", "agreed", "not-applicable"),
)
WELL: tuple[Status, ...] = ("agreed", "excused")
NOT_COMPARED = "nothing was compared: the engine offers nothing that these models need"
NOTHING = "-"  # content of a cell if the engine does not offer the suite, or if no case has it


@dataclass(frozen=True, kw_only=True)
class MatrixRow:
    """One engine of the matrix. `error` says why it could not be asked at all."""

    engine: str
    info: EngineInfo | None = None
    error: str = ""
    report: str = ""
    cells: Mapping[str, "Cell"] = field(default_factory=dict)  # by suite
    code: int = 3


@dataclass(frozen=True, kw_only=True)
class Cell:
    """One suite for all cases, with the worst verdict of each case."""

    cases: Mapping[str, Verdict]
    partly: frozenset[str] = frozenset()  # cases that agree in the part that was compared

    @property
    def counts(self) -> Counter[Status]:
        return Counter(verdict.status for verdict in self.cases.values())

    @property
    def text(self) -> str:
        """Return a text such as `5/7, 2 diverged`: the number of agreeing cases, the number of
        asked cases, and the statuses of the cases that do not agree."""
        counts, partly = self.counts, len(self.partly)
        asked = len(self.cases) - counts["not-applicable"]
        if not asked:
            return NOTHING
        words = [f"{sum(counts[status] for status in WELL) + partly}/{asked}"]
        words += [f"{partly} partly"] if partly else []
        counts["not-compared"] -= partly
        rest = [s for s in WORST_FIRST if counts[s] > 0 and s not in ("agreed", "not-applicable")]
        words += [f"{counts[status]} {MARKS[status].lower()}" for status in rest]
        return ", ".join(words)


def run_matrix(
    plans: Mapping[str, Sequence[Plan]],
    reports: Path,
    command: Sequence[str],
    jobs: int,
    progress: Callable[[str, str], None],
) -> Iterator[MatrixRow]:
    """Yield a row for each engine, with its own report. `plans` holds each engine's plans by the
    engine's name."""
    for engine, same in plans.items():
        try:
            result = run_plans(same, reports, command, Forks(jobs), listener_of(engine, progress))
        except BadInput as error:
            yield MatrixRow(engine=engine, error=str(error))
            continue
        found = next((info for info in result.engines if info.engine != same[0].oracle), None)
        yield MatrixRow(
            engine=engine,
            info=found,
            report=str(result.folder / "report.jsonl"),
            cells=cells_of(result.verdicts, [plan.case for plan in same]),
            code=exit_code_of_run(result.verdicts),
        )


def listener_of(engine: str, progress: Callable[[str, str], None]) -> Listener:
    return Listener(progress=lambda case, text: progress(f"{engine} {case}", text))


def cells_of(verdicts: Iterable[Verdict], cases: Sequence[str]) -> dict[str, Cell]:
    """Return the cells by suite, in the order of a run, without suites that ask only the oracle."""
    order = {suite.name: suite.order for suite in suites_named(())}
    apart = {suite.name for suite in suites_named(()) if suite.of_oracle_alone}
    worst: dict[str, dict[str, Verdict]] = {}
    agreed = set()
    for verdict in verdicts:
        if verdict.suite in apart:
            continue
        if verdict.status == "agreed":
            agreed.add((verdict.suite, verdict.case))
        of_suite = worst.setdefault(verdict.suite, {})
        if verdict.case not in of_suite or rank(verdict) < rank(of_suite[verdict.case]):
            of_suite[verdict.case] = verdict
    found = {}
    for suite in sorted(worst, key=lambda name: order.get(name, len(order))):
        same = {case: worst[suite][case] for case in cases if case in worst[suite]}
        part = {c for c, v in same.items() if v.status == "not-compared" and (suite, c) in agreed}
        found[suite] = Cell(cases=same, partly=frozenset(part))
    return found


def rank(verdict: Verdict) -> int:
    return WORST_FIRST.index(verdict.status)


def exit_code_of_matrix(rows: Sequence[MatrixRow]) -> int:
    """Return the worst exit code of all engines. An engine that could not be asked counts as
    incomplete."""
    found = {row.code for row in rows}
    return next(code for code in (1, 2, 3, 0) if code in found)


# --- files ----------------------------------------------------------------------------------


def write_matrix(
    rows: Sequence[MatrixRow],
    plans: Sequence[Plan],
    reports: Path,
    command: str,
    *,
    html: bool = False,
) -> list[Path]:
    """Write matrix.json and matrix.md into a new folder, and matrix.html too if `html` is True.
    `plans` are the plans of any one engine."""
    folder = run_folder(reports, "matrix")
    document = document_of(rows, plans, command)
    as_json, as_text = folder / "matrix.json", folder / "matrix.md"
    as_json.write_text(json.dumps(document, indent=1, allow_nan=False) + "\n")
    write_text(as_text, "\n".join(markdown(rows, plans)) + "\n")
    if not html:
        return [as_json, as_text]
    page = page_of_document(document, rows, folder)
    return [as_json, as_text, write_text(folder / "matrix.html", page)]


def document_of(rows: Sequence[MatrixRow], plans: Sequence[Plan], command: str) -> dict[str, Any]:
    """Return the content of matrix.json. `plans` are the plans of any one engine."""
    document = {
        "format": FORMAT,
        **header(command, plans[0].seed, [], []),
        "oracle": plans[0].oracle,
        "settings": plans[0].settings.name,
        "cases": [plan.case for plan in plans],
        "engines": [row_of(row) for row in rows],
    }
    del document["models"]
    found: dict[str, Any] = plain(document)
    return found


def page_of_document(document: dict[str, Any], rows: Sequence[MatrixRow], folder: Path) -> str:
    """Return the page of a matrix, which will be written into this folder. The page links to the
    reports of the rows."""
    suites = columns(rows)
    texts = [dict(zip(suites, texts_of(row, suites), strict=True)) for row in rows]
    reports = [
        {**one, "report": row.report} for one, row in zip(document["engines"], rows, strict=True)
    ]
    return page_of_matrix({**document, "engines": reports}, names_of(rows), texts, folder)


def row_of(row: MatrixRow) -> dict[str, Any]:
    return {
        "engine": row.engine,
        "version": row.info.version if row.info else "",
        "build": row.info.build if row.info else "",
        "error": row.error,
        "report": row.report,
        "exit_code": row.code,
        "suites": {suite: cell_of(cell) for suite, cell in row.cells.items()},
    }


def cell_of(cell: Cell) -> dict[str, Any]:
    return {
        case: {"status": v.status, "summary": v.summary, "key": v.key, "repro": v.repro}
        for case, v in cell.cases.items()
    }


def columns(rows: Sequence[MatrixRow]) -> list[str]:
    """Return the suites that asked any engine, in the order of a run."""
    order = {suite.name: suite.order for suite in suites_named(())}
    found = {n for row in rows for n, cell in row.cells.items() if cell.text != NOTHING}
    return sorted(found, key=lambda name: order.get(name, len(order)))


def names_of(rows: Sequence[MatrixRow]) -> list[str]:
    """Return each engine's name with its version, and with its command if two names are equal."""
    names = [printable(name_of(row)) for row in rows]
    return [
        name if names.count(name) == 1 else f"{name} ({printable(row.engine)})"
        for name, row in zip(names, rows, strict=True)
    ]


def name_of(row: MatrixRow) -> str:
    if row.info is None:
        return row.engine
    # an engine's version may begin with the engine's name
    known = row.info.version.startswith(row.info.engine)
    return row.info.version if known else f"{row.info.engine} {row.info.version}"


def is_compared(row: MatrixRow) -> bool:
    return any(cell.text != NOTHING for cell in row.cells.values())


def texts_of(row: MatrixRow, suites: Sequence[str]) -> list[str]:
    """Return the text of the cell of each suite."""
    return [row.cells[suite].text if suite in row.cells else NOTHING for suite in suites]


def markdown(rows: Sequence[MatrixRow], plans: Sequence[Plan]) -> Iterator[str]:
    suites = columns(rows)
    first = plans[0]
    yield f"# Engines against {first.oracle}, `{first.settings.name}`"
    yield ""
    cases = ", ".join(safe(plan.case) for plan in plans)
    yield f"Each cell: cases that agree, of {count_words(len(plans), 'case')} ({cases})."
    yield f"`{NOTHING}`: the engine does not offer this suite, or it applies to no case."
    yield ""
    yield f"| engine | {' | '.join(suites)} |"
    yield "|---" * (len(suites) + 1) + "|"
    for name, row in zip(names_of(rows), rows, strict=True):
        yield f"| {' | '.join(map(safe, [name, *texts_of(row, suites)]))} |"
    for row in rows:
        notes = list(notes_of(row))
        yield from ("", *notes) if notes else ()


def notes_of(row: MatrixRow) -> Iterator[str]:
    """Yield lines on each problem, with the command that shows it."""
    if row.error:
        yield f"- **{safe(row.engine)}** was not asked: {safe(row.error)}"
    elif not is_compared(row):
        yield f"- **{safe(row.engine)}** {NOT_COMPARED}"
    for suite, cell in row.cells.items():
        for case, verdict in cell.cases.items():
            if verdict.status not in ("agreed", "not-applicable"):
                what = f"{suite}, {safe(case)}: {MARKS[verdict.status].lower()}"
                yield f"- **{safe(row.engine)}** {what}: {safe(cut(verdict.summary, 500))}"
                yield f"  `{printable(verdict.repro).replace('`', '?')}`"


def safe(text: str) -> str:
    """Return a text of a token or an engine, escaped so that it contains no markup."""
    return "".join(f"&#{ord(c)};" if c in "<>&|`[]*_\\" else c for c in printable(text))
