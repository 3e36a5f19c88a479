"""The first few tokens of a run as a separate question, which rules out mistakes cheaply."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from lockstep.engine.batch import Batch, join_batches
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.context.suite import Context
from lockstep.harness.diagnosis.asking import AskedQuestion
from lockstep.harness.diagnosis.engines import Engines
from lockstep.harness.diagnosis.questions import RunQuestion
from lockstep.harness.diagnosis.race import HeldAnswers, compare_answer
from lockstep.harness.records import Answered

SHARE = 4  # one token in so many of a run; a longer run saves little


def shortest(context: Context, engines: Engines, of: HeldAnswers) -> AskedQuestion | None:
    """Return the run cut off after its first differing row, if that row comes early. The subject is
    asked again for these tokens, because an engine in which tokens see later tokens answers the
    shorter run differently. Return None if the right engine agrees on the shorter run."""
    for one, right in zip(of.every, of.right, strict=True):
        question = one.question
        if type(question) is not RunQuestion or right.same.all():
            continue
        every = join_batches(question.batches)
        n = int(np.flatnonzero(every.outputs)[np.flatnonzero(~right.same)[0]]) + 1
        if n * SHARE > len(every) or len(set(every.seq_ids[:n].tolist())) > 1:
            continue
        batches = tuple(first_of(question.batches, n))
        part = RunQuestion(words=f"the first {n} tokens of {question.words}", batches=batches)
        return asked_for(context, engines, part, of.noise)
    return None


def first_of(batches: Sequence[Batch], n: int) -> Iterator[Batch]:
    for batch in batches:
        if n <= 0:
            return
        yield replace(
            batch,
            tokens=batch.tokens[:n],
            positions=batch.positions[:n],
            seq_ids=batch.seq_ids[:n],
            outputs=batch.outputs[:n],
        )
        n -= len(batch)


def asked_for(
    context: Context, engines: Engines, part: RunQuestion, noise: float
) -> AskedQuestion | None:
    context.progress(f"asking {context.subject.name} for {part.words}")
    outcome = part.ask(context.subject)
    if not isinstance(outcome, Answered):
        return None
    found = AskedQuestion(question=part, said=outcome.value)
    right = compare_answer(engines, Reference, found, noise)
    return found if right is not None and not right.same.all() else None
