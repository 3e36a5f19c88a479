"""What was found of a catalogue, in lines of text: a table by family, and what was not found."""

from collections import Counter
from collections.abc import Iterator, Sequence

from harness.catalogue.fixed_limits import LIMITS
from harness.catalogue.trial import Seen, Trial
from harness.catalogue.views import VIEWS

HEAD = ("family", "engines", *(view.name for view in VIEWS), "layer", "op", "seconds")


def lines(found: Sequence[Trial]) -> Iterator[str]:
    wrong = [trial for trial in found if not trial.honest]
    yield from by_family(wrong)
    yield from by_suite(wrong)
    yield from by_limits(wrong)
    yield from honest(found)
    yield from not_found(wrong)


def by_family(wrong: Sequence[Trial]) -> Iterator[str]:
    yield row(HEAD)
    for family in sorted({trial.family for trial in wrong}):
        yield row(counted(family, [trial for trial in wrong if trial.family == family]))
    yield row(counted("all", wrong))


def row(cells: Sequence[str]) -> str:
    return f"{cells[0]:<14}" + "".join(f"{cell:>9}" for cell in cells[1:])


def counted(family: str, same: Sequence[Trial]) -> list[str]:
    seen = [share([trial.views[view.name] for trial in same]) for view in VIEWS]
    placed = sum(trial.layer_right for trial in same), sum(trial.op_right for trial in same)
    seconds = f"{sum(trial.seconds for trial in same):.0f}"
    return [family, *map(str, (len(same), *seen, *placed)), seconds]


def share(seen: Sequence[Seen]) -> str:
    """As 7/8: of those of which anything can be seen so."""
    asked = [one for one in seen if one.compared]
    return f"{sum(one.caught for one in asked)}/{len(asked)}"


def by_suite(wrong: Sequence[Trial]) -> Iterator[str]:
    for view in VIEWS:
        first = Counter(t.views[view.name].suite for t in wrong if t.views[view.name].caught)
        words = ", ".join(f"{suite} {n}" for suite, n in first.most_common())
        yield f"first of {view.name}: {words or 'none'}"


def by_limits(wrong: Sequence[Trial]) -> Iterator[str]:
    for limit in LIMITS:
        caught = sum(not trial.passes[limit] for trial in wrong)
        yield f"{limit}: finds {caught} of {len(wrong)}"


def honest(found: Sequence[Trial]) -> Iterator[str]:
    fine = [trial for trial in found if trial.honest]
    accused = [(t, seen) for t in fine for seen in t.views.values() if seen.caught]
    if fine:
        yield f"honest engines accused: {len({t.engine for t, _ in accused})} of {len(fine)}"
    for trial, seen in accused:
        yield f"  {trial.engine} on {trial.model}: {seen.suite}: {seen.said}"


def not_found(wrong: Sequence[Trial]) -> Iterator[str]:
    for trial in wrong:
        missed = [name for name, seen in trial.views.items() if seen.compared and not seen.caught]
        words = [f"missed by {', '.join(missed)}"] if missed else []
        if not trial.op_right:
            words.append(f"found at {trial.found}, expected at {trial.expected}")
        if words:
            yield f"{trial.engine} on {trial.model}: {'; '.join(words)}"
