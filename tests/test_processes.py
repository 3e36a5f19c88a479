"""Processes side by side leave each other a processor."""

import os

import pytest

from harness.processes import BLAS, processes


def blas_threads(_: int) -> str | None:
    return os.environ.get(BLAS)


@pytest.mark.parametrize(("given", "found"), [(None, "1"), ("3", "3")])
def test_each_has_one_thread_of_blas_unless_the_user_says_otherwise(
    given: str | None, found: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(BLAS, raising=False)
    if given:
        monkeypatch.setenv(BLAS, given)
    with processes(2) as pool:
        assert list(pool.map(blas_threads, range(2))) == [found, found]
    assert os.environ.get(BLAS) == given
