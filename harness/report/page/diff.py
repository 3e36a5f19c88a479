"""The page of two runs: differences that are new, gone, larger, smaller or changed, and errors that
moved towards their limit."""

from lockstep.harness.report.changes import ABSENT, Change, Changes, sizes_of, title_of
from lockstep.harness.report.page.page import render_page
from lockstep.harness.report.page.verdicts import RowsOfRun, count_words
from lockstep.harness.report.text import MARKS

MOST = 400  # rows of each kind


def sentence_of(changes: Changes) -> str:
    """Return a sentence that sums up the changes between two runs."""
    worse = sum(change.worse for change in changes.changed)
    if not (changes.new or changes.gone or changes.changed):
        text = f"{'Worse: no' if changes.worse else 'No'} verdict changed"
    else:
        first = "Worse" if changes.worse else "No worse"
        text = f"{first}: {count_words(len(changes.new), 'new difference')}"
        text += f" of {count_words(len(changes.new_causes), 'kind')}" if changes.new else ""
        text += f", {len(changes.gone)} gone, "
        text += f"{count_words(len(changes.changed), 'changed verdict')}"
        text += f" ({worse} for the worse)" if changes.changed else ""
    for which, growths in (("larger", changes.larger), ("smaller", changes.smaller)):
        text += f"; {count_words(len(growths), 'difference')} {which}" if growths else ""
    if changes.moved:
        text += f"; {count_words(len(changes.moved), 'figure')} nearer to the limit"
    return f"{text}."


def words(change: Change) -> tuple[str, str]:
    """Return the verdicts before and after. If only comparisons are missing, return the numbers of
    comparisons."""
    if change.lacks:
        return count_words(change.n_before, "comparison"), str(change.n_after)
    before, after = (
        "not in the report" if status == ABSENT else MARKS[status].lower()
        for status in (change.before, change.after)
    )
    return before, after


def page_of_changes(a: RowsOfRun, b: RowsOfRun, names: tuple[str, str], changes: Changes) -> str:
    return render_page(
        "diff.html",
        title="Lockstep: two runs",
        sentence=sentence_of(changes),
        a=names[0],
        b=names[1],
        titles=(title_of(a), title_of(b)),
        changes=changes,
        words=words,
        sizes_of=sizes_of,
        most=MOST,
    )
