"""Rows of a segment in which an engine chose experts that most honest runs do not choose.

If the scores of two experts nearly tie, few runs choose the other expert, and then a whole row
differs. In three or even twelve runs this may not happen. So if few rows are wrong, more runs are
made, until each of these rows has agreed with a run. A row that agrees with no run is a fault.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import cycle, islice
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.ops.build import Build
from lockstep.harness.graph.program import Place
from lockstep.harness.graph.row_noise import Noise
from lockstep.harness.graph.segment import Segment
from lockstep.harness.graph.watched import Seen
from lockstep.harness.graph.ways import Honest, Noisy
from lockstep.harness.judging.conversions import builds
from lockstep.harness.judging.noise import MORE_RUNS, RARE_RUNS
from lockstep.harness.judging.stored import step_of


class Runs(Protocol):
    """The part of a segment judge that this module uses."""

    build: Build
    seed: int
    shown: Mapping[Place, NDArray[np.generic]]

    def run(
        self, way: Honest, build: Build | None = None, *, of: Sequence[Segment]
    ) -> Mapping[Place, Seen]: ...


def explained_places(
    judge: Runs,
    suspects: Sequence[Segment],
    honest: Mapping[Place, Seen],
    noise: Mapping[Place, Noise],
    *,
    is_small: bool,
) -> set[Place]:
    """Return the places of the segments whose every wrong row agrees with some honest run. honest:
    the run without errors; is_small: True for a model for which many runs take about a second."""
    left: dict[Place, NDArray[np.bool_]] = {}
    rooms = {s.place: room(honest[s.place], noise[s.place]) for s in suspects if s.sorts}
    for place, allowed in rooms.items():
        truth, shown = honest[place].truth, judge.shown[place]
        if shown.shape == truth.shape and shown.dtype.kind == "f":
            rows = ~near(shown, truth, allowed)
            if 0 < 2 * rows.sum() <= len(rows):
                left[place] = rows
    few = set(left)
    of = [segment for segment in suspects if segment.place in few]
    for seed, build in islice(ways(judge), RARE_RUNS if is_small else MORE_RUNS) if of else ():
        seen = judge.run(Noisy(seed=seed), build, of=of)
        for place in few:
            left[place] = left[place] & ~near(judge.shown[place], seen[place].truth, rooms[place])
        if not any(rows.any() for rows in left.values()):
            break
    return {place for place in few if not left[place].any()}


def ways(judge: Runs) -> Iterator[tuple[int, Build]]:
    """Yield a seed and a build for each run. Every second run converts activations as llama.cpp
    does, and the remaining runs use other formats."""
    others = cycle(list(builds(judge.build)))
    for number, seed in enumerate(iter(range(judge.seed + 2 * MORE_RUNS, 1 << 62))):
        yield seed, judge.build if number % 2 else next(others)


def room(seen: Seen, noise: Noise) -> NDArray[np.float64]:
    """Return the allowed distance between two honest values after the same choice."""
    found: NDArray[np.float64] = seen.allowed + noise.room(seen.truth) + step_of(seen.truth)
    return found


def near(
    shown: NDArray[np.generic], truth: NDArray[np.generic], allowed: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Return for each row, along the last axis, whether all its values are near. A value without a
    limit is near, even NaN."""
    with np.errstate(invalid="ignore"):
        close = np.abs(shown.astype(np.float64) - truth.astype(np.float64)) <= allowed
    close |= np.isposinf(allowed)
    return np.asarray(close.all(axis=-1)).reshape(-1)
