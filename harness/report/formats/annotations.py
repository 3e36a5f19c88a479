"""GitHub's annotations: lines that GitHub's runner reads from a job's log and shows above it.

Each cause gets one annotation. For each step of a job, GitHub shows ten errors and ten warnings,
and drops all further annotations.
"""

from collections.abc import Iterator

from lockstep.harness.report.formats.markdown import causes
from lockstep.harness.report.formats.results import RunResults, TestResult
from lockstep.harness.report.text import cut

MOST = 10
LONGEST_TEXT = 1000


def annotations(run: RunResults) -> Iterator[str]:
    found = [(level(same[0]), same) for same in causes(run.red)]
    for wanted in ("error", "warning"):
        of_level = [same for has, same in found if has == wanted]
        told = of_level if len(of_level) <= MOST else of_level[: MOST - 1]
        for same in told:
            first = same[0]
            more = f" (and {len(same) - 1} more like it)" if len(same) > 1 else ""
            title = f"Lockstep: {first.model} {first.suite} {first.name}"
            yield command(wanted, title, cut(first.explanation, LONGEST_TEXT) + more)
        if len(of_level) > len(told):
            rest = len(of_level) - len(told)
            yield command(wanted, "Lockstep", f"{rest} more causes are in the report")


def level(result: TestResult) -> str:
    return "warning" if result.status == "not-compared" else "error"


def command(name: str, title: str, text: str) -> str:
    """Return a command, escaped in the same way as by actions/toolkit. A text can then neither end
    its line nor begin a command."""
    escaped = escape_command(title).replace(":", "%3A").replace(",", "%2C")
    return f"::{name} title={escaped}::{escape_command(text)}"


def escape_command(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")
