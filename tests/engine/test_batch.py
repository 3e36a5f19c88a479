"""Batches keep arrays of equal length."""

import numpy as np

from lockstep.engine.batch import Batch

FIELDS = ("tokens", "positions", "seq_ids", "outputs")


def test_batch_counts_positions_and_requests_every_output() -> None:
    batch = Batch.of([7, 7, 9], start=5, seq_id=2)
    assert [getattr(batch, field).tolist() for field in FIELDS] == [
        [7, 7, 9], [5, 6, 7], [2, 2, 2], [True] * 3
    ]  # fmt: skip
    assert [getattr(batch, field).dtype for field in FIELDS] == [np.int32] * 3 + [np.bool_]
    assert len(batch) == 3
    assert len(Batch.of([])) == 0
