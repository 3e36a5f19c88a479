"""Formats of few bits, compared with lists of all their numbers."""

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.harness.judging.factor_designs import DESIGNS, designs_throughout, merge
from lockstep.harness.judging.small_floats import in_e4m3, in_e5m2, in_mxfp4, in_nvfp4, in_tf32


def numbers(exponent_bits: int, bits: int, largest: float) -> NDArray[np.float64]:
    """Return all non-negative numbers of a float format with these sizes, in order of their
    codes."""
    bias = (1 << (exponent_bits - 1)) - 1
    codes = np.arange(1 << (exponent_bits + bits))
    exponents, fractions = codes >> bits, (codes & ((1 << bits) - 1)) / (1 << bits)
    normal = exponents > 0
    found = np.ldexp(fractions + normal, np.maximum(exponents, 1) - bias)
    return found[found <= largest]


@pytest.mark.parametrize(
    ("convert", "shape"), [(in_e4m3, (4, 3, 448.0)), (in_e5m2, (5, 2, 57344.0))]
)
def test_float8_rounds_to_the_nearest_of_all_its_numbers(
    convert: object, shape: tuple[int, int, float]
) -> None:
    assert callable(convert)
    every = numbers(*shape)
    assert np.array_equal(convert(every.astype(np.float32)), every)
    middle = ((every[1:] + every[:-1]) / 2).astype(np.float32)
    even = np.where(np.arange(len(every) - 1) % 2 == 0, every[:-1], every[1:])
    assert np.array_equal(convert(middle), even)
    assert np.array_equal(convert(np.nextafter(middle, np.float32(np.inf))), every[1:])
    assert convert(np.float32([1e9, -1e9])).tolist() == [shape[2], -shape[2]]


def test_tf32_keeps_ten_bits() -> None:
    x = np.float32([1 + 2**-10, 1 + 2**-11, 1 + 3 * 2**-11, -(1 + 2**-12)])
    assert in_tf32(x).tolist() == [1 + 2**-10, 1, 1 + 2**-9, -1]


def test_fp4_blocks_share_a_scale() -> None:
    x = np.zeros((1, 40), np.float32)
    x[0, :4], x[0, 32:34] = [6, 2.4, -0.26, 0.24], [0.75, 0.04]
    found = in_mxfp4(x)[0]  # the scales are 1 and 1/8
    assert found[:4].tolist() == [6, 2, -0.5, 0]
    assert found[32:34].tolist() == [0.75, 0.0625]
    assert in_nvfp4(np.float32([[12, 5, -1]])).tolist() == [[12, 4, -1]]  # the scale is 2
    assert in_mxfp4(np.zeros((0, 32), np.float32)).shape == (0, 32)


def test_each_design_changes_only_its_own_part() -> None:
    for part, designs in DESIGNS.items():
        assert all(design.names and design.names <= part for design in designs)
    for parts in designs_throughout():
        names = [design.names for design in parts.values()]
        assert merge(parts).names == frozenset().union(*names)
