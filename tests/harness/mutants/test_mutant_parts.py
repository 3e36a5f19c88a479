"""Engines with a mistake in one part: their other methods are unchanged, and the wrong method is
really called."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.batch import Batch
from lockstep.engine.memory.attention import CellView
from lockstep.engine.memory.store import Index, Store
from lockstep.engine.quants.base import F32
from lockstep.harness.adapters.reference import Reference
from lockstep.harness.mutants.parts.mistakes import OPS, Mistake, Op, Read
from lockstep.harness.records import EXACT, Request
from tests.models import builtin


class Nothing(Mistake):
    """An engine that replaces a method of each kind by an equal method."""

    def rope(self, right: Op, *args: Any) -> F32:
        return right(*args)

    def linear(self, right: Op, *args: Any) -> F32:
        return right(*args)

    def graph_head(self, right: Callable[[], Any]) -> Any:
        return right()

    def store_write(self, store: Store, right: Callable[..., None], *args: Any) -> None:
        right(*args)

    def cells_visible(self, view: CellView, right: Op, window: int) -> F32:
        return right(window)

    def taken(self, read: Read, name: str) -> Any:
        return read(name)


class Zeros(Mistake):
    def store_write(
        self, store: Store, right: Callable[..., None], layer: int, cells: Index, k: F32, v: F32
    ) -> None:
        right(layer, cells, 0 * k, 0 * v)


@pytest.fixture
def f32(tmp_path: Path) -> Path:
    return builtin("f32", tmp_path)


def logits(engine: Reference) -> F32:
    batches = (Batch.of([5, 42, 79]), Batch.of([3], start=3))
    found = np.concatenate(engine.evaluate(Request(batches=batches)).logits)
    engine.close()
    return found


def test_engine_with_equal_parts_gives_the_same_bits(f32: Path) -> None:
    assert np.array_equal(logits(Nothing(f32, EXACT)), logits(Reference(f32, EXACT)))


def test_replaced_store_receives_the_writes(f32: Path) -> None:
    """The memory may be created later than the replacement."""
    own, right = logits(Zeros(f32, EXACT)), logits(Reference(f32, EXACT))
    assert not np.allclose(own, right)
    assert np.array_equal(own, logits(Zeros(f32, EXACT)))


def test_every_called_op_can_be_wrong() -> None:
    assert {"rope", "kq", "soft_max", "kqv", "linear", "linear_id", "top_k", "add"} <= {*OPS}
