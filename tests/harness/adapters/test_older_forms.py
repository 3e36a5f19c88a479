"""Forms that nodes of llama.cpp's graphs had in older versions."""

import numpy as np
import pytest
from numba import njit

from lockstep.engine.ops.ggml.base import expect
from lockstep.harness.adapters.llama_cpp.watch import TENSOR, tensor_at, writes_into_no_source
from tests.shadow_nodes import BUILD, node, normal, params


def test_scan_without_a_state_count_keeps_the_last() -> None:
    """The node of version 0.3.16 has no such parameter."""
    seqs, tokens, heads, dim, size = 1, 3, 2, 1, 4
    sources = (
        normal(1, seqs, heads, dim, size),
        normal(2, seqs, tokens, heads, dim),
        normal(3, seqs, tokens, heads),
        -np.abs(normal(4, heads, size)),
        normal(5, seqs, tokens, 1, size),
        normal(6, seqs, tokens, 1, size),
        np.zeros((1, seqs), np.int32),
    )
    out = np.zeros(tokens * heads * dim + heads * dim * size, np.float32)
    old, new = (expect(node("SSM_SCAN", out, *sources, held=params(k)), BUILD) for k in (0, 1))
    assert old.value.shape == (1, 1, 1, out.size)
    assert np.array_equal(old.value, new.value)


@njit
def writes_unseen(address: int) -> bool:
    return bool(writes_into_no_source(tensor_at(address)))


@pytest.mark.parametrize(
    ("sources", "view_of", "unseen"),
    [
        ([1, 2], 0, True),  # SET_ROWS of 0.3.16
        ([1, 2, 0], 0, False),  # with the cache itself
        ([1, 3], 0, False),  # a copy into a view of it
        ([1, 2], None, False),  # a result of its own
    ],
)
def test_node_shows_its_destination_if_no_source_does(
    sources: list[int], view_of: int | None, unseen: bool
) -> None:
    """The tensors are the cache, two other tensors, a view of the cache, and the node."""
    held = np.zeros(5, TENSOR)
    at = [held.ctypes.data + i * TENSOR.itemsize for i in range(5)]
    held["view_src"][3] = at[0]
    held["src"][4, : len(sources)] = [at[i] for i in sources]
    held["view_src"][4] = 0 if view_of is None else at[view_of]
    assert writes_unseen(at[4]) is unseen
