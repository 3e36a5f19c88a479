"""Noisy runs beside each other come to what they come to one by one."""

import os
from collections.abc import Iterable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.harness.graph import floor
from lockstep.harness.graph.floor import side_by_side

WORST = {3: 0.25, 4: 0.5, 5: 2.0, 6: 0.125}


def worst_of(seeds: Iterable[int]) -> NDArray[Any]:
    return np.array(max(WORST[seed] for seed in seeds))


@pytest.fixture(autouse=True)
def three_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(floor, "processors", lambda: 3)
    monkeypatch.setattr(floor, "may_fork", lambda: True)


@pytest.mark.parametrize("most", [1, 2, 4])
def test_the_worst_of_all_runs_is_found_however_they_are_shared(most: int) -> None:
    assert side_by_side(worst_of, range(3, 7), most) == 2.0
    assert side_by_side(worst_of, range(6, 7), most) == 0.125


def test_no_runs_have_no_noise() -> None:
    assert side_by_side(lambda seeds: np.array(0.0), range(0), 4) == 0.0


def test_runs_of_a_fork_that_dies_are_made_here() -> None:
    here = os.getpid()

    def dies(seeds: Iterable[int]) -> NDArray[Any]:
        if os.getpid() != here:
            os._exit(1)
        return worst_of(seeds)

    assert side_by_side(dies, range(3, 7), 4) == 2.0
