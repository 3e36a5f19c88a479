"""Counts of the roundings in a sum of products."""

import math
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

IntOrInts = TypeVar("IntOrInts", int, NDArray[Any])


def additions(terms: int, lanes: int) -> int:
    """Return the number of roundings on the longest path of a sum of products.

    `lanes` partial sums are kept, unrolled four times. Terms left over by the unrolled loop are
    added one by one. The partial sums are added as a tree. A scalar engine has one lane.
    """
    if lanes == 1:
        return terms + 1
    return terms // lanes + terms % (4 * lanes) + math.ceil(math.log2(4 * lanes)) + 1


def block_roundings(runs: IntOrInts, lanes: int) -> IntOrInts:
    """Return the number of roundings if weights are multiplied as integers, in runs (`run_of`).

    Only the sum over runs is rounded: the product of the scales, the conversion to float, one fused
    addition a run, and the sum of the partial sums and the minima. Vector code adds its lanes as a
    tree; the generic C of the K formats keeps eight partial sums and adds them one after the other.
    """
    return runs + 2 + (8 if lanes == 1 else math.ceil(math.log2(lanes))) + 1


def product_roundings(
    terms: int, lanes: int, run: int, nonzero: NDArray[Any] | int | None = None
) -> NDArray[Any]:
    """Return the number of roundings of a product of `terms` terms. Every `run` consecutive terms
    are multiplied as integers. nonzero: the number of runs that are not all zeros.
    """
    most = np.asarray(terms // run if nonzero is None else nonzero)
    if run > 1:
        return np.asarray(block_roundings(most, lanes))
    return np.asarray(np.minimum(additions(terms, lanes), most + 1))
