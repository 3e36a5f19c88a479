"""The elements of a node that a comparison can use. All other elements agree for any input."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, kw_only=True)
class Incomparable:
    """Counts of elements whose agreement proves nothing: elements with NaN, and elements with an
    infinite bound.

    A NaN operand gives NaN whatever the other operand is, and an infinite bound allows any value.
    The bound of an infinite value is infinite too, unless an op gives it a finite bound, as a mask
    does.
    """

    nan: int = 0
    unbounded: int = 0

    @property
    def total(self) -> int:
        return self.nan + self.unbounded

    @property
    def reason(self) -> str:
        """Describe the reason without numbers, so that nodes with the same reason are counted
        together."""
        kinds = (self.nan, "NaN in both"), (self.unbounded, "without a finite bound")
        return f"every element is {' or '.join(text for n, text in kinds if n)}"


def incomparable(
    value: NDArray[np.generic], actual: NDArray[np.generic], allowed: NDArray[np.float64] | float
) -> Incomparable:
    """Count the elements that prove nothing, for two tensors without a mismatch."""
    if value.dtype.kind != "f":
        return Incomparable()
    nan = np.isnan(value) & np.isnan(actual)
    unbounded = ~nan & ~np.isfinite(np.broadcast_to(np.asarray(allowed, np.float64), value.shape))
    return Incomparable(nan=int(nan.sum()), unbounded=int(unbounded.sum()))
