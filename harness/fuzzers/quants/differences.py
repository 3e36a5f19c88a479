"""Comparison of two decodings: which blocks differ, and what kind of mistake it looks like."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.quants.base import F32

Places = NDArray[np.int64]
CLOSE = 4  # units in the last place; a smaller difference is a rounding error


@dataclass(frozen=True, eq=False)
class Differences:
    """The numbers of the blocks that differ. NaN equals NaN, so blocks in which only the signs of
    NaNs differ are listed separately."""

    values: Places
    nan_sign: Places

    @classmethod
    def between(cls, expected: F32, actual: F32, weights: int) -> "Differences":
        """Compare two flat arrays of the same length. weights: the number of weights in a block."""
        at = np.flatnonzero(expected.view(np.uint32) != actual.view(np.uint32))
        x, y = expected[at], actual[at]
        nan = np.isnan(x) & np.isnan(y)
        sign = nan & (np.signbit(x) != np.signbit(y))
        return cls(*(np.unique(at[which] // weights) for which in (~nan, sign)))


def symptom_of(expected: F32, actual: F32) -> str:
    """Return the name of the difference between two decodings of a block; empty if there is none.
    Differences in the sign of zero, in NaN and in infinity have separate names."""
    differ = (expected.view(np.uint32) != actual.view(np.uint32)) & ~(
        np.isnan(expected) & np.isnan(actual)
    )
    if not differ.any():
        both = np.isnan(expected) & np.isnan(actual)
        signs = np.signbit(expected) != np.signbit(actual)
        return "nan-sign" if (both & signs).any() else ""
    with np.errstate(invalid="ignore"):  # a signalling NaN becomes a quiet NaN
        x, y = expected[differ].astype(np.float64), actual[differ].astype(np.float64)
    if (np.isnan(x) != np.isnan(y)).any():
        return "nan"
    if (np.isinf(x) | np.isinf(y)).any():
        return "infinity"
    if (x == y).all():
        return "zero-sign"
    return finite_symptom(x, y)


def finite_symptom(x: NDArray[np.float64], y: NDArray[np.float64]) -> str:
    if (np.abs(x) == np.abs(y)).all():
        return "sign"
    if (y == 0).all():
        return "lost"
    if len(x) > 1 and np.array_equal(np.sort(x), np.sort(y)):
        return "order"
    largest = np.maximum(np.abs(x), np.abs(y)).astype(np.float32)
    if (np.abs(x - y) <= CLOSE * np.spacing(largest)).all():
        return "rounding"
    if (x != 0).all() and np.ptp(y / x) <= 1e-6 * np.abs(y / x).max():
        return "factor"
    if np.ptp(y - x) <= 1e-6 * np.abs(y - x).max():
        return "offset"
    return "value"


FINITE = ("sign", "lost", "order", "rounding", "factor", "offset", "value")


def alike(a: str, b: str) -> bool:
    """Return True if a smaller block with symptom b may replace a block with symptom a."""
    return a == b or (a in FINITE and b in FINITE and "rounding" not in (a, b))


WORDS = {
    "nan-sign": "the sign of NaN differs",
    "nan": "NaN in one only",
    "infinity": "infinity in one only, or of another sign",
    "zero-sign": "zeros differ in their sign",
    "sign": "the sign differs, the magnitude is right",
    "lost": "zero where there is a value",
    "order": "the right values in other places",
    "rounding": "a rounding differs in the last bits",
    "factor": "all off by the same factor",
    "offset": "all off by the same amount",
    "value": "other values",
    "neighbours": "right alone, wrong next to another block",
}


def in_words(symptom: str, expected: F32, actual: F32) -> str:
    """Describe the differences, for example `32 of 256 weights, 64 to 95: all off by the same
    factor; weight 64 is 3, not 5`."""
    if symptom == "nan-sign":
        at = np.flatnonzero(np.isnan(expected) & (np.signbit(expected) != np.signbit(actual)))
    else:
        same = (expected == actual) & (np.signbit(expected) == np.signbit(actual))
        at = np.flatnonzero(~(same | (np.isnan(expected) & np.isnan(actual))))
    first, last = int(at[0]), int(at[-1])
    where = f"weight {first}" if first == last else f"weights {first} to {last}"
    text = f"{len(at)} of {expected.size} weights ({where}): {WORDS[symptom]}"
    if symptom == "factor":
        text += f", {actual[first] / expected[first]:.6g}"
    if symptom != "nan-sign":
        text += f"; weight {first} is {actual[first]:.9g}, expected {expected[first]:.9g}"
    return text
