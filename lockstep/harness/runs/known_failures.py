"""What a user knows to differ in an engine: excused by name, and an error once it does not differ.

    {"known": [{"case": "model.gguf", "suite": "trace", "key": "trace/subject/ROPE/Qcur_rope",
                "reason": "pairs are turned otherwise, issue 12", "kind": "value", "size": 41.5}]}

A divergence's key stands in the report; it has no layer and no number in it. What is of another
kind, or far larger than it was when it was listed, is another fault at the same place, or one that
got worse, and is not excused. An entry without kind or size excuses any.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite
from pathlib import Path
from typing import Any

from lockstep.engine.errors import InvalidModel
from lockstep.engine.gguf.regular_file import read_regular
from lockstep.harness.records import Verdict

FIELDS = ("case", "suite", "key", "reason")
OPTIONAL = ("kind", "size")
# other tokens, seeds and builds find a worst element that is a few times larger or smaller
LARGER = 10
LARGEST = 16 << 20
CONCLUSIVE = ("agreed", "diverged", "excused", "not-applicable")
UNKNOWN = "why it differs is not written down yet"

Name = tuple[str, str, str]  # case, suite, key


@dataclass(frozen=True, kw_only=True)
class Extent:
    """How a divergence differs. kind: as its report says, "" any; size: how many times its limit it
    is off, or of what must be equal how many are not; None: any."""

    kind: str = ""
    size: float | None = None

    def exceeded_by(self, other: "Extent") -> str:
        """Why the other is not the same; "": it may be."""
        if self.kind and other.kind != self.kind:
            return f"it is of kind {other.kind!r}, and {self.kind!r} is listed"
        if self.size is not None and other.size is None:
            return "its size cannot be told, and one is listed"
        if self.size is not None and other.size is not None and other.size > LARGER * self.size:
            return f"its size is {other.size:.3g}, and {self.size:.3g} is listed"
        return ""


@dataclass(kw_only=True)
class KnownFailures:
    """Of one run: which are listed, and which of these still differ."""

    reasons: dict[Name, str] = field(default_factory=dict)
    extents: dict[Name, Extent] = field(default_factory=dict)
    met: set[Name] = field(default_factory=set)

    def excused(self, verdict: Verdict) -> Verdict:
        """The same, or excused if it is listed."""
        name = name_of(verdict)
        if verdict.status != "diverged" or name not in self.reasons:
            return verdict
        self.met.add(name)
        reason = self.reasons[name]
        if why := self.extents.get(name, Extent()).exceeded_by(extent_of(verdict)):
            return replace(verdict, summary=f"not as known ({reason}), {why}: {verdict.summary}")
        detail = {**verdict.detail, "known": reason, "listed": True}
        return replace(
            verdict, status="excused", detail=detail, summary=f"known ({reason}): {verdict.summary}"
        )

    def is_gone(self, name: Name, own: Sequence[Verdict]) -> bool:
        """own: verdicts of its case and suite, which must have been run to their end."""
        sure = bool(own) and all(v.status in CONCLUSIVE for v in own)
        return sure and name not in self.met

    def gone(self, verdicts: Sequence[Verdict]) -> Iterator[Verdict]:
        """An error for each that is listed and does not differ any more, in what was really run."""
        for name, reason in self.reasons.items():
            case, suite, key = name
            own = [v for v in verdicts if (v.case, v.suite) == (case, suite)]
            if self.is_gone(name, own):
                yield Verdict(
                    suite=suite,
                    case=case,
                    status="diverged",
                    summary=f"{key} is listed as known ({reason}) and differs no more: take it out",
                    detail={"known": reason},
                    key=f"known/{key}",
                    repro=own[0].repro or "the same command",
                )


def name_of(verdict: Verdict) -> Name:
    return verdict.case, verdict.suite, verdict.key


def extent_of(verdict: Verdict) -> Extent:
    d = verdict.detail
    return Extent(kind=str(d.get("kind") or ""), size=size_of(d))


def size_of(detail: Mapping[str, Any]) -> float | None:
    """Of a run by its worst logit, of greedy tokens by how much likelier the right one was, of a
    node by its worst element; of what has no limit how many differ."""
    limit = detail.get("allowed_relative") or detail.get("allowed")
    if "allowed_relative" in detail:
        off = detail.get("worst_relative_to_largest_logit")
    elif "margin" in detail:
        off = detail["margin"]
    else:
        a, b = detail.get("expected"), detail.get("actual")
        off = abs(b - a) if isinstance(a, float | int) and isinstance(b, float | int) else None
    if limit and off is not None:
        return float(off / limit) if isfinite(off / limit) else None
    n = detail.get("mismatched") or detail.get("total")
    return float(n) if isinstance(n, int) else None


def extent_of_all(verdicts: Sequence[Verdict]) -> Extent:
    """Those of one key: the largest of them, and their kind if they have but one."""
    found = [extent_of(verdict) for verdict in verdicts]
    kinds, sizes = {e.kind for e in found}, [e.size for e in found if e.size is not None]
    whole = len(sizes) == len(found)
    return Extent(kind=kinds.pop() if len(kinds) == 1 else "", size=max(sizes) if whole else None)


def read_known(path: Path) -> KnownFailures:
    """Raises InvalidModel: what is wrong with which entry."""
    try:
        document = json.loads(read_regular(path, LARGEST))
    except OSError as error:
        raise InvalidModel(f"{path}: {error.strerror or error}") from error
    except (ValueError, RecursionError) as error:
        raise InvalidModel(f"{path}: no JSON: {error}") from error
    rows = document.get("known") if type(document) is dict else None
    if type(rows) is not list:
        raise InvalidModel(f'{path}: expected {{"known": [...]}}; see lockstep check --write-known')
    found: dict[Name, str] = {}
    extents: dict[Name, Extent] = {}
    for number, row in enumerate(rows):
        check_row(row, f"{path}: entry {number}")
        name = row["case"], row["suite"], row["key"]
        if name in found:
            raise InvalidModel(f"{path}: entry {number}: {row['key']} is listed twice")
        found[name] = row["reason"]
        extents[name] = Extent(kind=row.get("kind", ""), size=row.get("size"))
    return KnownFailures(reasons=found, extents=extents)


def check_row(row: Any, where: str) -> None:
    good = type(row) is dict and set(FIELDS) <= set(row) <= {*FIELDS, *OPTIONAL}
    texts = [value for name, value in row.items() if name != "size"] if good else []
    if not good or not all(type(value) is str and value for value in texts):
        raise InvalidModel(f"{where}: expected the texts {', '.join(FIELDS)}, got {row!r:.200}")
    size = row.get("size", 1)
    if type(size) not in (int, float) or not 0 <= size < float("inf"):
        raise InvalidModel(f"{where}: size: expected a number, got {size!r:.80}")


def check_writable(path: Path) -> None:
    """Before a run that takes a while. Raises InvalidModel."""
    if path.is_dir() or not path.absolute().parent.is_dir():
        why = "is a folder" if path.is_dir() else f"{path.absolute().parent} is no folder"
        raise InvalidModel(f"{path}: cannot be written: {why}")


def write_known(path: Path, verdicts: Sequence[Verdict], old: KnownFailures) -> int:
    """What differs now, with the reasons that were written down before; how many.

    What was listed and not looked at, because it is of another model or suite, stays listed.
    """
    differ = [v for v in verdicts if v.status == "diverged" and not v.key.startswith("known/")]
    of = [v for v in verdicts if not v.key.startswith("known/")]
    stay = (
        name
        for name in old.reasons
        if not old.is_gone(name, [v for v in of if (v.case, v.suite) == name[:2]])
    )
    new: dict[Name, list[Verdict]] = {name_of(verdict): [] for verdict in differ}
    for verdict in of:
        if verdict.status == "diverged" or "listed" in verdict.detail:
            new.get(name_of(verdict), []).append(verdict)
    extents = {**old.extents, **{name: extent_of_all(same) for name, same in new.items()}}
    rows = [
        dict(zip(FIELDS, (*name, old.reasons.get(name, UNKNOWN)), strict=True))
        | row_of(extents.get(name, Extent()))
        for name in sorted({*stay, *new})
    ]
    path.write_text(json.dumps({"known": rows}, indent=1, ensure_ascii=False) + "\n")
    return len(rows)


def row_of(extent: Extent) -> dict[str, Any]:
    kind = {"kind": extent.kind} if extent.kind else {}
    return kind if extent.size is None else {**kind, "size": float(f"{extent.size:.3g}")}
