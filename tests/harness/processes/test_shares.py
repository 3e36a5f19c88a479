"""Work that forks share has the same result as work in one process."""

import os
from collections.abc import Sequence

import pytest

from lockstep.harness.processes import ahead
from lockstep.harness.processes.ahead import in_shares


@pytest.fixture(autouse=True)
def three_processors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "processors", lambda: 3)
    monkeypatch.setattr(ahead, "may_fork", lambda: True)


def squares(numbers: Sequence[int]) -> list[int]:
    return [number**2 for number in numbers]


@pytest.mark.parametrize(("most", "processes"), [(1, 1), (2, 2), (4, 3)])
def test_every_item_is_in_exactly_one_share(most: int, processes: int) -> None:
    shares = in_shares(squares, range(3, 10), most)
    assert len(shares) == processes
    assert all(list(found) == squares(share) for share, found in shares)
    assert sorted(n for share, _ in shares for n in share) == [*range(3, 10)]


def test_one_item_needs_no_fork_and_no_items_give_one_empty_share() -> None:
    assert in_shares(squares, [7], 4) == [([7], [49])]
    assert in_shares(squares, [], 4) == [([], [])]


def test_share_of_a_dead_fork_is_done_locally() -> None:
    here = os.getpid()

    def dies(numbers: Sequence[int]) -> list[int]:
        if os.getpid() != here:
            os._exit(1)
        return squares(numbers)

    assert in_shares(dies, range(4), 2) == [(range(0, 4, 2), [0, 4]), (range(1, 4, 2), [1, 9])]
