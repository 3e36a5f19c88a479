"""A report in the formats of CI systems: JUnit XML, CTRF, Markdown, a badge; made only from its
lines."""

from collections.abc import Callable
from pathlib import Path

from lockstep.harness.report.formats.badge import badge
from lockstep.harness.report.formats.ctrf import ctrf
from lockstep.harness.report.formats.junit import junit
from lockstep.harness.report.formats.markdown import markdown
from lockstep.harness.report.formats.results import RunResults, read_results
from lockstep.harness.report.page.write import write_text

# the name of the format: the file in the report's folder, and what is in it
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

    run: what `read_results` has read of that folder, where several formats are wanted.

    Raises BrokenReport if report.jsonl is damaged. One without a footer is a run that did not
    finish: the file says so, and never reads as a pass.
    """
    file, text_of = FORMATS[name]
    path = path or report_folder / file
    return write_text(path, text_of(run or read_results(report_folder)))
