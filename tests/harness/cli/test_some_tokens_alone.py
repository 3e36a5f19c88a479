"""A fault of some tokens or heads alone is said to be one: it names the batch that is too long."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from lockstep.harness.cli.bisection import alone
from lockstep.harness.judging.judge import SiteFinding, affected_alone
from lockstep.harness.records import Site


def finding(wrong: list[tuple[int, int]]) -> SiteFinding:
    """Of 128 tokens and 3 heads, with these elements off."""
    truth = np.zeros((128, 3, 4), np.float32)
    shown = truth.copy()
    for token, head in wrong:
        shown[token, head, 1] = 1
    return SiteFinding(
        site=Site(step=0, layer=0, name="Qcur_rope"),
        op="ROPE",
        err_local=1.0,
        err_oracle=0.0,
        allowed=0.0,
        reason="",
        size=1.0,
        mismatch=None,
        at_fault="subject",
        alone=affected_alone(truth, shown, np.zeros(truth.shape)),
        axes="(tokens, heads, head_dim)",
    )


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ([(t, h) for t in range(64, 128) for h in range(3)], ["only tokens 64 to 127"]),
        ([(t, 2) for t in range(128)], ["only heads 2"]),
        ([(5, 1)], ["only tokens 5", "only heads 1"]),
        ([(t, h) for t in range(128) for h in range(3)], []),
        ([(t, h) for t in range(0, 128, 9) for h in range(3)], []),  # too many pieces to be one
    ],
)
def test_what_is_off_alone_is_named(wrong: list[tuple[int, int]], said: list[str]) -> None:
    rows_alone: Any = SimpleNamespace(positions=lambda _: None)  # of no batch that is known
    found = alone(finding(wrong), rows_alone)
    assert found == [f"{text}: all others agree" for text in said]
