"""More honest runs are made before an engine is blamed, unless they cannot change the verdict."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lockstep.engine.quants.base import F32
from lockstep.harness.context.enough_runs import CLEARLY, may_jump, noise_beside
from lockstep.harness.judging.noise import NoiseFloor
from lockstep.harness.judging.tolerances import whole_run
from tests.contexts import context_of
from tests.models import builtin

FEW, MORE = 1e-6, 2e-6
TRUTH = np.ones((2, 3), np.float32)
LIMIT = float(whole_run(FEW, 1.0).allowed)


class Judge:
    """A stand-in for those parts of a context that the tests use."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, jumps: bool = False) -> None:
        monkeypatch.setattr("lockstep.harness.context.enough_runs.may_jump", lambda _: jumps)
        self.noise = NoiseFloor(logits=(), relative=FEW)

    def noise_on(self, batches: Sequence[Any]) -> float:
        return MORE


def moved(by: float) -> F32:
    found = TRUTH.copy()
    found[1, 2] += by
    return found


@pytest.mark.parametrize(
    ("runs", "expected"),
    [
        ((TRUTH, TRUTH), FEW),
        ((TRUTH, moved(2 * CLEARLY * LIMIT)), FEW),
        ((moved(2 * CLEARLY * LIMIT), TRUTH), FEW),
        ((TRUTH, moved(np.nan)), FEW),
        ((TRUTH, moved(CLEARLY * LIMIT / 2)), MORE),
        ((TRUTH, moved(3 * LIMIT)), MORE),
        # the oracle is just beyond the limit: with few runs, both engines would be called wrong
        ((moved(3 * LIMIT), moved(2 * CLEARLY * LIMIT)), MORE),
    ],
    ids=["alike", "far", "oracle-far", "no-number", "not-so-far", "near", "oracle-near"],
)
def test_more_runs_are_made_if_a_run_is_neither_near_nor_far(
    runs: tuple[F32, F32], expected: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    judge: Any = Judge(monkeypatch)
    assert noise_beside(judge, (), [TRUTH], runs) == expected


@pytest.mark.parametrize("by", [LIMIT / 2, 3 * LIMIT], ids=["within", "just-beyond"])
def test_run_without_conversions_counts_for_an_engine_without_them(
    by: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine's run is far from the run with conversions, but honest. Further honest runs may
    show this."""
    judge: Any = Judge(monkeypatch)
    far = 2 * CLEARLY * LIMIT
    runs = (TRUTH, moved(far + by))
    expected = FEW if by < LIMIT else MORE
    assert noise_beside(judge, (), [TRUTH, moved(far)], runs) == expected
    assert noise_beside(judge, (), [TRUTH], runs) == FEW


def test_model_that_may_amplify_a_small_error_always_gets_more_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge: Any = Judge(monkeypatch, jumps=True)
    assert noise_beside(judge, (), [TRUTH], (TRUTH, moved(2 * CLEARLY * LIMIT))) == MORE


def test_more_runs_decide_if_there_is_no_limit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    judge: Any = Judge(monkeypatch)
    judge.noise = NoiseFloor(logits=(), relative=np.inf)
    assert noise_beside(judge, (), [TRUTH], (TRUTH, moved(1.0))) == MORE


@pytest.mark.parametrize(
    ("model", "expected"), [("f32", False), ("f16", False), ("q8_0", True), ("moe", True)]
)
def test_models_with_converted_blocks_or_experts_may_amplify_errors(
    model: str, expected: bool, tmp_path: Path
) -> None:
    with context_of(builtin(model, tmp_path), oracle="reference") as context:
        assert may_jump(context) is expected
