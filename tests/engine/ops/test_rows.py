"""Row-by-row products of few tokens, and their sums of magnitudes, equal those of decoded
weights."""

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.kernels.integer_rows import BLOCKS
from lockstep.engine.ops import few_integers, products
from lockstep.engine.ops import rows as by_row
from lockstep.engine.ops.build import Build
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.quants.base import F32, WeightFormat
from lockstep.engine.weights import Weight
from lockstep.harness.honest.conversions import InInt8Rows
from tests.all_types import MATRICES
from tests.engine.ops.test_ops_reference import floats, weight_of

COLUMNS = 1024
MIRRORED, PLAIN = Build(lanes=16), Build(lanes=16, plain=True)
VALUES = Build(lanes=16, bounds=False)
Found = tuple[NDArray[np.float64], NDArray[np.float64]]  # the product, and its size


def found(x: F32, weight: Weight, build: Build) -> Found:
    seen = products.convert_activations(x, weight, build)
    with np.errstate(all="ignore"):
        value, size = products.added_up(seen.values, seen.sums, weight, build, np.float64)
    return value, size


def decoded(x: F32, weight: Weight, build: Build, monkeypatch: pytest.MonkeyPatch) -> Found:
    with monkeypatch.context() as patch:
        for way in (by_row, few_integers):
            patch.setattr(way, "takes", lambda _: False)
        return found(x, weight, build)


@pytest.mark.parametrize("kind", MATRICES, ids=lambda kind: kind.name)
@pytest.mark.parametrize("tokens", [1, products.FEW])
@pytest.mark.parametrize("build", [MIRRORED, PLAIN], ids=["mirrored", "plain"])
def test_product_row_by_row_equals_that_of_decoded_weights(
    kind: type[WeightFormat], tokens: int, build: Build, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert by_row.takes(kind)
    # several pieces, of which the last is not full
    monkeypatch.setattr(by_row, "PIECE", 4 * COLUMNS)
    weight, x = weight_of(kind.name, (21, COLUMNS), seed=3), floats(tokens, tokens, COLUMNS)
    value, size = found(x, weight, build)
    expected, expected_size = decoded(x, weight, build, monkeypatch)
    assert value.any()
    assert (np.abs(value - expected) <= 2.0**-48 * size).all()
    # an inexact size is slightly larger on purpose
    assert (size <= expected_size * (1 + 2.0**-48)).all()
    assert (size >= expected_size * (1 - 2.0**-11)).all()


@pytest.mark.parametrize("name", sorted(BLOCKS))
@pytest.mark.parametrize("tokens", [1, 5, products.FEW_AS_INTEGERS])
def test_product_of_stored_integers_equals_that_of_decoded_weights(
    name: str, tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """21 rows are split in pieces of four rows. The number of small blocks in a row is not a
    multiple of four."""
    monkeypatch.setattr(few_integers, "PIECE", 4 * COLUMNS)
    kind = WeightFormat.member(name)
    columns = COLUMNS + kind.weights
    weight, x = weight_of(name, (21, columns), seed=5), floats(tokens, tokens, columns)
    asked: list[str] = []
    product = few_integers.product
    with monkeypatch.context() as patch:
        patch.setattr(few_integers, "product", lambda *a: asked.append(name) or product(*a))
        value, _ = found(x, weight, VALUES)
    expected, size = decoded(x, weight, MIRRORED, monkeypatch)
    assert asked
    assert value.any()
    assert (np.abs(value - expected) <= 2.0**-48 * size).all()
    neighbours = np.roll(expected, 1, axis=1)
    assert (np.abs(value - neighbours) > 2.0**-20 * size).any()


@pytest.mark.parametrize("name", ["Q8_0", "Q4_1", "Q4_K"])
@pytest.mark.parametrize("bad", [np.inf, np.nan, 3e38])
def test_nan_activations_equal_decoded_weights(
    name: str, bad: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, x = weight_of(name, (9, COLUMNS), seed=5), floats(3, 2, COLUMNS)
    x[1, 7] = bad
    value, _ = found(x, weight, VALUES)
    expected, size = decoded(x, weight, MIRRORED, monkeypatch)
    assert (np.isfinite(value) == np.isfinite(expected)).all()
    assert (np.isnan(value) == np.isnan(expected)).all()
    some = np.isfinite(expected)
    assert some[0].all()
    assert (np.abs(value[some] - expected[some]) <= 2.0**-48 * size[some]).all()


@pytest.mark.parametrize("scale", [0.0, -1.0, 6e-8, 65504.0, np.inf, np.nan])
@pytest.mark.parametrize(("name", "field"), [("Q8_0", "d"), ("Q4_1", "m"), ("Q4_K", "dmin")])
@pytest.mark.parametrize("sizes", [True, False])
def test_products_with_unusual_scales_equal_those_of_decoded_weights(
    name: str, field: str, scale: float, sizes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight = weight_of(name, (9, COLUMNS), seed=3)
    raw = weight.raw.copy()
    raw.view(weight.format.layout)[field][1] = scale
    other, x = Weight("w", weight.format, weight.shape, raw), floats(2, 2, COLUMNS)
    value, _ = found(x, other, MIRRORED if sizes else VALUES)
    expected, size = decoded(x, other, MIRRORED, monkeypatch)
    assert (np.isnan(value) == np.isnan(expected)).all()
    some = np.isfinite(expected)
    assert np.isfinite(value[some]).all()
    assert (np.abs(value[some] - expected[some]) <= 2.0**-48 * size[some]).all()


def by_decoding(ops: type[Mirror], x: F32, weight: Weight, patch: pytest.MonkeyPatch) -> F32:
    with patch.context() as within:
        for way in (by_row, few_integers):
            within.setattr(way, "takes", lambda _: False)
        return ops().linear(x, weight)


class SumsMissing(Mirror):
    def sums(self, x: F32, weight: Weight) -> NDArray[np.float64]:
        """Return the sums stored in the format, or else the sums of the values."""
        right = super().sums(x, weight)
        if right is None:
            groups = x.shape[-1] // products.activation_format(weight.format).summed
            right = self.activations(x, weight).reshape(len(x), groups, -1).sum(axis=-1)
        return self.changed(right)

    def changed(self, right: NDArray[np.float64]) -> NDArray[np.float64]:
        return right * 0


class SumsOfBlockBefore(SumsMissing):
    def changed(self, right: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.roll(right, 1, axis=-1)


@pytest.mark.parametrize("ops", [SumsMissing, SumsOfBlockBefore, Mirror])
@pytest.mark.parametrize("name", ["Q4_1", "Q5_1", "Q2_K", "Q4_K", "Q5_K"])
def test_minima_are_multiplied_by_the_sums_of_the_engine(
    ops: type[Mirror], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    weight, x = weight_of(name, (9, COLUMNS), seed=3), floats(3, 2, COLUMNS)
    found, right = ops().linear(x, weight), by_decoding(Mirror, x, weight, monkeypatch)
    expected, size = by_decoding(ops, x, weight, monkeypatch), np.abs(right).max()
    assert np.abs(found - expected).max() <= 2.0**-20 * size
    assert (np.abs(found - right).max() > 2.0**-10 * size) == (ops is not Mirror)


@pytest.mark.parametrize("name", ["Q4_1", "Q5_1"])
def test_activations_without_carried_sums_use_the_sums_of_their_values(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine has one scale for each row; with these activations it equals the scale of each
    block."""
    weight, x = weight_of(name, (9, COLUMNS), seed=3), np.zeros((2, COLUMNS), np.float32)
    x[:, 5], x[:, -3] = 1, -1
    expected = by_decoding(InInt8Rows, x, weight, monkeypatch)
    found = InInt8Rows().linear(x, weight)
    assert np.abs(found - expected).max() <= 2.0**-20 * np.abs(expected).max()


def test_wrong_decoder_decodes_itself() -> None:
    """The kernel would skip the changes that such a decoder makes after unpacking."""

    class Doubled(WeightFormat.member("Q8_0")):  # type: ignore[misc]
        @classmethod
        def dequantize_into(cls, raw: NDArray[np.uint8], out: F32) -> None:
            super().dequantize_into(raw, out)
            out *= 2

    right = weight_of("Q8_0", (9, COLUMNS), seed=8)
    wrong, x = Weight("w", Doubled, right.shape, right.raw), floats(9, 1, COLUMNS)
    assert not by_row.takes(Doubled)
    assert np.array_equal(Mirror().linear(x, wrong), 2 * Mirror().linear(x, right))
