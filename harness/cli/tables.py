"""The results of a check as a table with a row for each suite, or for each of many models."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from rich.table import Table

from lockstep.harness.exit_codes import exit_code
from lockstep.harness.records import BOTH, Verdict
from lockstep.harness.report.text import MARKS, printable

MANY = 20  # models; for more, a row for each suite of each model is too long
WORDS = {0: "conform", 1: "DIVERGENCE", 2: "INTERNAL ERROR", 3: "INCOMPLETE"}  # by exit code


def table_of(verdicts: Sequence[Verdict]) -> Table:
    """Return a table with a row for each suite of each model, or for each model if there are many
    models."""
    many = len({verdict.case for verdict in verdicts}) > MANY
    return model_table(verdicts) if many else suite_table(verdicts)


def suite_table(verdicts: Sequence[Verdict]) -> Table:
    """Return a table with a row per model and suite. A verdict about a single engine has its own
    row."""
    rows: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for verdict in verdicts:
        whom = "" if verdict.about == BOTH else f" ({verdict.about})"
        rows[verdict.case, verdict.suite + whom][verdict.status] += 1
    table = Table(box=None, pad_edge=False)
    for name in ("model", "suite"):
        table.add_column(name)
    shown = [status for status in MARKS if any(c[status] for c in rows.values())]
    for status in shown:
        table.add_column(MARKS[status].lower(), justify="right")
    for (case, suite), counts in rows.items():
        numbers = [str(counts[status]) if counts[status] else "" for status in shown]
        table.add_row(printable(case), printable(suite), *numbers)
    return table


def model_table(verdicts: Sequence[Verdict]) -> Table:
    """Return a table with a row for each model: the suites that compared something, and the suites
    that could not."""
    cases: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        cases.setdefault(verdict.case, []).append(verdict)
    table = Table(box=None, pad_edge=False)
    for name in ("model", "compared", "not applicable", "verdict"):
        table.add_column(name)
    for case, same in cases.items():
        compared = suites_with(same, "agreed", "diverged")
        left_out = suites_with(same, "not-applicable")
        words = [WORDS[exit_code(same)], *others(same)]
        table.add_row(case, " ".join(compared), " ".join(left_out), ", ".join(words))
    return table


def suites_with(verdicts: Sequence[Verdict], *statuses: str) -> list[str]:
    return list(dict.fromkeys(v.suite for v in verdicts if v.status in statuses))


def others(verdicts: Sequence[Verdict]) -> list[str]:
    """Count the verdicts that are neither agreed nor not applicable, by suite."""
    found = Counter(
        f"{v.suite} {v.status}" for v in verdicts if v.status not in ("agreed", "not-applicable")
    )
    return [f"{n} {what}" if n > 1 else what for what, n in found.items()]
