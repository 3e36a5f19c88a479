"""FLASH_ATTN_EXT with sinks, in pieces and in tiles, compared with a plain softmax."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from lockstep.engine.ops.build import Build
from lockstep.engine.ops.ggml.base import expect
from lockstep.engine.ops.near import Expected
from tests.shadow_nodes import node, normal, params

SCALE, HEADS, DIM = 0.3, 4, 16
# less than all scores, and more than all scores
LOW, HIGH = [-40.0, -2.0, 0.0, 1.0], [5.0, 12.0, 30.0, 60.0]
FORMS = [(1, 600, 1), (1, 600, 2), (1, 1100, 3), (3, 33, 2), (64, 90, 2)]  # tokens, cells, threads


def inputs(tokens: int, cells: int, kind: Any) -> list[Any]:
    """Return q, k, v and a mask that hides the cells after a token's own."""
    q = normal(tokens, HEADS, tokens, DIM)
    k, v = (normal(cells + i, 2, cells, DIM).astype(kind) for i in (1, 2))
    seen = np.arange(cells)[None, :] <= np.arange(tokens)[:, None] + cells - tokens
    return [q, k, v, np.where(seen, 0.0, -np.inf).astype(np.float16)]


def judged(sources: list[Any], sinks: Any, threads: int) -> Expected:
    tokens = sources[0].shape[1]
    result = np.zeros((tokens, HEADS, DIM), np.float32)
    asked = node("FLASH_ATTN_EXT", result, *sources, sinks, held=params(SCALE, 0.0, 0.0))
    return expect(asked, Build(lanes=16, n_threads=threads))


def scores(sources: list[Any]) -> NDArray[np.float64]:
    """Return the scores, (heads, tokens, cells), with minus infinity for hidden cells."""
    q, k, _, mask = sources
    keys = np.repeat(k.astype(np.float64), HEADS // len(k), axis=0).transpose(0, 2, 1)
    found: NDArray[np.float64] = q.astype(np.float64) @ keys * np.float32(SCALE)
    return np.where(np.isneginf(mask), -np.inf, found)


def softmax(sources: list[Any], sinks: Any) -> NDArray[np.float64]:
    """Return the attention in float64, (tokens, heads, dim), computed from all scores at once."""
    s = scores(sources)
    extra = np.broadcast_to(np.float64(sinks)[:, None, None], (*s.shape[:2], 1))
    s = np.concatenate([s, extra], axis=-1)
    powers = np.exp(s - s.max(axis=-1, keepdims=True))
    weights = (powers / powers.sum(axis=-1, keepdims=True))[..., :-1]
    values = np.repeat(sources[2].astype(np.float64), 2, axis=0)
    found: NDArray[np.float64] = (weights @ values).transpose(1, 0, 2)
    return found


@pytest.mark.parametrize("sinks", [LOW, HIGH], ids=["low", "high"])
@pytest.mark.parametrize(("tokens", "cells", "threads"), FORMS)
def test_sink_adds_a_score_without_a_value(
    tokens: int, cells: int, threads: int, sinks: list[float]
) -> None:
    sources = inputs(tokens, cells, np.float32)
    found = judged(sources, np.float32(sinks), threads)
    truth = softmax(sources, sinks)[None]
    assert (np.abs(found.value - truth) <= found.allowed).all()
    widest = np.asarray(found.allowed).max(axis=(1, 3))
    assert (widest < 2e-3 * np.abs(truth).max(axis=(1, 3))).all()
    without = softmax(sources, [-np.inf] * HEADS)[None]
    assert (np.abs(found.value - without) > found.allowed)[..., 3, :].mean() > 0.9


@pytest.mark.parametrize("sinks", [LOW, HIGH], ids=["low", "high"])
@pytest.mark.parametrize("hidden", [slice(0, 300), slice(300, 600), slice(0, 600)])
def test_sink_over_an_empty_piece_keeps_a_bound(hidden: slice, sinks: list[float]) -> None:
    sources = inputs(1, 600, np.float32)
    sources[3][:, hidden] = -np.inf
    found = judged(sources, np.float32(sinks), 2)
    assert np.isfinite(found.allowed).all()
    assert (np.abs(found.value - softmax(sources, sinks)[None]) <= found.allowed).all()


def test_sink_of_minus_infinity_changes_nothing() -> None:
    sources = inputs(1, 600, np.float32)
    found = judged(sources, np.full(HEADS, -np.inf, np.float32), 2)
    truth = softmax(sources, [-np.inf] * HEADS)[None]
    assert (np.abs(found.value - truth) <= found.allowed).all()


@pytest.mark.parametrize("kind", [np.float16, np.float32])
def test_hidden_cells_do_not_matter_with_sinks(kind: Any) -> None:
    sources = inputs(1, 600, kind)
    sources[3][:, 7] = -np.inf
    before = judged(sources, np.float32(LOW), 2)
    sources[1][:, 7], sources[2][:, 7] = 100, np.nan
    after = judged(sources, np.float32(LOW), 2)
    assert np.array_equal(before.value, after.value)


@pytest.mark.parametrize("score", [np.nan, -np.inf])
def test_nan_score_reaches_the_result(score: float) -> None:
    """ggml adds exp(NaN - top), and exp(-inf + inf) before any other score."""
    sources = inputs(1, 600, np.float32)
    sources[0][0], sources[1][0, 0] = 1.0, score
    found = judged(sources, np.float32(LOW), 2).value
    assert np.isnan(found[0, 0, 0]).all()
    assert np.isfinite(found[0, 0, 2:]).all()
