"""How far an honest run's outputs may wander, for any architecture: measured as in judging.noise,
on the recorded program: every node off by a random share of its bound, or of what is probable of a
sum of products, and one activation of each product that converts them tipped to the next step.
"""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.kernels.threads import processors
from lockstep.engine.ops.build import Build
from lockstep.harness.context.further_runs import is_small
from lockstep.harness.graph.program import Program
from lockstep.harness.graph.replay import Replayed, replay
from lockstep.harness.graph.ways import Honest, Noisy
from lockstep.harness.judging.compare import largest, worst_distance
from lockstep.harness.processes.ahead import Ahead, may_fork

RUNS = 3
AT_ONCE = 4  # forks of a large model's runs: each holds what it computes


@dataclass(frozen=True, kw_only=True, eq=False)
class ReplayFloor:
    outputs: tuple[NDArray[Any], ...]  # of the run without errors, per batch
    relative: float  # the worst error, relative to the largest output


def replay_floor(
    program: Program, file: GgufFile, build: Build, *, seed: int, runs: int = RUNS
) -> ReplayFloor:
    """Runs the program once without errors and `runs` times with. Raises Unsupported if a node
    cannot be computed."""
    honest = whole(replay(program, file, build, Honest(sizes=False)))

    def worst_of(seeds: Iterable[int]) -> NDArray[Any]:
        runs = (whole(replay(program, file, build, Noisy(seed=s))) for s in seeds)
        pairs = (pair for moved in runs for pair in zip(honest, moved, strict=True))
        return np.array(max((worst_distance(a, b) for a, b in pairs), default=0.0))

    worst = side_by_side(worst_of, range(seed, seed + runs), 1 if is_small(file) else AT_ONCE)
    size = max(map(largest, honest), default=0.0)
    # where all outputs are zero the noise is none: sums of zeros are exact in every engine
    return ReplayFloor(outputs=honest, relative=worst / size if size else 0.0)


def side_by_side(
    worst_of: Callable[[Iterable[int]], NDArray[Any]], seeds: Sequence[int], most: int
) -> float:
    """The worst of all, in forks of this process, which share what it knows so far."""
    n = max(1, min(most, len(seeds), processors() if may_fork() else 1))
    others = [Ahead(partial(worst_of, seeds[i::n])) for i in range(1, n)]
    try:
        return float(max(worst_of(seeds[::n]), *(other.result() for other in others), 0.0))
    finally:
        for other in others:
            other.close()


def whole(run: Replayed) -> tuple[NDArray[Any], ...]:
    if run.missing:
        raise Unsupported(f"not computed: {run.missing[0]}")
    return tuple(output for output in run.outputs if output is not None)
