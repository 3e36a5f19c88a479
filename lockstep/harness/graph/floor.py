"""How far an honest run's outputs may wander, for any architecture: measured as in judging.noise,
on the recorded program: every node off by a random share of its bound, and one activation of each
product that converts them tipped to the next step.
"""

from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from lockstep.engine.errors import Unsupported
from lockstep.engine.gguf.file import GgufFile
from lockstep.engine.ops.build import Build
from lockstep.harness.graph.program import Program
from lockstep.harness.graph.replay import Replayed, replay
from lockstep.harness.graph.ways import Bounds, Honest, Noisy
from lockstep.harness.judging.compare import largest, worst_distance

RUNS = 3


@dataclass(frozen=True, kw_only=True, eq=False)
class ReplayFloor:
    outputs: tuple[NDArray[Any], ...]  # of the run without errors, per batch
    relative: float  # the worst error, relative to the largest output


def replay_floor(
    program: Program, file: GgufFile, build: Build, *, seed: int, runs: int = RUNS
) -> ReplayFloor:
    """Runs the program once without errors and `runs` times with. Raises Unsupported if a node
    cannot be computed."""
    bounds = Bounds()
    first = Honest(bounds=bounds) if runs else Honest(sizes=False)
    honest = whole(replay(program, file, build, first))
    worst = 0.0
    for i in range(runs):
        moved = whole(replay(program, file, build, Noisy(seed=seed + i, known=bounds)))
        worst = max(worst, *(worst_distance(a, b) for a, b in zip(honest, moved, strict=True)))
    size = max(map(largest, honest), default=0.0)
    # where all outputs are zero the noise is none: sums of zeros are exact in every engine
    return ReplayFloor(outputs=honest, relative=worst / size if size else 0.0)


def whole(run: Replayed) -> tuple[NDArray[Any], ...]:
    if run.missing:
        raise Unsupported(f"not computed: {run.missing[0]}")
    return tuple(output for output in run.outputs if output is not None)
