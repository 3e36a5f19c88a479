"""Diagnoses wrong engines through views, which hide a part of what an engine shows.

If something differs, a second diagnosis uses a catalogue without the mistakes named by the first.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import inf
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from numpy.random import Philox

from lockstep.harness.adapters.base import Adapter
from lockstep.harness.asking.session import LocalSession
from lockstep.harness.catalogue.run import CataloguePart, wrong_engines
from lockstep.harness.catalogue.trial import TrialBench as Tried
from lockstep.harness.catalogue.trial import bench_for
from lockstep.harness.catalogue.views import ALL, LOGITS, TEXT, Narrow, View, views_of
from lockstep.harness.check.check import describe_engine
from lockstep.harness.diagnosis.asking import AskedQuestion, ask_questions, questions_for
from lockstep.harness.diagnosis.diagnosis import ASPECTS, Diagnosis, DiagnosisBench, of_aspect
from lockstep.harness.diagnosis.engines import without_roundings
from lockstep.harness.judging.compare import largest
from lockstep.harness.judging.noise import random_shares
from lockstep.harness.records import Answered, Evaluation, Outcome

DIAGNOSED = (ALL, LOGITS, TEXT)
RACES = "races"  # a family of mistakes whose answers change from run to run


@dataclass(frozen=True, kw_only=True)
class TrialRow:
    """The result of one engine in one view. `named` are the mistakes named for the aspect that
    differs. `others` are the mistakes that would be named if the catalogue lacked the mistakes in
    `named`."""

    engine: str
    family: str
    model: str
    view: str
    status: str
    named: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    nearest: float = inf  # the part of the difference that the best of these leaves, as in Match
    places: int = 0  # number of questions that the right engine answers differently
    differs: int = 0
    unsteady: bool = False
    seconds: float = 0.0


class Shown(Narrow):
    """An engine of which a view hides a part. Its logits are perturbed by at most the error of an
    honest run."""

    def __init__(self, inner: LocalSession, view: View, noise: float) -> None:
        super().__init__(inner, view)
        self.noise, self.asked = noise, 0

    def _ask(
        self,
        question: str,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        consume: Callable[[Any], None] | None = None,
    ) -> Outcome:
        if self.view.levels is None:
            outcome = self.inner._ask(question, args, kwargs, consume)
        else:
            outcome = super()._ask(question, args, kwargs, consume)
        if isinstance(outcome, Answered) and isinstance(outcome.value, Evaluation):
            moved = tuple(map(self.move_logits, outcome.value.logits))
            return replace(outcome, value=replace(outcome.value, logits=moved))
        if isinstance(outcome, Answered) and question == "embed":
            return replace(outcome, value=tuple(map(self.move_logits, outcome.value)))
        return outcome

    def move_logits(self, logits: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
        self.asked += 1
        share = random_shares(Philox(key=self.asked).random_raw(logits.size))
        return (logits + share.reshape(logits.shape) * self.noise * largest(logits)).astype(
            np.float32
        )


def tries(part: CataloguePart) -> list[TrialRow]:
    """Try the engines of one model, and return a row for each engine in each view."""
    wrong_engines()
    with tempfile.TemporaryDirectory(prefix="lockstep-") as folder:
        tried = bench_for(part.model, Path(folder))
        bench = DiagnosisBench.of(tried.context, keep=True)
        try:
            classes: list[Any] = [Adapter.member(name) for name in part.engines]
            return [
                one(tried, bench, cls, view) for cls in classes for view in views_of(cls, DIAGNOSED)
            ]
        finally:
            bench.close()
            tried.opened.close()


def one(tried: Tried, bench: DiagnosisBench, cls: Any, view: View) -> TrialRow:
    started, base = process_time(), tried.context
    types = {tensor.type.name for tensor in base.file.tensors.values()}
    made = without_roundings(cls) if types == {"F32"} else cls
    own = base.for_embeddings() if not base.facts.has_logits else base
    with Shown(
        LocalSession(made, base.subject_model, base.settings), view, own.noise.relative
    ) as subject:
        if cls.group == RACES:
            subject.inner.ask("greedy", [1, 2, 3], 2)
        info = describe_engine(subject, under_test=True)
        context = own.with_subject(subject, base.subject_model, info)
        every = ask_questions(context, list(questions_for(context)), {})
        for aspect in ASPECTS:
            some = [each for each in every if each.question.aspect == aspect]
            found = of_aspect(context, bench, aspect, some) if some else None
            if found is not None and found.status != "right":
                break
        ending = {"engine": cls.name, "family": cls.group, "model": cls.shows_on}
        ending |= {"view": view.name}
        if found is None:
            return TrialRow(status="right" if every else "not asked", **ending)
        rest = without(context, bench, found, some) if found.status != "right" else None
    return TrialRow(
        **ending,
        status=found.status,
        named=tuple(m.engine for m in found.named),
        also=tuple(m.engine for m in found.also),
        others=tuple(m.engine for m in rest.named) if rest else (),
        nearest=rest.nearest if rest else inf,
        places=found.places,
        differs=sum(row.compared - row.right for row in found.rows),
        unsteady=bool(found.unsteady),
        seconds=round(process_time() - started, 2),
    )


def without(
    context: Any, bench: DiagnosisBench, found: Diagnosis, some: Sequence[AskedQuestion]
) -> Diagnosis:
    """Return the diagnosis that would follow without the named mistakes. Only other mistakes for
    the same architecture are tried."""
    names = {match.engine for match in found.named}
    near = tuple(cls for cls in bench.near if cls.name not in names)
    return of_aspect(context, replace(bench, near=near, far=()), found.aspect, some)
