"""The number of honest runs needed to judge an engine. More runs are made only if they may change
the verdict."""

from collections.abc import Sequence
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.quants.base import F32
from lockstep.harness.context.suite import Context
from lockstep.harness.judging.compare import largest, worst_distance
from lockstep.harness.judging.conversions import is_quantised
from lockstep.harness.judging.noise import MORE_RUNS, RARE_RUNS
from lockstep.harness.judging.tolerances import whole_run

# Sums of thousands of rounding errors are nearly equal in every run: for seven F32 models, the
# largest error of twelve runs was 1.04 to 2.1 times that of the three luckiest runs. Rare and large
# is only a choice that tips (`may_jump`).
CLEARLY = 1000


def noise_beside(
    context: Context, batches: Sequence[Batch], honest: Sequence[F32], runs: Sequence[F32]
) -> float:
    """Return the relative noise by which these runs are judged. A few honest runs are enough if
    each run is within their noise or far beyond it; else more honest runs are made. `honest` holds
    runs with llama.cpp's conversions of activations, and possibly without them."""
    few = context.noise.relative
    limit = float(whole_run(few, largest(honest[0])).allowed)
    if may_jump(context) or not isfinite(limit):
        return context.noise_on(batches)
    apart = [min(worst_distance(truth, run) for truth in honest) for run in runs]
    clear = all(each <= limit or each > CLEARLY * limit for each in apart)
    return few if clear else context.noise_on(batches)


def noise_of_subject(context: Context, batches: Sequence[Batch]) -> float:
    """Return the noise of the subject's design, if the design is known and has more noise than
    float32; else the noise of float32."""
    noise = context.noise_on(batches)
    if not context.rounding:
        return noise
    design = context.rounding[0]
    run = context.honest.rounded_run(batches, design, seed=context.seed, runs=MORE_RUNS)
    return max(noise, run.relative)


def may_jump(context: Context) -> bool:
    """Return True if a small error may grow large, because another expert is chosen or a converted
    activation falls on another step."""
    return chooses_experts(context) or is_quantised(context.file)


def chooses_experts(context: Context) -> bool:
    experts = context.file.metadata.get(f"{context.facts.architecture}.expert_count")
    return experts is not None and bool(experts.data)


def by_chance(
    context: Context,
    batches: Sequence[Batch],
    truth: F32,
    runs: Sequence[F32],
    allowed: float,
    *,
    rows: NDArray[np.intp] | None = None,
) -> bool:
    """Return True if for each wrong row some honest run has the same values. In few runs a choice
    between two nearly tied experts goes the other way, and then a whole row changes. `rows` are the
    indices of the compared outputs, if they are not all outputs of the batches."""
    if not chooses_experts(context):
        return False
    left = [~near(truth, run, allowed) for run in runs]
    if not all(0 < 2 * off.sum() <= len(off) for off in left):
        return False  # other rows cannot explain a run that has no wrong row of its own
    n = RARE_RUNS if context.facts.is_small else MORE_RUNS
    context.progress("few rows differ: looking for an honest run that chooses the same experts")
    for honest in context.honest.unlucky(batches, seed=context.seed + 2 * MORE_RUNS, runs=n):
        found = honest if rows is None else honest[rows]
        left = [off & ~near(found, run, allowed) for off, run in zip(left, runs, strict=True)]
        if not any(off.any() for off in left):
            return True
    return False


def near(a: F32, b: F32, allowed: float) -> NDArray[np.bool_]:
    """Return for each row True if all its numbers are close."""
    with np.errstate(invalid="ignore"):
        close = np.abs(a.astype(np.float64) - b) <= allowed
    return np.asarray(close.all(axis=1))
