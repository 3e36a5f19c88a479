"""`lockstep selftest --diagnosis`: checks that diagnosis names the mistake of wrong engines that
show little."""

import random
from collections.abc import Collection, Iterator, Sequence
from operator import attrgetter
from pathlib import Path

from lockstep.harness.catalogue.run import (
    CataloguePart,
    of_family,
    parts_of,
    try_all,
    wrong_engines,
)
from lockstep.harness.diagnosis.trials import TrialRow, tries
from lockstep.harness.parallel.row_files import make_row
from lockstep.harness.parallel.works import Executor
from lockstep.harness.runs.output import Output

# shares that must be found for engines that show logits, or only text
PROMISED = {"logits": 0.90, "text": 0.75}
HEAD = ("view", "engines", "differ", "named", "alone", "others", "none", "few")


def run_diagnosis(
    out: Output,
    *,
    only: str,
    sample: int | None,
    seed: int,
    file: Path | None,
    executor: Executor | None,
) -> int:
    """Run the self-test of diagnosis. Return 0 if diagnosis names the promised share of the engines
    whose answers differ, and names none wrongly. `file` is used as in `try_all`, with a row for
    each engine and view."""
    chosen = of_family(wrong_engines(), only)
    if sample is not None and sample < len(chosen):
        chosen = random.Random(seed).sample(chosen, sample)
    by_name = {cls.name: cls for cls in chosen}

    def parts(left: Collection[str]) -> Iterator[CataloguePart]:
        return parts_of([by_name[name] for name in left])

    key = attrgetter("engine")
    rows = try_all(
        out, "diagnosis", by_name, key, parts, tries, file, executor, row_of=make_row(TrialRow)
    )
    for line in lines(rows, len(wrong_engines())):
        out.line(line)
    return 0 if is_kept(rows) else 1


# --- counting -----------------------------------------------------------------------------------


def differs(row: TrialRow) -> bool:
    """Return True if the subject's answers differ from the right engine's, so that there is
    something to explain."""
    return row.status not in ("right", "not asked")


def is_named(row: TrialRow) -> bool:
    """Return True if the engine's own mistake is among the named mistakes."""
    return row.status == "named" and row.engine in (*row.named, *row.also)


def is_wrong(row: TrialRow) -> bool:
    return row.status == "named" and not is_named(row)


def is_kept(rows: Sequence[TrialRow]) -> bool:
    """Return True if the promise is kept in every view in which some engine differs."""
    seen = {row.view for row in rows if differs(row)}
    enough = all(share(rows, view) >= PROMISED[view] for view in PROMISED if view in seen)
    return bool(seen) and enough and not any(map(is_wrong, rows))


def share(rows: Sequence[TrialRow], view: str) -> float:
    """Return the share of engines in this view whose mistake was named, out of the engines that
    differ."""
    some = [row for row in rows if row.view == view and differs(row)]
    return sum(map(is_named, some)) / len(some)


def lines(rows: Sequence[TrialRow], of: int) -> Iterator[str]:
    yield f"{len({row.engine for row in rows})} of {of} wrong engines"
    yield "".join(f"{cell:>9}" for cell in HEAD)
    for view in dict.fromkeys(row.view for row in rows):
        yield "".join(f"{cell:>9}" for cell in count_rows(view, rows))
    without = [row for row in rows if differs(row)]
    n = sum(bool(row.others) for row in without)
    yield (
        f"a different mistake is named if the catalogue lacks the right one: {n} of {len(without)}"
    )
    for row in rows:
        if differs(row) and not is_named(row):
            yield f"{row.engine} on {row.model}, {row.view}: {row.status} {' '.join(row.named)}"


def count_rows(view: str, rows: Sequence[TrialRow]) -> list[str]:
    of_view = [row for row in rows if row.view == view]
    some = [row for row in of_view if differs(row)]
    found = [row for row in some if is_named(row)]
    alone = sum(len(row.named) == 1 for row in found)
    numbers = [len(of_view), len(some), len(found), alone, sum(map(is_wrong, some))]
    numbers += [sum(row.status == status for row in some) for status in ("none", "few")]
    return [view, *map(str, numbers)]
