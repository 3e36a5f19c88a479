"""Whole runs of an engine that rounds the factors of its products, as graphics cards do.

Its logits differ much more from float32 logits than those of honest float32 engines do. Lockstep
recognises the design by the logits: they are near a run of this design, and nearer to it than to
any float32 run.
"""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.batch import Batch
from lockstep.engine.quants.base import F32
from lockstep.harness.context.suite import Context
from lockstep.harness.judging.compare import largest, mismatch_between
from lockstep.harness.judging.conversions import is_quantised
from lockstep.harness.judging.factor_designs import (
    ATTENTION,
    DESIGNS,
    NEARER,
    WEIGHTS,
    FactorDesign,
    Part,
    designs_throughout,
    merge,
)
from lockstep.harness.judging.noise import MORE_RUNS, RUNS
from lockstep.harness.judging.tolerances import whole_run

# share of the size of logits: no design here changes them more; four bits change them half as much
FARTHEST = 0.7


def explain_by_factors(
    context: Context,
    batches: Sequence[Batch],
    logits: F32,
    float32: Sequence[F32],
    rounded: NDArray[np.float64],
) -> FactorDesign | None:
    """Return the design that explains the subject's logits, (outputs, vocabulary); None if no
    design does.

    float32: honest runs in float32, none of which explains the logits; rounded: the additional
    error of rounded logits. An engine has the same design in all runs. Once some designs explain
    its logits, no other designs are tried.
    """
    if context.rounding is None:
        return None
    for design in context.rounding:
        if gives(context, batches, design, logits, rounded):
            return design
    if context.rounding:
        return None
    for designs in nearer_designs(context, batches, logits, float32):
        if found := [each for each in designs if gives(context, batches, each, logits, rounded)]:
            context.rounding[:] = found
            return found[0]
    return None


def gives(
    context: Context,
    batches: Sequence[Batch],
    design: FactorDesign,
    logits: F32,
    rounded: NDArray[np.float64],
) -> bool:
    for runs in (RUNS, MORE_RUNS):
        floor = context.honest.rounded_run(batches, design, seed=context.seed, runs=runs)
        run = np.concatenate(floor.logits)
        bound = whole_run(floor.relative, largest(run))
        if mismatch_between(run, logits, bound.allowed + rounded) is None:
            return True
    return False


def nearer_designs(
    context: Context, batches: Sequence[Batch], logits: F32, float32: Sequence[F32]
) -> Iterator[Sequence[FactorDesign]]:
    """Yield groups of designs whose runs are nearer than float32: designs of one part, designs with
    one format throughout, and designs of several parts with different formats.

    The nearest design need not be the engine's. One different rounding may change all later
    roundings. A run without roundings is then nearer than a run with different roundings.
    """
    far = min(size_of(run, logits) for run in float32)
    if not far <= FARTHEST * size_of(logits, np.zeros_like(logits)):
        return
    context.progress("computing the run with factors in fewer bits, to judge a difference")

    def is_nearer(design: FactorDesign) -> bool:
        floor = context.honest.rounded_run(batches, design, seed=context.seed, runs=0)
        return size_of(np.concatenate(floor.logits), logits) <= NEARER * far

    parts = designs_for(context)
    near = {part: list(filter(is_nearer, designs)) for part, designs in parts.items()}
    yield [each for designs in near.values() for each in designs]
    if not is_quantised(context.file):
        yield list(filter(is_nearer, map(merge, designs_throughout())))
    some = near[WEIGHTS] or near[ATTENTION]
    rest = parts[ATTENTION] if near[WEIGHTS] else parts[WEIGHTS]
    yield list(filter(is_nearer, (first | second for first in some for second in rest)))


def size_of(a: F32, b: F32) -> float:
    """Return the root mean square of the difference."""
    # infinite numbers give infinity or NaN without a warning
    with np.errstate(all="ignore"):
        return float(np.sqrt(np.square(a.astype(np.float64) - b).mean()))


def designs_for(context: Context) -> Mapping[Part, Sequence[FactorDesign]]:
    """Return the designs by the part that they round. If weights are quantised, conversions move
    logits farther than 16-bit rounding does, so only designs with few bits remain."""
    if not is_quantised(context.file):
        return DESIGNS
    return {part: [each for each in designs if each.few_bits] for part, designs in DESIGNS.items()}
