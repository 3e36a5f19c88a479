"""Schedules on which an engine is known to differ: [[batch]] in tests/known_divergences.toml."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.fuzzers._known import FILE
from harness.fuzzers._schedule import Schedule, schedule_from


@dataclass(frozen=True, kw_only=True)
class KnownSchedule:
    """One entry. symptom: what differs first; names: the steps of minimised schedules that show it,
    as the fuzzer arrives at them; case: the smallest one, as JSON."""

    id: str
    component: str  # an adapter's name
    version: str  # in which it was seen
    kinds: tuple[str, ...]  # of memory
    symptom: str
    names: tuple[str, ...]
    case: str
    sentence: str
    status: str  # as in _known.Known
    link: str

    @property
    def schedule(self) -> Schedule:
        return schedule_from(self.case)


def known_schedules(path: Path = FILE) -> list[KnownSchedule]:
    """None if there is no such file, as in an installed package."""
    if not path.is_file():
        return []
    rows = tomllib.loads(path.read_text()).get("batch", ())
    return [
        KnownSchedule(**{**row, "kinds": tuple(row["kinds"]), "names": tuple(row["names"])})
        for row in rows
    ]


def entry_for(
    known: Sequence[KnownSchedule], engines: Sequence[str], kind: str, symptom: str, names: str
) -> KnownSchedule | None:
    """The entry that a minimised schedule with steps of these names is an example of."""
    for one in known:
        here = one.component in engines and kind in one.kinds
        if here and one.symptom == symptom and names in one.names:
            return one
    return None
