"""What random honest errors did to a shown tensor: how far, and to how many of its rows."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.harness.graph.program import Place

STEPS_DOWN = 10  # by factors of four: from a step of a conversion to the rounding of a scale


@dataclass(frozen=True)
class Noise:
    """Of a node in runs with random honest errors."""

    worst: float = 0.0  # the error of any element
    # of each run: how far each row, along the last axis, is beyond what its op alone may be off
    rows: tuple[NDArray[np.float64], ...] = ()

    def __or__(self, other: "Noise") -> "Noise":
        return Noise(max(self.worst, other.worst), self.rows + other.rows)

    def explains(self, rows: NDArray[np.float64]) -> bool:
        """Whether as few rows are off, by anything, by much and by all between: an activation on
        the other side of a step of its conversion moves one. Where that is rare, three runs may
        have met none; and an honest row may be a few times as far off as theirs."""
        runs = (np.zeros(0), *self.rows)
        far = max(float(run.max(initial=0.0)) for run in runs)
        sizes = [(0.0, 0.0), *((far / 8 / 4**k, far / 32 / 4**k) for k in range(STEPS_DOWN))]
        return all(
            (rows > mine).sum() <= 4 * (1 + max((run > theirs).sum() for run in runs))
            for mine, theirs in sizes
        )


Noises = tuple[Mapping[Place, Noise], Mapping[Place, Noise]]  # the second of wider inputs


def beyond(
    truth: NDArray[Any], shown: NDArray[Any], allowed: NDArray[np.float64]
) -> NDArray[np.float64]:
    """How much further than allowed each row is off, along the last axis; flat."""
    if shown.shape != truth.shape or not truth.size:
        return np.zeros(0)
    with np.errstate(invalid="ignore"):
        far = np.abs(shown.astype(np.float64) - truth) - allowed
    if not np.isfinite(far).all():
        far = np.nan_to_num(far, nan=0.0)
    rows: NDArray[np.float64] = far.max(axis=-1, initial=0.0).reshape(-1)
    return rows
