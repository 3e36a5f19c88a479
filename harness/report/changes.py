"""Changes between two runs, for example with two versions of an engine, of llama.cpp or of
Lockstep.

Two verdicts belong together if suite, model, key and place are equal. If only one run compared a
suite of a model, this is a change too. A comparison that is missing in run B counts as worse, and
so does a difference that has grown.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from math import inf, isfinite, isnan, sqrt
from typing import Any

from lockstep.harness.report.page.facts import in_short
from lockstep.harness.report.page.nodes import nodes_of
from lockstep.harness.report.page.texts import of_limit
from lockstep.harness.report.page.verdicts import LOUD, Cause, Row, RowsOfRun, causes_of, place_of

# severity; statuses with the same number are equally severe
LEVELS = {"agreed": 0, "excused": 0, "not-applicable": 1, "not-compared": 2, "timed-out": 3}
LEVELS |= {"crashed": 3, "malformed": 3, "internal": 3, "diverged": 4}
ABSENT = "absent"  # stands for a status if the run lacks the verdict
NOTHING = 2  # severity of ABSENT, which is that of not-compared
MOVED = 0.1  # share of the limit; runs with other seeds differ by as much
# Factors from which a difference has another size. Smaller factors occur if the same fault meets
# other rounding. With another seed, model or setting, the worst element is often a few times worse,
# so an order of magnitude is required.
GREW = 2
GREW_OTHERWISE = 10
# change in limits that is also required, because honest runs move both engines' numbers by up to
# one limit each
LIMITS = 2
DEVIATIONS = 3  # standard deviations by which a count of wrong elements must change too
Spot = tuple[str, str, str]  # suite, model, and the thing that was compared


@dataclass(frozen=True, kw_only=True)
class Change:
    """A suite's worst verdict on one model before and after, and the numbers of comparisons that
    agreed.

    n_before: number of verdicts that agreed in A. n_after: number of verdicts that agreed or were
    excused in B. Excused verdicts are included, because a known divergence may have replaced an
    agreement.
    """

    suite: str
    case: str
    before: str
    after: str
    n_before: int = 0
    n_after: int = 0

    @property
    def worse(self) -> bool:
        return level(self.after) > level(self.before) or self.lacks

    @property
    def lacks(self) -> bool:
        """Return True if B lacks comparisons of A, and no verdict explains why."""
        return self.n_after < self.n_before and level(self.after) == level(self.before)


@dataclass(frozen=True, kw_only=True)
class Move:
    """An error that moved towards its limit. Its values before and after are shares of this
    limit."""

    suite: str
    case: str
    what: str
    before: float
    after: float

    @property
    def by(self) -> float:
        return self.after - self.before


@dataclass(frozen=True, kw_only=True)
class DifferenceSize:
    """The size of a difference. share: the error as a share of its limit; None without a limit.
    count: the number of wrong elements; None if unknown."""

    share: float | None = None
    count: int | None = None

    def grows_to(self, other: "DifferenceSize", times: float) -> bool:
        return larger(self.share, other.share, times, LIMITS) or larger(
            self.count, other.count, times, self.chance(other)
        )

    def chance(self, other: "DifferenceSize") -> float:
        """Return how much the counts of the same fault may differ by chance. Return 0 for bits and
        ids, because they have no limit."""
        if self.share is None or other.share is None:
            return 0.0
        return DEVIATIONS * sqrt((self.count or 0) + (other.count or 0))


@dataclass(frozen=True, kw_only=True)
class Growth:
    """A difference in both runs whose size changed. `row` is a row of run B."""

    row: Row
    before: DifferenceSize
    after: DifferenceSize

    @property
    def what(self) -> str:
        return Cause(rows=[self.row]).title


@dataclass(frozen=True, kw_only=True)
class Changes:
    """The changes from run A to run B."""

    new: Sequence[Row]  # new differences, and checks that did not finish
    gone: Sequence[Row]
    larger: Sequence[Growth]
    smaller: Sequence[Growth]
    changed: Sequence[Change]
    moved: Sequence[Move]  # the largest first
    same: int  # number of suites of models with the same verdict
    remarks: Sequence[str]  # reasons why the two runs are not comparable

    @property
    def worse(self) -> bool:
        return bool(self.new or self.larger) or any(change.worse for change in self.changed)

    @property
    def new_causes(self) -> list[Cause]:
        return causes_of(self.new, LOUD)

    @property
    def gone_causes(self) -> list[Cause]:
        return causes_of(self.gone, LOUD)


def level(status: str) -> int:
    return NOTHING if status == ABSENT else LEVELS[status]


def changes_between(a: RowsOfRun, b: RowsOfRun) -> Changes:
    before, after = loud(a), loud(b)
    worst_before, worst_after = worst(a), worst(b)
    comparable = not any(otherwise(a, b))  # other numbers may require other comparisons
    n_before = held_comparisons(a, ("agreed",)) if comparable else Counter()
    n_after = held_comparisons(b, ("agreed", "excused"))
    every = [
        Change(
            suite=suite,
            case=case,
            before=worst_before.get((suite, case), ABSENT),
            after=worst_after.get((suite, case), ABSENT),
            n_before=n_before[suite, case],
            n_after=n_after[suite, case],
        )
        for suite, case in {**worst_before, **worst_after}
    ]
    changed = [change for change in every if change.before != change.after or change.lacks]
    grown, shrunk = sizes_changed(a, b)
    return Changes(
        new=[row for spot, row in after.items() if spot not in before],
        gone=[row for spot, row in before.items() if spot not in after],
        larger=grown,
        smaller=shrunk,
        changed=sorted(changed, key=lambda change: not change.worse),
        moved=moves(shares(a), shares(b)),
        same=len(every) - len(changed),
        remarks=[*remarks(a, b)],
    )


def loud(run: RowsOfRun) -> dict[Spot, Row]:
    return {spot_of(row): row for row in run.verdicts if row["status"] in LOUD}


def spot_of(row: Row) -> Spot:
    return row["suite"], row["case"], f"{row['key'] or row['summary']} {place_of(row)}"


def worst(run: RowsOfRun) -> dict[tuple[str, str], str]:
    found: dict[tuple[str, str], str] = {}
    for row in run.verdicts:
        key = row["suite"], row["case"]
        if key not in found or level(row["status"]) > level(found[key]):
            found[key] = row["status"]
    return found


def held_comparisons(run: RowsOfRun, statuses: Sequence[str]) -> Counter[tuple[str, str]]:
    """Count the verdicts with these statuses, by suite and model."""
    rows = (row for row in run.verdicts if row["status"] in statuses)
    return Counter((row["suite"], row["case"]) for row in rows)


# --- sizes ----------------------------------------------------------------------------------------


def sizes_changed(a: RowsOfRun, b: RowsOfRun) -> tuple[list[Growth], list[Growth]]:
    """Return the differences that grew in any respect, and the differences that shrank."""
    times = GREW_OTHERWISE if any(otherwise(a, b)) else GREW
    before, after = extents(a), extents(b)
    grown, shrunk = [], []
    for spot, (row, now) in after.items():
        if spot not in before:
            continue
        then = before[spot][1]
        growth = Growth(row=row, before=then, after=now)
        if then.grows_to(now, times):
            grown.append(growth)
        elif now.grows_to(then, times):
            shrunk.append(growth)
    return grown, shrunk


def extents(run: RowsOfRun) -> dict[Spot, tuple[Row, DifferenceSize]]:
    """Return the size of every difference. If a place has several verdicts, use the largest size,
    and the sum of the counts."""
    found: dict[Spot, tuple[Row, DifferenceSize]] = {}
    for row in run.verdicts:
        if row["status"] != "diverged":
            continue
        first, so_far = found.get(spot_of(row), (row, DifferenceSize()))
        own = extent_of(row["detail"])
        shares = [share for share in (so_far.share, own.share) if share is not None]
        counts = [count for count in (so_far.count, own.count) if count is not None]
        both = DifferenceSize(
            share=max(shares, default=None), count=sum(counts) if counts else None
        )
        found[spot_of(row)] = first, both
    return found


def extent_of(detail: Mapping[str, Any]) -> DifferenceSize:
    count = detail.get("mismatched")
    return DifferenceSize(share=share_in(detail), count=count if isinstance(count, int) else None)


def share_in(detail: Mapping[str, Any]) -> float | None:
    """Return the error as a share of its limit. The error is the worst logit of a run, the worst
    element of a node, or for greedy tokens the margin by which the right token was more likely."""
    if "worst_share" in detail:
        return size(detail["worst_share"])
    limit = detail.get("allowed_relative") or detail.get("allowed")
    if "allowed_relative" in detail:
        off = size(detail.get("worst_relative_to_largest_logit"))
    elif "margin" in detail:
        off = size(detail["margin"])
    else:
        expected, actual = (size(detail.get(name)) for name in ("expected", "actual"))
        off = None if expected is None or actual is None else actual - expected
    if off is None or not isinstance(limit, float) or not 0 < limit < inf:
        return None
    return inf if isnan(off) else abs(off) / limit


def size(value: Any) -> float | None:
    """Return the value if it is a measurement; None if it is an id or a text.

    Reports write infinity and NaN as texts. NaN counts as the largest possible error.
    """
    if value in ("inf", "-inf", "nan"):
        return float(value)
    return value if isinstance(value, float) else None


def larger(before: float | None, after: float | None, times: float, room: float) -> bool:
    if before is None or after is None or before == after:
        return False
    return after > times * before and after - before > room


# --- distances from limits ----------------------------------------------------------------------


def shares(run: RowsOfRun) -> dict[Spot, float]:
    """Return the worst errors of ops, nodes and logits, as shares of their limits."""
    found: dict[Spot, float] = {}
    for row in run.verdicts:
        for what, share in shares_of(row["detail"]):
            spot = row["suite"], row["case"], what
            if isinstance(share, int | float) and isfinite(share):
                found[spot] = max(found.get(spot, 0.0), float(share))
    return found


def shares_of(detail: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    allowed = detail.get("allowed_relative")
    if isinstance(allowed, float) and allowed > 0:
        off = detail.get("worst_relative_to_largest_logit")
        if isinstance(off, float):
            yield "worst logit", off / allowed
    if "worst_share" in detail and "op" in detail:
        yield str(detail["op"]), detail["worst_share"]
    elif "by_node" in detail:
        for node in nodes_of(detail["by_node"]):
            layer = "" if node["layer"] is None else f"-{node['layer']}"
            yield f"{node['name']}{layer}", node["share"]


def moves(before: Mapping[Spot, float], after: Mapping[Spot, float]) -> list[Move]:
    """Return the figures that moved towards their limits by more than MOVED. Errors beyond their
    limits are omitted, because they are differences."""
    found = [
        Move(suite=suite, case=case, what=what, before=before[spot], after=share)
        for spot, share in after.items()
        for suite, case, what in [spot]
        if spot in before and share - before[spot] > MOVED and share <= 1
    ]
    return sorted(found, key=lambda move: -move.by)


# --- in words -------------------------------------------------------------------------------------


def remarks(a: RowsOfRun, b: RowsOfRun) -> Iterator[str]:
    for name, run in (("A", a), ("B", b)):
        if run.footer is None:
            yield f"{name} did not finish, so it may lack verdicts for that reason alone"
    yield from otherwise(a, b)


def otherwise(a: RowsOfRun, b: RowsOfRun) -> Iterator[str]:
    """Yield the reasons why the two runs have different numbers."""
    if a.header["seed"] != b.header["seed"]:
        yield f"the seeds differ: {a.header['seed']} and {b.header['seed']}"
    hashes = [{m["case"]: m["sha256"] for m in run.header["models"]} for run in (a, b)]
    for case in hashes[0].keys() & hashes[1].keys():
        if hashes[0][case] != hashes[1][case]:
            yield f"{case} is a different file in B: its sha256 differs"
    settings = [[e["settings"] for e in run.header["engines"]] for run in (a, b)]
    if settings[0] != settings[1]:
        yield "the engines' settings differ"


def title_of(run: RowsOfRun) -> str:
    """Return the engines of the run, with their versions."""
    engines = [f"{e['engine']} {e['version']}" for e in run.header["engines"][::-1]]
    return " against ".join(engines) or str(run.header["command"])


def line_of(row: Row) -> str:
    """Describe a difference: its size, its limit and the reason."""
    far, allowed, why = in_short(row)
    if not far:
        return str(row["summary"])
    return f"{far}, allowed {allowed}" + (f": {why}" if why else "")


def sizes_of(growth: Growth) -> Iterator[str]:
    """Yield how the share and the count of a difference changed."""
    before, after = growth.before, growth.after
    if before.share is not None and after.share is not None and before.share != after.share:
        yield f"{of_limit(before.share)} to {of_limit(after.share)}"
    if before.count is not None and after.count is not None and before.count != after.count:
        yield f"{before.count:,} to {after.count:,} elements off"


def as_json(changes: Changes) -> dict[str, Any]:
    def plain(row: Row) -> dict[str, Any]:
        return {name: row[name] for name in ("suite", "case", "status", "summary", "key", "repro")}

    def sized(growth: Growth) -> dict[str, Any]:
        extents = {"before": growth.before, "after": growth.after}
        return plain(growth.row) | {name: asdict(one) for name, one in extents.items()}

    return {
        "worse": changes.worse,
        "new": [plain(row) for row in changes.new],
        "gone": [plain(row) for row in changes.gone],
        "larger": [sized(growth) for growth in changes.larger],
        "smaller": [sized(growth) for growth in changes.smaller],
        "changed": [
            {"suite": c.suite, "case": c.case, "before": c.before, "after": c.after}
            | {"compared": [c.n_before, c.n_after], "worse": c.worse}
            for c in changes.changed
        ],
        "moved": [
            {"suite": m.suite, "case": m.case, "what": m.what, "before": m.before}
            | {"after": m.after}
            for m in changes.moved
        ],
        "same": changes.same,
        "remarks": list(changes.remarks),
    }
