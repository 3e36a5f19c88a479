"""`--format` of commands that write a report, and `lockstep report convert` for an existing
report."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from lockstep.harness.cli.terminal import Terminal
    from lockstep.harness.report.formats.results import RunResults

# keys of FORMATS, which would be slow to import
COMPLETIONS = ("junit", "ctrf", "markdown", "badge")
FormatOpt = Annotated[
    list[str] | None,
    typer.Option(
        "--format",
        help="Also write the report as junit, ctrf, markdown or badge (JSON for shields.io), into "
        "its folder or into FILE (repeatable). On GitHub, markdown also becomes the job's "
        "summary, with annotations.",
        metavar="NAME[=FILE]",
        autocompletion=lambda: list(COMPLETIONS),
    ),
]


@dataclass(frozen=True, kw_only=True)
class WantedFormat:
    name: str
    path: Path | None  # None: in the folder of the run


def formats_wanted(given: Sequence[str] | None) -> list[WantedFormat]:
    """Return the requested formats, before the run starts. Refuse files that cannot be written.
    Delete the files of an earlier run, so that they are not mistaken for files of this run. Raises
    BadInput."""
    from lockstep.engine.choices import choices
    from lockstep.harness.check.check import BadInput
    from lockstep.harness.report.formats import FORMATS

    wanted = []
    for text in given or ():
        name, equals, file = text.partition("=")
        if name not in FORMATS:
            raise BadInput(f"--format: no format {name!r:.80} {choices(name, FORMATS)}")
        if equals and not file:
            raise BadInput(f"--format {name}=: name a file, or omit the =")
        wanted.append(WantedFormat(name=name, path=Path(file) if file else None))
    paths = [one.path.resolve() for one in wanted if one.path]
    if len(set(paths)) < len(paths):
        raise BadInput("--format: two formats have the same file")
    for path in paths:
        make_room(path)
    return wanted


def make_room(path: Path) -> None:
    from lockstep.harness.check.check import BadInput
    from lockstep.harness.check.inputs import check_is_no_model

    if path.is_dir():
        raise BadInput(f"--format: {path} is a folder: name a file in it")
    if path.name == "report.jsonl":
        raise BadInput(
            f"--format: {path} is named like a report of Lockstep: choose a different name"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    check_is_no_model(path)
    if path.is_file():
        path.unlink()
    if not os.access(path.parent, os.W_OK):
        raise BadInput(f"--format: {path.parent} cannot be written to")


def write_formats(wanted: Sequence[WantedFormat], folder: Path, out: "Terminal") -> None:
    """Write the formats of a run's folder. `markdown` also writes to GitHub's job summary, and
    prints annotations in a GitHub job."""
    from lockstep.harness.report.formats import write_format
    from lockstep.harness.report.formats.results import read_results

    run = read_results(folder) if wanted else None
    for one in wanted:
        path = write_format(folder, one.name, one.path, run)
        out.remark(f"{one.name}: {path}")
        if one.name == "markdown" and run is not None:
            tell_github(run, path, out)


def tell_github(run: "RunResults", path: Path, out: "Terminal") -> None:
    """Report to GitHub. A job's summary is a file to which its steps append. Annotations are lines
    of the job's log."""
    from lockstep.harness.report.formats.annotations import annotations

    summary = os.environ.get("GITHUB_STEP_SUMMARY")
    if summary:
        with Path(summary).open("a", encoding="utf-8") as file:
            file.write(path.read_text(encoding="utf-8") + "\n")
    if os.environ.get("GITHUB_ACTIONS") == "true":
        for line in annotations(run):
            out.annotation(line)


def convert(
    folder: Annotated[Path, typer.Argument(help="The folder of a run.", metavar="FOLDER")],
    formats: FormatOpt = None,
) -> None:
    """Write the report of a run in other formats. The default is junit.

    The report of an unfinished run says so. Examples:

    \b
      lockstep report convert reports/20261120-103923-check
      lockstep report convert FOLDER --format ctrf --format junit=out/junit.xml
    """
    from lockstep.harness.check.check import BadInput
    from lockstep.harness.cli.shared import screen
    from lockstep.harness.report.jsonl import BrokenReport

    with screen(quiet=False) as out:
        if not (folder / "report.jsonl").is_file():
            raise BadInput(f"{folder} holds no report.jsonl: name the folder of a run")
        try:
            write_formats(formats_wanted(formats or ["junit"]), folder, out)
        except BrokenReport as error:
            raise BadInput(str(error)) from error
