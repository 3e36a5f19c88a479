"""Contents of memories: keys and values in cells, recurrent states, or nothing."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from lockstep.engine.batch import Batch
from lockstep.engine.errors import InvalidBatch, NoRoom, Unsupported
from lockstep.engine.memory.attention import Attention
from lockstep.engine.memory.base import LayerView, Memory
from lockstep.engine.memory.decode import decode, entries_of
from lockstep.engine.memory.hybrid import Hybrid
from lockstep.engine.memory.kinds import memory_of
from lockstep.engine.memory.none import NoMemory
from lockstep.engine.memory.recurrent import Recurrent, States
from lockstep.engine.memory.store import KeysValues, Numbers, never
from lockstep.engine.memory.window import Window
from lockstep.engine.quants.base import F32
from tests.engine.ops.test_ops_reference import floats

HEADS = KeysValues(3, 4, 4)
SEES_FOUR = KeysValues(3, 4, 4, window=4)
STATES = States(((2, 3), (5,)))


def memory(*kept: KeysValues | States, **changes: Any) -> Memory:
    shape = {"size": 6, "n_seq": 3, "unified": True, "n_ubatch": None, "causal": True}
    return memory_of(
        kept, **{**shape, "type_k": "F32", "type_v": "F32", "rotate": never, **changes}
    )


def run(memory: Memory, batch: Batch, *, n_ubatch: int = 64) -> list[Mapping[int, LayerView]]:
    """Return the views of each ubatch after its tokens are in the memory.

    Tokens are stored in place of keys and values, and are added up in states.
    """
    seen = []

    def compute(ubatch: Batch, views: Mapping[int, LayerView]) -> F32:
        for layer, view in views.items():
            tokens = ubatch.tokens.astype(np.float32)
            if isinstance(memory, Recurrent) or (isinstance(memory, Hybrid) and layer == 0):
                before = view.read()
                sums = tokens.reshape(len(before[0]), -1).sum(axis=1)
                view.store(*(x + sums.reshape(-1, *[1] * (x.ndim - 1)) for x in before))
            else:
                rows = np.broadcast_to(tokens[:, None, None], (len(tokens), 3, 4))
                view.store(rows, -rows)
        seen.append(views)
        return ubatch.tokens[ubatch.outputs, None].astype(np.float32)

    logits = decode(entries_of(batch), memory, compute, n_vocab=100, n_ubatch=n_ubatch)
    assert logits is not None
    assert logits[:, 0].tolist() == batch.tokens[batch.outputs].tolist()
    return seen


def interleaved(n: int) -> Batch:
    """Return tokens 10, 20, 11, 21, ... of two sequences."""
    return Batch(
        tokens=np.stack([np.arange(n) + 10, np.arange(n) + 20], axis=1).ravel().astype(np.int32),
        positions=np.repeat(np.arange(n, dtype=np.int32), 2),
        seq_ids=np.tile(np.array([0, 1], np.int32), n),
        outputs=np.ones(2 * n, bool),
    )


def keys(view: LayerView) -> list[int]:
    return [int(x) for x in view.read()[0][:, 0, 0]]


# --- cells --------------------------------------------------------------------------------------


def test_memory_kind_follows_from_kept_state() -> None:
    kinds = {
        Attention: memory(HEADS, HEADS),
        Window: memory(SEES_FOUR, HEADS),
        Recurrent: memory(STATES),
        Hybrid: memory(STATES, HEADS),
        NoMemory: memory(HEADS, causal=False),
    }
    assert [type(each) for each in kinds.values()] == list(kinds)


def test_batch_that_does_not_fit_leaves_the_memory_unchanged() -> None:
    full = memory(HEADS)
    run(full, Batch.of([1, 2]))
    with pytest.raises(NoRoom, match="no room for a batch of 5 tokens"):
        run(full, Batch.of([3] * 5, start=2))
    assert full.pos_max(0) == 1
    (views,) = run(full, Batch.of([3, 4, 5, 6], start=2))
    assert keys(views[0]) == [1, 2, 3, 4, 5, 6]


def test_a_batch_that_leaves_a_gap_is_refused() -> None:
    cells = memory(HEADS)
    run(cells, Batch.of([1, 2]))
    with pytest.raises(InvalidBatch, match="not consecutive"):
        run(cells, Batch.of([3], start=4))


def test_token_sees_its_own_sequence_up_to_itself() -> None:
    cells = memory(HEADS)
    (views,) = run(cells, interleaved(2))
    assert views[0].visible(0).astype(int).tolist() == [
        [1, 0, 0, 0],
        [0, 1, 0, 0],
        [1, 0, 1, 0],
        [0, 1, 0, 1],
    ]
    (views,) = run(cells, Batch.of([9], start=2, seq_id=1))
    assert views[0].visible(0).astype(int).tolist() == [[0, 1, 0, 1, 1]]
    assert keys(views[0]) == [10, 20, 11, 21, 9]


def test_only_cells_up_to_the_last_in_use_are_read() -> None:
    cells = memory(HEADS)
    run(cells, Batch.of([1, 2, 3]))
    cells.seq_rm(0, 1, -1)
    (views,) = run(cells, Batch.of([4], start=1))
    assert keys(views[0]) == [1, 4]


def test_window_layers_free_cells_that_no_token_sees() -> None:
    window = memory(SEES_FOUR, HEADS, size=16, n_seq=1, n_ubatch=1)
    assert isinstance(window, Window)
    assert window.near.size == 256  # padded to 256 cells, as in llama.cpp
    window = Window(
        size=16, n_seq=1, unified=True, window=4, n_ubatch=None,
        numbers=Numbers({0: SEES_FOUR, 1: HEADS}),
    )  # fmt: skip
    window.near = Attention(
        size=5, n_seq=1, unified=True, window=4, numbers=Numbers({0: SEES_FOUR})
    )
    for at in range(8):
        (views,) = run(window, Batch.of([at], start=at))
    assert keys(views[0]) == [5, 6, 7, 3, 4]
    assert views[0].visible(4).tolist() == [[True, True, True, False, True]]
    assert keys(views[1]) == list(range(8))
    assert views[1].visible(0).all()


@pytest.mark.parametrize("unified", [True, False])
def test_keys_and_values_follow_their_cells(unified: bool) -> None:
    cells = memory(HEADS, size=8, unified=unified)
    run(cells, interleaved(3))
    cells.seq_cp(0, 2, -1, -1)
    cells.seq_rm(0, -1, -1)
    (views,) = run(cells, Batch.of([5], start=3, seq_id=2))
    seen = [key for key, on in zip(keys(views[0]), views[0].visible(0)[0], strict=True) if on]
    assert sorted(seen) == [5, 10, 11, 12]


def test_shifted_keys_are_rotated_once() -> None:
    turns: list[tuple[int, list[int], list[int]]] = []

    def rotate(layer: int, keys: F32, deltas: Any) -> F32:
        turns.append((layer, keys[:, 0, 0].astype(int).tolist(), deltas.tolist()))
        return keys + deltas[:, None, None].astype(np.float32) / 2

    cells = memory(HEADS, HEADS, size=16, rotate=rotate)
    run(cells, Batch.of([1, 2, 3, 4]))
    cells.seq_rm(0, 1, 2)
    cells.seq_add(0, 2, -1, -1)
    saved = cells.save(0)
    assert turns == [(0, [3, 4], [-1, -1]), (1, [3, 4], [-1, -1])]  # the saved keys were moved
    (views,) = run(cells, Batch.of([9], start=3))
    assert turns[2:] == turns[:2]
    assert views[1].read()[0][:, 0, 0].tolist() == [1, 9, 2.5, 3.5]
    cells.load(1, saved)
    (views,) = run(cells, Batch.of([8], start=3, seq_id=1))
    keys, seen = views[1].read()[0][:, 0, 0], views[1].visible(0)[0]
    assert sorted(keys[seen].tolist()) == [1, 2.5, 3.5, 8]


def test_restored_state_has_the_saved_numbers() -> None:
    cells = memory(HEADS, size=16)
    run(cells, interleaved(2))
    saved = cells.save(-1)
    cells.clear()
    run(cells, Batch.of([7] * 5))
    cells.load(-1, saved)
    (views,) = run(cells, Batch.of([3], start=2))
    assert keys(views[0])[:4] == [10, 20, 11, 21]


# --- storage types ------------------------------------------------------------------------------


@pytest.mark.parametrize(("type_k", "type_v"), [("F32", "F32"), ("F16", "F32"), ("F16", "F16")])
def test_keys_and_values_are_rounded_to_their_own_storage_types(type_k: str, type_v: str) -> None:
    dtypes = {"F32": np.float32, "F16": np.float16}
    k, v = floats(1, 2, 3, 4), floats(2, 2, 3, 4)
    (views,) = run(memory(HEADS, HEADS, type_k=type_k, type_v=type_v), Batch.of([1, 2]))
    views[1].store(k, v)
    keys, values = views[1].read()
    assert (keys.dtype, values.dtype) == (dtypes[type_k], dtypes[type_v])
    assert np.array_equal(keys, k.astype(dtypes[type_k]))
    assert np.array_equal(values, v.astype(dtypes[type_v]))
    exact = np.array_equal(keys, k), np.array_equal(values, v)
    assert exact == (type_k == "F32", type_v == "F32")
    assert not np.array_equal(views[0].read()[0], keys)  # the layers differ


def test_a_half_rounds_ties_to_even_and_overflows_without_a_warning() -> None:
    (views,) = run(memory(HEADS, type_k="F16", type_v="F16"), Batch.of([1]))
    row = np.broadcast_to(np.array([2049, 2051, 65520, -1e30], np.float32), (1, 3, 4))
    views[0].store(row, -row)
    keys, values = views[0].read()
    assert keys[0, 0].tolist() == [2048, 2052, np.inf, -np.inf]
    assert values[0, 0].tolist() == [-2048, -2052, -np.inf, np.inf]


@pytest.mark.parametrize("which", ["type_k", "type_v"])
def test_unknown_storage_type_is_refused_with_the_known_types(which: str) -> None:
    with pytest.raises(Unsupported, match=r"'Q2_K' \(known: F32, F16, Q8_0, "):
        memory(HEADS, **{which: "Q2_K"})


# --- states -------------------------------------------------------------------------------------


def test_state_continues_its_sequence_and_starts_at_zero() -> None:
    states = memory(STATES)
    run(states, interleaved(2))
    run(states, Batch.of([5], start=2))
    (views,) = run(states, Batch.of([1], start=2, seq_id=1))
    first, second = views[0].read()
    assert first.shape == (1, 2, 3)
    assert second.shape == (1, 5)
    assert (first == 20 + 21 + 1).all()
    (views,) = run(states, Batch.of([0], start=3))
    assert (views[0].read()[1] == 10 + 11 + 5).all()
    (views,) = run(states, Batch.of([4], seq_id=2))
    assert (views[0].read()[1] == 4).all()


def test_split_batch_has_equal_shares_and_its_own_row_order() -> None:
    states = memory(STATES)
    seen = run(states, interleaved(3), n_ubatch=4)  # `run` asserts the order of rows
    assert len(seen) == 2
    assert [x.tolist() for x in seen[1][0].read()[1][:, 0]] == [10 + 11 + 12, 20 + 21 + 22]


def test_copy_of_a_state_stays_when_the_original_continues() -> None:
    states = memory(STATES)
    run(states, Batch.of([1, 2]))
    states.seq_cp(0, 1, -1, -1)
    saved = states.save(0)
    run(states, Batch.of([3], start=2))
    (views,) = run(states, Batch.of([0], start=2, seq_id=1))
    assert (views[0].read()[0] == 1 + 2).all()
    states.load(2, saved)
    (views,) = run(states, Batch.of([7], start=2, seq_id=2))
    assert (views[0].read()[0] == 1 + 2 + 7).all()


def test_hybrid_memory_gives_each_layer_its_own_kind() -> None:
    both = memory(STATES, HEADS, size=8)
    run(both, interleaved(2))
    (views,) = run(both, Batch.of([5], start=2))
    assert (views[0].read()[0] == 10 + 11 + 5).all()
    assert keys(views[1]) == [10, 11, 20, 21, 5]  # equal parts, one sequence after the other


# --- none ---------------------------------------------------------------------------------------


def test_batch_without_memory_sees_itself_in_both_directions() -> None:
    nothing = memory(HEADS, causal=False)
    run(nothing, interleaved(2))
    (views,) = run(nothing, interleaved(2))
    assert views[0].visible(0).astype(int).tolist() == [[1, 0, 1, 0], [0, 1, 0, 1]] * 2
    assert keys(views[0]) == [10, 20, 11, 21]
    (views,) = run(nothing, Batch.of(range(5)))
    assert views[0].visible(2).astype(int)[2].tolist() == [0, 1, 1, 1, 0]
    with pytest.raises(NoRoom):
        run(nothing, Batch.of(range(5)), n_ubatch=4)
