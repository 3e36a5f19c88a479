"""Known differences of an engine, from a user's list. They are excused by name. A listed difference
that no longer occurs is an error.

    {"known": [{"case": "model.gguf", "suite": "trace", "key": "trace/subject/ROPE/Qcur_rope",
                "reason": "pairs are turned otherwise, issue 12",
                "at": {"Qcur_rope, layer 2, step 0": [{"kind": "value", "size": 41.5}]}}]}

The key of a divergence is in the report; it contains no layer and no number. A divergence at
another place, of another kind or of another size is not excused, because it is another fault or has
become worse. Therefore a list is valid only for the options with which it was written. An entry may
also have a kind and a size instead of places, or none of these. Such an entry excuses all
divergences with its key, up to ten times its size.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

from lockstep.engine.errors import InvalidModel
from lockstep.engine.gguf.regular_file import read_regular
from lockstep.harness.check.inputs import check_is_no_model
from lockstep.harness.records import Verdict

FIELDS = ("case", "suite", "key", "reason")
OPTIONAL = ("kind", "size", "at")
# Factor for entries without places. With other tokens, seeds and builds, the worst element is a few
# times larger or smaller.
LARGER = 10
# Factor for the same fault on another processor, where honest runs may change both engines' numbers
# by one limit each
LIMITS = 2
SHARE = 0.05  # relative change of the size of the fault on another processor
LARGEST = 16 << 20
CONCLUSIVE = ("agreed", "diverged", "excused", "not-applicable")
# begins the key of an entry that no longer differs, which is no fault of the engine
GONE = "known/"
UNKNOWN = "no reason written yet"

Name = tuple[str, str, str]  # case, suite, key


@dataclass(frozen=True, kw_only=True)
class Extent:
    """The kind and the size of a divergence. An empty kind or a size of None matches any.

    size: the error as a multiple of its limit, or the number of values that differ if they must be
    equal.
    """

    kind: str = ""
    size: float | int | None = None

    def exceeded_by(self, other: "Extent") -> str:
        """Return why this listed extent does not cover the other extent; "" if it does."""
        if self.kind and other.kind != self.kind:
            return f"its kind is {other.kind!r}, but {self.kind!r} is listed"
        if self.size is not None and other.size is None:
            return "its size is unknown, but a size is listed"
        if self.size is not None and other.size is not None and other.size > LARGER * self.size:
            return f"its size is {other.size:.3g}, but {self.size:.3g} is listed"
        return ""

    def differs_from(self, other: "Extent") -> str:
        """Return why the other extent differs at the same place; "" if they are equal."""
        if other.kind != self.kind:
            listed = repr(self.kind) if self.kind else "none"
            return f"its kind is {other.kind!r}, but {listed} is listed"
        if self.size is None or other.size is None:
            same = self.size is other.size
        elif type(self.size) is int and type(other.size) is int:
            same = self.size == other.size  # both are counts
        else:
            room = LIMITS + SHARE * max(self.size, other.size)
            same = abs(self.size - other.size) <= room
        a, b = (f"{x:.3g}" if x is not None else "none" for x in (other.size, self.size))
        return "" if same else f"its size is {a}, but {b} is listed"


@dataclass(kw_only=True)
class KnownFailures:
    """The listed failures of one run, and those that still occur."""

    reasons: dict[Name, str] = field(default_factory=dict)
    extents: dict[Name, Extent] = field(default_factory=dict)
    places: dict[Name, dict[str, list[Extent]]] = field(default_factory=dict)
    met: set[Name] = field(default_factory=set)

    def __or__(self, other: "KnownFailures") -> "KnownFailures":
        """Merge two lists. For names in both, the entry of `other` is used, as with dicts."""
        return KnownFailures(
            reasons=self.reasons | other.reasons,
            extents=self.extents | other.extents,
            places=self.places | other.places,
            met=self.met | other.met,
        )

    def excuse(self, verdict: Verdict) -> Verdict:
        """Return the verdict, excused if it is listed."""
        name = name_of(verdict)
        if verdict.status != "diverged" or name not in self.reasons:
            return verdict
        self.met.add(name)
        reason = self.reasons[name]
        if why := self.why_not(name, verdict):
            return replace(
                verdict,
                summary=f"differs from the known divergence ({reason}), {why}: {verdict.summary}",
            )
        detail = {**verdict.detail, "known": reason, "listed": True}
        return replace(
            verdict, status="excused", detail=detail, summary=f"known ({reason}): {verdict.summary}"
        )

    def why_not(self, name: Name, verdict: Verdict) -> str:
        """Return why a divergence with this key differs from the listed divergence; "" if it does
        not differ."""
        found = extent_of(verdict)
        if name not in self.places:
            return self.extents.get(name, Extent()).exceeded_by(found)
        place = place_of(verdict.detail)
        reasons = [one.differs_from(found) for one in self.places[name].get(place, ())]
        if not reasons:
            return f"{place or 'the whole run'} is not listed"
        return "" if "" in reasons else reasons[0]

    def is_gone(self, name: Name, own: Sequence[Verdict]) -> bool:
        """Return True if a listed divergence is gone. `own` are the verdicts of its case and suite.
        The suite must have run to its end. It must not have an unlisted divergence, because a
        divergence may end a suite early."""
        sure = bool(own) and all(v.status in CONCLUSIVE for v in own)
        sure = sure and not any(v.status == "diverged" for v in own)
        return sure and name not in self.met

    def gone(self, verdicts: Sequence[Verdict], again: str) -> Iterator[Verdict]:
        """Yield an error for each listed failure that no longer occurs, among the suites that ran.
        `again` is the command of the run."""
        for name, reason in self.reasons.items():
            case, suite, key = name
            own = [v for v in verdicts if (v.case, v.suite) == (case, suite)]
            if self.is_gone(name, own):
                yield Verdict(
                    suite=suite,
                    case=case,
                    status="diverged",
                    summary=f"{key} is listed as known ({reason}), but no longer differs: "
                    "remove it from the list",
                    detail={"known": reason},
                    key=f"{GONE}{key}",
                    repro=again,
                )


def is_gone_entry(verdict: Verdict) -> bool:
    return verdict.key.startswith(GONE)


def name_of(verdict: Verdict) -> Name:
    return verdict.case, verdict.suite, verdict.key


def extent_of(verdict: Verdict) -> Extent:
    d = verdict.detail
    return Extent(kind=str(d.get("kind") or d.get("says") or ""), size=size_of(d))


def place_of(detail: Mapping[str, Any]) -> str:
    """Return the verdict's place if it is the same on every processor; "" for a whole run."""
    if "site" in detail:
        return f"{detail['site']}, layer {detail.get('layer')}, step {detail.get('step')}"
    if "tensor" in detail:
        return f"{detail['tensor']}, row {detail.get('row')}, column {detail.get('column')}"
    names = ("input", "asked", "test", "where")
    return next((str(detail[name]) for name in names if detail.get(name)), "")


def size_of(detail: Mapping[str, Any]) -> float | int | None:
    """Return the error as a multiple of its limit. The error is the worst logit of a run, the worst
    element of a node, or for greedy tokens the margin by which the right token was more likely.
    Without a limit, return the number of values that differ."""
    limit = detail.get("allowed_relative") or detail.get("allowed")
    if "allowed_relative" in detail:
        off = detail.get("worst_relative_to_largest_logit")
    elif "margin" in detail:
        off = detail["margin"]
    else:
        a, b = detail.get("expected"), detail.get("actual")
        off = abs(b - a) if isinstance(a, float | int) and isinstance(b, float | int) else None
    if limit and off is not None and isfinite(off / limit):
        return float(off / limit)
    n = detail.get("mismatched") or detail.get("total")
    return n if isinstance(n, int) else None


def read_known(path: Path) -> KnownFailures:
    """Read a file of known failures. Raises InvalidModel, which names the wrong entry."""
    try:
        document = json.loads(read_regular(path, LARGEST))
    except OSError as error:
        raise InvalidModel(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidModel(f"{path}: not JSON: {error}") from error
    rows = document.get("known") if type(document) is dict else None
    if type(rows) is not list:
        raise InvalidModel(f'{path}: expected {{"known": [...]}}; see lockstep check --write-known')
    found: dict[Name, str] = {}
    extents: dict[Name, Extent] = {}
    places: dict[Name, dict[str, list[Extent]]] = {}
    for number, row in enumerate(rows):
        check_row(row, f"{path}: entry {number}")
        name = row["case"], row["suite"], row["key"]
        if name in found:
            raise InvalidModel(f"{path}: entry {number}: {row['key']} is listed twice")
        found[name] = row["reason"]
        extents[name] = extent_in(row)
        if "at" in row:
            places[name] = {at: [extent_in(one) for one in some] for at, some in row["at"].items()}
    return KnownFailures(reasons=found, extents=extents, places=places)


def extent_in(row: Mapping[str, Any]) -> Extent:
    return Extent(kind=row.get("kind", ""), size=row.get("size"))


def check_row(row: Any, where: str) -> None:
    good = type(row) is dict and set(FIELDS) <= set(row) <= {*FIELDS, *OPTIONAL}
    texts = [value for name, value in row.items() if name not in ("size", "at")] if good else []
    if not good or not all(type(value) is str and value for value in texts):
        raise InvalidModel(f"{where}: expected the texts {', '.join(FIELDS)}, got {row!r:.200}")
    check_size(row, where)
    at = row.get("at", {})
    if type(at) is not dict or ("at" in row and set(row) & {"kind", "size"}):
        raise InvalidModel(f"{where}: at: give either places, or kind and size")
    for place, some in at.items():
        here = f"{where}: at {place!r:.80}"
        if type(some) is not list or not all(type(one) is dict for one in some):
            raise InvalidModel(f"{here}: expected a list of objects, got {some!r:.80}")
        for one in some:
            if not set(one) <= {"kind", "size"} or type(one.get("kind", "")) is not str:
                raise InvalidModel(f"{here}: expected a kind and a size, got {one!r:.80}")
            check_size(one, here)


def check_size(row: Mapping[str, Any], where: str) -> None:
    size = row.get("size", 1)
    if type(size) not in (int, float) or not 0 <= size < float("inf"):
        raise InvalidModel(f"{where}: size: expected a number, got {size!r:.80}")


def listed_in(path: Path) -> KnownFailures:
    """Read the old list from a file that will be rewritten after a long run. The new list keeps the
    user's reasons. Raises InvalidModel if the file cannot be read or written, and BadInput if it is
    a model."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        why = "is a folder" if path.is_dir() else f"{path.absolute().parent} is not a folder"
        raise InvalidModel(f"{path}: cannot be written: {why}")
    check_is_no_model(path)
    return read_known(path) if path.exists() else KnownFailures()


def write_known(path: Path, verdicts: Sequence[Verdict], old: KnownFailures) -> int:
    """Write the current differences with the earlier reasons, and return their number. Keep the
    entries of models and suites that did not run."""
    of = [v for v in verdicts if not is_gone_entry(v)]
    differ = [v for v in of if v.status == "diverged"]
    stay = (
        name
        for name in old.reasons
        if not old.is_gone(name, [v for v in of if (v.case, v.suite) == name[:2]])
    )
    new: dict[Name, list[Verdict]] = {name_of(verdict): [] for verdict in differ}
    for verdict in of:
        if verdict.status == "diverged" or "listed" in verdict.detail:
            new.get(name_of(verdict), []).append(verdict)
    rows = [
        dict(zip(FIELDS, (*name, old.reasons.get(name, UNKNOWN)), strict=True))
        | extents_of(name, new.get(name), old)
        for name in sorted({*stay, *new})
    ]
    path.write_text(json.dumps({"known": rows}, indent=1, ensure_ascii=False) + "\n")
    return len(rows)


def extents_of(
    name: Name, verdicts: Sequence[Verdict] | None, old: KnownFailures
) -> dict[str, Any]:
    """Return the current places and sizes. Keep a listed size if the current size agrees with
    it."""
    if verdicts is None:
        if name not in old.places:
            return row_of(old.extents.get(name, Extent()))
        return {"at": {at: list(map(row_of, some)) for at, some in old.places[name].items()}}
    listed = old.places.get(name, {})
    at: dict[str, list[dict[str, Any]]] = {}
    for verdict in verdicts:
        found, place = extent_of(verdict), place_of(verdict.detail)
        known = [one for one in listed.get(place, ()) if not one.differs_from(found)]
        row = row_of(known[0] if known else found)
        rows = at.setdefault(place, [])
        rows += [row] if row not in rows else []
    return {"at": at}


def row_of(extent: Extent) -> dict[str, Any]:
    kind = {"kind": extent.kind} if extent.kind else {}
    if extent.size is None:
        return kind
    return {
        **kind,
        "size": extent.size if type(extent.size) is int else float(f"{extent.size:.3g}"),
    }
