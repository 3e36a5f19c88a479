"""Ties in greedy text. A tie is a place where another honest engine may choose another token.

The noise is measured, not assumed. The engine computes the logits of its text twice: token by
token, and in one batch. The difference between the two runs is its noise. If the two largest logits
are closer than twice the noise (because both may move), the choice does not show which engine is
right.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.harness.context.runner import Session
from lockstep.harness.records import Answered, Evaluation, Request

LOOKED_AT = 256  # tokens; for each, all logits are held twice


@dataclass(frozen=True, kw_only=True)
class Tie:
    """A tie in a text. `token` is the index of the generated token, counted from 0."""

    token: int
    chosen: int
    other: int
    apart: float  # difference between the two largest logits
    noise: float  # difference between two runs of the engine at this token


def close_choices(
    session: Session, prompt: Sequence[int], ids: Sequence[int], decoder_start: int | None = None
) -> list[Tie] | None:
    """Return the ties of the first LOOKED_AT tokens; None if the engine shows no logits."""
    ids = ids[:LOOKED_AT]
    encoded: tuple[Batch, ...] = ()
    if decoder_start is not None:
        encoded, prompt = (Batch.to_encode(Batch.of(prompt)),), [decoder_start]
    start = len(prompt)
    steps = [Batch.of([t], start=start + i) for i, t in enumerate(ids[:-1])]
    first = Batch.of(prompt)
    first.outputs[:-1] = False
    whole = Batch.of([*prompt, *ids[:-1]])
    whole.outputs[: start - 1] = False
    ways = (*encoded, first, *steps), (*encoded, whole)
    found = [logits_of(session, batches) for batches in ways]
    if (
        found[0] is None
        or found[1] is None
        or {len(f) for f in found if f is not None} != {len(ids)}
    ):
        return None
    return ties_between(ids, found[0], found[1])


def logits_of(session: Session, batches: tuple[Batch, ...]) -> NDArray[np.float32] | None:
    outcome = session.ask("evaluate", Request(batches=batches))
    if not isinstance(outcome, Answered) or not isinstance(outcome.value, Evaluation):
        return None
    return np.concatenate(outcome.value.logits)


def ties_between(
    ids: Sequence[int], stepwise: NDArray[np.float32], at_once: NDArray[np.float32]
) -> list[Tie]:
    """Return the ties of two runs. stepwise, at_once: the logits of the runs, (tokens,
    vocabulary)."""
    found = []
    for at, (chosen, row, again) in enumerate(zip(ids, stepwise, at_once, strict=True)):
        others = row.copy()
        others[chosen] = -np.inf
        other = int(np.argmax(others))
        apart = float(row[chosen]) - float(row[other])
        noise = float(np.abs(row[[chosen, other]] - again[[chosen, other]]).max())
        if apart <= 2 * noise:
            found.append(Tie(token=at, chosen=chosen, other=other, apart=apart, noise=noise))
    return found
