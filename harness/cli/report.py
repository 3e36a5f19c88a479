"""`lockstep report`: the page of a run's folder, and the changes between two runs."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from lockstep.harness.cli.options import JsonOpt, QuietOpt
from lockstep.harness.cli.shared import screen

if TYPE_CHECKING:
    from lockstep.harness.report.changes import Changes


class PageUnlessNamed(TyperGroup):
    """Command group in which `lockstep report FOLDER` means `lockstep report page FOLDER`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["page", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=PageUnlessNamed,
    no_args_is_help=True,
    help="Show a run as a page (report FOLDER), compare two runs (report diff A B), or convert a "
    "run for CI (report convert FOLDER).",
)
FolderArg = Annotated[
    Path, typer.Argument(help="A run's folder, or its report.jsonl.", metavar="FOLDER")
]


@app.command()
def page(folder: FolderArg, quiet: QuietOpt = False) -> None:
    """Write report.html into the folder of report.jsonl. Every run does this at its end.

    The page is a single file for a browser. This command does not run the engines again. The page
    of an unfinished run says so. Examples:

    \b
      lockstep report reports/20261120-103923-check
      lockstep report page reports/20261120-103923-check/report.jsonl
    """
    from lockstep.harness.report.page.write import write_page

    with screen(quiet) as out:
        path, rows = report_in(folder)
        out.line(f"wrote {write_page(path, rows)}")


SHOWN = 20  # rows of each kind; the page and --json have all rows


@app.command()
def diff(
    a: Annotated[Path, typer.Argument(help="The folder of the earlier run.", metavar="A")],
    b: Annotated[Path, typer.Argument(help="The folder of the later run.", metavar="B")],
    output: Annotated[
        Path | None,
        typer.Option("-o", "--output", help="Also write the changes as a page.", metavar="FILE"),
    ] = None,
    moved: Annotated[
        float | None,
        typer.Option(
            help="Also exit with 1 if an error came nearer to its limit by this share of the "
            "limit.",
            min=0.1,
        ),
    ] = None,
    as_json: JsonOpt = False,
    quiet: QuietOpt = False,
) -> None:
    """Show what changed from run A to run B, such as after an update of an engine, llama.cpp or
    Lockstep.

    It lists new differences, and differences that are gone. It lists differences that are more than
    twice or less than half as large (ten times, if seeds, models or settings differ). It lists
    suites with a different verdict, and errors that came nearer to their limit by more than a tenth
    of this limit. A larger difference counts as worse, and so does a comparison that B lacks. Exit
    code: 1 if something got worse, 3 if nothing got worse but B did not finish, else 0. Examples:

    \b
      lockstep report diff reports/MONDAY-check reports/TUESDAY-check
      lockstep report diff reports/MONDAY-check reports/TUESDAY-check -o changes.html
      lockstep report diff reports/MONDAY-shadow reports/TUESDAY-shadow --moved 0.25
    """
    from lockstep.harness.check.inputs import check_replaced
    from lockstep.harness.report import changes
    from lockstep.harness.report.page.diff import page_of_changes, sentence_of
    from lockstep.harness.report.page.verdicts import RowsOfRun
    from lockstep.harness.report.page.write import write_text

    with screen(quiet, as_json) as out:
        reports = [report_in(folder) for folder in (a, b)]
        if output is not None:
            check_replaced(output, *(path for path, _ in reports))
        runs = [RowsOfRun.of(rows) for _, rows in reports]
        found = changes.changes_between(*runs)
        if as_json:
            out.json(changes.as_json(found))
        else:
            for name, folder, run in (("A", a, runs[0]), ("B", b, runs[1])):
                out.line(f"{name}: {folder}: {changes.title_of(run)}")
            for line in lines_of(found):
                out.line(line)
            out.line(sentence_of(found))
        if output is not None:
            write_text(output, page_of_changes(runs[0], runs[1], (str(a), str(b)), found))
            out.remark(f"wrote {output}")
    far = moved is not None and any(move.by >= moved for move in found.moved)
    unfinished = runs[1].footer is None  # the result of the rest is unknown
    raise typer.Exit(1 if found.worse or far else 3 if unfinished else 0)


def lines_of(found: "Changes") -> Iterator[str]:
    from lockstep.harness.report.changes import line_of, sizes_of
    from lockstep.harness.report.page.diff import words
    from lockstep.harness.report.page.texts import of_limit

    yield from (f"note: {text}" for text in found.remarks)
    for kind, causes in (("new", found.new_causes), ("gone", found.gone_causes)):
        told = []
        for cause in causes:
            row, more = cause.first, len(cause.rows) - 1
            others = f", and {more} more of this kind" if more else ""
            told.append(f"{row['suite']} {row['case']} {cause.title}: {line_of(row)}{others}")
        yield from some(kind, told)
    for kind, growths in (("larger", found.larger), ("smaller", found.smaller)):
        told = [
            f"{g.row['suite']} {g.row['case']} {g.what}: {', '.join(sizes_of(g))}" for g in growths
        ]
        yield from some(kind, told)
    texts = [
        f"{c.suite} {c.case}: {' to '.join(words(c))}" + (", worse" * c.worse)
        for c in found.changed
    ]
    yield from some("changed", texts)
    texts = [
        f"{m.suite} {m.case} {m.what}: {of_limit(m.before)} to {of_limit(m.after)}"
        for m in found.moved
    ]
    yield from some("nearer", texts)


def some(kind: str, texts: Sequence[str]) -> Iterator[str]:
    from lockstep.harness.report.text import cut

    for text in texts[:SHOWN]:
        yield f"{kind:<8} {cut(text.splitlines()[0], 400) if text else ''}"
    if len(texts) > SHOWN:
        yield f"{kind:<8} and {len(texts) - SHOWN} more: -o FILE or --json has all"


def report_in(folder: Path) -> tuple[Path, list[dict[str, object]]]:
    """Return the report's file and its rows. Raises BadInput."""
    from lockstep.harness.check.check import BadInput
    from lockstep.harness.report.jsonl import BrokenReport, read_unfinished

    path = folder / "report.jsonl" if folder.is_dir() else folder
    if not path.is_file():
        raise BadInput(f"{folder}: expected a run's folder with a report.jsonl, found none")
    try:
        return path, read_unfinished(path)
    except BrokenReport as error:
        raise BadInput(str(error)) from error
