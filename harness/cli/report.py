"""`lockstep report`: the page of a run's folder, and what changed from one run to another."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from harness.cli.options import QuietOpt
from harness.cli.shared import screen


class PageUnlessNamed(TyperGroup):
    """`lockstep report FOLDER` is `lockstep report page FOLDER`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if args and args[0] not in self.commands and not args[0].startswith("-"):
            args = ["page", *args]
        return super().parse_args(ctx, args)


app = typer.Typer(
    cls=PageUnlessNamed,
    no_args_is_help=True,
    help="A run as a page (report FOLDER), and what changed between two (report diff A B).",
)
FolderArg = Annotated[
    Path, typer.Argument(help="A run's folder, or its report.jsonl.", metavar="FOLDER")
]


@app.command()
def page(folder: FolderArg, quiet: QuietOpt = False) -> None:
    """Write report.html beside report.jsonl, as each run does at its end.

    One file that a browser opens from anywhere. It does not ask the engines again; a run that did
    not finish has a page as well, which says so. Examples:

    \b
      lockstep report reports/20261120-103923-check
      lockstep report page reports/20261120-103923-check/report.jsonl
    """
    from harness.report.page.write import write_page

    with screen(quiet) as out:
        path, rows = report_in(folder)
        out.line(f"wrote {write_page(path, rows)}")


def report_in(folder: Path) -> tuple[Path, list[dict[str, object]]]:
    """The file and its rows. Raises BadInput."""
    from harness.check import BadInput
    from harness.report.jsonl import BrokenReport, read_unfinished

    path = folder / "report.jsonl" if folder.is_dir() else folder
    if not path.is_file():
        raise BadInput(f"{folder}: expected a run's folder with a report.jsonl, found none")
    try:
        return path, read_unfinished(path)
    except BrokenReport as error:
        raise BadInput(str(error)) from error
