"""Where one logit is so large that others are smaller than its errors, nothing is known of them."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.harness.suites.parts.hidden import hidden_tokens
from tests.contexts import statuses
from tests.harness.suites.test_whole_runs import verdicts_of
from tests.models import builtin, with_values


def test_tokens_with_some_logit_beyond_the_limit_are_seen() -> None:
    logits = np.ones((3, 200), np.float32)
    logits[1:] = 1e-9
    assert hidden_tokens(logits, 1e-6) == 0


def test_tokens_with_none_are_hidden() -> None:
    logits = np.full((3, 200), 1e-9, np.float32)
    logits[:, 5], logits[0, 6], logits[0, 7] = 1.0, np.nan, np.inf
    assert hidden_tokens(logits, 1e-6) == 197


def test_zeros_are_what_they_are_and_a_few_are_small_by_chance() -> None:
    logits = np.ones((3, 200), np.float32)
    logits[:, :50], logits[:, 60] = 0.0, 1e-9
    assert hidden_tokens(logits, 1e-6) == 0


@pytest.mark.parametrize("factor", [1.0, 2e9])
def test_an_agreement_says_of_how_many_tokens_nothing_is_known(
    factor: float, tmp_path: Path
) -> None:
    def first_is_large(rows: NDArray[np.float32]) -> NDArray[np.float32]:
        rows[0] *= np.float32(factor)
        return rows

    model = builtin("f32", tmp_path)
    large = with_values(model, tmp_path / "large.gguf", "output.weight", first_is_large)
    first, *others = verdicts_of(large, "logits")
    rest = statuses(others)
    assert (first.status, rest <= {"agreed", "not-compared"}) == ("agreed", True)
    assert ("not-compared" in rest) == (factor > 1)
    assert first.detail.get("hidden_tokens") == (383 if factor > 1 else None)
