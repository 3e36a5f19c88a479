"""YaRN compared with its published code, written out by hand."""

import math

import numpy as np
import pytest

from lockstep.engine.architectures.positions import scale_rope
from lockstep.engine.errors import InvalidModel
from lockstep.engine.ops.mirror import Mirror
from lockstep.engine.ops.reference import ReferenceOps, RopeParams
from lockstep.harness.honest.rotations import InverseFrequency, Power, WideAngles

AT = np.array([0, 1, 77, 4095], np.int32)


def by_hand(n_rot: int, base: float, factor: float, n_ctx: int) -> list[float]:
    """Return the frequencies. Pairs that turn more than 32 times in the context keep their
    frequency."""
    ends = (n_rot * math.log(n_ctx / (b * 2 * math.pi)) / (2 * math.log(base)) for b in (32, 1))
    low, high = next(ends) // 1, -(-next(ends) // 1)
    found = []
    for pair in range(n_rot // 2):
        frequency = base ** (-2 * pair / n_rot)
        ramp = min(max((pair - max(low, 0)) / (min(high, n_rot - 1) - max(low, 0)), 0), 1)
        found.append(frequency / factor * ramp + frequency * (1 - ramp))
    return found


@pytest.mark.parametrize(
    ("n_rot", "base", "factor", "n_ctx"),
    [(64, 150000.0, 32.0, 4096), (128, 1e6, 4.0, 32768), (16, 1e4, 8.0, 128)],
)
def test_frequencies_and_magnitude_match_the_paper(
    n_rot: int, base: float, factor: float, n_ctx: int
) -> None:
    params = scale_rope(RopeParams(n_rot, base, 1 / factor, None), 1.0, n_ctx)
    cos, sin = ReferenceOps().rotations(AT, params)
    angles = AT[:, None] * np.array(by_hand(n_rot, base, factor, n_ctx))
    grown = 0.1 * math.log(factor) + 1
    # shares are float32, so an angle of 4095 has an additional error
    assert np.allclose(cos, np.cos(angles) * grown, rtol=0, atol=4095 * 2**-23)
    assert np.allclose(sin, np.sin(angles) * grown, rtol=0, atol=4095 * 2**-23)


def test_yarn_share_is_absent_without_yarn() -> None:
    params = scale_rope(RopeParams(16, 1e4, 0.25, None), 1.5, 0)
    assert (params.kept, params.magnitude) == (None, 1.5)


@pytest.mark.parametrize(("base", "n_ctx"), [(1.0, 64), (0.0, 64), (math.inf, 64), (1e4, -1)])
def test_a_base_without_a_logarithm_is_refused(base: float, n_ctx: int) -> None:
    with pytest.raises(InvalidModel, match="YaRN is undefined"):
        scale_rope(RopeParams(16, base, 0.25, None), 1.0, n_ctx)


@pytest.mark.parametrize("ops", [Mirror, InverseFrequency, Power, WideAngles])
def test_honest_engines_agree_with_yarn(ops: type[Mirror]) -> None:
    plain = RopeParams(64, 10000.0, 0.25, None)
    at = np.arange(40, dtype=np.int32)
    for params in (scale_rope(plain, 1.0, 128), scale_rope(plain, 1.5, 0)):
        found, exact = (np.stack(o.rotations(at, params)) for o in (ops(), ReferenceOps()))
        assert np.abs(found - exact).max() < 1e-4
        assert np.abs(found - np.stack(ops().rotations(at, plain))).max() > 0.1
