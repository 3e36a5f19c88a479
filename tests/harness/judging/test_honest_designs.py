"""The formulas of honest engines with other designs are known, and wrong formulas are found.

tests/differential/test_designs.py tests whole engines with these designs.
"""

from functools import partial

import numpy as np
import pytest

from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.near import U
from lockstep.engine.ops.reference import I32, RopeParams
from lockstep.engine.quants.base import F32
from lockstep.harness.honest.rotations import InverseFrequency, Power, WideAngles
from lockstep.harness.honest.sigmoids import ByExp2, ByTanh
from lockstep.harness.honest.sums import OneByOne
from lockstep.harness.judging.designs import norms_of_float32_sums, of_sum_shown, swiglu_ways
from lockstep.harness.judging.judge import conforms
from lockstep.harness.judging.noise import BoundedOps, carry_bound
from lockstep.harness.judging.rope_designs import ways_to_turn
from tests.models import LANES

OPS = BoundedOps(lanes=LANES)


def normal(seed: int, *shape: int) -> F32:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


FACTORS = (1 + np.random.default_rng(0).integers(0, 57, 32) / 8).astype(np.float32)
ROPES = [
    RopeParams(64, 1e4, 1.0, None),
    RopeParams(64, 5e5, 1 / 3, None),
    RopeParams(64, 1e4, 0.125, FACTORS),
    RopeParams(64, 1234567.0, 1.0, FACTORS),
    RopeParams(6, 100.0, 1.0, None),
    RopeParams(32, 1e4, 1 / 3, FACTORS[:16]),  # scale and factors are rounded too
]
WAYS = (InverseFrequency, Power, WideAngles)
POSITIONS = np.r_[np.arange(4), np.arange(294, 300), np.arange(30000, 30006)].astype(np.int32)
LAST = 9  # index in POSITIONS of position 299
ropes = pytest.mark.parametrize(
    "params", ROPES, ids=lambda p: f"{p.n_rot}-{p.base:g}-{p.scale:.2g}"
)


def turns_well(shown: F32, x: F32, params: RopeParams) -> bool:
    truth = carry_bound(OPS.rope(x, POSITIONS, params))
    return conforms(shown, truth, truth.bound, ways_to_turn(x, POSITIONS, params))


def rotated_with(ops: Mirror, x: F32, params: RopeParams, positions: I32 = POSITIONS) -> F32:
    return ops.rope(x, positions, params)


@pytest.mark.parametrize("way", WAYS)
@ropes
def test_angle_designs_are_honest_at_positions_of_tens_of_thousands(
    way: type[Mirror], params: RopeParams
) -> None:
    x = normal(1, len(POSITIONS), 4, params.n_rot)
    shown = rotated_with(way(), x, params)
    truth = carry_bound(OPS.rope(x, POSITIONS, params))
    # its result differs from llama.cpp's recursion
    assert not conforms(shown, truth, truth.bound, ())
    assert turns_well(shown, x, params)


@ropes
def test_tiny_elements_do_not_hide_the_frequency(params: RopeParams) -> None:
    """The bound of such elements is far smaller than the roundings of their large neighbours."""
    x = normal(1, len(POSITIONS), 4, params.n_rot)
    x[:, ::2, 1::2] = 0
    assert turns_well(rotated_with(InverseFrequency(), x, params), x, params)


def test_nan_angle_has_no_other_design() -> None:
    x, positions = normal(1, 3, 1, 4), np.arange(3, dtype=np.int32)
    bad = [(0.0, 1.0), (-1.0, 1.0), (np.nan, 1.0), (np.inf, 1.0), (1e4, 0.0), (1e4, np.inf)]
    for base, scale in bad:
        assert list(ways_to_turn(x, positions, RopeParams(4, base, scale, None))) == []
    zero = RopeParams(4, 1e4, 1.0, np.zeros(2, np.float32))
    assert list(ways_to_turn(x, positions, zero)) == []


@pytest.mark.parametrize("width", [64, 1000, 4096])
def test_norm_that_sums_its_squares_in_float32_is_honest(width: int) -> None:
    x, weight = normal(2, 20, width), normal(3, width)
    # equal values in a row, so that all rounding errors have the same sign
    x[:10] = np.linspace(0.5, 4, 10)[:, None]
    shown, truth = OneByOne().rms_norm(x, weight, 1e-5), carry_bound(OPS.rms_norm(x, weight, 1e-5))
    others = list(norms_of_float32_sums(x, weight, 1e-5))
    assert conforms(shown, truth, truth.bound, others)
    for wrong in (shown * np.float32(1 + 2e-6), OneByOne().rms_norm(x, weight, 3e-6)):
        assert not conforms(wrong, truth, truth.bound, others)


@pytest.mark.parametrize("cells", [300, 4096, 30000])
def test_softmax_that_sums_in_float32_is_honest(cells: int) -> None:
    x = normal(2, 2, 6, cells)
    x[:, 3:] /= 100  # next to even: every addition rounds the same way
    shown = OneByOne().soft_max(x, 0.125, None)
    truth = carry_bound(OPS.soft_max(x, 0.125, None))
    others = [partial(of_sum_shown, np.asarray(truth), truth.bound)]
    assert conforms(shown, truth, truth.bound, others)
    far, one = shown * np.float32(1 + 2 * cells * U), shown.copy()
    one[1, 2, 7] *= np.float32(1 + 1e-5)
    scaled = OneByOne().soft_max(x, 0.125 * (1 + 1e-4), None)
    for wrong in (far, one, scaled):
        assert not conforms(wrong, truth, truth.bound, others)


@pytest.mark.parametrize("way", [ByTanh, ByExp2])
@pytest.mark.parametrize("size", [1, 8, 40])
def test_gate_computed_by_another_formula_is_honest(way: type[Mirror], size: int) -> None:
    gate, up = normal(4, 100, 64) * np.float32(size), normal(5, 100, 64)
    shown, truth = way().swiglu(gate, up), carry_bound(OPS.swiglu(gate, up))
    others = swiglu_ways(gate, up)
    assert conforms(shown, truth, truth.bound, others)
    for wrong in (shown * np.float32(1 + 1e-5), way().swiglu(gate * np.float32(1 + 1e-5), up)):
        assert not conforms(wrong, truth, truth.bound, others)


# --- wrong, beside honest ones ----------------------------------------------------------------


@pytest.mark.parametrize("way", [Mirror, *WAYS])
@ropes
def test_wrong_angles_are_found_in_every_design(way: type[Mirror], params: RopeParams) -> None:
    x, ops = normal(1, len(POSITIONS), 4, params.n_rot), way()
    honest = rotated_with(ops, x, params)
    base = RopeParams(params.n_rot, params.base * (1 + 1e-4), params.scale, params.factors)
    scale = RopeParams(params.n_rot, params.base, params.scale * (1 + 1e-5), params.factors)
    later = POSITIONS + (POSITIONS == 299).astype(np.int32)
    nudged = honest.copy()
    nudged[LAST, 2, 1] += np.float32(1e-6) * np.abs(x[LAST, 2]).max()
    for wrong in (
        rotated_with(ops, x, base),
        rotated_with(ops, x, scale),
        rotated_with(ops, x, params, later),
        honest * np.float32(1 + 1e-6),
        nudged,
    ):
        assert not turns_well(wrong, x, params)
