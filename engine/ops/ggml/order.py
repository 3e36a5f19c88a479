"""Sorting: any permutation that sorts the values is right, because equal values may have any order.

Source: ggml-cpu/ops.cpp of llama.cpp in llama-cpp-python 0.3.36.
"""

import numpy as np
from numpy.typing import NDArray

from lockstep.engine.node import Node
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.ggml.base import meaning
from lockstep.engine.ops.near import F64, Expected

DESCENDING = 1  # a value of ggml_sort_order


def in_order(x: F64, build: Build) -> NDArray[np.int64]:
    """Return the indices of each row in ascending order; ties are in the original order, or in an
    order that the build decides."""
    if build.ties is None:
        return np.argsort(x, axis=-1, kind="stable")
    shuffled = np.argsort(build.ties(x.size).reshape(x.shape), axis=-1)
    again = np.argsort(np.take_along_axis(x, shuffled, axis=-1), axis=-1, kind="stable")
    return np.take_along_axis(shuffled, again, axis=-1)


@meaning("ARGSORT")
def argsort(node: Node, build: Build) -> Expected:
    x = node.wide(0)
    found = np.take_along_axis(x, np.clip(node.value, 0, x.shape[-1] - 1), axis=-1)
    answer = in_order(-x if node.params[0] == DESCENDING else x, build)
    ordered = np.take_along_axis(x, answer, axis=-1)
    every = np.broadcast_to(np.arange(x.shape[-1]), x.shape)
    return Expected(
        np.concatenate([ordered, every], axis=-1),
        0.0,
        "a permutation that puts the row in order",
        actual=np.concatenate([found, np.sort(node.value, axis=-1)], axis=-1),
        answer=answer.astype(np.int32),
    )


@meaning("TOP_K")
def top_k(node: Node, build: Build) -> Expected:
    """Return the k largest of a row, in any order: ggml swaps two of them on purpose."""
    x, k = node.wide(0), node.ne[0]
    found = np.take_along_axis(x, np.clip(node.value, 0, x.shape[-1] - 1), axis=-1)
    ids = np.sort(node.value, axis=-1)
    apart = np.diff(ids, axis=-1, prepend=-1) > 0
    good = apart & (ids >= 0) & (ids < x.shape[-1])
    return Expected(
        np.concatenate([np.sort(x, axis=-1)[..., -k:], np.ones(good.shape)], axis=-1),
        0.0,
        "k different indices, of the largest values",
        actual=np.concatenate([np.sort(found, axis=-1), good], axis=-1),
        answer=in_order(-x, build)[..., :k].astype(np.int32),
    )
