"""The cache gives cells out once, shows each token its own past, and rounds what it stores."""

from typing import Any

import numpy as np
import pytest

from engine.batch import Batch
from engine.errors import InvalidModel, Unsupported
from engine.kv_cache import KvCache
from tests.test_ops_reference import floats


def cache_of(**changes: Any) -> KvCache:
    shape = {"n_layer": 2, "n_head_kv": 3, "n_embd_head": 4, "n_ctx": 6}
    return KvCache(**{**shape, "type_k": "F32", "type_v": "F32", **changes})


def test_cells_are_given_out_in_order_until_there_are_no_more() -> None:
    cache = cache_of()
    assert cache.reserve(Batch.of([1, 2])) == slice(0, 2)
    assert cache.reserve(Batch.of([3, 4, 5, 6], start=2)) == slice(2, 6)
    with pytest.raises(InvalidModel, match="needs 7 cells, the cache has 6; raise n_ctx"):
        cache.reserve(Batch.of([7], start=6))
    assert cache.used == 6  # a refusal takes nothing
    assert cache.positions.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_batch_that_does_not_fit_leaves_the_cache_as_it_was() -> None:
    cache = cache_of()
    cache.reserve(Batch.of([1]))
    with pytest.raises(InvalidModel):
        cache.reserve(Batch.of([1] * 6, start=1))
    assert cache.used == 1
    assert cache.positions.tolist() == [0] + [-1] * 5


def test_a_token_sees_its_own_sequence_up_to_itself() -> None:
    cache = cache_of()
    batch = Batch(
        tokens=np.zeros(5, np.int32),
        positions=np.array([0, 0, 1, 1, 2], np.int32),
        seq_ids=np.array([0, 1, 0, 1, 0], np.int32),
        outputs=np.ones(5, bool),
    )
    cache.reserve(batch)
    assert cache.visible(batch).astype(int).tolist() == [
        [1, 0, 0, 0, 0],
        [0, 1, 0, 0, 0],
        [1, 0, 1, 0, 0],
        [0, 1, 0, 1, 0],
        [1, 0, 1, 0, 1],
    ]
    later = Batch.of([9], start=2, seq_id=1)
    cache.reserve(later)
    assert cache.visible(later).astype(int).tolist() == [[0, 1, 0, 1, 0, 1]]


def test_what_is_visible_goes_by_position_and_not_by_the_order_of_arrival() -> None:
    cache = cache_of()
    late, early = Batch.of([1], start=4), Batch.of([2], start=1)
    cache.reserve(late)
    cache.reserve(early)
    assert cache.visible(early).tolist() == [[False, True]]
    assert cache.visible(late).tolist() == [[True, True]]


@pytest.mark.parametrize(("type_k", "type_v"), [("F32", "F32"), ("F16", "F32"), ("F16", "F16")])
def test_keys_and_values_are_rounded_to_their_own_storage_types(type_k: str, type_v: str) -> None:
    cache = cache_of(type_k=type_k, type_v=type_v)
    dtypes = {"F32": np.float32, "F16": np.float16}
    k, v = floats(1, 2, 3, 4), floats(2, 2, 3, 4)
    cells = cache.reserve(Batch.of([1, 2]))
    cache.store(1, cells, k, v)
    keys, values = cache.read(1)
    assert keys.dtype == dtypes[type_k]
    assert values.dtype == dtypes[type_v]
    assert np.array_equal(keys, k.astype(dtypes[type_k]))
    assert np.array_equal(values, v.astype(dtypes[type_v]))
    assert (np.array_equal(keys, k), np.array_equal(values, v)) == (
        type_k == "F32", type_v == "F32"
    )  # fmt: skip
    assert not np.any(cache.read(0))  # the other layer


def test_a_half_rounds_ties_to_even_and_overflows_without_a_warning() -> None:
    cache = cache_of(type_k="F16", type_v="F16", n_head_kv=1)
    row = np.array([[[2049, 2051, 65520, -1e30]]], np.float32)
    cache.store(0, cache.reserve(Batch.of([1])), row, -row)
    keys, values = cache.read(0)
    assert keys[0, 0].tolist() == [2048, 2052, np.inf, -np.inf]
    assert values[0, 0].tolist() == [-2048, -2052, -np.inf, np.inf]


def test_only_cells_in_use_are_read() -> None:
    cache = cache_of()
    for start in (0, 2):
        batch = Batch.of([1, 2], start=start)
        cache.store(0, cache.reserve(batch), floats(start, 2, 3, 4), floats(start, 2, 3, 4))
        keys, values = cache.read(0)
        assert len(keys) == len(values) == start + 2
    assert np.array_equal(keys, np.concatenate([floats(0, 2, 3, 4), floats(2, 2, 3, 4)]))


@pytest.mark.parametrize("which", ["type_k", "type_v"])
def test_an_unknown_storage_type_is_refused_with_the_known_ones(which: str) -> None:
    with pytest.raises(Unsupported, match=r"no cache storage type 'Q8_0' \(known: F32, F16\)"):
        cache_of(**{which: "Q8_0"})
