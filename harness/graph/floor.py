"""The noise floor of an honest run's outputs, for any architecture. It is measured on the recorded
program, as in judging.noise.

Every node is off by a random share of its bound; sums of products are off by a share of a probable
error. In each product that converts activations, one activation moves to the next step.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.ops.build import Build
from lockstep.harness.context.further_runs import is_small
from lockstep.harness.graph.program import Program
from lockstep.harness.graph.replay import Replayed, replay
from lockstep.harness.graph.ways import Honest, Noisy
from lockstep.harness.judging.compare import largest, worst_distance
from lockstep.harness.processes.ahead import in_shares

RUNS = 3
HONEST = Honest(sizes=False)
AT_ONCE = 4  # number of concurrent forks for a large model; each holds its computed values


@dataclass(frozen=True, kw_only=True, eq=False)
class ReplayFloor:
    outputs: tuple[NDArray[Any], ...]  # outputs of the run without errors, by batch
    relative: float  # worst error relative to the largest output


def replay_floor(
    program: Program,
    file: GgufFile,
    build: Build,
    *,
    seed: int,
    runs: int = RUNS,
    way: Honest = HONEST,
) -> ReplayFloor:
    """Run the program once without errors and `runs` times with errors. Return its outputs, and the
    noise as a share of the largest output. Raises Unsupported if a node cannot be computed."""
    honest = whole(replay(program, file, build, way))

    def worst_of(seeds: Iterable[int]) -> NDArray[Any]:
        runs = (whole(replay(program, file, build, Noisy(seed=s))) for s in seeds)
        pairs = (pair for moved in runs for pair in zip(honest, moved, strict=True))
        return np.array(max((worst_distance(a, b) for a, b in pairs), default=0.0))

    most = 1 if is_small(file) else AT_ONCE
    shares = in_shares(worst_of, range(seed, seed + runs), most)
    worst = max((float(found) for _, found in shares), default=0.0)
    size = max(map(largest, honest), default=0.0)
    # if all outputs are zero, there is no noise: sums of zeros are exact in every engine
    return ReplayFloor(outputs=honest, relative=worst / size if size else 0.0)


def whole(run: Replayed) -> tuple[NDArray[Any], ...]:
    if run.missing:
        raise Unsupported(f"not computed: {run.missing[0]}")
    return tuple(output for output in run.outputs if output is not None)
