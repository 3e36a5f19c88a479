"""What limits in common use would have said of an engine: the same for every op and every model."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from engine.batch import Batch
from harness.records import Answered, Evaluation, Request
from harness.session import Session

ON_OPS = "NMSE 5e-4 on every op"
ON_LOGITS: Mapping[str, float] = {"NMSE 1e-4 on logits": 1e-4, "NMSE 1e-2 on logits": 1e-2}
TOP, COSINE = "top-1 at every position", "cosine 0.999 at every position"
LIMITS = (ON_OPS, *ON_LOGITS, TOP, COSINE)
Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True, eq=False)
class Truth:
    """A run of our own honest engine, which each op of another is given."""

    batches: tuple[Batch, ...]
    embeds: bool
    run: Evaluation


def truth_of(session: Session, batches: tuple[Batch, ...], *, embeds: bool) -> Truth:
    request = Request(batches=batches, capture=True, embeddings=embeds)
    outcome = session.ask("evaluate", request)
    assert isinstance(outcome, Answered), outcome
    return Truth(batches=batches, embeds=embeds, run=outcome.value)


def passed_by(truth: Truth, session: Session) -> dict[str, bool]:
    """Which limits find nothing wrong with an engine; one that gives no run is found by all."""
    assert truth.run.trace is not None
    values = truth.run.trace.values()
    plain = Request(batches=truth.batches, embeddings=truth.embeds)
    given = Request(batches=truth.batches, embeddings=truth.embeds, capture=True, replace=values)
    own, local = (session.ask("evaluate", request) for request in (plain, given))
    if not (isinstance(own, Answered) and isinstance(local, Answered)):
        return dict.fromkeys(LIMITS, False)
    shown = local.value.trace.values()
    wide = {site: v for site, v in values.items() if v.dtype.kind == "f"}
    ops = all(site in shown and nmse(v, shown[site]) <= 5e-4 for site, v in wide.items())
    return {ON_OPS: ops, **on_logits(truth.run.logits, own.value.logits)}


def on_logits(
    expected: tuple[NDArray[np.float32], ...], got: tuple[NDArray[np.float32], ...]
) -> dict[str, bool]:
    a, b = (np.concatenate(rows).astype(np.float64) for rows in (expected, got))
    if a.shape != b.shape:
        return dict.fromkeys((*ON_LOGITS, TOP, COSINE), False)
    return {
        **{name: nmse(a, b) <= limit for name, limit in ON_LOGITS.items()},
        TOP: bool((a.argmax(axis=1) == b.argmax(axis=1)).all()),
        COSINE: bool((cosine(a, b) >= 0.999).all()),
    }


def nmse(expected: NDArray[np.generic], got: NDArray[np.generic]) -> float:
    """The squared error as a share of the squares. Not a number is none that passes."""
    a, b = expected.astype(np.float64), got.astype(np.float64)
    if a.shape != b.shape:
        return float("inf")
    if np.array_equal(a, b):
        return 0.0
    with np.errstate(all="ignore"):
        return float(((a - b) ** 2).sum() / (a**2).sum())


def cosine(a: Array, b: Array) -> Array:
    with np.errstate(all="ignore"):
        lengths = np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1)
        found: Array = (a * b).sum(axis=1) / lengths
    return found
