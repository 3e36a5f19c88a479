"""Probabilities of a list in float64, and how far an honest engine's may be from them.

Derived, in units of 2^-24 (half a last place of 1): an argument of exp is a rounded difference;
expf is within one last place; a sum of positive terms is off by at most a unit of each running
sum, and these are largest in descending order; engines that keep logarithms round those of sums.
Engines that compute in float64 lie within the same, and show logits that are rounded.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

F64 = NDArray[np.float64]
UNIT = 2.0**-24
LAST_PLACE = 2 * UNIT
LEAST_P = 2.0**-126  # below it float32 has fewer bits, or none


@dataclass(frozen=True, kw_only=True)
class Probabilities:
    """Probabilities of a list of candidates, in its order."""

    p: F64  # (candidates,)
    radius: F64  # (candidates,): absolute

    @property
    def sum_radius(self) -> float:
        """Return how far the sum of any of them may be off, if it is added up in float32."""
        return float(self.radius.sum() + UNIT * running_total(self.p))


def running_total(terms: F64) -> float:
    """Return the sum of all running sums, in the order that makes them largest."""
    return float(np.cumsum(np.sort(terms)[::-1]).sum())


def probabilities_of(logits: NDArray[np.float32]) -> Probabilities:
    """Return the probabilities. logits: (candidates,), the largest of them finite."""
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
