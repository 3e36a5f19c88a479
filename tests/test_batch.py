"""Batches keep their arrays in step, however they are split."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.batch import Batch

FIELDS = ("tokens", "positions", "seq_ids", "outputs")


def batch_of(n: int) -> Batch:
    """Every entry of every array tells its index."""
    at = np.arange(n, dtype=np.int32)
    return Batch(at + 100, at + 200, at + 300, at % 3 == 0)


def test_of_counts_positions_from_the_start_and_asks_for_every_output() -> None:
    batch = Batch.of([7, 7, 9], start=5, seq_id=2)
    assert [getattr(batch, field).tolist() for field in FIELDS] == [
        [7, 7, 9], [5, 6, 7], [2, 2, 2], [True] * 3
    ]  # fmt: skip
    assert [getattr(batch, field).dtype for field in FIELDS] == [np.int32] * 3 + [np.bool_]
    assert len(batch) == 3
    assert len(Batch.of([])) == 0


@given(n=st.integers(0, 40), n_ubatch=st.integers(1, 50))
@settings(max_examples=30, derandomize=True)
def test_ubatches_in_a_row_are_the_batch_again(n: int, n_ubatch: int) -> None:
    batch = batch_of(n)
    parts = list(batch.split_simple(n_ubatch))
    for field in FIELDS:
        joined = [value for part in parts for value in getattr(part, field).tolist()]
        assert joined == getattr(batch, field).tolist()
    assert [len(part) for part in parts[:-1]] == [n_ubatch] * (len(parts) - 1)
    assert all(1 <= len(part) <= n_ubatch for part in parts)


@pytest.mark.parametrize(("n", "n_ubatch", "sizes"), [(5, 2, [2, 2, 1]), (4, 4, [4]), (0, 3, [])])
def test_only_the_last_ubatch_is_shorter(n: int, n_ubatch: int, sizes: list[int]) -> None:
    assert [len(part) for part in batch_of(n).split_simple(n_ubatch)] == sizes
