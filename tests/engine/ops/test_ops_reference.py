"""Edge cases of the reference's ops.

golden/test_ops compares each op with a second implementation in float32.
"""

import math

import numpy as np
import pytest
from numpy.random import Generator, Philox

from lockstep.engine.ops.reference import ReferenceOps, RopeParams
from lockstep.engine.quants.base import F32, WeightFormat
from lockstep.engine.registry import import_members
from lockstep.engine.weights import Weight
from lockstep.harness.synth.generator import stream, tensor_bytes

OPS = ReferenceOps()
U = 2.0**-24


def floats(seed: int, *shape: int, size: float = 1.0) -> F32:
    return (Generator(Philox(seed)).standard_normal(shape) * size).astype(np.float32)


def weight_of(type_name: str, shape: tuple[int, ...], seed: int = 0) -> Weight:
    """Return a seeded matrix or stack of matrices; the last number of `shape` is the length of a
    row."""
    import_members("lockstep.engine.quants")
    n = math.prod(shape)
    raw = b"".join(tensor_bytes(stream(seed, type_name), type_name, n, shape[-1] ** -0.5))
    return Weight("w", WeightFormat.member(type_name), shape, np.frombuffer(raw, np.uint8))


def f32_weight(values: F32) -> Weight:
    raw = np.ascontiguousarray(values).view(np.uint8).reshape(-1)
    return Weight("w", WeightFormat.member("F32"), values.shape, raw)


def test_a_product_beyond_float32_is_infinite() -> None:
    x = np.array([[3e38, 3e38]], np.float32)
    out = OPS.linear(x, f32_weight(np.array([[2, 0], [-1, -1], [1, -1]], np.float32)))
    assert out.tolist() == [[math.inf, -math.inf, 0.0]]


def test_matrix_in_chunks_is_multiplied_completely(monkeypatch: pytest.MonkeyPatch) -> None:
    weight, x = weight_of("F16", (7, 8)), floats(3, 2, 8)
    whole = OPS.linear(x, weight)
    monkeypatch.setattr("lockstep.engine.weights.CHUNK", 17)  # two rows at a time
    assert [(s.start, s.stop) for s, _ in weight.chunks()] == [(0, 2), (2, 4), (4, 6), (6, 7)]
    np.testing.assert_allclose(OPS.linear(x, weight), whole, rtol=2 * U)


def test_get_rows_returns_rows_in_the_given_order() -> None:
    weight = weight_of("Q4_0", (5, 64))
    ids = np.array([4, 0, 4], np.int32)
    assert np.array_equal(OPS.get_rows(weight, ids), weight.values()[[4, 0, 4]])
    assert OPS.get_rows(weight, ids[:0]).shape == (0, 64)


ROPES = {
    "plain": RopeParams(8, 10000.0, 1.0, None),
    "scaled": RopeParams(8, 10000.0, 0.25, None),
    "with factors": RopeParams(8, 500000.0, 1.0, np.array([1, 1.5, 4, 8], np.float32)),
}


def test_cached_angles_are_used_only_for_their_positions() -> None:
    x, ops = floats(11, 3, 2, 8), ReferenceOps()
    at = np.array([0, 5, 9], np.int32)
    for params in [*ROPES.values(), *reversed(ROPES.values())]:
        for positions in (at, at, at + 1):
            fresh = ReferenceOps().rope(x, positions, params)
            assert ops.rope(x, positions, params).tobytes() == fresh.tobytes()
    at[:] += 7  # the cache must not depend on the caller's array
    fresh = ReferenceOps().rope(x, at, params)
    assert ops.rope(x, at, params).tobytes() == fresh.tobytes()


def test_top_k_is_sorted_and_the_lowest_id_wins_a_tie() -> None:
    probs = np.array(
        [[0.1, 0.4, 0.4, 0.1], [0.0, -0.0, 0.0, 0.0], [0.2, 0.1, 0.3, 0.4]], np.float32
    )
    assert OPS.top_k(probs, 3).tolist() == [[1, 2, 0], [0, 1, 2], [3, 2, 0]]
    assert (
        OPS.pick(probs, OPS.top_k(probs, 2)).tolist()
        == probs[[[0, 0], [1, 1], [2, 2]], [[1, 2], [0, 1], [3, 2]]].tolist()
    )
