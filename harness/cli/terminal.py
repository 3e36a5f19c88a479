"""Output on the command line: errors on standard error, results on standard output."""

import errno
import json
import os
import shlex
import sys
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import typer
from rich.console import Console
from rich.status import Status
from rich.text import Text

from lockstep.engine.errors import EngineError, MalformedFile
from lockstep.harness.check.check import BadInput, Plan, defect
from lockstep.harness.cli.streams import OutputFailed
from lockstep.harness.cli.tables import table_of
from lockstep.harness.context.suite import NoAnswer
from lockstep.harness.exit_codes import is_compared
from lockstep.harness.records import BOTH, StageText, Verdict
from lockstep.harness.report.jsonl import plain
from lockstep.harness.report.text import MARKS, cut, explain, last_words, place_in, printable

if TYPE_CHECKING:
    from lockstep.harness.bisect.bisection import Bisection
    from lockstep.harness.diagnosis.diagnosis import Diagnosed
    from lockstep.harness.runs.result import RunResult

SILENCE = 20.0  # seconds without a line in a pipe, after which progress is printed
AT_ONCE, EXCUSE = 200, 160  # characters of a line about a problem, and about an excused difference
SHOWN = 5  # divergences with an explanation; the report has all


def sentence_of(error: BaseException | None) -> str:
    """Return a sentence that names the file and its problem, without the system's error number."""
    if isinstance(error, MalformedFile) and error.path:
        return f"{error.path}: {error}"
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    where = "" if error.filename is None else f"{error.filename}: "
    more = " (raise the limit: ulimit -n)" if error.errno == errno.EMFILE else ""
    return f"{where}{error.strerror}{more}"


class Terminal:
    """The output of a command. As a context manager it turns an error into one line and exit code
    2."""

    def __init__(self, *, quiet: bool, as_json: bool = False) -> None:
        self.quiet, self.as_json = quiet, as_json
        style: dict[str, Any] = {"markup": False, "highlight": False, "emoji": False}
        self.out = Console(**style, soft_wrap=True)
        self.err = Console(**style, stderr=True, soft_wrap=True)
        self.status: Status | None = None
        self.last = ("", "")
        self.spoken = time.monotonic()  # time of the last plain line
        self.folder: Path | None = None  # folder of the report, which grows during the run

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        self.quieten()
        if isinstance(error, BadInput | EngineError | OSError) or is_broken_golden(error):
            self.err.print(f"lockstep: {printable(sentence_of(error))}")
            raise typer.Exit(2) from error
        if isinstance(error, KeyboardInterrupt):
            self.err.print(f"lockstep: interrupted; {self.note_kept_report()}")
            raise typer.Exit(130) from error
        if isinstance(error, NoAnswer):
            self.err.print(f"lockstep: {printable(error.summary)}")
            for line in last_words(error.detail.get("log", [])):
                self.err.print(f"  | {printable(line)}")
            raise typer.Exit(1 if error.status == "diverged" else 3) from error
        if isinstance(error, Exception) and not isinstance(error, PASSED_ON):
            self.err.print(printable(f"lockstep: {defect(what_and_where(error))}"))
            if os.environ.get("LOCKSTEP_TRACEBACK"):
                traceback.print_exception(error)
            raise typer.Exit(2) from error

    def open_report(self, folder: Path) -> None:
        """Remember the folder of the report, which gets each verdict as soon as it is known."""
        self.folder = folder

    def note_kept_report(self) -> str:
        """Return a sentence that says where the findings of an interrupted run are."""
        if self.folder is None:
            at = ": ".join(filter(None, self.last))
            where = f"at {at}; " if at else ""
            return printable(f"{where}the report, if there is one, has the findings so far")
        page = f"as a page: lockstep report {shlex.quote(str(self.folder))}"
        return printable(f"{self.folder}/report.jsonl has the findings so far; {page}")

    # --- progress -------------------------------------------------------------------------

    def progress(self, case: str, text: str) -> None:
        """Show progress. A terminal gets one line that is updated; a pipe gets a line for each
        suite, and occasionally more."""
        if self.quiet:
            return
        line = printable(f"{case}: {text}")
        if self.err.is_terminal:
            shown = Text(line, no_wrap=True)  # a Text, because rich would interpret markup in a str
            if self.status is None:
                self.status = self.err.status(shown)
                self.status.start()
            self.status.update(shown)
        elif (case, text) != self.last and (
            isinstance(text, StageText) or time.monotonic() - self.spoken >= SILENCE
        ):
            self.err.print(line)
            self.spoken = time.monotonic()
        self.last = (case, text)

    def verdict(self, verdict: Verdict) -> None:
        """Print a verdict at once if it is a problem; the table only counts agreement."""
        if verdict.status in ("agreed", "not-applicable") or self.quiet:
            return
        mark = "FAILED" if verdict.detail.get("said") else MARKS[verdict.status]
        self.err.print(
            f"{mark}: {printable(verdict.case)} {verdict.suite}: "
            f"{cut(printable(verdict.summary), AT_ONCE)}"
        )

    def quieten(self) -> None:
        if self.status is not None:
            self.status.stop()
            self.status = None

    # --- results --------------------------------------------------------------------------

    def line(self, text: str) -> None:
        """Print a line without colour and without wrapping, because a pipe may be the log of a CI
        job. rich would expand its tabs."""
        self.quieten()
        sys.stdout.write(printable(text, "\n\t") + "\n")

    def data(self, text: str) -> None:
        """Print the requested data. In a pipe it is unchanged."""
        self.quieten()
        sys.stdout.write((printable(text, "\n\t") if self.out.is_terminal else text) + "\n")

    def remark(self, text: str) -> None:
        """Print a remark on standard error, separate from the result."""
        self.quieten()
        if not self.quiet:
            self.err.print(f"note: {printable(text)}")

    def annotation(self, line: str) -> None:
        """Print an annotation without colour and unwrapped. GitHub's runner reads it from standard
        error."""
        self.quieten()
        sys.stderr.write(f"{line}\n")

    def json(self, value: Any) -> None:
        self.quieten()
        sys.stdout.write(json.dumps(plain(value), ensure_ascii=True) + "\n")

    def summary(
        self,
        result: "RunResult",
        diagnosed: "Sequence[tuple[Plan, Diagnosed]]" = (),
        next_step: str = "",
    ) -> None:
        from lockstep.harness.cli.diagnosis import diagnosis_lines, diagnosis_of

        self.quieten()
        if self.as_json:
            more = [diagnosis_of(plan, found) for plan, found in diagnosed]
            self.json({**summary_of(result), **({"diagnoses": more} if more else {})})
            return
        self.out.print(table_of(result.verdicts))
        folded = fold(result.verdicts)
        for same in folded[:SHOWN]:
            self.out.print(f"\n{printable(explain(same[0]), keep=chr(10))}{more_like(same)}")
        if len(folded) > SHOWN:
            n = len(folded) - SHOWN
            self.out.print(f"\n{n} more {'kinds are' if n > 1 else 'kind is'} in the report")
        for line in [*excused_lines(result), *not_applicable(result)]:
            self.out.print(f"\n{printable(line)}")
        for plan, found in diagnosed:
            self.out.print("\n" + "\n".join(map(printable, diagnosis_lines(plan, found))))
        ending = (
            f"{ending_of(result)}{listed_of(result)}{reach_of(result)} in {result.seconds:.1f} s"
        )
        self.out.print(f"\n{printable(ending)}; report: {result.folder}/report.jsonl")
        self.out.print(f"page: {result.folder}/report.html")
        if next_step:
            self.out.print(printable(next_step, keep="\n"))

    def bisection(
        self, plan: Plan, result: "Bisection", diagnosed: "Diagnosed | None" = None
    ) -> int:
        """Print a bisection, and return the exit code."""
        from lockstep.harness.cli.bisection import bisection_lines, bisection_of
        from lockstep.harness.cli.diagnosis import diagnosis_lines, diagnosis_of

        self.quieten()
        if self.as_json:
            more = {"diagnosis": diagnosis_of(plan, diagnosed)} if diagnosed else {}
            self.json({**bisection_of(plan, result), **more})
        else:
            lines = diagnosis_lines(plan, diagnosed) if diagnosed else ()
            for text in (*bisection_lines(plan, result), *lines):
                self.out.print(printable(text))
        return result.exit_code

    def diagnosis(self, plan: Plan, found: "Diagnosed") -> int:
        """Print the diagnosis, and return the exit code."""
        from lockstep.harness.cli.diagnosis import diagnosis_lines, diagnosis_of

        self.quieten()
        if self.as_json:
            self.json(diagnosis_of(plan, found))
        else:
            for text in diagnosis_lines(plan, found):
                self.out.print(printable(text))
        return found.exit_code

    def where(self, folder: Path) -> None:
        """Print the place of a run's report."""
        if not self.as_json:
            self.line(f"report: {folder}/report.jsonl\npage: {folder}/report.html")

    def examination(self, rows: Sequence[tuple[str, str, bool]]) -> int:
        """Print the findings of `doctor`: a name, a text, and a mark that says if it is fine."""
        if self.as_json:
            self.json([{"what": a, "found": b, "ok": ok} for a, b, ok in rows])
        else:
            for name, text, ok in rows:
                self.out.print(f"{'ok     ' if ok else 'MISSING'} {name:<18} {printable(text)}")
        return 0 if all(ok for _, _, ok in rows) else 2


# the last is click's ClickException, from typer's own copy of click or from click
PASSED_ON = (OutputFailed, typer.Exit, typer.Abort, typer.BadParameter.__mro__[2])


def what_and_where(error: Exception) -> str:
    """Describe an error in one line; LOCKSTEP_TRACEBACK prints the whole traceback."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    where = f"{Path(last.filename).name}, line {last.lineno}"
    what = cut(str(error).splitlines()[0], 300) if str(error) else ""
    return f"{type(error).__name__}: {what} ({where}; LOCKSTEP_TRACEBACK=1 shows the traceback)"


def is_broken_golden(error: BaseException | None) -> bool:
    """Return True for a broken golden. The function does not import golden, because most commands
    do not need golden."""
    return any(kind.__name__ == "BrokenGolden" for kind in type(error).__mro__)


ENDINGS = {
    0: "conform: everything compared agrees",
    1: "DIVERGENCE",
    2: "INTERNAL ERROR: Lockstep failed, please report it",
    3: "INCOMPLETE: some comparisons were not possible",
}
STALE = "OUT OF DATE: a listed divergence is gone, and everything compared agrees"


def ending_of(result: "RunResult") -> str:
    from lockstep.harness.runs.known_failures import is_gone_entry

    wrong = [same[0] for same in fold(result.verdicts)]
    stale = bool(wrong) and all(map(is_gone_entry, wrong))
    return STALE if stale else ENDINGS[result.code]


def not_judged(result: "RunResult") -> list[str]:
    """Return the engines about which the run compared nothing."""
    about = {v.about for v in result.verdicts if v.status == "diverged" or is_compared(v)}
    names = dict.fromkeys(engine.engine for engine in result.engines)
    return [name for name in names if not about & {BOTH, name}]


def listed_of(result: "RunResult") -> str:
    """Describe the divergences that are excused: the divergences in the user's list, how many of
    them have no reason there, and the divergences that Lockstep knows or explains."""
    from lockstep.harness.runs.known_failures import UNKNOWN

    listed = [v.detail["known"] for v in result.verdicts if "listed" in v.detail]
    n_excused = sum(v.status == "excused" for v in result.verdicts) - len(listed)
    n = listed.count(UNKNOWN)
    parts = [f"{len(listed)} listed as known" + (f" ({n} without a reason)" if n else "")]
    parts = parts if listed else []
    parts += [f"{n_excused} known or explained"] if n_excused > 0 else []
    return f", but for {' and '.join(parts)}" if parts and result.code == 0 else ""


def reach_of(result: "RunResult") -> str:
    """Name the engines about which nothing was compared, for a run that conforms or is
    incomplete."""
    left_out = not_judged(result)
    if result.code not in (0, 3) or not left_out:
        return ""
    if result.code == 3:
        return f"; nothing was compared about {', '.join(left_out)};"
    who = ", ".join(dict.fromkeys(v.about for v in result.verdicts if v.status == "agreed"))
    return f"; only {who} was compared, and nothing about {', '.join(left_out)};"


def fold(verdicts: Sequence[Verdict]) -> list[list[Verdict]]:
    """Group the verdicts that need attention by cause."""
    groups: dict[str, list[Verdict]] = {}
    for verdict in verdicts:
        if verdict.status not in ("agreed", "excused", "not-applicable"):
            key = verdict.key or f"{verdict.suite}/{verdict.summary}"
            groups.setdefault(key, []).append(verdict)
    return list(groups.values())


def excused_lines(result: "RunResult") -> list[str]:
    """Return a line for each excused verdict, up to a limit."""
    rows = [v for v in result.verdicts if v.status == "excused"]
    said = ((f"{v.case}: {v.suite} excused", v.summary.splitlines()[0]) for v in rows)
    lines = [f"{what}: {cut(summary, EXCUSE)}" for what, summary in said]
    more = len(lines) - SHOWN
    return lines[:SHOWN] + ([f"{more} more are excused, see the report"] if more > 0 else [])


def not_applicable(result: "RunResult") -> list[str]:
    """Return a line for each reason why suites do not apply, with these suites and models, and a
    line for each replayed model."""
    reasons: dict[tuple[str, str], list[str]] = {}
    for verdict in result.verdicts:
        if verdict.status == "not-applicable":
            reasons.setdefault((verdict.case, verdict.summary), []).append(verdict.suite)
    alike: dict[tuple[str, str], list[str]] = {}
    for (case, reason), suites in reasons.items():
        alike.setdefault((", ".join(dict.fromkeys(suites)), reason), []).append(case)
    lines = [
        f"{cases[0] if len(cases) == 1 else f'{len(cases)} models'}: {suites} not applicable: "
        f"{reason}"
        for (suites, reason), cases in alike.items()
    ]
    return lines + [f"{e.engine}: {e.build}" for e in result.engines if e.engine == "replay"]


def more_like(same: Sequence[Verdict]) -> str:
    """Describe the further places with the same cause; "" if no other place has it."""
    if len(same) == 1:
        return ""
    places = dict.fromkeys(place_of(v, same[0].case) for v in same[1:])
    shown = ", ".join(list(places)[:8])
    return f"\n  and {len(same) - 1} more like it: {shown}" + (" ..." if len(places) > 8 else "")


def place_of(verdict: Verdict, case: str) -> str:
    d = verdict.detail
    place = d.get("tensor") or verdict.suite
    if "site" in d:
        place = place_in(d)
    return str(place) if verdict.case == case else f"{verdict.case} {place}"


def by_engine(verdicts: Sequence[Verdict]) -> Mapping[str, list[str]]:
    """Return the statuses of the verdicts, grouped by the engine that they are about. Verdicts
    about both engines are one group."""
    found: dict[str, list[str]] = defaultdict(list)
    for verdict in verdicts:
        found[verdict.about].append(verdict.status)
    return found


def summary_of(result: "RunResult") -> Mapping[str, Any]:
    counts = Counter(v.status for v in result.verdicts)
    return {
        "exit_code": result.code,
        "report": str(result.folder / "report.jsonl"),
        "page": str(result.folder / "report.html"),
        "seconds": round(result.seconds, 3),
        "counts": dict(counts),
        "about": {who: dict(Counter(same)) for who, same in by_engine(result.verdicts).items()},
        "nothing_about": not_judged(result),
        "divergences": [
            {"case": v.case, "suite": v.suite, "status": v.status, "count": len(same)}
            | {"about": v.about}
            | {"summary": v.summary, "key": v.key, "repro": v.repro, "detail": v.detail}
            for same in fold(result.verdicts)
            for v in same[:1]
        ],
    }
