"""Products split into parts are exact in float64; no honest rounding exceeds their bound."""

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.ops.build import Build
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.products import APART, LESS_OFFSET, UNSIGNED, added_up, factors, offsets
from lockstep.engine.quants.base import F32, WeightFormat
from lockstep.engine.weights import Weight
from tests.all_types import MATRICES
from tests.engine.ops.test_ops_reference import f32_weight, floats, weight_of

U = 2.0**-24
ROWS, COLUMNS = 1100, 512  # more than one chunk
every_matrix = pytest.mark.parametrize("kind", MATRICES, ids=lambda kind: kind.name)


def both(x: F32, weight: Weight) -> tuple[F32, NDArray[np.float64]]:
    mirror = Mirror()
    acts, sums = mirror.activations(x, weight), mirror.sums(x, weight)
    out, size = added_up(acts, sums, weight, Build(lanes=1))
    with np.errstate(over="ignore"):
        return out.astype(np.float32), size


def exact_size(x: F32, weight: Weight) -> NDArray[np.float64]:
    mirror, size = Mirror(), np.zeros((len(x), weight.shape[0]))
    acts = mirror.activations(x, weight)
    for rows, pairs in factors(acts, mirror.sums(x, weight), weight):
        for a, w in (*pairs, *offsets(acts, weight, rows, Build(lanes=1))):
            size[:, rows] += np.abs(a) @ np.abs(w.astype(np.float64)).T
    return size * APART.get(weight.format.name, 1.0)


@every_matrix
def test_size_covers_all_terms_with_a_small_surplus(kind: type[WeightFormat]) -> None:
    x, weight = floats(3, 3, COLUMNS), weight_of(kind.name, (ROWS, COLUMNS))
    out, size = both(x, weight)
    exact = exact_size(x, weight)
    roundings = COLUMNS * 2.0**-52  # rounding errors of sums in float64 in two orders
    assert (size >= exact * (1 - roundings)).all()
    assert (size <= exact * (1 + 5 * COLUMNS * U)).all()
    # cached decoded weights are unchanged
    assert np.array_equal(out, Mirror().linear(x, weight))
    assert np.array_equal(both(x, weight)[1], size)


@pytest.mark.parametrize("name", UNSIGNED)
def test_offset_equals_decoded_zero_codes(name: str) -> None:
    """Unsigned codes go up to twice the offset. So no code exceeds the offset after the offset is
    subtracted."""
    weight = weight_of(name, (4, COLUMNS))
    acts = np.ones((1, COLUMNS))
    ((_, twice),) = offsets(acts, weight, slice(0, 4), Build(lanes=1))
    offset, values = np.abs(twice) / 2, np.abs(weight.values())
    assert (values <= offset).all()
    assert (values[offset > 0] < offset[offset > 0]).any()
    assert offsets(acts, weight_of("Q8_0", (4, COLUMNS)), slice(0, 4), Build(lanes=1)) == ()


@pytest.mark.parametrize("name", LESS_OFFSET)
def test_unsigned_code_weight_equals_code_times_scale_minus_offset(name: str) -> None:
    """Weights plus offset times scale have the sign of their scale, because codes are not
    negative."""
    weight = weight_of(name, (4, COLUMNS))
    apart = Build(lanes=1, plain=True, offsets_apart=True)
    ((_, twice),) = offsets(np.ones((1, COLUMNS)), weight, slice(0, 4), apart)
    above = (weight.values() - twice / 2).reshape(-1, 16)
    assert ((above >= 0).all(axis=-1) | (above <= 0).all(axis=-1)).all()
    assert above.any()


def test_bound_adds_back_the_rounding_loss_of_float32() -> None:
    """A float32 sum of one large term and small terms drops each small term."""
    small = np.full((1, 4096), 2.0**-24 * 0.99)
    small[0, 0] = 1
    weight, x = f32_weight(small.astype(np.float32)), np.ones((1, 4096), np.float32)
    lost = np.float32(0)
    for term in small[0].astype(np.float32):
        lost = lost + term
    _, size = both(x, weight)
    assert lost == 1  # a naive sum
    assert size[0, 0] >= small.sum() > 1.0002


@pytest.mark.parametrize("large", [3e38, 1e30])
def test_size_beyond_float32_is_still_a_number(large: float) -> None:
    """An infinite size would give an infinite bound, which excuses any result."""
    weight = f32_weight(np.array([[1e20, -1e20, 0], [1, 1, 1]], np.float32))
    out, size = both(np.array([[large, large, 1]], np.float32), weight)
    assert size[0, 0] == pytest.approx(2 * float(np.float32(large)) * 1e20, rel=1e-6)
    assert (out[0, 0], np.isfinite(size).all()) == (0, True)


@pytest.mark.parametrize("bad", [np.inf, np.nan])
def test_nan_activations_leave_other_rows_unchanged(bad: float) -> None:
    weight = weight_of("F16", (5, COLUMNS))
    x = floats(3, 2, COLUMNS)
    right, size = both(x, weight)
    x[1, 7] = bad
    found, other = both(x, weight)
    assert np.array_equal(found[0], right[0])
    np.testing.assert_allclose(other[0], size[0], rtol=5 * COLUMNS * U)
    assert not np.isfinite(other[1]).any()
