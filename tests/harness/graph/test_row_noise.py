"""The noise of honest runs. Each row's noise is relative to the row's own size."""

from typing import Any

import numpy as np
import pytest

from lockstep.harness.graph.row_noise import Noise, beyond, noise_between

HUGE = np.array([[4096.0, 1.0], [2.0, -4.0], [0.0, 1.0]], np.float32)


def moved(*errors: float) -> Any:
    """Move the first number of each row by the error for this row."""
    found = HUGE.astype(np.float64)
    found[:, 0] += errors
    return found


def test_error_of_a_huge_row_enlarges_no_other_limit() -> None:
    noise = noise_between(HUGE, moved(0.5, 2.0**-10, 0.0))
    assert noise == Noise(worst=0.5, share=2.0**-12)
    assert noise.room(HUGE).ravel().tolist() == [1.0, 2.0**-9, 2.0**-11]


def test_limit_of_a_row_is_twice_its_noise_up_to_the_worst() -> None:
    runs = [moved(0.5, 0.0, 0.0), moved(0.0, 0.25, 0.0), moved(0.0, 0.0, -0.125)]
    noise = Noise()
    for run in runs:
        noise |= noise_between(HUGE, run)
        assert (np.abs(run - HUGE) <= noise.room(HUGE) / 2).all()
    assert noise.room(HUGE).max() == 1.0


def test_limit_is_the_worst_error_if_a_row_of_zeros_changed() -> None:
    zeros = np.zeros((2, 3), np.float32)
    off = zeros.copy()
    off[1, 2] = 0.5
    assert noise_between(zeros, off).room(zeros).tolist() == [[1.0], [1.0]]
    assert noise_between(zeros, zeros).room(zeros).tolist() == [[0.0], [0.0]]


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_nan_in_every_run_has_no_error_and_no_size(number: float) -> None:
    truth = np.array([[number, 4.0], [1.0, 2.0]], np.float32)
    run = np.array([[number, 4.5], [1.0, 2.0]], np.float32)
    assert noise_between(truth, run) == Noise(worst=0.5, share=0.125)
    assert noise_between(truth, run).room(truth).ravel().tolist() == [1.0, 0.5]
    run[0, 0] = 1.0
    assert noise_between(truth, run).room(truth).ravel().tolist() == [np.inf, 0.0]


def test_overflowing_row_hides_no_other_wrong_row() -> None:
    truth = np.array([[3e38, 1.0], [4.0, 2.0], [-np.inf, 1.0]], np.float32)
    first, second = (truth.astype(np.float64) for _ in range(2))
    first[0, 0], first[1, 0] = np.inf, 4.0 + 2.0**-10
    second[2, 0] = 5.0  # a group of experts that most runs mask
    noise = noise_between(truth, first) | noise_between(truth, second)
    assert noise.room(truth).ravel().tolist() == [np.inf, 2.0**-9, np.inf]
    wrong = 1.5 * truth[1]
    assert (np.abs(wrong - truth[1]) > noise.room(truth)[1]).all()


def test_column_with_one_overflow_may_overflow_anywhere() -> None:
    column, off = np.array([[3e38], [4.0]]), np.array([[np.inf], [4.5]])
    assert np.isposinf(noise_between(column, off).room(column)).all()


def test_rows_with_one_number_share_the_scale_of_the_largest() -> None:
    """A row with one number may be nearly zero by chance, and honest runs need not show its
    error."""
    column, off = np.array([[4.0], [1e-9]]), np.array([[4.5], [1e-9]])
    assert noise_between(column, off) == Noise(worst=0.5, share=0.125)
    assert noise_between(column, off).room(column).tolist() == [[1.0]]


def test_overflowing_row_explains_no_other_wrong_row() -> None:
    """One honest run has two rows with large errors, fourteen rows with small errors, and one
    overflow."""
    truth = np.ones((40, 2))
    honest, wrong = truth.copy(), truth.copy()
    honest[0, 0] = np.inf
    honest[1:3, 0] += 2.0**-10
    honest[3:17, 0] += 2.0**-24
    wrong[:14, 0] += 2.0**-9
    noise = Noise(rows=(beyond(truth, honest, np.zeros(truth.shape)),))
    assert noise.explains(beyond(truth, honest, np.zeros(truth.shape)))
    assert not noise.explains(beyond(truth, wrong, np.zeros(truth.shape)))
