"""Probabilities of a list in float64, with limits for the error of an honest engine.

The limits are derived in units of 2^-24 (half a unit in the last place of 1). The argument of exp
is a rounded difference. expf is within one unit in the last place. A sum of positive terms is off
by at most one unit of each running sum. Running sums are largest if the terms are in descending
order. Engines that keep logarithms also round the logarithms of sums. Engines that compute in
float64 lie within the same limits, and show rounded logits.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
UNIT = 2.0**-24
LAST_PLACE = 2 * UNIT
LEAST_P = 2.0**-126  # float32 has fewer significant bits below this, or none


@dataclass(frozen=True, kw_only=True)
class Probabilities:
    """The probabilities of a list of candidates, in the order of the list."""

    p: F64  # (candidates,)
    radius: F64  # (candidates,): absolute

    @property
    def sum_radius(self) -> float:
        """Return the largest error of any partial sum of the probabilities that is added in
        float32."""
        return float(self.radius.sum() + UNIT * running_total(self.p))


def running_total(terms: F64) -> float:
    """Return the sum of all running sums, in the order that makes them largest."""
    return float(np.cumsum(np.sort(terms)[::-1]).sum())


def probabilities_of(logits: NDArray[np.float32]) -> Probabilities:
    """Return the probabilities. `logits` has the shape (candidates,), and its largest value is
    finite."""
    wide = logits.astype(np.float64)
    far = wide - wide.max()
    weights = np.exp(far)
    total = weights.sum()
    distance = np.where(np.isfinite(far), -far, 0.0)
    shown = np.where(np.isfinite(wide), np.abs(wide), 0.0) + abs(float(wide.max()))
    relative = UNIT * (2 * distance + 2 * np.log(total) + 4 + shown) + LAST_PLACE
    of_sum = float((weights * relative).sum() + UNIT * running_total(weights)) / total
    p = weights / total
    return Probabilities(p=p, radius=p * (relative + of_sum + UNIT) + LEAST_P)
