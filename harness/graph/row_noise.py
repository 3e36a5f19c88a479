"""The effect of random honest errors on a shown tensor: how large they are, and how many rows they
affect."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.harness.graph.program import Place

STEPS_DOWN = 10  # powers of four: from a step of a conversion down to the rounding error of a scale
NONE = np.zeros((), np.bool_)


@dataclass(frozen=True)
class Noise:
    """The noise of a node, measured in runs with random honest errors."""

    worst: float = 0.0  # largest error of an element
    # largest error of a row along the last axis, as a share of the row's largest value
    share: float = 0.0
    # by run: how far the error of each row along the last axis exceeds the limit of its op; empty:
    # not measured
    rows: tuple[NDArray[np.float64], ...] = ()
    # rows along the last axis in which a value is infinite or NaN in some runs only: a group of
    # experts that another run masks, or a product beyond float32. Only these rows are not judged.
    lost: NDArray[np.bool_] = field(default_factory=NONE.copy, compare=False)

    def __or__(self, other: "Noise") -> "Noise":
        worst, share = max(self.worst, other.worst), max(self.share, other.share)
        return Noise(worst, share, self.rows + other.rows, self.lost | other.lost)

    def room(self, truth: NDArray[Any]) -> NDArray[np.float64]:
        """Return the allowed distance between two honest values in each row, in a shape that
        broadcasts to the truth.

        Some models have a row that is thousands of times larger than the others, often the first
        token's. The worst error is in that row, and is too large for the other rows. A row is
        rounded at the size of its own numbers (a residual, its addends, the scales of its blocks),
        so its error grows with its size. This rule fails for some rows, because their values come
        from other rows, their terms cancel, or they are caches of several kinds. In such rows
        honest runs show an error that is a large share of the row, and the largest share counts for
        all rows. The allowed distance is twice the error at that share, but at most twice the worst
        error of all rows.
        """
        with np.errstate(invalid="ignore"):  # a row of zeros may be nonzero in an honest run
            found: NDArray[np.float64] = 2 * np.fmin(self.worst, self.share * size_of_rows(truth))
        return np.where(self.lost, np.inf, found)

    def explains(self, rows: NDArray[np.float64]) -> bool:
        """Return True if, at each size of error, the shown tensor has no more wrong rows than
        honest runs, with room for rare errors. rows: the errors from `beyond`."""
        runs = (np.zeros(0), *self.rows)
        far = max(float(run.max(initial=0.0)) for run in runs)
        sizes = [(0.0, 0.0), *((far / 8 / 4**k, far / 32 / 4**k) for k in range(STEPS_DOWN))]
        return all(
            (rows > mine).sum() <= 4 * (1 + max((run > theirs).sum() for run in runs))
            for mine, theirs in sizes
        )


def noise_between(honest: NDArray[Any], moved: NDArray[Any]) -> Noise:
    """Return the noise of one run. Rows that are finite in only one of the two runs count as lost,
    and do not affect the other figures."""
    if honest.shape != moved.shape:
        return Noise(np.inf, np.inf)
    with np.errstate(invalid="ignore", divide="ignore"):
        a, b = honest.astype(np.float64), moved.astype(np.float64)
        far = np.abs(a - b)
        if not np.isfinite(far).all():
            far[(a == b) | (np.isnan(a) & np.isnan(b))] = 0.0
            far = np.nan_to_num(far, nan=np.inf, posinf=np.inf)
        rows = far.max(axis=-1, initial=0.0, keepdims=True)
        lost = np.isinf(rows)
        rows[lost] = 0.0
        shares = np.where(rows > 0, rows / size_of_rows(a), 0.0)
    if a.shape[-1:] == (1,):
        lost = lost.any()
    return Noise(float(rows.max(initial=0.0)), float(shares.max(initial=0.0)), lost=lost)


def size_of_rows(x: NDArray[Any]) -> NDArray[np.float64]:
    """Return the largest finite magnitude along the last axis, which is kept as an axis of size
    one."""
    size, known = np.abs(x, dtype=np.float64), np.isfinite(x)
    alone = x.ndim > 0 and x.shape[-1] == 1
    found: NDArray[np.float64] = size.max(
        axis=None if alone else -1, initial=0.0, where=known, keepdims=True
    )
    return found


Noises = tuple[Mapping[Place, Noise], Mapping[Place, Noise]]  # the second is for wider inputs


def beyond(
    truth: NDArray[Any], shown: NDArray[Any], allowed: NDArray[np.float64]
) -> NDArray[np.float64]:
    """Return for each row along the last axis how far its error exceeds the limit, or 0, in a flat
    array. NaN and infinity are ignored. `lost` says if they may occur."""
    if shown.shape != truth.shape or not truth.size:
        return np.zeros(0)
    with np.errstate(invalid="ignore"):
        far = np.abs(shown.astype(np.float64) - truth) - allowed
    if not np.isfinite(far).all():
        far = np.nan_to_num(far, nan=0.0, posinf=0.0)
    rows: NDArray[np.float64] = far.max(axis=-1, initial=0.0).reshape(-1)
    return rows
