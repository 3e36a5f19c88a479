"""Mirrored flash attention: exact halves, and a radius that covers honest runs."""

from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from lockstep.engine.ops.build import Build
from lockstep.engine.ops.flash_mirror import TILE, FlashMirror, settle, to_half
from lockstep.engine.ops.ggml import attention
from lockstep.engine.ops.near import SMALLEST, Near
from lockstep.engine.ops.reference import Bools, ReferenceOps
from lockstep.engine.quants.base import F32
from tests.engine.ops.test_ops_reference import floats

HALVES = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float64)  # 0 to 65504
MIDDLES = (HALVES[1:] + HALVES[:-1]) / 2
SCALE = 0.25
some = settings(max_examples=30, derandomize=True, deadline=None)


def rounded(values: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.array([to_half(float(x)) for x in values])


# --- halves -----------------------------------------------------------------------------------


@pytest.mark.parametrize("sign", [1, -1])
@pytest.mark.parametrize("side", [-np.inf, 0, np.inf])
def test_to_half_matches_numpy_around_every_tie(side: float, sign: int) -> None:
    x = sign * (np.nextafter(MIDDLES, side) if side else MIDDLES)
    expected = x.astype(np.float16).astype(np.float64)
    assert rounded(x).tobytes() == expected.tobytes()


def test_to_half_keeps_halves_and_overflows_to_infinity() -> None:
    assert rounded(-HALVES).tobytes() == (-HALVES).tobytes()
    assert to_half(np.nextafter(65520.0, 0)) == 65504
    assert [to_half(x) for x in (65520.0, -1e300, np.inf)] == [np.inf, -np.inf, np.inf]
    assert np.isnan(to_half(np.nan))


def test_rounding_ties_up_would_be_noticed() -> None:
    assert not np.array_equal(rounded(MIDDLES), HALVES[1:])


@given(at=st.integers(0, 0x7BFF), share=st.floats(-0.5, 0.5), wide=st.floats(0, 1e-2))
@some
def test_settling_covers_every_value_within_the_radius(at: int, share: float, wide: float) -> None:
    z = min(float(HALVES[at]) * (1 + share * 2.0**-10), 65519.0)
    radius = min(wide * (z + 1e-5), 65519 - z)
    y, left = settle(z, radius)
    assert y == to_half(z)
    for t in np.linspace(-1, 1, 21):
        assert abs(to_half(z + t * radius) - y) <= left


def test_settling_leaves_no_radius_if_all_values_round_equally() -> None:
    assert settle(1.0002, 1e-5) == (1.0, 0.0)
    assert settle(1.0 + 2.0**-11, 1e-9)[1] == 2.0**-10  # a tie may be rounded either way


# --- the paths ----------------------------------------------------------------------------------


def inputs(
    seed: int, tokens: int, cells: int, kind: type[Any], heads: int = 4, kv_heads: int = 2
) -> tuple[F32, NDArray[Any], NDArray[Any], Bools]:
    q = floats(seed, tokens, heads, 16, size=2.0)
    k, v = (floats(seed + i, cells, kv_heads, 16).astype(kind) for i in (1, 2))
    visible = np.tri(tokens, cells, cells - tokens, dtype=bool)
    return q, k, v, visible


def attend(args: Any, n_threads: int = 1, n_ctx: int = 512) -> Near:
    mirror, build = FlashMirror(n_threads, n_ctx), Build(lanes=1, n_threads=n_threads)
    q, k, v, visible = args
    with np.errstate(invalid="ignore"):
        return attention.as_node(q, k, v, SCALE, visible, 0.0, None, mirror, build)


def truth_of(args: Any) -> NDArray[np.float64]:
    q, k, v, visible = args
    return ReferenceOps().flash_attn(q, k, v, SCALE, visible).astype(np.float64)


U = 2.0**-24


@pytest.mark.parametrize(("tokens", "cells"), [(1, 1), (3, 20), (63, 63), (64, 64), (70, 200)])
def test_truth_is_within_the_radius_for_an_f32_cache(tokens: int, cells: int) -> None:
    args = inputs(1, tokens, cells, np.float32)
    found, truth = attend(args), truth_of(args)
    assert (np.abs(found.v - truth) <= found.r + U * np.abs(truth)).all()


@pytest.mark.parametrize("tokens", [3, TILE])
def test_one_extra_cell_is_far_outside_the_radius(tokens: int) -> None:
    q, k, v, visible = inputs(1, tokens, 100, np.float32)
    found = attend((q, k, v, visible))
    wrong = truth_of((q, k, v, np.tri(*visible.shape, 101 - tokens, dtype=bool)))
    assert np.median(np.abs(found.v - wrong)[:-1] / found.r[:-1]) > 20


@pytest.mark.parametrize("tokens", [3, TILE])
def test_queries_become_halves_on_the_sequential_path_only(tokens: int) -> None:
    q, k, v, visible = inputs(2, tokens, 80, np.float16)
    as_halves = q.astype(np.float16).astype(np.float32)
    assert not np.array_equal(q, as_halves)
    same = np.array_equal(attend((q, k, v, visible)).v, attend((as_halves, k, v, visible)).v)
    assert same == (tokens < TILE)


def test_radius_covers_the_rounding_of_cancelled_values() -> None:
    """1 + 2**-11 is a tie. After adding -1, the sum is zero or 2**-10; the result is a third of the
    sum."""
    v = np.array([1.0, 2.0**-11, -1.0], np.float16).reshape(3, 1, 1)
    q, k = np.zeros((1, 1, 1), np.float32), np.zeros((3, 1, 1), np.float16)
    found = attend((q, k, v, np.ones((1, 3), bool)))
    other_way = float(np.float32(2.0**-10) * (np.float32(1) / np.float32(3)))
    assert found.v == 0
    assert other_way <= found.r < other_way * (1 + 10 * U)


@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize("tokens", [1, 5, TILE])
@given(seed=st.integers(0, 2**31))
@settings(max_examples=8, derandomize=True, deadline=None)
def test_queries_moved_by_one_bit_stay_within_the_radius(
    kind: type[Any], tokens: int, seed: int
) -> None:
    """The moved queries are within the limits of the scores, so all later values must be within
    their own limits."""
    q, k, v, visible = inputs(seed, tokens, 70, kind)
    wide = q.astype(kind).astype(np.float32)
    before = attend((wide, k, v, visible))
    moved = np.where(floats(seed + 9, *wide.shape) > 0, np.float32(np.inf), np.float32(-np.inf))
    nudged = np.nextafter(wide, moved).astype(np.float32)
    after = direct((nudged, k, v, visible))
    off = np.abs(after - before.v)
    assert (off <= before.r + U * np.abs(before.v)).all()
    far = direct((wide * np.float32(1.01), k, v, visible))
    assert (np.abs(far - before.v) > before.r).any()


def direct(args: Any, n_threads: int = 1) -> NDArray[np.float64]:
    """Compute attention without converting queries, because the conversion would hide a small
    change."""
    with patch.object(attention, "halves", lambda x: x):
        return attend(args, n_threads).v


# --- pieces of the cache ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("threads", "n_ctx", "tokens", "cells", "edges"),
    [
        (2, 512, 1, 256, [0, 256]),  # 256 used cells are too few to split
        (2, 512, 1, 257, [0, 256, 257]),  # padded to 512 cells
        (2, 512, 2, 500, [0, 500]),  # two tokens are not split
        (1, 512, 1, 500, [0, 500]),
        (3, 512, 1, 400, [0, 171, 342, 400]),
        (2, 1024, 1, 600, [0, 384, 600]),
        (4, 1024, 1, 257, [0, 128, 256, 257, 257]),
        (2, 300, 1, 290, [0, 290]),  # the cache is smaller than the padding
    ],
)
def test_cache_is_cut_into_the_pieces_of_llama_cpp(
    threads: int, n_ctx: int, tokens: int, cells: int, edges: list[int]
) -> None:
    ops = FlashMirror(n_threads=threads, n_ctx=n_ctx)
    assert ops.pieces(tokens, cells).tolist() == edges


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_merged_pieces_change_only_roundings(kind: type[Any]) -> None:
    args = inputs(5, 1, 500, kind)
    whole, cut = attend(args), attend(args, n_threads=3)
    assert not np.array_equal(whole.v, cut.v)
    coarse = 2.0**-8 if kind is np.float16 else 0.0
    assert (np.abs(cut.v - truth_of(args)) <= cut.r + U + coarse).all()


@pytest.mark.parametrize("kind", [np.float32, np.float16])
@pytest.mark.parametrize(("tokens", "threads"), [(1, 2), (4, 1), (TILE, 1)])
def test_token_without_visible_cells_gets_zeros(kind: type[Any], tokens: int, threads: int) -> None:
    q, k, v, visible = inputs(6, tokens, 500, kind)
    visible[0] = False
    found = attend((q, k, v, visible), n_threads=threads)
    assert not found.v[0].any()
    assert (found.r[0] <= SMALLEST).all()
    assert found.v[1:].all()


@pytest.mark.parametrize("kind", [np.float32, np.float16])
def test_hidden_cells_do_not_matter(kind: type[Any]) -> None:
    q, k, v, visible = inputs(7, 4, 20, kind)
    visible[:, 7] = False
    expected = attend((q, k, v, visible)).v
    k[7], v[7] = 100, np.nan
    assert np.array_equal(attend((q, k, v, visible)).v, expected)


@pytest.mark.parametrize("heads", [(1, 1), (4, 4), (4, 2), (4, 1)])
@pytest.mark.parametrize("tokens", [2, TILE])
def test_each_kv_head_is_shared_by_a_run_of_heads(tokens: int, heads: tuple[int, int]) -> None:
    args = inputs(8, tokens, 70, np.float32, *heads)
    found, truth = attend(args), truth_of(args)
    assert (np.abs(found.v - truth) <= found.r + U * np.abs(truth)).all()


def test_queries_beyond_half_are_infinite_and_give_nan() -> None:
    q, k, v, visible = inputs(9, 2, 5, np.float16)
    q[0, 0, 0], k[:, 0, 0] = 1e6, 0.5
    assert np.isnan(attend((q, k, v, visible)).v[0, 0])


@pytest.mark.parametrize("kind", [np.float32, np.float16])
@given(seed=st.integers(0, 2**31))
@settings(max_examples=4, derandomize=True, deadline=None)
def test_piece_below_the_largest_score_adds_both_errors(kind: type[Any], seed: int) -> None:
    """The second piece alone has nonzero values, so the result has the errors of all its
    factors."""
    q, k, v, visible = inputs(seed, 1, 512, kind)
    wide = q.astype(kind).astype(np.float32)
    visible[:], v[0] = False, 0
    visible[0, [0, 300]] = True
    k[0], k[300] = np.sign(wide[0, ::2]) * 3, -np.sign(wide[0, ::2]) / 2
    before = attend((wide, k, v, visible), n_threads=2)
    moved = np.nextafter(wide, np.float32(np.inf) * np.sign(wide)).astype(np.float32)
    after = direct((moved, k, v, visible), n_threads=2)
    off = np.abs(after - before.v)
    assert (off <= before.r + U * np.abs(before.v)).all()
    far = direct((wide * np.float32(1.001), k, v, visible), n_threads=2)
    assert (np.abs(far - before.v) > before.r).any()
