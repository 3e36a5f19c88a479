"""Reports in the formats of CI systems: JUnit XML, CTRF, Markdown, a badge. They are made only from
the lines of report.jsonl."""

from collections.abc import Callable
from pathlib import Path

from lockstep.harness.report.formats.badge import badge
from lockstep.harness.report.formats.ctrf import ctrf
from lockstep.harness.report.formats.junit import junit
from lockstep.harness.report.formats.markdown import markdown
from lockstep.harness.report.formats.results import RunResults, read_results
from lockstep.harness.report.page.write import write_text

# name of the format -> the file in the report's folder, and the function that makes its contents
FORMATS: dict[str, tuple[str, Callable[[RunResults], str]]] = {
    "junit": ("junit.xml", junit),
    "ctrf": ("ctrf.json", ctrf),
    "markdown": ("summary.md", markdown),
    "badge": ("badge.json", badge),
}


def write_format(
    report_folder: Path, name: str, path: Path | None = None, run: RunResults | None = None
) -> Path:
    """Write the report of a run in one of FORMATS, into its folder if no path is given.

    `run` is the result of `read_results` for this folder, which saves time if several formats are
    wanted.

    Raises BrokenReport if report.jsonl is damaged. If it has no footer, the run did not finish: the
    written file says so, and never looks like a success.
    """
    file, text_of = FORMATS[name]
    path = path or report_folder / file
    return write_text(path, text_of(run or read_results(report_folder)))
