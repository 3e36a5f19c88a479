"""How far whole rows of a norm are off in an honest run that adds squares up in float32.

llama.cpp keeps that sum in double, and its bound has a rounding of it; llama2.c and many others
have one float32. What that is off by is no error of elements: the row as a whole is too large or
too small.
"""

import numpy as np

from lockstep.engine.node import Node
from lockstep.engine.ops.near import F64, LARGEST, U

NORMS = ("RMS_NORM", "NORM")
FEW = 4  # last bits


def error_of_rows(node: Node) -> F64:
    """Of which a random share, up or down, is what a row is scaled by besides: (.., 1).

    Roundings without a preference: all terms are positive, so that of n partial sums, in an order
    that knows nothing of their size, the mean square is a third of the sum's; together they come to
    U * sqrt(n / 3) of the sum. The root halves what the sum is off by.

    Where one element is thousands of times larger than the others (a massive activation) and comes
    early, the sum has few bits for their squares: each is rounded to its last bit, which for many
    is to nothing, and not by chance. That is counted as it would be with the largest one first, of
    terms that are a few last bits: those of larger ones are rounded up as often as down.
    """
    x = node.wide(0)
    with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
        if node.op == "NORM":
            x = x - x.mean(axis=-1, keepdims=True)
        terms = np.square(x)
        sums = terms.sum(axis=-1, keepdims=True)
        bits = np.spacing(np.minimum(sums, LARGEST).astype(np.float32)).astype(np.float64)
        rounded = np.rint(terms / bits) * bits
        lost = np.where(terms < FEW * bits, rounded - terms, 0.0).sum(axis=-1, keepdims=True)
        off = U * np.sqrt(x.shape[-1] / 3) * sums + np.abs(lost)
        found: F64 = off / (2 * (sums + x.shape[-1] * float(node.floats()[0])))
    return np.where(np.isfinite(found), found, 0.0)
