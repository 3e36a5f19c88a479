"""The verdicts of a report in the order in which readers need them: a sentence at the top, causes,
suites."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lockstep.harness.records import BOTH
from lockstep.harness.report.page.texts import show_value
from lockstep.harness.report.text import MARKS, place_in, where_to_look

Row = Mapping[str, Any]  # a verdict of report.jsonl
QUIET = ("agreed", "excused", "not-applicable")
LOUD = ("diverged", "internal", "crashed", "timed-out", "malformed", "not-compared")
PLURALS = {"more place that differs": "more places that differ"}
PLURALS["more step after it"] = "more steps after it"
IN_SENTENCE = 60  # characters of a name
PLACES = 24  # places that are named for one cause


@dataclass(frozen=True, kw_only=True)
class RowsOfRun:
    """The rows of one report."""

    header: Row
    verdicts: Sequence[Row]
    footer: Row | None  # None: the run did not finish

    @classmethod
    def of(cls, rows: Sequence[Row]) -> "RowsOfRun":
        verdicts = [row for row in rows if row["kind"] == "verdict"]
        footer = rows[-1] if rows[-1]["kind"] == "footer" else None
        return cls(header=rows[0], verdicts=verdicts, footer=footer)

    @property
    def code(self) -> int | None:
        return None if self.footer is None else int(self.footer["exit_code"])

    @property
    def cases(self) -> list[str]:
        return list(dict.fromkeys(row["case"] for row in self.verdicts))

    @property
    def counts(self) -> dict[str, int]:
        found = Counter(row["status"] for row in self.verdicts)
        return {status: found[status] for status in (*LOUD, *QUIET) if found[status]}


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Verdicts with the same key. The page shows the first verdict in full."""

    rows: Sequence[Row]
    number: int = 0

    @property
    def first(self) -> Row:
        return self.rows[0]

    @property
    def title(self) -> str:
        d = self.first["detail"]
        if "site" in d and "op" in d:
            return f"{place_of(self.first)} = {d['op']}"
        if self.first["suite"].startswith("fuzz-") and "symptom" in d:
            words = (d.get("stage") or self.first["case"], d["symptom"], d.get("kind") or "")
            return " ".join(str(word) for word in words if word)
        if isinstance(d.get("way"), str):
            on = [name for name, value in d.get("flags", {}).items() if value]
            return f"{d['way']} ({' '.join(on) or 'no flags'})"
        if d.get("parts"):
            return f"{d.get('where')}: {parts_of(d)}"
        if "aspect" in d:
            return f"its {d['aspect']}: {mistake_of(d)}"
        if "column" in d and "tensor" in d:
            return (
                f"{show_value(d['tensor'], IN_SENTENCE)}, row {d.get('row')}, column {d['column']}"
            )
        if "by_position" in d and d.get("index"):
            return f"position {d['index'][0]}"
        if "margin" in d and "step" in d:
            return f"greedy token {d['step']}"
        return str(d.get("where") or d.get("tensor") or MARKS[self.first["status"]].lower())

    @property
    def places(self) -> list[str]:
        """Return the places of all verdicts of the cause except the first."""
        here = self.first["case"]
        named = (place_of(row) for row in self.rows[1:])
        cases = (row["case"] for row in self.rows[1:])
        texts = [n if c == here else f"{c} {n}" for n, c in zip(named, cases, strict=True)]
        return list(dict.fromkeys(texts))


def parts_of(d: Mapping[str, Any]) -> str:
    """Return the faulty parts of a layer, found by a bisection with slices."""
    return ", ".join(str(part.get("name")) for part in d["parts"])


def mistake_of(d: Mapping[str, Any]) -> str:
    """Return a diagnosis in a few words."""
    named = d.get("named") or ()
    if d.get("status") == "named" and named:
        more = f" or one of {len(named) - 1} more" if len(named) > 1 else ""
        return f"{named[0].get('mistake')}{more}"
    if d.get("status") == "few":
        return "too few answers differ to name a mistake"
    return f"none of {d.get('tried')} known mistakes"


def key_of(row: Row) -> str:
    """Return the key by which verdicts are grouped. A part that is wrong in many layers has the
    same key in all of them."""
    if row["detail"].get("parts"):
        return f"{row['suite']}/{parts_of(row['detail'])}"
    return str(row["key"] or f"{row['suite']}/{row['summary']}")


def place_of(row: Row) -> str:
    d = row["detail"]
    if "site" not in d:
        return str(d.get("where") or d.get("tensor") or row["suite"])
    return place_in(d)


def causes_of(verdicts: Sequence[Row], statuses: Sequence[str]) -> list[Cause]:
    """Return the causes with one of these statuses, grouped by key. Causes with the worst status
    come first. Causes with the same status are in the order of the run."""
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in verdicts:
        if row["status"] in statuses:
            groups.setdefault((row["status"], key_of(row)), []).append(row)
    ordered = sorted(groups.values(), key=lambda rows: statuses.index(rows[0]["status"]))
    return [Cause(rows=rows, number=i) for i, rows in enumerate(ordered, 1)]


# --- the sentence -----------------------------------------------------------------------------


def sentence(run: RowsOfRun, causes: Sequence[Cause]) -> str:
    """Return a sentence that sums up the run."""
    if run.footer is None:
        n = len(run.verdicts)
        return f"Not finished: the run was stopped. Its {n} verdicts are valid, but incomplete."
    return SENTENCES[run.footer["exit_code"]](run, causes)


def conform(run: RowsOfRun, causes: Sequence[Cause]) -> str:
    alone = Counter(row["about"] for row in run.verdicts if is_of_one(row))
    both = run.counts.get("agreed", 0) - alone.total()
    text = f"Conform: {count_words(both or alone.total(), 'comparison')} of "
    text += f"{count_words(len(run.cases), subject_of(run))} agree"
    if both:
        text += "".join(f", {n:,} more are about {who} only" for who, n in alone.items())
    excused = run.counts.get("excused", 0)
    text += f", {count_words(excused, 'difference')} known or explained" if excused else ""
    if alone and not both:
        text += f"; all of them are about {', '.join(sorted(alone))} only"
    return f"{text}."


def is_of_one(row: Row) -> bool:
    """Return True for an agreement that concerns only one of the engines."""
    return bool(row["status"] == "agreed" and row.get("about", BOTH) != BOTH)


def sentence_if_diverged(run: RowsOfRun, causes: Sequence[Cause]) -> str:
    wrong = [cause for cause in causes if cause.first["status"] == "diverged"]
    cases = {row["case"] for cause in wrong for row in cause.rows}
    rows = sum(len(cause.rows) for cause in wrong)
    text = f"Diverged: {count_words(rows, 'difference')} of {count_words(len(wrong), 'kind')}"
    if len(run.cases) > 1:
        text += f" in {len(cases)} of {count_words(len(run.cases), subject_of(run))}"
    ops = [cause for cause in wrong if "site" in cause.first["detail"]]
    weights = [cause for cause in wrong if "column" in cause.first["detail"]]
    if weights:  # wrong weights come first, because they make ops wrong
        text += f"; the first weight that differs is {weights[0].title}"
    if ops:
        first = ops[0].first
        text += (
            "; the first op that is wrong on its own inputs is "
            f"{show_value(place_of(first), IN_SENTENCE)}"
        )
        text += f" ({show_value(first['detail'].get('op', ''), IN_SENTENCE)})"
    elif wrong and not weights:
        text += f"; the first is {show_value(wrong[0].title, 2 * IN_SENTENCE)}"
        named = "aspect" in wrong[0].first["detail"]  # then the sentence names the command
        text += "" if named else f" in {wrong[0].first['suite']}"
    return f"{text}."


def sentence_if_failed(run: RowsOfRun, causes: Sequence[Cause]) -> str:
    n = run.counts.get("internal", 0)
    return f"Internal error: Lockstep itself failed {count_words(n, 'time')}; please report it."


def incomplete(run: RowsOfRun, causes: Sequence[Cause]) -> str:
    names = [f"{run.counts[s]} {MARKS[s].lower()}" for s in LOUD if s in run.counts]
    why = ", ".join(names) or "nothing was compared"
    if not run.counts.keys() & {"agreed", "excused"}:
        return f"Incomplete: nothing was compared ({why})."
    return f"Incomplete: all comparisons agree, but some were not possible ({why})."


def no_op(run: RowsOfRun, causes: Sequence[Cause]) -> str:
    others = ((c.first["suite"], c.first["detail"]) for c in causes)
    return f"Diverged, and {where_to_look(row for row in others if row[0] != 'bisect')}."


SENTENCES = {0: conform, 1: sentence_if_diverged, 2: sentence_if_failed, 3: incomplete, 4: no_op}


def subject_of(run: RowsOfRun) -> str:
    return "target" if "campaign" in run.header else "model"


def count_words(n: int, what: str) -> str:
    if n == 1:
        return f"{n:,} {what}"
    return f"{n:,} {PLURALS.get(what, f'{what}s')}"


# --- the tables ---------------------------------------------------------------------------------


@dataclass(kw_only=True)
class SuiteRow:
    suite: str
    about: str  # "" means both engines
    counts: Counter[str] = field(default_factory=Counter)


def suites_of(verdicts: Sequence[Row]) -> list[SuiteRow]:
    found: dict[tuple[str, str], SuiteRow] = {}
    for row in verdicts:
        about = row.get("about", BOTH)
        about = "" if about == BOTH else about
        one = found.setdefault((row["suite"], about), SuiteRow(suite=row["suite"], about=about))
        one.counts[row["status"]] += 1
    return list(found.values())


def slices_of(verdicts: Sequence[Row]) -> list[Row]:
    """Return the slices of a black-box bisection, in the order of the model."""
    return [row for row in verdicts if row["detail"].keys() >= {"parts", "where", "worst"}]


def by_case(verdicts: Sequence[Row]) -> Iterator[tuple[str, list[Row], str]]:
    """Yield each model with its verdicts and the worst status among them."""
    found: dict[str, list[Row]] = {}
    for row in verdicts:
        found.setdefault(row["case"], []).append(row)
    for case, rows in found.items():
        statuses = {row["status"] for row in rows}
        yield (
            case,
            rows,
            next(s for s in (*LOUD, "excused", "agreed", "not-applicable") if s in statuses),
        )


def command_of(run: RowsOfRun) -> str:
    """Return the command that repeats the run."""
    return str(run.header["command"])
