"""The error of whole rows of a norm, in an honest run that adds up squares in float32.

llama.cpp adds them in double, and its bound allows only one rounding for the sum. llama2.c and many
other engines add them in float32. The error of such a sum scales the whole row, which is then too
large or too small.
"""

import numpy as np

from lockstep.engine.node import Node
from lockstep.engine.ops.near import F64, LARGEST, U

NORMS = ("RMS_NORM", "NORM")
FEW = 4  # limit in units in the last place


def error_of_rows(node: Node) -> F64:
    """Return the largest error of each row's scale, (.., 1). An honest run is off by a random share
    of it.

    Roundings have no preferred direction, and all terms are positive. If the order does not depend
    on the terms' sizes, the mean square of n partial sums is a third of the square of the sum. So
    all roundings together come to U * sqrt(n / 3) of the sum, and the root halves this error.

    One element may be thousands of times larger than the others (a massive activation), and come
    early. Then the squares of the others are rounded to a few last bits of the sum, many of them to
    zero. This error is not random, so it is counted as if the largest term came first. Only terms
    of a few last bits contribute, because larger terms are rounded up as often as down.
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
