"""Hold two tensors against each other: the worst element decides; NaN and infinity are exact."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from harness.records import Mismatch


def mismatch_between(
    expected: NDArray[Any], actual: NDArray[Any] | None, allowed: NDArray[np.float64] | float
) -> Mismatch | None:
    """None if every element is within `allowed` (an array that broadcasts, or one number)."""
    if actual is None:
        return Mismatch(kind="missing")
    if actual.shape != expected.shape:
        return Mismatch(kind="shape", detail=f"expected shape {expected.shape}, got {actual.shape}")
    if expected.size == 0:
        return None
    with np.errstate(invalid="ignore"):  # inf - inf is not close, a signalling NaN is a NaN
        want, got = expected.astype(np.float64), actual.astype(np.float64)
        limit = np.broadcast_to(np.asarray(allowed, np.float64), want.shape)
        distance = np.abs(got - want)
        close = (distance <= limit) & np.isfinite(want)
        bad = ~((got == want) | (np.isnan(got) & np.isnan(want)) | close)
    if not bad.any():
        return None
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        excess = np.nan_to_num(distance / np.where(limit > 0, limit, 1e-300), nan=np.inf)
    worst = np.unravel_index(int(np.where(bad, excess, -1.0).argmax()), bad.shape)
    return Mismatch(
        kind="value",
        index=tuple(int(i) for i in worst),
        expected=float(want[worst]),
        actual=float(got[worst]),
        allowed=float(limit[worst]),
        mismatched=int(bad.sum()),
        total=bad.size,
    )


def worst_distance(a: NDArray[Any], b: NDArray[Any]) -> float:
    """The largest |a - b|; infinite where one is not finite and the other differs."""
    if a.shape != b.shape:
        return float("inf")
    if a.size == 0:
        return 0.0
    with np.errstate(invalid="ignore"):
        x, y = a.astype(np.float64), b.astype(np.float64)
        distance = np.where((x == y) | (np.isnan(x) & np.isnan(y)), 0.0, np.abs(x - y))
    return float(np.nan_to_num(distance, nan=np.inf, posinf=np.inf).max())


def largest(x: NDArray[Any]) -> float:
    """The largest finite magnitude: what an error is measured against."""
    finite = np.abs(x[np.isfinite(x)])
    return float(finite.max()) if finite.size else 0.0
