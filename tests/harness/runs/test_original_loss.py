"""Figures of the loss by quantisation: divergences and intervals."""

import numpy as np
import pytest

from lockstep.harness.records import Evaluation
from lockstep.harness.runs.original_loss import PROMPTS, divergences, half_width


def test_divergence_matches_its_definition() -> None:
    p, q = np.array([[0.5, 0.25, 0.25]]), np.array([[0.25, 0.5, 0.25]])
    runs = [Evaluation(logits=(np.log(x).astype(np.float32) + 3,), trace=None) for x in (p, q)]
    kl, same = divergences(runs[0], runs[1])
    assert kl == pytest.approx([0.25 * np.log(2)], rel=1e-6)
    assert not same[0]
    kl, same = divergences(runs[0], runs[0])
    assert (kl[0], same[0]) == (0, True)


def test_interval_matches_students_t_distribution() -> None:
    means = [0.0, 1.0] * (PROMPTS // 2)
    assert half_width(means) == pytest.approx(2.3646 * np.std(means, ddof=1) / 8**0.5)
