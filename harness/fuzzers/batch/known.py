"""Schedules on which an engine is known to differ: the [[batch]] entries of harness/known."""

from collections.abc import Sequence
from dataclasses import dataclass

from lockstep.harness.fuzzers.batch.causes import causes
from lockstep.harness.fuzzers.batch.judge import ScheduleDifference
from lockstep.harness.fuzzers.batch.schedule import ScheduleCase, schedule_from
from lockstep.harness.known import entries

MEMORY = {"yarn": "attention"}  # the memory of kinds that have no memory of their own name


@dataclass(frozen=True, kw_only=True)
class KnownSchedule:
    """A known difference on schedules. symptom: the first fact that differs; cause: the event that
    our machine must observe before or at that step, because the form of a schedule alone excuses
    nothing; case: the smallest schedule, as JSON."""

    id: str
    component: str  # name of an adapter
    version: str  # the version in which the difference was seen
    kinds: tuple[str, ...]  # kinds of memory
    symptom: str
    cause: str
    case: str
    sentence: str
    status: str  # see Known
    link: str

    @property
    def schedule(self) -> ScheduleCase:
        return schedule_from(self.case)


def known_schedules() -> list[KnownSchedule]:
    return [KnownSchedule(**{**row, "kinds": tuple(row["kinds"])}) for row in entries("batch")]


def entry_for(
    known: Sequence[KnownSchedule],
    engines: Sequence[str],
    kind: str,
    found: ScheduleDifference,
    case: ScheduleCase,
) -> KnownSchedule | None:
    """Return the entry that explains a difference, or None. A crash may come at any step. An entry
    about wrong logits also explains logits that differ only with another ubatch size."""
    why = causes(case, kind)
    last = found.step if found.step >= 0 else len(case.steps)
    kinds = {kind, MEMORY.get(kind, kind)}
    for one in known:
        here = one.component in engines and not kinds.isdisjoint(one.kinds)
        shows = (one.symptom, "splitting") if one.symptom == "logits" else (one.symptom,)
        if here and found.symptom in shows and why.get(one.cause, last + 1) <= last:
            return one
    return None
