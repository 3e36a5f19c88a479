"""The number of segments that is enough to refute a format of activations."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import pytest

from lockstep.harness.graph import other_conversions
from lockstep.harness.graph.other_conversions import enough_to_refute


def weights_of(segments: Iterable[Any]) -> set[str]:
    return {segment.weight for segment in segments}


@pytest.fixture(autouse=True)
def own_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make segments name their own weights."""
    monkeypatch.setattr(other_conversions, "quantised_weights", lambda _, some: weights_of(some))


@pytest.mark.parametrize("n_weights", [1, 2, 3, 8, 9])
def test_segments_tried_later_have_at_most_half_of_the_weights(
    n_weights: int,
) -> None:
    """A true format agrees with more than half of the weights, so one of these weights is among the
    first segments."""
    every = [f"blk.{i}.ffn_up.weight" for i in range(n_weights)]
    left: Any = [SimpleNamespace(step=step, weight=w) for step in range(3) for w in every]
    judge: Any = None
    first, rest = enough_to_refute(judge, left, n_weights)
    assert first
    assert 2 * len(weights_of(rest)) <= n_weights
    assert weights_of(first).isdisjoint(weights_of(rest))
    assert {id(segment) for segment in (*first, *rest)} == {id(segment) for segment in left}


def test_single_segment_is_tried_if_few_are_wrong() -> None:
    left: Any = [SimpleNamespace(weight="output.weight")]
    judge: Any = None
    assert enough_to_refute(judge, left, 9) == (left, [])
