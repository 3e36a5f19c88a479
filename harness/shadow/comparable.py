"""Which elements of a node a comparison can be about; the others agree whatever went into them."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Incomparable:
    """Counts of elements that agree and say nothing.

    A NaN swallows whatever it meets. So does an infinity, except where the op determines every bit:
    a mask that is copied has its infinities for a reason. A bound that is infinite allows anything.
    """

    nan: int = 0
    infinite: int = 0
    unbounded: int = 0

    @property
    def total(self) -> int:
        return self.nan + self.infinite + self.unbounded

    @property
    def reason(self) -> str:
        """Without numbers, so that nodes with the same reason are counted together."""
        kinds = [
            (self.nan, "NaN in both"),
            (self.infinite, "the same infinity in both"),
            (self.unbounded, "without a bound"),
        ]
        return f"every element is {' or '.join(text for n, text in kinds if n)}"


def incomparable(
    value: NDArray[np.generic], actual: NDArray[np.generic], allowed: NDArray[np.float64] | float
) -> Incomparable:
    """Of two tensors without a mismatch."""
    if value.dtype.kind != "f":
        return Incomparable()
    nan, infinite = np.isnan(value) & np.isnan(actual), np.isinf(value) & (value == actual)
    limit = np.broadcast_to(np.asarray(allowed, np.float64), value.shape)
    return Incomparable(
        nan=int(nan.sum()),
        infinite=int((infinite & (limit != 0)).sum()),
        unbounded=int((np.isfinite(value) & ~np.isfinite(limit)).sum()),
    )
