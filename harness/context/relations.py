"""Runs that must give the same logits as the usual run, although they have few outputs, contain
another sequence, or show tensors.

Each engine is compared with its own first answer.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.random import Philox
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.quants.base import F32
from lockstep.harness.context.enough_runs import by_chance, noise_of_subject
from lockstep.harness.context.runs import Run, SameRows
from lockstep.harness.context.suite import FIRST_ROW, Context
from lockstep.harness.judging.compare import largest, mismatch_between, worst_distance
from lockstep.harness.judging.noise import MORE_RUNS
from lockstep.harness.judging.tolerances import whole_run
from lockstep.harness.records import Verdict

EVERY = 3  # every third output is requested


def ways(context: Context) -> Iterator[Run]:
    """Yield the runs that must give the same logits; none if an encoder reads the prompt or a token
    has no output."""
    batches = context.batches
    if any(batch.encoder or not batch.outputs.all() for batch in batches):
        return
    if context.subject_info.shows != ():
        rows = [np.arange(len(batch)) for batch in batches]
        same = SameRows(first=rows, own=rows)
        yield Run(words="with tensors shown", batches=batches, capture=True, same=same)
    if len(batches[0]) > 1 and context.facts.architecture not in FIRST_ROW:
        yield some_outputs(batches)
    if 2 * sum(map(len, batches)) <= context.settings.n_ctx:
        yield beside_another(batches, context.facts.n_vocab, context.seed)


def some_outputs(batches: Sequence[Batch]) -> Run:
    """Return the run with outputs for every third token of each batch, counted back from the
    last."""
    chosen = [np.arange(len(batch))[::-1][::EVERY][::-1] for batch in batches]
    masked = []
    for batch, rows in zip(batches, chosen, strict=True):
        outputs = np.zeros(len(batch), np.bool_)
        outputs[rows] = True
        masked.append(replace(batch, outputs=outputs))
    return Run(
        words="with outputs of some tokens only",
        batches=tuple(masked),
        same=SameRows(first=chosen, own=[np.arange(len(rows)) for rows in chosen]),
    )


def beside_another(batches: Sequence[Batch], n_vocab: int, seed: int) -> Run:
    """Return a run in which each token is followed by a token of another sequence with the same
    position."""
    mixed, own = [], []
    for number, batch in enumerate(batches):
        raw = Philox(key=[seed, number + 1]).random_raw(len(batch))
        others = ((raw >> np.uint64(33)) % np.uint64(n_vocab)).astype(np.int32)
        tokens = np.stack([batch.tokens, others], axis=1).ravel()
        seq_ids = np.stack([batch.seq_ids, batch.seq_ids + 1], axis=1).ravel()
        mixed.append(
            Batch(tokens, np.repeat(batch.positions, 2), seq_ids, np.ones(len(tokens), np.bool_))
        )
        own.append(np.arange(0, len(tokens), 2))
    return Run(
        words="beside another sequence",
        batches=tuple(mixed),
        same=SameRows(first=[np.arange(len(batch)) for batch in batches], own=own),
        besides="these batches have twice as many tokens, which may be the cause",
    )


def compare_way(
    context: Context, way: Run, first: Sequence[F32], again: Sequence[F32]
) -> Verdict | str:
    """Return the run's description if its logits are the same; else the verdict on the divergence.

    Two honest runs differ by their noise, because the order of additions may depend on the number
    of rows. Some runs use another code path (attention does so for more tokens). Then the limit is
    the distance between honest runs on the two paths.
    """
    same = way.same
    assert same is not None  # a run that is compared with the oracle has no such rows
    before = np.concatenate([rows[at] for rows, at in zip(first, same.first, strict=True)])
    after = np.concatenate([rows[at] for rows, at in zip(again, same.own, strict=True)])
    bound = whole_run(context.noise.relative, largest(before))
    if mismatch_between(before, after, bound.allowed) is None:
        return way.words
    noise = noise_of_subject(context, context.batches)
    bound = whole_run(noise, largest(before))
    off = mismatch_between(before, after, bound.allowed)
    allowed = float(bound.allowed)
    if off is None:
        return way.words
    if apart := distance_of_paths(context, way, same, before, after, noise):
        return f"{way.words} ({apart})"
    asked = rows_of(context.batches, same.first)
    if by_chance(context, context.batches, before, [after], allowed, rows=asked):
        return way.words
    far = worst_distance(before, after) / (largest(before) or 1.0)
    allowed /= largest(before) or 1.0
    text = (
        f"{context.subject.name} gives different logits {way.words}: {off.mismatched} of "
        f"{off.total} changed, by up to {far:.1e} of the largest logit (allowed {allowed:.1e}); "
        "at fault: the engine under test"
    )
    text += f"; {way.besides}" if way.besides else ""
    detail: dict[str, Any] = {"asked": way.words, "at_fault": "subject", "reason": bound.reason}
    detail |= {"worst_relative_to_largest_logit": far, "allowed_relative": allowed}
    return context.verdict("logits", "diverged", text, detail, ("logits", way.words, "subject"))


def rows_of(batches: Sequence[Batch], places: Sequence[NDArray[np.intp]]) -> NDArray[np.intp]:
    """Return the indices of these outputs among all batches, given their indices in each batch."""
    starts = np.cumsum([0, *(int(batch.outputs.sum()) for batch in batches[:-1])])
    return np.concatenate([start + at for start, at in zip(starts, places, strict=True)])


def distance_of_paths(
    context: Context, way: Run, same: SameRows, before: F32, after: F32, noise: float
) -> str:
    """Return a note on how far honest runs on the two code paths differ, if that explains these
    logits; else "".

    From one path to the other, an engine that rounds as llama.cpp does changes as the honest run
    does, within the noise of both. An engine that never rounds stays the same, within this noise.
    """
    context.progress(f"computing honest runs {way.words}, to judge a difference")
    batches, rows = way.batches, rows_of(way.batches, same.own)
    seed, size = context.seed + MORE_RUNS, largest(before) or 1.0
    there = context.honest.floor(batches, seed=seed, runs=0).logits
    honest = np.concatenate(context.noise.logits)[rows_of(context.batches, same.first)]
    other = np.concatenate(there)[rows]
    with np.errstate(invalid="ignore"):
        moved = before + (other.astype(np.float64) - honest)
    far = f"{worst_distance(before, after) / size:.1e}"
    apart = f"{worst_distance(honest, other) / size:.1e}"
    words = f"the runs are {far} of the largest logit apart; honest runs are {apart} apart"
    if mismatch_between(moved, after, whole_run(noise, size).allowed) is None:
        return words
    # only these rows, because a row of the other sequence may have far more noise
    moving = (run[rows] for run in context.honest.unlucky(batches, seed=seed, runs=MORE_RUNS))
    allowed = noise * size + max(worst_distance(other, run) for run in moving)
    if all(mismatch_between(run, after, allowed) for run in (before, moved)):
        return ""
    return f"{words}; noise explains {allowed / size:.1e}"
