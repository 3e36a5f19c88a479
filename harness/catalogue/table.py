"""The results of a catalogue, as tables in Markdown: by family, suite, limit and design."""

from collections import Counter
from collections.abc import Iterator, Sequence

from lockstep.harness.catalogue.fixed_limits import LIMITS
from lockstep.harness.catalogue.trial import Trial
from lockstep.harness.catalogue.views import VIEWS

SHOWN = tuple(view.name for view in VIEWS)
HEAD = ("wrong engines", "n", *SHOWN, "layer", "op")


def lines(found: Sequence[Trial]) -> Iterator[str]:
    """Yield lines for reports/TRUST.md and for the terminal."""
    wrong = [trial for trial in found if not trial.honest]
    fine = [trial for trial in found if trial.honest]
    if wrong:
        yield from by_family(wrong)
        yield from by_suite(wrong)
        yield from by_limit(wrong, fine)
    if fine:
        yield from by_design(fine)


def summary(found: Sequence[Trial]) -> Iterator[str]:
    """Yield lines for README.md."""
    wrong = [trial for trial in found if not trial.honest]
    fine = [trial for trial in found if trial.honest]
    layers, ops = (percent(n, len(wrong)) for n in count_placed(wrong))
    rows = [[f"found with {name} shown", percent(*caught(wrong, name))] for name in SHOWN]
    rows += [["the right layer named, the right op", f"{layers}, {ops}"]]
    harmless = [limit for limit in LIMITS if all(trial.passes[limit] for trial in fine)]
    if harmless:
        finds = {limit: sum(not t.passes[limit] for t in wrong) for limit in harmless}
        best = max(finds, key=lambda limit: finds[limit])
        rows.append([f"found by the best fixed limit ({best})", percent(finds[best], len(wrong))])
    designs = len({trial.engine for trial in fine})
    rows.append(
        [
            f"honest engines of {designs} designs accused",
            f"{sum(map(is_accused, fine))} of {len(fine)}",
        ]
    )
    yield from table((f"of {len(wrong)} engines that are wrong in one small way", ""), rows)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> Iterator[str]:
    for row in (head, ["---"] * len(head), *rows):
        yield f"| {' | '.join(row)} |"
    yield ""


def by_family(wrong: Sequence[Trial]) -> Iterator[str]:
    families = sorted({trial.family for trial in wrong})
    rows = [count_family(name, [t for t in wrong if t.family == name]) for name in families]
    yield from table(HEAD, [*rows, shares(wrong)])


def count_family(family: str, same: Sequence[Trial]) -> list[str]:
    seen = ["{}/{}".format(*caught(same, name)) for name in SHOWN]
    return [family, str(len(same)), *seen, *map(str, count_placed(same))]


def caught(trials: Sequence[Trial], view: str) -> tuple[int, int]:
    """Return the number of engines caught in this view, and the number of engines of which
    something was compared."""
    asked = [seen for trial in trials if (seen := trial.views[view]).compared]
    return sum(seen.caught for seen in asked), len(asked)


def count_placed(trials: Sequence[Trial]) -> tuple[int, int]:
    return sum(trial.layer_right for trial in trials), sum(trial.op_right for trial in trials)


def shares(wrong: Sequence[Trial]) -> list[str]:
    seen = [percent(*caught(wrong, name)) for name in SHOWN]
    places = [percent(n, len(wrong)) for n in count_placed(wrong)]
    return ["all", str(len(wrong)), *seen, *places]


def percent(n: int, of: int) -> str:
    return f"{100 * n / of:.1f} %" if of else "-"


def by_suite(wrong: Sequence[Trial]) -> Iterator[str]:
    rows = []
    for name in SHOWN:
        first = Counter(t.views[name].suite for t in wrong if t.views[name].caught)
        rows.append([name, ", ".join(f"{suite} {n}" for suite, n in first.most_common())])
    yield from table(("shown", "suite that was the first to find it"), rows)


def by_limit(wrong: Sequence[Trial], fine: Sequence[Trial]) -> Iterator[str]:
    rows = []
    for limit in LIMITS:
        finds = sum(not trial.passes[limit] for trial in wrong)
        accuses = sum(not trial.passes[limit] for trial in fine)
        rows.append([limit, percent(finds, len(wrong)), f"{accuses} of {len(fine)}"])
    yield from table(("fixed limit", "finds", "honest engines accused"), rows)


def by_design(fine: Sequence[Trial]) -> Iterator[str]:
    rows = []
    for name in sorted({trial.engine for trial in fine}):
        same = [trial for trial in fine if trial.engine == name]
        models = {(trial.model, trial.preset) for trial in same}
        rows.append([name, str(len(models)), str(len(same)), str(sum(map(is_accused, same)))])
    yield from table(("honest engine", "models and presets", "runs", "accused"), rows)


def is_accused(trial: Trial) -> bool:
    return trial.found != "nowhere" or any(seen.caught for seen in trial.views.values())


def not_found(found: Sequence[Trial]) -> Iterator[str]:
    """Yield a line for each engine that was missed, located at a wrong place, or wrongly
    accused."""
    for trial in found:
        views = trial.views.items()
        words = []
        if trial.honest:
            words = [f"accused by {seen.suite}: {seen.said}" for _, seen in views if seen.caught]
        elif missed := [name for name, seen in views if seen.compared and not seen.caught]:
            words = [f"missed by {', '.join(missed)}"]
        if not (trial.honest or trial.op_right) or (trial.honest and trial.found != "nowhere"):
            words.append(f"found at {trial.found or 'nothing'}, expected at {trial.expected}")
        if words:
            yield f"{trial.engine} on {trial.model}: {'; '.join(words)}"
