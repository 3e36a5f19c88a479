"""Formulas for the weights and the results of chosen experts."""

import numpy as np

from lockstep.engine.ops.build import Build
from lockstep.engine.ops.near import Number, because, choose, sum_terms, value_of
from lockstep.engine.quants.base import F32

# ggml clamps the sum of the chosen experts' weights to the smallest normal half (llama-graph.cpp)
MOE_SUM_MIN = 6.103515625e-5


def normalise(weights: F32, build: Build) -> Number:
    """Divide each row by its sum, which may be added in any order."""
    wide = build.number(weights)
    sums = sum_terms(wide, weights.shape[-1])
    sums = choose(value_of(sums) < MOE_SUM_MIN, MOE_SUM_MIN, sums)
    return because(wide / sums, f"a sum of {weights.shape[-1]} weights and a division")


def sum_experts(x: F32, build: Build) -> Number:
    """Sum over experts: (tokens, used, width) -> (tokens, width); ggml adds in the order of
    choice."""
    used = x.shape[1]
    if build.plain:
        out = sum_terms(build.number(x), used - 1, axis=1, keep=False)
        return because(out, f"a sum of {used} experts in any order")
    total = x[:, 0]
    for i in range(1, used):
        total = total + x[:, i]  # each sum is rounded to float32
    return total.astype(np.float64)
