"""Schedules on which an engine is known to differ: [[batch]] in tests/known_divergences.toml."""

import tomllib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from harness.fuzzers._batch_judge import other_size
from harness.fuzzers._known import FILE
from harness.fuzzers._schedule import Schedule, schedule_from
from harness.fuzzers._schedules import machine_of


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
    cause: str = ""  # a word of `causes` that must hold as well; names may be none then
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
    known: Sequence[KnownSchedule], engines: Sequence[str], kind: str, symptom: str, case: Schedule
) -> KnownSchedule | None:
    """The entry that a minimised schedule is an example of."""
    why = causes(case, kind)
    for one in known:
        here = one.component in engines and kind in one.kinds and one.symptom == symptom
        shape = not one.names or case.names in one.names
        if here and shape and (not one.cause or one.cause in why):
            return one
    return None


def causes(case: Schedule, kind: str) -> set[str]:
    """What our machine sees a schedule do that is known to go wrong, whatever its steps are.

    nobody: a token has no sequence. twice: a batch gives a sequence one position twice. purge:
    while places are sought for a batch, a later ubatch takes cells out of a window that an earlier
    one still sees. crowded: a batch has more sets of sequences than an ubatch has tokens. minus: a
    position is negative. shared: a token has several sequences. refused: a batch does not fit.
    """
    found = set()
    for step in case.steps:
        rows = step[1] if step[0] == "decode" else ()
        places = [(s, row[1]) for row in rows for s in row[2]]
        sets = {tuple(sorted(row[2])) for row in rows}
        found |= {"crowded"} if len(sets) > min(case.n_ubatch, other_size(case)) else set()
        found |= {"minus"} if any(row[1] < 0 for row in rows) else set()
        found |= {"shared"} if any(len(row[2]) > 1 for row in rows) else set()
        found |= {"nobody"} if not all(row[2] for row in rows) else set()
        found |= {"twice"} if len(set(places)) < len(places) else set()
    for n_ubatch in (case.n_ubatch, other_size(case)):
        machine = machine_of(kind, replace(case, n_ubatch=n_ubatch))
        codes = [machine.step(step)["code"] for step in case.steps]
        fits = [code for step, code in zip(case.steps, codes, strict=True) if step[0] == "decode"]
        found |= {"refused"} if 1 in fits else set()
        near = getattr(machine.memory, "near", None)
        found |= {"purge"} if getattr(near, "purges_ahead", False) else set()
    return found
