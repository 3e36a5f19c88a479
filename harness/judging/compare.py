"""Comparison of two tensors. The worst element decides, and NaN and infinity must match exactly.

Logits of a large vocabulary would take gigabytes as float64, so they are widened piece by piece.
"""

from collections.abc import Iterator
from math import isfinite
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lockstep.harness.records import Mismatch

PIECE = 1 << 16  # elements at a time: half a megabyte as float64, which fits into the cache

F64 = NDArray[np.float64]


def mismatch_between(
    expected: NDArray[Any], actual: NDArray[Any] | None, allowed: F64 | float
) -> Mismatch | None:
    """Return the worst mismatch; None if all elements are within `allowed`.

    allowed: an array that broadcasts, or one number.
    """
    if actual is None:
        return Mismatch(kind="missing")
    if actual.shape != expected.shape:
        return Mismatch(kind="shape", detail=f"expected shape {expected.shape}, got {actual.shape}")
    most, at, mismatched = -1.0, 0, 0
    for start, (want, got, limit) in pieces(expected, actual, np.asarray(allowed)):
        with np.errstate(invalid="ignore"):  # inf - inf and signalling NaN raise no warning
            distance = np.abs(got - want)
            close = (distance <= limit) & np.isfinite(want)
            if close.all():
                continue
            bad = ~((got == want) | (np.isnan(got) & np.isnan(want)) | close)
        if not bad.any():
            continue
        mismatched += int(bad.sum())
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            excess = np.nan_to_num(distance / np.where(limit > 0, limit, 1e-300), nan=np.inf)
        here = int(np.where(bad, excess, -1.0).argmax())
        if excess[here] > most:
            most, at = float(excess[here]), start + here
    if not mismatched:
        return None
    worst = tuple(int(i) for i in np.unravel_index(at, expected.shape))
    return Mismatch(
        kind="value",
        index=worst,
        expected=float(expected[worst]),
        actual=float(actual[worst]),
        allowed=float(np.broadcast_to(np.asarray(allowed, np.float64), expected.shape)[worst]),
        mismatched=mismatched,
        total=expected.size,
    )


def bits(values: NDArray[np.float32]) -> NDArray[np.uint32]:
    """Return the bits of the values. All NaN get the same bits, but zeros keep their sign."""
    return np.where(np.isnan(values), np.float32(np.nan), values).view(np.uint32)


def same_bits(a: NDArray[np.float32], b: NDArray[np.float32]) -> bool:
    """Return True if both arrays have the same bits. NaN may have any payload, because compiled JVM
    code gives different payloads than its interpreter."""
    if a.shape != b.shape:
        return False
    return a.tobytes() == b.tobytes() or np.array_equal(bits(a), bits(b))


def in_other_byte_order(expected: NDArray[Any], actual: NDArray[Any], allowed: float) -> str:
    """Return a note if the numbers are right after swapping their bytes; else ""."""
    if mismatch_between(expected, actual.byteswap(), allowed) is not None:
        return ""
    return "; with swapped byte order all numbers are right"


def worst_distance(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Return the largest |a - b|. It is infinite if the arrays differ where one of them is not
    finite."""
    if a.shape != b.shape:
        return float("inf")
    worst = 0.0
    for _, (x, y) in pieces(a, b):
        with np.errstate(invalid="ignore"):
            distance = np.abs(x - y)
            most = float(distance.max())
            if not isfinite(most):  # somewhere a number is infinite or NaN
                same = (x == y) | (np.isnan(x) & np.isnan(y))
                distance = np.where(same, 0.0, distance)
                most = float(np.nan_to_num(distance, nan=np.inf, posinf=np.inf).max())
        worst = max(worst, most)
    return worst


def share_of_limit(
    expected: NDArray[Any], actual: NDArray[Any], allowed: F64 | float
) -> tuple[float, tuple[int, ...]]:
    """Return the largest |expected - actual| as a share of the limit, and its place; (0, ()) if all
    agree.

    The share is infinite if the limit is zero, or if only one of the two values is a number.
    """
    if expected.shape != actual.shape:
        return float("inf"), ()
    most, at = 0.0, -1
    for start, (want, got, limit) in pieces(expected, actual, np.asarray(allowed)):
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            distance = np.abs(got - want)
            if not distance.any():
                continue
            share = distance / limit
            if not isfinite(share.max()):
                same = (want == got) | (np.isnan(want) & np.isnan(got)) | np.isposinf(limit)
                share[same] = 0.0
                share[np.isnan(share)] = np.inf
        here = int(share.argmax())
        if share[here] > most:
            most, at = float(share[here]), start + here
    if at < 0:
        return 0.0, ()
    return most, tuple(int(i) for i in np.unravel_index(at, expected.shape))


def largest(x: NDArray[Any]) -> float:
    """Return the largest finite magnitude. Errors are given relative to it."""
    most = 0.0
    for _, (part,) in pieces(x):
        here = float(np.abs(part).max())
        if not isfinite(here):  # otherwise no element has to be left out
            here = float(np.abs(part[np.isfinite(part)]).max(initial=0.0))
        most = max(most, here)
    return most


def pieces(*arrays: NDArray[Any]) -> Iterator[tuple[int, tuple[F64, ...]]]:
    """Yield the start of each piece in the flat first array, and each array's piece as float64. All
    arrays broadcast to the shape of the first."""
    shape = arrays[0].shape
    whole = (a if a.shape in ((), shape) else np.broadcast_to(a, shape) for a in arrays)
    flat = [a if a.shape == () != shape else a.reshape(-1) for a in whole]
    for start in range(0, arrays[0].size, PIECE):
        here = slice(start, start + PIECE)
        with np.errstate(invalid="ignore"):  # a signalling NaN raises no warning
            parts = tuple((a[here] if a.ndim else a).astype(np.float64, copy=False) for a in flat)
        yield start, parts
