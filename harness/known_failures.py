"""What a user knows to differ in an engine: excused by name, and an error once it does not differ.

    {"known": [{"case": "model.gguf", "suite": "trace", "key": "trace/subject/ROPE/Qcur_rope",
                "reason": "pairs are turned otherwise, issue 12"}]}

A divergence's key stands in the report; it has no layer and no number in it.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from engine.errors import InvalidModel
from engine.regular_file import read_regular
from harness.records import Verdict

FIELDS = ("case", "suite", "key", "reason")
LARGEST = 16 << 20
CONCLUSIVE = ("agreed", "diverged", "excused", "not-applicable")
UNKNOWN = "why it differs is not written down yet"

Name = tuple[str, str, str]  # case, suite, key


@dataclass(kw_only=True)
class KnownFailures:
    """Of one run: which are listed, and which of these still differ."""

    reasons: dict[Name, str] = field(default_factory=dict)
    met: set[Name] = field(default_factory=set)

    def excused(self, verdict: Verdict) -> Verdict:
        """The same, or excused if it is listed."""
        name = name_of(verdict)
        if verdict.status != "diverged" or name not in self.reasons:
            return verdict
        self.met.add(name)
        reason = self.reasons[name]
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
    for number, row in enumerate(rows):
        check_row(row, f"{path}: entry {number}")
        name = row["case"], row["suite"], row["key"]
        if name in found:
            raise InvalidModel(f"{path}: entry {number}: {row['key']} is listed twice")
        found[name] = row["reason"]
    return KnownFailures(reasons=found)


def check_row(row: Any, where: str) -> None:
    good = type(row) is dict and set(row) == set(FIELDS)
    if not good or not all(type(value) is str and value for value in row.values()):
        raise InvalidModel(f"{where}: expected the texts {', '.join(FIELDS)}, got {row!r:.200}")


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
    names = dict.fromkeys([*stay, *map(name_of, differ)])
    rows = [
        dict(zip(FIELDS, (*name, old.reasons.get(name, UNKNOWN)), strict=True))
        for name in sorted(names)
    ]
    path.write_text(json.dumps({"known": rows}, indent=1, ensure_ascii=False) + "\n")
    return len(rows)
