"""The error of whole rows of a norm in an honest run that adds squares up in float32.

llama.cpp keeps that sum in double, and its bound has a rounding of it; llama2.c and many others
have one float32. Its error is no error of elements: the row as a whole is too large or too
small.
"""

import numpy as np

from lockstep.engine.node import Node
from lockstep.engine.ops.near import F64, LARGEST, U

NORMS = ("RMS_NORM", "NORM")
FEW = 4  # last bits


def error_of_rows(node: Node) -> F64:
    """Return the error of each row's scale, (.., 1). An honest run is off by a random share of
    it.

    Roundings have no preference, and all terms are positive. So the mean square of n partial sums,
    in an order that knows nothing of their size, is a third of the sum's. Together the roundings
    amount to U * sqrt(n / 3) of the sum. The root halves the sum's error.

    One element may be thousands of times larger than the others (a massive activation) and come
    early. Then the sum has few bits for their squares: each is rounded to its last bit, for many to
    nothing, and not by chance. The count has the largest one first, with terms of a few last bits.
    Larger terms are rounded up as often as down.
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
