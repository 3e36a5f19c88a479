"""Few rows of logits that are others: may an honest run have chosen other experts there?"""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.quants.base import F32
from lockstep.harness.context.enough_runs import chooses_experts
from lockstep.harness.context.further_runs import is_small
from lockstep.harness.context.suite import Context
from lockstep.harness.judging.noise import MORE_RUNS, RARE_RUNS


def by_chance(
    context: Context,
    batches: Sequence[Batch],
    truth: F32,
    runs: Sequence[F32],
    allowed: float,
    *,
    rows: NDArray[np.intp] | None = None,
) -> bool:
    """Whether each row in which one of these is off is what some honest run gives. Of two experts
    whose scores nearly tie few runs choose the other, and then a row is another altogether.

    rows: which outputs of the batches these are of, if not of all.
    """
    if not chooses_experts(context):
        return False
    left = [~near(truth, run, allowed) for run in runs]
    if not all(0 < 2 * off.sum() <= len(off) for off in left):
        return False  # whoever is blamed without a row of its own is not explained by other rows
    n = RARE_RUNS if is_small(context.file) else MORE_RUNS
    context.progress("few rows differ: looking for an honest run that chooses such experts")
    for honest in context.honest.unlucky(batches, seed=context.seed + 2 * MORE_RUNS, runs=n):
        found = honest if rows is None else honest[rows]
        left = [off & ~near(found, run, allowed) for off, run in zip(left, runs, strict=True)]
        if not any(off.any() for off in left):
            return True
    return False


def near(a: F32, b: F32, allowed: float) -> NDArray[np.bool_]:
    """Of each row."""
    with np.errstate(invalid="ignore"):
        close = np.abs(a.astype(np.float64) - b) <= allowed
    return np.asarray(close.all(axis=1))
