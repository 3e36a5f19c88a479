"""RMS and layer norm. ggml keeps sums of squares in double and rounds all other results to float32.

Source: ggml-cpu/ops.cpp and vec.cpp of llama.cpp in llama-cpp-python 0.3.36.
"""

import numpy as np

from lockstep.engine.ops.build import Build
from lockstep.engine.ops.near import LARGEST, Near, Number, because, sqrt, square, sum_terms, twice
from lockstep.engine.quants.base import F32

TREE = 6  # rounding errors of the square, and of the tree that adds the lanes of a vector


def rms_norm(x: F32, weight: F32, eps: float, build: Build) -> Number:
    """Scale each row of x to unit mean square, then multiply by the weight. x: (.., width), weight:
    (width,)."""
    return rms_normed(build.number(x), build.number(weight), build.parameter(eps), build)


def rms_normed(x: Number, weight: Number | None, eps: float, build: Build) -> Number:
    return of_squares(x, squares(x, build), weight, eps, build)


def of_squares(x: Number, sums: Number, weight: Number | None, eps: float, build: Build) -> Number:
    """Normalise from the sums of squares of each row. sums: (.., 1)."""
    out = x * (1.0 / sqrt(sums / x.shape[-1] + eps))
    return in_range(out if weight is None else out * weight, sums, build)


def layer_norm(x: F32, weight: F32, bias: F32, eps: float, build: Build) -> Number:
    """Give each row of x mean zero and variance one, then apply weight and bias. x: (tokens,
    width)."""
    out = centre_row(build.number(x), build.parameter(eps), build)
    reason = "mean and squares summed in float32"
    if not build.plain:
        reason = "mean in double, squares of a vector summed in float32"
    return because(out * build.number(weight) + build.number(bias), reason)


def centre_row(x: Number, eps: float, build: Build) -> Number:
    """Return rows with mean zero and variance one."""
    n = x.shape[-1]
    off = x - sum_of(x, build) / n
    sums = squares(off, build, TREE)
    return in_range(off * (1.0 / sqrt(sums / n + eps)), sums, build)


def mean(x: F32, build: Build) -> Number:
    """Return the mean over tokens: (tokens, width) -> (width,)."""
    out = sum_terms(build.number(x), len(x), axis=0, keep=False) / len(x)
    return because(out, "a sum in float32, in any order, and a quotient")


def sum_of(x: Number, build: Build) -> Number:
    """Return the sum of a row, rounded once from double, or in float32."""
    n = x.shape[-1]
    if build.plain:
        return sum_terms(x, n)
    return twice(sum_terms(x, n * 2.0**-29))  # 2^-53 as a multiple of U


def squares(x: Number, build: Build, together: float = 1) -> Number:
    """Return the sum of squares of a row in double, where only each square, or a sum of a few
    squares, is rounded to float32.
    """
    if build.plain:
        return sum_terms(square(x), x.shape[-1] + 1)
    return twice(sum_terms(square(x), together))


def in_range(x: Number, sums: Number, build: Build) -> Number:
    """Remove the limit if squares exceed float32: engines may overflow or not."""
    if not (isinstance(x, Near) and isinstance(sums, Near)):
        return x
    beyond = np.isfinite(sums.v) & (sums.v > LARGEST)
    return Near(x.v, np.where(beyond, np.inf, x.r), how_summed(build))


def how_summed(build: Build) -> str:
    return "squares summed in float32" if build.plain else "squares in float32, their sum in double"
