"""Engines with one mistake in the older sequence-aware batch, and the split that shows the
mistake."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from lockstep.engine.memory.sbatch import SbatchToken
from lockstep.engine.memory.sbatch_schedule import SbatchSchedule
from lockstep.engine.memory.ubatch import Ubatch
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.fuzzers.base import FuzzPlan, fuzzer_named
from lockstep.harness.fuzzers.batch.schedule import ScheduleCase, schedule_from
from lockstep.harness.records import Verdict


class WithSplitter(Reference):
    change: Callable[[SbatchSchedule], None]

    def make_sbatch(self, plan: Mapping[str, Any]) -> SbatchSchedule:
        run = super().make_sbatch(plan)
        type(self).change(run)
        return run


def drops_last(run: SbatchSchedule) -> None:
    """Forget the last token of a batch that takes several ubatches."""
    right = run.ubatches

    def ubatches(tokens: Sequence[SbatchToken]) -> list[Ubatch]:
        *first, last = right(tokens)
        order = last.order[:-1] if first else last.order
        return [*first, replace(last, order=order)] if order else first

    run.ubatches = ubatches  # type: ignore[method-assign]


def mixes_sequences(run: SbatchSchedule) -> None:
    """Give every token to the first sequence."""
    right = run.ubatches
    run.ubatches = lambda tokens: right(  # type: ignore[method-assign]
        [replace(token, seqs=(0,)) for token in tokens]
    )


def reorders_outputs(run: SbatchSchedule) -> None:
    """Report outputs as if computed in the order of the batch."""
    run.order = sorted  # type: ignore[method-assign, assignment]


def engine(change: Callable[[SbatchSchedule], None]) -> type[Reference]:
    name = f"sbatch-{change.__name__.replace('_', '-')}"
    return type(name, (WithSplitter,), {"name": name, "change": staticmethod(change)})


WRONG = [  # engine, kind of context, symptom
    (engine(change), kind, symptom)
    for change, kinds, symptom in (
        (drops_last, ("attention", "recurrent", "pooled"), "ubatches"),
        (mixes_sequences, ("recurrent", "pooled"), "ubatches"),
        (reorders_outputs, ("recurrent",), "order"),
    )
    for kind in kinds
]


def caught(cls: type[Reference], kind: str, oracle: str) -> tuple[Verdict, ScheduleCase]:
    """Return the first finding on a registered wrong engine, and its minimised schedule."""
    plan = FuzzPlan(targets=(kind,), engine=cls.name, oracle=oracle, cases=60, seed=3)
    verdicts = fuzzer_named("batch").run(plan, lambda target, text: None)
    found = next(v for v in verdicts if isinstance(v, Verdict) and v.status == "diverged")
    return found, schedule_from(json.dumps(found.detail["schedule"]))
